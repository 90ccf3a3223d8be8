"""One scheduler for all live views of a kernel: the first frame at once, then at a shared rate.

Theory of operation
-------------------
A view is marked when something of it changed. Its first frame, and urgent ones (a start, an
approval, an end), go out at once; after that a view sends about 30 frames a second, 15 after the
first half second and 10 after two: a reader who waits sees the first words flow, and a long answer
costs little. All views together stay under `TOTAL`: a Jupyter server drops messages over
1,000 a second, for all outputs of a kernel together. Nothing is sent while nothing changed.

Times come from the loop's clock; everything runs on the engine's loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Protocol

from kit_jupyter.loop import engine

__all__ = ["Pacer", "Paced", "pacer"]

#: Until when, in seconds after the begin of a turn, and the seconds between two frames.
PACES = ((0.5, 1 / 30), (2.0, 1 / 15))
SLOW_SECONDS = 1 / 10
#: Frames a second of all views of this kernel together.
TOTAL = 60


class Paced(Protocol):
    """What a scheduler needs of a view."""

    def flush(self) -> None:
        """Send what is new. Must not raise."""
        ...


class _Beat:
    __slots__ = ("began", "last")

    def __init__(self, began: float) -> None:
        self.began = began
        self.last = -1.0


class Pacer:
    """Sends the frames of all live views of a kernel.

    Parameters
    ----------
    clock : callable or None
        Seconds; None for the engine's loop. Given with `later` by tests.
    later : callable or None
        ``later(seconds, fn)`` calls `fn` after that time.
    """

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        later: Callable[[float, Callable[[], None]], object] | None = None,
    ) -> None:
        self._clock = clock or (lambda: engine.loop.time())
        self._later = later
        self._beats: dict[Paced, _Beat] = {}
        self._dirty: dict[Paced, None] = {}
        self._lock = threading.RLock()
        self._armed: float | None = None

    def begin(self, view: Paced) -> None:
        """A turn begins in this view: its next frame is a first frame again. Any thread."""
        with self._lock:
            self._beats[view] = _Beat(self._clock())

    def leave(self, view: Paced) -> None:
        """The view is gone. Any thread."""
        with self._lock:
            self._beats.pop(view, None)
            self._dirty.pop(view, None)

    def mark(self, view: Paced, *, urgent: bool = False) -> None:
        """Something of `view` changed. Any thread."""
        now = self._clock()
        with self._lock:
            beat = self._beats.get(view)
            if beat is None:
                beat = self._beats[view] = _Beat(now)
            if urgent or beat.last < 0:
                self._dirty.pop(view, None)
                beat.last = now
            else:
                if view in self._dirty:
                    return
                self._dirty[view] = None
                self._arm(beat.last + self._interval(beat, now), now)
                return
        view.flush()

    def _interval(self, beat: _Beat, now: float) -> float:
        age = now - beat.began
        own = next((seconds for until, seconds in PACES if age < until), SLOW_SECONDS)
        live = sum(1 for other in self._beats.values() if now - other.last < 1.0)
        return max(own, live / TOTAL)

    def _arm(self, when: float, now: float) -> None:
        if self._armed is not None and self._armed <= when + 0.001:
            return
        self._armed = when
        delay = max(0.0, when - now)
        if self._later is not None:
            self._later(delay, self._tick)
        elif engine.is_here:
            asyncio.get_running_loop().call_later(delay, self._tick)
        else:
            engine.call(lambda: engine.loop.call_later(delay, self._tick))

    def _tick(self) -> None:
        due: list[Paced] = []
        with self._lock:
            self._armed = None
            now = self._clock()
            upcoming: list[float] = []
            for view in list(self._dirty):
                beat = self._beats.get(view)
                if beat is None:
                    del self._dirty[view]
                    continue
                when = beat.last + self._interval(beat, now)
                if when <= now + 0.002:
                    beat.last = now
                    del self._dirty[view]
                    due.append(view)
                else:
                    upcoming.append(when)
            if upcoming:
                self._arm(min(upcoming), now)
        for view in due:
            view.flush()


pacer = Pacer()
