"""Every row of extensions, prompt editor and trifecta has a test that names it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
ROWS = [*(f"S{n}" for n in range(125, 230)), "U42", "U68", "U69"]


def named(docstring: str) -> set[str]:
    """Rows that a docstring names; ``S3-S5`` and ``S3–S5`` name three."""
    found = set(re.findall(r"\b[SU]\d+\b", docstring))
    for first, last in re.findall(r"\bS(\d+)[-–]S?(\d+)\b", docstring):
        found |= {f"S{n}" for n in range(int(first), int(last) + 1)}
    return found


@pytest.fixture(scope="module")
def tests_of() -> dict[str, list[str]]:
    """Row to the tests whose own docstring names it and which assert something."""
    found: dict[str, list[str]] = {row: [] for row in ROWS}
    for path in TESTS.rglob("test_*.py"):
        if path == Path(__file__):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or not node.name.startswith("test"):
                continue
            text = ast.unparse(node)
            if "assert " not in text and "raises(" not in text:
                continue
            for row in named(ast.get_docstring(node) or "") & found.keys():
                found[row].append(f"{path.relative_to(TESTS)}::{node.name}")
    return found


@pytest.mark.parametrize("row", ROWS)
def test_a_test_names_the_row(tests_of: dict[str, list[str]], row: str) -> None:
    """The docstring of the test that does it says so."""
    assert tests_of[row]
