"""The notebook's cell tools work with each provider's wire, not with one mode of one: ask U63."""

from __future__ import annotations

from typing import Any

import pytest

from kit_jupyter.jupyter.lab_cells import cell_tools
from kit_jupyter.kit import Kit
from kit_jupyter.messages import ToolResult
from kit_jupyter.providers._wire import WireProvider
from kit_jupyter.providers.codec import Endpoint
from kit_jupyter.testing_contract import Scenario, ScriptedCall

from .conftest import KEY, QUICK
from .contract_services import SERVICES, reply_for
from .loopback import Loopback
from .wire_cases import codec_of

HARD = 'f = {"a": r"\\d", \'b\': "é😀"}\n# $x$ {{y}}\n'
CELL = {"id": "c1", "type": "code", "source": "x = 1", "execution_count": 3, "outputs": []}
CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("read_cells", {}, '<cell id=\\"c1\\" type=\\"code\\" run=\\"3\\">'),
    ("insert_cell", {"source": HARD, "after": "c1"}, "inserted as cell n1"),
    ("edit_cell", {"id": "c1", "old": "1", "new": HARD}, "cell c1 is now:"),
    ("move_cell", {"id": "c1", "before": "n1"}, "moved cell c1 before n1"),
    ("select_cell", {"id": "c1"}, "cell c1 is selected"),
    ("run_cell", {"id": "c1"}, "42"),
    ("clear_cells", {"ids": ["c1", "n1"]}, "cleared the outputs of 2 cells"),
    ("delete_cell", {"id": "n1"}, "deleted cell n1"),
]


class Page:
    """A page that does all it is asked, and remembers it."""

    must_queue = False

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    async def call(self, tool: str, arguments: dict[str, Any], *, timeout_seconds: float | None = 60.0) -> Any:
        if tool != "read_cells" or not arguments.get("ids"):  # what a question shows is no act
            self.asked.append((tool, {name: value for name, value in arguments.items() if value is not None}))
        ran = {**CELL, "state": "done", "outputs": [{"output_type": "stream", "name": "stdout", "text": "42\n"}]}
        answers = {
            "read_cells": {"cells": [CELL]},
            "insert_cell": {"id": "n1"},
            "edit_cell": {"id": "c1", "source": HARD},
            "run_cell": ran,
            "clear_cells": {"cleared": 2},
        }
        return answers.get(tool, {})


@pytest.mark.parametrize("protocol", SERVICES)
async def test_every_cell_tool_works_over(protocol: str) -> None:
    """U63: schemas are accepted by the codec, arguments arrive as they were meant, results go back to the model."""
    calls = tuple(ScriptedCall(f"call_{at}", name, arguments) for at, (name, arguments, _) in enumerate(CALLS))
    asks = reply_for(protocol, Scenario(name="asks", text=("Let me see.",), calls=calls, stop="tool_calls"))
    ends = reply_for(protocol, Scenario(name="ends", text=("Done ", "as asked.")))
    page = Page()
    async with Loopback(asks, ends) as server:
        provider = WireProvider(
            codec_of(protocol), Endpoint(name="demo", base_url=server.url, api_key=KEY), limits=QUICK
        )
        kit = Kit(
            provider=provider,
            session="memory",
            tools=cell_tools(page),  # type: ignore[arg-type]
            permissions="auto",
        )
        result = await kit.prompt("Tidy up.")
        await kit.aclose()

    assert str(result) == "Done as asked."
    said = [(name, {key: value for key, value in asked.items() if key != "outputs"}) for name, asked in page.asked]
    expected = [(name, dict(arguments)) for name, arguments, _ in CALLS]
    for (name, asked), (wanted, arguments) in zip(said, expected, strict=True):
        assert name == wanted
        assert arguments.items() <= asked.items(), name
    first, second = (request.body.decode() for request in server.requests)
    for name, _, text in CALLS:
        assert f'"{name}"' in first
        assert text in second, name
    results = [message for message in kit.messages if isinstance(message, ToolResult)]
    assert [one.is_error for one in results] == [False] * len(CALLS)
