"""`kit.map`: one prompt over many rows, on this machine or on any executor.

Theory of operation
-------------------
Rows are pulled a handful at a time on the caller's thread (an iterable may be user code), turned into
prompts, and answered on the engine, ``concurrency`` at once. Each answer is put into a store on disk
under a key made of all that decides it (model, system prompt, options, schema, prompt), so an
interrupted run goes on where it was and nothing is paid twice; equal rows are asked once. A service
that asks for patience pauses every row, not one. Nothing but the answers is held in memory.

With ``executor=`` the same work is cut into small picklable pieces and given to any
``concurrent.futures`` executor, a Dask client, an ipyparallel client or Ray; each worker makes a Kit
of its own, and takes its keys from its own environment.

With ``batch=True`` the rows go through the provider's batch API, for half the money and within a day; see
`half_price`.
"""

from __future__ import annotations

from kit_jupyter.batch.half_price import BatchOptions, cancel_batches, open_batches
from kit_jupyter.batch.rows import MapRow
from kit_jupyter.batch.run import amap_rows, map_rows, stream_rows
from kit_jupyter.batch.template import Template

__all__ = [
    "BatchOptions",
    "MapRow",
    "Template",
    "amap_rows",
    "cancel_batches",
    "map_rows",
    "open_batches",
    "stream_rows",
]
