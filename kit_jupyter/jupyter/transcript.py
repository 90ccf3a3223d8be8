"""A turn as text for the file: Markdown and plain, the same turn always the same text.

Theory of operation
-------------------
Both are made from `TurnModel.saved`, which holds no ids, times or costs. The Markdown goes through
renderers that we do not choose (nbconvert, GitHub, a Lab without our extension), some of which let
HTML through. So what a model wrote is made `harmless`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from kit_jupyter.harmless import harmless, harmless_line

__all__ = ["bundle", "fitted", "to_markdown", "to_plain"]

REASON = 100  # characters of a denial beside its call
LINES = 20
#: Characters that stay of a text which is shortened to make a turn fit into the file.
SHORT = 2000

_BREAKS = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029\u2424]+")
#: What makes a link, a picture or a formula, where a renderer reads Markdown between tags, too.
_CONSTRUCTS = re.compile(r"(?<=\])\(|(?<=!)\[|\\(?=[()\[\]]|begin\{|end\{)")


def bundle(turn: dict[str, Any], *, keep: bool = True, limit: int = 0) -> dict[str, Any]:
    """The bundle of a saved turn: our own type, Markdown and plain text.

    Parameters
    ----------
    keep : bool
        With the turn as data; else its text only.
    limit : int, characters
        About how large that data may be; see `fitted`. 0 for no limit.
    """
    from kit_jupyter.jupyter.protocol import BUNDLE_VERSION, TURN_MIME

    text = {"text/markdown": to_markdown(turn), "text/plain": to_plain(turn)}
    if not keep:
        return text
    return {TURN_MIME: {"version": BUNDLE_VERSION, "turn": fitted(turn, limit) if limit > 0 else turn}, **text}


def fitted(turn: dict[str, Any], limit: int) -> dict[str, Any]:
    """`turn` with what can best be missed made shorter, until its JSON has at most `limit` characters.

    Results and changes of tools go first, then thinking, then pictures; what was asked and answered stays.
    """
    from kit_jupyter.jupyter.turns import bounded

    def cut(item: dict[str, Any], *names: str) -> dict[str, Any]:
        return {k: bounded(v, SHORT) if k in names and isinstance(v, str) else v for k, v in item.items()}

    def bare(item: dict[str, Any]) -> dict[str, Any]:
        media = [{**one, "data": "", "size": len(one.get("data", "")) * 3 // 4} for one in item.get("media", ())]
        return {**item, "media": media} if media else item

    steps: tuple[Callable[[dict[str, Any]], dict[str, Any]], ...] = (
        lambda item: cut(item, "result", "diff", "output") if item.get("kind") == "tool" else item,
        lambda item: cut(item, "text") if item.get("kind") == "thinking" else item,
        bare,
    )
    for step in steps:
        if len(json.dumps(turn, ensure_ascii=False)) <= limit:
            break
        turn = {**turn, "items": [step(item) for item in turn.get("items", ())]}
    return turn


def to_markdown(turn: dict[str, Any]) -> str:
    """Markdown of a saved turn."""
    blocks: list[str] = []
    if turn.get("showPrompt") and turn.get("prompt"):
        blocks.append(_quote("**You:** " + harmless_line(turn["prompt"].replace("\n", " "))))
    if turn.get("chips"):
        blocks.append("*attached: " + ", ".join(f"`@{chip['mark']}`" for chip in turn["chips"]) + "*")
    for item in turn.get("items", ()):
        block = _markdown_item(item)
        if block:
            blocks.append(block)
    if turn.get("error"):
        told = harmless_line(turn["error"]["message"].replace("\n", " "))
        blocks.append("*failed*" if turn["error"].get("raised") else f"**Failed:** {told}")
    elif turn.get("status") == "stopped":
        blocks.append("*stopped*")
    if turn.get("note"):
        blocks.append(f"*{harmless_line(turn['note'])}*")
    return "\n\n".join(blocks) or "*no answer*"


def _markdown_item(item: dict[str, Any]) -> str:
    match item.get("kind"):
        case "text":
            return "\n\n".join(filter(None, (harmless(item.get("text", "")).strip("\n"), *_pictures(item))))
        case "thinking":
            text = harmless(item.get("text", "")).strip()
            return f"<details><summary>Thinking</summary>\n\n{_quote(text)}\n\n</details>" if text else ""
        case "tool":
            return _markdown_tool(item)
        case "said":
            who = "Steer" if item.get("mode") == "steer" else "You"
            return _quote(f"**{who}:** " + harmless_line(item.get("text", "").replace("\n", " ")))
        case "source":
            text = harmless_line(item.get("text", "").replace("\n", " "))
            return f"*{harmless_line(item.get('name', 'source'))}* {text}".strip()
        case "notice" if item.get("level") != "info":
            return f"*{item.get('level')}: {harmless_line(item.get('text', ''))}*"
    return ""


def _markdown_tool(item: dict[str, Any]) -> str:
    arguments = _arguments(item)
    brief = arguments if len(arguments) <= 80 else arguments[:79] + "…"
    words = [f"<b>{_html(item.get('name', '?'))}</b>", f"<code>{_html(brief)}</code>" if brief else "", _status(item)]
    summary = " ".join(filter(None, words))
    if summary.count("$") > 1:  # one alone is money or a variable of the shell; two are a formula
        summary = summary.replace("$", "&#36;")
    parts = [f"<details><summary>{summary}</summary>"]
    if arguments != brief:
        parts.append(_code(arguments, "json"))
    if item.get("diff"):
        parts.append(_code(_first_lines(item["diff"]), "diff"))
    if item.get("result"):
        parts.append(_code(_first_lines(item["result"]), "text"))
    return "\n\n".join((*parts, "</details>", *_pictures(item)))


def _html(text: str) -> str:
    """`text` for a line between tags that begin a block of HTML.

    CommonMark reads no Markdown there, so that backslashes would be seen; and to a person who reads the source, what is
    needed nowhere is in the way.

    Examples
    --------
    >>> _html('["a_b", "*.py"] <b> & [x](y)')
    '["a_b", "*.py"] &lt;b> &amp; [x]&#40;y)'
    """
    text = _BREAKS.sub(" ", text).replace("&", "&amp;").replace("<", "&lt;")
    return _CONSTRUCTS.sub(lambda found: f"&#{ord(found[0])};", text)


def _pictures(item: dict[str, Any]) -> list[str]:
    out = []
    for media in item.get("media", ()):
        name = re.sub(r"[\[\]\n]", " ", media.get("name") or "figure")
        if media.get("data") and re.fullmatch(r"image/(png|jpeg|gif|webp)", media["type"]):
            out.append(f"![{name}](data:{media['type']};base64,{media['data']})")
        else:
            out.append(f"*{name} ({media['type']})*")
    return out


def _status(item: dict[str, Any]) -> str:
    status = str(item.get("status", "done"))
    reason = _short_reason(item) if status == "denied" else ""
    return f"({status}: {_html(reason)})" if reason else f"({'failed' if status == 'error' else status})"


def _short_reason(item: dict[str, Any]) -> str:
    """Why a call was denied, where that says more than the word and is not told at length by the result."""
    reason = str((item.get("answer") or {}).get("reason") or "").strip()
    if reason == "denied":
        return ""
    if len(reason) > REASON and reason[:REASON] in str(item.get("result") or ""):
        return ""
    return reason if len(reason) <= REASON else reason[: REASON - 1] + "…"


def _arguments(item: dict[str, Any]) -> str:
    raw = item.get("arguments", "")
    try:
        value = json.loads(raw or "{}")
    except ValueError:
        return str(raw)
    return json.dumps(value, ensure_ascii=False) if value else ""


def _first_lines(text: str) -> str:
    lines = text.split("\n")
    if len(lines) <= LINES:
        return text
    return "\n".join([*lines[:LINES], f"… {len(lines) - LINES:,} more lines"])


def _code(text: str, language: str) -> str:
    runs = [len(run) for run in re.findall(r"`{3,}", text)]
    fence = "`" * (max(runs, default=2) + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def _quote(text: str) -> str:
    return "\n".join("> " + line if line else ">" for line in text.split("\n"))


def _told(item: dict[str, Any]) -> str:
    reason = _short_reason(item)
    return f"({item['status']}: {reason})" if reason else f"({item['status']})"


def to_plain(turn: dict[str, Any]) -> str:
    """Plain text of a saved turn."""
    blocks: list[str] = []
    if turn.get("showPrompt") and turn.get("prompt"):
        blocks.append(f"> {turn['prompt']}")
    if turn.get("chips"):
        blocks.append("[attached] " + ", ".join("@" + chip["mark"] for chip in turn["chips"]))
    for item in turn.get("items", ()):
        match item.get("kind"):
            case "text":
                blocks.append(item.get("text", "").strip("\n"))
            case "thinking":
                blocks.append("[thinking] " + item.get("text", "").strip())
            case "tool":
                head = f"[{item.get('name', '?')}] {_arguments(item)}".rstrip()
                status = item.get("status", "done")
                result = _first_lines(item.get("result", ""))
                told = f"{_told(item)} {result}".strip() if status != "done" else result
                blocks.append(f"{head}\n{told}".rstrip())
            case "said":
                blocks.append(f"[{item.get('mode', 'you')}] {item.get('text', '')}")
            case "source":
                blocks.append(f"[{item.get('name', 'source')}] {item.get('text', '')}".rstrip())
            case "notice" if item.get("level") != "info":
                blocks.append(f"[{item.get('level')}] {item.get('text', '')}")
    if turn.get("error"):
        blocks.append("[failed]" if turn["error"].get("raised") else f"[failed] {turn['error']['message']}")
    elif turn.get("status") == "stopped":
        blocks.append("[stopped]")
    if turn.get("note"):
        blocks.append(f"[note] {turn['note']}")
    return "\n\n".join(block for block in blocks if block) or "(no answer)"
