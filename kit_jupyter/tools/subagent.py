"""The ``agent`` tool: hands a task to a sub-agent, which answers with its last word.

Theory of operation
-------------------
A `Persona` owns its prompt and its tools, verbatim; nothing else reaches the child: no extensions, no
sections, no history. The child is made by a `ChildMaker`, which the Kit fulfils, under the parent's
denials and with the parent's approver. It writes a session of its own: the child's header names the
parent, and the result of the call names the child, so each can be found from the other, and the same
child can be asked again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Protocol

from kit_jupyter.errors import BadArguments, KitError, SessionError, ToolError, UsageError
from kit_jupyter.events import Event, ToolCall
from kit_jupyter.messages import TextPart, ToolSpec
from kit_jupyter.permissions import Access, Need
from kit_jupyter.session import Session
from kit_jupyter.tool import Tool, ToolContext, ToolOutcome, Wish
from kit_jupyter.trifecta import Legs

__all__ = ["Child", "ChildMaker", "Persona", "SubAgentTool"]

_ALIVE: Final = 16
MAX_DEPTH: Final = 4
_depth: ContextVar[int] = ContextVar("kit_sub_agent_depth", default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Persona:
    """A sub-agent: who it is, and all that it may use.

    Parameters
    ----------
    name : str
        What the model calls it by.
    description : str
        For the model: what to hand to it.
    system_prompt : str
        Its whole system prompt, sent as it is.
    tool_names : sequence of str
        Names of tools of the agent, or of sub-agent tools; resolved when the Kit is built.
    max_steps : int
        Model calls for one task, at most.
    model : str
        ``provider/id``; empty for the parent's.
    gate : {"unreviewed", "reviewed"}
        ``reviewed``: a person approves each hand-off, whatever the rules allow.
    tools : tuple of Tool
        The resolved tools; left to the extension.
    """

    name: str
    description: str
    system_prompt: str
    tool_names: Sequence[str] = ()
    max_steps: int = 20
    model: str = ""
    gate: Literal["unreviewed", "reviewed"] = "unreviewed"
    tools: tuple[Tool, ...] = ()

    def __post_init__(self) -> None:
        for field in ("name", "description", "system_prompt"):
            if not getattr(self, field).strip():
                raise UsageError(f"a persona needs a {field}")
        if self.gate not in ("unreviewed", "reviewed"):
            raise UsageError(f"gate is 'unreviewed' or 'reviewed', got {self.gate!r}")
        if isinstance(self.tool_names, str):
            raise UsageError(f"tool_names is a sequence of names, got the text {self.tool_names!r}")
        if self.max_steps < 1:
            raise UsageError(f"max_steps is 1 or more, got {self.max_steps}")

    def resolved(self, tools: Mapping[str, Tool]) -> Persona:
        """This persona with the tools that its names mean.

        Raises
        ------
        UsageError
            If a name is unknown.
        """
        missing = [name for name in self.tool_names if name not in tools]
        if missing:
            raise UsageError(
                f"persona {self.name!r} names tools that are not there: {', '.join(missing)}; "
                f"there are: {', '.join(sorted(tools)) or 'none'}"
            )
        return replace(self, tools=tuple(tools[name] for name in self.tool_names))


class Child(Protocol):
    """What is used of a sub-agent; a Kit fulfils it."""

    @property
    def session(self) -> Session: ...

    async def prompt(self, text: str) -> Any:
        """One turn; the text of what it returns is the answer. Cancelled: the turn stops."""
        ...

    def subscribe(self, fn: Callable[[Any], object], *types: type[Event], inline: bool = False) -> Callable[[], None]:
        """Call `fn` with events; call the result to end it."""
        ...


class ChildMaker(Protocol):
    """Makes a child; `Kit.child` fulfils it."""

    def __call__(self, persona: Any, **options: Any) -> Child:
        """A child with the persona's ``system_prompt``, ``tools`` and nothing else.

        Options: ``task``, for the child's session; ``max_steps``; ``model``; ``session``, one to go on with.
        """
        ...


class SubAgentTool:
    """Runs sub-agents, several at once if the model asks for several.

    Parameters
    ----------
    personas : sequence of Persona
        Resolved.
    make_child : ChildMaker
    parent_id : callable -> str
        The parent's session id; only its own children are resumed.
    """

    name = "agent"
    approve: Wish = None
    parallel_safe = True
    timeout_seconds: float | None = None

    def __init__(self, personas: Sequence[Persona], make_child: ChildMaker, parent_id: Callable[[], str]) -> None:
        self.personas = {persona.name: persona for persona in personas}
        self._make_child = make_child
        self._parent_id = parent_id
        self._alive: dict[str, tuple[str, Child]] = {}
        self._busy: set[str] = set()
        listed = "\n".join(f"- {p.name}: {p.description}" for p in personas)
        self.spec = ToolSpec(
            name=self.name,
            description=(
                "Hand a task to a sub-agent and get its answer. It knows nothing of this talk: put all it needs into "
                f"the task. For tasks that do not depend on each other, make several calls at once.\n{listed}"
            ),
            schema={
                "type": "object",
                "properties": {
                    "persona": {"type": "string", "enum": list(self.personas), "description": "Which sub-agent."},
                    "task": {"type": "string", "description": "What to do, complete in itself."},
                    "resume": {
                        "type": "string",
                        "description": "Session id from an earlier result, to go on with that sub-agent; else empty.",
                    },
                },
                "required": ["persona", "task"],
                "additionalProperties": False,
            },
        )

    @property
    def legs(self) -> Legs | None:
        """None of its own: each persona is a node of its own in the trifecta tree."""
        return Legs()

    def validate(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Persona known, task given."""
        faults = []
        unknown = set(arguments) - {"persona", "task", "resume"}
        if unknown:
            faults.append(f"unknown arguments: {', '.join(sorted(unknown))}")
        persona, task, resume = arguments.get("persona"), arguments.get("task"), arguments.get("resume") or ""
        if persona not in self.personas:
            faults.append(f"persona: one of {', '.join(self.personas)}; got {persona!r}")
        if not isinstance(task, str) or not task.strip():
            faults.append(f"task: a text, complete in itself; got {task!r}")
        if not isinstance(resume, str):
            faults.append(f"resume: a session id or nothing; got {resume!r}")
        if faults:
            raise BadArguments("\n".join(faults))
        return {"persona": persona, "task": task, "resume": resume}

    def access(self, arguments: Mapping[str, Any], context: ToolContext) -> Access:
        """Handing on is harmless by itself, the child's calls are judged; a reviewed hand-off always asks."""
        persona = self.personas[str(arguments["persona"])]
        if persona.gate == "reviewed":
            question = f"Hand this task to the sub-agent {persona.name}?\n{arguments['task']}"
            return Access(needs=(Need(self.name, persona.name, "unsure"),), question=question)
        return Access(needs=(Need(self.name, persona.name, "function"),))

    async def run(self, context: ToolContext, arguments: dict[str, Any]) -> ToolOutcome:
        """One turn of the child; stopping the parent stops it."""
        if _depth.get() >= MAX_DEPTH:
            raise ToolError(f"sub-agents are nested {MAX_DEPTH} deep already; do this task yourself")
        persona = self.personas[arguments["persona"]]
        child = self._resume(persona, arguments["resume"]) if arguments["resume"] else self._begin(persona, arguments)
        session_id = child.session.id
        if session_id in self._busy:
            raise ToolError(f"sub-agent {session_id} is at work on another task; wait for its answer")
        self._keep(session_id, persona, child)
        details: dict[str, Any] = {"sub_agent": {"persona": persona.name, "session_id": session_id}}

        def tell(event: ToolCall) -> None:
            context.progress(f"{persona.name}: {event.name}({event.arguments[:200]})\n")

        self._busy.add(session_id)
        token = _depth.set(_depth.get() + 1)
        unsubscribe = child.subscribe(tell, ToolCall, inline=True)
        try:
            answer = str(await child.prompt(arguments["task"]))
            failed = False
        except KitError as exc:
            answer, failed = f"the sub-agent {persona.name} failed: {exc.message}", True
        finally:
            _depth.reset(token)
            unsubscribe()
            self._busy.discard(session_id)
            child.session.sync()
        text = f"{answer or '(no answer)'}\n\n[sub-agent {persona.name}, to go on with it: resume={session_id}]"
        return ToolOutcome(parts=(TextPart(text),), is_error=failed, details=details)

    def _options(self, persona: Persona) -> dict[str, Any]:
        return {"max_steps": persona.max_steps, **({"model": persona.model} if persona.model else {})}

    def _begin(self, persona: Persona, arguments: Mapping[str, Any]) -> Child:
        return self._make_child(persona, task=arguments["task"], **self._options(persona))

    def _resume(self, persona: Persona, session_id: str) -> Child:
        known = self._alive.get(session_id)
        if known is not None and known[1].session.header.get("parent") == self._parent_id():
            if known[0] != persona.name:
                raise ToolError(f"sub-agent {session_id} is a {known[0]}, not a {persona.name}")
            return known[1]
        try:
            if not re.fullmatch(r"ses_[0-9a-z]+", session_id):  # an id, not a path
                raise UsageError("not a session id")
            session = Session.open(session_id)
        except (SessionError, UsageError) as exc:
            raise ToolError(f"there is no sub-agent {session_id!r} to resume; leave resume empty") from exc
        if session.header.get("parent") != self._parent_id():
            session.close()
            raise ToolError(f"{session_id} is no sub-agent of this session; leave resume empty")
        return self._make_child(persona, session=session, **self._options(persona))

    def _keep(self, session_id: str, persona: Persona, child: Child) -> None:
        self._alive.pop(session_id, None)
        self._alive[session_id] = (persona.name, child)
        while len(self._alive) > _ALIVE:
            old = next((key for key in self._alive if key not in self._busy and key != session_id), None)
            if old is None:
                return
            self._alive.pop(old)[1].session.close()

    def close(self) -> None:
        """Close the children's sessions; their providers are the parent's."""
        for _, child in self._alive.values():
            child.session.close()
        self._alive.clear()

    def __repr__(self) -> str:
        return f"<tool {self.name}: {json.dumps(list(self.personas))}>"
