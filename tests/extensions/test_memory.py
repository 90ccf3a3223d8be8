"""Memory: recorded beside the turn, recalled beside the message, kept over a clear."""

from __future__ import annotations

import json
import threading

import pytest

from kit_jupyter import Kit
from kit_jupyter.errors import ToolError
from kit_jupyter.extensions.memory import Memory
from kit_jupyter.testing import ScriptedProvider


@pytest.fixture
def memory(tmp_path):
    return Memory(tmp_path / "mem")


def test_what_you_said_comes_back_in_a_later_session(memory, tmp_path):
    """S217: recall enters through on_user_message, as a reference block after the message."""
    first = Kit(provider=ScriptedProvider("ok", "ok"), session="memory", extensions=[memory])
    first.prompt_sync("My telescope is a Newtonian of 200 mm aperture.")
    first.prompt_sync("Lunch was good.")
    first.close()
    provider = ScriptedProvider("ok")
    second = Kit(provider=provider, session="memory", extensions=[Memory(tmp_path / "mem")])

    second.prompt_sync("Which eyepiece fits my telescope?")

    question, block = (m.parts[0].text for m in provider.last_request.messages)
    assert question == "Which eyepiece fits my telescope?"
    assert block.startswith("<system-reminder>")
    assert "Newtonian" in block
    assert "Lunch" not in block
    second.close()


def test_nothing_near_adds_nothing(memory):
    """S162: no block when nothing fits, and none of the words just said."""
    provider = ScriptedProvider("a", "b")
    kit = Kit(provider=provider, session="memory", extensions=[memory])

    kit.prompt_sync("Fit a sinusoid.")
    kit.prompt_sync("Fit a sinusoid.")

    assert [m.role for m in provider.last_request.messages] == ["user", "assistant", "user"]
    kit.close()


async def test_queue_and_writer_survive_a_clear(memory, hosted):
    """S175, S217: a clear is no quit: same thread, nothing lost, nothing closed."""
    host = hosted(memory)
    await host.reference_blocks("Remember the first thing.")
    writer = memory._writer

    await host.reset()
    await host.reference_blocks("Remember the second thing.")
    memory.flush()

    assert memory._writer is writer
    assert writer.is_alive()
    assert len(memory.path.read_text().splitlines()) == 2
    await host.close()
    assert not writer.is_alive()


def test_the_persona_section_follows_its_file_after_a_clear(memory):
    """S218: a live section."""
    memory.folder.mkdir(parents=True)
    memory.persona_path.write_text("Prefers SI units.")
    kit = Kit(provider=ScriptedProvider(), session="memory", extensions=[memory])
    before = kit.system
    memory.persona_path.write_text("Prefers CGS units.")
    unchanged = kit.system
    kit.clear_conversation_sync()

    assert "SI units" in before
    assert unchanged == before
    assert "CGS units" in kit.system
    kit.close()


def test_a_turn_does_not_wait_for_the_disk(memory, hosted, monkeypatch):
    """Recording is a queue put: with the disk stuck, the message goes through."""
    stuck = threading.Event()
    monkeypatch.setattr(memory, "_append", lambda one: stuck.wait(20))
    hosted(memory)

    memory.on_user_message(None, "quick one")

    assert [m.text for m in memory.memories] == ["quick one"]
    stuck.set()
    memory.flush()


def test_tools_remember_recall_and_forget(memory, hosted):
    """The model can note a fact, look one up, and forget it for good."""
    hosted(memory)
    said = memory.remember("The lab's wiki is at example.org.")
    memory_id = said.removeprefix("remembered as ")

    assert "example.org" in memory.recall("where is the wiki?")
    memory.forget(memory_id)
    assert memory.recall("wiki") == "nothing is remembered"
    memory.flush()
    assert memory_id not in memory.path.read_text()
    with pytest.raises(ToolError, match="no memory"):
        memory.forget(memory_id)
    with pytest.raises(ToolError):
        memory.remember(" ")


def test_secrets_are_masked_before_they_are_written(memory, hosted):
    """A key said in passing does not reach the disk."""
    hosted(memory)
    memory.on_user_message(None, "my key is sk-ant-api03-" + "A1b2C3d4E5" * 9 + "AA, use it")
    memory.flush()

    assert "A1b2C3d4E5" not in memory.path.read_text()


def test_a_torn_file_costs_one_line(memory, hosted):
    """Bad input: broken JSON, missing keys, odd bytes are passed over."""
    memory.folder.mkdir(parents=True)
    good = {"id": "mem_1", "time": "2026-01-01T00:00:00Z", "by": "you", "text": "kept"}
    memory.path.write_bytes(json.dumps(good).encode() + b'\n{"id": 3}\n[1]\n\xff\xfe\n{"id": "mem_2", "ti')
    hosted(memory)

    assert [m.text for m in memory.memories] == ["kept"]


def test_a_folder_that_cannot_be_written_is_warned_of(tmp_path, hosted):
    """The talk goes on; the person is told once."""
    (tmp_path / "file").write_text("in the way")
    memory = Memory(tmp_path / "file" / "mem")
    host = hosted(memory)

    memory.on_user_message(None, "hello there")
    memory.flush()

    assert "could not be written" in host.warned[0]


def test_memory_counts_as_private(memory, hosted):
    """What was said elsewhere must not leave from here unseen."""
    assert hosted(memory).trifecta(()).meetings[0].legs.private


def test_recall_can_be_switched_off(tmp_path, hosted):
    """recall=0 records only; record=False recalls only."""
    silent, reader = Memory(tmp_path, recall=0), Memory(tmp_path / "other", record=False)
    hosted(silent)
    hosted(reader)

    silent.remember("telescopes")
    assert silent.on_user_message(None, "my telescopes") is None
    assert reader.on_user_message(None, "my telescopes") is None
    assert reader.memories == ()


def test_a_torn_line_does_not_swallow_the_next(memory, hosted):
    """Bad input: a kernel died while writing; what is remembered after is there for the next."""
    memory.folder.mkdir(parents=True)
    memory.path.write_bytes(b'{"id": "mem_2", "ti')
    hosted(memory)
    memory.remember("After the crash.")
    memory.flush()

    again = Memory(memory.folder)
    hosted(again)
    assert [one.text for one in again.memories] == ["After the crash."]


def test_forgetting_in_one_kernel_keeps_what_another_has_written(memory, hosted):
    """Two kernels of one project: the file is not written over with what one of them knows."""
    hosted(memory)
    memory.remember("From the first.")
    memory.flush()
    other = Memory(memory.folder)
    hosted(other)
    mine = memory.remember("To be forgotten.").removeprefix("remembered as ")
    other.remember("From the second.")
    other.flush()

    memory.forget(mine)

    lines = [json.loads(line)["text"] for line in memory.path.read_text().splitlines()]
    assert lines == ["From the first.", "From the second."]


@pytest.mark.parametrize("move", ["clear", "branch", "fork"])
async def test_moving_in_the_tree_forgets_nothing_and_records_once(memory, move):
    """S175, S217: queue and memories are of the person, not of the conversation."""
    kit = Kit(provider=ScriptedProvider("a", "b", repeat_last=True), session="memory", extensions=[memory])
    await kit.prompt("My boat is called Argo.")
    if move == "clear":
        await kit.clear_conversation()
    elif move == "branch":
        await kit.branch(None)
    else:
        await kit.resume(await kit.fork())
    await kit.prompt("What is my boat called?")
    memory.flush()

    assert len(memory.path.read_text().splitlines()) == 2
    blocks = [m for m in kit.messages if m.role == "user" and m.source]
    assert "Argo" in blocks[-1].parts[0].text
    await kit.aclose()
