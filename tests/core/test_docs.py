"""The SDK page and the README say what is so: their code runs, their tables are the code's."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from kit_jupyter import PromptOptions, TurnResult, errors
from kit_jupyter.testing import ScriptedProvider, text, tool_call

from .docs_tables import SDK, with_table

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(page: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def test_the_examples_of_the_sdk_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    """U32: in order, in one namespace, as a reader would."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(SDK.read_text()):
        exec(compile(block, "sdk.md", "exec"), names)

    assert capsys.readouterr().out.split()[-1] == "TurnEnd"


def test_the_readme_example_runs_with_a_scripted_and_with_a_local_model(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """U32: the plain script of the README, as it stands; the local model's place is taken by a scripted one."""
    from kit_jupyter.providers import registry

    local, scripted = blocks(README)[:2]
    standing_in = ScriptedProvider([tool_call("area", width=4, height=5)], [text("20 square metres")], name="local")
    monkeypatch.setattr(registry, "open_provider", lambda ref, **_: standing_in)
    names: dict[str, Any] = {"__name__": "script"}
    exec(compile(local, "README.md", "exec"), names)
    assert "20 square metres" in capsys.readouterr().out
    exec(compile(scripted, "README.md", "exec"), names)
    assert len(local.strip().splitlines()) <= 14


def test_the_table_of_events_is_the_code() -> None:
    """Made from `events.py`; write it anew with ``python -m tests.core.docs_tables``."""
    page = SDK.read_text()
    assert page == with_table(page)


def test_options_results_and_errors_are_all_told() -> None:
    """S3: every option, every field of a result and every error class has its place on the page; so have the modes."""
    page = SDK.read_text()
    names = [f.name for f in dataclasses.fields(PromptOptions)]
    names += [f.name for f in dataclasses.fields(TurnResult)]
    names += [name for name in errors.__all__ if name != "KitError"]
    names += ["prompt(", "prompt_with_options(", "steer(", "follow_up(", "compact(", "abort()", "clear_queue()"]
    assert [name for name in names if name not in page] == []
