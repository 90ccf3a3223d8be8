"""Live output of a tool: a secret in pieces is masked as a whole one is (issue 6.7, U59)."""

from __future__ import annotations

import pytest

from kit_jupyter import Kit
from kit_jupyter.events import ToolOutput
from kit_jupyter.testing import ScriptedProvider, record_events, tool_call

KEY = "demo-planted-0123456789-abcdefghij"


@pytest.mark.parametrize("size", [1, 7, 20, 100])
def test_a_secret_printed_in_pieces_is_masked(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the pieces, the joined live output never holds the key, and nothing else is lost."""
    monkeypatch.setenv("DEMO_API_KEY", KEY)

    def leak() -> str:
        """Prints a key in pieces."""
        text = f"key: {KEY} end demo-"
        for at in range(0, len(text), size):
            print(text[at : at + size], end="", flush=True)
        return "done"

    kit = Kit(provider=ScriptedProvider([tool_call("leak")], "ok"), tools=[leak], session="memory")
    with record_events(kit) as log:
        kit.prompt_sync("go")

    joined = "".join(event.text for event in log.of(ToolOutput))
    assert KEY not in joined
    assert joined.startswith("key: [masked")
    assert joined.endswith(" end demo-")
