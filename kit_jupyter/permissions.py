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

import asyncio
import hashlib
import json
import logging
import os
import re
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol, cast, runtime_checkable

from kit_jupyter.errors import UsageError
from kit_jupyter.loop import current_desk
from kit_jupyter.messages import now
from kit_jupyter.tool import Tool, ToolContext
from kit_jupyter.usercall import UserCall

__all__ = [
    "Access",
    "Approval",
    "Approver",
    "CallbackApprover",
    "Decision",
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
    "config_dir",
    "policy_of",
    "question_of",
]

_log = logging.getLogger("kit_jupyter")

Effect = Literal["allow", "ask", "deny"]
Kind = Literal["look", "act", "function", "outside", "sensitive", "unsure", "loop"]
_STRICT: dict[str, int] = {"allow": 0, "ask": 1, "deny": 2}

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


# ---------------------------------------------------------------- the contract


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What the policy says of a call: the effect, why, and the rules it suggests for "always"."""

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


class Policy(Protocol):
    """Judges a call before it runs; a policy that raises counts as "ask"."""

    def decide(self, tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> Decision:
        """Allow, ask or deny."""
        ...

    def remember(self, question: Question, approval: Approval) -> None:
        """Take note of an answer whose scope is session or always."""
        ...


# ---------------------------------------------------------------- needs and rules


@dataclass(frozen=True, slots=True)
class Need:
    """One thing a call touches.

    Parameters
    ----------
    action : str
        What rules match first: ``shell``, ``read``, ``write``, ``web_fetch``, a function tool's name.
    resource : str
        What their pattern matches: a command, a path, an address.
    kind : {"look", "act", "function", "outside", "sensitive", "unsure"}
        How it touches; decides when no rule matches.
    pattern : str
        The pattern to suggest for "always"; empty offers the resource itself.
    """

    action: str
    resource: str = ""
    kind: Kind = "act"
    pattern: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a call needs, and how to put it to a person."""

    needs: tuple[Need, ...]
    question: str = ""


@runtime_checkable
class TellsAccess(Protocol):
    """A tool that says what a call needs; the others need their own name."""

    def access(self, arguments: Mapping[str, Any], context: ToolContext) -> Access:
        """Quick and without side effects; a failure counts as "ask"."""
        ...


@lru_cache(maxsize=512)
def _glob(pattern: str) -> re.Pattern[str]:
    text = os.path.expanduser(pattern) if pattern.startswith("~") else pattern
    tail = text.endswith(" *")  # "git *" is also "git" alone
    body = ""
    for piece in re.findall(r"\\[*?\\]|.", text[:-2] if tail else text, re.DOTALL):
        body += ".*" if piece == "*" else "." if piece == "?" else re.escape(piece[-1])
    return re.compile(body + ("( .*)?" if tail else ""), re.DOTALL)


def literal(text: str) -> str:
    """A pattern that matches exactly `text`.

    Examples
    --------
    >>> print(literal("rm *.txt"))
    rm \\*.txt
    """
    return re.sub(r"([*?\\])", r"\\\1", text)


@dataclass(frozen=True, slots=True)
class Rule:
    """The last rule that matches decides.

    Parameters
    ----------
    action : str
        Glob over the need's action, for example ``shell`` or ``*``.
    pattern : str
        Glob over its resource: ``*`` any text, ``?`` one character, ``~`` home; a
        backslash before one of these means it literally.
    effect : {"allow", "ask", "deny"}
    when : callable(arguments, context) -> bool, or None
        A further condition, which sees the arguments and the session; one that raises makes the
        rule an "ask".

    Examples
    --------
    >>> Rule("shell", "git log *", "allow").matches(Need("shell", "git log"))
    True
    >>> Rule.parse("shell git log *")
    Rule(action='shell', pattern='git log *', effect='allow', when=None)
    """

    action: str
    pattern: str = "*"
    effect: Effect = "allow"
    when: Callable[[Mapping[str, Any], Any], object] | None = None

    def __post_init__(self) -> None:
        if self.effect not in _STRICT:
            raise UsageError(f'a rule\'s effect is "allow", "ask" or "deny", got {self.effect!r}')
        if not isinstance(self.action, str) or not self.action or not isinstance(self.pattern, str):
            raise UsageError(f"a rule is an action and a pattern, got {self.action!r} and {self.pattern!r}")

    @classmethod
    def parse(cls, text: str, effect: Effect = "allow") -> Rule:
        """A rule of the text that questions suggest: the action, a space, the pattern."""
        action, _, pattern = text.strip().partition(" ")
        return cls(action, pattern.strip() or "*", effect)

    def matches(self, need: Need) -> bool:
        """True if action and pattern fit; `when` is not asked."""
        return bool(_glob(self.action).fullmatch(need.action) and _glob(self.pattern).fullmatch(need.resource))


def _rule_of(value: Any) -> Rule:
    if isinstance(value, Rule):
        return value
    if isinstance(value, Mapping):
        unknown = set(value) - {"action", "pattern", "effect", "when"}
        if unknown or "action" not in value:
            raise UsageError(f"a rule has action, pattern, effect and when, got {dict(value)!r}")
        return Rule(**value)
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) in (2, 3, 4):
        return Rule(value[0], value[1], *value[2:]) if len(value) > 2 else Rule(value[0], "*", value[1])
    raise UsageError(f"a rule is Rule(action, pattern, effect), a dict or a tuple of them, got {value!r}")


def _needs(tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> Access:
    if isinstance(tool, TellsAccess):
        return tool.access(arguments, context)
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
        self.rules = tuple(_rule_of(rule) for rule in rules)
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
            if _STRICT[above.effect] > _STRICT[decision.effect]:
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
        suggested: list[str] = []
        for need in needs:
            effect, why = self._effect(need, wish, arguments, context)
            if effect != "allow":
                reasons.append(why)
                offer = f"{need.action} {need.pattern or literal(need.resource) or '*'}"
                if need.kind != "unsure" and "\n" not in offer and len(offer) <= 300 and offer not in suggested:
                    suggested.append(offer)
            worst = max(worst, effect, key=lambda e: _STRICT[e])
        final = wish is not None and (wish[0] == "deny" or (callable(tool.approve) and wish[0] == "ask"))
        if wish is not None and final:
            if _STRICT[wish[0]] > _STRICT[worst]:
                worst = wish[0]
            reasons.append(wish[1])
            suggested = []  # an "always" could not overrule it
        question = access.question or _ask_text(tool, arguments)
        if repeats >= 3 and worst == "ask":
            question = f"{question}\n(the same call, {repeats} times in a row)"
        return Decision(
            effect=worst,
            reason="; ".join(dict.fromkeys(r for r in reasons if r)),
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
            return (approve, "the tool itself says so") if approve in _STRICT else ("ask", "")
        try:
            said = approve(arguments, context)
        except Exception as exc:
            return "ask", f"the tool's approve rule failed ({type(exc).__name__}: {exc})"
        if isinstance(said, str) and said in _STRICT:
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
                    if not rule.when(arguments, context):
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
        what = f"{tool.spec.name} {json.dumps(arguments, sort_keys=True, default=repr)}"
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
        rules = [Rule.parse(line, effect) for line in question.suggestion.splitlines() if line.strip()]
        holder = self
        while holder._parent is not None:
            holder = holder._parent
        if approval.scope == "always" and holder.store is not None:
            holder.store.add(rules)
        else:
            with holder._lock:
                holder.session_rules.extend(rules)

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


def config_dir() -> Path:
    """The user's folder for our configuration; ``KIT_CONFIG_DIR`` moves it."""
    if set_dir := os.environ.get("KIT_CONFIG_DIR"):
        return Path(set_dir)
    import platformdirs

    return Path(platformdirs.user_config_dir("kit-jupyter", appauthor=False))


class RuleStore:
    """The rules a person gave with "always", one file per project, outside the project.

    Parameters
    ----------
    project : Path
        Root of the project.
    folder : Path or None
        None for ``permissions`` in `config_dir`.

    Notes
    -----
    A file that cannot be read gives no rules (so everything is asked) and a warning. Any thread.
    """

    def __init__(self, project: Path, *, folder: Path | None = None) -> None:
        self.project = project.resolve()
        self._folder = folder
        self._lock = threading.Lock()
        self._seen: tuple[float, tuple[Rule, ...]] = (-1.0, ())

    @property
    def path(self) -> Path:
        """The file."""
        folder = self._folder or config_dir() / "permissions"
        name = re.sub(r"[^A-Za-z0-9_-]+", "-", self.project.name)[:40] or "root"
        return folder / f"{name}-{hashlib.sha256(str(self.project).encode()).hexdigest()[:12]}.json"

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What is stored now; read again when the file changed."""
        with self._lock:
            return self._read()

    def _read(self) -> tuple[Rule, ...]:
        try:
            changed = self.path.stat().st_mtime_ns
        except OSError:
            return ()
        if self._seen[0] != changed:
            try:
                body = json.loads(self.path.read_text(encoding="utf-8"))
                rules = tuple(_rule_of({k: v for k, v in rule.items() if k != "when"}) for rule in body["rules"])
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
                _log.warning("permissions file %s is not readable (%s); its rules are not used", self.path.name, exc)
                rules = ()
            self._seen = (changed, rules)
        return self._seen[1]

    def add(self, rules: Sequence[Rule]) -> None:
        """Append, on disk at once and whole."""
        with self._lock:
            kept = list(self._read())
            kept = [rule for rule in kept if rule not in rules] + list(rules)
            body = {
                "project": str(self.project),
                "rules": [{"action": r.action, "pattern": r.pattern, "effect": r.effect} for r in kept],
            }
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".tmp")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(body, file, indent=1)
            os.replace(name, self.path)
            self._seen = (-1.0, ())


# ---------------------------------------------------------------- who is asked


def question_of(tool: Tool, arguments: Mapping[str, Any], decision: Decision, call_id: str) -> Question:
    """The question to put for a decision of "ask"."""
    text = decision.question or _ask_text(tool, arguments)
    if decision.reason and decision.reason not in text:
        text = f"{text}\n({decision.reason})"
    return Question(
        call_id=call_id, tool_name=tool.spec.name, arguments=arguments, text=text, suggestion=decision.suggestion
    )


class NobodyThere:
    """The approver when nobody can be asked: denies, and says what to do."""

    async def ask(self, question: Question) -> Approval:
        """Deny."""
        rule = question.suggestion.splitlines()[0] if question.suggestion else ""
        action, _, pattern = rule.partition(" ")
        how = f"Kit(permissions=[({action!r}, {pattern or '*'!r}, 'allow')])" if action else "Kit(permissions=...)"
        return Approval(
            allowed=False,
            by="nobody",
            reason=(
                f"{question.tool_name} needs a person's approval and nobody is here to give it. "
                "Do not try it again; go on without it, or say what you would have done. "
                f"For the user: allow it beforehand with {how}, or run where someone can answer"
            ),
        )


class PendingApprover:
    """Holds each question by its call id until someone answers, from a widget, a magic or code.

    Parameters
    ----------
    emit : callable(Question) or None
        Told of each new question, on the engine.

    Notes
    -----
    `answer` and `pending` may be used from any thread.
    """

    def __init__(self, emit: Callable[[Question], object] | None = None) -> None:
        self._emit = emit
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[Question, asyncio.Future[Approval], asyncio.AbstractEventLoop]] = {}

    async def ask(self, question: Question) -> Approval:
        """Wait for `answer`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Approval] = loop.create_future()
        with self._lock:
            self._waiting[question.call_id] = (question, future, loop)
        try:
            if self._emit is not None:
                self._emit(question)
            return await future
        finally:
            with self._lock:
                self._waiting.pop(question.call_id, None)

    @property
    def pending(self) -> tuple[Question, ...]:
        """The questions that wait, oldest first."""
        with self._lock:
            return tuple(question for question, _, _ in self._waiting.values())

    def answer(self, call_id: str, approval: Approval) -> None:
        """Answer a question. Any thread.

        Raises
        ------
        UsageError
            When no such question waits (it may have been answered or stopped).
        """
        with self._lock:
            found = self._waiting.pop(call_id, None)
            waiting = ", ".join(self._waiting) or "none"
        if found is None:
            raise UsageError(f"no question waits with call id {call_id!r}; waiting: {waiting}")
        _, future, loop = found

        def settle() -> None:
            if not future.done():
                future.set_result(approval)

        loop.call_soon_threadsafe(settle)


class _DeskThread:
    """The user's thread as `UserCall` wants it; any worker thread when no desk is known."""

    async def on_user_thread(self, fn: Callable[..., Any], *args: Any) -> Any:
        desk = current_desk()
        if desk is not None:
            return await desk.run(fn, *args)

        def there() -> Any:
            value = fn(*args)
            return asyncio.run(_waited(value)) if hasattr(value, "__await__") else value

        return await asyncio.to_thread(there)


async def _waited(value: Any) -> Any:
    return await value


class CallbackApprover:
    """Asks a function, on the user's thread.

    Parameters
    ----------
    fn : callable(Question) -> bool, str or Approval, sync or async
        True allows; False denies; a text denies with that reason. One that raises denies.
    """

    def __init__(self, fn: Callable[[Question], Any]) -> None:
        self._fn = fn

    async def ask(self, question: Question) -> Approval:
        """Call the function."""
        done = await UserCall(lambda: self._fn(question)).run(_DeskThread())
        if done.error is not None or done.interrupted:
            what = f"{type(done.error).__name__}: {done.error}" if done.error is not None else "interrupted"
            return Approval(allowed=False, by="callback", reason=f"the approver failed ({what})")
        match done.value:
            case Approval() as approval:
                return approval
            case True:
                return Approval(allowed=True, by="callback")
            case False | None:
                return Approval(allowed=False, by="callback", reason="denied")
            case str() as reason:
                return Approval(allowed=False, by="callback", reason=reason)
        return Approval(allowed=False, by="callback", reason=f"the approver gave {type(done.value).__name__}")


class StdinApprover:
    """Asks by ``input()`` on the user's thread, for scripts and for front ends without widgets.

    Answers: ``y`` yes, ``n`` no (``n because …`` tells the model why), ``s`` yes for this session,
    ``a`` always in this project, ``e`` edit the arguments as JSON. Where no input can be given, it
    is as `NobodyThere`.
    """

    def __init__(self, ask_line: Callable[[str], str] | None = None) -> None:
        self._ask_line = ask_line

    async def ask(self, question: Question) -> Approval:
        """Ask until the answer is understood."""
        done = await UserCall(lambda: self._dialogue(question)).run(_DeskThread())
        if isinstance(done.value, Approval):
            return done.value
        if isinstance(done.error, KeyboardInterrupt) or done.interrupted:
            return Approval(allowed=False, by="stdin", reason="the user interrupted the question")
        return await NobodyThere().ask(question)

    def _dialogue(self, question: Question) -> Approval:
        ask_line = self._ask_line or input
        more = "/[s]ession/[a]lways" if question.suggestion else ""
        prompt = f"{question.text}\n[y]es/[n]o/[e]dit{more}: "
        while True:
            word, _, rest = ask_line(prompt).strip().partition(" ")
            match word.lower():
                case "y" | "yes":
                    return Approval(allowed=True, by="stdin")
                case "n" | "no":
                    return Approval(allowed=False, by="stdin", reason=rest.strip() or "denied")
                case "s" | "session" if more:
                    return Approval(allowed=True, by="stdin", scope="session")
                case "a" | "always" if more:
                    return Approval(allowed=True, by="stdin", scope="always")
                case "e" | "edit":
                    edited = self._edited(ask_line, question)
                    if edited is not None:
                        return Approval(allowed=True, by="stdin", arguments=edited)
            prompt = f"please answer [y]es/[n]o/[e]dit{more}: "

    @staticmethod
    def _edited(ask_line: Callable[[str], str], question: Question) -> dict[str, Any] | None:
        old = json.dumps(dict(question.arguments), ensure_ascii=False, default=repr)
        try:
            value = json.loads(ask_line(f"arguments as JSON, now {old}: "))
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


def approver_of(value: Any) -> Approver | None:
    """An approver of what people write for ``approver=``: None, "stdin", "nobody", a function, an Approver."""
    match value:
        case None:
            return None
        case "stdin":
            return StdinApprover()
        case "nobody":
            return NobodyThere()
        case _ if hasattr(value, "ask"):
            return cast(Approver, value)
        case _ if callable(value):
            return CallbackApprover(value)
    raise UsageError(f'approver is "stdin", "nobody", a function of the question or an Approver, got {value!r}')


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
        return {name: mask(json.dumps(v, ensure_ascii=False, default=repr))[:500] for name, v in values.items()}

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
            record["rules"] = decision.suggestion.splitlines()
    return record
