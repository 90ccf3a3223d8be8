"""A stored message at a glance: one line that says who spoke and what the message holds.

The session's tree and the list of a conversation's messages are made of such lines. What a model or a
stranger wrote may hold escape sequences; they are written out.
"""

from __future__ import annotations

import re
from typing import SupportsIndex, overload

from kit_jupyter.messages import (
    Assistant,
    MediaPart,
    Message,
    Part,
    RefusalPart,
    ServerPart,
    ThinkingPart,
    ToolResult,
    User,
    text_of,
)

__all__ = ["Messages", "clipped", "glance", "who"]

HEAD, TAIL = 20, 80  # messages of a long conversation that are shown
_ENVELOPE = re.compile(r"</?system-reminder>")


def clipped(text: str, limit: int) -> str:
    """The first words of a text in one line, with a sign where more follows.

    Examples
    --------
    >>> clipped("one  two\\n three", 40), clipped("one two three", 8)
    ('one two three', 'one two…')
    """
    words = " ".join(text[: 20 * limit].split())
    if not words.isprintable():
        words = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in words)
    whole = len(words) <= limit and len(text) <= 20 * limit
    return words if whole else words[: limit - 1].rstrip() + "…"


def who(message: Message) -> str:
    """Who said it: a role, or what added it when it is not the person's words."""
    if isinstance(message, Assistant) and message.result.kind == "summary":
        return "summary"
    if isinstance(message, User) and message.source is not None:
        return f"added ({message.source})"
    return message.role


def glance(message: Message, limit: int = 60) -> str:
    """What a message holds, in a line and never empty: words, else what stands there in place of words.

    Examples
    --------
    >>> from kit_jupyter.messages import TextPart, now
    >>> glance(ToolResult(id="m", time=now(), call_id="c", name="area", parts=(TextPart("6"),)))
    'area: 6'
    >>> glance(User(id="m", time=now(), parts=()))
    '(empty)'
    """
    parts = message.parts
    if isinstance(message, User) and message.source is None and text_of(parts[:1]).strip():
        parts = parts[:1]  # a person's own words, without what they attached
    words = clipped(_ENVELOPE.sub(" ", text_of(parts)), limit)
    if isinstance(message, ToolResult):
        name = clipped(message.name, 40) + (" (error)" if message.is_error else "")
        return f"{name}: {words or _beside(parts)}"
    if not isinstance(message, Assistant):
        return words or _beside(parts)
    calls = "calls " + clipped(", ".join(call.name for call in message.tool_calls), limit) if message.tool_calls else ""
    if words and calls:
        return f"{words} [{calls}]"
    return words or calls or _beside(parts, but_empty=_end(message))


def _end(message: Assistant) -> str:
    """Why an answer has no words, as far as that is stored."""
    if message.result.error is not None:
        return f"(failed: {clipped(message.result.error.message, 60)})"
    return "(stopped)" if message.result.finish == "aborted" else ""


def _beside(parts: tuple[Part, ...], but_empty: str = "") -> str:
    """What a message without words holds."""
    held = list(dict.fromkeys(filter(None, map(_kind, parts))))
    return " ".join(filter(None, (", ".join(held), but_empty))) or "(empty)"


def _kind(part: Part) -> str:
    match part:
        case RefusalPart():
            return f"refuses: {clipped(part.text, 50)}"
        case MediaPart():
            return f"({clipped(' '.join((part.media_type, part.name)).strip(), 60)})"
        case ServerPart():
            return f"({clipped(part.name or part.kind, 40)})"
        case ThinkingPart():
            return "(thinking only)"
    return ""


class Messages(tuple[Message, ...]):
    """A tuple of stored messages that shows itself with one line a message.

    Examples
    --------
    >>> from kit_jupyter.messages import TextPart, now
    >>> Messages([User(id="m", time=now(), parts=(TextPart("How large is it?"),))])
    1 message
      0  user: How large is it?
    """

    __slots__ = ()

    @overload
    def __getitem__(self, at: SupportsIndex) -> Message: ...

    @overload
    def __getitem__(self, at: slice) -> Messages: ...

    def __getitem__(self, at: SupportsIndex | slice) -> Message | Messages:
        found = super().__getitem__(at)
        return Messages(found) if isinstance(at, slice) else found  # type: ignore[arg-type, return-value]

    def __repr__(self) -> str:
        if not self or not all(isinstance(message, Message) for message in self):
            return super().__repr__()  # `dataclasses.asdict` makes one of dicts
        count = len(self)
        shown = list(enumerate(self))
        lines = [f"{at:>3}  {who(message)}: {glance(message, 80)}" for at, message in shown[:HEAD]]
        if count > HEAD + TAIL:
            lines.append(f"     … {count - HEAD - TAIL:,} more …")
        rest = shown[max(HEAD, count - TAIL) :]
        lines += [f"{at:>3}  {who(message)}: {glance(message, 80)}" for at, message in rest]
        return "\n".join((f"{count:,} message{'s' if count > 1 else ''}", *lines))
