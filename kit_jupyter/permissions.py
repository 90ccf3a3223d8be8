"""Who may do what: rules, the policy that applies them, and the person who is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from kit_jupyter.tool import Tool, ToolContext

__all__ = ["Approval", "Approver", "Decision", "NobodyThere", "Policy", "Question"]

Effect = Literal["allow", "ask", "deny"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the policy says of a call: the effect, why, and the rule it suggests for "always"."""

    effect: Effect
    reason: str = ""
    question: str = ""
    suggestion: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a person is asked before a call runs."""

    call_id: str
    tool_name: str
    arguments: Mapping[str, Any] = field(hash=False)
    text: str
    suggestion: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A person's answer.

    Parameters
    ----------
    allowed : bool
    reason : str
        Told to the model when denied.
    arguments : dict or None
        Edited arguments, checked again before the tool runs; None keeps them.
    scope : {"once", "session", "always"}
    by : str
        Who answered: widget, magic, stdin, callback, policy, nobody.
    """

    allowed: bool
    reason: str = ""
    arguments: Mapping[str, Any] | None = field(default=None, hash=False)
    scope: Literal["once", "session", "always"] = "once"
    by: str = ""


class Approver(Protocol):
    """Asks a person; fulfilled by widgets, the terminal, callbacks."""

    async def ask(self, question: Question) -> Approval:
        """Wait for the answer, on the engine's loop; cancelled when the turn stops."""
        ...


class NobodyThere:
    """The approver when nobody can be asked: denies, and says what to do."""

    async def ask(self, question: Question) -> Approval:
        """Deny."""
        return Approval(
            allowed=False,
            by="nobody",
            reason=(
                f"{question.tool_name} needs a person's approval and nobody is here to give it; "
                "allow it beforehand with Kit(permissions=...) or run where someone can answer"
            ),
        )


class Policy(Protocol):
    """Judges a call before it runs; a policy that raises counts as "ask"."""

    def decide(self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> Decision:
        """Allow, ask or deny."""
        ...

    def remember(self, question: Question, approval: Approval) -> None:
        """Take note of an answer whose scope is session or always."""
        ...
