"""What an answer must fit: a type or a JSON schema, and how a text becomes its value."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Mapping
from typing import Any

from kit_jupyter.errors import UsageError

__all__ = ["Format", "Misfit"]

_FENCE_BEGINS = re.compile(r"^\s*```[a-zA-Z]*\s*\n")
_FENCE = re.compile(r"^\s*```[a-zA-Z]*\s*\n(.*?)\n?\s*```\s*$", re.S)


class Misfit(ValueError):
    """An answer that does not fit; the message lists each fault on a line of its own."""


class Format:
    """A type, or a JSON schema, as the form of an answer.

    Parameters
    ----------
    shape : type or dict
        A pydantic model, dataclass, TypedDict, enum, list, union, plain type; or a JSON schema.

    Attributes
    ----------
    schema : dict
        An object schema; a shape that is not an object is wrapped as ``{"value": …}``.

    Raises
    ------
    UsageError
        If no schema can be made of it.

    Examples
    --------
    >>> Format(list[int]).read('{"value": [1, 2]}')
    [1, 2]
    """

    def __init__(self, shape: Any) -> None:
        from pydantic import TypeAdapter
        from pydantic.errors import PydanticUserError

        self.shape = shape
        self._adapter: Any = None
        if isinstance(shape, Mapping):
            schema: dict[str, Any] = dict(shape)
            if not schema:
                raise UsageError("an empty JSON schema says nothing about the answer; give a type or a schema")
        else:
            try:
                self._adapter = TypeAdapter(shape)
                schema = self._adapter.json_schema()
            except (PydanticUserError, TypeError, NameError) as exc:
                # What pydantic says after its first sentence is for those who write types for it.
                why = str(exc).strip().partition("\n")[0].partition(". Set `")[0]
                raise UsageError(
                    f"no JSON schema can be made of {repr(shape)[:200]}: {why}; give a type, such as a dataclass, or a "
                    "JSON schema"
                ) from exc
        self.is_wrapped = not _is_object(schema)
        if self.is_wrapped:
            inner = dict(schema)
            defs = inner.pop("$defs", None)
            schema = {"type": "object", "properties": {"value": inner}, "required": ["value"]}
            if defs:
                schema["$defs"] = defs
        self.schema = schema

    def read(self, text: str) -> Any:
        """The value in an answer's text; a code fence round it is taken off.

        Raises
        ------
        Misfit
            With one line per fault, in words a model can act on.
        """
        fenced = _FENCE.match(text)
        body = fenced.group(1) if fenced else text
        try:
            value = json.loads(body)
        except ValueError as exc:
            raise Misfit(f"the answer is not JSON: {exc}") from exc
        if self.is_wrapped:
            if not isinstance(value, dict) or "value" not in value:
                raise Misfit('the answer must be an object with the key "value"')
            value = value["value"]
        return self.check(value)

    def check(self, value: Any) -> Any:
        """A JSON value as the shape's own type."""
        from pydantic import ValidationError

        if self._adapter is not None:
            try:
                # JSON mode: an enum's value or an ISO date is what a model can write.
                return self._adapter.validate_json(json.dumps(value))
            except ValidationError as exc:
                raise Misfit("\n".join(_fault(e["loc"], e["msg"]) for e in exc.errors())) from exc
        faults = _schema_faults(value, self.schema["properties"]["value"] if self.is_wrapped else self.schema)
        if faults:
            raise Misfit("\n".join(faults))
        return value

    def read_partial(self, text: str) -> Any:
        """The value as far as it has come, plain JSON values; None before it begins."""
        from pydantic_core import from_json

        try:
            value = from_json(_FENCE_BEGINS.sub("", text, count=1).rstrip("`"), allow_partial="trailing-strings")
        except ValueError:
            return None
        if self.is_wrapped:
            return value.get("value") if isinstance(value, dict) else None
        return value


def _is_object(schema: Mapping[str, Any]) -> bool:
    if "$ref" in schema:
        name = str(schema["$ref"]).rsplit("/", 1)[-1]
        target = schema.get("$defs", {}).get(name, {})
        return _is_object(target) if target else False
    return schema.get("type") == "object"


def _fault(loc: tuple[Any, ...], message: str) -> str:
    where = ".".join(str(step) for step in loc) or "the answer"
    return f"{where}: {message}"


def _schema_faults(value: Any, schema: Mapping[str, Any]) -> list[str]:
    """Faults by JSON schema: with the kept validator where it is installed, else its outermost facts."""
    try:
        jsonschema: Any = importlib.import_module("jsonschema")  # by name: it bears no types
    except ImportError:
        missing = [name for name in schema.get("required", ()) if not isinstance(value, dict) or name not in value]
        return [f"{name}: field required" for name in missing]
    validator = jsonschema.validators.validator_for(dict(schema))(dict(schema))
    return [_fault(tuple(error.absolute_path), error.message) for error in validator.iter_errors(value)]
