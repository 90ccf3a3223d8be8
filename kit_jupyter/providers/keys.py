"""API keys: where they come from, and that their value is never shown."""

from __future__ import annotations

import re

__all__ = ["mask"]

# Shapes that vendors document for their keys; the prefix stays, so that a reader sees what kind was there.
_SHAPES = re.compile(
    r"""(?x)
    (?<![A-Za-z0-9])
    (?P<prefix>
        sk-ant-[a-z0-9]+- | sk-or-v1- | sk-proj- | sk-svcacct- | sk- | gsk_ | xai- | hf_ | pplx- | csk- | fw_ | fpk_
      | nvapi- | AIza | AQ\. | ghp_ | gho_ | ghu_ | ghs_ | github_pat_ | glpat- | xox[abprs]- | r8_ | tgp_v1_ | ABSK
      | AKIA | ASIA | ya29\.
    ) [A-Za-z0-9_\-\.=/+]{12,}
  | (?P<scheme> \b[Bb]earer\s+ ) [A-Za-z0-9_\-\.=/+~]{8,}
  | (?P<query> [?&](?:key|api_key|api-key|access_token|token)= ) [^&\s"'<>]{4,}
  | (?P<jwt> \beyJ ) [A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{4,}\.[A-Za-z0-9_\-]{4,}
    """
)
_seen: set[str] = set()


def remember(secret: str) -> None:
    """Mask this value wherever `mask` meets it from now on."""
    if len(secret) >= 8:
        _seen.add(secret)


def mask(text: str, *secrets: str) -> str:
    """`text` without keys: those given, those used in this process, and those of a known shape.

    Examples
    --------
    >>> mask("Incorrect API key provided: sk-proj-abcdefghijklmnop")
    'Incorrect API key provided: sk-proj-…'
    >>> mask("https://host/v1?key=abcd1234&alt=sse")
    'https://host/v1?key=…&alt=sse'
    """
    for secret in (*secrets, *_seen):
        if len(secret) >= 4 and secret in text:
            text = text.replace(secret, "…")
    return _SHAPES.sub(lambda m: next(part for part in m.groups() if part is not None) + "…", text)
