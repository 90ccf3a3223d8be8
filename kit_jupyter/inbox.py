"""Tickets for what is said to a running turn: none is ever lost.

Theory of operation
-------------------
A ticket is *queued* when accepted, *delivered* when a turn takes it, *committed* when the session
holds its message. A turn that dies or is stopped returns what it has not committed. So each ticket
ends committed or returned, never both, never neither. Whether a turn still takes tickets is decided
under the same lock as the last look into the queue (`poll_last`), so that nothing can slip in
between that look and the turn's end.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import itertools
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Literal

from kit_jupyter.messages import Part, new_id

__all__ = ["Inbox", "QueueState", "Receipt", "Ticket"]

Kind = Literal["steer", "follow_up"]
State = Literal["queued", "delivered", "committed", "returned"]


@dataclass(frozen=True, slots=True)
class QueueState:
    """What waits, and what came back unsent: texts, in order."""

    steering: tuple[str, ...] = ()
    follow_up: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()


@dataclass(slots=True, eq=False)
class Ticket:
    """One thing said to a running turn."""

    kind: Kind
    text: str
    parts: tuple[Part, ...] = ()
    now: bool = False
    id: str = field(default_factory=lambda: new_id("tkt"))
    state: State = "queued"
    message_id: str = ""
    order: int = field(default_factory=itertools.count().__next__)
    _delivered: concurrent.futures.Future[State] = field(default_factory=concurrent.futures.Future)
    _ended: concurrent.futures.Future[State] = field(default_factory=concurrent.futures.Future)

    def __post_init__(self) -> None:
        # So that whoever stops awaiting a receipt cannot cancel the ticket's own futures.
        self._delivered.set_running_or_notify_cancel()
        self._ended.set_running_or_notify_cancel()

    @property
    def receipt(self) -> Receipt:
        """The sayer's view of this ticket."""
        return Receipt(self)


class Receipt:
    """What the sayer holds: a state to look at, and two things to await. Any thread.

    ``await receipt`` gives the final state, ``committed`` or ``returned``;
    ``await receipt.delivered()`` returns as soon as a turn took it, or it came back.
    """

    __slots__ = ("_ticket",)

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket

    @property
    def id(self) -> str:
        """The ticket's id."""
        return self._ticket.id

    @property
    def text(self) -> str:
        """What was said."""
        return self._ticket.text

    @property
    def state(self) -> State:
        """``queued``, ``delivered``, ``committed`` or ``returned``."""
        return self._ticket.state

    @property
    def message_id(self) -> str:
        """The stored message, once committed."""
        return self._ticket.message_id

    def __await__(self) -> Generator[Any, None, State]:
        return asyncio.wrap_future(self._ticket._ended).__await__()

    async def delivered(self) -> State:
        """Wait until a turn took it, or it came back."""
        return await asyncio.shield(asyncio.wrap_future(self._ticket._delivered))

    def result(self, timeout_seconds: float | None = None) -> State:
        """Block until the ticket has ended."""
        return self._ticket._ended.result(timeout_seconds)

    def __repr__(self) -> str:
        return f"<Receipt {self._ticket.kind} {self.state}: {self._ticket.text[:40]!r}>"


class Inbox:
    """The tickets of one Kit. Any thread.

    Parameters
    ----------
    on_change : callable or None
        Called, outside the lock, with a `QueueState` after each change.
    """

    def __init__(self, on_change: Callable[[QueueState], object] | None = None) -> None:
        self._lock = threading.Lock()
        self._queues: dict[Kind, list[Ticket]] = {"steer": [], "follow_up": []}
        self._in_flight: list[Ticket] = []
        self._returned: list[Ticket] = []
        self._open = False
        self._on_change = on_change

    @property
    def state(self) -> QueueState:
        """A consistent snapshot."""
        with self._lock:
            return self._snapshot()

    def _snapshot(self) -> QueueState:
        return QueueState(
            tuple(t.text for t in self._queues["steer"]),
            tuple(t.text for t in self._queues["follow_up"]),
            tuple(t.text for t in self._returned),
        )

    def _changed(self) -> None:
        if self._on_change is not None:
            self._on_change(self.state)

    def open(self) -> None:
        """A turn begins to take tickets."""
        with self._lock:
            self._open = True

    @property
    def is_open(self) -> bool:
        """True while a turn takes tickets."""
        return self._open

    def offer(self, ticket: Ticket) -> bool:
        """Queue a ticket; False, and nothing kept, when no turn takes any."""
        with self._lock:
            if not self._open:
                return False
            self._queues[ticket.kind].append(ticket)
        self._changed()
        return True

    def refuse(self, ticket: Ticket) -> None:
        """Give back a ticket that no turn took: it ends ``returned``, and is listed as unsent."""
        with self._lock:
            ticket.state = "returned"
            self._returned.append(ticket)
        self._say_returned([ticket])

    def forget(self, ticket: Ticket) -> None:
        """Strike a returned ticket from the list of the unsent: its sayer says it in another way."""
        with self._lock:
            if ticket not in self._returned:
                return
            self._returned.remove(ticket)
        self._changed()

    def forget_receipt(self, receipt: Receipt) -> None:
        """As `forget`, by what the sayer holds."""
        self.forget(receipt._ticket)

    def _take(self, kind: Kind, *, everything: bool) -> list[Ticket]:
        waiting = self._queues[kind]
        taken = waiting[:] if everything else waiting[:1]
        del waiting[: len(taken)]
        for ticket in taken:
            ticket.state = "delivered"
        self._in_flight.extend(taken)
        return taken

    def poll(self, kind: Kind, *, everything: bool = False) -> list[Ticket]:
        """Take the first ticket of `kind`, or all of them; they are delivered now."""
        with self._lock:
            taken = self._take(kind, everything=everything)
        self._say_delivered(taken)
        return taken

    def poll_last(self, *, all_steers: bool = False, all_follow_ups: bool = False) -> list[Ticket]:
        """When the turn would stop: steers, else follow-ups; with none of either, no more are taken."""
        with self._lock:
            taken = self._take("steer", everything=all_steers) or self._take("follow_up", everything=all_follow_ups)
            if not taken:
                self._open = False
        self._say_delivered(taken)
        return taken

    def _say_delivered(self, taken: list[Ticket]) -> None:
        for ticket in taken:
            ticket._delivered.set_result("delivered")
        if taken:
            self._changed()

    def commit(self, ticket: Ticket, message_id: str) -> None:
        """The session holds the ticket's message."""
        with self._lock:
            self._in_flight.remove(ticket)
            ticket.state, ticket.message_id = "committed", message_id
        ticket._ended.set_result("committed")

    def take_all(self) -> list[Ticket]:
        """All steers, else all follow-ups, for a turn that begins with them; with none of either, no more are taken."""
        return self.poll_last(all_steers=True, all_follow_ups=True)

    def close(self) -> list[Ticket]:
        """The turn is over: return every ticket that is not committed, in the order they were said."""
        with self._lock:
            self._open = False
            back = sorted(
                self._in_flight + self._queues["steer"] + self._queues["follow_up"], key=lambda ticket: ticket.order
            )
            self._in_flight, self._queues = [], {"steer": [], "follow_up": []}
            for ticket in back:
                ticket.state = "returned"
            self._returned.extend(back)
        self._say_returned(back)
        return back

    def _say_returned(self, back: list[Ticket]) -> None:
        for ticket in back:
            if not ticket._delivered.done():
                ticket._delivered.set_result("returned")
            ticket._ended.set_result("returned")
        if back:
            self._changed()

    def clear(self) -> list[str]:
        """Take back what waits, and forget what was returned; the texts, for the sayer to keep."""
        with self._lock:
            back = self._queues["steer"] + self._queues["follow_up"]
            self._queues = {"steer": [], "follow_up": []}
            for ticket in back:
                ticket.state = "returned"
            texts = [t.text for t in self._returned + back]
            self._returned = []
        self._say_returned(back)
        if texts and not back:
            self._changed()
        return texts
