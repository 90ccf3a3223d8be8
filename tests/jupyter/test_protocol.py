"""The closed list of messages: kernel, browser and the document say the same."""

from __future__ import annotations

import re
from pathlib import Path

from kit_jupyter.jupyter import protocol

CHAT = (Path(protocol.__file__).parent / "static" / "chat.js").read_text(encoding="utf-8")


def test_the_browser_takes_what_the_kernel_says() -> None:
    """Design §8: each kind has a method of the store, and no other is taken."""
    store = CHAT[CHAT.index("export class Store") : CHAT.index("// ----", CHAT.index("export class Store"))]
    for kind in protocol.TO_BROWSER:
        assert re.search(rf"^  {kind}\(", store, re.M), kind


def test_the_kernel_takes_what_the_browser_says() -> None:
    """Design §8."""
    said = set(re.findall(r"\.send\(\"(\w+)\"", CHAT)) | {"ask"}

    assert said == set(protocol.TO_KERNEL)


def test_streamed_fields_are_the_same_on_both_sides() -> None:
    """A delta of a field that one side does not know would be lost."""
    found = re.search(r"const STREAMED = (\[.*?\]);", CHAT)

    assert found is not None
    assert tuple(re.findall(r"\w+", found[1])) == protocol.STREAMED


def test_no_html_is_written_as_text() -> None:
    """Design §8: nothing but the renderer makes HTML, and no handler stands in an attribute."""
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "onclick="):
        assert word not in CHAT, word
