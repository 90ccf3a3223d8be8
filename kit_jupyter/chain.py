"""Chained hooks: each handler gets what the one before it made; gates fail closed, the others are passed over."""

from __future__ import annotations

import contextvars
import copy
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeVar

from kit_jupyter.errors import ExtensionError, UsageError
from kit_jupyter.guestcall import GuestTimeout, call, is_async
from kit_jupyter.hooks import CHAINED, HANDLED, BeforeTool, BeforeTurn, CompactionPlan, StepPlan
from kit_jupyter.messages import ToolCallPart
from kit_jupyter.prompt import PromptEditor, PromptMessage
from kit_jupyter.tool import ToolOutcome

__all__ = ["Chains", "Handler", "as_guest", "current_guest", "name_of", "told", "type_of"]

T = TypeVar("T")
_guest: contextvars.ContextVar[str] = contextvars.ContextVar("kit_guest", default="")


@contextmanager
def as_guest(name: str) -> Iterator[None]:
    """Within the block, what is done is done by the guest `name`."""
    token = _guest.set(name)
    try:
        yield
    finally:
        _guest.reset(token)


def current_guest(otherwise: str = "extension") -> str:
    """Whose hook is running."""
    return _guest.get() or otherwise


def name_of(thing: object) -> str:
    """A function's name, or the class of an object."""
    return getattr(thing, "__qualname__", "") or type(thing).__name__


def type_of(value: object) -> str:
    """A value's type and look, for an error's text."""
    try:
        look = repr(value)
    except Exception:  # a guest's own class
        look = "(without a repr)"
    return f"{type(value).__name__} {look}"[:120]


def told(exc: BaseException) -> str:
    """An error's type and words, for an error's text; a guest's own class may have none to show."""
    try:
        words = str(exc)
    except Exception:
        words = "(its text cannot be shown)"
    return f"{type(exc).__name__}: {words}"


@dataclass(slots=True, eq=False)
class Handler:
    """One function on one hook; `stuck` is set when the call that did not return in time has returned after all."""

    owner: str
    fn: Callable[..., Any]
    priority: int
    timeout_seconds: float | None
    stuck: threading.Event | None = None


class Chains(ABC):
    """All chained hooks of one Kit; the base of `ExtensionHost`, which says who is told what went wrong."""

    def __init__(self) -> None:
        self._handlers: dict[str, list[Handler]] = {name: [] for name in CHAINED}
        self._last: tuple[tuple[PromptMessage, ...], tuple[PromptMessage, ...]] = ((), ())

    @abstractmethod
    def _report(self, owner: str, hook: str, exc: BaseException | str) -> ExtensionError:
        """Tell of a handler's fault; the error that says it."""

    @abstractmethod
    def warn(self, message: str, source: str) -> None:
        """Tell of something doubtful."""

    def add_handler(self, name: str, handler: Handler) -> Callable[[], None]:
        """Add a handler; returns what takes it away again.

        Raises
        ------
        UsageError
            If there is no such hook, or the handler is no function.
        """
        if name not in CHAINED:
            raise UsageError(f"unknown hook {name!r}; hooks to add are: {', '.join(CHAINED)}")
        if not callable(handler.fn):
            raise UsageError(f"hook {name!r} is a function, got {handler.fn!r}")
        handlers = [*self._handlers[name], handler]
        handlers.sort(key=lambda one: one.priority)  # stable: registration order within a priority
        self._handlers[name] = handlers

        def remove() -> None:
            self._handlers[name] = [one for one in self._handlers[name] if one is not handler]

        return remove

    def _forget_sent(self) -> None:
        """The conversation was cleared: nothing of the next request has been sent before."""
        self._last = ((), ())

    async def _call(self, handler: Handler, *args: Any) -> Any:
        if handler.stuck is not None and not handler.stuck.is_set():
            raise GuestTimeout("an earlier call of it has not returned yet")  # one lost thread is enough
        returned = threading.Event()

        def run(*args: Any) -> Any:
            try:
                return handler.fn(*args)
            finally:
                returned.set()

        fn = handler.fn if is_async(handler.fn) else run
        with as_guest(handler.owner):
            try:
                return await call(fn, *args, timeout_seconds=handler.timeout_seconds)
            except GuestTimeout:
                if fn is run:  # an async one was cancelled, so nothing runs on
                    handler.stuck = returned
                raise

    async def _chain(self, hook: str, value: T, kind: type[T], *before: Any) -> T:
        """Each handler gets the last one's value; one that fails or returns something else changes nothing."""
        for handler in tuple(self._handlers[hook]):
            try:
                said = await self._call(handler, *before, value)
            except Exception as exc:
                self._report(handler.owner, hook, exc)
                continue
            if isinstance(said, kind):
                value = said
            elif said is not None:
                self._report(handler.owner, hook, f"it returned {type_of(said)}, not {kind.__name__} or None")
        return value

    async def on_input(self, text: str, source: str) -> str | None:
        """Chained; the text to go on with, or None when a hook has handled it."""
        for handler in tuple(self._handlers["on_input"]):
            try:
                said = await self._call(handler, text, source)
            except Exception as exc:
                self._report(handler.owner, "on_input", exc)
                continue
            if said is HANDLED:
                return None
            if isinstance(said, str):
                text = said
            elif said is not None:
                self._report(handler.owner, "on_input", f"it returned {type_of(said)}, not text, HANDLED or None")
        return text

    async def before_turn(self, prompt: str, system: str) -> BeforeTurn:
        """Chained; `prompt` and `system` of the result are always text, `inject` is text or None."""
        turn = BeforeTurn(prompt=prompt, system=system)
        for handler in tuple(self._handlers["before_turn"]):
            try:
                said = await self._call(handler, turn)
            except Exception as exc:
                self._report(handler.owner, "before_turn", exc)
                continue
            if said is None or said is turn:
                continue
            if not isinstance(said, BeforeTurn) or not all(
                text is None or isinstance(text, str) for text in (said.prompt, said.system, said.inject)
            ):
                self._report(
                    handler.owner, "before_turn", f"it returned {type_of(said)}, not a BeforeTurn of text or None"
                )
                continue
            added = said.inject if said.inject != turn.inject else None
            inject = "\n\n".join(text for text in (turn.inject, added) if text and text.strip())
            turn = BeforeTurn(
                prompt=turn.prompt if said.prompt is None else said.prompt,
                system=turn.system if said.system is None else said.system,
                inject=inject or None,
            )
        return turn

    async def after_turn(self, response: str, error: BaseException | None) -> None:
        """Observers."""
        for handler in tuple(self._handlers["after_turn"]):
            try:
                await self._call(handler, response, error)
            except Exception as exc:
                self._report(handler.owner, "after_turn", exc)

    async def prepare_step(self, plan: StepPlan) -> StepPlan:
        """Chained."""
        return await self._chain("prepare_step", plan, StepPlan)

    async def edit_prompt(
        self, messages: tuple[PromptMessage, ...], *, editor: PromptEditor | None = None
    ) -> tuple[PromptMessage, ...]:
        """Run the edit-prompt hooks over a copy, each on a draft of its own.

        Parameters
        ----------
        editor : PromptEditor or None
            Given one made of `messages`, its `persisted` tells afterwards what is to be stored.
        """
        whole = editor if editor is not None else PromptEditor(messages)
        for handler in tuple(self._handlers["edit_prompt"]):
            draft = whole.draft(f"hook:{handler.owner}")
            try:
                said = await self._call(handler, draft)
            except Exception as exc:
                self._report(handler.owner, "edit_prompt", exc)
                continue
            finally:
                draft.close("its hook has ended")
            if said is not None:
                self._report(
                    handler.owner, "edit_prompt", f"it returned {type_of(said)}; change the request through the editor"
                )
                continue
            whole.adopt(draft)
        self._tell_cache(messages, whole.messages)
        return whole.messages

    def _tell_cache(self, plain: tuple[PromptMessage, ...], edited: tuple[PromptMessage, ...]) -> None:
        """Warn when edits, and not the talk itself, made this request differ from the beginning of the last one.

        Measured on what was sent: the same reminder at each step costs nothing, one that moves on with
        the last user message does.
        """
        (plain_before, edited_before), self._last = self._last, (plain, edited)
        kept = _common(edited_before, edited)
        if kept >= _common(plain_before, plain) or kept >= len(edited_before):
            return
        pair = (edited_before[kept], *edited[kept : kept + 1])
        authors = ", ".join(dict.fromkeys(n for m in pair for n in (m.origin, *m.edits) if n.startswith("hook:")))
        # No number in the text: it is told once in a conversation, not at every turn.
        self.warn(
            f"{authors or 'an edit'} makes a message differ from what was sent before, so the provider's prompt cache "
            "is lost from there on (append keeps it)",
            authors,
        )

    async def before_tool(self, call: ToolCallPart, arguments: Mapping[str, Any]) -> BeforeTool:
        """Gates, chained; the first block stops. A gate that fails blocks."""
        for handler in tuple(self._handlers["before_tool"]):
            try:
                own = copy.deepcopy(dict(arguments))
                said = await self._call(handler, call, MappingProxyType(own))
                if own != arguments:
                    raise TypeError("it changed the arguments in place; return BeforeTool(arguments=…) instead")
                if said is None:
                    continue
                if not isinstance(said, BeforeTool):
                    raise TypeError(f"it returned {type_of(said)}, not BeforeTool or None")
                if said.arguments is not None and not isinstance(said.arguments, Mapping):
                    raise TypeError(f"its arguments are {type_of(said.arguments)}, not a mapping")
            except Exception as exc:
                error = self._report(handler.owner, "before_tool", exc)
                return BeforeTool(
                    block=True, reason=f"a gate failed, so the call was not run ({error.message})", arguments=arguments
                )
            if said.block:
                return BeforeTool(block=True, reason=said.reason or f"blocked by {handler.owner}", arguments=arguments)
            if said.arguments is not None:
                arguments = dict(said.arguments)
        return BeforeTool(arguments=arguments)

    async def after_tool(self, call: ToolCallPart, outcome: ToolOutcome) -> ToolOutcome:
        """Chained."""
        return await self._chain("after_tool", outcome, ToolOutcome, call)

    async def before_compact(self, plan: CompactionPlan) -> CompactionPlan:
        """Chained; the first cancel stops."""
        for handler in tuple(self._handlers["before_compact"]):
            try:
                said = await self._call(handler, plan)
            except Exception as exc:
                self._report(handler.owner, "before_compact", exc)
                continue
            if isinstance(said, CompactionPlan):
                plan = said
                if plan.cancel:
                    return plan if plan.cancel_reason else replace(plan, cancel_reason=f"cancelled by {handler.owner}")
            elif said is not None:
                self._report(
                    handler.owner, "before_compact", f"it returned {type_of(said)}, not CompactionPlan or None"
                )
        return plan


def _common(before: Sequence[PromptMessage], after: Sequence[PromptMessage]) -> int:
    """How many of the first messages say the same."""
    count = 0
    for old, new in zip(before, after, strict=False):
        if old is not new and (old.role, old.parts) != (new.role, new.parts):
            break
        count += 1
    return count
