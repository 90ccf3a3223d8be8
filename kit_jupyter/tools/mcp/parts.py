"""What comes back from a server, as parts of a message."""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from kit_jupyter.messages import MediaPart, Part, TextPart

__all__ = ["cut", "described", "parts_of_block", "parts_of_contents"]

_CUT_CHARS: Final = 100_000


def cut(text: str) -> str:
    """Text, up to a limit, with a note of how much is missing."""
    if len(text) <= _CUT_CHARS:
        return text
    return f"{text[:_CUT_CHARS]}\n[cut: {len(text) - _CUT_CHARS} more characters]"


def described(thing: Any) -> str:
    """Name, description and kind of a resource, in a line."""
    return " ".join(text for text in (thing.name, thing.description, thing.mime_type) if text)


def parts_of_contents(content: Any) -> list[Part]:
    """What a resource holds."""
    text = getattr(content, "text", None)
    if isinstance(text, str):
        return [TextPart(cut(text))]
    return [_media(content.mime_type, content.blob, str(content.uri))]


def parts_of_block(block: Any) -> list[Part]:
    """A block of a tool's result or of a prompt."""
    match block.type:
        case "text":
            return [TextPart(cut(block.text))]
        case "image" | "audio":
            return [_media(block.mime_type, block.data)]
        case "resource":
            return parts_of_contents(block.resource)
        case "resource_link":
            return [TextPart(f"[resource {block.uri}: {described(block)}]")]
    return [TextPart(f"[{block.type}]")]


def _media(media_type: str | None, data: str, name: str = "") -> Part:
    try:
        base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return TextPart(f"[{media_type} {name}: not valid base64]")
    return MediaPart(media_type or "application/octet-stream", data, name)
