"""The Anthropic Messages wire: what is sent, what comes back, what goes back unchanged."""

from __future__ import annotations

import gc
import hashlib
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings

from kit_jupyter.errors import AuthFailed, Overloaded, RateLimited, UsageError, WireError
from kit_jupyter.messages import (
    Citation,
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
from kit_jupyter.providers.anthropic import MARK, WIRE, AnthropicCodec, takes
from kit_jupyter.providers.codec import Endpoint, ServerEvent

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

MODEL = "anthropic/claude-sonnet-4-5"
ENDPOINT = Endpoint(name="anthropic", base_url="https://api.anthropic.com", api_key="sk-ant-planted")
CASES = [case for case in all_cases(WIRE) if case.load("expect")["outcome"] == "message"]
needs_cases = pytest.mark.skipif(not CASES, reason=f"no recorded cases at {ROOT}; set KIT_WIRE_CASES")


def body_of(
    *messages: PromptMessage, model: str = MODEL, endpoint: Endpoint = ENDPOINT, **facts: Any
) -> dict[str, Any]:
    sent = AnthropicCodec().encode(request(*messages, model=model, **facts), endpoint)
    value: dict[str, Any] = json.loads(sent.body)
    return value


def without_marks(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_marks(item) for key, item in value.items() if key != "cache_control"}
    return [without_marks(item) for item in value] if isinstance(value, list) else value


def messages_of(*messages: PromptMessage, **facts: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = without_marks(body_of(*messages, **facts)["messages"])
    return found


def own(kind: str) -> Native:
    """State that this codec made, for the model of these tests."""
    if kind == "thinking":
        return Native(WIRE, {"from": MODEL, "signature": "c2ln"})
    block = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
    return Native(WIRE, {"from": "anthropic", "block": block})


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def canonical(value: Any) -> str:
    return sha(json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False))


# ---------------------------------------------------------------- the request


def test_url_headers_and_key() -> None:
    """The key goes in x-api-key, the version beside it; the URL holds no secret."""
    sent = AnthropicCodec().encode(request(said("hi"), model=MODEL), ENDPOINT)

    assert sent.url == "https://api.anthropic.com/v1/messages"
    assert sent.headers["x-api-key"] == "sk-ant-planted"
    assert sent.headers["anthropic-version"] == "2023-06-01"
    assert sent.stream
    assert "planted" not in sent.url + repr(sent) + sent.body.decode()


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("https://h.test", "https://h.test/v1/messages"),
        ("https://h.test/anthropic", "https://h.test/anthropic/v1/messages"),
        ("https://h.test/api/v1/", "https://h.test/api/v1/messages"),
        ("https://h.test/x/messages", "https://h.test/x/messages"),
    ],
)
def test_base_urls_of_gateways(base: str, url: str) -> None:
    """A base URL may end before the version, after it, or name the path (U74)."""
    sent = AnthropicCodec().encode(request(said("hi"), model=MODEL), Endpoint(name="g", base_url=base))

    assert sent.url == url


def test_a_gateway_with_bearer_token_and_own_headers_and_query() -> None:
    """Quirk `bearer`, headers and query of the endpoint are honoured (U74)."""
    gateway = Endpoint(
        name="g",
        base_url="https://h.test",
        api_key="k",
        headers={"X-Team": "a"},
        query={"beta": "true"},
        quirks=frozenset({"bearer"}),
    )

    sent = AnthropicCodec().encode(request(said("hi"), model=MODEL), gateway)

    assert sent.headers["authorization"] == "Bearer k"
    assert "x-api-key" not in sent.headers
    assert sent.headers["X-Team"] == "a"
    assert sent.url.endswith("/v1/messages?beta=true")


def test_all_that_a_request_can_say() -> None:
    """System, tools, choice, limits, stop, temperature are in their places."""
    body = body_of(
        said("hi"),
        system="Be short.",
        tools=(WEATHER,),
        tool_choice="weather",
        max_tokens=100,
        temperature=0.5,
        stop=("END",),
    )

    assert without_marks(body["system"]) == [{"type": "text", "text": "Be short."}]
    assert without_marks(body["tools"]) == [
        {"name": "weather", "description": "Weather of a city", "input_schema": dict(WEATHER.schema)}
    ]
    assert body["tool_choice"] == {"type": "tool", "name": "weather"}
    assert (body["max_tokens"], body["temperature"], body["stop_sequences"]) == (100, 0.5, ["END"])


def test_strict_tools_are_closed_or_not_strict() -> None:
    """Strict is asked for where the schema allows it; a tool with free keys is sent as it is."""
    strict = ToolSpec(name="a", description="", schema=WEATHER.schema, strict=True)
    free = ToolSpec(name="b", description="", schema={"additionalProperties": {"type": "string"}}, strict=True)

    sent = without_marks(body_of(said("hi"), tools=(strict, free))["tools"])

    assert sent[0]["strict"]
    assert sent[0]["input_schema"]["additionalProperties"] is False
    assert sent[1] == {"name": "b", "input_schema": {"type": "object", "additionalProperties": {"type": "string"}}}


@pytest.mark.parametrize(("ours", "theirs"), [("none", {"type": "none"}), ("required", {"type": "any"})])
def test_tool_choice(ours: str, theirs: dict[str, str]) -> None:
    """Our words for the choice become theirs; auto is theirs too."""
    assert body_of(said("hi"), tools=(WEATHER,), tool_choice=ours)["tool_choice"] == theirs
    assert "tool_choice" not in body_of(said("hi"), tools=(WEATHER,))


def test_a_history_with_calls_is_accepted_without_tools() -> None:
    """A summary is asked for without tools; the service refuses calls of tools that the request does not name."""
    body = body_of(said("a"), answer(call("c")), result("c"), said("Sum up."))

    assert [tool["name"] for tool in body["tools"]] == ["weather"]
    assert body["tool_choice"] == {"type": "none"}
    assert "tools" not in body_of(said("a"), answer("b"), said("c"))


def test_server_tools_are_added_and_other_extras_replace() -> None:
    """`extra` adds server tools to ours and sets any other field of the body."""
    search = {"type": "web_search_20250305", "name": "web_search"}

    body = body_of(said("hi"), tools=(WEATHER,), extra={"tools": [search], "service_tier": "auto", "stream": False})

    assert [tool["name"] for tool in body["tools"]] == ["weather", "web_search"]
    assert (body["service_tier"], body["stream"]) == ("auto", False)
    assert not AnthropicCodec().encode(request(said("x"), model=MODEL, extra={"stream": False}), ENDPOINT).stream


def test_an_empty_request_is_refused_here() -> None:
    """A request without content names what is wrong before any byte is sent."""
    with pytest.raises(UsageError, match="no message with content"):
        body_of(said("  "))


# ---------------------------------------------------------------- thinking and structured output


@pytest.mark.parametrize(
    ("model", "level", "thinking", "effort"),
    [
        ("claude-sonnet-4-5", "medium", {"type": "enabled", "budget_tokens": 8192}, None),
        ("claude-opus-4-8", "high", {"type": "adaptive", "display": "summarized"}, "high"),
        ("claude-opus-4-8", "off", {"type": "disabled"}, None),
        ("claude-fable-5", "off", None, "low"),
        ("claude-3-5-sonnet-latest", "high", None, None),
        ("claude-opus-5", None, None, None),
    ],
)
def test_thinking_levels(model: str, level: Any, thinking: Any, effort: str | None) -> None:
    """A level becomes a budget or an effort, whichever the model takes; models that cannot are left alone."""
    body = body_of(said("hi"), model=f"anthropic/{model}", thinking=level)

    assert body.get("thinking") == thinking
    assert body.get("output_config", {}).get("effort") == effort


def test_a_budget_stays_below_the_limit_and_excludes_what_it_excludes() -> None:
    """A budget is at least 1024 and below max_tokens; temperature and forced tools go with it not at all."""
    small = body_of(said("hi"), thinking="high", max_tokens=3000, temperature=0.2)
    tiny = body_of(said("hi"), thinking="high", max_tokens=500, temperature=0.2)
    forced = body_of(said("hi"), thinking="high", tools=(WEATHER,), tool_choice="required")
    none = body_of(said("hi"), thinking="high", tools=(WEATHER,), tool_choice="none")

    assert small["thinking"]["budget_tokens"] == 1500
    assert "temperature" not in small
    assert "thinking" not in tiny
    assert tiny["temperature"] == 0.2
    assert none["tool_choice"] == {"type": "none"}
    assert "thinking" in none
    assert "thinking" not in forced
    assert forced["tool_choice"] == {"type": "any"}


def test_models_that_refuse_a_temperature_get_none() -> None:
    """Since Opus 4.7 sampling settings are a 400."""
    assert "temperature" not in body_of(said("hi"), model="anthropic/claude-opus-4-8", temperature=0.1)
    assert body_of(said("hi"), model="anthropic/claude-haiku-4-5", temperature=0.1)["temperature"] == 0.1


def test_structured_output_is_native_where_the_model_has_it() -> None:
    """Objects are closed, keywords that it refuses become words."""
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 1},
            "minimum": {"type": "string", "format": "binary"},
            "when": {"type": "string", "format": "date"},
            "many": {"type": "array", "items": {"oneOf": [{"type": "null"}, {"type": "integer"}]}, "minItems": 2},
        },
        "required": ["n"],
    }

    output = body_of(said("hi"), format=schema)["output_config"]["format"]

    assert output == {
        "type": "json_schema",
        "schema": {
            "type": "object",
            "properties": {
                "n": {"type": "integer", "description": "minimum: 1"},
                "minimum": {"type": "string", "description": "format: binary"},
                "when": {"type": "string", "format": "date"},
                "many": {
                    "type": "array",
                    "items": {"anyOf": [{"type": "null"}, {"type": "integer"}]},
                    "description": "minItems: 2",
                },
            },
            "required": ["n"],
            "additionalProperties": False,
        },
    }


@pytest.mark.parametrize(
    ("model", "schema"),
    [
        ("claude-3-7-sonnet-latest", POINT),
        ("claude-sonnet-4-5", {"type": "object", "additionalProperties": {"type": "string"}}),
        ("claude-sonnet-4-5", {"$ref": "#/$defs/T", "$defs": {"T": {"properties": {"next": {"$ref": "#/$defs/T"}}}}}),
    ],
)
def test_structured_output_through_a_tool(model: str, schema: dict[str, Any]) -> None:
    """An older model, free keys, a schema that holds itself: the answer comes through a tool, and is read as text."""
    asked = request(said("hi"), model=f"anthropic/{model}", format=schema)
    codec = AnthropicCodec()
    body = json.loads(codec.encode(asked, ENDPOINT).body)
    name = body["tools"][-1]["name"]
    builder = MessageBuilder()

    for delta in deltas_of(
        codec,
        asked,
        ENDPOINT,
        sse(
            {"type": "message_start", "message": {"id": "m", "model": model, "usage": {"input_tokens": 1}}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t", "name": name}},
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "input_json_delta", "partial_json": '{"x": 1,'},
            },
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "input_json_delta", "partial_json": ' "y": 2}'},
            },
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
            {"type": "message_stop"},
        ),
    ):
        builder.feed(delta)

    assert body["tool_choice"] == {"type": "tool", "name": name}
    assert "output_config" not in body
    assert builder.text == '{"x": 1, "y": 2}'
    assert builder.finished == Finished("stop", "tool_use")


def test_an_answer_tool_beside_other_tools() -> None:
    """With tools about, the model must use one of them or give the answer; names never clash."""
    taken = ToolSpec(name="final_answer", description="", schema={})

    body = body_of(said("hi"), model="anthropic/claude-3-7-sonnet-latest", format=POINT, tools=(WEATHER, taken))

    assert [tool["name"] for tool in body["tools"]] == ["weather", "final_answer", "final_answer_"]
    assert body["tool_choice"] == {"type": "any"}


def test_a_call_of_a_real_tool_is_still_a_call_when_an_answer_tool_is_about() -> None:
    """Only the answer tool is read as text."""
    asked = request(said("hi"), model="anthropic/claude-3-7-sonnet-latest", format=POINT, tools=(WEATHER,))
    message = {
        "type": "message",
        "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {"city": "Oslo"}}],
        "stop_reason": "tool_use",
    }
    builder = MessageBuilder()

    for delta in deltas_of(AnthropicCodec(), asked, ENDPOINT, json.dumps(message).encode()):
        builder.feed(delta)

    assert builder.parts == (ToolCallPart("t", "weather", '{"city": "Oslo"}'),)
    assert builder.finished is not None
    assert builder.finished.reason == "tool_calls"


# ---------------------------------------------------------------- the history


def test_messages_alternate_and_results_come_first() -> None:
    """Same-role messages are merged, results stand first behind their calls and in their order (U36)."""
    sent = messages_of(
        said("a"),
        said("b"),
        answer("hm", call("c1"), call("c2")),
        result("c2", "two"),
        said("meanwhile"),
        result("c1", "one", is_error=True),
    )

    assert [message["role"] for message in sent] == ["user", "assistant", "user"]
    assert [block["text"] for block in sent[0]["content"]] == ["a", "b"]
    assert [block.get("tool_use_id") or block["text"] for block in sent[2]["content"]] == ["c1", "c2", "meanwhile"]
    assert [block.get("is_error", False) for block in sent[2]["content"][:2]] == [True, False]


def test_a_history_that_begins_with_an_answer_gets_a_user_message_first() -> None:
    """The service refuses an answer in the first place."""
    sent = messages_of(answer("before"), said("go on"))

    assert [message["role"] for message in sent] == ["user", "assistant", "user"]


def test_empty_texts_are_left_out() -> None:
    """A blank text block is a 400; an answer of nothing but blanks is no message."""
    sent = messages_of(said("a", "", " \n"), answer(" "), said("b"))

    assert sent == [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]


def test_an_empty_result_and_an_error_without_words() -> None:
    """A result may be empty, an error may not."""
    sent = messages_of(said("a"), answer(call("c1"), call("c2")), result("c1", ""), result("c2", "", is_error=True))

    assert sent[2]["content"][0] == {"type": "tool_result", "tool_use_id": "c1"}
    assert sent[2]["content"][1]["content"] == [{"type": "text", "text": "error"}]


def test_like_ids_are_told_apart_and_strange_ones_made_plain() -> None:
    """Bedrock's call_0 in every answer, Kimi's `functions.f:0`: unique and of the letters it takes (GOTCHAS 59)."""
    sent = messages_of(
        said("a"),
        answer(call("call_0")),
        result("call_0", "one"),
        answer(call("call_0"), call("functions.f:0"), call("call_0")),
        result("call_0", "two"),
        result("functions.f:0", "three"),
        result("call_0", "four"),
    )

    calls = [block["id"] for message in sent if message["role"] == "assistant" for block in message["content"]]
    results = {
        block["tool_use_id"]: block["content"][0]["text"]
        for message in sent
        if message["role"] == "user"
        for block in message["content"]
        if block["type"] == "tool_result"
    }
    assert calls == ["call_0", "call_0-2", "functions_f_0", "call_0-3"]
    assert results == {"call_0": "one", "call_0-2": "two", "functions_f_0": "three", "call_0-3": "four"}


@pytest.mark.parametrize("cut", ['{"city": "Os', "[1, 2]", '{"n": NaN}'])
def test_arguments_that_are_no_object_go_back_wrapped(cut: str) -> None:
    """The model sees what it wrote, and the request stays valid (U41)."""
    sent = messages_of(said("a"), answer(call(arguments=cut)), result())

    assert sent[1]["content"][0]["input"] == {"INVALID_JSON": cut}


def test_no_arguments_are_an_empty_object() -> None:
    """A call without arguments is stored with empty text."""
    assert messages_of(said("a"), answer(call(arguments="")), result())[1]["content"][0]["input"] == {}


def test_thinking_goes_back_to_its_model_only() -> None:
    """A signature is bound to service and model; thinking of others is left out, never shown as text."""
    mine = ThinkingPart("mine", own("thinking"))
    hidden = ThinkingPart("", Native(WIRE, {"from": MODEL, "data": "enc"}), redacted=True)
    other_model = ThinkingPart("other model", Native(WIRE, {"from": "anthropic/claude-opus-5", "signature": "s"}))
    other_wire = ThinkingPart("other wire", Native("gemini", {"from": MODEL, "signature": "s"}))
    unsigned = ThinkingPart("unsigned")

    sent = messages_of(said("a"), answer(mine, hidden, other_model, other_wire, unsigned, "so"), said("b"))

    assert sent[1]["content"] == [
        {"type": "thinking", "thinking": "mine", "signature": "c2ln"},
        {"type": "redacted_thinking", "data": "enc"},
        {"type": "text", "text": "so"},
    ]


def test_a_last_thinking_block_is_left_out() -> None:
    """An answer stopped while it thought would be refused: the final block cannot be thinking (U41)."""
    sent = messages_of(said("a"), answer("x", ThinkingPart("cut", own("thinking"))), said("b"))

    assert sent[1]["content"] == [{"type": "text", "text": "x"}]
    assert len(messages_of(said("a"), answer(ThinkingPart("cut", own("thinking"))), said("b"))) == 1


def test_a_server_call_that_was_cut_off_is_left_out_but_a_pause_is_not() -> None:
    """Stopped in a server search, the next request must not hold a call without result; a paused one must."""
    use = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
    searching = ServerPart("call", "web_search", Native(WIRE, {"from": "anthropic", "block": use}))

    stopped = messages_of(said("a"), answer("let me see", searching), said("b"))
    paused = messages_of(said("a"), answer("let me see", searching))

    assert [block["type"] for block in stopped[1]["content"]] == ["text"]
    assert paused[1]["content"][1] == use


def test_refusals_and_media_of_other_models_become_text() -> None:
    """Answers hold text only: an image that another model made is named, not sent as base64 text."""
    sent = messages_of(said("a"), answer(RefusalPart("I will not"), MediaPart("image/png", PNG, "plot")), said("b"))

    assert sent[1]["content"][0] == {"type": "text", "text": "I will not"}
    assert sent[1]["content"][1]["text"].startswith("[image/png plot: left out")
    assert PNG not in json.dumps(sent)


def test_an_instruction_inside_the_history() -> None:
    """A steer is a system turn where model and place allow, else an envelope on the user's side."""
    steer = said("Answer in French.", role="system")
    idle = (said("a"), answer("b"), steer, said("follow it"))
    running = (said("a"), answer(call()), result(), steer)

    newer = messages_of(*running, model="anthropic/claude-opus-4-8")
    misplaced = messages_of(*idle, model="anthropic/claude-opus-4-8")
    older = messages_of(*running)

    assert newer[-1] == {"role": "system", "content": [{"type": "text", "text": "Answer in French."}]}
    envelope = {"type": "text", "text": "<system-reminder>\nAnswer in French.\n</system-reminder>"}
    assert misplaced[-1] == {"role": "user", "content": [envelope, {"type": "text", "text": "follow it"}]}
    assert older[-1]["content"][-1] == envelope


# ---------------------------------------------------------------- media


def test_images_pdf_and_text_files() -> None:
    """Each in the block that the wire has for it."""
    sent = messages_of(
        said(
            "look",
            MediaPart("image/jpg", PNG),
            MediaPart("application/pdf", PDF, "a.pdf"),
            MediaPart.of_bytes(b"x,y\n1,2", "text/csv", "t.csv"),
        )
    )

    _, image, pdf, table = sent[0]["content"]
    assert image == {"type": "image", "source": {"type": "base64", "media_type": "image/jpeg", "data": PNG}}
    assert (pdf["type"], pdf["title"], pdf["source"]["media_type"]) == ("document", "a.pdf", "application/pdf")
    assert table["source"] == {"type": "text", "media_type": "text/plain", "data": "t.csv:\nx,y\n1,2"}


@pytest.mark.parametrize("kind", ["audio/wav", "video/mp4", "image/svg+x", "application/zip"])
def test_media_it_cannot_carry_are_named(kind: str) -> None:
    """UsageError with part, wire and message; never base64 as text."""
    with pytest.raises(UsageError, match=rf"{WIRE} cannot carry the {kind.replace('+', '.')} part 'x.bin' of message"):
        body_of(said("hear", MediaPart(kind, PNG, "x.bin")))


def test_images_in_a_result_and_what_it_cannot_show() -> None:
    """A result shows images; for what it cannot, the model is told."""
    sent = messages_of(
        said("a"), answer(call()), result("call_1", "plot:", MediaPart("image/png", PNG), MediaPart("audio/wav", PNG))
    )

    kinds = [(block["type"], block.get("text", "")) for block in sent[2]["content"][0]["content"]]
    assert kinds[:2] == [("text", "plot:"), ("image", "")]
    assert kinds[2][1].startswith("[audio/wav: left out")


# ---------------------------------------------------------------- cache


def marked(value: Any) -> list[str]:
    """Texts of the blocks that bear a mark."""
    found: list[str] = []
    if isinstance(value, dict):
        if "cache_control" in value:
            found.append(str(value.get("text") or value.get("name") or value.get("tool_use_id")))
        for item in value.values():
            found += marked(item)
    elif isinstance(value, list):
        for item in value:
            found += marked(item)
    return found


def test_marks_stand_on_system_and_the_last_two_messages_that_stay() -> None:
    """Four at most; what a hook added for this once is behind the last mark."""
    history = [said("one"), answer("1"), said("two"), answer(call("c")), result("c"), said("three")]
    once = said("only now", message_id="edit_1")

    assert marked(body_of(*history, once, system="S")) == ["S", "two", "three"]
    assert marked(body_of(*history[:-1], system="S")) == ["S", "two", "c"]
    assert marked(body_of(said("changed", edits=("hook",)), tools=(WEATHER,))) == ["weather"]


def test_marks_can_be_left_out() -> None:
    """By quirk, and where the caller asks for the service's automatic form."""
    plain = Endpoint(name="g", base_url="https://h.test", quirks=frozenset({"no_cache_control"}))

    assert marked(body_of(said("a"), system="S", endpoint=plain)) == []
    assert marked(body_of(said("a"), system="S", extra={"cache_control": {"type": "ephemeral"}})["messages"]) == []


def history_bytes(body: bytes) -> bytes:
    """The bytes of the history, marks and the end of the last message taken out."""
    start = body.index(b'"messages":[') + len(b'"messages":[')
    assert body.endswith(b"]}]}")
    return body[start:-4].replace(MARK, b"")


@pytest.mark.parametrize("model", [MODEL, "anthropic/claude-opus-4-8"])
def test_the_bytes_of_a_history_are_a_prefix_of_the_next(model: str) -> None:
    """The prefix cache law, for talks as turns make them; and what is kept never changes what is sent."""

    @settings(max_examples=60, deadline=None)
    @given(talks(own))
    def holds(talk: list[tuple[PromptMessage, ...]]) -> None:
        assert_each_body_begins_the_next(AnthropicCodec, ENDPOINT, model, talk, history_bytes)

    holds()


@settings(max_examples=40, deadline=None)
@given(talks(own))
def test_every_history_fits_the_sdk(talk: list[tuple[PromptMessage, ...]]) -> None:
    """Whatever a talk holds, the official SDK's types take it, roles alternate and no blank text is sent (U36, U41)."""
    params = pytest.importorskip("anthropic.types.message_create_params")

    body = body_of(*talk[-1], system="S", tools=(WEATHER,))

    assert misfits(body, params.MessageCreateParamsStreaming) == []
    roles = [message["role"] for message in body["messages"]]
    assert roles[0] == "user"
    assert all(a != b for a, b in itertools.pairwise(roles))
    assert "SECRET" not in json.dumps(body)
    calls = [b["id"] for m in body["messages"] for b in m["content"] if b["type"] == "tool_use"]
    assert len(calls) == len(set(calls))
    for here, after in zip(body["messages"], body["messages"][1:], strict=False):
        ids = [block["id"] for block in here["content"] if block["type"] == "tool_use"]
        assert [b["tool_use_id"] for b in after["content"][: len(ids)] if b["type"] == "tool_result"] == ids


@pytest.mark.parametrize("thinking", [None, "off", "low"])
@pytest.mark.parametrize("model", ["claude-opus-5", "claude-sonnet-4-5", "claude-3-7-sonnet-latest", "claude-fable-5"])
def test_settings_fit_the_sdk(model: str, thinking: Any) -> None:
    """All settings together are what the official SDK's types allow."""
    params = pytest.importorskip("anthropic.types.message_create_params")

    body = body_of(
        said("a", MediaPart("image/png", PNG), MediaPart("application/pdf", PDF, "d.pdf")),
        model=f"anthropic/{model}",
        system="S",
        tools=(WEATHER,),
        tool_choice="required",
        format=POINT,
        thinking=thinking,
        temperature=0.3,
        stop=("X",),
        max_tokens=9000,
    )
    body.pop("temperature", None)  # models before Opus 4.7 take it (recorded), the SDK of today no longer knows it

    assert misfits(body, params.MessageCreateParamsStreaming) == []


def test_a_new_step_costs_what_is_new() -> None:
    """Python calls per request do not grow with the history (speed row 6)."""
    assert_a_step_costs_what_is_new(AnthropicCodec(), ENDPOINT, MODEL)


def test_a_talk_that_is_gone_takes_its_bytes_with_it() -> None:
    """What is kept lives as long as the messages; nothing piles up in a kernel that runs for days."""
    codec = AnthropicCodec()
    history = [said("begin")]
    for number in range(5):
        history += [answer(f"a{number}"), said(f"u{number}")]
        codec.encode(request(*history, model=MODEL), ENDPOINT)
    kept = len(codec._pieces)

    history.clear()
    gc.collect()

    assert kept == 11
    assert len(codec._pieces) == 0
    assert all(entry.written is None for entry in codec._beginnings._kept.values())


# ---------------------------------------------------------------- the answer


@needs_cases
@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_answer_goes_back_unchanged(case: WireCase) -> None:
    """Signatures, redacted thinking and server blocks of each recorded answer are sent back as they came."""
    got = decode(case, whole(case.body))
    expect = case.load("expect")
    back = PromptMessage("assistant", got.parts, message_id="m")
    asked = request_of(case)
    codec = AnthropicCodec()

    try:
        sent = codec.encode(request(said("q"), back, model=str(asked.model)), endpoint_of(case))
    except UsageError:
        pytest.fail("a recorded answer must be sendable")

    blocks = [b for m in json.loads(sent.body)["messages"] if m["role"] == "assistant" for b in m["content"]]
    raw = {canonical(block) for block in blocks}
    signatures = {sha(block["signature"]) for block in blocks if "signature" in block}
    data = {sha(block["data"]) for block in blocks if block["type"] == "redacted_thinking"}
    thoughts_at_end = 0
    for part in reversed(expect["parts"]):
        if part["type"] not in ("thinking", "redacted_thinking"):
            break
        thoughts_at_end += 1
    wanted = expect["parts"][: len(expect["parts"]) - thoughts_at_end]
    for part in wanted:
        if "raw_sha256" in part:
            assert part["raw_sha256"] in raw, part
        if "signature" in part:
            assert part["signature"]["sha256"] in signatures
        if "data" in part:
            assert part["data"]["sha256"] in data
    assert [b["id"] for b in blocks if b["type"] == "tool_use"] == [c["id"] for c in expect["tool_calls"]]


@needs_cases
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("chain-thinking-tool-turn1", "chain-thinking-tool-turn2"),
        ("chain-parallel-tools-turn1", "chain-parallel-tools-turn2"),
        ("chain-multi-tool-turn1", "chain-multi-tool-turn2"),
        ("stream-strict-tool-and-schema", "stream-strict-tool-and-schema-turn2"),
    ],
)
def test_the_second_turn_is_what_was_recorded(first: str, second: str) -> None:
    """Decoded first answer and its results, encoded, are the messages of the recorded second request."""
    recorded = WireCase(WIRE, second, ROOT / WIRE / second).load("request")["body"]["messages"]
    case = WireCase(WIRE, first, ROOT / WIRE / first)
    got = decode(case, whole(case.body))
    results = [
        result(block["tool_use_id"], _text_of(block["content"]))
        for message in recorded
        if isinstance(message["content"], list)
        for block in message["content"]
        if block["type"] == "tool_result"
    ]

    sent = AnthropicCodec().encode(
        request(
            said(_text_of(recorded[0]["content"])),
            PromptMessage("assistant", got.parts, message_id="m"),
            *results,
            model=str(request_of(case).model),
        ),
        endpoint_of(case),
    )

    assert _plain(json.loads(sent.body)["messages"]) == _plain(recorded[: 1 + 2])


def _text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(block["text"] for block in content)


def _plain(messages: list[dict[str, Any]]) -> list[Any]:
    """Messages without what is a matter of taste: marks, `caller`, and text as string or as block."""
    out = []
    for message in without_marks(messages):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        made = []
        for block in blocks:
            if block["type"] == "text" and not block["text"].strip():
                continue  # one client fills an answer of calls with a blank
            block = {k: v for k, v in block.items() if k not in ("caller", "is_error")}
            if block["type"] == "tool_result":
                block["content"] = _text_of(block["content"])
            made.append(block)
        out.append((message["role"], made))
    return out


@needs_cases
def test_citations_are_told_and_go_back() -> None:
    """Each cited stretch is a part of its own, with its source; the service's own citations go back."""
    case = WireCase(WIRE, "json-web-search", ROOT / WIRE / "json-web-search")
    got = decode(case, whole(case.body))
    cited = [part for part in got.parts if isinstance(part, TextPart) and part.citations]

    sent = AnthropicCodec().encode(
        request(said("q"), PromptMessage("assistant", got.parts), model=str(request_of(case).model)), endpoint_of(case)
    )

    assert len(cited) == 1
    assert cited[0].citations[0].url.startswith("http")
    assert isinstance(cited[0].citations[0], Citation)
    blocks = json.loads(sent.body)["messages"][1]["content"]
    back = next(block for block in blocks if block.get("citations"))
    assert back["citations"][0]["type"] == "web_search_result_location"


@needs_cases
def test_server_tools_are_shown() -> None:
    """A reader sees what was searched and run, and what came of it."""
    search = decode(case := WireCase(WIRE, "json-web-search", ROOT / WIRE / "json-web-search"), whole(case.body))
    run = decode(
        case := WireCase(WIRE, "stream-code-execution", ROOT / WIRE / "stream-code-execution"), whole(case.body)
    )

    shown = [part.text for part in (*search.parts, *run.parts) if isinstance(part, ServerPart)]

    assert "ggplot2 1.0.0 CRAN release date" in shown[0]
    assert "http" in shown[1]
    assert all(text and "encrypted" not in text for text in shown)


START = {
    "type": "message_start",
    "message": {"id": "m", "model": "x", "usage": {"input_tokens": 3, "output_tokens": 1}},
}
TEXT = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
HELLO = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "hé"}}


def test_a_cut_stream_is_an_error_after_what_was_said() -> None:
    """Text that came is handed out; then a WireError, not a silent end."""
    got, error = read(AnthropicCodec(), request(said("q"), model=MODEL), ENDPOINT, sse(START, TEXT, HELLO))

    assert TextDelta(0, "hé") in got
    assert isinstance(error, WireError)
    assert "anthropic/claude-sonnet-4-5" in error.message


@pytest.mark.parametrize(
    ("kind", "cls"),
    [("overloaded_error", Overloaded), ("rate_limit_error", RateLimited), ("authentication_error", AuthFailed)],
)
def test_an_error_inside_the_stream(kind: str, cls: type[Exception]) -> None:
    """An error event in a 200 stream is raised as what it is."""
    event = {"type": "error", "error": {"type": kind, "message": "busy"}}

    got, error = read(AnthropicCodec(), request(said("q"), model=MODEL), ENDPOINT, sse(START, TEXT, HELLO, event))

    assert TextDelta(0, "hé") in got
    assert type(error) is cls


@pytest.mark.parametrize(
    "data",
    [
        b"{nonsense",
        b"[1]",
        b'"x"',
        b'{"type":"content_block_delta"}',
        b'{"type":"content_block_delta","index":0,"delta":5}',
    ],
)
def test_bytes_that_are_not_the_protocol(data: bytes) -> None:
    """Wrong JSON and wrong shapes are a WireError that shows them."""
    _, error = read(AnthropicCodec(), request(said("q"), model=MODEL), ENDPOINT, sse(START, TEXT, data))

    assert isinstance(error, WireError)


def test_unknown_events_and_blocks_are_kept_in_place() -> None:
    """What we do not know yet is no error; a block is kept, grown and sent back (GOTCHAS 15)."""
    codec, asked = AnthropicCodec(), request(said("q"), model=MODEL)
    builder = MessageBuilder()

    for delta in deltas_of(
        codec,
        asked,
        ENDPOINT,
        sse(
            START,
            {"type": "brand_new_event", "x": 1},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "hologram", "beam": "a"}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "beam_delta", "beam": "b"}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "novel_reason"}, "usage": {"output_tokens": 2}},
            {"type": "message_stop"},
            b"[DONE]",
        ),
    ):
        builder.feed(delta)
    sent = codec.encode(request(said("q"), PromptMessage("assistant", builder.parts), model=MODEL), ENDPOINT)

    assert builder.finished == Finished("other", "novel_reason")
    assert json.loads(sent.body)["messages"][1]["content"] == [{"type": "hologram", "beam": "ab"}]


def test_usage_has_one_meaning() -> None:
    """Input counts cached tokens; the placeholder at the start is not told; later counts replace (GOTCHAS 13, 18)."""
    start = {
        "type": "message_start",
        "message": {
            "usage": {
                "input_tokens": 5,
                "cache_read_input_tokens": 100,
                "cache_creation_input_tokens": 20,
                "output_tokens": 2,
            }
        },
    }
    builder = MessageBuilder()

    for delta in deltas_of(
        AnthropicCodec(),
        request(said("q"), model=MODEL),
        ENDPOINT,
        sse(
            start,
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}},
            {"type": "message_stop"},
        ),
    ):
        builder.feed(delta)

    assert builder.tokens == Tokens(input=125, output=7, cache_read=100, cache_write=20)


def test_a_chunk_of_text_costs_few_calls_however_long_the_answer() -> None:
    """Python calls per chunk: few, and the same at the 10,000th (speed rows 1c and 3)."""
    decoder = AnthropicCodec().decoder(request(said("q"), model=MODEL), ENDPOINT)
    for event in (START, TEXT):
        decoder.feed(ServerEvent("", json.dumps(event).encode()))

    assert_a_chunk_costs_few_calls(decoder, ServerEvent("", json.dumps(HELLO).encode()), 5)


def test_what_models_take_is_told_from_all_forms_of_their_names() -> None:
    """Dates, dots, prefixes and gateways' names do not mislead."""
    assert takes("claude-sonnet-4-20250514").adaptive is False
    assert takes("us.anthropic.claude-opus-4-8-v1:0").system_turns
    assert takes("claude-opus-5").system_turns
    assert not takes("claude-sonnet-5").system_turns
    assert takes("claude-3-opus-20240229").max_tokens == 4096
    assert takes("claude-3-7-sonnet-20250219").thinks
    assert not takes("claude-haiku-4-5").adaptive
    assert takes("kimi-k2").sampling
