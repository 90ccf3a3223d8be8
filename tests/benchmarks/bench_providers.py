"""Providers side by side: CPU a chunk, a request and a turn, against bare clients and the official SDKs.

    python -m tests.benchmarks.bench_providers [--chunks 20000] [--rounds 5] [--only NAME …]

One loopback server in a process of its own outruns every contender. Contenders take turns in one run, the
best of the rounds counts, and only this process's CPU time is looked at: ratios are what matters. Budgets
are those of the project's speed table: chunk ≤ 1.0 and request ≤ 1.15 of the bare client reading lines and
``json.loads``; growth 5k → 20k chunks 0.9 to 1.05; a request's cost must not be the history's.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib.metadata
import json
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from kit_jupyter.messages import Assistant, MessageBuilder, ModelRef, TextDelta, TextPart, Time, User
from kit_jupyter.prompt import PromptMessage, from_branch
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers._wire import Limits, Network, WireProvider
from kit_jupyter.providers.codec import Endpoint
from kit_jupyter.providers.openai_chat import OpenAIChatCodec

SERVER = r"""
import asyncio, json, sys

def event(delta, reason=None, usage=None):
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m",
             "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}], "usage": usage}
    return b"data: " + json.dumps(chunk, separators=(",", ":")).encode() + b"\n\n"

END = event({}, "stop") + b"data: [DONE]\n\n"
BODIES = {}

def body(count):
    if count not in BODIES:
        one = event({"content": "twenty bytes of text"})
        parts = [one] * count + [END]
        # One event an HTTP chunk, as services send them; the socket outruns every reader.
        BODIES[count] = [b"%x\r\n" % len(piece) + piece + b"\r\n" for piece in parts]
    return BODIES[count]

async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
            size = int(sizes[0].split(b":")[1]) if sizes else 0
            await reader.readexactly(size)
            count = int(head.split(b"/n")[1].split(b"/")[0])
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            pieces = body(count)
            for at in range(0, len(pieces), 64):
                writer.write(b"".join(pieces[at:at + 64]))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""

BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
Once = Callable[[str], Awaitable[int]]


# ---------------------------------------------------------------- contenders: each reads one answer


@asynccontextmanager
async def bare(library: str) -> AsyncIterator[Once]:
    """The bare client: lines and json."""
    httpx = __import__(library)
    async with httpx.AsyncClient(timeout=None) as client:

        async def once(url: str) -> int:
            count = 0
            async with client.stream("POST", f"{url}/chat/completions", json=BODY) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        count += bool(json.loads(line[6:])["choices"][0]["delta"].get("content"))
            return count

        yield once


@asynccontextmanager
async def with_httpx_sse(library: str) -> AsyncIterator[Once]:
    """The bare client with httpx-sse for framing."""
    import httpx
    from httpx_sse import aconnect_sse

    async with httpx.AsyncClient(timeout=None) as client:

        async def once(url: str) -> int:
            count = 0
            async with aconnect_sse(client, "POST", f"{url}/chat/completions", json=BODY) as source:
                async for event in source.aiter_sse():
                    if event.data != "[DONE]":
                        count += bool(json.loads(event.data)["choices"][0]["delta"].get("content"))
            return count

        yield once


@asynccontextmanager
async def ours(library: str) -> AsyncIterator[Once]:
    """Our provider with a builder, as a turn reads it."""
    provider: WireProvider | None = None

    async def once(url: str) -> int:
        nonlocal provider
        if provider is None:
            endpoint = Endpoint(name="demo", base_url=url, api_key="sk-x")
            provider = WireProvider(OpenAIChatCodec(), endpoint, network=Network(library=library), limits=Limits())
        request = ModelRequest(
            model=ModelRef("demo", "m"), messages=(PromptMessage("user", (TextPart("Hi"),)),), base_url=url
        )
        builder, count = MessageBuilder(), 0
        async for delta in provider.stream(request):
            builder.feed(delta)
            # words that one read brought are one delta
            count += len(delta.text) // 20 if type(delta) is TextDelta else 0
        return count

    try:
        yield once
    finally:
        if provider is not None:
            await provider.close()


@asynccontextmanager
async def openai_sdk(_: str) -> AsyncIterator[Once]:
    """OpenAI's own client."""
    import openai

    clients: dict[str, openai.AsyncOpenAI] = {}

    async def once(url: str) -> int:
        client = clients.setdefault(url, openai.AsyncOpenAI(base_url=url, api_key="sk-x"))
        stream: Any = await client.chat.completions.create(**BODY)  # type: ignore[call-overload]
        count = 0
        async for chunk in stream:
            count += bool(chunk.choices[0].delta.content)
        return count

    yield once
    for client in clients.values():
        await client.close()


@asynccontextmanager
async def pydantic_ai(_: str) -> AsyncIterator[Once]:
    """pydantic-ai's agent."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    agents: dict[str, Any] = {}

    async def once(url: str) -> int:
        if url not in agents:
            agents[url] = Agent(OpenAIChatModel("m", provider=OpenAIProvider(base_url=url, api_key="sk-x")))
        count = 0
        async with agents[url].run_stream("Hi") as result:
            async for _ in result.stream_text(delta=True, debounce_by=None):
                count += 1
        return count

    yield once


@asynccontextmanager
async def litellm(_: str) -> AsyncIterator[Once]:
    """litellm."""
    import litellm as library

    async def once(url: str) -> int:
        answer: Any = await library.acompletion(
            model="openai/m", api_base=url, api_key="sk-x", stream=True, messages=BODY["messages"]
        )
        count = 0
        async for chunk in answer:
            count += bool(chunk.choices[0].delta.content)
        return count

    yield once


CONTENDERS: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "httpx lines + json": (bare, "httpx", "httpx"),
    "httpx2 lines + json": (bare, "httpx2", "httpx2"),
    "httpx + httpx-sse + json": (with_httpx_sse, "httpx", "httpx-sse"),
    "kit-jupyter on httpx": (ours, "httpx", "kit-jupyter"),
    "kit-jupyter on httpx2": (ours, "httpx2", "kit-jupyter"),
    "openai SDK": (openai_sdk, "", "openai"),
    "pydantic-ai": (pydantic_ai, "", "pydantic-ai-slim"),
    "litellm": (litellm, "", "litellm"),
}


def version(package: str) -> str:
    """Installed version, or that there is none."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


async def one_run(once: Once, url: str, chunks: int) -> float:
    """CPU seconds of one answer."""
    gc.collect()
    begin = time.process_time()
    count = await once(f"{url}/n{chunks}/v1")
    spent = time.process_time() - begin
    assert count >= chunks * 0.9, f"{count} of {chunks} chunks"
    return spent


def calls_of(work: Callable[[], object]) -> int:
    """How many Python functions `work` calls."""
    count = 0

    def see(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def encode_cost(turns: int) -> tuple[float, float]:
    """Microseconds to encode the request of turn `turns`: ours, and json.dumps of the whole history."""
    codec, endpoint = OpenAIChatCodec(), Endpoint(name="demo", base_url="http://h/v1")
    when, stored = Time("2026-01-01T00:00:00.000Z"), []
    plain: list[dict[str, str]] = []
    ours_us = theirs_us = 0.0
    for turn in range(turns):
        text = f"{turn} " + "words of a message " * 16
        stored.append(User(id=f"u{turn}", time=when, parts=(TextPart(text),)))
        plain.append({"role": "user", "content": text})
        request = ModelRequest(model=ModelRef("demo", "m"), messages=from_branch(stored))
        begin = time.perf_counter()
        codec.encode(request, endpoint)
        ours_us = (time.perf_counter() - begin) * 1e6
        begin = time.perf_counter()
        json.dumps({"model": "m", "messages": plain}).encode()
        theirs_us = (time.perf_counter() - begin) * 1e6
        stored.append(Assistant(id=f"a{turn}", time=when, parts=(TextPart(text),)))
        plain.append({"role": "assistant", "content": text})
    return ours_us, theirs_us


async def run(url: str, chunks: int, rounds: int, only: list[str]) -> dict[str, Any]:
    """All figures; contenders take turns, so that a busy moment of the machine meets all of them."""
    best: dict[tuple[str, int], float] = {}
    async with AsyncExitStack() as stack:
        ready: dict[str, Once] = {}
        for name, (make, library, package) in CONTENDERS.items():
            if only and not any(word in name for word in only):
                continue
            if version(package) == "not installed" and package != "kit-jupyter":
                print(f"{name}: {package} is not installed")
                continue
            ready[name] = await stack.enter_async_context(make(library))
        for turn in range(rounds + 1):
            for name, once in ready.items():
                for size, times in ((chunks, 1), (chunks // 4, 2), (1, 10)):
                    for _ in range(times):
                        spent = await one_run(once, url, size)
                        if turn:  # the first round warms up
                            best[name, size] = min(best.get((name, size), spent), spent)
    return {
        "per_chunk_us": {name: (best[name, chunks] - best[name, 1]) / chunks * 1e6 for name in ready},
        "per_request_ms": {name: best[name, 1] * 1e3 for name in ready},
        "growth": {
            name: (best[name, chunks] - best[name, 1]) / (best[name, chunks // 4] - best[name, 1]) / 4 for name in ready
        },
    }


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[])
    options = parser.parse_args()
    print("Python", sys.version.split()[0], *(f"{p} {version(p)}" for _, _, p in CONTENDERS.values()), sep=" · ")
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        found = asyncio.run(run(url, options.chunks, options.rounds, options.only))
    finally:
        server.kill()
        server.wait()
    for title, base in (("per_chunk_us", "httpx lines + json"), ("per_request_ms", "httpx lines + json")):
        print(f"\n{title} (÷ {base}; ÷ httpx2 lines + json)")
        floor, fast = found[title].get(base), found[title].get("httpx2 lines + json")
        for name, value in found[title].items():
            ratios = " ".join(f"{value / f:6.2f}" if f else "     –" for f in (floor, fast))
            print(f"  {name:28} {value:9.2f}  {ratios}")
    print("\ngrowth of the cost per chunk, a quarter -> all chunks")
    for name, value in found["growth"].items():
        print(f"  {name:28} {value:9.2f}")
    ours_us, theirs_us = encode_cost(200)
    print(f"encode turn 200: {ours_us:.0f} µs, json.dumps of it {theirs_us:.0f} µs, ratio {ours_us / theirs_us:.2f}")


if __name__ == "__main__":
    main()
