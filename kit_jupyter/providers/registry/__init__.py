"""Which providers there are, how each is reached, and which is taken when none is named.

Theory of operation
-------------------
A provider is a row (`catalogue`): its wire, its base URL, the environment variables that its own SDK reads, and
the quirks of its dialect. `open_provider` makes a `Provider` of a row, key and network settings included;
any model id passes through, as services name new models every week. Rows of other packages come
through the entry-point group ``kit_jupyter.providers``, or by `register`.

`choose` takes a model when nobody named one: the setting, ``KIT_MODEL``, what a notebook's recording was
made with, a key, a server on this machine that answers, and last the built-in local model. It says why.

Settings of a provider, first that is set: argument, ``KIT_<NAME>_BASE_URL`` and the like, the SDK's own
variable, the user's ``providers.json``, the row.
"""

from __future__ import annotations

from kit_jupyter.providers.registry.catalogue import ROWS, Row
from kit_jupyter.providers.registry.choosing import Choice, choose, offered
from kit_jupyter.providers.registry.key_access import key_source, login
from kit_jupyter.providers.registry.names import check_name, known_names, register
from kit_jupyter.providers.registry.opening import open_provider
from kit_jupyter.providers.registry.table import provider_table
from kit_jupyter.providers.registry.wires import codec_for

__all__ = [
    "ROWS",
    "Choice",
    "Row",
    "check_name",
    "choose",
    "codec_for",
    "key_source",
    "known_names",
    "login",
    "offered",
    "open_provider",
    "provider_table",
    "register",
]
