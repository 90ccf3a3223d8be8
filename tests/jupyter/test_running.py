"""While a turn runs: stop, steer, approve, threads, output in its own cell. In a real kernel."""

from __future__ import annotations

import time

import pytest
from kernels import TURN_MIME, Kernel

SLOW = '[text("begin "), *[x for i in range(300) for x in (delay(0.05), text("w%d " % i))]]'


def _started(nb: Kernel, msg_id: str, words: str = "begin") -> None:
    nb.pump(lambda: words in nb.text_in_frames(msg_id))


def test_interrupt_ends_a_turn_within_a_second(nb: Kernel) -> None:
    """U16, U19: Kernel → Interrupt; the partial text stays, the next turn works."""
    nb.script(SLOW, '[text("fine")]')
    msg = nb.send("%%kit\ngo on and on", cell_id="i1")
    _started(nb, msg)

    begin = time.monotonic()
    nb.manager.interrupt_kernel()
    said = nb.wait(msg)

    assert time.monotonic() - begin < 1.5
    assert said.reply["status"] == "error"
    assert said.reply["ename"] == "KeyboardInterrupt"
    assert len(said.reply["traceback"]) == 1
    turn = said.kit()[TURN_MIME]["turn"]
    assert turn["status"] == "stopped"
    assert turn["items"][0]["text"].startswith("begin")
    assert nb.ok("%%kit\nnow?", cell_id="i2").kit()["text/plain"] == "fine"


def test_interrupt_of_a_silent_model(nb: Kernel) -> None:
    """U19: nothing is coming at all; the interrupt must wake the sleeping loop."""
    nb.script("[delay(60), text('late')]")
    msg = nb.send("%%kit\nanyone?", cell_id="s1")
    nb.pump(lambda: bool(nb.view_of(msg)))

    begin = time.monotonic()
    nb.manager.interrupt_kernel()
    nb.wait(msg)

    assert time.monotonic() - begin < 1.5


def test_the_stop_button_ends_a_turn(nb: Kernel) -> None:
    """U16: as the view says it, over its comm, while the cell waits."""
    nb.script(SLOW)
    msg = nb.send("%%kit\ngo", cell_id="b1")
    _started(nb, msg)

    begin = time.monotonic()
    nb.comm(nb.view_of(msg), {"kind": "abort", "clear": False})
    said = nb.wait(msg)

    assert time.monotonic() - begin < 1.5
    assert said.reply["status"] == "ok"
    assert said.kit()[TURN_MIME]["turn"]["status"] == "stopped"
    after = [f for f in said.frames if any(m["kind"] == "end" for m in f["m"])]
    assert said.frames[-1] in after, "a delta was drawn after the end"


@pytest.mark.parametrize(
    "body",
    ["import time; time.sleep(30)", "while True: pass", "import asyncio; await asyncio.sleep(30)"],
    ids=["sleep", "busy", "await"],
)
def test_stop_breaks_a_tools_code(nb: Kernel, body: str) -> None:
    """U20: user code on the main thread is interrupted; the model's call is answered as stopped."""
    is_async = "await" in body
    head = "async def" if is_async else "def"
    nb.ok(f"{head} slow() -> str:\n    'Slow.'\n    {body}\n    return 'never'")
    nb.script("[tool_call('slow')]", "[text('after')]", more=", tools=[slow], permissions='auto'")
    msg = nb.send("%%kit\nrun it", cell_id="t1")
    nb.pump(lambda: nb.tool_runs(msg))

    begin = time.monotonic()
    reply = nb.control({"op": "stop"})
    said = nb.wait(msg)

    assert reply["status"] == "ok"
    assert time.monotonic() - begin < 3
    item = said.kit()[TURN_MIME]["turn"]["items"][0]
    assert item["status"] == "stopped"
    assert nb.ok("%%kit\nnext", cell_id="t2").kit()["text/plain"] == "after"


def test_interrupt_breaks_a_tools_code(nb: Kernel) -> None:
    """U20: `time.sleep(30)` in a tool ends at once; tool and turn stop."""
    nb.ok("def nap() -> str:\n    'Nap.'\n    import time\n    time.sleep(30)\n    return 'x'")
    nb.script("[tool_call('nap')]", "[text('after')]", more=", tools=[nap], permissions='auto'")
    msg = nb.send("%%kit\nrun it", cell_id="t3")
    nb.pump(lambda: nb.tool_runs(msg))

    begin = time.monotonic()
    nb.manager.interrupt_kernel()
    said = nb.wait(msg)

    assert time.monotonic() - begin < 2
    assert said.reply["status"] == "error"
    assert nb.ok("%%kit\nnext", cell_id="t4").kit()["text/plain"] == "after"


def test_steer_from_the_view_reaches_the_running_turn(nb: Kernel) -> None:
    """U26: a steer lands at the next step, once, and is shown where it was said."""
    nb.ok("def step() -> str:\n    'Step.'\n    import time\n    time.sleep(0.5)\n    return 'stepped'")
    nb.script("[tool_call('step')]", "[text('steered')]", more=", tools=[step], permissions='auto'")
    msg = nb.send("%%kit\ngo", cell_id="st1")
    nb.pump(lambda: nb.tool_runs(msg))

    assert nb.control({"op": "steer", "text": "be brief"})["status"] == "ok"
    said = nb.wait(msg)

    kinds = [item["kind"] for item in said.kit()[TURN_MIME]["turn"]["items"]]
    assert kinds == ["tool", "said", "text"]
    assert "be brief" in nb.value("str(provider.requests[-1].messages)")


def test_kit_steer_in_another_cell_while_a_turn_runs(nb: Kernel) -> None:
    """Jupyter facts 2.6: the fast lane takes `%kit_steer` out of the queue of cells."""
    if not nb.value("__import__('kit_jupyter.jupyter.shell').jupyter.shell.probes(get_ipython())['fast_lane']"):
        pytest.skip("this ipykernel has no subshells")
    nb.ok("def step() -> str:\n    'Step.'\n    import time\n    time.sleep(1.0)\n    return 'stepped'")
    nb.script("[tool_call('step')]", "[text('steered')]", more=", tools=[step], permissions='auto'")
    msg = nb.send("%%kit\ngo", cell_id="st2")
    nb.pump(lambda: nb.tool_runs(msg))

    lane = nb.send("%kit_steer shorter please", cell_id="st3")
    nb.pump(lambda: nb.is_idle(lane), timeout=5)
    assert not nb.is_idle(msg), "the steer waited for the turn"
    nb.pump(lambda: nb.is_idle(msg))

    assert "steer queued" in "".join(m["content"]["text"] for m in nb.mine(lane) if m["msg_type"] == "stream")
    assert "shorter please" in nb.value("str(provider.requests[-1].messages)")


def test_stop_gives_queued_words_back(nb: Kernel) -> None:
    """U27: what was queued is listed as unsent after a stop, and never said by itself later."""
    nb.script(SLOW, "[text('next')]")
    msg = nb.send("%%kit\ngo", cell_id="q1")
    _started(nb, msg)

    nb.control({"op": "steer", "text": "never said"})
    nb.control({"op": "stop"})
    nb.wait(msg)

    assert nb.value("kit.queue.returned") == ("never said",)
    nb.ok("%%kit\nother", cell_id="q2")
    assert "never said" not in nb.value("str(provider.requests[-1].messages)")


@pytest.mark.parametrize("road", ["widget", "magic", "control"])
def test_approve_and_deny(nb: Kernel, road: str) -> None:
    """U60: approve and deny, from the view, a magic and the control channel; the reason reaches the model."""
    nb.ok("ran = []\n@tool(approve='ask')\ndef act(x: int) -> str:\n    'Act.'\n    ran.append(x)\n    return 'acted'")
    replies = ("[tool_call('act', call_id='c1', x=1)]", "[tool_call('act', call_id='c2', x=2)]", "[text('ok')]")
    nb.script(*replies, more=", tools=[act], permissions='ask'")
    msg = nb.send("%%kit\nact", cell_id=f"ap-{road}")
    view = nb.view_of(msg)
    nb.comm(view, {"kind": "ask", "what": "sync", "n": -1})

    def asked(call: str) -> bool:
        frames = [m["content"]["data"].get("content", {}) for m in nb.mine(msg) if m["msg_type"] == "comm_msg"]
        return any(
            m["kind"] == "commit" and m["item"].get("call_id") == call and m["item"].get("question")
            for f in frames
            for m in f.get("m", ())
        )

    def answer(call: str, *, allow: bool, reason: str = "") -> None:
        nb.pump(lambda: asked(call))
        if road == "magic":
            lane = nb.send("%kit_approve" if allow else f"%kit_deny {reason}")
            nb.pump(lambda: nb.is_idle(lane))
        elif road == "widget":
            nb.comm(view, {"kind": "approve", "call": call, "allow": allow, "reason": reason})
        else:
            nb.control({"op": "approve", "call": call, "allow": allow, "reason": reason})

    answer("c1", allow=True)
    answer("c2", allow=False, reason="not now")
    nb.pump(lambda: nb.is_idle(msg))

    assert nb.value("ran") == [1]
    assert "not now" in nb.value("str(provider.requests[-1].messages[-1])")


def test_edited_arguments_are_used(nb: Kernel) -> None:
    """U60: the person may change the arguments before the call runs."""
    nb.ok("ran = []\n@tool(approve='ask')\ndef act(x: int) -> str:\n    'Act.'\n    ran.append(x)\n    return 'acted'")
    nb.script("[tool_call('act', call_id='e1', x=1)]", "[text('ok')]", more=", tools=[act], permissions='ask'")
    msg = nb.send("%%kit\nact", cell_id="ed")
    view = nb.view_of(msg)
    nb.pump(lambda: "needs" in str(nb.mine(msg)) or "question" in str(nb.mine(msg)))

    nb.pump(lambda: bool([m for m in nb.mine(msg) if "'status': 'asking'" in str(m["content"])]))
    nb.comm(view, {"kind": "approve", "call": "e1", "allow": True, "arguments": {"x": 7}})
    nb.pump(lambda: nb.is_idle(msg))

    assert nb.value("ran") == [7]


def test_nobody_there_is_told_to_the_model(nb: Kernel) -> None:
    """U60: with no one to ask, the call is denied with a reason; nothing hangs and nothing runs."""
    nb.ok("ran = []\n@tool(approve='ask')\ndef act() -> str:\n    'Act.'\n    ran.append(1)\n    return 'acted'")
    nb.script("[tool_call('act')]", "[text('ok')]", more=", tools=[act], permissions='ask'")
    nb.ok("os.environ['KIT_UI'] = 'updates'")

    said = nb.ok("%%kit\nact", cell_id="no")
    nb.ok("os.environ['KIT_UI'] = ''")

    assert nb.value("ran") == []
    assert said.kit()[TURN_MIME]["turn"]["items"][0]["status"] == "denied"


def test_background_output_stays_in_its_cell(nb: Kernel) -> None:
    """U94, point 4: `-b` returns at once; answer, prints and the bundle land in the cell that began it."""
    nb.ok("def note() -> str:\n    'Note.'\n    print('printed by the tool')\n    return 'noted'")
    nb.script(
        "[delay(0.3), tool_call('note')]",
        "[delay(0.3), text('answer of the first cell')]",
        more=", tools=[note], permissions='auto'",
    )
    first = nb.send("%%kit -b\ngo", cell_id="bg")
    nb.pump(lambda: nb.is_idle(first))
    later = [nb.ok(f"print('cell {i}')") for i in range(3)]
    nb.pump(lambda: any(m["msg_type"] == "update_display_data" for m in nb.mine(first)))

    bundle = [m for m in nb.mine(first) if m["msg_type"] == "update_display_data"][-1]["content"]["data"]
    assert "answer of the first cell" in bundle["text/plain"]
    assert [said.stream for said in later] == ["cell 0\n", "cell 1\n", "cell 2\n"]
    assert "printed by the tool" in str(nb.mine(first))
    assert nb.value("kit.is_running") is False


def test_two_sessions_in_the_background_do_not_mix(nb: Kernel) -> None:
    """Point 4: several sessions at once; each answer in its own cell."""
    nb.ok("from kit_jupyter.jupyter import notebook_of\nnbk = notebook_of(get_ipython())")
    for name in ("p", "q"):
        nb.ok(
            f"nbk.kits['{name}'] = Kit(session='memory', provider=ScriptedProvider("
            f"[x for i in range(10) for x in (delay(0.02), text('{name}%d ' % i))]))"
        )
    cells = {name: nb.send(f"%%kit -b -s {name}\ngo", cell_id=f"bg-{name}") for name in "pq"}
    for msg in cells.values():
        nb.pump(lambda msg=msg: any(m["msg_type"] == "update_display_data" for m in nb.mine(msg)))

    for name, msg in cells.items():
        text = [m for m in nb.mine(msg) if m["msg_type"] == "update_display_data"][-1]["content"]["data"]["text/plain"]
        assert text.split() == [f"{name}{i}" for i in range(10)]
    assert not [m for m in nb.log if m["msg_type"] == "stream" and "Traceback" in m["content"]["text"]]


def test_run_all_stays_in_order(nb: Kernel) -> None:
    """Point 4: a cell queued behind the turn runs after it."""
    nb.script("[delay(0.3), text('first')]")
    a = nb.send("%%kit --out r\ngo", cell_id="o1")
    b = nb.send("print(r.text)", cell_id="o2")

    nb.pump(lambda: nb.is_idle(b))

    assert nb.is_idle(a)
    assert "first" in "".join(m["content"]["text"] for m in nb.mine(b) if m["msg_type"] == "stream")


def test_the_kernel_answers_while_a_turn_runs(nb: Kernel) -> None:
    """U31: `prompt_sync`, `await prompt` and `%%kit` in consecutive cells, no loop patching."""
    nb.script("[text('a')]", "[text('b')]", "[text('c')]")

    assert nb.ok("print(kit.prompt_sync('x'))").stream == "a\n"
    assert nb.ok("print(await kit.prompt('x'))").stream == "b\n"
    assert nb.ok("%%kit\nx").kit()["text/plain"] == "c"
    assert nb.value("'nest_asyncio' in __import__('sys').modules") is False


def test_first_text_comes_at_once(nb: Kernel) -> None:
    """U1, speed row 13: text is on its way long before the turn ends, in many frames."""
    nb.script("[text('first '), *[x for i in range(20) for x in (delay(0.05), text('d%d ' % i))]]")
    msg = nb.send("%%kit\ngo", cell_id="f1")
    _started(nb, msg, "first")
    assert not nb.is_idle(msg)

    said = nb.wait(msg)

    with_text = [f for f in said.frames if any(m["kind"] == "delta" for m in f["m"])]
    assert len(with_text) >= 5


def test_hello_over_the_control_channel(nb: Kernel) -> None:
    """The Lab extension asks what there is; an unknown operation is an answer, not silence."""
    assert nb.control({"op": "hello"})["status"] == "ok"
    wrong = nb.control({"op": "dance"})
    assert wrong["status"] == "error"
    assert "dance" in wrong["message"]


@pytest.mark.parametrize("page", [True, False])
def test_frames_to_a_page_of_jupyter_name_no_cell(nb: Kernel, page: bool) -> None:
    """Row 12c: Lab and Notebook need no parent header with a frame, a third of a small one; others keep it."""
    nb.script("[delay(0.5)] + [x for i in range(30) for x in (delay(0.03), text(f'w{i} '))]")
    msg = nb.send("%%kit\ngo", cell_id=f"lean-{page}")
    view = nb.view_of(msg)
    nb.comm(view, {"kind": "ask", "what": "sync", "n": -1, "page": page})
    nb.wait(msg)
    nb.value("1")  # what the cell sent is here by now
    sent = [m for m in nb.log if m["msg_type"] == "comm_msg" and m["content"]["comm_id"] == view]
    frames = [m for m in sent if any(part["kind"] == "delta" for part in m["content"]["data"]["content"]["m"])]
    words = [d[3] for m in frames for p in m["content"]["data"]["content"]["m"] if p["kind"] == "delta" for d in p["d"]]

    assert "".join(words).endswith("w28 w29 ")
    can_forget = nb.value("hasattr(get_ipython().kernel, '_shell_parent')")
    named = {m["parent_header"].get("msg_id") for m in frames}
    assert named == ({None} if page and can_forget else {msg})


@pytest.mark.parametrize("order", [(True, False), (False, True)], ids=["Lab first", "Lab last"])
def test_frames_name_their_cell_where_one_page_of_two_needs_it(nb: Kernel, order: tuple[bool, bool]) -> None:
    """Row 12c: Lab and another front end on one kernel get the same frames; both must be able to draw them."""
    nb.script("[delay(0.5)] + [x for i in range(30) for x in (delay(0.03), text(f'w{i} '))]")
    msg = nb.send("%%kit\ngo", cell_id=f"two-{order[0]}")
    view = nb.view_of(msg)
    for page in order:
        nb.comm(view, {"kind": "ask", "what": "sync", "n": -1, "page": page})
    nb.comm(view, {"kind": "ask", "what": "sync", "n": -1})  # a page that missed a frame says nothing of itself
    nb.wait(msg)
    nb.value("1")  # what the cell sent is here by now
    sent = [m for m in nb.log if m["msg_type"] == "comm_msg" and m["content"]["comm_id"] == view]
    frames = [m for m in sent if any(part["kind"] == "delta" for part in m["content"]["data"]["content"]["m"])]

    assert len(frames) >= 5
    assert {m["parent_header"].get("msg_id") for m in frames} == {msg}


def test_outputs_land_in_the_cell_whose_frames_name_none(nb: Kernel) -> None:
    """Row 12c: only frames go without a parent; what a tool shows, and what stays of the turn, keep theirs."""
    show = "from IPython.display import HTML, display\n    display(HTML('<b>shown</b>'))"
    nb.ok(f"def look() -> str:\n    'L.'\n    {show}\n    return 'seen'")
    nb.script("[delay(0.5), tool_call('look')]", "[text('done')]", more=", tools=[look], permissions='auto'")
    before = len(nb.log)
    msg = nb.send("%%kit\ngo", cell_id="shown-lean")
    view = nb.view_of(msg)
    nb.comm(view, {"kind": "ask", "what": "sync", "n": -1, "page": True})
    nb.wait(msg)
    nb.value("1")  # what the cell sent is here by now
    log = nb.log[before:]
    shown = [m for m in log if "<b>shown</b>" in m["content"].get("data", {}).get("text/html", "")]
    stays = [m for m in log if m["msg_type"] == "update_display_data"]
    closed = [m for m in log if m["msg_type"] == "comm_close" and m["content"]["comm_id"] == view]

    assert [len(shown), len(stays), len(closed)] == [1, 1, 1]
    assert {m["parent_header"]["msg_id"] for m in (*shown, *stays, *closed)} == {msg}
