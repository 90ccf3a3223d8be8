"""The codecs of this process, one for each wire."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["WIRES", "codec_for"]

# Where the codec of each wire lives; imported on use.
WIRES = {
    "openai-chat": "kit_jupyter.providers.openai_chat:OpenAIChatCodec",
    "openai-responses": "kit_jupyter.providers.openai_responses:OpenAIResponsesCodec",
    "anthropic-messages": "kit_jupyter.providers.anthropic:AnthropicCodec",
    "gemini": "kit_jupyter.providers.gemini:GeminiCodec",
}
_codecs: dict[str, Any] = {}


def codec_for(wire: str) -> Any:
    """The process's codec of this wire; one for all, so that kept pieces are shared."""
    codec = _codecs.get(wire)
    if codec is None:
        module, _, attribute = WIRES[wire].partition(":")
        codec = _codecs[wire] = getattr(importlib.import_module(module), attribute)()
    return codec
