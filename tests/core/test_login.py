"""`kit.login`: a key is asked for, kept, and shown nowhere (U73)."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit_jupyter import Kit, UsageError
from kit_jupyter.testing import ScriptedProvider


def test_login_keeps_a_key_and_shows_it_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The key goes to a file that only its owner reads; what is printed names the place, not the key (U73)."""
    monkeypatch.setenv("KIT_CONFIG_DIR", str(tmp_path))
    monkeypatch.setattr("getpass.getpass", lambda prompt="": "sk-planted-0123456789abcdef")
    kit = Kit(provider=ScriptedProvider(), session="memory")

    kit.login("openai", where="file")

    kept = [path for path in tmp_path.rglob("*") if path.is_file() and "sk-planted" in path.read_text()]
    assert len(kept) == 1
    assert kept[0].stat().st_mode & 0o077 == 0
    assert "sk-planted" not in capsys.readouterr().out


def test_login_of_an_unknown_provider_names_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A typing error is said before a key is asked for."""
    monkeypatch.setattr("getpass.getpass", lambda prompt="": pytest.fail("asked for a key"))

    with pytest.raises(UsageError, match="openai"):
        Kit.login("opneai")
