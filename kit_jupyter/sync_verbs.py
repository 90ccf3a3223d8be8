"""The blocking twin of each async verb of a Kit; works in a cell under a running loop and in a script."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from kit_jupyter.events import PartialObject
from kit_jupyter.house import FOLLOW_UP, TurnResult
from kit_jupyter.inbox import Receipt
from kit_jupyter.loop import current_desk, engine
from kit_jupyter.modes import ModeVerbs
from kit_jupyter.session import Session
from kit_jupyter.settings import PromptOptions

__all__ = ["SyncVerbs"]


class SyncVerbs(ModeVerbs):
    """Mixed into `Kit`: each is one call over the async verb of its name."""

    async def extract(
        self, text: str, schema: Any, *, on_partial: Callable[[Any], object] | None = None, **options: Any
    ) -> Any:
        """The data in a text, as a value of `schema`; asked apart from the conversation.

        Parameters
        ----------
        text : str
        schema : type or JSON schema
        on_partial : callable or None
            Called on your thread with what has come so far, as plain JSON values that nobody has checked yet; the
            last call has all of the answer. After a misfit the next answer begins anew. It may be async. What it
            raises stops the asking and is raised here.
        **options
            Of `PromptOptions`.

        Raises
        ------
        UsageError
            When the answer does not fit after the allowed tries.

        Examples
        --------
        >>> from kit_jupyter import Kit
        >>> from kit_jupyter.testing import ScriptedProvider
        >>> kit = Kit(provider=ScriptedProvider('{"value": [1, 2]}'), session="memory")
        >>> kit.extract_sync("one and two", list[int])
        [1, 2]
        """
        asked = PromptOptions(schema=schema, **options)
        one = self.sibling()
        try:
            asking = one.prompt(f"Extract the data from this text.\n\n{text}", options=asked)
            result = await (asking if on_partial is None else _telling(one, asking, on_partial))
        finally:
            one._close_quietly()
        return result.structured

    def prompt_sync(self, text: str = "", **arguments: Any) -> TurnResult:
        """`prompt`, blocking."""
        return self._wait(self.prompt, text, **arguments)

    def prompt_with_options_sync(self, text: str, options: PromptOptions) -> TurnResult:
        """`prompt_with_options`, blocking."""
        return self._wait(self.prompt_with_options, text, options)

    def steer_sync(self, instruction: str, *, now: bool = False) -> TurnResult | Receipt:
        """`steer`, blocking."""
        return self._wait(self.steer, instruction, now=now)

    def follow_up_sync(self, text: str = FOLLOW_UP) -> TurnResult | Receipt:
        """`follow_up`, blocking."""
        return self._wait(self.follow_up, text)

    def compact_sync(self, instructions: str | None = None) -> str:
        """`compact`, blocking."""
        return self._wait(self.compact, instructions)

    def abort_sync(self) -> None:
        """`abort`, and wait until the turn has ended."""
        self.abort().wait()

    def clear_conversation_sync(self) -> None:
        """`clear_conversation`, blocking."""
        self._wait(self.clear_conversation)

    def branch_sync(self, entry_id: str | None, *, summarise: bool = False) -> None:
        """`branch`, blocking."""
        self._wait(self.branch, entry_id, summarise=summarise)

    def ask_again_sync(self, turn_id: str | None = None) -> TurnResult:
        """`ask_again`, blocking."""
        return self._wait(self.ask_again, turn_id)

    def fork_sync(self, entry_id: str | None = None) -> Session:
        """`fork`, blocking."""
        return self._wait(self.fork, entry_id)

    def resume_sync(self, session: Session | str) -> None:
        """`resume`, blocking."""
        self._wait(self.resume, session)

    def apply_input_sync(self, text: str, source: str = "api") -> str | None:
        """`apply_input`, blocking."""
        return self._wait(self.apply_input, text, source)

    def extract_sync(self, text: str, schema: Any, **options: Any) -> Any:
        """`extract`, blocking."""
        return self._wait(self.extract, text, schema, **options)


async def _telling(
    kit: SyncVerbs, asking: Coroutine[Any, Any, TurnResult], on_partial: Callable[[Any], object]
) -> TurnResult:
    """Await the answer and tell what there is of it meanwhile; whoever is slow is told the newest only."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()
    newest: list[Any] = []

    def hear(event: PartialObject) -> None:
        newest[:] = [event.value]
        loop.call_soon_threadsafe(changed.set)

    desk = current_desk() if engine.is_here else None
    with kit.subscribe(hear, PartialObject, inline=True):
        task = asyncio.ensure_future(asking)
        task.add_done_callback(lambda _: changed.set())
        try:
            while newest or not task.done():
                if not newest:
                    await changed.wait()
                changed.clear()
                if newest:
                    value = newest.pop()
                    said = await desk.run(on_partial, value) if desk is not None else on_partial(value)
                    if inspect.isawaitable(said):
                        await said
            return await task
        finally:
            if not task.done():
                task.cancel()  # which stops the turn, and waits until it has closed
                await asyncio.wait([task])
