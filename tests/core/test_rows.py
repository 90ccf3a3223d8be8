"""Every row and ask of the SDK has its tests, and the map beside them is true."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
ROWS = [f"S{n}" for n in (*range(1, 81), *range(99, 125))]
ASKS = [f"U{n}" for n in (26, 27, 28, 29, 31, 32, 34, 35, 36, 38, 39, 40, 42, 43, 46)]
LINE = re.compile(r"^\| ([SU]\d+) \| (.+?) \|$", re.MULTILINE)


def mapped() -> dict[str, list[str]]:
    """Row to tests, as `rows.md` says."""
    text = (TESTS / "rows.md").read_text()
    return {row: re.findall(r"`([^`]+)`", tests) for row, tests in LINE.findall(text)}


@functools.cache
def functions(path: Path) -> dict[str, str]:
    """Test functions of a file, with their docstrings."""
    return {
        node.name: ast.get_docstring(node) or ""
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def named(docstring: str) -> set[str]:
    """Rows and asks that a docstring names; ``S3-S5`` names three."""
    found = set(re.findall(r"\b[SU]\d+\b", docstring))
    for first, last in re.findall(r"\bS(\d+)-S?(\d+)\b", docstring):
        found |= {f"S{n}" for n in range(int(first), int(last) + 1)}
    return found


def test_every_row_and_ask_has_a_test() -> None:
    """The map is complete, and this file, which tests no row, does not stand in for a test."""
    table = mapped()
    assert [row for row in (*ROWS, *ASKS) if not table.get(row)] == []
    assert not [row for row, tests in table.items() if any("test_rows.py" in name for name in tests)]


def test_every_test_of_the_map_exists() -> None:
    """No name in the map has gone stale."""
    for row, tests in mapped().items():
        for name in tests:
            path, _, function = name.partition("::")
            assert (TESTS / path).exists(), (row, name)
            assert function in functions(TESTS / path), (row, name)


def test_tests_of_the_core_name_what_they_cover() -> None:
    """Each core test in the map says the row in its docstring, and what a docstring says is in the map."""
    table = mapped()
    for path in sorted((TESTS / "core").glob("test_*.py")):
        if path.name == "test_rows.py":
            continue
        for function, docstring in functions(path).items():
            if not function.startswith("test"):
                continue
            name = f"core/{path.name}::{function}"
            said = {row for row in named(docstring) if row in ROWS or row in ASKS}
            assert said == {row for row, tests in table.items() if name in tests}, name
