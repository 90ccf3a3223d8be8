"""SEAM Extension: how guests add prompt sections, tools and hooks to a Kit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kit_jupyter.messages import Message, ToolCallPart
from kit_jupyter.prompt import PromptMessage
from kit_jupyter.tool import Tool, ToolOutcome

if TYPE_CHECKING:
    from kit_jupyter.events import Event

__all__ = ["BeforeTool", "BeforeTurn", "Configurator", "Extension", "ExtensionContext", "ExtensionHost", "StepPlan"]


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


class ExtensionContext(Protocol):
    """Runtime handle of one Kit, the same object in every hook of every extension."""

    @property
    def kit(self) -> Any:
        """Read-only view: id, model, tools, history."""
        ...

    def emit(self, name: str, content: Any = None) -> None:
        """Emit a `Domain` event. Any thread."""
        ...


class Configurator(Protocol):
    """Given to `Extension.configure`; works only while the Kit is being built."""

    def add_tool(self, tool: Tool | Callable[..., Any]) -> Tool: ...
    def add_sub_agent_tool(self, tool: Tool | Callable[..., Any]) -> Tool: ...
    def add_listener(self, fn: Callable[[Any], object], *types: type[Event]) -> None: ...
    def add_hook(self, name: str, fn: Callable[..., Any], *, priority: int = 50) -> None: ...
    def on_close(self, fn: Callable[[], Any]) -> None: ...
    def add_extension(self, extension: Any) -> None: ...


class Extension:
    """No-op base: override what you need."""

    def configure(self, c: Configurator) -> None:
        """Called at once when added, while the Kit is built."""

    def bind(self, ctx: ExtensionContext) -> None:
        """Called when the Kit is complete."""

    def on_user_message(self, ctx: ExtensionContext, content: str) -> str | None:
        """Called after each user message was stored; text returned becomes a reference block."""
        return None

    def on_conversation_reset(self, ctx: ExtensionContext) -> None:
        """Called when the conversation is cleared."""

    def system_prompt_snippets(self) -> list[str]:
        """Sections of the system prompt, pulled when the Kit is built and at each clear."""
        return []


class ExtensionHost:
    """All guests of one Kit, driven in order of registration; the turn talks to this object only.

    Every sweep isolates its guests: a hook that fails is reported and the others go on, except
    gates (`before_tool`), which fail closed.
    """

    def __init__(self) -> None:
        self.extensions: list[Any] = []
        self.tools: list[Tool] = []

    def system_sections(self) -> tuple[str, ...]:
        """Prompt sections of all guests, blank ones dropped."""
        return tuple(s for ext in self.extensions for s in (ext.system_prompt_snippets() or ()) if s and s.strip())

    async def on_input(self, text: str, source: str) -> str | None:
        """Chained; the text to go on with, or None when a hook has handled it."""
        return text

    async def before_turn(self, prompt: str, system: str) -> BeforeTurn:
        """Chained."""
        return BeforeTurn(prompt=prompt, system=system)

    async def after_turn(self, response: str, error: BaseException | None) -> None:
        """Observers."""

    async def reference_blocks(self, content: str) -> Sequence[tuple[str, str]]:
        """``(extension name, enveloped text)`` for a stored user message."""
        return ()

    async def prepare_step(self, plan: StepPlan) -> StepPlan:
        """Chained."""
        return plan

    async def edit_prompt(self, messages: tuple[PromptMessage, ...]) -> tuple[PromptMessage, ...]:
        """Run the edit-prompt hooks over a copy."""
        return messages

    async def before_tool(self, call: ToolCallPart, arguments: Mapping[str, Any]) -> BeforeTool:
        """Gates, chained; the first block stops. A gate that fails blocks."""
        return BeforeTool(arguments=arguments)

    async def after_tool(self, call: ToolCallPart, outcome: ToolOutcome) -> ToolOutcome:
        """Chained."""
        return outcome

    async def before_compact(self, plan: CompactionPlan) -> CompactionPlan:
        """Chained; the first cancel stops."""
        return plan

    async def reset(self) -> None:
        """The conversation was cleared."""
