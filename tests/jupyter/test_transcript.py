"""What stays in the file: readable, always the same, harmless in any renderer."""

from __future__ import annotations

import html
import html.parser
import re
import time
from typing import Any

import pytest

from kit_jupyter.harmless import harmless
from kit_jupyter.jupyter.transcript import bundle, to_markdown, to_plain

TURN: dict[str, Any] = {
    "prompt": "p", "mode": "prompt", "status": "done", "note": "a small model",
    "chips": [{"mark": "df", "kind": "DataFrame", "size": "3 characters"}],
    "items": [
        {"kind": "thinking", "text": "Let me see."},
        {"kind": "tool", "name": "add", "arguments": '{"a": 1}', "status": "done", "result": "abc\n" * 29 + "abc"},
        {"kind": "tool", "name": "rm", "arguments": "{}", "status": "denied", "answer": {"reason": "no"}},
        {"kind": "said", "mode": "steer", "text": "be brief"},
        {"kind": "notice", "level": "info", "text": "not kept"},
        {"kind": "text", "text": "It is **one**."},
    ],
}  # fmt: skip


def test_both_forms_hold_the_answer_and_a_summary_of_each_tool() -> None:
    """Point 7, U83."""
    markdown, plain = to_markdown(TURN), to_plain(TURN)

    for text in (markdown, plain):
        for words in ("It is **one**.", "add", "rm", "denied", "no", "be brief", "Let me see.", "a small model", "@df"):
            assert words in text
        assert "10 more lines" in text
        assert "not kept" not in text
    assert bundle(TURN) == bundle(TURN)


def test_an_open_fence_is_closed() -> None:
    """What follows an unfinished code block is not swallowed by it."""
    turn = {"items": [{"kind": "text", "text": "```python\nx = 1"}, {"kind": "text", "text": "after"}]}

    assert "x = 1\n```\n\nafter" in to_markdown(turn)


@pytest.mark.parametrize(
    "text",
    ["1 < 2", "a <- b", "`x < y` and `List<int>`", "```html\n<b>x</b>\n```", "$a<b$", "<https://example.org>", "x<y>z"],
)
def test_harmless_is_still_readable(text: str) -> None:
    """Code and comparisons are not mangled beyond an entity that renders as it was."""
    made = harmless(text)

    assert made.replace("&lt;", "<").replace("< ", "<").replace("&#60;", "<").replace("&#62;", ">").replace(
        "<code>", "`"
    ).replace("</code>", "`").replace(" ", "") == text.replace(" ", "")


HOSTILE = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "a\n\n<iframe src=//e></iframe>",
    "- x\n  ```\n<script>1</script>", "> ```\n<script>1</script>", "`` ` ``<script>1</script>",
    "`<script>` <script>1</script>", "1. a\n   ```\n   ok\n<script>1</script>",
    "```\nx\n   ```\n<script>1</script>", "~~~\nx\n~~~\n<script>1</script>", "```a`b\n<script>1</script>\n```",
    "``\n<script>1</script>``", "<!-- <script>1</script> -->", "<?php <script>1</script> ?>",
    "<![CDATA[<script>1</script>]]>", "\\`<script>1</script>\\`",
    "<details><summary>x</summary><script>1</script></details>", "[x](<javascript:alert(1)>)",
    "    <script>1</script>", "\t<script>1</script>", "p\n    ```\n    <script>1</script>",
    "<a\nhref=javascript:alert(1)>", "$$\n<script>1</script>\n$$", "`a\n\n<script>1</script>`",
    "![x](https://evil.test/p.png)", "![x][r]\n\n[r]: https://evil.test/p.png", "[x](javascript:alert(1))",
    "[x](JAVASCRIPT:alert(1))",
]  # fmt: skip


class _Finder(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.bad: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "iframe", "object", "embed", "style", "link", "meta", "form", "svg"):
            self.bad.append(tag)
        for name, value in attrs:
            if name.startswith("on") or (
                name in ("href", "src") and (value or "").strip().lower().startswith("javascript")
            ):
                self.bad.append(f"{tag} {name}={value}")
            if tag == "img" and not (value or "").startswith("data:") and name == "src":
                self.bad.append(f"img {value}")


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("engine", ["mistune", "markdown-it"])
def test_hostile_text_does_nothing_in_other_peoples_renderers(text: str, engine: str) -> None:
    """U83 and design §8: nbconvert (mistune) lets HTML through, and so do others: none may run."""
    call = {"kind": "tool", "name": text, "arguments": text, "status": "denied", "answer": {"reason": text}}
    markdown = to_markdown({"items": [{"kind": "text", "text": text}, {"kind": "thinking", "text": text}, call]})
    if engine == "mistune":
        nbconvert = pytest.importorskip("nbconvert.filters.markdown_mistune")
        shown = nbconvert.markdown2html_mistune(markdown)
    else:
        shown = (
            pytest.importorskip("markdown_it").MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown)
        )

    finder = _Finder()
    finder.feed(shown)
    assert finder.bad == []


@pytest.mark.parametrize(
    "text",
    [
        "![" * 200_000,
        ("![" + "a" * 400) * 1000,
        "<" * 300_000,
        "`" * 300_000,
        "".join("`" * n + " " for n in range(1, 1000)),
        "\\(" * 200_000 + "<a",
        "$a " * 200_000 + "<a",
        "javascript" * 50_000,
        "x <b>" * 200_000,
    ],
    ids=["images", "long images", "tags", "ticks", "runs of ticks", "math", "dollars", "scripts", "many tags"],
)
def test_a_bomb_does_not_hold_up_the_cell(text: str) -> None:
    """Bad input: a Markdown bomb is made harmless in time that grows with its length, not with its square."""
    begin = time.monotonic()

    harmless(text)

    assert time.monotonic() - begin < 10


def test_a_picture_over_two_lines_is_none() -> None:
    """Bad input: the words of a remote picture may go on in the next line."""
    assert "![" not in harmless("![a\nb](https://evil.test/p.png)")
    assert harmless("![a](data:image/png;base64,aGk=)") == "![a](data:image/png;base64,aGk=)"


def _shown(markdown: str, engine: str) -> str:
    """What a reader sees of the first paragraph or line of HTML."""
    if engine == "mistune":
        made = pytest.importorskip("nbconvert.filters.markdown_mistune").markdown2html_mistune(markdown)
    else:
        made = pytest.importorskip("markdown_it").MarkdownIt("commonmark", {"html": True}).render(markdown)
    return html.unescape(re.sub(r"<[^>]*>", "", made)).strip()


ODD = [
    "rule [3] of my_own_rules: *never* in ~/data", "costs $5", "costs $5 or $6", "see [this](https://example.org)",
    "![x](https://example.org/a.png)", r"a \\(b\\) and \begin{x} c \end{x}", "a < b & c > d `e`", "&#91; &lt;", "a | b",
]  # fmt: skip


@pytest.mark.parametrize("reason", ODD)
@pytest.mark.parametrize("engine", ["mistune", "markdown-it"])
def test_a_denial_shows_its_reason_as_it_is(reason: str, engine: str) -> None:
    """Point 7: no sign of it is taken for Markdown, for math or for an entity."""
    item = {"kind": "tool", "name": "rm_all", "arguments": "{}", "status": "denied", "answer": {"reason": reason}}

    assert _shown(to_markdown({"items": [item]}), engine) == f"rm_all (denied: {reason})"


@pytest.mark.parametrize("code", [*(one for one in ODD if "`" not in one), "_a_ __b__ c_d", "!"])
@pytest.mark.parametrize("engine", ["mistune", "markdown-it"])
def test_code_with_tags_shows_as_it_is(code: str, engine: str) -> None:
    """Such a span goes as HTML, and its signs are still no Markdown."""
    assert _shown(harmless(f"`<b>{code}`"), engine) == f"<b>{code}"


def test_a_denial_reads_in_the_source() -> None:
    """Point 7: who reads the raw Markdown (a diff, a terminal) sees words, not entities."""
    arguments = '{"file_path": "my_data.py", "names": ["a*", "b"]}'
    answer = {"reason": "rule [3] of my_rules says no"}
    item = {"kind": "tool", "name": "read_file", "arguments": arguments, "status": "denied", "answer": answer}

    (line,) = to_markdown({"items": [item]}).split("\n\n")[:1]
    assert line == (
        f"<details><summary><b>read_file</b> <code>{arguments}</code> (denied: rule [3] of my_rules says no)</summary>"
    )


@pytest.mark.parametrize("end", ["\r\r", "\n\n", "\u2028\u2028", "\x85\x85", "\x0b\x0c", "\u2424\u2424"])
def test_a_reason_stays_in_its_line(end: str) -> None:
    """Bad input: after a blank line Markdown would be read again."""
    item = {"kind": "tool", "name": "rm", "status": "denied", "answer": {"reason": f"no{end}# [x](javascript:a)"}}

    assert "(denied: no # [x]&#40;javascript:a))</summary>" in to_markdown({"items": [item]})


@pytest.mark.parametrize(
    ("reason", "result", "words"),
    [
        ("denied", "denied", "(denied)"),
        ("not today", "the user said no: not today", "(denied: not today)"),
        ("area needs a person's approval. " * 9, "area needs a person's approval. " * 9, "(denied)"),
    ],
)
def test_a_denial_is_told_once(reason: str, result: str, words: str) -> None:
    """Not the word twice, and not a long reason both beside the call and in its body."""
    item = {"kind": "tool", "name": "area", "status": "denied", "answer": {"reason": reason}, "result": result}

    markdown, plain = to_markdown({"items": [item]}), to_plain({"items": [item]})

    assert words in markdown.partition("</summary>")[0]
    assert words in plain
    assert result.strip() in markdown
