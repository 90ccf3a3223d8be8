"""What a person holds in hand, as it goes into a prompt: pictures, files, and text that is really text."""

from __future__ import annotations

import io
import mimetypes
import os
from pathlib import Path
from typing import Any, cast

from kit_jupyter.errors import UsageError
from kit_jupyter.messages import MediaPart, Part, TextPart
from kit_jupyter.places import storable

__all__ = ["as_part", "as_parts", "checked_text", "sniff"]

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"ID3", "audio/mpeg"),
    (b"fLaC", "audio/flac"),
)


def sniff(raw: bytes) -> str:
    """Media type by the first bytes; ``application/octet-stream`` when unknown."""
    for magic, media_type in _MAGIC:
        if raw.startswith(magic):
            return media_type
    if raw[:4] == b"RIFF" and raw[8:12] in (b"WEBP", b"WAVE"):
        return "image/webp" if raw[8:12] == b"WEBP" else "audio/wav"
    return "application/octet-stream"


def as_part(value: Any) -> Part:
    """A part of whatever stands for text, a picture or a file.

    Parameters
    ----------
    value : Part, bytes, path, matplotlib figure or axes, PIL image, or an object with ``_repr_png_``
        A `str` is a path when such a file exists, else text.

    Raises
    ------
    UsageError
        If it is none of these, or the file cannot be read.
    """
    if hasattr(value, "type") and type(value).__module__ == "kit_jupyter.messages":
        return cast(Part, value)
    if isinstance(value, bytes | bytearray | memoryview):
        raw = bytes(value)
        return MediaPart.of_bytes(raw, sniff(raw))
    if isinstance(value, os.PathLike) or (isinstance(value, str) and _is_file(value)):
        return _of_file(Path(value))
    if isinstance(value, str):
        return TextPart(value)
    figure = getattr(value, "figure", None) if not hasattr(value, "savefig") else value
    if hasattr(figure, "savefig"):
        buffer = io.BytesIO()
        cast(Any, figure).savefig(buffer, format="png", bbox_inches="tight")
        return MediaPart.of_bytes(buffer.getvalue(), "image/png", "figure.png")
    if hasattr(value, "save") and hasattr(value, "getbands"):  # PIL, without importing it
        if getattr(value, "mode", "") not in ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16"):
            value = value.convert("RGB")  # PNG knows no CMYK, no floats
        buffer = io.BytesIO()
        value.save(buffer, format="PNG")
        return MediaPart.of_bytes(buffer.getvalue(), "image/png", "image.png")
    png = getattr(value, "_repr_png_", None)
    raw_png = png() if callable(png) else None
    if isinstance(raw_png, tuple):
        raw_png = raw_png[0]
    if isinstance(raw_png, bytes):
        return MediaPart.of_bytes(raw_png, "image/png", f"{type(value).__name__}.png")
    raise UsageError(
        f"cannot attach a {type(value).__name__}; "
        "give bytes, a path, a matplotlib figure, a PIL image or a message part"
    )


def as_parts(values: Any) -> tuple[Part, ...]:
    """The parts of a list.

    Raises
    ------
    UsageError
        If it is one part by itself, or one of them is none.
    """
    if isinstance(values, str | bytes | os.PathLike) or not hasattr(values, "__iter__"):
        raise UsageError(f"parts is a list of things to attach, got {type(values).__name__}; write parts=[…]")
    return tuple(as_part(value) for value in values)


def checked_text(text: Any, what: str = "the text of a prompt") -> str:
    """The text itself, once it is sure that it can be stored and sent.

    Raises
    ------
    UsageError
        If it is no `str`, or holds half of a surrogate pair.
    """
    if not isinstance(text, str):
        raise UsageError(f"{what} must be str, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise UsageError(
            f"{what} has a lone surrogate at character {exc.start}, which is no Unicode text; "
            "read it again with the right encoding"
        ) from exc
    return text


def _is_file(text: str) -> bool:
    try:
        return len(text) < 4096 and "\n" not in text and Path(text).is_file()
    except (OSError, ValueError):
        return False


def _of_file(path: Path) -> Part:
    try:
        raw = path.read_bytes()
    except (OSError, ValueError) as exc:
        raise UsageError(f"cannot read {path}: {getattr(exc, 'strerror', None) or exc}") from exc
    media_type = sniff(raw)
    if media_type == "application/octet-stream":
        media_type = mimetypes.guess_type(path.name)[0] or media_type
    if media_type.startswith("text/") or media_type in ("application/json", "application/octet-stream"):
        try:
            return TextPart(f"{storable(path.name)}:\n{raw.decode()}")
        except UnicodeDecodeError:
            pass
    return MediaPart.of_bytes(raw, media_type, storable(path.name))
