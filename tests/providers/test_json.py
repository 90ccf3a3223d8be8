"""JSON at the wire: what services send that is not quite JSON, and what cannot be sent."""

from __future__ import annotations

import pytest

from kit_jupyter.providers._json import dumps, loads


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b'{"a": "\\ud83d\\ude00"}', {"a": "😀"}),
        (b'{"a": "x\\ud83d"}', {"a": "x\ufffd"}),
        (b'["\\ude00y", {"\\ud83d": 1}]', ["\ufffdy", {"\ufffd": 1}]),
        (b'{"a": "caf\xe9"}', {"a": "caf\ufffd"}),
        ('"x\ud83d"', "x\ufffd"),
    ],
)
def test_half_characters_never_come_in(data: bytes | str, value: object) -> None:
    """Half a surrogate pair or a byte outside UTF-8 is replaced: a session file could not hold the answer."""
    assert loads(data) == value


def test_half_characters_never_go_out() -> None:
    """What UTF-8 cannot hold becomes a question mark; all else stays as it is."""
    assert dumps({"a": "x\ud83d é"}) == '{"a":"x? é"}'.encode()


def test_what_is_not_json_is_refused() -> None:
    """No guess is made."""
    with pytest.raises(ValueError):
        loads(b"{nonsense")
