"""What a guest of a Kit is: the base class, the protocol, and the handle it gets at run time."""

from __future__ import annotations

import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from kit_jupyter.permissions import Approval
from kit_jupyter.tool import Tool

if TYPE_CHECKING:
    from kit_jupyter.configurator import Configurator

__all__ = [
    "Extension",
    "ExtensionContext",
    "ExtensionProtocol",
    "KitView",
    "once",
    "reference_block",
]

T = TypeVar("T")


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

    async def ask(self, question: str, *, action: str, resource: str = "") -> Approval:
        """Put a question to whoever answers approvals: the view, ``%kit_approve``, the terminal, your approver.

        Await it in an async hook of a running turn, of an extension whose ``hook_timeout_seconds`` is None.
        Rules that name `action` answer first, and an "always" becomes one, for exactly this `resource`. The
        answer is no, ``by="nobody"`` and without a reason, where nobody could be asked and where no turn runs.

        Raises
        ------
        UsageError
            From anywhere but the engine: a sync hook cannot wait for a person.
        """
        ...

    def always_asks(self, tool: Tool, arguments: Mapping[str, Any] | None = None) -> bool | None:
        """Whether the policy in force puts every call of `tool` that acts to a person, or refuses it.

        With `arguments`: every call that has these. None: the policy cannot tell.
        """
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
    >>> from kit_jupyter.extension import ExtensionHost
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

    def on_user_message(self, ctx: ExtensionContext, content: str) -> str | Awaitable[str | None] | None:
        """Called after each user message was stored: the prompt of a turn, and each delivered steer.

        Gets the context and the message's text; returns text for a reference block directly after
        the user's turn, or None. Blank text adds nothing. May be async. An error is reported, and
        the turn goes on without the block.
        """
        return None

    def on_conversation_reset(self, ctx: ExtensionContext) -> Awaitable[None] | None:
        """Called in a clear, once, after the `Reset` event.

        Gets the context; returns nothing. Drop what belongs to the conversation, keep processes and
        queues: a clear is not a quit. Emit your own domain event here when a view should know. The
        system prompt is not touched here: snippets are pulled again by themselves. May be async. An
        error is reported, and the other extensions are told.
        """
        return None

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
        def show(name: str) -> Any:
            if name not in _READERS:
                raise AttributeError(f"an extension sees of a Kit only {', '.join(sorted(_READERS))}; got {name!r}")
            value = getattr(kit, name)
            return tuple(value) if isinstance(value, list) else value

        object.__setattr__(self, "_show", show)  # a closure: no attribute leads to the Kit itself

    def __getattr__(self, name: str) -> Any:
        return self._show(name)

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
