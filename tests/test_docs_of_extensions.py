"""The pages on extensions and the trifecta say what the code does."""

from __future__ import annotations

import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from kit_jupyter import Kit
from kit_jupyter.testing import ScriptedProvider, tool_call
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
    cls = getattr(import_module(f"kit_jupyter.extensions.{room}"), name)

    assert cls is getattr(import_module("kit_jupyter.extensions"), name)
    assert cls.__doc__
    assert f"| `{name}` |" in (DOCS / "extensions.md").read_text()


@pytest.mark.parametrize("name", ["BeforeTool", "BeforeTurn", "StepPlan", "CompactionPlan", "ToolOutcome"])
def test_what_hooks_return_is_told_with_its_fields(name):
    """The page names the room to import it from, and each field."""
    room = import_module("kit_jupyter.tool" if name == "ToolOutcome" else "kit_jupyter.extension")
    named = ", ".join(f"`{field.name}`" for field in fields(getattr(room, name)))
    page = (DOCS / "extensions.md").read_text()

    assert f"| `{name}` | {named} |" in page
    assert f"`{room.__name__}`" in page


def test_the_gate_of_the_page_gates():
    """Its code as it stands: the import, a block with a reason, changed arguments, and text beside the prompt."""
    page = (DOCS / "extensions.md").read_text()
    (code,) = [block for block in re.findall(r"^```python\n(.*?)^```", page, re.M | re.S) if "BeforeTool" in block]
    names = {}
    exec(compile(code, "extensions.md", "exec"), names)
    asked = []

    def orders(last: int = 10) -> str:
        """Orders."""
        asked.append(last)
        return "none"

    calls = [tool_call("orders", last=200), tool_call("orders", last=50), tool_call("orders")]
    provider = ScriptedProvider(calls, "so")
    kit = Kit(provider=provider, tools=[orders], extensions=[names["Careful"]()], session="memory")
    kit.prompt_sync("what came in?")

    assert asked == [10, 10]
    results = [m for m in kit.history if m.role == "tool"]
    assert [m.is_error for m in results] == [True, False, False]
    assert "at most 100 rows" in results[0].parts[0].text
    assert "The budget is 100 rows." in str(provider.requests[0].messages)
