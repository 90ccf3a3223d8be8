"""Secrets in what a tool says: found and masked before a model, a notebook or a log sees them.

Theory of operation
-------------------
Two sources. Known values: every environment variable whose *name* looks like a secret's, and what
is registered with `Masker.add`. Known shapes: keys of well-known services, private keys, JSON web
tokens, passwords inside addresses, and ``NAME=value`` lines with such a name. A value is masked in
its plain, URL-quoted, base64 and JSON-escaped form. Pictures are not read.

One regular expression is made of all values and kept until the environment changes, so masking a
megabyte costs milliseconds. It is a net, not a wall: a secret cut in pieces passes. So what cuts text
to a length masks first (`shortened`), and code that could cut one up is no free look (`secret_in`).
"""

from __future__ import annotations

import base64
import json
import operator
import os
import re
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kit_jupyter.messages import Part, TextPart, ThinkingPart

if TYPE_CHECKING:
    from kit_jupyter.tool import ToolOutcome

__all__ = [
    "Masker",
    "clean_environment",
    "is_secret_name",
    "is_secret_pair",
    "mask",
    "mask_outcome",
    "mask_parts",
    "masker",
    "secret_in",
    "shortened",
]

_NAME = re.compile(
    r"(?i)(^|_)(api_?key|key|token|secret|secrets|password|passwd|passphrase|pwd|pass|credentials?|auth|private_?key|"
    r"access_?key|session_?key|signing_?key|webhook|dsn|pat|cookie|bearer)(_|$|\d)|(apikey|password|secret|token)$"
)
# Names that look like secrets and are none, or whose value everybody prints.
_NOT = re.compile(
    r"(?i)^(pwd|oldpwd|ssh_auth_sock|xauthority|gpg_key|gpg_agent_info|keyboard|dbus_session_bus_address|xdg_session_.*|"
    r"session_.*|.*_(key|token|password|secret)_(file|path|dir|id|name|type|url)|.*keymap.*|tokenizers_.*|max_tokens|"
    r"jpy_session_name|jpy_parent_pid|git_askpass|ssh_askpass|.*_pass_through|mpl.*|.*authority)$"
)
_STRONG = re.compile(
    r"(?i)api_?key|secret|passw|passphrase|(access|private|signing|session|encryption)_?key|_token|_pat$"
)
MIN_LENGTH = 6
WORD_LENGTH = 300  # as far back a word is looked for that must not be cut
_WORD_AT_END = re.compile(r"\S+\Z")
_BORING = re.compile(
    r"(?i)true|false|none|null|yes|no|on|off|enabled|disabled|\d{1,8}|default|changeme|secret|password"
)

_SHAPES: tuple[tuple[str, str], ...] = (
    (
        "private key",
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----[\s\S]*?(?:-----END [A-Z0-9 ]*PRIVATE KEY( BLOCK)?-----|\Z)",
    ),
    ("key", r"\bsk-(?:ant-|proj-|or-|svcacct-|admin-|lf-)?[A-Za-z0-9_-]{20,}"),
    (
        "key",
        r"\b(?:gsk|xai|pplx|r8|hf|nvapi|fw|csk|tgp_v1|jina|lsv2_(?:pt|sk)|dapi|npm|pypi|dckr_pat|glpat|gldt|sgp|sntrys)[_-][A-Za-z0-9_-]{16,}",
    ),
    ("key", r"\bAIza[0-9A-Za-z_-]{35}"),
    ("key", r"\b(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{16}\b"),
    ("token", r"\bgh[pousr]_[A-Za-z0-9]{30,}"),
    ("token", r"\bgithub_pat_[A-Za-z0-9_]{40,}"),
    ("token", r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    ("key", r"\b[rsp]k_(?:live|test)_[A-Za-z0-9]{16,}"),
    ("key", r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    ("token", r"\bya29\.[A-Za-z0-9_-]{20,}"),
    ("token", r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    ("webhook", r"https://hooks\.slack\.com/services/[A-Za-z0-9/]{20,}"),
)
_SHAPE = re.compile("|".join(f"(?:{shape})" for _, shape in _SHAPES))
_QUICK = re.compile(  # a cheap look before the dear one
    r"PRIVATE KEY|sk-|AIza|AKIA|ASIA|ABIA|ACCA|gh[pousr]_|github_pat_|xox|_live_|_test_|SG\.|ya29|eyJ|hooks\.slack|"
    r"gsk|xai|pplx|r8_|hf_|nvapi|fw_|csk|tgp_v1|jina|lsv2|dapi|npm_|pypi-|dckr_pat|glpat|gldt|sgp_|sntrys"
)
# https://user:password@host
_IN_ADDRESS = re.compile(r"(?P<before>[a-z][a-z0-9+.-]{1,20}://[^\s/:@\"']{0,64}:)(?P<value>[^\s/@\"']{3,200})(?=@)")
# NAME=value, "name": "value", Authorization: Bearer value
_ASSIGNED = re.compile(
    r"(?P<before>(?<![A-Za-z0-9_])(?P<q>[\"']?)(?P<name>[A-Za-z][A-Za-z0-9_-]{1,60})(?P=q)[ \t]{0,4}[=:][ \t]{0,4}"
    r"(?:(?:Bearer|Basic|Token)[ \t]+)?)(?P<vq>[\"']?)(?P<value>[^\s\"',;}{)(]{8,500})(?P=vq)"
)
_HEADER = re.compile(
    r"(?i)(?P<before>\b(?:authorization|x-api-key|api-key|cookie|set-cookie)[\"']?\s{0,3}[:=]\s{0,3}[\"']?"
    r"(?:(?:bearer|basic|token)\s+)?)(?P<value>[^\s\"',]{6,})"
)


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """True if a variable of this name holds a secret, as far as a name can tell.

    Examples
    --------
    >>> [is_secret_name(n) for n in ("OPENAI_API_KEY", "DB_PASSWORD", "PWD", "PATH", "SSH_AUTH_SOCK")]
    [True, True, False, False, False]
    """
    return bool(_NAME.search(name)) and not _NOT.match(name)


def clean_environment(environment: Mapping[str, str] | None = None, *, keep: Iterable[str] = ()) -> dict[str, str]:
    """`environment` (ours by default) without its secrets, for child processes.

    Parameters
    ----------
    keep : names
        Passed on although they look like secrets.
    """
    wanted = set(keep)
    source = os.environ if environment is None else environment
    return {
        name: value
        for name, value in source.items()
        if name in wanted or not (is_secret_name(name) or _has_password(value) or _SHAPE.search(value))
    }


def _has_password(value: str) -> bool:
    return "://" in value and bool(_IN_ADDRESS.search(value))


class Masker:
    """Masks known values and known shapes in text.

    Parameters
    ----------
    environment : mapping or None
        Where secret values are read from; None is ``os.environ``, followed as it changes.

    Notes
    -----
    Any thread.

    Examples
    --------
    >>> m = Masker({"DEMO_TOKEN": "s3cr3t-value"})
    >>> m.mask("the token is s3cr3t-value")
    'the token is [masked DEMO_TOKEN]'
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment
        self._extra: dict[str, str] = {}
        self._lock = threading.Lock()
        self._seen: tuple[tuple[str, str], ...] = ()
        self._known: re.Pattern[str] | None = None
        self._labels: dict[str, str] = {}
        self._raw: dict[Any, Any] | None = None  # the environment as it was when it was last looked through

    def add(self, label: str, value: str) -> None:
        """Mask `value` too, shown as `label` (for keys given in code, not by the environment)."""
        if len(value) >= MIN_LENGTH:
            with self._lock:
                self._extra[value] = label
                self._seen, self._raw = (), None

    def _pattern(self) -> re.Pattern[str] | None:
        # One comparison of dicts tells that nothing has changed; looking through them all costs far more.
        raw = getattr(os.environ, "_data", None) if self._environment is None else None
        if raw is not None and raw == self._raw:
            return self._known
        source = os.environ if self._environment is None else self._environment
        copied = dict(raw) if raw is not None else None
        found = tuple(
            (name, value)
            for name, value in source.items()
            if len(value) >= MIN_LENGTH and is_secret_name(name) and not _BORING.fullmatch(value)
        )
        extra = tuple((label, value) for value, label in self._extra.items())
        with self._lock:
            everything = (*found, *extra)
            if everything != self._seen or (self._known is None and everything):
                self._labels = {}
                for name, value in everything:
                    for form in _forms(value):
                        self._labels.setdefault(form, name)
                forms = sorted(self._labels, key=len, reverse=True)
                self._known = re.compile("|".join(map(re.escape, forms))) if forms else None
                self._seen = everything
            self._raw = copied
            return self._known

    def held(self, text: str) -> int:
        """How many characters at the end of `text` may begin a secret: to be shown only with what follows them."""
        known = self._pattern()
        if known is None:
            return 0
        longest = 0
        for form in self._labels:
            for n in range(min(len(form) - 1, len(text)), longest, -1):
                if text.endswith(form[:n]):
                    longest = n
                    break
        if not longest:
            return 0
        # What is shown must not end within a word or a whole secret: cut in two, neither would be known again.
        cut = len(text) - longest
        word = _WORD_AT_END.search(text, max(0, cut - WORD_LENGTH), cut)
        cut = word.start() if word is not None else cut
        for match in known.finditer(text):
            if match.start() < cut < match.end():
                cut = match.start()
        return len(text) - cut

    def mask(self, text: str) -> str:
        """`text` with each secret as ``[masked …]``."""
        if not text:
            return text
        known = self._pattern()
        if known is not None:
            text = known.sub(lambda m: f"[masked {self._labels[m[0]]}]", text)
        if _QUICK.search(text):
            text = _SHAPE.sub("[masked key]", text)
        if "://" in text and "@" in text:
            text = _IN_ADDRESS.sub(lambda m: f"{m['before']}[masked password]", text)
        if "=" in text or ":" in text:
            text = _ASSIGNED.sub(_assigned, text)
            text = _HEADER.sub(_header, text)
        return text


def _forms(value: str) -> set[str]:
    """The ways in which a value may be written."""
    raw = value.encode("utf-8", "surrogateescape")
    forms = {value, quote(value, safe=""), json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
    forms |= {base64.b64encode(raw).decode().rstrip("="), base64.urlsafe_b64encode(raw).decode().rstrip("=")}
    if len(value) >= 16:
        forms.add(value[::-1])
        forms.add(raw.hex())
    return {form for form in forms if len(form) >= MIN_LENGTH}


def _assigned(match: re.Match[str]) -> str:
    name, value = match["name"].replace("-", "_"), match["value"]
    if value.startswith("[masked") or not is_secret_name(name) or _BORING.fullmatch(value) or _is_code(value):
        return match[0]
    if not _STRONG.search(name) and not _is_random(value):
        return match[0]  # `key=len`, `token: str`, `primary_key: id`: words of every program
    return f"{match['before']}{match['vq']}[masked {name}]{match['vq']}"


def _header(match: re.Match[str]) -> str:
    value = match["value"]
    written = value.startswith("[masked") or re.match(r"(os\.|self\.|\$|<|\{|%|f?\")", value)
    return match[0] if written else f"{match['before']}[masked value]"


def _is_code(value: str) -> bool:
    """An expression or a placeholder, not a value: ``os.environ[…]``, ``$NAME``, ``<your-key>``, ``****``."""
    return bool(
        re.match(
            r"(os\.|self\.|getenv|get_|config|settings|environ|\$|<|\{|%|str\b|int\b|Optional|None|f?\"|lambda)", value
        )
        or re.fullmatch(r"[*x.•…-]+", value)
        or re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)+[\[(]?.*", value)
        or re.fullmatch(r"[A-Za-z_]+[\[(].*", value)
    )


def _is_random(value: str) -> bool:
    return bool(re.fullmatch(r"(?=.*[A-Za-z])(?=(?:.*\d){3})[A-Za-z0-9+/_=.~-]{16,}", value))


masker = Masker()
"""The one for this process; providers' keys given in code are added to it."""


def mask(text: str) -> str:
    """`text` masked by the process's `masker`. Any thread."""
    return masker.mask(text)


def secret_in(text: str) -> str:
    """What is secret in `text`, as it would be masked; empty for nothing. Any thread.

    Examples
    --------
    >>> secret_in("https://bob:hunter2@example.org"), secret_in("https://example.org")
    ('password', '')
    """
    masked = mask(text)
    if masked == text:
        return ""
    label = next((m[1] for m in re.finditer(r"\[masked ([^\]\n]{1,80})\]", masked) if m[0] not in text), "")
    return label or "secret"


def is_secret_pair(name: str, value: str) -> bool:
    """True if `value` is a secret because of the name that it bears.

    Examples
    --------
    >>> [is_secret_pair(*p) for p in (("db_password", "hunter-22"), ("key", "name"), ("token", "a1b2c3d4e5f6a7b8"))]
    [True, False, True]
    """
    if len(value) < MIN_LENGTH or not is_secret_name(name.replace("-", "_")) or _BORING.fullmatch(value):
        return False
    return bool(_STRONG.search(name)) or _is_random(value)


_MARGIN = 4_096  # longer secrets may be cut


def shortened(text: str, limit: int, *, end: bool = False) -> str:
    """The first (or last) `limit` characters, without half a secret at the cut. Any thread.

    Examples
    --------
    >>> shortened("abcdef", 3), shortened("abcdef", 3, end=True)
    ('abc', 'def')
    """
    if len(text) <= limit:
        return text
    if end:
        return mask(text[-(limit + _MARGIN) :])[-limit:] if limit > 0 else ""
    return mask(text[: limit + _MARGIN])[:limit]


def mask_parts(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Parts with their text masked; the very same tuple when there was nothing to mask."""
    out = tuple([_masked(part) for part in parts])
    return parts if all(map(operator.is_, out, parts)) else out


def _masked(part: Part) -> Part:
    if isinstance(part, TextPart | ThinkingPart):
        text = mask(part.text)
        return part if text == part.text else replace(part, text=text)
    return part


def mask_outcome(outcome: ToolOutcome) -> ToolOutcome:
    """What a tool said, masked: its parts, the texts in its details, and a final value that is text or plain data."""
    parts, details, value = mask_parts(outcome.parts), _deep(outcome.details), _deep(outcome.value)
    if parts is outcome.parts and value is outcome.value and not outcome.details:
        return outcome
    return replace(outcome, parts=parts, details=details, value=value)


def _deep(value: Any, depth: int = 0) -> Any:
    if isinstance(value, str):
        return mask(value)
    if depth > 8:
        return value
    if type(value) is dict or (isinstance(value, Mapping) and depth == 0):
        return {key: _named(key, item, depth) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_deep(item, depth + 1) for item in value)
    return value


def _named(key: Any, item: Any, depth: int) -> Any:
    if isinstance(key, str) and isinstance(item, str) and len(item) >= 8 and is_secret_name(key):
        return f"[masked {key}]" if not _BORING.fullmatch(item) else item
    return _deep(item, depth + 1)
