"""What a piece of Python does, as far as its syntax tells: mere looking, or which powers it uses.

Theory of operation
-------------------
`is_look` says yes only when every part of the code is on a list: names, constants, indexing,
comparisons, a few builtins, and attributes and methods that are known to be harmless *on objects
of libraries that we know* (``df.head()`` yes, ``requests.head()`` no). Anything else is not
looking, and a person is asked. `powers` names what the code would use beyond computing: shell,
network, files, dynamic code. That one is a help for rules and questions, not a wall: Python can
hide anything, which is why code asks by default.
"""

from __future__ import annotations

import ast
import collections
import itertools
import re
import types
from collections.abc import Callable
from typing import Any

__all__ = ["changed_names", "is_look", "powers", "without_magics"]

_TRUSTED = {
    "pandas",
    "polars",
    "numpy",
    "xarray",
    "pyarrow",
    "scipy",
    "datetime",
    "decimal",
    "fractions",
    "collections",
}


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PLAIN = (int, float, complex, str, bytes, bool, list, dict, set, frozenset, tuple, range, type(None))
_BUILTINS = _words(
    """
    abs all any ascii bool callable dict dir display enumerate float frozenset hasattr hash id int isinstance
    len list max min print repr reversed round set sorted str sum tuple type zip
    """
)
# Builtins that call nothing but the representation of what they get.
_SHOWERS = _words("callable dir display id isinstance print repr str type")
_ATTRIBUTES = _words(
    """
    T at attrs axes categories chunks column_names columns coords data_vars device dims dt dtype dtypes empty
    encoding flags freq height iat iloc imag index is_monotonic_increasing is_unique itemsize levels loc name
    names nbytes ndim nnz num_columns num_rows real schema shape size sizes str strides type types values
    variables width
    """
)
_METHODS = _words(
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
# Arguments that make harmless methods write or mutate.
_BAD_KEYWORDS = {"inplace", "out", "buf", "path", "path_or_buf", "file", "func", "key", "into", "copy", "formatters"}
# How many positional arguments a method may get: later ones are often an `out` or an `inplace`.
_POSITIONAL = {"get": 2, "split": 2, "slice": 2, "to_string": 0, "info": 0, "glimpse": 0}


def without_magics(code: str) -> tuple[str, list[str]]:
    """Code with IPython's own lines (``%magic``, ``!command``, ``name?``) as ``pass``, and those lines.

    Examples
    --------
    >>> without_magics("%time f()\\nx = !ls\\nprint(1)")
    ('pass\\npass\\nprint(1)', ['%time f()', 'x = !ls'])
    """
    if code.lstrip().startswith("%%"):
        return "pass", [code]
    found: list[str] = []

    def line(match: re.Match[str]) -> str:
        found.append(match[0].strip())
        return f"{match['indent']}pass"

    pattern = r"(?m)^(?P<indent>[ \t]*)(?:[%!?].*|[A-Za-z_][\w.]*\?\??[ \t]*|[A-Za-z_][\w, ]*=[ \t]*[!%][^=].*)$"
    return re.sub(pattern, line, code), found


# ---------------------------------------------------------------- looking


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
    if len(code) > 4_000 or _REWRITTEN.search(code):
        return False
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    judge = _Look(lookup)
    try:
        return all(
            isinstance(node, ast.Expr)
            and (judge.is_shown(node.value) if isinstance(node.value, ast.Name) else judge.safe(node.value))
            for node in tree.body
        )
    except RecursionError:
        return False


class _Look:
    def __init__(self, lookup: Callable[[str], Any]) -> None:
        self._lookup = lookup
        self._bound: list[set[str]] = []  # names of comprehensions: their values are not known
        self._is_handed_on = False  # what a library gets as a key or an argument: it calls functions that it finds

    def is_shown(self, node: ast.Name) -> bool:
        """A name that is only shown; a function may be."""
        return self._is_name(node.id, shown=True)

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
                if isinstance(node.op, ast.Mult) and (_is_sequence(node.left) or _is_sequence(node.right)):
                    return False  # "a" * 10_000_000_000
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
                return self.safe(node.value) and self.safe(node.format_spec)
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

    def _is_name(self, name: str, *, shown: bool = False) -> bool:
        if any(name in bound for bound in self._bound):
            return True
        try:
            value = self._lookup(name)
        except KeyError:
            return name in _BUILTINS or name in ("True", "False", "None", "int", "NotImplemented", "Ellipsis")
        except Exception:
            return False
        if not shown and callable(value):
            return False
        if self._is_handed_on and not _holds_no_callable(value):
            return False
        # To look at an iterator is to use it up.
        return not isinstance(value, types.ModuleType) and not hasattr(type(value), "__next__")

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
                return _is_known(value)
            case ast.Attribute() | ast.Subscript():
                return self._is_trusted(node.value)
            case ast.Call(func=ast.Name(id=name)):
                return name in ("list", "dict", "sorted", "str", "repr", "set", "tuple", "type", "dir")
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
                shows = name in _SHOWERS
                if not all(self.is_shown(a) if shows and isinstance(a, ast.Name) else self.safe(a) for a in arguments):
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
                return name in _METHODS and self.safe(value) and self._is_trusted(value)
        return False

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


def _is_sequence(node: ast.AST) -> bool:
    return isinstance(node, ast.List | ast.Tuple) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str | bytes)
    )


def _holds_no_callable(value: Any) -> bool:
    """Whether no function hides in a container; one too large to see through counts as if it did."""
    todo: list[Any] = [value]
    left = 20_000
    while todo:
        item = todo.pop()
        left -= 1
        if left < 0 or callable(item):
            return False
        if isinstance(item, dict):
            todo.extend(itertools.islice(item.values(), left + 1))
            todo.extend(itertools.islice(item, left + 1))
        elif isinstance(item, list | tuple | set | frozenset | collections.deque):
            todo.extend(itertools.islice(item, left + 1))
    return True


def _is_known(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN:
        return True
    known = str(kind.__module__).split(".")[0] in _TRUSTED
    return known and kind.__name__ != "defaultdict"  # indexing that one adds a key


# ---------------------------------------------------------------- powers

_IMPORTS = {
    "shell": _words(
        """
        fabric invoke multiprocessing pexpect plumbum pty sh subprocess
        """
    ),
    "network": _words(
        """
        aiohttp asyncssh boto3 ftplib gcsfs http httpx imaplib paramiko poplib requests s3fs smtplib socket
        socketserver telnetlib urllib urllib3 websocket websockets xmlrpc
        """
    ),
    "files": _words(
        """
        shutil sqlite3 tarfile tempfile zipfile
        """
    ),
    "dynamic": _words(
        """
        builtins cffi code codeop ctypes gc importlib marshal runpy
        """
    ),
}
_CALLS = {
    "shell": _words(
        """
        Popen check_output execl execlp execv execve execvp fork forkpty getoutput getoutput_raw kill killpg
        popen posix_spawn spawnl spawnv startfile system
        """
    ),
    "network": _words(
        """
        create_connection download_url_to_file urlopen urlretrieve
        """
    ),
    "files": _words(
        """
        chmod chown copy2 copyfile copytree dump hardlink_to link makedirs memmap mkdir move remove
        removedirs rename renames replace rmdir rmtree save savefig savetxt savez symlink symlink_to to_csv
        to_excel to_feather to_hdf to_json to_netcdf to_parquet to_pickle to_sql to_stata to_zarr tofile
        touch truncate unlink write_bytes write_csv write_ipc write_json write_parquet write_text
        """
    ),
    "dynamic": _words(
        """
        __import__ compile eval ex exec import_module run_cell run_code
        """
    ),
}
_ONLY_ON_PATHS = {
    "replace",
    "remove",
    "save",
    "dump",
    "touch",
    "copy2",
    "link",
    "move",
    "rename",
    "kill",
    "ex",
    "truncate",
}


def powers(code: str) -> tuple[str, ...]:
    """Which powers `code` uses, in order: shell, network, files, dynamic, magic; "unparsable" for no Python.

    Examples
    --------
    >>> powers("import subprocess\\nopen('x', 'w')"), powers("x = 1"), powers("!ls")
    (('shell', 'files'), (), ('shell',))
    """
    plain, magics = without_magics(code)
    found: set[str] = set()
    for line in magics:
        shell = re.match(r"(?:[\w, ]+=\s*)?(!|%%?(bash|sh|script|system|sx|!))", line)
        found.add("shell" if shell else "magic")
        if line.startswith("%%"):
            found.add("magic")
    try:
        tree = ast.parse(plain)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ("unparsable",)
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                for alias in aliases:
                    modules[(alias.asname or alias.name).split(".")[0]] = alias.name.split(".")[0]
            case ast.ImportFrom(module=module):
                modules[module or ""] = (module or "").split(".")[0]
    for module in modules.values():
        found.update(power for power, names in _IMPORTS.items() if module in names)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id="open")) if _opens_for_writing(node):
                found.add("files")
            case ast.Call(func=ast.Attribute(attr="open")) if _opens_for_writing(node):
                found.add("files")
            case ast.Call(func=ast.Name(id=name)) | ast.Call(func=ast.Attribute(attr=name)):
                for power, calls in _CALLS.items():
                    if name in calls and (name not in _ONLY_ON_PATHS or _is_pathlike(node)):
                        found.add(power)
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in (
                "__import__",
                "__builtins__",
                "__subclasses__",
            ):
                found.add("dynamic")
            case ast.Name(id=name):
                found.update(("shell",) if name == "subprocess" else ())
    order = ("shell", "network", "files", "dynamic", "magic")
    return tuple(power for power in order if power in found)


def _opens_for_writing(node: ast.Call) -> bool:
    modes = [*node.args[0:2], *(keyword.value for keyword in node.keywords if keyword.arg == "mode")]
    texts = [mode.value for mode in modes if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
    unknown = len(node.args) > 1 and not isinstance(node.args[1], ast.Constant)
    return unknown or any(re.fullmatch(r"[rwaxbt+]{1,4}", text) and re.search(r"[wax+]", text) for text in texts)


def _is_pathlike(node: ast.Call) -> bool:
    """`x.remove(…)` may be a list's: only calls on what looks like a module or path count."""
    root = node.func
    while isinstance(root, ast.Attribute):
        root = root.value
    if isinstance(root, ast.Call):
        return isinstance(root.func, ast.Name) and root.func.id == "Path"
    return isinstance(root, ast.Name) and root.id in {
        "os", "shutil", "Path", "path", "p", "np", "numpy", "torch", "pickle", "json", "joblib", "file", "yaml",
    }  # fmt: skip


def changed_names(code: str) -> set[str]:
    """Names that `code` mentions at all: the variables it can change directly.

    Examples
    --------
    >>> sorted(changed_names("x = y + 1; del z; f(w)['a'] = 2"))
    ['f', 'w', 'x', 'y', 'z']
    """
    plain, _ = without_magics(code)
    try:
        tree = ast.parse(plain)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return set(re.findall(r"[A-Za-z_]\w*", code))
    out = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=defined) | ast.AsyncFunctionDef(name=defined) | ast.ClassDef(name=defined):
                out.add(defined)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                out.update((alias.asname or alias.name).split(".")[0] for alias in aliases)
    return out
