"""What is said just as something begins or ends: nothing is lost, nothing stays for ever, nothing is drawn wrong."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest
from kernels import TURN_MIME, Kernel

#: A guest that keeps a turn in its last moments, where its inbox is closed and it still runs.
ENDING = """
import asyncio
from kit_jupyter import Extension
class Lingers(Extension):
    until = None
    def bind(self, ctx):
        self.ctx = ctx
    async def after_turn(self, *told):
        print_ending.set()
        self.ctx.warn("lingering")
        for n in range(200 if self.until else 8):
            if self.until and self.until():
                return
            await asyncio.sleep(0.05)
import threading
print_ending = threading.Event()
"""


def frames(nb: Kernel, comm: str, after: int = 0) -> list[dict[str, Any]]:
    return [
        one["content"]["data"]["content"]
        for one in nb.log[after:]
        if one["msg_type"] == "comm_msg"
        and one["content"]["comm_id"] == comm
        and "m" in one["content"]["data"].get("content", {})
    ]


def said(nb: Kernel) -> list[str]:
    """Every text that is stored as a person's, or came back unsent."""
    stored = nb.value("[p.text for m in kit.messages if m.role != 'assistant' for p in m.parts if p.type == 'text']")
    return [*stored, *nb.value("list(kit.queue.returned)")]


def settled(nb: Kernel, comm: str) -> None:
    """Nothing runs, and the panel shows no turn that does."""
    nb.pump(lambda: nb.value("(kit.is_running, [t.status for t in p.view.turns if not t.ended])") == (False, []))


@pytest.fixture
def panel(nb: Kernel) -> str:
    """Comm id of a fresh panel over a kit that answers ten times."""
    nb.ok(ENDING)
    nb.ok(
        "provider = ScriptedProvider(*[[text(f'answer {n}', chunks=3)] for n in range(60)])\n"
        "kit = Kit(provider=provider, session='memory', extensions=[Lingers()])\n"
        "nbk = notebook_of(get_ipython()); nbk.panel = None; p = kit.panel()"
    )
    return str(nb.value("p.view.model_id"))


def test_two_submits_at_once(nb: Kernel, panel: str) -> None:
    """A double press of Enter: both texts arrive, no turn is shown that never began."""
    for n in range(5):
        nb.comm(panel, {"kind": "submit", "text": f"first {n}"})
        nb.comm(panel, {"kind": "submit", "text": f"second {n}"})
        nb.pump(lambda n=n: {f"first {n}", f"second {n}"} <= set(said(nb)))
    settled(nb, panel)

    texts = said(nb)
    assert [texts.count(f"{word} {n}") for n in range(5) for word in ("first", "second")] == [1] * 10
    assert nb.value("[t.status for t in p.view.turns]").count("error") == 0


@pytest.mark.parametrize("kind", ["submit", "steer", "follow_up"])
def test_said_while_a_turn_is_ending(nb: Kernel, panel: str, kind: str) -> None:
    """A turn that no longer listens and still runs: what the panel says then is the next prompt."""
    nb.ok("print_ending.clear()")
    nb.comm(panel, {"kind": "submit", "text": "one"})
    nb.pump(lambda: nb.value("print_ending.is_set()"))
    nb.comm(panel, {"kind": kind, "text": "just too late"})

    nb.pump(lambda: "just too late" in said(nb))
    settled(nb, panel)

    assert said(nb).count("just too late") == 1
    assert nb.value("list(kit.queue.returned)") == []
    assert nb.value("kit.messages[-1].role") == "assistant"


def test_a_steer_that_a_cells_turn_no_longer_takes_is_shown_in_the_cell(nb: Kernel) -> None:
    """U27, U28: the view closes with the turn; the words do not go with it."""
    nb.ok(ENDING)
    nb.script("[text('done')]", more=", extensions=[Lingers()]")
    nb.ok("Lingers.until = lambda self: kit.queue.returned")
    msg = nb.send("%%kit\ngo", cell_id="late")
    view = nb.view_of(msg)
    nb.pump(lambda: "lingering" in str(nb.mine(msg)))
    nb.comm(view, {"kind": "steer", "text": "be brief"})
    one = nb.wait(msg)

    assert "not sent, the turn was over: be brief" in one.kit()["text/markdown"]
    nb.comm(view, {"kind": "steer", "text": "and later still"})
    nb.pump(lambda: "and later still" in str(nb.mine(msg)))  # in that cell, not in another
    assert nb.value("list(kit.queue.returned)") == ["be brief", "and later still"]


def test_steers_queued_when_stop_comes_are_shown_in_the_cell(nb: Kernel) -> None:
    """U27: after a stop the unsent words can be read where they were said."""
    nb.script("[text('begin '), delay(60)]")
    msg = nb.send("%%kit\ngo", cell_id="q")
    view = nb.view_of(msg)
    nb.pump(lambda: "begin" in nb.text_in_frames(msg))
    nb.comm(view, {"kind": "steer", "text": "use polars"})
    nb.comm(view, {"kind": "abort"})
    one = nb.wait(msg)

    assert "not sent, the turn was over: use polars" in one.kit()["text/plain"]


def test_kit_steer_while_a_turn_is_ending(nb: Kernel) -> None:
    """The magic in another cell: once, as a turn of its own, and not as a failure."""
    nb.ok(ENDING)
    nb.script("[text('one')]", "[text('two')]", more=", extensions=[Lingers()]")
    nb.ok("print_ending.clear()")
    nb.ok("%%kit -b\ngo", cell_id="bg")
    nb.ok("import time\nwhile not print_ending.wait(0.01): pass")

    out = nb.ok("%kit_steer be brief")

    assert out.kit()["text/plain"] == "two"
    assert nb.value("list(kit.queue.returned)") == []
    assert said(nb).count("be brief") == 1


def test_stop_as_soon_as_a_turn_begins(nb: Kernel) -> None:
    """U16: the first moment at which something runs is early enough for Stop, every time."""
    nb.script(*["[text('begin '), delay(60)]"] * 8)
    for n in range(8):
        msg = nb.send("%%kit\ngo", cell_id=f"early{n}")
        end = time.monotonic() + 20
        while nb.control({"op": "stop"}).get("stopped") == 0:
            assert time.monotonic() < end
        begin = time.monotonic()
        one = nb.wait(msg)

        assert time.monotonic() - begin < 5
        assert one.kit()[TURN_MIME]["turn"]["status"] == "stopped"


def test_stop_as_a_turn_ends(nb: Kernel) -> None:
    """Stop at any moment near the end: the cell ends, the next turn is not stopped by it."""
    nb.script(*["[text('a'), delay(0.05), text('b')]", "[text('next')]"] * 6)
    for n in range(6):
        msg = nb.send("%%kit\ngo", cell_id=f"end{n}")
        nb.pump(lambda msg=msg: "a" in nb.text_in_frames(msg))
        time.sleep(n * 0.015)
        nb.control({"op": "stop"})
        one = nb.wait(msg)
        follows = nb.ok("%%kit\nnext", cell_id=f"after{n}")

        assert one.kit()[TURN_MIME]["turn"]["status"] in ("stopped", "done")
        stopped = one.kit()[TURN_MIME]["turn"]["status"] == "stopped"
        assert follows.kit()[TURN_MIME]["turn"]["status"] == "done", stopped


def test_a_cell_that_is_refused_says_why_in_the_file(nb: Kernel) -> None:
    """A second turn of one session: the cell's error is the reason, and its turn does not seem to run for ever."""
    nb.script("[text('begin '), delay(60)]")
    nb.ok("%%kit -b\ngo", cell_id="one")
    one = nb.run("%%kit\nme too", cell_id="two")
    nb.ok("%kit_stop")

    assert one.reply["status"] == "error"
    assert "a turn is running" in one.reply["evalue"]
    turn = one.kit()[TURN_MIME]["turn"]
    assert turn["status"] == "error"
    assert "a turn is running" in turn["error"]["message"]


class Store:
    """The browser's side: a tree grown from frames, which asks for the whole when it finds a gap."""

    def __init__(self) -> None:
        self.n = 0
        self.items: dict[str, dict[str, Any]] = {}
        self.wants = True

    def take(self, frame: dict[str, Any]) -> None:
        whole = next((m["view"] for m in frame["m"] if m["kind"] == "state" and "view" in m), None)
        if whole is not None:
            self.n = frame["n"]
            self.items = {item["id"]: dict(item) for turn in whole["turns"] for item in turn["items"]}
            self.wants = False
            return
        if frame["n"] != self.n + 1:
            self.wants = self.wants or frame["n"] > self.n
            return
        self.n = frame["n"]
        for m in frame["m"]:
            if m["kind"] == "commit":
                self.items.setdefault(m["item"]["id"], {}).update(m["item"])
            elif m["kind"] == "delta":
                for item_id, field, at, text in m["d"]:
                    have = self.items[item_id].get(field, "")
                    assert at <= len(have), "text before what comes before it"
                    self.items[item_id][field] = have + text[len(have) - at :]


@pytest.mark.parametrize("page", [False, True])
def test_a_page_that_comes_at_any_moment_and_loses_frames_sees_the_same(nb: Kernel, page: bool) -> None:
    """Point 7: hello and sync in mid-stream, frames lost: what the page shows in the end is the whole turn."""
    nb.ok("def look() -> str:\n    'L.'\n    print('printed', flush=True)\n    return 'seen'")
    words = "[text(' '.join(f'w{i}' for i in range(40)), chunks=40), tool_call('look')]"
    slow = "[x for i in range(40) for x in (delay(0.01), text(f'x{i} '))]"
    nb.script(words, slow, more=", tools=[look], permissions='auto'")
    nb.ok("nbk = notebook_of(get_ipython()); nbk.panel = None; p = kit.panel()")
    comm = str(nb.value("p.view.model_id"))
    chance = random.Random(7)
    store, read = Store(), len(nb.log)
    msg = nb.send("%%kit\ngo", cell_id="store")
    taken = 0

    def step() -> bool:
        nonlocal taken
        new = frames(nb, comm, read)
        for frame in new[taken:]:
            if chance.random() > 0.25:  # a quarter never arrives
                store.take(frame)
        taken = len(new)
        if store.wants:
            nb.comm(comm, {"kind": "ask", "what": "sync", "n": store.n, "page": page})
        return nb.is_idle(msg)

    nb.pump(step)
    nb.wait(msg)
    for _ in range(50):
        nb.comm(comm, {"kind": "ask", "what": "sync", "n": store.n, "page": page})
        if nb.value("p.view._frame") == store.n:
            break
        step()

    whole = nb.value("[i for t in p.view.get_state()['view']['turns'] for i in t['items']]")
    assert list(store.items.values()) == whole
