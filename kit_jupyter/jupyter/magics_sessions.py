"""The magics of sessions: new, list, go on with another, fork, the tree, undo."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kit_jupyter.errors import SessionError, UsageError
from kit_jupyter.jupyter import options as opt
from kit_jupyter.jupyter.magic_base import Family, argument, line_magic, magic_arguments, no_var_expand, plain_errors

if TYPE_CHECKING:
    from kit_jupyter.session_list import SessionInfo

__all__ = ["SessionMagics"]


class SessionMagics(Family):
    """Which conversation the cells of a shell talk to."""

    @staticmethod
    def _checked_name(name: str | None) -> str | None:
        """A name that can be given to a session, and typed again after ``-s``."""
        if name is not None and not name.strip():
            raise UsageError("-s takes the name of a session, for example -s side; %kit_sessions lists those there are")
        return name

    @magic_arguments()
    @argument("--memory", action="store_true", default=False, help="keep it in memory only")
    @line_magic
    @plain_errors
    def kit_new(self, line: str) -> None:
        """Begin a new conversation; the old one stays on disk."""
        asked, _ = opt.read(SessionMagics.kit_new, line, text=False)
        kit = self.nb.kit()
        from kit_jupyter.session import Session

        memory = asked.memory or kit.session.path is None
        kit.resume_sync(Session.memory() if memory else Session.create())
        kit.clear_conversation_sync()
        print("new conversation")

    @magic_arguments()
    @argument("--all", action="store_true", default=False, help="of all folders")
    @line_magic
    @plain_errors
    def kit_sessions(self, line: str) -> None:
        """List the sessions of this project, and those that live in this kernel."""
        asked, _ = opt.read(SessionMagics.kit_sessions, line, text=False)
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
    @plain_errors
    def kit_resume(self, line: str) -> None:
        """Go on with another session: a name of this kernel, an id, a file; without one, this notebook's last.

        ``--from-notebook`` goes on with the conversation that a saved notebook shows, also where
        its session's file is not: one from a colleague, or from another machine.
        """
        asked, wanted = opt.read(SessionMagics.kit_resume, line, text=True)
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
                wanted = self.nb.earlier(listing, {kit.session.id}) or ""
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
        SessionError
            When nothing or several fit; it names the nearest, and where the list is.
        """
        from kit_jupyter.session_list import find_session, list_sessions

        if self.nb.holder(wanted) is not None or _is_file(wanted):
            return wanted
        where = "%kit_sessions lists them (--all: of all folders)"
        try:
            return find_session(wanted, listing, others=self.nb.kits, where=where).id
        except SessionError:
            for info in list_sessions(everywhere=True):
                if info.id == wanted:
                    return str(info.path)
            if _is_file(wanted, or_folder=True):
                return wanted
            raise

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
    @plain_errors
    def kit_fork(self, line: str) -> None:
        """A new session from here, or from the entry named; cells talk to it from now on."""
        asked, entry = opt.read(SessionMagics.kit_fork, line, text=True)
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
    @plain_errors
    def kit_tree(self, line: str) -> None:
        """Show the session's tree of branches.

        ``*`` stands before the last word of the conversation, ``|`` before what led to it, nothing
        before other branches. The letters in brackets name an entry: ``%kit_fork`` goes on from there
        in a session of its own.
        """
        opt.read(SessionMagics.kit_tree, line, text=False)
        print(self.nb.kit().session.tree())

    @no_var_expand
    @magic_arguments()
    @argument("-n", "--turns", metavar="N", type=int, default=1, help="how many turns to take back")
    @line_magic
    @plain_errors
    def kit_undo(self, line: str) -> None:
        """Take back the last turn, and what its tools did to files and small variables.

        It stays as a branch; the model does not see it any more.
        """
        asked, _ = opt.read(SessionMagics.kit_undo, line, text=False)
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


def _is_file(name: str, *, or_folder: bool = False) -> bool:
    try:
        return Path(name).exists() if or_folder else Path(name).is_file()
    except (OSError, ValueError):  # too long, or a NUL in it
        return False
