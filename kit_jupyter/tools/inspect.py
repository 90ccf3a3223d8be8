"""The `inspect` tool: what is in the user's session, without running anything of theirs."""

from __future__ import annotations

import inspect as _inspect
import re
import types
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from kit_jupyter.messages import Part, TextPart
from kit_jupyter.permissions import Access, Need
from kit_jupyter.printed import clip
from kit_jupyter.tool import ToolContext, ToolOutcome
from kit_jupyter.tool_value import describe_error
from kit_jupyter.tools._base import EngineTool
from kit_jupyter.tools.brief import brief
from kit_jupyter.tools.describe import describe
from kit_jupyter.tools.python import NamespaceRunner, Runner, _is_theirs
from kit_jupyter.trifecta import Legs
from kit_jupyter.usercall import UserCall

__all__ = ["InspectTool", "list_variables", "resolve"]

MAX_NAMES = 10
MAX_LISTED = 80
MAX_SOURCE = 12_000


class InspectTool(EngineTool):
    """Look at variables.

    Parameters
    ----------
    runner : Runner or None
        Whose namespace; None for the ``__main__`` module's.
    """

    name: ClassVar[str] = "inspect"
    legs: ClassVar[Legs] = Legs(private=True, untrusted="soft")
    bounds: ClassVar[str] = f"2,000 characters a variable, {MAX_NAMES} at once; samples, never scans"
    default: ClassVar[str] = "allow"

    def __init__(self, runner: Runner | None = None) -> None:
        self.runner: Runner = runner if runner is not None else NamespaceRunner()

    def access(self, arguments: Mapping[str, Any], context: ToolContext) -> Access:
        """Looking only."""
        return Access(needs=(Need("inspect", ", ".join(map(str, arguments.get("names") or [])), "look", "*"),))

    async def call(
        self,
        context: ToolContext,
        names: list[str] | None = None,
        show: Literal["summary", "docs", "source"] = "summary",
    ) -> ToolOutcome:
        """Look at the user's live variables without changing them: type, shape, columns, first values, memory.

        Without names, list all variables. Cheap even for very large data; use it before writing
        code that touches an object you have not seen.

        Parameters
        ----------
        names : list of str, optional
            Variables, or dotted names such as ``df.columns`` or ``np.linalg.svd``.
        show : {"summary", "docs", "source"}
            A summary of the value, its documentation, or its source code.
        """
        done = await UserCall(lambda: self._look(names or [], show)).run(context)
        if isinstance(done.value, ToolOutcome):
            return done.value
        return ToolOutcome.of_text(
            describe_error(done.error) if done.error is not None else "interrupted", is_error=True
        )

    def _look(self, names: list[str], show: str) -> ToolOutcome:
        namespace = self.runner.namespace
        if not names:
            return ToolOutcome.of_text(list_variables(namespace))
        parts: list[Part] = []
        failed = 0
        for name in names[:MAX_NAMES]:
            try:
                value = resolve(namespace, name)
            except LookupError as exc:
                failed += 1
                parts.append(TextPart(f"{name}: {exc.args[0]}\n"))
                continue
            if show == "docs":
                parts.append(TextPart(f"{name}: {clip(_inspect.getdoc(value) or 'no documentation', MAX_SOURCE)}\n"))
            elif show == "source":
                parts.append(TextPart(f"{name}:\n{_source(value)}\n"))
            else:
                described = describe(value, name)
                parts.extend(TextPart(p.text + "\n") if isinstance(p, TextPart) else p for p in described)
        if len(names) > MAX_NAMES:
            parts.append(TextPart(f"… {len(names) - MAX_NAMES} more names; ask for at most {MAX_NAMES} at once"))
        return ToolOutcome(parts=tuple(parts), is_error=failed == len(names[:MAX_NAMES]))


def _source(value: Any) -> str:
    target = value if isinstance(value, type | types.ModuleType) or callable(value) else type(value)
    try:
        return clip(_inspect.getsource(target), MAX_SOURCE)
    except (OSError, TypeError):
        return f"no source code ({brief(value)})"


def resolve(namespace: Mapping[str, Any], name: str) -> Any:
    """The object of a dotted name, reached without running properties of the user's objects.

    Raises
    ------
    LookupError
        With words that say what to do.

    Examples
    --------
    >>> resolve({"x": {"a": 1}}, "x")
    {'a': 1}
    """
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name.strip()):
        raise LookupError("not a name; use the python tool for expressions")
    first, *rest = name.strip().split(".")
    builtins = namespace.get("__builtins__")
    builtins = vars(builtins) if isinstance(builtins, types.ModuleType) else builtins
    if first in namespace:
        value = namespace[first]
    elif isinstance(builtins, Mapping) and first in builtins:
        value = builtins[first]
    else:
        import difflib

        near = difflib.get_close_matches(first, [n for n in namespace if _is_theirs(n)], 3)
        raise LookupError(f"no such variable{f'; did you mean {chr(44).join(near)}' if near else ''}")
    for step in rest:
        value = _attribute(value, step)
    return value


def _attribute(value: Any, name: str) -> Any:
    top = str(type(value).__module__).split(".")[0]
    known = top in {"pandas", "polars", "numpy", "xarray", "pyarrow", "torch", "sklearn", "scipy"}
    if isinstance(value, types.ModuleType | type) or known:
        try:
            return getattr(value, name)
        except AttributeError:
            raise LookupError(f"no attribute {name!r} on {brief(value)}") from None
    try:
        found = _inspect.getattr_static(value, name)
    except AttributeError:
        raise LookupError(f"no attribute {name!r} on {brief(value)}") from None
    if isinstance(found, property) or (hasattr(type(found), "__get__") and not callable(found)):
        raise LookupError(f"{name!r} is computed by code of {brief(value)}; use the python tool to run it")
    if isinstance(found, staticmethod | classmethod):
        return found.__func__
    return found


def list_variables(namespace: Mapping[str, Any]) -> str:
    """All variables of the user, one line each; modules in one line.

    Examples
    --------
    >>> print(list_variables({"a": 1, "b": [1, 2], "_c": 3}))
    a: int 1
    b: list of 2 int
    """
    items = [(name, value) for name, value in list(namespace.items()) if _is_theirs(name)]
    modules = [name for name, value in items if isinstance(value, types.ModuleType)]
    others = [(name, value) for name, value in items if not isinstance(value, types.ModuleType)]
    lines = [f"{name}: {clip(brief(value), 160)}" for name, value in others[:MAX_LISTED]]
    if len(others) > MAX_LISTED:
        lines.append(f"… {len(others) - MAX_LISTED} more: {', '.join(n for n, _ in others[MAX_LISTED:])[:1000]}")
    if modules:
        lines.append(f"modules: {', '.join(modules)}")
    return "\n".join(lines) or "no variables yet"
