"""SEAM Provider: who answers a `ModelRequest` with a stream of deltas."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from kit_jupyter.messages import ModelDelta, ModelRef, ToolSpec
from kit_jupyter.prompt import PromptMessage

__all__ = ["ModelInfo", "ModelRequest", "Provider", "RetryNotice", "asking_cell", "retry_listener", "status_listener"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryNotice:
    """A model call failed and will be tried again after a wait.

    Parameters
    ----------
    attempt, max_attempts : int
        The attempt that failed, from 1, and how many there will be at most.
    delay_seconds : float
        How long is waited first.
    error : str
        What happened, without secrets.
    code : str
        Code of the error's class, for example ``rate_limited``.
    """

    attempt: int
    max_attempts: int
    delay_seconds: float
    error: str
    code: str


retry_listener: ContextVar[Callable[[RetryNotice], None] | None] = ContextVar("kit_retry_listener", default=None)
"""Called on the engine before each wait; set it in the task that reads the stream."""

status_listener: ContextVar[Callable[[str], None] | None] = ContextVar("kit_status_listener", default=None)
"""Told in a few words what is waited for before an answer can begin (weights that load), and ``""`` when it is over.

Called on any thread; set like `retry_listener`."""

asking_cell: ContextVar[str] = ContextVar("kit_asking_cell", default="")
"""How a person finds the cell that asks, for recordings and what is missing in them; set like `retry_listener`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What is known of a model; None where nothing is.

    Parameters
    ----------
    context_window, max_output : int or None, tokens
    takes : frozenset of str
        Media beyond text that it takes: ``image``, ``pdf``, ``audio``, ``file``; None when unknown.
    lean : bool
        A small model: keep the system prompt and tool list short.
    note : str
        One line a person should read beside its answers; empty for none.
    """

    context_window: int | None = None
    max_output: int | None = None
    takes: frozenset[str] | None = None
    lean: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """All that one model call needs; frozen, so that parallel calls never mix.

    Parameters
    ----------
    model : ModelRef
    messages : tuple of PromptMessage
        History and prompt, oldest first; each tool call is answered.
    system : str
        System prompt, sent before all messages; empty for none.
    tools : tuple of ToolSpec
    tool_choice : {"auto", "none", "required"} or a tool's name
    format : dict or None
        JSON schema that the answer must fit.
    max_tokens : int or None
        Limit of the answer.
    temperature : float or None
    thinking : {"off", "low", "medium", "high"} or None
        None leaves it to the service.
    base_url, api_key : str or None
        For this call only.
    session_id : str
        Stable within a session, for services that route by it.
    extra : dict
        Fields of the wire's request body, given as they are.
    """

    model: ModelRef
    messages: tuple[PromptMessage, ...]
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: str = "auto"
    format: Mapping[str, Any] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    stop: tuple[str, ...] = ()
    thinking: Literal["off", "low", "medium", "high"] | None = None
    base_url: str | None = None
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    session_id: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Provider(Protocol):
    """Answers model requests.

    It holds no state of a stream: two streams of one provider at the same time never meet.
    Everything runs on the engine's loop.
    """

    name: str

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        """Deltas of one answer, the last of them `Finished`.

        Closing the iterator closes the connection within half a second. It is an async generator,
        so nothing happens before the first ``anext``.

        Raises
        ------
        ProviderError
            One of its classes, also after deltas have come. A stream that ends without `Finished`
            was cut.
        """
        ...

    def info(self, model_id: str) -> ModelInfo:
        """What is known of a model, without asking anyone."""
        ...

    async def close(self) -> None:
        """Free what was opened; called once, when the Kit closes."""
        ...
