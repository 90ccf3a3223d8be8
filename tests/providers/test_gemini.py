"""The Gemini wire: what is sent, what comes back, what goes back unchanged."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings

from kit_jupyter.errors import Overloaded, UsageError, WireError
from kit_jupyter.messages import (
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
from kit_jupyter.providers._gemini_answer import _path
from kit_jupyter.providers.codec import Endpoint, ServerEvent
from kit_jupyter.providers.gemini import FOREIGN_SIGNATURE, WIRE, GeminiCodec

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
from .wire_cases import ROOT, WireCase, all_cases, decode, endpoint_of, request_of, whole

MODEL = "gemini/gemini-3-pro"
OLDER = "gemini/gemini-2.5-flash"
ENDPOINT = Endpoint(name="gemini", base_url="https://generativelanguage.googleapis.com/v1beta", api_key="AIza-planted")
CASES = [case for case in all_cases(WIRE) if case.load("expect")["outcome"] == "message"]
needs_cases = pytest.mark.skipif(not CASES, reason=f"no recorded cases at {ROOT}; set KIT_WIRE_CASES")


def body_of(
    *messages: PromptMessage, model: str = MODEL, endpoint: Endpoint = ENDPOINT, **facts: Any
) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(GeminiCodec().encode(request(*messages, model=model, **facts), endpoint).body)
    return value


def contents_of(*messages: PromptMessage, **facts: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body_of(*messages, **facts)["contents"]
    return found


def own(kind: str) -> Native:
    if kind == "thinking":
        return Native(WIRE, {"from": MODEL, "signature": "c2ln"})
    return Native(WIRE, {"from": MODEL, "part": {"executableCode": {"language": "PYTHON", "code": "1"}}})


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# ---------------------------------------------------------------- the request


def test_url_headers_and_key() -> None:
    """The key goes in a header and never in the URL, which logs and errors show (GOTCHAS 77)."""
    sent = GeminiCodec().encode(request(said("hi"), model=MODEL), ENDPOINT)

    assert sent.url == (
        "https://generativelanguage.googleapis.com/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse"
    )
    assert sent.headers["x-goog-api-key"] == "AIza-planted"
    assert "planted" not in sent.url + repr(sent) + sent.body.decode()


def test_vertex_takes_a_bearer_token() -> None:
    """Vertex has another address and another way to say who asks."""
    base = "https://us-central1-aiplatform.googleapis.com/v1/projects/p/locations/us-central1/publishers/google"

    sent = GeminiCodec().encode(
        request(said("hi"), model="vertex/gemini-2.5-pro"), Endpoint(name="vertex", base_url=base, api_key="ya29")
    )

    assert sent.url == f"{base}/models/gemini-2.5-pro:streamGenerateContent?alt=sse"
    assert sent.headers["authorization"] == "Bearer ya29"
    assert "x-goog-api-key" not in sent.headers


@pytest.mark.parametrize(
    ("base", "model", "path"),
    [
        ("https://h.test", "gemini-3-pro", "/v1beta/models/gemini-3-pro"),
        ("https://h.test/v1/", "tunedModels/mine", "/v1/tunedModels/mine"),
        ("https://h.test/gateway/v1beta", "models/gemini-3-pro", "/gateway/v1beta/models/gemini-3-pro"),
        ("https://h.test/v1", "odd?name#x", "/v1/models/odd%3Fname%23x"),
    ],
)
def test_addresses_of_gateways_and_model_names(base: str, model: str, path: str) -> None:
    """A bare host gets the version; a model's name is kept, and cannot leave its place in the URL (U74)."""
    sent = GeminiCodec().encode(request(said("hi"), model=f"g/{model}"), Endpoint(name="g", base_url=base))

    assert sent.url == f"https://h.test{path}:streamGenerateContent?alt=sse"


def test_one_body_instead_of_a_stream() -> None:
    """`stream` false asks for generateContent."""
    sent = GeminiCodec().encode(request(said("hi"), model=MODEL, extra={"stream": False}), ENDPOINT)

    assert sent.url.endswith("/models/gemini-3-pro:generateContent")
    assert not sent.stream
    assert "stream" not in json.loads(sent.body)


def test_all_that_a_request_can_say() -> None:
    """System, tools, choice and settings are in their places."""
    bare = ToolSpec(name="now", description="", schema={"type": "object", "properties": {}})

    body = body_of(
        said("hi"),
        system="Be short.",
        tools=(WEATHER, bare),
        tool_choice="weather",
        max_tokens=100,
        temperature=0.5,
        stop=("END",),
        format=POINT,
        extra={"tools": [{"googleSearch": {}}], "generationConfig": {"topK": 3}, "cachedContent": "c"},
    )

    assert body["systemInstruction"] == {"parts": [{"text": "Be short."}]}
    functions = body["tools"][0]["functionDeclarations"]
    assert functions[0] == {
        "name": "weather",
        "description": "Weather of a city",
        "parametersJsonSchema": dict(WEATHER.schema),
    }
    assert functions[1] == {"name": "now", "description": "now"}
    assert body["tools"][1] == {"googleSearch": {}}
    assert body["toolConfig"] == {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["weather"]}}
    assert body["generationConfig"] == {
        "maxOutputTokens": 100,
        "temperature": 0.5,
        "stopSequences": ["END"],
        "responseMimeType": "application/json",
        "responseJsonSchema": POINT,
        "topK": 3,
    }
    assert body["cachedContent"] == "c"


@pytest.mark.parametrize(
    ("model", "level", "config"),
    [
        ("gemini-3.5-flash", "medium", {"includeThoughts": True, "thinkingLevel": "medium"}),
        ("gemini-3-pro", "medium", {"includeThoughts": True, "thinkingLevel": "high"}),
        ("gemini-3.5-flash", "off", {"thinkingLevel": "minimal"}),
        ("gemini-3.1-pro-preview", "off", {"thinkingLevel": "low"}),
        ("gemini-2.5-flash", "low", {"includeThoughts": True, "thinkingBudget": 1024}),
        ("gemini-2.5-flash", "off", {"thinkingBudget": 0}),
        ("gemini-2.5-pro", "off", {"thinkingBudget": 128}),
        ("gemini-2.0-flash", "high", None),
    ],
)
def test_thinking_levels(model: str, level: Any, config: Any) -> None:
    """A level becomes a level or a budget, whichever the generation takes."""
    body = body_of(said("hi"), model=f"gemini/{model}", thinking=level)

    assert body.get("generationConfig", {}).get("thinkingConfig") == config


def test_a_schema_beside_tools_goes_through_a_tool_before_gemini_3() -> None:
    """Gemini 2.5 refuses a JSON answer and functions in one request; the reader sees text all the same."""
    asked = request(said("hi"), model=OLDER, format=POINT, tools=(WEATHER,))
    body = json.loads(GeminiCodec().encode(asked, ENDPOINT).body)
    chunk = {
        "candidates": [
            {
                "content": {"parts": [{"functionCall": {"name": "final_answer", "args": {"x": 1, "y": 2}}}]},
                "finishReason": "STOP",
            }
        ]
    }
    builder = MessageBuilder()

    for delta in deltas_of(GeminiCodec(), asked, ENDPOINT, sse(chunk)):
        builder.feed(delta)

    assert [f["name"] for f in body["tools"][0]["functionDeclarations"]] == ["weather", "final_answer"]
    assert body["toolConfig"]["functionCallingConfig"] == {"mode": "ANY"}
    assert "generationConfig" not in body
    assert json.loads(builder.text) == {"x": 1, "y": 2}
    assert builder.finished == Finished("stop", "STOP")
    assert "final_answer" not in json.dumps(body_of(said("hi"), format=POINT, tools=(WEATHER,)))


def test_an_empty_request_is_refused_here() -> None:
    """A request without content names what is wrong before any byte is sent."""
    with pytest.raises(UsageError, match="no message with content"):
        body_of()


# ---------------------------------------------------------------- the history


def test_results_stand_behind_their_calls_in_their_order() -> None:
    """Without ids services match by order; all results of a step are one content, words follow in another."""
    sent = contents_of(
        said("a"),
        answer(call("c1"), call("c2")),
        result("c2", "two", is_error=True),
        said("meanwhile"),
        result("c1", "one"),
        model=OLDER,
    )

    assert [content["role"] for content in sent] == ["user", "model", "user", "user"]
    assert [part["functionResponse"]["response"] for part in sent[2]["parts"]] == [{"output": "one"}, {"error": "two"}]
    assert sent[3]["parts"] == [{"text": "meanwhile"}]


def test_results_of_calls_with_one_id_stand_in_the_order_of_those_calls() -> None:
    """Two calls of one answer may bear one id: the first result answers the first of them."""
    sent = contents_of(
        said("a"),
        answer(call("c"), call("d", name="other"), call("c")),
        result("c", "first"),
        result("c", "third"),
        result("d", "second", name="other"),
        model=OLDER,
    )

    told = [part["functionResponse"]["response"]["output"] for part in sent[2]["parts"]]
    assert told == ["first", "second", "third"]


def test_a_history_that_begins_with_an_answer_gets_a_user_content_first() -> None:
    """Contents begin on the user's side."""
    assert [content["role"] for content in contents_of(answer("x"), said("b"))] == ["user", "model", "user"]


def test_ids_go_back_where_the_service_gave_them() -> None:
    """Gemini 3 gives ids, older ones and Vertex do not know them (GOTCHAS 69)."""
    given_id = Native(WIRE, {"from": MODEL, "id": "g1", "signature": "c2ln"})

    sent = contents_of(said("a"), answer(call("g1", native=given_id), call("made")), result("g1"), result("made"))

    assert [part["functionCall"].get("id") for part in sent[1]["parts"]] == ["g1", None]
    assert [part["functionResponse"].get("id") for part in sent[2]["parts"]] == ["g1", None]


def test_signatures_stay_on_their_part_and_with_their_model() -> None:
    """Own ones go back where they stood; the first call of a step by another maker gets the documented one."""
    text = TextPart("so", native=own("thinking"))
    empty = TextPart("", native=own("thinking"))

    mine = contents_of(said("a"), answer("plain", text, empty, call("c", native=own("thinking"))), result("c"))
    foreign = contents_of(said("a"), answer(call("c1"), call("c2")), result("c1"), result("c2"))
    older = contents_of(said("a"), answer(call("c1")), result("c1"), model=OLDER)
    switched = contents_of(said("a"), answer(text), said("b"), model="gemini/gemini-3.5-flash")

    assert [part.get("thoughtSignature") for part in mine[1]["parts"]] == [None, "c2ln", "c2ln", "c2ln"]
    assert mine[1]["parts"][2]["text"] == ""
    assert [part.get("thoughtSignature") for part in foreign[1]["parts"]] == [FOREIGN_SIGNATURE, None]
    assert "thoughtSignature" not in older[1]["parts"][0]
    assert switched[1]["parts"] == [{"text": "so"}]


def test_thinking_refusals_and_server_parts_of_other_wires() -> None:
    """Thoughts are not sent, a refusal is text, server parts of others stay away, own ones go back."""
    foreign = ServerPart("call", "web_search", Native("anthropic-messages", {"from": MODEL, "block": {"x": 1}}))

    sent = contents_of(
        said("a"),
        answer(ThinkingPart("hm"), RefusalPart("no"), foreign, ServerPart("call", "code_execution", own("server"))),
    )

    assert sent[1]["parts"] == [{"text": "no"}, {"executableCode": {"language": "PYTHON", "code": "1"}}]


def test_an_instruction_inside_the_history_is_an_envelope() -> None:
    """The wire has system text only before all contents."""
    sent = contents_of(said("a"), answer(call()), result(), said("In French.", role="system"))

    assert sent[-1]["parts"] == [{"text": "<system-reminder>\nIn French.\n</system-reminder>"}]


@pytest.mark.parametrize(("cut", "args"), [('{"city": "Os', {"INVALID_JSON": '{"city": "Os'}), ("", {})])
def test_arguments_that_are_no_object(cut: str, args: Any) -> None:
    """The model sees what it wrote, and the request stays valid (U41)."""
    sent = contents_of(said("a"), answer(call(arguments=cut)), result())

    assert sent[1]["parts"][0]["functionCall"]["args"] == args


# ---------------------------------------------------------------- media


def test_media_in() -> None:
    """Images, PDF, audio and video as data, text files as text."""
    sent = contents_of(
        said(
            "look",
            MediaPart("image/png", PNG),
            MediaPart("application/pdf", PDF),
            MediaPart("audio/wav", PNG),
            MediaPart("video/mp4", PNG),
            MediaPart.of_bytes(b"x,y", "text/csv", "t.csv"),
        )
    )

    kinds = [part["inlineData"]["mimeType"] for part in sent[0]["parts"][1:5]]
    assert kinds == ["image/png", "application/pdf", "audio/wav", "video/mp4"]
    assert sent[0]["parts"][5] == {"text": "t.csv:\nx,y"}


@pytest.mark.parametrize("kind", ["application/zip", "image/tiff"])
def test_media_it_cannot_carry_are_named(kind: str) -> None:
    """UsageError with part, wire and message; never base64 as text."""
    with pytest.raises(UsageError, match=rf"{WIRE} cannot carry the {kind} part of message msg_"):
        body_of(said("open", MediaPart(kind, PNG)))


def test_media_in_results() -> None:
    """Gemini 3 takes media inside a result; for older models they follow it, outside the function responses."""
    history = (said("a"), answer(call()), result("call_1", "plot:", MediaPart("image/png", PNG), MediaPart("x/y", PNG)))

    new, old = contents_of(*history), contents_of(*history, model=OLDER)

    inside = new[2]["parts"][0]["functionResponse"]
    assert inside["parts"] == [{"inlineData": {"mimeType": "image/png", "data": PNG}}]
    assert inside["response"]["output"].startswith("plot:\n[x/y: left out")
    assert "parts" not in old[2]["parts"][0]["functionResponse"]
    assert old[3]["parts"][1] == {"inlineData": {"mimeType": "image/png", "data": PNG}}


# ---------------------------------------------------------------- laws


def history_bytes(body: bytes) -> bytes:
    start = body.index(b'"contents":[') + len(b'"contents":[')
    assert body.endswith(b"]}")
    return body[start:-2]


@pytest.mark.parametrize("model", [MODEL, OLDER])
def test_the_bytes_of_a_history_are_a_prefix_of_the_next(model: str) -> None:
    """The prefix cache law; and what is kept never changes what is sent."""

    @settings(max_examples=60, deadline=None)
    @given(talks(own))
    def holds(talk: list[tuple[PromptMessage, ...]]) -> None:
        assert_each_body_begins_the_next(GeminiCodec, ENDPOINT, model, talk, history_bytes)

    holds()


@pytest.mark.parametrize("model", [MODEL, OLDER])
def test_every_history_fits_the_sdk(model: str) -> None:
    """Whatever a talk holds, the official SDK's models take it; each step's responses match its calls (U36, U41)."""
    types = pytest.importorskip("google.genai.types")

    @settings(max_examples=30, deadline=None)
    @given(talks(own))
    def holds(talk: list[tuple[PromptMessage, ...]]) -> None:
        body = body_of(*talk[-1], model=model, system="S", tools=(WEATHER,))

        contents = [types.Content.model_validate(content) for content in body["contents"]]
        assert contents[0].role == "user"
        assert all(content.parts for content in contents)
        assert "SECRET" not in json.dumps(body)
        for here, after in itertools.pairwise(body["contents"]):
            calls = [part["functionCall"]["name"] for part in here["parts"] if "functionCall" in part]
            responses = [part["functionResponse"]["name"] for part in after["parts"] if "functionResponse" in part]
            if calls:
                assert calls == responses
                assert len(after["parts"]) == len(responses)

    holds()


@pytest.mark.parametrize("model", ["gemini-3.5-flash", "gemini-2.5-pro", "gemini-2.0-flash"])
def test_settings_fit_the_sdk(model: str) -> None:
    """All settings together are what the official SDK's models take, unknown fields refused."""
    types = pytest.importorskip("google.genai.types")

    body = body_of(
        said("a", MediaPart("image/png", PNG)),
        model=f"gemini/{model}",
        system="S",
        tools=(WEATHER,),
        tool_choice="required",
        format=POINT,
        thinking="high",
        temperature=0.3,
        stop=("X",),
        max_tokens=900,
    )

    types.Content.model_validate(body.pop("systemInstruction"))
    for tool in body.pop("tools"):
        types.Tool.model_validate(tool)
    types.ToolConfig.model_validate(body.pop("toolConfig"))
    types.GenerationConfig.model_validate(body.pop("generationConfig"))
    for content in body.pop("contents"):
        types.Content.model_validate(content)
    assert body == {}


def test_a_new_step_costs_what_is_new() -> None:
    """Python calls per request do not grow with the history (speed row 6)."""
    assert_a_step_costs_what_is_new(GeminiCodec(), ENDPOINT, MODEL)


# ---------------------------------------------------------------- the answer


@needs_cases
@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_answer_goes_back_unchanged(case: WireCase) -> None:
    """Signatures of each recorded answer go back on the part that bore them, calls and server parts in order."""
    got = decode(case, whole(case.body))
    expect = case.load("expect")
    back = PromptMessage("assistant", got.parts, message_id="m")

    sent = GeminiCodec().encode(request(said("q"), back, model=str(request_of(case).model)), endpoint_of(case))

    contents = json.loads(sent.body)["contents"]
    parts = [] if len(contents) == 1 else contents[1]["parts"]
    ours = [(_kind(part), sha(part["thoughtSignature"])) for part in parts if _is_real(part)]
    theirs = [(part["type"], part["signature"]["sha256"]) for part in expect["parts"] if part.get("signature")]
    assert ours == theirs
    calls = [part["functionCall"] for part in parts if "functionCall" in part]
    assert [(c["name"], c["args"], c.get("id")) for c in calls] == [
        (c["name"], c["args"], c["id"]) for c in expect["tool_calls"]
    ]
    kinds = [_kind(part) for part in parts if _kind(part) != "text"]
    wanted = [p["type"] for p in expect["parts"] if p["type"] not in ("text", "thinking")]
    assert kinds == wanted


def _is_real(part: dict[str, Any]) -> bool:
    return part.get("thoughtSignature") not in (None, FOREIGN_SIGNATURE)


def _kind(part: dict[str, Any]) -> str:
    for key, kind in (
        ("functionCall", "tool_call"),
        ("executableCode", "server_tool_call"),
        ("codeExecutionResult", "server_tool_result"),
        ("inlineData", "media"),
    ):
        if key in part:
            return kind
    return "text"


@needs_cases
@pytest.mark.parametrize(
    ("first", "second"),
    [("chain-tool-turn1", "chain-tool-turn2"), ("mixed-tools-turn1", "mixed-tools-turn2")],
)
def test_the_second_turn_is_what_was_recorded(first: str, second: str) -> None:
    """Decoded first answer and its result, encoded, are the contents of the recorded second request."""
    recorded = WireCase(WIRE, second, ROOT / WIRE / second).load("request")["body"]["contents"]
    case = WireCase(WIRE, first, ROOT / WIRE / first)
    got = decode(case, whole(case.body))
    response = recorded[-1]["parts"][0]["functionResponse"]

    sent = GeminiCodec().encode(
        request(
            said(recorded[0]["parts"][0]["text"]),
            PromptMessage("assistant", got.parts),
            result(response["id"], response["response"]["result"], name=response["name"]),
            model=str(request_of(case).model),
        ),
        endpoint_of(case),
    )

    ours = json.loads(sent.body)["contents"]
    # That client calls what came of it "result"; the service documents "output".
    assert ours[-1]["parts"][0]["functionResponse"].pop("response") == {
        "output": response.pop("result", None) or response.pop("response")["result"]
    }
    text = json.dumps(recorded).replace("-", "+").replace("_", "/")  # one client writes the URL-safe alphabet
    assert json.dumps(ours, sort_keys=True).replace("-", "+").replace("_", "/") == json.dumps(
        json.loads(text), sort_keys=True
    )


def chunk(*parts: dict[str, Any], stop: Any = None, **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, **more}
    if stop is not None:
        candidate["finishReason"] = stop
    return {"candidates": [candidate], "responseId": "r1", "modelVersion": "m"}


def built(*chunks: Any) -> MessageBuilder:
    builder = MessageBuilder()
    for delta in deltas_of(GeminiCodec(), request(said("q"), model=MODEL), ENDPOINT, sse(*chunks)):
        builder.feed(delta)
    return builder


def test_arguments_streamed_by_path() -> None:
    """Strings in pieces, numbers, flags, nothing, objects and lists are put together (GOTCHAS 71)."""

    def more(*partial: dict[str, Any]) -> dict[str, Any]:
        return chunk({"functionCall": {"partialArgs": list(partial), "willContinue": True}})

    builder = built(
        chunk({"functionCall": {"name": "f", "willContinue": True}, "thoughtSignature": "s"}),
        more(
            {"jsonPath": "$.a", "stringValue": "He", "willContinue": True}, {"jsonPath": "$.b[0].c", "numberValue": 3.0}
        ),
        more({"jsonPath": "$.a", "stringValue": "llo"}, {"jsonPath": "$['odd key']", "boolValue": True}),
        more({"jsonPath": "$.b[1]", "nullValue": "NULL_VALUE"}, {"jsonPath": "$.a", "stringValue": ""}),
        chunk({"functionCall": {}}),
        chunk({"functionCall": {"name": "g"}}, stop="STOP"),
    )

    first, second = builder.parts
    assert isinstance(first, ToolCallPart)
    assert json.loads(first.arguments) == {"a": "Hello", "b": [{"c": 3}, None], "odd key": True}
    assert isinstance(second, ToolCallPart)
    assert (second.name, second.arguments) == ("g", "")
    assert first.native is not None
    assert first.native.data["signature"] == "s"
    assert first.call_id != second.call_id


def test_json_paths() -> None:
    """Names, indices and quoted names."""
    assert _path("$.a[0]['b.c'][\"d\"].e") == ["a", 0, "b.c", "d", "e"]


def test_a_call_cut_off_while_it_streams_is_kept_as_far_as_it_came() -> None:
    """The stream ends properly, the call does not."""
    builder = built(
        chunk({"functionCall": {"name": "f", "willContinue": True}}),
        chunk(
            {"functionCall": {"partialArgs": [{"jsonPath": "$.a", "stringValue": "x"}], "willContinue": True}},
            stop="MAX_TOKENS",
        ),
    )

    (part,) = builder.parts
    assert isinstance(part, ToolCallPart)
    assert json.loads(part.arguments) == {"a": "x"}
    assert builder.finished == Finished("length", "MAX_TOKENS")


def test_made_up_ids_are_the_same_each_time_and_never_twice() -> None:
    """Decoding again gives the same ids; two answers never share one."""
    calls = chunk({"functionCall": {"name": "f"}}, {"functionCall": {"name": "f"}}, stop="STOP")
    other = {**calls, "responseId": "r2"}

    ids = [[p.call_id for p in built(c).parts if isinstance(p, ToolCallPart)] for c in (calls, calls, other)]

    assert ids[0] == ids[1]
    assert len({*ids[0], *ids[2]}) == 4


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("STOP", "stop"),
        (1, "stop"),
        ("MAX_TOKENS", "length"),
        (2, "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("MALFORMED_FUNCTION_CALL", "error"),
        ("BRAND_NEW", "other"),
    ],
)
def test_why_it_stopped(stop: Any, reason: str) -> None:
    """Words and numbers of the enum (GOTCHAS 75), and one nobody knows."""
    got = built(chunk({"text": "x"}, stop=stop, finishMessage="why")).finished

    assert got == Finished(reason, str(stop), "why")


def test_a_blocked_prompt() -> None:
    """No candidate, only feedback: filtered, with the reason (GOTCHAS 73)."""
    got = built({"promptFeedback": {"blockReason": "SAFETY", "blockReasonMessage": "no"}})

    assert got.parts == ()
    assert got.finished == Finished("content_filter", None, "SAFETY: no")


def test_stop_in_the_middle_is_not_the_end() -> None:
    """2.5 models with code execution say STOP and go on (GOTCHAS 67)."""
    assert built(chunk({"text": "a"}, stop="STOP"), chunk({"text": "b"}, stop="STOP")).text == "ab"


def test_the_first_of_several_candidates_is_the_answer() -> None:
    """Candidates of one request are told apart by their index, also when they come alone (GOTCHAS 51)."""
    other = {"candidates": [{"index": 1, "content": {"parts": [{"text": "other"}]}, "finishReason": "STOP"}]}
    both = {
        "candidates": [
            {"index": 1, "content": {"parts": [{"text": "other"}]}},
            {"content": {"parts": [{"text": "mine"}]}, "finishReason": "STOP"},
        ]
    }

    assert built(other, both).text == "mine"


def test_citations_of_grounding() -> None:
    """Each supported stretch names its pages; pages without a stretch are named too."""
    grounding = {
        "groundingChunks": [{"web": {"uri": "https://a.test", "title": "A"}}, {"web": {"uri": "https://b.test"}}],
        "groundingSupports": [{"segment": {"text": "hé"}, "groundingChunkIndices": [0, 7]}],
    }
    builder = built(chunk({"text": "hé"}), chunk({"text": ""}, stop="STOP", groundingMetadata=grounding))

    (part,) = builder.parts
    assert isinstance(part, TextPart)
    assert [(c.url, c.title, c.text) for c in part.citations] == [
        ("https://a.test", "A", "hé"),
        ("https://b.test", "", ""),
    ]


def test_usage_has_one_meaning() -> None:
    """Tool-use prompts are input, thoughts are output; the last word counts (GOTCHAS 13, 76)."""
    usage = {
        "promptTokenCount": 10,
        "toolUsePromptTokenCount": 5,
        "candidatesTokenCount": 3,
        "thoughtsTokenCount": 4,
        "cachedContentTokenCount": 6,
    }

    builder = built(
        {**chunk({"text": "a"}), "usageMetadata": {"promptTokenCount": 1}},
        {**chunk(stop="STOP"), "usageMetadata": usage},
    )

    assert builder.tokens == Tokens(input=15, output=7, reasoning=4, cache_read=6)


def test_an_error_inside_the_stream_and_in_a_whole_answer() -> None:
    """An error object in a 200 answer is raised as what it is."""
    error = {"error": {"code": 503, "status": "UNAVAILABLE", "message": "overloaded"}}
    asked = request(said("q"), model=MODEL)

    got, streamed = read(GeminiCodec(), asked, ENDPOINT, sse(chunk({"text": "hé"}), error))
    _, whole_answer = read(GeminiCodec(), asked, ENDPOINT, json.dumps([error]).encode())

    assert TextDelta(0, "hé") in got
    assert isinstance(streamed, Overloaded)
    assert isinstance(whole_answer, Overloaded)


@pytest.mark.parametrize(
    "data", [b"{nonsense", b"[1]", b'{"candidates":5}', b'{"candidates":[{"content":{"parts":[1]}}]}']
)
def test_bytes_that_are_not_the_protocol(data: bytes) -> None:
    """Wrong JSON and wrong shapes are a WireError."""
    _, error = read(GeminiCodec(), request(said("q"), model=MODEL), ENDPOINT, sse(chunk({"text": "a"}), data))

    assert isinstance(error, WireError)


def test_a_cut_stream_is_an_error_after_what_was_said() -> None:
    """Without any finishReason the answer was cut."""
    got, error = read(GeminiCodec(), request(said("q"), model=MODEL), ENDPOINT, sse(chunk({"text": "hé"})))

    assert TextDelta(0, "hé") in got
    assert isinstance(error, WireError)


def test_unknown_parts_are_kept_in_place_and_sent_back() -> None:
    """What we do not know yet is no error (GOTCHAS 15)."""
    part = {"hologram": {"beam": 1}, "thoughtSignature": "s"}
    builder = built(chunk({"text": "a"}, part, {"text": "b"}, stop="STOP"))

    sent = contents_of(said("q"), PromptMessage("assistant", builder.parts))

    assert sent[1]["parts"] == [{"text": "a"}, part, {"text": "b"}]


@needs_cases
def test_server_tools_are_shown() -> None:
    """A reader sees the code that ran and what came of it."""
    got = decode(
        case := WireCase(WIRE, "stream-code-execution", ROOT / WIRE / "stream-code-execution"), whole(case.body)
    )

    shown = [part.text for part in got.parts if isinstance(part, ServerPart)]

    assert "65465" in shown[0]
    assert "-428330955" in shown[1]


def test_a_chunk_of_text_costs_few_calls_however_long_the_answer() -> None:
    """Python calls per chunk: few, and the same at the 10,000th (speed rows 1c and 3)."""
    decoder = GeminiCodec().decoder(request(said("q"), model=MODEL), ENDPOINT)

    assert_a_chunk_costs_few_calls(decoder, ServerEvent("", json.dumps(chunk({"text": "hé"})).encode()), 6)
