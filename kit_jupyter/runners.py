"""Whether a cell is executed for a person's page, or by a program that runs a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["is_runner"]


def is_runner(parent: Mapping[str, Any]) -> bool:
    """True if the cell was sent by a program that runs a file, as nbclient, nbconvert, papermill and nbval do.

    They take no input and tell nothing of the cell. Lab, Notebook and VS Code take input, and tell the cell's id.
    A runner would keep the state of every live view in the file, where no page is to show it.

    Parameters
    ----------
    parent : dict
        The message that the kernel executes.

    Examples
    --------
    >>> is_runner({"header": {"msg_type": "execute_request"}, "content": {"allow_stdin": False}, "metadata": {}})
    True
    """
    content = parent.get("content") or {}
    is_execution = (parent.get("header") or {}).get("msg_type") == "execute_request"
    return is_execution and content.get("allow_stdin") is False and not parent.get("metadata")
