"""Keys in a real IPython terminal, behind a pseudo-terminal: rows S85, S86, S87, S90; issue 8, point 3."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pexpect = pytest.importorskip("pexpect", reason="comes with IPython, but not on Windows")

ROOT = Path(__file__).parents[2]
WAIT = 60


class Terminal:
    """An IPython terminal with kit loaded."""

    def __init__(self, folder: Path) -> None:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "IPYTHONDIR": str(folder),
            "XDG_DATA_HOME": str(folder),
            "TERM": "xterm",
            "PROMPT_TOOLKIT_NO_CPR": "1",
        }
        arguments = ["-m", "IPython", "--no-banner", "--no-confirm-exit", "--colors=NoColor"]
        self.child = pexpect.spawn(
            sys.executable, arguments, env=environment, encoding="utf-8", timeout=WAIT, dimensions=(40, 120)
        )
        self.child.expect(r"In \[")
        self.run("%load_ext kit_jupyter")
        self.run("seen = []; from kit_jupyter.jupyter import notebook_of; nb = notebook_of(get_ipython())")

    def run(self, line: str) -> None:
        """Run a line; back at the prompt."""
        self.child.send(line + "\r")
        self.child.expect(r"In \[\d+\]")

    def value(self, expression: str) -> str:
        """What an expression prints."""
        self.child.send(f"print('<' + 'said>', {expression}, '<' + 'end>')\r")
        self.child.expect(r"<said> (.*?) <end>")
        found = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", str(self.child.match[1]))
        self.child.expect(r"In \[\d+\]")
        return found

    def keys(self, keys: str) -> None:
        """Press keys."""
        self.child.send(keys)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Any]:
    """A terminal; ended at the end."""
    made = Terminal(tmp_path)
    yield made
    made.child.close(force=True)


def test_a_key_sequence_runs_a_function(terminal: Any) -> None:
    """S85, S87, point 3: leader, g, s (the leader is Ctrl+X) runs the function; what it prints is seen."""
    terminal.run("def note(context): seen.append(context['count']); print('noted', 6 * 7)")
    terminal.run("remove = nb.lab.keymap('<leader>gs', note, description='Note it')")

    terminal.keys("\x18gs")
    terminal.child.expect("noted 42")

    assert terminal.value("seen") == "[None]"


def test_a_mapping_that_is_taken_away_is_gone_and_modifiers_count(terminal: Any) -> None:
    """S86, S90: ctrl+t and alt+y are heard; after `remove()` the keys are the terminal's again."""
    terminal.run("one = nb.lab.keymap('ctrl+t', lambda: seen.append('ctrl'), description='One')")
    terminal.run("two = nb.lab.keymap('alt+y', lambda: seen.append('alt'), description='Two')")

    terminal.keys("\x14")
    terminal.keys("\x1by")
    assert terminal.value("seen") == "['ctrl', 'alt']"
    terminal.run("one()")
    terminal.keys("\x14")

    assert terminal.value("seen") == "['ctrl', 'alt']"


def test_the_shipped_key_begins_a_prompt(terminal: Any) -> None:
    """Point 3: leader p puts %%kit into the line, as in Lab."""
    terminal.keys("\x18p")
    terminal.child.expect("%%kit")
    terminal.keys("\x03")  # drop the line

    assert terminal.value("1 + 1") == "2"
