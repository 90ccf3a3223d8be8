"""Tool calls for models without a tool template: the rewritten request, and the answer read while it grows."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit_jupyter.errors import UsageError
from kit_jupyter.messages import (
    Finished,
    MediaPart,
    MessageBuilder,
    ModelRef,
    ResponseFacts,
    TextDelta,
    TextPart,
    ThinkingDelta,
    Tokens,
    ToolCallPart,
    ToolSpec,
    UsageDelta,
)
from kit_jupyter.prompt import PromptMessage, ToolResultPart
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers.answer_reader import AnswerReader
from kit_jupyter.providers.codec import Endpoint, HttpCall, ServerEvent
from kit_jupyter.providers.schema_bounds import bounded
from kit_jupyter.providers.schema_mode import SchemaCodec, rewrite

WEATHER = ToolSpec(
    name="get_weather",
    description="Get the weather of a city.",
    schema={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
MEAN = ToolSpec(
    name="column_mean",
    description="Compute the mean of a column.\n\nLonger text that no small model should read.",
    schema={
        "type": "object",
        "properties": {"column": {"type": "string"}, "digits": {"type": "integer", "default": 2}},
        "required": ["column"],
    },
)
BOTH = (WEATHER, MEAN)


def said(text, role="user"):
    return PromptMessage(role, (TextPart(text),))


def called(name, arguments, call_id="call_1"):
    return PromptMessage("assistant", (ToolCallPart(call_id, name, arguments),))


def came(name, text, call_id="call_1", is_error=False):
    return PromptMessage("tool", (ToolResultPart(call_id, name, (TextPart(text),), is_error),))


def request(*messages, **facts):
    return ModelRequest(model=ModelRef("local", "m"), messages=messages or (said("Hello"),), **facts)


def names(changed):
    """Which tools a rewritten request lets be called, with "answer" for words."""
    forms = changed.format.get("anyOf", [changed.format])
    return [form["properties"].get("tool", {"const": "answer"})["const"] for form in forms]


def pieces_of(cuts, **options):
    """Kinds and joined text of what the reader gives for a text in pieces."""
    reader = AnswerReader(**options)
    out = [piece for cut in cuts for piece in reader.feed(cut)] + reader.end()
    joined = []
    for kind, text in out:
        if joined and joined[-1][0] == kind and kind != "call":
            joined[-1] = (kind, joined[-1][1] + text)
        else:
            joined.append((kind, text))
    return joined, reader.is_complete


# ---------------------------------------------------------------- the request


def test_tools_become_text_examples_and_a_form():
    """No tool field is left; the system text lists them and the answer must be one of the forms."""
    changed = rewrite(request(system="Be brief.", tools=BOTH))

    assert changed.tools == ()
    assert changed.system.startswith("Be brief.")
    assert "- get_weather(city: string): Get the weather of a city." in changed.system
    assert names(changed) == ["get_weather", "column_mean", "answer"]
    assert "no small model" not in changed.system


def test_examples_are_valid_calls_of_the_tools():
    """Two to four examples, made from the schemas, that the form itself would accept."""
    import jsonschema

    changed = rewrite(request(said("x"), tools=BOTH))

    examples = [json.loads(m.parts[0].text) for m in changed.messages if m.role == "assistant"]
    assert 2 <= len([e for e in examples if "tool" in e]) <= 4
    for example in examples:
        jsonschema.validate(example, changed.format)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {}},
        {"type": "object", "properties": {"kind": {"enum": ["a", "b"]}}, "required": ["kind"]},
        {"type": "object", "properties": {"n": {"type": "integer", "minimum": 10, "maximum": 12}}, "required": ["n"]},
        {"type": "object", "properties": {"n": {"anyOf": [{"type": "null"}, {"type": "number"}]}}, "required": ["n"]},
        {"type": "object", "properties": {"xs": {"type": "array", "items": {"type": "boolean"}}}, "required": ["xs"]},
        {"type": "object", "properties": {"q": {"type": "string", "maxLength": 2}}, "required": ["q"]},
        {"type": "object", "properties": {"where": {"type": "string", "examples": ["Rome"]}}, "required": ["where"]},
        {
            "type": "object",
            "properties": {"at": {"$ref": "#/$defs/Point"}},
            "required": ["at"],
            "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
        },
    ],
    ids=["none", "enum", "range", "optional", "array", "short", "examples", "reference"],
)
def test_examples_fit_any_schema(schema):
    """Whatever a tool's schema says, the examples shown to the model obey it."""
    import jsonschema

    changed = rewrite(request(tools=(ToolSpec(name="f", description="", schema=schema),)))

    calls = [json.loads(m.parts[0].text) for m in changed.messages if m.role == "assistant"]
    calls = [call["arguments"] for call in calls if "tool" in call]
    assert calls
    for arguments in calls:
        jsonschema.validate(arguments, schema)


def test_prompt_stays_lean_with_many_tools():
    """Twelve tools with long descriptions: system and examples stay near 300 tokens, no tool is lost."""
    tools = tuple(
        ToolSpec(
            name=f"tool_number_{n}",
            description="Does something that takes a long sentence to describe, with many words and more words. " * 3,
            schema={
                "type": "object",
                "properties": {f"argument_{i}": {"type": "string", "description": "long " * 20} for i in range(3)},
                "required": ["argument_0"],
            },
        )
        for n in range(12)
    )

    changed = rewrite(request(system="You are a helpful assistant. Answer briefly.", tools=tools))

    own = changed.system + "".join(m.parts[0].text for m in changed.messages[:-1])
    assert len(own) < 1800
    assert all(tool.name in changed.system for tool in tools)


def test_examples_do_not_depend_on_the_question():
    """What precedes the history is the same in each request, so the server's cache holds."""
    first = rewrite(request(said("weather in Rome?"), tools=BOTH), tiny=True)
    second = rewrite(request(said("hello"), tools=BOTH), tiny=True)

    assert first.system == second.system
    assert first.messages[:-1] == second.messages[:-1]


def test_history_is_a_prefix_of_the_next_request():
    """The prefix law: what was sent stays, byte for byte, when the talk goes on."""
    turn = [said("Weather in Rome?"), called("get_weather", '{"city":"Rome"}'), came("get_weather", "sunny")]
    more = [*turn, said("It is sunny.", "assistant"), said("And in Oslo?")]

    for cut in (1, 3):
        before, after = rewrite(request(*turn[:cut], tools=BOTH)), rewrite(request(*more, tools=BOTH))

        assert after.messages[: len(before.messages)] == before.messages


def test_calls_and_results_are_shown_as_text():
    """A model without a tool template sees no tool parts, in schema mode and in plain talk."""
    history = (said("Rome?"), called("get_weather", '{"city": "Rome"}'), came("get_weather", "sunny"), said("Thanks"))

    form, plain = rewrite(request(*history, tools=BOTH)), rewrite(request(*history))

    for changed in (form, plain):
        kinds = {type(part) for message in changed.messages for part in message.parts}
        assert kinds == {TextPart}
        assert "Result of get_weather: sunny" in changed.messages[-1].parts[0].text
    assert json.loads(form.messages[-2].parts[0].text) == {"tool": "get_weather", "arguments": {"city": "Rome"}}


def test_errors_of_tools_are_named_as_such():
    """A failed call is not taken for a result."""
    changed = rewrite(request(said("Rome?"), called("get_weather", "{"), came("get_weather", "no", is_error=True)))

    assert changed.messages[-1].parts[0].text == "Error of get_weather: no"


def test_user_messages_in_a_row_are_joined():
    """Many templates refuse two user messages in a row; images keep their place."""
    image = MediaPart.of_bytes(b"x", "image/png")
    changed = rewrite(request(said("one"), PromptMessage("user", (image, TextPart("two")))))

    assert len(changed.messages) == 1
    assert changed.messages[0].parts == (TextPart("one\n\n"), image, TextPart("two"))


def test_plain_chat_is_not_put_into_a_form():
    """Without tools the answer is free text."""
    changed = rewrite(request(said("Hello"), system="Be brief."))

    assert changed.format is None
    assert changed.messages == (said("Hello"),)
    assert changed.system == "Be brief."


def test_tool_choice_none_is_plain_chat():
    """Tools that may not be called are not listed."""
    changed = rewrite(request(tools=BOTH, tool_choice="none"))

    assert changed.format is None
    assert changed.tools == ()
    assert "get_weather" not in changed.system


def test_required_and_named_choices_leave_no_answer_until_called():
    """ "required" forces a call, a name forces that call, and after its result the model may answer."""
    asked = said("What is it?")
    after = (asked, called("get_weather", "{}"), came("get_weather", "sunny"))

    assert names(rewrite(request(asked, tools=BOTH, tool_choice="required"))) == ["get_weather", "column_mean"]
    assert names(rewrite(request(asked, tools=BOTH, tool_choice="column_mean"))) == ["column_mean"]
    assert "answer" in names(rewrite(request(*after, tools=BOTH, tool_choice="required")))
    assert "answer" in names(rewrite(request(*after, tools=BOTH, tool_choice="get_weather")))


def test_unknown_tool_choice_is_refused():
    """A name that is not among the tools is the caller's mistake."""
    with pytest.raises(UsageError, match="'nothing', which is not among"):
        rewrite(request(tools=BOTH, tool_choice="nothing"))


def test_tiny_models_call_what_the_words_name():
    """A model that cannot decide is led by the words: the tool they name, or words when they name none."""

    def offered(text):
        return names(rewrite(request(said(text), tools=BOTH), tiny=True))

    assert offered("What's the WEATHER in Madrid?") == ["get_weather"]
    assert offered("mean of the price column") == ["column_mean"]
    assert offered("Tell me a joke") == ["answer"]
    assert offered("the mean weather") == ["get_weather", "column_mean"]


def test_tiny_models_take_short_arguments_from_the_request():
    """Else they copy the example's value; longer texts, numbers and choices stay free."""
    tool = ToolSpec(
        name="send_note",
        description="Send a note.",
        schema={
            "type": "object",
            "properties": {
                "to": {"type": "string"},
                "text": {"type": "string"},
                "kind": {"type": "string", "enum": ["a", "b"]},
                "copies": {"type": "integer"},
                "short": {"type": "string", "maxLength": 3},
            },
            "required": ["to"],
        },
    )

    changed = rewrite(request(said('Send a note to Anna Maria: "be on time"!'), tools=(tool,)), tiny=True)

    properties = changed.format["properties"]["arguments"]["properties"]
    assert {"Anna", "Anna Maria", "be on time"} <= set(properties["to"]["enum"])
    assert "a note" not in properties["to"]["enum"]
    assert properties["text"]["maxLength"]
    assert properties["kind"]["enum"] == ["a", "b"]
    assert properties["copies"] == {"type": "integer"}
    assert properties["short"] == {"type": "string", "maxLength": 3}
    free = rewrite(request(said("Send a note"), tools=(tool,)))
    assert "enum" not in free.format["anyOf"][0]["properties"]["arguments"]["properties"]["to"]


def test_tiny_models_answer_after_a_result():
    """One call a turn, unless it failed."""
    done = (said("weather in Rome?"), called("get_weather", "{}"), came("get_weather", "sunny"))
    failed = (*done[:2], came("get_weather", "no such city", is_error=True))

    assert names(rewrite(request(*done, tools=BOTH), tiny=True)) == ["answer"]
    assert "get_weather" in names(rewrite(request(*failed, tools=BOTH), tiny=True))
    assert "get_weather" in names(rewrite(request(*done, said("and the weather in Oslo?"), tools=BOTH), tiny=True))


def test_a_call_made_twice_is_not_offered_again():
    """A loop of the same call ends; other calls stay possible."""
    once = (called("get_weather", '{"city":"Rome"}', "c1"), came("get_weather", "sunny", "c1"))
    twice = (*once, called("get_weather", '{"city":"Rome"}', "c2"), came("get_weather", "sunny", "c2"))

    assert "get_weather" in names(rewrite(request(said("Rome?"), *once, tools=BOTH)))
    assert names(rewrite(request(said("Rome?"), *twice, tools=BOTH))) == ["column_mean", "answer"]


def test_every_string_has_a_limit_and_the_answer_too():
    """Weak models fill what space they get: nothing is left open."""
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "code": {"type": "string"},
            "kept": {"type": "string", "maxLength": 7},
            "kind": {"type": "string", "enum": ["a"]},
            "many": {"type": "array", "items": {"type": ["string", "null"]}},
            "title": {"type": "string", "pattern": "^[A-Z]"},
        },
    }
    tool = ToolSpec(name="f", description="Do f.", schema=schema)

    changed = rewrite(request(tools=(tool,)))

    call, answer = changed.format["anyOf"]
    properties = call["properties"]["arguments"]["properties"]
    assert properties["name"]["maxLength"] < properties["code"]["maxLength"]
    assert properties["kept"]["maxLength"] == 7
    assert properties["kind"] == {"type": "string", "enum": ["a"]}
    assert properties["many"]["maxItems"]
    assert properties["many"]["items"]["maxLength"]
    assert "pattern" not in properties["title"]
    assert answer["properties"]["answer"]["maxLength"]
    assert changed.max_tokens
    assert changed.temperature == 0.0


def test_wishes_of_the_caller_stay():
    """A limit or temperature that was asked for is kept."""
    changed = rewrite(request(tools=BOTH, temperature=0.7, max_tokens=9), tiny=True)

    assert (changed.temperature, changed.max_tokens) == (0.7, 9)


def test_format_gets_limits_and_no_form_around_it():
    """Structured output passes through the wire's own field, bounded."""
    changed = rewrite(request(format={"type": "object", "properties": {"who": {"type": "string"}}}))

    assert changed.format["properties"]["who"]["maxLength"]
    assert changed.temperature == 0.0
    assert changed.max_tokens


def test_format_beside_tools_is_what_the_answer_must_fit():
    """With both, the answer's place takes the schema."""
    shape = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    changed = rewrite(request(tools=(WEATHER,), format=shape))

    assert changed.format["anyOf"][-1]["properties"]["answer"] == shape


def test_recursive_schemas_end():
    """A schema that refers to itself becomes open after a few rounds."""
    node = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/N"}}}}
    out = bounded({"$ref": "#/$defs/N", "$defs": {"N": node}})

    assert "$ref" not in json.dumps(out)
    assert len(json.dumps(out)) < 2000


def test_dangling_references_are_named():
    """A reference to nothing is the schema author's mistake."""
    with pytest.raises(UsageError, match="#/\\$defs/Gone"):
        bounded({"type": "object", "properties": {"x": {"$ref": "#/$defs/Gone"}}})


def test_properties_named_like_keywords_survive():
    """A property may be called title, default or pattern."""
    schema = {"type": "object", "properties": {name: {"type": "integer"} for name in ("title", "default", "pattern")}}

    assert list(bounded(schema)["properties"]) == ["title", "default", "pattern"]


# ---------------------------------------------------------------- the answer

texts = st.text(st.characters(codec="utf-8"), max_size=40)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def cut(text, places):
    """The text in pieces, cut at the given fractions."""
    at = sorted({round(place * len(text)) for place in places})
    return [text[i:j] for i, j in zip([0, *at], [*at, len(text)], strict=True)]


cuts = st.lists(st.floats(0, 1), max_size=12)


@given(texts, cuts, st.booleans(), st.sampled_from([None, 2]))
@settings(max_examples=300, deadline=None)
def test_any_cut_of_an_answer_gives_its_text(text, places, ascii_only, indent):
    """Law 13: escapes, surrogate pairs and blanks, cut anywhere, give the string that was meant."""
    body = json.dumps({"answer": text}, ensure_ascii=ascii_only, indent=indent)

    pieces, complete = pieces_of(cut(body, places))

    assert "".join(piece for _, piece in pieces) == text
    assert complete


@given(st.dictionaries(texts, json_values, max_size=3), texts.filter(bool), cuts, st.booleans(), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_cut_of_a_call_gives_its_name_and_arguments(arguments, name, places, ascii_only, name_last):
    """Law 13, for calls; also when the arguments come before the name."""
    form = {"arguments": arguments, "tool": name} if name_last else {"tool": name, "arguments": arguments}
    body = json.dumps(form, ensure_ascii=ascii_only)

    pieces, complete = pieces_of(cut(body, places))

    assert pieces[0] == ("call", name)
    assert json.loads("".join(text for kind, text in pieces if kind == "arguments")) == arguments
    assert complete


@given(json_values, cuts)
@settings(max_examples=200, deadline=None)
def test_any_cut_of_a_structured_answer_gives_its_json(value, places):
    """With a schema asked for, the answer's own JSON text comes out, for any kind of value."""
    pieces, complete = pieces_of(cut(json.dumps({"answer": value}), places), raw_answer=True)

    assert json.loads("".join(text for _, text in pieces)) == value
    assert complete


@given(st.text(st.sampled_from('{}[]":,\\ntu0d8answertool \n'), max_size=40), cuts)
@settings(max_examples=400, deadline=None)
def test_any_text_is_read_the_same_however_it_is_cut(text, places):
    """Broken and half JSON, too: no crash, no difference."""
    assert pieces_of(cut(text, places)) == pieces_of([text])


def test_text_that_is_no_form_comes_out_as_it_is():
    """A server that ignores the schema still gives a readable answer."""
    assert pieces_of(["  Hel", "lo {\n"]) == ([("text", "Hello {\n")], True)
    assert pieces_of(['{"city": ', '"Rome"}']) == ([("text", '{"city": "Rome"}')], True)


def test_answer_is_shown_while_it_grows():
    """Nothing is held back until the end but a half escape."""
    reader = AnswerReader()

    assert reader.feed('{"answer": "It ') == [("text", "It ")]
    assert reader.feed("is\\") == [("text", "is")]
    assert reader.feed("n") == [("text", "\n")]


def test_half_a_surrogate_pair_becomes_a_replacement_character():
    """Lone halves are no Unicode text and must not reach the session."""
    assert pieces_of(['{"answer": "\\ud83d x \\ude00 \\ud83d\\ud83d\\ude00"}'])[0] == [
        ("text", "\ufffd x \ufffd \ufffd😀")
    ]
    assert pieces_of(['{"answer": "a\\ud83d']) == ([("text", "a\ufffd")], False)


# ---------------------------------------------------------------- the codec around a codec


class Inner:
    """A codec whose answer is a list of deltas given beforehand."""

    wire = "inner"

    def __init__(self, *deltas):
        self.deltas = deltas
        self.encoded = None

    def encode(self, request, endpoint):
        self.encoded = request
        return HttpCall(url="http://x", headers={}, body=b"{}")

    def decoder(self, request, endpoint):
        return self

    def feed(self, event):
        yield from self.deltas

    def whole(self, body):
        yield from self.deltas

    def end(self):
        yield Finished("stop", "stop")

    def error(self, *_):
        raise NotImplementedError


ENDPOINT = Endpoint(name="local", base_url="http://x")


def built(asked, *deltas, finish=None):
    codec = SchemaCodec(Inner(*deltas, *([finish] if finish else [])))
    decoder = codec.decoder(asked, ENDPOINT)
    builder = MessageBuilder()
    for delta in [*decoder.feed(ServerEvent("", "")), *([] if finish else decoder.end())]:
        builder.feed(delta)
    return builder


def test_streamed_form_becomes_a_tool_call():
    """The turn sees an ordinary call, with the reason that goes with it."""
    pieces = [TextDelta(0, c) for c in '{"tool": "get_weather", "arguments": {"city": "Rome"}}']
    builder = built(request(tools=BOTH), ResponseFacts("chatcmpl-1", "m"), *pieces, UsageDelta(Tokens(input=3)))

    (call,) = builder.parts
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Rome"})
    assert call.call_id.startswith("call_")
    assert builder.finished == Finished("tool_calls", "stop")
    assert builder.tokens.input == 3


def test_call_ids_are_those_of_the_recorded_turn():
    """Replaying one answer gives one id; another answer, or another place in the talk, gives another."""
    form = TextDelta(0, '{"tool": "get_weather", "arguments": {}}')

    def call_id(response, *more):
        return built(request(said("x"), *more, tools=BOTH), ResponseFacts(response, "m"), form).parts[0].call_id

    assert call_id("a") == call_id("a")
    assert len({call_id("a"), call_id("b"), call_id("a", said("y", "assistant"), said("z"))}) == 3


def test_answer_becomes_text():
    """Words come out of the form, unescaped."""
    builder = built(request(tools=BOTH), TextDelta(0, '{"answer": "caf\\u00e9"}'))

    assert builder.text == "café"
    assert builder.finished.reason == "stop"


@pytest.mark.parametrize("raw", ["length", "stop"])
def test_cut_form_is_an_answer_of_full_length(raw):
    """A form that is not closed was cut, whatever the server calls it (a stop string cuts too)."""
    builder = built(request(tools=BOTH), TextDelta(0, '{"answer": "half'), finish=Finished(raw, raw))

    assert builder.text == "half"
    assert builder.finished == Finished("length", raw)


def test_other_reasons_and_reasoning_pass():
    """Reasoning keeps its place before the answer; a filter's reason is not changed."""
    builder = built(
        request(tools=BOTH),
        ThinkingDelta(0, "hm"),
        TextDelta(1, '{"answer": "a"}'),
        finish=Finished("content_filter", "content_filter"),
    )

    assert [part.type for part in builder.parts] == ["thinking", "text"]
    assert builder.finished.reason == "content_filter"


def test_plain_chat_passes_the_inner_decoder_untouched():
    """Text that looks like a form is text when no tools were offered."""
    text = '{"answer": "x"}'

    assert built(request(), TextDelta(0, text)).text == text


def test_whole_answers_are_read_too():
    """A server that does not stream gives the same."""
    decoder = SchemaCodec(Inner(TextDelta(0, '{"answer": "x"}'), Finished("stop"))).decoder(
        request(tools=BOTH), ENDPOINT
    )

    assert list(decoder.whole(b"")) == [TextDelta(0, "x"), Finished("stop")]


def test_the_inner_codec_encodes_the_rewritten_request():
    """What goes over the wire has no tools field, and a response schema."""
    inner = Inner()
    asked = request(tools=BOTH)

    SchemaCodec(inner).encode(asked, ENDPOINT)

    assert inner.encoded.tools == ()
    assert inner.encoded.format is not None
    assert replace(asked, tools=BOTH) == asked
