"""Who may do what: rules, the policy that applies them, and the person who is asked.

Theory of operation
-------------------
A tool may tell what a call needs (`Access`: an action, a resource and what kind of touch it is);
one that does not needs its own name. For each need the *last* rule that matches decides, and a
need that no rule matches gets the preset's word for its kind::

                  look    act     function  outside  sensitive  unsure  loop
    read-only     allow   deny    ask       deny     deny       deny    ask
    ask           allow   ask     allow     ask      ask        ask     ask
    auto          allow   allow   allow     ask      ask        ask     ask

The strictest of all needs is the call's effect. ``unsure`` is what could not be read (a shell line
that does not parse): it always asks, whatever an allow rule says. ``loop`` is the same call three
times in a row. A tool's own wish comes after the preset and before the person's rules, except that
"deny", and every answer of a wish that is a function, is final. Whatever raises counts as "ask".

The idea of last-match rules with an action and a pattern is opencode's; sub-agents inherit every
denial here.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

from kit_jupyter.approvers import (
    Approval,
    Approver,
    CallbackApprover,
    NobodyThere,
    PendingApprover,
    Question,
    StdinApprover,
    approver_of,
    own_copy,
)
from kit_jupyter.errors import UsageError
from kit_jupyter.messages import now
from kit_jupyter.rules import (
    KNOWN_ACTIONS,
    STRANGERS,
    STRICTNESS,
    Access,
    Effect,
    Kind,
    Need,
    Rule,
    RuleStore,
    TellsAccess,
    literal,
    nearest_action,
    rule_of,
)
from kit_jupyter.tool import Tool, ToolContext

__all__ = [
    "PRESETS",
    "Access",
    "Approval",
    "Approver",
    "CallbackApprover",
    "Decision",
    "Effect",
    "Kind",
    "Need",
    "NobodyThere",
    "PendingApprover",
    "Policy",
    "Question",
    "Rule",
    "RulePolicy",
    "RuleStore",
    "StdinApprover",
    "approver_of",
    "audit_record",
    "policy_of",
    "question_of",
]

PRESETS: dict[str, dict[str, Effect]] = {
    "read-only": {
        "look": "allow",
        "act": "deny",
        "function": "ask",
        "outside": "deny",
        "sensitive": "deny",
        "unsure": "deny",
        "loop": "ask",
    },
    "ask": {
        "look": "allow",
        "act": "ask",
        "function": "allow",
        "outside": "ask",
        "sensitive": "ask",
        "unsure": "ask",
        "loop": "ask",
    },
    "auto": {
        "look": "allow",
        "act": "allow",
        "function": "allow",
        "outside": "ask",
        "sensitive": "ask",
        "unsure": "ask",
        "loop": "ask",
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the policy says of a call: the effect, why, and the rules it suggests for "always"."""

    effect: Effect
    reason: str = ""
    question: str = ""
    suggestion: str = ""


class Policy(Protocol):
    """Judges a call before it runs; a policy that raises counts as "ask"."""

    def decide(self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> Decision:
        """Allow, ask or deny."""
        ...

    def remember(self, question: Question, approval: Approval) -> None:
        """Take note of an answer whose scope is session or always."""
        ...


def _needs(tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> Access:
    access = getattr(tool, "access", None)  # as `TellsAccess`, without the look through the class that isinstance takes
    if callable(access):
        return cast(TellsAccess, tool).access(arguments, context)
    texts = [v for v in arguments.values() if isinstance(v, str)]
    return Access(needs=(Need(tool.spec.name, texts[0] if texts else "", "function", "*"),))


# ---------------------------------------------------------------- the policy


class RulePolicy:
    """A preset, the person's rules, and what they answered with "session" or "always".

    Parameters
    ----------
    preset : {"read-only", "ask", "auto"}
    rules : sequence of Rule, dict or tuple
        Later ones win.
    store : RuleStore or None
        Where "always" is kept; None keeps it for this session only.

    Notes
    -----
    `decide` and `remember` may be called from any thread.

    Examples
    --------
    >>> RulePolicy("ask", [("shell", "git *", "allow"), ("shell", "git push *", "deny")]).preset
    'ask'
    """

    def __init__(self, preset: str = "ask", rules: Sequence[Any] = (), *, store: RuleStore | None = None) -> None:
        if preset not in PRESETS:
            raise UsageError(f"unknown permissions preset {preset!r}; known: {', '.join(PRESETS)}")
        self.preset = preset
        self.rules = tuple(rule_of(rule) for rule in rules)
        self.store = store
        self.session_rules: list[Rule] = []
        self._parent: RulePolicy | None = None
        self._lock = threading.Lock()
        self._last_call: tuple[str, str, int] = ("", "", 0)  # call id, what, how often

    def decide(self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> Decision:
        """Allow, ask or deny; never raises."""
        return self._judge(tool, arguments, context, count=True)

    def _judge(self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext, *, count: bool) -> Decision:
        """Our word and, for a child, its parent's: the stricter one. Only our own calls count as repetitions."""
        try:
            decision = self._decide(tool, arguments, context, count=count)
        except Exception as exc:
            decision = Decision(effect="ask", reason=f"the policy could not judge it ({type(exc).__name__}: {exc})")
        if self._parent is not None:
            above = self._parent._judge(tool, arguments, context, count=False)
            if STRICTNESS[above.effect] > STRICTNESS[decision.effect]:
                return above
        return decision

    def _decide(self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext, *, count: bool) -> Decision:
        wish = self._wish(tool, arguments, context)
        access = _needs(tool, arguments, context)
        needs = access.needs
        repeats = self._repeats(tool, arguments, context) if count else 0
        if repeats >= 3:
            needs = (*needs, Need("loop", tool.spec.name, "loop"))
        worst: Effect = "allow"
        reasons: list[str] = []
        acting: list[str] = []
        suggested: list[str] = []
        for need in needs:
            effect, why = self._effect(need, wish, arguments, context)
            if effect != "allow":
                if need.kind == "act" and why == _WHY["act"].format(need=need):
                    acting.append(need.action)
                reasons.append(why)
                offer = f"{need.action} {need.pattern or literal(need.resource) or '*'}"
                # A rule is a line: what could end one, or hides, would be stored as other rules than were shown.
                is_plain = offer.isprintable() and need.resource == need.resource.strip() and len(offer) <= 300
                if need.kind != "unsure" and is_plain and offer not in suggested:
                    suggested.append(offer)
            worst = max(worst, effect, key=lambda e: STRICTNESS[e])
        final = wish is not None and (wish[0] == "deny" or (callable(tool.approve) and wish[0] == "ask"))
        if wish is not None and final:
            if STRICTNESS[wish[0]] > STRICTNESS[worst]:
                worst = wish[0]
            reasons.append(wish[1])
            suggested = []  # an "always" could not overrule it
        question = access.question or (_ask_text(tool, arguments) if worst == "ask" else "")
        if repeats >= 3 and worst == "ask":
            question = f"{question}\n(the same call, {repeats} times in a row)"
        return Decision(
            effect=worst,
            reason="; ".join(_said_once(reasons, acting)),
            question=question,
            suggestion="\n".join(suggested) if worst == "ask" else "",
        )

    @staticmethod
    def _wish(tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> tuple[Effect, str] | None:
        """What the tool wants, and why; anything but a clear answer is "ask"."""
        approve = tool.approve
        if approve is None:
            return None
        if not callable(approve):
            return (approve, f'the tool was made with approve="{approve}"') if approve in STRICTNESS else ("ask", "")
        try:
            said = approve(own_copy(arguments), context)
        except Exception as exc:
            return "ask", f"the tool's approve rule failed ({type(exc).__name__}: {exc})"
        if isinstance(said, str) and said in STRICTNESS:
            return cast(Effect, said), f"the tool's approve rule says {said}"
        return "ask", f"the tool's approve rule gave {said!r}"

    def _effect(
        self, need: Need, wish: tuple[Effect, str] | None, arguments: Mapping[str, Any], context: ToolContext
    ) -> tuple[Effect, str]:
        base = PRESETS[self.preset][need.kind]
        effect, why = base, _WHY[need.kind].format(need=need)
        opens = wish is not None and wish[0] == "allow"
        if wish is not None and need.kind != "loop" and not (opens and need.kind in _GUARDED):
            effect, why = wish
        for rule in (*self.rules, *self._remembered()):
            if not rule.matches(need):
                continue
            if rule.when is not None:
                try:
                    if not rule.when(own_copy(arguments), context):
                        continue
                except Exception as exc:
                    effect, why = "ask", f"the rule's condition failed ({type(exc).__name__}: {exc})"
                    continue
            # What could not be read cannot have been meant by a rule.
            if need.kind == "unsure" and rule.effect == "allow":
                continue
            # Nor does a plain "everything" rule open what lies outside or holds secrets: the action must be named.
            if need.kind in _GUARDED and rule.effect == "allow" and rule.action == "*":
                continue
            effect, why = rule.effect, f"rule {rule.action} {rule.pattern}: {rule.effect}"
        return effect, why

    def _remembered(self) -> tuple[Rule, ...]:
        stored = self.store.rules if self.store is not None else ()
        above = self._parent._remembered() if self._parent is not None else ()
        with self._lock:
            return (*above, *stored, *self.session_rules)

    def _repeats(self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> int:
        what = f"{tool.spec.name} {_canonical(arguments)}"
        call_id = getattr(context, "call_id", "")
        with self._lock:
            last_id, last_what, times = self._last_call
            if what != last_what:
                times = 1
            elif not call_id or call_id != last_id:  # the same call judged twice counts once
                times += 1
            self._last_call = (call_id, what, times)
            return times

    def remember(self, question: Question, approval: Approval) -> None:
        """Keep the suggested rules for this session or, in the store, for this project.

        A question without a suggestion is not remembered: what was asked was too special.
        """
        if approval.scope == "once" or not question.suggestion:
            return
        effect: Effect = "allow" if approval.allowed else "deny"
        rules = [Rule.parse(line, effect) for line in question.suggestion.split("\n") if line.strip()]
        holder = self
        while holder._parent is not None:
            holder = holder._parent
        if approval.scope == "always" and holder.store is not None:
            holder.store.add(rules)
        else:
            with holder._lock:
                holder.session_rules.extend(rules)

    def always_asks(self, tool: Tool, arguments: Mapping[str, Any] | None = None) -> bool:
        """Whether no call of `tool` that does more than look runs without a person's word.

        A rule that allows some places or commands only does not change that: what it lets through goes
        where its pattern says. One that would let a call to a stranger's place through does.

        Parameters
        ----------
        arguments : dict or None
            Ask about calls with these; None about all.
        """
        if self._parent is not None and self._parent.always_asks(tool, arguments):
            return True
        if callable(tool.approve):
            return False  # it may allow
        try:
            needs = _needs(tool, arguments or {}, cast(ToolContext, None)).needs
        except Exception:  # it wants to see arguments before it tells
            needs = ()
        # Without arguments it may seem only to look; the question is of its other calls.
        needs = tuple(need for need in needs if need.kind != "look") or (Need(tool.spec.name),)
        return any(self._always_asks_for(need, tool.approve) for need in needs)

    def _always_asks_for(self, need: Need, wish: Effect | None) -> bool:
        kind = need.kind
        base = PRESETS[self.preset][kind] if wish is None or (wish == "allow" and kind in _GUARDED) else wish
        for resource in (need.resource,) if need.resource else STRANGERS:
            effect = base
            for rule in (*self.rules, *self._remembered()):
                if not rule.matches(replace(need, resource=resource)) or (rule.when and rule.effect != "allow"):
                    continue
                if rule.effect == "allow" and (kind == "unsure" or (kind in _GUARDED and rule.action == "*")):
                    continue
                effect = rule.effect
            if effect == "allow":
                return False
        return True

    def warn_of_names(self, tools: Iterable[str]) -> None:
        """Warn, with `warnings`, of rules for a name that is none of `tools` nor of ours, but nearly one.

        A rule for a name that is like no other says nothing wrong: that tool may come later.
        """
        if self._parent is not None:  # said where these rules were given
            return
        names = (*KNOWN_ACTIONS, *tools)
        for rule in self.rules:
            if near := nearest_action(rule, names):
                warnings.warn(
                    f"the permission rule {rule.action} {rule.pattern}: {rule.effect} matches nothing: no tool or "
                    f"action is called {rule.action!r}; did you mean {near!r}?",
                    stacklevel=4,
                )

    def forget_session(self) -> None:
        """Drop what was answered for this session. Any thread."""
        with self._lock:
            self.session_rules.clear()
            self._last_call = ("", "", 0)

    def for_child(self, preset: str | None = None, rules: Sequence[Any] = ()) -> RulePolicy:
        """The policy of a sub-agent: may be stricter than this one, never laxer.

        Parameters
        ----------
        preset, rules
            The child's own; without them it is judged as its parent.
        """
        child = RulePolicy(preset or self.preset, rules if preset or rules else self.rules)
        child._parent = self
        return child


_canonical = json.JSONEncoder(sort_keys=True, default=repr).encode
_plainly = json.JSONEncoder(ensure_ascii=False, default=repr).encode

_GUARDED: tuple[Kind, ...] = ("outside", "sensitive", "unsure")
_WHY: dict[str, str] = {
    "look": "looking is not allowed here",
    "act": "{need.action} changes something or runs code",
    "function": "{need.action} is not allowed without a word here",
    "outside": "{need.resource} is outside the workspace",
    "sensitive": "{need.resource} may hold secrets",
    "unsure": "{need.action} could not be judged: {need.resource}",
    "loop": "the same call several times in a row",
}


def _said_once(reasons: Iterable[str], acting: Iterable[str]) -> list[str]:
    """Reasons without repetition; what is said alike of several actions is said of all of them at once.

    Examples
    --------
    >>> alike = [_WHY["act"].format(need=Need(action)) for action in ("python", "python.files")]
    >>> _said_once(["", *alike, "rule a b: ask"], ["python", "python.files"])
    ['python and python.files change something or run code', 'rule a b: ask']
    """
    actions = list(dict.fromkeys(acting))
    said = list(dict.fromkeys(filter(None, reasons)))
    if len(actions) < 2:
        return said
    alike = [_WHY["act"].format(need=Need(action)) for action in actions]
    at = said.index(alike[0])
    together = f"{', '.join(actions[:-1])} and {actions[-1]} change something or run code"
    return [*said[:at], together, *(reason for reason in said[at:] if reason not in alike)]


def _ask_text(tool: Tool, arguments: Mapping[str, Any]) -> str:
    shown = json.dumps(dict(arguments), ensure_ascii=False, default=repr)
    return f"Run {tool.spec.name} with {shown if len(shown) <= 2000 else shown[:2000] + ' …'}?"


def policy_of(value: Any = None, *, store: RuleStore | None = None) -> Policy:
    """A policy of what people write for ``permissions=``.

    Parameters
    ----------
    value : None, preset name, list of rules, dict or Policy
        None is "ask"; a list is laid over "ask"; a dict has ``preset`` and ``rules``.
    store : RuleStore or None
        Where "always" is kept.

    Raises
    ------
    UsageError
        For anything else.

    Examples
    --------
    >>> policy_of("auto").preset, len(policy_of([("shell", "ls *", "allow")]).rules)
    ('auto', 1)
    """
    if value is None:
        return RulePolicy(store=store)
    if isinstance(value, str):
        return RulePolicy(value, store=store)
    if isinstance(value, Rule):
        return RulePolicy(rules=[value], store=store)
    if isinstance(value, Mapping):
        if set(value) - {"preset", "rules"}:
            raise UsageError(f"permissions as a dict have preset and rules, got {sorted(map(str, value))}")
        return RulePolicy(value.get("preset", "ask"), value.get("rules", ()), store=store)
    if hasattr(value, "decide") and hasattr(value, "remember"):
        return cast(Policy, value)
    if isinstance(value, Sequence):
        return RulePolicy(rules=value, store=store)
    raise UsageError(f"permissions is a preset, a list of rules or a Policy, got {type(value).__name__}")


def question_of(tool: Tool, arguments: Mapping[str, Any], decision: Decision, call_id: str) -> Question:
    """The question to put for a decision of "ask"."""
    text = decision.question or _ask_text(tool, arguments)
    if decision.reason and decision.reason not in text:
        text = f"{text}\n({decision.reason})"
    return Question(
        call_id=call_id,
        tool_name=tool.spec.name,
        arguments=arguments,
        text=text,
        suggestion=decision.suggestion,
        reason=decision.reason,
    )


def audit_record(
    tool_name: str,
    call_id: str,
    arguments: Mapping[str, Any],
    decision: Decision,
    approval: Approval | None = None,
) -> dict[str, Any]:
    """One decision as JSON values for the session's log (``session.append_custom("permission", …)``).

    Says what was asked, by which rule, who answered what, and with which arguments it ran; secrets
    are masked, long values cut.
    """
    from kit_jupyter.masking import mask

    def shown(values: Mapping[str, Any]) -> dict[str, str]:
        return {name: mask(_plainly(v))[:500] for name, v in values.items()}

    allowed = decision.effect == "allow" if approval is None else approval.allowed
    record: dict[str, Any] = {
        "time": now().created,
        "call_id": call_id,
        "tool": tool_name,
        "arguments": shown(arguments),
        "policy": decision.effect,
        "why": mask(decision.reason),
        "allowed": allowed,
        "by": "policy" if approval is None else approval.by,
    }
    if approval is not None:
        record |= {"scope": approval.scope, "reason": mask(approval.reason)}
        if approval.arguments is not None:
            record["edited"] = shown(approval.arguments)
        if approval.scope != "once":
            record["rules"] = decision.suggestion.split("\n")
    return record
