"""The OpenAI Responses wire: what is sent, what comes back, what goes back unchanged."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings

from kit_jupyter.errors import Overloaded, RateLimited, UsageError, WireError
from kit_jupyter.messages import (
    CitationDelta,
    Finished,
    MediaPart,
    MessageBuilder,
    Native,
    RefusalPart,
    ServerPart,
    TextDelta,
    TextPart,
    ThinkingPart,
    Tokens,
    ToolCallPart,
    ToolSpec,
)
from kit_jupyter.prompt import PromptMessage
from kit_jupyter.providers.codec import Endpoint, ServerEvent
from kit_jupyter.providers.openai_responses import WIRE, OpenAIResponsesCodec

from .histories import (
    PDF,
    PNG,
    POINT,
    WEATHER,
    answer,
    assert_a_chunk_costs_few_calls,
    assert_a_step_costs_what_is_new,
    assert_each_body_begins_the_next,
    call,
    deltas_of,
    read,
    request,
    result,
    said,
    sse,
    talks,
)
from .sdk_shapes import misfits
from .wire_cases import ROOT, WireCase, all_cases, decode, endpoint_of, request_of, whole

MODEL = "openai/gpt-5.4"
ENDPOINT = Endpoint(name="openai", base_url="https://api.openai.com/v1", api_key="sk-planted")
CASES = [case for case in all_cases(WIRE) if case.load("expect")["outcome"] == "message"]
needs_cases = pytest.mark.skipif(not CASES, reason=f"no recorded cases at {ROOT}; set KIT_WIRE_CASES")


def body_of(
    *messages: PromptMessage, model: str = MODEL, endpoint: Endpoint = ENDPOINT, **facts: Any
) -> dict[str, Any]:
    sent = OpenAIResponsesCodec().encode(request(*messages, model=model, **facts), endpoint)
    value: dict[str, Any] = json.loads(sent.body)
    return value


def input_of(*messages: PromptMessage, **facts: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body_of(*messages, **facts)["input"]
    return found


def reasoning(item_id: str = "rs_1", **facts: Any) -> ThinkingPart:
    item = {"type": "reasoning", "id": item_id, "summary": [], "encrypted_content": "enc", **facts}
    return ThinkingPart("", Native(WIRE, {"from": MODEL, "item": item}))


def own(kind: str) -> Native:
    if kind == "thinking":
        item: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "enc"}
    else:
        action = {"type": "search", "query": "q"}
        item = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": action}
    return Native(WIRE, {"from": MODEL, "item": item})


def canonical(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


# ---------------------------------------------------------------- the request


def test_url_headers_and_key() -> None:
    """Bearer token in a header, nothing secret in URL, body or repr."""
    sent = OpenAIResponsesCodec().encode(request(said("hi"), model=MODEL), ENDPOINT)

    assert sent.url == "https://api.openai.com/v1/responses"
    assert sent.headers["authorization"] == "Bearer sk-planted"
    assert "planted" not in sent.url + repr(sent) + sent.body.decode()


def test_azure_and_gateways() -> None:
    """The key in `api-key`, a query, own headers and a full path are honoured (U74)."""
    azure = Endpoint(
        name="azure",
        base_url="https://r.openai.azure.com/openai/v1/responses",
        api_key="k",
        headers={"X-Team": "a"},
        query={"api-version": "preview"},
        quirks=frozenset({"api_key_header"}),
    )

    sent = OpenAIResponsesCodec().encode(request(said("hi"), model="azure/gpt-5"), azure)

    assert sent.url == "https://r.openai.azure.com/openai/v1/responses?api-version=preview"
    assert sent.headers["api-key"] == "k"
    assert "authorization" not in sent.headers
    assert sent.headers["X-Team"] == "a"


def test_all_that_a_request_can_say() -> None:
    """Every request is stateless; system, tools, choice and limits are in their places."""
    body = body_of(
        said("hi"),
        system="Be short.",
        tools=(WEATHER,),
        tool_choice="weather",
        max_tokens=100,
        thinking="low",
        session_id="s1",
    )

    assert (body["store"], body["stream"]) == (False, True)
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["instructions"] == "Be short."
    assert body["tools"] == [
        {
            "type": "function",
            "name": "weather",
            "description": "Weather of a city",
            "parameters": dict(WEATHER.schema),
            "strict": False,
        }
    ]
    assert body["tool_choice"] == {"type": "function", "name": "weather"}
    assert body["max_output_tokens"] == 100
    assert body["reasoning"] == {"effort": "low", "summary": "auto"}
    assert body["prompt_cache_key"] == "s1"


@pytest.mark.parametrize(
    ("model", "effort"), [("gpt-5.4", "none"), ("gpt-5", "minimal"), ("gpt-5-codex", "low"), ("o4-mini", "low")]
)
def test_as_little_thinking_as_the_model_can(model: str, effort: str) -> None:
    """`off` is the least that each generation takes."""
    assert body_of(said("hi"), model=f"openai/{model}", thinking="off")["reasoning"] == {"effort": effort}


def test_models_that_do_not_reason_are_not_asked_to() -> None:
    """gpt-4o refuses reasoning settings and encrypted reasoning; reasoning models refuse a temperature."""
    older = body_of(said("hi"), model="openai/gpt-4o", thinking="high", temperature=0.2)
    newer = body_of(said("hi"), temperature=0.2)

    assert "include" not in older
    assert "reasoning" not in older
    assert older["temperature"] == 0.2
    assert "temperature" not in newer


def test_structured_output_is_strict_where_the_schema_allows() -> None:
    """A schema that strict mode would refuse is sent without it."""
    strict = body_of(said("hi"), format=POINT)["text"]["format"]
    loose = body_of(said("hi"), format={"type": "object", "properties": {"a": {"type": "string"}}})["text"]["format"]

    assert strict == {"type": "json_schema", "name": "Point", "schema": POINT, "strict": True}
    assert (loose["name"], loose["strict"]) == ("answer", False)


def test_strict_tools_are_strict_where_the_schema_allows() -> None:
    """Asked of an open schema, strict mode would refuse the request."""
    open_tool = ToolSpec(name="a", description="", schema=WEATHER.schema, strict=True)
    closed = ToolSpec(name="b", description="", schema=POINT, strict=True)

    assert [tool["strict"] for tool in body_of(said("hi"), tools=(open_tool, closed))["tools"]] == [False, True]


def test_stop_sequences_are_refused_here() -> None:
    """The wire has none: say so instead of answering differently."""
    with pytest.raises(UsageError, match="no stop sequences"):
        body_of(said("hi"), stop=("END",))


def test_extras_are_added_or_replace() -> None:
    """Server tools and includes are added to ours, other fields replaced."""
    body = body_of(
        said("hi"),
        tools=(WEATHER,),
        extra={"tools": [{"type": "web_search"}], "include": ["web_search_call.action.sources"], "store": True},
    )

    assert [tool["type"] for tool in body["tools"]] == ["function", "web_search"]
    assert body["include"] == ["reasoning.encrypted_content", "web_search_call.action.sources"]
    assert body["store"] is True


def test_an_empty_request_is_refused_here() -> None:
    """Unless the service knows the rest."""
    with pytest.raises(UsageError, match="no message with content"):
        body_of()
    assert body_of(extra={"previous_response_id": "resp_1"})["input"] == []


# ---------------------------------------------------------------- the history


def test_a_history_in_items() -> None:
    """Messages, reasoning, calls and outputs, in their order; results directly behind their calls."""
    sent = input_of(
        said("a"),
        answer(reasoning(), "let me see", call("c1"), call("c2")),
        result("c2", "two"),
        result("c1", "one"),
        said("steer", role="system"),
    )

    kinds = [item.get("type") or item["role"] for item in sent]
    assert kinds == [
        "user",
        "reasoning",
        "assistant",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "system",
    ]
    assert [item["output"] for item in sent[5:7]] == ["one", "two"]
    assert all("id" not in item for item in sent if item.get("type") != "reasoning")


def test_reasoning_goes_back_whole_to_its_model_only() -> None:
    """Ciphertext and raw text go back; what the service did not keep, and thinking of others, does not."""
    raw = reasoning("rs_2", encrypted_content=None, content=[{"type": "reasoning_text", "text": "raw"}])
    lost = reasoning("rs_3", encrypted_content=None)
    other = ThinkingPart("x", Native(WIRE, {"from": "openai/o3", "item": {"type": "reasoning", "id": "rs_4"}}))
    foreign = ThinkingPart("y", Native("anthropic-messages", {"from": MODEL, "signature": "s"}))

    sent = input_of(said("a"), answer(reasoning(), raw, lost, other, foreign, "so"), said("b"))

    assert [item["id"] for item in sent if item.get("type") == "reasoning"] == ["rs_1", "rs_2"]
    assert "foreign" not in json.dumps(sent)


def test_reasoning_without_what_it_led_to_is_left_out() -> None:
    """Stopped while it reasoned, the next request would be refused (GOTCHAS 60, U41)."""
    sent = input_of(said("a"), answer("x", reasoning()), said("b"))

    assert [item.get("type") or item["role"] for item in sent] == ["user", "assistant", "user"]


def test_server_items_do_not_go_back_without_the_reasoning_before_them() -> None:
    """An item with an id makes the service ask for the reasoning item that it dropped."""
    search = ServerPart("call", "web_search_call", own("server"))

    kept = input_of(said("a"), answer(reasoning(), search, "found"), said("b"))
    dropped = input_of(said("a"), answer(reasoning("rs_9", encrypted_content=None), search, "found"), said("b"))

    assert [item.get("type") for item in kept] == [None, "reasoning", "web_search_call", None, None]
    assert [item.get("type") for item in dropped] == [None, None, None]


def test_like_ids_are_told_apart() -> None:
    """Bedrock's call_0 in every answer (GOTCHAS 59)."""
    sent = input_of(said("a"), answer(call("call_0")), result("call_0"), answer(call("call_0")), result("call_0"))

    ids = [item["call_id"] for item in sent if "call_id" in item]
    assert ids == ["call_0", "call_0", "call_0-2", "call_0-2"]


def test_arguments_cut_off_go_back_wrapped_and_whole_ones_as_they_came() -> None:
    """Valid arguments are the very text, others an object that shows them (U41)."""
    sent = input_of(
        said("a"), answer(call("c1", arguments='{"n":  1e2}'), call("c2", arguments='{"n')), result("c1"), result("c2")
    )

    assert [item["arguments"] for item in sent[1:3]] == ['{"n":  1e2}', '{"INVALID_JSON":"{\\"n"}']


def test_custom_tool_calls_are_answered_in_their_own_form() -> None:
    """A free-form call is read as a call with one text, and goes back as it was."""
    item = {"type": "custom_tool_call", "id": "ctc", "call_id": "c1", "name": "math", "input": "4 + 4"}
    asked = request(said("q"), model=MODEL)
    codec = OpenAIResponsesCodec()
    builder = MessageBuilder()
    for delta in deltas_of(
        codec, asked, ENDPOINT, json.dumps({"id": "r", "status": "completed", "output": [item]}).encode()
    ):
        builder.feed(delta)

    (part,) = builder.parts
    sent = input_of(said("q"), PromptMessage("assistant", builder.parts), result("c1", "8", name="math"))
    elsewhere = input_of(
        said("q"),
        PromptMessage("assistant", builder.parts),
        result("c1", "8", name="math"),
        endpoint=Endpoint(name="xai", base_url="https://x.test/v1"),
    )

    assert isinstance(part, ToolCallPart)
    assert json.loads(part.arguments) == {"input": "4 + 4"}
    assert sent[1:] == [
        {"type": "custom_tool_call", "call_id": "c1", "name": "math", "input": "4 + 4"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "8"},
    ]
    assert [item["type"] for item in elsewhere[1:]] == ["function_call", "function_call_output"]


def test_phases_refusals_and_media_of_other_models() -> None:
    """Progress and final answer stay two messages; a refusal and foreign media become text."""
    commentary = TextPart("looking", native=Native(WIRE, {"from": "openai", "phase": "commentary"}))
    final = TextPart("done", native=Native(WIRE, {"from": "openai", "phase": "final_answer"}))

    sent = input_of(
        said("a"), answer(commentary, final), said("b"), answer(RefusalPart("no"), MediaPart("image/png", PNG))
    )

    assert sent[1:3] == [
        {"role": "assistant", "content": "looking", "phase": "commentary"},
        {"role": "assistant", "content": "done", "phase": "final_answer"},
    ]
    assert sent[4]["content"].startswith("no[image/png: left out")
    assert PNG not in json.dumps(sent)


# ---------------------------------------------------------------- media


def test_images_pdf_and_text_files() -> None:
    """Each in the form that the wire has for it."""
    sent = input_of(
        said(
            "look",
            MediaPart("image/png", PNG),
            MediaPart("application/pdf", PDF),
            MediaPart.of_bytes(b"x,y", "text/csv", "t.csv"),
        )
    )

    assert sent[0]["content"][1:] == [
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}", "detail": "auto"},
        {"type": "input_file", "filename": "document.pdf", "file_data": f"data:application/pdf;base64,{PDF}"},
        {"type": "input_text", "text": "t.csv:\nx,y"},
    ]


@pytest.mark.parametrize("kind", ["audio/wav", "video/mp4", "application/zip"])
def test_media_it_cannot_carry_are_named(kind: str) -> None:
    """UsageError with part, wire and message; never base64 as text."""
    with pytest.raises(UsageError, match=rf"{WIRE} cannot carry the {kind} part of message msg_"):
        body_of(said("hear", MediaPart(kind, PNG)))


def test_media_in_results() -> None:
    """Images stand in an output; for what it cannot show, the model is told."""
    sent = input_of(
        said("a"), answer(call()), result("call_1", "plot:", MediaPart("image/png", PNG), MediaPart("audio/wav", PNG))
    )

    output = sent[-1]["output"]
    assert [block["type"] for block in output] == ["input_text", "input_image", "input_text"]
    assert output[2]["text"].startswith("[audio/wav: left out")


# ---------------------------------------------------------------- laws


def history_bytes(body: bytes) -> bytes:
    start = body.index(b'"input":[') + len(b'"input":[')
    assert body.endswith(b"]}")
    return body[start:-2]


@settings(max_examples=60, deadline=None)
@given(talks(own))
def test_the_bytes_of_a_history_are_a_prefix_of_the_next(talk: list[tuple[PromptMessage, ...]]) -> None:
    """The prefix cache law; and what is kept never changes what is sent."""
    assert_each_body_begins_the_next(OpenAIResponsesCodec, ENDPOINT, MODEL, talk, history_bytes)


@settings(max_examples=40, deadline=None)
@given(talks(own))
def test_every_history_fits_the_sdk(talk: list[tuple[PromptMessage, ...]]) -> None:
    """Whatever a talk holds, the official SDK's types take it, and each call has its output (U36, U41)."""
    params = pytest.importorskip("openai.types.responses.response_create_params")

    body = body_of(*talk[-1], system="S", tools=(WEATHER,))

    assert misfits(body, params.ResponseCreateParamsStreaming) == []
    assert "SECRET" not in json.dumps(body)
    calls = [item["call_id"] for item in body["input"] if item.get("type") == "function_call"]
    outputs = [item["call_id"] for item in body["input"] if item.get("type") == "function_call_output"]
    assert calls == outputs
    assert len(set(calls)) == len(calls)
    for here, after in itertools.pairwise([*body["input"], {"role": "user"}]):
        assert not (here.get("type") == "reasoning" and after.get("role") == "user")


@pytest.mark.parametrize("model", ["gpt-5.4", "gpt-4o", "o4-mini"])
def test_settings_fit_the_sdk(model: str) -> None:
    """All settings together are what the official SDK's types allow."""
    params = pytest.importorskip("openai.types.responses.response_create_params")

    body = body_of(
        said("a", MediaPart("image/png", PNG), MediaPart("application/pdf", PDF, "d.pdf")),
        model=f"openai/{model}",
        system="S",
        tools=(WEATHER,),
        tool_choice="required",
        format=POINT,
        thinking="high",
        temperature=0.3,
        max_tokens=900,
        session_id="abc",
    )

    assert misfits(body, params.ResponseCreateParamsStreaming) == []


def test_a_new_step_costs_what_is_new() -> None:
    """Python calls per request do not grow with the history (speed row 6)."""
    assert_a_step_costs_what_is_new(OpenAIResponsesCodec(), ENDPOINT, MODEL)


# ---------------------------------------------------------------- the answer


@needs_cases
@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_answer_goes_back_unchanged(case: WireCase) -> None:
    """Encrypted reasoning and server items of each recorded answer are sent back as they came, in order."""
    got = decode(case, whole(case.body))
    expect = case.load("expect")
    back = PromptMessage("assistant", got.parts, message_id="m")
    # The last item may be reasoning that a limit cut off; a user's word follows in any case.
    sent = OpenAIResponsesCodec().encode(
        request(said("q"), back, said("go on"), model=str(request_of(case).model)), endpoint_of(case)
    )

    items = json.loads(sent.body)["input"][1:-1]
    raw = [canonical(item) for item in items]
    parts = list(expect["parts"])
    while parts and parts[-1]["type"] == "thinking":
        parts.pop()
    kept = [
        p
        for p in parts
        if "raw_sha256" in p and (p["type"] != "thinking" or p.get("signature") or p["channel"] == "content")
    ]
    if all(p.get("signature") or p["channel"] == "content" for p in parts if p["type"] == "thinking"):
        assert [p["raw_sha256"] for p in kept if p["raw_sha256"] in raw] == [p["raw_sha256"] for p in kept]
    else:  # reasoning that the service kept for itself: it and the server items that rest on it stay away
        assert not any(item.get("type") == "reasoning" and not item.get("encrypted_content") for item in items)
    calls = [item for item in items if item.get("type") == "function_call"]
    assert [item["call_id"] for item in calls] == [c["id"] for c in expect["tool_calls"]]
    assert [item.get("namespace") for item in calls] == [c.get("namespace") for c in expect["tool_calls"]]
    phases = [item["phase"] for item in items if "phase" in item]
    assert phases == [p["phase"] for p in parts if p.get("phase") and p.get("text")]


@needs_cases
def test_four_turns_of_interleaved_reasoning_are_what_was_recorded() -> None:
    """Each decoded answer with its results, encoded, is the input of the next recorded request (GOTCHAS 61)."""
    names = [f"json-interleaved-reasoning-{number}" for number in range(1, 5)]
    cases = [WireCase(WIRE, name, ROOT / WIRE / name) for name in names]
    history = [said(cases[0].load("request")["body"]["input"][0]["content"])]

    for case, following in itertools.pairwise(cases):
        recorded = following.load("request")["body"]["input"]
        history.append(PromptMessage("assistant", decode(case, whole(case.body)).parts, message_id=case.name))
        output = recorded[-1]
        history.append(result(output["call_id"], output["output"]))
        sent = OpenAIResponsesCodec().encode(request(*history, model=str(request_of(case).model)), endpoint_of(case))

        assert _plain(json.loads(sent.body)["input"]) == _plain(recorded)


@needs_cases
def test_a_second_turn_after_a_streamed_call_is_what_was_recorded() -> None:
    """The same for a stream."""
    case = WireCase(WIRE, "chain-tool-turn1", ROOT / WIRE / "chain-tool-turn1")
    recorded = WireCase(WIRE, "chain-tool-turn2", ROOT / WIRE / "chain-tool-turn2").load("request")["body"]["input"]
    got = decode(case, whole(case.body))

    sent = OpenAIResponsesCodec().encode(
        request(
            said(recorded[0]["content"]),
            PromptMessage("assistant", got.parts),
            result(recorded[-1]["call_id"], recorded[-1]["output"]),
            model=str(request_of(case).model),
        ),
        endpoint_of(case),
    )

    # That client left the reasoning out; the service takes both.
    ours = [item for item in json.loads(sent.body)["input"] if item.get("type") != "reasoning"]
    assert _plain(ours) == _plain(recorded)


def _plain(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Items without what is a matter of taste: text as string or list, spaces in arguments."""
    out = []
    for item in items:
        made = dict(item)
        if isinstance(made.get("content"), list) and made.get("role"):
            made["content"] = "".join(block["text"] for block in made["content"])
        if "arguments" in made:
            made["arguments"] = json.loads(made["arguments"])
        out.append(made)
    return out


CREATED = {"type": "response.created", "response": {"id": "r", "model": "m"}}
ADDED = {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "content": []}}
HELLO = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": "hé"}


def built(*events: Any) -> MessageBuilder:
    builder = MessageBuilder()
    for delta in deltas_of(OpenAIResponsesCodec(), request(said("q"), model=MODEL), ENDPOINT, sse(*events)):
        builder.feed(delta)
    return builder


def completed(*output: Any, status: str = "completed", **facts: Any) -> dict[str, Any]:
    response = {"id": "r", "model": "m", "status": status, "output": list(output), **facts}
    return {"type": f"response.{status}", "response": response}


def test_what_was_not_streamed_is_taken_from_the_end() -> None:
    """A server that streams no deltas, or only the final response, is read as well."""
    item = {"type": "message", "content": [{"type": "output_text", "text": "all", "annotations": []}]}
    function = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    thought = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": t} for t in ("a", "b")]}

    only_done = built({"type": "response.output_item.done", "output_index": 0, "item": item}, completed())
    only_final = built(completed(thought, item, function))

    assert only_done.text == "all"
    assert [type(part).__name__ for part in only_final.parts] == ["ThinkingPart", "TextPart", "ToolCallPart"]
    assert only_final.parts[0].text == "a\n\nb"  # type: ignore[union-attr]
    assert only_final.finished == Finished("tool_calls", "completed")


def test_deltas_without_their_item_are_read() -> None:
    """A stream that begins in the middle loses no text."""
    assert built(HELLO, HELLO, completed()).text == "héhé"


def test_nothing_is_said_twice() -> None:
    """Streamed text, its end and the final response tell the same once."""
    item = {"type": "message", "content": [{"type": "output_text", "text": "hé"}]}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}

    assert built(CREATED, ADDED, HELLO, done, completed(item)).text == "hé"


def test_reasoning_is_told_from_one_channel() -> None:
    """Raw reasoning and its summary say the same; parts of a summary are paragraphs."""

    def delta(kind: str, piece: int, text: str) -> dict[str, Any]:
        index = "summary_index" if "summary" in kind else "content_index"
        return {"type": f"response.{kind}.delta", "output_index": 0, index: piece, "delta": text}

    builder = built(
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "summary": []}},
        delta("reasoning_summary_text", 0, "first"),
        delta("reasoning_text", 0, "raw"),
        delta("reasoning_summary_text", 1, "sec"),
        delta("reasoning_summary_text", 1, "ond"),
        completed(),
    )

    assert [part.text for part in builder.parts if isinstance(part, ThinkingPart)] == ["first\n\nsecond"]


@pytest.mark.parametrize(
    ("status", "facts", "finished"),
    [
        ("incomplete", {"incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ("incomplete", {"incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ("incomplete", {}, "other"),
        ("cancelled", {}, "aborted"),
    ],
)
def test_why_it_stopped(status: str, facts: dict[str, Any], finished: str) -> None:
    """Length and filter are told apart by their reason."""
    got = built(ADDED, HELLO, completed(status=status, **facts)).finished

    assert got is not None
    assert (got.reason, got.raw) == (finished, status)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "error": {"code": "rate_limit_exceeded", "message": "slow"}},
        {"type": "error", "code": "rate_limit_exceeded", "message": "slow"},
        {"type": "response.failed", "response": {"status": "failed", "error": {"code": "rate_limit_exceeded"}}},
    ],
)
def test_an_error_in_all_its_shapes(event: dict[str, Any]) -> None:
    """Nested, flat and in the final response (GOTCHAS 58)."""
    got, error = read(OpenAIResponsesCodec(), request(said("q"), model=MODEL), ENDPOINT, sse(ADDED, HELLO, event))

    assert TextDelta(0, "hé") in got
    assert isinstance(error, RateLimited)


def test_a_failure_without_words_and_a_server_error() -> None:
    """`failed` alone is an error too."""
    bare = {"type": "response.failed", "response": {"status": "failed"}}
    busy = {"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error"}}}
    asked = request(said("q"), model=MODEL)

    _, first = read(OpenAIResponsesCodec(), asked, ENDPOINT, sse(bare))
    _, second = read(OpenAIResponsesCodec(), asked, ENDPOINT, sse(busy))

    assert first is not None
    assert "failed" in str(first)
    assert isinstance(second, Overloaded)


@pytest.mark.parametrize(
    "data", [b"{nonsense", b"[1]", b'{"type":"response.output_text.delta"}', b'{"type":"response.output_item.added"}']
)
def test_bytes_that_are_not_the_protocol(data: bytes) -> None:
    """Wrong JSON and wrong shapes are a WireError."""
    _, error = read(OpenAIResponsesCodec(), request(said("q"), model=MODEL), ENDPOINT, sse(CREATED, data))

    assert isinstance(error, WireError)


def test_a_cut_stream_is_an_error_after_what_was_said() -> None:
    """Text that came is handed out; then a WireError."""
    got, error = read(OpenAIResponsesCodec(), request(said("q"), model=MODEL), ENDPOINT, sse(CREATED, ADDED, HELLO))

    assert TextDelta(0, "hé") in got
    assert isinstance(error, WireError)


def test_citations_and_usage() -> None:
    """Annotations are told once, where they stand; usage has one meaning."""
    note = {"type": "url_citation", "url": "https://e.test", "title": "E", "start_index": 1, "end_index": 2}
    annotated = {
        "type": "response.output_text.annotation.added",
        "output_index": 0,
        "content_index": 0,
        "annotation": note,
    }
    item = {"type": "message", "content": [{"type": "output_text", "text": "hé", "annotations": [note]}]}
    usage = {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
    }

    events = sse(ADDED, HELLO, annotated, completed(item, usage=usage))
    deltas = deltas_of(OpenAIResponsesCodec(), request(said("q"), model=MODEL), ENDPOINT, events)

    cited = [delta.citation for delta in deltas if isinstance(delta, CitationDelta)]
    assert [(c.url, c.title, c.start, c.end) for c in cited] == [("https://e.test", "E", 1, 2)]
    assert built(completed(usage=usage)).tokens == Tokens(input=10, output=7, reasoning=2, cache_read=4)


@needs_cases
def test_server_tools_are_shown() -> None:
    """A reader sees what was searched and run."""
    shown = {}
    for name in ("stream-web-search", "json-code-interpreter", "json-mcp", "stream-local-shell"):
        got = decode(case := WireCase(WIRE, name, ROOT / WIRE / name), whole(case.body))
        shown[name] = [part.text for part in got.parts if isinstance(part, ServerPart)]

    assert all(any(texts) for texts in shown.values()), shown
    assert "65465" in shown["json-code-interpreter"][0]


def test_a_chunk_of_text_costs_few_calls_however_long_the_answer() -> None:
    """Python calls per chunk: few, and the same at the 10,000th (speed rows 1c and 3)."""
    decoder = OpenAIResponsesCodec().decoder(request(said("q"), model=MODEL), ENDPOINT)
    for event in (CREATED, ADDED):
        list(decoder.feed(ServerEvent("", json.dumps(event).encode())))

    assert_a_chunk_costs_few_calls(decoder, ServerEvent("", json.dumps(HELLO).encode()), 5)
