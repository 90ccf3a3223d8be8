"""Which programs a shell line runs, seen through wrappers, substitutions, assignments and redirections.

Theory of operation
-------------------
``bashlex`` (kept, optional) parses the line; every simple command anywhere in it (pipelines, lists,
loops, functions, ``$(…)``, backquotes, ``<(…)``) becomes one `Command`. Wrappers that only run
another program (``env``, ``timeout``, ``xargs``, ``nohup`` …) are peeled; those that change who runs
it (``sudo``) are kept as well. ``bash -c`` and ``eval`` of a plain text are parsed in turn.

What cannot be read for certain (no bashlex, syntax it does not know, a program whose name is
computed, an interpreter that runs what it reads, aliases, options by which a program runs another one,
variables that change what later words mean) is *unsure*, and unsure always asks. So a fault here costs a
question, never an unasked action.
"""

from __future__ import annotations

import re
import secrets
import shlex
from dataclasses import dataclass, field
from typing import Any

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


@dataclass(frozen=True, slots=True)
class _Options:
    """How a wrapper reads its own options: letters, and long names. What is not here is not guessed at.

    ``loose`` letters and names have a value only when it is glued to them.
    """

    flags: str = ""
    valued: str = ""
    loose: str = ""
    long_flags: str = ""
    long_valued: str = ""
    before: re.Pattern[str] | None = None  # a value that stands before the program
    odd: re.Pattern[str] | None = None  # further words that are flags

    def length(self, words: list[str], i: int) -> int:
        """How many words the option at `i` takes; 0 when it is not known for certain."""
        word = words[i]
        if self.odd is not None and self.odd.fullmatch(word):
            return 1
        if word.startswith("--"):
            name, glued, _ = word[2:].partition("=")
            if name in self.long_valued.split():
                return 1 if glued else 2
            return int(name in self.long_flags.split())  # no abbreviations: `env --uns ls rm` runs rm
        for at, letter in enumerate(word[1:], 2):
            if letter in self.loose:
                return 1
            if letter in self.valued:
                return 1 if at < len(word) else 2  # `env -iu ls rm` runs rm
            if letter not in self.flags:
                return 0
        return 1


# Programs that run the rest of their line.
_WRAPPERS: dict[str, _Options] = {
    "env": _Options(
        "i0v",
        "uCa",
        long_flags="ignore-environment null debug default-signal ignore-signal block-signal list-signal-handling",
        long_valued="unset chdir argv0",
        odd=re.compile("-"),
    ),
    "timeout": _Options(
        "vfp",
        "ks",
        long_flags="verbose foreground preserve-status",
        long_valued="kill-after signal",
        before=re.compile(r"[\d.]+[smhd]?"),
    ),
    "nice": _Options(valued="n", long_valued="adjustment", odd=re.compile(r"--?\d+")),
    "ionice": _Options("t", "cn", long_flags="ignore", long_valued="class classdata"),
    "nohup": _Options(),
    "setsid": _Options("cfw", long_flags="ctty fork wait"),
    "stdbuf": _Options(valued="ioe", long_valued="input output error"),
    "xargs": _Options(
        "0rtpxo",
        "adEILnPsJRS",
        "eil",
        long_flags="null no-run-if-empty verbose interactive exit open-tty show-limits eof replace max-lines",
        long_valued="arg-file delimiter max-args max-procs max-chars process-slot-var",
    ),
    "time": _Options("pavq", "f", long_flags="portability append verbose quiet", long_valued="format"),
    "command": _Options("p"),
    "builtin": _Options(),
    "exec": _Options("cl", "a"),
    "busybox": _Options(),
    "watch": _Options("bcCdegprtwx", "nqs", long_flags="differences", long_valued="interval"),
    "chrt": _Options(
        "abdfimorRv",
        "TPD",
        long_flags="all-tasks batch deadline fifo idle other rr reset-on-fork verbose",
        long_valued="sched-runtime sched-period sched-deadline",
        before=re.compile(r"\d+"),
    ),
    "taskset": _Options("ac", long_flags="all-tasks cpu-list", before=re.compile(r"[\da-fA-Fx,:-]+")),
    "caffeinate": _Options("dimsu", "tw"),
    "unbuffer": _Options("p"),
    "catchsegv": _Options(),
    "doas": _Options("Lns", "auC"),
    "sudo": _Options(
        "AbBEHiKklNnPSsVv",
        "aCcDghpRrTtUu",
        long_flags="askpass background bell preserve-env set-home login non-interactive preserve-groups stdin shell",
        long_valued="auth-type close-from login-class chdir group host prompt chroot role command-timeout type user",
    ),
    "strace": _Options("cCdDfFiknqrtTvwxyYzZ", "aAbeEIoOpPsSuUX"),
    "ltrace": _Options("bcCfiLrStT", "aAeDFlnopsuwx"),
    "flock": _Options(
        "senuxoFv",
        "wE",
        long_flags="shared exclusive nonblock nb unlock close no-fork verbose",
        long_valued="timeout wait conflict-exit-code",
        before=re.compile(".+"),
    ),
    "parallel": _Options("kmXvtu0", "jSanNPL", long_valued="jobs arg-file"),
    "uv": _Options(),
    "poetry": _Options(),
}
_KEPT_WRAPPERS = frozenset(("sudo", "doas", "strace", "ltrace", "flock", "parallel"))
_SHELLS = frozenset(("sh", "bash", "zsh", "dash", "ash", "ksh", "mksh", "fish", "csh", "tcsh"))
_READERS = re.compile(r"(python|python\d(\.\d+)?|pypy3?|perl|ruby|node|php|lua|Rscript|R|osascript|tclsh|psql|sqlite3)")
_EXPANDS_NAME = re.compile(r"[$`*?{}~\[\]]|\\\n")
_NO_NAME = re.compile(r"[\s;&|<>()$`]")  # as a program's name it is a riddle, or a line for another shell

# Variables by which the words that follow come to mean something else.
_TELLING = re.compile(
    r"PATH|IFS|ENV|BASH\w*|SHELL\w*|LD_\w+|DYLD_\w+|GIT_\w+|\w*PAGER|\w*EDITOR|VISUAL|BROWSER|PROMPT_COMMAND|PS\d|CDPATH|"
    r"HOME|PYTHON\w*|NODE_\w+|PERL\w*|RUBY\w*|JAVA_\w+|\w*_?PROXY|LESS\w*|MAN\w*|TAR_OPTIONS|RSYNC_RSH|MAKE\w*|\w*FLAGS"
)
# Builtins that set variables, or evaluate what stands in an index: ``test -v 'a[$(rm x)]'``.
_SETTERS = frozenset(("export", "declare", "typeset", "readonly", "local", "read", "getopts", "mapfile", "readarray"))
_SETTERS |= {"unset", "let", "printf"}
_EVALUATORS = _SETTERS | {"test", "[", "wait"}
# Builtins that bind names to other programs.
_COMPLETES = ("-C", "-F", "-W")
_BINDERS = {"hash": ("-p",), "enable": ("-f", "-n"), "bind": ("-x",), "compgen": _COMPLETES, "complete": _COMPLETES,
            "mapfile": ("-C",), "readarray": ("-C",), "fc": ("-s", "-e"), "set": ("-k",)}  # fmt: skip
# Options by which a program runs another one, or writes where it seems only to read. Long ones may be abbreviated.
_RUNNING_OPTIONS: dict[str, tuple[str, ...]] = {
    "git": ("-c", "--config-env", "--exec-path", "--output", "--open-files-in-pager", "--ext-diff", "--upload-pack",
            "--receive-pack", "--exec"),
    "tar": ("--to-command", "--checkpoint-action", "-I", "--use-compress-program", "--rsh-command", "--info-script",
            "-F", "--new-volume-script"),
    "sort": ("--compress-program", "-o", "--output"),
    "split": ("--filter",),
    "find": ("-delete", "-fprint", "-fprint0", "-fprintf", "-fls"),
    "rsync": ("-e", "--rsh", "--rsync-path"),
    "ssh": ("-o", "-F"),
    "scp": ("-o", "-S", "-F"),
    "sftp": ("-o", "-S", "-F"),
    "man": ("-P", "--pager", "-H", "--html"),
    "zip": ("-TT", "--unzip-command"),
    "make": ("--eval", "-f", "--file", "--makefile"),
    "rg": ("--pre", "--hostname-bin"),
    "ag": ("--pager",),
    "fd": ("-x", "--exec", "-X", "--exec-batch"),
    "sed": ("-i", "--in-place", "-f", "--file"),
    "gdb": ("-ex", "-x", "--eval-command", "--command"),
    "date": ("-s", "--set"),
    "curl": ("-o", "--output", "-O", "--remote-name", "-K", "--config", "-T", "--upload-file"),
    "tree": ("-o",),
    "xxd": ("-r",),
}  # fmt: skip
_GIT_VALUED = frozenset(
    ("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env", "--super-prefix", "--attr-source")
)
_GLUED = frozenset(("-I", "-F", "-o", "-O", "-e", "-S", "-P", "-H", "-i", "-C", "-K", "-T", "-c"))


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
                    if part.kind == "word" and _TELLING.fullmatch(part.word):
                        self._parsed.unsure.append(f"it sets {part.word}, which changes what the words after it mean")
                    self.visit(part)
            case "list" | "if" | "while" | "until" | "function" | "word" | "assignment":
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
        if _NO_NAME.search(words[0]):
            parsed.unsure.append(f"the program's name is a riddle: {words[0][:60]}")
            _read_quietly(words[0], parsed, self._depth + 1)
        self._odd(name, words)
        if name in ("alias", "unalias") or (name == "shopt" and "expand_aliases" in words):
            parsed.unsure.append("aliases change what the words mean")
        inner, more, riddle = _peel(name, words)
        if riddle:
            parsed.unsure.append(riddle)
        if name in ("watch", "parallel") and inner:
            parsed.unsure.append(f"{name} runs its words in another shell, again and again")
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
        elif _READERS.fullmatch(name) and reads and _reads_program(words):
            parsed.unsure.append(f"{name} runs what it reads")

    def _odd(self, name: str, words: list[str]) -> None:
        """What runs more than the words show, or changes what later ones mean."""
        unsure = self._parsed.unsure
        if name in _EVALUATORS and any(re.search(r"\[[^\]]*[$`]", word) for word in words[1:]):
            unsure.append(f"{name} evaluates what stands in an index")
        sets = name in _SETTERS and (name != "printf" or "-v" in words)
        for word in words[1:] if sets else ():
            if _TELLING.fullmatch(variable := word.split("=", 1)[0].rstrip("+")):
                unsure.append(f"it sets {variable}, which changes what the words after it mean")
        if any(word.startswith(option) for option in _BINDERS.get(name, ()) for word in words[1:]):
            unsure.append(f"{name} {words[1]} runs programs, or changes which ones names mean")
        if used := next((word for word in words[1:] if _is_running(name, words, word)), ""):
            unsure.append(f"{name} {used[:40]} can run other programs, or write files")
        if name == "make" and any(word.startswith(("SHELL=", "MAKE", ".SHELLFLAGS=")) for word in words[1:]):
            unsure.append("make with another shell")

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
    parsed.commands.extend(found.commands)


def _is_running(name: str, words: list[str], word: str) -> bool:
    options = _RUNNING_OPTIONS.get(name, ())
    if not word.startswith("-"):
        return False
    if name == "git" and "grep" in words and word.startswith("-O"):
        return True
    if name == "git" and "rebase" in words and word.startswith("-x"):
        return True
    if name == "git" and word == "-c" and words.index(word) > 1 and not words[words.index(word) - 1].startswith("-"):
        return _after_subcommand(words, word) is False
    given = word.split("=", 1)[0]
    for option in options:
        if option.startswith("--"):
            if given.startswith("--") and len(given) > 4 and option.startswith(given):
                return True
        elif given == option or (option in _GLUED and name != "find" and word.startswith(option)):
            return True
    return False


def _after_subcommand(words: list[str], word: str) -> bool:
    """`git commit -c HEAD` is no `git -c name=value commit`."""
    i = 1
    while i < len(words):
        if words[i] == word:
            return False
        if not words[i].startswith("-"):
            return True
        i += 2 if words[i] in _GIT_VALUED else 1
    return True


def _reads_program(words: list[str]) -> bool:
    """An interpreter without a script and without ``-c``: its program comes from stdin."""
    return all(word.startswith("-") for word in words[1:]) and "-c" not in words and "-e" not in words


def _peel(name: str, words: list[str]) -> tuple[list[str] | None, list[str], str]:
    """What a wrapper runs, assignments it makes, and what of its options is not known.

    The first is None when `name` is no wrapper (here).
    """
    if name not in _WRAPPERS:
        return None, [], ""
    if name in ("uv", "poetry"):
        if len(words) > 2 and words[1] == "run" and not words[2].startswith("-"):
            return words[2:], [], ""
        return None, [], f"{name} run with options" if "run" in words[1:] else ""
    if name == "command" and re.fullmatch("-p?[vV]", words[1] if len(words) > 1 else ""):
        return None, [], ""
    options = _WRAPPERS[name]
    riddle = ""
    i = 1
    assignments: list[str] = []
    while i < len(words):
        word = words[i]
        if word == "--":
            i += 1
            break
        if name == "env" and word in ("-S", "--split-string") and i + 1 < len(words):
            try:
                return [*shlex.split(words[i + 1]), *words[i + 2 :]], assignments, riddle
            except ValueError:
                return ["$computed"], assignments, riddle
        if name == "env" and word.startswith(("-S", "--split-string=")):
            return ["$computed"], assignments, riddle
        if not word.startswith("-") or (word == "-" and not (options.odd and options.odd.fullmatch(word))):
            break
        length = options.length(words, i)
        if not length:
            riddle = riddle or f"the option {word[:40]} of {name} is not known here"
        i += length or 1
    while name in ("env", "sudo", "doas") and i < len(words) and re.match(r"[A-Za-z_]\w*=", words[i]):
        assignments.append(words[i])
        i += 1
    if options.before is not None and i < len(words):
        if not options.before.fullmatch(words[i]):
            riddle = riddle or f"{name} with {words[i][:40]}"
        i += 1
        if name == "flock" and i < len(words) and words[i] in ("-c", "--command"):
            riddle = riddle or "flock -c runs a line in another shell"
            i += 1
    inner = words[i:]
    if not inner and name in _KEPT_WRAPPERS | {"env", "exec", "time", "xargs", "command"}:
        return (["echo"], [], riddle) if name == "xargs" else (None, [], riddle)
    return inner, assignments, riddle


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
            del rest[: 2 if rest[0] in _GIT_VALUED else 1]
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
_NEVER = _SHELLS | frozenset(
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
