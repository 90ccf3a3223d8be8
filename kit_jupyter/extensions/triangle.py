"""Asks a person before the call that closes the lethal trifecta, and says why."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kit_jupyter.extension import BeforeTurn, Extension, ExtensionContext
from kit_jupyter.permissions import Approval, Decision, Policy, Question, policy_of
from kit_jupyter.tool import Tool, ToolContext
from kit_jupyter.trifecta import ALL_LEGS, Legs, closes_triangle

__all__ = ["TriangleGuard", "TrianglePolicy"]


class TrianglePolicy:
    """A policy that watches which legs a conversation has used.

    A call is judged by `inner` first. What that allows is looked at again: if private data, untrusted
    text and an unread way out would now meet, a person is asked, whatever the rules say. A call that
    a person is asked about anyway gets the reason added.

    Parameters
    ----------
    inner : Policy, or what `Kit` takes as permissions
        The policy that judges first.
    undeclared : Legs
        What is assumed of a tool that declares nothing: all legs, so the guard asks before each.

    Notes
    -----
    Legs count from the moment a call is judged, so two calls of one step cannot close the triangle
    together unseen. Sub-agents share the record. Any thread.
    """

    def __init__(self, inner: Any = None, *, undeclared: Legs = ALL_LEGS) -> None:
        self.inner: Policy = policy_of(inner)
        self._undeclared = undeclared
        self._record = _Record()

    def __getattr__(self, name: str) -> Any:
        if name == "inner":  # not made yet: copying and pickling ask for it
            raise AttributeError(name)
        return getattr(self.inner, name)

    @property
    def held(self) -> Legs:
        """Legs that the conversation has used so far."""
        return self._record.held

    def decide(self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> Decision:
        """Allow, ask or deny."""
        decision = self.inner.decide(tool, arguments, context)
        if decision.effect == "deny":
            return decision
        why = self._record.add(self._undeclared if tool.legs is None else tool.legs)
        if not why:
            return decision
        if tool.legs is None:
            why += " (it declares no legs, so all are assumed)"
        reason = f"it would close the lethal trifecta: {why}"
        question = decision.question or f"Run {tool.spec.name}?"
        # No suggestion: "always" would switch the guard off for this tool.
        return replace(
            decision, effect="ask", reason=reason, question=f"{question}\nWhy you are asked: {why}.", suggestion=""
        )

    def always_asks(self, tool: Tool, arguments: Mapping[str, Any] | None = None) -> bool:
        """True for whatever can send: the call that would bring the legs together on an unread way is asked for."""
        if tool.legs is None or tool.legs.egress != "none":
            return True
        inner = getattr(self.inner, "always_asks", None)
        return callable(inner) and bool(inner(tool, arguments))

    def take_in(self, legs: Legs | None) -> None:
        """Count what came in before this policy watched; None for not declared."""
        self._record.add(self._undeclared if legs is None else legs)

    def remember(self, question: Question, approval: Approval) -> None:
        """Hand an answer on to the inner policy."""
        self.inner.remember(question, approval)

    def forget(self) -> None:
        """Begin anew: the conversation was cleared."""
        self._record.clear()

    def for_child(self, *args: Any, **options: Any) -> TrianglePolicy:
        """The policy of a sub-agent: the inner one's for it, with the same record."""
        for_child = getattr(self.inner, "for_child", None)
        inner = for_child(*args, **options) if callable(for_child) else self.inner
        child = TrianglePolicy(inner, undeclared=self._undeclared)
        child._record = self._record
        return child


class _Record:
    def __init__(self) -> None:
        self.held = Legs()
        self._lock = threading.Lock()

    def add(self, legs: Legs) -> str:
        with self._lock:
            why = closes_triangle(self.held, legs)
            self.held = self.held | legs
            return why

    def clear(self) -> None:
        with self._lock:
            self.held = Legs()


class TriangleGuard(Extension):
    """Has a `TrianglePolicy` begin anew at each clear, and know what a session brings along that is gone on with.

    Examples
    --------
    >>> from kit_jupyter import Kit
    >>> from kit_jupyter.testing import ScriptedProvider
    >>> guard = TriangleGuard("auto")
    >>> kit = Kit(provider=ScriptedProvider(), session="memory", permissions=guard.policy, extensions=[guard])
    >>> print(guard.policy.held)
    no legs
    """

    name = "TriangleGuard"

    def __init__(self, inner: Any = None, *, undeclared: Legs = ALL_LEGS) -> None:
        self.policy = TrianglePolicy(inner, undeclared=undeclared)
        self._ctx: ExtensionContext | None = None

    def bind(self, ctx: ExtensionContext) -> None:
        """Keep the context."""
        self._ctx = ctx

    def before_turn(self, turn: BeforeTurn) -> None:
        """Count the calls that the conversation holds: it may have been opened, or moved to another branch."""
        if self._ctx is None:
            return
        tools, messages = self._ctx.kit.tools, self._ctx.kit.messages
        called = {call.name for message in messages for call in getattr(message, "tool_calls", ())}
        answered = {message.name for message in messages if message.role == "tool" and not message.is_error}
        for name in called & (tools.keys() | answered):  # a name that the model made up brought nothing in
            self.policy.take_in(tools[name].legs if name in tools else None)

    def on_conversation_reset(self, ctx: ExtensionContext) -> None:
        """What came in has gone."""
        self.policy.forget()
