"""From bytes, however they are cut, to events: server-sent events, or one whole body.

Theory of operation
-------------------
`Frames` is fed whatever the network gave. It looks at the first byte that is not white space to tell
a stream from a body that came at once (an error, an answer to a request that asked for a stream, a
proxy's HTML page); the content type is no help, as services send streams as ``application/json``.
A stream is split into lines as bytes, so that a read may end inside a character; LF, CRLF and CR end
lines, a byte order mark is dropped, comments are passed over, ``data`` lines are joined.
Work is linear in the bytes, also for one endless line, and what is held is bounded.

`Answer` adds the decoder: bytes in, deltas out. `_wire` feeds it from a socket, tests from recordings.

Why not httpx-sse: with it, framing and ``json.loads`` alone cost 1.12 of the bare client reading lines
(20.1 against 18.0 µs a chunk, httpx 0.28 and httpx-sse 0.4.3 in one run of ``tests/benchmarks``). The budget
of the whole provider, decoder and builder included, is 1.0; with this it is 0.99. It also splits decoded
text, holds an event of any size, and takes its answer's content type at its word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any

from kit_jupyter.deltas import CitationDelta, Finished, ModelDelta, PartAdded, TextDelta, ThinkingDelta
from kit_jupyter.errors import ProviderError, WireError
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers._errors import cut, describe, not_json
from kit_jupyter.providers.codec import Decoder, Endpoint, ServerEvent

__all__ = ["Answer", "Frames", "TooLarge"]

MAX_EVENT_BYTES = 32 * 1024 * 1024
MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_SILENT_BYTES = 16 * 1024 * 1024  # comments and blank lines without one event between them

_BOM = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_KINDS: dict[Any, tuple[type, ...]] = {
    "str": (str,),
    "str | None": (str, NoneType),
    "int": (int,),
    "int | None": (int, NoneType),
}
_Kinds = tuple[tuple[str, tuple[type, ...]], ...]
_known: dict[type, _Kinds] = {}
_event = tuple.__new__  # what ServerEvent(…) does, a call less for every word of an answer


class TooLarge(Exception):
    """More bytes than a sane answer holds; the text says of what."""


class Frames:
    """Splits one answer's bytes into events, or keeps them as one body.

    Examples
    --------
    >>> frames = Frames()
    >>> [*frames.feed(b"data: a\\r"), *frames.feed(b"\\ndata: b\\r\\n\\r"), *frames.feed(b"\\n")]
    [ServerEvent(name='', data=b'a\\nb')]
    """

    def __init__(self) -> None:
        self._max_event, self._max_body, self._max_silent = MAX_EVENT_BYTES, MAX_BODY_BYTES, MAX_SILENT_BYTES
        self.is_stream: bool | None = None
        """None until the first byte that tells."""
        self._body: list[bytes] = []
        self._body_size = 0
        self._line: list[bytes] = []  # pieces of the line that has not ended yet
        self._line_size = 0
        self._after_cr = False
        self._name = b""
        self._data: list[bytes] = []
        self._data_size = 0
        self._silent = 0
        self.head = b""
        """How a stream began, to show when it turns out to be none."""

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """Events that `chunk` completes.

        Raises
        ------
        TooLarge
            If an event, a body, or the comments between two events pass their bound.
        """
        if self.is_stream is None:
            chunk = self._sniff(chunk)
            if not chunk:
                return []
        if not self.is_stream:
            self._keep(chunk)
            return []
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if chunk[:6] == b"data: " and chunk[-2:] == b"\n\n" and chunk.count(b"\n") == 2 and self._is_between(chunk):
            self._silent = 0
            return [_event(ServerEvent, ("", chunk[6:-2]))]  # one whole event a read: what most services send
        if chunk[:7] == b"event: " and chunk[-2:] == b"\n\n" and chunk.count(b"\n") == 3 and self._is_between(chunk):
            name, _, data = chunk[7:-2].partition(b"\ndata: ")
            if data and b"\n" not in name:  # the same with a name: Anthropic, OpenAI Responses
                self._silent = 0
                return [_event(ServerEvent, (name.decode("utf-8", "replace"), data))]
        events: list[ServerEvent] = []
        size = len(chunk)
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        elif self._is_between(chunk):
            # Nearly every read holds whole events of one data line: no need to look at each line.
            chunk = self._take_blocks(chunk, events)
        elif chunk:
            self._after_cr = False
        if chunk:
            self._take_lines(chunk, events)
        if events:
            self._silent = 0
        elif not self._line:
            self._silent += size
            if self._silent - self._data_size > self._max_silent:
                raise TooLarge(f"{self._silent:,} bytes without an event")
        return events

    def _is_between(self, chunk: bytes) -> bool:
        """Nothing of an event or a line is held, and no line end but LF is about."""
        return not (self._line or self._data or self._name or self._after_cr or b"\r" in chunk)

    def _take_lines(self, chunk: bytes, events: list[ServerEvent]) -> None:
        """Take a chunk line by line; the last one may go on in the next chunk."""
        lines = chunk.split(b"\n")
        if len(lines) > 1:
            if self._line:
                self._line.append(lines[0])
                lines[0] = b"".join(self._line)
                self._line, self._line_size = [], 0
            rest = lines.pop()
            self._take(lines, events)
            chunk = rest
        if chunk:
            self._hold(chunk)

    def _take_blocks(self, chunk: bytes, events: list[ServerEvent]) -> bytes:
        """Take the events that begin and end in `chunk`; what is left over comes back."""
        blocks = chunk.split(b"\n\n")
        rest = blocks.pop()
        for block in blocks:
            if block[:6] == b"data: " and b"\n" not in block:
                events.append(_event(ServerEvent, ("", block[6:])))
            else:
                self._take([*block.split(b"\n"), b""], events)
        return rest

    def _take(self, lines: list[bytes], events: list[ServerEvent]) -> None:
        data = self._data
        for line in lines:
            if line.startswith(b"data:"):
                value = line[6:] if line[5:6] == b" " else line[5:]
                data.append(value)
                self._data_size += len(value) + 1
                if self._data_size > self._max_event:
                    raise TooLarge(f"an event of more than {self._max_event:,} bytes")
            elif not line:
                if data:
                    events.append(ServerEvent(self._take_name(), data[0] if len(data) == 1 else b"\n".join(data)))
                    data.clear()
                    self._data_size = 0
                else:
                    self._name = b""
            elif line.startswith(b"event:"):
                self._name = line[7:] if line[6:7] == b" " else line[6:]
            elif line == b"data":
                data.append(b"")
            # comments, id, retry and fields nobody knows: nothing to do

    def _take_name(self) -> str:
        if not self._name:
            return ""
        name, self._name = self._name.decode("utf-8", "replace"), b""
        return name

    def _hold(self, piece: bytes) -> None:
        self._line.append(piece)
        self._line_size += len(piece)
        if self._line_size > self._max_event:
            raise TooLarge(f"a line of more than {self._max_event:,} bytes")

    def _keep(self, piece: bytes) -> None:
        self._body.append(piece)
        self._body_size += len(piece)
        if self._body_size > self._max_body:
            raise TooLarge(f"a body of more than {self._max_body:,} bytes")

    def _sniff(self, chunk: bytes) -> bytes:
        """Decide what this is; bytes that do not tell yet are kept, empty comes back."""
        self._keep(chunk)
        head = b"".join(self._body)
        if len(head) < len(_BOM) and _BOM.startswith(head):
            return b""
        text = head[len(_BOM) :] if head.startswith(_BOM) else head
        first = text.lstrip(_SPACE)[:1]
        if not first:
            self._body = [head]  # OpenRouter pads a slow plain answer with blank lines
            return b""
        self._body, self._body_size = [], 0
        self.head = text[:200]
        # A body is JSON or a page of HTML; a stream begins with a field's name or a comment.
        self.is_stream = first not in (b"{", b"[", b"<", b'"')
        return text

    def end(self) -> tuple[list[ServerEvent], bytes | None]:
        """The body ended: an event that lacked its blank line, and the whole body if it was no stream."""
        if not self.is_stream:
            body, self._body = b"".join(self._body), []
            return [], body.removeprefix(_BOM)
        rest, self._line = b"".join(self._line), []
        events: list[ServerEvent] = []
        self._take([rest, b""] if rest else [b""], events)
        return events, None


def is_sound(value: Any) -> bool:
    """Has every text of a delta, and of the part or citation in it, the type it should have?

    Examples
    --------
    >>> is_sound(TextDelta(0, "a")), is_sound(TextDelta(0, 5))
    (True, False)
    """
    if type(value) is TextDelta:
        return type(value.text) is str
    for name, kinds in _kinds_of(type(value)):
        if not isinstance(getattr(value, name), kinds):
            return False
    match value:
        case CitationDelta(_, held) | PartAdded(_, held):
            return is_sound(held)
    return True


def _kinds_of(kind: type) -> _Kinds:
    """Names of the fields of a record that hold texts and numbers, and what they may be."""
    found = _known.get(kind)
    if found is None:
        told = fields(kind) if is_dataclass(kind) else ()
        found = _known[kind] = tuple((field.name, _KINDS[field.type]) for field in told if field.type in _KINDS)
    return found


class Answer:
    """One answer of a service: bytes in, deltas out, `Finished` last.

    Parameters
    ----------
    decoder : Decoder
        A fresh one of the codec.
    """

    def __init__(
        self, decoder: Decoder, request: ModelRequest, endpoint: Endpoint, frames: Frames | None = None
    ) -> None:
        self._decoder, self._request, self._endpoint = decoder, request, endpoint
        self._frames = frames or Frames()
        self._finished: Finished | None = None
        self.events = 0
        """How many came."""
        self.is_complete = False
        """The protocol said so, though the body may go on."""

    def feed(self, chunk: bytes) -> Iterable[ModelDelta]:
        """Deltas of the events that `chunk` completes; read them all before the next chunk.

        Raises
        ------
        ProviderError
            What the service said inside the stream, or `WireError`; perhaps only while the deltas are read.
        """
        try:
            events = self._frames.feed(chunk)
        except TooLarge as exc:
            raise self._too_large(exc) from None
        count = len(events)
        self.events += count
        if count == 1:
            deltas = self._decoder.feed(events[0])
            if (
                type(deltas) is tuple
                and len(deltas) == 1
                and type(deltas[0]) is TextDelta
                and type(deltas[0].text) is str
            ):
                return deltas  # one read, one word: nothing to join and nothing to look at
            return self._joined(events, deltas)
        return self._joined(events, None) if count else ()

    def _joined(self, events: list[ServerEvent], first: Iterable[ModelDelta] | None) -> Iterator[ModelDelta]:
        """Deltas of these events; words that one read brought are handed on as one delta.

        All that follows (builder, events, views) then costs by the read, not by the word.
        """
        feed = self._decoder.feed
        kind: type[TextDelta] | type[ThinkingDelta] = TextDelta
        index = -1
        words: list[str] = []
        try:
            for event in events:
                for delta in feed(event) if first is None else first:
                    made = type(delta)
                    if not is_sound(delta):
                        raise not_json(event.data, self._request, self._endpoint)
                    if made is TextDelta or made is ThinkingDelta:
                        if words and (made is not kind or delta.index != index):  # type: ignore[union-attr]
                            yield kind(index, "".join(words))
                            words.clear()
                        kind, index = made, delta.index  # type: ignore[union-attr]
                        words.append(delta.text)  # type: ignore[union-attr]
                        continue
                    if words:
                        yield kind(index, "".join(words))
                        words.clear()
                    if made is Finished:
                        self._finished = delta  # type: ignore[assignment]
                        self.is_complete = True
                    else:
                        yield delta
                if event.data == b"[DONE]":
                    self.is_complete = True
        except ProviderError:
            if words:
                yield kind(index, "".join(words))
            raise
        if words:
            yield kind(index, "".join(words))

    def _open(self, deltas: Iterable[ModelDelta], data: bytes | str) -> Iterator[ModelDelta]:
        for delta in deltas:
            if not is_sound(delta):
                raise not_json(data, self._request, self._endpoint)
            if type(delta) is Finished:
                self._finished = delta
                self.is_complete = True
            else:
                yield delta

    def _too_large(self, exc: TooLarge) -> WireError:
        words = f"the service sent {exc}"
        return WireError(
            describe(self._endpoint, self._request, words, step="check base_url, or ask for less in one answer"),
            provider=self._endpoint.name,
            model=self._request.model.id,
        )

    def end(self) -> Iterator[ModelDelta]:
        """The body ended: what was still open, and `Finished`.

        Raises
        ------
        ProviderError
            Also `WireError`, if the answer was cut or is not this protocol.
        """
        events, body = self._frames.end()
        if body is not None:
            yield from self._whole(body)
        elif not events and not self.events:
            raise not_json(self._frames.head, self._request, self._endpoint)
        else:
            for event in events:
                try:
                    yield from self._open(self._decoder.feed(event), event.data)
                except WireError:
                    break  # half an event at the end: whether the answer was complete is for the decoder to say
            yield from self._open(self._decoder.end(), self._frames.head)
        if self._finished is None:
            raise cut(self._request, self._endpoint)
        yield self._finished

    def _whole(self, body: bytes) -> Iterator[ModelDelta]:
        text = body.strip()
        if not text:
            raise cut(self._request, self._endpoint, "the service sent an empty answer")
        if text.startswith(b"<"):
            raise not_json(text, self._request, self._endpoint, where="the answer")
        yield from self._open(self._decoder.whole(text), text)
