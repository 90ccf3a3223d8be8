"""The magics: ``%%kit`` and its family.

Theory of operation
-------------------
Magics that run a turn exist twice: `kit` blocks, `kit_async` gives a coroutine, and the transformer
in `shell` puts ``await kit_async`` where a cell can wait. Both begin and deliver by the same two
methods. Text after the options is the model's, byte for byte.
"""

from __future__ import annotations

import difflib
import json
import keyword
import re
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from IPython.core import magic as _magic
from IPython.core import magic_arguments as _arguments
from IPython.core.magic import Magics

from kit_jupyter.errors import KitError, UsageError
from kit_jupyter.house import Rewritten
from kit_jupyter.jupyter import options as opt
from kit_jupyter.jupyter.approvals import find_question
from kit_jupyter.jupyter.context import Attached, Attachments, Marks, error_text, notebook_text, select_cells
from kit_jupyter.jupyter.display import publish
from kit_jupyter.jupyter.failures import causes, shortened
from kit_jupyter.jupyter.notebook import Notebook, Run
from kit_jupyter.jupyter.shell import current_parent, is_kernel
from kit_jupyter.kit import Kit
from kit_jupyter.messages import TextPart
from kit_jupyter.settings import PromptOptions
from kit_jupyter.turn import TurnResult

if TYPE_CHECKING:
    from kit_jupyter.jupyter.record import RanCell
    from kit_jupyter.session import SessionInfo

__all__ = ["KitMagics"]

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]

# IPython's decorators have no types.
argument: Callable[..., Decorator[Any]] = _arguments.argument
line_magic: Decorator[Any] = _magic.line_magic
line_cell_magic: Decorator[Any] = _magic.line_cell_magic
no_var_expand: Decorator[Any] = _magic.no_var_expand


def magic_arguments(rest: str = "") -> Decorator[Any]:
    """IPython's, with help that reads; `rest` is what may follow the options."""
    made: Callable[..., Decorator[Any]] = _arguments.magic_arguments
    mark = made()

    def marked(fn: Any) -> Any:
        fn = mark(fn)
        fn.__doc__ = opt.help_text(fn, rest)
        return fn

    return marked


def _plain_errors(fn: F) -> F:
    """Help is printed; our errors fail the cell with one line."""

    @wraps(fn)
    def magic(self: KitMagics, *args: Any) -> Any:
        try:
            return fn(self, *args)
        except opt.HelpAsked as help_asked:
            print(help_asked)
            return None
        except KitError as exc:
            raise shortened(exc) from exc.__cause__

    return cast(F, magic)


def _message_id(shell: Any) -> str:
    """Which execution this is; empty in a terminal."""
    return str((current_parent(shell).get("header") or {}).get("msg_id", ""))


@_magic.magics_class
class KitMagics(Magics):
    """Magics of one shell."""

    shell: Any

    def __init__(self, shell: Any, notebook: Notebook) -> None:
        super().__init__(shell)
        self.nb = notebook
        self._quiet: dict[str, str] = {}

    # ------------------------------------------------------------ running a turn

    async def _awaited(self, fn: Callable[..., Any], *args: Any) -> None:
        with self.nb.interrupts() as watch:
            try:
                begun = fn(self, *args)
            except opt.HelpAsked as help_asked:
                print(help_asked)
                return
            except KitError as exc:
                raise shortened(exc) from exc.__cause__
            if begun is None or begun[0].background:
                return
            run, asked = begun
            try:
                result = await self.nb.wait(run, watch)
            except (KitError, KeyboardInterrupt) as exc:
                self._failed(exc, run, asked)
                return
        self.shell.displayhook.update_user_ns(self._deliver(result, asked))

    def _blocking(self, begun: tuple[Run, Namespace] | None) -> Any:
        if begun is None:
            return None
        run, asked = begun
        if run.background:
            return run.handle
        try:
            result = self.nb.wait_blocking(run)
        except (KitError, KeyboardInterrupt) as exc:
            self._failed(exc, run, asked)
            return None
        self._quiet[result.turn_id] = _message_id(self.shell)
        return self._deliver(result, asked)

    def _failed(self, error: BaseException, run: Run, asked: Namespace) -> None:
        self.nb.last_error = (asked.text, error)
        if isinstance(error, KeyboardInterrupt):
            raise shortened(KeyboardInterrupt("stopped; what came so far is kept")) from None
        if asked.no_raise:
            if not run.shown.tells_failure:
                print(f"{type(error).__name__}: {error}")
            return
        hint = "%kit_show --error shows the cause" if error.__cause__ is not None else ""
        raise shortened(error, hint) from error.__cause__

    def _deliver(self, result: TurnResult, asked: Namespace) -> TurnResult:
        value: Any = result
        if asked.form == "text":
            value = result.text
        elif asked.form == "json":
            value = result.structured if result.structured is not None else _json_of(result.text)
        elif asked.form == "code":
            value = _code_of(result.text)
            self.shell.set_next_input(value, replace=False)
        if asked.out:
            self.shell.user_ns[asked.out] = value
        return result

    def show_result(self, result: TurnResult) -> None:
        """Display of a `TurnResult`: nothing right after its own cell has shown it."""
        if self._quiet.pop(result.turn_id, None) == _message_id(self.shell):
            return
        publish({"text/markdown": result._repr_markdown_(), "text/plain": str(result)}, {})

    def _begin(
        self,
        asked: Namespace,
        text: str,
        *,
        kit: Any = None,
        mode: str = "prompt",
        attachments: Attachments | None = None,
        options: PromptOptions | None = None,
        when_busy: str = "refuse",
    ) -> tuple[Run, Namespace]:
        kit = kit if kit is not None else self.nb.kit(getattr(asked, "session", None))
        parent = current_parent(self.shell)
        cell = self.nb.finder.find(self.shell, parent, text) if mode == "prompt" and not asked.append else None
        asked.text = text
        run = self.nb.begin(
            kit,
            attachments.text if attachments is not None else text,
            mode=mode,
            options=options,
            parts=attachments.parts if attachments is not None else (),
            chips=attachments.chips if attachments is not None else (),
            cell=cell,
            background=asked.background,
            when_busy=when_busy,
            raises=not asked.no_raise,
        )
        return run, asked

    @staticmethod
    def _defaults(**given: Any) -> Namespace:
        values = {"out": None, "form": None, "no_raise": False, "background": False, "append": False, "session": None}
        return Namespace(**{**values, **given})

    # ------------------------------------------------------------ %%kit

    def _read_kit(self, line: str, cell: str | None) -> tuple[Run, Namespace] | None:
        asked, first = opt.read(KitMagics.kit, line, text=True)
        if asked.out is not None:
            self._check_out(asked.out)
        if cell is None:
            text = first
        else:
            body = self._body(cell)
            text = f"{first}\n{body}" if first.strip() else body
        if not text.strip():
            raise UsageError("the prompt is empty; write what you want below %%kit, or after %kit")
        kit = self.nb.kit(self._checked_name(asked.session))
        heard = self.nb.heard(kit, text, "magic" if cell is None else "cell")
        if heard is None:
            return None
        attachments = self.attachments(kit, heard, asked.context or self.nb.config.context)
        if isinstance(heard, Rewritten):
            attachments = replace(attachments, text=Rewritten(attachments.text, heard.original))
        if attachments.warning:
            print(attachments.warning)
        return self._begin(asked, text, kit=kit, attachments=attachments, options=self._options(asked))

    def _check_out(self, name: str) -> None:
        """Whether the answer can go there, before anything is asked."""
        if not name.isidentifier() or keyword.iskeyword(name):
            raise UsageError(f"-o takes the name of a variable, got {name!r}; for example -o answer")
        value = self.shell.user_ns.get(name)
        if name == "kit" or isinstance(value, Kit):
            raise UsageError(f"-o {name} would put the answer in place of your session; choose another name")
        if name in ("In", "Out", "get_ipython"):
            raise UsageError(f"-o {name} would put the answer in place of IPython's own {name}; choose another name")

    def _body(self, cell: str) -> str:
        """The cell's text as it was typed: IPython strips ``>>>`` and ``In [1]:`` from what it hands on."""
        raw = self.nb.record.raw[-1] if self.nb.record.raw else ""
        if raw.lstrip("\n ").startswith("%%kit"):
            cell = raw.lstrip("\n ").partition("\n")[2]
        return cell[:-1] if cell.endswith("\n") else cell

    def attachments(self, kit: Any, text: str, context: str) -> Attachments:
        """What goes with a prompt: its marks, and the cells that `context` selects.

        Raises
        ------
        UsageError
            For a missing file or cell.
        """
        read = self.marks(kit).read(text)
        here = (current_parent(self.shell).get("metadata") or {}).get("cellId", "")
        cells = notebook_text(select_cells(self.nb.record, context, here=here))
        if cells:
            notebook = Attached(mark=f"notebook ({context})", kind="cells", parts=(TextPart(cells),))
            return Attachments(text=read.text, attached=(*read.attached, notebook), unknown=read.unknown)
        return read

    def marks(self, kit: Any) -> Marks:
        """Marks over the user's namespace."""
        return Marks(self.shell.user_ns, self.nb.record, kit.describe, self.shell.user_ns_hidden)

    def _options(self, asked: Namespace) -> PromptOptions:
        given: dict[str, Any] = {}
        if asked.model:
            given["model"] = asked.model
        if asked.system:
            given["system_message"] = asked.system
        if asked.max_steps:
            given["max_steps"] = asked.max_steps
        if asked.thinking:
            given["thinking"] = asked.thinking
        if asked.tools is not None:
            given["tools"] = tuple(name for name in re.split(r"[\s,]+", asked.tools) if name and name != "none")
        if asked.schema:
            try:
                given["schema"] = self.shell.ev(asked.schema)
            except Exception as exc:
                raise UsageError(
                    f"--schema {asked.schema}: {type(exc).__name__}: {exc}; it takes the name of a type or a schema"
                ) from exc
        return PromptOptions(**given)

    @no_var_expand
    @magic_arguments("[prompt]")
    @argument("-m", "--model", help="model of this turn, as provider/id")
    @argument("-s", "--session", help="name of the session to talk to; a new name begins one")
    @argument("-o", "--out", help="variable that gets the result (or its --as form)")
    @argument("--schema", help="type or JSON schema the answer must fit: a name in your namespace")
    @argument("--system", help="instruction for this turn only")
    @argument("--max-steps", metavar="N", type=int, default=0, help="model calls at most")
    @argument(
        "--thinking",
        metavar="LEVEL",
        choices=("off", "low", "medium", "high"),
        help="how much the model thinks: off, low, medium or high",
    )
    @argument("--context", help="cells to send along: none, above, all, 3-7, or ids")
    @argument("--tools", help="names of the tools to offer, joined by commas; none for no tools")
    @argument("-b", "--background", action="store_true", default=False, help="return at once, go on in this cell")
    @argument(
        "--as",
        dest="form",
        metavar="FORM",
        choices=("code", "json", "text"),
        help="form of the result: code (makes a cell below), json or text",
    )
    @argument("--append", action="store_true", default=False, help="running this cell again adds a turn")
    @argument("--no-raise", action="store_true", default=False, help="show a failure, do not fail the cell")
    @line_cell_magic
    @_plain_errors
    def kit(self, line: str, cell: str | None = None) -> Any:
        """Send a prompt to the session: ``%kit text``, or ``%%kit`` with the prompt below.

        The text is sent as it is. ``@name`` attaches a variable, ``@Out[5]``, ``@fig``, ``@Err``,
        ``@cell:ID`` and ``@file:path`` what they say; ``@@name`` is only text.
        """
        return self._blocking(self._read_kit(line, cell))

    @no_var_expand
    @line_cell_magic
    def kit_async(self, line: str, cell: str | None = None) -> Any:
        """What ``%kit`` and ``%%kit`` become where the cell can wait without blocking."""
        return self._awaited(lambda me, *args: me._read_kit(*args), line, cell)

    # ------------------------------------------------------------ steer, continue, stop

    def _talking(self, name: str | None = None) -> Any:
        """The Kit that is meant while something runs: the named one, else the one that runs, else the current."""
        if name is None:
            running = self.nb.running()
            if running:
                return running[-1].kit
            return self.nb.kit()
        return self._here(name)

    def _here(self, name: str) -> Any:
        """The Kit of a session that this kernel has under that name; a slip must not begin one."""
        if name in self.nb.kits:
            return self.nb.kit(name)
        near = difflib.get_close_matches(name, list(self.nb.kits), n=1)
        hint = f"did you mean {near[0]}?" if near else f"here are: {', '.join(self.nb.kits) or 'none yet'}"
        raise UsageError(f"no session of this kernel is called {name!r}; {hint} (%kit -s {name} begins one)")

    @staticmethod
    def _checked_name(name: str | None) -> str | None:
        """A name that can be given to a session, and typed again after ``-s``."""
        if name is not None and not name.strip():
            raise UsageError("-s takes the name of a session, for example -s side; %kit_sessions lists those there are")
        return name

    def _read_steer(self, line: str) -> tuple[Run, Namespace] | None:
        asked, text = opt.read(KitMagics.kit_steer, line, text=True)
        kit = self._talking(asked.session)
        if kit.is_running:
            receipt = self.nb.steer(kit, text, now=asked.now)
            if receipt.state != "returned":
                print(f"steer {'sent' if asked.now else 'queued for the next step'}: {text}")
                return None
            kit.take_back(receipt)  # the turn was just ending: a turn of its own
        return self._begin(self._defaults(), text, kit=kit, mode="steer", when_busy="queue")

    @no_var_expand
    @magic_arguments("instruction")
    @argument("--now", action="store_true", default=False, help="interrupt the running step or tool first")
    @argument("-s", "--session", help="name of the session")
    @line_magic
    @_plain_errors
    def kit_steer(self, line: str) -> Any:
        """Give an instruction: to the running turn at its next step, or, when idle, as a turn of its own."""
        return self._blocking(self._read_steer(line))

    @no_var_expand
    @line_magic
    def kit_steer_async(self, line: str) -> Any:
        """What ``%kit_steer`` becomes where the cell can wait."""
        return self._awaited(lambda me, *args: me._read_steer(*args), line)

    def _read_continue(self, line: str) -> tuple[Run, Namespace] | None:
        asked, text = opt.read(KitMagics.kit_continue, line, text=True)
        kit = self._talking(asked.session)
        if kit.is_running:
            receipt = kit.queue_follow_up(text or "Continue.")
            if receipt.state != "returned":
                print("queued: said when the running turn is done")
                return None
            kit.take_back(receipt)  # the turn was just ending: a turn of its own
        return self._begin(self._defaults(), text, kit=kit, mode="follow_up", when_busy="queue")

    @no_var_expand
    @magic_arguments("[what to say]")
    @argument("-s", "--session", help="name of the session")
    @line_magic
    @_plain_errors
    def kit_continue(self, line: str) -> Any:
        """Let the model go on; while a turn runs, when it would stop."""
        return self._blocking(self._read_continue(line))

    @no_var_expand
    @line_magic
    def kit_continue_async(self, line: str) -> Any:
        """What ``%kit_continue`` becomes where the cell can wait."""
        return self._awaited(lambda me, *args: me._read_continue(*args), line)

    @magic_arguments()
    @argument("--clear", action="store_true", default=False, help="also drop what waits to be said")
    @argument("-s", "--session", help="name of the session")
    @line_magic
    @_plain_errors
    def kit_stop(self, line: str) -> None:
        """Stop the running turns; what came so far is kept, unsent steers are listed."""
        asked, _ = opt.read(KitMagics.kit_stop, line, text=False)
        kits = [self._here(asked.session)] if asked.session else [run.kit for run in self.nb.running()]
        if not any(kit.is_running for kit in kits):
            print("nothing is running")
        for kit in dict.fromkeys(kits):
            dropped = kit.clear_queue() if asked.clear else []
            self.nb.stop(kit)
            waiting = dropped or [*kit.queue.steering, *kit.queue.follow_up, *kit.queue.returned]
            if waiting:
                print(("dropped: " if asked.clear else "not sent: ") + "; ".join(waiting))

    # ------------------------------------------------------------ approvals

    def _kits(self) -> list[Any]:
        mine = [self.nb.kit(), *self.nb.kits.values(), *(run.kit for run in self.nb.running())]
        return list(dict.fromkeys(mine))

    @no_var_expand
    @magic_arguments("[call or tool]")
    @argument("--always", action="store_true", default=False, help="do not ask again for this")
    @argument("--arguments", help="edited arguments, as JSON")
    @line_magic
    @_plain_errors
    def kit_approve(self, line: str) -> None:
        """Say yes to the question that waits; name the call or its tool when several do."""
        asked, wanted = opt.read(KitMagics.kit_approve, line, text=True)
        kit, question = find_question(self._kits(), wanted.strip())
        arguments = None
        if asked.arguments:
            try:
                arguments = json.loads(asked.arguments)
            except ValueError as exc:
                raise UsageError(f"--arguments is not JSON: {exc}") from exc
        scope = "always" if asked.always else "once"
        self.nb.answer(kit, question.call_id, allow=True, arguments=arguments, scope=scope, by="magic")
        print(f"approved: {question.tool_name}")

    @no_var_expand
    @magic_arguments("[reason]")
    @argument("--call", default="", help="the call or its tool, when several questions wait")
    @line_magic
    @_plain_errors
    def kit_deny(self, line: str) -> None:
        """Say no to the question that waits; text after it is the reason, which the model is told."""
        asked, reason = opt.read(KitMagics.kit_deny, line, text=True)
        kit, question = find_question(self._kits(), asked.call)
        self.nb.answer(kit, question.call_id, allow=False, reason=reason.strip(), by="magic")
        print(f"denied: {question.tool_name}")

    # ------------------------------------------------------------ sessions

    @magic_arguments()
    @argument("--memory", action="store_true", default=False, help="keep it in memory only")
    @line_magic
    @_plain_errors
    def kit_new(self, line: str) -> None:
        """Begin a new conversation; the old one stays on disk."""
        asked, _ = opt.read(KitMagics.kit_new, line, text=False)
        kit = self.nb.kit()
        from kit_jupyter.session import Session

        memory = asked.memory or kit.session.path is None
        kit.resume_sync(Session.memory() if memory else Session.create())
        kit.clear_conversation_sync()
        print("new conversation")

    @magic_arguments()
    @argument("--all", action="store_true", default=False, help="of all folders")
    @line_magic
    @_plain_errors
    def kit_sessions(self, line: str) -> None:
        """List the sessions of this project, and those that live in this kernel."""
        asked, _ = opt.read(KitMagics.kit_sessions, line, text=False)
        from kit_jupyter.approvers import visible
        from kit_jupyter.session import Session

        current = self.nb.kit()
        here = self.nb.kits if current in self.nb.kits.values() else {"kit": current, **self.nb.kits}
        for name, kit in here.items():
            mark = "*" if kit is current else " "
            state = "running" if kit.is_running else f"{len(kit.messages)} messages"
            print(f"{mark} {name}: {kit.session.id} ({state})")
        for info in Session.listing(everywhere=asked.all):
            print(f"  {visible(str(info))}")  # a title from elsewhere may hold escape sequences

    @no_var_expand
    @magic_arguments("[session or notebook]")
    @argument(
        "--from-notebook",
        dest="notebook",
        action="store_true",
        default=False,
        help="what the saved notebook shows: this one, or the file named",
    )
    @argument("-s", "--session", help="with --from-notebook: the talk of that name at the side")
    @line_magic
    @_plain_errors
    def kit_resume(self, line: str) -> None:
        """Go on with another session: a name of this kernel, an id, a file, or the last one.

        ``--from-notebook`` goes on with the conversation that a saved notebook shows, also where
        its session's file is not: one from a colleague, or from another machine.
        """
        asked, wanted = opt.read(KitMagics.kit_resume, line, text=True)
        wanted = wanted.strip()
        if asked.notebook:
            self._resume_notebook(wanted, asked.session or "")
            return
        if asked.session is not None:
            raise UsageError(f"-s goes with --from-notebook; for a session by its name: %kit_resume {asked.session}")
        from kit_jupyter.session import Session

        if wanted in self.nb.kits:
            self.nb.use(self.nb.kits[wanted], wanted)
        else:
            kit = self.nb.kit()
            listing = Session.listing()
            if not wanted:
                wanted = next((info.id for info in listing if info.id != kit.session.id), "")
                if not wanted:
                    raise UsageError(
                        "there is no earlier session of this project; %kit_sessions --all lists those of other folders"
                    )
            found = self._session_meant(wanted, listing)
            there = self.nb.holder(found)
            if there is None:
                kit.resume_sync(found)
            elif there is not kit:  # open in this kernel already, at the side: one file has one writer
                self.nb.use(there, self.nb.name_of(there))
        name = self.nb.name_of(self.nb.kit())
        self._resumed("resumed {id}" + (f" (-s {name})" if name not in ("main", "kit") else "") + ": {count} messages")

    def _session_meant(self, wanted: str, listing: list[SessionInfo]) -> str:
        """An id or a file to go on with: of this project, of this kernel, or by its id from another folder.

        Raises
        ------
        UsageError
            When nothing or several fit; it names the nearest, and where the list is.
        """
        from kit_jupyter.session import Session

        if self.nb.holder(wanted) is not None or _is_file(wanted):
            return wanted
        fits = [info.id for info in listing if wanted in (info.id, info.name)]
        fits = fits or [info.id for info in listing if info.id.startswith(wanted)]
        if len(fits) == 1:
            return fits[0]
        if fits:
            raise UsageError(f"{len(fits)} sessions fit {wanted!r}: {', '.join(fits[:5])}; %kit_sessions lists them")
        elsewhere = [str(info.path) for info in Session.listing(everywhere=True) if info.id == wanted]
        if elsewhere or _is_file(wanted, or_folder=True):
            return elsewhere[0] if elsewhere else wanted
        known = [*self.nb.kits, *(info.name for info in listing if info.name), *(info.id for info in listing)]
        near = difflib.get_close_matches(wanted, known, n=1, cutoff=0.6)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"there is no session {wanted!r} here; {hint}%kit_sessions lists them (--all: of all folders)")

    def _resumed(self, words: str) -> None:
        kit = self.nb.kit()
        print(words.format(id=kit.session.id, count=len(kit.messages)))
        if self.nb.panel is not None:
            self.nb.panel.follow(kit)

    def _resume_notebook(self, given: str, talk: str) -> None:
        from kit_jupyter.jupyter import rebuild
        from kit_jupyter.jupyter.cells import notebook_name, notebook_path
        from kit_jupyter.session import Session

        path = rebuild.find_notebook(given.strip("'\""), notebook_path(self.shell))
        found = rebuild.read_turns(path, notebook_name(self.shell))
        turns = [saved for saved in found.turns if saved.talk == talk]
        whole = rebuild.whole_session_in(path) if not turns and not talk else None
        if not turns and whole is None:
            others = sorted({saved.talk for saved in found.turns} - {talk})
            if others:
                which = f"talk {talk!r}" if talk else "main talk"
                there = ", ".join(f"-s {other}" if other else "the main one (without -s)" for other in others)
                raise UsageError(f"{path.name} shows no {which}; it has: {there}")
            raise UsageError(f"{path.name} shows no turn of kit; save the notebook after the turn, then try again")
        kit = self.nb.kit(talk or None)
        original = rebuild.original_of(turns)
        if original is not None and kit.session.path == original:
            how = "is the present session"
        elif original is not None:
            kit.resume_sync(Session.open(original))
            how = "is still here as a session, and goes on"
        elif whole is not None:
            kit.resume_sync(whole)
            how = "holds a session, which was copied"
        else:
            kit.resume_sync(rebuild.rebuild(turns, memory=kit.session.path is None))
            how = f"was read: {len(turns)} turns"
        if talk:
            self.nb.use(kit, talk)
        missed = f"; {found.unread} outputs could not be read" if found.unread else ""
        self._resumed(f"{path.name} {how}{missed}".replace("{", "{{").replace("}", "}}") + "; {id}: {count} messages")

    @no_var_expand
    @magic_arguments("[entry]")
    @argument("-s", "--session", help="name of the new session here")
    @line_magic
    @_plain_errors
    def kit_fork(self, line: str) -> None:
        """A new session from here, or from the entry named; cells talk to it from now on."""
        asked, entry = opt.read(KitMagics.kit_fork, line, text=True)
        name = self._checked_name(asked.session)
        kit = self.nb.kit()
        before = kit.session
        forked = kit.fork_sync(entry.strip() or None)
        kit.resume_sync(forked)
        if name:
            self.nb.use(kit, name)
        back = f"%kit_resume {before.id} goes back" if before.path is not None else "the old one was in memory only"
        print(f"forked into {forked.id}; kit is the fork now, {back}")

    @magic_arguments()
    @line_magic
    @_plain_errors
    def kit_tree(self, line: str) -> None:
        """Show the session's tree of branches."""
        opt.read(KitMagics.kit_tree, line, text=False)
        print(self.nb.kit().session.tree())

    @no_var_expand
    @magic_arguments()
    @argument("-n", "--turns", metavar="N", type=int, default=1, help="how many turns to take back")
    @line_magic
    @_plain_errors
    def kit_undo(self, line: str) -> None:
        """Take back the last turn, and what its tools did to files and small variables.

        It stays as a branch; the model does not see it any more.
        """
        asked, _ = opt.read(KitMagics.kit_undo, line, text=False)
        kit = self.nb.kit()
        if asked.turns < 1:
            raise UsageError(f"-n counts turns from 1, got {asked.turns}")
        # What is no turn's, such as a summary, goes with the turn before it.
        said = [m.turn_id for entry in kit.session.branch() if (m := entry.message) is not None and m.turn_id]
        turns = list(dict.fromkeys(reversed(said)))
        if asked.turns > len(turns):
            what = (
                f"cannot take back {asked.turns} turns: {len(turns)} here" if turns else "there is nothing to take back"
            )
            raise UsageError(f"{what}; %kit_tree shows what is here, %kit_sessions other conversations")
        for turn_id in turns[: asked.turns]:
            first = kit.session.turn_entries(turn_id)[0]
            kit.branch_sync(first.parent)
            undone = kit.undo(self.nb.ip.user_ns, turn_id=turn_id)
            if undone.turn_id:
                print(undone)
        print(f"taken back; {len(kit.messages)} messages remain")

    def _read_compact(self, line: str) -> None:
        _, instructions = opt.read(KitMagics.kit_compact, line, text=True)
        summary = self.nb.kit().compact_sync(instructions.strip() or None)
        print(f"compacted to {len(summary):,} characters")

    @no_var_expand
    @magic_arguments("[what matters]")
    @line_magic
    @_plain_errors
    def kit_compact(self, line: str) -> None:
        """Summarise the old history now; text after it says what matters."""
        self._read_compact(line)

    @no_var_expand
    @line_magic
    def kit_compact_async(self, line: str) -> Any:
        """What ``%kit_compact`` becomes where the cell can wait."""

        async def go() -> None:
            try:
                _, instructions = opt.read(KitMagics.kit_compact, line, text=True)
                summary = await self.nb.kit().compact(instructions.strip() or None)
            except opt.HelpAsked as help_asked:
                print(help_asked)
                return
            except KitError as exc:
                raise shortened(exc) from exc.__cause__
            print(f"compacted to {len(summary):,} characters")

        return go()

    # ------------------------------------------------------------ fix, context, show

    def _read_fix(self, line: str) -> tuple[Run, Namespace]:
        asked, wish = opt.read(KitMagics.kit_fix, line, text=True)
        cell = self._failed_cell(asked.cell)
        text = (
            wish.strip()
            or "A cell failed, and its error is attached. Say why in one or two sentences, and give the corrected cell."
        )
        attached = Attached(
            mark="Err", kind="error", parts=(TextPart(f'<attached mark="@Err">\n{error_text(cell)}\n</attached>'),)
        )
        given = self._defaults(form="code" if asked.insert else None)
        return self._begin(given, text, attachments=Attachments(text=text, attached=(attached,)))

    def _failed_cell(self, wanted: str) -> RanCell:
        record = self.nb.record
        if not wanted:
            if record.last_error is None:
                raise UsageError("no cell has failed in this kernel; run the one that fails, then %kit_fix")
            return record.last_error
        cell = record.find(wanted) or next((one for one in record if str(one.number) == wanted), None)
        if cell is None or cell.error is None:
            known = ", ".join(f"{one.number} ({one.cell_id})" for one in record if one.error and not one.is_prompt)
            raise UsageError(f"cell {wanted!r} has not failed in this kernel; those that have: {known or 'none'}")
        return cell

    @no_var_expand
    @magic_arguments("[what you want]")
    @argument("--insert", action="store_true", default=False, help="put the corrected code into a cell below")
    @argument("--cell", default="", help="number or id of a failed cell; else the one that failed last")
    @line_magic
    @_plain_errors
    def kit_fix(self, line: str) -> Any:
        """Ask about the last error: the failed cell's source and its traceback go along."""
        return self._blocking(self._read_fix(line))

    @no_var_expand
    @line_magic
    def kit_fix_async(self, line: str) -> Any:
        """What ``%kit_fix`` becomes where the cell can wait."""
        return self._awaited(lambda me, *args: me._read_fix(*args), line)

    @no_var_expand
    @magic_arguments("[text]")
    @argument("--context", default="none", help="cells: none, above, all, 3-7, or ids")
    @argument("--last", action="store_true", default=False, help="what was sent last")
    @line_magic
    @_plain_errors
    def kit_context(self, line: str) -> None:
        """Show what would be sent with this text, or with ``--last`` what was."""
        asked, text = opt.read(KitMagics.kit_context, line, text=True)
        kit = self.nb.kit()
        if asked.last:
            print(kit.last_request if kit.last_request is not None else "nothing has been sent yet")
            return
        made = self.attachments(kit, text, asked.context)
        view = kit.next_request(made.text, made.parts)
        system, tools = view.request.system, [spec.name for spec in view.request.tools]
        print(f"system prompt: {len(system):,} characters")
        print(f"history: {len(kit.messages)} messages")
        print(f"tools: {', '.join(tools) or 'none'}")
        if not tools and kit.tools:
            print(f"not offered to a model this small: {', '.join(kit.tools)}")
        if text:
            print(f"text: {made.text}")
        for one in made.attached:
            print(f"@{one.mark} ({one.kind}, {one.size}):\n{one.preview}")
        print(view.title)
        if made.warning:
            print(made.warning)

    @magic_arguments()
    @argument("--error", action="store_true", default=False, help="the last failure with its causes")
    @line_magic
    @_plain_errors
    def kit_show(self, line: str) -> None:
        """Show the whole conversation, also what came while no browser looked."""
        asked, _ = opt.read(KitMagics.kit_show, line, text=False)
        if asked.error:
            print(causes(self.nb.last_error[1]) if self.nb.last_error is not None else "nothing has failed")
            return
        from kit_jupyter.jupyter.history import turns_of
        from kit_jupyter.jupyter.transcript import bundle

        turns = turns_of(self.nb.kit().session.transcript())
        if not turns:
            print("no conversation yet")
        for turn in turns:
            data = bundle({**turn.saved(), "showPrompt": True})
            publish(data, {})

    # ------------------------------------------------------------ what there is

    @no_var_expand
    @magic_arguments("[provider/model]")
    @argument("-l", "--list", dest="listed", action="store_true", default=False, help="name the providers there are")
    @line_magic
    @_plain_errors
    def kit_model(self, line: str) -> None:
        """Show the model, or switch to another; the conversation goes on."""
        asked, name = opt.read(KitMagics.kit_model, line, text=True)
        if asked.listed:
            self._list_providers()
            return
        kit = self.nb.kit()
        if len(name.split()) > 1 and not name.startswith("local/"):  # a file's name may have spaces
            raise UsageError(f"a model's name is one word, provider/id; got {name.strip()!r}")
        if name.strip():
            self.nb.config.check_turn(kit, PromptOptions(model=name.strip()))
            kit.model = name.strip()
            self._warn_of_key(name.strip())
        why = f" ({kit.model_reason})" if getattr(kit, "model_reason", "") else ""
        print((kit.model or "chosen at the first prompt") + why)

    @staticmethod
    def _list_providers() -> None:
        """Every name that may stand before the slash, with the service behind it."""
        from kit_jupyter.shelf import registry

        titles = {"local": "the built-in local model", "replay": "a recording", "pydantic-ai": "a model of pydantic-ai"}
        titles |= {row.name: row.title for row in registry().ROWS}
        for name in registry().known_names():
            print(f"{name + '/':<20} {titles.get(name, '')}".rstrip())

    @staticmethod
    def _warn_of_key(name: str) -> None:
        """Say at once that a model's key is not set; the first prompt would fail for it."""
        from kit_jupyter.shelf import registry

        provider = name.partition("/")[0]
        row = next((one for one in registry().ROWS if one.name == provider and one.key_env), None)
        if row is not None and registry().key_source(provider) == "none":
            print(f"{provider} has no key here yet: set {row.key_env[0]}, or call kit.login({provider!r})")

    @magic_arguments()
    @line_magic
    @_plain_errors
    def kit_tools(self, line: str) -> None:
        """List the tools the model may call."""
        opt.read(KitMagics.kit_tools, line, text=False)
        tools = self.nb.kit().tools
        for name, tool in tools.items():
            print(f"{name}: {(tool.spec.description.splitlines() or [''])[0]}")
        if not tools:
            print("no tools; Kit(tools=[...]) gives some")

    @magic_arguments()
    @line_magic
    @_plain_errors
    def kit_usage(self, line: str) -> None:
        """Tokens and cost of this conversation."""
        opt.read(KitMagics.kit_usage, line, text=False)
        usage = self.nb.kit().usage
        tokens = usage.tokens
        print(f"{tokens.input or 0:,} tokens in, {tokens.output or 0:,} out, {tokens.cache_read or 0:,} from cache")
        print("cost unknown" if usage.cost is None else f"${usage.cost:.4f}")

    @magic_arguments()
    @line_magic
    @_plain_errors
    def kit_trifecta(self, line: str) -> None:
        """What this session could leak: private data, untrusted text and a way out."""
        opt.read(KitMagics.kit_trifecta, line, text=False)
        from IPython.display import display

        display(self.nb.kit().trifecta)  # type: ignore[no-untyped-call]

    @magic_arguments()
    @line_magic
    @_plain_errors
    def kit_doctor(self, line: str) -> None:
        """What works in this kernel and what does not."""
        opt.read(KitMagics.kit_doctor, line, text=False)
        from kit_jupyter.jupyter.doctor import report

        print(report(self.nb))

    @magic_arguments()
    @line_magic
    @_plain_errors
    def kit_keys(self, line: str) -> None:
        """What keys are mapped, in Lab and here, and why."""
        opt.read(KitMagics.kit_keys, line, text=False)
        from kit_jupyter.jupyter.doctor import keys

        print(keys(self.nb))

    @magic_arguments()
    @argument("--side", action="store_true", default=False, help="at the side of Lab, by its extension")
    @line_magic
    @_plain_errors
    def kit_panel(self, line: str) -> None:
        """Open the chat panel in this cell; Lab's "Create New View for Output" puts it beside the notebook."""
        asked, _ = opt.read(KitMagics.kit_panel, line, text=False)
        from kit_jupyter.jupyter.panel import open_panel

        if asked.side and self.nb.lab is not None and self.nb.lab.is_attached:
            self.nb.lab.command("kit:focus-panel")
            return
        if asked.side:
            print("no page of the Lab extension shows this notebook; the panel is here instead")
        if not is_kernel(self.shell):
            print("the panel needs a notebook; in a terminal, talk with %kit, and look with %kit_show")
            return
        panel, mine = open_panel(self.nb), self.nb.kit()
        if panel.kit is not mine:
            panel.follow(mine)

    @magic_arguments("on|off")
    @argument("--dot", action="store_true", default=False, help="only cells that begin with a dot are prompts")
    @line_magic
    @_plain_errors
    def kit_mode(self, line: str) -> None:
        """``on``: cells are prompts (``%`` and ``!`` still work, ``;`` in front runs Python); ``off``: Python again."""
        asked, word = opt.read(KitMagics.kit_mode, line, text=False, words=True)
        if word not in ("on", "off"):
            raise UsageError(f"%kit_mode takes on or off, got {word!r}")
        self.nb.hooks.prompt_mode = (_dot_cells if asked.dot else _all_cells) if word == "on" else None
        on = "cells are prompts; begin with ; for Python, %kit_mode off to leave"
        print(on if word == "on" else "cells are Python")


def _is_file(name: str, *, or_folder: bool = False) -> bool:
    try:
        return Path(name).exists() if or_folder else Path(name).is_file()
    except (OSError, ValueError):  # too long, or a NUL in it
        return False


def _all_cells(lines: list[str]) -> list[str]:
    first = next((line for line in lines if line.strip()), "")
    if not first or first.lstrip().startswith(("%", "!", "?")):
        return lines
    if first.startswith(";"):
        at = lines.index(first)
        return [*lines[:at], first[1:].lstrip(" "), *lines[at + 1 :]]
    return ["%%kit\n", *lines]


def _dot_cells(lines: list[str]) -> list[str]:
    if not lines or not lines[0].startswith("."):
        return lines
    return ["%%kit\n", lines[0][1:].lstrip(" "), *lines[1:]]


def _code_of(text: str) -> str:
    """Code blocks of an answer, joined; the whole answer when there is none."""
    blocks = re.findall(r"^ {0,3}(`{3,}|~{3,})[^\n]*\n(.*?)^ {0,3}\1[`~]*[ \t]*$", text, re.M | re.S)
    return "\n\n".join(body.rstrip("\n") for _, body in blocks) if blocks else text.strip()


def _json_of(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        return json.loads(_code_of(text))
    except ValueError as exc:
        raise UsageError(f"--as json: the answer is not JSON ({exc}); --schema asks for one that fits") from exc
