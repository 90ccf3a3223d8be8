"""JSON at the wire: compact bytes out, forgiving values in, and encoded pieces kept by identity."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import Any

from pydantic_core import from_json

from kit_jupyter.prompt import PromptMessage

__all__ = ["Pieces", "dumps", "loads"]


def dumps(value: Any) -> bytes:
    """Compact UTF-8 JSON in the order given; half a surrogate pair becomes ``?``, as UTF-8 cannot hold it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain).encode("utf-8", "replace")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (tuple, frozenset, set)):
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be sent as JSON")


def loads(data: str | bytes) -> Any:
    """The value of JSON text; bytes that are not UTF-8 are replaced, not refused.

    Raises
    ------
    ValueError
        If it is not JSON.
    """
    try:
        # The parser in pydantic_core takes 1 µs for a chunk of a stream, json 2.6 (counted with both in one run).
        return from_json(data, cache_strings="keys")
    except (ValueError, TypeError):
        # It is stricter than services are: raw bytes outside UTF-8, half surrogate pairs.
        return _mended(json.loads(data.decode("utf-8", "replace") if isinstance(data, bytes) else data))


def _mended(value: Any) -> Any:
    """The value with half surrogate pairs replaced: no file and no wire could hold them."""
    match value:
        case str():
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case dict():
            return {_mended(key): _mended(item) for key, item in value.items()}
        case list():
            return [_mended(item) for item in value]
    return value


class Pieces:
    """Encoded bytes per `PromptMessage`, by identity, for as long as the message lives.

    A message is encoded once per `variant` (whatever else its bytes depend on, such as quirks), so a
    request costs what is new in it. By identity, because hashing a long message costs as much as encoding it.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[PromptMessage], dict[Hashable, bytes]]] = {}

    def get(self, message: PromptMessage, variant: Hashable, make: Callable[[PromptMessage], bytes]) -> bytes:
        """The bytes of `message`, made by `make` at the first time."""
        key = id(message)
        known = self._kept.get(key)
        if known is None or known[0]() is not message:
            known = self._kept[key] = (weakref.ref(message, partial(self._forget, key)), {})
        pieces = known[1]
        piece = pieces.get(variant)
        if piece is None:
            piece = pieces[variant] = make(message)
        return piece

    def _forget(self, key: int, _: object) -> None:
        known = self._kept.get(key)
        if known is not None and known[0]() is None:
            del self._kept[key]

    def __len__(self) -> int:
        return len(self._kept)
