"""What user code prints, caught by context, bounded, and never by closing anything.

Theory of operation
-------------------
While at least one `catch_prints` is open, ``sys.stdout`` and ``sys.stderr`` are routers. A router
asks a context variable whose output this is: a tool's sink, or nobody's, and then the text goes
where it always went. So two async tools on one thread do not mix, and a thread that the user
started before keeps printing to its own place. The last one out puts the streams back.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import io
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from kit_jupyter.masking import shortened

__all__ = ["Sink", "catch_prints", "clip"]

_sink: contextvars.ContextVar[Sink | None] = contextvars.ContextVar("kit_printed", default=None)
_lock = threading.Lock()
_open = 0
_before: tuple[Any, Any] = (None, None)


def clip(text: str, limit: int, *, what: str = "characters") -> str:
    """`text` with its middle left out when longer than `limit` characters; says how much is missing.

    No secret is cut in two there: what is left of one could not be masked any more.

    Examples
    --------
    >>> clip("abcdefghij" * 10, 40)
    'abcdefghijabcdefghijabcdefgh\\n… 60 characters left out …\\nijabcdefghij'
    """
    if len(text) <= limit:
        return text
    head = limit * 7 // 10
    tail = limit - head
    missing = f"\n… {len(text) - limit:,} {what} left out …\n"
    return f"{shortened(text, head)}{missing}{shortened(text, tail, end=True)}"


class Sink:
    """Takes printed text: keeps a bounded head and tail, passes a bounded amount on live.

    Parameters
    ----------
    live : callable(text, stream) or None
        Called with each piece while under `live_limit`; once more to say that the rest is not shown.
    keep : int
        Characters kept for the result, most from the start and the rest from the end.
    live_limit : int
        Characters passed on live.
    """

    def __init__(
        self, live: Callable[[str, str], object] | None = None, *, keep: int = 40_000, live_limit: int = 200_000
    ) -> None:
        self._live = live
        self._live_left = live_limit
        self._waiting: list[tuple[str, str]] = []
        self._waiting_size = 0
        self._said = 0
        self._said_at = 0.0
        self._head_limit = keep * 7 // 10
        self._tail_limit = keep - self._head_limit
        self._margin = 4_096 if keep else 0  # kept beyond the limits, so that no secret is cut in two there
        self._head_left = self._head_limit + self._margin
        self._head: list[str] = []
        self._tail: list[str] = []
        self._tail_size = 0
        self._dropped = 0
        self._lock = threading.Lock()

    def write(self, text: str, stream: str = "stdout") -> None:
        """Take a piece. Any thread."""
        if not text:
            return
        with self._lock:
            if self._head_left > 0:
                self._head.append(text[: self._head_left])
                rest = text[self._head_left :]
                self._head_left -= len(text) - len(rest)
            else:
                rest = text
            if rest:
                self._tail.append(rest)
                self._tail_size += len(rest)
                if self._tail_size > 4 * (self._tail_limit + self._margin) + 1024:
                    self._cut_tail()
            if self._live_left > 0:
                shown = shortened(text, self._live_left)
                self._live_left -= len(text)
                if self._live_left <= 0:
                    shown += "\n… more output, not shown live …\n"
                self._waiting.append((shown, stream))
                self._waiting_size += len(shown)
            # At once when it is rare; by lines, then by larger pieces when it pours.
            rare = time.monotonic() - self._said_at > 0.1
            line = self._said < 1000 and text.endswith(("\n", "\r"))
            due = rare or line or self._waiting_size > 2000
        if due:
            self.flush()

    def flush(self) -> None:
        """Pass on what waits. Any thread."""
        with self._lock:
            pieces, self._waiting, self._waiting_size = self._waiting, [], 0
            self._said += 1
            self._said_at = time.monotonic()
        if self._live is None:
            return
        joined: list[tuple[str, str]] = []
        for text, stream in pieces:
            if joined and joined[-1][1] == stream:
                joined[-1] = (joined[-1][0] + text, stream)
            else:
                joined.append((text, stream))
        for text, stream in joined:
            self._live(text, stream)

    def _cut_tail(self) -> None:
        joined = "".join(self._tail)
        cut = max(0, len(joined) - self._tail_limit - self._margin)
        self._dropped += cut
        self._tail = [joined[cut:]]
        self._tail_size = len(joined) - cut

    @property
    def text(self) -> str:
        """What was printed, the middle left out when there was too much."""
        with self._lock:
            self._cut_tail()
            head, tail = "".join(self._head), "".join(self._tail)
        missing = len(head) + self._dropped + len(tail) - self._head_limit - self._tail_limit
        if missing <= 0:
            return head + tail
        if not self._dropped:
            return clip(head + tail, self._head_limit + self._tail_limit)
        end = shortened(tail, self._tail_limit, end=True)
        return f"{shortened(head, self._head_limit)}\n… {missing:,} characters left out …\n{end}"


class _Router(io.TextIOBase):
    """Stands in for a stream; forwards to the context's sink or to the stream that was there."""

    def __init__(self, name: str, real: Any) -> None:
        self._name = name
        self._real = real

    def stands_for(self, name: str, real: Any) -> bool:
        return self._name == name and self._real is real

    def write(self, text: str) -> int:
        sink = _sink.get()
        if sink is None:
            return int(self._real.write(text) or 0)
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        sink.write(text, self._name)
        return len(text)

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        if _sink.get() is None and self._real is not None:
            self._real.flush()

    def close(self) -> None:
        """Nothing: user code that closes stdout closes it for itself only."""

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return int(self._real.fileno())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return getattr(self._real, "encoding", None) or "utf-8"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


_routers: collections.deque[_Router] = collections.deque(maxlen=16)


def _router(name: str, real: Any) -> _Router:
    """The stand-in for `real`, made once and kept: `print` only borrows ``sys.stdout``.

    A thread of the user's may be within a `print` while the last tool ends; a router that went away
    then would be used after it was freed.
    """
    for known in _routers:
        if known.stands_for(name, real):
            return known
    router = _Router(name, real)
    _routers.append(router)
    return router


@contextlib.contextmanager
def catch_prints(sink: Sink) -> Iterator[Sink]:
    """Within this context, and tasks begun in it, printed text goes to `sink`.

    Examples
    --------
    >>> with catch_prints(Sink()) as sink:
    ...     print("hello")
    >>> sink.text
    'hello\\n'
    """
    global _open, _before
    with _lock:
        if _open == 0:
            _before = (sys.stdout, sys.stderr)
            sys.stdout, sys.stderr = _router("stdout", _before[0]), _router("stderr", _before[1])
        _open += 1
    token = _sink.set(sink)
    try:
        yield sink
    finally:
        _sink.reset(token)
        sink.flush()
        with _lock:
            _open -= 1
            if _open == 0:
                # Put back only what is still ours: user code may have set a stream of its own.
                if isinstance(sys.stdout, _Router):
                    sys.stdout = _before[0]
                if isinstance(sys.stderr, _Router):
                    sys.stderr = _before[1]
                _before = (None, None)
