"""What a model without a tool template is told of the tools: a line each, a few examples, and which words name them.

All of it hangs on the tools alone, never on what is asked, so that it stays in the server's cache.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from kit_jupyter.messages import TextPart, ToolSpec
from kit_jupyter.prompt import PromptMessage
from kit_jupyter.providers.schema_bounds import bounded

__all__ = ["examples", "spans", "stems", "system_text", "to_json", "vocabulary"]

MAX_EXAMPLES = 4
TOOL_LIST_MAX_LENGTH = 600
MAX_WORDS = 60  # of a request, in which arguments are looked for


def to_json(value: Any) -> str:
    """JSON as a model reads it best: one line, letters as they are."""
    return json.dumps(value, ensure_ascii=False)


# ---------------------------------------------------------------- lines and examples


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


def system_text(system: str, tools: Sequence[ToolSpec]) -> str:
    """The system prompt with the tools and the form added."""
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
    return asked, to_json({"tool": tool.name, "arguments": arguments})


def examples(tools: Sequence[ToolSpec]) -> list[PromptMessage]:
    """Two examples for each of two tools, one for each of up to four, an answer in words before them.

    They hang on the tools alone, never on what is asked, so that they stay in the server's cache.
    """
    turns = 2 if len(tools) <= 2 else 1
    pairs = [("Hello!", to_json({"answer": "Hello! How can I help you?"}))]
    pairs += [_example(tool, turn) for turn in range(turns) for tool in tools[:MAX_EXAMPLES]][:MAX_EXAMPLES]
    out = []
    for asked, said in pairs:
        out.append(PromptMessage("user", (TextPart(asked),), origin="schema-mode"))
        out.append(PromptMessage("assistant", (TextPart(said),), origin="schema-mode"))
    return out


# ---------------------------------------------------------------- words

_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and as at be by call compute do find for from get give how if in into is it its list make me of on or "
        "out please put return returns run set show take tell that the their them this to tool use used uses using "
        "value what when where which who will with you your name number string one",
    )
)


def stems(text: str) -> set[str]:
    """The words of `text` that mean something, without their endings."""
    text = re.sub(r"([a-z])([A-Z])", r"\1 \2", text)
    words = re.findall(r"[^\W\d_]{3,}", text.lower())
    return {re.sub(r"(?<=\w{3})(ing|ed|es|s|e)$", "", word) for word in words if word not in _COMMON}


def spans(text: str) -> list[str]:
    """What an argument might be: up to four words in a row of `text`, or what stands in quotes, in order.

    Examples
    --------
    >>> spans("What's the weather in Cape Town?")
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


def vocabulary(tool: ToolSpec) -> set[str]:
    """Stems by which a request names a tool: of its name, description and arguments."""
    names = " ".join(tool.schema.get("properties", {}))
    return stems(f"{tool.name.replace('_', ' ')} {_first_line(tool.description)} {names.replace('_', ' ')}")
