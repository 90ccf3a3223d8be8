"""What counts of a request and of an answer, and what is left out of comparison and file.

Left out is what differs from run to run or machine to machine, what is secret, and what is long and says nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Any

from kit_jupyter.providers import keys

__all__ = ["fingerprint", "normalised", "readable_answer"]

_ID_KEYS = frozenset(("id", "tool_call_id", "call_id", "tool_use_id", "item_id", "previous_response_id", "response_id"))
_LEFT_OUT = frozenset(("prompt_cache_key", "user", "metadata", "session_id", "safety_identifier", "stream_options"))
_OPAQUE = frozenset(("signature", "thoughtSignature", "thought_signature", "encrypted_content"))
_NOISE = frozenset(("created", "created_at", "system_fingerprint", "obfuscation", "timings", "p"))
_OPAQUE_TYPES = ("redacted_thinking", "reasoning.encrypted")
_DIGEST = re.compile(r"opaque-[0-9a-f]{16}")
_BASE64 = re.compile(r"(?:data:[\w/+.-]+;base64,)?[A-Za-z0-9+/_-]{400,}={0,2}")
_VARYING: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"), "<time>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE), "<uuid>"),
    (re.compile(r"\b[a-z]{2,12}_[0-9a-f]{22}\b"), "<id>"),
    (re.compile(r"\b0x[0-9a-f]{6,16}\b", re.IGNORECASE), "<address>"),
    (re.compile(r"\b(127\.0\.0\.1|localhost|\[::1\]):\d{2,5}\b"), r"\1:<port>"),
    (re.compile(r"\b\d+\.\d+ ?(?:ns|µs|us|ms|s|seconds?)\b"), "<duration>"),
    (re.compile(r"(?:/private)?(?:/var/folders/\w\w/\w+/T|/tmp)/[\w.\-]+"), "<temp>"),
)


def normalised(value: Any) -> Any:
    """A request body without what differs from run to run or machine to machine; the same if done twice.

    Examples
    --------
    >>> normalised({"user": "me", "messages": [{"content": "built at 2026-11-30T10:00:00Z, port 127.0.0.1:5001"}]})
    {'messages': [{'content': 'built at <time>, port 127.0.0.1:<port>'}]}
    """
    return _Normaliser().of(value)


class _Normaliser:
    def __init__(self) -> None:
        self._ids: dict[str, str] = {}
        self._places = _places()

    def of(self, value: Any, key: str = "", depth: int = 0) -> Any:
        if isinstance(value, dict):
            out = {k: self.of(v, k, depth + 1) for k, v in value.items() if not (depth == 0 and k in _LEFT_OUT)}
            if value.get("type") in _OPAQUE_TYPES and isinstance(value.get("data"), str):
                out["data"] = _opaque(value["data"])
            return out
        if isinstance(value, list):
            return [self.of(item, key, depth + 1) for item in value]
        if not isinstance(value, str):
            return value
        if key in _ID_KEYS:
            return value if re.fullmatch(r"#\d+", value) else self._ids.setdefault(value, f"#{len(self._ids) + 1}")
        if key in _OPAQUE:
            return _opaque(value)
        return self.text(value)

    def text(self, text: str) -> str:
        if len(text) >= 400:
            text = _BASE64.sub(lambda m: f"<{len(m[0])} characters, {_digest(m[0])}>", text)
        for path, word in self._places:
            text = text.replace(path, word)
        for pattern, word in _VARYING:
            text = pattern.sub(word, text)
        return keys.mask(text)


def _places() -> tuple[tuple[str, str], ...]:
    """Folders of this machine that stand in prompts, longest first."""
    found = [(os.getcwd(), "<cwd>"), (os.path.expanduser("~"), "<home>")]
    return tuple((path, word) for path, word in sorted(found, key=lambda f: -len(f[0])) if len(path) > 3)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def _opaque(text: str) -> str:
    """The digest that stands for a signature: short, private, and the same for the same signature."""
    return text if not text or _DIGEST.fullmatch(text) else f"opaque-{_digest(text)}"


def fingerprint(path: str, body: Any) -> str:
    """Equal for requests that mean the same; `body` is normalised."""
    return hashlib.sha256(
        json.dumps([path, body], sort_keys=True, ensure_ascii=False).encode("utf-8", "replace")
    ).hexdigest()


def readable_answer(value: Any) -> Any:
    """An answer's JSON for the file: without keys, noise and opaque state."""
    return _hide_opaque(_quiet(value))


def _hide_opaque(value: Any, key: str = "", *, in_opaque: bool = False) -> Any:
    """An answer without its opaque state and without keys; everything else as it came."""
    if isinstance(value, dict):
        hidden = value.get("type") in _OPAQUE_TYPES
        return {k: _hide_opaque(v, k, in_opaque=hidden) for k, v in value.items()}
    if isinstance(value, list):
        return [_hide_opaque(item, key) for item in value]
    if isinstance(value, str):
        return _opaque(value) if key in _OPAQUE or (in_opaque and key == "data") else keys.mask(value)
    return value


def _quiet(value: Any) -> Any:
    """An answer without what differs in every recording and says nothing: times, fingerprints, padding."""
    if not isinstance(value, dict):
        return value
    quiet = {key: item for key, item in value.items() if key not in _NOISE}
    if isinstance(quiet.get("response"), dict):
        quiet["response"] = _quiet(quiet["response"])
    return quiet
