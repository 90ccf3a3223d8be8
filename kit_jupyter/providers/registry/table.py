"""The README's table of providers."""

from __future__ import annotations

from kit_jupyter.providers.registry.catalogue import ROWS, Row

__all__ = ["provider_table"]


def provider_table() -> str:
    """The providers as a Markdown table, for the README."""
    lines = ["| Name | Service | Wire | Key | Address |", "|---|---|---|---|---|"]
    lines += [
        f"| `{row.name}/` | {row.title} | {row.wire} | {', '.join(f'`{n}`' for n in row.key_env[:2])}"
        f"{'' if row.needs_key else ' (optional)'} | {_address_shown(row)} |"
        for row in ROWS
    ]
    lines.append("| `local/` | Built-in local model | openai-chat | none | none |")
    lines.append("| `pydantic-ai/` | Any model of pydantic-ai (extra `pydantic-ai`) | its own | its own | its own |")
    return "\n".join(lines)


def _address_shown(row: Row) -> str:
    """Where the service's address comes from: its variable where people must or mostly do set it."""
    if row.url_env:
        return f"`{row.url_env[0]}`"
    return "`KIT_OPENAI_COMPATIBLE_BASE_URL`" if row.name == "openai-compatible" else "fixed"
