"""What hooks get and give, and the table of all hooks: there is no other."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kit_jupyter.messages import Message
from kit_jupyter.tool import Tool

__all__ = [
    "CHAINED",
    "HANDLED",
    "HOOKS",
    "REQUIRED",
    "BeforeTool",
    "BeforeTurn",
    "CompactionPlan",
    "HookFacts",
    "StepPlan",
    "misspelt_hooks",
    "nearest_hook",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeTool:
    """A gate's word on a call: block it with a reason, or change its arguments."""

    block: bool = False
    reason: str = ""
    arguments: Mapping[str, Any] | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BeforeTurn:
    """What a before-turn hook may change: the prompt's text, the system prompt, text added beside it."""

    prompt: str | None = None
    system: str | None = None
    inject: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What one model call will use; a prepare-step hook returns a changed copy."""

    number: int
    tools: tuple[Tool, ...]
    tool_choice: str = "auto"
    model: str = ""
    temperature: float | None = None
    max_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPlan:
    """What is about to be summarised; a before-compact hook may cancel it or bring the summary."""

    reason: str
    messages: tuple[Message, ...]
    tokens_before: int
    instructions: str | None = None
    cancel: bool = False
    cancel_reason: str = ""
    summary: str | None = None


class Handled:
    def __repr__(self) -> str:
        return "HANDLED"


HANDLED: Final = Handled()
"""Returned by an on-input hook that has dealt with the text: no turn begins."""


@dataclass(frozen=True, slots=True)
class HookFacts:
    """One row of the hook table: when a hook is called, what it gets and returns, and what a failure does.

    Parameters
    ----------
    name : str
    when, gets, returns, on_error : str
        For the documentation; checked against it by a test.
    required : bool
        A class that does not inherit from `Extension` must have it.
    """

    name: str
    when: str
    gets: str
    returns: str
    on_error: str
    required: bool = False


_BUILD_FAILS = "construction fails, closers run"
_PASSED_OVER = "reported, passed over"

HOOKS: Final[tuple[HookFacts, ...]] = (
    HookFacts(
        "configure", "at once when added, while the Kit is built, once per instance", "c", "-", _BUILD_FAILS, True
    ),
    HookFacts(
        "system_prompt_snippets",
        "after every configure, and at each clear",
        "nothing",
        "list of text; None and blank dropped",
        "reported, no section from it; slow: a warning",
        True,
    ),
    HookFacts("bind", "when the Kit has its tools, prompt and id", "ctx", "-", _BUILD_FAILS, True),
    HookFacts(
        "on_user_message",
        "after each user message was stored: a prompt, or a delivered steer",
        "ctx, content",
        "text for a reference block, or None",
        _PASSED_OVER,
        True,
    ),
    HookFacts("on_conversation_reset", "in a clear, after the Reset event", "ctx", "-", _PASSED_OVER, True),
    HookFacts(
        "trifecta_contribution",
        "when the trifecta report is asked for",
        "tools",
        "Contribution or None; another type raises",
        "reported, shown as a gap",
    ),
    HookFacts(
        "on_input",
        "before a prompt is stored",
        "text, source",
        "other text, HANDLED, or None; chained",
        _PASSED_OVER,
    ),
    HookFacts(
        "before_turn",
        "before the first step of a turn",
        "turn",
        "BeforeTurn or None; chained, injects add up",
        _PASSED_OVER,
    ),
    HookFacts("after_turn", "when a turn has ended, well or not", "response, error", "-", _PASSED_OVER),
    HookFacts("prepare_step", "before each model call", "plan", "StepPlan or None; chained", _PASSED_OVER),
    HookFacts(
        "edit_prompt",
        "before each model call, when the request is composed",
        "editor",
        "None: the editor is the only channel; chained",
        "reported, all its edits dropped",
    ),
    HookFacts(
        "before_tool",
        "before a tool call is judged by the policy",
        "call, arguments",
        "BeforeTool or None; chained, the first block stops",
        "reported, the call is BLOCKED",
    ),
    HookFacts(
        "after_tool",
        "when a tool has ended, before the model is told",
        "call, outcome",
        "ToolOutcome or None; chained",
        _PASSED_OVER,
    ),
    HookFacts(
        "before_compact",
        "before history is summarised",
        "plan",
        "CompactionPlan or None; chained, the first cancel stops",
        _PASSED_OVER,
    ),
)
REQUIRED: Final = tuple(row.name for row in HOOKS if row.required)
CHAINED: Final = tuple(row.name for row in HOOKS if not row.required and row.name != "trifecta_contribution")
_NAMES: Final = tuple(row.name for row in HOOKS)


def nearest_hook(name: str) -> str:
    """The hook that a method was probably meant to be, by its name; empty for a hook's own name, and for any other.

    Examples
    --------
    >>> nearest_hook("before_tools"), nearest_hook("beforeTool"), nearest_hook("load"), nearest_hook("before_tool")
    ('before_tool', 'before_tool', '', '')
    """
    if name.startswith("_") or name in _NAMES:
        return ""
    closest = max(_NAMES, key=lambda hook: difflib.SequenceMatcher(None, name, hook).ratio())
    if name.replace("_", "").lower() == closest.replace("_", ""):
        return closest
    if "_" not in closest and closest in name:  # reconfigure, unbind, bind_tools
        return ""
    # "before_tool_call" is farther off than other words are, but begins as only hooks do.
    cutoff = 0.8 if name.split("_")[0] == closest.split("_")[0] else 0.88
    return closest if difflib.SequenceMatcher(None, name, closest).ratio() >= cutoff else ""


def misspelt_hooks(extension: object) -> Iterator[tuple[str, str]]:
    """``(method, hook)`` for each public method that bears nearly a hook's name.

    Where the hook itself stands beside it, in the same class, the other is taken for a method of its own.
    """
    places = [getattr(extension, "__dict__", {}), *(vars(kind) for kind in type(extension).__mro__)]
    for place in places:
        for name, value in list(place.items()):
            hook = nearest_hook(name) if isinstance(name, str) else ""
            is_method = inspect.isroutine(value) or isinstance(value, classmethod | staticmethod)
            if hook and is_method and hook not in place:
                yield name, hook
