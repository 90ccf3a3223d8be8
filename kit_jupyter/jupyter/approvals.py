"""Who answers an approval in the notebook: the view, a magic, or stdin where neither can.

A question waits in the Kit (`Kit.pending_approvals`); whoever answers first, answers. The view and
`%kit_approve` call `Kit.approve`; here is the third way, for front ends without widgets.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from kit_jupyter.errors import UsageError
from kit_jupyter.loop import engine

if TYPE_CHECKING:
    from kit_jupyter.jupyter.notebook import Run

__all__ = ["ask_by_stdin", "find_question"]


def ask_by_stdin(run: Run, call_id: str) -> None:
    """Ask on the user's thread by ``input()``, and answer the question with what comes. Any thread.

    Where no input can be given the question is denied, and the model is told that nobody was there.
    """
    engine.start(_ask(run, call_id), run.desk)


async def _ask(run: Run, call_id: str) -> None:
    from kit_jupyter.permissions import StdinApprover

    question = next((q for q in run.kit.pending_approvals if q.call_id == call_id), None)
    if question is None:
        return
    hold = getattr(run.shown, "paused", contextlib.nullcontext)  # a terminal's output, and the call before the choices
    with hold():
        approval = await StdinApprover().ask(question)
    with contextlib.suppress(UsageError):  # answered meanwhile by another way
        if approval.allowed:
            run.kit.approve(call_id, arguments=approval.arguments, scope=approval.scope, by=approval.by)
        else:
            run.kit.deny(call_id, approval.reason, by=approval.by)


def find_question(kits: list[Any], wanted: str = "") -> tuple[Any, Any]:
    """The Kit and the question that `wanted` names: a call id, a tool's name, or nothing if one waits.

    Raises
    ------
    UsageError
        If none waits, or more than one fits.
    """
    waiting = [(kit, question) for kit in kits for question in kit.pending_approvals]
    found = [pair for pair in waiting if not wanted or wanted in (pair[1].call_id, pair[1].tool_name)]
    if len(found) == 1:
        return found[0]
    names = ", ".join(f"{question.tool_name} ({question.call_id})" for _, question in waiting) or "none"
    if not found:
        if not waiting:
            raise UsageError("no question waits; one comes when a tool asks before it acts, and stands in its cell")
        raise UsageError(f"no question waits for {wanted!r}; waiting: {names}")
    raise UsageError(f"several questions wait; name one of them: {names}")
