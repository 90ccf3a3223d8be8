"""What cells and magics say goes through the SDK's own verbs: nothing of a turn is done twice. In a real kernel."""

from __future__ import annotations

import pytest
from kernels import TURN_MIME, Kernel

SPY = """
calls = []
from kit_jupyter.kit import Kit as _Kit
def _spied(name):
    real = getattr(_Kit, name)
    def spy(self, *args, **facts):
        calls.append((name, args, {k: v for k, v in facts.items() if k in ("mode", "when_busy")}))
        return real(self, *args, **facts)
    setattr(_Kit, name, spy)
    return lambda: setattr(_Kit, name, real)
unspy = [_spied("start")]
"""


def test_every_way_to_say_something_is_the_public_verb(nb: Kernel) -> None:
    """S67, S80: a cell, a line, a steer and a continuation: `Kit.start`, once each, with the words as they stand."""
    nb.script("[text('a')]", "[text('b')]", "[text('c')]", "[text('d')]")
    nb.ok(SPY)
    try:
        nb.ok("%%kit\nfirst {x}", cell_id="v1")
        nb.ok("%kit second")
        nb.ok("%kit_steer be brief")
        nb.ok("%kit_continue")
        said = nb.value("[(args[0], facts.get('mode', 'prompt')) for _, args, facts in calls]")
    finally:
        nb.ok("[put_back() for put_back in unspy]")

    assert said == [("first {x}", "prompt"), ("second", "prompt"), ("be brief", "steer"), ("", "follow_up")]
    assert nb.value("len(provider.requests)") == 4


def test_a_hook_before_the_turn_works_from_a_cell(nb: Kernel) -> None:
    """S64: injected text and another system prompt, as from the API; what was injected is no bubble."""
    nb.ok(
        "from kit_jupyter.extension import BeforeTurn\n"
        "def hooks(c):\n"
        "    c.add_hook('before_turn', lambda turn: BeforeTurn(system='You are a pirate.', inject='the sea is calm'))"
    )
    nb.script("[text('arr')]", "[text('aye')]", more=", configure=hooks")

    said = nb.ok("%%kit\nhow is it?", cell_id="h1")
    nb.ok("%kit and now?")

    assert nb.value("[r.system for r in provider.requests]") == ["You are a pirate."] * 2
    asked = nb.value("[p.text for m in provider.requests[0].messages for p in m.parts]")
    assert asked == ["how is it?", "the sea is calm"]
    assert [item["kind"] for item in said.kit()[TURN_MIME]["turn"]["items"]] == ["text"]


@pytest.mark.parametrize(
    ("reply", "name", "line"),
    [
        ('[provider_error("rate_limited", "slow down")]', "RateLimited", "generation failed: slow down"),
        ("[provider_error(ZeroDivisionError('oops'))]", "KitError", "generation failed: ZeroDivisionError: oops"),
    ],
)
def test_a_failure_has_a_type_and_one_line_and_its_cause_on_demand(
    nb: Kernel, reply: str, name: str, line: str
) -> None:
    """S61: the cell fails with the error's own class; `%kit_show --error` has the traceback."""
    nb.script(reply)

    said = nb.run("%%kit\nhi", cell_id="typed")

    assert (said.reply["status"], said.reply["ename"]) == ("error", name)
    assert line in said.reply["evalue"]
    assert len(said.reply["traceback"]) == 1
    turn = said.kit()[TURN_MIME]["turn"]
    assert turn["status"] == "error"
    shown = nb.ok("%kit_show --error").stream
    assert "Traceback" in shown
    assert line.rpartition(": ")[2] in shown


@pytest.mark.parametrize("how", ["", " --clear"])
def test_stop_lists_or_drops_what_was_queued(nb: Kernel, how: str) -> None:
    """U27: from a magic: both texts are named; kept ones can be taken back, dropped ones are gone; none is sent."""
    nb.script("[text('begin '), delay(60)]", "[text('next')]")
    nb.ok("%%kit -b\ngo", cell_id="stop")
    nb.ok("import time\nwhile not kit.is_running or not provider.requests: time.sleep(0.01)")
    nb.ok("one, two = kit.queue_steer('use polars'), kit.queue_follow_up('and plot it')")

    told = nb.ok("%kit_stop" + how).stream
    nb.ok("while kit.is_running: time.sleep(0.01)")

    assert ("dropped: " if how else "not sent: ") in told
    assert "use polars" in told
    assert "and plot it" in told
    assert nb.value("[one.state, two.state]") == ["returned", "returned"]
    assert nb.value("list(kit.queue.returned)") == ([] if how else ["use polars", "and plot it"])
    nb.ok("%%kit\nnext", cell_id="after")
    sent = nb.value("str(provider.requests[-1].messages)")
    assert "polars" not in sent
    assert "plot it" not in sent
    assert nb.value("kit.clear_queue()") == ([] if how else ["use polars", "and plot it"])


def test_a_steer_that_does_not_wait_cuts_the_tool(nb: Kernel) -> None:
    """U26: `%kit_steer --now`: the tool's result says that it was interrupted, and the next call has the words."""
    nb.ok("import asyncio\nasync def forever() -> str:\n    'Waits.'\n    await asyncio.sleep(60)\n    return 'never'")
    nb.script("[tool_call('forever')]", "[text('changed')]", more=", tools=[forever], permissions='auto'")
    msg = nb.send("%%kit -b\ngo", cell_id="cut")
    nb.pump(lambda: nb.tool_runs(msg))
    nb.wait(msg)

    told = nb.ok("%kit_steer --now stop that").stream
    nb.ok("import time\nwhile kit.is_running: time.sleep(0.01)")

    assert "steer sent: stop that" in told
    assert nb.value("provider.requests[-1].messages[-1].parts[0].text") == "stop that"
    result = nb.value("[m.parts[0].text for m in kit.messages if m.role == 'tool']")
    assert len(result) == 1
    assert "interrupted" in result[0]
    assert nb.value("kit.messages[-1].parts[0].text") == "changed"


def test_a_new_conversation_empties_memory_and_panel(nb: Kernel) -> None:
    """U35: `%kit_new`: no message, no turn in the panel, and the next request has the new words only."""
    nb.script("[text('one')]", "[text('two')]")
    nb.ok("p = kit.panel()")
    nb.ok("%%kit\nfirst", cell_id="p1")
    assert nb.value("[t.prompt for t in p.view.turns]") == ["first"]

    assert "new conversation" in nb.ok("%kit_new").stream

    assert nb.value("len(kit.messages)") == 0
    nb.pump(lambda: nb.value("[t.prompt for t in p.view.turns]") == [])
    nb.ok("%%kit\nsecond", cell_id="p2")
    assert nb.value("[m.parts[0].text for m in provider.requests[-1].messages]") == ["second"]


def test_a_cell_run_again_says_what_it_makes_stale(nb: Kernel) -> None:
    """U38: the cell that is run again names how many later answers went, and the way back works as it stands."""
    nb.script(*(f'[text("{word}")]' for word in ("a1", "b1", "a2", "b2")))
    nb.ok("%%kit\nA", cell_id="sA")
    nb.ok("%%kit\nB", cell_id="sB")

    again = nb.ok("%%kit\nA", cell_id="sA").kit()["text/plain"]
    quiet = nb.ok("%%kit\nB", cell_id="sB").kit()["text/plain"]

    assert "the answer of a later cell is no longer part of the conversation" in again
    assert quiet == "b2"
    back = again[again.index("kit.branch(") :].split(")")[0] + ")"
    nb.ok(f"await {back}")
    assert nb.value("[m.parts[0].text for m in kit.messages]") == ["A", "a1", "B", "b1"]


def test_a_summary_is_marked_in_the_cell(nb: Kernel) -> None:
    """U46, S124: an overflow in a cell: one summary, one more try, the answer, and a word of what was summarised."""
    nb.script('[text("a" * 4000)]', '[text("b")]', "[overflow()]", '[text("Summary")]', '[text("made it")]')
    nb.ok("%%kit\none", cell_id="m1")
    nb.ok("%%kit\ntwo", cell_id="m2")
    before = nb.value("[m.parts[0].text for m in kit.history]")

    said = nb.ok("%%kit\nthree", cell_id="m3")

    items = said.kit()[TURN_MIME]["turn"]["items"]
    assert [item["kind"] for item in items] == ["notice", "text"]
    assert "messages summarised" in items[0]["text"]
    assert items[1]["text"] == "made it"
    assert nb.value("[m.parts[0].text for m in kit.history]")[: len(before)] == before


def test_a_forgotten_await_says_so(nb: Kernel) -> None:
    """Bad input of issue 7: who writes `kit.prompt(...)` alone learns what to do; other coroutines look as ever."""
    nb.script("[text('never')]")

    said = nb.ok("kit.prompt('hi')").shown[-1]["data"]["text/plain"]
    other = nb.ok("async def mine(): ...\nmine()").shown[-1]["data"]["text/plain"]

    assert "await kit.prompt(...), or  kit.prompt_sync(...)" in said
    assert other.startswith("<coroutine object mine at 0x")
    assert "\n" not in other
    assert nb.value("len(provider.requests)") == 0
