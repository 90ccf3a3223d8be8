"""Stored messages as turns that views can show: for a resumed session, another branch, `%kit_show`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from kit_jupyter.jupyter.protocol import clean
from kit_jupyter.jupyter.turns import TurnModel, bounded
from kit_jupyter.messages import Assistant, Message, System, ToolResult, User, text_of
from kit_jupyter.session import Session

__all__ = ["note_branches", "turns_of"]

_keys = count(1)


def turns_of(messages: Sequence[Message]) -> list[TurnModel]:
    """One ended model per stored turn, in order."""
    out: list[TurnModel] = []
    known: dict[str, TurnModel] = {}
    for message in messages:
        turn_id = message.turn_id or (out[-1].turn_id if out else "")
        turn = known.get(turn_id)
        if turn is None:
            turn = known[turn_id] = TurnModel(turn_id, f"h{next(_keys)}")
            turn.status, turn.ended = "done", True
            out.append(turn)
        _take(turn, message)
    for turn in out:
        _close(turn)
    return out


def note_branches(turn: TurnModel, session: Session) -> None:
    """Note on `turn` which branches begin beside it, by their leaves."""
    entries = session.turn_entries(turn.turn_id)
    if not entries:
        return
    siblings = [entry for entry in session.children(entries[0].parent) if isinstance(entry.message, User | System)]
    if len(siblings) < 2:
        turn.branches, turn.entry = [], ""
        return
    turn.branches = [_leaf(entry.id, session) for entry in siblings]
    here = [at for at, entry in enumerate(siblings) if entry.id == entries[0].id]
    turn.entry = turn.branches[here[0]] if here else ""


def _leaf(entry_id: str, session: Session) -> str:
    while children := session.children(entry_id):
        entry_id = children[-1].id
    return entry_id


def _take(turn: TurnModel, message: Message) -> None:
    match message:
        case User():
            text = clean(text_of(message.parts[:1] if message.source is None else message.parts))
            if message.source is None and not turn.prompt and not turn.items:
                turn.prompt = text
            elif message.source is None:
                turn._new("said", text=text, mode="follow_up", done=True)
            elif message.source == "follow-up" and not turn.prompt and not turn.items:
                turn.prompt, turn.mode = f"[follow-up] {text}", "follow_up"
        case System():
            if message.source == "steer":
                text = clean(text_of(message.parts))
                if not turn.items and not turn.prompt:
                    turn.prompt, turn.mode = f"[steer] {text}", "steer"
                else:
                    turn._new("said", text=text, mode="steer", done=True)
        case Assistant():
            turn._end_message(message)
            usage: Any = turn.facts.get("usage")
            turn.facts["usage"] = message.usage if usage is None else usage + message.usage
            turn.facts["entry"] = message.id
            if message.result.finish == "aborted":
                turn.status = "stopped"
            if message.result.error is not None:
                turn.status = "error"
                turn.error = {"code": message.result.error.code, "message": clean(message.result.error.message)}
        case ToolResult():
            item = turn._call(message.call_id, message.name)
            item.set(
                result=bounded(clean(text_of(message.parts))),
                is_error=message.is_error,
                status="error" if message.is_error else "done",
            )
            turn._add_media(item, message.parts)


def _close(turn: TurnModel) -> None:
    for item in turn.items:
        if item.kind == "tool" and "result" not in item.facts:
            item.set(status="stopped")
        item.set(done=True)
    turn._touched.clear()
