"""Who is asked before a call runs: a widget or magic, a function, the terminal, or nobody.

Each fulfils `Approver`. Functions and the terminal are used on the user's thread, and whatever fails
there denies.
"""

from __future__ import annotations

import asyncio
import copy
import json
import threading
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

from kit_jupyter.errors import UsageError
from kit_jupyter.loop import current_desk
from kit_jupyter.usercall import UserCall

__all__ = [
    "Approval",
    "Approver",
    "CallbackApprover",
    "NobodyThere",
    "PendingApprover",
    "Question",
    "StdinApprover",
    "approver_of",
    "own_copy",
]


def own_copy(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments for those who judge them: a read-only copy, so that nothing done to it changes what runs.

    Examples
    --------
    >>> runs = {"paths": ["a"]}
    >>> own_copy(runs)["paths"].append("b")
    >>> runs
    {'paths': ['a']}
    """
    return types.MappingProxyType({name: _copied(value) for name, value in arguments.items()})


def _copied(value: Any) -> Any:
    if value is None or type(value) in (str, int, float, bool):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # an object of the user's that cannot be copied
        return value


def visible(text: str) -> str:
    """Text in which nothing can hide: escape sequences, direction marks and the like are written out.

    Examples
    --------
    >>> print(visible("rm x" + chr(27) + "[2K" + chr(13) + "ls"))
    rm x\\x1b[2K\\rls
    """
    if all(map(str.isprintable, text.split("\n"))):
        return text
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else letter.encode("unicode_escape").decode()
        for letter in text
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a person is asked before a call runs.

    Parameters
    ----------
    arguments : dict
        Kept as a read-only copy. To change what runs, answer with an `Approval` that has arguments.
    text : str
        Kept with its control and invisible characters written out.
    suggestion : str
        Rules, a line each, that would allow it for good; empty when none can.
    reason : str
        Why it is asked.
    """

    call_id: str
    tool_name: str
    arguments: Mapping[str, Any] = field(hash=False)
    text: str
    suggestion: str = ""
    reason: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", own_copy(self.arguments))
        object.__setattr__(self, "text", visible(self.text))


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

    Raises
    ------
    UsageError
        When `allowed` is neither True nor False (``"no"`` counts as true in Python), the arguments are no
        dict, or the scope is none of the three.
    """

    allowed: bool
    reason: str = ""
    arguments: Mapping[str, Any] | None = field(default=None, hash=False)
    scope: Literal["once", "session", "always"] = "once"
    by: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.allowed, bool):
            raise UsageError(f"an answer allows with True or denies with False, got {self.allowed!r}")
        if self.arguments is not None and not isinstance(self.arguments, Mapping):
            raise UsageError(f"edited arguments are a dict by name, got {type(self.arguments).__name__}")
        if self.scope not in ("once", "session", "always"):
            raise UsageError(f"scope must be once, session or always, got {self.scope!r}")


class Approver(Protocol):
    """Asks a person; fulfilled by widgets, the terminal, callbacks.

    One that others answer may also have ``expect(question)``: it is called just before the question
    is announced, so that an answer which comes at once finds it waiting.
    """

    async def ask(self, question: Question) -> Approval:
        """Wait for the answer, on the engine's loop; cancelled when the turn stops."""
        ...


class NobodyThere:
    """The approver when nobody can be asked: denies, and says what to do."""

    async def ask(self, question: Question) -> Approval:
        """Deny."""
        rules = [tuple(line.split(" ", 1)) for line in question.suggestion.split("\n") if line.strip()]
        wanted = ", ".join(f"({action!r}, {pattern!r}, 'allow')" for action, pattern in rules)
        how = f"allow it beforehand with Kit(permissions=[{wanted}]) or kit.permissions = [{wanted}], or " * bool(rules)
        why = f" (why: {question.reason})" * bool(question.reason)
        return Approval(
            allowed=False,
            by="nobody",
            reason=(
                f"{question.tool_name} needs a person's approval and nobody is here to give it{why}. "
                "Do not try it again; go on without it, or say what you would have done. "
                f"For the user: {how}run where someone can answer"
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
        self._expected: dict[str, asyncio.Future[Approval]] = {}  # also those answered before they were asked

    def expect(self, question: Question) -> asyncio.Future[Approval]:
        """Take answers to `question` from now on; `ask` waits for the one that comes. On the engine."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Approval] = loop.create_future()
        with self._lock:
            self._waiting[question.call_id] = (question, future, loop)
            self._expected[question.call_id] = future
        return future

    async def ask(self, question: Question) -> Approval:
        """Wait for `answer`."""
        future = self._expected.get(question.call_id) or self.expect(question)
        try:
            if self._emit is not None:
                self._emit(question)
            return await future
        finally:
            with self._lock:
                self._waiting.pop(question.call_id, None)
                self._expected.pop(question.call_id, None)

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
    """An approver of what people write for ``approver=``.

    None, "stdin", "nobody", "events" (whoever observes `ApprovalAsked` answers by ``kit.approve``), a function
    of the question, or an Approver.
    """
    match value:
        case None:
            return None
        case "stdin":
            return StdinApprover()
        case "nobody":
            return NobodyThere()
        case "events":
            return PendingApprover()
        case _ if hasattr(value, "ask"):
            return cast(Approver, value)
        case _ if callable(value):
            return CallbackApprover(value)
    raise UsageError(
        f'approver is "stdin", "nobody", "events", a function of the question or an Approver, got {value!r}'
    )
