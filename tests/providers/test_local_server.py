"""The child that serves a local model: how it starts, dies, is stopped and is shared. A stand-in server, no model."""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
import time
import urllib.request
from contextlib import aclosing
from pathlib import Path

import pytest

from kit_jupyter.errors import ConnectionFailed, ContextOverflow, ReplayMiss, UsageError
from kit_jupyter.messages import MessageBuilder, ModelRef, TextPart
from kit_jupyter.prompt import PromptMessage
from kit_jupyter.provider import ModelRequest, Provider, status_listener
from kit_jupyter.providers import llama_child, llama_process, local_models
from kit_jupyter.providers.llama_server import LlamaServer, LocalProvider

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the stand-in server is a POSIX script")

HERE = Path(__file__).parent


@pytest.fixture
def weights(tmp_path, monkeypatch):
    """A file that looks like weights, a llama-server that looks like one, and nothing else around."""
    for name in ("KIT_LOCAL_URL", "KIT_LOCAL_KEY", "KIT_LOCAL_CONTEXT", "KIT_REPLAY"):
        monkeypatch.delenv(name, raising=False)
    script = tmp_path / "llama-server"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "fake_llama_server.py"}" "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    path = tmp_path / "toy.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    monkeypatch.setenv("KIT_LOCAL_MODEL", str(path))
    monkeypatch.setenv("KIT_LLAMA_SERVER", str(script))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("FAKE_MARK", str(tmp_path / "mark"))
    return path


@pytest.fixture
async def provider(weights):
    made = LocalProvider()
    yield made
    await made.close()


def request(text="Hi", **facts):
    message = PromptMessage("user", (TextPart(text),))
    return ModelRequest(model=ModelRef("local", "default"), messages=(message,), **facts)


async def answer(provider, asked):
    builder = MessageBuilder()
    async with aclosing(provider.stream(asked)) as deltas:
        async for delta in deltas:
            builder.feed(delta)
    return builder


def is_running(pid):
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        try:
            os.kill(pid, 0)
        except OSError:
            return False
        return not Path("/proc/self").exists()
    return status.rpartition(")")[2].split()[0] != "Z"


async def gone(pid, seconds=10.0):
    """Wait until a process has ended."""
    end = time.monotonic() + seconds
    while is_running(pid):
        assert time.monotonic() < end, f"process {pid} is still there"
        await asyncio.sleep(0.02)


def command_line(pid):
    path = Path(f"/proc/{pid}/cmdline")
    return path.read_text() if path.exists() else ""


def children(pid):
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = entry.read_text()
        except OSError:
            continue
        if text.rpartition(")")[2].split()[1] == str(pid):
            found.append(int(entry.parent.name))
    return found


# ---------------------------------------------------------------- life


async def test_the_first_prompt_starts_the_child_and_close_ends_it(provider):
    """Nothing runs before it is asked, and nothing is left when the last Kit closes."""
    assert provider.servers == ()
    told = []
    provider.on_status = told.append

    builder = await answer(provider, request())

    assert builder.text == "Hello world"
    assert builder.finished.reason == "stop"
    assert told[0].startswith("starting the local model toy")
    assert told[-1] == ""
    pid = provider.servers[0].pid
    below = children(pid)
    await provider.close()
    for process in (pid, *below):
        await gone(process)


async def test_who_waits_for_the_model_is_told_what_it_waits_for(provider):
    """The listener of the task that asks hears of the start, also when the start had begun before it asked."""
    first, second = [], []

    async def ask(told):
        status_listener.set(told.append)
        return await answer(provider, request())

    begun, loop = asyncio.Event(), asyncio.get_running_loop()
    provider.on_status = lambda _: loop.call_soon_threadsafe(begun.set)
    one = asyncio.create_task(ask(first))
    await begun.wait()
    two = asyncio.create_task(ask(second))
    await asyncio.gather(one, two)

    assert first[0].startswith("starting the local model toy")
    assert second[0] == first[0]
    assert first[-1] == second[-1] == ""
    assert provider._waiting == []


async def test_it_is_a_provider(provider):
    """The seam is fulfilled."""
    assert isinstance(provider, Provider)
    assert provider.name == "local"


async def test_facts_are_known_without_asking_and_better_after(provider):
    """A small file means a lean model; the window comes from the server once it runs."""
    before = provider.info("default")
    await answer(provider, request())

    assert before.lean
    assert before.context_window == llama_process.CONTEXT
    assert "often wrong" in before.note
    assert provider.info("default").context_window == 4096
    assert provider.info("default").takes == frozenset()


async def test_the_key_is_random_and_not_among_the_arguments(provider):
    """`ps` must not show it, and a page in the browser must not get in without it."""
    await answer(provider, request())
    served = await provider.servers[0].served()

    def get(path, key):
        asked = urllib.request.Request(served.address + path, headers={"Authorization": f"Bearer {key}"})
        return urllib.request.urlopen(asked, timeout=5)

    with pytest.raises(urllib.error.HTTPError, match="401"):
        await asyncio.to_thread(get, "/props", "guess")
    assert len(served.key) > 30
    assert served.key not in repr(served)
    for pid in (provider.servers[0].pid, *children(provider.servers[0].pid)):
        assert served.key not in command_line(pid)


async def test_a_binary_gets_only_options_that_it_knows(provider):
    """Builds of llama-server differ: an unknown option would keep it from starting."""
    await answer(provider, request())
    served = await provider.servers[0].served()
    asked = urllib.request.Request(f"{served.address}/seen", headers={"Authorization": f"Bearer {served.key}"})
    loop = asyncio.get_running_loop()
    stop = loop.run_in_executor(None, lambda: json.load(urllib.request.urlopen(asked, timeout=10)))
    async with aclosing(provider.stream(request("slow"))) as deltas:
        await anext(deltas)
    arguments = (await stop)["arguments"]

    assert arguments[arguments.index("--port") + 1] == "0"
    assert arguments[arguments.index("--batch-size") + 1] == "256"
    assert "--no-webui" in arguments
    assert "--offline" not in arguments


async def test_closing_the_stream_reaches_the_server(provider):
    """U26, S12: Stop frees the slot, so that the next turn is not kept waiting."""
    await answer(provider, request())
    served = await provider.servers[0].served()
    async with aclosing(provider.stream(request("slow"))) as deltas:
        for _ in range(5):
            await anext(deltas)

    asked = urllib.request.Request(f"{served.address}/seen", headers={"Authorization": f"Bearer {served.key}"})
    seen = await asyncio.to_thread(lambda: json.load(urllib.request.urlopen(asked, timeout=10)))

    assert seen["gone"] is True


async def test_kits_share_one_child(weights):
    """Two providers of one process: one child, which ends with the last of them."""
    first, second = LocalProvider(), LocalProvider("toy")
    await answer(first, request())
    await answer(second, request())
    pid = first.servers[0].pid

    assert first.servers[0] is second.servers[0]
    await first.close()
    assert is_running(pid)
    assert (await answer(second, request())).text == "Hello world"
    await second.close()
    await gone(pid)


async def test_prompts_at_the_same_time_start_one_child(provider):
    """Two streams that both find nothing running wait for the same start."""
    both = await asyncio.gather(answer(provider, request()), answer(provider, request()))

    assert [builder.text for builder in both] == ["Hello world"] * 2
    assert provider.servers[0].starts == 1


async def test_a_stop_while_it_starts_leaves_it_usable(provider):
    """Cancelling the first prompt during the start does not break the next one."""
    starting, loop = asyncio.Event(), asyncio.get_running_loop()
    provider.on_status = lambda _: loop.call_soon_threadsafe(starting.set)
    task = asyncio.ensure_future(answer(provider, request()))
    await starting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (await answer(provider, request())).text == "Hello world"
    assert provider.servers[0].starts == 1


# ---------------------------------------------------------------- death


async def test_a_server_killed_in_the_middle_is_a_clear_error_and_the_next_turn_works(provider):
    """Issue 2, bad input: half an answer is never taken for a whole one; one restart, no orphan."""
    with pytest.raises(ConnectionFailed) as caught:
        await answer(provider, request("die"))

    assert "in the middle of the answer" in caught.value.message
    assert "something went wrong" in caught.value.message
    assert (await answer(provider, request())).text == "Hello world"
    assert provider.servers[0].starts == 2


async def test_a_child_that_died_before_the_answer_is_started_again_unseen(provider):
    """A child that went away between two prompts, or at the first byte, costs nobody an error."""
    await answer(provider, request())
    os.kill(provider.servers[0].pid, signal.SIGKILL)

    assert (await answer(provider, request())).text == "Hello world"
    assert (await answer(provider, request("die-once"))).text == "Hello world"
    assert provider.servers[0].starts == 3


async def test_a_child_that_dies_twice_is_an_error(provider):
    """One restart, not a loop of them."""
    with pytest.raises(ConnectionFailed, match="ended twice before it answered"):
        await answer(provider, request("die-first"))

    assert provider.servers[0].starts == 2


async def test_an_overflow_is_told_apart(provider):
    """The context error of llama.cpp is the one that compaction waits for."""
    with pytest.raises(ContextOverflow):
        await answer(provider, request("overflow"))


def child(body):
    """A command whose process behaves as told when it is started as the child."""
    return [sys.executable, "-c", textwrap.dedent(body)]


# Says where it listens, and does not.
DEAF = """
import time
print('{"address": "http://127.0.0.1:9"}', flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("import sys; sys.exit(3)", UsageError, 'pip install "kit-jupyter[local]"'),
        (
            "import sys; print('libgomp.so.1: cannot open shared object file', file=sys.stderr); sys.exit(4)",
            UsageError,
            "apt-get install libgomp1",
        ),
        ("import sys; print('libother.so', file=sys.stderr); sys.exit(4)", UsageError, "KIT_LLAMA_SERVER"),
        (
            "import sys; print('failed to read magic of GGUF', file=sys.stderr); sys.exit(5)",
            UsageError,
            "toy.gguf cannot be loaded",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGILL)", ConnectionFailed, "AVX2"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", ConnectionFailed, "out of memory"),
        (
            "import sys; print('couldn\\'t bind HTTP server socket', file=sys.stderr); sys.exit(1)",
            ConnectionFailed,
            "may not open a port",
        ),
        ("print('no json')", ConnectionFailed, "did not start"),
        (
            'import time; print(\'{"address": "http://127.0.0.1:9"}\', flush=True); time.sleep(60)',
            ConnectionFailed,
            "did not start",
        ),
    ],
    ids=["no engine", "libgomp", "other library", "damaged", "old CPU", "killed", "port", "strange", "deaf"],
)
async def test_every_way_not_to_start_says_what_to_do(weights, monkeypatch, body, kind, words):
    """Each failure names its remedy, and leaves no process."""
    monkeypatch.delenv("KIT_LLAMA_SERVER")
    server = LlamaServer(local_models.find(), command=child(body))

    with pytest.raises(kind) as caught:
        await server.served()

    assert words in caught.value.message
    assert server.pid is None
    server.stop()


async def test_a_start_that_takes_too_long_ends(weights, monkeypatch):
    """A child that never says where it listens is given up."""
    monkeypatch.setattr(llama_process, "START_SECONDS", 0.3)
    server = LlamaServer(local_models.find(), command=child("import time; time.sleep(60)"))

    with pytest.raises(ConnectionFailed, match=r"within 0\.3 s"):
        await server.served()
    assert server.pid is None


async def test_no_engine_is_said_before_anything_starts(weights, monkeypatch):
    """Without wheel and binary: how to get either."""
    monkeypatch.delenv("KIT_LLAMA_SERVER")
    monkeypatch.setitem(sys.modules, "xllamacpp", None)

    with pytest.raises(UsageError, match="engine for local models is not installed"):
        await answer(LocalProvider(), request())


async def test_a_binary_that_cannot_be_run_is_named(weights, monkeypatch, tmp_path):
    """A wrong path in KIT_LLAMA_SERVER is the person's to mend."""
    monkeypatch.setenv("KIT_LLAMA_SERVER", str(tmp_path / "nowhere"))
    provider = LocalProvider()

    with pytest.raises(UsageError, match="nowhere cannot be run"):
        await answer(provider, request())
    await provider.close()


async def test_a_binary_that_cannot_load_the_file_shows_its_log(weights, monkeypatch, tmp_path):
    """The program's own words reach the reader."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF")
    monkeypatch.setenv("KIT_LOCAL_MODEL", str(path))
    provider = LocalProvider()

    with pytest.raises((UsageError, ConnectionFailed), match="failed to read magic"):
        await answer(provider, request())
    await provider.close()


# ---------------------------------------------------------------- the kernel's fate

KERNEL = """
import asyncio, os, signal, sys, time
from kit_jupyter.messages import ModelRef, TextPart
from kit_jupyter.prompt import PromptMessage
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers.llama_server import LocalProvider

provider = LocalProvider()
request = ModelRequest(model=ModelRef("local", "default"), messages=(PromptMessage("user", (TextPart("Hi"),)),))

async def ask():
    return [delta async for delta in provider.stream(request)]

asyncio.run(ask())
print(provider.servers[0].pid, flush=True)
"""


def kernel(more):
    """A process that has asked the local model, then does `more`; with the child's id."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    process = subprocess.Popen(
        [sys.executable, "-c", KERNEL + textwrap.dedent(more)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    )
    return process, int(process.stdout.readline())


def ended(process):
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks at /proc")
async def test_a_killed_kernel_takes_the_child_along(weights):
    """kill -9 of the kernel: no orphan, neither the child nor the program it runs."""
    process, pid = kernel("sys.stdin.read()")
    below = children(pid)
    assert below

    ended(process)

    for one in (pid, *below):
        await gone(one)


async def test_an_interrupt_of_the_group_does_not_reach_the_child(weights):
    """Kernel → Interrupt sends SIGINT to the whole process group; the model stays loaded."""
    process, pid = kernel("""
        try:
            print("ready", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        sys.stdin.read()
    """)
    assert process.stdout.readline() == "ready\n"

    os.killpg(process.pid, signal.SIGINT)

    assert process.stdout.readline() == "interrupted\n"
    assert is_running(pid)
    ended(process)
    await gone(pid)


async def test_a_forked_process_neither_stops_nor_keeps_the_child(weights):
    """User code forks: its exit leaves the child alone, and it does not keep it alive either."""
    process, pid = kernel("""
        if os.fork() == 0:
            sys.exit(0)  # runs exit handlers
        os.wait()
        asyncio.run(ask())
        print("still", provider.servers[0].pid, flush=True)
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)
        print("forked", flush=True)
        sys.stdin.read()
    """)
    assert process.stdout.readline() == f"still {pid}\n"
    assert process.stdout.readline() == "forked\n"

    process.kill()

    await gone(pid)
    os.killpg(process.pid, signal.SIGKILL)
    ended(process)


async def test_the_end_of_the_interpreter_ends_the_child(weights):
    """A script that forgets to close leaves nothing behind."""
    process, pid = kernel("")
    process.wait()

    await gone(pid)
    ended(process)


# ---------------------------------------------------------------- a server that runs already


async def test_a_running_server_is_taken_as_it_is(provider, monkeypatch):
    """KIT_LOCAL_URL, or base_url of one prompt: no child of ours is started."""
    await answer(provider, request())
    served = await provider.servers[0].served()
    other = LocalProvider(base_url=served.address, api_key=served.key)

    assert (await answer(other, request())).text == "Hello world"
    assert other.info("x").context_window == 4096
    assert other.servers == ()
    monkeypatch.setenv("KIT_LOCAL_URL", served.address.removeprefix("http://"))
    monkeypatch.setenv("KIT_LOCAL_KEY", served.key)
    third = LocalProvider()
    assert (await answer(third, request())).text == "Hello world"
    assert third.servers == ()
    await other.close()
    await third.close()


async def test_nothing_at_the_address_is_said(weights):
    """A server that is not there."""
    with pytest.raises(ConnectionFailed, match="nothing answers at"):
        await answer(LocalProvider(base_url="http://127.0.0.1:9"), request())


async def test_servers_elsewhere_are_refused(weights):
    """local/… promises that nothing leaves this machine."""
    with pytest.raises(UsageError, match="this machine only"):
        await answer(LocalProvider(), request(base_url="http://example.org/v1"))


@pytest.mark.parametrize("text", ["many", "12"])
async def test_a_context_that_is_no_number_is_refused(weights, monkeypatch, text):
    """KIT_LOCAL_CONTEXT is checked."""
    monkeypatch.setenv("KIT_LOCAL_CONTEXT", text)

    with pytest.raises(UsageError, match="KIT_LOCAL_CONTEXT"):
        LocalProvider().info("default")


async def test_no_weights_is_an_error_of_three_remedies(weights, monkeypatch):
    """Issue 2: install, own file or server, or a key; and replay."""
    monkeypatch.delenv("KIT_LOCAL_MODEL")

    with pytest.raises(UsageError) as caught:
        await answer(LocalProvider("smollm2"), request())

    for words in ("kit-jupyter local install smollm2", "KIT_LOCAL_MODEL", "OPENAI_API_KEY", "KIT_REPLAY"):
        assert words in caught.value.message


def test_cores_are_those_this_process_may_use(monkeypatch):
    """Affinity counts, not the machine's size."""
    if hasattr(os, "sched_getaffinity"):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})

        assert llama_child.cores() == 1
    assert llama_child.cores() >= 1


def test_the_child_refuses_to_run_without_a_key(monkeypatch, capsys):
    """By hand it would be open to every page in the browser."""
    monkeypatch.delenv(llama_child.KEY_VARIABLE, raising=False)

    assert llama_child.main(["--model", "x.gguf"]) == 2
    assert "KIT_LLAMA_KEY" in capsys.readouterr().err


# ---------------------------------------------------------------- recordings


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """Sets KIT_REPLAY, with a recording of this test's own."""
    from kit_jupyter.providers import replay

    monkeypatch.setenv("KIT_REPLAY_FILE", str(tmp_path / "recording.json"))
    replay.reset()
    yield lambda how: monkeypatch.setenv("KIT_REPLAY", how)
    replay.reset()


@pytest.mark.parametrize("how", ["strict", "auto"])
async def test_a_recorded_answer_needs_neither_weights_nor_child(weights, recorded, monkeypatch, how):
    """KIT_REPLAY: a notebook made with a local model runs where there is none."""
    recorded("record")
    live = LocalProvider()
    said = await answer(live, request("Hi"))
    await live.close()

    recorded(how)
    monkeypatch.delenv("KIT_LOCAL_MODEL")
    monkeypatch.delenv("KIT_LLAMA_SERVER")
    replayed = LocalProvider("toy")

    assert (await answer(replayed, request("Hi"))).parts == said.parts
    assert replayed.servers == ()
    await replayed.close()


async def test_an_answer_that_is_not_recorded_is_a_miss(weights, recorded):
    """Strict replay never starts anything, whatever is installed."""
    recorded("record")
    live = LocalProvider()
    await answer(live, request("Hi"))
    await live.close()
    recorded("strict")
    provider = LocalProvider()

    with pytest.raises(ReplayMiss, match="Something else"):
        await answer(provider, request("Something else"))
    assert provider.servers == ()


async def test_a_recording_holds_neither_port_nor_key(weights, recorded, tmp_path):
    """The same text on every machine, and nothing secret in it."""
    recorded("record")
    provider = LocalProvider()
    await answer(provider, request("Hi"))
    served = await provider.servers[0].served()
    await provider.close()

    text = (tmp_path / "recording.json").read_text()

    assert "local/toy" in text
    assert served.key not in text
    assert served.address.rpartition(":")[2] not in text


async def test_registry_opens_it_without_starting_anything(weights):
    """`Kit()` without key and setting ends here."""
    from kit_jupyter.providers import registry

    provider = registry.open_provider(ModelRef("local", "default"))

    assert isinstance(provider, LocalProvider)
    assert provider.servers == ()
