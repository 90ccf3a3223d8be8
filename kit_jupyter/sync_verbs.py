"""The blocking twin of each async verb of a Kit; works in a cell under a running loop and in a script."""

from __future__ import annotations

from typing import Any

from kit_jupyter.house import FOLLOW_UP, TurnResult
from kit_jupyter.inbox import Receipt
from kit_jupyter.modes import ModeVerbs
from kit_jupyter.session import Session
from kit_jupyter.settings import PromptOptions

__all__ = ["SyncVerbs"]


class SyncVerbs(ModeVerbs):
    """Mixed into `Kit`: each is one call over the async verb of its name."""

    async def extract(self, text: str, schema: Any, **options: Any) -> Any:
        """The data in a text, as a value of `schema`; asked apart from the conversation.

        Raises
        ------
        UsageError
            When the answer does not fit after the allowed tries.
        """
        asked = PromptOptions(schema=schema, **options)
        one = self.sibling()
        try:
            result = await one.prompt(f"Extract the data from this text.\n\n{text}", options=asked)
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
