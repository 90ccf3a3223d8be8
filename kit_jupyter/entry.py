"""Entries of a session: one line of JSON each, decoded as far as somebody asks."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, cast

from kit_jupyter.errors import SessionError
from kit_jupyter.messages import Assistant, Message, System, ToolResult, User

__all__ = [
    "MESSAGE_TYPES",
    "Entry",
    "decode_line",
    "decode_message",
    "encode_message",
    "message_schema",
    "parse_line",
]

MESSAGE_TYPES = (User, System, Assistant, ToolResult)


@cache
def _message_adapter() -> Any:
    from pydantic import Field, TypeAdapter

    return TypeAdapter(Annotated[User | System | Assistant | ToolResult, Field(discriminator="role")])


@cache
def _encoders() -> dict[type, Any]:
    """Serializers by class: the union's would try one class after the other."""
    from pydantic import TypeAdapter

    return {cls: TypeAdapter(cls).serializer for cls in MESSAGE_TYPES}


@cache
def _by_hand() -> Any:
    """The room that knows the plain lines, at first use: a plain import need not load its parser."""
    from kit_jupyter import plain_lines

    return plain_lines


def encode_message(message: Message, warnings: str = "warn") -> bytes:
    """JSON of a message; facts that are None are left out. `warnings` is pydantic's, of values of another type."""
    plain = _by_hand().plain_json(message)
    return plain or cast(bytes, _encoders()[type(message)].to_json(message, exclude_none=True, warnings=warnings))


def decode_message(value: Any) -> Message:
    """The message that `encode_message` wrote, from its JSON value."""
    return cast(Message, _message_adapter().validate_python(value))


def message_schema() -> dict[str, Any]:
    """JSON schema of stored messages."""
    return cast(dict[str, Any], _message_adapter().json_schema())


class Entry:
    """One node of the tree; a message entry bears the id of its message.

    Attributes
    ----------
    id, parent : str, str or None
    type : str
        ``message``, ``compaction``, ``branch_summary``, ``leaf``, ``label``, ``name``, ``custom``, or an unknown one.
    body : dict
        The other fields of the line.
    """

    __slots__ = ("_message", "body", "id", "parent", "time", "type")

    def __init__(
        self,
        type: str,
        id: str,
        parent: str | None,
        time: str,
        body: dict[str, Any],
        message: Message | None = None,
    ) -> None:
        self.type = type
        self.id = id
        self.parent = parent
        self.time = time
        self.body = body
        self._message = message

    @property
    def message(self) -> Message | None:
        """The message of a ``message``, ``compaction`` or ``branch_summary`` entry; decoded on first touch."""
        if self._message is None and "message" in self.body:
            try:
                self._message = decode_message(self.body["message"])
            except ValueError as exc:
                raise SessionError(
                    f"entry {self.id!r} holds no message that can be read ({str(exc).splitlines()[0]})"
                ) from exc
        return self._message

    @property
    def is_decoded(self) -> bool:
        """True when the message is there as a value already."""
        return self._message is not None

    @property
    def copy(self) -> Entry:
        """The same entry as a value of its own, for another session."""
        return Entry(self.type, self.id, self.parent, self.time, dict(self.body), self._message)

    def fact(self, *path: str) -> Any:
        """A field deep in the message, read without decoding it; None when it is not there."""
        value: Any = self._message if self._message is not None else self.body.get("message")
        for name in path:
            value = value.get(name) if isinstance(value, dict) else getattr(value, name, None)
            if value is None:
                return None
        return value

    def to_line(self) -> bytes:
        """The line as it is stored, with its line end; half a surrogate pair, which no file can hold, is replaced."""
        plain = self._plain_line()
        if plain is not None:
            return plain
        try:
            return self._to_line()
        except (UnicodeEncodeError, ValueError):  # pydantic's own error is a ValueError
            from pydantic_core import to_json

            line = {"type": self.type, "id": self.id, "parent": self.parent, "time": self.time, **self.body}
            if self._message is not None:
                line["message"] = _encoders()[type(self._message)].to_python(self._message, exclude_none=True)
            return to_json(_without_halves(line)) + b"\n"

    def checked_line(self) -> bytes:
        """`to_line` for a message that may have been made by hand.

        Raises
        ------
        TypeError
            If nobody could read the line again: a text that is a number, an id that is None.
        """
        plain = self._plain_line()
        if plain is not None:
            return plain
        if type(self._message) is Assistant and type(self.id) is type(self.time) is str:
            try:
                return self._to_line("error")
            except ValueError:  # odd, and perhaps readable all the same
                pass
        try:
            line = self.to_line()
            decode_line(line)
        except (SessionError, ValueError) as exc:
            errors: Any = getattr(exc.__cause__, "errors", list)()  # of pydantic
            reason = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in errors[:3]) or exc
            raise TypeError(f"this {type(self._message).__name__} could not be read again ({reason})") from exc
        return line

    def _plain_line(self) -> bytes | None:
        if self._message is None or self.body:
            return None
        line = _by_hand().entry_line(self.type, self.id, self.parent, self.time, self._message)  # by far the most
        return cast("bytes | None", line)

    def _to_line(self, warnings: str = "warn") -> bytes:
        from pydantic_core import to_json

        head = {"type": self.type, "id": self.id, "parent": self.parent, "time": self.time}
        if self._message is not None:
            start: bytes = to_json({**head, **{k: v for k, v in self.body.items() if k != "message"}})
            return start[:-1] + b',"message":' + encode_message(self._message, warnings) + b"}\n"
        return to_json({**head, **self.body}) + b"\n"

    def __repr__(self) -> str:
        return f"<Entry {self.type} {self.id}>"


def _without_halves(value: Any) -> Any:
    """`value` with the lone surrogates of all its texts replaced."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {_without_halves(key): _without_halves(item) for key, item in value.items()}
        case list() | tuple():
            return [_without_halves(item) for item in value]
    return value


def decode_line(line: bytes) -> Entry:
    """The entry in a line, its message decoded at once: for reading a whole file.

    Raises
    ------
    ValueError
        If it is none.
    SessionError
        If its message cannot be read.
    """
    if line.startswith(b'{"type":"message",'):
        plain = _by_hand().plain_line(line)
        if plain is None:
            try:
                plain = tuple(_line_validator()(line).values())[1:]
            except ValueError:
                pass  # fields of tomorrow, or a damaged line: the slower way keeps or names them
        if plain is not None:
            entry = Entry.__new__(Entry)  # read by the hundred before a prompt
            entry.type = "message"
            entry.id, entry.parent, entry.time, entry._message = plain
            entry.body = {}
            return entry
    entry = parse_line(line)
    _ = entry.message
    return entry


@cache
def _line_validator() -> Any:
    from pydantic import ConfigDict, Field, TypeAdapter, with_config
    from typing_extensions import TypedDict  # what pydantic needs before Python 3.12, and brings along

    make: Any = TypedDict
    message = Annotated[User | System | Assistant | ToolResult, Field(discriminator="role")]
    shape = make("shape", {"type": str, "id": str, "parent": str | None, "time": str, "message": message})
    return TypeAdapter(with_config(ConfigDict(extra="forbid"))(shape)).validator.validate_json


def parse_line(line: bytes) -> Entry:
    """The entry in a line.

    Raises
    ------
    ValueError
        If it is none.
    """
    from pydantic_core import from_json

    value = from_json(line)
    if not isinstance(value, dict):
        raise ValueError("not an object")
    kind, entry_id, parent = value.pop("type", None), value.pop("id", None), value.pop("parent", None)
    if not isinstance(kind, str) or not isinstance(entry_id, str) or not isinstance(parent, str | None):
        raise ValueError("type, id and parent must be text")
    return Entry(kind, entry_id, parent, str(value.pop("time", "")), value)
