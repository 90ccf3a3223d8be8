"""What is known of programs: which run other ones, by which words, and which change what later words mean.

Theory of operation
-------------------
Tables, and the few functions that read them. A wrapper's options are spelled out, since which word is
the program it runs depends on them; an option that is not here is not guessed at: it is a riddle, which
`shellparse` takes as unsure. So a gap there costs a question, never an unasked action. The options by which an
ordinary program runs another, or writes, cannot be known of all programs: those of the usual ones are here, and
an "always" for a program trusts it with what is not.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["GIT_VALUED", "KEPT_WRAPPERS", "SHELLS", "is_telling", "oddities", "peel", "reads_program"]


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
KEPT_WRAPPERS = frozenset(("sudo", "doas", "strace", "ltrace", "flock", "parallel"))
SHELLS = frozenset(("sh", "bash", "zsh", "dash", "ash", "ksh", "mksh", "fish", "csh", "tcsh"))
_READERS = re.compile(r"(python|python\d(\.\d+)?|pypy3?|perl|ruby|node|php|lua|Rscript|R|osascript|tclsh|psql|sqlite3)")

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
# Options by which a program runs another one, or writes where it seems only to read. Long ones may be abbreviated,
# letters may stand anywhere in a bundle.
_RUNNING_OPTIONS: dict[str, tuple[str, ...]] = {
    "git": ("-c", "--config-env", "--exec-path", "--output", "--open-files-in-pager", "--ext-diff", "--extcmd",
            "--upload-pack", "--receive-pack", "--exec"),
    "tar": ("--to-command", "--checkpoint-action", "-I", "--use-compress-program", "--rsh-command", "--rmt-command",
            "--info-script", "-F", "--new-volume-script"),
    "sort": ("--compress-program", "-o", "--output"),
    "shuf": ("-o", "--output"),
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
    "awk": ("-f", "--file", "-i", "--include", "-l", "--load", "-E", "--exec", "-o", "--pretty-print", "-d", "-p",
            "-W"),
    "gdb": ("-ex", "-x", "--eval-command", "--command"),
    "date": ("-s", "--set"),
    "curl": ("-o", "--output", "-O", "--remote-name", "-K", "--config", "-T", "--upload-file", "-c", "--cookie-jar",
             "-D", "--dump-header", "--trace", "--trace-ascii", "--stderr", "--libcurl", "--etag-save", "--hsts",
             "--alt-svc"),
    "tree": ("-o",),
    "xxd": ("-r",),
    "iconv": ("-o", "--output"),
    "yq": ("-i", "--inplace"),
    "xmllint": ("-o", "--output"),
    "dot": ("-o", "-O"),
    "pandoc": ("-o", "--output", "-F", "--filter", "-L", "--lua-filter"),
    "svn": ("--diff-cmd", "--diff3-cmd", "--editor-cmd", "--config-option"),
    "hg": ("--config",),
}  # fmt: skip
# Letters that take what is glued to them: `date -Iseconds` sets no clock.
_VALUED = {"date": "Idfr", "curl": "XHuAdmbe", "sort": "kStT"}
_AWKS = ("awk", "gawk", "mawk", "nawk", "original-awk")
# Letters that mean so for one of git's subcommands only.
_GIT_LETTERS = {"grep": "O", "rebase": "x", "difftool": "x", "clone": "u", "archive": "o", "format-patch": "o"}
# Programs that write the file named second, and their options that take a word.
_WRITES_SECOND = {"uniq": ("-f", "-s", "-w"), "xxd": ("-c", "-g", "-l", "-n", "-o", "-s")}
GIT_VALUED = frozenset(
    ("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--config-env", "--super-prefix", "--attr-source")
)
_ONE_DASH = ("find", "gdb", "zip", "git")  # their options of one dash are words, or are read by themselves
# What of sed neither runs nor writes: addresses, and then printing, deleting, holding, or a substitution by text.
# Brackets that hold the delimiter, or a bracket, are left out: of them seds differ. Nothing is tried twice (possessive,
# exclusive), so a long script takes no longer than its length.
_SED_ADDRESS = r"(?:\d++(?:~\d++)?|\$|/(?:[^/\\\n\[]|\\.|\[\^?\]?+[^/\]\[\n]*+\])*+/[IM]?)"
_SED_COMMAND = re.compile(
    rf"[\s;]*+(?:{_SED_ADDRESS}(?:,[~+]?{_SED_ADDRESS})?[ \t]*+!?[ \t]*+)?"
    r"(?:q\d*+|[pdDPnNgGhHxlz=]|[sy](?P<by>[^\w\s\\;\[\]])"
    r"(?:(?!(?P=by))[^\\\n\[]|\\.|\[\^?\]?+(?:(?!(?P=by))[^\]\[\n])*+\])*+(?P=by)"
    r"(?:(?!(?P=by))[^\\\n]|\\.)*+(?P=by)[gpiIM\d]*+)[ \t]*+(?:[\s;]++|$)"
)
_SED_FLAGS = re.compile(r"-[nErsuz]+|--(?:quiet|silent|regexp-extended|separate|unbuffered|null-data|posix|debug)")
# In awk: pipes, files, calls of the shell, calls by name.
_AWK_REACHES = re.compile(r"\bsystem\b|\bgetline\b|(?<!\|)\|(?!\|)|\bprintf?\b[^>]*>|@\s*\w")


def is_telling(variable: str) -> bool:
    """True for a variable by which the words that follow come to mean something else."""
    return _TELLING.fullmatch(variable) is not None


def oddities(name: str, words: list[str]) -> Iterator[str]:
    """By what a command runs more than its words show, or changes what later ones mean.

    Examples
    --------
    >>> list(oddities("export", ["export", "PATH=."]))
    ['it sets PATH, which changes what the words after it mean']
    """
    if name in _EVALUATORS and any(re.search(r"\[[^\]]*[$`]", word) for word in words[1:]):
        yield f"{name} evaluates what stands in an index"
    sets = name in _SETTERS and (name != "printf" or "-v" in words)
    for word in words[1:] if sets else ():
        if is_telling(variable := word.split("=", 1)[0].rstrip("+")):
            yield f"it sets {variable}, which changes what the words after it mean"
    if any(word.startswith(option) for option in _BINDERS.get(name, ()) for word in words[1:]):
        yield f"{name} {words[1]} runs programs, or changes which ones names mean"
    if used := next((word for i, word in enumerate(words[1:], 1) if _is_running(name, words, i)), ""):
        yield f"{name} {used[:40]} can run other programs, or write files"
    if (name == "sed" and not _is_plain_sed(words)) or (name in _AWKS and any(map(_AWK_REACHES.search, words[1:]))):
        yield f"{name} with a script that may run programs, or write files"
    if name in _WRITES_SECOND and len(_operands(words, _WRITES_SECOND[name])) > 1:
        yield f"{name} writes to the file named second"
    if name == "make" and any(word.startswith(("SHELL=", "MAKE", ".SHELLFLAGS=")) for word in words[1:]):
        yield "make with another shell"


def _is_running(name: str, words: list[str], i: int) -> bool:
    word = words[i]
    options = _RUNNING_OPTIONS.get("awk" if name in _AWKS else name, ())
    if name == "tar" and i == 1 and not word.startswith("-"):
        word = f"-{word}"  # tar's first word is a bundle also without a dash
    if not word.startswith("-"):
        return False
    given = word.split("=", 1)[0]
    if given.startswith("--"):
        return len(given) > 2 and any(option.startswith(given) for option in options)
    if name == "git":
        return _is_running_git(words, word)
    if name in _ONE_DASH:
        return given in options
    letters = re.match(f"[^{_VALUED[name]}]*", word[1:])[0] if name in _VALUED else word[1:]  # type: ignore[index]
    return any(option[1:] in letters for option in options if not option.startswith("--"))


def _is_running_git(words: list[str], word: str) -> bool:
    if word.startswith("-c"):  # a commit's -c is not git's
        return not _after_subcommand(words, word)
    return any(sub in words and letter in word[1:] for sub, letter in _GIT_LETTERS.items())


def _operands(words: list[str], valued: tuple[str, ...]) -> list[str]:
    """The words that are neither options nor their values."""
    rest = words[1:]
    is_value = [before in valued for before in ("", *rest)]
    return [word for word, given in zip(rest, is_value, strict=False) if not given and (word == "-" or word[:1] != "-")]


def _is_plain_sed(words: list[str]) -> bool:
    """True if each script is of the few commands that can neither run nor write; options are spelled out, too."""
    scripts: list[str] = []
    operands: list[str] = []
    rest = iter(words[1:])
    for word in rest:
        if word in ("-e", "--expression"):
            scripts.append(next(rest, ""))
        elif word.startswith(("-e", "--expression=")):
            scripts.append(word.removeprefix("-e") if word[1] == "e" else word.partition("=")[2])
        elif word == "--":
            operands.extend(rest)
        elif word.startswith("-") and word != "-":
            if not _SED_FLAGS.fullmatch(word):
                return False
        else:
            operands.append(word)
    scripts = scripts or operands[:1]
    return all(map(_is_plain_sed_script, scripts))


def _is_plain_sed_script(script: str) -> bool:
    at = 0
    while at < len(script):
        command = _SED_COMMAND.match(script, at)
        if command is None:
            return False
        at = command.end()
    return True


def _after_subcommand(words: list[str], word: str) -> bool:
    """`git commit -c HEAD` is no `git -c name=value commit`."""
    i = 1
    while i < len(words):
        if words[i] == word:
            return False
        if not words[i].startswith("-"):
            return True
        i += 2 if words[i] in GIT_VALUED else 1
    return True


def reads_program(name: str, words: list[str]) -> bool:
    """True for an interpreter without a script and without ``-c``: its program comes from stdin."""
    if not _READERS.fullmatch(name):
        return False
    return all(word.startswith("-") for word in words[1:]) and "-c" not in words and "-e" not in words


def peel(name: str, words: list[str]) -> tuple[list[str] | None, list[str], str]:
    """What a wrapper runs, assignments it makes, and what of its options is not known.

    The first is None when `name` is no wrapper (here).

    Examples
    --------
    >>> peel("env", ["env", "-i", "A=1", "ls", "-l"])
    (['ls', '-l'], ['A=1'], '')
    >>> peel("nice", ["nice", "--odd", "ls"])
    (['ls'], [], 'the option --odd of nice is not known here')
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
    if not inner and name in KEPT_WRAPPERS | {"env", "exec", "time", "xargs", "command"}:
        return (["echo"], [], riddle) if name == "xargs" else (None, [], riddle)
    return inner, assignments, riddle
