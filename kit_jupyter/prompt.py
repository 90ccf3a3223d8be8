"""What is sent this once: prompt messages, made from a branch, changed only through an editor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal
from weakref import WeakKeyDictionary

from kit_jupyter.messages import (
    Assistant,
    Message,
    Part,
    System,
    TextPart,
    ToolCallPart,
    ToolResult,
    User,
)

__all__ = ["PromptMessage", "ToolResultPart", "from_branch"]

INTERRUPTED = "[no result: the call was interrupted before it finished]"


@dataclass(frozen=True, slots=True)
class ToolResultPart:
    """The answer to one tool call, as it is sent."""

    call_id: str
    name: str
    parts: tuple[Part, ...]
    is_error: bool = False
    type: Literal["tool_result"] = "tool_result"


PromptPart = Part | ToolResultPart


@dataclass(frozen=True, slots=True, weakref_slot=True)
class PromptMessage:
    """One message of a request; never stored.

    Parameters
    ----------
    role : {"user", "assistant", "system", "tool"}
        Hooks may make user and assistant messages only.
    parts : tuple
        Parts; a ``tool`` message holds `ToolResultPart` only.
    message_id : str
        The stored message it shows, empty for one made by an edit.
    origin : str
        Where it came from: ``history``, ``steer``, ``follow-up``, ``extension:NAME``, ``hook:NAME``, ``repair``.
    edits : tuple of str
        Who changed it.
    """

    role: Literal["user", "assistant", "system", "tool"]
    parts: tuple[PromptPart, ...]
    message_id: str = field(default="", kw_only=True)
    origin: str = field(default="history", kw_only=True)
    edits: tuple[str, ...] = field(default=(), kw_only=True)


# One prompt message per stored message for as long as that lives: codecs keep encoded bytes by identity.
_shown: WeakKeyDictionary[Message, PromptMessage] = WeakKeyDictionary()


def _show(message: Message) -> PromptMessage:
    known = _shown.get(message)
    if known is not None:
        return known
    match message:
        case ToolResult():
            part = ToolResultPart(message.call_id, message.name, message.parts, message.is_error)
            made = PromptMessage("tool", (part,), message_id=message.id)
        case Assistant():
            made = PromptMessage("assistant", message.parts, message_id=message.id)
        case User() | System():
            made = PromptMessage(message.role, message.parts, message_id=message.id, origin=message.source or "history")
    _shown[message] = made
    return made


def from_branch(messages: Sequence[Message]) -> tuple[PromptMessage, ...]:
    """Prompt messages of a branch, each tool call with exactly one result.

    A call that was cut off gets an error result in its place, directly after the answer that made
    it and before anything else; a result without a call is left out; an answer with no parts is
    left out. Every request passes here, so no interrupted call can poison the next one.
    """
    out: list[PromptMessage] = []
    open_calls: dict[str, ToolCallPart] = {}

    def close() -> None:
        for call in open_calls.values():
            result = ToolResultPart(call.call_id, call.name, (TextPart(INTERRUPTED),), is_error=True)
            out.append(PromptMessage("tool", (result,), origin="repair"))
        open_calls.clear()

    for message in messages:
        if isinstance(message, ToolResult):
            if open_calls.pop(message.call_id, None) is not None:
                out.append(_show(message))
            continue
        close()
        if isinstance(message, Assistant):
            if not message.parts:
                continue
            open_calls.update((call.call_id, call) for call in message.tool_calls)
        out.append(_show(message))
    close()
    return tuple(out)
