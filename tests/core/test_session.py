"""Session files: a tree that is only appended to, and survives kills, full disks and other processes."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit_jupyter import Kit, KitError, PromptOptions, Session, SessionError, UsageError
from kit_jupyter.events import TurnStart, UserMessage, Warned
from kit_jupyter.glance import Messages
from kit_jupyter.messages import (
    Assistant,
    CellRef,
    ErrorFacts,
    MediaPart,
    Message,
    ModelRef,
    Native,
    PathFacts,
    RefusalPart,
    RequestFacts,
    ResultFacts,
    RunFacts,
    ServerPart,
    System,
    TextPart,
    ThinkingPart,
    Tokens,
    ToolCallPart,
    ToolResult,
    Usage,
    User,
    new_id,
    now,
)
from kit_jupyter.prompt import PromptMessage, from_branch
from kit_jupyter.session import decode_message, encode_message, message_schema, project_root, sessions_dir
from kit_jupyter.testing import ScriptedProvider, gate, provider_error, record_events, text, thinking, tool_call, usage

from .helpers import area, texts, until


def user(said: str, **facts: Any) -> User:
    return User(id=new_id("msg"), time=now(), parts=(TextPart(said),), **facts)


def answer(said: str, **facts: Any) -> Assistant:
    return Assistant(id=new_id("msg"), time=now(), parts=(TextPart(said),), **facts)


def said(session: Session) -> list[str]:
    return [m.parts[0].text for m in session.messages()]


def filled(folder: Path, count: int = 4) -> Session:
    session = Session.create(folder)
    for i in range(count):
        session.append(user(f"q{i}") if i % 2 == 0 else answer(f"a{i}"))
    return session


# ---------------------------------------------------------------- shapes


def test_every_fact_of_a_message_survives_the_round_trip() -> None:
    """S106-S111, S113-S120, S122, S124: frozen, typed, loss-free; absent facts are absent; a schema is published."""
    ref = ModelRef("openai", "gpt")
    cell = CellRef("n.ipynb", "c1", weak=True)
    messages: list[Message] = [
        User(
            id="u",
            time=now(),
            parts=(TextPart("hi"), MediaPart.of_bytes(b"\0\xff", "image/png", "p.png")),
            request=RequestFacts(
                agent="kit",
                model=ref,
                variant="high",
                format={"type": "object"},
                system="once",
                tools={"a": True, "b": False},
                cell=cell,
                original="what was typed",
            ),
            turn_id="t",
        ),
        System(id="s", time=now(), parts=(TextPart("be brief"),), source="steer"),
        Assistant(
            id="a",
            time=now(),
            parts=(
                ThinkingPart("hm", Native("anthropic", {"signature": "x", "n": [1, None]})),
                ToolCallPart("c", "tool", '{"x": 1.0}'),
                ServerPart("call", "web", Native("openai", {"id": 1}), "shown"),
            ),
            run=RunFacts(agent="kit", model=ref, path=PathFacts("/a/b", "/a"), cell=cell, response_id="r"),
            usage=Usage(tokens=Tokens(input=10, output=5, reasoning=2, cache_read=4, cache_write=1), cost=0.25),
            result=ResultFacts(
                finish="stop", raw="end_turn", error=ErrorFacts("wire", "cut"), structured={"a": [1]}, kind="summary"
            ),
        ),
        ToolResult(id="r", time=now(), call_id="c", name="tool", parts=(TextPart("6"),), details={"n": 1}),
    ]

    for message in messages:
        raw = encode_message(message)
        assert decode_message(json.loads(raw)) == message
        assert b"null" not in raw.replace(b"[1,null]", b"")
    assert [m.role for m in messages] == ["user", "system", "assistant", "tool"]
    assert messages[0].time.created.endswith("Z")
    assert len(messages[0].time.created) == 24
    with pytest.raises(AttributeError):
        messages[0].id = "other"  # type: ignore[misc]
    assert {"User", "Assistant", "ToolResult", "System"} <= set(message_schema()["$defs"])
    assert "cost" not in encode_message(answer("x")).decode()


async def test_a_turn_stores_who_asked_and_who_answered(make: Any, monkeypatch: Any, tmp_path: Path) -> None:
    """S108-S120: agent, model, variant, tools, cell on the question; agent, model, paths, tokens on the answer."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    kit, _ = make([text("x"), usage(input=9, output=2, reasoning=1, cache_read=5)], tools=[area], agent="helper")

    await kit.prompt("q", cell=CellRef("n.ipynb", "c1"))

    question, reply = kit.messages
    assert question.request.agent == reply.run.agent == "helper"
    assert str(question.request.model) == str(reply.run.model) == "scripted/default"
    assert question.request.tools == {"area": True}
    assert question.request.cell == reply.run.cell == CellRef("n.ipynb", "c1")
    assert (reply.run.path.cwd, reply.run.path.root) == (str(tmp_path), str(tmp_path))
    assert reply.usage.tokens == Tokens(input=9, output=2, reasoning=1, cache_read=5)
    assert reply.usage.cost is None
    assert reply.result.kind == "reply"


def test_a_prompt_message_cannot_be_stored() -> None:
    """S106: what is sent this once is never stored."""
    with pytest.raises(TypeError, match="not PromptMessage"):
        Session.memory().append(PromptMessage("user", (TextPart("x"),)))  # type: ignore[arg-type]


# ---------------------------------------------------------------- files


def test_a_session_is_one_private_file_a_project(tmp_path: Path, data_dir: Path) -> None:
    """Sessions: under the data folder, one folder a project, mode 0600; the file appears with the first entry."""
    session = Session.create()
    assert session.path is not None
    assert not session.path.exists()
    session.append(user("hi"))

    assert session.path.parent == sessions_dir()
    assert data_dir in session.path.parents
    assert session.path.stat().st_mode & 0o777 == 0o600
    assert sessions_dir(tmp_path) != sessions_dir()
    assert project_root(tmp_path / "nowhere") == (tmp_path / "nowhere").resolve()
    header, entry = session.path.read_text().splitlines()
    assert json.loads(header)["type"] == "session"
    assert json.loads(entry)["parent"] is None


def test_the_file_is_only_ever_appended_to(tmp_path: Path) -> None:
    """Law 3: over appends, branches, names, labels and compactions, what was there stays as it was."""
    session = filled(tmp_path)
    assert session.path is not None
    before = session.path.read_bytes()
    first = session.entries[0].id
    steps = [
        lambda: session.append(user("more")),
        lambda: session.move_leaf(first),
        lambda: session.set_name("n"),
        lambda: session.set_label(first, "l"),
        lambda: session.append_custom("k", {"x": 1}),
        lambda: session.append_compaction(answer("s"), first_kept=None),
        lambda: session.append_branch_summary(answer("b"), from_id=first),
        lambda: session.fork(),
        lambda: session.tree(),
    ]
    for step in steps:
        step()
        after = session.path.read_bytes()
        assert after.startswith(before)
        before = after


def test_messages_are_the_way_from_the_leaf_to_the_root(tmp_path: Path) -> None:
    """S30, S31, U43: the other branch is not sent; going back restores the exact list; the tree shows both."""
    session = filled(tmp_path)
    whole, ids = session.messages(), [e.id for e in session.entries]

    session.move_leaf(ids[1])
    session.append(user("other"))
    other = session.messages()

    assert said(session) == ["q0", "a1", "other"]
    session.move_leaf(ids[3])
    assert session.messages() == whole
    assert [e.id for e in session.children(ids[1])] == [ids[2], other[-1].id]
    tree = session.tree()
    assert "other" in tree
    assert "q2" in tree
    assert f"* {'  '}" in tree
    session.move_leaf(ids[3])  # already there: nothing is written
    session.move_leaf(None)
    assert session.messages() == ()
    for again in (Session.open(session.path), session):  # type: ignore[arg-type]
        assert again.leaf is None
        assert [e.id for e in again.path_to(ids[3])] == ids
    with pytest.raises(SessionError, match="no entry 'nope'"):
        session.move_leaf("nope")


def test_every_line_of_the_tree_says_what_stands_there(tmp_path: Path) -> None:
    """Lines had ended after ``tool:`` or ``assistant:`` where no words are; escape sequences went through."""
    session, facts = Session.create(tmp_path), iter(range(99))

    def add(made: Any, *parts: Any, **more: Any) -> None:
        session.append(made(id=f"msg_{next(facts):06}", time=now(), parts=parts, **more))

    png = MediaPart("image/png", "aGk=", "plot.png")
    call = ToolCallPart("c", "area"), ToolCallPart("d", "look")
    add(User, png, TextPart("x" * 9000))
    add(Assistant, *call)
    add(ToolResult, TextPart("6\n\x1b[2Kseven"), call_id="c", name="area")
    add(ToolResult, png, call_id="d", name="look", is_error=True)
    add(Assistant, TextPart("So I look."), *call[1:])
    add(ToolResult, call_id="d", name="look")
    add(Assistant, ThinkingPart("hm"))
    add(Assistant, result=ResultFacts(finish="error", error=ErrorFacts("overloaded", "busy")))
    add(Assistant, ThinkingPart("hm"), result=ResultFacts(finish="aborted"))
    add(Assistant, RefusalPart("I will not."))
    add(Assistant, ServerPart("call", "web_search", Native("w", {})))
    add(Assistant)
    add(User, TextPart(" \n "))

    lines = [line[2:].rpartition("  (")[0] for line in session.tree().splitlines()]

    assert lines == [
        "user: " + "x" * 59 + "…",
        "assistant: calls area, look",
        "tool: area: 6 \\x1b[2Kseven",
        "tool: look (error): (image/png plot.png)",
        "assistant: So I look. [calls look]",
        "tool: look: (empty)",
        "assistant: (thinking only)",
        "assistant: (failed: busy)",
        "assistant: (thinking only) (stopped)",
        "assistant: refuses: I will not.",
        "assistant: (web_search)",
        "assistant: (empty)",
        "user: (empty)",
    ]
    shown = repr(Messages(session.messages())).splitlines()
    assert shown[:2] == ["13 messages", "  0  user: " + "x" * 79 + "…"]
    assert shown[8] == "  7  assistant: (failed: busy)"


def test_a_conversation_is_a_tuple_that_can_be_read(tmp_path: Path) -> None:
    """`kit.messages` had been a wall of dataclasses: one line a message, the middle left out where there are many."""
    many = Messages(user(f"q{n}") for n in range(1000))

    assert isinstance(many, tuple)
    assert many == tuple(many)
    assert isinstance(many[3], User)
    assert repr(many[3:5]) == "2 messages\n  0  user: q3\n  1  user: q4"
    lines = repr(many).splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("1,000 messages", "  0  user: q0", "999  user: q999")
    assert lines[21] == "     … 900 more …"
    assert len(lines) == 102
    assert repr(many[:100]).count("\n") == 100
    assert repr(Messages()) == "()"
    assert repr(Messages([{"role": "user"}])) == "({'role': 'user'},)"  # type: ignore[list-item]
    assert pickle.loads(pickle.dumps(many[:2])) == many[:2]


def test_the_tree_shows_a_persons_words_and_ids_that_can_be_typed(tmp_path: Path) -> None:
    """A newcomer saw ids of 26 letters, text cut without a sign, and attachments and reminders as if typed."""
    session = Session.create(tmp_path)
    asked = User(
        id="msg_0123456789abcdef000001",
        time=now(),
        parts=(TextPart("what is in @df, " + "please " * 20), TextPart('<attached mark="@df">secret table</attached>')),
    )
    reminder = User(
        id="msg_0123456789abcdef000002",
        time=now(),
        parts=(TextPart("<system-reminder>\nthe time\n</system-reminder>"),),
        source="extension:clock",
    )
    session.append(asked)
    session.append(reminder)

    first, second = session.tree().splitlines()

    assert first.endswith("please p…  (000001)")
    assert "attached" not in first
    assert "added (extension:clock): the time  (000002)" in second
    assert session.full_id("000001") == asked.id
    assert session.full_id(asked.id) == asked.id
    assert session.full_id("nobody") == "nobody"
    [info] = Session.listing(tmp_path)
    assert info.title.startswith("what is in @df")
    assert "attached" not in info.title
    assert info.title.endswith("…")


def test_names_labels_records_and_listing(tmp_path: Path) -> None:
    """List, name, label, records of extensions; found by id, name, unique beginning of an id, and path."""
    one, two = filled(tmp_path, 2), filled(tmp_path, 2)
    one.set_name("alpha")
    first = one.entries[0].id
    one.set_label(first, "start")
    one.append_custom("notes", {"n": 1})
    one.close()
    two.close()
    (tmp_path / "broken.jsonl").write_text("{}\n")
    (tmp_path / "folder.jsonl").mkdir()

    infos = Session.listing(tmp_path)

    assert {i.id for i in infos} == {one.id, two.id}
    alpha = next(i for i in infos if i.id == one.id)
    assert (alpha.name, alpha.title) == ("alpha", "q0")
    assert "alpha" in str(alpha)
    again = Session.open(alpha.path)
    assert (again.name, again.labels, again.custom("notes")) == ("alpha", {first: "start"}, [{"n": 1}])
    again.set_label(first, "")
    assert again.labels == {}
    assert Session.open(str(one.path)).id == one.id


def test_open_finds_by_id_name_and_beginning(data_dir: Path) -> None:
    """Open: by id, by name, by a unique beginning; what is ambiguous or absent says so."""
    sessions = [filled(sessions_dir(), 1) for _ in range(2)]
    sessions[0].set_name("beta")
    for session in sessions:
        session.close()

    assert Session.open(sessions[1].id).id == sessions[1].id
    assert Session.open("beta").id == sessions[0].id
    assert Session.open(sessions[1].id[:-1]).id == sessions[1].id
    with pytest.raises(SessionError, match=f"is not unique: .*{sessions[0].id}"):
        Session.open("ses_")
    with pytest.raises(SessionError, match=r"did you mean beta\? Session\.listing"):
        Session.open("bata")
    for nothing in ("gamma", "x" * 5000, "a\0b"):
        with pytest.raises(SessionError, match="is not here"):
            Session.open(nothing)
    assert {i.id for i in Session.listing(everywhere=True)} == {s.id for s in sessions}


def test_fork_import_and_delete(tmp_path: Path) -> None:
    """Fork: a new file from a path, linked, with its labels; import: a copy under a new id; delete: gone."""
    session = filled(tmp_path)
    ids = [e.id for e in session.entries]
    session.set_label(ids[1], "here")
    session.set_label(ids[3], "not here")

    fork = session.fork(ids[1])
    assert said(fork) == ["q0", "a1"]
    assert fork.header["parent"] == session.id
    assert fork.labels == {ids[1]: "here"}
    assert said(Session.memory().fork()) == []
    copy = Session.import_from(session.path, tmp_path / "other")  # type: ignore[arg-type]
    assert copy.id != session.id
    assert copy.messages() == session.messages()
    assert Session.open(copy.path).messages() == session.messages()  # type: ignore[arg-type]
    session.delete()
    assert not session.path.exists()  # type: ignore[union-attr]
    assert fork.path is not None
    assert fork.path.exists()
    Session.memory().delete()


async def test_deleting_under_a_running_kit_is_a_clear_error(make: Any) -> None:
    """A file that is removed while a Kit holds it: the words are not lost without a word."""
    kit, _ = make("a", "b", session=None)
    await kit.prompt("x")
    kit.session.close()
    kit.session.path.unlink()

    with pytest.raises(SessionError, match="is gone"):
        await kit.prompt("y")


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_a_file_removed_under_a_running_kit_comes_back_whole(make: Any, what: str) -> None:
    """Nothing of the talk is lost, it is told, and others can open it; the folder may have gone, too."""
    kit, _ = make("a", "b", "c", session=None)
    told: list[str] = []
    kit.subscribe(lambda event: told.append(event.message), Warned)
    await kit.prompt("x")
    path = kit.session.path
    if what == "file":
        path.unlink()
    else:
        shutil.rmtree(path.parent)

    await kit.prompt("y")
    await kit.prompt("z")
    kit.bus.settle()
    kit.session.close()

    assert [m.parts[0].text for m in Session.open(path).messages()] == ["x", "a", "y", "b", "z", "c"]
    assert len([text for text in told if "had been removed" in text]) == 1


@pytest.mark.parametrize("what", ["another", "cut", "copy"])
async def test_a_file_put_in_the_place_of_the_open_one(make: Any, what: str) -> None:
    """Other bytes are a clear error and stay as they are, and a fork goes on; a copy of the same bytes is used."""
    kit, _ = make("a", "b", "c", session=None)
    await kit.prompt("x")
    path = kit.session.path
    content = path.read_bytes()
    if what == "cut":
        os.truncate(path, 5)
    else:
        beside = path.with_suffix(".other")
        beside.write_bytes(content if what == "copy" else b"{}\n")
        beside.rename(path)

    if what == "copy":
        await kit.prompt("y")
        kit.session.close()
        assert len(Session.open(path).messages()) == 4
        return
    with pytest.raises(SessionError, match="while it was open"):
        await kit.prompt("y")
    assert path.read_bytes() == (content[:5] if what == "cut" else b"{}\n")
    await kit.resume(await kit.fork())
    await kit.prompt("z")
    assert [m.parts[0].text for m in kit.messages if m.role == "user"] == ["x", "z"]


# ---------------------------------------------------------------- reading from the end


def test_a_file_read_from_its_end_is_the_same_as_read_whole(tmp_path: Path) -> None:
    """Reading backwards, on touch, and all at once agree, after any moves and compactions."""
    rng = random.Random(7)
    for _ in range(40):
        session = Session.create(tmp_path)
        kept: list[str] = []
        for _ in range(rng.randrange(1, 25)):
            match rng.randrange(8):
                case 0 if kept:
                    session.move_leaf(rng.choice([*kept, None]))  # type: ignore[list-item]
                case 1 if session.leaf is not None:
                    branch = [e.id for e in session.branch()]
                    kept.append(session.append_compaction(answer("S"), first_kept=rng.choice([*branch, None])).id)
                case 2:
                    session.append_custom("k", rng.random())
                case _:
                    long = "x" * rng.choice([1, 10, 70_000])
                    kept.append(session.append(user(long) if rng.random() < 0.5 else answer(long)).id)
        if session.path is None or not session.path.exists():
            continue
        session.close()
        fresh = Session.open(session.path)
        assert fresh.leaf == session.leaf
        assert fresh.messages() == session.messages()
        fresh.append(user("added before the rest is read"))
        fresh.close()
        assert [e.id for e in fresh.entries][:-1] == [e.id for e in session.entries]
        assert [e.id for e in Session.open(session.path).entries] == [e.id for e in fresh.entries]
        assert not fresh.warnings


def test_opening_a_long_file_reads_only_its_end(tmp_path: Path) -> None:
    """Ready for the next prompt without decoding what lies before the last compaction (counted, not timed)."""
    session = filled(tmp_path, 2_000)
    last = session.entries[-1].id
    session.append_compaction(answer("Summary"), first_kept=last)
    session.append(user("next"))
    session.close()

    fresh = Session.open(session.path)  # type: ignore[arg-type]

    assert said(fresh) == ["Summary", f"a{1_999}", "next"]
    assert len(fresh._entries) < 10
    assert fresh.last_request() is None
    assert len(fresh.entries) == 2_002


def test_turn_of_cell_is_found_without_decoding(tmp_path: Path) -> None:
    """Re-running a cell finds its turn by facts; entries stay undecoded."""
    session = Session.create(tmp_path)
    ref = ModelRef("a", "b")
    for i in range(50):
        facts = RequestFacts(agent="k", model=ref, cell=CellRef("n", f"c{i}"))
        session.append(user("q", request=facts, turn_id=f"t{i}"))
    session.close()
    fresh = Session.open(session.path)  # type: ignore[arg-type]

    assert fresh.turn_of_cell(CellRef("n", "c7")) == "t7"
    assert fresh.turn_of_cell(CellRef("n", "zz")) == ""
    assert sum(e.is_decoded for e in fresh.entries) == 0
    last = fresh.last_request()
    assert last is not None
    assert last.turn_id == "t49"
    fresh.append(user("q", request=RequestFacts(agent="k", model=ref, cell=CellRef("n", "new")), turn_id="t50"))
    assert fresh.turn_of_cell(CellRef("n", "new")) == "t50"


# ---------------------------------------------------------------- damage


def test_a_file_cut_at_any_byte_opens_with_all_that_was_acknowledged(tmp_path: Path) -> None:
    """Crash safety: every byte offset: whole lines stay, a torn one is reported, and it can be gone on with."""
    session = filled(tmp_path, 3)
    session.close()
    assert session.path is not None
    raw = session.path.read_bytes()
    header = raw.index(b"\n") + 1
    target = tmp_path / "cut.jsonl"
    for end in range(len(raw) + 1):
        target.write_bytes(raw[:end])
        if end < header - 1:
            with pytest.raises(SessionError):
                Session.open(target)
            continue
        again = Session.open(target)
        whole = raw[:end].count(b"\n") - 1
        complete = whole + (end < len(raw) and raw[end : end + 1] == b"\n")  # a line that lacks only its end
        assert len(again.messages()) == max(0, complete), end
        assert [m.id for m in again.messages()] == [m.id for m in session.messages()][: max(0, complete)]
        torn = end > header and complete == whole and raw[end - 1 : end] != b"\n"
        assert bool(again.warnings) == torn, end
        again.append(user("after"))
        again.close()
        assert said(Session.open(target))[-1] == "after"
        assert len(Session.open(target).messages()) == max(0, complete) + 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a session file"),
        (b"\0\1\2\xff\xfe" * 100, "not a session file"),
        (b"[1]\n", "not a session file"),
        (b"[" * 100_000, "not a session file"),
        (b'{"type":"session","version":1}\n', "has no id"),
        (b'{"type":"session","version":2,"id":"x"}\n', "is of version 2, this kit-jupyter reads 1; upgrade"),
        (b'{"type":"session","id":"x"}\n', "version unknown"),
        (b"plain text\n", "not a session file"),
    ],
)
def test_a_file_that_is_no_session_says_so(tmp_path: Path, content: bytes, message: str) -> None:
    """Bad input: empty, binary, other JSON, deep JSON, from the future: one clear error, file and line."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(content)

    with pytest.raises(SessionError, match=message) as caught:
        Session.open(path)

    assert caught.value.path == path
    assert caught.value.line == 1
    assert path.read_bytes() == content


def test_a_folder_or_an_unreadable_path_says_so(tmp_path: Path) -> None:
    """Bad input: a directory; a place that cannot be written: named, and the Kit can be made in memory."""
    with pytest.raises(SessionError, match="is a folder"):
        Session.open(tmp_path)
    (tmp_path / "file").touch()
    session = Session.create(tmp_path / "file" / "below")
    with pytest.raises(SessionError, match="cannot write"):
        session.append(user("x"))
    assert session.messages() == ()
    with pytest.raises(SessionError):
        Kit(provider=ScriptedProvider(), session=tmp_path)


def test_unknown_entries_and_newer_minor_versions_are_kept(tmp_path: Path) -> None:
    """A file of version 1.7 with entries and fields of tomorrow opens, is gone on with, and loses none of them."""
    path = tmp_path / "future.jsonl"
    one, two = user("one"), answer("two")
    lines = [
        {"type": "session", "version": "1.7", "id": "ses_x", "time": "", "cwd": "", "colour": "blue"},
        {"type": "message", "id": one.id, "parent": None, "time": "", "message": json.loads(encode_message(one))},
        {"type": "hologram", "id": "h1", "parent": one.id, "time": "", "beams": [1, 2]},
        {
            "type": "message",
            "id": two.id,
            "parent": "h1",
            "time": "",
            "mood": "good",
            "message": json.loads(encode_message(two)),
        },
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    session = Session.open(path)
    session.append(user("three"))

    assert said(session) == ["one", "two", "three"]
    assert not session.warnings
    unknown = session.get("h1")
    assert (unknown.type, unknown.body) == ("hologram", {"beams": [1, 2]})
    copy = Session.import_from(path, tmp_path / "copy")
    assert copy.path is not None
    kept = [json.loads(line) for line in copy.path.read_text().splitlines()]
    assert {"type": "hologram", "id": "h1", "parent": one.id, "time": "", "beams": [1, 2]} in kept
    assert any(line.get("mood") == "good" for line in kept)


def test_damaged_lines_in_the_middle_are_left_out_and_reported(tmp_path: Path) -> None:
    """A line nobody can read does not hide the others; entries whose parent is gone are a clear error."""
    session = filled(tmp_path, 2)
    session.close()
    assert session.path is not None
    with session.path.open("ab") as file:
        file.write(b'garbage\n\n[1]\n{"type":3,"id":"x"}\n')
    again = Session.open(session.path)
    again.append(user("more"))

    assert said(again) == ["q0", "a1", "more"]
    assert len(again.entries) == 3
    assert len(again.warnings) == 3
    with session.path.open("ab") as file:
        file.write(json.dumps({"type": "leaf", "id": "e", "parent": None, "target": "gone"}).encode() + b"\n")
    again.close()
    with pytest.raises(SessionError, match="no entry 'gone'"):
        Session.open(session.path).messages()


def test_a_ring_of_entries_is_an_error_not_a_hang(tmp_path: Path) -> None:
    """Bad input: parents that form a ring."""
    path = tmp_path / "ring.jsonl"
    message = json.loads(encode_message(user("x")))
    lines = [
        {"type": "session", "version": 1, "id": "s"},
        {"type": "message", "id": "a", "parent": "b", "message": message},
        {"type": "message", "id": "b", "parent": "a", "message": message},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for read in (Session.messages, Session.branch):
        with pytest.raises(SessionError, match="ring"):
            read(Session.open(path))


async def test_warnings_of_a_file_are_told_with_the_next_turn(make: Any, tmp_path: Path) -> None:
    """S36: a torn last line is not silent: the next turn says so, once; after it has said that it begins."""
    session = filled(tmp_path, 2)
    session.close()
    with session.path.open("ab") as file:  # type: ignore[union-attr]
        file.write(b'{"type":"message","id":"to')
    kit, _ = make("a", "b", session=session.path)
    with record_events(kit) as log:
        await kit.prompt("x")
        await kit.prompt("y")

    warned = [e.message for e in log if type(e).__name__ == "Warned"]
    assert len(warned) == 1
    assert "torn" in warned[0]
    assert log.names[:2] == ["TurnStart", "Warned"]


# ---------------------------------------------------------------- other processes


def _child(code: str, *arguments: str, **more: Any) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        env=env,
        **more,
    )


WRITER = """
    import sys
    from kit_jupyter.session import Session
    from kit_jupyter.messages import User, TextPart, new_id, now
    from pathlib import Path
    session = Session.create(Path(sys.argv[1]))
    print(session.path, flush=True)
    size = int(sys.argv[2])
    while True:
        message = User(id=new_id("msg"), time=now(), parts=(TextPart("x" * size),))
        session.append(message)
        print(message.id, flush=True)
"""


@pytest.mark.parametrize("size", [1, 3_000_000])
def test_a_kill_during_appends_loses_nothing_that_was_acknowledged(tmp_path: Path, size: int) -> None:
    """Crash safety: kill -9 at a random moment; the file opens; every acknowledged message is there."""
    for round_ in range(3):
        child = _child(WRITER, str(tmp_path), str(size))
        assert child.stdout is not None
        path = child.stdout.readline().strip()
        acknowledged = [child.stdout.readline().strip() for _ in range(3 + 5 * round_)]
        child.send_signal(signal.SIGKILL)
        acknowledged += child.stdout.read().split()
        child.wait()

        session = Session.open(path)
        ids = [m.id for m in session.messages()]
        # The last line that was read may itself be cut by the kill.
        assert ids[: len(acknowledged) - 1] == acknowledged[: len(ids)][: len(acknowledged) - 1]
        session.append(user("after"))
        assert said(session)[-1] == "after"


def test_a_second_writer_is_refused_with_the_holders_pid(tmp_path: Path) -> None:
    """Crash safety: one writer at a time, named; a dead one leaves nothing behind; reading is always free."""
    child = _child(
        """
        import sys, os
        from kit_jupyter.session import Session
        from kit_jupyter.messages import User, TextPart, new_id, now
        from pathlib import Path
        session = Session.create(Path(sys.argv[1]))
        session.append(User(id=new_id("msg"), time=now(), parts=(TextPart("x"),)))
        print(session.path, os.getpid(), flush=True)
        sys.stdin.readline()
        """,
        str(tmp_path),
    )
    assert child.stdout is not None
    path, pid = child.stdout.readline().split()
    session = Session.open(path)
    assert len(session.messages()) == 1
    with pytest.raises(SessionError, match=f"is open in process {pid}"):
        session.append(user("y"))
    assert len(session.messages()) == 1

    child.kill()
    child.wait()
    session.append(user("y"))

    assert said(session) == ["x", "y"]


def test_two_kits_of_one_process_do_not_write_one_file(tmp_path: Path) -> None:
    """A second Session object on the same file is refused until the first lets go, or is forgotten."""
    first = filled(tmp_path)
    second = Session.open(first.path)  # type: ignore[arg-type]
    with pytest.raises(SessionError, match="open in another Kit of this process"):
        second.append(user("x"))

    first.close()
    second.append(user("x"))
    with pytest.raises(SessionError):
        first.append(user("y"))
    del second
    import gc

    gc.collect()
    first.append(user("z"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")
def test_a_forked_child_neither_writes_nor_frees_the_parents_session(tmp_path: Path) -> None:
    """os.fork: the child's append says whose the session is; its own Kit works; the parent goes on."""
    code = """
        import os, sys
        from pathlib import Path
        from kit_jupyter import Kit, SessionError
        from kit_jupyter.session import Session
        from kit_jupyter.testing import ScriptedProvider
        session = Session.create(Path(sys.argv[1]))
        kit = Kit(provider=ScriptedProvider("a", "b", "c"), session=session)
        kit.prompt_sync("one")
        pid = os.fork()
        if pid == 0:
            try:
                kit.prompt_sync("child")
            except SessionError as exc:
                own = Kit(provider=ScriptedProvider("own"), session="memory")
                ok = "forked" in str(exc) and str(own.prompt_sync("x")) == "own"
                session.close()
                os._exit(0 if ok else 1)
            os._exit(2)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        kit.prompt_sync("two")
        print(status, len(kit.messages), len(Session.open(session.path).messages()))
    """
    child = _child(code, str(tmp_path))
    out, _ = child.communicate(timeout=60)

    assert out.split() == ["0", "4", "4"]


def test_a_full_disk_is_a_session_error_and_nothing_half_written_stays(tmp_path: Path) -> None:
    """Disk full (a file size limit of the process): SessionError, turn closed, the file whole, the Kit usable."""
    code = """
        import resource, sys
        from pathlib import Path
        from kit_jupyter import Kit, SessionError
        from kit_jupyter.session import Session
        from kit_jupyter.testing import ScriptedProvider, record_events
        session = Session.create(Path(sys.argv[1]))
        kit = Kit(provider=ScriptedProvider("first", "x" * 50_000, "after"), session=session)
        kit.prompt_sync("one")
        size = session.path.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20_000, resource.RLIM_INFINITY))
        with record_events(kit) as log:
            try:
                kit.prompt_sync("two")
            except SessionError as exc:
                print("refused", str(exc).startswith("generation failed: cannot write"))
        print(log.names[0], log.names[-1], log.names.count("MessageStart"), log.names.count("MessageEnd"))
        print(session.path.read_bytes().endswith(b"\\n"), [m.role for m in kit.messages])
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        print(kit.prompt_sync("three"))
        session.close()
        print(Session.open(session.path).messages() == kit.messages, Session.open(session.path).warnings)
    """
    child = _child(code, str(tmp_path))
    out, _ = child.communicate(timeout=60)

    assert out.splitlines() == [
        "refused True",
        "TurnStart TurnEnd 1 1",
        "True ['user', 'assistant', 'user']",
        "after",
        "True []",
    ]


async def test_a_disk_that_fails_at_each_write_in_turn_never_leaves_a_mess(make: Any, monkeypatch: Any) -> None:
    """Disk full at the n-th append of a turn: each time a SessionError, a closed turn, and a file that opens."""
    for n in range(1, 9):
        kit, _ = make([tool_call("area", width=1, height=1)], "done", "ok", tools=[area], session=None)
        original, count = os.write, [0]

        def failing(fd: int, content: bytes, n: int = n, original: Any = original, count: Any = count) -> int:
            if b'"type"' in content:
                count[0] += 1
                if count[0] == n:
                    original(fd, content[: len(content) // 2])
                    raise OSError(28, "No space left on device")
            return int(original(fd, content))

        with monkeypatch.context() as patch:
            patch.setattr("kit_jupyter.session_file.os.write", failing)
            with record_events(kit) as log:
                try:
                    await kit.prompt("go")
                except SessionError as exc:
                    assert "No space left" in str(exc)  # noqa: PT017
                else:
                    assert count[0] < n
        assert log.names[-1] == "TurnEnd"
        assert [e.call_id for e in log if type(e).__name__ == "ToolCall"] == [
            e.call_id for e in log if type(e).__name__ == "ToolResultEvent"
        ]
        kit._provider_given._replies = ["ok"]
        assert str(await kit.prompt("next")) == "ok"
        kit.session.close()
        again = Session.open(kit.session.path)
        assert again.messages() == kit.messages
        assert not again.warnings


# ---------------------------------------------------------------- other threads


def test_readers_on_other_threads_never_see_half_of_a_change(tmp_path: Path) -> None:
    """U42: ten thousand reads from threads during a run: every snapshot is a whole state."""
    kit = Kit(
        provider=ScriptedProvider(
            *([tool_call("area", width=i, height=1)] if i % 3 else [text("x y z")] for i in range(36))
        ),
        session=Session.create(tmp_path),
        tools=[area],
        permissions="auto",
    )
    problems: list[str] = []
    reads = [0]
    over = threading.Event()

    def read() -> None:
        seen = 0
        while not over.is_set() or reads[0] < 10_000:
            messages = kit.messages
            calls = {c.call_id for m in messages if isinstance(m, Assistant) for c in m.tool_calls}
            results = [m.call_id for m in messages if isinstance(m, ToolResult)]
            if len(messages) < seen:
                problems.append("the history became shorter")
            seen = len(messages)
            if not set(results) <= calls or len(results) != len(set(results)):
                problems.append("a result without its call")
            ids = [e.id for e in kit.session.branch()]
            if len(ids) != len(set(ids)):
                problems.append("an entry twice")
            state = kit.queue
            if len(set(state.steering) & set(state.returned)):
                problems.append("a ticket in two places")
            _ = kit.usage, kit.is_running, kit.session.leaf, kit.last_request
            reads[0] += 1

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for i in range(12):
        kit.prompt_sync(f"p{i}")
        kit.queue_steer(f"s{i}")
    over.set()
    for thread in threads:
        thread.join()

    assert not problems
    assert reads[0] >= 10_000
    kit.close()


# ---------------------------------------------------------------- resume, replay


async def test_resume_goes_on_with_the_same_agent_model_and_tools(make: Any, tmp_path: Path) -> None:
    """S100, U39: reopened by id in a new Kit: the talk, the model, the agent and the level are as they were."""
    kit, _ = make("one", session=None, model="scripted/large", agent="researcher", thinking="high", tools=[area])
    await kit.prompt("hi")
    kit.name = "study"
    entry = kit.session.leaf
    kit.label(entry, "good")
    kit.close()

    again, provider = make("two", session=kit.session_id)
    with record_events(again) as log:
        await again.prompt("more")

    assert again.model == "scripted/large"
    assert (again.name, again.labels) == ("study", {entry: "good"})
    assert provider.last_request.thinking == "high"
    assert texts(provider.last_request) == [("user", "hi"), ("assistant", "one"), ("user", "more")]
    assert again.messages[-2].request.agent == "researcher"
    assert "used tools that are not here now: area" in next(e.message for e in log if type(e).__name__ == "Warned")
    other, _ = make("x", session=Session.memory(), model="scripted/small")
    again.close()
    await other.resume(kit.session_id)
    assert other.model == "scripted/large"
    mine, _ = make("x", session="memory")
    other.close()
    given, _ = make("x", session=kit.session_id, model="scripted/mine", agent="me")
    assert (given.model, given.settings.agent) == ("scripted/mine", "me")
    assert mine.model == "scripted/default"


def test_a_new_process_goes_on_by_the_sessions_id(data_dir: Path) -> None:
    """S100, U39: what a restart of the kernel is: another process, given the id only, has the talk and how it was."""
    begin = """
        import os, signal
        from kit_jupyter import Kit
        from kit_jupyter.testing import ScriptedProvider, tool_call
        def area(width: int, height: int) -> int:
            "Area of a rectangle."
            return width * height
        provider = ScriptedProvider([tool_call("area", width=2, height=3)], "it is 6")
        kit = Kit(provider=provider, tools=[area], permissions="auto", agent="researcher", model="scripted/large")
        kit.prompt_sync("how large?")
        print(kit.session_id, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    first = _child(begin)
    out, _ = first.communicate(timeout=60)
    assert first.returncode == -signal.SIGKILL
    go_on = """
        import json, sys
        from kit_jupyter import Kit
        from kit_jupyter.testing import ScriptedProvider, unanswered_calls
        def area(width: int, height: int) -> int:
            "Area of a rectangle."
            return width * height
        provider = ScriptedProvider("bye")
        kit = Kit(provider=provider, tools=[area], permissions="auto", session=sys.argv[1])
        kit.prompt_sync("thanks")
        request = provider.last_request
        said = [(m.role, "".join(getattr(p, "text", "") for p in m.parts)) for m in request.messages]
        facts = kit.messages[-2].request
        print(json.dumps([said, str(request.model), [t.name for t in request.tools], facts.agent, str(facts.model),
                          unanswered_calls(request)]))
    """
    second = _child(go_on, out.strip())
    told, _ = second.communicate(timeout=60)

    said, model, tools, agent, asked, unanswered = json.loads(told)
    assert [role for role, _ in said] == ["user", "assistant", "tool", "assistant", "user"]
    assert [words for role, words in said if role in ("user", "assistant")] == ["how large?", "", "it is 6", "thanks"]
    assert (model, tools, agent, asked, unanswered) == ("scripted/large", ["area"], "researcher", "scripted/large", [])


def test_a_model_that_is_not_to_be_had_here_does_not_stop_a_session_from_opening(tmp_path: Path) -> None:
    """A session of another machine: its model is unknown here; that is a warning, not an error."""
    session = Session.create(tmp_path)
    session.append(user("q", request=RequestFacts(agent="k", model=ModelRef("nosuch", "model"))))

    kit = Kit(session=session)

    assert kit.model == ""
    assert "nosuch/model" in kit._notes[0][0]


async def test_sending_stored_history_again_makes_the_same_requests(make: Any) -> None:
    """S99: a reopened session, asked the same way, sends what the living one would have sent."""
    script = [[text("t"), tool_call("area", call_id="c1", width=1, height=2)], "done", "more"]
    kit, provider = make(*script, "next", session=None, tools=[area])
    await kit.prompt("one")
    await kit.steer("be brief")
    kit.close()

    again, second = make("next", session=kit.session.path, tools=[area])
    await again.prompt("two")
    living, third = make(*script, "next", tools=[area])
    await living.prompt("one")
    await living.steer("be brief")
    await living.prompt("two")

    mine, theirs = second.last_request, third.last_request
    assert [(m.role, m.parts) for m in mine.messages] == [(m.role, m.parts) for m in theirs.messages]
    assert (mine.system, mine.tools, mine.model) == (theirs.system, theirs.tools, theirs.model)
    assert [m.role for m in provider.requests[1].messages] == ["user", "assistant", "tool"]


def sent(request: Any) -> dict[str, Any]:
    """What a request says, without its ids and what is not stored with a question (limits, temperature)."""
    facts = ("system", "tools", "tool_choice", "format", "thinking", "model")
    return {name: getattr(request, name) for name in facts} | {
        "messages": [(m.role, m.parts) for m in request.messages]
    }


async def test_each_request_of_a_session_can_be_made_again_from_its_file(make: Any) -> None:
    """S99: golden: from what is stored up to each answer comes the very history that was sent for it."""
    kit, provider = make(
        [thinking("hm"), text("t"), tool_call("area", call_id="c1", width=1, height=2)],
        "done",
        "brief",
        [text("half"), provider_error("overloaded")],
        "whole",
        session=None,
        tools=[area],
    )
    await kit.prompt("one", parts=[b"\x89PNG\r\n\x1a\n"])
    await kit.steer("be brief")
    with pytest.raises(KitError):
        await kit.prompt("two")
    await kit.follow_up()
    kit.close()

    stored = Session.open(kit.session.path).messages()
    answers = [i for i, message in enumerate(stored) if isinstance(message, Assistant)]
    assert len(answers) == len(provider.requests) == 5
    for i, request in zip(answers, provider.requests, strict=True):
        again = from_branch(stored[:i])
        assert [(m.role, m.parts) for m in again] == [(m.role, m.parts) for m in request.messages]


async def test_a_question_is_asked_again_as_it_was_asked(make: Any) -> None:
    """S99, S113, S114: in a new Kit on the reopened file: the same request; the old answer stays as a branch."""

    def other() -> str:
        """Another tool."""
        return "x"

    shape = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    kit, provider = make("zero", '{"n": 1}', session=None, tools=[area, other])
    await kit.prompt("before")
    options = PromptOptions(
        system_message="only numbers", thinking="low", schema=shape, tools=("area",), model="scripted/big"
    )
    first = await kit.prompt("how many?", options=options, parts=["a list"], cell=CellRef("n.ipynb", "c1"))
    kit.close()

    again, second = make('{"n": 2}', "later", session=kit.session.path, tools=[other, area])
    result = await again.ask_again()

    assert sent(second.last_request) == sent(provider.last_request)
    assert (result.structured, first.structured) == ({"n": 2}, {"n": 1})
    assert again.messages[2].request == kit.messages[2].request
    assert len(again.session.children(kit.messages[1].id)) == 2
    await again.prompt("later")
    assert [tool.name for tool in second.last_request.tools] == ["other", "area"]


async def test_asking_again_tells_of_tools_that_are_gone(make: Any) -> None:
    """S114: unknown names warn, and the question is asked with those that are left."""
    kit, _ = make("a", session=None, tools=[area])
    await kit.prompt("q", options=PromptOptions(extra_tools=(lambda_tool,)))
    kit.close()
    again, provider = make("b", session=kit.session.path, tools=[area])
    again._notes.clear()

    with record_events(again) as log:
        await again.ask_again()

    assert [tool.name for tool in provider.last_request.tools] == ["area"]
    assert [e.message for e in log.of(Warned)] == ["it was asked with tools that are not here now: lambda_tool"]


def lambda_tool() -> str:
    """Gone tomorrow."""
    return "x"


@pytest.mark.parametrize("mode", ["prompt", "steer", "follow_up", "said"])
async def test_every_kind_of_turn_can_be_asked_again(make: Any, mode: str) -> None:
    """Label, sources and visibility are those of the first time; blocks of guests are made anew, not doubled."""
    from kit_jupyter import Extension

    class Guest(Extension):
        def on_user_message(self, ctx: Any, content: str) -> str | None:
            return f"about {content}"

    kit, provider = make("zero", "one", "two", "three", extensions=[Guest()])
    await kit.prompt("first")
    verbs = {
        "prompt": lambda: kit.prompt("x", options=PromptOptions(system_message="stay", persist_system=True)),
        "steer": lambda: kit.steer("x"),
        "follow_up": lambda: kit.follow_up(),
        "said": lambda: kit.follow_up("and now?"),
    }
    with record_events(kit) as one:
        asked = await verbs[mode]()
    await kit.prompt("set aside")
    with record_events(kit) as two:
        result = await kit.ask_again(asked.turn_id)

    assert str(result) == "three"
    assert sent(provider.requests[-1]) == sent(provider.requests[1])
    assert two.names == ["BranchChanged", *one.names]
    facts = [[(e.prompt, e.mode) for e in log.of(TurnStart)] for log in (one, two)]
    seen = [[(e.message.role, e.message.source, e.visible) for e in log.of(UserMessage)] for log in (one, two)]
    assert facts[0] == facts[1]
    assert seen[0] == seen[1]


async def test_asking_again_says_why_it_cannot(make: Any) -> None:
    """Nothing there, another turn's id, a turn that runs: its words, and nothing has moved."""
    hold = threading.Event()
    kit, provider = make("a", [gate(hold), text("b")], "c")
    with pytest.raises(UsageError, match="cannot ask again: the present branch has no such thing as a turn"):
        await kit.ask_again()
    await kit.prompt("one")
    with pytest.raises(UsageError, match="no such thing as a turn 'nope'"):
        await kit.ask_again("nope")
    task = asyncio.ensure_future(kit.prompt("two"))
    await until(lambda: len(provider.requests) == 2)
    with pytest.raises(UsageError, match="a turn is running"):
        await kit.ask_again()
    hold.set()
    await task

    assert said(kit.session) == ["one", "a", "two", "b"]
    assert str(await asyncio.to_thread(kit.ask_again_sync)) == "c"
    assert said(kit.session) == ["one", "a", "two", "c"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=40), min_size=1, max_size=6))
def test_any_text_comes_back_as_it_was(texts_: list[str]) -> None:
    """Round trip of arbitrary Unicode, NULs and line ends included."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        session = Session.create(Path(folder))
        for said_ in texts_:
            session.append(user(said_))
        session.close()
        assert [m.parts[0].text for m in Session.open(session.path).messages()] == texts_  # type: ignore[arg-type]
