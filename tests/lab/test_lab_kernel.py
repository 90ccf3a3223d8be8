"""The kernel's side of the Lab extension, with pages played by the test: no browser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, ClassVar

import pytest
from IPython.core.interactiveshell import InteractiveShell

from kit_jupyter.jupyter import lab as lab_room
from kit_jupyter.jupyter import load, unload
from kit_jupyter.jupyter.lab import Lab, NoFrontEnd, _insertion
from kit_jupyter.jupyter.lab_cells import cell_tools
from kit_jupyter.kit import Kit
from kit_jupyter.loop import engine
from kit_jupyter.testing import ScriptedProvider, text


class FakeComm:
    """What a page would have got."""

    made: ClassVar[list[FakeComm]] = []

    def __init__(self, target: str, content: dict[str, Any]) -> None:
        self.target, self.opened_with = target, content
        self.comm_id = f"comm-{len(self.made)}"
        self.sent: list[dict[str, Any]] = []
        self.is_closed = False
        self.on_send: Any = None
        self.made.append(self)

    def send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)
        if self.on_send is not None:
            self.on_send(message)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[InteractiveShell]:
    """A shell with kit and a scripted model; comms are played."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    FakeComm.made = []
    monkeypatch.setattr(lab_room, "_open_comm", FakeComm)
    InteractiveShell.clear_instance()
    made = InteractiveShell.instance()
    provider = ScriptedProvider()

    def make_kit(**settings: Any) -> Kit:
        return Kit(provider=provider, **{**settings, "session": "memory"})

    made.user_ns["script"] = provider
    load(made, make_kit)
    yield made
    unload(made)
    InteractiveShell.clear_instance()


@pytest.fixture
def lab(shell: InteractiveShell) -> Lab:
    """Its Lab side."""
    found: Lab = shell._kit_notebook.lab  # type: ignore[attr-defined]
    return found


def settle() -> None:
    """Wait until the engine has done what it was told to."""
    done = threading.Event()
    engine.call(done.set)
    assert done.wait(60)


def hello(lab: Lab, client: str) -> FakeComm:
    """A page says hello; its comm."""
    assert lab.on_request({"op": "hello", "client": client, "path": "n.ipynb"}) is None
    settle()
    return lab.pages[client].comm  # type: ignore[no-any-return]


def call_to(comm: FakeComm) -> dict[str, Any]:
    """The call that a page was sent; a task's first step may come some turns of the loop after its start."""
    for _ in range(1000):
        settle()
        for message in list(comm.sent):
            if message["kind"] == "call":
                return message  # type: ignore[no-any-return]
    raise AssertionError("no call was sent")


def run(lab: Lab, name: str, **arguments: Any) -> Any:
    """The future of a cell tool's outcome."""
    (tool,) = [one for one in cell_tools(lab) if one.spec.name == name]
    return engine.start(tool.run(None, tool.validate(arguments))).future  # type: ignore[arg-type]


def test_without_a_page_the_tool_says_so_and_gives_the_code(lab: Lab) -> None:
    """Point 5: a headless notebook gets a clear refusal, with the code as text."""
    outcome = run(lab, "insert_cell", source="print('new')").result(60)

    assert outcome.is_error
    assert "no JupyterLab or Notebook page" in outcome.text
    assert outcome.text.endswith("print('new')")


def test_the_first_claim_is_granted_and_no_other(lab: Lab) -> None:
    """Point 5: exactly once with two browsers; the page of the last focus is asked first."""
    one, two = hello(lab, "one"), hello(lab, "two")
    lab.on_request({"op": "focus", "client": "one", "focus": {"cell": "c"}})
    future = run(lab, "insert_cell", source="x")
    settle()
    call = call_to(one)

    assert call_to(two) == call
    assert call["first"] == "one"
    assert lab.on_request({"op": "claim", "client": "two", "id": call["id"]}) == {"granted": True}
    assert lab.on_request({"op": "claim", "client": "one", "id": call["id"]}) == {"granted": False}
    lab.on_request({"op": "done", "client": "two", "id": call["id"], "ok": True, "value": {"id": "n"}})
    assert future.result(60).text == "inserted as cell n"
    assert lab.on_request({"op": "claim", "client": "one", "id": call["id"]}) == {"granted": False}


def test_pages_that_let_a_call_lie_are_forgotten(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point 5: a browser that was closed without a word does not hold the tool for long."""
    monkeypatch.setattr(lab_room, "CLAIM_SECONDS", 0.05)
    comm = hello(lab, "gone")

    outcome = run(lab, "edit_cell", id="c", new="code").result(60)

    assert outcome.is_error
    assert "does not answer" in outcome.text
    settle()
    assert lab.pages == {}
    assert comm.is_closed  # a page that lives notices, and says hello again


def test_what_a_page_cannot_do_is_told_to_the_model(lab: Lab) -> None:
    """Point 5: the page's words reach the model as an error result."""
    comm = hello(lab, "one")

    def answer(message: dict[str, Any]) -> None:
        if message["kind"] == "call":
            lab.on_request({"op": "claim", "client": "one", "id": message["id"]})
            lab.on_request({"op": "done", "id": message["id"], "ok": False, "error": "no cell has the id c"})

    comm.on_send = answer

    outcome = run(lab, "delete_cell", id="c").result(60)

    assert (outcome.is_error, outcome.text) == (True, "no cell has the id c")


def test_cells_are_shown_with_outputs_and_pictures(lab: Lab) -> None:
    """Point 5: text, errors without colours, pictures as parts, long outputs cut in the middle."""
    comm = hello(lab, "one")
    cells = [
        {
            "id": "a",
            "type": "code",
            "source": "plot()",
            "execution_count": 3,
            "metadata": {"tags": ["x"]},
            "outputs": [
                {"output_type": "stream", "name": "stdout", "text": ["one\n", "two\n"]},
                {"output_type": "display_data", "data": {"image/png": "aGk=\n", "text/plain": "<Figure>"}},
                {"output_type": "error", "ename": "E", "evalue": "v", "traceback": ["\x1b[31mE\x1b[0m: v"]},
                {"output_type": "execute_result", "data": {"text/plain": "y" * 20_000}},
            ],
        },
        {"id": "b", "type": "markdown", "source": "# Title"},
    ]

    def answer(message: dict[str, Any]) -> None:
        if message["kind"] == "call":
            lab.on_request({"op": "claim", "client": "one", "id": message["id"]})
            lab.on_request({"op": "done", "id": message["id"], "ok": True, "value": {"active": "b", "cells": cells}})

    comm.on_send = answer

    outcome = run(lab, "read_cells").result(60)

    assert outcome.text.startswith('active cell: b\n<cell id="a" type="code" run="3" tags=["x"]>\nplot()')
    assert "one\ntwo" in outcome.text
    assert "\nE: v\n" in outcome.text
    assert "12,000 characters left out" in outcome.text
    assert [part.media_type for part in outcome.parts[1:]] == ["image/png"]
    assert outcome.parts[1].data == "aGk="


def test_nothing_acts_unasked(lab: Lab, shell: InteractiveShell) -> None:
    """Promise 4: reading and pointing are allowed, all that changes or runs asks; read-only denies it."""
    from kit_jupyter.permissions import RulePolicy

    arguments = {"id": "c", "new": "x", "source": "x", "after": "b"}
    ask, read_only, auto = RulePolicy("ask"), RulePolicy("read-only"), RulePolicy("auto")
    effects = {
        tool.spec.name: [p.decide(tool, arguments, None).effect for p in (ask, read_only, auto)]  # type: ignore[arg-type]
        for tool in cell_tools(lab)
    }

    looks = {"read_cells", "select_cell"}
    assert {name for name, found in effects.items() if found == ["allow", "allow", "allow"]} == looks
    assert all(found == ["ask", "deny", "allow"] for name, found in effects.items() if name not in looks)


@pytest.mark.parametrize("later", ["launch()", "launch() # changed"])
def test_the_question_shows_what_will_run(lab: Lab, later: str) -> None:
    """Promise 4: the person reads the cell's text, not an id; text that has changed since does not run."""
    from kit_jupyter import Kit
    from kit_jupyter.testing import ScriptedProvider, text, tool_call

    comm = hello(lab, "one")
    source, ran, asked = ["launch()"], [], []

    def answer(message: dict[str, Any]) -> None:
        if message["kind"] != "call":
            return
        lab.on_request({"op": "claim", "client": "one", "id": message["id"]})
        cell = {"id": "c", "type": "code", "source": source[0], "outputs": []}
        value: dict[str, Any] = {"active": "c", "cells": [cell]}
        if message["tool"] == "run_cell":
            ran.append(source[0])
            value = cell
        lab.on_request({"op": "done", "client": "one", "id": message["id"], "ok": True, "value": value})

    def approve(question: Any) -> bool:
        asked.append(question.text)
        source[0] = later
        return True

    comm.on_send = answer
    provider = ScriptedProvider([tool_call("run_cell", id="c")], [text("done")])
    kit = Kit(provider=provider, session="memory", tools=cell_tools(lab), approver=approve)
    kit.prompt_sync("run it")

    assert asked[0].startswith("Run cell c?\n\nlaunch()")
    assert ran == (["launch()"] if later == "launch()" else [])
    if not ran:
        assert "has changed since it was shown" in str(tuple(kit.messages))


def test_questions_about_cells_show_the_new_text(lab: Lab) -> None:
    """Promise 4: what would be inserted or put in the place of what."""
    tools = {one.spec.name: one for one in cell_tools(lab)}

    def question(name: str, **arguments: Any) -> str:
        return tools[name].access(arguments, None).question  # type: ignore[arg-type]

    assert question("insert_cell", source="x = 1") == "Insert a cell?\n\nx = 1"
    assert question("edit_cell", id="c", old="1", new="2") == "Change cell c?\n\n1\n\n→\n\n2"


def test_tools_come_with_the_first_page(lab: Lab, shell: InteractiveShell) -> None:
    """Point 5: a Kit of this notebook has the cell tools once a page is there, and no earlier."""
    kit = shell.user_ns["kit"]
    assert "edit_cell" not in kit.tools

    hello(lab, "one")
    settle()

    assert {"read_cells", "insert_cell", "edit_cell", "run_cell"} <= set(kit.tools)


def test_tools_come_once_when_the_page_comes_as_the_kit_is_made(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page attaches on the engine while a cell makes its Kit: no error in the cell, each tool once."""
    hello(lab, "one")
    guest = lab.guest()
    both = threading.Barrier(2)

    def made(lab: Lab) -> tuple[Any, ...]:
        with suppress(threading.BrokenBarrierError):  # where only one gets here, as it should be
            both.wait(0.3)
        return cell_tools(lab)

    monkeypatch.setattr("kit_jupyter.jupyter.lab_cells.cell_tools", made)
    kit = Kit(provider=ScriptedProvider(), session="memory", extensions=[guest])
    guest.leave()
    assert "edit_cell" not in kit.tools
    failed: list[BaseException] = []

    def equip() -> None:
        try:
            guest.equip()
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=equip) for _ in range(2)]
    both.reset()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert failed == []
    assert "edit_cell" in kit.tools
    guest.leave()
    assert "edit_cell" not in kit.tools


def names_sent(request: Any) -> set[str]:
    """Names of the tools that a request offers."""
    return {tool.name for tool in request.tools}


def test_a_kit_that_the_person_made_has_them_too(lab: Lab, shell: InteractiveShell) -> None:
    """Point 5: `kit = Kit(...)` in a cell talks to this notebook's page; what it had by these names stays."""

    def read_cells() -> str:
        """Mine."""
        return "mine"

    provider = ScriptedProvider([text("ok")])
    mine = Kit(provider=provider, session="memory", tools=[read_cells])
    shell.user_ns["kit"] = mine
    hello(lab, "one")
    lab.on_request({"op": "focus", "client": "one", "focus": {"cell": "cc", "type": "code", "source": "f = 2"}})

    assert lab.nb.kit() is mine
    mine.prompt_sync("explain this cell")

    assert {"read_cells", "insert_cell", "edit_cell", "run_cell"} <= names_sent(provider.last_request)
    assert "f = 2" in str(provider.last_request.messages)
    assert mine.tools["read_cells"].spec.description == "Mine."
    assert callable(mine.keymap)  # type: ignore[attr-defined]
    unload(shell)
    assert set(mine.tools) == {"read_cells"}


@pytest.mark.parametrize("lean", [True, False])
def test_a_very_small_model_is_not_offered_them(lab: Lab, shell: InteractiveShell, lean: bool) -> None:
    """Point 5: by what is known of the model, not by who serves it; a larger local one has them."""
    from dataclasses import replace

    provider = ScriptedProvider([text("ok")])
    info = provider.info
    provider.info = lambda model: replace(info(model), lean=lean)  # type: ignore[method-assign]
    kit = shell.user_ns["kit"] = Kit(provider=provider, session="memory")
    hello(lab, "one")
    assert lab.nb.kit() is kit

    kit.prompt_sync("hello")

    assert ("edit_cell" in names_sent(provider.last_request)) is not lean


def test_a_question_goes_to_the_chat_where_a_page_shows_it(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Point 2: on ipykernel 6 the page is asked to show the chat; who answers by input() is asked only without one."""
    asked = threading.Event()
    assert lab.show_chat(asked.set) is False
    comm = hello(lab, "one")

    def answer(message: dict[str, Any], ok: bool = True) -> None:
        if message["kind"] == "call":
            lab.on_request({"op": "claim", "client": "one", "id": message["id"]})
            lab.on_request({"op": "done", "id": message["id"], "ok": ok, "value": {}, "error": "no chat"})

    comm.on_send = answer
    assert lab.show_chat(asked.set) is True
    assert call_to(comm)["tool"] == "show_chat"
    settle()
    assert not asked.is_set()

    comm.on_send = lambda message: answer(message, ok=False)
    assert lab.show_chat(asked.set) is True
    assert asked.wait(60)
    asked.clear()
    comm.on_send = None
    monkeypatch.setattr(lab_room, "SHOW_SECONDS", 0.05)
    assert lab.show_chat(asked.set) is True
    assert asked.wait(60)


def test_this_cell_is_the_focused_one_else_the_one_run_last(lab: Lab, shell: InteractiveShell) -> None:
    """U55: with a page the cell that has the focus; without one the cell run last; else nothing is added."""
    shell.run_cell("first = 1")
    assert lab.here("how old is the universe?") is None
    found = lab.here("Explain this cell")
    assert found is not None
    assert "first = 1" in found[1]
    hello(lab, "one")
    lab.on_request(
        {"op": "focus", "client": "one", "focus": {"cell": "cc", "type": "code", "source": "f = 2", "selection": "f"}}
    )

    found = lab.here("what does the selected code do?")

    assert found == ("cc", "The person is in cell cc (code):\nf = 2\nSelected in it:\nf")
    script, kit = shell.user_ns["script"], shell.user_ns["kit"]
    script.script([text("ok")])
    kit.prompt_sync("explain this cell")
    assert "f = 2" in str(script.last_request.messages)


def test_the_session_learns_what_became_of_its_changes(lab: Lab, shell: InteractiveShell) -> None:
    """U65: accepted and rejected changes are told with the next prompt, once."""
    hello(lab, "one")
    lab.on_request({"op": "review", "client": "one", "cell": "c1", "change": "edit", "word": "rejected"})
    script, kit = shell.user_ns["script"], shell.user_ns["kit"]
    script.script([text("sorry")], [text("fine")])

    kit.prompt_sync("go on")
    kit.prompt_sync("and on")

    said = "The person rejected the edit of cell c1."
    assert str(script.requests[0].messages).count(said) == 1
    assert str(script.requests[1].messages).count(said) == 1


def test_mappings_go_to_every_page_and_keys_come_back(lab: Lab, shell: InteractiveShell) -> None:
    """Point 3: what kit.keymap maps is sent at hello and at each change; a key runs the function."""
    ran = threading.Event()
    comm = hello(lab, "one")
    remove = shell.user_ns["kit"].keymap("<leader>x", ran.set, description="Set it")
    sent = comm.sent[-1]

    assert sent["kind"] == "keymap"
    (binding,) = sent["bindings"]
    assert (binding["keys"], binding["python"], binding["description"]) == (["<leader>x"], True, "Set it")
    assert hello(lab, "two").sent[0]["bindings"] == [binding]
    assert lab.on_request({"op": "key", "client": "one", "id": binding["id"], "context": ["command"]}) == {}
    assert ran.wait(60)
    remove()
    assert comm.sent[-1]["bindings"] == []
    gone = lab.on_request({"op": "key", "client": "one", "id": binding["id"]})
    assert gone is not None
    assert gone["status"] == "error"


def test_a_newer_completion_cancels_the_older(lab: Lab, shell: InteractiveShell) -> None:
    """Point 7: one at a time; the answer is what to insert, and no message of the conversation."""
    from kit_jupyter.testing import delay

    comm = hello(lab, "one")
    heard = threading.Event()
    comm.on_send = lambda message: heard.set() if message.get("id") == "new" else None

    def reply(request: Any) -> list[Any]:
        return [delay(30), text("never")] if "y = " in str(request.messages) else [text("```python\nx = 1 + 2\n```")]

    shell.user_ns["script"].script(reply, reply)

    lab.on_request({"op": "complete", "client": "one", "id": "old", "prefix": "y = ", "suffix": ""})
    settle()
    lab.on_request({"op": "complete", "client": "one", "id": "new", "prefix": "x = ", "suffix": ""})
    assert heard.wait(60)

    answers = [message for message in comm.sent if message["kind"] == "completion"]
    assert [(one["id"], one["text"]) for one in answers] == [("new", "1 + 2")]
    assert list(shell.user_ns["kit"].messages) == []


@pytest.mark.parametrize(
    ("answer", "prefix", "inserted"),
    [
        ("1 + 2", "x = ", "1 + 2"),
        ("x = 1 + 2", "x = ", "1 + 2"),
        ("```python\nreturn a\n```", "def f(a):\n    ", "return a"),
        ("\n    return a\n", "def f(a):", "\n    return a"),
        ("", "x", ""),
    ],
)
def test_only_what_is_new_is_inserted(answer: str, prefix: str, inserted: str) -> None:
    """Point 7: fences and repeated beginnings are not typed twice."""
    assert _insertion(answer, prefix).strip() == inserted.strip()


def test_junk_requests_do_no_harm(lab: Lab) -> None:
    """Bad input: unknown pages, calls, comms and shapes are answered, never raised."""
    for content in (
        {"op": "focus"},
        {"op": "focus", "client": "x", "focus": None},
        {"op": "claim"},
        {"op": "done", "id": 3},
        {"op": "panel-message", "comm": "?", "content": 1},
        {"op": "panel-close"},
        {"op": "key", "id": None, "context": "x"},
        {"op": "complete", "client": "nobody"},
        {"op": "bye", "client": "nobody"},
        {"op": "review"},
        {"op": "panel", "client": "nobody"},
        {"op": "hello"},
        {"op": None},
    ):
        lab.on_request(content)
    settle()

    assert lab.pages == {}


def test_a_call_is_refused_when_the_page_leaves_meanwhile(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad case: a page that claims and goes is noticed by the time limit, and said."""
    comm = hello(lab, "one")
    comm.on_send = lambda m: (
        lab.on_request({"op": "claim", "client": "one", "id": m["id"]}) if m["kind"] == "call" else 0
    )

    async def calling() -> str:
        try:
            await lab.call("read_cells", {}, timeout_seconds=0.1)
        except NoFrontEnd:
            return "no front end"
        except Exception as exc:
            return str(exc)
        return "done"

    assert "within 0.1 seconds" in engine.start(calling()).future.result(60)
