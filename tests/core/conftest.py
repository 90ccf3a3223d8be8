"""Kits with scripted models, in memory, closed at the end; files in a folder of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit_jupyter import Kit
from kit_jupyter.testing import ScriptedProvider


@pytest.fixture(autouse=True)
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test writes into the user's own sessions."""
    monkeypatch.setenv("KIT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("KIT_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path / "data"


@pytest.fixture
def make() -> Iterator[Callable[..., tuple[Kit, ScriptedProvider]]]:
    """``kit, provider = make(reply, …)``; settings by keyword."""
    made: list[Kit] = []

    def build(*replies: Any, **settings: Any) -> tuple[Kit, ScriptedProvider]:
        info = settings.pop("info", None)
        provider = settings.pop("provider", None) or ScriptedProvider(*replies, info=info)
        settings.setdefault("session", "memory")
        settings.setdefault("permissions", "auto")
        kit = Kit(provider=provider, **settings)
        made.append(kit)
        return kit, provider

    yield build
    for kit in made:
        kit.abort_sync()
        kit.close()
