"""What we use of other packages that is not public: each is pinned, so that a new release shows itself."""

from __future__ import annotations

import pytest
from kernels import Kernel

ROADS = ("comm_routing", "parent_variable", "thread_parent", "control_handlers", "fast_lane", "concurrent_comms")


def _version(nb: Kernel) -> tuple[int, ...]:
    return tuple(nb.value("__import__('ipykernel').version_info[:2]"))


@pytest.mark.parametrize("road", ROADS)
def test_every_road_is_open_on_ipykernel_7_4(nb: Kernel, road: str) -> None:
    """Jupyter facts 2: when this fails, ipykernel changed: look at the road in `jupyter/shell.py`."""
    if _version(nb) < (7, 4):
        pytest.skip("an older ipykernel has fewer roads")
    nb.ok("from kit_jupyter.jupyter.shell import probes\nimport kit_jupyter.jupyter.view")

    assert nb.value("probes(get_ipython())")[road] is True


def test_the_routing_that_we_undo_is_still_there(nb: Kernel) -> None:
    """Jupyter facts 2.3: 7.4 sends a comm's messages to the shell that last sent on it."""
    if _version(nb) < (7, 4):
        pytest.skip("only 7.4 and later route so")
    nb.ok("from kit_jupyter.jupyter.view import ChatView\nfrom kit_jupyter.jupyter.shell import keep_frontend_routing")
    nb.ok("w = ChatView(lambda *a: None)")
    assert nb.value("hasattr(w.comm, '_reply_subshell_for')") is True
    nb.ok("keep_frontend_routing(w)")

    assert nb.value("w.comm._reply_subshell_for({}, 'the front end said so')") == "the front end said so"


@pytest.mark.parametrize(
    ("code", "want"),
    [
        ("%%kit -m x\nhi", "await get_ipython().run_cell_magic('kit_async', '-m x', 'hi\\n')\n"),
        ("%kit hi", "await get_ipython().run_line_magic('kit_async', 'hi')\n"),
        ("%%kit only\n", "await get_ipython().run_line_magic('kit_async', 'only')\n"),
        ("x = %kit hi", "x = get_ipython().run_line_magic('kit', 'hi')\n"),
        ('s = "run_line_magic(\'kit"', 's = "run_line_magic(\'kit"\n'),
        ("%kit_stop", "get_ipython().run_line_magic('kit_stop', '')\n"),
        ("%%time\n%%kit\nhi", "get_ipython().run_cell_magic('time', '', '%%kit\\nhi\\n')\n"),
    ],
)
def test_the_transformer_is_pure_and_minds_its_own_cells(nb: Kernel, code: str, want: str) -> None:
    """Jupyter facts 2.4: called more than once for a cell; other cells are left alone."""
    nb.ok("from kit_jupyter.jupyter import shell\nip = get_ipython()")
    nb.ok(
        "def transformed(code):\n    token = shell._depth.set(0)\n    try:\n"
        "        return [ip.transform_cell(code) for _ in range(2)]\n    finally:\n        shell._depth.reset(token)"
    )

    assert nb.value(f"transformed({code!r})") == [want, want]


def _transformed(*cells: str, times: int = 2) -> list[list[str]]:
    """What a shell of this process with our transformers makes of cells, each as often as `times`."""
    from IPython.core.interactiveshell import InteractiveShell

    from kit_jupyter.jupyter.shell import ShellHooks

    ip = InteractiveShell()
    hooks = ShellHooks(ip, dict, lambda: False)
    hooks.install()
    try:
        return [[ip.transform_cell(cell) for _ in range(times)] for cell in cells]
    finally:
        hooks.remove()


CALL = "get_ipython().run_line_magic("
QUESTIONS = [
    ("%kit What is two plus two?", f"await {CALL}'kit_async', 'What is two plus two?')\n"),
    ("%kit_steer shorter?", f"await {CALL}'kit_steer_async', 'shorter?')\n"),
    ("%kit_continue and then??", f"await {CALL}'kit_continue_async', 'and then??')\n"),
    ("%kit_deny why so?", f"{CALL}'kit_deny', 'why so?')\n"),
    ("%kit don't you?", f"await {CALL}'kit_async', \"don't you?\")\n"),
    ("%kit is x=1 or f(x)?", f"await {CALL}'kit_async', 'is x=1 or f(x)?')\n"),
    ("%kit why (and how?", f"await {CALL}'kit_async', 'why (and how?')\n"),
    ("%kit a # b?", f"await {CALL}'kit_async', 'a # b?')\n"),
    ("%kit pourquoi ça ?  ", f"await {CALL}'kit_async', 'pourquoi ça ?')\n"),
    ("x = %kit is it two?", f"x = {CALL}'kit', 'is it two?')\n"),
    ("y = 1\n%kit is y one?\nz = 2", f"y = 1\nawait {CALL}'kit_async', 'is y one?')\nz = 2\n"),
    ("%kit one?\n%kit two?", f"await {CALL}'kit_async', 'one?')\nawait {CALL}'kit_async', 'two?')\n"),
    ("%kit it's on\n%kit two?", f"await {CALL}'kit_async', \"it's on\")\nawait {CALL}'kit_async', 'two?')\n"),
    ("if y:\n    %kit_stop\n    %kit is it?", f"if y:\n    {CALL}'kit_stop', '')\n    {CALL}'kit', 'is it?')\n"),
    ("%kit one \\\n  and two?", f"await {CALL}'kit_async', 'one    and two?')\n"),
]


@pytest.mark.parametrize(("code", "want"), QUESTIONS)
def test_a_question_in_a_line_is_sent(code: str, want: str) -> None:
    """A newcomer's first line, ``%kit What is two plus two?``, said "Object `two` not found."; it is sent, purely."""
    [made] = _transformed(code)

    assert made == [want, want]


@pytest.mark.parametrize(
    "code",
    [
        "%kit?",
        "%kit??",
        "?%kit",
        "%kit_steer?",
        "%%kit?",
        "kit.session?",
        "len?",
        "%timeit?",
        "%timeit len?",
        "%kit_nosuch me?",
        's = """\n%kit what?\n"""',
        's = "%kit what?"',
        "# %kit what?",
        "(1\n %kit)",
        "x = a %kit",
        "!echo what?",
        "% kit what?",
    ],
)
def test_help_and_strings_stay_what_they_are(code: str) -> None:
    """``%kit?`` still shows help, other magics keep theirs, and the words in a string are a string."""
    from IPython.core.interactiveshell import InteractiveShell

    plain = InteractiveShell().transform_cell(code)

    [made] = _transformed(code)

    assert made == [plain, plain]


def test_a_question_reaches_the_model(nb: Kernel) -> None:
    """From the line to the provider, with the question mark."""
    nb.script("[text('Four.')]")

    nb.ok("%kit What is two plus two?")

    assert nb.value("provider.requests[-1].messages[-1].parts[0].text") == "What is two plus two?"


def test_interrupts_are_put_back(nb: Kernel) -> None:
    """The SIGINT handler after a turn is the one before it."""
    nb.ok("import signal\nbefore = signal.getsignal(signal.SIGINT)")
    nb.script("[text('x')]")
    nb.ok("%%kit\nhi")

    assert nb.value("signal.getsignal(signal.SIGINT) is before") is True


def test_user_code_is_captured_whole(nb: Kernel) -> None:
    """Jupyter facts 2.8: prints, subprocesses, displays, the last value, errors, exit; nothing leaks, `_` stays."""
    nb.ok("from kit_jupyter.jupyter.shell import run_user_code\nip = get_ipython()\n'kept'")
    nb.ok("async def run(code): \n    r = await run_user_code(ip, code)\n    return r")

    said = nb.ok(
        "r = await run('import sys\\nprint(1)\\nprint(2, file=sys.stderr)\\n!echo three\\ndisplay(4)\\n5')\n"
        "e = await run('1/0')\ns = await run('x = (')\nq = await run('exit')\n"
        "a = await run('import asyncio; await asyncio.sleep(0); 6')"
    )

    assert said.stream == ""
    assert said.shown == []
    text = nb.value("r.text")
    assert [word for word in text.split() if word in ("1", "2", "three")] == ["1", "2", "three"]
    assert nb.value("[d['data']['text/plain'] for d in r.displays]") == ["4", "5"]
    assert nb.value("(r.ok, r.value, a.value, e.ok, s.ok, q.ok)") == (True, 5, 6, False, False, True)
    assert "ZeroDivisionError" in nb.value("e.traceback")
    assert "SyntaxError" in nb.value("s.traceback")
