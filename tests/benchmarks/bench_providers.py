"""Providers side by side: CPU a chunk, a request and a turn, against bare clients and the official SDKs.

    python -m tests.benchmarks.bench_providers [--chunks 8000] [--rounds 8] [--only NAME …] [--wires chat …]

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
from kit_jupyter.providers._client import Network
from kit_jupyter.providers._watch import Limits
from kit_jupyter.providers._wire import WireProvider
from kit_jupyter.providers.anthropic import AnthropicCodec
from kit_jupyter.providers.codec import Endpoint
from kit_jupyter.providers.openai_chat import OpenAIChatCodec
from kit_jupyter.providers.openai_responses import OpenAIResponsesCodec

SERVER = r"""
import asyncio, json, sys

def data(name, **fields):
    head = b"event: " + name.encode() + b"\n" if name else b""
    return head + b"data: " + json.dumps(fields, separators=(",", ":")).encode() + b"\n\n"

def word(number):  # twenty bytes, each time others: litellm takes repetition for a broken model
    return f"twenty bytes {number:7d}"

def chat(count):
    def chunk(delta, reason=None):
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
        return data("", **head, choices=[choice], usage=None)
    return [chunk({"content": word(n)}) for n in range(count)] + [chunk({}, "stop"), b"data: [DONE]\n\n"]

def messages(count):
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [],
               "stop_reason": None, "stop_sequence": None, "usage": usage}
    block, end = {"type": "text", "text": ""}, {"stop_reason": "end_turn", "stop_sequence": None}
    def delta(text):
        said = {"type": "text_delta", "text": text}
        return data("content_block_delta", type="content_block_delta", index=0, delta=said)
    return [data("message_start", type="message_start", message=message),
            data("content_block_start", type="content_block_start", index=0, content_block=block),
            *[delta(word(n)) for n in range(count)],
            data("content_block_stop", type="content_block_stop", index=0),
            data("message_delta", type="message_delta", delta=end, usage=usage),
            data("message_stop", type="message_stop")]

def responses(count):
    base = {"item_id": "msg_1", "output_index": 0, "content_index": 0, "sequence_number": 5}
    item = {"id": "msg_1", "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    whole = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "status": "completed", "output": [],
             "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    part = {"type": "output_text", "text": "", "annotations": []}
    say = lambda kind, **f: data(kind, type=kind, **f)
    return [say("response.created", sequence_number=0, response={**whole, "status": "in_progress"}),
            say("response.output_item.added", output_index=0, item=item, sequence_number=1),
            say("response.content_part.added", part=part, **base),
            *[say("response.output_text.delta", delta=word(n), logprobs=[], **base) for n in range(count)],
            say("response.completed", sequence_number=9, response=whole)]

BODIES = {}

def body(kind, count):
    if (kind, count) not in BODIES:
        # One event an HTTP chunk, as services send them; the socket outruns every reader.
        parts = {"chat": chat, "messages": messages, "responses": responses}[kind](count)
        BODIES[kind, count] = [b"%x\r\n" % len(piece) + piece + b"\r\n" for piece in parts]
    return BODIES[kind, count]

async def serve(reader, writer):
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            sizes = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
            await reader.readexactly(int(sizes[0].split(b":")[1]) if sizes else 0)
            _, kind, count, wait = head.split(b" ")[1].decode().split("/")[:4]
            if wait != "0":
                await asyncio.sleep(float(wait))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            pieces = body(kind, int(count))
            for at in range(0, len(pieces), 64):
                writer.write(b"".join(pieces[at:at + 64]))
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()

async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

asyncio.run(main())
"""

BODY = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
KINDS = ("chat", "messages", "responses")
Once = Callable[[str], Awaitable[int]]


# ---------------------------------------------------------------- contenders: each reads one answer


@asynccontextmanager
async def bare(library: str) -> AsyncIterator[Once]:
    """The bare client: lines and json."""
    httpx = __import__(library)
    async with httpx.AsyncClient(timeout=None) as client:

        async def once(url: str) -> int:
            count = 0
            async with client.stream("POST", f"{url}/x", json=BODY) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: ") and line != "data: [DONE]":
                        count += "model" in json.loads(line[6:]) or True
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
            async with aconnect_sse(client, "POST", f"{url}/x", json=BODY) as source:
                async for event in source.aiter_sse():
                    if event.data != "[DONE]":
                        count += "model" in json.loads(event.data) or True
            return count

        yield once


CODECS: dict[str, Callable[[], Any]] = {
    "chat": OpenAIChatCodec,
    "messages": AnthropicCodec,
    "responses": OpenAIResponsesCodec,
}


@asynccontextmanager
async def ours(library: str) -> AsyncIterator[Once]:
    """Our provider with a builder, as a turn reads it."""
    providers: dict[str, WireProvider] = {}

    async def once(url: str) -> int:
        if url not in providers:
            codec, endpoint = CODECS[url.split("/")[3]](), Endpoint(name="demo", base_url=url, api_key="sk-x")
            providers[url] = WireProvider(codec, endpoint, network=Network(library=library), limits=Limits())
        request = ModelRequest(
            model=ModelRef("demo", "m"),
            messages=(PromptMessage("user", (TextPart("Hi"),)),),
            base_url=url,
            max_tokens=99,
        )
        builder, count = MessageBuilder(), 0
        async for delta in providers[url].stream(request):
            builder.feed(delta)
            # words that one read brought are one delta
            count += len(delta.text) // 20 if type(delta) is TextDelta else 0
        return count

    try:
        yield once
    finally:
        for provider in providers.values():
            await provider.close()


@asynccontextmanager
async def sdk(_: str) -> AsyncIterator[Once]:
    """The vendor's own client."""
    import anthropic
    import openai

    clients: dict[str, Any] = {}

    async def once(url: str) -> int:
        kind, count = url.split("/")[3], 0
        asked: Any = {"model": "m", "stream": True}
        if kind == "messages":
            if url not in clients:
                clients[url] = anthropic.AsyncAnthropic(base_url=url, api_key="sk-x")
            stream = await clients[url].messages.create(max_tokens=99, messages=BODY["messages"], **asked)
        else:
            if url not in clients:
                clients[url] = openai.AsyncOpenAI(base_url=url, api_key="sk-x")
            if kind == "chat":
                stream = await clients[url].chat.completions.create(messages=BODY["messages"], **asked)
            else:
                stream = await clients[url].responses.create(input="Hi", **asked)
        async for _ in stream:
            count += 1
        return count

    yield once
    for client in clients.values():
        await client.close()


@asynccontextmanager
async def pydantic_ai(_: str) -> AsyncIterator[Once]:
    """pydantic-ai's agent (chat only)."""
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
    """litellm (chat only)."""
    import os

    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else its import asks the network for prices
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


# Name -> how it is made, library, package whose version is told, wires it speaks, whether it takes its time.
CONTENDERS: dict[str, tuple[Callable[[str], Any], str, str, tuple[str, ...], bool]] = {
    "httpx lines + json": (bare, "httpx", "httpx", KINDS, False),
    "httpx2 lines + json": (bare, "httpx2", "httpx2", KINDS, False),
    "httpx + httpx-sse + json": (with_httpx_sse, "httpx", "httpx-sse", ("chat",), False),
    "kit-jupyter on httpx": (ours, "httpx", "kit-jupyter", KINDS, False),
    "kit-jupyter on httpx2": (ours, "httpx2", "kit-jupyter", KINDS, False),
    "openai, anthropic SDK": (sdk, "", "openai", KINDS, True),
    "pydantic-ai": (pydantic_ai, "", "pydantic-ai-slim", ("chat",), True),
    "litellm": (litellm, "", "litellm", ("chat",), True),
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
    count = await once(f"{url}/{chunks}/0")
    spent = time.process_time() - begin
    assert count >= chunks * 0.9, f"{count} of {chunks} chunks"
    return spent


def encode_cost(turns: int) -> tuple[float, float]:
    """Microseconds to encode a request of the last 20 turns: ours, and json.dumps of the whole history."""
    codec, endpoint = OpenAIChatCodec(), Endpoint(name="demo", base_url="http://h/v1")
    when, stored = Time("2026-01-01T00:00:00.000Z"), []
    plain: list[dict[str, str]] = []
    ours_us: list[float] = []
    theirs_us: list[float] = []
    for turn in range(turns):
        text = f"{turn} " + "words of a message " * 16
        stored.append(User(id=f"u{turn}", time=when, parts=(TextPart(text),)))
        plain.append({"role": "user", "content": text})
        request = ModelRequest(model=ModelRef("demo", "m"), messages=from_branch(stored))
        begin = time.perf_counter()
        codec.encode(request, endpoint)
        ours_us.append((time.perf_counter() - begin) * 1e6)
        begin = time.perf_counter()
        json.dumps({"model": "m", "messages": plain}).encode()
        theirs_us.append((time.perf_counter() - begin) * 1e6)
        stored.append(Assistant(id=f"a{turn}", time=when, parts=(TextPart(text),)))
        plain.append({"role": "assistant", "content": text})
    return min(ours_us[-20:]), min(theirs_us[-20:])


async def streams(url: str, kind: str, chunks: int, rounds: int, only: list[str]) -> dict[str, dict[str, float]]:
    """CPU by chunk and request; contenders take turns, so that a busy moment of the machine meets all of them."""
    best: dict[tuple[str, int], float] = {}
    sizes: dict[str, int] = {}
    async with AsyncExitStack() as stack:
        ready: dict[str, Once] = {}
        for name, (make, library, package, kinds, slow) in CONTENDERS.items():
            if kind not in kinds or (only and not any(word in name for word in only)):
                continue
            if version(package) == "not installed" and package != "kit-jupyter":
                continue
            ready[name] = await stack.enter_async_context(make(library))
            sizes[name] = chunks // 5 if slow else chunks
        gc.collect()
        gc.freeze()  # what the peers have loaded is not looked at again before every run
        for turn in range(rounds + 1):
            for name, once in ready.items():
                if sizes[name] < chunks and turn > max(2, rounds // 4):
                    continue
                for size, times in ((sizes[name], 1), (sizes[name] // 4, 2), (1, 10)):
                    for _ in range(times):
                        spent = await one_run(once, f"{url}/{kind}", size)
                        if turn:  # the first round warms up
                            best[name, size] = min(best.get((name, size), spent), spent)
    out: dict[str, dict[str, float]] = {"µs a chunk": {}, "ms a request": {}, "growth of a chunk's cost": {}}
    for name in ready:
        many, few, one = (best[name, size] for size in (sizes[name], sizes[name] // 4, 1))
        out["µs a chunk"][name] = (many - one) / sizes[name] * 1e6
        out["ms a request"][name] = one * 1e3
        out["growth of a chunk's cost"][name] = (many - one) / (few - one) / 4
    return out


async def fan_out(url: str, only: list[str], prompts: int = 500, together: int = 50) -> dict[str, tuple[float, float]]:
    """Wall time over the ideal, and CPU ms a prompt, with a server that takes 50 ms."""
    found: dict[str, tuple[float, float]] = {}
    ideal = prompts / together * 0.05
    for name, (make, library, package, _, slow) in CONTENDERS.items():
        if slow or "sse" in name or (only and not any(word in name for word in only)):
            continue
        if version(package) == "not installed" and package != "kit-jupyter":
            continue
        async with make(library) as once:
            gate = asyncio.Semaphore(together)

            async def one(once: Once = once, gate: asyncio.Semaphore = gate) -> None:
                async with gate:
                    await once(f"{url}/chat/1/0.05")

            await asyncio.gather(*(one() for _ in range(together)))
            results = []
            for _ in range(3):
                begin, cpu = time.perf_counter(), time.process_time()
                await asyncio.gather(*(one() for _ in range(prompts)))
                results.append(((time.perf_counter() - begin) / ideal, (time.process_time() - cpu) * 1e3 / prompts))
            found[name] = min(results)
    return found


def table(title: str, figures: dict[str, float], *, ratios: bool = True) -> None:
    """Print figures with their ratio to both floors."""
    print(f"\n{title}")
    floors = [figures.get(name) for name in ("httpx lines + json", "httpx2 lines + json")]
    for name, value in figures.items():
        shown = " ".join(f"{value / floor:6.2f}" if floor else "     –" for floor in floors) if ratios else ""
        print(f"  {name:28} {value:9.2f}  {shown}")


def main(arguments: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chunks", type=int, default=8_000)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--wires", nargs="*", default=list(KINDS))
    options = parser.parse_args(arguments)
    packages = dict.fromkeys([*(package for _, _, package, _, _ in CONTENDERS.values()), "anthropic"])
    print("Python", sys.version.split()[0], *(f"{p} {version(p)}" for p in packages), sep=" · ")
    print("(÷ httpx lines + json; ÷ httpx2 lines + json)")
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        url = f"http://127.0.0.1:{int(server.stdout.readline())}"
        for kind in options.wires:
            found = asyncio.run(streams(url, kind, options.chunks, options.rounds, options.only))
            for title, figures in found.items():
                table(f"{kind}: {title}", figures, ratios="growth" not in title)
        wide = asyncio.run(fan_out(url, options.only))
        table("500 prompts, 50 at a time: wall ÷ ideal", {name: wall for name, (wall, _) in wide.items()}, ratios=False)
        table("500 prompts, 50 at a time: CPU ms a prompt", {name: cpu for name, (_, cpu) in wide.items()})
    finally:
        server.kill()
        server.wait()
    ours_us, theirs_us = encode_cost(200)
    print(f"\nencode turn 200: {ours_us:.0f} µs, json.dumps of it {theirs_us:.0f} µs, ratio {ours_us / theirs_us:.2f}")


if __name__ == "__main__":
    main()
