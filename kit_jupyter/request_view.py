"""What was sent last, part by part, with where each part came from; a table in a notebook."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kit_jupyter.messages import MediaPart, ToolCallPart, ToolSpec
from kit_jupyter.prompt import PromptMessage, PromptPart, ToolResultPart

__all__ = ["RequestRow", "RequestView", "SentRequest"]


class SentRequest(Protocol):
    """What `RequestView` reads; a `ModelRequest` fulfils it."""

    @property
    def model(self) -> Any: ...
    @property
    def messages(self) -> tuple[PromptMessage, ...]: ...
    @property
    def system(self) -> str: ...
    @property
    def tools(self) -> tuple[ToolSpec, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One piece of a request.

    Parameters
    ----------
    place : str
        ``system``, ``tools``, or the message's number from 1.
    role, kind : str
        Role of the message, kind of the part.
    origin : str
        Where it came from, and in brackets who changed it.
    size : int, bytes of UTF-8
        Of the text, of the decoded media, of the JSON.
    text : str
        The whole piece as text.
    message_id : str
        The stored message, or the edit that made it.
    """

    place: str
    role: str
    kind: str
    origin: str
    size: int
    text: str
    message_id: str = ""

    @property
    def preview(self) -> str:
        """The text on one line, cut at 80 characters."""
        line = " ".join(self.text.split())
        return line if len(line) <= 80 else line[:79] + "…"


class RequestView:
    """The last request, part by part, with where each part came from; a table in a notebook.

    Parameters
    ----------
    request : ModelRequest
        As it was given to the provider.
    sections : sequence of (str, str)
        ``(origin, text)`` of the pieces of the system prompt, in order; without them it is one row.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> from kit_jupyter.messages import TextPart
    >>> said = PromptMessage("user", (TextPart("Hello"),), message_id="msg_1")
    >>> view = RequestView(SimpleNamespace(model="local/tiny", messages=(said,), system="Be kind.", tools=()))
    >>> print(view)
    request to local/tiny: 1 message, 0 tools, 13 bytes
    system  system  text  base     8  Be kind.
    1       user    text  history  5  Hello
    """

    def __init__(self, request: SentRequest, sections: Sequence[tuple[str, str]] = ()) -> None:
        self.request = request
        self.rows: tuple[RequestRow, ...] = tuple(_rows(request, sections))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[RequestRow]:
        return iter(self.rows)

    def __getitem__(self, index: int) -> RequestRow:
        return self.rows[index]

    @property
    def size(self) -> int:
        """Bytes of all pieces together."""
        return sum(row.size for row in self.rows)

    @property
    def title(self) -> str:
        """One line: model, counts and size."""
        count, tools = len(self.request.messages), len(self.request.tools)
        return (
            f"request to {self.request.model}: {count} message{'s' * (count != 1)}, "
            f"{tools} tool{'s' * (tools != 1)}, {self.size} bytes"
        )

    def __str__(self) -> str:
        cells = [(r.place, r.role, r.kind, r.origin, str(r.size), r.preview) for r in self.rows]
        widths = [max((len(row[i]) for row in cells), default=0) for i in range(5)]
        lines = [
            "  ".join([*map(str.ljust, row[:4], widths), row[4].rjust(widths[4]), row[5]]).rstrip() for row in cells
        ]
        return "\n".join((self.title, *lines))

    def __repr__(self) -> str:
        return str(self)

    def _repr_markdown_(self) -> str:
        def cell(text: str) -> str:
            return html.escape(text, quote=False).replace("|", "\\|").replace("`", "\\`").replace("$", "\\$")

        head = "| | role | kind | from | bytes | |\n|---|---|---|---|---:|---|"
        rows = (
            f"| {r.place} | {r.role} | {r.kind} | {cell(r.origin)} | {r.size} | {cell(r.preview)} |" for r in self.rows
        )
        return "\n".join((cell(self.title), "", head, *rows))

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("", "role", "kind", "from", "bytes", ""))
        body = "".join(
            f"<tr><td>{html.escape(r.place)}</td><td>{r.role}</td><td>{r.kind}</td><td>{html.escape(r.origin)}</td>"
            f'<td style="text-align:right">{r.size}</td><td style="text-align:left">{_cell_html(r)}</td></tr>'
            for r in self.rows
        )
        return (
            f'<table class="kit-request"><caption>{html.escape(self.title)}</caption>'
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )


def _cell_html(row: RequestRow) -> str:
    preview = html.escape(row.preview)
    if row.preview == row.text:
        return preview
    return (
        f"<details><summary>{preview}</summary>"
        f'<pre style="white-space:pre-wrap">{html.escape(row.text)}</pre></details>'
    )


def _rows(request: SentRequest, sections: Sequence[tuple[str, str]]) -> Iterator[RequestRow]:
    if request.system:
        pieces = [(origin, text) for origin, text in sections if text and text.strip()]
        for origin, text in pieces or [("base", request.system)]:
            yield RequestRow(
                place="system", role="system", kind="text", origin=origin, size=len(text.encode()), text=text
            )
    for spec in request.tools:
        text = json.dumps(
            {"name": spec.name, "description": spec.description, "schema": dict(spec.schema)}, ensure_ascii=False
        )
        yield RequestRow(place="tools", role="", kind="tool", origin=spec.name, size=len(text.encode()), text=text)
    for number, message in enumerate(request.messages, 1):
        origin = message.origin
        if message.edits:
            origin += f" (changed by {', '.join(dict.fromkeys(message.edits))})"
        for part in message.parts:
            text, size = _shown_text(part)
            yield RequestRow(
                place=str(number),
                role=message.role,
                kind=part.type,
                origin=origin,
                size=size,
                text=text,
                message_id=message.message_id,
            )


def _shown_text(part: PromptPart) -> tuple[str, int]:
    match part:
        case MediaPart():
            size = len(part.data) * 3 // 4 - part.data[-2:].count("=")
            return f"[{part.media_type}{' ' + part.name if part.name else ''}]", size
        case ToolCallPart():
            text = f"{part.name}({part.arguments})"
        case ToolResultPart():
            shown = [_shown_text(inner) for inner in part.parts]
            text = ("error: " if part.is_error else "") + "\n".join(text for text, _ in shown)
            return text, sum(size for _, size in shown)
        case _:
            text = part.text
    return text, len(text.encode())
