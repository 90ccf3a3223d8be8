"""The tools in a real kernel: the user's namespace, thread, streams, figures, interrupts (issue 6).

Each on the installed ipykernel and on the oldest one that works.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest
from kernels import OLD, Kernel

TOOLS = """
from kit_jupyter.jupyter.runner import notebook_tools
from kit_jupyter.permissions import Approval
def last(kit):
    "Text of the last tool result."
    results = [m for m in kit.messages if m.role == 'tool']
    return "".join(p.text for p in results[-1].parts if p.type == 'text')
def kinds(kit):
    results = [m for m in kit.messages if m.role == 'tool']
    return [p.type for p in results[-1].parts]
"""


YES = ", permissions='auto', approver=lambda question: True"


@pytest.fixture(scope="module", params=[os.environ["KIT_IPYKERNEL"]] if "KIT_IPYKERNEL" in os.environ else ["", OLD])
def any_kernel(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    kernel_on: Callable[..., AbstractContextManager[Kernel]],
) -> Iterator[Kernel]:
    """A kernel of each version."""
    with kernel_on(tmp_path_factory.mktemp("home"), request.param) as it:
        version = it.value("__import__('ipykernel').__version__")
        assert version == request.param or (not request.param and version != OLD)
        yield it


@pytest.fixture
def tools(any_kernel: Kernel) -> Kernel:
    """The kernel with the built-in tools at hand."""
    any_kernel.ok(TOOLS)
    return any_kernel


def ask(kernel: Kernel, *calls: str, more: str = YES) -> None:
    """A Kit that calls tools, then says done."""
    kernel.script(
        *(f"[{call}]" for call in calls), "[text('done')]", more=f", tools=notebook_tools(get_ipython()){more}"
    )


def python(code: str) -> str:
    """A scripted call of the python tool."""
    return f"tool_call('python', code={code!r})"


def test_python_runs_in_the_users_namespace_and_thread(tools: Kernel) -> None:
    """Variables are shared both ways, on the main thread; the value, prints and names come back (U70)."""
    tools.ok("seen = 20")
    code = "import threading\nprint(threading.current_thread() is threading.main_thread())\nmade = seen + 1\nmade"
    ask(tools, python(code))
    said = tools.ok("%%kit\ngo")

    assert tools.value("last(kit)") == "True\n21\n[new: threading, made]"
    assert tools.value("made") == 21
    assert said.stream == ""  # nothing of it leaks into the cell
    assert said.of("execute_result") == []


def test_python_shows_figures_to_the_model_and_nothing_to_the_cell(tools: Kernel) -> None:
    """The model sees the picture it drew; the cell holds the turn only."""
    pytest.importorskip("matplotlib")
    tools.ok("%matplotlib inline\nimport matplotlib.pyplot as plt")
    ask(tools, python("plt.plot([1, 2, 3])\nplt.show()"))
    said = tools.ok("%%kit\ndraw", timeout=60)

    assert "media" in tools.value("kinds(kit)")
    assert not any("image/png" in entry["data"] for entry in said.shown)


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import asyncio\nawait asyncio.sleep(0.01, 5)", "5"),
        ("%who_ls int", "["),
        ("!echo from a child", "from a child"),
        ("1/0", "ZeroDivisionError"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(2)", "the session goes on"),
        ("exit()", ""),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def f(): return f()\nf()", "RecursionError"),
        ("import sys\nsys.stdout.close()\nprint('alive')", "alive"),
        ("from IPython.display import display, Markdown\ndisplay(Markdown('**bold**'))", "**bold**"),
        ("print('x' * 5_000_000)", "left out"),
        ("import threading\nt = threading.Thread(target=lambda: print('in a thread'))\nt.start(); t.join()", ""),
    ],
)
def test_odd_code_is_a_result_and_the_kernel_lives(tools: Kernel, code: str, says: str) -> None:
    """SystemExit, exit, recursion, closed stdout, floods, magics, children (bad input)."""
    ask(tools, python(code))
    tools.ok("%%kit\ngo", timeout=60)

    text = tools.value("last(kit)")
    assert says in text
    assert "\x1b[" not in text
    assert len(text) < 60_000
    said = tools.ok("print('kernel lives')")
    assert said.stream == "kernel lives\n"


@pytest.mark.parametrize(
    "code",
    [
        "print('sta' 'rted')\nimport time\ntime.sleep(60)",
        "print('sta' 'rted')\nwhile True: pass",
        "print('sta' 'rted')\nimport asyncio\nawait asyncio.sleep(60)",
        "print('sta' 'rted')\nimport subprocess\nsubprocess.run(['sleep', '61'])",
    ],
)
@pytest.mark.parametrize("by", ["control", "interrupt", "interrupt as it begins"])
def test_stop_ends_running_code(tools: Kernel, code: str, by: str) -> None:
    """By the control channel and by Kernel → Interrupt: in a second, recorded, and the next turn works (U20, U23)."""
    # The words of the code come with the call, what it prints when it runs.
    words = "sta' 'rted" if by.endswith("begins") else "started"

    def once() -> float:
        ask(tools, python(code))
        return seconds_to_stop(tools, by.split()[0], words)

    assert best_of_three(once) < 1.0
    assert tools.value("kit.is_running") is False
    assert "interrupted" in tools.value("last(kit)")
    ask(tools, python("1 + 1"))
    tools.ok("%%kit\nagain")
    assert tools.value("last(kit)") == "2"


def seconds_to_stop(tools: Kernel, by: str, words: str) -> float:
    """From the stop's being sent until the kernel's own note of the turn's end; both by the machine's one clock."""
    tools.ok(
        "import time as _time\nfrom kit_jupyter import events as _events\n_ended = []\n"
        "kit.subscribe(lambda event: _ended.append(_time.monotonic()), _events.TurnEnd, inline=True);"
    )
    msg_id = tools.send("%%kit\ngo")
    tools.pump(lambda: any(words in str(m["content"]).replace("\\", "") for m in tools.mine(msg_id)), 20)
    began = time.monotonic()
    if by == "control":
        tools.control({"op": "stop"})
    else:
        tools.manager.interrupt_kernel()
    tools.wait(msg_id, 20)
    return float(tools.value("_ended[0]")) - began


def best_of_three(once: Callable[[], float]) -> float:
    """The least of up to three tries: a machine busy with other tests may be late, a stop that is slow always is.

    Medians of 20, on two shared cores: 0.03 s by an interrupt (0.1 s with a child process), by the control channel
    0.03 s for code that awaits, 0.3 s for code that computes or sleeps, 0.65 s for a child process.
    """
    least = once()
    for _ in range(2):
        if least < 1.0:
            break
        least = min(least, once())
    return least


def test_function_tools_are_stopped_too(tools: Kernel) -> None:
    """U20: a sync tool in `time.sleep(30)` ends in under a second, and is no success."""
    tools.ok("import time\n@tool\ndef slow():\n    'Slow.'\n    print('started')\n    time.sleep(30)")

    def once() -> float:
        tools.script("[tool_call('slow')]", "[text('next')]", more=", tools=[slow]")
        return seconds_to_stop(tools, "control", "started")

    assert best_of_three(once) < 1.0
    assert "interrupted" in tools.value("last(kit)")
    assert tools.ok("%%kit\nnext").reply["status"] == "ok"


def test_inspect_shell_and_files(tools: Kernel, tmp_path) -> None:
    """The other tools, with the kernel's variables and working directory."""
    tools.ok(f"import os\nos.chdir({str(tmp_path)!r})\ntable = {{'a': [1, 2]}}")
    (tmp_path / "open.ipynb").write_text("{}")
    tools.ok("os.environ['JPY_SESSION_NAME'] = os.path.abspath('open.ipynb')")
    ask(
        tools,
        "tool_call('inspect', names=['table'])",
        "tool_call('shell', command='echo hi > made.txt; cat made.txt')",
        "tool_call('write', path='n.txt', content='text')",
        "tool_call('write', path='open.ipynb', content='x')",
    )
    tools.ok("%%kit\ngo", timeout=60)
    results = tools.value("[''.join(p.text for p in m.parts) for m in kit.messages if m.role == 'tool']")

    assert results[0].startswith("table: dict of 1")
    assert results[1] == "hi\n"
    assert results[2].startswith("made n.txt")
    assert "edit_cell" in results[3]
    assert (tmp_path / "open.ipynb").read_text() == "{}"


def test_secrets_reach_neither_model_nor_cell(tools: Kernel) -> None:
    """U59: masked in the result, in live output and in what the cell holds."""
    tools.ok("os.environ['DEMO_API_KEY'] = 'hush-hush-123'")
    ask(tools, python("import os\nprint('key', os.environ['DEMO_API_KEY'])\nos.environ['DEMO_API_KEY']"))
    msg_id = tools.send("%%kit\ngo")
    said = tools.wait(msg_id)

    assert "hush" not in tools.value("last(kit)")
    assert "masked DEMO_API_KEY" in tools.value("last(kit)")
    assert "hush" not in str([m["content"] for m in said.messages if m["msg_type"] != "execute_input"])


def test_secrets_are_not_shown_in_pieces_unasked(tools: Kernel) -> None:
    """U59: what could spell one out is no free look, by whatever name the session knows it; other looks are."""
    tools.ok("os.environ['DEMO_API_KEY'] = 'hush-hush-123'\nfrom os import environ\nasked = []\nplain = 'nothing'")
    tools.ok("held = {'deep': [environ['DEMO_API_KEY']]}\nheld")  # now Out and In hold it as well
    cuts = ("[c for c in held['deep'][0]]", "held['deep'][0][::-1]", "dict(environ)", "print(*In[-1])", "Out")
    ask(
        tools,
        *(python(code) for code in (*cuts, "[c for c in plain]")),
        more=", approver=lambda question: asked.append(question.text) or False",
    )
    tools.ok("%%kit\ngo", timeout=60)
    results = tools.value("[''.join(p.text for p in m.parts) for m in kit.messages if m.role == 'tool']")

    assert ["denied" in text for text in results] == [True] * 5 + [False]
    assert results[-1] == str(list("nothing")).replace(" ", "").replace("'", '"')
    assert tools.value("[text.count('which this could show in pieces') for text in asked]") == [1, 1, 0, 1, 1]
    assert "h, u, s, h" not in str(results)


def test_a_kit_inside_a_tool_is_told(tools: Kernel) -> None:
    """Code that prompts the Kit that runs it gets an error, not a deadlock (bad input)."""
    ask(tools, python("kit.prompt_sync('inner')"))
    tools.ok("%%kit\ngo", timeout=60)

    assert "Error" in tools.value("last(kit)")


def test_nobody_there_denies_with_words(tools: Kernel) -> None:
    """In a headless run code is not executed; the model and the user are told what to do."""
    ask(tools, python("made_unasked = 1"), more=", approver='nobody'")
    tools.ok("%%kit\ngo")

    assert "nobody is here" in tools.value("last(kit)")
    assert tools.value("'made_unasked' in globals()") is False


def test_approve_edit_and_deny(tools: Kernel) -> None:
    """A callback may edit the arguments; its reason reaches the model (U60)."""
    answers = "[Approval(allowed=True, arguments={'code': '2 + 2'}), Approval(allowed=False, reason='not now')]"
    tools.ok(f"answers = {answers}")
    ask(tools, python("x = 1"), python("y = 1"), more=", approver=lambda q: answers.pop(0)")
    tools.ok("%%kit\ngo")
    results = tools.value("[''.join(p.text for p in m.parts) for m in kit.messages if m.role == 'tool']")

    assert results[0] == "4"
    assert "not now" in results[1]
    assert tools.value("[r['allowed'] for r in kit.session.custom('permission')]") == [True, False]


def test_a_new_notebook_session_has_the_tools(tools: Kernel) -> None:
    """%load_ext gives the agent its tools; a very small model is not offered them."""
    names = tools.value("[t.name for t in notebook_tools(get_ipython(), denied=['shell', 'web*'])]")
    assert names == ["inspect", "python", "read", "write", "edit", "grep", "glob", "ls"]
    tools.ok("from kit_jupyter.jupyter import notebook_of\nfresh = notebook_of(get_ipython()).make('memory')")
    assert {"python", "shell", "web_fetch"} <= set(tools.value("list(fresh.tools)"))


def test_undo_puts_files_and_variables_back(tools: Kernel, tmp_path) -> None:
    """`%kit_undo` takes back the turn, its files and small variables; `kit.undo()` without the magic too (item 9)."""
    tools.ok(f"import os\nos.chdir({str(tmp_path)!r})\nrows = [1]")
    (tmp_path / "f.txt").write_text("old\n")
    call = "tool_call('edit', path='f.txt', old='old', new='new')"
    ask(tools, "tool_call('read', path='f.txt')", call, python("rows.append(2); extra = 1"))
    tools.ok("%%kit\ngo", timeout=60)
    assert (tmp_path / "f.txt").read_text() == "new\n"
    assert tools.value("rows") == [1, 2]

    said = tools.ok("%kit_undo")
    assert "restored" in said.stream
    assert (tmp_path / "f.txt").read_text() == "old\n"
    assert tools.value("(rows, 'extra' in globals())") == ([1], False)
    assert tools.value("str(kit.undo())") == "nothing to undo"
