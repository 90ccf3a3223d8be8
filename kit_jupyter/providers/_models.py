"""What is known of models by their names, without asking anyone and without a heavy import.

The windows agree with the ``genai-prices`` table, which a test checks; that package holds every model,
but its import costs as much as the first answer. Names nobody knows are fine: nothing is claimed of them.
"""

from __future__ import annotations

import re
from functools import lru_cache

from kit_jupyter.provider import ModelInfo

__all__ = ["info_of"]

_ALL = frozenset(("image", "pdf"))
_WITH_AUDIO = frozenset(("image", "pdf", "audio", "file"))
_IMAGE = frozenset(("image",))
_TEXT: frozenset[str] = frozenset()

# First match counts. Window in thousands of tokens as the vendor counts them; None: not known.
_FAMILIES: tuple[tuple[str, int | None, frozenset[str] | None], ...] = (
    (r"claude-(fable|mythos)-", 1_000_000, _ALL),
    (r"claude-opus-(4[-.][678]|5)|claude-sonnet-(4[-.]6|5)|claude-haiku-5[-.]5", 1_000_000, _ALL),
    (r"claude-", 200_000, _ALL),
    (r"gpt-(6|5\.6)", 1_050_000, _ALL),
    (r"gpt-5\.5", 1_000_000, _ALL),
    (r"gpt-5\.4(-pro)?(-\d{4}|$)", 1_050_000, _ALL),
    (r"gpt-5\.3(-\d{4}|-chat|$)", 128_000, _ALL),
    (r"gpt-5", 400_000, _ALL),
    (r"gpt-4\.1", 1_000_000, _ALL),
    (r"gpt-4o(-mini)?(-\d{4}|$)|chatgpt-4o", 128_000, _ALL),
    (r"gpt-4-turbo", 128_000, _IMAGE),
    (r"gpt-3\.5-turbo", 16_385, _TEXT),
    (r"gpt-audio", 128_000, frozenset(("audio",))),
    (r"gpt-oss", 131_072, _TEXT),
    (r"(^|/)o(1|3|4-mini)(-pro)?(-\d{4}|$)", 200_000, _ALL),
    (r"(^|/)o3-mini", 200_000, _TEXT),
    (
        r"gemini-2\.5-(flash|pro)(-lite)?(-preview[-0-9]*)?$|gemini-[34]([.\d]*)-(flash|pro)(-lite)?(-preview)?$",
        1_000_000,
        _WITH_AUDIO,
    ),
    (r"gemini-2\.0-flash", 1_000_000, _WITH_AUDIO),
    (r"grok-4[-.](1-)?fast|grok-4-1-fast", 2_000_000, _IMAGE),
    (r"grok-4\.(20|3)", 1_000_000, _IMAGE),
    (r"grok-4\.[567]", 500_000, _IMAGE),
    (r"grok-4|grok-code", 256_000, None),
    (r"grok-3", 131_072, _TEXT),
    (r"deepseek-(v4|flash)", 1_000_000, _TEXT),
    (r"deepseek-v3", 128_000, _TEXT),
    (r"deepseek-(chat|reasoner)", 64_000, _TEXT),
    (r"kimi-k3", 1_048_576, None),
    (r"kimi-k2\.", 262_144, None),
    (r"mistral-large-4", 1_048_576, None),
    (r"mistral-(large-2512|medium-3-5|small-2603)", 262_144, None),
    (r"codestral", 256_000, _TEXT),
    (r"llama-3\.3-70b", 128_000, _TEXT),
)
_COMPILED = tuple((re.compile(pattern), window, takes) for pattern, window, takes in _FAMILIES)


@lru_cache(maxsize=256)
def info_of(model_id: str) -> ModelInfo:
    """Facts of a model by its id, also behind a router's prefix; empty where nothing is known.

    Examples
    --------
    >>> info_of("anthropic/claude-sonnet-4.5").context_window
    200000
    >>> info_of("a-model-of-next-year").context_window is None
    True
    """
    name = model_id.lower()
    for pattern, window, takes in _COMPILED:
        if pattern.search(name):
            return ModelInfo(context_window=window, takes=takes)
    return ModelInfo()
