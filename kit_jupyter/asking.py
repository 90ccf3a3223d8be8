"""A guest's question to a person: judged, asked, told and logged as a tool's call is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from kit_jupyter.calls import CallContext, Calls
from kit_jupyter.messages import ToolCallPart, ToolSpec, new_id
from kit_jupyter.permissions import Access, Approval, Decision, Need, Question, audit_record
from kit_jupyter.tool import ToolContext, ToolOutcome
from kit_jupyter.trifecta import Legs

if TYPE_CHECKING:
    from kit_jupyter.turn import Turn

__all__ = ["ask_for_guest"]


class _Wish:
    """What is asked for, as policies see it: a tool that wants a person's word whatever the preset."""

    parallel_safe = False
    timeout_seconds: float | None = None
    approve: Literal["ask"] = "ask"
    legs = Legs()

    def __init__(self, action: str, resource: str, question: str) -> None:
        self._access = Access(needs=(Need(action, resource, "outside"),), question=question)
        self.spec = ToolSpec(name=action, description=question, schema={"type": "object", "properties": {}})

    def access(self, arguments: Mapping[str, Any], context: ToolContext) -> Access:
        return self._access

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        return dict(arguments)

    async def run(self, context: ToolContext, arguments: dict[str, Any]) -> ToolOutcome:
        return ToolOutcome.of_text("")


async def ask_for_guest(turn: Turn, question: str, *, action: str, resource: str) -> Approval:
    """The answer of the rules or, where none names it, of a person; on the engine, within `turn`.

    A rule for everything (``*``) does not answer, one that names the action does; an "always" becomes
    such a rule.
    """
    call = ToolCallPart(new_id("ask"), action, "{}")
    calls = Calls(turn, (), ())
    arguments = {"resource": resource}
    policy = turn.house.policy
    try:
        decision = policy.decide(_Wish(action, resource, question), arguments, CallContext(turn, call, calls))
    except Exception as exc:  # a rule that fails must not let anything through
        decision = Decision(effect="ask", reason=f"a rule failed ({type(exc).__name__}: {exc})")
    if decision.effect == "ask" and not getattr(turn.house.approver, "is_there", True):
        return Approval(allowed=False, by="nobody")  # no event, no entry: the next message may ask again
    if decision.effect == "ask":
        answer = await calls.ask_person(
            Question(
                call_id=call.call_id,
                tool_name=action,
                arguments={},
                text=question,
                suggestion=decision.suggestion,
            )
        )
    else:
        answer = Approval(allowed=decision.effect == "allow", reason=decision.reason, by="policy")
    asked = answer if decision.effect == "ask" else None
    record = audit_record(action, call.call_id, arguments, decision, asked)
    turn.house.session.append_custom("permission", {**record, "turn_id": turn.id})
    return answer
