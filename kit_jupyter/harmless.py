"""What a model wrote as Markdown, made harmless for renderers that we do not choose.

Theory of operation
-------------------
nbconvert, GitHub or a page without our extension may let HTML through. So outside code, tags become text and
remote pictures become links. Code is recognised only where every parser agrees that it is code (fences that
start near the margin, until their end); in doubt it is treated as prose.
"""

from __future__ import annotations

import re

__all__ = ["harmless", "harmless_line"]

_FENCE = re.compile(r"^( {0,3})(`{3,}(?=[^`]*$)|~{3,})(.*)$")
_TAG = re.compile(r"<(?=[A-Za-z/!?])(?!https?://[^\s<>]*>)")
# Each looks ahead a bounded way only: what a model writes may be made to take for ever.
_CODE = re.compile(r"(?<!`)(`{1,40})(?!`)(.{1,4000}?)(?<!`)\1(?!`)")
_MATH = re.compile(r"\$\$.{1,2000}?\$\$|\$[^$\n]{1,2000}\$|\\\((?:(?!\\\().){1,2000}?\\\)")
_IMAGE = re.compile(r"!\[(?![^\[\]]{0,500}\]\((?:data:image/(?:png|jpeg|gif|webp);|attachment:))")
_SCRIPT = re.compile(r"(?i)\b(java|vb)(script)(?=\s*(?::|&))")
#: In inline code: signs of HTML and of math by entity, as a parser of math comes before that of Markdown; the
#: others as CommonMark escapes them.
_ESCAPES = str.maketrans({"&": "&amp;", "<": "&lt;", "\\": "&#92;", "$": "&#36;", **{c: f"\\{c}" for c in "*_`[]~!|"}})


def harmless(markdown: str) -> str:
    """Model's Markdown without raw HTML, remote pictures or script links; code stays as it is.

    An open fence is closed, so that what follows is not swallowed.

    Examples
    --------
    >>> harmless("a <b>c</b> `x < y` 1 < 2")
    'a &lt;b>c&lt;/b> `x < y` 1 < 2'
    >>> harmless("![x](https://example.org/a.png)")
    '[x](https://example.org/a.png)'
    """
    out: list[str] = []
    fence = ""
    indent = 0
    for line in markdown.split("\n"):
        if fence:
            left = len(line) - len(line.lstrip(" "))
            if line.strip() and left < indent:
                fence = ""  # left the list item that held the fence: prose again
            else:
                bare = line.strip()
                if bare and set(bare) == {fence[0]} and len(bare) >= len(fence):
                    fence = ""
                out.append(line)
                continue
        found = _FENCE.match(line)
        if found:
            indent, fence = len(found[1]), found[2]
            out.append(found[1] + found[2] + _TAG.sub("&lt;", found[3]))
            continue
        out.append(harmless_line(line))
    if fence:
        out.append(" " * indent + fence)
    return "\n".join(out)


def harmless_line(line: str) -> str:
    """As `harmless`, for one line or a part of it."""
    pieces: list[str] = []
    at = 0
    for found in _CODE.finditer(line):
        pieces.append(_prose(line[at : found.start()]))
        code = found[2]
        # A parser that does not see a code span here must not see a tag either.
        pieces.append(f"<code>{_spelled(code.strip())}</code>" if _TAG.search(code) else found[0])
        at = found.end()
    pieces.append(_prose(line[at:]))
    return "".join(pieces)


def _spelled(code: str) -> str:
    """`code` for between ``<code>`` tags in a paragraph."""
    return re.sub(r"(?<=[^\W_])\\(_+)(?=[^\W_])", r"\1", code.translate(_ESCAPES))


def _prose(text: str) -> str:
    if "<" in text:
        text = _MATH.sub(lambda m: _TAG.sub("< ", m[0]), text)
        text = _TAG.sub("&lt;", text)
    if "![" in text:
        text = _IMAGE.sub("[", text)
    if "cript" in text.lower():
        text = _SCRIPT.sub("\\1\u200b\\2", text)  # reads the same, and is no scheme of a link any more
    return text
