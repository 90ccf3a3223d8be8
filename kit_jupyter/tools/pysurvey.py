"""What lies in a value, as far as a bounded look tells: secrets, objects of unknown classes, code that runs to show it.

Theory of operation
-------------------
`pylook` judges the syntax of code; this judges the values that it names. A value is walked through
(containers, tables, arrays, the attributes of objects) up to a number of items. Told are: a secret in
it, because code can show that in pieces, which no masking finds again (``[c for c in key]``); objects of
classes that are not known to be harmless, because operators and methods of theirs run their code;
representations written by the user, because to show such an object runs them.

Nothing of the user's is called here: classes are judged by where the code of their methods lies, and
attributes are read from the instance's dict. A value too large to be seen whole says so.
"""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import os
import site
import sys
import sysconfig
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kit_jupyter.masking import is_secret_pair, secret_in

__all__ = ["MAX_ITEMS", "Survey", "is_known", "runs_code", "survey"]

MAX_ITEMS = 20_000
MAX_CHARS = 2_000_000
MAX_COLUMNS = 2_000
MAX_DEPTH = 12

_NUMBERS = (int, float, complex, bool, type(None), range, slice, type(...), type(NotImplemented))
_TEXTS = (str, bytes, bytearray)
_SEQUENCES: tuple[type, ...] = (
    list,
    tuple,
    set,
    frozenset,
    collections.deque,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)
_MAPPINGS = (dict, collections.OrderedDict, collections.Counter)  # no proxies: what they stand for may be of any class
_PLAIN = frozenset((*_NUMBERS, *_TEXTS, *_SEQUENCES, *_MAPPINGS))
_TRUSTED = frozenset(
    ("pandas", "polars", "numpy", "xarray", "pyarrow", "scipy", "datetime", "decimal", "fractions", "collections")
)
# Of trusted libraries, what reads files, runs functions it was given, or is computed only when looked at.
_NOT_TRUSTED = frozenset(("defaultdict", "ChainMap", "LazyFrame", "NpzFile", "vectorize", "RandomState", "Generator"))
_SHOWING = (
    *("__repr__", "__str__", "__format__", "__dir__", "__getattr__", "__getattribute__", "__class__"),
    *("__instancecheck__", "_ipython_display_", "_repr_mimebundle_", "_repr_pretty_"),
    # What libraries call of a class derived from theirs, to show it: pandas, numpy, torch.
    *("_constructor", "__array_finalize__", "__array_wrap__", "extra_repr", "_get_name"),
    *(f"_repr_{kind}_" for kind in ("html", "markdown", "svg", "png", "jpeg", "pdf", "latex", "json", "javascript")),
)


@dataclass(slots=True)
class Survey:
    """What was found in a value.

    Parameters
    ----------
    secret : str
        What is secret in it; empty for nothing.
    is_foreign : bool
        It is, or holds, an object whose methods and operators are not known to be harmless.
    runs_code : bool
        To show it runs code that the user wrote.
    has_callable : bool
        A function hides in it.
    is_whole : bool
        Everything in it was seen.
    """

    secret: str = ""
    is_foreign: bool = False
    runs_code: bool = False
    has_callable: bool = False
    is_whole: bool = True


def is_known(value: Any) -> bool:
    """A value of a builtin type or of a library whose methods are known; nothing is said of what lies in it.

    Examples
    --------
    >>> [is_known(v) for v in ([1], "x", {}, print, object())]
    [True, True, True, False, False]
    """
    kind = type(value)
    if kind in _PLAIN:
        return True
    module = str(kind.__module__)
    if module.startswith(("pandas.io", "numpy.lib", "numpy.random")) or kind.__name__ in _NOT_TRUSTED:
        return False
    top = module.split(".")[0]
    if top == "pyarrow":
        return module == "pyarrow.lib"
    return top in _TRUSTED


def survey(value: Any, name: str = "") -> Survey:
    """Walk through `value`, which the variable `name` holds.

    Examples
    --------
    >>> survey([1, {"a": (2.5, "text")}])
    Survey(secret='', is_foreign=False, runs_code=False, has_callable=False, is_whole=True)
    >>> survey({"api_key": "sk-not-really-one"}).secret
    'api_key'
    """
    walk = _Walk()
    try:
        walk.through(value, name)
    except Exception:  # changed under our hands, or an odd object: what is not seen is not vouched for
        walk.found.is_whole = False
        walk.found.is_foreign = True
    return walk.found


class _Walk:
    def __init__(self) -> None:
        self.found = Survey()
        self._todo: list[tuple[str, Any, int]] = []
        self._texts: list[str] = []
        self._chars = 0
        self._left = MAX_ITEMS
        self._seen: set[int] = set()
        self._keep: list[Any] = []  # so that ids stay those of what was seen
        self._showing: dict[type, bool] = {}

    def through(self, value: Any, name: str) -> None:
        self._todo.append((name, value, 0))
        while self._todo:
            label, item, depth = self._todo.pop()
            if type(item) in _NUMBERS:
                continue
            self._left -= 1
            if self._left < 0 or depth > MAX_DEPTH:
                self.found.is_whole = False
                break
            self._take(label, item, depth)
        if not self.found.secret and self._texts:
            self.found.secret = secret_in("\n".join(self._texts))

    def _take(self, label: str, item: Any, depth: int) -> None:
        kind = type(item)
        if kind in _TEXTS:
            self._text(label, item)
            return
        if id(item) in self._seen:
            return
        self._seen.add(id(item))
        self._keep.append(item)
        if kind in _SEQUENCES:
            self._sequence(label, item, len(item), depth)
        elif kind in _MAPPINGS:
            self._mapping(item, depth)
        elif kind is os._Environ:
            self._mapping(dict(item), depth)
            self.found.is_foreign = True  # to change it changes the process
        elif kind is types.MappingProxyType:
            self.found.is_foreign = True
            self._todo.extend((label, held, depth + 1) for held in gc.get_referents(item))
        elif is_known(item):
            self._library(label, item, depth)
        else:
            self._object(item, depth)

    def _text(self, label: str, item: Any) -> None:
        text = item if isinstance(item, str) else bytes(item[:MAX_CHARS]).decode("latin-1")
        self._chars += len(text)
        if self._chars > MAX_CHARS:
            self.found.is_whole = False
            text = text[: max(0, MAX_CHARS - (self._chars - len(text)))]
        self._texts.append(text)
        if label and not self.found.secret and is_secret_pair(label, text):
            self.found.secret = label

    def _sequence(self, label: str, items: Iterable[Any], size: int, depth: int) -> None:
        if size > self._left:
            if size <= 2_000_000 and set(map(type, items)) <= set(_NUMBERS):
                return
            self.found.is_whole = False
        self._todo.extend((label, item, depth + 1) for item in itertools.islice(items, max(0, self._left)))

    def _mapping(self, items: Mapping[Any, Any], depth: int) -> None:
        if len(items) > self._left:
            self.found.is_whole = False
        for key, item in itertools.islice(items.items(), max(0, self._left)):
            if type(key) is str:
                self._text("", key)
            else:
                self._todo.append(("", key, depth + 1))
            self._todo.append((key if type(key) is str else "", item, depth + 1))

    # -- libraries

    def _library(self, label: str, item: Any, depth: int) -> None:
        match str(type(item).__module__).split(".")[0]:
            case "numpy":
                self._numpy(label, item, depth)
            case "pandas":
                self._pandas(label, item, depth)
            case "polars":
                self._columns(item, depth, "get_columns")
            case "pyarrow":
                self._arrow(label, item, depth)
            case "xarray":
                self._xarray(item, depth)
            case "datetime":
                if getattr(item, "tzinfo", None) is not None:
                    self._todo.append(("", item.tzinfo, depth + 1))
            case "decimal" | "fractions":
                pass
            case "collections":  # UserDict, UserList, UserString
                self._todo.append((label, getattr(item, "data", None), depth + 1))
            case _:
                self._object_dict(item, depth)

    def _numpy(self, label: str, item: Any, depth: int) -> None:
        dtype = getattr(item, "dtype", None)
        flat = getattr(item, "flat", None)
        if isinstance(item, str | bytes):
            self._text(label, str(item) if isinstance(item, str) else bytes(item))
        elif dtype is None or flat is None or getattr(dtype, "kind", "") in "biufcmM":
            pass
        elif dtype.kind in "US":
            self._sequence(label, flat[: self._left + 1].tolist(), item.size, depth)
        elif dtype.kind == "O":
            self._objects(label, item, depth)
        else:
            self.found.is_whole = False

    def _objects(self, label: str, array: Any, depth: int) -> None:
        """An array of Python objects; one too large to be seen whole counts as text when it is known to be."""
        if array.size > self._left:
            pandas = sys.modules.get("pandas")
            kind = pandas.api.types.infer_dtype(array.ravel(), skipna=True) if pandas is not None else "mixed"
            if kind in ("integer", "floating", "boolean", "datetime64", "datetime", "date", "decimal", "empty"):
                return
            self.found.is_foreign |= kind not in ("string", "bytes")
        self._sequence(label, array.flat[: self._left + 1].tolist(), array.size, depth)

    def _pandas(self, label: str, item: Any, depth: int) -> None:
        if isinstance(getattr(item, "attrs", None), dict):
            self._mapping(item.attrs, depth)
        kind = type(item).__name__
        if kind == "DataFrame":
            self._todo.append(("", item.columns, depth + 1))
            self._todo.append(("", item.index, depth + 1))
            if item.shape[1] > MAX_COLUMNS:
                self.found.is_whole = False
            for number, column in enumerate(item.columns[:MAX_COLUMNS]):
                if getattr(item.dtypes.iloc[number], "kind", "O") not in "biufcmM":
                    name = column if isinstance(column, str) else ""
                    self._values(name, item.iloc[:, number], depth)
        elif hasattr(item, "obj") and hasattr(item, "ndim"):  # group-bys, windows
            self._todo.append(("", item.obj, depth + 1))
            # A group-by keeps the function that it groups by, and calls it when it is used.
            self.found.is_foreign |= any(callable(key) for key in _listed(getattr(item, "keys", None)))
        elif hasattr(item, "dtype") and hasattr(item, "__len__"):
            own = getattr(item, "name", None)
            self._values(own if isinstance(own, str) else label, item, depth)
            if hasattr(item, "index") and kind == "Series":
                self._todo.append(("", item.index, depth + 1))
        elif kind == "MultiIndex":
            for level in item.levels:
                self._todo.append(("", level, depth + 1))

    def _values(self, label: str, column: Any, depth: int) -> None:
        dtype = column.dtype
        if getattr(dtype, "kind", "O") in "biufcmM":
            return
        if type(dtype).__name__ == "CategoricalDtype":
            self._todo.append((label, dtype.categories, depth + 1))
            return
        if type(column).__name__ == "MultiIndex":
            for level in column.levels:
                self._todo.append((label, level, depth + 1))
            return
        size = len(column)
        if getattr(dtype, "kind", "") == "O" and str(dtype) == "object" and hasattr(column, "to_numpy"):
            self._objects(label, column.to_numpy(), depth)
            return
        module = str(type(dtype).__module__).split(".")[0]
        self.found.is_foreign |= module not in ("pandas", "numpy")  # an array class of someone else's
        self._sequence(label, list(column[: min(size, self._left + 1)]), size, depth)

    def _columns(self, item: Any, depth: int, how: str) -> None:
        """A table or a column of polars."""
        columns = getattr(item, how)() if hasattr(item, how) else [item]
        if len(columns) > MAX_COLUMNS:
            self.found.is_whole = False
        for column in columns[:MAX_COLUMNS]:
            dtype = str(getattr(column, "dtype", ""))
            name = getattr(column, "name", "")
            if isinstance(name, str):
                self._text("", name)
            if dtype.startswith(("String", "Utf8", "Cat", "Enum", "Binary", "Object", "List", "Struct", "Array")):
                size = len(column)
                if dtype.startswith("Object") and size > self._left:
                    self.found.is_foreign = True
                self._sequence(name, column[: self._left + 1].to_list(), size, depth)

    def _arrow(self, label: str, item: Any, depth: int) -> None:
        names = getattr(item, "column_names", None)
        columns = [(label, item)] if names is None else list(zip(names, item.columns, strict=True))
        for name, column in columns[:MAX_COLUMNS]:
            kind = str(getattr(column, "type", ""))
            if not kind or kind.startswith(("int", "uint", "float", "double", "bool", "date", "time", "decimal")):
                continue
            if hasattr(column, "as_py"):
                self._todo.append((name, column.as_py(), depth + 1))
            elif hasattr(column, "to_pylist"):
                self._sequence(name, column.slice(0, self._left + 1).to_pylist(), len(column), depth)

    def _xarray(self, item: Any, depth: int) -> None:
        for variable in [getattr(item, "variable", item), *dict(getattr(item, "variables", {})).values()]:
            self._mapping(dict(getattr(variable, "attrs", {})), depth)
            held = getattr(variable, "_data", None)
            if held is not None:
                lazy = str(type(held).__module__).split(".")[0] not in ("numpy", "pandas")
                self.found.is_foreign |= lazy  # it is computed, or read, when it is looked at
                if not lazy:
                    self._todo.append(("", held, depth + 1))

    # -- objects

    def _object(self, item: Any, depth: int) -> None:
        found = self.found
        found.is_foreign = True
        found.has_callable |= callable(item)
        if isinstance(item, types.ModuleType | types.FunctionType | types.BuiltinFunctionType):
            return
        kind = type(item)
        if kind not in self._showing:
            self._showing[kind] = runs_code(kind)
        found.runs_code |= self._showing[kind]
        if isinstance(item, type):
            return
        # What a class adds to a builtin container does not count: the container's own methods tell what is in it.
        if isinstance(item, dict):
            self._mapping(dict(dict.items(item)), depth)
        elif isinstance(item, list | tuple | set | frozenset):
            base: Any = next(b for b in (list, tuple, set, frozenset) if isinstance(item, b))
            self._sequence("", list(base.__iter__(item)), base.__len__(item), depth)
        elif isinstance(item, str):
            self._text("", str.__str__(item))
        self._object_dict(item, depth)
        found.is_whole = False  # slots, and what is behind C

    def _object_dict(self, item: Any, depth: int) -> None:
        try:
            held = object.__getattribute__(item, "__dict__")
        except AttributeError:
            return
        if type(held) is dict:
            self._mapping(held, depth)


def _listed(keys: Any) -> list[Any]:
    return list(keys) if isinstance(keys, list | tuple) else [keys]


# ---------------------------------------------------------------- whose code


def runs_code(kind: type, names: Iterable[str] = _SHOWING) -> bool:
    """Whether showing an instance of `kind` (or using its members `names`) runs code that is no library's.

    Examples
    --------
    >>> import fractions
    >>> loud = type("Loud", (), {"__repr__": eval("lambda self: '!'")})
    >>> runs_code(loud), runs_code(fractions.Fraction)
    (True, False)
    """
    for name in names:
        for cls in type.__getattribute__(kind, "__mro__"):
            if name in vars(cls):
                if _is_written(vars(cls)[name]):
                    return True
                break
    if names is not _SHOWING:
        return False
    if (kind.__module__, kind.__name__) == ("pandas.io.formats.style", "Styler"):
        return True  # its formats may be functions, called for each cell
    made = vars(kind).get("__pydantic_decorators__")
    return any(getattr(made, name, None) for name in ("field_serializers", "model_serializers", "computed_fields"))


_IN_C = (
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.GetSetDescriptorType, type(None)),
    *(types.BuiltinFunctionType, types.MemberDescriptorType, types.ClassMethodDescriptorType),
)


def _is_written(method: Any) -> bool:
    """Python code from elsewhere than a library; a method that is no function counts as such."""
    if isinstance(method, staticmethod | classmethod):
        method = method.__func__
    if isinstance(method, property):
        method = method.fget
    if isinstance(method, types.FunctionType):
        return not _is_library(method.__code__.co_filename)
    return not isinstance(method, _IN_C) and type(method).__name__ != "cython_function_or_method"


def _is_library(filename: str) -> bool:
    if filename.startswith(("<frozen ", "<attrs generated ")):
        return True
    return os.path.realpath(filename).startswith(_roots())


@functools.lru_cache(maxsize=1)
def _roots() -> tuple[str, ...]:
    folders = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders |= {site.getusersitepackages(), *site.getsitepackages()}
    folders |= {entry for entry in sys.path if os.path.basename(entry) in ("site-packages", "dist-packages")}
    folders.add(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # this package, wherever it lies
    return tuple(sorted(os.path.join(os.path.realpath(folder), "") for folder in folders if folder))
