"""Input hooks in the front end: before the SDK, for cells and magics alike (S55–S58, S80, S183)."""

from __future__ import annotations

from kernels import Kernel

GUEST = """
from kit_jupyter import Extension
from kit_jupyter.extension import HANDLED

class Looks(Extension):
    def on_input(self, text, source):
        seen.append((text, source))
        if text.startswith("handle"):
            return HANDLED
        if text.startswith("turn"):
            return text.upper()

seen = []
"""


def test_a_hook_may_handle_or_rewrite_what_a_cell_says(nb: Kernel) -> None:
    """Handled: no request, no entry, no view; rewritten: the model gets that, the original is kept (S55, S56, S57)."""
    nb.ok(GUEST)
    nb.script("[text('one')]", "[text('two')]", more=", extensions=[Looks()]")

    handled = nb.ok("%%kit\nhandle this")
    nb.ok("%%kit\nturn it round")
    nb.ok("%kit turn this, too")

    assert not handled.shown
    assert nb.value("len(kit._provider_given.requests)") == 2
    assert nb.value("[m.parts[0].text for m in kit.history if m.role == 'user']") == ["TURN IT ROUND", "TURN THIS, TOO"]
    assert nb.value("kit.history[0].request.original") == "turn it round"
    assert nb.value("[source for _, source in seen]") == ["cell", "cell", "magic"]


def test_slash_clear_in_a_cell_clears(nb: Kernel) -> None:
    """``/clear`` in a cell, ``kit.clear_conversation`` and the panel do the same thing (S183)."""
    nb.script("[text('one')]")
    nb.ok("%%kit\nhello")

    nb.ok("%%kit\n/clear")

    assert nb.value("len(kit.messages)") == 0
    assert nb.value("len(kit._provider_given.requests)") == 1


def test_a_result_shown_by_its_cell_can_be_shown_again(nb: Kernel) -> None:
    """After ``%%kit -o x`` a cell of just ``x`` shows the answer."""
    nb.script("[text('forty-two')]")
    nb.ok("%%kit -o x\nhow much?")

    shown = nb.ok("x")

    assert "forty-two" in str(shown.shown)
