"""The corpus is the judge: every recorded answer decodes to what it means, however its bytes are cut (law 13)."""

from __future__ import annotations

import importlib.util

import pytest

from .wire_cases import CODECS, ROOT, WireCase, all_cases, by_event, bytewise, decode, differences, randomly, whole

CASES = all_cases()

pytestmark = pytest.mark.skipif(not CASES, reason=f"no recorded cases at {ROOT}; set KIT_WIRE_CASES to their folder")


@pytest.fixture(params=CASES or [None], ids=str)
def case(request: pytest.FixtureRequest) -> WireCase:
    """Each case of each wire whose codec exists."""
    found: WireCase = request.param
    module = CODECS[found.protocol].partition(":")[0]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} does not exist")
    return found


def test_the_answer_means_what_was_recorded(case: WireCase) -> None:
    """Text, reasoning, calls, order, stop, usage, secrets and error facts are those of the expectation."""
    assert differences(case, decode(case, whole(case.body))) == []


def test_the_answer_is_the_same_byte_by_byte(case: WireCase) -> None:
    """A network that brings one byte at a time changes nothing."""
    expected = decode(case, whole(case.body)).facts()

    assert decode(case, bytewise(case.body)).facts() == expected


def test_the_answer_is_the_same_event_by_event(case: WireCase) -> None:
    """One whole event a read, the usual case with a road of its own, changes nothing."""
    expected = decode(case, whole(case.body)).facts()

    assert decode(case, by_event(case.body)).facts() == expected


@pytest.mark.parametrize("seed", range(4))
def test_the_answer_is_the_same_cut_at_random(case: WireCase, seed: int) -> None:
    """Cuts inside characters, line ends and events, and empty reads, change nothing."""
    expected = decode(case, whole(case.body)).facts()

    assert decode(case, randomly(case.body, seed)).facts() == expected


def test_line_ends_do_not_matter(case: WireCase) -> None:
    """CRLF or CR for LF, and a byte order mark in front, change nothing."""
    body = case.body
    if case.load("response")["status"] >= 400 or not case.load("case")["body"]["file"].endswith(".sse"):
        pytest.skip("not a stream")
    lines = body.replace(b"\r\n", b"\n")
    expected = decode(case, whole(lines)).facts()

    for ends in (b"\r\n", b"\r"):
        assert decode(case, randomly(b"\xef\xbb\xbf" + lines.replace(b"\n", ends), 9)).facts() == expected
