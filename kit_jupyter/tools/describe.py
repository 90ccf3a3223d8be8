"""What a model is shown of an object: type, shape, schema, a few values; small and quick, whatever its size.

Theory of operation
-------------------
A describer is found by the names of the object's classes, so no library is ever imported here: an
object of pandas means that pandas is loaded. Describers look at shapes, dtypes and the first few
rows; nothing scans, copies or loads data, so a frame of a gigabyte costs milliseconds. An object
with ``_repr_llm_()`` speaks for itself; other methods that the user wrote, ``__repr__`` among them, are
not called. `register` adds describers for other types.

The words of `register` and ``_repr_llm_`` follow IPython's formatters; that an object may describe
itself to a model was asked for by users of other assistants.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import types
from collections.abc import Callable
from typing import Any, get_args

from kit_jupyter.messages import Part, TextPart
from kit_jupyter.printed import clip
from kit_jupyter.tool_value import media_of, parts_of
from kit_jupyter.tools.brief import bounded_repr, brief, kinds_of, safe_repr, short, signature_of, type_name
from kit_jupyter.tools.describers import LIBRARIES, Describer, Page

__all__ = ["describe", "register"]

_PART_TYPES = get_args(Part)
_by_type: dict[type, Callable[[Any], Any]] = {}
_by_name: dict[tuple[str, str], Describer] = dict(LIBRARIES)


def register(kind: type | str, describer: Callable[[Any], Any]) -> None:
    """Describe objects of a type your own way.

    Parameters
    ----------
    kind : type or str
        The class, or ``"package.ClassName"`` without importing it.
    describer : callable(obj) -> str or parts
        Called on the user's thread; should not scan large data.

    Examples
    --------
    >>> class Robot: pass
    >>> register(Robot, lambda robot: "a robot")
    >>> describe(Robot(), "r")[0].text
    'r: a robot'
    """
    if isinstance(kind, str):
        package, _, name = kind.rpartition(".")
        _by_name[package.split(".")[0], name] = _wrapped(describer)
    else:
        _by_type[kind] = describer


def _wrapped(describer: Callable[[Any], Any]) -> Describer:
    def show(obj: Any, page: Page) -> None:
        _say(describer(obj), page)

    return show


def describe(obj: Any, name: str = "", *, budget_chars: int = 2000) -> tuple[Part, ...]:
    """Text, and a picture for what is one.

    Parameters
    ----------
    name : str
        Shown before the type.
    budget_chars : int, characters
        The text is never longer.

    Notes
    -----
    Call it on the thread that owns the object. Never raises.

    Examples
    --------
    >>> describe([1, 2, 3], "xs")[0].text
    'xs: list of 3 int\\n[1, 2, 3]'
    """
    budget_chars = max(80, budget_chars)
    page = Page(budget_chars - len(name) - 2)
    try:
        _describe(obj, page)
    except Exception as exc:
        page = Page(budget_chars - len(name) - 2)
        page.line(f"{type_name(obj)} (describing it failed: {type(exc).__name__}: {exc})")
    text = f"{name}: {page.text}" if name else page.text
    return (TextPart(clip(text, budget_chars) if len(text) > budget_chars else text), *page.parts)


def _describe(obj: Any, page: Page) -> None:
    for cls in type(obj).__mro__:
        if cls in _by_type:
            _say(_by_type[cls](obj), page)
            return
    speak = getattr(type(obj), "_repr_llm_", None)
    if speak is not None and not isinstance(obj, type):
        _say(speak(obj), page)
        return
    for cls in type(obj).__mro__:
        found = _by_name.get((str(cls.__module__).split(".")[0], cls.__qualname__))
        if found is not None:
            found(obj, page)
            return
    _plain(obj, page)


def _say(said: Any, page: Page) -> None:
    parts = (said,) if isinstance(said, _PART_TYPES) else parts_of(said, limit=page.left)
    for part in parts:
        if isinstance(part, TextPart):
            page.line(part.text, limit=page.left - 40)
        else:
            page.parts.append(part)


# ---------------------------------------------------------------- plain Python


def _plain(obj: Any, page: Page) -> None:
    if isinstance(obj, str | bytes | bytearray):
        page.line(f"{type_name(obj)} of {len(obj):,} {'characters' if isinstance(obj, str) else 'bytes'}")
        page.line(short(obj, max(100, page.left - 100)), limit=page.left)
    elif isinstance(obj, dict):
        page.line(f"{type_name(obj)} of {len(obj):,}")
        page.lines(
            (f"{short(k)}: {short(v, 80)}" for k, v in itertools.islice(obj.items(), 200)),
            len(obj),
            "more keys",
        )
    elif isinstance(obj, list | tuple | set | frozenset):
        page.line(f"{type_name(obj)} of {len(obj):,}{kinds_of(obj)}")
        if len(obj) <= 20:
            page.line(bounded_repr(obj, 200), limit=800)
        else:
            page.lines((short(item, 80) for item in itertools.islice(obj, 10)), len(obj), "more")
    elif isinstance(obj, types.ModuleType):
        page.line(f"module {obj.__name__} {getattr(obj, '__version__', '')}".rstrip())
        page.line((inspect.getdoc(obj) or "").split("\n")[0])
        names = [name for name in vars(obj) if not name.startswith("_")]
        page.line(f"has: {', '.join(names[:60])}{' …' if len(names) > 60 else ''}", limit=900)
    elif isinstance(obj, type):
        _class(obj, page)
    elif callable(obj) and hasattr(obj, "__name__"):
        page.line(f"{type(obj).__name__} {obj.__name__}{signature_of(obj)}", limit=500)
        page.lines((inspect.getdoc(obj) or "").split("\n")[:12])
    elif isinstance(obj, bool | int | float | complex) or obj is None:
        page.line(brief(obj))
    elif media_of(obj) is not None:
        picture = media_of(obj)
        page.line(f"{type_name(obj)}, shown as a picture")
        if picture is not None:
            page.parts.append(picture)
    else:
        _object(obj, page)


def _class(obj: type, page: Page) -> None:
    page.line(f"class {obj.__qualname__}{signature_of(obj)} from {obj.__module__}", limit=400)
    bases = [base.__qualname__ for base in obj.__mro__[1:-1]]
    if bases:
        page.line(f"bases: {', '.join(bases)}")
    page.lines((inspect.getdoc(obj) or "").split("\n")[:8])
    methods = [name for name, item in vars(obj).items() if callable(item) and not name.startswith("_")]
    page.line(f"methods: {', '.join(methods)}", limit=500)


def _object(obj: Any, page: Page) -> None:
    page.line(type_name(obj))
    text = safe_repr(obj)
    if not text.startswith("<"):
        page.line(" ".join(text.split()), limit=min(600, page.left))
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        values = {f.name: getattr(obj, f.name, None) for f in dataclasses.fields(obj)}
    else:
        values = getattr(obj, "__dict__", {}) if isinstance(getattr(obj, "__dict__", None), dict) else {}
    values = {name: value for name, value in values.items() if not name.startswith("_")}
    page.lines((f"  .{name}: {brief(value)}" for name, value in itertools.islice(values.items(), 40)))
    if isinstance(doc := inspect.getdoc(type(obj)), str) and type(obj).__module__ != "builtins":
        page.line(doc.split("\n")[0])
    methods = [n for n, item in vars(type(obj)).items() if callable(item) and not n.startswith("_")]
    if methods:
        page.line(f"methods: {', '.join(methods[:40])}", limit=500)
