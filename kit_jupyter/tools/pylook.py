"""Does a piece of Python merely look?

Theory of operation
-------------------
`is_look` says yes only when every part of the code is on a list: names, constants, indexing,
comparisons, a few builtins, and attributes and methods that are known to be harmless *on objects
of libraries that we know* (``df.head()`` yes, ``requests.head()`` no). Anything else is not
looking, and a person is asked. So are they when a value that the code names holds a secret, which
could be shown in pieces and then is masked by nobody, or holds objects whose methods are not known
(`pysurvey`).
"""

from __future__ import annotations

import ast
import re
import types
from collections.abc import Callable, Iterator
from typing import Any

from kit_jupyter.tools.pycheck import words
from kit_jupyter.tools.pysurvey import Survey, is_known, survey

__all__ = ["is_look", "why_no_look"]

MAX_LOOK = 4_000
MAX_NAMES = 40

_BUILTINS = words(
    """
    abs all any ascii bool callable dict dir display enumerate float frozenset hasattr hash id int isinstance
    len list max min print repr reversed round set sorted str sum tuple type zip
    """
)
# Builtins that call nothing but the representation of what they get.
_SHOWERS = words("callable dir display id isinstance print repr str type")
# Those that look at the value itself and at nothing in it.
_PEEKERS = words("callable id isinstance len type")
_ATTRIBUTES = words(
    """
    T at attrs axes categories chunks column_names columns coords data_vars device dims dt dtype dtypes empty
    encoding flags freq height iat iloc imag index is_monotonic_increasing is_unique itemsize levels loc name
    names nbytes ndim nnz num_columns num_rows real schema shape size sizes str strides type types values
    variables width
    """
)
_METHODS = words(
    """
    all any argmax argmin argsort copy corr count cov cumsum date describe diff drop_nulls duplicated endswith
    estimated_size find first flatten get glimpse groupby head idxmax idxmin info isin isna isnan isnull
    isoformat item items keys kurt last limit lower max mean median memory_usage min mode most_common n_unique
    nbytes ndim nlargest nonzero notna notnull nsmallest null_count nunique pct_change quantile rank ravel
    reshape round sample select_dtypes sem size skew slice sort_index sort_values split startswith std strip sum
    tail to_dict to_list to_pydict to_string tolist total_seconds trace transpose unique upper value_counts
    values var
    """
)
_BY_PATTERN = words("count split")  # pandas' `.str` takes a regular expression
# Arguments that make harmless methods write or mutate.
_BAD_KEYWORDS = {"inplace", "out", "buf", "path", "path_or_buf", "file", "func", "key", "into", "copy", "formatters"}
# How many positional arguments a method may get: later ones are often an `out` or an `inplace`.
_POSITIONAL = {"get": 2, "split": 2, "slice": 2, "to_string": 0, "info": 0, "glimpse": 0}


# IPython takes prompts off, and ends lines where Python does not: what would run is not what is read here.
_REWRITTEN = re.compile(r"(?m)^\s*(?:>>>|\.\.\.)|\.\.\.:|In \[|[\0\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


def is_look(code: str, lookup: Callable[[str], Any]) -> bool:
    """True if `code` obviously only looks.

    Parameters
    ----------
    lookup : callable(name) -> object
        A variable's value; raises `KeyError` when there is none.

    Examples
    --------
    >>> values = {"data": {"a": [1, 2]}}
    >>> is_look("print(len(data['a'])); data.keys()", values.__getitem__)
    True
    >>> is_look("data.clear()", values.__getitem__)
    False
    """
    return why_no_look(code, lookup) is None


def why_no_look(code: str, lookup: Callable[[str], Any]) -> str | None:
    """None if `code` obviously only looks; else why it is asked about, empty when there is nothing special to say.

    Examples
    --------
    >>> why_no_look("settings['url'][::-1]", {"settings": {"url": "https://bob:hunter2@db.example"}}.__getitem__)
    'settings holds a secret (password), which this could show in pieces'
    """
    if len(code) > MAX_LOOK or _REWRITTEN.search(code):
        return ""
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    judge = _Look(lookup)
    try:
        looks = all(
            isinstance(node, ast.Expr)
            and (judge.is_shown(node.value) if isinstance(node.value, ast.Name) else judge.safe(node.value))
            for node in tree.body
        )
        return judge.why(tree) if looks else ""
    except RecursionError:
        return ""


class _Look:
    def __init__(self, lookup: Callable[[str], Any]) -> None:
        self._lookup = lookup
        self._bound: list[set[str]] = []  # names of comprehensions: their values are not known
        self._is_handed_on = False  # what a library gets as a key or an argument: it calls functions that it finds
        self._surveys: dict[str, Survey] = {}

    def is_shown(self, node: ast.Name, *, peek: bool = False) -> bool:
        """A name that is only shown; a function may be. `peek`: nothing of what is in it is."""
        return self._is_name(node.id, shown=True, peek=peek)

    def why(self, tree: ast.Module) -> str | None:
        """Why code that is nothing but looking by its syntax is none, by what its variables hold; None if it is."""
        for name, found in self._surveys.items():
            if found.secret:
                return f"{name} holds a secret ({found.secret}), which this could show in pieces"
            if found.runs_code:
                return f"to show {name} runs code of a class that is no library's"
        foreign = {name for name, found in self._surveys.items() if found.is_foreign}
        if foreign and (name := _reaches_into(tree, foreign)):
            return f"{name} holds objects whose methods are not known"
        unseen = [name for name, found in self._surveys.items() if not found.is_whole and name not in foreign]
        if unseen and _cuts_text(tree):
            return f"{unseen[0]} is too large to see whether it holds a secret, which this could show in pieces"
        return None

    def _survey(self, name: str, value: Any) -> Survey:
        if name not in self._surveys:
            too_many = len(self._surveys) >= MAX_NAMES
            self._surveys[name] = Survey(is_foreign=True, is_whole=False) if too_many else survey(value, name)
        return self._surveys[name]

    def _handed_on(self, node: ast.AST | None) -> bool:
        """Safe, and nothing in it can be called by who gets it: ``df[f]`` calls ``f``."""
        before, self._is_handed_on = self._is_handed_on, True
        try:
            return self.safe(node)
        finally:
            self._is_handed_on = before

    def safe(self, node: ast.AST | None) -> bool:
        match node:
            case None | ast.Constant():
                return True
            case ast.Name():
                return self._is_name(node.id)
            case ast.List(elts=items) | ast.Tuple(elts=items) | ast.Set(elts=items):
                return all(map(self.safe, items))
            case ast.Dict():
                return all(map(self.safe, [*node.keys, *node.values]))
            case ast.BinOp():
                if isinstance(node.op, ast.Pow | ast.LShift | ast.MatMult):
                    return False
                if isinstance(node.op, ast.Mult) and (self._is_sequence(node.left) or self._is_sequence(node.right)):
                    return False  # "a" * 10_000_000_000
                if isinstance(node.op, ast.Mod) and self._is_sequence(node.left):
                    return False  # "%99999999999d" % 1
                return self.safe(node.left) and self.safe(node.right)
            case ast.UnaryOp():
                return self.safe(node.operand)
            case ast.BoolOp():
                return all(map(self.safe, node.values))
            case ast.Compare():
                return self.safe(node.left) and all(map(self.safe, node.comparators))
            case ast.IfExp():
                return self.safe(node.test) and self.safe(node.body) and self.safe(node.orelse)
            case ast.Subscript():
                return self.safe(node.value) and self._handed_on(node.slice) and self._is_trusted(node.value)
            case ast.Slice():
                return self.safe(node.lower) and self.safe(node.upper) and self.safe(node.step)
            case ast.Starred():
                return self.safe(node.value)
            case ast.JoinedStr():
                return all(map(self.safe, node.values))
            case ast.FormattedValue():
                return _is_short_format(node.format_spec) and self.safe(node.value)
            case ast.Attribute():
                known = node.attr in _ATTRIBUTES
                return known and self.safe(node.value) and (self._is_trusted(node.value) or self._is_bound(node.value))
            case ast.Call():
                return self._is_call(node)
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
                return self._comprehension(node.generators, [node.elt])
            case ast.DictComp():
                return self._comprehension(node.generators, [node.key, node.value])
        return False

    def _is_name(self, name: str, *, shown: bool = False, peek: bool = False) -> bool:
        if any(name in bound for bound in self._bound):
            return True
        try:
            value = self._lookup(name)
        except KeyError:
            return name in _BUILTINS or name in ("True", "False", "None", "int", "NotImplemented", "Ellipsis")
        except Exception:
            return False
        if isinstance(value, range) and abs(value.stop - value.start) > 10_000_000 * abs(value.step):
            return peek or shown  # a list of it would fill the memory
        # To look at an iterator is to use it up.
        if isinstance(value, types.ModuleType) or hasattr(type(value), "__next__"):
            return False
        if peek:
            return True
        if not shown and (callable(value) or not is_known(value)):
            return False  # operators and lengths of other objects run their code
        found = self._survey(name, value)
        if not self._is_handed_on:
            return True
        hidden = not found.is_whole and isinstance(value, dict | list | tuple | set | frozenset)
        return not (found.has_callable or found.is_foreign or hidden)

    def _is_bound(self, node: ast.AST) -> bool:
        return isinstance(node, ast.Name) and any(node.id in bound for bound in self._bound)

    def _is_trusted(self, node: ast.AST) -> bool:
        """The value at the root of a chain is of a kind whose methods we know."""
        match node:
            case ast.Constant() | ast.List() | ast.Tuple() | ast.Dict() | ast.Set() | ast.JoinedStr():
                return True
            case ast.Name():
                if self._is_bound(node):
                    return False
                try:
                    value = self._lookup(node.id)
                except Exception:
                    return False
                return is_known(value)
            case ast.Attribute() | ast.Subscript():
                return self._is_trusted(node.value)
            case ast.Call(func=ast.Name(id=name)):
                return name in ("list", "dict", "sorted", "str", "repr", "set", "tuple", "dir")
            case ast.Call(func=ast.Attribute(value=value)):
                return self._is_trusted(value)
            case ast.BinOp():
                return self._is_trusted(node.left) or self._is_trusted(node.right)
            case ast.Compare():
                return self._is_trusted(node.left)
            case ast.UnaryOp():
                return self._is_trusted(node.operand)
            case ast.ListComp() | ast.SetComp() | ast.DictComp():
                return True
        return False

    def _is_call(self, node: ast.Call) -> bool:
        if any(keyword.arg is None or keyword.arg in _BAD_KEYWORDS for keyword in node.keywords):
            return False
        arguments = [*node.args, *(keyword.value for keyword in node.keywords)]
        match node.func:
            case ast.Name(id=name):
                if not all(self._is_argument(name, argument) for argument in arguments):
                    return False
                if name == "type" and len(node.args) != 1:
                    return False
                if name == "hasattr" and not (node.args and self._is_trusted(node.args[0])):
                    return False  # it runs properties
                return name in _BUILTINS and self._is_builtin(name)
            case ast.Attribute(attr=name, value=value):
                if not all(map(self._handed_on, arguments)):
                    return False
                if len(node.args) > _POSITIONAL.get(name, 1):
                    return False
                if name == "sample" and (any(map(_is_large, arguments)) or not _is_seeded(node)):
                    return False
                if name in _BY_PATTERN and any(map(_is_endless, arguments)):
                    return False
                return name in _METHODS and self.safe(value) and self._is_trusted(value)
        return False

    def _is_argument(self, function: str, node: ast.expr) -> bool:
        """What a builtin function gets."""
        if not isinstance(node, ast.Name) or self._is_bound(node):
            return self.safe(node)
        if function == "len" and not self._is_trusted(node):
            return False
        if function in _SHOWERS or function in _PEEKERS:
            return self.is_shown(node, peek=function in _PEEKERS)
        return self.safe(node)

    def _is_sequence(self, node: ast.AST) -> bool:
        """May be a text or a list, which a number multiplies."""
        match node:
            case ast.Constant(value=value):
                return isinstance(value, str | bytes)
            case ast.Name(id=name) if not self._is_bound(node):
                try:
                    value = self._lookup(name)
                except Exception:
                    return True
                return not isinstance(value, int | float | complex) and type(value).__module__ == "builtins"
            case ast.BinOp(left=left, right=right):
                return self._is_sequence(left) or self._is_sequence(right)
            case ast.UnaryOp() | ast.Compare():
                return False
            case ast.Call(func=ast.Name(id=name)):
                return name not in ("len", "int", "float", "abs", "round", "sum", "bool", "id")
            case ast.Call(func=inner) | ast.Attribute(value=inner) | ast.Subscript(value=inner):
                return self._is_sequence(inner)
        return True

    def _is_builtin(self, name: str) -> bool:
        """Not shadowed by a variable of the user's."""
        try:
            value = self._lookup(name)
        except KeyError:
            return True
        except Exception:
            return False
        return getattr(value, "__module__", "").split(".")[0] == "IPython" and name == "display"

    def _comprehension(self, generators: list[ast.comprehension], results: list[ast.expr]) -> bool:
        names: set[str] = set()
        self._bound.append(names)
        try:
            for generator in generators:
                if generator.is_async or not self._handed_on(generator.iter):
                    return False
                targets = [n for n in ast.walk(generator.target) if not isinstance(n, ast.Tuple | ast.List | ast.Store)]
                if not all(isinstance(n, ast.Name) for n in targets):
                    return False
                names.update(n.id for n in targets if isinstance(n, ast.Name))
                if not all(map(self.safe, generator.ifs)):
                    return False
            return all(map(self.safe, results))
        finally:
            self._bound.pop()


def _is_large(node: ast.AST) -> bool:
    """Not a small number in plain sight."""
    if not isinstance(node, ast.Constant):
        return True
    match node.value:
        case int() as number:
            return abs(number) > 100_000
        case float() as share:  # of the rows: 1e9 times as many would fill the memory
            return not abs(share) <= 1
    return False


def _is_seeded(node: ast.Call) -> bool:
    """`df.sample(3)` moves the random state that the person's own code goes on with."""
    seeds = [keyword.value for keyword in node.keywords if keyword.arg in ("random_state", "seed")]
    return any(isinstance(seed, ast.Constant) and isinstance(seed.value, int) for seed in seeds)


def _is_endless(node: ast.AST) -> bool:
    """A regular expression with a repetition, or not in plain sight: it may take for ever, and nothing stops it."""
    if not isinstance(node, ast.Constant):
        return True
    return isinstance(node.value, str | bytes) and bool(re.search(r"[*+{]", str(node.value))) and len(node.value) > 1


def _is_short_format(spec: ast.expr | None) -> bool:
    """No format, or a plain one that fills no gigabyte: ``f"{1:>9999999999}"``."""
    if spec is None:
        return True
    values = spec.values if isinstance(spec, ast.JoinedStr) else [spec]
    texts = [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    return len(texts) == len(values) and not re.search(r"\d{4}", "".join(texts))


# What may be done to a value that holds objects of unknown classes: none of it calls them.
_SHALLOW = words(
    "columns copy dims dtype dtypes get head index info isna isnull items itemsize keys len nbytes ndim notna notnull "
    "shape size tail to_list tolist type values"
)
# After these comes what lies in the value, no longer the value.
_ELEMENTS = words("get items keys to_list tolist values")


def _parents(tree: ast.AST) -> dict[ast.AST, ast.AST]:
    return {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def _reaches_into(tree: ast.Module, names: set[str]) -> str:
    """The first of `names` of which more is used than one shallow step; empty if none is."""
    parents = _parents(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in names and not _is_shallow(node, parents):
            return node.id
    return ""


def _is_shallow(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    inside = False  # an element, of which nothing is known
    while True:
        above = parents[node]
        match above:
            case ast.Expr():
                return True
            case ast.Call(func=ast.Name(id=name)) if name in _SHOWERS | _PEEKERS:
                return _is_only_shown(above, parents)
            case ast.Subscript(value=value) if value is node and not inside:
                inside = True
            case ast.Attribute(attr=attr) if attr in _SHALLOW and not inside:
                inside = attr in _ELEMENTS
                call = parents[above]
                if isinstance(call, ast.Call) and call.func is above:
                    above = call
            case ast.List() | ast.Tuple() | ast.Dict() | ast.FormattedValue() | ast.JoinedStr():
                return _is_only_shown(above, parents)
            case _:
                return False
        node = above


def _is_only_shown(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    """Up to the line's end nothing is done to it but showing."""
    while not isinstance(above := parents[node], ast.Expr):
        shown = isinstance(above, ast.List | ast.Tuple | ast.Dict | ast.FormattedValue | ast.JoinedStr)
        if not shown and not (
            isinstance(above, ast.Call) and isinstance(above.func, ast.Name) and above.func.id in _SHOWERS | _PEEKERS
        ):
            return False
        node = above
    return True


# Attributes that hold names, not what is in the value.
_NAMES = words("columns dims dtypes index names keys schema shape sizes")
_OF_TEXT = words("split startswith endswith find strip upper lower isin slice")


def _cuts_text(tree: ast.Module) -> bool:
    """Whether any part of the code could take a text of which nothing is known apart."""
    return any(map(_is_cut, ast.walk(tree)))


def _is_cut(node: ast.AST) -> bool:
    match node:
        case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp() | ast.Starred():
            return True
        case ast.BinOp(op=ast.Mod()):
            return True
        case ast.FormattedValue(format_spec=spec) if spec is not None:
            return True
        case ast.Call(func=ast.Attribute(attr=attr)) if attr in _OF_TEXT:
            return True
        case ast.Call(func=ast.Name(id=name)) if name not in _SHOWERS | _PEEKERS:
            return not all(_is_of_names(argument) for argument in node.args)
        case ast.Subscript(value=value, slice=part):
            by_name = all(isinstance(p, ast.Constant) and isinstance(p.value, str) for p in _pieces(part))
            # The first step into a variable takes a row, a column or a cell whole; a text knows no names.
            return not by_name and any(isinstance(n, ast.Subscript | ast.Call) for n in _chain(value))
    return False


def _is_of_names(node: ast.AST) -> bool:
    match node:
        case ast.Constant():
            return True
        case ast.Attribute(attr=attr) | ast.Call(func=ast.Attribute(attr=attr)):
            return attr in _NAMES
    return False


def _pieces(node: ast.AST) -> list[ast.expr]:
    match node:
        case ast.List(elts=parts):
            return parts
    return [node]  # type: ignore[list-item]


def _chain(node: ast.AST) -> Iterator[ast.AST]:
    """A value, and what it was taken from."""
    while True:
        yield node
        match node:
            case ast.Subscript(value=inner) | ast.Attribute(value=inner) | ast.Call(func=inner):
                node = inner
            case _:
                return
