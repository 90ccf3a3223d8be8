"""Which programs a shell line runs, seen through wrappers, substitutions, assignments and redirections.

Theory of operation
-------------------
``bashlex`` (kept, optional) parses the line; every simple command anywhere in it (pipelines, lists,
loops, functions, ``$(…)``, backquotes, ``<(…)``) becomes one `Command`. Wrappers that only run
another program (``env``, ``timeout``, ``xargs``, ``nohup`` …) are peeled; those that change who runs
it (``sudo``) are kept as well. ``bash -c`` and ``eval`` of a plain text are parsed in turn.

What cannot be read for certain (no bashlex, syntax it does not know, a program whose name is
computed, an interpreter that runs what it reads, aliases) is *unsure*, and unsure always asks. So a
fault here costs a question, never an unasked action.
"""

from __future__ import annotations

import re
import secrets
import shlex
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Command", "Parsed", "Redirect", "parse_shell", "suggest"]

MAX_DEPTH = 6
MAX_LENGTH = 8_000  # without the bodies of here-documents whose delimiter is quoted
MAX_WHOLE = 100_000
MAX_HEREDOCS = 50


@dataclass(frozen=True, slots=True)
class Command:
    """One program with its arguments, as the shell would see them before expansion.

    Examples
    --------
    >>> parse_shell("env A=1 timeout 5 git log").commands[0].text
    'A=1 git log'
    """

    words: tuple[str, ...]
    assignments: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """As rules match it: assignments, program, arguments, one space between."""
        return " ".join((*self.assignments, *self.words))


@dataclass(frozen=True, slots=True)
class Redirect:
    """A file that the shell itself opens; `is_plain` is False when its name is computed."""

    path: str
    writes: bool
    is_plain: bool = True


@dataclass(slots=True)
class Parsed:
    """What a line does.

    Parameters
    ----------
    unsure : list of str
        Why it could not be read for certain; empty when it could.
    background : bool
        Something is sent to the background.
    """

    commands: list[Command] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    background: bool = False


# Programs that run the rest of their line, and which of their options take a value.
_WRAPPERS: dict[str, str] = {
    "env": "-u --unset -C --chdir",
    "timeout": "-k --kill-after -s --signal",
    "nice": "-n --adjustment",
    "ionice": "-c -n -p --class --classdata",
    "nohup": "",
    "setsid": "",
    "stdbuf": "-i -o -e --input --output --error",
    "xargs": "-a -d -E -I -i -L -l -n -P -s --arg-file --delimiter --max-args --max-procs --max-lines --replace",
    "time": "-f -o --format --output",
    "command": "",
    "builtin": "",
    "exec": "-a",
    "busybox": "",
    "watch": "-n -d --interval",
    "chrt": "",
    "taskset": "",
    "caffeinate": "-t -w",
    "unbuffer": "",
    "catchsegv": "",
    "doas": "-u -C",
    "sudo": "-u -g -h -p -C -r -t -T -U -R -D --user --group --host --prompt --chdir --chroot",
    "strace": "-o -e -p -s -u -E",
    "ltrace": "-o -e -p -s -u",
    "flock": "-w -E --timeout",
    "parallel": "-j --jobs -S -a --arg-file",
    "uv": "",
    "poetry": "",
}
_KEPT_WRAPPERS = frozenset(("sudo", "doas", "strace", "ltrace", "flock", "parallel"))
_VALUES_BEFORE = {"timeout": 1, "flock": 1, "chrt": 1, "taskset": 1}
_SHELLS = frozenset(("sh", "bash", "zsh", "dash", "ash", "ksh", "fish"))
_READERS = re.compile(r"(python|python\d(\.\d+)?|pypy3?|perl|ruby|node|php|lua|Rscript|R|osascript|tclsh|psql|sqlite3)")
_EXPANDS_NAME = re.compile(r"[$`*?{}~\[\]]|\\\n")


def parse_shell(command: str) -> Parsed:
    """Read `command`.

    Examples
    --------
    >>> p = parse_shell("git log | head > out.txt; sudo rm -rf $(cat list)")
    >>> [c.text for c in p.commands]
    ['git log', 'head', 'cat list', 'sudo rm -rf $(cat list)', 'rm -rf $(cat list)']
    >>> p.redirects
    [Redirect(path='out.txt', writes=True, is_plain=True)]
    >>> parse_shell("$PROGRAM -x").unsure
    ["the program's name is computed: $PROGRAM"]
    """
    parsed = Parsed()
    _read(command, parsed, 0)
    return parsed


def _read(text: str, parsed: Parsed, depth: int) -> None:
    if depth > MAX_DEPTH:
        parsed.unsure.append("it is nested too deeply to be read")
        return
    if len(text) > MAX_WHOLE:
        parsed.unsure.append(f"it has {len(text):,} characters, too long to be read")
        return
    try:
        import bashlex  # type: ignore[import-untyped]
    except ImportError:
        parsed.unsure.append("shell lines cannot be read without the package bashlex")
        return
    if not text.strip():
        return
    if text.count("<<") > MAX_HEREDOCS:
        parsed.unsure.append(f"it has {text.count('<<'):,} here-documents, too many to be read")
        return
    plain, delimiters = _without_quoted_heredocs(text)
    if len(plain) > MAX_LENGTH:  # the parser's time would be felt
        parsed.unsure.append(f"it has {len(plain):,} characters, too long to be read")
        return
    try:
        nodes = bashlex.parse(plain)
    except Exception as exc:  # bashlex raises several kinds, NotImplementedError and AttributeError among them
        parsed.unsure.append(f"it cannot be read as shell ({type(exc).__name__}: {str(exc)[:100]})")
        return
    end = max((_end(node) for node in nodes), default=0)
    if not re.fullmatch(r"\s*[;&]?\s*(#[^\n]*)?\s*", plain[end:]):
        parsed.unsure.append(f"a part of it was not read: {plain[end : end + 60].strip()}")
    visitor = _Visitor(plain, parsed, depth, bool(delimiters))
    for node in nodes:
        visitor.visit(node)
    if not delimiters <= visitor.delimiters:
        parsed.unsure.append("what looks like a here-document is none")


def _without_quoted_heredocs(text: str) -> tuple[str, set[str]]:
    """bashlex does not know quoted delimiters; nothing in such a body is expanded, so it can go.

    The delimiters put in their place are random: each must be found again as that of a
    here-document, or the body was none (it stood in quotes, say) and what was cut out would run.
    """
    delimiters: set[str] = set()

    def short(match: re.Match[str]) -> str:
        name = f"KITEND{secrets.token_hex(8)}"
        delimiters.add(name)
        return f"<<{match[1]}{name}{match[4]}\n{name}"

    # Quotes, escapes and comments behind it could move where the body begins.
    pattern = r"<<(-?)[ \t]*(['\"])([^'\"\\\n]+)\2([^\n'\"\\`$#]*)\n(?:.*\n)*?[\t]*\3[ \t]*(?=\n|$)"
    return re.sub(pattern, short, text), delimiters


def _end(node: Any) -> int:
    ends: list[int] = [node.pos[1]]
    for name in ("parts", "list", "redirects"):
        ends.extend(_end(part) for part in getattr(node, name, None) or () if hasattr(part, "pos"))
    heredoc = getattr(node, "heredoc", None)
    if heredoc is not None:
        ends.append(heredoc.pos[1])
    return max(ends)


class _Visitor:
    """Walks bashlex's tree."""

    def __init__(self, text: str, parsed: Parsed, depth: int, fed: bool) -> None:
        self._text = text
        self._parsed = parsed
        self._depth = depth
        self._fed = fed
        self._in_pipe = False
        self.delimiters: set[str] = set()

    def visit(self, node: Any) -> None:
        match node.kind:
            case "command":
                self._command(node)
            case "pipeline":
                commands = [part for part in node.parts if part.kind not in ("pipe", "reservedword")]
                for i, part in enumerate(commands):
                    self._in_pipe = i > 0
                    self.visit(part)
                self._in_pipe = False
            case "operator":
                self._parsed.background |= node.op == "&"
            case "redirect":
                self._redirect(node)
            case "compound":
                for part in node.list:
                    self.visit(part)
                for redirect in getattr(node, "redirects", None) or ():
                    self._redirect(redirect)
            case "commandsubstitution" | "processsubstitution":
                self.visit(node.command)
            case "parameter":
                if re.search(r"\$\(|`|<\(", str(getattr(node, "value", ""))):
                    self._parsed.unsure.append(f"a substitution inside ${{{node.value}}}")
            case "list" | "for" | "if" | "while" | "until" | "function" | "word" | "assignment":
                for part in getattr(node, "parts", None) or ():
                    self.visit(part)
            case "reservedword" | "pipe" | "tilde" | "heredoc":
                pass
            case other:
                self._parsed.unsure.append(f"it has a {other}, which is not known here")

    def _redirect(self, node: Any) -> None:
        for part in getattr(node, "parts", None) or ():
            self.visit(part)
        body = getattr(getattr(node, "heredoc", None), "value", "") or ""
        if re.search(r"\$\(|`", body):
            self._parsed.unsure.append("a here-document with substitutions")
        target = node.output
        if not hasattr(target, "word"):
            return
        if node.type in ("<<", "<<-"):
            self.delimiters.add(target.word)
            written = self._text[target.pos[0] : target.pos[1]]
            if not re.fullmatch(r"[\w.+-]+", written):
                self._parsed.unsure.append(f"a here-document up to {written[:60]}")
        for part in target.parts or ():
            self.visit(part)
        if node.type in ("<<", "<<-", "<<<") or target.word in ("/dev/null", "/dev/stdout", "/dev/stderr"):
            return
        if node.type in (">&", "<&") and re.fullmatch(r"\d+-?|-", target.word):
            return
        computed = any(part.kind != "tilde" for part in target.parts or ())
        is_plain = not computed and not re.search(r"[*?\[\]{}]", target.word)
        self._parsed.redirects.append(Redirect(target.word, ">" in node.type, is_plain))

    def _command(self, node: Any) -> None:
        assignments: list[str] = []
        words: list[Any] = []
        has_heredoc = self._fed
        for part in node.parts:
            if part.kind == "assignment" and not words:
                assignments.append(part.word)
                self.visit(part)
            elif part.kind == "redirect":
                has_heredoc |= part.type.startswith("<")
                self._redirect(part)
            else:
                words.append(part)
                self.visit(part)
        if not words:
            if assignments:
                self._parsed.commands.append(Command((), tuple(assignments)))
            return
        first = self._text[words[0].pos[0] : words[0].pos[1]]
        if words[0].parts or _EXPANDS_NAME.search(first):
            self._parsed.unsure.append(f"the program's name is computed: {first[:60]}")
            return
        self._take([word.word for word in words], assignments, reads=self._in_pipe or has_heredoc)

    def _take(self, words: list[str], assignments: list[str], *, reads: bool) -> None:
        """Add a command, then what it runs in turn."""
        parsed = self._parsed
        name = words[0].rsplit("/", 1)[-1]
        if name in ("alias", "unalias") or (name == "shopt" and "expand_aliases" in words):
            parsed.unsure.append("aliases change what the words mean")
        inner, more = _peel(name, words)
        if inner is None or name in _KEPT_WRAPPERS:
            parsed.commands.append(Command(tuple(words), tuple(assignments)))
        if inner is not None:
            if not inner:
                return
            if _EXPANDS_NAME.search(inner[0]):
                parsed.unsure.append(f"the program's name is computed: {inner[0][:60]}")
                return
            self._take(inner, [*assignments, *more], reads=reads or name in ("xargs", "parallel"))
            return
        if name in _SHELLS:
            self._shell(name, words, reads)
        elif name in ("eval", "trap"):
            script = " ".join(words[1:]) if name == "eval" else (words[1] if len(words) > 1 else "")
            if re.search(r"[$`]", script):
                parsed.unsure.append(f"{name} of a computed text")
            else:
                _read(script, parsed, self._depth + 1)
        elif name in ("source", "."):
            parsed.unsure.append(f"it runs the file {' '.join(words[1:2])} in the shell")
        elif name == "find":
            self._find(words)
        elif _READERS.fullmatch(name) and reads and _reads_program(words):
            parsed.unsure.append(f"{name} runs what it reads")

    def _shell(self, name: str, words: list[str], reads: bool) -> None:
        for i, word in enumerate(words[1:], 1):
            if re.fullmatch(r"-[a-z]*c[a-z]*", word):
                script = words[i + 1] if i + 1 < len(words) else ""
                # The outer shell expands double quotes first; what is left with $ is computed.
                if re.search(r"[$`]", script):
                    self._parsed.unsure.append(f"{name} -c of a computed text")
                _read(script, self._parsed, self._depth + 1)
                return
            if not word.startswith("-"):
                return  # a script file: an ordinary program
        self._parsed.unsure.append(f"{name} runs what it reads")

    def _find(self, words: list[str]) -> None:
        for i, word in enumerate(words):
            if word in ("-exec", "-execdir", "-ok", "-okdir"):
                inner: list[str] = []
                for piece in words[i + 1 :]:
                    if piece in (";", "+", "\\;"):
                        break
                    inner.append(piece)
                if inner:
                    self._take(inner, [], reads=False)


def _reads_program(words: list[str]) -> bool:
    """An interpreter without a script and without ``-c``: its program comes from stdin."""
    return all(word.startswith("-") for word in words[1:]) and "-c" not in words and "-e" not in words


def _peel(name: str, words: list[str]) -> tuple[list[str] | None, list[str]]:
    """What a wrapper runs, and assignments it makes; None when `name` is no wrapper (here)."""
    if name not in _WRAPPERS:
        return None, []
    if name in ("uv", "poetry"):
        return (words[2:], []) if len(words) > 2 and words[1] == "run" and not words[2].startswith("-") else (None, [])
    if name == "command" and any(word in ("-v", "-V") for word in words[1:2]):
        return None, []
    valued = _WRAPPERS[name].split()
    i = 1
    assignments: list[str] = []
    skip = _VALUES_BEFORE.get(name, 0)
    while i < len(words):
        word = words[i]
        if word == "--":
            i += 1
            if name == "env":
                continue
            break
        if name == "env" and word in ("-S", "--split-string") and i + 1 < len(words):
            try:
                return [*shlex.split(words[i + 1]), *words[i + 2 :]], assignments
            except ValueError:
                return ["$computed"], assignments
        if name == "env" and word.startswith(("-S", "--split-string=")):
            return ["$computed"], assignments
        if word.startswith("-") and len(word) > 1:
            takes_value = word in valued
            i += 2 if takes_value else 1
            continue
        if name in ("env", "sudo", "doas") and re.match(r"[A-Za-z_]\w*=", word):
            assignments.append(word)
            i += 1
            continue
        if skip:
            skip -= 1
            i += 1
            continue
        break
    inner = words[i:]
    if not inner and name in _KEPT_WRAPPERS | {"env", "exec", "time", "xargs", "command"}:
        return (["echo"], []) if name == "xargs" else (None, [])
    return inner, assignments


# ---------------------------------------------------------------- what to suggest for "always"

_SUBCOMMANDS = frozenset(
    re.split(
        r"\s+",
        "git docker podman npm pnpm yarn pip pip3 uv cargo go kubectl helm conda mamba apt apt-get brew poetry gh "
        "systemctl make jupyter dvc terraform rustup",
    )
)
_NEVER = _SHELLS | frozenset(
    re.split(
        r"\s+",
        "rm dd mkfs chmod chown kill pkill killall curl wget ssh scp rsync sudo su doas eval trap python python3 perl "
        "ruby node php awk find xargs nc ncat telnet mv shutdown reboot mount crontab at tee sed env exec "
        "strace parallel",
    )
)


def suggest(command: Command) -> str:
    """The pattern to offer for "always": by program, or by subcommand; only this very line for dangerous ones.

    Examples
    --------
    >>> [suggest(Command(tuple(w.split()))) for w in ("git log -p", "ls -l", "rm x")]
    ['git log *', 'ls *', '']
    """
    if command.assignments or not command.words:
        return ""
    name = command.words[0]
    if name in _NEVER or "/" in name:
        return ""
    if name in _SUBCOMMANDS:
        if len(command.words) < 2 or not re.fullmatch(r"[a-z][a-z0-9-]*", command.words[1]):
            return ""
        return f"{name} {command.words[1]} *"
    return f"{name} *"
