"""docs/tools.md says for each tool what the code says: legs, default permission, bounds (issue 6, "Done when")."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kit_jupyter.builtin import NAMES, builtin_tools
from kit_jupyter.permissions import PRESETS
from kit_jupyter.tools.python import NamespaceRunner
from kit_jupyter.trifecta import Legs

PAGE = Path(__file__).parents[2] / "docs" / "tools.md"


def legs_text(legs: Legs) -> str:
    """Legs as the table writes them."""
    words = []
    if legs.private:
        words.append("private data")
    if legs.untrusted != "none":
        words.append(f"untrusted text ({legs.untrusted})")
    if legs.egress != "none":
        words.append(f"way out ({legs.egress}, to {legs.destination})")
    return ", ".join(words) or "none"


def table(heading: str) -> dict[str, list[str]]:
    """Rows of the first table under a heading, by their first cell."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}", 1)[1]
    block = re.search(r"(?:^\|.*\n)+", section.split("\n## ", 1)[0], re.MULTILINE)
    assert block is not None, heading
    rows = re.findall(r"^\| (.+?) \|$", block[0], re.MULTILINE)
    cells = [[cell.strip() for cell in row.split(" | ")] for row in rows]
    return {row[0].strip("`"): row[1:] for row in cells[1:] if not set("".join(row)) <= set("-| ")}


def test_the_table_of_tools_is_the_code():
    """Each built-in tool with its legs, default and bounds, and no other."""
    tools = {tool.name: tool for tool in builtin_tools(runner=NamespaceRunner({}))}
    rows = table("The built-in tools")

    assert tuple(rows) == NAMES
    for name, (legs, default, bounds) in rows.items():
        assert legs == legs_text(tools[name].legs), name
        assert default == tools[name].default, name
        assert bounds == tools[name].bounds, name


SAMPLES = {
    "inspect": {"names": ["x"]},
    "python": {"code": "x = 1"},
    "read": {"path": "a"},
    "write": {"path": "a", "content": "x"},
    "edit": {"path": "a", "old": "a", "new": "b"},
    "grep": {"pattern": "a"},
    "glob": {"pattern": "a"},
    "ls": {},
    "shell": {"command": "ls"},
    "web_fetch": {"url": "https://example.org"},
}


@pytest.mark.parametrize("name", NAMES)
def test_the_defaults_are_what_the_policy_says(bench, tmp_path, name):
    """An ordinary call of each tool gets its default under the "ask" preset; U59: code, shell, writes and web ask."""
    tool = builtin_tools(name, runner=NamespaceRunner({}), workspace=tmp_path)[0]

    assert bench.decide(tool, **SAMPLES[name]).effect == tool.default.split(";")[0]


def test_the_table_of_presets_is_the_code():
    """Preset by kind of need."""
    rows = table("Permissions")
    kinds = ["look", "act", "function", "outside", "sensitive", "unsure", "loop"]

    assert {name: dict(zip(kinds, cells, strict=True)) for name, cells in rows.items()} == PRESETS
