"""A task list that the model keeps while it works, and a person can watch."""

from __future__ import annotations

import html
import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from kit_jupyter.errors import ToolError
from kit_jupyter.extension import Configurator, Extension, ExtensionContext
from kit_jupyter.extensions._branch import Place
from kit_jupyter.extensions._tool import GuestTool
from kit_jupyter.harmless import harmless_line
from kit_jupyter.trifecta import Legs

__all__ = ["LIST_CHANGED", "Task", "Tasks"]

LIST_CHANGED = "tasks.list_changed"
"""Name of the domain event; its content is the new list: ``[{"title": …, "status": …}, …]``."""

_LIMIT = 100
_MARKS = {"open": "[ ]", "doing": "[>]", "done": "[x]", "dropped": "[-]"}

Status = Literal["open", "doing", "done", "dropped"]


@dataclass(frozen=True, slots=True)
class Task:
    """One task; `title` says what is to be done."""

    title: str
    status: Status = "open"


class Tasks(Extension):
    """Gives the model one tool, ``tasks``, that writes its whole task list.

    Each change is a ``tasks.list_changed`` event; a clear empties the list. On another branch, or in a
    session that is gone on with, the list is the one that was written there.

    Examples
    --------
    >>> tasks = Tasks()
    >>> tasks.write([Task("Load the data", "done"), Task("Fit", "doing")])
    '[x] Load the data\\n[>] Fit'
    """

    name = "Tasks"

    def __init__(self) -> None:
        self._ctx: ExtensionContext | None = None
        self._items: tuple[Task, ...] = ()
        self._lock = threading.Lock()
        self._place = Place()

    @property
    def items(self) -> tuple[Task, ...]:
        """The list as it stands. Any thread."""
        return self._items

    def configure(self, c: Configurator) -> None:
        """Add the tool."""
        c.add_tool(GuestTool(self.write, name="tasks", legs=Legs(), parallel_safe=False))

    def bind(self, ctx: ExtensionContext) -> None:
        """Keep the context, for the events; take up the list of a session that is gone on with."""
        self._ctx = ctx
        history = ctx.kit.history
        self._place.look(history)
        if found := self._written_in(history):
            self._set(found)

    def system_prompt_snippets(self) -> list[str]:
        """One sentence, always the same."""
        return ["For work of three steps or more, keep a task list with the tasks tool, and keep it current as you go."]

    def on_user_message(self, ctx: ExtensionContext, content: str) -> None:
        """After a move to another branch or session, take up the list that was written there."""
        history = ctx.kit.history
        if not self._place.look(history):
            self._set(self._written_in(history))

    def on_conversation_reset(self, ctx: ExtensionContext) -> None:
        """Empty the list, and say so."""
        self._place.forget()
        self._set(())

    def write(self, tasks: list[Task]) -> str:
        """Replace the task list. Send the whole list each time, in order; at most one task is "doing".

        Parameters
        ----------
        tasks : list of Task
            Each with a title and a status: open, doing, done or dropped. An empty list clears it.
        """
        if len(tasks) > _LIMIT:
            raise ToolError(f"a task list holds at most {_LIMIT} tasks, got {len(tasks)}; join some")
        if sum(task.status == "doing" for task in tasks) > 1:
            raise ToolError('at most one task is "doing" at a time')
        if any(not task.title.strip() for task in tasks):
            raise ToolError("every task needs a title")
        self._set(tuple(tasks))
        return str(self) or "the list is empty"

    def _written_in(self, history: Sequence[Any]) -> tuple[Task, ...]:
        for message in reversed(history):
            for call in reversed(getattr(message, "tool_calls", ())):
                if call.name != "tasks":
                    continue
                try:
                    wanted = json.loads(call.arguments)["tasks"]
                    found = tuple(Task(str(one["title"]), one.get("status", "open")) for one in wanted)
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue  # it was refused then, too
                if all(task.status in _MARKS and task.title.strip() for task in found) and len(found) <= _LIMIT:
                    return found
        return ()

    def _set(self, tasks: tuple[Task, ...]) -> None:
        with self._lock:  # so that events tell changes in the order in which they were made
            self._items = tasks
            if self._ctx is not None:
                self._ctx.emit(LIST_CHANGED, [asdict(task) for task in tasks])

    def __str__(self) -> str:
        return "\n".join(f"{_MARKS[task.status]} {task.title}" for task in self._items)

    def _repr_html_(self) -> str:
        items = "".join(f"<li>{_MARKS[t.status]} {html.escape(t.title)}</li>" for t in self._items)
        return f'<ul class="kit-tasks" style="list-style:none">{items}</ul>'

    def _repr_markdown_(self) -> str:
        return "\n".join(
            f"- {_MARKS[t.status].replace('[', chr(92) + '[')} {harmless_line(t.title)}" for t in self._items
        )

    def __repr__(self) -> str:
        return f"<Tasks {len(self._items)}>"

    def to_json(self) -> list[dict[str, Any]]:
        """The list as JSON values."""
        return [asdict(task) for task in self._items]
