"""A tool on a traced thread (coverage, a debugger) must not hang it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import kit_jupyter


def test_a_traced_thread_goes_on_after_a_tool_has_run_on_it() -> None:
    """Found by coverage: CPython 3.11 never returned from the next call after an exception was taken back with NULL."""
    code = (
        "import threading\n"
        "from kit_jupyter import Kit\n"
        "from kit_jupyter.testing import ScriptedProvider, text, tool_call\n"
        "def look() -> str:\n    'Looks.'\n    return 'seen'\n"
        "kit = Kit(provider=ScriptedProvider([tool_call('look')], [text('done')]), tools=[look], session='memory')\n"
        "tracer = lambda frame, event, arg: tracer\n"
        "threading.settrace(tracer)\n"
        "thread = threading.Thread(target=lambda: print(kit.prompt_sync('go')), daemon=True)\n"
        "thread.start()\nthread.join(30)\nprint(thread.is_alive())\n"
    )
    root = str(Path(kit_jupyter.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=90, env={"PYTHONPATH": root, "HOME": "/"}
    )

    assert done.stdout.split() == ["done", "False"], done.stderr
