"""Marks in prompts: what they attach, what they are not, and that the text stays as it is."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit_jupyter.errors import UsageError
from kit_jupyter.jupyter.context import Marks, cells_text, error_text, notebook_text, select_cells
from kit_jupyter.jupyter.record import CellRecord, RanCell
from kit_jupyter.messages import MediaPart, TextPart


class Record(CellRecord):
    """Cells by hand."""

    def __init__(self, *cells: RanCell) -> None:
        self._cells = {cell.cell_id: cell for cell in cells}
        self._ip = SimpleNamespace(history_manager=None)
        self.last_error = next((c for c in reversed(cells) if c.error is not None), None)
        self.raw = []


def marks(names: dict[str, Any] | None = None, *cells: RanCell) -> Marks:
    def describe(obj: Any, name: str) -> tuple[TextPart, ...]:
        return (TextPart(f"{name}: {obj!r}"),)

    return Marks(names if names is not None else {"df": [1, 2], "x": 5}, Record(*cells), describe, {"In": 1})


CORPUS = [
    "{\"a\": 1, \"b\": {\"c\": [1, 2]}}", "{\"@type\": \"Person\", \"@id\": \"x\"}", "[{'@context': 'y'}]", "{x}",
    "{{x}}", "{x!r:>10}", "f'{df}'", "{% for x in xs %}{{ x }}{% endfor %}", "${x}", "$x", "`x`", "``x``", "$(df)",
    "\\@df", "\\makeatletter\\@ifnextchar", "$\\alpha_{x} @ \\beta$", "a @ b", "A@B", "x@y.org", "me@df",
    "mail x.y+z@df.com now", "git@github.com:a/b.git", "ssh root@df", "npm i @types/node @df/x", "@@ -1,3 +1,4 @@",
    "@ df", "@", "@@", "@-df", "@1", "df@", "user@df, other@x", "```\n@df\n```", "```python\n@x\ndef f(): ...\n```",
    "`@df`", "``a `@df` b``", "~~~\n@x\n~~~", "@x\ndef f():\n    pass", "@x\nclass A: ...",
    "@df\n@x\nasync def f(): ...", "  @x\n  def f(self): ...", "\"@df\"", "'@df'", "<@df>", "/@df", "=@df",
    "http://h/@df", "%%kit @", "! ls @", "?x", "~@df", "#@df", "*@df*", "_@df_", "\\$x$", "$$x$$", "\\(x\\)",
    "\\[x\\]", "{@df}", "|@df|", "@df-x", "@df/x", "@df@x", "-@df", "+@df", "&@df", "^@df", "@dframe_x1",
    "emb@dded", "a.@df", "日本@df",
]  # fmt: skip
WRAPS = ["{}", "before {} after", "# {}\n\n- {}\n"]


@pytest.mark.parametrize("wrap", WRAPS)
@pytest.mark.parametrize("snippet", CORPUS)
def test_text_that_is_no_mark_stays_as_it_is(snippet: str, wrap: str) -> None:
    """U47: over 200 snippets are sent byte for byte, and attach nothing."""
    text = wrap.replace("{}", snippet)

    made = marks().read(text)

    assert made.text == text
    if wrap == "{}":
        assert made.attached == ()


@pytest.mark.parametrize(
    ("text", "attached"),
    [
        ("look at @df", ["df"]),
        ("@df", ["df"]),
        ("(@df)", ["df"]),
        ("@df, @x and @df", ["df", "x"]),
        ("is @x. It is", ["x"]),
        ("@x.real?", ["x.real"]),
        ("@x.nothing here", ["x"]),
        ("@x.Then", ["x"]),
        ("[@df]", ["df"]),
        ("a\n@df\nb", ["df"]),
        ("@x\n\ndefine it", ["x"]),
        ("{'k': 1} @df $\\frac{1}{2}$", ["df"]),
    ],
)
def test_marks_attach_what_they_name(text: str, attached: list[str]) -> None:
    """U48, U52: a variable by name, an attribute by its path; the mark stays in the text."""
    made = marks().read(text)

    assert [one.mark for one in made.attached] == attached
    assert made.text == text


def test_doubling_escapes_a_mark_and_only_a_mark() -> None:
    """Point 3."""
    made = marks().read("say @@df and @@nothing and @@ -1 @@")

    assert made.text == "say @df and @@nothing and @@ -1 @@"
    assert made.attached == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("@Err", "@Err: no cell has failed yet"),
        ("@Out[99]", "@Out[99]: cell 99 has no output in this kernel"),
        ("@In[99]", "@In[99]: cell 99 has not run in this kernel"),
        ("@fig", "@fig: no figure has been drawn yet"),
        ("@cell:gone", "@cell:gone: no such cell has run in this kernel"),
        ("@nobody", "@nobody: no such variable"),
        ("@a and @b, @Err", "@a, @b: no such variable; @Err: no cell has failed yet"),
    ],
)
def test_a_mark_without_a_thing_says_why(text: str, why: str) -> None:
    """``@Err`` before any error said "no such variable"."""
    made = marks({}).read(text)

    assert made.warning == f"{why}; left as text"


def test_unknown_names_stay_text_with_one_warning() -> None:
    """U47."""
    made = marks().read("@nobody and @nowhere see @df, @In and @nobody")

    assert made.text == "@nobody and @nowhere see @df, @In and @nobody"
    assert made.unknown == ("nobody", "nowhere", "In")
    assert made.warning.count("left as text") == 1
    assert [one.mark for one in made.attached] == ["df"]


def test_the_chip_shows_exactly_what_is_sent() -> None:
    """U52: preview equals what goes along."""
    made = marks().read("@df")

    sent = "".join(part.text for part in made.parts if isinstance(part, TextPart))
    assert made.chips[0]["preview"] == sent
    assert "df: [1, 2]" in sent
    assert made.chips[0]["kind"] == "list"
    assert f"{len(sent)} characters" == made.chips[0]["size"]


def test_files_by_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`@file:path`: text whole, pictures as pictures; a missing one is an error before anything is sent."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.txt").write_text("hello {x}")
    (tmp_path / "p.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"0" * 20)

    made = marks().read('see @file:"a b.txt" and @file:p.png')

    assert "hello {x}" in made.attached[0].preview
    assert any(isinstance(part, MediaPart) and part.media_type == "image/png" for part in made.attached[1].parts)
    with pytest.raises(UsageError, match=r"no file 'gone\.txt'"):
        marks().read("@file:gone.txt")
    assert marks().read("@@file:gone.txt").text == "@file:gone.txt"


def test_outputs_errors_cells_and_figures() -> None:
    """`@Out[5]`, `@In[1]`, `@Err`, `@cell:ID`, `@fig` (U53: a picture, not base64 text)."""
    try:
        exec(compile("def f():\n    return 1 / 0\nf()", "<cell>", "exec"), {})
    except ZeroDivisionError as exc:
        error = exc
    plot = {"image/png": "aGVsbG8=", "text/plain": "<Figure>"}
    cells = (
        RanCell("id-one", 1, "x = 1", outputs=[{"stream": "printed\n"}]),
        RanCell("id-two", 2, "plt.plot(x)", outputs=[plot]),
        RanCell("id-bad", 3, "f()", error),
    )
    names = {"_oh": {5: "five"}, "In": ["", "x = 1"], "df": 1}
    it = marks(names, *cells)

    assert "Out[5]: 'five'" in it.read("@Out[5]").attached[0].preview
    assert "x = 1" in it.read("@In[1]").attached[0].preview
    assert "ZeroDivisionError: division by zero" in it.read("@Err").attached[0].preview
    assert "printed" in it.read("@cell:id-one").attached[0].preview
    (figure,) = it.read("@fig").attached
    assert [type(part) for part in figure.parts] == [TextPart, MediaPart]
    assert "aGVsbG8" not in figure.preview
    assert any(isinstance(part, MediaPart) for part in it.read("@Out[2]").parts)
    assert it.read("@Out[99] @cell:gone @In[7]").unknown == ("Out[99]", "cell:gone", "In[7]")
    assert error_text(cells[2]).startswith("The cell that failed:\nf()")


def test_a_property_that_raises_is_no_mark() -> None:
    """Whatever the user's object does, the prompt goes out."""

    class Bad:
        @property
        def boom(self) -> int:
            raise RuntimeError("no")

    made = marks({"bad": Bad()}).read("@bad.boom")

    assert [one.mark for one in made.attached] == ["bad"]


def test_completion_of_marks() -> None:
    """U52: own variables first, nothing hidden, no modules."""
    it = marks({"df": 1, "data": 2, "_x": 3, "In": [], "re": __import__("re"), "_oh": {4: 1}}, RanCell("abc", 1, "x"))

    assert it.names("d") == ["data", "df"]
    assert it.names("Out") == ["Out[4]"]
    assert it.names("cell:") == ["cell:abc"]
    assert "re" not in it.names("")
    assert "_x" not in it.names("")


def test_cells_by_place_number_and_id() -> None:
    """U49: `--context` sends exactly the cells it names."""
    cells = [RanCell(f"id{n}", n, f"x{n}") for n in range(1, 6)]
    cells[2].source = "%%kit\nask"
    record = Record(*cells)

    def numbers(which: str, here: str = "") -> list[int]:
        return [cell.number for cell in select_cells(record, which, here=here)]

    assert numbers("none") == []
    assert numbers("all") == [1, 2, 4, 5]
    assert numbers("above", here="id4") == [1, 2]
    assert numbers("2-4") == [2, 3, 4]
    assert numbers("1,id5,cell:id2") == [1, 5, 2]
    with pytest.raises(UsageError, match="no cell 'id9'"):
        numbers("id9")


def test_the_text_form_of_a_notebook() -> None:
    """U57: people can read what is sent."""
    cells = [RanCell("a", 1, "x = 1\nx", outputs=[{"text/plain": "1"}]), RanCell("b", 2, "y", NameError("y"))]

    assert notebook_text(cells) == f"<notebook>\n{cells_text(cells)}\n</notebook>"
    assert '<cell number="1" id="a">\nx = 1\nx\n<output>\n1\n</output>\n</cell>' in cells_text(cells)
    assert "<error>NameError: y</error>" in cells_text(cells)
    assert notebook_text([]) == ""


def test_a_prompt_of_five_megabytes_is_read_quickly() -> None:
    """Bad input: no pattern here is quadratic."""
    import time

    begin = time.process_time()
    for text in ("@" * 200_000, "`" * 100_000 + "@df", "@df " * 100_000, "a" * 5_000_000 + " @df", "@df\n" * 100_000):
        marks().read(text)

    assert time.process_time() - begin < 20
