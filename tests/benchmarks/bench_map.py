"""500 prompts, 50 at a time, on a server that takes 50 ms: wall ÷ ideal, and CPU a prompt, beside others.

Run: ``python -m tests.benchmarks.bench_map``. Budget: wall ÷ ideal ≤ 1.45 with httpx2. Also prints how long a
half-done run of 100,000 rows takes to its first new request, and memory per row.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROWS, CONCURRENCY, DELAY = 500, 50, 0.05
IDEAL = ROWS / CONCURRENCY * DELAY

ANSWER = json.dumps(
    {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
    }
).encode()


def _chunk(choices: list[dict[str, object]], usage: object = None) -> bytes:
    body = {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": choices,
        "usage": usage,
    }
    return b"data: " + json.dumps(body).encode() + b"\n\n"


CHUNKS = [
    _chunk([{"index": 0, "delta": {"role": "assistant", "content": "yes"}, "finish_reason": None}]),
    _chunk([{"index": 0, "delta": {}, "finish_reason": "stop"}]),
    _chunk([], {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}),
    b"data: [DONE]\n\n",
]


async def _serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (
                    int(line.split(b":")[1])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length")
                ),
                0,
            )
            body = await reader.readexactly(length)
            await asyncio.sleep(DELAY)
            if b'"stream":true' in body.replace(b" ", b""):
                data = b"".join(CHUNKS)
                kind = b"text/event-stream"
            else:
                data, kind = ANSWER, b"application/json"
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: "
                + kind
                + b"\r\nContent-Length: "
                + str(len(data)).encode()
                + b"\r\n\r\n"
                + data
            )
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def serve() -> None:
    """The server, in a process of its own: prints its port, ends with its standard input."""

    async def go() -> None:
        server = await asyncio.start_server(_serve_one, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

    asyncio.run(go())


def _kit(url: str) -> None:
    from kit_jupyter import Kit, PromptOptions

    kit = Kit(model="vllm/m", session="memory")
    options = PromptOptions(base_url=url, api_key="x")
    rows = kit.map(
        [str(i) for i in range(ROWS)], "{text}", concurrency=CONCURRENCY, options=options, store=False, progress=False
    )
    assert all(row.answer == "yes" for row in rows), rows[0]


def _gather(ask: object) -> None:
    async def go() -> None:
        gate = asyncio.Semaphore(CONCURRENCY)

        async def one(i: int) -> None:
            async with gate:
                await ask(str(i))  # type: ignore[operator]

        await asyncio.gather(*(one(i) for i in range(ROWS)))

    asyncio.run(go())


def _openai(url: str) -> None:
    import openai

    client = openai.AsyncOpenAI(base_url=url, api_key="x")

    async def ask(text: str) -> None:
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])

    _gather(ask)


def _pydantic_ai(url: str) -> None:
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    agent = Agent(OpenAIChatModel("m", provider=OpenAIProvider(base_url=url, api_key="x")))
    _gather(agent.run)


def _litellm(url: str) -> None:
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm

    async def ask(text: str) -> None:
        await litellm.acompletion(
            model="openai/m", api_base=url, api_key="x", messages=[{"role": "user", "content": text}]
        )

    _gather(ask)


PEERS = {"kit.map": _kit, "openai": _openai, "pydantic-ai": _pydantic_ai, "litellm": _litellm}


def _run(name: str, url: str) -> None:
    """One contender, warm: imports and the first connection are not counted."""
    PEERS[name](url)
    begun, used = time.perf_counter(), time.process_time()
    PEERS[name](url)
    print(json.dumps({"wall": time.perf_counter() - begun, "cpu": time.process_time() - used}), flush=True)


def _version(name: str) -> str:
    try:
        return version({"kit.map": "httpx2"}.get(name, "pydantic-ai-slim" if name == "pydantic-ai" else name))
    except PackageNotFoundError:
        return "-"


def _resume() -> None:
    """A store with 50,000 of 100,000 answers: seconds to the first new request, and memory for a streamed run."""
    from kit_jupyter import Kit
    from kit_jupyter.batch import stream_rows
    from kit_jupyter.batch.plan import asks_of, make_plan, seed_of
    from kit_jupyter.testing import ScriptedProvider

    total = 100_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.sqlite"
        kit = Kit(provider=ScriptedProvider("ok", repeat_last=True), session="memory")
        plan = make_plan(kit, (str(i) for i in range(total)), "{text}", store=path)
        plan.seed = seed_of(plan)
        plan.store._db.execute("BEGIN")
        for ask in asks_of(plan):
            if ask.position < total // 2:
                plan.store.put(ask.key, "ok")
        plan.store._db.execute("COMMIT")
        plan.store.close()
        first: list[float] = []
        begun = time.perf_counter()

        async def go() -> None:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            async for row in stream_rows(kit, (str(i) for i in range(total)), "{text}", concurrency=50, store=path):
                if not row.is_stored and not first:
                    first.append(time.perf_counter() - begun)
                    middle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            print(f"half-done run of {total:,} rows: first new request after {first[0]:.2f} s")
            print(
                f"peak memory: {before // 1024} MB before, {middle // 1024} MB half way, {after // 1024} MB at the end"
            )

        kit._provider_given.requests = _Nothing()  # type: ignore[union-attr,assignment]
        asyncio.run(go())


class _Nothing(list):  # type: ignore[type-arg]
    """A list that keeps nothing, so that the double does not hold what map does not."""

    def append(self, item: object) -> None:
        return None


def main(rounds: int = 3) -> None:
    """All contenders in turn, several rounds; medians and ratios."""
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.benchmarks.bench_map", "serve"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    url = f"http://127.0.0.1:{server.stdout.readline().strip()}/v1"
    found: dict[str, list[dict[str, float]]] = {name: [] for name in PEERS}
    try:
        for _ in range(rounds):
            for name in PEERS:
                done = subprocess.run(
                    [sys.executable, "-m", "tests.benchmarks.bench_map", name, url],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode == 0:
                    found[name].append(json.loads(done.stdout.splitlines()[-1]))
                else:
                    print(f"{name}: not run ({(done.stderr.strip().splitlines() or ['?'])[-1][:100]})")
    finally:
        server.communicate("")
    python = sys.version.split()[0]
    print(
        f"{ROWS} prompts, {CONCURRENCY} at a time, {DELAY * 1000:.0f} ms server; medians of {rounds}; Python {python}"
    )
    for name, runs in found.items():
        if runs:
            wall = statistics.median(r["wall"] for r in runs)
            cpu = statistics.median(r["cpu"] for r in runs)
            figures = f"wall ÷ ideal {wall / IDEAL:5.2f}   CPU {cpu / ROWS * 1000:5.2f} ms/prompt"
            print(f"{name:12} {_version(name):10} {figures}")
    _resume()


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1] == "serve":
        serve()
    elif len(sys.argv) == 3:
        _run(sys.argv[1], sys.argv[2])
    else:
        main()
