"""Bad input: one clear error of the tree, before anything is stored or sent; the Kit goes on, and its file opens."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kit_jupyter import CellRef, Kit, KitError, PromptOptions, Session, SessionError, TextPart, UsageError
from kit_jupyter.media import as_part
from kit_jupyter.settings import Settings
from kit_jupyter.testing import ScriptedProvider, record_events

from .helpers import area, texts

HALF = "bad \ud800 text"


async def _go_on(kit: Kit) -> None:
    """It answers, and what its file holds is what it holds."""
    assert str(await kit.prompt("and now?")) == "fine"
    kit.session.close()
    again = Session.open(kit.session.path)  # type: ignore[arg-type]
    assert again.messages() == kit.messages
    assert again.warnings == []


async def _follow(kit: Kit, text: Any) -> None:
    await kit.prompt("x")
    await kit.follow_up(text)


async def _label(kit: Kit, text: Any) -> None:
    await kit.prompt("x")
    kit.label(kit.session.leaf or "", text)


SAID: dict[str, tuple[Callable[[Any], Awaitable[Any]], str]] = {
    "prompt, half a character": (lambda kit: kit.prompt(HALF), "lone surrogate at character 4"),
    "prompt, None": (lambda kit: kit.prompt(None), "the text of a prompt must be str, got NoneType"),
    "prompt, bytes": (lambda kit: kit.prompt(b"x"), "must be str, got bytes"),
    "prompt, parts without text": (lambda kit: kit.prompt("", parts=[" "]), "the prompt is empty"),
    "prompt, one part by itself": (lambda kit: kit.prompt("x", parts="plot.png"), "parts is a list"),
    "prompt, no parts": (lambda kit: kit.prompt("x", parts=None), "parts is a list"),
    "prompt, a part that is none": (lambda kit: kit.prompt("x", parts=[None]), "cannot attach a NoneType"),
    "prompt, options of a dict": (
        lambda kit: kit.prompt("x", options={"max_steps": 3}),
        "must be PromptOptions, got dict",
    ),
    "prompt, a cell by its id": (lambda kit: kit.prompt("x", cell="c1"), "cell must be a CellRef, got str"),
    "prompt, a shape that is none": (lambda kit: kit.prompt("x", schema=3), "no JSON schema can be made of 3"),
    "steer, empty": (lambda kit: kit.steer(" \n"), "the instruction is empty"),
    "steer, a number": (lambda kit: kit.steer(3), "the instruction must be str, got int"),
    "steer, half a character": (lambda kit: kit.steer(HALF), "the instruction has a lone surrogate"),
    "follow up, empty": (lambda kit: _follow(kit, ""), "the follow-up is empty"),
    "follow up, blank": (lambda kit: _follow(kit, "  "), "the follow-up is empty"),
    "follow up, half a character": (lambda kit: _follow(kit, HALF), "the text of a follow-up has a lone surrogate"),
    "queue, an empty steer": (lambda kit: asyncio.sleep(0, kit.queue_steer("")), "the instruction is empty"),
    "queue, an empty follow-up": (lambda kit: asyncio.sleep(0, kit.queue_follow_up("")), "the follow-up is empty"),
    "compact, half a character": (lambda kit: kit.compact(HALF), "has a lone surrogate"),
    "input, None": (lambda kit: kit.apply_input(None), "must be str, got NoneType"),
    "start, empty": (lambda kit: asyncio.sleep(0, kit.start("")), "the prompt is empty"),
    "start, a way to wait that is none": (
        lambda kit: asyncio.wrap_future(kit.start("x", mode="steer", when_busy="no").future),
        "when_busy must be",
    ),
    "branch, a number": (lambda kit: kit.branch(3), "the id of an entry must be str, got int"),
    "fork, an unknown entry": (lambda kit: kit.fork("nope"), "there is no entry 'nope'"),
    "resume, a number": (lambda kit: kit.resume(3), "a session is a Session, its id, name or file"),
    "resume, a folder": (lambda kit: kit.resume(str(Path.cwd())), "is a folder, not a session file"),
    "label, half a character": (lambda kit: _label(kit, HALF), "a label has a lone surrogate"),
    "label, a number": (lambda kit: _label(kit, 3), "a label must be str, got int"),
    "a tool that is not there": (
        lambda kit: kit.prompt("x", options=PromptOptions(tool_choice="aera")),
        "got 'aera'; the tools are: area",
    ),
}


@pytest.mark.parametrize("what", SAID)
async def test_what_cannot_be_said_is_refused_and_nothing_is_lost(make: Any, what: str) -> None:
    """Each verb: an error of the tree that names the value; no event of a turn; then it answers, and reopens."""
    say, words = SAID[what]
    kit, _ = make("fine", session=None, tools=[area])
    kit._provider_given._repeat_last = True
    before = kit.messages

    with record_events(kit) as log, pytest.raises(KitError, match=words):
        await say(kit)

    if "follow" not in what and "label" not in what:
        assert kit.messages == before
        assert log.names == []
    await _go_on(kit)


@pytest.mark.parametrize("value", [HALF, 3, None])
async def test_a_name_that_is_no_text_leaves_the_old_one(make: Any, value: Any) -> None:
    """Found by trying: a number was stored as the name, and half a character raised an error of pydantic's."""
    kit, _ = make("a", "fine", session=None)
    await kit.prompt("x")
    kit.name = "good"

    with pytest.raises(UsageError, match="the name of a session"):
        kit.name = value

    assert kit.name == "good"
    await _go_on(kit)


OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"system_message": 3}, "system_message must be str, got int"),
    ({"system_message": HALF}, "system_message has a lone surrogate"),
    ({"model": 3}, "model must be str, got int"),
    ({"model": "scripted/" + HALF}, "model has a lone surrogate"),
    ({"max_steps": 1.5}, r"max_steps must be a whole number, got 1\.5"),
    ({"max_steps": "3"}, "max_steps must be a whole number, got '3'"),
    ({"max_tokens": "3"}, "max_tokens must be a whole number"),
    ({"schema_retries": None}, "schema_retries must be a whole number"),
    ({"temperature": float("nan")}, "temperature must be a number, got nan"),
    ({"temperature": "warm"}, "temperature must be a number, got 'warm'"),
    ({"timeout_seconds": float("nan")}, "timeout_seconds must be a number"),
    ({"timeout_seconds": "5"}, "timeout_seconds must be a number, got '5'"),
    ({"tools": "area"}, "tools is a tuple of names, got 'area'"),
    ({"tools": area}, "other tools go into extra_tools"),
    ({"extra": 3}, "extra holds fields of the request's body, a dict, got int"),
    ({"tool_choice": 3}, "tool_choice must be str, got int"),
]


@pytest.mark.parametrize(("bad", "words"), OPTIONS)
def test_an_option_of_the_wrong_kind_is_refused_when_it_is_made(bad: dict[str, Any], words: str) -> None:
    """Found by trying: ``system_message=3`` was stored, and the session's file could not be read again."""
    with pytest.raises(UsageError, match=words):
        PromptOptions(**bad)


async def test_one_extra_tool_by_itself_is_one_tool(make: Any) -> None:
    """As ``Kit(tools=area)`` takes one; numbers of NumPy's kind are numbers."""
    numpy = pytest.importorskip("numpy")
    kit, provider = make("x")

    options = PromptOptions(extra_tools=area, max_steps=numpy.int64(2), temperature=numpy.float32(0.5))
    await kit.prompt("q", options=options)

    assert [tool.name for tool in provider.last_request.tools] == ["area"]
    assert (kit.settings.options(options).max_steps, provider.last_request.temperature) == (2, 0.5)


@pytest.mark.parametrize("name", ["agent", "system", "model"])
def test_a_setting_that_could_not_be_stored_is_refused(name: str) -> None:
    """Found by trying: with half a character in the agent's name no turn of that Kit could be stored any more."""
    with pytest.raises(UsageError, match=f"the setting {name} has a lone surrogate at character 4"):
        Kit(provider=ScriptedProvider(), session="memory", **{name: HALF})
    settings = Settings(agent="kept")
    with pytest.raises(UsageError):
        settings.update({"max_steps": 3, name: HALF})

    assert (settings.agent, settings.max_steps) == ("kept", 50)


async def test_a_huge_prompt_with_nuls_is_stored_whole(make: Any) -> None:
    """Fifty megabytes into a file and out of it again."""
    kit, provider = make("ok", session=None)
    said = "w\0rd\n" * 10_000_000

    await kit.prompt(said)

    assert texts(provider.last_request)[0] == ("user", said)
    kit.session.close()
    first = Session.open(kit.session.path).messages()[0]
    assert first.parts == (TextPart(said),)


@pytest.mark.skipif(sys.platform != "linux", reason="only here may a file's name be any bytes")
async def test_names_of_files_need_not_be_unicode(make: Any, tmp_path: Path) -> None:
    """Found by trying: a ``caf\\xe9.ipynb`` or ``caf\\xe9.png`` of an old disk made every turn fail."""
    name = os.fsdecode(b"caf\xe9")
    picture = tmp_path / f"{name}.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n")
    notes = tmp_path / f"{name}.txt"
    notes.write_text("old")
    kit, _ = make("one", "two", "fine", session=None)
    cell = CellRef(f"{name}.ipynb", "c1")

    await kit.prompt("look", parts=[picture, notes], cell=cell)
    await kit.prompt("look again", parts=[picture], cell=cell)

    assert as_part(notes) == TextPart("caf\N{REPLACEMENT CHARACTER}.txt:\nold")
    assert [m.role for m in kit.messages] == ["user", "assistant"]  # the same cell, so it replaced its turn
    await _go_on(kit)


async def test_an_export_that_cannot_be_written_says_where(make: Any, tmp_path: Path) -> None:
    """A folder in the file's place; nothing else happens."""
    kit, _ = make("a", "fine", session=None)
    await kit.prompt("x")

    with pytest.raises(SessionError, match=r"cannot write .*: Is a directory"):
        kit.export("markdown", tmp_path)
    await _go_on(kit)


@pytest.mark.skipif(sys.platform != "linux", reason="only here may a folder's name be any bytes")
async def test_a_folder_need_not_have_a_name_in_unicode(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by trying: in ``caf\\xe9/`` no session could be begun and no answer stored."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    monkeypatch.chdir(folder)
    kit, _ = make("one", "fine", session=None)

    assert str(await kit.prompt("hi")) == "one"

    assert kit.messages[-1].run.path.cwd.endswith("caf\N{REPLACEMENT CHARACTER}")
    await _go_on(kit)
