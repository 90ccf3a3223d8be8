"""A session from what a saved notebook shows: its conversation travels in the file.

Theory of operation
-------------------
Each ``%%kit`` output holds its turn as data (`protocol.TURN_MIME`) and, beside it, which session and
model it came from. Cells are read in their order; a turn becomes the stored messages it once was, as
far as the file has them: prompts, answers, calls with their results, pictures. What the file never
held (the system prompt, contents of attachments, signatures of thinking) is made anew or named as
missing. Each turn is tied to its cell, so that running the cell again replaces it.

The file is somebody's: whatever it says becomes words of a user, a model or a tool, never an
instruction of the system; what is malformed is left out, and counted.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from kit_jupyter.errors import SessionError, UsageError
from kit_jupyter.jupyter.protocol import BUNDLE_VERSION, TURN_MIME, clean
from kit_jupyter.messages import (
    Assistant,
    CellRef,
    ErrorFacts,
    MediaPart,
    Message,
    ModelRef,
    Part,
    PathFacts,
    RefusalPart,
    RequestFacts,
    ResultFacts,
    RunFacts,
    TextPart,
    ThinkingPart,
    Tokens,
    ToolCallPart,
    ToolResult,
    Usage,
    User,
    new_id,
    now,
)
from kit_jupyter.session import Session

__all__ = [
    "SavedTurn",
    "SavedTurns",
    "find_notebook",
    "messages_of",
    "original_of",
    "read_turns",
    "rebuild",
    "whole_session_in",
]

CONTINUE = "Continue."
_MEDIA = re.compile(r"[a-z]+/[a-z0-9.+-]{1,80}")
_UNSENT = "(no result was kept)"


@dataclass(frozen=True, slots=True)
class SavedTurn:
    """One turn of a saved notebook: the cell it stands in, the turn as data, facts beside it."""

    cell: CellRef
    turn: dict[str, Any]
    facts: dict[str, Any]

    @property
    def talk(self) -> str:
        """Name of the session it belongs to when that is not the notebook's own; else empty."""
        return _text(self.facts.get("name"))


@dataclass(slots=True)
class SavedTurns:
    """Turns of a notebook in the order of its cells, and how many outputs could not be read."""

    path: Path
    turns: list[SavedTurn] = field(default_factory=list)
    unread: int = 0


def find_notebook(given: str, name: str) -> Path:
    """The notebook's file: the one given, else that of this kernel.

    Raises
    ------
    UsageError
        If it is not there, or nobody told this kernel its name.
    """
    if given:
        path = Path(os.path.expanduser(given))
        if not path.is_file():
            near = get_close_matches(path.name, [one.name for one in path.parent.glob("*.ipynb")], n=1)
            hint = f"; did you mean {path.parent / near[0]}?" if near else ""
            raise UsageError(f"there is no notebook {given!r} (from {Path.cwd()}){hint}")
        return path
    here = Path(name)
    for path in (here, Path(here.name)):
        if name and path.is_file():
            return path
    hint = "; it has no file here yet, save it first" if name else ""
    raise UsageError(f"this kernel does not know its notebook's file{hint}: %kit_resume --from-notebook PATH.ipynb")


def read_turns(path: Path, notebook: str = "") -> SavedTurns:
    """All turns that a notebook's outputs hold.

    Parameters
    ----------
    notebook : str
        Name under which this kernel knows it, so that a cell that runs again finds its turn.

    Raises
    ------
    UsageError
        If the file is no notebook.
    """
    try:
        cells = json.loads(path.read_bytes())["cells"]
    except OSError as exc:
        raise UsageError(f"cannot read {path.name}: {exc.strerror or exc}") from exc
    except (ValueError, LookupError, TypeError, RecursionError) as exc:
        raise UsageError(f"{path.name} is not a notebook") from exc
    if not isinstance(cells, list):
        raise UsageError(f"{path.name} is not a notebook")
    found = SavedTurns(path)
    for number, cell in enumerate(cells):
        outputs = cell.get("outputs") if isinstance(cell, dict) else None
        for output in outputs if isinstance(outputs, list) else ():
            data = output.get("data") if isinstance(output, dict) else None
            if not isinstance(data, dict) or TURN_MIME not in data:
                continue
            metadata = output.get("metadata")
            facts = metadata.get("kit") if isinstance(metadata, dict) else None
            turn = _turn_in(data[TURN_MIME])
            if turn is None:
                found.unread += 1
            elif not turn.get("showPrompt"):  # %kit_show and the like show a turn of another cell again
                ref = CellRef(notebook, _text(cell.get("id")) or f"#{number}")
                found.turns.append(SavedTurn(ref, turn, facts if isinstance(facts, dict) else {}))
    return found


def _turn_in(bundle: Any) -> dict[str, Any] | None:
    if not isinstance(bundle, dict) or bundle.get("version") != BUNDLE_VERSION:
        return None
    turn = bundle.get("turn")
    return turn if isinstance(turn, dict) and isinstance(turn.get("items"), list) else None


def original_of(turns: list[SavedTurn]) -> Path | None:
    """The file of the session that all these turns came from, if this machine has it, whole."""
    ids = {_text(saved.facts.get("session")) for saved in turns}
    if len(ids) != 1 or "" in ids:
        return None
    wanted = ids.pop()
    path = next((info.path for info in Session.listing() if info.id == wanted), None)
    if path is None:
        return None
    held = {entry.fact("turn_id") for entry in Session.open(path).entries}
    return path if all(saved.facts.get("turn") in held for saved in turns) else None


def whole_session_in(path: Path) -> Session | None:
    """A copy of the session that `kit.export` put whole into a notebook; None when there is none."""
    if b'"kit_jupyter"' not in path.read_bytes():
        return None
    try:
        return Session.import_from(path)
    except SessionError:
        return None


def rebuild(turns: list[SavedTurn], *, memory: bool = False) -> Session:
    """A new session that holds these turns; in memory if asked."""
    session = Session.memory() if memory else Session.create()
    for saved in turns:
        for message in messages_of(saved):
            session.append(message)
    return session


def messages_of(saved: SavedTurn) -> list[Message]:
    """The messages that a saved turn once was, under a new turn id."""
    return _Builder(saved).build()


class _Builder:
    def __init__(self, saved: SavedTurn) -> None:
        self.saved = saved
        self.turn_id = new_id("trn")
        self.model = _model(saved.facts.get("model"))
        self.out: list[Message] = []
        self.parts: list[Part] = []
        self.results: list[Message] = []
        self.calls = 0

    def build(self) -> list[Message]:
        turn = self.saved.turn
        self._opening(turn)
        for item in turn["items"]:
            if isinstance(item, dict):
                self._item(item)
        self._end(turn)
        return self.out

    def _facts(self) -> dict[str, Any]:
        return {"id": new_id("msg"), "time": now(), "turn_id": self.turn_id}

    def _opening(self, turn: dict[str, Any]) -> None:
        prompt, mode = _text(turn.get("prompt")), turn.get("mode")
        request = None
        if self.model is not None:
            request = RequestFacts(agent="kit", model=self.model, cell=self.saved.cell)
        if mode == "steer":
            prompt = prompt.removeprefix("[steer] ")
        source = None
        if not prompt:
            prompt, source = CONTINUE, "follow-up"
        parts = [TextPart(prompt), *self._missing(turn)]
        self.out.append(User(**self._facts(), parts=tuple(parts), request=request, source=source))

    @staticmethod
    def _missing(turn: dict[str, Any]) -> list[TextPart]:
        chips = turn.get("chips")
        marks = [_text(chip.get("mark")) for chip in chips if isinstance(chip, dict)] if isinstance(chips, list) else []
        return [
            TextPart(f'<attached mark="@{mark}">not kept in the notebook; attach it again</attached>')
            for mark in marks
            if mark
        ]

    def _item(self, item: dict[str, Any]) -> None:
        text = _text(item.get("text"))
        match item.get("kind"):
            case "text":
                self._step()
                if text:
                    self.parts.append(RefusalPart(text) if item.get("refusal") is True else TextPart(text))
                self.parts += _media(item)
            case "thinking" if text:
                self._step()
                self.parts.append(ThinkingPart(text))
            case "tool":
                self._call(item)
            case "said" if text:
                self._flush()
                self.out.append(User(**self._facts(), parts=(TextPart(text),)))

    def _call(self, item: dict[str, Any]) -> None:
        self.calls += 1
        name = re.sub(r"[^\w-]", "_", _text(item.get("name")))[:64] or "tool"
        call_id = f"call_{self.turn_id[-8:]}_{self.calls}"
        arguments = _text(item.get("arguments"))
        try:
            is_object = isinstance(json.loads(arguments or "{}"), dict)
        except (ValueError, RecursionError):
            is_object = False
        self.parts.append(ToolCallPart(call_id, name, (arguments or "{}") if is_object else "{}"))
        status = item.get("status")
        text = _text(item.get("result")) or ("" if status == "done" else _UNSENT)
        is_error = item.get("is_error") is True or status in ("error", "denied", "stopped")
        parts: tuple[Part, ...] = (TextPart(text), *_media(item))
        self.results.append(ToolResult(**self._facts(), call_id=call_id, name=name, parts=parts, is_error=is_error))

    def _step(self) -> None:
        """What follows the results of tools is a new answer."""
        if self.results:
            self._flush()

    def _flush(self, result: ResultFacts | None = None, usage: Usage | None = None) -> None:
        if not self.parts and result is None:
            return
        run = None
        if self.model is not None:
            run = RunFacts(agent="kit", model=self.model, path=PathFacts("", ""), cell=self.saved.cell)
        result = result or ResultFacts(finish="tool_calls" if self.results else "stop")
        answer = Assistant(**self._facts(), parts=tuple(self.parts), run=run, result=result, usage=usage or Usage())
        self.out += [answer, *self.results]
        self.parts, self.results = [], []

    def _end(self, turn: dict[str, Any]) -> None:
        error, usage = turn.get("error"), Usage(tokens=_tokens(self.saved.facts.get("tokens")))
        if turn.get("status") == "error" and isinstance(error, dict):
            told = ErrorFacts(_text(error.get("code")) or "error", _text(error.get("message")) or "failed")
            self._flush(ResultFacts(finish="error", error=told), usage)
        elif turn.get("status") == "stopped":
            self._flush(ResultFacts(finish="aborted"), usage)
        else:
            self._flush(usage=usage)


def _text(value: Any) -> str:
    return clean(value) if isinstance(value, str) else ""


def _model(value: Any) -> ModelRef | None:
    try:
        return ModelRef.parse(_text(value))
    except UsageError:
        return None


def _tokens(value: Any) -> Tokens:
    get = value.get if isinstance(value, dict) else lambda _: None
    known = {name: get(name) for name in ("input", "output")}
    return Tokens(**{k: v for k, v in known.items() if isinstance(v, int) and not isinstance(v, bool) and v >= 0})


def _media(item: dict[str, Any]) -> list[MediaPart]:
    media = item.get("media")
    out = []
    for one in media if isinstance(media, list) else ():
        kind, text = (_text(one.get("type")), _text(one.get("data"))) if isinstance(one, dict) else ("", "")
        if text and _MEDIA.fullmatch(kind) and re.fullmatch(r"[A-Za-z0-9+/=\s]+", text):
            out.append(MediaPart(kind, text, _text(one.get("name"))))
    return out
