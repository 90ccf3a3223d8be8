"""What a turn is given and what it gives: its house, its opening messages, its result."""

from __future__ import annotations

import reprlib
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from kit_jupyter import events as ev
from kit_jupyter.event_bus import EventBus
from kit_jupyter.extension import ExtensionHost
from kit_jupyter.glance import clipped
from kit_jupyter.inbox import Inbox, Ticket
from kit_jupyter.loop import Desk
from kit_jupyter.messages import Message, ModelRef, Part, Tokens, ToolCallPart, Usage
from kit_jupyter.permissions import Approver, Policy
from kit_jupyter.prompt import PromptMessage, from_branch
from kit_jupyter.provider import ModelRequest, Provider
from kit_jupyter.session import Session
from kit_jupyter.settings import TurnOptions
from kit_jupyter.tool import Toolbox, ToolOutcome

if TYPE_CHECKING:
    from kit_jupyter.turn import Turn

__all__ = ["FOLLOW_UP", "History", "Opening", "Rewritten", "TurnHouse", "TurnResult", "extends", "turns_here"]

FOLLOW_UP = "Continue."

turns_here: ContextVar[frozenset[str]] = ContextVar("kit_turns_here", default=frozenset())
"""Ids of the Kits in whose turns this code runs: waiting for one of those would be waiting for oneself."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TurnResult:
    """What came of a turn; ``str()`` of it is the final text.

    Attributes
    ----------
    text, thinking : str
        The final answer, and the reasoning of all steps.
    tool_calls : tuple of ToolCallPart
        All calls, in order.
    parts : tuple of Part
        Parts of the final answer.
    usage : Usage
        Of the whole turn; ``cost`` is None when a price is unknown.
    stop_reason : str
        ``stop``, ``length``, ``max_steps``, ``aborted``, ``halted``, ``refusal``, ``content_filter``, …
    messages : tuple of Message
        What the turn stored.
    structured : object
        The value when a schema was asked for.
    value : object
        What a halting tool gave as the final value.
    returned : tuple of str
        Steers and follow-ups that were accepted and not delivered.
    """

    text: str
    thinking: str = ""
    tool_calls: tuple[ToolCallPart, ...] = ()
    parts: tuple[Part, ...] = ()
    usage: Usage = ev.NO_USAGE
    stop_reason: str = "stop"
    steps: int = 0
    messages: tuple[Message, ...] = ()
    turn_id: str = ""
    session_id: str = ""
    entry_id: str = ""
    model: str = ""
    structured: Any = field(default=None, hash=False)
    value: Any = field(default=None, hash=False)
    returned: tuple[str, ...] = ()

    @property
    def cost(self) -> float | None:
        """US dollars, None when unknown."""
        return self.usage.cost

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        tokens = self.usage.tokens
        calls = clipped(", ".join(call.name for call in self.tool_calls), 60)
        facts = (
            self.stop_reason,
            _counted(self.steps, "step"),
            _counted(len(self.tool_calls), "tool call") + (f" ({calls})" if calls else ""),
            _counted(len(self.messages), "message"),
            f"{tokens.input:,} tokens in" if tokens.input is not None else "",
            f"{tokens.output:,} out" if tokens.output is not None else "",
            "cost unknown" if self.cost is None else f"${self.cost:.4f}",
            f"structured={clipped(reprlib.repr(self.structured), 60)}" if self.structured is not None else "",
            f"value={clipped(reprlib.repr(self.value), 60)}" if self.value is not None else "",
            f"{len(self.returned)} not delivered" if self.returned else "",
            clipped(self.model, 60),
        )
        more = f" … {len(self.text):,} characters" if len(self.text) > 60 else ""
        return f"<TurnResult {self.text[:60]!r}{more}: {', '.join(filter(None, facts))}>"

    def _repr_markdown_(self) -> str:
        from kit_jupyter.harmless import harmless

        return harmless(self.text) or f"*(no text: {self.stop_reason})*"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A message with which a turn begins, or which is said to it.

    Parameters
    ----------
    ticket : Ticket or None
        Committed when the message is stored.
    original : str or None
        What the person wrote, when an input hook changed it.
    """

    role: str
    parts: tuple[Part, ...]
    source: str | None = None
    visible: bool = True
    ticket: Ticket | None = None
    original: str | None = None


class History:
    """Prompt messages of a branch; what was shown before is not shown anew, so a turn's cost does not grow with it."""

    def __init__(self) -> None:
        self._stored: tuple[Message, ...] = ()
        self._shown: tuple[PromptMessage, ...] = ()

    def show(self, stored: tuple[Message, ...]) -> tuple[PromptMessage, ...]:
        """As `from_branch`."""
        if extends(stored, self._stored):
            more = from_branch(stored[len(self._stored) :])
            shown = self._shown + more  # one copy of the pointers; a display with stars makes two
        else:
            more = shown = from_branch(stored)
        if not any(message.origin == "repair" for message in more):
            # Without open calls at the end, what follows is shown the same by itself.
            self._stored, self._shown = stored, shown
        return shown


def extends(longer: tuple[Message, ...], shorter: tuple[Message, ...]) -> bool:
    """True if `longer`, a context of the same session, begins with all of `shorter`.

    Entries form a tree: with the same first and the same last message, all between is the same.
    """
    n = len(shorter)
    return 0 < n <= len(longer) and longer[n - 1] is shorter[-1] and longer[0] is shorter[0]


class CompactNow(Protocol):
    """The Kit's way to summarise the history in the middle of a turn."""

    async def __call__(self, reason: str, *, turn: Turn) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnHouse:
    """What a turn is given by its Kit; the same for all turns but for what changed in between.

    Parameters
    ----------
    system : callable of Provider and ModelRef
        The system prompt for that model.
    provider : async callable of TurnOptions
        Gives ``(Provider, ModelRef)``; may look for a server, so it is awaited.
    price : callable of ModelRef and Tokens
        US dollars or None; `load_prices` is awaited before, while the answer comes.
    sent : callable of ModelRequest
        Told of each request before it goes out.
    """

    kit_id: str
    session: Session
    bus: EventBus
    inbox: Inbox
    host: ExtensionHost
    toolbox: Toolbox
    policy: Policy
    approver: Approver
    system: Callable[[Provider, ModelRef], str]
    desk: Desk
    history: History
    provider: Callable[[TurnOptions], Awaitable[tuple[Provider, ModelRef]]]
    price: Callable[[ModelRef, Tokens], float | None]
    load_prices: Callable[[ModelRef], Awaitable[None]]
    sent: Callable[[ModelRequest], None]
    compact: CompactNow
    needs_compaction: Callable[[Provider, ModelRef, TurnOptions], bool]
    state: dict[str, Any]
    mask: Callable[[ToolOutcome], ToolOutcome] = lambda outcome: outcome


class Rewritten(str):
    """Text that an input hook put in the place of what a person wrote; goes to `Kit.prompt` as it is.

    Attributes
    ----------
    original : str
        What the person wrote; stored beside the message.
    """

    original: str

    def __new__(cls, text: str, original: str) -> Rewritten:
        made = super().__new__(cls, text)
        made.original = original
        return made
