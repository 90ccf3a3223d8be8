"""Session files that a program made by mistake, or somebody by hand: issue 3, bad input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kit_jupyter import Session, SessionError, UsageError
from kit_jupyter.__main__ import main
from kit_jupyter.messages import Assistant, TextPart, Time, User, new_id, now
from kit_jupyter.session import sessions_dir


def written(folder: Path, *entries: dict[str, object]) -> Path:
    """A session file of these lines."""
    good = Session.create(folder / "made")
    good.append_custom("x", 1)
    good.close()
    assert good.path is not None
    header = good.path.read_text(encoding="utf-8").splitlines()[0]
    path = folder / "odd.jsonl"
    path.write_text("\n".join([header, *map(json.dumps, entries)]) + "\n", encoding="utf-8")
    return path


def user(entry_id: str, parent: str | None) -> dict[str, object]:
    """A user's message as it is stored."""
    created = "2026-01-01T00:00:00.000Z"
    parts = [{"text": "hi", "citations": [], "type": "text"}]
    message = {"id": entry_id, "time": {"created": created}, "parts": parts, "turn_id": "t", "role": "user"}
    return {"type": "message", "id": entry_id, "parent": parent, "time": created, "message": message}


def test_entries_in_a_ring_are_an_error_and_no_endless_walk(tmp_path: Path) -> None:
    """The Kit opens, says what is wrong where messages are needed, and goes on from another entry."""
    path = written(tmp_path, user("msg_a", "msg_a"))
    code = (
        "import sys\nfrom kit_jupyter import Kit, SessionError\nfrom kit_jupyter.testing import ScriptedProvider\n"
        f"kit = Kit(provider=ScriptedProvider('fine'), session={str(path)!r})\n"
        "try:\n    kit.prompt_sync('hi')\nexcept SessionError as exc:\n    print('told:', exc)\n"
        "kit.branch_sync(None)\nprint(kit.prompt_sync('hi'))\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert "entries form a ring" in done.stdout
    assert done.stdout.endswith("fine\n")


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ({"type": "leaf", "id": "ent_l", "parent": None, "time": "", "target": ["msg_a"]}, "leaf"),
        ({**user("msg_b", "msg_a"), "message": {"role": "user", "parts": 7}}, "msg_b"),
    ],
)
def test_a_damaged_entry_is_a_session_error_that_names_it(tmp_path: Path, line: dict[str, object], where: str) -> None:
    """No error of a library comes through: what is wrong is said in our words."""
    path = written(tmp_path, user("msg_a", None), line)

    with pytest.raises(SessionError, match=where):
        Session.open(path).transcript()


def test_a_label_of_nothing_is_passed_over(tmp_path: Path) -> None:
    """A label without its target labels nothing, and breaks nothing."""
    path = written(tmp_path, user("msg_a", None), {"type": "label", "id": "ent_x", "parent": None, "label": "here"})

    assert "msg_a" not in Session.open(path).labels


@pytest.mark.skipif(os.name == "nt", reason="symbolic links need a right there")
def test_a_session_by_another_name_has_the_same_lock(tmp_path: Path) -> None:
    """Two names of one file are one session: the second writer is refused."""
    session = Session.create(tmp_path)
    session.append_custom("x", 1)
    assert session.path is not None
    other = tmp_path / "other.jsonl"
    other.symlink_to(session.path)

    with pytest.raises(SessionError, match="is open in"):
        Session.open(other).append_custom("x", 2)

    session.close()
    Session.open(other).append_custom("x", 2)


def by_hand(entry_id: Any = "msg_b", text: Any = "hi", **more: Any) -> User:
    """A user's message as a program might make it."""
    return User(**{"id": entry_id, "time": now(), "parts": (TextPart(text),), "turn_id": "t", **more})


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
@pytest.mark.parametrize(
    ("message", "where"),
    [
        (by_hand(5), "id"),
        (by_hand(None), "id"),
        (by_hand(text=5), "text"),
        (by_hand(text=None), "text"),
        (by_hand(text=b"\xff"), "utf-8"),
        (by_hand(time=Time(None)), "created"),  # type: ignore[arg-type]
        (by_hand(parts="words"), "parts"),
        (by_hand(parts=({"text": "x"},)), "parts"),
        (Assistant(id="msg_b", time=now(), parts=(TextPart(5),), turn_id="t"), "text"),  # type: ignore[arg-type]
        (Assistant(id=5, time=now(), parts=(TextPart("x"),), turn_id="t"), "id"),  # type: ignore[arg-type]
    ],
)
def test_a_message_that_could_not_be_read_again_is_refused(tmp_path: Path, message: Any, where: str) -> None:
    """Stored, it would be left out at the next start, and all before it with it."""
    session = Session.create(tmp_path)
    session.append(by_hand("msg_a"))
    with pytest.raises(TypeError, match=f"could not be read again.*{where}"):
        session.append(message)
    session.append(by_hand("msg_c"))
    session.close()
    assert session.path is not None
    again = Session.open(session.path)

    assert [each.id for each in again.messages()] == ["msg_a", "msg_c"]
    assert not again.warnings


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_what_is_odd_and_can_be_read_is_kept(tmp_path: Path) -> None:
    """Half a surrogate pair, a str of another class, a list of parts: no reason to refuse what was said."""
    session = Session.create(tmp_path)
    session.append(by_hand("msg_a", "half \ud800"))
    session.append(by_hand(type("Word", (str,), {})("msg_b"), type("Word", (str,), {})("word")))
    session.append(by_hand("msg_c", parts=[TextPart("listed")]))
    session.append(Assistant(id="msg_d", time=now(), parts=[TextPart("answer")], turn_id="t"))  # type: ignore[arg-type]
    session.close()
    assert session.path is not None

    texts = ["".join(part.text for part in each.parts) for each in Session.open(session.path).messages()]  # type: ignore[union-attr]
    assert texts == ["half \ufffd", "word", "listed", "answer"]


@pytest.mark.parametrize("place", ["memory", "file", "read from a file"])
def test_a_message_is_stored_once(tmp_path: Path, place: str) -> None:
    """The same id again would make the entries a ring, and the session one that cannot be read."""
    session = Session.memory() if place == "memory" else Session.create(tmp_path)
    session.append(by_hand("msg_a"))
    session.append(by_hand("msg_b"))
    if place == "read from a file":
        session.close()
        assert session.path is not None
        session = Session.open(session.path)
        assert len(session.messages()) == 2
    with pytest.raises(UsageError, match="'msg_a'"):
        session.append(by_hand("msg_a"))

    assert [each.id for each in session.messages()] == ["msg_a", "msg_b"]


@pytest.mark.parametrize("which", ["read already", "not read yet", "a summary", "made elsewhere"])
def test_a_message_is_stored_once_also_when_the_session_was_opened_again(tmp_path: Path, which: str) -> None:
    """A half-read session refuses what lies in its unread part, too; a second one of that id had made a ring."""
    session = Session.create(tmp_path)
    said = [by_hand(new_id("msg") if i else "mine-0") for i in range(300)]
    for message in said:
        session.append(message)
    session.close()
    assert session.path is not None
    opened = Session.open(session.path)
    again = said[{"read already": -1, "made elsewhere": 0}.get(which, 5)]

    def store() -> None:
        opened.append_compaction(again, first_kept=None) if which == "a summary" else opened.append(again)

    with pytest.raises(UsageError, match=f"holds a message '{again.id}'"):
        store()

    opened.append(by_hand(new_id("msg")))
    assert len(Session.open(session.path).messages()) == 301


def test_a_new_message_needs_no_reading_of_the_rest(tmp_path: Path) -> None:
    """Row 18: what is stored next is newer than all that is there, by its id; the file stays half-read."""
    session = Session.create(tmp_path)
    for _ in range(2_000):
        session.append(by_hand(new_id("msg")))
    session.close()
    assert session.path is not None
    opened = Session.open(session.path)
    time.sleep(0.002)  # ids tell milliseconds

    opened.append(by_hand(new_id("msg")))

    assert len(opened._entries) < 10
    assert len(opened.entries) == 2_001


def test_one_odd_file_hides_no_other_session(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Bad input: what is no text in a header or a name counts as missing; lists, and finding by name, go on."""
    good = Session.create()
    good.append(by_hand(new_id("msg")))
    good.set_name("good")
    good.close()
    header = {"type": "session", "version": 1, "id": "ses_odd"}
    lines = [
        ({"time": 5, "parent": [1]}, '{"type":"name","id":"e1","parent":null,"time":"","name":5}'),
        ({"time": None}, '{"type":"name","id":"e1","parent":null,"time":"","name":' + "[" * 200_000),
    ]
    for i, (odd, line) in enumerate(lines):
        (sessions_dir() / f"odd{i}.jsonl").write_text(f"{json.dumps(header | odd)}\n{line}\n")

    assert sorted(info.id for info in Session.listing()) == sorted([good.id, "ses_odd", "ses_odd"])
    assert "good" in "".join(map(str, Session.listing()))
    assert Session.open("good").id == good.id
    with pytest.raises(SessionError, match="did you mean good"):
        Session.open("goodd")
    assert main(["sessions"]) == 0
    assert good.id in capsys.readouterr().out


def test_a_folder_hides_no_session_of_its_name(data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that a person gave is found although a folder is called so; a folder alone is told to be one."""
    monkeypatch.chdir(tmp_path)
    named = Session.create()
    named.append(by_hand(new_id("msg")))
    named.set_name("frames")
    named.close()
    for folder in ("frames", "other"):
        (tmp_path / folder).mkdir()

    assert Session.open("frames").id == named.id
    with pytest.raises(SessionError, match="other is a folder"):
        Session.open("other")
    with pytest.raises(SessionError, match="'' is not here"):
        Session.open("")
