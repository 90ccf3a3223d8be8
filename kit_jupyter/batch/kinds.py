"""Which columns a schema gives, and of what kind: a row that failed must not turn numbers into objects.

Theory of operation
-------------------
The kind of a column is the schema's word on it where there is one, else what all its values are. It is used only
where every value that is there fits it, so no value is ever bent; a hole (a row that failed, an optional field that
was left out) fits any kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kit_jupyter.structured import Format

__all__ = ["Column", "Form", "form_of"]

_KINDS = ("boolean", "integer", "number")
_INTEGERS = 2**63
_EXACT = 2**53  # whole numbers up to here are floats without a loss


@dataclass(frozen=True, slots=True)
class Form:
    """What a schema says of the columns.

    Attributes
    ----------
    fields : dict
        Kind of each field of a record, in order: integer, number, boolean, or empty for all else; no field at all
        where answers are no records, or their fields are not known before.
    kind : str
        Kind of an answer that is no record.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """Values of one result column, and what the schema says they are."""

    values: list[Any]
    kind: str = ""

    @property
    def has_holes(self) -> bool:
        """True when a row has no value, or there is no row."""
        return not self.values or any(value is None for value in self.values)

    def kind_of(self, values: Sequence[Any]) -> str:
        """The kind that these values of ours can be kept as without a change; else empty."""
        if _fits(self.kind, values):
            return self.kind
        if all(value is None for value in values):
            return ""
        kinds = ("boolean", "number") if any(isinstance(value, float) for value in values) else _KINDS
        return next((kind for kind in kinds if _fits(kind, values)), "")


def form_of(fmt: Format | None) -> Form:
    """What columns come of answers of this form.

    Examples
    --------
    >>> form_of(Format({"type": "object", "properties": {"stars": {"type": ["integer", "null"]}}})).fields
    {'stars': 'integer'}
    >>> form_of(Format(list[int])), form_of(Format(float | None)).kind
    (Form(fields={}, kind=''), 'number')
    """
    if fmt is None:
        return Form()
    schema = _schema(fmt)
    defs = schema.get("$defs", {})
    variants = [one for one in _variants(schema, defs) if one.get("type") != "null"]
    if variants and all(_is_record(one) for one in variants):
        found: dict[str, set[str]] = {}
        for one in variants:
            for name, inner in one["properties"].items():
                found.setdefault(str(name), set()).update(_types(inner, defs))
        return Form({name: _kind(types) for name, types in found.items()})
    return Form(kind=_kind(_types(schema, defs)))


def _schema(fmt: Format) -> Mapping[str, Any]:
    """The schema of the values as they are put into columns: by names of fields, computed ones among them."""
    if isinstance(fmt.shape, Mapping):
        return fmt.shape
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        return TypeAdapter(fmt.shape).json_schema(by_alias=False, mode="serialization")
    except PydanticUserError:  # a field can be read but not written as JSON
        return {}


def _is_record(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object" and isinstance(schema.get("properties"), Mapping)


def _variants(schema: Any, defs: Mapping[str, Any], depth: int = 0) -> Iterable[Mapping[str, Any]]:
    """The alternatives of a schema, references looked up; an endless one is left as it is."""
    if not isinstance(schema, Mapping):
        return
    among = schema.get("anyOf") or schema.get("oneOf")
    target = defs.get(str(schema.get("$ref", "")).rsplit("/", 1)[-1])
    if depth < 16 and isinstance(among, list):
        for one in among:
            yield from _variants(one, defs, depth + 1)
    elif depth < 16 and target is not None:
        yield from _variants(target, defs, depth + 1)
    else:
        yield schema


def _types(schema: Any, defs: Mapping[str, Any]) -> set[str]:
    out: set[str] = set()
    for one in _variants(schema, defs):
        named = one.get("type", "any")
        out.update(map(str, named if isinstance(named, list) else [named]))
    return out or {"any"}


def _kind(types: set[str]) -> str:
    kinds = types - {"null"}
    if kinds == {"integer", "number"}:
        return "number"
    return next(iter(kinds)) if len(kinds) == 1 and kinds <= set(_KINDS) else ""


def _fits(kind: str, values: Iterable[Any]) -> bool:
    there = (value for value in values if value is not None)
    match kind:
        case "boolean":
            return all(isinstance(value, bool) for value in there)
        case "integer":  # JSON knows 3.0 as a whole number
            return all(_is_number(v) and -_INTEGERS <= v < _INTEGERS and v == int(v) for v in there)
        case "number":
            return all(_is_number(v) and (isinstance(v, float) or abs(v) <= _EXACT) for v in there)
    return False


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
