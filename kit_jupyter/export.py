"""A session as something people read or take along: Markdown, HTML, JSONL, a notebook.

The visible transcript of the present branch is written, summaries in their places. In HTML an answer's Markdown
is drawn where nbconvert (its parser, mistune) is installed, else it stays as it was written. JSONL holds the whole
tree; a notebook holds the present branch in its metadata, or the tree where that is asked for.
``Session.import_from`` can bring either back.
"""

from __future__ import annotations

import html
import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from kit_jupyter.errors import UsageError
from kit_jupyter.harmless import harmless, harmless_line
from kit_jupyter.markdown_html import markdown_html
from kit_jupyter.messages import (
    Assistant,
    MediaPart,
    Message,
    Part,
    RefusalPart,
    ServerPart,
    System,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolResult,
    User,
    text_of,
)
from kit_jupyter.session import Entry, Session

__all__ = ["FORMATS", "export_session", "format_of"]

FORMATS = ("markdown", "html", "jsonl", "ipynb")
_ALIASES = {"md": "markdown", "notebook": "ipynb", "htm": "html"}
_IMAGES = re.compile(r"image/(png|jpeg|gif|webp)")
MAX_EMBEDDED_BYTES = 20_000_000


def export_session(
    session: Session,
    format: str = "markdown",
    *,
    thinking: bool = True,
    tools: bool = True,
    relative_paths: bool | None = None,
    embed: bool | str = True,
) -> str:
    """The session as text.

    Parameters
    ----------
    format : {"markdown", "html", "jsonl", "ipynb"}
    thinking, tools : bool
        Whether reasoning, and tool calls with their results, are shown. JSONL always holds all.
    relative_paths : bool or None
        Paths in the stored facts are written relative to the project's root, so that they do not tell
        where it lies on this machine. None: so in a notebook, which is made to be passed on, not in JSONL.
    embed : bool or "tree"
        A notebook takes the present branch along in its metadata, or the whole tree with the branches that
        were left, up to 20 MB; `Session.import_from` reads it.

    Raises
    ------
    UsageError
        On another format.

    Examples
    --------
    >>> from kit_jupyter.messages import new_id, now
    >>> session = Session.memory()
    >>> _ = session.append(User(id=new_id("msg"), time=now(), parts=(TextPart("What is 2 + 2?"),)))
    >>> print(export_session(session))
    # Conversation
    <BLANKLINE>
    ## You
    <BLANKLINE>
    What is 2 + 2?
    <BLANKLINE>
    """
    kind = format_of(format)
    messages = tuple(_chosen(message, thinking, tools) for message in session.transcript())
    match kind:
        case "markdown":
            return _markdown(session, messages)
        case "html":
            return _html(session, messages)
        case "jsonl":
            return _jsonl(session, bool(relative_paths))
        case "ipynb":
            return _notebook(session, messages, relative_paths is not False, embed)
    raise AssertionError(kind)


def format_of(word: str) -> str:
    """The format of a word or a file's ending.

    Raises
    ------
    UsageError
        On another format.

    Examples
    --------
    >>> format_of(".md"), format_of("notebook")
    ('markdown', 'ipynb')
    """
    kind = word.lower().removeprefix(".")
    kind = _ALIASES.get(kind, kind)
    if kind not in FORMATS:
        known = ", ".join((*FORMATS, *_ALIASES))
        raise UsageError(f"unknown format {word!r}; known: {known}" if word else f"which format? known: {known}")
    return kind


def _chosen(message: Message, thinking: bool, tools: bool) -> tuple[Message, tuple[Part, ...]]:
    if isinstance(message, ToolResult) and not tools:
        return message, ()
    return message, tuple(
        part
        for part in message.parts
        if (thinking or not isinstance(part, ThinkingPart)) and (tools or not isinstance(part, ToolCallPart))
    )


Shown = tuple[Message, tuple[Part, ...]]


def _is_synthetic(message: Message) -> bool:
    return isinstance(message, User) and (message.source or "") not in ("", "follow-up")


def _title(session: Session) -> str:
    return session.name or "Conversation"


def _heading(message: Message) -> str:
    match message:
        case Assistant() if message.result.kind == "summary":
            return "Summary of what came before"
        case Assistant():
            return f"Assistant ({message.run.model})" if message.run is not None else "Assistant"
        case System():
            return "Instruction"
        case ToolResult():
            return f"Result of {message.name}" + (" (error)" if message.is_error else "")
        case User() if message.source:
            return f"Added by {message.source}"
    return "You"


# ---------------------------------------------------------------- Markdown


def _fence(text: str, language: str = "") -> str:
    ticks = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, ticks + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _markdown(session: Session, messages: tuple[Shown, ...]) -> str:
    blocks = [f"# {harmless_line(_title(session))}"]
    for message, parts in messages:
        body = [text for part in parts if (text := _markdown_part(message, part))]
        if body:
            blocks += [f"## {harmless_line(_heading(message))}", *body]
        if isinstance(message, Assistant) and (note := _note(message)):
            blocks.append(f"*{harmless_line(note)}*")
    return "\n\n".join(blocks) + "\n"


def _note(message: Assistant) -> str:
    if message.result.error is not None:
        return f"failed: {message.result.error.message}"
    return "stopped" if message.result.finish == "aborted" else ""


def _named(name: str) -> str:
    """A tool's name as code; one with a sign of code in it is a model's mistake, or worse."""
    return harmless_line(f"`{re.sub(r'[^ -_a-~]', ' ', name)}`")


def _markdown_part(message: Message, part: Part) -> str:
    match part:
        case TextPart(text) if isinstance(message, ToolResult):
            return _fence(text) if text else ""
        case TextPart(text) | RefusalPart(text):
            return harmless(text).strip("\n")
        case ThinkingPart(text):
            return "\n".join(f"> {line}" for line in harmless(text).splitlines())
        case ToolCallPart():
            return f"Calls {_named(part.name)}:\n\n{_fence(part.arguments or '{}', 'json')}"
        case MediaPart() if _IMAGES.fullmatch(part.media_type):
            label = re.sub(r"[^\w .-]", " ", part.name) or part.media_type
            return f"![{label}](data:{part.media_type};base64,{part.data})"
        case MediaPart():
            return harmless_line(f"[{part.media_type} {part.name}]".replace(" ]", "]"))
        case ServerPart():
            return _fence(part.text) if part.text else harmless_line(f"[{part.name}]")


# ---------------------------------------------------------------- HTML

_STYLE = """\
body{font:16px/1.5 system-ui,sans-serif;max-width:50rem;margin:2rem auto;padding:0 1rem;color:#1b1b1b;background:#fff}
article{border-left:3px solid #ccc;margin:1rem 0;padding:0 1rem}article.user{border-color:#2563a8}
article.assistant{border-color:#2e7d32}article.tool{border-color:#8a6d00}h2{font-size:1rem;color:#444}
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f5f5f5;padding:.5rem}img{max-width:100%}
.text{white-space:pre-wrap;overflow-wrap:anywhere}.thinking{color:#555}.markdown{overflow-wrap:anywhere}
table{border-collapse:collapse}th,td{border:1px solid #ccc;padding:.2rem .6rem}.right{text-align:right}
.center{text-align:center}.left{text-align:left}blockquote{border-left:3px solid #ccc;margin:0;padding:0 1rem}
@media(prefers-color-scheme:dark){body{color:#eee;background:#1b1b1b}h2,.thinking{color:#bbb}pre{background:#2a2a2a}
a{color:#8ab4f8}th,td{border-color:#555}}"""


def _html(session: Session, messages: tuple[Shown, ...]) -> str:
    title = html.escape(_title(session))
    articles = []
    for message, parts in messages:
        body = "".join(_html_part(message, part) for part in parts)
        if isinstance(message, Assistant) and (note := _note(message)):
            body += f"<p><em>{html.escape(note)}</em></p>"
        if body:
            heading = html.escape(_heading(message))
            articles.append(f'<article class="{message.role}"><h2>{heading}</h2>{body}</article>')
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head>\n<body><h1>{title}</h1>\n" + "\n".join(articles) + "\n</body></html>\n"
    )


def _html_part(message: Message, part: Part) -> str:
    match part:
        case TextPart(text) if isinstance(message, ToolResult):
            return f"<pre>{html.escape(text)}</pre>"
        case TextPart(text) if isinstance(message, Assistant) and (rich := markdown_html(text)):
            return f'<div class="markdown">{rich}</div>'
        case TextPart(text) | RefusalPart(text):
            return f'<div class="text">{html.escape(text)}</div>'
        case ThinkingPart(text):
            body = f'<div class="text thinking">{html.escape(text)}</div>'
            return f"<details><summary>Thinking</summary>{body}</details>" if text else ""
        case ToolCallPart():
            return f"<p>Calls <code>{html.escape(part.name)}</code></p><pre>{html.escape(part.arguments)}</pre>"
        case MediaPart() if _IMAGES.fullmatch(part.media_type):
            source = f"data:{part.media_type};base64,{html.escape(part.data)}"
            return f'<img alt="{html.escape(part.name or part.media_type)}" src="{source}">'
        case MediaPart():
            return f"<p>[{html.escape(part.media_type)} {html.escape(part.name)}]</p>"
        case ServerPart():
            return f"<pre>{html.escape(part.text or part.name)}</pre>"


# ---------------------------------------------------------------- JSONL and notebooks


def _records(session: Session, relative_paths: bool, *, whole: bool = True) -> Iterator[dict[str, Any]]:
    shorten: Callable[[Any], Any] = _relative if relative_paths else lambda value: value
    yield shorten(dict(session.header))
    kept = {entry.id for entry in session.branch()}
    for entry in session.entries:
        if whole or entry.id in kept or _is_beside(entry, kept):
            yield shorten(json.loads(entry.to_line()))


def _is_beside(entry: Entry, kept: set[str]) -> bool:
    """True for the session's name, and for labels of entries that are kept."""
    return entry.type == "name" or (entry.type == "label" and entry.body.get("target") in kept)


def _relative(value: Any) -> Any:
    """Stored facts with ``path`` and ``cwd`` relative to the project's root."""
    if isinstance(value, list):
        return [_relative(item) for item in value]
    if not isinstance(value, dict):
        return value
    out = {key: _relative(item) for key, item in value.items()}
    path = out.get("path")
    if isinstance(path, dict) and set(path) == {"cwd", "root"}:
        root = str(path["root"])
        out["path"] = {"cwd": os.path.relpath(path["cwd"] or root, root) if root else "", "root": "."}
    if out.get("type") == "session" and "cwd" in out:
        out["cwd"] = "."
    return out


def _jsonl(session: Session, relative_paths: bool) -> str:
    return "".join(
        json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n"
        for record in _records(session, relative_paths)
    )


def _notebook(session: Session, messages: tuple[Shown, ...], relative_paths: bool, embed: bool | str) -> str:
    cells = [_cell(0, "markdown", f"# {harmless_line(_title(session))}"), _cell(1, "code", "%load_ext kit_jupyter")]
    for message, parts in messages:
        body = [text for part in parts if (text := _markdown_part(message, part))]
        if isinstance(message, Assistant) and (note := _note(message)):
            body.append(f"*{harmless_line(note)}*")
        if not body:
            continue
        if isinstance(message, User) and not _is_synthetic(message) and not message.source:
            cells.append(_cell(len(cells), "code", "%%kit\n" + text_of(message.parts)))
            body = [_markdown_part(message, part) for part in parts if isinstance(part, MediaPart)]
            if not body:
                continue
        cells.append(_cell(len(cells), "markdown", f"**{harmless_line(_heading(message))}**\n\n" + "\n\n".join(body)))
    facts: dict[str, Any] = {"session_id": session.id}
    if embed:
        records = list(_records(session, relative_paths, whole=embed == "tree"))
        whole = {"header": records[0], "entries": records[1:], "leaf": session.leaf}
        if len(json.dumps(whole)) <= MAX_EMBEDDED_BYTES:
            facts["session"] = whole
    notebook = {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
            "kit_jupyter": facts,
        },
        "cells": cells,
    }
    return json.dumps(notebook, ensure_ascii=False, indent=1) + "\n"


def _cell(number: int, kind: str, source: str) -> dict[str, Any]:
    cell: dict[str, Any] = {
        "cell_type": kind,
        "id": f"kit-{number}",
        "metadata": {},
        "source": source.splitlines(keepends=True),
    }
    return cell if kind == "markdown" else {**cell, "execution_count": None, "outputs": []}
