"""The demo model in a real kernel: that a cold cell is answered, and what becomes of its process."""

import importlib.util
import os
import time
from pathlib import Path

import psutil
import pytest
from jupyter_client.manager import KernelManager

from kit_jupyter.providers import local_models

ROOT = Path(__file__).resolve().parent.parent

pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("xllamacpp") is None,
        reason='the engine is not installed: pip install "kit-jupyter[local]"',
    ),
    pytest.mark.skipif(
        local_models.find("smollm2") is None, reason="no weights here: run kit-jupyter local install smollm2"
    ),
    pytest.mark.skipif(os.name == "nt", reason="POSIX signals"),
]


@pytest.fixture
def kernel(tmp_path):
    """A kernel with the extension loaded, that talks to the demo model; and its client."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KIT_")}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "KIT_MODEL": "local/smollm2",
        "XDG_DATA_HOME": str(tmp_path),
    }
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=environment, cwd=str(tmp_path))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    run(client, "%load_ext kit_jupyter")
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def run(client, code, timeout=60):
    """Run a cell; its reply."""
    reply = client.execute_interactive(code, timeout=timeout, output_hook=lambda _: None)
    assert reply["content"]["status"] == "ok", reply["content"]
    return reply["content"]


def servers(manager):
    """The model servers below the kernel."""
    mother = psutil.Process(manager.provisioner.pid)
    return [child for child in mother.children(recursive=True) if "llama_child" in " ".join(child.cmdline())]


def test_a_cold_cell_is_answered_by_one_server(kernel):
    """Issue 2: `%%kit` with nothing running. How long that takes is a row of ``benchmarks/bench_notebook.py``."""
    manager, client = kernel
    run(client, 'result = await kit.prompt("Say hello in one short sentence.")')
    content = client.execute_interactive(
        "pass", user_expressions={"text": "result.text"}, timeout=30, output_hook=lambda _: None
    )["content"]

    assert content["user_expressions"]["text"]["data"]["text/plain"].strip("'\"")
    assert len(servers(manager)) == 1


def test_interrupt_leaves_the_model_and_kill_takes_it_along(kernel):
    """Kernel → Interrupt goes to the whole group and the model stays loaded; kill -9 leaves no orphan."""
    manager, client = kernel
    run(client, "%%kit\nSay hello in one short sentence.")
    (server,) = servers(manager)

    manager.interrupt_kernel()

    run(client, "%%kit\nSay it again.")
    assert [child.pid for child in servers(manager)] == [server.pid]
    psutil.Process(manager.provisioner.pid).kill()
    server.wait(10)


def test_interrupt_in_the_middle_frees_the_model(kernel):
    """A turn that is interrupted stops the model within a second, and the next cell works."""
    manager, client = kernel
    run(client, "%%kit\nHi")
    (server,) = servers(manager)
    # Else the kernel aborts what comes right after a cell that failed, for as long as its own clock says.
    client.execute("%%kit\nTell me a very long story about the sea, with many chapters.", stop_on_error=False)
    busy_since = time.monotonic()
    while server.cpu_percent(0.1) < 20:  # it writes
        assert time.monotonic() - busy_since < 30

    manager.interrupt_kernel()
    while client.get_shell_msg(timeout=20)["msg_type"] != "execute_reply":
        pass

    run(client, "%%kit\nSay hello in one short sentence.", timeout=20)
    assert [child.pid for child in servers(manager)] == [server.pid]


def test_restart_of_the_kernel_ends_the_model(kernel):
    """Kernel restarted during a turn: the old model process goes."""
    manager, client = kernel
    run(client, "%%kit\nHi")
    (server,) = servers(manager)
    client.execute("%%kit\nTell me a very long story about the sea, with many chapters.")

    manager.restart_kernel(now=True)

    _, alive = psutil.wait_procs([server], timeout=10)
    assert not alive
