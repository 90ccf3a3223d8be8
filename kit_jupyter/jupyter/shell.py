"""IPython and ipykernel as we need them: the async cell, interrupts, parents, the control channel.

Theory of operation
-------------------
``%%kit`` is an *async cell*: a post input transformer puts ``await`` before the outermost cell's
magic, so that the kernel goes on serving comm messages while the turn runs. Where that cannot be
(nested in ``%%time``, ``%autoawait off``, no running loop) the magic blocks and serves the same desk.

What belongs to other packages and is not public is used here only, each behind a probe that says
whether it still looks as it did (`probes`); a test pins each, so that a new release shows itself.

Measured in: the notes on kernels in this project's documentation (ipykernel 6.29 to 7.4).
"""

from __future__ import annotations

import asyncio
import contextvars
import io
import re
import signal
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from token import DEDENT, INDENT
from types import FrameType
from typing import Any

from kit_jupyter.loop import is_job_on
from kit_jupyter.usercall import shielded

__all__ = [
    "CodeRun",
    "Parent",
    "ShellHooks",
    "bind_parent",
    "current_parent",
    "forget_parent",
    "interrupt_user_code",
    "is_kernel",
    "keep_frontend_routing",
    "main_loop",
    "probes",
    "run_user_code",
    "turn_interrupts",
]

Parent = dict[str, Any]

#: Magics that answer as async cells; `kit` itself blocks. Name -> async twin.
ASYNC_CELL = {"kit": "kit_async"}
ASYNC_LINE = ("kit", "kit_steer", "kit_continue", "kit_compact", "kit_fix")
#: Line magics that a person's own words follow: a question mark at their end is no call for help.
TEXT_LINE = (*ASYNC_LINE, "kit_context", "kit_deny")

_depth: contextvars.ContextVar[int] = contextvars.ContextVar("kit_cell_depth", default=0)
_CELL_CALL = re.compile(r"get_ipython\(\)\.run_cell_magic\('(kit)',")
_EMPTY_CALL = re.compile(r"get_ipython\(\)\.run_cell_magic\('kit', (.*), ''\)\n?$")
_LINE_CALL = re.compile(r"(?m)^get_ipython\(\)\.run_line_magic\('(" + "|".join(ASYNC_LINE) + r")',")


def is_kernel(ip: Any) -> bool:
    """True in a Jupyter kernel, False in a terminal."""
    return getattr(ip, "kernel", None) is not None


def probes(ip: Any) -> dict[str, bool]:
    """Which non-public roads are open in this kernel: name to yes or no.

    ``comm_routing``
        ipykernel 7.4's reply routing of comms, which we undo for our own views.
    ``parent_variable``
        the kernel keeps its parent message in a context variable (7.x).
    ``thread_parent``
        streams and display can be given a parent per context (7.4).
    ``control_handlers``
        requests of our own on the control channel.
    ``fast_lane``
        a subshell of our own for ``%kit_steer`` while a cell runs (7.x).
    ``concurrent_comms``
        comm messages are served while an async cell waits (7.4).
    """
    kernel = getattr(ip, "kernel", None)
    thread = getattr(kernel, "shell_channel_thread", None)
    manager = getattr(thread, "manager", None)
    base = getattr(sys.modules.get("comm.base_comm"), "BaseComm", None)
    routing = _comm_class_has_routing()
    return {
        "comm_routing": routing,
        "parent_variable": isinstance(getattr(kernel, "_shell_parent", None), contextvars.ContextVar),
        "thread_parent": hasattr(ip, "set_thread_parent"),
        "control_handlers": isinstance(getattr(kernel, "control_handlers", None), dict),
        "fast_lane": all(hasattr(manager, name) for name in ("_create_subshell", "list_subshell"))
        and hasattr(kernel, "shell_channel_thread_main")
        and hasattr(thread, "io_loop"),
        "concurrent_comms": base is not None and routing,
    }


def _comm_class_has_routing() -> bool:
    module = sys.modules.get("ipykernel.comm.comm") or sys.modules.get("ipykernel.comm")
    return any(hasattr(getattr(module, name, None), "_reply_subshell_for") for name in ("BaseComm", "Comm"))


# ---------------------------------------------------------------- parents: which cell output belongs to


def current_parent(ip: Any) -> Parent:
    """The message that runs now, by which front ends know the cell; empty in a terminal."""
    get_parent = getattr(ip, "get_parent", None)
    parent = get_parent() if get_parent is not None else None
    return parent if isinstance(parent, dict) else {}


def bind_parent(ip: Any, parent: Parent) -> None:
    """Let output of this context go to `parent`'s cell: streams, display, and comm messages too."""
    if not parent:
        return
    if hasattr(ip, "set_thread_parent"):
        ip.set_thread_parent(parent)
    variable = getattr(getattr(ip, "kernel", None), "_shell_parent", None)
    if isinstance(variable, contextvars.ContextVar):
        variable.set(parent)


def forget_parent(ip: Any) -> None:
    """Let comm messages of this context name no cell; where that cannot be had, they go on to name theirs."""
    variable = getattr(getattr(ip, "kernel", None), "_shell_parent", None)
    if isinstance(variable, contextvars.ContextVar):
        variable.set({})


def keep_frontend_routing(widget: Any) -> None:
    """Let the front end's subshell answer our widget's messages, as before ipykernel 7.4.

    There, a message goes to the shell that last *sent* on its comm: for a view made in a cell that
    is the main shell, which a tool's code may be holding just when someone presses Stop.
    """
    comm = getattr(widget, "comm", None)
    if comm is not None and hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default: default


def main_loop(ip: Any) -> asyncio.AbstractEventLoop | None:
    """The kernel's own loop on the user's thread; None in a terminal."""
    io_loop = getattr(getattr(ip, "kernel", None), "io_loop", None)
    return getattr(io_loop, "asyncio_loop", None)


# ---------------------------------------------------------------- interrupts


def interrupt_user_code() -> None:
    """Send SIGINT to the main thread, for the Stop button; our handler decides what it means. Any thread."""
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)


@contextmanager
def turn_interrupts(stop: Callable[[], object]) -> Iterator[None]:
    """For the length of a turn, Kernel → Interrupt means: call `stop`, and break the code that runs.

    `stop` is called in the signal handler: it may set a flag or hand over to the engine, no more.

    ipykernel's own handler is put back afterwards. It would not wake a loop that sleeps (an
    interrupt was seen 9 s late), and never breaks synchronous code inside an async cell.
    Does nothing off the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.getsignal(signal.SIGINT)

    def on_sigint(signum: int, frame: FrameType | None) -> None:
        stop()
        if is_job_on(frame) or not _loop_runs():
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, on_sigint)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is on_sigint:
            signal.signal(signal.SIGINT, previous if previous is not None else signal.default_int_handler)


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


# ---------------------------------------------------------------- questions in a line


def _question_transformer() -> type:
    """A token transformer of IPython's that sends ``%kit … two plus two?``, which would show help on ``two``.

    It looks at tokens, as IPython's own do: what stands in a string, a comment or brackets is none. It goes before the
    help syntax only for our magics and only where words follow the name, so ``%kit?`` and ``%kit??`` still show help.
    """
    from IPython.core.inputtransformer2 import EscapedCommand, MagicAssign, TokenTransformBase

    class Question(TokenTransformBase):
        priority = 4  # help syntax has 5

        def __init__(self, start: tuple[int, int], magic: TokenTransformBase) -> None:
            super().__init__(start)  # type: ignore[no-untyped-call]
            self._magic = magic

        @classmethod
        def find(cls, tokens_by_line: Any) -> Question | None:
            for tokens in tokens_by_line:
                line = [token for token in tokens if token.type not in (INDENT, DEDENT)]
                if len(line) < 4 or line[-2].string != "?":
                    continue
                equals = next((at for at, token in enumerate(line) if token.string == "="), -1)
                for at, kind in ((0, EscapedCommand), (equals + 1, MagicAssign)):
                    if _is_text_magic(line[at:]):
                        return cls(line[0].start, kind(line[at].start))
            return None

        def transform(self, lines: list[str]) -> list[str]:
            done: list[str] = self._magic.transform(lines)
            return done

    return Question


def _is_text_magic(tokens: list[Any]) -> bool:
    """True for ``%kit`` or one of its family with text after the name."""
    if len(tokens) < 3 or tokens[0].string != "%" or tokens[1].start != tokens[0].end:
        return False
    name = tokens[1]
    return name.string in TEXT_LINE and name.line[name.end[1] : name.end[1] + 1] in (" ", "\t")


# ---------------------------------------------------------------- the async cell


class ShellHooks:
    """What is put into one shell, and taken out again.

    Parameters
    ----------
    ip : InteractiveShell
    on_request : callable(dict) -> dict
        Answers a ``kit_request`` of the control channel; called on the control thread, must only
        hand over.
    steer_now : callable() -> bool
        True while a turn runs: only then is ``%kit_steer`` taken out of the queue of cells.
    """

    LANE = ("%kit_steer", "%kit_stop", "%kit_approve", "%kit_deny")

    def __init__(
        self, ip: Any, on_request: Callable[[dict[str, Any]], dict[str, Any]], steer_now: Callable[[], bool]
    ) -> None:
        self.ip = ip
        self._on_request = on_request
        self._steer_now = steer_now
        self._lane_id: str | None = None
        self._lane_original: Any = None
        self.prompt_mode: Callable[[list[str]], list[str]] | None = None
        self.after_cell: Callable[[], object] | None = None
        self._questions = _question_transformer()

    def install(self) -> None:
        """Put everything in."""
        self.ip.input_transformers_post.append(self.post_transform)
        self.ip.input_transformer_manager.token_transformers.append(self._questions)
        self.ip.input_transformer_manager.cleanup_transforms.insert(0, self.cleanup_transform)
        self.ip.events.register("pre_run_cell", self._enter_cell)
        self.ip.events.register("post_run_cell", self._leave_cell)
        handlers = getattr(getattr(self.ip, "kernel", None), "control_handlers", None)
        if isinstance(handlers, dict):
            handlers["kit_request"] = self._answer
        if is_kernel(self.ip) and probes(self.ip)["fast_lane"]:
            self._open_lane()

    def remove(self) -> None:
        """Take everything out."""
        for transforms, transform in (
            (self.ip.input_transformers_post, self.post_transform),
            (self.ip.input_transformer_manager.cleanup_transforms, self.cleanup_transform),
            (self.ip.input_transformer_manager.token_transformers, self._questions),
        ):
            if transform in transforms:
                transforms.remove(transform)
        for name, fn in (("pre_run_cell", self._enter_cell), ("post_run_cell", self._leave_cell)):
            try:
                self.ip.events.unregister(name, fn)
            except ValueError:
                pass
        kernel: Any = getattr(self.ip, "kernel", None)
        handlers = getattr(kernel, "control_handlers", None)
        if isinstance(handlers, dict):
            handlers.pop("kit_request", None)
        if self._lane_original is not None:
            original = self._lane_original
            self._lane_original = None
            thread = kernel.shell_channel_thread
            thread.io_loop.add_callback(lambda: kernel.shell_stream.on_recv(original, copy=False))

    # -- transformers; called more than once for a cell, and so pure

    def cleanup_transform(self, lines: list[str]) -> list[str]:
        """Prompt mode: a cell that is a prompt becomes a ``%%kit`` cell."""
        return self.prompt_mode(lines) if self.prompt_mode is not None else lines

    def post_transform(self, lines: list[str]) -> list[str]:
        """Put ``await`` before the magics of the outermost cell that can wait without blocking."""
        if _depth.get() > 0 or not lines or not getattr(self.ip, "autoawait", False):
            return lines
        if not any("run_cell_magic('kit'" in line or "run_line_magic('kit" in line for line in lines):
            return lines
        empty = _EMPTY_CALL.match(lines[0])
        if empty:  # IPython refuses a cell magic without a body; here all of the prompt stands on the first line
            return [f"await get_ipython().run_line_magic('kit_async', {empty[1]})\n", *lines[1:]]
        first = _CELL_CALL.match(lines[0])
        if first:
            new = f"await get_ipython().run_cell_magic('{ASYNC_CELL[first[1]]}',"
            return [new + lines[0][first.end() :], *lines[1:]]
        return [_LINE_CALL.sub(lambda m: f"await get_ipython().run_line_magic('{m[1]}_async',", line) for line in lines]

    def _enter_cell(self, info: Any = None) -> None:
        _depth.set(_depth.get() + 1)

    def _leave_cell(self, result: Any = None) -> None:
        _depth.set(max(0, _depth.get() - 1))
        if _depth.get() == 0 and self.after_cell is not None:
            self.after_cell()

    # -- control channel

    async def _answer(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        try:
            content = {"status": "ok", **self._on_request(dict(parent.get("content") or {}))}
        except Exception as exc:  # a guest of the control thread must not break it
            content = {"status": "error", "message": f"{type(exc).__name__}: {exc}"}
        self.ip.kernel.session.send(stream, "kit_reply", content, parent, ident=ident)

    # -- fast lane: %kit_steer while another cell runs

    def _open_lane(self) -> None:
        kernel = self.ip.kernel
        thread = kernel.shell_channel_thread
        self._lane_original = kernel.shell_channel_thread_main
        thread.io_loop.add_callback(lambda: kernel.shell_stream.on_recv(self._lane, copy=False))

    async def _lane(self, frames: Any) -> None:
        original = self._lane_original or self.ip.kernel.shell_channel_thread_main
        try:
            frames = self._rerouted(frames)
        except Exception:  # whatever is odd about a message is the kernel's to judge
            self.ip.kernel.log.debug("kit: message not rerouted", exc_info=True)
        await original(frames)

    def _rerouted(self, frames: Any) -> Any:
        if not self._steer_now():
            return frames
        kernel = self.ip.kernel
        session = kernel.session
        ident, parts = session.feed_identities(frames, copy=False)
        raw = [getattr(part, "bytes", part) for part in parts]
        header = session.unpack(raw[1])
        if header["msg_type"] != "execute_request" or header.get("subshell_id"):
            return frames
        content = session.unpack(raw[4])
        code = content["code"].lstrip()
        if not code.startswith(self.LANE) or "\n" in code.strip():
            return frames
        import zmq

        manager = kernel.shell_channel_thread.manager
        if self._lane_id not in manager.list_subshell():
            self._lane_id = manager._create_subshell()
        message = {
            "header": {**header, "subshell_id": self._lane_id},
            "parent_header": session.unpack(raw[2]),
            "metadata": session.unpack(raw[3]),
            "content": content,
        }
        return [zmq.Frame(part) for part in session.serialize(message, ident=ident)]  # signed anew


# ---------------------------------------------------------------- the user's code, for tools


@dataclass(slots=True)
class CodeRun:
    """What came of a piece of user code.

    Parameters
    ----------
    ok : bool
    text : str
        What it printed, subprocesses and threads included.
    displays : list of dict
        Content of the display and result messages it made, in order.
    traceback : str
        Empty when it went well; plain text, no colours.
    value : object
        Of the last expression.
    error : BaseException or None
    """

    ok: bool = True
    text: str = ""
    displays: list[dict[str, Any]] = field(default_factory=list)
    traceback: str = ""
    value: Any = None
    error: BaseException | None = None


#: Characters of printed text that a `CodeRun` keeps; whoever wants all takes it as it comes.
MAX_KEPT = 1_000_000
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


async def run_user_code(
    ip: Any, code: str, *, on_text: Callable[[str, str], object] | None = None, echo: bool = False
) -> CodeRun:
    """Run `code` as a cell would, on the user's thread, and bring back all that it showed.

    Parameters
    ----------
    on_text : callable(text, stream) or None
        Told what is printed, as it is printed; any thread.
    echo : bool
        Also let text and displays reach the cell, as they would without us.

    Notes
    -----
    It must be called on the user's thread, inside the cell's task (`ToolContext.on_user_thread`).
    Top-level await, magics, ``!command``, figures and contextvars work. An error makes no error
    output in the cell; ``exit`` does not end the kernel; ``_`` and ``Out`` stay as they were.
    """
    run = CodeRun()
    printed = io.StringIO()

    def keep(message: Any) -> Any:
        content = message.get("content") if isinstance(message, dict) else None
        if isinstance(content, dict) and "data" in content:
            run.displays.append(content)
        return message if echo else None

    restore: list[Callable[[], object]] = []

    def set_aside(owner: Any, name: str, value: Any) -> None:
        mine = vars(owner)
        had, before = name in mine, mine.get(name)
        restore.append(lambda: setattr(owner, name, before) if had else mine.pop(name, None))
        setattr(owner, name, value)

    def prepare() -> None:
        for stream, name in ((sys.stdout, "stdout"), (sys.stderr, "stderr")):
            restore.append(_tee(stream, name, printed, on_text, echo=echo))
        underscores = {key: ip.user_ns.get(key) for key in ("_", "__", "___") if key in ip.user_ns}
        restore.append(lambda: ip.user_ns.update(underscores))
        set_aside(
            ip, "_showtraceback", lambda kind, value, lines: run.__setattr__("traceback", "\n".join(map(str, lines)))
        )
        if hasattr(ip, "ask_exit"):
            set_aside(ip, "ask_exit", lambda: None)
        show_whole = ip.showtraceback

        def show_shielded(*args: Any, **options: Any) -> None:
            with shielded():  # a second interrupt would tear down the telling of the first
                show_whole(*args, **options)

        set_aside(ip, "showtraceback", show_shielded)
        hooked = [hook for hook in (ip.display_pub, ip.displayhook) if hasattr(hook, "register_hook")]
        for hook in hooked:
            hook.register_hook(keep)
            restore.append(partial(hook.unregister_hook, keep))
        if ip.displayhook not in hooked and hasattr(ip.displayhook, "session"):
            restore.append(_catch_result(ip.displayhook, keep))

    try:
        with shielded():  # an interrupt as it begins must not leave half of this in place
            prepare()
        transformed = ip.transform_cell(code)
        if ip.should_run_async(code, transformed_cell=transformed):
            result = await ip.run_cell_async(code, store_history=False, transformed_cell=transformed)
        else:
            result = ip.run_cell(code, store_history=False)
        run.ok, run.value = bool(result.success), result.result
        run.error = result.error_before_exec or result.error_in_exec
    finally:
        while restore:
            try:
                with shielded():
                    while restore:
                        undo = restore.pop()
                        with suppress(Exception):  # one that fails must not keep the others in place
                            undo()
            except KeyboardInterrupt:  # it came before the shield was up: nothing is undone twice, and all is undone
                continue
    run.text = printed.getvalue()
    run.traceback = _ANSI.sub("", run.traceback)
    return run


class _TerminalDisplays:
    """A terminal's shell has no hooks on what is shown: its publisher and display hook are set aside."""

    def __init__(self, ip: Any) -> None:
        from IPython.core.displayhook import CapturingDisplayHook
        from IPython.core.displaypub import CapturingDisplayPublisher

        self._ip = ip
        self._outputs: list[dict[str, Any]] = []
        self._kept = ip.display_pub, sys.displayhook
        ip.display_pub = self._publisher = CapturingDisplayPublisher(parent=ip)  # type: ignore[no-untyped-call]
        sys.displayhook = CapturingDisplayHook(ip, self._outputs)  # type: ignore[no-untyped-call]

    def restore(self) -> list[dict[str, Any]]:
        self._ip.display_pub, sys.displayhook = self._kept
        return [*self._publisher.outputs, *self._outputs]


def _tee(
    stream: Any, name: str, printed: io.StringIO, on_text: Callable[[str, str], object] | None, *, echo: bool
) -> Callable[[], object]:
    # On the stream object itself, not in its place: a subprocess's output comes through there too.
    original = stream.write
    mine = threading.get_ident()
    others = {thread.ident for thread in threading.enumerate()} - {mine}

    def write(text: str) -> Any:
        ident = threading.get_ident()
        # Threads that ran before belong to other cells; but one of ipykernel's own brings subprocess output.
        if ident in others and "_watch_pipe_fd" not in threading.current_thread().name:
            return original(text)
        if printed.tell() < MAX_KEPT:
            printed.write(text[: MAX_KEPT - printed.tell()])
        if on_text is not None:
            on_text(text, name)
        return original(text) if echo else len(text)

    try:
        before = {name: vars(stream)[name] for name in ("write", "close") if name in vars(stream)}
        stream.write = write
        stream.close = lambda: None  # code that closes stdout closes it for itself only
    except (AttributeError, TypeError):  # a stream of C or with slots: its text goes past us
        return lambda: None

    def undo() -> None:
        # Whatever lies over ours came with this run: IPython's own tee, which an interrupt may have kept from going.
        for name in ("write", "close"):
            if name in before:
                setattr(stream, name, before[name])
            else:
                vars(stream).pop(name, None)

    return undo


def _catch_result(hook: Any, keep: Callable[[Any], Any]) -> Callable[[], object]:
    """ipykernel 6.29's display hook takes no hooks: see each result message before it is sent."""
    send = hook.finish_displayhook

    def finish() -> None:
        if keep(hook.msg) is None:
            hook.msg = None
        send()

    hook.finish_displayhook = finish

    def undo() -> None:
        if hook.__dict__.get("finish_displayhook") is finish:
            del hook.finish_displayhook

    return undo


def awaits(value: Any) -> bool:
    """True if a magic's value must be awaited."""
    return isinstance(value, Awaitable)
