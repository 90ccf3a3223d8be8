"""Kit: one agent session that prompts, steers, follows up, compacts, forks, and tells what it does.

Theory of operation
-------------------
A Kit owns a session, tools, guests and an event bus. Every mode only prepares opening messages and a
label; one private coroutine, `Kit._run_turn`, runs the turn on the engine. A caller that awaits
serves the turn's desk meanwhile, so that tools can run on the caller's thread.

One thing at a time: a turn, a compaction or a move in the tree *claims* the Kit; who comes meanwhile is
refused, waits in order, or says it to the running turn. Verbs that may be said from any thread
(``abort``, ``queue_steer``, ``queue_follow_up``, ``approve``, ``deny``, ``start``, ``subscribe``) say so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from kit_jupyter.errors import UsageError
from kit_jupyter.handles import Handle
from kit_jupyter.sync_verbs import SyncVerbs

__all__ = ["Handle", "Kit"]


class _NotCopied(UsageError, TypeError):
    """Both, so that whoever tries things with pickle takes it for what it is."""


class Kit(SyncVerbs):
    """One agent session.

    Parameters
    ----------
    model : str or None
        ``provider/id``; None takes the setting, ``KIT_MODEL``, a key found in the environment, a local
        server that answers, or the built-in local model, in this order.
    provider : Provider or None
        Used instead of one made by name.
    tools : iterable of Tool or callable
        What the model may call.
    extensions : iterable
        Guests, configured in this order.
    session : Session, str, path or None
        None for a new one on disk, ``"memory"`` for one in memory; else a session, its id or its file.
    system : str
        System prompt; empty for a short default.
    approver : Approver, callable, "stdin", "nobody" or None
        Who is asked; None asks through the notebook or the terminal, and denies when nobody is there.
    permissions : str, list of Rule, Policy or None
        ``"read-only"``, ``"ask"`` (default), ``"auto"``, rules, or a policy.
    **settings
        Any trait of `Settings`.

    Raises
    ------
    UsageError
        An unknown setting or a bad value.
    ExtensionError
        A guest failed to configure; those before it are closed.

    Notes
    -----
    Reading properties is safe from any thread.

    Examples
    --------
    >>> from kit_jupyter.testing import ScriptedProvider, text
    >>> kit = Kit(provider=ScriptedProvider([text("Hello!")]), session="memory")
    >>> print(kit.prompt_sync("Say hello"))
    Hello!
    """

    @classmethod
    def build(cls, configure: Callable[[Any], Any], **arguments: Any) -> Self:
        """A Kit whose `configure` gets the `Configurator` while it is built.

        Examples
        --------
        >>> from kit_jupyter.testing import ScriptedProvider
        >>> def today() -> str:
        ...     "The date."
        ...     return "Monday"
        >>> list(Kit.build(lambda c: c.add_tool(today), provider=ScriptedProvider(), session="memory").tools)
        ['today']
        """
        return cls(configure=configure, **arguments)

    def map(self, rows: Any, template: Any, **options: Any) -> Any:
        """A prompt over many rows; see `kit_jupyter.batch.map_rows`."""
        # The room above: named at run time, so that no import goes up.
        return importlib.import_module("kit_jupyter.batch").map_rows(self, rows, template, **options)

    def panel(self) -> Any:
        """Show the chat panel of this session in the present cell; see `kit_jupyter.jupyter.panel`.

        Raises
        ------
        UsageError
            Where there is no notebook.
        """
        return importlib.import_module("kit_jupyter.jupyter.panel").open_for(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refused: copies and pickles would be two writers of one session.

        Raises
        ------
        UsageError
            Always, and a `TypeError` as for all that cannot be pickled; it names what to use instead.
        """
        raise _NotCopied(
            "a Kit is one live session and cannot be copied or pickled; kit.sibling() makes a fresh one like it, "
            "kit.fork() a session to go on with, and in another process Kit(session=kit.session_id) opens this one"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        state = "running" if self.is_running else "idle"
        return f"<Kit {self.model or 'no model yet'}, {len(self.tools)} tools, {state}>"
