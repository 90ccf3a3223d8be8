"""The `python` tool: code in the user's own namespace, on the user's thread, all it shows brought back.

Theory of operation
-------------------
A `Runner` owns the namespace and runs a piece of code in it: in a notebook the IPython shell, in a
script the `NamespaceRunner` here. The tool adds what a colleague would: what was printed while it
runs, the value of the last expression, the pictures it drew (as pictures, so that the model sees
them), a plain traceback, and which names are new, changed or gone. Small variables that the code
mentions are kept before it runs, for ``kit.undo()``.

Code that obviously only looks (`pylook.is_look`) needs no permission; other code needs ``python``,
and ``python.shell``, ``python.network``, ``python.files``, ``python.dynamic`` for powers that its
syntax shows.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import inspect
import itertools
import linecache
import sys
import threading
import traceback
import types
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from kit_jupyter.checkpoints import Checkpoints, small_pickle
from kit_jupyter.messages import MediaPart, Part, TextPart
from kit_jupyter.permissions import Access, Need
from kit_jupyter.printed import Sink, catch_prints, clip
from kit_jupyter.tool import ToolContext, ToolOutcome
from kit_jupyter.tool_value import describe_error, media_of, parts_of, safe_repr
from kit_jupyter.tools._base import EngineTool
from kit_jupyter.tools.pycheck import changed_names, powers
from kit_jupyter.tools.pylook import is_look, why_no_look
from kit_jupyter.trifecta import Legs
from kit_jupyter.usercall import UserCall, shielded

__all__ = ["NamespaceDiff", "NamespaceRunner", "PythonTool", "RanCode", "Runner"]

MAX_PRINTED = 40_000
MAX_PICTURES = 8
MAX_TRACEBACK = 6_000
_HIDDEN = frozenset(("In", "Out", "get_ipython", "exit", "quit", "open", "display"))


# ---------------------------------------------------------------- the seam to a shell


class RanCode(Protocol):
    """What came of a piece of code; a shell's own record may hold more.

    Attributes
    ----------
    ok : bool
    displays : list of dict
        Display messages in order: ``data`` (MIME bundle), ``execution_count`` for the last value.
    traceback : str
        Plain text, empty when it went well.
    value : object
        Of the last expression.
    error : BaseException or None
    """

    @property
    def ok(self) -> bool: ...
    @property
    def displays(self) -> list[dict[str, Any]]: ...
    @property
    def traceback(self) -> str: ...
    @property
    def value(self) -> Any: ...
    @property
    def error(self) -> BaseException | None: ...


class Runner(Protocol):
    """Runs code in a namespace; a notebook's shell fulfils it."""

    @property
    def namespace(self) -> MutableMapping[str, Any]:
        """The user's variables."""
        ...

    def run(self, code: str, on_text: Callable[[str, str], object]) -> RanCode | Awaitable[RanCode]:
        """Run on the user's thread; ``on_text(text, stream)`` is told what is printed, as it is printed."""
        ...


@dataclass(slots=True)
class _Ran:
    ok: bool = True
    displays: list[dict[str, Any]] = field(default_factory=list)
    traceback: str = ""
    value: Any = None
    error: BaseException | None = None


class NamespaceRunner:
    """Runs code in a plain dict, for scripts and tests: last expression, top-level await, new figures.

    Parameters
    ----------
    namespace : dict or None
        The variables; None for the ``__main__`` module's.

    Examples
    --------
    >>> runner = NamespaceRunner({"x": 20})
    >>> runner.run("y = x + 1; y * 2", lambda text, stream: None).value, runner.namespace["y"]
    (42, 21)
    """

    _numbers = itertools.count(1)

    def __init__(self, namespace: MutableMapping[str, Any] | None = None) -> None:
        self._namespace: MutableMapping[str, Any] = vars(sys.modules["__main__"]) if namespace is None else namespace

    @property
    def namespace(self) -> MutableMapping[str, Any]:
        """The variables."""
        return self._namespace

    def run(self, code: str, on_text: Callable[[str, str], object]) -> _Ran | Awaitable[_Ran]:
        """Run `code`; awaits only when the code does."""
        filename = f"<kit {next(self._numbers)}>"
        linecache.cache[filename] = (len(code), None, code.splitlines(keepends=True), filename)
        ran = _Ran()
        sink = Sink(on_text, keep=0, live_limit=sys.maxsize)
        figures = _figure_numbers()
        try:
            body, last = _compiled(code, filename)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as exc:
            return self._failed(ran, exc, filename)
        self._namespace.setdefault("__builtins__", __builtins__)
        needs_await = any(c is not None and c.co_flags & inspect.CO_COROUTINE for c in (body, last))
        if needs_await:
            return self._run_async(ran, body, last, sink, figures, filename)
        try:
            with catch_prints(sink):
                if body is not None:
                    eval(body, self._namespace)  # type: ignore[arg-type]
                if last is not None:
                    ran.value = eval(last, self._namespace)  # type: ignore[arg-type]
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as exc:
            self._failed(ran, exc, filename)
        _take_figures(figures, ran)
        return ran

    async def _run_async(
        self,
        ran: _Ran,
        body: types.CodeType | None,
        last: types.CodeType | None,
        sink: Sink,
        figures: frozenset[int],
        filename: str,
    ) -> _Ran:
        try:
            with catch_prints(sink):
                for piece in (body, last):
                    if piece is None:
                        continue
                    value = eval(piece, self._namespace)  # type: ignore[arg-type]
                    value = await value if piece.co_flags & inspect.CO_COROUTINE else value
                    ran.value = value if piece is last else None
        except (KeyboardInterrupt, asyncio.CancelledError):
            raise
        except BaseException as exc:
            self._failed(ran, exc, filename)
        _take_figures(figures, ran)
        return ran

    @staticmethod
    def _failed(ran: _Ran, error: BaseException, filename: str) -> _Ran:
        ran.ok, ran.error = False, error
        if isinstance(error, SyntaxError) and error.filename == filename:
            ran.traceback = "".join(traceback.format_exception_only(error)).strip()
        else:
            ran.traceback = describe_error(error, limit=MAX_TRACEBACK)
        return ran


def _compiled(code: str, filename: str) -> tuple[types.CodeType | None, types.CodeType | None]:
    """Everything but the last expression, and that."""
    tree = ast.parse(code, filename)
    last: types.CodeType | None = None
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    if tree.body and isinstance(tree.body[-1], ast.Expr) and not code.rstrip().endswith(";"):
        expression = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
        last = compile(expression, filename, "eval", flags=flags, dont_inherit=True)
    body = compile(tree, filename, "exec", flags=flags, dont_inherit=True) if tree.body else None
    return body, last


def _figure_numbers() -> frozenset[int]:
    pyplot = sys.modules.get("matplotlib.pyplot")
    return frozenset(pyplot.get_fignums()) if pyplot is not None else frozenset()


def _take_figures(before: frozenset[int], ran: _Ran) -> None:
    """New figures of pyplot as displays; closed, as a notebook does."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return
    for number in pyplot.get_fignums():
        if number in before:
            continue
        figure = pyplot.figure(number)
        picture = media_of(figure)
        pyplot.close(number)
        if picture is not None:
            ran.displays.append({"data": {"image/png": picture.data, "text/plain": safe_repr(figure)}})


# ---------------------------------------------------------------- what changed


@dataclass(frozen=True, slots=True)
class NamespaceDiff:
    """Names that a piece of code made, changed or deleted."""

    new: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.new or self.changed or self.deleted)

    def __str__(self) -> str:
        kinds = (("new", self.new), ("changed", self.changed), ("deleted", self.deleted))
        shown = (f"{kind}: {', '.join(names[:20])}{' …' if len(names) > 20 else ''}" for kind, names in kinds if names)
        return "; ".join(shown)


def _glimpse(value: Any) -> Any:
    """Cheap facts that change when a container is changed in place; never a scan."""
    try:
        if isinstance(value, list | dict | set | bytearray):
            return len(value)
        shape = getattr(value, "shape", None)
        columns = getattr(value, "columns", None)
        if isinstance(shape, tuple):
            return (shape, id(columns) if columns is not None else None)
    except Exception:  # an object whose attributes raise
        pass
    return None


class _Watch:
    """The namespace before a piece of code, and what became of it."""

    def __init__(self, namespace: MutableMapping[str, Any], code: str) -> None:
        self._namespace = namespace
        self._before = {name: (value, _glimpse(value)) for name, value in namespace.items() if _is_theirs(name)}
        mentioned = changed_names(code) & set(self._before)
        self.kept: dict[str, bytes | None] = {}
        for name in sorted(mentioned):
            value = self._before[name][0]
            if not isinstance(value, types.ModuleType | type) and not callable(value):
                self.kept[name] = small_pickle(value)

    def diff(self) -> NamespaceDiff:
        after = {name: value for name, value in self._namespace.items() if _is_theirs(name)}
        new = tuple(name for name in after if name not in self._before)
        deleted = tuple(name for name in self._before if name not in after)
        changed = []
        for name, (value, glimpse) in self._before.items():
            if name not in after:
                continue
            kept = self.kept.get(name)
            in_place = kept is not None and after[name] is value and small_pickle(value) != kept
            if after[name] is not value or _glimpse(after[name]) != glimpse or in_place:
                changed.append(name)
        return NamespaceDiff(new, tuple(changed), deleted)


def _is_theirs(name: str) -> bool:
    return not name.startswith("_") and name not in _HIDDEN


# ---------------------------------------------------------------- the tool


class PythonTool(EngineTool):
    """Run Python in the user's own session.

    Parameters
    ----------
    runner : Runner or None
        Whose namespace; None for the ``__main__`` module's.
    """

    name: ClassVar[str] = "python"
    legs: ClassVar[Legs] = Legs(private=True, untrusted="soft", egress="reviewed", destination="any")
    bounds: ClassVar[str] = f"{MAX_PRINTED // 1000},000 characters printed, {MAX_PICTURES} pictures; no time limit"
    default: ClassVar[str] = "ask; obvious looking: allow"

    def __init__(self, runner: Runner | None = None) -> None:
        self.runner: Runner = runner if runner is not None else NamespaceRunner()

    def access(self, arguments: Mapping[str, Any], context: ToolContext) -> Access:
        """Looking is free; other code needs ``python`` and the powers that its syntax shows."""
        code = str(arguments.get("code", ""))
        namespace = self.runner.namespace
        why = why_no_look(code, namespace.__getitem__)
        if why is None:
            return Access(needs=(Need("python.look", code, "look", "*"),))
        used = powers(code)
        question = f"Run this Python in your session{_uses(used)}?\n\n{code}"
        if why:
            question = f"{question}\n\n({why})"
        if "long" in used:
            reason = f"{len(code):,} characters, too long to tell what it does"
            return Access(needs=(Need("python", reason, "unsure"),), question=question)
        if "unparsable" in used:
            return Access(needs=(Need("python", code, "unsure"),), question=question)
        needs = [Need("python", code, "act", "*"), *(Need(f"python.{power}", code, "act", "*") for power in used)]
        return Access(needs=tuple(needs), question=question)

    async def call(self, context: ToolContext, code: str) -> ToolOutcome:
        """Run Python code in the user's live session (the same variables, imports and working directory).

        The value of the last expression, everything printed, figures and tracebacks come back. Use
        it to look at data and to compute. Top-level await works. The user sees what you run.

        Parameters
        ----------
        code : str
            The code. Print or end with an expression what you want to see.
        """
        sink = Sink(lambda text, stream: context.progress(text, stream=stream), keep=MAX_PRINTED)
        work = _Work(self.runner, code, sink, Checkpoints.of(context), context.turn_id)
        call = UserCall(work)
        done = await call.run(context)
        sink.flush()
        if done.interrupted or done.value is None:
            said = (
                "interrupted by the user before it finished"
                if done.interrupted
                else describe_error(done.error or RuntimeError("the code did not run"))
            )
            printed = sink.text.strip()
            text = f"{printed}\n{said}" if printed else said
            return ToolOutcome(parts=(TextPart(text),), is_error=True, details={"interrupted": done.interrupted})
        outcome = work.outcome(done.value)
        if call.was_stopped and isinstance(done.value.error, KeyboardInterrupt):
            outcome = ToolOutcome(parts=outcome.parts, is_error=True, details={**outcome.details, "interrupted": True})
        for part in outcome.parts:
            if isinstance(part, MediaPart):
                context.progress("", parts=(part,))
        return outcome


def _uses(used: tuple[str, ...]) -> str:
    words = {
        "shell": "starts programs",
        "network": "uses the network",
        "files": "writes files",
        "dynamic": "runs code made at run time",
        "magic": "uses IPython magics",
    }
    said = [words[power] for power in used if power in words]
    return f" (it {', '.join(said)})" if said else ""


class _Work:
    """One run on the user's thread: watch, run, compare."""

    def __init__(self, runner: Runner, code: str, sink: Sink, checkpoints: Checkpoints, turn_id: str) -> None:
        self._runner = runner
        self._code = code
        self._sink = sink
        self._checkpoints = checkpoints
        self._turn_id = turn_id
        self._diff = NamespaceDiff()
        self._threads: list[str] = []
        self._parts: list[Part] = []
        self._looks = is_look(code, runner.namespace.__getitem__)

    def __call__(self) -> RanCode | Awaitable[RanCode]:
        watch = None if self._looks else _Watch(self._runner.namespace, self._code)
        if watch is not None and watch.kept:
            self._checkpoints.before_variables(watch.kept, self._turn_id)
        threads = set(threading.enumerate())
        ran = self._runner.run(self._code, self._sink.write)
        if inspect.isawaitable(ran):
            return self._later(ran, watch, threads)
        return self._after(ran, watch, threads)

    async def _later(self, ran: Awaitable[RanCode], watch: _Watch | None, threads: set[threading.Thread]) -> RanCode:
        return self._after(await ran, watch, threads)

    def _after(self, ran: RanCode, watch: _Watch | None, threads: set[threading.Thread]) -> RanCode:
        with shielded():  # the code has ended; what it left is told whole
            self._compare(ran, watch, threads)
        return ran

    def _compare(self, ran: RanCode, watch: _Watch | None, threads: set[threading.Thread]) -> None:
        if watch is not None:
            self._diff = watch.diff()
            changed = (*self._diff.changed, *self._diff.deleted)
            if self._diff:
                self._checkpoints.keep_names(self._diff.new, changed, self._turn_id)
        ours = ("kit-", "asyncio_", "ThreadPoolExecutor", "IPythonHistory", "Tqdm", "tqdm")
        self._threads = [
            t.name for t in threading.enumerate() if t not in threads and t.is_alive() and not t.name.startswith(ours)
        ]
        # Shown here, on the user's thread: figures and frames must not be touched elsewhere.
        self._parts = self._show(ran)

    def _show(self, ran: RanCode) -> list[Part]:
        pictures = [_picture(display) for display in ran.displays]
        out: list[Part] = []
        for display, picture in zip(ran.displays, pictures, strict=True):
            if "execution_count" in display:
                continue  # the last value, shown below as a model reads it best
            if picture is not None and len([p for p in out if isinstance(p, MediaPart)]) < MAX_PICTURES:
                out.append(picture)
            elif picture is None and (text := _plain(display)):
                out.append(TextPart(text))
        if ran.ok and ran.value is not None:
            drawn = any(isinstance(part, MediaPart) for part in out)
            shown = parts_of(ran.value)
            if drawn and any(isinstance(part, MediaPart) for part in shown):
                shown = (TextPart(safe_repr(ran.value)),)  # the figure is there already
            out.extend(shown)
        return out

    def outcome(self, ran: RanCode) -> ToolOutcome:
        """What the model is told, and what only a view shows."""
        texts: list[Part] = []
        if printed := self._sink.text:
            texts.append(TextPart(printed if printed.endswith("\n") else printed + "\n"))
        texts.extend(self._parts)
        if not ran.ok:
            error = ran.traceback or (describe_error(ran.error) if ran.error is not None else "it failed")
            if isinstance(ran.error, SystemExit):
                error = f"SystemExit: the code called exit({ran.error.code!r}); the session goes on"
            texts.append(TextPart(clip(error, MAX_TRACEBACK)))
        notes = [str(self._diff)] if self._diff else []
        if self._threads:
            notes.append(f"threads that the code started and that still run: {', '.join(self._threads[:5])}")
        if notes:
            texts.append(TextPart(f"[{'; '.join(notes)}]"))
        elif not texts:
            texts.append(TextPart("(no output)"))
        return ToolOutcome(
            parts=_spaced(texts),
            is_error=not ran.ok,
            details={
                "namespace": {"new": self._diff.new, "changed": self._diff.changed, "deleted": self._diff.deleted},
                "displays": [_bounded_bundle(display) for display in ran.displays[:MAX_PICTURES]],
            },
        )


def _spaced(parts: list[Part]) -> tuple[Part, ...]:
    """Neighbouring texts as one, on lines of their own."""
    out: list[Part] = []
    for part in parts:
        if isinstance(part, TextPart) and out and isinstance(out[-1], TextPart):
            before = out[-1].text
            out[-1] = TextPart(before + ("" if before.endswith("\n") else "\n") + part.text)
        else:
            out.append(part)
    return tuple(out)


def _picture(display: Mapping[str, Any]) -> MediaPart | None:
    data = display.get("data") or {}
    for kind in ("image/png", "image/jpeg"):
        raw = data.get(kind)
        if isinstance(raw, str):
            try:
                return media_of(base64.b64decode(raw))
            except ValueError:
                return None
        if isinstance(raw, bytes):
            return media_of(raw)
    return None


def _plain(display: Mapping[str, Any]) -> str:
    data = display.get("data") or {}
    for kind in ("text/markdown", "text/plain", "text/latex", "application/json"):
        if data.get(kind):
            return clip(str(data[kind]), 10_000)
    return f"(shown to the user: {', '.join(map(str, data))})" if data else ""


def _bounded_bundle(display: Mapping[str, Any]) -> dict[str, Any]:
    """For views: without what would bloat the session; pictures are in the parts already."""
    data = display.get("data") or {}
    kept = {k: v for k, v in data.items() if isinstance(v, str) and len(v) <= 100_000 and not k.startswith("image/")}
    return {"data": kept, "metadata": display.get("metadata") or {}}
