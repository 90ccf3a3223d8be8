"""What is sent this once: prompt messages, made from a branch, changed only through an editor.

Theory of operation
-------------------
::

    stored messages ──from_branch──▶ prompt messages ──PromptEditor (one draft per hook)──▶ request

What is stored and what is sent are two shapes. A hook never makes or changes a stored message; it
gets a `PromptEditor`, which gives new messages their ids, notes who made them, keeps calls and
results together and tells when an edit costs the provider's prompt cache.
"""

from __future__ import annotations

import base64
import re
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kit_jupyter.errors import UsageError
from kit_jupyter.messages import (
    Assistant,
    MediaPart,
    Message,
    Part,
    System,
    TextPart,
    ToolCallPart,
    ToolResult,
    User,
    new_id,
)

__all__ = [
    "Kept",
    "PromptEditor",
    "PromptMessage",
    "ToolResultPart",
    "from_branch",
    "join_sections",
]

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
        The stored message it shows; ``edit_…`` for one made by an edit.
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
# By identity here too, since a stored message may hold dicts and so has no hash.
_shown: dict[int, tuple[weakref.ref[Message], PromptMessage]] = {}

SUMMARY_LEAD = "The conversation up to here was summarised:\n\n"


def _show(message: Message) -> PromptMessage:
    known = _shown.get(id(message))
    if known is not None and known[0]() is message:
        return known[1]
    match message:
        case ToolResult():
            part = ToolResultPart(message.call_id, message.name, message.parts, message.is_error)
            made = PromptMessage("tool", (part,), message_id=message.id)
        case Assistant() if message.result.kind == "summary":
            # From the user's side: a model would take an answer of its own for something to continue.
            lead = TextPart(SUMMARY_LEAD)
            made = PromptMessage("user", (lead, *message.parts), message_id=message.id, origin="summary")
        case Assistant():
            made = PromptMessage("assistant", message.parts, message_id=message.id)
        case User() | System():
            made = PromptMessage(message.role, message.parts, message_id=message.id, origin=message.source or "history")
    key = id(message)
    _shown[key] = (weakref.ref(message, lambda _: _shown.pop(key, None)), made)
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


# ---------------------------------------------------------------- composing


def join_sections(base: str, sections: Iterable[str | None] = ()) -> str:
    """The system prompt: `base`, then each section, one blank line between them.

    Blank and None sections are dropped, so that no double blank line remains; the text inside a
    section stays as it is but for blank lines at its two ends.

    Examples
    --------
    >>> join_sections("You help.", ["Always be polite.", "", None, "Python 3.11."])
    'You help.\\n\\nAlways be polite.\\n\\nPython 3.11.'
    """
    texts = (text.strip("\n") for text in (base, *sections) if text and text.strip())
    return "\n\n".join(texts)


# ---------------------------------------------------------------- the editor

Role = Literal["user", "assistant"]
Target = Literal["last-user", "last-assistant"]
PartLike = TextPart | MediaPart | str | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Kept:
    """An edit to be stored as a synthetic message; the Kit gives it id and time when it stores it.

    Parameters
    ----------
    role : {"user", "assistant"}
    parts : tuple of TextPart or MediaPart
    source : str
        Who made it, for example ``hook:Politeness``.
    message_id : str
        Id of the message in the request that first showed it; the stored message should bear the same.
    """

    role: Role
    parts: tuple[Part, ...]
    source: str
    message_id: str


def _part(value: object) -> Part:
    match value:
        case TextPart():
            return replace(value, text=_sendable(value.text))
        case MediaPart():
            return _checked(value)
        case str():
            return TextPart(_sendable(value))
        case {"type": "text", "text": str(text)}:
            return TextPart(_sendable(text))
        case {"type": "media", "media_type": str(kind), "data": str(data), **more}:
            return _checked(MediaPart(kind, data, str(more.get("name", ""))))
        case ToolResultPart() | ToolCallPart():
            raise UsageError(
                f"a {value.type} part cannot be made by an edit: each tool call has exactly one result, "
                "and only a turn makes them; say it in a text part"
            )
    raise UsageError(
        f"an edit takes text and media parts: TextPart, MediaPart, str, or {{'type': 'text', 'text': …}}; got {value!r}"
    )


def _sendable(text: object) -> str:
    """The text with lone surrogates replaced: no file and no wire could hold them."""
    if not isinstance(text, str):
        raise UsageError(f"a text part holds text, got {type(text).__name__}")
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _checked(part: MediaPart) -> MediaPart:
    """The part itself: a service would refuse the whole request for data that is none."""
    kind = part.media_type
    if not isinstance(kind, str) or not re.fullmatch(r"[\w.+-]+/[\w.+-]+(;.*)?", kind):
        raise UsageError(f"a media part has a media type such as image/png, got {kind!r}")
    try:
        if not base64.b64decode(part.data, validate=True):
            raise ValueError("it is empty")
    except (ValueError, TypeError) as exc:
        raise UsageError(f"the data of a media part is base64, or MediaPart.of_bytes: {exc}") from exc
    return part


def _parts(values: object) -> tuple[Part, ...]:
    if isinstance(values, str | TextPart | MediaPart | Mapping):
        values = (values,)
    if not isinstance(values, Iterable):
        raise UsageError(f"parts are a sequence of parts or one text; got {values!r}")
    parts = tuple(_part(value) for value in values)
    if not parts:
        raise UsageError("an edit needs at least one part; got none")
    return parts


def _message(role: object, parts: object) -> tuple[Role, tuple[Part, ...]]:
    if isinstance(role, PromptMessage):
        parts, role = role.parts, role.role
    elif isinstance(role, Mapping):
        parts, role = role.get("parts", ()), role.get("role")
    if role == "user":
        return "user", _parts(parts)
    if role == "assistant":
        return "assistant", _parts(parts)
    raise UsageError(
        f"an edit makes user and assistant messages; got role {role!r} "
        "(system text comes from system_prompt_snippets, tool results from tools)"
    )


class PromptEditor:
    """Changes one request: acts on a copy, never on what is stored.

    Parameters
    ----------
    messages : sequence of PromptMessage
        The request as it stands, oldest first.
    author : str
        Who edits; stands in `PromptMessage.origin` of new messages and in `PromptMessage.edits` of
        changed ones.
    sent : int or None
        How many of the first messages an earlier request has carried already: an edit among them
        costs the provider's prompt cache and is told in `warnings`. None: all but the last one.

    Notes
    -----
    There is no list to change or to replace: `messages` is a tuple of frozen values. Each
    operation checks its input and the result, and changes nothing when it raises. The editor gives
    new messages their ids. Made per hook; not for use from several threads.

    Examples
    --------
    Ask the model to sum up what a tool said, and go on:

    >>> prompt = PromptEditor([PromptMessage("user", (TextPart("Fit the model."),))], author="docs")
    >>> _ = prompt.push("user", [TextPart("Summarize the tool output above and continue.")])
    >>> [m.role for m in prompt.messages]
    ['user', 'user']

    Add a reminder to what the user said last:

    >>> BUILD_SWITCH = TextPart("<system-reminder>You may change files now.</system-reminder>")
    >>> prompt = PromptEditor([PromptMessage("user", (TextPart("Fit the model."),))], author="docs")
    >>> prompt.append_to("last-user", [BUILD_SWITCH])
    >>> [part.text for part in prompt.messages[-1].parts]
    ['Fit the model.', '<system-reminder>You may change files now.</system-reminder>']
    >>> prompt.messages[-1].edits
    ('docs',)
    """

    __slots__ = ("_author", "_closed", "_messages", "_persisted", "_sent", "_warnings")

    def __init__(self, messages: Sequence[PromptMessage], *, author: str = "hook", sent: int | None = None) -> None:
        self._messages: list[PromptMessage] = list(messages)
        self._author = author
        self._sent = max(0, len(self._messages) - 1) if sent is None else sent
        self._persisted: list[Kept] = []
        self._warnings: list[str] = []
        self._closed = ""

    @property
    def messages(self) -> tuple[PromptMessage, ...]:
        """The request with all edits so far; read-only."""
        return tuple(self._messages)

    @property
    def author(self) -> str:
        """Who edits."""
        return self._author

    @property
    def persisted(self) -> tuple[Kept, ...]:
        """What is to be stored, in the order it was added."""
        return tuple(self._persisted)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know, for example that an edit costs the prompt cache."""
        return tuple(self._warnings)

    def append(self, role: Role | PromptMessage | Mapping[str, Any], parts: Any = (), *, persist: bool = False) -> str:
        """Add a new message at the tail.

        Parameters
        ----------
        role : {"user", "assistant"}
            Or the whole message: a `PromptMessage`, or a mapping with ``role`` and ``parts``.
        parts : sequence of TextPart, MediaPart, str or dict; or one of them
        persist : bool
            Store it, so that every later request shows it in its place; else it is sent this once.

        Returns
        -------
        str
            Id of the new message.

        Raises
        ------
        UsageError
            On another role, on parts of another kind, on no parts.
        """
        made_role, made_parts = _message(role, parts)
        made = self._make(made_role, made_parts)
        self._insert(len(self._messages), made, "append")
        if persist:
            self._persisted.append(Kept(made_role, made_parts, self._author, made.message_id))
        return made.message_id

    def push(self, role: Role | PromptMessage | Mapping[str, Any], parts: Any = (), *, persist: bool = False) -> str:
        """The same as `append`."""
        return self.append(role, parts, persist=persist)

    def prepend(self, role: Role | PromptMessage | Mapping[str, Any], parts: Any = ()) -> str:
        """Add a new message before all others, after the system prompt; costs the prompt cache."""
        made = self._make(*_message(role, parts))
        self._insert(0, made, "prepend")
        return made.message_id

    def append_to(self, target: Target, parts: Any, *, persist: bool = False) -> None:
        """Add parts to the last message of the user or of the assistant.

        Parameters
        ----------
        target : {"last-user", "last-assistant"}
        persist : bool
            What is stored never changes, so the parts then become a stored message of their own,
            directly after the target; it must be the last message of the request.

        Raises
        ------
        UsageError
            On another target; when there is no such message; when the assistant's last message has
            calls without a result; on `persist` when other messages follow.
        """
        self._check_open()
        if target not in ("last-user", "last-assistant"):
            raise UsageError(f"append_to takes 'last-user' or 'last-assistant', got {target!r}")
        role: Role = "user" if target == "last-user" else "assistant"
        added = _parts(parts)
        at = next((i for i in reversed(range(len(self._messages))) if self._messages[i].role == role), None)
        if at is None:
            raise UsageError(f"append_to({target!r}): the request has no {role} message")
        if role == "assistant" and (open_calls := self._open_calls(at)):
            raise UsageError(f"append_to({target!r}): its call {open_calls[0]!r} has no result yet")
        if persist:
            if at != len(self._messages) - 1:
                raise UsageError(
                    f"append_to({target!r}, persist=True): stored messages follow the target and never change; "
                    "use append(…, persist=True)"
                )
            self.append(role, added, persist=True)
            return
        old = self._messages[at]
        self._messages[at] = replace(old, parts=(*old.parts, *added), edits=(*old.edits, self._author))
        self._warn_cache(at, f"append_to({target!r})")

    def insert_after(self, message_id: str, role: Role | PromptMessage | Mapping[str, Any], parts: Any = ()) -> str:
        """Add a new message directly after another.

        Raises
        ------
        KeyError
            On an unknown id; the text names it.
        UsageError
            As `append`; and when the place is between a tool call and its result.
        """
        return self._insert_at(self._find(message_id) + 1, role, parts, f"insert_after({message_id!r})")

    def insert_before(self, message_id: str, role: Role | PromptMessage | Mapping[str, Any], parts: Any = ()) -> str:
        """Add a new message directly before another; raises as `insert_after` does."""
        return self._insert_at(self._find(message_id), role, parts, f"insert_before({message_id!r})")

    def close(self, reason: str = "the hook has returned") -> None:
        """End editing: every later operation raises `UsageError`, so a hook that hangs cannot change a sent request."""
        self._closed = reason

    def adopt(self, draft: PromptEditor) -> None:
        """Take over the result of `draft`, which began from this editor's messages."""
        self._check_open()
        self._messages = list(draft._messages)
        self._sent = draft._sent
        self._persisted.extend(draft._persisted)
        self._warnings.extend(draft._warnings)

    def draft(self, author: str) -> PromptEditor:
        """An editor for one hook on a copy of this one's messages; `adopt` takes its result."""
        return PromptEditor(self._messages, author=author, sent=self._sent)

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError(f"this prompt editor is closed: {self._closed}")

    def _make(self, role: Role, parts: tuple[Part, ...]) -> PromptMessage:
        return PromptMessage(role, parts, message_id=new_id("edit"), origin=self._author)

    def _find(self, message_id: str) -> int:
        for at, message in enumerate(self._messages):
            if message.message_id == message_id and message_id:
                return at
        raise KeyError(f"no message {message_id!r} in this request")

    def _open_calls(self, at: int) -> list[str]:
        """Calls of message `at` that nobody answers."""
        results = {
            part.call_id for m in self._messages[at + 1 :] for part in m.parts if isinstance(part, ToolResultPart)
        }
        calls = (part.call_id for part in self._messages[at].parts if isinstance(part, ToolCallPart))
        return [call_id for call_id in calls if call_id not in results]

    def _between(self, at: int) -> str:
        """Id of a call made before place `at` that is answered at or after it; empty when there is none."""
        waiting: list[str] = []
        for message in self._messages[:at]:
            for part in message.parts:
                if isinstance(part, ToolCallPart):
                    waiting.append(part.call_id)
                elif isinstance(part, ToolResultPart) and part.call_id in waiting:
                    waiting.remove(part.call_id)
        return waiting[0] if waiting else ""

    def _insert_at(self, at: int, role: Any, parts: Any, operation: str) -> str:
        made = self._make(*_message(role, parts))
        self._insert(at, made, operation)
        return made.message_id

    def _insert(self, at: int, made: PromptMessage, operation: str) -> None:
        self._check_open()
        if call_id := self._between(at):
            raise UsageError(
                f"{operation}: the place is between tool call {call_id!r} and its result, and no wire allows that; "
                "choose a place before the call or after its last result"
            )
        self._messages.insert(at, made)
        self._warn_cache(at, operation)
        if at <= self._sent:
            self._sent += 1

    def _warn_cache(self, at: int, operation: str) -> None:
        if at < self._sent or operation == "prepend":
            self._warnings.append(
                f"{self._author}: {operation} changes what was sent before; the provider's prompt cache is lost "
                "from there on (append keeps it)"
            )
