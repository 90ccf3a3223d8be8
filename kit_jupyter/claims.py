"""One thing at a time: who may be alone with a Kit's session, and who comes next.

Theory of operation
-------------------
A turn, a compaction or a move in the tree *claims* the Kit. The claim is there before the first await, so
two can never meet. Who comes meanwhile is refused, or waits in line; at the end of a claim the first in
line is given the move, and nobody can slip in before it has taken it. Everything here is on the engine.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections import deque
from collections.abc import Iterator

from kit_jupyter.errors import UsageError
from kit_jupyter.house import TurnResult, turns_here
from kit_jupyter.loop import engine
from kit_jupyter.turn import Turn

__all__ = ["Busy", "Claims", "Place"]

Place = asyncio.Future[None]


class Busy:
    """What has claimed a Kit: a turn, or something else that must be alone with the session."""

    def __init__(self, what: str, turn: Turn | None = None) -> None:
        self.what = what
        self.turn = turn
        self.is_stopped = False
        self.done: concurrent.futures.Future[TurnResult | None] = concurrent.futures.Future()
        self.done.set_running_or_notify_cancel()  # so that nobody's stray cancel reaches it
        self._task = asyncio.current_task()

    def stop(self) -> None:
        """End it."""
        self.is_stopped = True
        if self.turn is not None:
            self.turn.abort()
        elif self._task is not None:
            self._task.cancel()

    def take_back_stop(self) -> None:
        """The stop was met: the task itself goes on."""
        if self.is_stopped and self._task is not None:
            self._task.uncancel()


class Claims:
    """Of one Kit.

    Parameters
    ----------
    kit_id : str
        To know code that runs inside this Kit's own turn: it must not wait for that turn's end.
    """

    def __init__(self, kit_id: str) -> None:
        self._kit_id = kit_id
        self.is_closed = False
        self.busy: Busy | None = None
        self.last: Busy | None = None
        self.waiting: deque[Place] = deque()
        self._next: Place | None = None  # whose move it is, between two claims

    @property
    def taken(self) -> str:
        """Why nothing can begin now; empty when something can."""
        if self.busy is not None:
            return self.busy.what
        return "another prompt comes first" if self._next is not None else ""

    @contextlib.contextmanager
    def claim(self, what: str, turn: Turn | None = None, place: Place | None = None) -> Iterator[Busy]:
        """Be alone with the session.

        Parameters
        ----------
        place : Place or None
            One that was given the move.

        Raises
        ------
        UsageError
            When something else runs, or the Kit is closed.
        """
        if place is not None and place is self._next:
            self._next = None
        if self.is_closed:
            self._hand_over()
            raise UsageError("this Kit is closed; make a new one, its session can be resumed")
        if self.taken:
            raise UsageError(
                f"{self.taken}; stop it with abort(), say something to it with steer(), "
                "or pass when_busy='queue' or 'steer' (in cells: %kit_stop, %kit_steer, or %%kit -s NAME at the side)"
            )
        busy = self.busy = Busy(what, turn)
        try:
            yield busy
        finally:
            self.busy, self.last = None, busy
            if not busy.done.done():
                busy.done.set_result(None)
            self._hand_over()

    def reserve(self) -> Place:
        """The next move, before anyone in line."""
        self._next = asyncio.get_running_loop().create_future()
        return self._next

    def give_up(self, place: Place | None) -> None:
        """Leave the line, or pass the move on."""
        if place is None:
            return
        if place in self.waiting:
            self.waiting.remove(place)
        if self._next is place:
            self._next = None
            self._hand_over()

    def _hand_over(self) -> None:
        while self.waiting and self._next is None:
            place = self.waiting.popleft()
            if not place.done():
                self._next = place
                place.set_result(None)

    async def stand_in_line(self) -> Place:
        """Wait for the move; the place is to be claimed with at once."""
        self.must_not_wait()
        place: Place = asyncio.get_running_loop().create_future()
        self.waiting.append(place)
        try:
            await place
        except BaseException:
            self.give_up(place)
            raise
        return place

    def must_not_wait(self) -> None:
        """Refuse code that would wait for itself."""
        if self._kit_id in turns_here.get():
            raise UsageError("a tool or hook of the running turn cannot wait for that turn's own end")

    async def until_free(self) -> None:
        """Wait until what runs now has ended."""
        self.must_not_wait()
        if self.busy is not None:
            await asyncio.wait([asyncio.wrap_future(self.busy.done)])
        else:
            await asyncio.sleep(0)

    def stop(
        self, turn_id: str | None = None, told: concurrent.futures.Future[None] | None = None, late: bool = False
    ) -> None:
        """End what runs, or only the turn of that id; `told` is done when it has ended.

        Without an id, prompts that wait in line are turned away.
        """
        busy = self.busy
        is_meant = busy is not None and (turn_id is None or (busy.turn is not None and busy.turn.id == turn_id))
        if busy is None or not is_meant:
            if not late:  # a turn that was asked for just now begins first
                engine.loop.call_soon(self.stop, turn_id, told, True)
            elif told is not None:
                told.set_result(None)
            return
        busy.stop()
        if turn_id is None:
            self._turn_away()
        if told is not None:
            busy.done.add_done_callback(lambda _: told.set_result(None))

    def _turn_away(self) -> None:
        while self.waiting:
            place = self.waiting.popleft()
            if not place.done():
                place.set_exception(
                    UsageError("this prompt waited for a turn that was stopped, and was not sent; send it again")
                )
