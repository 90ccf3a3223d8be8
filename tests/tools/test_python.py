"""The python tool in a plain namespace; the real kernel has a test of its own."""

from __future__ import annotations

import sys
import time

import pytest

from kit_jupyter.checkpoints import Checkpoints
from kit_jupyter.messages import MediaPart
from kit_jupyter.tools.pycheck import powers
from kit_jupyter.tools.pylook import is_look
from kit_jupyter.tools.python import NamespaceRunner, PythonTool


@pytest.fixture
def namespace():
    """The user's variables."""
    return {"numbers": [1, 2, 3], "text": "hello"}


@pytest.fixture
def python(namespace):
    """The tool over them."""
    return PythonTool(NamespaceRunner(namespace))


def test_value_prints_and_names(bench, python, namespace):
    """U70: last expression, stdout and stderr live, and what became of the namespace."""
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nx = numbers + [4]\n"
    code += "numbers.append(9)\ndel text\nlen(x)"
    outcome = bench.run(python, code=code)

    assert outcome.text == "out\nerr\n4\n[new: sys, x; changed: numbers; deleted: text]"
    assert ("stdout", "out\n") in [(s, t) for s, t in bench.context.said] or ("stdout", "out") in bench.context.said
    assert any(stream == "stderr" for stream, _ in bench.context.said)
    assert namespace["numbers"] == [1, 2, 3, 9]
    assert outcome.details["namespace"] == {"new": ("sys", "x"), "changed": ("numbers",), "deleted": ("text",)}


def test_output_comes_while_it_runs(bench, python):
    """Streaming: the first line is there before the code ends."""
    seen = []
    bench.context.progress = lambda text, **_: seen.append((time.monotonic(), text))  # type: ignore[method-assign]
    bench.run(python, code="import time\nprint('first')\ntime.sleep(0.3)\nprint('last')")

    first = next(at for at, text in seen if "first" in text)
    last = next(at for at, text in seen if "last" in text)
    assert last - first > 0.2


def test_top_level_await_and_no_output(bench, python):
    """Await works; nothing said is said; a trailing semicolon hides the value."""
    assert bench.run(python, code="import asyncio\nawait asyncio.sleep(0, 7)").text.startswith("7\n")
    assert bench.run(python, code="len(numbers);").text == "(no output)"
    assert bench.run(python, code="").text == "(no output)"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("1/0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError"),
        ("raise SystemExit(3)", "exit(3)"),
        ("exit", ""),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("def f(): return f()\nf()", "RecursionError"),
        ("async def g():\n    raise ValueError('deep')\nawait g()", "ValueError: deep"),
        ("await nothing", "NameError"),
        ("x = '\\ud800'\nprint(x)", ""),
        ("import sys\nsys.stdout.close()\nprint('alive')", "alive"),
    ],
)
def test_errors_come_back_plain(bench, python, code, says):
    """Every way to fail is a result, without colours, without our own frames (bad input)."""
    outcome = bench.run(python, code=code)

    assert says in outcome.text
    assert "\x1b[" not in outcome.text
    assert "usercall.py" not in outcome.text
    assert bench.run(python, code="1 + 1").text == "2"


def test_a_traceback_shows_the_line(bench, python):
    """The model sees where it went wrong."""
    outcome = bench.run(python, code="def f(n):\n    return 1 / n\n\nf(0)")

    assert outcome.is_error
    assert "return 1 / n" in outcome.text
    assert "line 2" in outcome.text


def test_figures_come_back_as_pictures(bench, python):
    """The model sees the picture it drew, once, also when the last value is the axes."""
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    outcome = bench.run(python, code="import matplotlib.pyplot as plt\nfig, ax = plt.subplots()\nax.plot([1, 2])\nax")

    pictures = [part for part in outcome.parts if isinstance(part, MediaPart)]
    assert len(pictures) == 1
    assert pictures[0].raw.startswith(b"\x89PNG")
    assert bench.context.media == pictures


def test_a_flood_is_bounded(bench, python):
    """Printing a gigabyte leaves a small result and small live output (bad input)."""
    outcome = bench.run(python, code="piece = 'x' * 1_000_000\nfor i in range(300):\n    print(piece)")

    assert len(outcome.text) < 60_000
    assert sum(len(text) for _, text in bench.context.said) < 300_000


def test_values_are_shown_as_a_model_reads_them(bench, python):
    """A big frame as last value is compact."""
    pytest.importorskip("pandas")
    outcome = bench.run(python, code="import pandas as pd\npd.DataFrame({'a': range(100_000)})")

    assert outcome.text.startswith("table, 100,000 rows x 1 columns")


@pytest.mark.parametrize(
    "code",
    [
        "print('go')\nimport time\ntime.sleep(30)",
        "print('go')\nwhile True: pass",
        "print('go')\nimport asyncio\nawait asyncio.sleep(30)",
        "print('go')\nimport subprocess\nsubprocess.run(['sleep', '30'])",
        "print('go')\nimport time\ntry:\n    time.sleep(30)\nexcept KeyboardInterrupt:\n    time.sleep(30)",
    ],
)
def test_stop(bench, python, code):
    """U20: whatever the code does, a stop ends it soon, and the next call works."""
    began = time.monotonic()
    bench.stop(python, code=code)

    assert time.monotonic() - began < 4
    assert bench.run(python, code="1 + 1").text == "2"


def test_threads_left_running_are_reported(bench, python):
    """Code that starts a thread leaves it behind; the model and the user are told."""
    code = "import threading\nstop = threading.Event()\n"
    code += "threading.Thread(target=stop.wait, name='mine', daemon=True).start()"
    outcome = bench.run(python, code=code)

    assert "still run: mine" in outcome.text
    bench.run(python, code="stop.set()")


def test_small_variables_can_be_restored(bench, python, namespace):
    """Checkpoints: changed and deleted names come back, new ones go."""
    namespace["big"] = bytearray(5_000_000)
    bench.run(python, code="numbers.append(4); text = 'other'; y = 1; big.append(1)")
    bench.run(python, code="numbers.append(5); del text")

    undone = Checkpoints.of(bench.context).undo(namespace)

    assert namespace["numbers"] == [1, 2, 3]
    assert namespace["text"] == "hello"
    assert "y" not in namespace
    assert set(undone.variables) == {"numbers", "text", "y"}
    assert undone.not_restorable == ("big",)


# ---------------------------------------------------------------- looking needs no permission


class Sneaky:
    """A user's object whose harmless-looking methods act."""

    def head(self):
        raise AssertionError("called")


@pytest.mark.parametrize(
    "code",
    [
        "df",
        "df.head()",
        "df.head(3)\ndf.shape",
        "df['a'].value_counts()",
        "df[df['a'] > 1].describe()",
        "print(type(df), len(df), df.columns.tolist())",
        "{n: v for n, v in zip(df.columns, df.dtypes)}",
        "sorted(df.columns)",
        "df.isna().sum()",
        "arr.mean(), arr.shape, arr[:3, 0]",
        "mapping['k'][0]",
        "f'{len(mapping)} entries'",
        "type(sneaky)",
        "df.iloc[0]",
        "'abc'.upper()",
        "df['a'] * 2 + 1",
        "arr * arr.mean() % 3",
        "len(df) * 100 / 7",
        "f'{df.shape[0]:,} rows, {arr.mean():.3f}'",
        "df.sample(5, random_state=0)",
    ],
)
def test_looking_is_recognised(code):
    """Names, shapes, heads: a look that need not ask (issue 6, item 2)."""
    pandas, numpy = pytest.importorskip("pandas"), pytest.importorskip("numpy")
    values = {
        "df": pandas.DataFrame({"a": [1, 2]}),
        "arr": numpy.zeros((4, 2)),
        "mapping": {"k": [1]},
        "sneaky": Sneaky(),
    }
    assert is_look(code, values.__getitem__)


@pytest.mark.parametrize(
    "code",
    [
        "df.head",
        "x = 1",
        "del df",
        "df.drop(columns='a', inplace=True)",
        "df['a'] = 1",
        "df.sort_values('a', inplace=True)",
        "df.to_csv('x')",
        "df.to_string('x')",
        "df.to_string(buf='x')",
        "df.info(True, open('x', 'w'))",
        "arr.mean(0, None, arr)",
        "arr.sum(out=arr)",
        "arr.sort()",
        "sneaky.head()",
        "sneaky.shape",
        "requests.head('http://example.org')",
        "os.environ",
        "os",
        "open('x')",
        "exec('1')",
        "eval('1')",
        "__import__('os')",
        "df.__class__",
        "().__class__.__bases__[0].__subclasses__()",
        "(lambda: 1)()",
        "[x.head() for x in things]",
        "10 ** 10 ** 10",
        "'a' * 10_000_000_000",
        "[0] * 10_000_000_000",
        "await f()",
        "(y := 2)",
        "list(generator)",
        "next(generator)",
        "sorted(mapping, key=print)",
        "print(1, file=f)",
        "type('X', (), {})",
        "missing",
        "missing()",
        "len(*[df], **{})",
        "import os",
        "%who",
        "!ls",
        "df.head(",
        "@print\ndef f(): pass",
        "class C(metaclass=type): pass",
        "with f: pass",
        "for x in df: pass",
        "[y := 1 for x in df]",
        "df.eval('@f()')",
        "df.query('@f()')",
        "df.apply(print)",
        "df.pipe(print)",
        "df.agg('sum')",
        "df['a'].map(print)",
        "df.style",
        "pd.read_pickle('x')",
        "pd.read_csv('http://example.org')",
        "'{0.__class__}'.format(df)",
        "f'{1:>9999999999}'",
        "f'{1:{arr}}'",
        "'%99999999999d' % 1",
        "mapping['k'] * 1_000_000_000",
        "listed * 1_000_000_000",
        "10_000_000_000 * text",
        "list(endless)",
        "df.sample(10**9, replace=True)",
        "df.sample(1_000_000_000, replace=True)",
        "read('x')",
        "df.attrs.update(a=1)",
        "df.columns.__class__",
        "df.loc[f('x')]",
        "print(df, file=f, flush=True)",
        "x = !ls",
        "%%bash\nls",
        "%timeit df",
        "df?",
        "df; import os",
        "async def f(): await g()",
        "yield 1",
        "global df",
        "assert df.to_csv('x')",
        "try:\n    df\nexcept: pass",
        "match df:\n    case C(): pass",
        "mapping.pop('k')",
        "mapping.update(a=1)",
        "counter['new']",
        "len",
    ],
)
def test_anything_else_is_not_looking(code):
    """When in doubt, ask; `requests.head` is not `df.head`."""
    import collections
    import os

    pandas, numpy = pytest.importorskip("pandas"), pytest.importorskip("numpy")
    values = {
        "df": pandas.DataFrame({"a": [1, 2]}),
        "arr": numpy.zeros((4, 2)),
        "mapping": {"k": [1]},
        "sneaky": Sneaky(),
        "os": os,
        "requests": sys,
        "things": [Sneaky()],
        "generator": (i for i in [1]),
        "f": sys.stdout,
        "counter": collections.defaultdict(int),
        "pd": pandas,
        "read": open,
        "listed": [1],
        "text": "a",
        "endless": range(10**12),
    }
    if code == "len":
        values["len"] = Sneaky()
        code = "len(df)"
    assert not is_look(code, values.__getitem__)


@pytest.mark.parametrize(
    "code",
    [
        "df[f]",
        "df.loc[f]",
        "df.loc[:, f]",
        "df.iloc[f]",
        "df['a'].loc[f]",
        "df.groupby(f).size()",
        "df.groupby(by=f).size()",
        "df.groupby(listed).size()",
        "df[table['f']]",
        "[df[x] for x in listed]",
        "[df[x] for x in table.values()]",
        "df.to_string(formatters={'a': f})",
        "df.to_string(formatters=table)",
        "df.to_string(float_format=f)",
        "df.corr(method=f)",
        "sorted([1], key=f)",
        "hasattr(lazy, 'boom')",
    ],
)
def test_looking_calls_no_function_of_the_users(code):
    """Libraries call the functions that they are handed as keys or arguments; `hasattr` runs properties."""
    pandas = pytest.importorskip("pandas")

    def f(*_: object) -> object:
        raise AssertionError("called")

    class Lazy:
        boom = property(f)

    values = {"df": pandas.DataFrame({"a": [1]}), "f": f, "table": {"f": f}, "listed": [f], "lazy": Lazy()}
    assert not is_look(code, values.__getitem__)
    for shown in ("f", "print(f)", "callable(f)", "len(listed)", "df['a'].isin([1])", "hasattr(df, 'a')"):
        assert is_look(shown, values.__getitem__)


@pytest.mark.parametrize(
    "code",
    [
        '"\\\n>>> "\n... % system in "$(touch made)"',
        '0\n... % system in "$(touch made)"',
        ">>> 1",
        "'In [1]: '",
        "'a\u2028!touch made'",
        "0\r% system",
        "'a\x0c% system'",
    ],
)
def test_what_ipython_would_rewrite_is_not_looking(code):
    """Prompts are taken off before the code runs; ``... % system`` then is the magic ``%system``."""
    assert not is_look(code, {"system": 1}.__getitem__)
    assert is_look("1 % system", {"system": 1}.__getitem__)


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("x = 1", ()),
        ("import subprocess; subprocess.run('ls')", ("shell",)),
        ("os.system('ls')", ("shell",)),
        ("from urllib.request import urlopen", ("network",)),
        ("import requests as r", ("network",)),
        ("open('a', 'w').write('x')", ("files",)),
        ("Path('a').open(mode='a')", ("files",)),
        ("df.to_csv('x')", ("files",)),
        ("items.remove(3)", ()),
        ("os.remove('x')", ("files",)),
        ("eval(x)", ("dynamic",)),
        ("!rm -rf x", ("shell",)),
        ("%%bash\nls", ("shell", "magic")),
        ("%timeit f()", ("magic",)),
        ("x = !ls", ("shell",)),
        ("def f(:", ("unparsable",)),
    ],
)
def test_powers(code, expected):
    """What the syntax shows of shell, network, files and dynamic code."""
    assert powers(code) == expected


def test_permissions(bench, python):
    """Looking is allowed, acting asks, powers ask again after a session's yes, unparsable always asks."""
    assert bench.decide(python, code="numbers").effect == "allow"
    decision = bench.decide(python, code="import subprocess\nx = 1")
    assert decision.effect == "ask"
    assert decision.suggestion == "python *\npython.shell *"
    assert "starts programs" in decision.question
    assert bench.decide(python, [("python", "*", "allow")], code="x = 1").effect == "allow"
    assert bench.decide(python, [("python", "*", "allow")], code="os.system('x')").effect == "ask"
    assert bench.decide(python, "auto", code="os.system('x')").effect == "allow"
    assert bench.decide(python, "auto", code="x = = 1").effect == "ask"
    assert bench.decide(python, "read-only", code="x = 1").effect == "deny"
    assert bench.decide(python, "read-only", code="len(numbers)").effect == "allow"
