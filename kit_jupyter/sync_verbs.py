"""The blocking twin of each async verb of a Kit; works in a cell under a running loop and in a script."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from kit_jupyter.house import FOLLOW_UP, TurnResult
from kit_jupyter.inbox import Receipt
from kit_jupyter.session import Session
from kit_jupyter.settings import PromptOptions

if TYPE_CHECKING:
    from kit_jupyter.kit import Kit

__all__ = ["SyncVerbs"]

T = TypeVar("T")


class SyncVerbs:
    """Mixed into `Kit`: each is one call over the async verb of its name."""

    if TYPE_CHECKING:

        def _wait(self, verb: Callable[..., Coroutine[Any, Any, T]], *args: Any, **kwargs: Any) -> T: ...

    def prompt_sync(self: Kit, text: str = "", **arguments: Any) -> TurnResult:  # type: ignore[misc]
        """`prompt`, blocking."""
        return self._wait(self.prompt, text, **arguments)

    def prompt_with_options_sync(self: Kit, text: str, options: PromptOptions) -> TurnResult:  # type: ignore[misc]
        """`prompt_with_options`, blocking."""
        return self._wait(self.prompt_with_options, text, options)

    def steer_sync(self: Kit, instruction: str, *, now: bool = False) -> TurnResult | Receipt:  # type: ignore[misc]
        """`steer`, blocking."""
        return self._wait(self.steer, instruction, now=now)

    def follow_up_sync(self: Kit, text: str = FOLLOW_UP) -> TurnResult | Receipt:  # type: ignore[misc]
        """`follow_up`, blocking."""
        return self._wait(self.follow_up, text)

    def compact_sync(self: Kit, instructions: str | None = None) -> str:  # type: ignore[misc]
        """`compact`, blocking."""
        return self._wait(self.compact, instructions)

    def abort_sync(self: Kit) -> None:  # type: ignore[misc]
        """`abort`, and wait until the turn has ended."""
        self.abort().wait()

    def clear_conversation_sync(self: Kit) -> None:  # type: ignore[misc]
        """`clear_conversation`, blocking."""
        self._wait(self.clear_conversation)

    def branch_sync(self: Kit, entry_id: str | None, *, summarise: bool = False) -> None:  # type: ignore[misc]
        """`branch`, blocking."""
        self._wait(self.branch, entry_id, summarise=summarise)

    def fork_sync(self: Kit, entry_id: str | None = None) -> Session:  # type: ignore[misc]
        """`fork`, blocking."""
        return self._wait(self.fork, entry_id)

    def resume_sync(self: Kit, session: Session | str) -> None:  # type: ignore[misc]
        """`resume`, blocking."""
        self._wait(self.resume, session)

    def apply_input_sync(self: Kit, text: str, source: str = "api") -> str | None:  # type: ignore[misc]
        """`apply_input`, blocking."""
        return self._wait(self.apply_input, text, source)

    def extract_sync(self: Kit, text: str, schema: Any, **options: Any) -> Any:  # type: ignore[misc]
        """`extract`, blocking."""
        return self._wait(self.extract, text, schema, **options)
