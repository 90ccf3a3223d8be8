"""Cells that are prompts are edited as Markdown, all others as Python. Issue 7, what people touch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(300)  # a browser on a busy machine

MIME = "return panel.content.widgets.map(c => c.model.mimeType);"
#: How many pieces of the cell's last line are coloured.
COLOURED = """const editor = panel.content.widgets[arg].editor.editor;
  return editor.contentDOM.querySelector('.cm-line:last-child').querySelectorAll('span').length;"""


@pytest.mark.parametrize("kind", ["lab", "notebook"])
def test_a_prompt_is_no_python(open_page: Callable[..., Any], kind: str) -> None:
    """`is in` of a prompt is not coloured as words of Python; a cell that turns to a prompt and back follows."""
    name = f"prompts-{kind}.ipynb"
    cells = ["%%kit\nWhat is in my table?", "3 is in x", "%kit what is in it?", "%%kitten\n3 is in x"]
    p = open_page(name, cells, kind)
    p.wait("shared.getMetadata().language_info")  # the notebook has given each cell the kernel's language
    p.wait("panel.content.widgets[0].model.mimeType === 'text/x-ipythongfm'")
    python = p.js("return panel.content.codeMimetype;")
    assert "python" in python
    assert p.js(MIME) == ["text/x-ipythongfm", python, python, python]
    p.page.wait_for_timeout(500)
    assert p.js(COLOURED, 0) == 0
    assert p.js(COLOURED, 1) > 0

    p.focus_cell(1, edit=True)
    p.page.keyboard.press("Control+Home")
    p.page.keyboard.type("%%kit")
    p.wait("panel.content.widgets[1].model.mimeType === panel.content.codeMimetype")  # `%%kit3` is no prompt
    p.page.keyboard.press("Enter")
    p.wait("panel.content.widgets[1].model.mimeType === 'text/x-ipythongfm'")
    p.page.keyboard.press("Backspace")
    p.wait("panel.content.widgets[1].model.mimeType === panel.content.codeMimetype")
    assert p.js(MIME) == ["text/x-ipythongfm", python, python, python]

    p.js("shared.insertCell(1, {cell_type: 'code', source: '%%kit\\nWhy?'});")
    p.wait("panel.content.widgets[1].model.mimeType === 'text/x-ipythongfm'")
    assert p.errors == [] or kind == "notebook"  # Notebook 7.6 logs some of its own
