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

What a history was made with must not matter to who reads it next: what one wire alone understands
(signatures, encrypted reasoning, server blocks) is looked at through `is_own`, and media that a place
cannot hold is either a `UsageError` (the person gave it: `cannot_carry`) or one line of text
(a tool or a model made it, nobody can take it back: `left_out`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kit_jupyter.errors import UsageError
from kit_jupyter.messages import MediaPart, Native, TextPart, ToolCallPart
from kit_jupyter.prompt import PromptMessage, ToolResultPart
from kit_jupyter.providers._json import loads

__all__ = [
    "CallIds",
    "Step",
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
        order: dict[str, int] = {}
        for answer in step.answers:
            for part in answer.parts:
                if type(part) is ToolCallPart:
                    order.setdefault(part.call_id, len(order))
        step.results.sort(key=lambda message: order.get(_call_id(message), len(order)))
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
