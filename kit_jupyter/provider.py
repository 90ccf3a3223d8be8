"""SEAM Provider: who answers a `ModelRequest` with a stream of deltas."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast, get_args, runtime_checkable

from kit_jupyter.deltas import Finished, ModelDelta
from kit_jupyter.errors import UsageError, WireError
from kit_jupyter.messages import ModelRef, ToolSpec
from kit_jupyter.prompt import PromptMessage

__all__ = [
    "ModelInfo",
    "ModelRequest",
    "Provider",
    "RetryNotice",
    "asking_cell",
    "check_provider",
    "retry_listener",
    "status_listener",
    "watched",
]


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


# ---------------------------------------------------------------- providers that others wrote


def check_provider(provider: object) -> None:
    """Refuse what cannot answer, as far as that shows without asking it.

    Raises
    ------
    UsageError
        For a class in place of its instance, a missing name or method, and a `stream` that is no async generator.
    """
    if isinstance(provider, type):
        raise UsageError(f"a provider is an instance; write {provider.__name__}() instead of {provider.__name__}")
    if isinstance(provider, str):
        raise UsageError(f"a provider is an object, got {provider!r}; a name stands first: Kit('{provider}/MODEL')")
    label = type(provider).__name__
    missing = [f"{verb}()" for verb in ("stream", "info", "close") if not callable(getattr(provider, verb, None))]
    name = getattr(provider, "name", None)
    if not isinstance(name, str) or not name or "/" in name:
        missing.insert(0, "name, a str without a slash")
    if missing:
        raise UsageError(
            f"{label} is no provider: it has no {', no '.join(missing)}; see kit_jupyter.provider.Provider"
        )
    stream: Any = getattr(provider, "stream", None)
    if inspect.iscoroutinefunction(stream):
        raise UsageError(f"{label}.stream is no async generator: it must yield deltas, and return nothing")
    if inspect.isgeneratorfunction(stream):
        raise UsageError(f"{label}.stream is no async generator: write async def stream")


def watched(provider: Provider) -> Provider:
    """A provider that others wrote, which tells by name what is wrong with it; ours as they are."""
    return provider if type(provider).__module__.startswith("kit_jupyter.") else cast(Provider, _Watched(provider))


class _Watched:
    """Hands everything through; looks at what comes."""

    def __init__(self, inner: Provider) -> None:
        self._inner = inner
        self._label = type(inner).__name__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def info(self, model_id: str) -> ModelInfo:
        found = self._inner.info(model_id)
        if not isinstance(found, ModelInfo):
            raise UsageError(f"{self._label}.info returned {_shown(found)}, not a ModelInfo")
        return found

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        stream: Any = self._inner.stream(request)
        if not (hasattr(stream, "__aiter__") and hasattr(stream, "aclose")):
            if inspect.iscoroutine(stream):
                stream.close()
            raise UsageError(f"{self._label}.stream returned {_shown(stream)}; it must be an async generator")
        has_finished = False
        async with aclosing(stream) as deltas:
            async for delta in deltas:
                if not isinstance(delta, _DELTAS):
                    example = f"TextDelta(0, {delta!r:.60})" if isinstance(delta, str) else "TextDelta(0, 'text')"
                    raise UsageError(f"{self._label}.stream yielded {_shown(delta)}; it yields deltas: {example}")
                has_finished = has_finished or isinstance(delta, Finished)
                yield delta
        if not has_finished:
            raise WireError(
                f"{self._label}.stream ended without Finished: its service's answer was cut, or the provider never "
                "yields Finished('stop') at the end of a whole one",
                provider=request.model.provider,
                model=request.model.id,
            )


_DELTAS = get_args(ModelDelta)


def _shown(value: object) -> str:
    return "None" if value is None else f"{type(value).__name__} {value!r:.60}"
