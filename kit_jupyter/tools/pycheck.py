"""What a piece of Python does, as far as its syntax tells: which powers it uses, which names it can change.

`powers` names what the code would use beyond computing: shell, network, files, dynamic code. It is a help for
rules and questions, not a wall: Python can hide anything, which is why code asks by default (`pylook` knows the
code that need not). Code too long to be read in a moment is not read: it is nothing but a question.
"""

from __future__ import annotations

import ast
import re

__all__ = ["MAX_READ", "changed_names", "powers", "without_magics", "words"]

MAX_READ = 40_000
"""Characters of code that are parsed to tell what it does; longer code is told to be too long."""


def words(text: str) -> frozenset[str]:
    """The words of a text, for tables."""
    return frozenset(text.split())


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


_IMPORTS = {
    "shell": words(
        """
        fabric invoke multiprocessing pexpect plumbum pty sh subprocess
        """
    ),
    "network": words(
        """
        aiohttp asyncssh boto3 ftplib gcsfs http httpx imaplib paramiko poplib requests s3fs smtplib socket
        socketserver telnetlib urllib urllib3 websocket websockets xmlrpc
        """
    ),
    "files": words(
        """
        shutil sqlite3 tarfile tempfile zipfile
        """
    ),
    "dynamic": words(
        """
        builtins cffi code codeop ctypes gc importlib marshal runpy
        """
    ),
}
_CALLS = {
    "shell": words(
        """
        Popen check_output execl execlp execv execve execvp fork forkpty getoutput getoutput_raw kill killpg
        popen posix_spawn spawnl spawnv startfile system
        """
    ),
    "network": words(
        """
        create_connection download_url_to_file urlopen urlretrieve
        """
    ),
    "files": words(
        """
        chmod chown copy2 copyfile copytree dump hardlink_to link makedirs memmap mkdir move remove
        removedirs rename renames replace rmdir rmtree save savefig savetxt savez symlink symlink_to to_csv
        to_excel to_feather to_hdf to_json to_netcdf to_parquet to_pickle to_sql to_stata to_zarr tofile
        touch truncate unlink write_bytes write_csv write_ipc write_json write_parquet write_text
        """
    ),
    "dynamic": words(
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
    """Which powers `code` uses, in order: shell, network, files, dynamic, magic.

    "unparsable" for no Python, "long" for more than `MAX_READ` characters, which are not parsed.

    Examples
    --------
    >>> powers("import subprocess\\nopen('x', 'w')"), powers("x = 1"), powers("!ls")
    (('shell', 'files'), (), ('shell',))
    """
    if len(code) > MAX_READ:
        return ("long",)
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
    if len(code) > MAX_READ:
        return set(re.findall(r"[A-Za-z_]\w*", code))
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
