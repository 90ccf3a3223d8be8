"""All guests of one Kit: taken in, driven in order of registration, closed.

Theory of operation
-------------------
The turn talks to the `ExtensionHost` only. Every sweep isolates its guests: a hook that fails is reported
and the others go on, except gates (`before_tool`), which fail closed; how the chained hooks run stands in
`chain`. A guest that fails while the Kit is built makes the building fail, and what was opened is closed
again.
"""

from __future__ import annotations

import inspect
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kit_jupyter.chain import Chains, Handler, as_guest, name_of, told, type_of
from kit_jupyter.configurator import Configurator, building
from kit_jupyter.errors import ExtensionError, KitError, UsageError
from kit_jupyter.guest import ExtensionContext, KitView, reference_block
from kit_jupyter.guest_context import GuestContext
from kit_jupyter.guestcall import HOOK_TIMEOUT_SECONDS, GuestTimeout, call, call_blocking, limit_seconds
from kit_jupyter.hooks import CHAINED, REQUIRED, misspelt_hooks
from kit_jupyter.loop import engine
from kit_jupyter.permissions import Approval
from kit_jupyter.tool import Tool
from kit_jupyter.trifecta import UNNAMED, Contribution, Report, tree, walk

if TYPE_CHECKING:
    from kit_jupyter.events import Event

__all__ = ["ExtensionHost"]

CLOSE_TIMEOUT_SECONDS: Final = 20.0
SLOW_SNIPPET_SECONDS: Final = 0.25


class ExtensionHost(Chains):
    """All guests of one Kit, driven in order of registration; the turn talks to this object only.

    Every sweep isolates its guests: a hook that fails is reported and the others go on, except
    gates (`before_tool`), which fail closed.

    Attributes
    ----------
    extensions : list
        In order of registration, nested ones after the one that added them.
    tools, sub_agent_tools : list of Tool
        What guests added: for the agent, and for personas only.
    tools_version : int
        Counts up when an extension adds or removes a tool at run time.
    listeners : list of (fn, types)
        To be subscribed when the Kit has its bus.
    sections : tuple of (str, str)
        ``(extension name, text)`` of the last `system_sections` call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.extensions: list[Any] = []
        self.tools: list[Tool] = []
        self.sub_agent_tools: list[Tool] = []
        self.tools_version = 0
        self.listeners: list[tuple[Callable[[Any], object], tuple[type[Event], ...]]] = []
        self.sections: tuple[tuple[str, str], ...] = ()
        self.context: ExtensionContext | None = None
        self._guests: list[_Guest] = []
        self._closers: list[tuple[str, Callable[[], Any]]] = []
        self._blocks: list[tuple[str, str]] = []
        self._blocks_lock = threading.Lock()
        self._told: set[str] = set()
        self._errors = _Outbox()
        self._warnings = _Outbox()

    # -- construction

    @classmethod
    def build(
        cls,
        extensions: Sequence[Any] = (),
        configure_fn: Callable[[Configurator], object] | None = None,
        *,
        on_error: Callable[[ExtensionError], object] | None = None,
        on_warning: Callable[[str, str], object] | None = None,
    ) -> ExtensionHost:
        """A host with `extensions` configured, then `configure_fn` called with the `Configurator`.

        Parameters
        ----------
        on_error : callable of ExtensionError
            Told of each hook that fails; reports made before it is set are kept for it.
        on_warning : callable (message, source)

        Raises
        ------
        ExtensionError
            If a `configure` fails; what was opened so far is closed first.
        UsageError
            If an extension lacks a hook, has a misspelt gate, or was added twice; closed first, too.
        """
        host = cls()
        host.on_error = on_error
        host.on_warning = on_warning
        try:
            with building(host) as configurator:
                for extension in extensions:
                    configurator.add_extension(extension)
                if configure_fn is not None:
                    configure_fn(configurator)
        except BaseException:
            host.close_sync()
            raise
        return host

    @property
    def on_error(self) -> Callable[[ExtensionError], object] | None:
        """Who is told of failed hooks; reports that came before are delivered when it is set."""
        return self._errors.deliver

    @on_error.setter
    def on_error(self, fn: Callable[[ExtensionError], object] | None) -> None:
        self._errors.listen(fn)

    @property
    def on_warning(self) -> Callable[[str, str], object] | None:
        """Who is told of warnings: ``fn(message, source)``."""
        return self._warnings.deliver

    @on_warning.setter
    def on_warning(self, fn: Callable[[str, str], object] | None) -> None:
        self._warnings.listen(fn)

    def add_extension(self, extension: Any, configurator: Configurator) -> None:
        """Check an extension, take it in and configure it; see `Configurator.add_extension`."""
        if isinstance(extension, type):
            raise UsageError(
                f"an extension is an instance; write {extension.__name__}() instead of {extension.__name__}"
            )
        label = type(extension).__name__
        missing = [name for name in REQUIRED if not callable(_read(extension, name))]
        if missing:
            raise UsageError(
                f"{label} is no extension: it has no {', '.join(missing)}; "
                "inherit from kit_jupyter.Extension to get them"
            )
        if any(known is extension for known in self.extensions):
            raise UsageError(f"this {label} was added already; an extension is configured once")
        _check_names(extension)
        name, limit = self._free_name(extension), _timeout_of(extension)
        asked = ("on_user_message", "on_conversation_reset")
        handlers = {hook: Handler(name, getattr(extension, hook), 50, limit) for hook in asked}
        guest = _Guest(name, extension, limit, handlers)
        self.extensions.append(extension)
        self._guests.append(guest)
        for hook in CHAINED:
            method = _read(extension, hook)
            if callable(method):
                self.add_handler(hook, Handler(guest.name, method, 50, guest.timeout_seconds))
        with as_guest(guest.name):
            self._construct(guest, "configure", configurator)

    def _free_name(self, extension: Any) -> str:
        own = _read(extension, "name")
        base = own if isinstance(own, str) and own else type(extension).__name__
        taken = {guest.name for guest in self._guests}
        return next(n for n in (base, *(f"{base}#{i}" for i in range(2, len(taken) + 3))) if n not in taken)

    def _construct(self, guest: _Guest, hook: str, argument: Any) -> None:
        try:
            value = getattr(guest.extension, hook)(argument)
            if inspect.isawaitable(value):
                if inspect.iscoroutine(value):
                    value.close()
                raise TypeError(f"{hook} cannot be async: it runs while the Kit is built")
        except KitError:
            raise
        except Exception as exc:
            raise ExtensionError(f"{guest.name}.{hook} failed: {told(exc)}", extension=guest.name, hook=hook) from exc

    def bind(
        self,
        kit: Any,
        emit: Callable[[str, Any], object],
        *,
        child: Callable[..., Any] | None = None,
        ask: Callable[[str, str, str], Awaitable[Approval]] | None = None,
        always_asks: Callable[[Tool, Mapping[str, Any] | None], bool | None] | None = None,
    ) -> ExtensionContext:
        """Make the one context of this Kit, then call every `bind` with it.

        Parameters
        ----------
        kit : object
            The Kit, or a view of it; guests see it through a `KitView`.
        emit : callable (name, content)
            Emits a `Domain` event at once.
        child, ask, always_asks
            As for `GuestContext`.

        Raises
        ------
        ExtensionError
            If a `bind` fails; the closers run first.
        """
        context = GuestContext(self, KitView(kit), emit=emit, child=child, ask=ask, always_asks=always_asks)
        self.context = context
        try:
            self._bind(self._guests, context)
        except BaseException:
            self.close_sync()
            raise
        return context

    def _bind(self, guests: Sequence[_Guest], context: ExtensionContext) -> None:
        for guest in guests:
            with as_guest(guest.name):
                self._construct(guest, "bind", context)

    def admit(self, extension: Any) -> None:
        """Take in a guest after the Kit was made: its hooks and tools count from the next turn.

        Its sections of the system prompt are pulled at the next reset.

        Raises
        ------
        UsageError
            If it is no extension, or is here already.
        ExtensionError
            If its `configure` or `bind` fails.
        """
        known = len(self._guests)
        with building(self) as configurator:
            self.add_extension(extension, configurator)
        self.tools_version += 1
        if self.context is not None:
            self._bind(self._guests[known:], self.context)

    def add_hook(self, name: str, fn: Callable[..., Any], *, priority: int = 50) -> Callable[[], None]:
        """Add a chained hook for the Kit itself, at any time; returns what takes it away again."""
        return self.add_handler(name, Handler(name_of(fn), fn, priority, HOOK_TIMEOUT_SECONDS))

    def add_closer(self, owner: str, fn: Callable[[], Any]) -> None:
        """Have `fn` called at the end, before those that were added earlier."""
        self._closers.append((owner, fn))

    # -- reports

    def _report(self, owner: str, hook: str, exc: BaseException | str) -> ExtensionError:
        what = exc if isinstance(exc, str) else str(exc) if isinstance(exc, GuestTimeout) else told(exc)
        error = ExtensionError(f"{owner}.{hook} failed: {what}", extension=owner, hook=hook)
        if isinstance(exc, BaseException):
            error.__cause__ = exc
        self._errors.put(error)
        return error

    def warn(self, message: str, source: str) -> None:
        """Tell a person something, once in a conversation. Any thread."""
        if message not in self._told:
            self._told.add(message)
            self._warnings.put(message, source)

    # -- sweeps of the protocol

    def system_sections(self) -> tuple[str, ...]:
        """Prompt sections of all guests, blank ones dropped; pulled anew at each call."""
        sections: list[tuple[str, str]] = []
        for guest in self._guests:
            began = time.perf_counter()
            try:
                with as_guest(guest.name):
                    texts = call_blocking(guest.extension.system_prompt_snippets, timeout_seconds=guest.timeout_seconds)
                sections += [(guest.name, text) for text in _texts(texts)]
            except Exception as exc:
                self._report(guest.name, "system_prompt_snippets", exc)
            took = time.perf_counter() - began
            if took > SLOW_SNIPPET_SECONDS:
                self.warn(
                    f"{guest.name}.system_prompt_snippets took {took:.1f} s; "
                    "probe in configure or wrap the source in once()",
                    guest.name,
                )
        self.sections = tuple(sections)
        return tuple(text for _, text in sections)

    async def reference_blocks(self, content: str) -> Sequence[tuple[str, str]]:
        """``(extension name, enveloped text)`` for a stored user message; one block per extension."""
        said: dict[str, list[str]] = {}
        for guest in self._guests:
            text = await self._ask(guest, "on_user_message", content)
            if isinstance(text, str):
                said.setdefault(guest.name, []).append(text)
            elif text is not None:
                self._report(guest.name, "on_user_message", f"it returned {type_of(text)}, not text or None")
        with self._blocks_lock:
            queued, self._blocks = self._blocks, []
        for name, text in queued:
            said.setdefault(name, []).insert(0, text)
        blocks = ((name, "\n\n".join(t for t in texts if t.strip())) for name, texts in said.items())
        return tuple((name, reference_block(text)) for name, text in blocks if text.strip())

    def queue_block(self, name: str, text: str) -> None:
        """Keep text for the guest's next reference block. Any thread."""
        with self._blocks_lock:
            self._blocks.append((name, text))

    async def reset(self) -> None:
        """The conversation was cleared: every guest drops what belongs to it, in order."""
        with self._blocks_lock:
            self._blocks.clear()
        self._told.clear()
        self._forget_sent()
        for guest in self._guests:
            await self._ask(guest, "on_conversation_reset")

    async def _ask(self, guest: _Guest, hook: str, *args: Any) -> Any:
        try:
            return await self._call(guest.handlers[hook], self.context, *args)
        except Exception as exc:
            self._report(guest.name, hook, exc)
            return None

    def contributions(self, tools: Sequence[Tool] = ()) -> tuple[Contribution, ...]:
        """What guests add to the trifecta tree.

        Parameters
        ----------
        tools : sequence of Tool
            The agent's own; each hook gets these and the sub-agent tools, the same objects.

        Raises
        ------
        ExtensionError
            If a hook returns something else than a `Contribution` or None.
        """
        found: list[Contribution] = []
        for guest in self._guests:
            hook = getattr(guest.extension, "trifecta_contribution", None)
            if hook is None:
                continue
            try:
                with as_guest(guest.name):
                    said = call_blocking(hook, [*tools, *self.sub_agent_tools], timeout_seconds=guest.timeout_seconds)
            except Exception as exc:
                self._report(guest.name, "trifecta_contribution", exc)
                said = Contribution(gaps=("its trifecta_contribution failed",))
            if said is None:
                continue
            if not isinstance(said, Contribution):
                raise ExtensionError(
                    f"{guest.name}.trifecta_contribution returned {type_of(said)}, not a Contribution or None",
                    extension=guest.name,
                    hook="trifecta_contribution",
                )
            found.append(replace(said, label=guest.name) if said.label in ("", UNNAMED) else said)
        return tuple(found)

    def trifecta(
        self, tools: Sequence[Tool], *, label: str = "agent", asks: Callable[[Tool], bool | None] | None = None
    ) -> Report:
        """The trifecta report of the whole agent: its `tools` and what guests contribute.

        Parameters
        ----------
        asks : callable (tool) -> bool or None, or None
            True for tools whose every call a person approves: what they send counts as reviewed.
        """
        return walk(tree(label, tools, self.contributions(tools), asks=asks))

    def has_hooks(self, name: str) -> bool:
        """True when a guest has the chained hook `name`."""
        return bool(self._handlers[name])

    # -- the end

    async def close(self) -> None:
        """Run the closers, last added first; each once, each isolated. A second call does nothing."""
        closers, self._closers = self._closers, []
        for owner, fn in reversed(closers):
            try:
                await call(fn, timeout_seconds=CLOSE_TIMEOUT_SECONDS)
            except Exception as exc:
                self._report(owner, "on_close", exc)

    def close_sync(self) -> None:
        """The same from sync code; on the engine's own thread async closers only begin here."""
        closers, self._closers = self._closers, []
        for owner, fn in reversed(closers):
            try:
                value = call_blocking(fn, timeout_seconds=CLOSE_TIMEOUT_SECONDS)
                if inspect.isawaitable(value):
                    running = engine.start(_awaiting(value))
                    if not engine.is_here:
                        running.future.result(CLOSE_TIMEOUT_SECONDS)
            except Exception as exc:
                self._report(owner, "on_close", exc)


@dataclass(frozen=True, slots=True)
class _Guest:
    name: str
    extension: Any
    timeout_seconds: float | None
    handlers: dict[str, Handler]


class _Outbox:
    """Reports for someone who may not listen yet: kept until they do."""

    def __init__(self) -> None:
        self.deliver: Callable[..., object] | None = None
        self.waiting: list[tuple[Any, ...]] = []

    def put(self, *report: Any) -> None:
        if self.deliver is None:
            self.waiting.append(report)
        else:
            self.deliver(*report)

    def listen(self, fn: Callable[..., object] | None) -> None:
        self.deliver = fn
        if fn is not None:
            waiting, self.waiting = self.waiting, []
            for report in waiting:
                fn(*report)


async def _awaiting(value: Any) -> Any:
    return await value


def _read(extension: Any, name: str, otherwise: Any = None) -> Any:
    """An attribute of a guest, which may be a property that fails."""
    try:
        return getattr(extension, name, otherwise)
    except Exception as exc:
        label = type(extension).__name__
        raise ExtensionError(f"{label}.{name} failed: {told(exc)}", extension=label, hook=name) from exc


def _check_names(extension: Any) -> None:
    """Complain of methods that nobody will call, since no hook has their name: with gates it is an error."""
    label = type(extension).__name__
    for name, hook in misspelt_hooks(extension):
        what = f"{label}.{name} is no hook and is never called; did you mean {hook}?"
        if hook.startswith("before_"):
            raise UsageError(f"{what} If it is a method of your own, give it another name, such as _{name}")
        warnings.warn(what, stacklevel=6)


def _timeout_of(extension: Any) -> float | None:
    return limit_seconds(_read(extension, "hook_timeout_seconds", HOOK_TIMEOUT_SECONDS), "hook_timeout_seconds")


def _texts(value: object) -> list[str]:
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError("it cannot be async: probe in configure, read here")
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"it returned {type_of(value)}, not a list of text")
    for text in value:
        if text is not None and not isinstance(text, str):
            raise TypeError(f"a section is {type_of(text)}, not text")
    return [text for text in value if text and text.strip()]
