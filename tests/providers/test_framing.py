"""Bytes to events: any cut, any line end, bounded memory, work linear in the bytes (law 13)."""

from __future__ import annotations

import gc
import itertools
import sys
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit_jupyter.errors import WireError
from kit_jupyter.providers import _framing
from kit_jupyter.providers._framing import Frames, TooLarge
from kit_jupyter.providers.codec import Endpoint, ServerEvent

from .histories import read, request, sse
from .wire_cases import codec_of

Fields = st.lists(
    st.one_of(
        st.tuples(st.just("data"), st.text(st.characters(codec="utf-8", exclude_characters="\r\n\x00"), max_size=12)),
        st.tuples(st.sampled_from(["event", "id", "retry", "", "other"]), st.text("ab :é", max_size=5)),
    ),
    min_size=1,
    max_size=4,
)
Ends = st.sampled_from(["\n", "\r\n", "\r"])


def events_of(*pieces: bytes) -> list[ServerEvent]:
    frames = Frames()
    found = [event for piece in pieces for event in frames.feed(piece)]
    rest, body = frames.end()
    assert body is None or not found
    return found + rest


def expected(blocks: list[list[tuple[str, str]]]) -> list[ServerEvent]:
    """What the specification makes of these fields."""
    out = []
    for block in blocks:
        data = [value for name, value in block if name == "data"]
        if data:
            name = next((value for name, value in reversed(block) if name == "event"), "")
            out.append(ServerEvent(name, "\n".join(data).encode()))
    return out


def written(blocks: list[list[tuple[str, str]]], end: str, *, space: bool) -> bytes:
    gap = " " if space else ""
    text = "".join("".join(f"{name}:{gap}{value}{end}" for name, value in block) + end for block in blocks)
    return text.encode()


@settings(max_examples=300, deadline=None)
@given(blocks=st.lists(Fields, min_size=1, max_size=5), end=Ends, data=st.data())
def test_events_do_not_depend_on_how_bytes_are_cut(
    blocks: list[list[tuple[str, str]]], end: str, data: st.DataObject
) -> None:
    """Line ends, names, comments, several data lines, and cuts anywhere, inside characters and CRLF too."""
    body = b"data: first" + 2 * end.encode() + written(blocks, end, space=True)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=6)))
    pieces = [body[a:b] for a, b in itertools.pairwise([0, *cuts, len(body)])]

    assert events_of(*pieces) == [ServerEvent("", b"first"), *expected(blocks)]


@pytest.mark.parametrize("cut", range(1, 20))
def test_a_byte_order_mark_is_dropped_however_it_is_cut(cut: int) -> None:
    """It stands at the beginning only."""
    body = "\ufeffdata: é\ufeff\n\n".encode()

    assert events_of(body[:cut], body[cut:]) == [ServerEvent("", "é\ufeff".encode())]


@pytest.mark.parametrize(
    ("body", "is_stream"),
    [
        (b'{"a": 1}', False),
        (b"\n\n  \r\n[1]", False),
        (b"<html>", False),
        (b"", False),
        (b"   \n", False),
        (b": comment\n\ndata: x\n\n", True),
        (b"event: x\ndata: y\n\n", True),
        (b"retry: 3\n\n", True),
    ],
)
def test_a_stream_is_told_from_a_body_by_how_it_begins(body: bytes, is_stream: bool) -> None:
    """Not by its content type: streams come as ``application/json`` too."""
    frames = Frames()
    for at in range(len(body)):
        frames.feed(body[at : at + 1])
    _, whole = frames.end()

    assert (whole is None) == is_stream
    if not is_stream:
        assert whole == body


def test_an_event_without_its_blank_line_is_given_at_the_end() -> None:
    """The last event of a body that was cut cleanly, for the decoder to judge."""
    frames = Frames()
    assert frames.feed(b"data: a\n\ndata: b") == [ServerEvent("", b"a")]

    assert frames.end() == ([ServerEvent("", b"b")], None)


@pytest.mark.parametrize(
    "pieces",
    [
        [b"data: ", *[b"x" * 1000] * 60],
        [b"data: x\n" * 100] * 100,
        [b": " + b"x" * 1000] * 60,
        [b": x\n\n" * 100] * 100,
        [b"data: a\n\n", *[b"\n" * 1000] * 60],
        [b"{", *[b" " * 1000] * 60],
        [b" " * 1000] * 60,
    ],
    ids=["a long line", "many lines", "a long comment", "comments", "blank lines", "a body", "white space"],
)
def test_what_is_held_is_bounded(pieces: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless anything ends in an error, whatever it is endless in."""
    for name in ("MAX_EVENT_BYTES", "MAX_BODY_BYTES", "MAX_SILENT_BYTES"):
        monkeypatch.setattr(_framing, name, 20_000)
    frames = Frames()

    with pytest.raises(TooLarge, match="bytes"):
        _ = [frames.feed(piece) for piece in pieces]


def test_comments_between_events_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long answer with a comment now and then is no flood."""
    monkeypatch.setattr(_framing, "MAX_SILENT_BYTES", 1000)
    frames = Frames()

    for _ in range(1000):
        frames.feed(b": processing\n\n" * 10)
        assert frames.feed(b"data: x\n\n") == [ServerEvent("", b"x")]


def test_a_large_event_in_small_pieces_takes_linear_time() -> None:
    """Ten times the bytes, about ten times the time; the square would be a hundred."""

    def cost(size: int) -> float:
        frames = Frames()
        piece = b"x" * 500
        begin = time.process_time()
        frames.feed(b"data: ")
        for _ in range(size):
            frames.feed(piece)
        assert len(frames.feed(b"\n\n")) == 1
        return time.process_time() - begin

    cost(1000)

    assert cost(20_000) < 40 * max(cost(2_000), 1e-4)


def calls_of(work: Any) -> int:
    count = 0

    def see(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    gc.disable()  # a collection calls what others left behind
    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


@pytest.mark.parametrize("piece", [b"data: {}\n\n", b"data: {}\n\n" * 4, b"event: a\ndata: {}\n\n"])
def test_a_read_costs_few_calls(piece: bytes) -> None:
    """Counted twin of the budget per chunk: the same at the ten thousandth read (speed rows 1c and 3)."""
    frames = Frames()
    frames.feed(piece)

    first = calls_of(lambda: frames.feed(piece))
    for _ in range(10_000):
        frames.feed(piece)

    assert calls_of(lambda: frames.feed(piece)) == first <= 7


@pytest.mark.parametrize(
    ("wire", "body"),
    [
        ("openai-chat", {"id": 5, "choices": [{"delta": {"content": "x"}}]}),
        (
            "openai-chat",
            {"choices": [{"delta": {"tool_calls": [{"index": 0, "id": [None], "function": {"name": 7}}]}}]},
        ),
        ("anthropic-messages", {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 5}}),
        (
            "anthropic-messages",
            {
                "type": "content_block_start",
                "index": 0,
                "content_block": {"type": "tool_use", "id": [None], "name": "f"},
            },
        ),
        (
            "openai-responses",
            {
                "type": "response.output_item.added",
                "output_index": 0,
                "item": {"type": "function_call", "call_id": -1, "name": "f"},
            },
        ),
        ("gemini", {"candidates": [{"content": {"parts": [{"functionCall": {"id": {}, "name": "f", "args": {}}}]}}]}),
        ("gemini", {"candidates": [{"content": {"parts": [{"inlineData": {"mimeType": [None], "data": "aGk="}}]}}]}),
    ],
)
def test_a_field_of_another_type_is_no_protocol(wire: str, body: dict[str, Any]) -> None:
    """Bad input: a number or a list in a text's place is told as the service's fault, not met later by a bare error."""
    asked, endpoint = request(model="demo/m"), Endpoint(name="demo", base_url="https://host.test/v1")

    out, error = read(codec_of(wire), asked, endpoint, sse(body))

    assert isinstance(error, WireError), (out, error)
