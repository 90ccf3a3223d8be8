"""Prompts, answers and events that nobody would choose: the notebook stays valid, nothing executes, nothing is lost."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import nbformat
import pytest
from kernels import TURN_MIME, Kernel, Said, kernel


def valid(said: Said) -> None:
    """The outputs of a cell make a valid notebook, as a front end would save it."""
    outputs = [nbformat.v4.new_output("display_data", one["data"], metadata=one["metadata"]) for one in said.shown]
    nbformat.validate(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("%%kit\nx", outputs=outputs)]))


def test_a_prompt_of_five_megabytes(nb: Kernel) -> None:
    """Bad input: it arrives whole, and the cell's output does not carry it about."""
    nb.script("[text('ok')]")

    said = nb.ok("%%kit\n" + "0123456789" * 500_000 + " {x} @nobody", cell_id="big", timeout=120)

    length, end = nb.value("(lambda t: (len(t), t[-12:]))(provider.requests[-1].messages[-1].parts[0].text)")
    assert (length, end) == (5_000_012, " {x} @nobody")
    valid(said)


@pytest.mark.parametrize(
    "character", ["\x00", "\x07", "\x1b[31m", "\x7f", "\ufeff", "\u2028", "\ud7ff", "\uffff", "\r"]
)
def test_control_characters_in_a_prompt_and_an_answer(nb: Kernel, character: str) -> None:
    """Bad input: they reach the model as they are, and come back into a valid file."""
    nb.ok(f"answer = {character!r} + ' back'")
    nb.script("[text(answer)]")

    said = nb.ok(f"kit.prompt_sync({('a' + character + 'b')!r})")
    assert said.reply["status"] == "ok"
    nb.script("[text(answer)]")
    cell = nb.run(f"%%kit\na{character}b", cell_id="control")

    if cell.reply["status"] == "ok":
        sent = nb.value("provider.requests[-1].messages[-1].parts[0].text")
        assert sent in (f"a{character}b", "a\nb")  # IPython itself reads \r as the end of a line
        assert character.replace("\r", "") in cell.kit()[TURN_MIME]["turn"]["items"][0]["text"]
        valid(cell)
    else:  # a NUL that IPython refuses before any magic is called
        assert character == "\x00"


@pytest.mark.parametrize("blank", ["", " ", "\n\n\t\n", "\u00a0\u2003", "\u200b"])
def test_a_prompt_of_white_space(nb: Kernel, blank: str) -> None:
    """Bad input: one line that says so, and nothing is sent; a zero-width space is a character like any other."""
    nb.script("[text('never')]")

    said = nb.run(f"%%kit\n{blank}", cell_id="blank")

    if blank == "\u200b":
        assert said.reply["status"] == "ok"
    else:
        assert "the prompt is empty" in said.reply["evalue"]
        assert nb.value("len(provider.requests)") == 0


@pytest.mark.parametrize(
    "answer",
    [
        "'```python\\n' + 'x = 1\\n' * 10_000",
        "'x' * 1_000_000",
        "'![' * 100_000",
        "'<script>ran()</script>' * 1000",
        "'[x](javascript:ran())'",
        "'![x](data:image/png;base64,' + 'A' * 3_000_000 + ')'",
        "'\\u202e right to left \\u202c e\\u0301\\u0301'",
        "'lone \\ud800 half'",
        "'- ' * 3000",
    ],
    ids=["open fence", "1 MB line", "bomb", "html", "link", "data uri", "rtl", "surrogate", "lists"],
)
def test_hard_answers_leave_a_valid_cell(nb: Kernel, answer: str) -> None:
    """Bad input: live view, bundle and the next turn all work; what a model writes never runs."""
    nb.script(f"[text({answer}, chunks=7)]", "[text('next')]")

    said = nb.ok("%%kit\ngo", cell_id="hard", timeout=60)

    valid(said)
    markdown = said.kit()["text/markdown"]
    assert "<script" not in markdown
    assert "](javascript:" not in markdown
    assert nb.ok("%%kit\nand?", cell_id="hard2").kit()["text/plain"] == "next"


def test_a_kernel_that_is_killed_in_mid_turn(tmp_path: Path) -> None:
    """Bad input: restart during a run: what was asked and done is in the session's file, and the talk goes on."""
    env = {"XDG_DATA_HOME": str(tmp_path), "IPYTHONDIR": str(tmp_path / "ip")}
    with kernel(env) as nb:
        nb.ok("def look() -> str:\n    'L.'\n    return 'seen it'")
        pid = nb.value("__import__('os').getpid()")
        steps = "[text('Let me look.'), tool_call('look')], [text('half an '), delay(60), text('answer')]"
        nb.ok(f"kit = Kit(provider=ScriptedProvider({steps}), tools=[look], permissions='auto')")
        msg = nb.send("%%kit\nthe question", cell_id="killed")
        nb.pump(lambda: "half an" in nb.text_in_frames(msg))
        valid(Said({}, nb.mine(msg), 0))  # saved just now, with the live view in it
        os.kill(pid, signal.SIGKILL)  # a restart alone would interrupt the turn first, which may then end in order
        nb.manager.restart_kernel(now=True)
        nb.client.wait_for_ready(timeout=60)
        nb.ok("%load_ext kit_jupyter\nfrom kit_jupyter import Kit\nfrom kit_jupyter.testing import *")
        nb.ok("provider = ScriptedProvider([text('goes on')])\nkit = Kit(provider=provider)")
        nb.ok("%kit_resume")

        assert nb.value("[m.role for m in kit.messages]") == ["user", "assistant", "tool"]
        nb.ok("%%kit\nand now?", cell_id="after")
        sent: Any = nb.value("[m.role for m in provider.requests[-1].messages]")
        assert sent == ["user", "assistant", "tool", "user"]
        shown = [one["data"]["text/plain"] for one in nb.ok("%kit_show").shown]
        assert "the question" in shown[0]
        assert "seen it" in shown[0]
        assert "goes on" in shown[-1]
