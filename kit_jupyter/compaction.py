"""Compaction: where to cut a long history, what to ask a model, and the summary that stands for it.

Theory of operation
-------------------
The region that can be summarised begins at the first entry the *previous* compaction kept (not after
its record: what it kept would be lost) and ends at a cut point chosen so that about
``keep_recent_tokens`` stay as they are. A cut never parts a call from its result. When it falls
inside a turn, that turn's beginning is summarised by itself, at the same time. An earlier summary is
updated, not summarised again. The transcript a person sees does not change.

Source of the rules: the compaction of Pi (badlogic/pi-mono), with the first-kept rule as mended in
its issue 2608.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from kit_jupyter.messages import (
    Assistant,
    MediaPart,
    Message,
    ServerPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResult,
    User,
    text_of,
)
from kit_jupyter.session import Entry, Session

__all__ = [
    "Cut",
    "Meter",
    "context_tokens",
    "estimate_tokens",
    "files_touched",
    "find_cut",
    "summary_prompt",
    "transcript_text",
]

IMAGE_CHARACTERS = 4_800
RESULT_CHARACTERS = 2_000

HEADINGS = """\
## Goal
## Constraints and preferences
## Progress
### Done
### In progress
### Blocked
## Key decisions
## Next steps
## Critical context"""


def estimate_tokens(message: Message) -> int:
    """About how many tokens a message costs: a quarter of its characters; a picture counts 4,800 characters."""
    characters = 0
    for part in message.parts:
        match part:
            case MediaPart():
                characters += IMAGE_CHARACTERS
            case ToolCallPart():
                characters += len(part.name) + len(part.arguments)
            case ServerPart():
                characters += len(json.dumps(part.native.data))
            case _:
                characters += len(part.text)
    return (characters + 3) // 4


class Meter:
    """Tokens of a context that grows: each message is estimated once.

    What the service counted for the last good answer, plus an estimate of what follows. Counts from
    before the last summary describe a context that is gone and are not used.
    """

    def __init__(self) -> None:
        self._seen: tuple[Message, ...] = ()
        self._estimate = 0
        self._counted: tuple[int, int] | None = None  # what the service said, and our estimate up to there

    def read(self, messages: tuple[Message, ...]) -> int:
        """Tokens of `messages`."""
        n = len(self._seen)
        if not (0 < n <= len(messages) and messages[n - 1] is self._seen[-1] and messages[0] is self._seen[0]):
            n, self._estimate, self._counted = 0, 0, None
        first = messages[0] if messages else None
        summarised = first.time.created if isinstance(first, Assistant) and first.result.kind == "summary" else ""
        for message in messages[n:]:
            self._estimate += estimate_tokens(message)
            if isinstance(message, Assistant) and message.result.kind == "reply":
                counted = message.usage.tokens.total
                good = message.result.error is None and message.result.finish != "aborted"
                if counted and good and message.time.created > summarised:
                    self._counted = (counted, self._estimate)
            elif isinstance(message, Assistant) and message is not first:
                self._counted = None  # what another branch explored was put in: the counts before do not hold it
        self._seen = messages
        if self._counted is None:
            return self._estimate
        counted, estimate = self._counted
        return counted + self._estimate - estimate


def context_tokens(messages: Sequence[Message]) -> int:
    """Tokens of a context; see `Meter`."""
    return Meter().read(tuple(messages))


@dataclass(frozen=True, slots=True)
class Cut:
    """What a compaction will do.

    Parameters
    ----------
    history : tuple of Message
        To be summarised.
    turn_prefix : tuple of Message
        The beginning of the turn that the cut parts; empty when it falls between turns.
    first_kept : str or None
        Entry from which on all stays as it is; None keeps nothing.
    previous : str
        The summary to be updated; empty for none.
    """

    history: tuple[Message, ...]
    turn_prefix: tuple[Message, ...]
    first_kept: str | None
    previous: str = ""

    @property
    def removed(self) -> int:
        """How many messages the summary stands for."""
        return len(self.history) + len(self.turn_prefix)


def find_cut(session: Session, keep_recent_tokens: int, *, is_between_turns: bool = False) -> Cut | None:
    """Where to cut the present branch; None when there is nothing to summarise.

    Parameters
    ----------
    is_between_turns : bool
        Then the last answer, too, may be summarised when it is far longer than what should stay.
    """
    branch = session.branch()
    if not branch or branch[-1].type == "compaction":
        return None
    previous, start = "", 0
    for i in range(len(branch) - 1, -1, -1):
        entry = branch[i]
        if entry.type == "compaction":
            previous = text_of(entry.message.parts) if entry.message is not None else ""
            kept = entry.body.get("first_kept")
            start = next((j for j, e in enumerate(branch) if e.id == kept), i + 1)
            break
    region = [e for e in branch[start:] if e.type != "compaction" and e.message is not None]
    cut = _cut_index(region, keep_recent_tokens, is_between_turns)
    if cut == 0:
        return None
    messages = [e.message for e in region if e.message is not None]
    begin = cut
    if cut < len(region):
        while begin > 0 and not _starts_turn(messages[begin], messages[begin - 1]):
            begin -= 1
        if begin == 0 and not previous:
            begin = cut  # one long turn from the start: summarise its beginning as history
    return Cut(
        tuple(messages[:begin]),
        tuple(messages[begin:cut]),
        region[cut].id if cut < len(region) else None,
        previous,
    )


def _starts_turn(message: Message, before: Message) -> bool:
    return message.turn_id != before.turn_id or (isinstance(message, User) and not message.turn_id)


def _cut_index(region: Sequence[Entry], keep_recent_tokens: int, is_between_turns: bool) -> int:
    """Index of the first kept entry: the earliest valid cut point at or after the place where enough is kept.

    A message with which far more than that would stay is not kept: the context could become longer by its summary.
    """
    kept = 0
    at = len(region)
    for i in range(len(region) - 1, -1, -1):
        message = region[i].message
        assert message is not None
        size = estimate_tokens(message)
        may_go = at < len(region) or (is_between_turns and isinstance(message, Assistant))
        if may_go and kept + size > 2 * keep_recent_tokens > 0:
            at = _end_of_turn(region, at, is_between_turns)
            break
        kept += size
        at = i
        if kept >= keep_recent_tokens:
            break
    else:
        at = 0 if keep_recent_tokens else len(region)
    while at < len(region) and isinstance(region[at].message, ToolResult):
        at += 1  # never between a call and its result
    if at >= len(region) and keep_recent_tokens and region and isinstance(region[-1].message, ToolResult):
        # What is recent is one batch of results: keep it whole, with the answer that asked for it.
        at = len(region) - 1
        while at > 0 and isinstance(region[at].message, ToolResult):
            at -= 1
    # What was put beside a message stays with it.
    while 1 < at < len(region) and _is_beside(region[at].message):
        at -= 1
    return at


def _end_of_turn(region: Sequence[Entry], at: int, is_between_turns: bool) -> int:
    """The next beginning of a turn, so that a summary need not tell half of one; `at` inside of the turn that runs."""
    end = at
    while end < len(region) and not _begins(region, end):
        end += 1
    return end if end < len(region) or is_between_turns else at


def _begins(region: Sequence[Entry], at: int) -> bool:
    message, before = region[at].message, region[at - 1].message
    return message is not None and before is not None and _starts_turn(message, before)


def _is_beside(message: Message | None) -> bool:
    source = getattr(message, "source", None) or ""
    return isinstance(message, User) and (source == "hook" or source.startswith("extension:"))


def transcript_text(messages: Sequence[Message]) -> str:
    """Messages as plain labelled text, so that a model reads them and does not continue them."""
    lines: list[str] = []
    for message in messages:
        if isinstance(message, ToolResult):
            text = text_of(message.parts)
            if len(text) > RESULT_CHARACTERS:
                text = f"{text[:RESULT_CHARACTERS]}\n[{len(text) - RESULT_CHARACTERS:,} characters left out]"
            lines.append(f"[Tool result of {message.name}{', an error' if message.is_error else ''}]: {text}")
            continue
        label = {"user": "User", "system": "Instruction", "assistant": "Assistant"}[message.role]
        for part in message.parts:
            match part:
                case TextPart(text) if text:
                    lines.append(f"[{label}]: {text}")
                case ThinkingPart(text) if text:
                    lines.append(f"[{label} thinking]: {text}")
                case ToolCallPart():
                    lines.append(f"[{label} calls {part.name}]: {part.arguments}")
                case MediaPart():
                    lines.append(f"[{label} attached {part.media_type} {part.name}]".rstrip())
    return "\n\n".join(lines)


def files_touched(messages: Sequence[Message]) -> tuple[list[str], list[str]]:
    """Paths that were only read, and paths that were changed, taken from the arguments of tool calls."""
    read: set[str] = set()
    changed: set[str] = set()
    for message in messages:
        for part in message.parts:
            if isinstance(part, ToolCallPart) and part.name in ("read", "write", "edit"):
                try:
                    path = json.loads(part.arguments or "{}").get("path")
                except (ValueError, AttributeError):
                    continue
                if isinstance(path, str):
                    (read if part.name == "read" else changed).add(path)
    return sorted(read - changed), sorted(changed)


SUMMARY_SYSTEM = (
    "You summarise a conversation between a person and an assistant so that another model can go on with it. "
    "Do not continue the conversation and do not answer its questions: write the summary only."
)


def summary_prompt(
    messages: Sequence[Message], previous: str, instructions: str | None, *, prefix: bool = False
) -> str:
    """What the summarising model is asked."""
    body = f"<conversation>\n{transcript_text(messages)}\n</conversation>\n\n"
    if prefix:
        task = (
            "This is the beginning of a turn whose later part is kept. Summarise it in a few lines: what was asked, "
            "what was done so far, and what the later part needs to know."
        )
    elif previous:
        task = (
            f"<previous-summary>\n{previous}\n</previous-summary>\n\n"
            "Update the previous summary with the conversation above: keep what still holds, add what is new, move "
            f"what is finished to Done. Use these headings:\n\n{HEADINGS}"
        )
    else:
        task = f"Summarise the conversation above. Use these headings:\n\n{HEADINGS}"
    if instructions:
        task += f"\n\nPay special attention to: {instructions}"
    return body + task
