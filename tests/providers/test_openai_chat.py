"""The chat completions wire: what is sent in each dialect, and answers that no recording holds."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings

from kit_jupyter.errors import RateLimited, Rejected, UsageError, WireError
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
    ToolCallPart,
    ToolSpec,
)
from kit_jupyter.prompt import PromptMessage
from kit_jupyter.providers._chat_answer import WIRE, tokens_of
from kit_jupyter.providers._schema import is_strict
from kit_jupyter.providers.codec import Endpoint, ServerEvent
from kit_jupyter.providers.openai_chat import OpenAIChatCodec
from kit_jupyter.providers.registry import ROWS, Row

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
    read,
    request,
    result,
    said,
    sse,
    talks,
)
from .sdk_shapes import misfits
from .wire_cases import ROOT, WireCase, all_cases, codec_of, decode, endpoint_of, whole

MODEL = "demo/m"
ORIGIN = "demo/m"
needs_cases = pytest.mark.skipif(
    not all_cases("openai-chat"), reason=f"no recorded cases at {ROOT}; see KIT_WIRE_CASES"
)


def endpoint(*quirks: str, **more: Any) -> Endpoint:
    values: dict[str, Any] = {"name": "demo", "base_url": "https://host.invalid/v1", "api_key": "sk-x"}
    return Endpoint(**(values | more), quirks=frozenset(quirks))


def body_of(*messages: PromptMessage, at: Endpoint | None = None, model: str = MODEL, **facts: Any) -> dict[str, Any]:
    asked = request(*messages, model=model, **facts)
    made: dict[str, Any] = json.loads(OpenAIChatCodec().encode(asked, at or endpoint()).body)
    return made


def sent(*messages: PromptMessage, at: Endpoint | None = None, **facts: Any) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = body_of(*messages, at=at, **facts)["messages"]
    return listed


def own(kind: str) -> Native:
    return Native(WIRE, {"from": ORIGIN, "field": "reasoning_content"})


# ---------------------------------------------------------------- settings


def test_url_headers_and_key() -> None:
    """Bearer key, extra headers, query; Azure's own key header."""
    codec, asked = OpenAIChatCodec(), request(said("q"), model=MODEL)

    plain = codec.encode(asked, endpoint(headers={"x-a": "b"}, query={"api-version": "1"}))
    azure = codec.encode(asked, endpoint("api_key_header"))
    bare = codec.encode(asked, endpoint(api_key=""))

    assert plain.url == "https://host.invalid/v1/chat/completions?api-version=1"
    assert plain.headers["authorization"] == "Bearer sk-x"
    assert plain.headers["x-a"] == "b"
    assert azure.headers["api-key"] == "sk-x"
    assert "authorization" not in azure.headers
    assert "authorization" not in bare.headers
    assert "sk-x" not in repr((plain, azure, endpoint()))


def test_all_that_a_request_can_say() -> None:
    """Every setting arrives under its name."""
    body = body_of(
        said("q"),
        system="S",
        tools=(WEATHER,),
        tool_choice="weather",
        max_tokens=9,
        temperature=0.2,
        stop=("x",),
        thinking="low",
        format=POINT,
        extra={"seed": 1},
        session_id="s",
    )

    assert body["messages"][0] == {"role": "system", "content": "S"}
    assert body["stream_options"] == {"include_usage": True}
    assert body["tools"][0]["function"]["name"] == "weather"
    assert body["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    assert (body["max_tokens"], body["temperature"], body["stop"], body["seed"]) == (9, 0.2, ["x"], 1)
    assert body["reasoning_effort"] == "low"
    assert body["response_format"]["json_schema"]["strict"] is is_strict(POINT)
    assert "prompt_cache_key" not in body


@pytest.mark.parametrize(
    ("quirk", "facts", "expected"),
    [
        ("max_completion_tokens", {"max_tokens": 5}, {"max_completion_tokens": 5}),
        ("prompt_cache_key", {"session_id": "s"}, {"prompt_cache_key": "s"}),
        ("tool_choice_any", {"tools": (WEATHER,), "tool_choice": "required"}, {"tool_choice": "any"}),
        ("json_object", {"format": POINT}, {"response_format": {"type": "json_object"}}),
        ("thinking:openrouter", {"thinking": "high"}, {"reasoning": {"effort": "high"}}),
        ("thinking:openrouter", {"thinking": "off"}, {"reasoning": {"enabled": False}}),
        ("thinking:type", {"thinking": "off"}, {"thinking": {"type": "disabled"}}),
        ("thinking:enable", {"thinking": "low"}, {"enable_thinking": True}),
        ("thinking:template", {"thinking": "off"}, {"chat_template_kwargs": {"enable_thinking": False}}),
    ],
)
def test_a_dialect_is_spoken(quirk: str, facts: dict[str, Any], expected: dict[str, Any]) -> None:
    """Each quirk changes what it says it does."""
    body = body_of(said("q"), at=endpoint(quirk), **facts)

    assert {name: body[name] for name in expected} == expected


def test_a_service_without_schemas_is_told_the_schema_in_words() -> None:
    """JSON mode alone does not say what fits."""
    body = body_of(said("q"), at=endpoint("json_object"), format=POINT, system="S")

    assert body["messages"][0]["content"].startswith("S\n\n")
    assert '"Point"' in body["messages"][0]["content"]


@pytest.mark.parametrize(
    ("model", "effort"), [("o3", "low"), ("gpt-5-mini", "minimal"), ("gpt-5.4", "none"), ("gpt-4o", None)]
)
def test_thinking_off_is_the_least_that_a_model_takes(model: str, effort: str | None) -> None:
    """No model is sent a word that it refuses."""
    assert body_of(said("q"), model=f"demo/{model}", thinking="off").get("reasoning_effort") == effort


def test_strict_tools_only_where_the_schema_allows() -> None:
    """A service that knows strict mode refuses schemas that do not fit it."""
    closed = ToolSpec(name="a", description="", schema=POINT, strict=True)
    loose = ToolSpec(name="b", description="", schema={"type": "object", "properties": {"x": {}}}, strict=True)

    tools = body_of(said("q"), at=endpoint("strict"), tools=(closed, loose))["tools"]

    assert tools[0]["function"].get("strict") is (True if is_strict(POINT) else None)
    assert "strict" not in tools[1]["function"]
    assert "strict" not in body_of(said("q"), tools=(closed,))["tools"][0]["function"]


# ---------------------------------------------------------------- histories


def test_a_history_in_messages() -> None:
    """Answers with calls, results in the order of the calls, a steer in its place."""
    listed = sent(
        said("q"),
        answer("Let me", " see.", call("a"), call("b")),
        result("b", "two"),
        result("a", "one"),
        said("be brief", role="system"),
        said("go on"),
    )

    assert [m["role"] for m in listed] == ["user", "assistant", "tool", "tool", "system", "user"]
    assert listed[1]["content"] == "Let me see."
    assert [c["id"] for c in listed[1]["tool_calls"]] == ["a", "b"]
    assert [(m["tool_call_id"], m["content"]) for m in listed[2:4]] == [("a", "one"), ("b", "two")]


def test_text_alone_goes_as_a_string() -> None:
    """Not every dialect reads a list."""
    assert sent(said("a", "b"))[0]["content"] == "a\n\nb"


@pytest.mark.parametrize("text", ['{"a": 1}', "\\frac{1}{2}", "{In[99]}", "‘“日本🎉", "\ud83d broken"])
def test_text_arrives_byte_for_byte(text: str) -> None:
    """Braces, LaTeX and JSON are text; half a surrogate pair does not break the request."""
    assert sent(said(text))[0]["content"] == text.replace("\ud83d", "?")


def test_a_wire_without_system_messages_in_the_history_gets_a_reminder() -> None:
    """Many local templates refuse a system message after the first; it is said on the user's side then."""
    listed = sent(said("q"), answer("a"), said("be brief", role="system"), said("go"), at=endpoint("reminders"))

    assert [m["role"] for m in listed] == ["user", "assistant", "user", "user"]
    assert "<system-reminder>" in listed[2]["content"]


def test_mistral_s_rules() -> None:
    """Ids of nine letters, an answer between results and the user, images inside results."""
    mistral = next(row for row in ROWS if row.name == "mistral")
    at = endpoint(*mistral.quirks)
    listed = sent(
        said("q"),
        answer(call("call_abc|fc_1")),
        result("call_abc|fc_1", "see", MediaPart("image/png", PNG)),
        said("go"),
        at=at,
    )

    call_id = listed[1]["tool_calls"][0]["id"]
    assert len(call_id) == 9
    assert call_id.isalnum()
    assert [m["role"] for m in listed] == ["user", "assistant", "tool", "assistant", "user"]
    assert listed[2]["tool_call_id"] == call_id
    assert [piece["type"] for piece in listed[2]["content"]] == ["text", "image_url"]


def test_images_in_results_follow_all_results() -> None:
    """Tool messages take text only, and must stand together behind their answer."""
    listed = sent(
        said("q"),
        answer(call("a"), call("b")),
        result("a", "one", MediaPart("image/png", PNG, "plot.png")),
        result("b", "two"),
    )

    assert [m["role"] for m in listed] == ["user", "assistant", "tool", "tool", "user"]
    assert "plot.png: shown in the next message" in listed[2]["content"]
    assert listed[4]["content"][1]["image_url"]["url"] == f"data:image/png;base64,{PNG}"


def test_media_a_person_gives() -> None:
    """Images, PDF, audio, and files that are text."""
    parts = (
        MediaPart("image/png", PNG),
        MediaPart("application/pdf", PDF, "d.pdf"),
        MediaPart("audio/mpeg", "AAAA"),
        MediaPart.of_bytes(b"a,b", "text/csv", "t.csv"),
        MediaPart.of_bytes(b"<svg/>", "image/svg+xml"),
    )

    content = sent(said("see", *parts))[0]["content"]

    assert [piece["type"] for piece in content] == ["text", "image_url", "file", "input_audio", "text", "text"]
    assert content[2]["file"] == {"filename": "d.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}
    assert content[3]["input_audio"] == {"data": "AAAA", "format": "mp3"}
    assert content[4]["text"] == "t.csv:\na,b"
    assert sent(said(parts[1]), at=endpoint("document_url"))[0]["content"][0]["type"] == "document_url"


@pytest.mark.parametrize("kind", ["video/mp4", "audio/ogg", "application/zip"])
def test_media_it_cannot_carry_are_named(kind: str) -> None:
    """A `UsageError` that names kind, file and message, before anything is sent."""
    with pytest.raises(UsageError, match=f"{kind}.*'f.x'"):
        sent(said(MediaPart(kind, "AAAA", "f.x")))


@pytest.mark.parametrize("arguments", ["", "{}", '{"a": 1}', '{"a": ', "[1]", "null", "nonsense"])
def test_arguments_go_back_as_one_json_object(arguments: str) -> None:
    """Servers parse them again, and refuse the whole request for what does not parse (U41)."""
    text = sent(said("q"), answer(ToolCallPart("a", "f", arguments)), result("a"))[1]["tool_calls"][0]["function"][
        "arguments"
    ]

    assert isinstance(json.loads(text), dict)


def test_a_call_id_of_any_shape_is_sendable_and_paired() -> None:
    """Long, empty, foreign and repeated ids: each call has its own result."""
    ids = ["x" * 200, "", "fn.weather:0", "ü", "call_0", "call_0"]
    history = [said("q")]
    for each in ids:
        history += [answer(call(each)), result(each)]

    listed = sent(*history)

    calls = [m["tool_calls"][0]["id"] for m in listed if m["role"] == "assistant"]
    assert calls == [m["tool_call_id"] for m in listed if m["role"] == "tool"]
    assert len(set(calls)) == len(ids)
    assert all(0 < len(each) <= 64 and each.isascii() for each in calls)


def test_foreign_state_is_not_sent() -> None:
    """Reasoning and server blocks of other wires and models stay behind; refusals and pictures become text."""
    other = Native("another", {"from": "x/y", "signature": "SECRET"})
    listed = sent(
        said("q"),
        answer(
            ThinkingPart("hm", other),
            ThinkingPart("hm", Native(WIRE, {"from": "demo/other", "details": [{"data": "SECRET"}]})),
            ServerPart("call", "search", other),
            RefusalPart("No."),
            MediaPart("image/png", PNG),
        ),
        said("go"),
    )

    assert "SECRET" not in json.dumps(listed)
    assert listed[1]["content"].startswith("No.[image/png")
    assert sent(said("q"), answer(RefusalPart("No.")), at=endpoint("refusal"))[1]["refusal"] == "No."


def test_an_answer_of_nothing_sendable_is_left_out() -> None:
    """An empty assistant message is refused by many services."""
    assert [m["role"] for m in sent(said("q"), answer(ThinkingPart("hm")), said("go"))] == ["user", "user"]


def test_reasoning_goes_back_in_the_field_it_came_in() -> None:
    """Where the dialect wants it back; else it stays behind."""
    thought = ThinkingPart("hm", own("thinking"))

    back = sent(said("q"), answer(thought, "a"), at=endpoint("give_back:reasoning_content"))
    not_back = sent(said("q"), answer(thought, "a"))

    assert back[1] == {"role": "assistant", "content": "a", "reasoning_content": "hm"}
    assert not_back[1] == {"role": "assistant", "content": "a"}


@needs_cases
@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("openrouter-stream-reasoning-details-tool", "reasoning_details"),
        ("openrouter-stream-o3-encrypted", "reasoning_details"),
        ("openrouter-json-opus5", "reasoning_details"),
        ("snowflake-json-empty-fields", "reasoning_details"),
        ("mistral-stream-thinking-content-list", "content"),
        ("deepseek-stream-reasoning-tool", "reasoning_content"),
    ],
)
def test_an_answer_goes_back_to_its_model(name: str, field: str) -> None:
    """Signatures and encrypted reasoning are handed back as they came."""
    case = WireCase("openai-chat", name, ROOT / "openai-chat" / name)
    meta = case.load("case")
    at = endpoint_of(case, frozenset({"give_back:reasoning_content"}))
    parts = decode(case, whole(case.body)).parts
    history = [said("q"), PromptMessage("assistant", parts)]
    history += [result(part.call_id) for part in parts if isinstance(part, ToolCallPart)]

    message = sent(*history, at=at, model=f"{meta['provider']}/{meta['model']}")[1]

    back = json.dumps(message[field])
    for thought in (part for part in parts if isinstance(part, ThinkingPart)):
        assert json.dumps(thought.text)[1:-1] in back
        assert thought.native is not None
        for detail in thought.native.data.get("details", ()):
            assert json.dumps(detail) in back


@needs_cases
def test_a_second_turn_with_reasoning_details_is_what_was_recorded() -> None:
    """The recorded request of turn 2 holds what we make of turn 1."""
    name = "openrouter-stream-reasoning-details-tool"
    first = WireCase("openai-chat", name, ROOT / "openai-chat" / name)
    then = WireCase(
        "openai-chat", "openrouter-stream-reasoning-turn2", ROOT / "openai-chat" / "openrouter-stream-reasoning-turn2"
    )
    parts = decode(first, whole(first.body)).parts
    recorded = next(m for m in then.load("request")["body"]["messages"] if m["role"] == "assistant")

    ours = sent(
        said("q"),
        PromptMessage("assistant", parts),
        model="openrouter/anthropic/claude-haiku-4.5",
        at=endpoint_of(first),
    )[1]

    assert [d["signature"] for d in ours["reasoning_details"]] == [
        d["signature"] for d in recorded["reasoning_details"]
    ]
    assert [d["text"] for d in ours["reasoning_details"]] == [d["text"] for d in recorded["reasoning_details"]]
    assert ours["tool_calls"][0]["id"] == recorded["tool_calls"][0]["id"]
    assert json.loads(ours["tool_calls"][0]["function"]["arguments"]) == json.loads(
        recorded["tool_calls"][0]["function"]["arguments"]
    )


@needs_cases
def test_gemini_s_signatures_go_back_on_their_call() -> None:
    """``extra_content`` of a call is kept: Gemini 3 refuses the next turn without it."""
    call_with = {
        "index": 0,
        "id": "a",
        "function": {"name": "f", "arguments": "{}"},
        "extra_content": {"google": {"thought_signature": "S"}},
    }
    chunk = {
        "id": "r",
        "model": "m",
        "choices": [{"index": 0, "delta": {"tool_calls": [call_with]}, "finish_reason": "tool_calls"}],
    }
    deltas, _ = read(OpenAIChatCodec(), request(said("q"), model=MODEL), endpoint(), sse(chunk))
    builder = MessageBuilder()
    for delta in deltas:
        builder.feed(delta)

    back = sent(said("q"), PromptMessage("assistant", builder.parts), result("a"))[1]["tool_calls"][0]

    assert back["extra_content"] == {"google": {"thought_signature": "S"}}


# ---------------------------------------------------------------- laws


def history_bytes(body: bytes) -> bytes:
    assert body.endswith(b"]}")
    return body[body.index(b'"messages":[') + len(b'"messages":[') : -2]


DIALECTS = [
    pytest.param(row, id=row.name)
    for row in ROWS
    if row.wire == "openai-chat" and row.name in ("mistral", "deepseek", "llamacpp", "openai-chat", "openrouter")
]


@pytest.mark.parametrize("row", DIALECTS)
@settings(max_examples=25, deadline=None)
@given(talk=talks(own))
def test_the_bytes_of_a_history_are_a_prefix_of_the_next(row: Row, talk: list[tuple[PromptMessage, ...]]) -> None:
    """The prefix cache law in each dialect; and what is kept never changes what is sent."""
    assert_each_body_begins_the_next(OpenAIChatCodec, endpoint(*row.quirks), MODEL, talk, history_bytes)


@pytest.mark.parametrize("row", [row for row in DIALECTS if row.id == "openai-chat"])
@settings(max_examples=60, deadline=None)
@given(talk=talks(own))
def test_every_history_fits_the_sdk(row: Row, talk: list[tuple[PromptMessage, ...]]) -> None:
    """Whatever a talk holds, the official SDK's types take it, and each call has its result (U36, U41)."""
    params = pytest.importorskip("openai.types.chat.completion_create_params")

    body = body_of(*talk[-1], at=endpoint(*row.quirks), system="S", tools=(WEATHER,))

    assert misfits(body, params.CompletionCreateParamsStreaming) == []
    assert "SECRET" not in json.dumps(body)
    calls = [c["id"] for m in body["messages"] for c in m.get("tool_calls", ())]
    assert calls == [m["tool_call_id"] for m in body["messages"] if m["role"] == "tool"]
    for here, after in itertools.pairwise(body["messages"]):
        if here["role"] == "assistant" and here.get("tool_calls"):
            assert after["role"] == "tool"


def test_settings_fit_the_sdk() -> None:
    """All settings together are what the official SDK's types allow."""
    params = pytest.importorskip("openai.types.chat.completion_create_params")
    row = next(row for row in ROWS if row.name == "openai-chat")

    body = body_of(
        said(
            "a", MediaPart("image/png", PNG), MediaPart("application/pdf", PDF, "d.pdf"), MediaPart("audio/wav", "AA")
        ),
        at=endpoint(*row.quirks),
        system="S",
        tools=(WEATHER,),
        tool_choice="required",
        format=POINT,
        thinking="high",
        temperature=0.3,
        max_tokens=900,
        stop=("x",),
        session_id="abc",
    )

    assert misfits(body, params.CompletionCreateParamsStreaming) == []


@needs_cases
def test_recorded_requests_fit_the_same_types() -> None:
    """The check of shapes means something: what services accepted from other clients passes it too."""
    params = pytest.importorskip("openai.types.chat.completion_create_params")
    names = ("openai-stream-parallel-tools", "openai-stream-image-inline", "openai-stream-structured")
    for name in names:
        body = WireCase("openai-chat", name, ROOT / "openai-chat" / name).load("request")["body"]

        assert misfits(body, params.CompletionCreateParamsStreaming) == []


def test_a_new_step_costs_what_is_new() -> None:
    """Python calls per request do not grow with the history (speed row 6)."""
    assert_a_step_costs_what_is_new(OpenAIChatCodec(), endpoint(), MODEL)


def test_a_chunk_of_text_costs_few_calls_however_long_the_answer() -> None:
    """Python calls per chunk: few, and the same at the 10,000th (speed rows 1c and 3)."""
    decoder = OpenAIChatCodec().decoder(request(said("q"), model=MODEL), endpoint())
    event = ServerEvent("", sse({"id": "r", "model": "m", "choices": [{"index": 0, "delta": {"content": "x"}}]})[6:-2])

    assert_a_chunk_costs_few_calls(decoder, event, 7)


# ---------------------------------------------------------------- answers


def chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "r", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}], **more}


def built(*events: Any, at: Endpoint | None = None) -> MessageBuilder:
    deltas, error = read(OpenAIChatCodec(), request(said("q"), model=MODEL), at or endpoint(), sse(*events, b"[DONE]"))
    assert error is None
    builder = MessageBuilder()
    for delta in deltas:
        builder.feed(delta)
    return builder


@pytest.mark.parametrize("cut", range(1, 8))
def test_think_tags_are_split_however_they_are_cut(cut: int) -> None:
    """Servers without a reasoning parser leave ``<think>`` in the text; it is reasoning for a reader."""
    text = "<think>\nhm, <b>why</b></think>\n\nBecause < 3."
    pieces = [text[at : at + cut] for at in range(0, len(text), cut)]

    got = built(*(chunk({"content": piece}) for piece in pieces), chunk({}, "stop"), at=endpoint("think_tags"))

    assert [type(part) for part in got.parts] == [ThinkingPart, TextPart]
    assert got.parts[0].text == "\nhm, <b>why</b>"  # type: ignore[union-attr]
    assert got.text == "Because < 3."


@pytest.mark.parametrize("text", ["<thinner>", "<", "a <think>b</think>", "  <thi"])
def test_what_only_looks_like_a_think_tag_is_text(text: str) -> None:
    """Nothing is lost or taken for reasoning."""
    got = built(*(chunk({"content": letter}) for letter in text), chunk({}, "stop"), at=endpoint("think_tags"))

    assert got.text == text
    assert len(got.parts) == 1


def test_a_think_tag_that_never_closes_is_all_reasoning() -> None:
    """The budget was spent on thinking."""
    got = built(chunk({"content": "<think>hm</thi"}), chunk({}, "length"), at=endpoint("think_tags"))

    assert [type(part) for part in got.parts] == [ThinkingPart]
    assert got.finished is not None
    assert got.finished.reason == "length"


def test_reasoning_counted_beside_the_answer_is_counted_in() -> None:
    """xAI's total shows that its output leaves reasoning out; one meaning for all."""
    usage = {
        "prompt_tokens": 10,
        "completion_tokens": 5,
        "total_tokens": 35,
        "completion_tokens_details": {"reasoning_tokens": 20},
    }

    assert tokens_of(usage).output == 25


@pytest.mark.parametrize("usage", [{"prompt_tokens": "9"}, {"prompt_tokens": None, "prompt_tokens_details": None}])
def test_usage_of_a_wrong_shape_is_unknown(usage: dict[str, Any]) -> None:
    """Never a false number."""
    assert tokens_of(usage).input is None


def test_calls_under_one_index_are_told_apart() -> None:
    """Some services put every parallel call under index 0."""
    got = built(
        chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}),
        chunk({"tool_calls": [{"index": 0, "id": "b", "function": {"name": "g", "arguments": "{}"}}]}, "tool_calls"),
    )

    assert [(p.call_id, p.name) for p in got.parts if isinstance(p, ToolCallPart)] == [("a", "f"), ("b", "g")]


def test_a_name_that_comes_late_loses_no_arguments() -> None:
    """Arguments before the name are kept."""
    got = built(
        chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"arguments": '{"x":'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": " 1}"}}]}, "tool_calls"),
    )

    assert [(p.name, p.arguments) for p in got.parts if isinstance(p, ToolCallPart)] == [("f", '{"x": 1}')]


def test_a_length_stop_that_hides_behind_tool_calls_is_one() -> None:
    """OpenRouter says ``tool_calls`` for arguments that were cut; the truth is in its native reason."""
    cut = chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x": '}}]})
    end = chunk({}, "tool_calls")
    end["choices"][0]["native_finish_reason"] = "MAX_TOKENS"

    got = built(cut, end)

    assert got.finished == Finished("length", "tool_calls", "MAX_TOKENS")


def test_citations_come_from_all_their_places() -> None:
    """OpenAI's and OpenRouter's annotations, Perplexity's list, each address once."""
    note = {
        "type": "url_citation",
        "url_citation": {"url": "https://a", "title": "A", "start_index": 0, "end_index": 2},
    }
    got = built(
        chunk({"content": "So."}, citations=["https://b"]),
        chunk({"annotations": [note]}),
        chunk({}, "stop", citations=["https://b", "https://b", "https://c"]),
    )

    part = got.parts[0]
    assert isinstance(part, TextPart)
    assert [c.url for c in part.citations] == ["https://a", "https://b", "https://c"]


def test_images_and_sound_are_parts() -> None:
    """OpenRouter's images, gpt-audio's sound with its transcript."""
    url = f"data:image/png;base64,{PNG}"
    got = built(
        chunk({"images": [{"type": "image_url", "image_url": {"url": url}}]}),
        chunk({"audio": {"id": "au", "data": "QUJD", "transcript": "Hi"}}),
        chunk({"audio": {"data": "REVG"}}, "stop"),
    )

    kinds = [(part.media_type, part.data) for part in got.parts if isinstance(part, MediaPart)]
    assert kinds == [("image/png", PNG), ("audio/L16", "QUJDREVG")]


@pytest.mark.parametrize(
    ("event", "cls"),
    [
        ({"error": {"message": "Rate limit reached", "type": "rate_limit_error"}}, RateLimited),
        ({"error": {"message": "nope", "code": 400}, "choices": []}, Rejected),
        ({"error": "text alone"}, Rejected),
        ({"object": "error", "message": "bad", "code": 400}, Rejected),
    ],
)
def test_an_error_inside_a_stream_comes_after_its_words(event: dict[str, Any], cls: type[Exception]) -> None:
    """Whatever its shape; the words before it are kept."""
    deltas, error = read(
        OpenAIChatCodec(), request(said("q"), model=MODEL), endpoint(), sse(chunk({"content": "a"}), event)
    )

    assert [d.text for d in deltas if isinstance(d, TextDelta)] == ["a"]
    assert type(error) is cls


@pytest.mark.parametrize("data", [b"null", b"[]", b"3", b'{"choices": []}', b'{"choices": null}', b"{}"])
def test_events_without_meaning_are_passed_over(data: bytes) -> None:
    """Keep-alives and empty chunks change nothing."""
    assert built(data, chunk({"content": "a"}, "stop")).text == "a"


def test_a_stream_that_ends_inside_arguments_is_cut() -> None:
    """A call whose arguments do not parse is never taken for whole."""
    piece = chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x": '}}]})

    _, error = read(OpenAIChatCodec(), request(said("q"), model=MODEL), endpoint(), sse(piece))

    assert isinstance(error, WireError)


def test_citation_deltas_name_a_text_part() -> None:
    """A citation before any text opens one."""
    note = {"type": "url_citation", "url_citation": {"url": "https://a"}}
    deltas, _ = read(
        OpenAIChatCodec(),
        request(said("q"), model=MODEL),
        endpoint(),
        sse(chunk({"annotations": [note]}), chunk({"content": "x"}, "stop")),
    )

    indexes = {d.index for d in deltas if isinstance(d, CitationDelta | TextDelta)}
    assert len(indexes) == 1


def test_one_codec_serves_all_dialects() -> None:
    """Kept pieces of one dialect are not sent in another."""
    codec, asked = (
        OpenAIChatCodec(),
        request(said("q"), answer(call("call_x")), result("call_x"), said("go"), model=MODEL),
    )
    rows = [row for row in ROWS if row.wire == "openai-chat"]

    for row in [*rows, *rows]:
        at = endpoint(*row.quirks)
        assert codec.encode(asked, at).body == OpenAIChatCodec().encode(asked, at).body


def test_the_codec_of_the_corpus_is_this_one() -> None:
    """The judge judges what is shipped."""
    assert type(codec_of("openai-chat")) is OpenAIChatCodec
