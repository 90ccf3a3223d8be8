"""The verbs of a Kit that move in its session's tree, name things in it, or go on with another."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kit_jupyter import events as ev
from kit_jupyter.checkpoints import Checkpoints, Undone
from kit_jupyter.compactor import summarise_branch
from kit_jupyter.errors import SessionError, UsageError
from kit_jupyter.house import FOLLOW_UP, Opening, TurnResult
from kit_jupyter.kit_path import KitPath
from kit_jupyter.loop import Desk
from kit_jupyter.media import checked_text
from kit_jupyter.messages import Assistant, System, User, text_of
from kit_jupyter.session import Session

__all__ = ["TreeVerbs"]


class TreeVerbs(KitPath):
    """Mixed into `Kit`: clear, undo, branch, fork, ask again, resume, name, label, export."""

    async def clear_conversation(self) -> None:
        """Begin anew: the old branch stays in the file. Guests drop what belongs to the conversation."""
        await self._drive(lambda: _clear(self))

    def undo(self, namespace: MutableMapping[str, Any] | None = None, *, turn_id: str | None = None) -> Undone:
        """Put back what the built-in tools changed in the last turn; again for the turn before.

        Files come back as they were, those that the turn made are removed; one that someone changed
        since is left alone and named. What a shell command or a function of yours did besides is not
        known and stays.

        Parameters
        ----------
        namespace : dict or None
            Where changed variables are restored, for example ``globals()``; those too large to be kept
            are named. None leaves variables alone.
        turn_id : str or None
            This turn instead of the last.

        Returns
        -------
        Undone
            ``str()`` of it tells what was done.

        Raises
        ------
        UsageError
            While a turn runs.
        """
        if self.is_running:
            raise UsageError("a turn is running; stop it before you undo what tools did")
        here = SimpleNamespace(state=self._state, session=self.session)
        return Checkpoints.of(here).undo(namespace, turn_id=turn_id)

    async def branch(self, entry_id: str | None, *, summarise: bool = False) -> None:
        """Go to an older entry (None: the root); what comes next is a branch of it.

        Parameters
        ----------
        summarise : bool
            Ask the model for a summary of what is left behind, stored on the new branch.

        Raises
        ------
        SessionError
            If there is no such entry.
        UsageError
            While a turn runs.
        """
        await self._drive(lambda: _branch(self, entry_id, summarise))

    async def ask_again(self, turn_id: str | None = None, *, desk: Desk | None = None) -> TurnResult:
        """Ask a stored turn's question once more, as it was asked; the old answer stays as a branch.

        The words and what was attached, model, thinking level, system text, format and tools are those that are
        stored with it; what was said while it ran is not said again. A tool or a model that is not here any more is
        left out, and a `Warned` event says so.

        Parameters
        ----------
        turn_id : str or None
            A turn of the present branch; None for the last. Turns after it are set aside.

        Raises
        ------
        UsageError
            When there is no such turn, or while one runs.
        """
        return await self._drive(lambda: _ask_again(self, turn_id), desk)

    async def fork(self, entry_id: str | None = None) -> Session:
        """A new session from the path to `entry_id` (default: here); `resume` it, or give it to another Kit."""
        return await self._drive(lambda: _fork(self, entry_id))

    async def resume(self, session: Session | str) -> None:
        """Go on with another session, with its agent and model; one of a file is opened.

        Raises
        ------
        SessionError
            If it cannot be opened, or another Kit or process writes to it.
        UsageError
            While a turn runs.
        """
        await self._drive(lambda: _resume(self, session))

    # ------------------------------------------------------------ names

    @property
    def name(self) -> str:
        """The session's name; set it to find the session again."""
        return self.session.name

    @name.setter
    def name(self, name: str) -> None:
        self.session.set_name(checked_text(name, "the name of a session"))

    @property
    def labels(self) -> dict[str, str]:
        """Labels of entries, by entry id."""
        return self.session.labels

    def label(self, entry_id: str, text: str) -> None:
        """Label an entry; an empty text takes the label away.

        Raises
        ------
        SessionError
            If there is no such entry.
        """
        self.session.set_label(_entry_of(self, entry_id), checked_text(text, "a label"))

    def export(self, format: str = "markdown", path: Any = None, **options: Any) -> str:
        """The session as ``markdown``, ``html``, ``jsonl`` or ``ipynb``.

        Parameters
        ----------
        format : {"markdown", "html", "jsonl", "ipynb"}
        path : str, path or None
            The file to write; its name is given back then, and not the text.
        **options
            As `kit_jupyter.export.export_session` takes them: ``thinking``, ``tools``, ``relative_paths``, ``embed``.

        Raises
        ------
        UsageError
            On another format.
        SessionError
            If the file cannot be written.
        """
        from kit_jupyter.export import export_session

        text = export_session(self.session, format, **options)
        if path is not None:
            try:
                Path(path).write_text(text, encoding="utf-8")
            except OSError as exc:
                raise SessionError(f"cannot write {path}: {exc.strerror or exc}") from exc
            return str(path)
        return text


async def _clear(kit: KitPath) -> None:
    with kit._claims.claim("the conversation is being cleared"):
        kit.session.move_leaf(None)
        kit._inbox.clear()
        kit._sections = tuple(kit.host.system_sections())
        kit._say(ev.Reset)
        await kit.host.reset()


async def _branch(kit: KitPath, entry_id: str | None, summarise: bool) -> None:
    with kit._claims.claim("the session moves to another branch"):
        session, before = kit.session, kit.session.leaf
        entry_id = _entry_of(kit, entry_id) if entry_id is not None else None
        kept = {entry.id for entry in session.path_to(entry_id)}
        summary: Assistant | None = None
        if summarise:
            left = [e.message for e in session.branch() if e.id not in kept and e.message is not None]
            if left:
                options = kit.settings.options()
                provider, ref = await kit._shelf.find_soon(options)
                summary = await summarise_branch(left, provider, ref, options)
        session.move_leaf(entry_id)
        if summary is not None:
            session.append_branch_summary(summary, from_id=before or "")
        kit._say(ev.BranchChanged, before or "", session.leaf or "")


async def _ask_again(kit: KitPath, turn_id: str | None) -> TurnResult:
    turns = [entry.fact("turn_id") for entry in kit.session.branch() if entry.fact("turn_id")]
    turn_id = turn_id or (turns[-1] if turns else None)
    entries = kit.session.turn_entries(turn_id) if turn_id is not None else []
    if not entries and turn_id is not None:  # a prompt that was too large for its model stands beside the branch
        here = kit.session.leaf
        found = [entry for entry in kit.session.entries if entry.fact("turn_id") == turn_id]
        entries = found if found and found[0].parent == here else []
    if not entries:
        wanted = "a turn" if turn_id is None else f"a turn {turn_id!r}"
        raise UsageError(f"cannot ask again: the present branch has no such thing as {wanted}")
    stored = (entry.message for entry in entries if entry.message is not None)
    said = list(takewhile(lambda message: not isinstance(message, Assistant), stored))
    asked = [m for m in said if isinstance(m, User) and m.request is not None]
    if not asked:
        raise UsageError("cannot ask again: the question of that turn is not stored in a whole")
    # What guests put beside the words they will put there again; what an option put there comes with the option.
    opening = tuple(
        Opening(
            role=m.role,
            parts=m.parts,
            source=m.source,
            visible=m.source is None or (m.source == "follow-up" and text_of(m.parts) != FOLLOW_UP),
            original=m.request.original if isinstance(m, User) and m.request is not None else None,
        )
        for m in said
        if isinstance(m, User | System) and m.source in (None, "steer", "follow-up")
    )
    mode = {"steer": "steer", "follow-up": "follow_up"}.get(opening[0].source or "", "prompt")
    words = text_of(opening[0].parts)
    label = {"steer": f"[steer] {words}", "follow_up": "[follow-up]"}.get(mode, words)
    facts = asked[0].request
    assert facts is not None
    persists = any(isinstance(m, System) and m.source == "option" for m in said)
    await _branch(kit, entries[0].parent, False)
    options = replace(kit.options_of(facts), persist_system=persists)
    return await kit._run_turn(mode, opening, label, options=options, cell=facts.cell)


async def _fork(kit: KitPath, entry_id: str | None) -> Session:
    return kit.session.fork(_entry_of(kit, entry_id) if entry_id is not None else None)


def _entry_of(kit: KitPath, entry_id: str) -> str:
    found = kit.session.full_id(checked_text(entry_id, "the id of an entry"))
    if found not in {entry.id for entry in kit.session.entries}:
        raise SessionError(
            f"there is no entry {entry_id[:200]!r}; %kit_tree, or print(kit.session.tree()), shows the entries",
            path=kit.session.path,
        )
    return found


async def _resume(kit: KitPath, session: Session | str) -> None:
    with kit._claims.claim("another session is being opened"):
        new = kit._open_session(session)
        if new.path is None or new.path != kit.session.path:
            new.check_free()  # before it is ours: a Kit on a session that it cannot write to answers nothing
        old, kit.session = kit.session, new
        if old is not new:
            old.close()
        kit._adopt({})
        kit._say(ev.BranchChanged, old.leaf or "", new.leaf or "")
