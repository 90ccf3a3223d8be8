"""A model's Markdown as HTML that does nothing but show: for pages that leave the notebook.

Theory of operation
-------------------
A kept parser (mistune, which nbconvert brings) gives a tree, and only what is known here is written of it, each
text escaped: tags of the Markdown itself are text, a remote picture is a link, a link goes to the web or is none.
So nothing depends on how careful the parser's own renderer is. Without the parser there is no HTML, and the text
is shown as it is.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

__all__ = ["markdown_html"]

MAX_CHARACTERS = 200_000  # beyond it a text is shown as it is: old parsers take time that grows with its square
_PLUGINS = ("table", "strikethrough", "task_lists", "math", "url")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_WEB = re.compile(r"(?i)(?:https?://|mailto:)[^\s\x00-\x1f]+\Z")
_PICTURE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/=]+\Z")
_PLAIN = {"strong": "strong", "emphasis": "em", "strikethrough": "del", "paragraph": "p", "list_item": "li"}
_PLAIN |= {"block_quote": "blockquote", "table": "table", "table_body": "tbody", "table_row": "tr"}

_SIDES = ("left", "right", "center")

Token = dict[str, Any]


def markdown_html(text: str) -> str | None:
    """HTML of a model's Markdown; None where no parser is installed, or it cannot read the text.

    Examples
    --------
    >>> print(markdown_html("# So *it* is\\n\\n- `a < b`\\n- <b>x</b>"))
    <h3>So <em>it</em> is</h3>
    <ul><li><code>a &lt; b</code></li><li>&lt;b&gt;x&lt;/b&gt;</li></ul>
    """
    parse = _parser()
    if parse is None or len(text) > MAX_CHARACTERS:
        return None
    try:
        return "\n".join(filter(None, map(_written, parse(text)))).strip()
    except Exception:  # of a parser that some text breaks, or nested too deeply: no reason to have no page
        return None


@cache
def _parser() -> Callable[[str], list[Token]] | None:
    try:
        import mistune
    except ImportError:
        return None
    if not mistune.__version__.startswith("3."):
        return None  # its tree is another
    parse: Any = mistune.create_markdown(renderer="ast", plugins=_PLUGINS)
    return lambda text: list(parse(text))


def _all(tokens: Iterable[Token]) -> str:
    return "".join(map(_written, tokens))


def _text(raw: str) -> str:
    """Text of the tree: its entities are the writer's way to say a sign, so they are read before all is escaped."""
    return html.escape(_ENTITY.sub(lambda found: html.unescape(found[0]), raw))


def _written(token: Token) -> str:
    attrs, raw = token.get("attrs") or {}, str(token.get("raw", ""))
    kind = token["type"]
    inside = _all(token.get("children") or ())
    if tag := _PLAIN.get(kind):
        return f"<{tag}>{inside}</{tag}>"
    match kind:
        case "text":
            return _text(raw)
        case "codespan":
            return f"<code>{html.escape(raw)}</code>"
        case "linebreak":
            return "<br>\n"
        case "softbreak":
            return "\n"
        case "blank_line":
            return ""
        case "thematic_break":
            return "<hr>"
        case "block_text":
            return inside
        case "heading":
            level = min(6, int(attrs.get("level", 1)) + 2)  # below the page's title and the speaker's
            return f"<h{level}>{inside}</h{level}>"
        case "block_code":
            return f"<pre><code>{html.escape(raw)}</code></pre>"
        case "inline_math":
            return f"${html.escape(raw)}$"
        case "block_math":
            return f'<p class="text">$${html.escape(raw)}$$</p>'
        case "block_html":
            return f'<p class="text">{html.escape(raw.strip())}</p>'
        case "list":
            if not attrs.get("ordered"):
                return f"<ul>{inside}</ul>"
            return f'<ol start="{int(attrs.get("start", 1))}">{inside}</ol>'
        case "task_list_item":
            return f"<li>{'☑' if attrs.get('checked') else '☐'} {inside}</li>"
        case "table_head":
            return f"<thead><tr>{inside}</tr></thead>"
        case "table_cell":
            tag = "th" if attrs.get("head") else "td"
            side = attrs.get("align") if attrs.get("align") in _SIDES else "left"
            return f'<{tag} class="{side}">{inside}</{tag}>'
        case "link":
            return _link(str(attrs.get("url", "")), inside)
        case "image":
            return _picture(str(attrs.get("url", "")), inside)
    return html.escape(raw) or inside  # raw HTML, and what a plugin adds one day


def _link(url: str, inside: str) -> str:
    if not _WEB.match(url):
        return inside
    inside = re.sub(r"</?a\b[^>]*>", "", inside)  # a link around a remote picture, which is a link itself
    return f'<a href="{html.escape(url)}" rel="noopener noreferrer">{inside or html.escape(url)}</a>'


def _picture(url: str, inside: str) -> str:
    words = re.sub(r"<[^>]*>", "", inside)
    if _PICTURE.match(url):
        return f'<img alt="{words}" src="{url}">'
    return _link(url, words)
