"""The history as services want it: steps, results behind their calls, call ids that all of them take.

Theory of operation
-------------------
::

    user  answer  tool tool  system  user  answer …      prompt messages, as they stand
          └──────── step ──────────────┘└─ step …        answers, then results, then what was said

A wire sees a history as alternating *answers* and *what followed them*. `steps` cuts it so, puts tool
results directly behind their answer in the order of its calls (services without ids match them by
order), and keeps all else in place. `CallIds` makes ids sendable: services differ in the letters and
lengths that they take, and Bedrock calls the first call of every answer ``call_0``.

`Beginnings` keeps what all but the last step of a history was encoded to, so that a request costs what is
new in it and not what is old; `Written` is such an encoded history while it grows.

What a history was made with must not matter to who reads it next: what one wire alone understands
(signatures, encrypted reasoning, server blocks) is looked at through `is_own`, and media that a place
cannot hold is either a `UsageError` (the person gave it: `cannot_carry`) or one line of text
(a tool or a model made it, nobody can take it back: `left_out`).
"""

from __future__ import annotations

import hashlib
import re
import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kit_jupyter.errors import UsageError
from kit_jupyter.messages import MediaPart, Native, TextPart, ToolCallPart
from kit_jupyter.prompt import PromptMessage, ToolResultPart
from kit_jupyter.providers._json import loads

__all__ = [
    "Beginnings",
    "CallIds",
    "Step",
    "Written",
    "arguments_of",
    "cannot_carry",
    "is_own",
    "is_stable",
    "left_out",
    "reminder",
    "steps",
    "text_of_media",
]


@dataclass(slots=True)
class Step:
    """Answers of the model, the results of their calls, and what was said after them."""

    answers: list[PromptMessage] = field(default_factory=list)
    results: list[PromptMessage] = field(default_factory=list)
    said: list[PromptMessage] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.answers) + len(self.results) + len(self.said)


def steps(messages: Sequence[PromptMessage]) -> Iterator[Step]:
    """Cut a history into steps; the first has no answers when a person began, as is usual."""
    step = Step()
    is_open = False  # something followed the answers
    for message in messages:
        if message.role == "assistant":
            if is_open:
                yield _ordered(step)
                step, is_open = Step(), False
            step.answers.append(message)
        else:
            is_open = True
            (step.results if message.role == "tool" else step.said).append(message)
    if is_open or step.answers:
        yield _ordered(step)


def _ordered(step: Step) -> Step:
    if len(step.results) > 1:
        places: dict[str, list[int]] = {}
        calls = 0
        for answer in step.answers:
            for part in answer.parts:
                if type(part) is ToolCallPart:
                    places.setdefault(part.call_id, []).append(calls)
                    calls += 1
        ranked: list[tuple[int, int, PromptMessage]] = []
        for number, message in enumerate(step.results):
            # Of calls with one id, the first result answers the first.
            waiting = places.get(_call_id(message)) or [calls]
            ranked.append((waiting.pop(0) if len(waiting) > 1 else waiting[0], number, message))
        step.results = [message for _, _, message in sorted(ranked, key=lambda entry: entry[:2])]
    return step


def _call_id(message: PromptMessage) -> str:
    return next((part.call_id for part in message.parts if isinstance(part, ToolResultPart)), "")


def is_stable(message: PromptMessage) -> bool:
    """Whether later requests will show this message again, as it is: it is stored, and no hook changed it."""
    return bool(message.message_id) and not message.edits and not message.message_id.startswith("edit_")


# ---------------------------------------------------------------- call ids


class CallIds:
    """Ids of one request's calls, as they are sent: none twice, and only letters that the service takes.

    Parameters
    ----------
    allowed : str
        Pattern of an id that may go as it is.

    Notes
    -----
    The first of two like ids stays, so that the bytes of earlier messages never change.

    Examples
    --------
    >>> ids = CallIds("[A-Za-z0-9_-]{1,64}")
    >>> ids.of_call("call_0"), ids.of_call("call_0"), ids.of_call("fn.a:0")
    ('call_0', 'call_0-2', 'fn_a_0')
    """

    def __init__(self, allowed: str) -> None:
        self._allowed = re.compile(allowed)
        self._taken: dict[str, int] = {}
        self._open: dict[str, list[str]] = {}

    def copy(self) -> CallIds:
        """The same ids taken, for the steps to come."""
        twin = CallIds.__new__(CallIds)
        twin._allowed, twin._taken, twin._open = self._allowed, dict(self._taken), {}
        return twin

    def new_step(self) -> None:
        """Calls of earlier answers cannot be answered any more."""
        if self._open:
            self._open = {}

    def of_call(self, call_id: str) -> str:
        """The id to send for a call of the present step."""
        sent = self._clean(call_id)
        count = self._taken.get(sent, 0) + 1
        self._taken[sent] = count
        while count > 1:
            numbered = f"{sent[:56]}-{count}"
            if numbered not in self._taken:
                self._taken[numbered] = 1
                sent = numbered
                break
            count += 1
        self._open.setdefault(call_id, []).append(sent)
        return sent

    def of_result(self, call_id: str) -> str:
        """The id to send for the result of a call; the first unanswered one if several bear it."""
        waiting = self._open.get(call_id)
        if not waiting:
            return self._clean(call_id)
        return waiting.pop(0) if len(waiting) > 1 else waiting[0]

    def _clean(self, call_id: str) -> str:
        if self._allowed.fullmatch(call_id):
            return call_id
        words = re.sub(r"[^A-Za-z0-9_-]", "_", call_id)
        if len(words) > 56:  # as long ids may differ at their end only
            words = words[:40] + "_" + hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:12]
        return words or "call"


# ---------------------------------------------------------------- what is old is not encoded again


class Written:
    """An encoded history while it grows.

    Parameters
    ----------
    ids : CallIds
    """

    __slots__ = ("ids", "out", "role", "runs", "spots", "stable")

    def __init__(self, ids: CallIds) -> None:
        self.ids = ids
        self.out: list[bytes] = []
        self.role = b""  # of the message that is still open
        self.runs = 0  # messages so far
        self.stable = True  # all messages so far will be shown again as they are
        self.spots: list[tuple[int, int]] = []  # run and place of pieces that a cache mark may end

    def add(self, *pieces: bytes) -> None:
        """Add elements of a JSON list; empty ones are left out."""
        for piece in pieces:
            if piece:
                self.out += (b",", piece) if self.out else (piece,)

    def marks(self) -> list[int]:
        """Places of the last two pieces, in different messages, that a cache mark may end; the last one first."""
        if not self.spots:
            return []
        last_run, last = self.spots[-1]
        before = next((place for run, place in reversed(self.spots) if run < last_run), None)
        return [last] if before is None else [last, before]

    def frozen(self) -> Written:
        """A copy whose past is few pieces: those that a mark may end stay apart."""
        twin = Written(self.ids.copy())
        twin.role, twin.runs, twin.stable = self.role, self.runs, self.stable
        runs = {place: run for run, place in self.spots}
        start = 0
        for place in sorted(self.marks()):
            twin.out += filter(None, (b"".join(self.out[start:place]), self.out[place]))
            twin.spots.append((runs[place], len(twin.out) - 1))
            start = place + 1
        twin.out += filter(None, (b"".join(self.out[start:]),))
        return twin


class _Beginning:
    """Which messages one was made of: by identity, and void as soon as one of them dies."""

    __slots__ = ("__weakref__", "ids", "is_valid", "refs", "written")

    def __init__(self) -> None:
        self.ids: tuple[int, ...] = ()
        self.refs: list[weakref.ref[PromptMessage]] = []
        self.is_valid = True
        self.written: Written | None = None

    def void(self, _: object) -> None:
        self.is_valid = False
        self.written = None

    def fits(self, messages: Sequence[PromptMessage]) -> bool:
        return self.is_valid and self.ids == tuple(map(id, messages[: len(self.ids)]))


class Beginnings:
    """Encoded beginnings of histories, the latest `limit` of them.

    Notes
    -----
    By identity and weakly, like `Pieces`: a session that is gone takes its beginnings with it. The last step is
    never part of a beginning, since what stands in it depends on what follows.
    """

    def __init__(self, limit: int = 32) -> None:
        self._limit = limit
        self._kept: dict[Hashable, _Beginning] = {}

    def write(
        self,
        messages: Sequence[PromptMessage],
        variant: Hashable,
        fresh: Callable[[], Written],
        take: Callable[[Written, Step], None],
    ) -> Written:
        """Encode a history: `take` writes a step; what an earlier request has written is taken over.

        Parameters
        ----------
        variant : hashable
            All that the bytes depend on besides the messages.
        """
        if not messages:
            return fresh()
        key = (id(messages[0]), variant)
        known = self._kept.pop(key, None)
        done = 0
        written: Written | None = None
        if known is not None and known.written is not None and known.fits(messages):
            done, written = len(known.ids), known.written.frozen()
            self._kept[key] = known  # the latest stand last
        else:
            known = None
        if written is None:
            written = fresh()
        pending = list(steps(messages[done:]))
        for number, step in enumerate(pending):
            take(written, step)
            done += len(step)
            if number == len(pending) - 2:
                self._keep(key, known or _Beginning(), messages[:done], written.frozen())
        return written

    def _keep(self, key: Hashable, entry: _Beginning, messages: Sequence[PromptMessage], written: Written) -> None:
        for message in messages[len(entry.ids) :]:
            entry.refs.append(weakref.ref(message, entry.void))
        entry.ids = tuple(map(id, messages))
        entry.written = written
        self._kept[key] = entry
        while len(self._kept) > self._limit:
            del self._kept[next(iter(self._kept))]


# ---------------------------------------------------------------- pieces that all wires share


def is_own(native: Native | None, wire: str, origin: str) -> bool:
    """Whether this state was made by the same wire and by `origin`, and so may go back to it."""
    return native is not None and native.wire == wire and native.data.get("from") == origin


def arguments_of(part: ToolCallPart, make: Callable[[Any], bytes]) -> bytes:
    """The arguments as bytes of one JSON object: as they came, or wrapped where they are not one.

    The model must see what it wrote, also when it was cut off in the middle of it; the key is the one
    that Anthropic's documentation names for this.
    """
    text = part.arguments.strip()
    if not text:
        return b"{}"
    try:
        value = loads(text)
        if isinstance(value, dict) and "NaN" not in text and "Infinity" not in text:
            return text.encode("utf-8")
    except ValueError:  # also a text that UTF-8 cannot hold
        pass
    return make({"INVALID_JSON": part.arguments})


def reminder(message: PromptMessage) -> str:
    """The text of an instruction inside the history, for wires that take it on the user's side only."""
    text = "\n".join(part.text for part in message.parts if isinstance(part, TextPart) and part.text.strip())
    return f"<system-reminder>\n{text}\n</system-reminder>" if text else ""


_TEXTUAL = re.compile(r"text/.+|application/(json|xml|yaml|x-yaml|toml|javascript|sql|x-ipynb\+json|.+\+(json|xml))")


def text_of_media(part: MediaPart) -> str | None:
    """The text of a file that is text, with its name; None for any other."""
    if not _TEXTUAL.fullmatch(part.media_type.partition(";")[0].strip().lower()):
        return None
    text = part.raw.decode("utf-8", "replace")
    return f"{part.name}:\n{text}" if part.name else text


def cannot_carry(part: MediaPart, wire: str, message: PromptMessage, hint: str) -> UsageError:
    """The error of media that a person gave and this wire has no form for."""
    name = f" {part.name!r}" if part.name else ""
    where = f" of message {message.message_id}" if message.message_id else ""
    return UsageError(f"{wire} cannot carry the {part.media_type} part{name}{where}; {hint}")


def left_out(part: MediaPart) -> str:
    """The line that stands for media in a place where this service takes none."""
    return f"[{part.media_type}{' ' + part.name if part.name else ''}: left out, this service cannot take it here]"
