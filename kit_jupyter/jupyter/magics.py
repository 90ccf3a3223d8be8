"""The magics: ``%%kit`` and its family.

Theory of operation
-------------------
Magics that run a turn exist twice: `kit` blocks, `kit_async` gives a coroutine, and the transformer
in `shell` puts ``await kit_async`` where a cell can wait. Both begin and deliver by the same two
methods. Text after the options is the model's, byte for byte. Here are those that say something to
the model; the magics of sessions and those that show and set things are in the rooms beside.
"""

from __future__ import annotations

import difflib
import json
import keyword
import re
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core import magic as _magic

from kit_jupyter.errors import KitError, UsageError
from kit_jupyter.house import Rewritten
from kit_jupyter.jupyter import options as opt
from kit_jupyter.jupyter.context import Attached, Attachments, Marks, error_text, notebook_text, select_cells
from kit_jupyter.jupyter.display import publish
from kit_jupyter.jupyter.failures import causes, shortened
from kit_jupyter.jupyter.magic_base import (
    argument,
    line_cell_magic,
    line_magic,
    magic_arguments,
    no_var_expand,
    plain_errors,
)
from kit_jupyter.jupyter.magics_sessions import SessionMagics
from kit_jupyter.jupyter.magics_state import StateMagics
from kit_jupyter.jupyter.notebook import Notebook, Run
from kit_jupyter.jupyter.shell import current_parent
from kit_jupyter.kit import Kit
from kit_jupyter.messages import TextPart
from kit_jupyter.settings import PromptOptions
from kit_jupyter.turn import TurnResult

if TYPE_CHECKING:
    from kit_jupyter.jupyter.record import RanCell

__all__ = ["KitMagics"]


def _message_id(shell: Any) -> str:
    """Which execution this is; empty in a terminal."""
    return str((current_parent(shell).get("header") or {}).get("msg_id", ""))


# It takes in what the decorators of all the parts have noted.
@_magic.magics_class
class KitMagics(SessionMagics, StateMagics):
    """Magics of one shell."""

    def __init__(self, shell: Any, notebook: Notebook) -> None:
        super().__init__(shell, notebook)
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
    @plain_errors
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

    def _read_steer(self, line: str) -> tuple[Run, Namespace] | None:
        asked, text = opt.read(KitMagics.kit_steer, line, text=True)
        kit = self._talking(asked.session)
        if kit.is_running:
            receipt = self.nb.verbs.steer(kit, text, now=asked.now)
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
    @plain_errors
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
    @plain_errors
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
    @plain_errors
    def kit_stop(self, line: str) -> None:
        """Stop the running turns; what came so far is kept, unsent steers are listed."""
        asked, _ = opt.read(KitMagics.kit_stop, line, text=False)
        kits = [self._here(asked.session)] if asked.session else [run.kit for run in self.nb.running()]
        if not any(kit.is_running for kit in kits):
            print("nothing is running")
        for kit in dict.fromkeys(kits):
            dropped = kit.clear_queue() if asked.clear else []
            self.nb.verbs.stop(kit)
            waiting = dropped or [*kit.queue.steering, *kit.queue.follow_up, *kit.queue.returned]
            if waiting:
                print(("dropped: " if asked.clear else "not sent: ") + "; ".join(waiting))

    def _read_compact(self, line: str) -> None:
        _, instructions = opt.read(KitMagics.kit_compact, line, text=True)
        summary = self.nb.kit().compact_sync(instructions.strip() or None)
        print(f"compacted to {len(summary):,} characters")

    @no_var_expand
    @magic_arguments("[what matters]")
    @line_magic
    @plain_errors
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
    @plain_errors
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
    @plain_errors
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
    @plain_errors
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
