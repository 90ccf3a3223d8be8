"""How often live views send: at once, then at a shared rate; and how many bytes."""

from __future__ import annotations

import json

import pytest
from kernels import Kernel

from kit_jupyter.jupyter.pace import TOTAL, Pacer


class Clock:
    """A clock and a timer that the test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[tuple[float, object]] = []

    def later(self, seconds: float, fn: object) -> None:
        self.timers.append((self.now + seconds, fn))

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.timers and min(when for when, _ in self.timers) <= end:
            due = min(self.timers, key=lambda timer: timer[0])
            self.timers.remove(due)
            self.now = max(self.now, due[0])
            due[1]()  # type: ignore[operator]
        self.now = end


class Paced:
    def __init__(self) -> None:
        self.frames: list[float] = []
        self.clock: Clock

    def flush(self) -> None:
        self.frames.append(self.clock.now)


def pacer(*views: Paced) -> tuple[Pacer, Clock]:
    clock = Clock()
    for view in views:
        view.clock = clock
    return Pacer(lambda: clock.now, clock.later), clock


def test_the_first_frame_goes_at_once() -> None:
    """Speed row 13."""
    view = Paced()
    it, clock = pacer(view)

    it.begin(view)
    it.mark(view)

    assert view.frames == [clock.now]


def test_thirty_a_second_then_fifteen_then_ten() -> None:
    """Speed rows 12b and 12c: frames ≤ 2 + 30/s, and 10/s after the first two seconds; none while nothing changed."""
    view = Paced()
    it, clock = pacer(view)
    it.begin(view)
    for _ in range(4000):
        it.mark(view)
        clock.advance(0.001)

    begun = [t - 100 for t in view.frames]
    assert 14 <= len([t for t in begun if t < 0.5]) <= 17
    assert 20 <= len([t for t in begun if 0.5 <= t < 2]) <= 24
    assert 18 <= len([t for t in begun if t >= 2]) <= 22
    clock.advance(1.0)
    settled = len(view.frames)
    clock.advance(10)
    assert len(view.frames) == settled


@pytest.mark.parametrize("count", [1, 3, 10, 40])
def test_all_views_share_one_rate(count: int) -> None:
    """Speed row 15: never more than 60 messages a second in all, however many cells are live."""
    views = [Paced() for _ in range(count)]
    it, clock = pacer(*views)
    for view in views:
        it.begin(view)
    for _ in range(5000):
        for view in views:
            it.mark(view)
        clock.advance(0.001)

    frames = sorted(t for view in views for t in view.frames)
    assert len([t for t in frames if 101 <= t < 105]) <= 4 * TOTAL * 1.1  # a server, too, takes the mean of 3 s
    assert all(len(view.frames) >= 5 for view in views), "one of them starved"


def test_urgent_frames_do_not_wait() -> None:
    """An approval and an end are shown at once."""
    view = Paced()
    it, clock = pacer(view)
    it.begin(view)
    it.mark(view)
    it.mark(view, urgent=True)

    assert view.frames == [clock.now, clock.now]


def test_a_view_that_left_is_not_flushed() -> None:
    """A closed view gets no more frames."""
    view = Paced()
    it, clock = pacer(view)
    it.mark(view)
    it.mark(view)
    it.leave(view)
    clock.advance(5)

    assert len(view.frames) == 1


@pytest.mark.parametrize(("size", "most"), [(20_000, 1.25), (100_000, 1.08), (400_000, 1.06)])
def test_bytes_of_the_live_view(nb: Kernel, size: int, most: float) -> None:
    """Speed row 12c, U6: bytes grow with the answer; a burst costs little more than its text."""
    nb.script("[text('warm')]", f"[text('words and more ' * ({size} // 15), chunks={size} // 20)]")
    nb.ok("%%kit\nwarm up", cell_id="w")  # the first view of a kernel carries the drawing module

    said = nb.ok("%%kit\ngo", cell_id="b", timeout=60)

    sent = sum(len(json.dumps(frame)) for frame in said.frames)
    envelopes = 577 * len(said.frames)
    print(size, len(said.frames), (sent + envelopes) / size)
    assert sent + envelopes <= most * size + 600 * len(said.frames)
    assert len(said.frames) <= 2 + 3 + 30 * 2 + 10 * said.seconds
    opened = [m for m in said.messages if m["msg_type"] == "comm_open"]
    assert sum(len(json.dumps(m["content"])) for m in opened) < 6000


def test_many_live_cells_stay_under_the_servers_limit(nb: Kernel) -> None:
    """Speed row 15: ten turns at once; a default server would drop nothing."""
    nb.ok("nbk = notebook_of(get_ipython())")
    nb.ok(
        "for i in range(10):\n"
        "    p = ScriptedProvider([x for j in range(100) for x in (text('word '), delay(0.01))])\n"
        "    nbk.kits[f's{i}'] = Kit(session='memory', provider=p)"
    )
    cells = [nb.send(f"%%kit -b -s s{i}\ngo", cell_id=f"many{i}") for i in range(10)]
    for msg in cells:
        nb.pump(lambda msg=msg: any(m["msg_type"] == "update_display_data" for m in nb.mine(msg)))

    times = sorted(
        m["header"]["date"].timestamp() for msg in cells for m in nb.mine(msg) if m["msg_type"].startswith("comm_")
    )
    busiest = max(sum(1 for t in times if begin <= t < begin + 1) for begin in times)
    assert busiest <= 100 + 30  # opens and closes of ten views, and their first frames, come on top
