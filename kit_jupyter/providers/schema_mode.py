"""Tool calls for models that have no tool template: the answer is JSON under a schema, and is read while it grows.

Theory of operation
-------------------
Small local models do not call tools by themselves, but under a grammar they fill in a form. So the
request is rewritten before another codec encodes it: the system text lists the tools, a few
examples made from their schemas show the form, and the answer's schema is *one of* ::

    {"tool": NAME, "arguments": {...}}      for each tool
    {"answer": "..."}

Every string gets a ``maxLength`` and the answer a token limit, because weak models fill what space
they are given. `AnswerReader` reads the JSON as it streams: the text of ``answer`` is shown letter
by letter, a call becomes `ToolCallStart` and `ToolCallDelta`. Its result does not depend on how the
text is cut. Calls and results of earlier steps are shown to such a model as text.

The smallest models (``tiny``) cannot decide whether to call either, and copy the examples' values. So a
word that the request shares with a tool's name, description or arguments decides, short strings must be
words of the request, and once a tool has answered, the model may only answer (measured with 135M: 29 of
31 calls right, and no call where none was meant). Larger ones decide for themselves; a tool that was
called twice with the same arguments is not offered a third time.

A request without tools stays plain text; its `format` gets the same limits, and the smallest models
get settings that keep them from going round in circles.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kit_jupyter.errors import ProviderError, UsageError
from kit_jupyter.messages import (
    Finished,
    ModelDelta,
    Part,
    PartAdded,
    ResponseFacts,
    TextDelta,
    TextPart,
    ToolCallDelta,
    ToolCallPart,
    ToolCallStart,
    ToolSpec,
    UsageDelta,
    new_id,
    text_of,
)
from kit_jupyter.prompt import PromptMessage, ToolResultPart
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers.codec import Codec, Decoder, Endpoint, HttpCall, ServerEvent

__all__ = ["AnswerReader", "SchemaCodec", "bounded", "rewrite"]

ANSWER_MAX_LENGTH = 600
STRING_MAX_LENGTH = 300
LONG_STRING_MAX_LENGTH = 2000  # code, file contents: what is long by nature
ARRAY_MAX_ITEMS = 20
MAX_TOKENS = 512
MAX_EXAMPLES = 4
TOOL_LIST_MAX_LENGTH = 600
MAX_WORDS = 60  # of a request, in which arguments are looked for
_LONG = re.compile(r"code|content|script|source|command|query|sql|body|text", re.IGNORECASE)


# ---------------------------------------------------------------- schemas


def bounded(schema: Mapping[str, Any], *, string_max_length: int = STRING_MAX_LENGTH) -> dict[str, Any]:
    """`schema` with a limit on every string and array, references resolved, and no pattern.

    Patterns are left out because grammar makers know only a part of them; the value is checked
    against the whole schema afterwards anyway.

    Parameters
    ----------
    schema : dict
        JSON schema; local references (``#/$defs/…``) are put in place, a recursive one becomes an
        open value after three rounds.
    string_max_length : int, characters
        Limit for strings that state none.

    Examples
    --------
    >>> bounded({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]})
    {'type': 'object', 'properties': {'city': {'type': 'string', 'maxLength': 300}}, 'required': ['city']}
    """
    limited: dict[str, Any] = _bound(schema, schema, (), string_max_length, "")
    return limited


def _bound(node: Any, root: Mapping[str, Any], refs: tuple[str, ...], limit: int, name: str) -> Any:
    if not isinstance(node, Mapping):
        return node
    ref = node.get("$ref")
    if isinstance(ref, str):
        if refs.count(ref) >= 3:
            return {}
        target: Any = root
        for step in ref.removeprefix("#").strip("/").split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            target = target.get(step) if isinstance(target, Mapping) else None
        if not isinstance(target, Mapping):
            raise UsageError(f"the schema refers to {ref!r}, which it does not hold")
        extra = {key: value for key, value in node.items() if key != "$ref"}
        return _bound({**target, **extra}, root, (*refs, ref), limit, name)
    out: dict[str, Any] = {}
    for key, value in node.items():
        if key in {"$defs", "definitions", "pattern", "$schema", "$id", "title", "examples", "default"}:
            continue
        if key in {"properties", "patternProperties"} and isinstance(value, Mapping):
            out[key] = {prop: _bound(sub, root, refs, limit, prop) for prop, sub in value.items()}
        elif key in {"items", "additionalProperties", "not", "contains"}:
            out[key] = _bound(value, root, refs, limit, name)
        elif key in {"anyOf", "oneOf", "allOf", "prefixItems"} and isinstance(value, Sequence):
            out[key] = [_bound(sub, root, refs, limit, name) for sub in value]
        else:
            out[key] = value
    kind = out.get("type")
    kinds = kind if isinstance(kind, list) else [kind]
    if "string" in kinds and not {"maxLength", "enum", "const", "format"} & out.keys():
        floor = out.get("minLength")
        wanted = LONG_STRING_MAX_LENGTH if _LONG.search(name) else limit
        out["maxLength"] = max(wanted, floor) if isinstance(floor, int) else wanted
    if "array" in kinds and "maxItems" not in out:
        floor = out.get("minItems")
        out["maxItems"] = max(ARRAY_MAX_ITEMS, floor) if isinstance(floor, int) else ARRAY_MAX_ITEMS
    return out


def _arguments_schema(tool: ToolSpec) -> dict[str, Any]:
    schema = bounded(tool.schema)
    schema.pop("description", None)
    schema["type"] = "object"
    schema.setdefault("properties", {})
    schema.setdefault("additionalProperties", False)
    return schema


def _call_schema(tool: ToolSpec, words: Sequence[str] = ()) -> dict[str, Any]:
    arguments = _arguments_schema(tool)
    if words:
        arguments["properties"] = {name: _taken_from(sub, words, name) for name, sub in arguments["properties"].items()}
    return {
        "type": "object",
        "properties": {"tool": {"const": tool.name}, "arguments": arguments},
        "required": ["tool", "arguments"],
        "additionalProperties": False,
    }


def _taken_from(schema: Any, words: Sequence[str], name: str) -> Any:
    """A short string must be words of the request; other values are left as they are."""
    if not isinstance(schema, Mapping) or schema.get("type") != "string" or _LONG.search(name):
        return schema
    if {"enum", "const", "format"} & schema.keys():
        return schema
    low, high = schema.get("minLength", 1), schema.get("maxLength", STRING_MAX_LENGTH)
    fitting = [word for word in words if low <= len(word) <= high]
    return {"type": "string", "enum": fitting} if fitting else schema


def _answer_schema(format: Mapping[str, Any] | None) -> dict[str, Any]:
    inner = {"type": "string", "maxLength": ANSWER_MAX_LENGTH} if format is None else bounded(format)
    return {"type": "object", "properties": {"answer": inner}, "required": ["answer"], "additionalProperties": False}


# ---------------------------------------------------------------- which alternatives a step offers

_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and as at be by call compute do find for from get give how if in into is it its list make me of on or "
        "out please put return returns run set show take tell that the their them this to tool use used uses using "
        "value what when where which who will with you your name number string one",
    )
)


def _stems(text: str) -> set[str]:
    text = re.sub(r"([a-z])([A-Z])", r"\1 \2", text)
    words = re.findall(r"[^\W\d_]{3,}", text.lower())
    return {re.sub(r"(?<=\w{3})(ing|ed|es|s|e)$", "", word) for word in words if word not in _COMMON}


def _spans(text: str) -> list[str]:
    """What an argument might be: up to four words in a row of `text`, or what stands in quotes, in order.

    Examples
    --------
    >>> _spans("What's the weather in Cape Town?")
    ['weather', 'weather in Cape', 'weather in Cape Town', 'Cape', 'Cape Town', 'Town']
    """
    found = [quoted for _, quoted in re.findall(r"([\"`])(.{1,100}?)\1", text)]
    words = [bare for word in text.split() if (bare := word.strip('.,;:!?"`()[]{}<>…'))][:MAX_WORDS]
    common = [word.lower().partition("'")[0] in _COMMON for word in words]
    for first in range(len(words)):
        for last in range(first, min(first + 4, len(words))):
            if not common[first] and not common[last]:
                found.append(" ".join(words[first : last + 1]))
    return list(dict.fromkeys(found))


def _vocabulary(tool: ToolSpec) -> set[str]:
    names = " ".join(tool.schema.get("properties", {}))
    return _stems(f"{tool.name.replace('_', ' ')} {_first_line(tool.description)} {names.replace('_', ' ')}")


def _last_user_text(messages: Sequence[PromptMessage]) -> str:
    for message in reversed(messages):
        if message.role == "user":
            return text_of([part for part in message.parts if isinstance(part, TextPart)])
    return ""


def _calls_since_user(messages: Sequence[PromptMessage]) -> tuple[list[ToolCallPart], bool]:
    """Calls made since the last user message, and whether the last of them came to an error."""
    calls: list[ToolCallPart] = []
    failed = False
    for message in messages:
        if message.role == "user":
            calls, failed = [], False
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                calls.append(part)
            elif isinstance(part, ToolResultPart):
                failed = part.is_error
    return calls, failed


def _offered(request: ModelRequest, *, tiny: bool) -> tuple[list[ToolSpec], bool]:
    """Tools this step may call, and whether it may answer."""
    tools, choice = list(request.tools), request.tool_choice
    if choice == "none" or not tools:
        return [], True
    calls, failed = _calls_since_user(request.messages)
    if choice not in {"auto", "required"}:
        named = [tool for tool in tools if tool.name == choice]
        if not named:
            raise UsageError(f"tool_choice names {choice!r}, which is not among the tools")
        # A forced call is made once; after its result the model must be able to answer.
        return (named, False) if not calls else (named, True)
    if calls:
        if tiny and not failed:
            return [], True
        done = {call.name for call in calls if _is_repeated(call, calls)}
        return [tool for tool in tools if tool.name not in done], True
    if choice == "required":
        return tools, False
    if tiny:
        asked = _stems(_last_user_text(request.messages))
        meant = [tool for tool in tools if _vocabulary(tool) & asked]
        return meant, not meant
    return tools, True


def _is_repeated(call: ToolCallPart, calls: Sequence[ToolCallPart]) -> bool:
    return sum(other.name == call.name and other.arguments == call.arguments for other in calls) > 1


# ---------------------------------------------------------------- the words around it


def _first_line(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return re.split(r"(?<=[.!?])\s", line, maxsplit=1)[0]


def _kind(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "value"
    for key in ("anyOf", "oneOf"):
        for sub in schema.get(key, ()):
            if isinstance(sub, Mapping) and sub.get("type") != "null":
                return _kind(sub)
    if "enum" in schema:
        return "|".join(str(value) for value in list(schema["enum"])[:6])
    kind = schema.get("type", "value")
    return str(kind if isinstance(kind, str) else kind[0])


def _tool_lines(tools: Sequence[ToolSpec]) -> str:
    """One line a tool; descriptions are shortened, then left out, when the list gets long."""
    for room in (80, 40, 0):
        lines = []
        for tool in tools:
            properties = tool.schema.get("properties", {})
            named = ", ".join(f"{name}: {_kind(sub)}" for name, sub in properties.items())
            if room == 0:
                named = ", ".join(properties)
            about = _first_line(tool.description)
            about = about if len(about) <= room else about[: max(room - 1, 0)].rstrip() + "…" if room else ""
            lines.append(f"- {tool.name}({named})" + (f": {about}" if about else ""))
        text = "\n".join(lines)
        if len(text) <= TOOL_LIST_MAX_LENGTH:
            break
    return text


def _system_text(system: str, tools: Sequence[ToolSpec]) -> str:
    form = '{"tool": name, "arguments": {...}} or {"answer": text}'
    own = f"You can call a tool or answer. Tools:\n{_tool_lines(tools)}\nReply with one JSON object: {form}."
    return f"{system.rstrip()}\n\n{own}" if system.strip() else own


_WORDS: Mapping[str, tuple[str, str]] = {
    "city": ("Lima", "Cairo"),
    "place": ("Lima", "Cairo"),
    "location": ("Lima", "Cairo"),
    "country": ("Peru", "Egypt"),
    "code": ("1 + 1", "len('abc')"),
    "expr": ("1 + 1", "2 * 3"),
    "command": ("ls", "pwd"),
    "path": ("notes.txt", "data.csv"),
    "file": ("notes.txt", "data.csv"),
    "url": ("https://example.org", "https://example.com"),
    "date": ("2025-01-31", "2025-06-01"),
    "email": ("ann@example.org", "ben@example.org"),
    "name": ("Anna", "Ben"),
    "": ("Lima", "blue"),
}
_SPARE = (("Oslo", "green"), ("Quito", "red"), ("Cairo", "black"))


def _example_value(name: str, schema: Any, turn: int, place: int) -> Any:
    """A value that fits `schema`, different for each `turn`."""
    if not isinstance(schema, Mapping):
        return "Lima"
    for key in ("anyOf", "oneOf"):
        for sub in schema.get(key, ()):
            if isinstance(sub, Mapping) and sub.get("type") != "null":
                return _example_value(name, sub, turn, place)
    if "const" in schema:
        return schema["const"]
    for key in ("enum", "examples"):
        values = schema.get(key)
        if isinstance(values, Sequence) and not isinstance(values, str) and values:
            return values[turn % len(values)]
    kind = schema.get("type", "string")
    kind = kind if isinstance(kind, str) else kind[0]
    if kind in {"integer", "number"}:
        low, high = schema.get("minimum"), schema.get("maximum")
        value: float = 3 + 2 * turn + place
        value = max(value, low) if isinstance(low, int | float) else value
        return min(value, high) if isinstance(high, int | float) else value
    if kind == "boolean":
        return turn == 0
    if kind == "array":
        return [_example_value(name, schema.get("items", {}), turn, place)]
    if kind == "object":
        return _example_arguments(schema, turn)
    if kind == "null":
        return None
    known = next((words for key, words in _WORDS.items() if key and key in name.lower()), None)
    words = known or (_WORDS[""] if place == 0 else _SPARE[(place - 1) % len(_SPARE)])
    text = words[turn % 2]
    limit = schema.get("maxLength")
    return text[:limit] if isinstance(limit, int) else text


def _example_arguments(schema: Mapping[str, Any], turn: int) -> dict[str, Any]:
    properties = schema.get("properties", {})
    wanted = [name for name in schema.get("required", ()) if name in properties] or list(properties)[:1]
    return {name: _example_value(name, properties[name], turn, place) for place, name in enumerate(wanted)}


def _example(tool: ToolSpec, turn: int) -> tuple[str, str]:
    """What a person might ask, and the call that answers it."""
    resolved = bounded(tool.schema)
    for name, sub in tool.schema.get("properties", {}).items():
        if isinstance(sub, Mapping) and "examples" in sub and name in resolved.get("properties", {}):
            resolved["properties"][name] = {**resolved["properties"][name], "examples": sub["examples"]}
    arguments = _example_arguments(resolved, turn)
    about = _first_line(tool.description).rstrip(".!") or tool.name.replace("_", " ")
    shown = {k: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False) for k, v in arguments.items()}
    if not shown:
        asked = about if turn == 0 else f"Please {about[:1].lower()}{about[1:]}"
    elif turn == 0:
        asked = f"{about}: " + ", ".join(f"{name} {value}" for name, value in shown.items())
    else:
        asked = f"{about} for " + " and ".join(shown.values())
    return asked, _json({"tool": tool.name, "arguments": arguments})


def _examples(tools: Sequence[ToolSpec]) -> list[PromptMessage]:
    """Two examples for each of two tools, one for each of up to four, an answer in words before them.

    They hang on the tools alone, never on what is asked, so that they stay in the server's cache.
    """
    turns = 2 if len(tools) <= 2 else 1
    pairs = [("Hello!", _json({"answer": "Hello! How can I help you?"}))]
    pairs += [_example(tool, turn) for turn in range(turns) for tool in tools[:MAX_EXAMPLES]][:MAX_EXAMPLES]
    out = []
    for asked, said in pairs:
        out.append(PromptMessage("user", (TextPart(asked),), origin="schema-mode"))
        out.append(PromptMessage("assistant", (TextPart(said),), origin="schema-mode"))
    return out


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _call_text(call: ToolCallPart) -> str:
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:
        arguments = call.arguments
    return _json({"tool": call.name, "arguments": arguments})


def _as_text(messages: Sequence[PromptMessage], *, form: bool) -> list[PromptMessage]:
    """History without tool parts, user messages in a row joined (many templates want turns in turn)."""
    out: list[PromptMessage] = []
    for message in messages:
        parts: list[Any] = []
        said: list[str] = []
        for part in message.parts:
            if isinstance(part, ToolResultPart):
                head = f"Error of {part.name}" if part.is_error else f"Result of {part.name}"
                media = [inner for inner in part.parts if not isinstance(inner, TextPart)]
                shown = text_of([inner for inner in part.parts if isinstance(inner, TextPart)])
                parts.append(TextPart(f"{head}: {shown or '(none)'}"))
                parts.extend(media)
            elif isinstance(part, ToolCallPart):
                said.append(_call_text(part))
            elif isinstance(part, TextPart) and message.role == "system":
                parts.append(TextPart(f"Instruction: {part.text}"))
            elif isinstance(part, TextPart) and message.role == "assistant" and form:
                said.append(_json({"answer": part.text}))
            else:
                parts.append(part)
        # An instruction inside the history: few small templates have a place for it.
        role = message.role if message.role == "assistant" else "user"
        if said:
            parts.append(TextPart("\n".join(said)))
        last = out[-1] if out else None
        if last is not None and role == "user" and last.role == "user":
            joined: list[Part] = [*_plain(last.parts), TextPart("\n\n"), *_plain(parts)]
            out[-1] = replace(last, parts=tuple(_merge_text(joined)))
        elif parts:
            out.append(replace(message, role=role, parts=tuple(parts)))
    return out


def _plain(parts: Iterable[Any]) -> list[Part]:
    return [part for part in parts if not isinstance(part, ToolResultPart)]


def _merge_text(parts: Sequence[Part]) -> Iterator[Part]:
    held: list[str] = []
    for part in parts:
        if isinstance(part, TextPart):
            held.append(part.text)
            continue
        if "".join(held).strip():
            yield TextPart("".join(held))
        held = []
        yield part
    if held:
        yield TextPart("".join(held))


def uses_tools(request: ModelRequest) -> bool:
    """True when a request is to be answered in the form of this room."""
    return bool(request.tools) and request.tool_choice != "none"


def rewrite(request: ModelRequest, *, tiny: bool = False) -> ModelRequest:
    """`request` without tools, for a model that has no tool template.

    Parameters
    ----------
    request : ModelRequest
    tiny : bool
        The model is too small to decide between calling and answering: see *Theory of operation*.

    Raises
    ------
    UsageError
        If ``tool_choice`` names a tool that is not there, or a schema refers to nothing.
    """
    if not uses_tools(request):
        format = bounded(request.format) if request.format is not None else None
        messages = tuple(_as_text(request.messages, form=False))
        changed = replace(request, tools=(), tool_choice="auto", messages=messages, format=format)
        if format is not None:
            return _limited(changed)
        return _steadied(changed) if tiny else changed
    tools, may_answer = _offered(request, tiny=tiny)
    words = _spans(_last_user_text(request.messages)) if tiny else ()
    forms = [_call_schema(tool, words) for tool in tools]
    if may_answer or not forms:
        forms.append(_answer_schema(request.format))
    messages = (*_examples(request.tools), *_as_text(request.messages, form=True))
    return _limited(
        replace(
            request,
            system=_system_text(request.system, request.tools),
            messages=messages,
            tools=(),
            tool_choice="auto",
            format=forms[0] if len(forms) == 1 else {"anyOf": forms},
        )
    )


def _limited(request: ModelRequest) -> ModelRequest:
    """Repeatable, and never without end."""
    return replace(
        request,
        temperature=0.0 if request.temperature is None else request.temperature,
        max_tokens=request.max_tokens or MAX_TOKENS,
    )


def _steadied(request: ModelRequest) -> ModelRequest:
    """Free text of a very small model: the same each time, without going round in a circle, and not without end."""
    return replace(_limited(request), extra={"repeat_penalty": 1.1, **request.extra})


# ---------------------------------------------------------------- reading the answer while it grows

Piece = tuple[str, str]  # ("text", more of the answer) · ("call", tool name) · ("arguments", more JSON text)
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SPACE = " \t\r\n"


class AnswerReader:
    """Reads ``{"tool": …, "arguments": …}`` or ``{"answer": …}`` piece by piece.

    The pieces joined are the same however the text is cut. Text that is not such an object comes
    out as it went in.

    Parameters
    ----------
    raw_answer : bool
        Give the answer's JSON text, not the string it stands for (when a schema was asked for).

    Examples
    --------
    >>> reader = AnswerReader()
    >>> [reader.feed(cut) for cut in ('{"ans', 'wer": "caf\\\\u00', 'e9"}')]
    [[], [('text', 'caf')], [('text', 'é')]]
    >>> reader.end(), reader.is_complete
    ([], True)
    """

    def __init__(self, *, raw_answer: bool = False) -> None:
        self._raw_answer = raw_answer
        self._state = "start"
        self._key: list[str] = []
        self._field = ""
        self._escape = ""  # an escape sequence that is not complete yet
        self._high = ""  # first half of a surrogate pair, as hex digits
        self._depth = 0
        self._in_string = False
        self._skip_next = False
        self._name: list[str] = []
        self._held: list[str] = []  # arguments that came before the tool's name
        self._seen: list[str] | None = []  # all text, until it is known to be a form
        self.called = False
        self.answered = False

    @property
    def is_complete(self) -> bool:
        """True when the object is closed, or the text is not an object at all."""
        return self._state in {"done", "plain"}

    def feed(self, text: str) -> list[Piece]:
        """Pieces of more text; neighbours of one kind are joined."""
        if self._seen is not None:
            self._seen.append(text)
        pieces: list[Piece] = []
        for char in text:
            for kind, more in self._step(char):
                if pieces and pieces[-1][0] == kind and kind != "call":
                    pieces[-1] = (kind, pieces[-1][1] + more)
                else:
                    pieces.append((kind, more))
        return pieces

    def end(self) -> list[Piece]:
        """What is left when no more text comes."""
        left = list(self._flush_string("text")) if self._state == "answer" else []
        if self.called or self.answered or self._state == "plain":
            return left
        raw = "".join(self._seen or ()).strip()
        self._seen = None
        return [("text", raw)] if raw else []

    # -- one character at a time

    def _step(self, char: str) -> Iterator[Piece]:
        match self._state:
            case "start":
                if char == "{":
                    self._state = "key or end"
                elif char not in _SPACE:
                    self._state, self._seen = "plain", None
                    yield ("text", char)
            case "plain":
                yield ("text", char)
            case "key or end":
                if char == '"':
                    self._state, self._key = "key", []
                elif char == "}":
                    self._state = "done"
            case "key":
                if self._unescape(char, self._key):
                    self._field, self._state = "".join(self._key), "colon"
            case "colon":
                if char == ":":
                    self._state = "value"
            case "value":
                if char not in _SPACE:
                    yield from self._open(char)
            case "answer":
                out: list[str] = []
                closed = self._unescape(char, out)
                if out:
                    yield ("text", "".join(out))
                if closed:
                    self._state = "key or end"
            case "tool":
                if self._unescape(char, self._name):
                    self._state = "key or end"
                    yield from self._named()
            case "raw":
                yield from self._raw(char)

    def _open(self, char: str) -> Iterator[Piece]:
        """The first character of a value."""
        if self._field == "answer" and char == '"' and not self._raw_answer:
            self._state, self.answered, self._seen = "answer", True, None
        elif self._field == "tool" and char == '"' and not self.called:
            self._state = "tool"
        else:
            if self._field == "answer":
                self.answered, self._seen = True, None
            self._state, self._depth, self._in_string, self._skip_next = "raw", 0, False, False
            yield from self._raw(char)

    def _named(self) -> Iterator[Piece]:
        self.called, self._seen = True, None
        yield ("call", "".join(self._name))
        if self._held:
            yield ("arguments", "".join(self._held))
            self._held = []

    def _raw(self, char: str) -> Iterator[Piece]:
        """A value whose JSON text is wanted as it stands."""
        if self._in_string:
            if self._skip_next:
                self._skip_next = False
            elif char == "\\":
                self._skip_next = True
            elif char == '"':
                self._in_string = False
        elif char == '"':
            self._in_string = True
        elif char in "{[":
            self._depth += 1
        elif self._depth == 0 and char in ",}":
            self._state = "done" if char == "}" else "key or end"
            return
        elif char in "}]":
            self._depth -= 1
            if self._depth == 0:
                self._state = "key or end"
        elif self._depth == 0 and char in _SPACE:
            return
        if self._depth == 0 and char == '"' and not self._in_string:
            self._state = "key or end"
        if self._field == "answer":
            yield ("text", char)
        elif self._field == "arguments":
            if self.called:
                yield ("arguments", char)
            else:
                self._held.append(char)

    def _unescape(self, char: str, out: list[str]) -> bool:
        """Take one character of a JSON string into `out`; True at its closing quote."""
        if self._escape:
            self._escape += char
            if self._escape == "\\u" or (self._escape.startswith("\\u") and len(self._escape) < 6):
                return False
            escape, self._escape = self._escape, ""
            if escape.startswith("\\u"):
                self._code_unit(escape[2:], out)
            else:
                self._lone(out)
                out.append(_ESCAPES.get(char, char))
            return False
        if char == "\\":
            self._escape = "\\"
            return False
        self._lone(out)
        if char == '"':
            return True
        out.append(char)
        return False

    def _code_unit(self, digits: str, out: list[str]) -> None:
        try:
            unit = int(digits, 16)
        except ValueError:
            self._lone(out)
            out.append("\ufffd")
            return
        if self._high and 0xDC00 <= unit <= 0xDFFF:
            out.append(chr(0x10000 + ((int(self._high, 16) - 0xD800) << 10) + (unit - 0xDC00)))
            self._high = ""
            return
        self._lone(out)
        if 0xD800 <= unit <= 0xDBFF:
            self._high = digits
        else:
            out.append("\ufffd" if 0xDC00 <= unit <= 0xDFFF else chr(unit))

    def _lone(self, out: list[str]) -> None:
        """Half a surrogate pair whose other half did not come."""
        if self._high:
            self._high = ""
            out.append("\ufffd")

    def _flush_string(self, kind: str) -> Iterator[Piece]:
        out: list[str] = []
        self._lone(out)
        if out:
            yield (kind, "".join(out))


# ---------------------------------------------------------------- the codec around a codec


class _FormDecoder:
    """Turns the text deltas of another decoder into calls or answer text."""

    def __init__(self, inner: Decoder, request: ModelRequest) -> None:
        self._inner = inner
        self._reader = AnswerReader(raw_answer=request.format is not None)
        self._salt = f"{len(request.messages)}"
        self._response_id = ""
        self._ended = False

    def feed(self, event: ServerEvent) -> Iterator[ModelDelta]:
        yield from self._translate(self._inner.feed(event))

    def whole(self, body: bytes) -> Iterator[ModelDelta]:
        yield from self._translate(self._inner.whole(body))

    def end(self) -> Iterator[ModelDelta]:
        yield from self._translate(self._inner.end())

    def _translate(self, deltas: Iterable[ModelDelta]) -> Iterator[ModelDelta]:
        for delta in deltas:
            match delta:
                case TextDelta(index, text) | PartAdded(index, TextPart(text)):
                    yield from self._shown(index, self._reader.feed(text))
                case Finished(reason, raw, details):
                    yield from self._shown(0, self._reader.end())
                    yield Finished(self._reason(reason), raw, details)
                case ResponseFacts(response_id, _):
                    self._response_id = response_id or self._response_id
                    yield delta
                case UsageDelta():
                    yield delta
                case _:
                    # Reasoning and the like keep their place: even numbers, calls of ours are odd.
                    yield replace(delta, index=2 * delta.index)

    def _shown(self, index: int, pieces: Iterable[Piece]) -> Iterator[ModelDelta]:
        for kind, text in pieces:
            match kind:
                case "text":
                    yield TextDelta(2 * index, text)
                case "call":
                    yield ToolCallStart(2 * index + 1, self._call_id(), text)
                case _:
                    yield ToolCallDelta(2 * index + 1, text)

    def _call_id(self) -> str:
        # From the answer's own id, so that a replayed turn has the ids of the recorded one.
        if not self._response_id:
            return new_id("call")
        return "call_" + hashlib.sha256(f"{self._response_id}/{self._salt}".encode()).hexdigest()[:24]

    def _reason(self, reason: str) -> str:
        if reason not in {"stop", "length", "stop_sequence", "tool_calls", "other"}:
            return reason
        if not self._reader.is_complete:
            return "length"
        if self._reader.called:
            return "tool_calls"
        return reason if self._reader._state == "plain" else "stop"


class SchemaCodec:
    """A codec for models without a tool template: rewrites the request, then lets `inner` encode it.

    Parameters
    ----------
    inner : Codec
        The wire itself.
    tiny : bool
        See `rewrite`.
    """

    def __init__(self, inner: Codec, *, tiny: bool = False) -> None:
        self._inner = inner
        self._tiny = tiny
        self.wire = inner.wire

    def encode(self, request: ModelRequest, endpoint: Endpoint) -> HttpCall:
        """The HTTP request of the rewritten request."""
        return self._inner.encode(rewrite(request, tiny=self._tiny), endpoint)

    def decoder(self, request: ModelRequest, endpoint: Endpoint) -> Decoder:
        """A fresh decoder; plain chat is not touched."""
        inner = self._inner.decoder(rewrite(request, tiny=self._tiny), endpoint)
        return _FormDecoder(inner, request) if uses_tools(request) else inner

    def error(
        self, status: int, headers: Mapping[str, str], body: bytes, request: ModelRequest, endpoint: Endpoint
    ) -> ProviderError:
        """The error of the wire."""
        return self._inner.error(status, headers, body, request, endpoint)
