"""Record what a service answers, and answer from the recording: notebooks and tests without a key.

Theory of operation
-------------------
An httpx transport stands in for the network. ``KIT_REPLAY`` says what it does:

=========  =====================================================================================
``off``    nothing: the network as always (the default)
``auto``   answers from the recording; asks the service for what is missing and records it, where
           that is possible (a key, a server); else `ReplayMiss`
``record`` asks the service for everything, and replaces what was recorded for the same request
``strict`` answers from the recording alone: no key, no network, no child process
=========  =====================================================================================

Requests are matched by what they mean: ids, times, durations, addresses of objects, ports, keys, folders
of this machine and the host are left out of the comparison and of the file (`normalised`). Several equal
requests are answered in the order they were recorded, then by the last. A miss names the cell, the
nearest recording and what differs.

The file lies beside the notebook, ``recordings/<notebook>.json``. Where nobody told the kernel its notebook's
name (`notebook_name`), what is recorded goes to ``recordings/notebook.json``, and answers are looked for in
every file there.

A file is made to be read and compared: one exchange after the other, one line per network read, what
repeats an earlier request is referred to (``$same``, ``$from``), and opaque state (signatures, encrypted
reasoning, pictures) stands as a digest. A digest goes back to us as if it were the signature, and comes in
again with the next request, so that whole conversations replay. Keys never reach the file: of headers only
the content type is kept, and all text passes `keys.mask`.
"""

from __future__ import annotations

from kit_jupyter.providers.replay.meaning import normalised
from kit_jupyter.providers.replay.playing import recorded_model, recording_of, reset, used_file
from kit_jupyter.providers.replay.provider import ReplayProvider
from kit_jupyter.providers.replay.recording import Recording
from kit_jupyter.providers.replay.setting import (
    MODES,
    is_strict,
    mode,
    recording_file,
    recording_files,
    use_file,
)
from kit_jupyter.providers.replay.transport import transport_for

__all__ = [
    "MODES",
    "Recording",
    "ReplayProvider",
    "is_strict",
    "mode",
    "normalised",
    "recorded_model",
    "recording_of",
    "recording_file",
    "recording_files",
    "reset",
    "transport_for",
    "use_file",
    "used_file",
]
