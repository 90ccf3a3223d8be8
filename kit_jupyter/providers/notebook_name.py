"""Which notebook a kernel runs, as far as whoever started it lets know: the recording bears that name.

Theory of operation
-------------------
A Jupyter server tells its kernels the name in ``JPY_SESSION_NAME``. Runners do not: there, pytest's own
variable names the file that nbval runs, and the command line of the process that started the kernel names
it for ``jupyter execute``, ``jupyter nbconvert --execute`` and ``papermill``. A script that uses nbclient
or papermill as a library names it by setting ``JPY_SESSION_NAME`` itself, or not at all.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["notebook_name"]


def notebook_name(environ: Mapping[str, str] | None = None) -> str:
    """File name of the notebook, such as ``06_structured.ipynb``; empty if nobody told it.

    Parameters
    ----------
    environ : mapping or None
        None takes the process's own environment, and looks at who started the process.

    Examples
    --------
    >>> notebook_name({"JPY_SESSION_NAME": "/home/me/study.ipynb"})
    'study.ipynb'
    >>> notebook_name({"PYTEST_CURRENT_TEST": "notebooks/study.ipynb::Cell 0 (setup)"})
    'study.ipynb'
    """
    own = environ is None or environ is os.environ
    environ = os.environ if environ is None else environ
    for told in (environ.get("JPY_SESSION_NAME", ""), environ.get("PYTEST_CURRENT_TEST", "").partition("::")[0]):
        if told.endswith(".ipynb"):
            return Path(told).name
    return _of_the_runner() if own and environ.get("JPY_PARENT_PID") else ""


def _of_the_runner() -> str:
    """The notebook in the command line of the process that started this kernel."""
    with contextlib.suppress(Exception):  # no psutil, no such process any more, not ours to see
        runner = importlib.import_module("psutil").Process(os.getppid())
        return _in_command(runner.cmdline(), Path(runner.cwd()))
    return ""


def _in_command(words: Sequence[str], folder: Path) -> str:
    """The one notebook of a command line; empty when there are several or none."""
    named = [word for word in words[1:] if word.endswith(".ipynb") and not word.startswith("-")]
    if any(Path(word).name.startswith("papermill") for word in words[:2]):
        named = named[:1]  # the second is where the result goes
    there = {Path(word).name for word in named if (folder / word).is_file()}
    return there.pop() if len(there) == 1 else ""
