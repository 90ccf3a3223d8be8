"""A function's signature and docstring as a JSON schema, and arguments checked against it.

Pydantic makes the schema and checks; ``docstring-parser`` (kept, NumPy, Google and reST styles)
reads the parameter texts. Both are imported when the first schema is made, never before.
"""

from __future__ import annotations

import difflib
import inspect
import json
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

from kit_jupyter.errors import BadArguments, UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["Signature", "parse_arguments", "signature_of"]

MAX_FAULTS = 12
_BY_NAME = {"int": int, "integer": int, "float": float, "number": float, "str": str, "string": str, "bool": bool}
_BY_NAME |= {"boolean": bool, "list": list, "dict": dict}


@dataclass(frozen=True, slots=True)
class Signature:
    """What a function takes from a model.

    Parameters
    ----------
    schema : dict
        JSON schema of an object.
    description : str
        The docstring without its parameter section.
    context_parameter : str or None
        Name of the parameter that receives the `ToolContext`.
    """

    schema: dict[str, Any]
    description: str
    context_parameter: str | None
    model: type[BaseModel]
    fields: Mapping[str, str]
    signature: inspect.Signature
    takes_names: bool = field(init=False)  # each argument can be given by its name

    def __post_init__(self) -> None:
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        all_of_them = all(parameter.kind in by_name for parameter in self.signature.parameters.values())
        object.__setattr__(self, "takes_names", all_of_them)

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Converted arguments by parameter name; those not given are left to the function's defaults.

        Raises
        ------
        BadArguments
            One line per fault.
        """
        from pydantic import ValidationError

        given: Any = dict(arguments) if isinstance(arguments, Mapping) else arguments
        if not isinstance(given, dict):
            raise BadArguments(f"- arguments: must be a JSON object, got {_short(given)}")
        try:
            checked = self.model.model_validate(given)
        except ValidationError as exc:
            given, changed = _unpack_strings(given, exc)
            if not changed:
                raise BadArguments(self._faults(exc)) from None
            try:
                checked = self.model.model_validate(given)
            except ValidationError as again:
                raise BadArguments(self._faults(again)) from None
        out = {
            name: getattr(checked, field) for name, field in self.fields.items() if field in checked.model_fields_set
        }
        return {**out, **(checked.model_extra or {})}

    def _faults(self, exc: Any) -> str:
        lines = []
        for fault in exc.errors(include_url=False):
            where = ".".join(str(step) for step in fault["loc"]) or "arguments"
            match fault["type"]:
                case "missing":
                    text = "missing, it is required"
                case "extra_forbidden":
                    near = difflib.get_close_matches(where, self.fields, 1)
                    known = ", ".join(self.fields) or "none"
                    text = f"no such argument; {f'did you mean {near[0]!r}' if near else f'known are: {known}'}"
                case _:
                    message = str(fault["msg"])
                    text = f"{message[:1].lower()}{message[1:]}, got {_short(fault['input'])}"
            lines.append(f"- {where}: {text}")
        more = len(lines) - MAX_FAULTS
        return "\n".join(lines[:MAX_FAULTS] + ([f"- and {more} more faults"] if more > 0 else []))

    def bind(self, arguments: Mapping[str, Any], context: object) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments of the call."""
        left = dict(arguments)
        if self.context_parameter is not None:
            left[self.context_parameter] = context
        if self.takes_names:
            known = self.signature.parameters
            return [], {name: value for name, value in left.items() if name in known}
        positional: list[Any] = []
        named: dict[str, Any] = {}
        kinds = inspect.Parameter
        spread = any(p.kind is kinds.VAR_POSITIONAL and left.get(n) for n, p in self.signature.parameters.items())
        for name, parameter in self.signature.parameters.items():
            if parameter.kind is kinds.VAR_POSITIONAL:
                positional.extend(left.pop(name, ()))
            elif parameter.kind is kinds.VAR_KEYWORD:
                named.update(left)
            elif name in left:
                value = left.pop(name)
                before_spread = spread and parameter.kind is kinds.POSITIONAL_OR_KEYWORD
                if parameter.kind is kinds.POSITIONAL_ONLY or before_spread:
                    positional.append(value)
                else:
                    named[name] = value
            elif spread and parameter.kind is kinds.POSITIONAL_OR_KEYWORD:
                positional.append(parameter.default)
        return positional, named


def parse_arguments(text: str) -> dict[str, Any]:
    """The JSON text of a call as a dict; empty text is no arguments.

    Raises
    ------
    BadArguments
        With the place of the fault, when it is not a JSON object.

    Examples
    --------
    >>> parse_arguments('{"n": 3}'), parse_arguments("")
    ({'n': 3}, {})
    """
    if not text.strip():
        return {}
    try:
        value = json.loads(text)
    except json.JSONDecodeError as exc:
        near = text[max(0, exc.pos - 20) : exc.pos + 20]
        raise BadArguments(f"- arguments: not JSON ({exc.msg} at character {exc.pos}, near {near!r})") from None
    except RecursionError:
        raise BadArguments("- arguments: nested too deeply") from None
    if isinstance(value, str):  # some models encode twice
        try:
            value = json.loads(value)
        except ValueError:
            pass
    if not isinstance(value, dict):
        raise BadArguments(f"- arguments: must be a JSON object, got {_short(value)}")
    return value


def _short(value: object) -> str:
    try:
        text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else repr(value[:80])
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    cut = text if len(text) <= 80 else f"{text[:77]}…"
    return f"{cut} ({len(value):,} characters)" if isinstance(value, str) and len(value) > 80 else cut


def _unpack_strings(given: dict[str, Any], exc: Any) -> tuple[dict[str, Any], bool]:
    """Lists and objects that a model wrote as JSON text, unpacked where the check wanted one."""
    changed = False
    for fault in exc.errors(include_url=False):
        loc = fault["loc"]
        if len(loc) < 1 or loc[0] not in given or not isinstance(given[loc[0]], str):
            continue
        if fault["type"] in {"list_type", "dict_type", "model_type", "tuple_type", "set_type", "model_attributes_type",
                             "dataclass_type"}:  # fmt: skip
            try:
                given = {**given, loc[0]: json.loads(given[loc[0]])}
                changed = True
            except ValueError:
                pass
    return given, changed


# ---------------------------------------------------------------- reading a function


def signature_of(fn: Callable[..., Any], *, name: str, context_type: type) -> Signature:
    """Read `fn`.

    Raises
    ------
    UsageError
        When a parameter's type cannot come from JSON or cannot be resolved.
    """
    from docstring_parser import parse
    from pydantic import ConfigDict, Field, create_model
    from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation

    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError) as exc:
        raise UsageError(f"tool {name!r}: {fn!r} tells no signature; wrap it in a function of your own") from exc
    doc = parse(inspect.getdoc(fn) or "")
    texts = {p.arg_name.lstrip("*"): (p.description or "").strip() for p in doc.params}
    said_types = {p.arg_name.lstrip("*"): (p.type_name or "") for p in doc.params}

    fields: dict[str, str] = {}
    definitions: dict[str, Any] = {}
    context_parameter: str | None = None
    extra: Any = "forbid"
    for parameter in signature.parameters.values():
        hint = _resolve(fn, parameter, name=name, context_type=context_type)
        if _is_context(hint, context_type):
            context_parameter = parameter.name
            continue
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            extra = "allow"
            continue
        if hint is inspect.Parameter.empty:
            hint = _guess(parameter.default, said_types.get(parameter.name, ""))
        more: dict[str, Any] = {"alias": parameter.name}
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            hint, more["default"] = types.GenericAlias(list, (hint,)), []
        elif parameter.default is not inspect.Parameter.empty:
            more["default"] = parameter.default
        if texts.get(parameter.name) and not _has_description(hint):
            more["description"] = texts[parameter.name]
        # Own names for the fields: a parameter may be called `schema`, `copy` or `_x`.
        field = f"p{len(fields)}"
        fields[parameter.name] = field
        definitions[field] = (hint, Field(**more))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a default that JSON cannot say is left out of the schema
            model = create_model(f"{name}_arguments", __config__=ConfigDict(extra=extra), **definitions)
            schema = model.model_json_schema(by_alias=True)
    except (PydanticSchemaGenerationError, PydanticUndefinedAnnotation, NameError, TypeError):
        culprit = _culprit(definitions, fields)
        raise UsageError(
            f"tool {name!r}: the type of parameter {culprit} cannot come from JSON; take a name, a path or "
            "a pydantic model instead"
        ) from None  # pydantic's own words, a hundred lines of them, say no more
    except Exception as exc:  # PydanticInvalidForJsonSchema and friends: a type that checks but has no schema
        raise UsageError(f"tool {name!r}: no JSON schema for its parameters ({type(exc).__name__}: {exc})") from exc
    said = [doc.short_description, doc.long_description]
    if doc.returns is not None and doc.returns.description:
        said.append(f"Returns: {doc.returns.description}")
    description = "\n\n".join(text.strip() for text in said if text)
    return Signature(_tidy(schema), description, context_parameter, model, fields, signature)


def _resolve(fn: Callable[..., Any], parameter: inspect.Parameter, *, name: str, context_type: type) -> Any:
    hint = parameter.annotation
    if not isinstance(hint, str):
        return hint
    inner = inspect.unwrap(fn)
    inner = getattr(inner, "func", inner)
    inner = getattr(inner, "__func__", inner)
    if not hasattr(inner, "__globals__"):
        inner = getattr(type(inner), "__call__", inner)  # noqa: B004  - an object: its class's method tells the globals
    try:
        closure = inspect.getclosurevars(inner).nonlocals
    except (TypeError, ValueError):
        closure = {}
    try:
        return eval(hint, getattr(inner, "__globals__", {}), dict(closure))
    except Exception as exc:
        if context_type.__name__ in hint:  # imported for type checkers only
            return context_type
        raise UsageError(
            f"tool {name!r}: the annotation {hint!r} of parameter {parameter.name!r} cannot be resolved ({exc})"
        ) from exc


def _is_context(hint: Any, context_type: type) -> bool:
    if hint is context_type:
        return True
    if get_origin(hint) is Annotated:
        return _is_context(get_args(hint)[0], context_type)
    return bool(get_args(hint)) and any(arg is context_type for arg in get_args(hint))


def _has_description(hint: Any) -> bool:
    return get_origin(hint) is Annotated and any(getattr(m, "description", None) for m in get_args(hint)[1:])


def _guess(default: Any, said: str) -> Any:
    word = said.split(",")[0].split(" or ")[0].strip()
    if word in _BY_NAME:
        known = _BY_NAME[word]
        return Union[known, None] if default is None else known  # noqa: UP007  - built at run time
    if default is not inspect.Parameter.empty and type(default) in (int, float, str, bool, list, dict):
        return type(default)
    return Any


def _culprit(definitions: Mapping[str, Any], fields: Mapping[str, str]) -> str:
    from pydantic import TypeAdapter

    for name, inner in fields.items():
        hint = definitions[inner][0]
        try:
            TypeAdapter(hint).json_schema()
        except Exception:
            return f"{name!r} ({getattr(hint, '__name__', hint)})"
    return "?"


def _tidy(schema: dict[str, Any]) -> dict[str, Any]:
    """Without the titles that pydantic makes up: they cost tokens and say nothing."""

    def walk(node: Any, *, is_names: bool = False) -> Any:
        if isinstance(node, dict):
            out = {}
            for key, value in node.items():
                if key == "title" and not is_names and isinstance(value, str):
                    continue
                raw = key in ("default", "enum", "const", "examples") and not is_names
                out[key] = value if raw else walk(value, is_names=key in ("properties", "$defs") and not is_names)
            return out
        return [walk(item) for item in node] if isinstance(node, list) else node

    out: dict[str, Any] = walk(schema)
    out.setdefault("properties", {})
    out["type"] = "object"
    return out
