"""What the tests of worked extensions share."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from kit_jupyter.extension import ExtensionHost
from kit_jupyter.tool import Toolbox

collect_ignore = ["mcp_server.py", "odd_mcp_server.py"]  # programs, run as child processes


@pytest.fixture(autouse=True)
def own_config(tmp_path_factory, monkeypatch):
    """No test reads or writes the person's configuration."""
    folder = tmp_path_factory.mktemp("config")
    monkeypatch.setenv("KIT_CONFIG_DIR", str(folder))
    monkeypatch.setenv("KIT_MEMORY_DIR", str(folder / "memory"))
    return folder


@pytest.fixture
def hosted():
    """Host extensions without a Kit; ``host.emitted``, ``host.told`` and ``host.warned`` say what came of it."""
    hosts = []

    def host(*extensions):
        made = ExtensionHost.build(extensions)
        made.emitted, made.told, made.warned = [], [], []
        made.on_error = made.told.append
        made.on_warning = lambda message, source: made.warned.append(message)
        made.tool = lambda name: next(tool for tool in made.tools if tool.spec.name == name)
        made.bind(
            SimpleNamespace(id="kit_1", model="a/b", tools=Toolbox(tuple(made.tools)), messages=(), history=()),
            lambda name, content: made.emitted.append((name, content)),
        )
        hosts.append(made)
        return made

    yield host
    for one in hosts:
        one.close_sync()


@pytest.fixture
def context():
    """A tool context that does nothing."""
    return SimpleNamespace(
        call_id="c1", tool_name="t", turn_id="turn", session_id="s", state={}, progress=lambda *a, **k: None
    )
