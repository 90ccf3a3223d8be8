"""Tables of the documentation that are made from the code: ``python -m tests.core.docs_tables`` writes them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from kit_jupyter.events import EVENT_TYPES, Event

SDK = Path(__file__).parents[2] / "docs" / "sdk.md"
START, END = "<!-- events: made by `python -m tests.core.docs_tables`, checked by a test -->", "<!-- /events -->"


def events_table() -> str:
    """One row an event: its own fields, what it says."""
    stamp = {f.name for f in dataclasses.fields(Event)}
    rows = ["| event | fields | says |", "|---|---|---|"]
    for name, cls in EVENT_TYPES.items():
        if cls is Event:
            continue
        own = ", ".join(f"`{f.name}`" for f in dataclasses.fields(cls) if f.name not in stamp)
        words = (cls.__doc__ or "").strip().split("\n")[0]
        rows.append(f"| `{name}`{' *(transient)*' if cls.transient else ''} | {own} | {words} |")
    return "\n".join(rows)


def with_table(text: str) -> str:
    """The page with the present table in its place."""
    head, rest = text.split(START)
    return f"{head}{START}\n{events_table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    SDK.write_text(with_table(SDK.read_text()))
