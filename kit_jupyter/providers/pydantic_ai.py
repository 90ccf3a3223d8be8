"""A bridge to the models of pydantic-ai: Bedrock, Vertex with its own login, Cohere, xAI and what else it knows.

Theory of operation
-------------------
::

    ModelRequest ──▶ its messages, settings and tools ──▶ its model ──▶ its events ──▶ deltas

pydantic-ai owns keys, addresses and sockets here, so `ModelRequest.base_url` and ``api_key`` cannot be
given for one call. What its model said is kept whole, part by part, in `Native`, and goes back as it came to
the model that said it (signatures, encrypted reasoning, parts of server tools); for any other model text
and calls are built anew and thinking is left out. An instruction inside the history is text on the user's
side in a ``<system-reminder>`` envelope, since its models differ in what they make of a system part there.

An optional extra: ``pip install 'kit-jupyter[pydantic-ai]'``. Nothing of it is imported before the first
answer. Written against its 2.x line.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

from kit_jupyter.deltas import (
    CitationDelta,
    Finished,
    ModelDelta,
    NativeDelta,
    PartAdded,
    ResponseFacts,
    TextDelta,
    ThinkingDelta,
    ToolCallDelta,
    ToolCallStart,
    UsageDelta,
)
from kit_jupyter.errors import (
    AuthFailed,
    ConnectionFailed,
    ContextOverflow,
    KitError,
    Overloaded,
    ProviderError,
    RateLimited,
    Rejected,
    UsageError,
    WireError,
)
from kit_jupyter.messages import Citation, MediaPart, Native, RefusalPart, ServerPart, TextPart, Tokens, ToolCallPart
from kit_jupyter.prompt import PromptMessage, ToolResultPart
from kit_jupyter.provider import ModelInfo, ModelRequest
from kit_jupyter.providers._errors import describe, refusal
from kit_jupyter.providers._history import CallIds, arguments_of, is_own, left_out, reminder, steps, text_of_media
from kit_jupyter.providers._json import dumps
from kit_jupyter.providers._models import info_of
from kit_jupyter.providers._schema import title_of
from kit_jupyter.providers.codec import Endpoint

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, ModelResponsePart
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings

__all__ = ["WIRE", "PydanticAIProvider", "open_model"]

WIRE = "pydantic-ai"
ANSWER_TOOL = "final_answer"

# Its error classes by name, most special first; a class its version does not have is passed over.
_ERRORS: tuple[tuple[str, type[ProviderError], str, bool], ...] = (
    ("ModelContextWindowExceededError", ContextOverflow, "shorten the history (kit.compact())", False),
    ("ModelAuthenticationError", AuthFailed, "check the key that pydantic-ai uses", False),
    ("ModelNotFoundError", Rejected, "check the model's name", False),
    ("ModelQuotaExceededError", RateLimited, "see the service's billing page", False),
    ("ModelRateLimitError", RateLimited, "wait, or ask for a higher limit", True),
    ("ModelUnavailableError", Overloaded, "try again later, or take another model", True),
    ("ModelServerError", Overloaded, "try again later, or take another model", True),
    ("ModelConnectionError", ConnectionFailed, "check the network", True),
    ("ModelRequestTimeout", ConnectionFailed, "try again, or allow more time", True),
    ("ContentFilterError", Rejected, "change the request", False),
    ("ModelAPIError", Rejected, "change the request", False),
    ("UnexpectedModelBehavior", WireError, "run it again", False),
)


def open_model(name: str) -> PydanticAIProvider:
    """The provider behind ``pydantic-ai/NAME``; NAME is pydantic-ai's own, for example ``bedrock:us.amazon.nova``."""
    return PydanticAIProvider(name)


class PydanticAIProvider:
    """A pydantic-ai model as a `Provider`.

    Parameters
    ----------
    model : pydantic_ai.models.Model or str
        A model made by the caller answers every request; a name is looked up in pydantic-ai, per request by
        `ModelRef.id`.
    name : str
        Before the slash in ``provider/model``.

    Raises
    ------
    UsageError
        When pydantic-ai or what its model needs is not installed, or a setting of the request cannot be passed.

    Notes
    -----
    `ModelRequest.extra` sets fields of its ``ModelSettings``, those of a single vendor included.

    Examples
    --------
    >>> provider = PydanticAIProvider("bedrock:us.amazon.nova-lite-v1:0")
    >>> provider.name
    'pydantic-ai'
    """

    def __init__(self, model: Model | str, *, name: str = "pydantic-ai") -> None:
        self.name = name
        self._model = model
        self._found: dict[str, Model] = {}

    def __repr__(self) -> str:
        shown = self._model if isinstance(self._model, str) else type(self._model).__name__
        return f"PydanticAIProvider({shown!r})"

    def info(self, model_id: str) -> ModelInfo:
        """What is known of a model, without asking anyone."""
        return info_of(model_id.rpartition(":")[2] if "/" not in model_id else model_id)

    async def close(self) -> None:
        """Nothing to free: pydantic-ai shares its clients by itself."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelDelta]:
        """Deltas of one answer, the last of them `Finished`; see `provider.Provider.stream`."""
        if request.base_url or request.api_key:
            what = "base_url" if request.base_url else "api_key"
            raise UsageError(
                f"{self.name} takes {what} from pydantic-ai's own settings; make the model yourself and give "
                f"PydanticAIProvider(model)"
            )
        scope = f"{self.name}/{request.model.id}"
        try:
            model = self._model_for(request)
            from pydantic_ai.direct import model_request_stream

            messages = to_messages(request, scope)
            parameters = _parameters(request, model)
            reader = _Reader(request, scope, {tool.name for tool in parameters.output_tools})
            async with model_request_stream(
                model, messages, model_settings=_settings(request), model_request_parameters=parameters
            ) as stream:
                async for event in stream:
                    for delta in reader.event(event):
                        yield delta
                for delta in reader.end(stream.get(), stream.usage):
                    yield delta
        except KitError:
            raise
        except Exception as exc:
            raise self._translate(exc, request) from exc

    def _model_for(self, request: ModelRequest) -> Model:
        if not isinstance(self._model, str):
            return self._model
        found = self._found.get(request.model.id)
        if found is None:
            try:
                from pydantic_ai.models import infer_model
            except ImportError as exc:
                raise UsageError("pydantic-ai is not installed; pip install 'kit-jupyter[pydantic-ai]'") from exc
            try:
                found = self._found[request.model.id] = infer_model(request.model.id)
            except ImportError as exc:
                raise UsageError(f"pydantic-ai needs more for {request.model.id!r}: {exc}") from exc
        return found

    def _translate(self, exc: Exception, request: ModelRequest) -> KitError:
        """Our error for one of pydantic-ai's or of the libraries under it."""
        from pydantic_ai import exceptions

        endpoint = Endpoint(name=self.name, base_url="")
        if isinstance(exc, exceptions.UserError | NotImplementedError):
            return UsageError(f"{self.name}/{request.model.id}: {exc}")
        status = getattr(exc, "status_code", None)
        body = getattr(exc, "body", None)
        if isinstance(status, int) and status >= 400:
            headers = getattr(exc, "headers", None) or {}
            return refusal(
                status, headers, body if isinstance(body, dict | list | str) else str(exc), request, endpoint
            )
        is_ours = isinstance(exc, ValueError | TypeError | KeyError | AssertionError)
        cls, step, retryable = next(
            ((entry[1], entry[2], entry[3]) for entry in _ERRORS if isinstance(exc, getattr(exceptions, entry[0], ()))),
            (WireError, "please report it, with kit.last_request", False)
            if is_ours
            else (ConnectionFailed, "run it again", True),
        )
        wait = getattr(exc, "retry_after", None)
        error = cls(
            describe(endpoint, request, str(exc) or type(exc).__name__, step=step, wait=wait),
            provider=self.name,
            model=request.model.id,
            retry_after_seconds=wait,
        )
        if error.retryable != retryable:
            error.retryable = retryable
        return error


# ---------------------------------------------------------------- what is asked


def to_messages(request: ModelRequest, scope: str) -> list[ModelMessage]:
    """The history as pydantic-ai's messages; requests and answers take turns.

    Parameters
    ----------
    scope : str
        ``provider/model`` that state in the history must come from to go back.
    """
    from pydantic_ai.messages import ModelRequest as Asked
    from pydantic_ai.messages import ModelResponse, SystemPromptPart

    out: list[ModelMessage] = []
    ids = CallIds(r"[A-Za-z0-9_-]{1,64}")
    opening: list[Any] = [SystemPromptPart(request.system)] if request.system.strip() else []
    for step in steps(request.messages):
        ids.new_step()
        answers: list[Any] = []
        facts: dict[str, Any] = {}
        for message in step.answers:
            answers += _answer(message, ids, scope, facts)
        if answers:
            if not out:
                out.append(Asked([*opening, _user("[the conversation goes on]")]))
                opening = []
            out.append(ModelResponse(answers, **facts))
        asked: list[Any] = [*opening]
        for message in step.results:
            asked += _results(message, ids)
        for message in step.said:
            content = _content(message)
            if content:
                asked.append(_user(content))
        if len(asked) > len(opening):
            out.append(Asked(asked))
            opening = []
    if not out:
        raise UsageError("nothing to send: the request holds no message with content")
    return out


def _user(content: Any) -> Any:
    from pydantic_ai.messages import UserPromptPart

    return UserPromptPart(content[0] if isinstance(content, list) and content == [str(content[0])] else content)


def _content(message: PromptMessage) -> list[Any]:
    if message.role == "system":
        text = reminder(message)
        return [text] if text else []
    out: list[Any] = []
    for part in message.parts:
        if isinstance(part, MediaPart):
            out.append(_media(part))
        elif isinstance(part, TextPart) and part.text.strip():
            out.append(part.text)
    return out


def _media(part: MediaPart) -> Any:
    from pydantic_ai.messages import BinaryContent

    text = text_of_media(part)
    return BinaryContent(data=part.raw, media_type=part.media_type) if text is None else text


def _results(message: PromptMessage, ids: CallIds) -> Iterator[Any]:
    from pydantic_ai.messages import ToolReturnPart

    for part in message.parts:
        if isinstance(part, ToolResultPart):
            content: list[Any] = []
            for inner in part.parts:
                if isinstance(inner, MediaPart):
                    content.append(_media(inner))
                elif isinstance(inner, TextPart | RefusalPart):
                    content.append(inner.text)
            is_text = all(isinstance(item, str) for item in content)
            yield ToolReturnPart(
                tool_name=part.name,
                content="\n".join(content) if is_text else content,
                tool_call_id=ids.of_result(part.call_id),
                outcome="failed" if part.is_error else "success",
            )


def _answer(message: PromptMessage, ids: CallIds, scope: str, facts: dict[str, Any]) -> Iterator[Any]:
    from pydantic_ai import messages as theirs

    for part in message.parts:
        native = getattr(part, "native", None)
        if native is not None and is_own(native, WIRE, scope):
            kept = _parts_adapter().validate_python(native.data["part"])
            facts.update(native.data.get("response") or {})
            if isinstance(part, ToolCallPart):
                kept.tool_call_id = ids.of_call(part.call_id)
            yield kept
            continue
        match part:
            case TextPart(text=text) | RefusalPart(text=text):
                if text.strip():
                    yield theirs.TextPart(text)
            case ToolCallPart(call_id=call_id, name=name):
                yield theirs.ToolCallPart(name, arguments_of(part, dumps).decode(), ids.of_call(call_id))
            case MediaPart():
                yield theirs.TextPart(left_out(part))


def _parts_adapter() -> Any:
    global _adapter
    if _adapter is None:
        from pydantic import TypeAdapter
        from pydantic_ai.messages import ModelResponsePart

        _adapter = TypeAdapter(ModelResponsePart)
    return _adapter


_adapter: Any = None


def _parameters(request: ModelRequest, model: Model) -> ModelRequestParameters:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.output import OutputObjectDefinition
    from pydantic_ai.tools import ToolDefinition

    tools = [
        ToolDefinition(
            name=spec.name,
            description=spec.description,
            parameters_json_schema=dict(spec.schema) or {"type": "object", "properties": {}},
            strict=spec.strict or None,
        )
        for spec in request.tools
    ]
    if request.format is None:
        return ModelRequestParameters(function_tools=tools)
    schema = dict(request.format)
    if model.profile.get("supports_json_schema_output"):
        return ModelRequestParameters(
            function_tools=tools,
            output_mode="native",
            output_object=OutputObjectDefinition(json_schema=schema, name=title_of(schema)),
        )
    name = ANSWER_TOOL
    while any(spec.name == name for spec in request.tools):
        name += "_"
    output = ToolDefinition(
        name=name,
        description="Give the final answer to the user, once, when all else is done.",
        parameters_json_schema=schema,
        kind="output",
    )
    return ModelRequestParameters(
        function_tools=tools, output_mode="tool", output_tools=[output], allow_text_output=False
    )


def _settings(request: ModelRequest) -> ModelSettings:
    given: dict[str, Any] = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "stop_sequences": list(request.stop) or None,
        "thinking": False if request.thinking == "off" else request.thinking,
        "extra_headers": dict(request.headers) or None,
    }
    if request.tool_choice in ("none", "required"):
        given["tool_choice"] = request.tool_choice
    elif request.tool_choice != "auto":
        given["tool_choice"] = [request.tool_choice]
    settings: ModelSettings = {}  # type: ignore[typeddict-item,unused-ignore]
    settings.update({key: value for key, value in given.items() if value is not None})  # type: ignore[typeddict-item]
    settings.update(dict(request.extra))  # type: ignore[typeddict-item]
    return settings


# ---------------------------------------------------------------- what comes back


class _Reader:
    """Events of one answer to deltas; a part's index is theirs."""

    def __init__(self, request: ModelRequest, scope: str, output_tools: set[str]) -> None:
        self._scope = scope
        self._output_tools = output_tools
        self._answers: set[int] = set()  # indices whose arguments are the answer's text
        self._objects: dict[int, dict[str, Any]] = {}  # arguments that come as objects, told at the end
        self._told: set[int] = set()  # calls whose arguments were streamed
        self._called = False

    def event(self, event: Any) -> Iterator[ModelDelta]:
        match event.event_kind:
            case "part_start":
                yield from self._start(event.index, event.part)
            case "part_delta":
                yield from self._delta(event.index, event.delta)

    def _start(self, index: int, part: Any) -> Iterator[ModelDelta]:
        match part.part_kind:
            case "text":
                yield TextDelta(index, part.content)
            case "thinking":
                yield ThinkingDelta(index, part.content)
            case "tool-call":
                if part.tool_name in self._output_tools:
                    self._answers.add(index)
                    yield TextDelta(index, "")
                else:
                    self._called = True
                    yield ToolCallStart(index, part.tool_call_id, part.tool_name)
                yield from self._arguments(index, part.args)
            case "file":
                yield PartAdded(index, MediaPart.of_bytes(part.content.data, part.content.media_type))

    def _delta(self, index: int, delta: Any) -> Iterator[ModelDelta]:
        match delta.part_delta_kind:
            case "text":
                if delta.content_delta:
                    yield TextDelta(index, delta.content_delta)
            case "thinking":
                if delta.content_delta:
                    yield ThinkingDelta(index, delta.content_delta)
            case "tool_call":
                yield from self._arguments(index, delta.args_delta)

    def _arguments(self, index: int, args: Any) -> Iterator[ModelDelta]:
        if isinstance(args, dict):
            self._objects.setdefault(index, {}).update(args)
        elif args:
            self._told.add(index)
            yield TextDelta(index, args) if index in self._answers else ToolCallDelta(index, args)

    def end(self, response: ModelResponse, usage: Any) -> Iterator[ModelDelta]:
        """What is known at the end only: arguments that came as objects, state, usage, and why it stopped."""
        for index, args in self._objects.items():
            if index not in self._told and (args or index in self._answers):
                yield from self._arguments(index, json.dumps(args, ensure_ascii=False))
        facts = {key: getattr(response, key, None) for key in ("provider_name", "provider_url", "canonical_system")}
        kept = {key: value for key, value in facts.items() if value is not None}
        for index, part in enumerate(response.parts):
            yield from self._keep(index, part, kept)
        yield ResponseFacts(response.provider_response_id, response.model_name)
        yield UsageDelta(_tokens(usage() if callable(usage) else usage))
        details = response.provider_details or {}
        raw = details.get("finish_reason") or response.finish_reason
        yield Finished(self._reason(response), None if raw is None else str(raw))

    def _keep(self, index: int, part: ModelResponsePart, facts: dict[str, Any]) -> Iterator[ModelDelta]:
        if index in self._answers:
            return  # shown as text, and so sent back as text
        stored = _parts_adapter().dump_python(part, mode="json", exclude_none=True)
        native = Native(WIRE, {"from": self._scope, "part": stored, **({"response": facts} if facts else {})})
        for cited in getattr(part, "citations", None) or ():
            yield from (CitationDelta(index, citation) for citation in _citations(cited))
        match part.part_kind:
            case "text" | "thinking" | "tool-call":
                if len(stored) > _PLAIN.get(part.part_kind, 0) or part.part_kind == "thinking":
                    yield NativeDelta(index, native)
            case "builtin-tool-call" | "native-tool-call":
                said = part.args if isinstance(part.args, str) else json.dumps(part.args, ensure_ascii=False)
                yield PartAdded(index, ServerPart("call", part.tool_name, native, said or ""))
            case "builtin-tool-return" | "native-tool-return":
                said = part.content if isinstance(part.content, str) else ""
                yield PartAdded(index, ServerPart("result", part.tool_name, native, said))
            case "file":
                media = MediaPart.of_bytes(part.content.data, part.content.media_type)
                yield PartAdded(index, MediaPart(media.media_type, media.data, native=native))
            case kind:
                yield PartAdded(index, ServerPart("block", str(kind), native))

    def _reason(self, response: ModelResponse) -> str:
        if getattr(response, "state", "complete") == "suspended":
            return "pause"
        match response.finish_reason:
            case "length" | "content_filter" | "error":
                return response.finish_reason
        return "tool_calls" if self._called else "stop"


# Keys that a part has when there is no state in it: kind and content; kind, name, arguments and id.
_PLAIN = {"text": 2, "tool-call": 4}


def _citations(cited: Any) -> Iterator[Citation]:
    anchor = getattr(cited, "anchor", None)
    for source in cited.sources:
        yield Citation(
            url=getattr(source, "url", ""),
            title=source.title or getattr(source, "document_id", None) or "",
            text="\n".join(source.excerpts),
            start=getattr(anchor, "start", None),
            end=getattr(anchor, "end", None),
        )


def _tokens(usage: Any) -> Tokens:
    reasoning = getattr(usage, "output_reasoning_tokens", 0) or (usage.details or {}).get("reasoning_tokens")
    return Tokens(
        input=usage.input_tokens,
        output=usage.output_tokens,
        reasoning=reasoning or None,
        cache_read=usage.cache_read_tokens or None,
        cache_write=usage.cache_write_tokens or None,
    )
