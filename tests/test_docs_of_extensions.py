"""The pages on extensions and the trifecta say what the code does."""

from __future__ import annotations

from pathlib import Path

import pytest

from kit_jupyter.trifecta import Legs, Node, Source, walk

DOCS = Path(__file__).parents[1] / "docs"


def test_the_example_tree_is_what_the_report_prints():
    """S211, S212: the tree in docs/trifecta.md, letter by letter."""
    web = Legs(untrusted="hard", egress="unreviewed", destination="any")
    root = Node(
        label="agent",
        sources=(Source("read_file", Legs(private=True)),),
        children=(Node(label="researcher", sources=(Source("web_fetch", web),)),),
    )

    assert str(walk(root)) in (DOCS / "trifecta.md").read_text()


def test_one_decision_record_says_why_two_shapes():
    """S137: both, and why; the price is named."""
    page = (DOCS / "decisions" / "two-message-shapes.md").read_text()

    for words in ("**Decision.** Both.", "**Why.**", "**Price.**", "PromptEditor"):
        assert words in page


@pytest.mark.parametrize(
    ("room", "name"),
    [
        ("skills", "Skills"),
        ("tasks", "Tasks"),
        ("workspace", "Workspace"),
        ("memory", "Memory"),
        ("rules", "Rules"),
        ("system_info", "SystemInfo"),
        ("subagents", "SubAgents"),
        ("mcp", "Mcp"),
        ("triangle", "TriangleGuard"),
    ],
)
def test_each_extension_of_the_table_is_there(room, name):
    """S213–S220: the class of that name, documented, named in the page."""
    from importlib import import_module

    cls = getattr(import_module(f"kit_jupyter.extensions.{room}"), name)

    assert cls is getattr(import_module("kit_jupyter.extensions"), name)
    assert cls.__doc__
    assert f"| `{name}` |" in (DOCS / "extensions.md").read_text()
