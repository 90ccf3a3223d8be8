"""Rules of what a call may do, what they match, and where "always" is kept.

A rule is an action, a pattern, an effect and perhaps a condition; a `Need` is what it is held against.
How rules decide together is `permissions`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import logging
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, Protocol, cast, runtime_checkable

from kit_jupyter.errors import UsageError
from kit_jupyter.places import config_dir
from kit_jupyter.tool import ToolContext

__all__ = [
    "KNOWN_ACTIONS",
    "STRANGERS",
    "STRICTNESS",
    "Access",
    "Effect",
    "Kind",
    "Need",
    "Rule",
    "RuleStore",
    "TellsAccess",
    "literal",
    "nearest_action",
    "rule_of",
]

_log = logging.getLogger("kit_jupyter")

Effect = Literal["allow", "ask", "deny"]
Kind = Literal["look", "act", "function", "outside", "sensitive", "unsure", "loop"]
STRANGERS = (
    "https://stranger.example/?say=this",
    "http://stranger.example/?say=this",
    "curl https://stranger.example/?say=this",
    "anything",
)
"""Resources that nobody vouches for: a rule that lets one of them through lets data go anywhere."""
STRICTNESS: dict[str, int] = {"allow": 0, "ask": 1, "deny": 2}
KNOWN_ACTIONS = (
    *("inspect", "python", "python.look", "python.shell", "python.network", "python.files", "python.dynamic"),
    *("read", "write", "edit", "grep", "glob", "ls", "shell", "shell.cwd", "web_fetch"),
    *("agent", "mcp", "skill", "skill_file", "skills.project", "loop"),
)
"""What the needs of our own tools and guests are called, whether a Kit has them or not."""


class _Unsaid(str):
    """The effect of a rule that was given none."""


_UNSAID = cast(Effect, _Unsaid("allow"))


@dataclass(frozen=True, slots=True)
class Need:
    """One thing a call touches.

    Parameters
    ----------
    action : str
        What rules match first: ``shell``, ``read``, ``write``, ``web_fetch``, a function tool's name.
    resource : str
        What their pattern matches: a command, a path, an address.
    kind : {"look", "act", "function", "outside", "sensitive", "unsure"}
        How it touches; decides when no rule matches.
    pattern : str
        The pattern to suggest for "always"; empty offers the resource itself.
    """

    action: str
    resource: str = ""
    kind: Kind = "act"
    pattern: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a call needs, and how to put it to a person."""

    needs: tuple[Need, ...]
    question: str = ""


@runtime_checkable
class TellsAccess(Protocol):
    """A tool that says what a call needs; the others need their own name."""

    def access(self, arguments: Mapping[str, Any], context: ToolContext) -> Access:
        """Quick and without side effects; a failure counts as "ask"."""
        ...


@lru_cache(maxsize=512)
def _glob(pattern: str) -> re.Pattern[str]:
    text = os.path.expanduser(pattern) if pattern.startswith("~") else pattern
    tail = text.endswith(" *")  # "git *" is also "git" alone
    parts = [""]
    for piece in re.findall(r"\\[*?\\]|.", text[:-2] if tail else text, re.DOTALL):
        if piece == "*":
            parts.append("")
        else:
            parts[-1] += "." if piece == "?" else re.escape(piece[-1])
    # What lies between two stars is found where it first occurs and stays there: else a pattern with
    # several stars would be tried in all ways, for ever on a long text.
    first, *middle = parts
    body = first + "".join(f"(?>.*?{part})" for part in middle[:-1]) + "".join(f".*{part}" for part in middle[-1:])
    return re.compile(body + ("( .*)?" if tail else ""), re.DOTALL)


def literal(text: str) -> str:
    """A pattern that matches exactly `text`.

    Examples
    --------
    >>> print(literal("rm *.txt"))
    rm \\*.txt
    """
    return re.sub(r"([*?\\])", r"\\\1", text)


@dataclass(frozen=True, slots=True)
class Rule:
    """The last rule that matches decides.

    Parameters
    ----------
    action : str
        Glob over the need's action, for example ``shell`` or ``*``.
    pattern : str
        Glob over its resource: ``*`` any text, ``?`` one character, ``~`` home; a
        backslash before one of these means it literally.
    effect : {"allow", "ask", "deny"}
    when : callable(arguments, context) -> bool, or None
        A further condition, which sees the arguments and the session; one that raises makes the
        rule an "ask".

    Raises
    ------
    UsageError
        For another effect, or where the effect stands in the place of the pattern: ``Rule("shell", "deny")``.

    Examples
    --------
    >>> Rule("shell", "git log *", "allow").matches(Need("shell", "git log"))
    True
    >>> Rule.parse("shell git log *")
    Rule(action='shell', pattern='git log *', effect='allow', when=None)
    """

    action: str
    pattern: str = "*"
    effect: Effect = _UNSAID
    when: Callable[[Mapping[str, Any], Any], object] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.effect, _Unsaid):
            if isinstance(self.pattern, str) and (word := self.pattern.strip().lower()) in STRICTNESS:
                raise UsageError(
                    f"a rule is an action, a pattern and an effect; Rule({self.action!r}, {self.pattern!r}) would "
                    f"allow what reads {self.pattern!r}: write Rule({self.action!r}, '*', {word!r}), or "
                    f"Rule({self.action!r}, {self.pattern!r}, 'allow') if that text is meant"
                )
            object.__setattr__(self, "effect", "allow")
        if self.effect not in STRICTNESS:
            raise UsageError(f'a rule\'s effect is "allow", "ask" or "deny", got {self.effect!r}')
        if not isinstance(self.action, str) or not self.action or not isinstance(self.pattern, str):
            raise UsageError(f"a rule is an action and a pattern, got {self.action!r} and {self.pattern!r}")

    @classmethod
    def parse(cls, text: str, effect: Effect = "allow") -> Rule:
        """A rule of the text that questions suggest: the action, a space, the pattern."""
        action, _, pattern = text.strip().partition(" ")
        return cls(action, pattern.strip() or "*", effect)

    def matches(self, need: Need) -> bool:
        """True if action and pattern fit; `when` is not asked."""
        return bool(_glob(self.action).fullmatch(need.action) and _glob(self.pattern).fullmatch(need.resource))


def nearest_action(rule: Rule, names: Iterable[str]) -> str:
    """The name that was meant by a rule whose action fits none of `names`; empty where it fits, or none is near.

    Examples
    --------
    >>> nearest_action(Rule("pyhton", "*", "deny"), ["python", "shell"])
    'python'
    >>> nearest_action(Rule("python.*", "*", "deny"), ["python.shell"])
    ''
    """
    known = tuple(names)
    if any(_glob(rule.action).fullmatch(name) for name in known):
        return ""
    near = difflib.get_close_matches(rule.action.strip("*?").lower(), known, n=1, cutoff=0.75)
    return near[0] if near else ""


def rule_of(value: Any) -> Rule:
    """A rule of a `Rule`, a dict or a tuple.

    Raises
    ------
    UsageError
        For anything else.
    """
    if isinstance(value, Rule):
        return value
    if isinstance(value, Mapping):
        unknown = set(value) - {"action", "pattern", "effect", "when"}
        if unknown or "action" not in value:
            raise UsageError(f"a rule has action, pattern, effect and when, got {dict(value)!r}")
        return Rule(**value)
    if isinstance(value, Sequence) and not isinstance(value, str) and len(value) in (2, 3, 4):
        return Rule(value[0], value[1], *value[2:]) if len(value) > 2 else Rule(value[0], "*", value[1])
    raise UsageError(f"a rule is Rule(action, pattern, effect), a dict or a tuple of them, got {value!r}")


# ---------------------------------------------------------------- where "always" is kept


class RuleStore:
    """The rules a person gave with "always", one file per project, outside the project.

    Parameters
    ----------
    project : Path
        Root of the project.
    folder : Path or None
        None for ``permissions`` in `config_dir`.

    Notes
    -----
    A file that cannot be read gives no rules (so everything is asked) and a warning; it is kept as ``….broken``
    when the next rule is stored, for there may be denials in it. Any thread.
    """

    def __init__(self, project: Path, *, folder: Path | None = None) -> None:
        self.project = project.resolve()
        self._folder = folder
        self._lock = threading.Lock()
        self._seen: tuple[float, tuple[Rule, ...]] = (-1.0, ())
        self._is_broken = False
        self._path: tuple[str | None, Path] | None = None

    @property
    def path(self) -> Path:
        """The file."""
        moved_to = os.environ.get("KIT_CONFIG_DIR")
        if self._path is None or self._path[0] != moved_to:  # asked for at each tool call
            folder = self._folder or config_dir() / "permissions"
            name = re.sub(r"[^A-Za-z0-9_-]+", "-", self.project.name)[:40] or "root"
            digest = hashlib.sha256(str(self.project).encode()).hexdigest()[:12]
            self._path = (moved_to, folder / f"{name}-{digest}.json")
        return self._path[1]

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What is stored now; read again when the file changed."""
        with self._lock:
            return self._read()

    def _read(self) -> tuple[Rule, ...]:
        try:
            changed = os.stat(self.path).st_mtime_ns
        except OSError:
            return ()
        if self._seen[0] != changed:
            try:
                body = json.loads(self.path.read_text(encoding="utf-8"))
                rules = tuple(rule_of({k: v for k, v in rule.items() if k != "when"}) for rule in body["rules"])
                self._is_broken = False
            except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, UsageError) as exc:
                _log.warning("permissions file %s is not readable (%s); its rules are not used", self.path.name, exc)
                rules = ()
                self._is_broken = True
            self._seen = (changed, rules)
        return self._seen[1]

    def add(self, rules: Sequence[Rule]) -> None:
        """Append, on disk at once and whole."""
        with self._lock:
            kept = list(self._read())
            kept = [rule for rule in kept if rule not in rules] + list(rules)
            body = {
                "project": str(self.project),
                "rules": [{"action": r.action, "pattern": r.pattern, "effect": r.effect} for r in kept],
            }
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            if self._is_broken and self.path.exists():
                os.replace(self.path, self.path.with_suffix(".broken"))
            handle, name = tempfile.mkstemp(dir=self.path.parent, suffix=".tmp")
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                json.dump(body, file, indent=1)
            os.replace(name, self.path)
            self._seen = (-1.0, ())
