"""Which programs a shell line runs, seen through wrappers, substitutions, assignments and redirections.

Theory of operation
-------------------
``bashlex`` (kept, optional) parses the line; every simple command anywhere in it (pipelines, lists,
loops, functions, ``$(…)``, backquotes, ``<(…)``) becomes one `Command`. Wrappers that only run
another program (``env``, ``timeout``, ``xargs``, ``nohup`` …) are peeled; those that change who runs
it (``sudo``) are kept as well. ``bash -c`` and ``eval`` of a plain text are parsed in turn. What
single programs do with their words is told by `shellprograms`.

What cannot be read for certain (no bashlex, syntax it does not know, a program whose name is
computed, an interpreter that runs what it reads, aliases, options by which a program runs another one,
variables that change what later words mean) is *unsure*, and unsure always asks. So a fault here costs a
question, never an unasked action.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from typing import Any

from kit_jupyter.tools.shellprograms import (
    GIT_VALUED,
    KEPT_WRAPPERS,
    SHELLS,
    is_telling,
    oddities,
    peel,
    reads_program,
)

__all__ = ["Command", "Parsed", "Redirect", "parse_shell", "plainer", "suggest"]

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


_EXPANDS_NAME = re.compile(r"[$`*?{}~\[\]]|\\\n")
_SUBSTITUTES = re.compile(r"[$`]|[<>]\(")
_ASSIGNS = re.compile(r"[A-Za-z_]\w*(\[[^\]]*\])?\+?=")
_NO_NAME = re.compile(r"[\s;&|<>()$`]")  # as a program's name it is a riddle, or a line for another shell


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
    try:
        _read(command, parsed, 0)
    except RecursionError:  # env env env …
        parsed.unsure.append("it is nested too deeply to be read")
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
        parsed.unsure.append("shell lines cannot be read without the package bashlex: pip install 'kit-jupyter[tools]'")
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
                value = str(getattr(node, "value", ""))
                if re.search(r"\$\(|`|<\(", value):
                    self._parsed.unsure.append(f"a substitution inside ${{{value}}}")
                elif re.search(r"@[A-Za-z]$|^!\w", value):
                    self._parsed.unsure.append(f"${{{value}}} expands what is in a variable")
            case "for":
                for part in node.parts:
                    if part.kind == "word" and is_telling(part.word):
                        self._parsed.unsure.append(f"it sets {part.word}, which changes what the words after it mean")
                    self.visit(part)
            case "list" | "if" | "while" | "until" | "function" | "word" | "assignment":
                for part in getattr(node, "parts", None) or ():
                    self.visit(part)
            case "tilde":
                self._tilde(node)
            case "reservedword" | "pipe" | "heredoc":
                pass
            case other:
                self._parsed.unsure.append(f"it has a {other}, which is not known here")

    def _tilde(self, node: Any) -> None:
        """`~name`: for bashlex also what is glued to it, of which it does not say what it runs."""
        written = self._text[node.pos[0] : node.pos[1]]
        if _SUBSTITUTES.search(written):
            self._parsed.unsure.append(f"a substitution behind ~: {written[:60]}")
            _read_quietly(f": {written[1:]}", self._parsed, self._depth + 1)

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
        written = self._text[target.pos[0] : target.pos[1]]
        computed = any(part.kind != "tilde" or _SUBSTITUTES.search(written) for part in target.parts or ())
        is_plain = not computed and not re.search(r"[*?\[\]{}]", target.word)
        self._parsed.redirects.append(Redirect(target.word, ">" in node.type, is_plain))

    def _command(self, node: Any) -> None:
        assignments: list[str] = []
        words: list[Any] = []
        has_heredoc = self._fed
        for part in node.parts:
            if not words and (part.kind == "assignment" or self._is_assignment(part)):
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

    def _is_assignment(self, part: Any) -> bool:
        """For bashlex one that stands behind a redirection is a word: ``2>&1 A=1 rm x``."""
        return part.kind == "word" and _ASSIGNS.match(self._text[part.pos[0] : part.pos[1]]) is not None

    def _take(self, words: list[str], assignments: list[str], *, reads: bool) -> None:
        """Add a command, then what it runs in turn."""
        parsed = self._parsed
        name = words[0].rsplit("/", 1)[-1]
        if _NO_NAME.search(words[0]):
            parsed.unsure.append(f"the program's name is a riddle: {words[0][:60]}")
            _read_quietly(words[0], parsed, self._depth + 1)
        parsed.unsure.extend(oddities(name, words))
        if name in ("alias", "unalias") or (name == "shopt" and "expand_aliases" in words):
            parsed.unsure.append("aliases change what the words mean")
        inner, more, riddle = peel(name, words)
        if riddle:
            parsed.unsure.append(riddle)
        if name in ("watch", "parallel") and inner:
            parsed.unsure.append(f"{name} runs its words in another shell, again and again")
        if inner is None or name in KEPT_WRAPPERS:
            parsed.commands.append(Command(tuple(words), tuple(assignments)))
        if inner is not None:
            if not inner:
                return
            if _EXPANDS_NAME.search(inner[0]):
                parsed.unsure.append(f"the program's name is computed: {inner[0][:60]}")
                return
            self._take(inner, [*assignments, *more], reads=reads or name in ("xargs", "parallel"))
            return
        if name in SHELLS:
            self._shell(name, words, reads)
        elif name in ("su", "runuser", "script"):
            self._given(name, words)
        elif name in ("eval", "trap"):
            rest = [word for i, word in enumerate(words[1:]) if i > 0 or word != "--"]
            script = " ".join(rest) if name == "eval" else "".join(rest[:1])
            if re.search(r"[$`]", script):
                parsed.unsure.append(f"{name} of a computed text")
            else:
                _read(script, parsed, self._depth + 1)
        elif name in ("source", "."):
            parsed.unsure.append(f"it runs the file {' '.join(words[1:2])} in the shell")
        elif name == "find":
            self._find(words)
        elif reads and reads_program(name, words):
            parsed.unsure.append(f"{name} runs what it reads")

    def _given(self, name: str, words: list[str]) -> None:
        """`su -c`, `script -c`: a line for another shell."""
        for i, word in enumerate(words[1:], 1):
            if re.fullmatch(r"-[a-z]*c|--command", word):
                self._parsed.unsure.append(f"{name} -c runs a line in another shell")
                _read("".join(words[i + 1 : i + 2]), self._parsed, self._depth + 1)
                return

    def _shell(self, name: str, words: list[str], reads: bool) -> None:
        i = 1
        while i < len(words):
            word = words[i]
            if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", word):
                script = words[i + 1] if i + 1 < len(words) else ""
                if script.startswith(("-", "+")):  # options may stand between
                    self._parsed.unsure.append(f"{name} -c with its line further on")
                    return
                # The outer shell expands double quotes first; what is left with $ is computed.
                if re.search(r"[$`]", script):
                    self._parsed.unsure.append(f"{name} -c of a computed text")
                _read(script, self._parsed, self._depth + 1)
                return
            if word in ("--rcfile", "--init-file"):
                self._parsed.unsure.append(f"{name} {word} runs a file")
                i += 2
            elif re.fullmatch(r"[-+][a-zA-Z]*[oO]", word):
                i += 2
            elif word.startswith(("-", "+")):
                i += 1
            else:
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


def _read_quietly(text: str, parsed: Parsed, depth: int) -> None:
    """Add the programs of a text that is unsure already, so that denials see them."""
    found = Parsed()
    _read(text, found, depth)
    parsed.commands.extend(command for command in found.commands if command.words[:1] != (":",))


def plainer(command: Command) -> list[str]:
    """Shorter ways to write what `command` runs: a denial of one of them is meant for it, too.

    Without assignments in front, without the folder of the program, without git's own options.

    Examples
    --------
    >>> [plainer(Command(tuple(w.split()))) for w in ("/bin/rm x", "git -C sub push", "git push")]
    [['rm x'], ['git push'], []]
    """
    if not command.words:
        return []
    name = command.words[0].rsplit("/", 1)[-1] or command.words[0]
    rest = list(command.words[1:])
    out = [" ".join((name, *rest))]
    if name == "git":
        while rest and rest[0].startswith("-"):
            del rest[: 2 if rest[0] in GIT_VALUED else 1]
        out.append(" ".join((name, *rest)))
    return [text for text in dict.fromkeys(out) if text != command.text]


# ---------------------------------------------------------------- what to suggest for "always"

_SUBCOMMANDS = frozenset(
    re.split(
        r"\s+",
        "git docker podman npm pnpm yarn pip pip3 uv cargo go kubectl helm conda mamba apt apt-get brew poetry gh "
        "systemctl make jupyter dvc terraform rustup",
    )
)
_NEVER = SHELLS | frozenset(
    re.split(
        r"\s+",
        "rm dd mkfs chmod chown kill pkill killall curl wget ssh scp rsync sudo su doas eval trap python python3 perl "
        "ruby node php awk find xargs nc ncat telnet mv shutdown reboot mount crontab at tee sed env exec "
        "strace parallel tar sort split zip man less more vi vim nano emacs ed ex gdb su runuser script ln cp install "
        "truncate export declare typeset readonly local read mapfile readarray hash enable set shopt unset bind let "
        "complete compgen watch npx uvx pipx julia Rscript R lua deno bun socat openssl screen tmux unshare chroot "
        "nsenter sftp fd rg cd pushd source alias command builtin gawk mawk nawk nodejs osascript tclsh expect pwsh "
        "powershell ipython shred unlink dd systemd-run setpriv sg numactl prlimit firejail rlwrap entr at batch cpio "
        "unzip 7z rename aws gcloud az",
    )
)
_VERSION = re.compile(r"[-\d.]+$")  # python3.11 is python
# Subcommands that run what they are given, or change what others run.
_NEVER_SUB = re.compile(
    r"run|exec|config|rebase|bisect|submodule|filter-branch|difftool|mergetool|grep|hook|alias|set-script|dlx|x|eval|"
    r"generate|tool|apply|edit|install|add|create|env|shell|script|repl|worktree|remote"
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
    if name in _NEVER or "/" in name or _VERSION.sub("", name) in _NEVER:
        return ""
    if name in _SUBCOMMANDS:
        if len(command.words) < 2 or not re.fullmatch(r"[a-z][a-z0-9-]*", command.words[1]):
            return ""
        if _NEVER_SUB.fullmatch(command.words[1]):
            return ""
        return f"{name} {command.words[1]} *"
    return f"{name} *"
