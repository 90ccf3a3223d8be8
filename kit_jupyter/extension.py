"""SEAM Extension: how guests add prompt sections, tools and hooks to a Kit.

Theory of operation
-------------------
::

    Kit(extensions=[...])                       a user message        each step            clear
      configure ─▶ snippets ─▶ bind    on_input ─▶ (stored) ─▶      prepare_step        snippets
      (Configurator)           (ctx)   on_user_message ─▶ block     edit_prompt         Reset event
                                       before_turn … after_turn     before/after_tool   on_conversation_reset

`HOOKS` is the whole list: there is no hidden hook. The Kit drives its guests through one
`ExtensionHost` and through nothing else. A guest that fails while the Kit is built makes the
building fail, and what was opened is closed again; later a hook that raises, hangs or answers with
something else is reported and passed over, except a gate (`before_tool`), which then blocks.

The protocol follows the extension protocol of Pikuri (the seed document); chained hooks with
priorities follow Kit's SDK.
"""

from __future__ import annotations

import contextvars
import inspect
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast, runtime_checkable

from kit_jupyter.errors import ExtensionError, KitError, UsageError
from kit_jupyter.guestcall import GuestTimeout, call, call_blocking, is_async
from kit_jupyter.hooks import (
    CHAINED,
    HANDLED,
    HOOKS,
    REQUIRED,
    BeforeTool,
    BeforeTurn,
    CompactionPlan,
    HookFacts,
    StepPlan,
)
from kit_jupyter.installed import ENTRY_POINT_GROUP, Installed, list_installed
from kit_jupyter.loop import engine
from kit_jupyter.messages import ToolCallPart
from kit_jupyter.prompt import PromptEditor, PromptMessage
from kit_jupyter.tool import Tool, ToolOutcome, as_tool
from kit_jupyter.trifecta import UNNAMED, Contribution, Report, tree, walk

if TYPE_CHECKING:
    from kit_jupyter.events import Event

__all__ = [
    "ENTRY_POINT_GROUP",
    "HANDLED",
    "HOOKS",
    "BeforeTool",
    "BeforeTurn",
    "CompactionPlan",
    "Configurator",
    "Extension",
    "ExtensionContext",
    "ExtensionHost",
    "ExtensionProtocol",
    "GuestContext",
    "HookFacts",
    "Installed",
    "KitView",
    "StepPlan",
    "list_installed",
    "once",
    "reference_block",
]

T = TypeVar("T")
HOOK_TIMEOUT_SECONDS: Final = 10.0
SLOW_SNIPPET_SECONDS: Final = 0.25

# ---------------------------------------------------------------- the protocol


class ExtensionContext(Protocol):
    """Runtime handle of one Kit, the same object in every hook of every extension.

    The Kit itself has no way to emit an event or to add a tool at run time; this has.
    """

    @property
    def kit(self) -> KitView:
        """Read-only view: id, model, tools, history."""
        ...

    @property
    def agent(self) -> KitView:
        """The same as `kit`."""
        ...

    def emit(self, name: str, content: Any = None) -> None:
        """Emit a `Domain` event, at once. Any thread."""
        ...

    def append_reference_block(self, text: str) -> None:
        """Add `text` to this extension's reference block after the next user message. Any thread."""
        ...

    def add_tool(self, tool: Tool | Callable[..., Any]) -> Tool:
        """Add a tool at run time; the next turn has it. Any thread."""
        ...

    def remove_tool(self, name: str) -> None:
        """Take away a tool that an extension added; the next turn lacks it. Any thread."""
        ...

    @property
    def delegable_tools(self) -> tuple[Tool, ...]:
        """Tools that a persona may have: the agent's own and the sub-agent tools."""
        ...

    def child(self, persona: Any, **options: Any) -> Any:
        """A new agent for `persona`, without this Kit's extensions, under its permissions."""
        ...

    def warn(self, message: str) -> None:
        """Tell a person something, as a `Warned` event. Any thread."""
        ...


@runtime_checkable
class ExtensionProtocol(Protocol):
    """What the Kit calls on every extension; a class need not inherit from `Extension`.

    ``trifecta_contribution(tools)`` and the chained hooks of `HOOKS` are optional and looked up by name.
    """

    def configure(self, c: Configurator) -> None: ...
    def bind(self, ctx: ExtensionContext) -> None: ...
    def on_user_message(self, ctx: ExtensionContext, content: str) -> Any: ...
    def on_conversation_reset(self, ctx: ExtensionContext) -> Any: ...
    def system_prompt_snippets(self) -> list[str]: ...


class Extension:
    """No-op base: override what you need.

    The five methods below are called by name on every extension. The other hooks of `HOOKS`
    (`before_tool`, `edit_prompt`, …) are called where a class has a method of that name.

    Attributes
    ----------
    name : str
        For reports and provenance; the class's name when not set.
    hook_timeout_seconds : float or None
        Limit of each hook call after construction, 10 when not set; None for no limit.

    Examples
    --------
    >>> class Politeness(Extension):
    ...     def system_prompt_snippets(self):
    ...         return ["Always be polite."]
    >>> ExtensionHost.build([Politeness()]).system_sections()
    ('Always be polite.',)
    """

    def configure(self, c: Configurator) -> None:
        """Called at once when added, while the Kit is built, once per instance, on the caller's thread.

        Gets the `Configurator`; returns nothing. Add tools, listeners, hooks, closers and nested
        extensions here; start servers and probe hardware here. No model and no session is needed.
        An error makes the construction fail, and the closers run.
        """

    def bind(self, ctx: ExtensionContext) -> None:
        """Called when the Kit has its tools, prompt and id.

        Gets the `ExtensionContext`, the same object as in all later hooks; returns nothing. Keep
        state of the live Kit from here on. An error makes the construction fail, and the closers run.
        """

    def on_user_message(self, ctx: ExtensionContext, content: str) -> str | None:
        """Called after each user message was stored: the prompt of a turn, and each delivered steer.

        Gets the context and the message's text; returns text for a reference block directly after
        the user's turn, or None. Blank text adds nothing. May be async. An error is reported, and
        the turn goes on without the block.
        """
        return None

    def on_conversation_reset(self, ctx: ExtensionContext) -> None:
        """Called in a clear, once, after the `Reset` event.

        Gets the context; returns nothing. Drop what belongs to the conversation, keep processes and
        queues: a clear is not a quit. Emit your own domain event here when a view should know. The
        system prompt is not touched here: snippets are pulled again by themselves. May be async. An
        error is reported, and the other extensions are told.
        """

    def system_prompt_snippets(self) -> list[str]:
        """Called after every `configure`, and again at each clear.

        Gets nothing: it reads what `configure` has made. Returns sections of the system prompt, none
        by default; they are joined after the base in order of registration. Keep it cheap (see
        `once`). An error is reported, and there is no section from it.
        """
        return []


def once(fn: Callable[[], T]) -> Callable[[], T]:
    """`fn` called at most once; later calls return the same value. Any thread.

    An error is not kept: the next call tries again.

    Examples
    --------
    >>> probe = once(lambda: print("probing") or 4)
    >>> probe(), probe()
    probing
    (4, 4)
    """
    lock = threading.Lock()
    values: list[T] = []

    def known() -> T:
        with lock:
            if not values:
                values.append(fn())
            return values[0]

    return known


_CLOSING_TAG = re.compile(r"<(?=/\s*system-reminder\s*>)", re.IGNORECASE)


def reference_block(text: str) -> str:
    """`text` in the envelope of a reference block, verbatim but for closing tags of the envelope itself.

    Examples
    --------
    >>> print(reference_block("It is raining."))
    <system-reminder>
    It is raining.
    </system-reminder>
    """
    return f"<system-reminder>\n{_CLOSING_TAG.sub('&lt;', text)}\n</system-reminder>"


# ---------------------------------------------------------------- construction


class Configurator:
    """Given to `Extension.configure`; works only while the Kit is being built.

    Every method raises `UsageError` afterwards.
    """

    def __init__(self, host: ExtensionHost) -> None:
        self._host = host
        self._open = True

    def _check_open(self, method: str) -> None:
        if not self._open:
            raise UsageError(
                f"Configurator.{method} works only while the Kit is being built; at run time use the context"
            )

    def add_tool(self, tool: Tool | Callable[..., Any]) -> Tool:
        """Add a tool for the model; a function is made into one."""
        self._check_open("add_tool")
        made = as_tool(tool)
        self._host.tools.append(made)
        return made

    def add_sub_agent_tool(self, tool: Tool | Callable[..., Any]) -> Tool:
        """Add a tool that personas may use and this agent may not."""
        self._check_open("add_sub_agent_tool")
        made = as_tool(tool)
        self._host.sub_agent_tools.append(made)
        return made

    def add_listener(self, fn: Callable[[Any], object], *types: type[Event]) -> None:
        """Have `fn` called with each event, or with those of `types` only; it observes and cannot change."""
        self._check_open("add_listener")
        if not callable(fn):
            raise UsageError(f"a listener is a function of one event, got {fn!r}")
        self._host.listeners.append((fn, types))

    def add_hook(
        self,
        name: str,
        fn: Callable[..., Any],
        *,
        priority: int = 50,
        timeout_seconds: float | None = HOOK_TIMEOUT_SECONDS,
    ) -> None:
        """Add a chained hook.

        Parameters
        ----------
        name : str
            A chained hook of `HOOKS`, for example ``before_tool``.
        fn : callable or async callable
            Gets what the table says. A sync one runs on a thread of its own.
        priority : int
            Lower ones run earlier; the same priority in order of registration.
        timeout_seconds : float or None
            A hook that takes longer is reported and passed over; a gate then blocks. None: no limit.
        """
        self._check_open("add_hook")
        if name not in CHAINED:
            raise UsageError(f"unknown hook {name!r}; hooks to add are: {', '.join(CHAINED)}")
        if not callable(fn):
            raise UsageError(f"hook {name!r} is a function, got {fn!r}")
        self._host._add_handler(name, fn, _guest.get() or _name_of(fn), priority, timeout_seconds)

    def on_close(self, fn: Callable[[], Any]) -> None:
        """Have `fn` called when the Kit closes, or when its construction fails; last added, first called."""
        self._check_open("on_close")
        if not callable(fn):
            raise UsageError(f"a closer is a function without arguments, got {fn!r}")
        self._host._closers.append((_guest.get() or _name_of(fn), fn))

    def add_extension(self, extension: Any) -> None:
        """Add an extension: its `configure` runs before this returns.

        Raises
        ------
        UsageError
            If a required hook is missing (the text names it), if it is a class and not an instance,
            or if this very instance was added before.
        """
        self._check_open("add_extension")
        self._host._add_extension(extension, self)


_guest: contextvars.ContextVar[str] = contextvars.ContextVar("kit_guest", default="")


@contextmanager
def _as_guest(name: str) -> Iterator[None]:
    token = _guest.set(name)
    try:
        yield
    finally:
        _guest.reset(token)


def _name_of(thing: object) -> str:
    return getattr(thing, "__qualname__", "") or type(thing).__name__


_READERS = frozenset(
    ("id", "session_id", "model", "tools", "messages", "history", "system", "usage", "queue", "is_running")
)


class KitView:
    """What an extension may see of a Kit: ``id``, ``session_id``, ``model``, ``tools``, ``messages``, ``history``,
    ``system``, ``usage``, ``queue`` and ``is_running``, as far as the Kit shows them. Setting anything raises.
    """

    __slots__ = ("_show",)
    _show: Callable[[str], Any]

    def __init__(self, kit: Any) -> None:
        # In a closure, so that no attribute leads to the Kit itself.
        object.__setattr__(self, "_show", lambda name: getattr(kit, name))

    def __getattr__(self, name: str) -> Any:
        if name not in _READERS:
            raise AttributeError(f"an extension sees of a Kit only {', '.join(sorted(_READERS))}; got {name!r}")
        value = self._show(name)
        return tuple(value) if isinstance(value, list) else value

    def __setattr__(self, name: str, value: object) -> None:
        hint = ""
        if name.startswith(("system", "prompt")):
            hint = ": return the text from system_prompt_snippets, which is pulled again at each clear"
        raise AttributeError(f"an extension cannot set {name!r} of a Kit{hint}")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"an extension cannot delete {name!r} of a Kit")

    def __dir__(self) -> list[str]:
        return sorted(_READERS)

    def __repr__(self) -> str:
        return f"<view of Kit {self.id}>"


class GuestContext:
    """The `ExtensionContext` of a Kit.

    Parameters
    ----------
    host : ExtensionHost
    kit : KitView
    emit : callable (name, content)
        Emits a `Domain` event at once.
    child : callable (persona, **options) or None
        Makes an agent for a persona.
    """

    __slots__ = ("_child", "_emit", "_host", "kit")

    def __init__(
        self,
        host: ExtensionHost,
        kit: KitView,
        *,
        emit: Callable[[str, Any], object],
        child: Callable[..., Any] | None = None,
    ) -> None:
        self._host = host
        self._emit = emit
        self._child = child
        self.kit = kit

    @property
    def agent(self) -> KitView:
        """The same as `kit`."""
        return self.kit

    def emit(self, name: str, content: Any = None) -> None:
        """Emit a `Domain` event, at once."""
        self._emit(name, content)

    def append_reference_block(self, text: str) -> None:
        """Add `text` to this extension's reference block after the next user message."""
        self._host._queue_block(_guest.get() or "extension", text)

    def add_tool(self, tool: Tool | Callable[..., Any]) -> Tool:
        """Add a tool at run time; the next turn has it."""
        made = as_tool(tool)
        name = made.spec.name
        if name in getattr(self.kit, "tools", ()) or any(known.spec.name == name for known in self._host.tools):
            raise UsageError(f"there is a tool named {name!r} already; choose another name or remove it first")
        self._host.tools.append(made)
        self._host.tools_version += 1
        return made

    def remove_tool(self, name: str) -> None:
        """Take away a tool that an extension added; unknown names are ignored."""
        self._host.tools[:] = [tool for tool in self._host.tools if tool.spec.name != name]
        self._host.tools_version += 1

    @property
    def delegable_tools(self) -> tuple[Tool, ...]:
        """Tools that a persona may have: the agent's own and the sub-agent tools."""
        return (*self.kit.tools.values(), *self._host.sub_agent_tools)

    def child(self, persona: Any, **options: Any) -> Any:
        """A new agent for `persona`."""
        if self._child is None:
            raise UsageError("this Kit cannot make sub-agents")
        return self._child(persona, **options)

    def warn(self, message: str) -> None:
        """Tell a person something."""
        self._host._warn(message, _guest.get() or "extension")


# ---------------------------------------------------------------- the host


@dataclass(slots=True, eq=False)
class _Handler:
    owner: str
    fn: Callable[..., Any]
    priority: int
    timeout_seconds: float | None
    hanging: int = 0


@dataclass(frozen=True, slots=True)
class _Guest:
    name: str
    extension: Any
    timeout_seconds: float | None


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


class ExtensionHost:
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
        self.extensions: list[Any] = []
        self.tools: list[Tool] = []
        self.sub_agent_tools: list[Tool] = []
        self.tools_version = 0
        self.listeners: list[tuple[Callable[[Any], object], tuple[type[Event], ...]]] = []
        self.sections: tuple[tuple[str, str], ...] = ()
        self.context: ExtensionContext | None = None
        self._guests: list[_Guest] = []
        self._handlers: dict[str, list[_Handler]] = {name: [] for name in CHAINED}
        self._closers: list[tuple[str, Callable[[], Any]]] = []
        self._blocks: list[tuple[str, str]] = []
        self._blocks_lock = threading.Lock()
        self._told: set[str] = set()
        self._shown: tuple[PromptMessage, ...] = ()
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
            If an extension lacks a hook or was added twice; closed first, too.
        """
        host = cls()
        host.on_error = on_error
        host.on_warning = on_warning
        configurator = Configurator(host)
        try:
            for extension in extensions:
                configurator.add_extension(extension)
            if configure_fn is not None:
                configure_fn(configurator)
        except BaseException:
            host.close_sync()
            raise
        finally:
            configurator._open = False
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

    def _add_extension(self, extension: Any, configurator: Configurator) -> None:
        if isinstance(extension, type):
            raise UsageError(
                f"an extension is an instance; write {extension.__name__}() instead of {extension.__name__}"
            )
        label = type(extension).__name__
        missing = [name for name in REQUIRED if not callable(getattr(extension, name, None))]
        if missing:
            raise UsageError(
                f"{label} is no extension: it has no {', '.join(missing)}; "
                "inherit from kit_jupyter.Extension to get them"
            )
        if any(known is extension for known in self.extensions):
            raise UsageError(f"this {label} was added already; an extension is configured once")
        guest = _Guest(self._free_name(extension), extension, _timeout_of(extension))
        self.extensions.append(extension)
        self._guests.append(guest)
        for hook in CHAINED:
            method = getattr(extension, hook, None)
            if callable(method):
                self._add_handler(hook, method, guest.name, 50, guest.timeout_seconds)
        with _as_guest(guest.name):
            self._construct(guest, "configure", configurator)

    def _free_name(self, extension: Any) -> str:
        own = getattr(extension, "name", None)
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
            raise ExtensionError(
                f"{guest.name}.{hook} failed: {type(exc).__name__}: {exc}", extension=guest.name, hook=hook
            ) from exc

    def _add_handler(
        self, name: str, fn: Callable[..., Any], owner: str, priority: int, timeout_seconds: float | None
    ) -> None:
        handlers = self._handlers[name]
        handlers.append(_Handler(owner, fn, priority, timeout_seconds))
        handlers.sort(key=lambda handler: handler.priority)  # stable: registration order within a priority

    def bind(
        self, kit: Any, emit: Callable[[str, Any], object], *, child: Callable[..., Any] | None = None
    ) -> ExtensionContext:
        """Make the one context of this Kit, then call every `bind` with it.

        Parameters
        ----------
        kit : object
            The Kit, or a view of it; guests see it through a `KitView`.
        emit : callable (name, content)
            Emits a `Domain` event at once.
        child : callable (persona, **options) or None
            Makes an agent for a persona.

        Raises
        ------
        ExtensionError
            If a `bind` fails; the closers run first.
        """
        context = GuestContext(self, KitView(kit), emit=emit, child=child)
        self.context = context
        try:
            for guest in self._guests:
                with _as_guest(guest.name):
                    self._construct(guest, "bind", context)
        except BaseException:
            self.close_sync()
            raise
        return context

    def add_hook(self, name: str, fn: Callable[..., Any], *, priority: int = 50) -> Callable[[], None]:
        """Add a chained hook for the Kit itself, at any time; returns what takes it away again."""
        if name not in CHAINED:
            raise UsageError(f"unknown hook {name!r}; hooks to add are: {', '.join(CHAINED)}")
        self._add_handler(name, fn, _name_of(fn), priority, HOOK_TIMEOUT_SECONDS)
        added = next(handler for handler in reversed(self._handlers[name]) if handler.fn is fn)

        def remove() -> None:
            self._handlers[name] = [handler for handler in self._handlers[name] if handler is not added]

        return remove

    # -- reports

    def _report(self, owner: str, hook: str, exc: BaseException | str) -> ExtensionError:
        what = exc if isinstance(exc, str) else str(exc) if isinstance(exc, GuestTimeout) else _told(exc)
        error = ExtensionError(f"{owner}.{hook} failed: {what}", extension=owner, hook=hook)
        if isinstance(exc, BaseException):
            error.__cause__ = exc
        self._errors.put(error)
        return error

    def _warn(self, message: str, source: str) -> None:
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
                with _as_guest(guest.name):
                    texts = call_blocking(guest.extension.system_prompt_snippets, timeout_seconds=guest.timeout_seconds)
                sections += [(guest.name, text) for text in _texts(texts)]
            except Exception as exc:
                self._report(guest.name, "system_prompt_snippets", exc)
            took = time.perf_counter() - began
            if took > SLOW_SNIPPET_SECONDS:
                self._warn(
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
                self._report(guest.name, "on_user_message", f"it returned {_type(text)}, not text or None")
        with self._blocks_lock:
            queued, self._blocks = self._blocks, []
        for name, text in queued:
            said.setdefault(name, []).insert(0, text)
        blocks = ((name, "\n\n".join(t for t in texts if t.strip())) for name, texts in said.items())
        return tuple((name, reference_block(text)) for name, text in blocks if text.strip())

    def _queue_block(self, name: str, text: str) -> None:
        with self._blocks_lock:
            self._blocks.append((name, text))

    async def reset(self) -> None:
        """The conversation was cleared: every guest drops what belongs to it, in order."""
        with self._blocks_lock:
            self._blocks.clear()
        self._told.clear()
        self._shown = ()
        for guest in self._guests:
            await self._ask(guest, "on_conversation_reset")

    async def _ask(self, guest: _Guest, hook: str, *args: Any) -> Any:
        with _as_guest(guest.name):
            try:
                return await call(
                    getattr(guest.extension, hook), self.context, *args, timeout_seconds=guest.timeout_seconds
                )
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
                with _as_guest(guest.name):
                    said = call_blocking(hook, [*tools, *self.sub_agent_tools], timeout_seconds=guest.timeout_seconds)
            except Exception as exc:
                self._report(guest.name, "trifecta_contribution", exc)
                said = Contribution(gaps=("its trifecta_contribution failed",))
            if said is None:
                continue
            if not isinstance(said, Contribution):
                raise ExtensionError(
                    f"{guest.name}.trifecta_contribution returned {_type(said)}, not a Contribution or None",
                    extension=guest.name,
                    hook="trifecta_contribution",
                )
            found.append(replace(said, label=guest.name) if said.label in ("", UNNAMED) else said)
        return tuple(found)

    def trifecta(self, tools: Sequence[Tool], *, label: str = "agent") -> Report:
        """The trifecta report of the whole agent: its `tools` and what guests contribute."""
        return walk(tree(label, tools, self.contributions(tools)))

    # -- chained hooks

    @property
    def has_input_hooks(self) -> bool:
        """True when a guest looks at input."""
        return bool(self._handlers["on_input"])

    def has_hooks(self, name: str) -> bool:
        """True when a guest has the chained hook `name`."""
        return bool(self._handlers[name])

    async def _call(self, handler: _Handler, *args: Any) -> Any:
        if handler.hanging:
            raise GuestTimeout("an earlier call of it has not returned yet")
        with _as_guest(handler.owner):
            try:
                return await call(self._watched(handler), *args, timeout_seconds=handler.timeout_seconds)
            except GuestTimeout:
                if is_async(handler.fn):
                    raise  # cancelled, so nothing runs on
                handler.hanging += 1
                raise

    @staticmethod
    def _watched(handler: _Handler) -> Callable[..., Any]:
        if is_async(handler.fn):
            return handler.fn

        def run(*args: Any) -> Any:
            try:
                return handler.fn(*args)
            finally:
                handler.hanging = 0

        return run

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
                self._report(handler.owner, hook, f"it returned {_type(said)}, not {kind.__name__} or None")
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
                self._report(handler.owner, "on_input", f"it returned {_type(said)}, not text, HANDLED or None")
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
                    handler.owner, "before_turn", f"it returned {_type(said)}, not a BeforeTurn of text or None"
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
        whole._sent = _common(self._shown, messages)
        self._shown = messages
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
                    handler.owner, "edit_prompt", f"it returned {_type(said)}; change the request through the editor"
                )
                continue
            for warning in draft.warnings:
                self._warn(warning, handler.owner)
            whole.adopt(draft)
        return whole.messages

    async def before_tool(self, call: ToolCallPart, arguments: Mapping[str, Any]) -> BeforeTool:
        """Gates, chained; the first block stops. A gate that fails blocks."""
        for handler in tuple(self._handlers["before_tool"]):
            try:
                said = await self._call(handler, call, MappingProxyType(dict(arguments)))
                if said is None:
                    continue
                if not isinstance(said, BeforeTool):
                    raise TypeError(f"it returned {_type(said)}, not BeforeTool or None")
                if said.arguments is not None and not isinstance(said.arguments, Mapping):
                    raise TypeError(f"its arguments are {_type(said.arguments)}, not a mapping")
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
                self._report(handler.owner, "before_compact", f"it returned {_type(said)}, not CompactionPlan or None")
        return plan

    # -- the end

    async def close(self) -> None:
        """Run the closers, last added first; each once, each isolated. A second call does nothing."""
        closers, self._closers = self._closers, []
        for owner, fn in reversed(closers):
            try:
                await call(fn, timeout_seconds=HOOK_TIMEOUT_SECONDS)
            except Exception as exc:
                self._report(owner, "on_close", exc)

    def close_sync(self) -> None:
        """The same from sync code; on the engine's own thread async closers only begin here."""
        closers, self._closers = self._closers, []
        for owner, fn in reversed(closers):
            try:
                value = call_blocking(fn, timeout_seconds=HOOK_TIMEOUT_SECONDS)
                if inspect.isawaitable(value):
                    running = engine.start(_awaiting(value))
                    if not engine.is_here:
                        running.future.result(HOOK_TIMEOUT_SECONDS)
            except Exception as exc:
                self._report(owner, "on_close", exc)


async def _awaiting(value: Any) -> Any:
    return await value


def _told(exc: BaseException) -> str:
    return f"{type(exc).__name__}: {exc}"


def _type(value: object) -> str:
    return f"{type(value).__name__} {value!r}"[:120]


def _timeout_of(extension: Any) -> float | None:
    return cast("float | None", getattr(extension, "hook_timeout_seconds", HOOK_TIMEOUT_SECONDS))


def _common(before: Sequence[PromptMessage], after: Sequence[PromptMessage]) -> int:
    """How many of the first messages are the same objects: those an earlier request has carried."""
    count = 0
    for old, new in zip(before, after, strict=False):
        if old is not new and old != new:
            break
        count += 1
    return count


def _texts(value: object) -> list[str]:
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise TypeError("it cannot be async: probe in configure, read here")
    if value is None:
        return []
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise TypeError(f"it returned {_type(value)}, not a list of text")
    for text in value:
        if text is not None and not isinstance(text, str):
            raise TypeError(f"a section is {_type(text)}, not text")
    return [text for text in value if text and text.strip()]
