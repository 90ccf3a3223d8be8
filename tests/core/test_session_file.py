"""The file under a session, where the disk, the file system or another process does not do what it should."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import Any

import pytest

from kit_jupyter import Session, SessionError, session_file
from kit_jupyter.messages import TextPart, User, new_id, now
from kit_jupyter.session_file import SessionFile


def said(words: str) -> User:
    return User(id=new_id("msg"), time=now(), parts=(TextPart(words),))


def refuse(code: int) -> Any:
    def fail(*_: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def words_of(path: Path) -> list[str]:
    return [part.text for m in Session.open(path).messages() for part in m.parts if isinstance(part, TextPart)]


def test_a_file_that_is_not_there_cannot_be_read(tmp_path: Path) -> None:
    """Both ways of reading say which file and why."""
    file = SessionFile(tmp_path / "gone.jsonl")
    with pytest.raises(SessionError, match=r"cannot read .*gone\.jsonl: No such file"):
        file.read_header()
    with pytest.raises(SessionError, match=r"cannot read .*gone\.jsonl: No such file"):
        next(file.lines_backwards())


def test_a_path_that_cannot_be_opened_for_writing_keeps_no_lock(tmp_path: Path) -> None:
    """After the refusal the name is free: whoever puts it right can write at once."""
    path = tmp_path / "s.jsonl"
    path.mkdir()
    with pytest.raises(SessionError, match="cannot write"):
        SessionFile(path).acquire()
    path.rmdir()

    later = SessionFile(path)
    later.create(b"{}\n")

    assert path.read_bytes() == b"{}\n"
    later.release()


def test_a_lock_whose_name_was_taken_away_is_taken_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last holder removes the name as we lock it: a lock on nothing would let two write."""
    file, real, tries = SessionFile(tmp_path / "s.jsonl"), session_file._try_lock, []

    def late(fd: int) -> bool:
        got = real(fd)
        tries.append(fd)
        if len(tries) == 1:
            file.lock_path.unlink()
        return got

    monkeypatch.setattr(session_file, "_try_lock", late)
    file.acquire()

    assert len(tries) == 2
    assert file.lock_path.read_text() == str(os.getpid())
    with pytest.raises(SessionError, match="another Kit of this process"):
        SessionFile(file.path).acquire()
    file.release()


def test_a_lock_that_cannot_be_written_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk where the lock lies: a clear error, and no lock stays behind it."""
    file = SessionFile(tmp_path / "s.jsonl")
    with monkeypatch.context() as broken:
        broken.setattr(os, "ftruncate", refuse(errno.ENOSPC))
        with pytest.raises(SessionError, match="No space left"):
            file.acquire()
    file.acquire()
    file.release()


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_still_has_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Some network drives refuse `flock`; the session is written and read all the same."""
    monkeypatch.setattr(fcntl, "flock", refuse(code))
    session = Session.create(tmp_path)
    session.append(said("here"))
    session.close()

    assert session.path is not None
    assert words_of(session.path) == ["here"]


def test_a_write_in_pieces_is_a_whole_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that takes a few bytes at a time gets all of them."""
    real = os.write
    session = Session.create(tmp_path)
    monkeypatch.setattr(os, "write", lambda fd, raw: real(fd, bytes(raw[:7])))
    session.append(said("first"))
    session.append(said("second"))
    session.close()

    assert session.path is not None
    assert words_of(session.path) == ["first", "second"]


def test_half_a_line_that_could_not_be_cut_off_swallows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills in the middle of a line and will not shrink the file: the next line begins on its own."""
    session = Session.create(tmp_path)
    session.append(said("first"))
    real = os.write
    written: list[int] = []

    def half(fd: int, raw: bytes) -> int:
        if written:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(real(fd, bytes(raw[: len(raw) // 2])))
        return written[0]

    with monkeypatch.context() as full:
        full.setattr(os, "write", half)
        full.setattr(os, "ftruncate", refuse(errno.EIO))
        with pytest.raises(SessionError, match="No space left"):
            session.append(said("lost"))
    session.append(said("third"))
    session.close()

    assert session.path is not None
    opened = Session.open(session.path)
    assert words_of(session.path) == ["first", "third"]
    assert opened.messages()
    assert any("cannot be read" in warning for warning in opened.warnings)


def test_a_folder_that_may_no_longer_be_looked_into_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What cannot be seen cannot be written to; nothing is guessed."""
    session = Session.create(tmp_path)
    session.append(said("first"))
    real = os.stat

    def stat(path: Any, *args: Any, **more: Any) -> Any:
        if str(path) == str(session.path):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real(path, *args, **more)

    with monkeypatch.context() as closed:
        closed.setattr(os, "stat", stat)
        with pytest.raises(SessionError, match=r"cannot write .*Permission denied"):
            session.append(said("lost"))
    session.append(said("second"))
    session.close()

    assert session.path is not None
    assert words_of(session.path) == ["first", "second"]


def test_a_disk_that_does_not_sync_is_told_and_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not synced counts as not synced: the next time tries it anew."""
    session = Session.create(tmp_path)
    session.append(said("first"))
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", refuse(errno.EIO))
        with pytest.raises(SessionError, match=r"cannot sync .*Input/output error"):
            session.sync()
    asked: list[int] = []
    monkeypatch.setattr(os, "fsync", asked.append)
    session.sync()
    session.sync()

    assert len(asked) == 1
    session.close()


async def test_a_burst_of_steps_waits_for_the_disk_at_most_so_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within the time nothing is done; after it, and where no time is given, the disk is asked."""
    asked: list[int] = []
    monkeypatch.setattr(os, "fsync", asked.append)
    session = Session.create(tmp_path)
    for words in ("one", "two", "three"):
        session.append(said(words))
        await session.sync_soon(within_seconds=60.0)
    assert len(asked) == 1

    await session.sync_soon()
    await session.sync_soon()

    assert len(asked) == 2
    session.close()


async def test_a_turn_whose_disk_does_not_sync_ends_with_that_error(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Kit can be used afterwards, and what was said is there."""
    kit, _ = make("one", "two", session=Session.create(tmp_path))
    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", refuse(errno.EIO))
        with pytest.raises(SessionError, match="cannot sync"):
            await kit.prompt("hi")

    assert str(await kit.prompt("again")) == "two"
    assert words_of(kit.session.path) == ["hi", "one", "again", "two"]


def test_writes_that_follow_each_other_closely_look_once_at_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal in between is seen after the stretch, and all of it comes back; a cut is seen at once."""
    monkeypatch.setattr(session_file, "LOOK_SECONDS", 1e9)
    session = Session.create(tmp_path)
    session.append(said("one"))
    session.append(said("two"))
    path = session.path
    assert path is not None
    path.unlink()
    session.append(said("three"))
    assert not path.exists()
    session.sync()

    session.append(said("four"))

    assert words_of(path) == ["one", "two", "three", "four"]
    assert len([text for text in session.warnings if "had been removed" in text]) == 1
    session.append(said("five"))
    os.truncate(path, 5)
    with pytest.raises(SessionError, match="was cut off"):
        session.append(said("six"))
    session.close()


def test_a_write_after_one_that_was_refused_is_refused_too(tmp_path: Path) -> None:
    """Another file lies in its place: however soon the next message comes, it is not taken for stored."""
    session = Session.create(tmp_path)
    session.append(said("one"))
    session.sync()
    path = session.path
    assert path is not None
    beside = tmp_path / "beside"
    beside.write_text("another\n")
    beside.rename(path)
    for words in ("two", "three"):
        with pytest.raises(SessionError, match="was replaced by another file"):
            session.append(said(words))
    session.close()

    assert path.read_text() == "another\n"


@pytest.mark.parametrize("there", ["the file", "another file", "no file"])
def test_the_rest_is_read_forwards_and_means_the_same(tmp_path: Path, there: str) -> None:
    """Row 18b: what is left of a session is read from its start; damage, repeats and a lost file do no harm."""
    session = Session.create(tmp_path)
    ids = [session.append(said(f"word {i}")).id for i in range(6)]
    session.close()
    path = session.path
    assert path is not None
    lines = path.read_bytes().splitlines(keepends=True)
    repeated = lines[1].replace(b"word 0", b"again")
    path.write_bytes(b"".join([*lines[:3], b"\n", b"{damaged\n", repeated, *lines[3:], lines[2]]))

    def words(entries: Any) -> list[str]:
        return [entry.message.parts[0].text for entry in entries]

    backwards = Session.open(path)
    backwards._entries._read_from = None  # as if nothing were known of where the rest ends
    expected, warnings = words(backwards.entries), backwards.warnings
    assert expected == ["again", "word 2", "word 3", "word 4", "word 5", "word 1"]
    assert len(warnings) == 1

    opened = Session.open(path)  # its last line has been read, and the file is held
    if there != "the file":
        path.unlink()
    if there == "another file":
        path.write_bytes(b'{"type":"session"}\n{"type":"message"}\n')

    assert words(opened.entries) == expected
    assert [entry.id for entry in opened.entries] == [ids[0], *ids[2:], ids[1]]
    assert opened.warnings == warnings
    assert opened.get(ids[3]).id == ids[3]

    walked = Session.open(path) if there == "the file" else opened
    with pytest.raises(SessionError, match="there is no entry 'nosuch'"):
        walked.get("nosuch")  # looked for through all lines
    assert words(walked.entries) == expected
