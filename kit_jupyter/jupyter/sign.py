"""How a page of the Lab extension finds kit in a kernel: a name among the kernel's comms, which says nothing.

A page that connects asks the kernel for its comms by the name of their target. A page that was there before kit is told
by `lab.Lab.announce`, and only where one may listen.
"""

from __future__ import annotations

from typing import Any, cast

from kit_jupyter.jupyter.shell import is_kernel

__all__ = ["LAB_TARGET", "Sign"]

LAB_TARGET = "kit.lab"


class Sign:
    """Stands among the kernel's comms from the moment that kit is loaded. User's thread.

    Notes
    -----
    Not a real comm: that speaks when it opens and when it is collected, and who does not know its target (a runner of
    files, another front end) logs a warning.
    """

    target_name = LAB_TARGET

    def __init__(self, ip: Any) -> None:
        self.comm_id = ""
        if is_kernel(ip) and hasattr(ip.kernel, "comm_manager"):
            from comm import get_comm_manager

            self.comm_id = f"{LAB_TARGET}.sign"
            get_comm_manager().register_comm(cast("Any", self))

    def handle_msg(self, message: dict[str, Any]) -> None:
        """Nothing is said to a sign."""

    def handle_close(self, message: dict[str, Any]) -> None:
        """Nor is it closed from there."""

    def remove(self) -> None:
        """Take it away, without a word."""
        if self.comm_id:
            from comm import get_comm_manager

            get_comm_manager().comms.pop(self.comm_id, None)
            self.comm_id = ""
