"""``python -m kit_jupyter.providers.registry``: prints the README's table."""

from __future__ import annotations

from kit_jupyter.providers.registry.table import provider_table

print(provider_table())
