"""Limits on every string and array of a JSON schema, for models that fill what space they are given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from kit_jupyter.errors import UsageError

__all__ = ["LONG_NAMES", "STRING_MAX_LENGTH", "bounded"]

STRING_MAX_LENGTH = 300
LONG_STRING_MAX_LENGTH = 2000  # code, file contents: what is long by nature
ARRAY_MAX_ITEMS = 20
LONG_NAMES = re.compile(r"code|content|script|source|command|query|sql|body|text", re.IGNORECASE)


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
        wanted = LONG_STRING_MAX_LENGTH if LONG_NAMES.search(name) else limit
        out["maxLength"] = max(wanted, floor) if isinstance(floor, int) else wanted
    if "array" in kinds and "maxItems" not in out:
        floor = out.get("minItems")
        out["maxItems"] = max(ARRAY_MAX_ITEMS, floor) if isinstance(floor, int) else ARRAY_MAX_ITEMS
    return out
