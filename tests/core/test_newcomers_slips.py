"""What a newcomer gets wrong at first is said plainly, or works."""

from __future__ import annotations

from typing import Any

import pytest

from kit_jupyter import Kit, PromptOptions
from kit_jupyter.errors import SessionError, UsageError
from kit_jupyter.events import ApprovalAsked, ApprovalGiven
from kit_jupyter.testing import ScriptedProvider, text, tool_call
from kit_jupyter.tool import tool


@tool(approve="ask")
def area(width: int) -> int:
    """Area of a square."""
    return width * width


def scripted(*replies: Any, **more: Any) -> Kit:
    return Kit(provider=ScriptedProvider(*replies), session="memory", **more)


@pytest.mark.parametrize(("answer", "is_error"), [("approve", False), ("deny", True)])
async def test_an_observer_answers_in_a_script(answer: str, is_error: bool) -> None:
    """approver="events": whoever observes ApprovalAsked is the person; no terminal, no view (U69)."""
    kit = scripted([tool_call("area", width=7)], [text("done")], tools=area, approver="events")
    given: list[str] = []
    kit.subscribe(lambda e: getattr(kit, answer)(e.call_id), ApprovalAsked)
    kit.subscribe(lambda e: given.append(e.effect), ApprovalGiven, inline=True)

    await kit.prompt("how large?")

    (result,) = [m for m in kit.history if m.role == "tool"]
    assert result.is_error is is_error  # type: ignore[union-attr]
    assert given == ["deny" if is_error else "allow"]
    assert not kit.pending_approvals


@pytest.mark.parametrize(
    ("fn", "types", "words"),
    [
        (None, (), "function of one event, got None"),
        (print, ("ApprovalAsked",), "without quotes"),
        (print, (int,), "by their classes"),
        (print, (ApprovalAsked, "Nothing"), "got 'Nothing'"),
    ],
)
def test_a_wrong_subscription_is_refused(fn: Any, types: tuple[Any, ...], words: str) -> None:
    """An observer that would never be called, or fail at each event, is said at once."""
    with pytest.raises(UsageError, match=words):
        scripted([text("x")]).subscribe(fn, *types)


def test_one_tool_needs_no_list() -> None:
    """tools=f is tools=[f], and what is there can be read."""
    kit = scripted([text("x")], tools=area, max_steps=7)

    assert list(kit.tools) == ["area"]
    assert repr(kit.tools) == "<Toolbox: area>"
    assert "max_steps=7" in repr(kit.settings)
    assert "temperature" not in repr(kit.settings)


def test_a_session_to_be_made_is_told_how() -> None:
    """A name that is not here yet."""
    with pytest.raises(SessionError, match=r"kit\.name = 'study-that-is-not-here'"):
        Kit(provider=ScriptedProvider(), session="study-that-is-not-here")


def test_an_option_of_a_prompt_is_told_as_one() -> None:
    """base_url and the like go with a prompt."""
    with pytest.raises(UsageError, match=r"option of a prompt: .*PromptOptions\(base_url="):
        Kit(provider=ScriptedProvider(), session="memory", base_url="http://127.0.0.1:1")
    assert PromptOptions(base_url="http://127.0.0.1:1").base_url


async def test_a_template_without_a_mark_is_refused() -> None:
    """Else every row asks the same."""
    kit = scripted([text("x")], [text("y")])
    with pytest.raises(UsageError, match=r"no mark.*\{text\}"):
        await kit.map(["a", "b"], "Is it good?")
