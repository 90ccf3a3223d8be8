"""What a cell's live view and the panel can ask of the kernel: again, code as a cell, models, the gauge, progress."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from kernels import TURN_MIME, Kernel, Said, kernel

SLOW = "[text('begin '), delay(60), text('never')]"


def frames(nb: Kernel, comm: str) -> list[dict[str, Any]]:
    """All messages to one view."""
    return [
        m
        for one in nb.log
        if one["msg_type"] == "comm_msg" and one["content"]["comm_id"] == comm
        for m in one["content"]["data"].get("content", {}).get("m", ())
    ]


def bar(nb: Kernel, comm: str) -> dict[str, Any]:
    """The bar as the browser has it by now."""
    out: dict[str, Any] = {}
    for m in frames(nb, comm):
        out.update(m.get("bar") or {})
        out.update((m.get("view") or {}).get("bar") or {})
    return out


def test_start_over_in_a_cells_view(nb: Kernel) -> None:
    """Point 5, retry: the turn is stopped, the same prompt asked again in the same cell; the first is a branch."""
    nb.script(SLOW, "[text('second try')]")
    msg = nb.send("%%kit\nwhich?", cell_id="again1")
    comm = nb.view_of(msg)
    nb.pump(lambda: "begin" in nb.text_in_frames(msg))

    nb.pump(lambda: bar(nb, comm).get("retry") is True)
    nb.comm(comm, {"kind": "fork", "do": "retry", "turn": None})
    said = nb.wait(msg)

    assert said.reply["status"] == "ok"
    assert [entry["data"]["text/plain"] for entry in said.shown] == ["second try"]
    assert nb.value("[m.parts[0].text for m in kit.messages]") == ["which?", "second try"]
    assert nb.value("len(kit.session.children(None))") == 2  # the stopped one stays as a branch
    assert nb.value("_.text") == "second try"
    assert nb.value("len(notebook_of(get_ipython()).runs)") == 0


def test_start_over_from_the_panel(nb: Kernel) -> None:
    """Point 8: the panel begins the running turn again where it runs: in its cell, or detached."""
    nb.script(SLOW, "[text('in the cell')]", SLOW, "[text('in the panel')]")
    nb.ok("nbk = notebook_of(get_ipython())\nnbk.panel = None\np = kit.panel()")
    comm = str(nb.value("p.view.model_id"))
    msg = nb.send("%%kit\nfrom a cell", cell_id="again2")
    nb.pump(lambda: "begin" in nb.text_in_frames(msg))
    key = next(m["turn"]["key"] for m in reversed(frames(nb, comm)) if m["kind"] == "start")

    nb.comm(comm, {"kind": "fork", "do": "retry", "turn": key})
    assert nb.wait(msg).kit()["text/plain"] == "in the cell"

    count = len(frames(nb, comm))
    nb.comm(comm, {"kind": "submit", "text": "from the panel"})
    nb.pump(lambda: any(m["kind"] == "start" for m in frames(nb, comm)[count:]))
    key = next(m["turn"]["key"] for m in frames(nb, comm)[count:] if m["kind"] == "start")
    nb.pump(lambda: any(m["kind"] == "delta" for m in frames(nb, comm)[count:]))
    nb.comm(comm, {"kind": "fork", "do": "retry", "turn": key})
    nb.pump(lambda: "in the panel" in str(frames(nb, comm)[count:]))
    nb.pump(lambda: any(m["kind"] == "end" and m["status"] == "done" for m in frames(nb, comm)[count:]))
    assert nb.value("[m.parts[0].text for m in kit.messages]") == [
        *("from a cell", "in the cell", "from the panel", "in the panel")
    ]


def test_code_of_an_answer_becomes_a_cell_without_an_extension(nb: Kernel) -> None:
    """Point 5: insert below: while its cell waits, the kernel puts the code below when the turn ends."""
    nb.script("[text('```python\\nx = 1\\n```'), delay(1), text(' done')]")
    msg = nb.send("%%kit\ncode", cell_id="ins")
    comm = nb.view_of(msg)
    nb.pump(lambda: "x = 1" in nb.text_in_frames(msg))

    nb.pump(lambda: bar(nb, comm).get("attached") is True)
    for code in ("x = 1", "y = 2"):
        nb.comm(comm, {"kind": "ask", "what": "insert", "text": code})
    said = nb.wait(msg)

    (payload,) = said.reply["payload"]
    assert (payload["source"], payload["text"], payload["replace"]) == ("set_next_input", "x = 1\n\ny = 2", False)


def test_the_word_of_a_tool_that_ends_the_turn_is_the_answer(nb: Kernel) -> None:
    """Issue 2: a halting tool's text is the turn's answer: shown as text, in view and file, not only in its card."""
    nb.ok("from kit_jupyter import halt\ndef finish() -> object:\n    'Ends.'\n    return halt('The final word.')")
    nb.script("[text('Let me see.'), tool_call('finish')]", more=", tools=[finish], permissions='auto'")

    said = nb.ok("%%kit\ngo", cell_id="halt")

    items = said.kit()[TURN_MIME]["turn"]["items"]
    assert [(i["kind"], i.get("text")) for i in items][-1] == ("text", "The final word.")
    assert [i["kind"] for i in items] == ["text", "tool", "text"]
    assert "The final word." in str(said.frames)


def test_how_far_a_tool_is(nb: Kernel) -> None:
    """Point 5, U25: `context.progress(done, total)` reaches the card as numbers, and not the file."""
    nb.ok(
        "from kit_jupyter.tool import ToolContext\nimport time, math\n"
        "def work(ctx: ToolContext) -> str:\n    'Works.'\n"
        "    for n in range(5):\n        ctx.progress(n, 4); time.sleep(0.05)\n"
        "    ctx.progress('half a word', done=7)\n"
        "    for bad in (math.nan, math.inf, -1, 'x', None):\n        ctx.progress(done=bad, total=bad)\n"
        "    ctx.progress(5, 0); ctx.progress(9, 3); time.sleep(0.2)\n    return 'ok'"
    )
    nb.script("[tool_call('work')]", "[text('done')]", more=", tools=[work], permissions='auto'")

    said = nb.ok("%%kit\ngo", cell_id="far")

    seen = [
        m["item"]["progress"]
        for frame in said.frames
        for m in frame["m"]
        if m["kind"] == "commit" and m["item"].get("progress")
    ]
    assert [0, 4] in seen
    assert seen[-1] == [3, 3]
    assert all(isinstance(done, int | float) and done >= 0 for done, _ in seen)
    item = said.kit()[TURN_MIME]["turn"]["items"][0]
    assert "progress" not in item
    assert item["result"].startswith("ok")


def test_a_model_that_loads_says_so_in_the_view(nb: Kernel) -> None:
    """Issue 5: while the weights are read the view says what is waited for; the file does not."""
    nb.ok(
        "import asyncio\nfrom kit_jupyter.provider import status_listener\n"
        "class Loads(ScriptedProvider):\n"
        "    async def stream(self, request):\n"
        "        tell = status_listener.get()\n        tell('loading the weights')\n"
        "        await asyncio.sleep(0.3)\n        tell('')\n"
        "        async for delta in super().stream(request):\n            yield delta\n"
        "kit = Kit(provider=Loads([text('warm')], [text('there')]), session='memory')"
    )
    nb.ok("%%kit\nfirst", cell_id="warm")

    said = nb.ok("%%kit\nhi", cell_id="load")

    heads = [m.get("head") or m.get("turn") for f in said.frames for m in f["m"] if m["kind"] in ("start", "state")]
    waits = [head["waiting"] for head in heads if isinstance(head, dict)]
    assert "loading the weights" in waits
    assert waits[-1] == ""
    assert "loading" not in json.dumps(said.kit())


def test_the_gauge_tells_how_full_the_window_is(nb: Kernel) -> None:
    """Point 8: tokens of the last answer of the model's window; less after a clear, known again after a resume."""
    nb.ok(
        "from kit_jupyter.provider import ModelInfo\n"
        "class Known(ScriptedProvider):\n"
        "    def info(self, model_id):\n        return ModelInfo(context_window=1000)\n"
        "kit = Kit(provider=Known([text('a'), usage(input=240, output=10)]), session='memory')\n"
        "nbk = notebook_of(get_ipython()); nbk.panel = None; p = kit.panel()"
    )
    comm = str(nb.value("p.view.model_id"))

    nb.ok("%%kit\nhi", cell_id="gauge")
    nb.pump(lambda: bar(nb, comm).get("gauge") == {"tokens": 250, "window": 1000})

    nb.ok("session = kit.session; kit.clear_conversation_sync()")
    nb.pump(lambda: bar(nb, comm)["gauge"]["tokens"] == 0)
    nb.ok("kit.resume_sync(session); kit.branch_sync(session.entries[-2].id)")
    nb.pump(lambda: bar(nb, comm)["gauge"] == {"tokens": 250, "window": 1000})


def test_the_picker_offers_what_can_be_had(tmp_path: Path) -> None:
    """Point 8: models of services with a key, and those that answered here; a wrong name is told, the old one stays."""
    env = {
        "XDG_DATA_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
        "IPYTHONDIR": str(tmp_path / "ip"),
        "OPENAI_API_KEY": "sk-nothing",
    }
    with kernel(env) as own:
        own.script("[text('hi')]")
        own.ok("p = kit.panel()")
        comm = str(own.value("p.view.model_id"))
        own.pump(lambda: "openai/gpt-5.6-luna" in bar(own, comm).get("models", ()))
        own.comm(comm, {"kind": "ask", "what": "model", "name": "opnai/gpt-5"})
        own.pump(lambda: "did you mean openai/gpt-5" in str(bar(own, comm).get("note")))
        before = len(frames(own, comm))
        own.comm(comm, {"kind": "ask", "what": "model", "name": "opnai/gpt-5"})
        own.pump(lambda: "did you mean" in str(frames(own, comm)[before:]))  # told again, not only once
        own.comm(comm, {"kind": "ask", "what": "model", "name": "openai/gpt-next"})
        own.pump(lambda: bar(own, comm).get("model") == "openai/gpt-next")

        assert own.value("kit.model") == "openai/gpt-next"
        assert "sk-nothing" not in json.dumps(own.log, default=str)


def test_the_picker_offers_only_what_is_allowed(tmp_path: Path) -> None:
    """U120: a locked list goes before what else could be had."""
    lock = tmp_path / "lock.json"
    lock.write_text(json.dumps({"locked": {"models": ["scripted/*", "anthropic/claude-*"]}}))
    env = {
        "XDG_DATA_HOME": str(tmp_path),
        "XDG_CONFIG_HOME": str(tmp_path),
        "KIT_ADMIN_CONFIG": str(lock),
        "OPENAI_API_KEY": "x",
        "ANTHROPIC_API_KEY": "y",
    }
    with kernel(env) as own:
        own.script("[text('hi')]")
        own.ok("p = kit.panel()")
        comm = str(own.value("p.view.model_id"))
        own.pump(lambda: bool(bar(own, comm).get("models")))

        assert bar(own, comm)["models"] == ["anthropic/claude-sonnet-5-5"]


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "ask", "what": "insert"},
        {"kind": "ask", "what": "insert", "text": 7},
        {"kind": "fork", "do": "retry"},
        {"kind": "fork", "do": "retry", "turn": "none"},
    ],
)
def test_the_new_verbs_break_nothing_when_nothing_runs(nb: Kernel, message: dict[str, Any]) -> None:
    """Design §4: said too late, or by a page that shows an old view."""
    nb.script("[text('a')]", "[text('still fine')]")
    msg = nb.send("%%kit\nx", cell_id="late1")
    said: Said = nb.wait(msg)
    assert said.reply["status"] == "ok"

    nb.comm(nb.view_of(msg), message)

    assert nb.ok("%%kit\nhi", cell_id="late2").kit()["text/plain"] == "still fine"
