"""Live output of a tool: a secret in pieces is masked as a whole one is (issue 6.7, U59)."""

from __future__ import annotations

import pytest

from kit_jupyter import Kit
from kit_jupyter.events import ToolOutput
from kit_jupyter.masking import Masker
from kit_jupyter.testing import ScriptedProvider, record_events, tool_call
from kit_jupyter.tool import ToolContext

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


@pytest.mark.parametrize("other", ["3-starts-as-the-key-ends", "j-and-the-key-ends-so"])
def test_a_whole_secret_is_not_cut_by_what_is_held_back(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second secret that begins with the last letter of the first does not split the first in two (issue 6.7)."""
    monkeypatch.setenv("DEMO_API_KEY", "hush-hush-123" if other[0] == "3" else KEY)
    monkeypatch.setenv("OTHER_API_KEY", other)
    key = "hush-hush-123" if other[0] == "3" else KEY

    def leak() -> str:
        """Prints a key, and sk-ant-api03-0123456789abcdefghij3 as well."""
        print("first", key)
        print("second sk-ant-api03-0123456789abcdefghi" + other[0], end="", flush=True)
        print(" end")
        return "done"

    kit = Kit(provider=ScriptedProvider([tool_call("leak")], "ok"), tools=[leak], session="memory")
    with record_events(kit) as log:
        kit.prompt_sync("go")

    joined = "".join(event.text for event in log.of(ToolOutput))
    assert joined == "first [masked DEMO_API_KEY]\nsecond [masked key] end\n"


async def test_how_far_a_tool_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 7: `progress(done, total)` is told as numbers that can be drawn; what is no number is not told."""
    monkeypatch.setattr("kit_jupyter.calls.masker", Masker({}))  # nothing is held back for a key of this environment

    def work(ctx: ToolContext) -> str:
        """Works."""
        ctx.progress(1, 4)
        ctx.progress("half", done=2)
        ctx.progress(9, 4)
        for bad in (float("nan"), float("inf"), "x"):
            ctx.progress(done=bad)  # type: ignore[arg-type]
        return "ok"

    kit = Kit(provider=ScriptedProvider([tool_call("work")], "ok"), tools=[work], session="memory")
    with record_events(kit) as log:
        await kit.prompt("go")

    told = [(event.text, event.done, event.total) for event in log.of(ToolOutput)]
    assert told == [("", 1.0, 4.0), ("", 2.0, None), ("half", None, None), ("", 4.0, 4.0)]
