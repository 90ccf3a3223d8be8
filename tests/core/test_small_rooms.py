"""The short roads through the core that no longer story takes: tools added later, shapes that point at themselves."""

from __future__ import annotations

import builtins
import copy
import importlib
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from kit_jupyter import UsageError, deltas, messages, places
from kit_jupyter.events import ToolOutput
from kit_jupyter.messages import ModelRef, Tokens, ToolSpec
from kit_jupyter.price import price_of
from kit_jupyter.structured import Format, Misfit
from kit_jupyter.testing import record_events, tool_call

from .helpers import area


class Tree(BaseModel):
    """A shape that holds itself: its schema is a reference."""

    name: str
    below: list[Tree] = []


def test_a_shape_that_holds_itself_is_an_object_of_its_own() -> None:
    """Its schema is a reference at the top; it is not wrapped, and what comes is read as its class."""
    shape = Format(Tree)

    assert not shape.is_wrapped
    assert shape.read('{"name": "a", "below": [{"name": "b"}]}').below[0] == Tree(name="b")
    assert Format(list[Tree]).read('{"value": [{"name": "a"}]}') == [Tree(name="a")]


def test_deltas_are_found_among_the_messages_too() -> None:
    """Their room is `deltas`; whoever writes a provider imports all of its words from `messages`."""
    assert {name for name in deltas.__all__ if getattr(messages, name) is not getattr(deltas, name)} == set()
    assert set(deltas.__all__) < set(messages.__all__)
    with pytest.raises(AttributeError, match=r"'kit_jupyter\.messages' has no attribute 'Hologram'"):
        messages.Hologram  # noqa: B018


def test_a_schema_is_checked_as_far_as_can_be_without_the_validator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where `jsonschema` is not installed, what is required must still be there."""
    real = importlib.import_module

    def without(name: str, *more: Any) -> Any:
        if name == "jsonschema":
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(importlib, "import_module", without)
    shape = Format({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]})

    assert shape.read('{"x": 1}') == {"x": 1}
    with pytest.raises(Misfit, match="x: field required"):
        shape.read('{"y": 1}')


def test_sessions_lie_in_the_users_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without ``KIT_DATA_DIR`` it is the platform's own place, and under one's own name."""
    monkeypatch.delenv("KIT_DATA_DIR")
    where = places.data_dir()

    assert where.name == "kit-jupyter"
    assert where.is_absolute()
    assert where in places.sessions_dir().parents


def test_without_the_table_of_prices_a_cost_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """S119: never a false zero."""
    real = builtins.__import__

    def without(name: str, *more: Any, **facts: Any) -> Any:
        if name == "genai_prices":
            raise ImportError(name)
        return real(name, *more, **facts)

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "genai_prices", raising=False)

    assert price_of(ModelRef("openai", "gpt-4o-mini"), Tokens(input=10, output=10)) is None


def test_a_kit_is_not_copied_or_pickled(make: Any) -> None:
    """Two of them would be two writers of one session; the error names what to use instead."""
    kit, _ = make("ok")
    for way in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"kit\.sibling\(\) makes a fresh one"):
            way(kit)


async def test_tools_can_come_and_go_between_turns(make: Any) -> None:
    """`add_tool`, `@kit.tool` and `remove_tool`; a definition made again takes the place of the old one."""
    kit, provider = make("one", "two", "three", tools=[area])

    def named(told: str) -> Any:
        def when() -> str:
            return told

        when.__doc__ = told
        return when

    kit.tool(named("The first."))
    await kit.prompt("a")
    kit.tool(approve="allow")(named("The second."))
    await kit.prompt("b")
    kit.remove_tool("when")
    kit.remove_tool("never there")
    await kit.prompt("c")

    offered = [{spec.name: spec.description for spec in request.tools} for request in provider.requests]
    assert [sorted(each) for each in offered] == [["area", "when"], ["area", "when"], ["area"]]
    assert [each.get("when") for each in offered] == ["The first.", "The second.", None]
    with pytest.raises(UsageError, match="area"):
        kit.add_tool(area)


async def test_a_tool_asks_in_the_middle_and_says_how_far_it_is(make: Any) -> None:
    """A tool's own question goes the way of all questions; numbers that are none are left out of its progress."""
    heard: list[bool] = []

    class Careful:
        """Asks before the second half."""

        legs = None
        parallel_safe = False
        timeout_seconds = None
        approve = "allow"
        spec = ToolSpec(name="careful", description="Careful.", schema={"type": "object"})

        def validate(self, arguments: Any) -> dict[str, Any]:
            return dict(arguments)

        async def run(self, context: Any, arguments: Any) -> str:
            context.progress(1, 4)
            context.progress(float("nan"))
            context.progress("x", done=9, total=-1)  # type: ignore[call-arg]
            context.progress("y", done="half")
            heard.append(await context.ask("go on?", suggestion="careful *"))
            context.state["seen"] = True
            return "done"

    kit, _ = make([tool_call("careful")], "over", tools=[Careful()], approver=lambda question: "go on" in question.text)
    with record_events(kit) as log:
        await kit.prompt("go")

    far = [(e.done, e.total) for e in log if isinstance(e, ToolOutput) and e.done is not None]
    assert far == [(1.0, 4.0), (9.0, None)]
    assert [e.text for e in log if isinstance(e, ToolOutput) and e.text] == ["x", "y"]
    assert heard == [True]


def test_a_user_whom_the_system_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad surroundings: a container without HOME and passwd entry gets one line that says what to set."""
    import pwd

    def unknown(uid: int) -> None:
        raise KeyError(f"uid not found: {uid}")

    for name in ("HOME", "KIT_DATA_DIR", "XDG_DATA_HOME", "KIT_CONFIG_DIR", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)

    for folder in (places.data_dir, places.config_dir, places.cache_dir):
        with pytest.raises(UsageError, match=r"folder is not known .*set HOME"):
            folder()
    monkeypatch.setenv("KIT_DATA_DIR", "/somewhere")
    assert places.data_dir() == Path("/somewhere")
