"""Lines of a session by hand: the plain ones, which are nearly all, at a fraction of what a schema costs.

Theory of operation
-------------------
What is written here is byte for byte what `entry.encode_message` writes, and what is read here is what
`entry.decode_line` would read. Whatever is not plain (wire state, citations, media, arbitrary JSON, a field we
do not know, a value of another type, as in a file edited by hand) gives None, and goes the way of the schema,
which keeps it or names what is wrong with it. So this room may know little, but never something else.

Frozen dataclasses set field by field what a plain class stores at once. So values are made as a *twin*, a class
of the same slots that is not frozen, and change their class when they are complete (a sixth of the time).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from pydantic_core import from_json, to_json

from kit_jupyter.messages import (
    Assistant,
    ErrorFacts,
    Message,
    ModelRef,
    PathFacts,
    ResultFacts,
    RunFacts,
    System,
    TextPart,
    ThinkingPart,
    Time,
    Tokens,
    ToolCallPart,
    ToolResult,
    Usage,
    User,
)

__all__ = ["entry_line", "plain_json", "plain_line", "plain_message"]


# ---------------------------------------------------------------- writing


def plain_json(message: Message) -> bytes | None:
    """JSON of a plain `User`, `System` or `ToolResult`; None for any other, and for one with half a surrogate pair."""
    value = _plain_value(message)
    try:
        return _dumped(value)[:-1] if value is not None else None
    except (TypeError, ValueError):  # the schema names what is wrong, or replaces it
        return None


def entry_line(kind: str, entry_id: str, parent: str | None, time: str, message: Message) -> bytes | None:
    """The line of an entry that holds a plain message; None for any other."""
    value = _plain_value(message)
    if value is None or not (type(entry_id) is type(time) is str) or (parent is not None and type(parent) is not str):
        return None
    try:
        return _dumped({"type": kind, "id": entry_id, "parent": parent, "time": time, "message": value})
    except (TypeError, ValueError):
        return None


def _plain_value(message: Any) -> dict[str, Any] | None:
    """What the schema would make of a plain message, its keys in the order of the fields."""
    cls = type(message)
    if cls is User:
        is_plain = message.request is None and message.source is None
    elif cls is ToolResult:
        is_plain = (
            message.details is None
            and type(message.call_id) is type(message.name) is str
            and type(message.is_error) is bool
        )
    else:
        is_plain = cls is System and message.source is None
    if not is_plain or type(message.time) is not Time or type(message.parts) is not tuple:
        return None
    created, message_id, turn_id, role = message.time.created, message.id, message.turn_id, message.role
    if not (type(created) is type(message_id) is type(turn_id) is type(role) is str):
        return None
    parts = []
    for part in message.parts:
        if (
            type(part) is not TextPart
            or part.citations != ()
            or part.native is not None
            or type(part.text) is not str
            or part.type != "text"
        ):
            return None
        parts.append({"text": part.text, "citations": (), "type": "text"})
    time = {"created": created}
    if cls is not ToolResult:
        return {"id": message_id, "time": time, "parts": parts, "turn_id": turn_id, "role": role}
    return {
        "id": message_id,
        "time": time,
        "call_id": message.call_id,
        "name": message.name,
        "parts": parts,
        "is_error": message.is_error,
        "turn_id": turn_id,
        "role": role,
    }


# ---------------------------------------------------------------- reading

_new: Callable[[type], Any] = object.__new__


def _twin(cls: type) -> Any:
    """A class of the same layout whose fields can be set."""
    slots = [name for name in cls.__dict__["__slots__"] if name != "__weakref__"]
    return type(f"_{cls.__name__}", cls.__bases__, {"__slots__": slots})


_User, _System, _Assistant, _ToolResult = map(_twin, (User, System, Assistant, ToolResult))
_Time, _Text, _Thinking, _Call = map(_twin, (Time, TextPart, ThinkingPart, ToolCallPart))
_NO_USAGE, _NO_RESULT = Usage(), ResultFacts()
_NO_TOKENS = _NO_USAGE.tokens


class _Odd(Exception):
    """Not plain."""


def plain_line(line: bytes) -> tuple[str, str | None, str, Message] | None:
    """Id, parent, time and message of a plain line; None when it is not for this room."""
    try:
        value = _loads(line)
        message = value["message"]
        if len(value) != 5 or value["type"] != "message" or type(message) is not dict:
            return None
        entry_id, parent, time = value["id"], value["parent"], value["time"]
        if type(entry_id) is not str or type(time) is not str or (parent is not None and type(parent) is not str):
            return None
        return entry_id, parent, time, plain_message(message)
    except (_Odd, KeyError, TypeError, AttributeError, ValueError, RecursionError):
        return None


def plain_message(value: dict[str, Any]) -> Message:
    """The message of a plain JSON value.

    Raises
    ------
    _Odd, KeyError, TypeError
        If it is not plain.
    """
    role, message_id, turn_id, when = value["role"], value["id"], value["turn_id"], value["time"]
    created, parts = when["created"], value["parts"]
    if (
        type(message_id) is not str
        or type(turn_id) is not str
        or type(created) is not str
        or len(when) != 1
        or type(parts) is not list
    ):
        raise _Odd
    time = _new(_Time)
    time.created = created
    time.__class__ = Time
    made: Any
    if role == "user":
        if len(value) != 5:
            raise _Odd
        made = _new(_User)
        made.request = made.source = None
        cls: type = User
    elif role == "assistant":
        made = _new(_Assistant)
        known = 7
        made.run = made.source = None
        if "run" in value:
            made.run = _run(value["run"])
            known = 8
        if len(value) != known:
            raise _Odd
        usage, result = value["usage"], value["result"]
        made.usage = _NO_USAGE if usage == {"tokens": {}} else _usage(usage)
        made.result = _NO_RESULT if result == {"kind": "reply"} else _result(result)
        cls = Assistant
    elif role == "tool":
        made = _new(_ToolResult)
        call_id, name, is_error = value["call_id"], value["name"], value["is_error"]
        if len(value) != 8 or type(call_id) is not str or type(name) is not str or type(is_error) is not bool:
            raise _Odd
        made.call_id, made.name, made.is_error, made.details = call_id, name, is_error, None
        cls = ToolResult
    elif role == "system":
        if len(value) != 5:
            raise _Odd
        made = _new(_System)
        made.source = None
        cls = System
    else:
        raise _Odd
    made.id = message_id
    made.time = time
    made.turn_id = turn_id
    made.role = role
    made.parts = (_part(parts[0]),) if len(parts) == 1 else tuple([_part(part) for part in parts])
    made.__class__ = cls
    return made  # type: ignore[no-any-return]


def _part(value: dict[str, Any]) -> Any:
    kind = value["type"]
    part: Any
    if kind == "text":
        text = value["text"]
        if len(value) != 3 or type(text) is not str or value["citations"] != []:
            raise _Odd
        part = _new(_Text)
        part.text, part.citations, part.native, part.type = text, (), None, "text"
        part.__class__ = TextPart
    elif kind == "tool_call":
        part = _new(_Call)
        part.call_id, part.name, part.arguments = _strings(value, 4, "call_id", "name", "arguments")
        part.native, part.type = None, "tool_call"
        part.__class__ = ToolCallPart
    elif kind == "thinking":
        part = _new(_Thinking)
        (part.text,) = _strings(value, 3, "text")
        if type(value["redacted"]) is not bool:
            raise _Odd
        part.native, part.redacted, part.type = None, value["redacted"], "thinking"
        part.__class__ = ThinkingPart
    else:
        raise _Odd
    return part


def _strings(value: dict[str, Any], size: int, *names: str) -> list[str]:
    found = [value[name] for name in names]
    if len(value) != size or not all([type(text) is str for text in found]):
        raise _Odd
    return found


def _run(value: dict[str, Any]) -> RunFacts:
    response_id = value.get("response_id")
    (agent,) = _strings(value, 3 if response_id is None else 4, "agent")
    if response_id is not None and type(response_id) is not str:
        raise _Odd
    return RunFacts(
        agent=agent,
        model=ModelRef(*_strings(value["model"], 2, "provider", "id")),
        path=PathFacts(*_strings(value["path"], 2, "cwd", "root")),
        response_id=response_id,
    )


def _usage(value: dict[str, Any]) -> Usage:
    tokens, cost = value["tokens"], value.get("cost")
    if len(value) != 1 + (cost is not None) or (cost is not None and type(cost) is not float):
        raise _Odd
    if not all([type(count) is int for count in tokens.values()]):
        raise _Odd
    return Usage(tokens=Tokens(**tokens) if tokens else _NO_TOKENS, cost=cost)  # TypeError for a count of tomorrow


def _result(value: dict[str, Any]) -> ResultFacts:
    if type(value) is not dict:
        raise _Odd
    error = None
    facts = dict(value)
    if "error" in facts:
        error = ErrorFacts(*_strings(facts.pop("error"), 2, "code", "message"))
    if facts["kind"] not in ("reply", "summary") or not facts.keys() <= {"kind", "finish", "raw"}:
        raise _Odd
    _strings(facts, len(facts), *facts)
    return ResultFacts(error=error, **facts)


def _fastest() -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
    """What reads and writes a line: orjson where it is installed, else pydantic, which takes half as long again."""
    try:
        orjson: Any = importlib.import_module("orjson")
    except ImportError:
        return lambda line: from_json(line, cache_strings="keys"), lambda value: to_json(value) + b"\n"
    dumps, line_end = orjson.dumps, orjson.OPT_APPEND_NEWLINE
    return orjson.loads, lambda value: dumps(value, None, line_end)


_loads, _dumped = _fastest()
