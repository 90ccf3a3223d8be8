"""Reads a model's answer in a form, ``{"tool": …}`` or ``{"answer": …}``, while it grows."""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["AnswerReader", "Piece"]

Piece = tuple[str, str]  # ("text", more of the answer) · ("call", tool name) · ("arguments", more JSON text)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SPACE = " \t\r\n"


class AnswerReader:
    """Reads ``{"tool": …, "arguments": …}`` or ``{"answer": …}`` piece by piece.

    The pieces joined are the same however the text is cut. Text that is not such an object comes
    out as it went in.

    Parameters
    ----------
    raw_answer : bool
        Give the answer's JSON text, not the string it stands for (when a schema was asked for).

    Examples
    --------
    >>> reader = AnswerReader()
    >>> [reader.feed(cut) for cut in ('{"ans', 'wer": "caf\\\\u00', 'e9"}')]
    [[], [('text', 'caf')], [('text', 'é')]]
    >>> reader.end(), reader.is_complete
    ([], True)
    """

    def __init__(self, *, raw_answer: bool = False) -> None:
        self._raw_answer = raw_answer
        self._state = "start"
        self._key: list[str] = []
        self._field = ""
        self._escape = ""  # an escape sequence that is not complete yet
        self._high = ""  # first half of a surrogate pair, as hex digits
        self._depth = 0
        self._in_string = False
        self._skip_next = False
        self._name: list[str] = []
        self._held: list[str] = []  # arguments that came before the tool's name
        self._seen: list[str] | None = []  # all text, until it is known to be a form
        self.called = False
        self.answered = False

    @property
    def is_complete(self) -> bool:
        """True when the object is closed, or the text is not an object at all."""
        return self._state in {"done", "plain"}

    def feed(self, text: str) -> list[Piece]:
        """Pieces of more text; neighbours of one kind are joined."""
        if self._seen is not None:
            self._seen.append(text)
        pieces: list[Piece] = []
        for char in text:
            for kind, more in self._step(char):
                if pieces and pieces[-1][0] == kind and kind != "call":
                    pieces[-1] = (kind, pieces[-1][1] + more)
                else:
                    pieces.append((kind, more))
        return pieces

    def end(self) -> list[Piece]:
        """What is left when no more text comes."""
        left = list(self._flush_string("text")) if self._state == "answer" else []
        if self.called or self.answered or self._state == "plain":
            return left
        raw = "".join(self._seen or ()).strip()
        self._seen = None
        return [("text", raw)] if raw else []

    # -- one character at a time

    def _step(self, char: str) -> Iterator[Piece]:
        match self._state:
            case "start":
                if char == "{":
                    self._state = "key or end"
                elif char not in _SPACE:
                    self._state, self._seen = "plain", None
                    yield ("text", char)
            case "plain":
                yield ("text", char)
            case "key or end":
                if char == '"':
                    self._state, self._key = "key", []
                elif char == "}":
                    self._state = "done"
            case "key":
                if self._unescape(char, self._key):
                    self._field, self._state = "".join(self._key), "colon"
            case "colon":
                if char == ":":
                    self._state = "value"
            case "value":
                if char not in _SPACE:
                    yield from self._open(char)
            case "answer":
                out: list[str] = []
                closed = self._unescape(char, out)
                if out:
                    yield ("text", "".join(out))
                if closed:
                    self._state = "key or end"
            case "tool":
                if self._unescape(char, self._name):
                    self._state = "key or end"
                    yield from self._named()
            case "raw":
                yield from self._raw(char)

    def _open(self, char: str) -> Iterator[Piece]:
        """The first character of a value."""
        if self._field == "answer" and char == '"' and not self._raw_answer:
            self._state, self.answered, self._seen = "answer", True, None
        elif self._field == "tool" and char == '"' and not self.called:
            self._state = "tool"
        else:
            if self._field == "answer":
                self.answered, self._seen = True, None
            self._state, self._depth, self._in_string, self._skip_next = "raw", 0, False, False
            yield from self._raw(char)

    def _named(self) -> Iterator[Piece]:
        self.called, self._seen = True, None
        yield ("call", "".join(self._name))
        if self._held:
            yield ("arguments", "".join(self._held))
            self._held = []

    def _raw(self, char: str) -> Iterator[Piece]:
        """A value whose JSON text is wanted as it stands."""
        if self._in_string:
            if self._skip_next:
                self._skip_next = False
            elif char == "\\":
                self._skip_next = True
            elif char == '"':
                self._in_string = False
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif self._depth == 0 and char in ",}":
            self._state = "done" if char == "}" else "key or end"
            return
        elif char in "}]":
            self._depth -= 1
            if self._depth == 0:
                self._state = "key or end"
        elif self._depth == 0 and char in _SPACE:
            return
        if self._depth == 0 and char == '"' and not self._in_string:
            self._state = "key or end"
        if self._field == "answer":
            yield ("text", char)
        elif self._field == "arguments":
            if self.called:
                yield ("arguments", char)
            else:
                self._held.append(char)

    def _unescape(self, char: str, out: list[str]) -> bool:
        """Take one character of a JSON string into `out`; True at its closing quote."""
        if self._escape:
            self._escape += char
            if self._escape == "\\u" or (self._escape.startswith("\\u") and len(self._escape) < 6):
                return False
            escape, self._escape = self._escape, ""
            if escape.startswith("\\u"):
                self._code_unit(escape[2:], out)
            else:
                self._lone(out)
                out.append(_ESCAPES.get(char, char))
            return False
        if char == "\\":
            self._escape = "\\"
            return False
        self._lone(out)
        if char == '"':
            return True
        out.append(char)
        return False

    def _code_unit(self, digits: str, out: list[str]) -> None:
        try:
            unit = int(digits, 16)
        except ValueError:
            self._lone(out)
            out.append("\ufffd")
            return
        if self._high and 0xDC00 <= unit <= 0xDFFF:
            out.append(chr(0x10000 + ((int(self._high, 16) - 0xD800) << 10) + (unit - 0xDC00)))
            self._high = ""
            return
        self._lone(out)
        if 0xD800 <= unit <= 0xDBFF:
            self._high = digits
        else:
            out.append("\ufffd" if 0xDC00 <= unit <= 0xDFFF else chr(unit))

    def _lone(self, out: list[str]) -> None:
        """Half a surrogate pair whose other half did not come."""
        if self._high:
            self._high = ""
            out.append("\ufffd")

    def _flush_string(self, kind: str) -> Iterator[Piece]:
        out: list[str] = []
        self._lone(out)
        if out:
            yield (kind, "".join(out))
