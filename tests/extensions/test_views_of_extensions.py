"""What a view is told by extensions."""

from __future__ import annotations

import pytest

from kit_jupyter import Kit
from kit_jupyter.extensions.tasks import Task, Tasks
from kit_jupyter.testing import ScriptedProvider, tool_call

pytest.importorskip("ipywidgets", reason="views need ipywidgets")


async def test_a_reset_empties_the_view_and_its_task_list():
    """S182: the presenter behind every view repaints and shows no task after a clear."""
    from kit_jupyter.jupyter.presenter import Presenter

    tasks = Tasks()
    provider = ScriptedProvider([tool_call("tasks", tasks=[{"title": "Load", "status": "doing"}])], "ok")
    kit = Kit(provider=provider, session="memory", extensions=[tasks])
    presenter = Presenter(kit)
    repainted = []
    presenter.on_branch(lambda: repainted.append(kit.messages))
    await kit.prompt("go")
    assert presenter.bar["tasks"] == [{"text": "Load", "status": "doing"}]

    await kit.clear_conversation()

    assert presenter.bar["tasks"] == []
    assert repainted == [()]
    assert tasks.items == ()
    tasks.write([Task("New")])
    assert presenter.bar["tasks"] == [{"text": "New", "status": "open"}]
    presenter.close()
