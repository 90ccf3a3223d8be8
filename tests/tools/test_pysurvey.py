"""What a look could give away, or run, by the values that it names: secrets in pieces, foreign objects, odd reprs."""

from __future__ import annotations

import base64
import collections
import dataclasses
import os
import types

import pytest

from kit_jupyter.tools import pysurvey
from kit_jupyter.tools.inspect import InspectTool
from kit_jupyter.tools.pycheck import powers
from kit_jupyter.tools.pylook import is_look, why_no_look
from kit_jupyter.tools.pysurvey import survey
from kit_jupyter.tools.python import NamespaceRunner, PythonTool

SECRET = "hush-hush-9f8e7d6c5b4a"


@pytest.fixture(autouse=True)
def known_secret(monkeypatch):
    """A secret that the environment names."""
    monkeypatch.setenv("DEMO_API_KEY", SECRET)


CUTS = [
    "[c for c in key]",
    "key[::-1]",
    "key[3:9]",
    "key[0]",
    "list(key)",
    "print(*key)",
    "sorted(key)",
    "tuple(enumerate(key))",
    "f'{key:.5}'",
    "'%.5s' % key",
    "key.upper()",
    "key.split('-')",
    "key > 'h'",
    "repr(key)[2:]",
    "key",
]


@pytest.mark.parametrize("code", CUTS)
def test_no_look_spells_out_a_secret(code):
    """U59: what names a variable with a secret asks, for no masking finds a secret that is shown in pieces."""
    for value in (SECRET, SECRET.encode(), bytearray(SECRET.encode()), f"https://bob:{SECRET}@host"):
        assert not is_look(code, {"key": value}.__getitem__), type(value)
        assert is_look("len(key), type(key)", {"key": value}.__getitem__)  # of its length and type nobody learns it
    if "'" not in code and ".upper" not in code:
        assert is_look(code, {"key": "nothing to hide"}.__getitem__)


def holders() -> dict[str, object]:
    """Values that hold the secret somewhere."""
    pandas = pytest.importorskip("pandas")
    numpy = pytest.importorskip("numpy")
    held = types.SimpleNamespace(url="x", deep={"inner": [SECRET]})
    return {
        "nested": {"a": [1, (2, {"b": SECRET})]},
        "key of a dict": {SECRET: 1},
        "deque": collections.deque([SECRET]),
        "encoded": [base64.b64encode(SECRET.encode()).decode()],
        "hex": SECRET.encode().hex(),
        "frame": pandas.DataFrame({"n": [1, 2], "t": ["a", SECRET]}),
        "object frame": pandas.DataFrame({"t": pandas.Series(["a", {"x": SECRET}], dtype=object)}),
        "column name": pandas.DataFrame({SECRET: [1]}),
        "index": pandas.Series([1], index=[SECRET]),
        "category": pandas.Series(["a", SECRET], dtype="category"),
        "attrs": _with_attrs(pandas.DataFrame({"n": [1]})),
        "group": pandas.DataFrame({"n": [1, 2], "t": ["a", SECRET]}).groupby("n"),
        "array": numpy.array(["a", SECRET]),
        "object array": numpy.array([None, SECRET], dtype=object),
        "object": held,
        "environment": os.environ,
        "copy of it": dict(os.environ),
        "by name": {"db_password": "not-known-elsewhere"},
        "column by name": pandas.DataFrame({"password": ["not-known-elsewhere"]}),
        "key shape": ["sk-" + "a1b2c3d4" * 4],
    }


def _with_attrs(frame):
    frame.attrs["token"] = SECRET
    return frame


def test_secrets_are_found_wherever_they_lie():
    """Containers, tables, arrays, attributes of objects, the environment: to the bottom."""
    for what, value in holders().items():
        assert survey(value).secret, what
        assert not is_look("it", {"it": value}.__getitem__), what
        assert "secret" in (why_no_look("it", {"it": value}.__getitem__) or ""), what


def test_polars_and_arrow_are_searched():
    """The other tables."""
    polars, arrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    for value in (
        polars.DataFrame({"t": [SECRET]}),
        polars.Series([SECRET]),
        polars.DataFrame({"t": [[SECRET]]}),
        arrow.table({"t": [SECRET]}),
        arrow.array([SECRET]),
        arrow.scalar(SECRET),
    ):
        assert survey(value).secret
    for value in (polars.DataFrame({"a": ["b"], "n": [1]}), arrow.table({"t": ["b"], "n": [2.5]})):
        assert survey(value) == survey([])


def test_a_table_too_large_to_be_searched_is_shown_but_not_cut():
    """Millions of rows need no scan: what could take a cell's text apart asks, ordinary looks do not."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"n": range(100_000), "t": ["some text"] * 100_000})
    assert not survey(frame).is_whole
    for code in (
        "frame",
        "frame.head()",
        "frame['t'].value_counts()",
        "frame[frame['n'] > 1].describe()",
        "frame[frame['n'] > 1]['t'].head(3)",
        "list(frame.columns)",
        "frame.iloc[5]",
        "frame.loc[3, 't']",
        "len(frame), frame.shape, frame.dtypes",
        "frame.groupby('t').size()",
    ):
        assert is_look(code, {"frame": frame}.__getitem__), code
    for code in (
        "frame['t'][5][::-1]",
        "frame.loc[5, 't'][2:]",
        "[c for c in frame['t'][5]]",
        "list(frame['t'][5])",
        "print(*frame['t'][5])",
        "f\"{frame['t'][5]:.3}\"",
        "frame['t'][5].upper()",
        "str(frame)[9:]",
    ):
        assert "too large" in (why_no_look(code, {"frame": frame}.__getitem__) or ""), code


def test_numbers_need_no_search():
    """A large table, list or array of numbers is known to hold no text."""
    numpy, pandas = pytest.importorskip("numpy"), pytest.importorskip("pandas")
    for value in ([1] * 500_000, numpy.zeros(10**6), pandas.DataFrame(numpy.zeros((10**5, 3))), range(10**9)):
        assert survey(value) == survey([])


def test_the_work_is_bounded():
    """A counter of what is walked over, not a clock: huge and endless values end."""
    steps = 0

    class Counted(dict):
        def items(self):
            raise AssertionError("code of the user's")

    endless: list[object] = []
    endless.append(endless)
    assert survey(endless) == survey([])
    walk = pysurvey._Walk()
    taken = walk._take

    def counted(*arguments):
        nonlocal steps
        steps += 1
        return taken(*arguments)

    walk._take = counted
    walk.through({i: {j: [str(j)] for j in range(300)} for i in range(3000)}, "")
    assert steps <= pysurvey.MAX_ITEMS
    assert not walk.found.is_whole
    assert survey(Counted(a=SECRET)).secret == "DEMO_API_KEY"
    assert not survey("x" * 5_000_000).is_whole


# ---------------------------------------------------------------- code that looking would run


class Acting:
    """Whatever is done to it is an act."""

    def _boom(self, *_, **__):
        raise AssertionError("called")

    __repr__ = __len__ = __iter__ = __bool__ = __add__ = __eq__ = __lt__ = __getitem__ = __format__ = _boom
    __hash__ = object.__hash__
    head = get = _boom
    shape = property(_boom)


class Quiet:
    """No representation of its own, but methods."""

    head = get = copy = find = Acting._boom
    __len__ = __add__ = __eq__ = __lt__ = __getitem__ = Acting._boom
    __hash__ = object.__hash__
    name = property(Acting._boom)


class Elusive:
    """Answers to every name."""

    def __getattr__(self, name):
        raise AssertionError(name)


@dataclasses.dataclass
class Point:
    """A representation that Python wrote."""

    x: int = 1


Pair = collections.namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    "code",
    [
        "acting",
        "print(acting)",
        "repr(acting)",
        "f'{acting}'",
        "str(acting)",
        "[acting]",
        "elusive",
        "dir(elusive)",
        "len(quiet)",
        "quiet + 1",
        "quiet == 1",
        "not quiet",
        "quiet[0]",
        "quiet.head()",
        "quiet.name",
        "type(quiet).find('x')",
        "listed[0].head()",
        "listed[0].get('http://example.org')",
        "table['r'].get('http://example.org')",
        "listed[0][0]",
        "sorted(listed)",
        "sum(listed)",
        "listed == listed",
        "quiet in listed",
        "[x.name for x in listed]",
        "[x for x in listed]",
        "listed.copy()[0].head()",
        "list(listed)[0].head()",
        "table.get('q').get('x')",
        "acts",
        "frame",
        "frame.head()",
        "frame['o'].max()",
        "series",
        "array",
        "functions.max()",
        "df[functions]",
        "df.loc[functions]",
        "quiets.sum()",
        "quiets == 1",
        "quiets[0].head()",
        "quiets.max()",
        "quiets.value_counts()",
        "styled",
        "lazy.describe()",
        "grouped.sum()",
        "store.get('x')",
    ],
)
def test_looking_runs_nothing_of_the_users(code):
    """Operators, elements of containers and of object columns, representations, properties: their code asks."""
    pandas, numpy = pytest.importorskip("pandas"), pytest.importorskip("numpy")
    polars = pytest.importorskip("polars")
    df = pandas.DataFrame({"a": [1, 2]})
    values = {
        "acting": Acting(),
        "quiet": Quiet(),
        "elusive": Elusive(),
        "listed": [Quiet()],
        "table": {"q": Quiet(), "r": types},
        "acts": {"a": [Acting()]},
        "df": df,
        "frame": pandas.DataFrame({"o": pandas.Series([Acting()], dtype=object)}),
        "series": pandas.Series([Acting()], dtype=object),
        "functions": pandas.Series([print, len], dtype=object),
        "array": numpy.array([Acting()], dtype=object),
        "quiets": pandas.Series([Quiet()], dtype=object),
        "lazy": polars.LazyFrame({"a": [1]}),
        "grouped": df.groupby(lambda row: Acting()._boom() if row > 5 else row),
        "store": Quiet(),
    }
    if code == "styled":
        pytest.importorskip("jinja2")
        values["styled"] = df.style.format(lambda value: "x")
    assert not is_look(code, values.__getitem__)


def test_what_stands_for_another_value_is_that_value():
    """A proxy or a chain over a mapping that makes its missing values, or shows itself by code, is no look."""
    made = collections.defaultdict(lambda: Acting()._boom())
    values = {
        "chain": collections.ChainMap(made),
        "proxy": types.MappingProxyType(made),
        "acts": types.MappingProxyType({"a": Acting()}),
        "plain": types.MappingProxyType({"a": 1}),
        "keys": types.MappingProxyType({"api_key": SECRET}),
    }

    for code in ("chain['x']", "chain.get('x')['y']", "proxy['x']", "acts", "print(acts)", "keys"):
        assert not is_look(code, values.__getitem__), code
    assert is_look("plain", values.__getitem__)


def test_hooks_that_libraries_call_to_show_a_value_are_the_users_code():
    """A class derived from a library's, with the methods by which that library shows it, asks; one without does not."""
    pandas, numpy = pytest.importorskip("pandas"), pytest.importorskip("numpy")

    class Table(pandas.DataFrame):
        _constructor = property(Acting._boom)

    class Cells(numpy.ndarray):
        def __array_finalize__(self, other):
            """Runs at each slice, and a long array is shown by slices."""

    class Plain(pandas.DataFrame):
        """Nothing of its own."""

    values = {"table": Table({"a": [1]}), "cells": numpy.arange(3).view(Cells), "plain": Plain({"a": [1]})}

    assert not is_look("table", values.__getitem__)
    assert not is_look("cells", values.__getitem__)
    assert is_look("plain", values.__getitem__)


@pytest.mark.parametrize(
    ("code", "looks"),
    [
        ("df.sample(frac=1e9, replace=True)", False),
        ("df.sample(frac=0.5, random_state=1)", True),
        ("df.sample(n=5)", False),
        ("df.sample(n=5, random_state=None)", False),
        ("df['b'].str.count('(a+)+b')", False),
        ("df['b'].str.split(df['b'])", False),
        ("df['b'].str.count('a')", True),
        ("df['b'].str.split('|')", True),
        ("'a+b'.split('+')", True),
    ],
)
def test_a_look_ends_and_fits_the_memory(code, looks):
    """A share of the rows above all of them, and a regular expression that may take for ever, ask (bad input)."""
    pandas = pytest.importorskip("pandas")

    assert is_look(code, {"df": pandas.DataFrame({"b": ["aaaa"]})}.__getitem__) is looks


@pytest.mark.parametrize(
    "code",
    [
        "quiet",
        "type(quiet), id(quiet), callable(quiet)",
        "listed",
        "len(listed)",
        "listed[0]",
        "table.keys()",
        "table['q']",
        "print(table.get('q'))",
        "type(acting)",
        "point",
        "pair",
        "functions",
        "functions.head()",
        "quiets",
        "quiets.head()",
        "quiets.shape, quiets.dtype, len(quiets)",
        "str(point)",
    ],
)
def test_shallow_looks_at_foreign_objects_are_free(code):
    """Representations that Python or a library wrote, types, lengths of the container, one step into it."""
    pandas = pytest.importorskip("pandas")
    values = {
        "acting": Acting(),
        "quiet": Quiet(),
        "listed": [Quiet()],
        "table": {"q": Quiet()},
        "point": Point(),
        "pair": Pair(1, 2),
        "functions": pandas.Series([print, len], dtype=object),
        "quiets": pandas.Series([Quiet()], dtype=object),
    }
    assert is_look(code, values.__getitem__), why_no_look(code, values.__getitem__)


def test_large_object_columns_are_judged_by_their_kind():
    """Text and numbers as objects are shown; a mixture that was not seen whole is not reached into."""
    pandas = pytest.importorskip("pandas")
    text = pandas.Series(["a"] * 50_000, dtype=object)
    mixed = pandas.Series([*(["a"] * 50_000), Quiet()], dtype=object)

    assert is_look("s.value_counts()", {"s": text}.__getitem__)
    assert is_look("s.head()", {"s": mixed}.__getitem__)
    assert not is_look("s.value_counts()", {"s": mixed}.__getitem__)


def test_the_reason_is_told(bench):
    """The person reads why this look is no free one."""
    python = PythonTool(NamespaceRunner({"it": [SECRET], "acting": Acting()}))

    decision = bench.decide(python, code="it[0][::-1]")
    assert decision.effect == "ask"
    assert "it holds a secret (DEMO_API_KEY), which this could show in pieces" in decision.question
    assert SECRET not in decision.question
    assert "no library's" in bench.decide(python, code="acting").question


# ---------------------------------------------------------------- bounds, and cuts made by tools


def test_long_code_is_not_read(bench, monkeypatch):
    """Over a size nothing is parsed, and the question says so; no rule allows what was not read."""
    import ast

    parsed: list[int] = []
    parse = ast.parse
    monkeypatch.setattr(ast, "parse", lambda code, *a, **k: parsed.append(len(code)) or parse(code, *a, **k))
    python = PythonTool(NamespaceRunner({"x": 1}))
    code = "x = 1\n" * 100_000

    decision = bench.decide(python, {"preset": "auto", "rules": [("python", "*", "allow")]}, code=code)

    assert decision.effect == "ask"
    assert "600,000 characters, too long to tell what it does" in decision.reason
    assert parsed == []
    assert powers(code) == ("long",)


def test_inspect_cuts_no_secret_in_two(bench, monkeypatch):
    """What is shortened is masked first: half a key is no key that the masking knows."""
    from kit_jupyter.masking import mask_outcome

    long = "k" + "9f8e7d6c5b4a" * 20
    monkeypatch.setenv("LONG_API_KEY", long)
    namespace = {"key": long, "text": "x" * 30 + long, "raw": long.encode(), "listed": [long], "table": {"a": long}}
    inspect = InspectTool(NamespaceRunner(namespace))

    for names in ([], list(namespace)):
        told = mask_outcome(bench.run(inspect, names=names)).text
        assert "9f8e7d6c" not in told
        assert "masked" in told
