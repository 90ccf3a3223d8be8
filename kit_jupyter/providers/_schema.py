"""What services ask of a JSON schema before they promise to keep to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["close_objects", "is_closed", "is_recursive", "is_strict", "title_of"]

_NESTED = ("items", "not", "if", "then", "else", "additionalProperties", "contains")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_MAPS = ("properties", "$defs", "definitions", "patternProperties")


def _nodes(schema: Any) -> Iterator[Mapping[str, Any]]:
    if not isinstance(schema, Mapping):
        return
    yield schema
    for key in _NESTED:
        yield from _nodes(schema.get(key))
    for key in _LISTS:
        for item in schema.get(key) or ():
            yield from _nodes(item)
    for key in _MAPS:
        values = schema.get(key)
        for item in values.values() if isinstance(values, Mapping) else ():
            yield from _nodes(item)


def _is_object(node: Mapping[str, Any]) -> bool:
    kind = node.get("type")
    return kind == "object" or (isinstance(kind, list) and "object" in kind) or "properties" in node


def is_strict(schema: Any) -> bool:
    """Whether OpenAI's strict mode takes it: every object closed, every property required.

    Examples
    --------
    >>> is_strict({"type": "object", "properties": {"a": {}}, "required": ["a"], "additionalProperties": False})
    True
    >>> is_strict({"type": "object", "properties": {"a": {}}}), is_strict({"oneOf": [{"type": "null"}]})
    (False, False)
    """
    return all(
        node.get("additionalProperties") is False
        and set(node.get("properties") or {}) == set(node.get("required") or ())
        for node in _nodes(schema)
        if _is_object(node)
    ) and not any(_NOT_STRICT.intersection(node) for node in _nodes(schema))


# pydantic makes oneOf of unions told apart by a field.
_NOT_STRICT = frozenset({"default", "patternProperties", "oneOf", "allOf", "not", "if", "prefixItems"})


def is_closed(schema: Any) -> bool:
    """Whether every object could be closed: none is a map with free keys.

    Examples
    --------
    >>> is_closed({"type": "object", "properties": {"a": {"type": "string"}}})
    True
    >>> is_closed({"type": "object", "additionalProperties": {"type": "string"}})
    False
    """
    return not any(
        node.get("additionalProperties") not in (None, False)
        or "patternProperties" in node
        or (not node.get("properties") and "additionalProperties" not in node)
        for node in _nodes(schema)
        if _is_object(node)
    )


def is_recursive(schema: Any) -> bool:
    """Whether a definition leads back to itself.

    Examples
    --------
    >>> tree = {"properties": {"children": {"items": {"$ref": "#/$defs/Tree"}}}}
    >>> is_recursive({"$ref": "#/$defs/Tree", "$defs": {"Tree": tree}})
    True
    """
    if not isinstance(schema, Mapping):
        return False
    if any(node.get("$ref") == "#" for node in _nodes(schema)):
        return True
    named: dict[str, Any] = {**(schema.get("definitions") or {}), **(schema.get("$defs") or {})}
    leads = {
        name: {str(node["$ref"]).rpartition("/")[2] for node in _nodes(body) if "$ref" in node}
        for name, body in named.items()
    }
    while leads:
        ends = [name for name, to in leads.items() if not to & leads.keys()]
        if not ends:
            return True
        for name in ends:
            del leads[name]
    return False


def close_objects(schema: Any, is_refused: Callable[[str, Any], bool]) -> Any:
    """A copy whose objects are closed; keywords that are refused become words of the description.

    Parameters
    ----------
    is_refused : callable(keyword, value) -> bool

    Examples
    --------
    >>> close_objects({"type": "integer", "minimum": 1}, lambda keyword, value: keyword == "minimum")
    {'type': 'integer', 'description': 'minimum: 1'}
    """
    if isinstance(schema, list):
        return [close_objects(item, is_refused) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    out: dict[str, Any] = {}
    said: list[str] = []
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, Mapping):
            out[key] = {name: close_objects(item, is_refused) for name, item in value.items()}
        elif is_refused(key, value):
            said.append(f"{key}: {value}")
        elif key in _NESTED or key in _LISTS:
            out["anyOf" if key == "oneOf" else key] = close_objects(value, is_refused)
        else:
            out[key] = value
    if said:
        out["description"] = "; ".join([str(out["description"]), *said] if out.get("description") else said)
    if _is_object(schema) and "additionalProperties" not in out:
        out["additionalProperties"] = False
    return out


def title_of(schema: Mapping[str, Any], fallback: str = "answer") -> str:
    """A name for the schema that every service takes."""
    title = str(schema.get("title") or fallback)
    return "".join(ch if ch.isascii() and (ch.isalnum() or ch in "_-") else "_" for ch in title)[:64] or fallback
