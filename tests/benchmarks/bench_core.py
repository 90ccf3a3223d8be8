"""The SDK's own cost beside the bare floor, in one run: tool steps, long conversations, import, session files.

Run: ``python -m tests.benchmarks.bench_core [5 6 8 17 18]`` (rows of the speed table; all by default). Contenders are
interleaved against one server on this machine; only ratios within one run mean anything. Nothing here is a test.

* 5: CPU of a tool step ÷ bare client loop over 50 steps, with events, store and policy on (budget ≤ 1.5); growth.
* 6: slope of a turn's CPU over 200 turns ÷ bare client + json.dumps (≤ 1.0); growth law for 10, 100, 1,000 turns.
* 8: CPU of `import kit_jupyter` above Python (≤ 0.12 s), and modules loaded (≤ 220).
* 17: append one message ÷ the same line by orjson + flush (≤ 2.0), and its independence of the length.
* 18: ready for the next prompt with 10,000 and 100,000 entries (≤ 1 ms, ≤ 1.1); full typed load ÷ orjson lines (≤ 2.3).
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
STEPS = 50
TURNS = 200

# ---------------------------------------------------------------- the server


def _event(choices: list[dict[str, Any]], usage: Any = None) -> bytes:
    body = {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": choices,
        "usage": usage,
    }
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _delta(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return _event([{"index": 0, "delta": delta, "finish_reason": finish}])


USAGE = _event([], {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10})
DONE = b"data: [DONE]\n\n"
TEXT = _delta({"role": "assistant", "content": "fine"}) + _delta({}, "stop") + USAGE + DONE


def _call(number: int) -> bytes:
    # Other numbers each time: the policy asks a person about the same call said three times in a row.
    function = {"name": "area", "arguments": f'{{"width": {number + 2}, "height": 3}}'}
    call = {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
    return _delta({"role": "assistant", "tool_calls": [call]}) + _delta({}, "tool_calls") + USAGE + DONE


async def _serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            body = (await reader.readexactly(length)).replace(b" ", b"")
            done = body.count(b'"role":"tool"')
            data = _call(done) if b"/steps/" in head.split(b"\r\n")[0] and done < STEPS else TEXT
            size = str(len(data)).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: " + size + b"\r\n\r\n" + data
            )
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def serve() -> None:
    """In a process of its own: prints its port, ends with its standard input."""

    async def go() -> None:
        server = await asyncio.start_server(_serve_one, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)
        server.close()

    asyncio.run(go())


# ---------------------------------------------------------------- contenders


def area(width: int, height: int) -> int:
    """Area of a rectangle."""
    return width * height


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "area",
            "description": "Area of a rectangle.",
            "parameters": {
                "type": "object",
                "properties": {"width": {"type": "integer"}, "height": {"type": "integer"}},
                "required": ["width", "height"],
            },
        },
    }
]


class Bare:
    """The floor: a bare client, lines, json, a list of dicts."""

    def __init__(self, client: Any, url: str) -> None:
        self.client, self.url = client, url
        self.messages: list[dict[str, Any]] = [{"role": "system", "content": "x" * 400}]

    async def ask(self, text: str, each_step: Callable[[], None] = lambda: None) -> None:
        self.messages.append({"role": "user", "content": text})
        while True:
            body = {"model": "m", "messages": self.messages, "tools": TOOLS, "stream": True}
            said, call = "", None
            content = json.dumps(body)
            headers = {"content-type": "application/json"}
            async with self.client.stream("POST", self.url, content=content, headers=headers) as response:
                async for line in response.aiter_lines():
                    if not line.startswith("data: ") or line == "data: [DONE]":
                        continue
                    for choice in json.loads(line[6:])["choices"]:
                        delta = choice["delta"]
                        said += delta.get("content") or ""
                        call = (delta.get("tool_calls") or [call])[0]
            each_step()
            if call is None:
                self.messages.append({"role": "assistant", "content": said})
                return
            arguments = json.loads(call["function"]["arguments"])
            self.messages.append({"role": "assistant", "content": said, "tool_calls": [call]})
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": str(area(**arguments))})


def _client_class() -> Any:
    try:
        import httpx2 as httpx
    except ImportError:
        import httpx
    return httpx.AsyncClient


def _kit(url: str, folder: Path) -> Any:
    from kit_jupyter import Kit, Session, tool
    from kit_jupyter import events as ev

    os.environ["OPENAI_API_KEY"] = "none"
    os.environ["OPENAI_BASE_URL"] = url
    kit = Kit(
        "openai-chat/m",
        tools=[tool(area)],
        session=Session.create(folder),
        permissions="ask",
        max_steps=STEPS + 2,
        system="x" * 400,
    )
    kit.subscribe(lambda event: None, inline=True)
    return kit, ev


def _ms(seconds: float) -> float:
    return seconds * 1000


def _growth(marks: list[float]) -> float:
    gaps = [b - a for a, b in itertools.pairwise(marks)]
    return statistics.median(gaps[-10:]) / statistics.median(gaps[:10])


async def _row_5(port: int, folder: Path) -> None:
    url = f"http://127.0.0.1:{port}/steps/v1"
    bare_ms, kit_ms, bare_growth, kit_growth = [], [], [], []
    async with _client_class()() as client:
        for round_ in range(22):
            marks: list[float] = [time.process_time()]
            await Bare(client, f"{url}/chat/completions").ask("go", lambda m=marks: m.append(time.process_time()))
            if round_:
                bare_ms.append(_ms(marks[-1] - marks[0]) / STEPS)
                bare_growth.append(_growth(marks))
            kit, ev = _kit(url, folder)
            stamps: list[float] = [time.process_time()]
            kit.subscribe(lambda event, s=stamps: s.append(time.process_time()), ev.StepEnd, inline=True)
            await kit.prompt("go")
            if round_:
                kit_ms.append(_ms(stamps[-1] - stamps[0]) / STEPS)
                kit_growth.append(_growth(stamps))
            await kit.aclose()
    a, b = statistics.median(bare_ms), statistics.median(kit_ms)
    # Each round's own ratio: other work on the machine changes the time of both from one round to the next.
    low, ratio, high = statistics.quantiles([mine / floor for mine, floor in zip(kit_ms, bare_ms, strict=True)])
    print(
        f"row 5   a tool step: bare {a:.2f} ms, kit {b:.2f} ms CPU   ratio {ratio:.2f}, quartiles {low:.2f}, {high:.2f}"
        "   (budget 1.5)"
    )
    print(
        f"row 5c  growth last ten ÷ first ten: bare {statistics.median(bare_growth):.2f}, "
        f"kit {statistics.median(kit_growth):.2f}   (budget 1.15)"
    )


def _slope(costs: list[float]) -> float:
    """Milliseconds that a turn gains a turn, by least squares over medians of ten."""
    ys = [statistics.median(costs[i : i + 10]) for i in range(0, len(costs), 10)]
    xs = [i * 10 + 5 for i in range(len(ys))]
    mx, my = statistics.fmean(xs), statistics.fmean(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)) / sum((x - mx) ** 2 for x in xs)


async def _row_6(port: int, folder: Path) -> None:
    url = f"http://127.0.0.1:{port}/turns/v1"
    slopes_bare, slopes_kit, means_bare, means_kit = [], [], [], []
    async with _client_class()() as client:
        for _ in range(3):
            bare = Bare(client, f"{url}/chat/completions")
            kit, _ev = _kit(url, folder)
            await kit.prompt("warm up")
            costs_bare, costs_kit = [], []
            for i in range(TURNS):
                begun = time.process_time()
                await bare.ask(f"question {i} " + "w " * 150)
                middle = time.process_time()
                await kit.prompt(f"question {i} " + "w " * 150)
                costs_kit.append(_ms(time.process_time() - middle))
                costs_bare.append(_ms(middle - begun))
            slopes_bare.append(_slope(costs_bare))
            slopes_kit.append(_slope(costs_kit))
            means_bare.append(statistics.median(costs_bare))
            means_kit.append(statistics.median(costs_kit))
            await kit.aclose()
    a, b = statistics.median(slopes_bare) * 1000, statistics.median(slopes_kit) * 1000
    print(
        f"row 6   {TURNS} turns: bare {statistics.median(means_bare):.2f}, kit {statistics.median(means_kit):.2f} ms "
        f"a turn; each turn adds: bare {a:.2f} µs, kit {b:.2f} µs   ratio {b / a:.2f}   (budget 1.0)"
    )


async def _row_6_law(folder: Path) -> None:
    from kit_jupyter import Kit, Session
    from kit_jupyter.testing import ScriptedProvider

    costs: dict[int, float] = {}
    provider = ScriptedProvider("fine", repeat_last=True)
    kit = Kit(provider=provider, session=Session.create(folder))
    kit.subscribe(lambda event: None, inline=True)
    last = []
    for turn in range(1, 1_016):
        begun = time.process_time()
        await kit.prompt("word " * 60)
        last.append(_ms(time.process_time() - begun))
        provider.requests.clear()  # kept for tests; a thousand histories beside each other are no real provider's
        if turn in (25, 115, 1_015):  # the lower quartile of turns around: other work on the machine only adds
            costs[{25: 10, 115: 100, 1_015: 1_000}[turn]] = statistics.quantiles(last[-30 if turn > 30 else -20 :])[0]
    said = ", ".join(f"turn {turn}: {cost:.2f} ms" for turn, cost in costs.items())
    print(
        f"row 6   growth law, scripted model, events and file on: {said}   1,000 ÷ 10: {costs[1_000] / costs[10]:.2f}"
    )
    await kit.aclose()


def _cpu_of(code: str) -> float:
    child = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    _, _, used = os.wait4(child.pid, 0)
    child.returncode = 0
    return used.ru_utime + used.ru_stime


def _row_8() -> None:
    codes = {"python": "pass", "kit": "import kit_jupyter", "Kit": "from kit_jupyter import Kit"}
    times: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(9):
        for name, code in codes.items():
            times[name].append(_cpu_of(code))
    base = statistics.median(times["python"])
    count = subprocess.run(
        [sys.executable, "-c", "import kit_jupyter, sys; print(len(sys.modules))"],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    used = {name: _ms(statistics.median(values) - base) for name, values in times.items()}
    print(
        f"row 8   import kit_jupyter: {used['kit']:.0f} ms CPU above python (budget 120), "
        f"{count.stdout.strip()} modules (budget 220); with the class Kit: {used['Kit']:.0f} ms"
    )


def _row_17(folder: Path) -> None:
    from kit_jupyter.messages import TextPart, User, new_id, now
    from kit_jupyter.session import Entry, Session

    dumps = _orjson()
    n = 5_000
    rounds_floor, rounds_ours, first, last = [], [], [], []
    for round_ in range(7):
        messages = [User(id=new_id("msg"), time=now(), parts=(TextPart("x" * 200),), turn_id="t") for _ in range(n)]
        plain = [json.loads(Entry("message", m.id, m.id, m.time.created, {}, m).to_line()) for m in messages]
        with (folder / f"floor{round_}.jsonl").open("wb") as file:
            begun = time.process_time()
            for value in plain:
                file.write(dumps(value) + b"\n")
                file.flush()
            rounds_floor.append((time.process_time() - begun) / n * 1e6)
        session = Session.create(folder)
        session.append(messages[0])
        marks = [time.process_time()]
        for i, message in enumerate(messages[1:], 1):
            session.append(message)
            if i % 1_000 == 0:
                marks.append(time.process_time())
        marks.append(time.process_time())
        rounds_ours.append((marks[-1] - marks[0]) / (n - 1) * 1e6)
        first.append(marks[1] - marks[0])
        last.append(marks[4] - marks[3])
        session.close()
    a, b = statistics.median(rounds_floor), statistics.median(rounds_ours)
    growth = statistics.median(last) / statistics.median(first)
    floor = "json" if dumps is json_dumps else "orjson"
    print(
        f"row 17  append: {floor} + flush {a:.1f} µs, session {b:.1f} µs   ratio {b / a:.2f} (budget 2.0); "
        f"fourth thousand ÷ first: {growth:.2f}"
    )


def json_dumps(value: Any) -> bytes:
    """The standard library, where orjson is not installed."""
    return json.dumps(value).encode()


def _orjson() -> Callable[[Any], bytes]:
    try:
        import orjson

        return orjson.dumps
    except ImportError:
        print("orjson is not installed, so rows 17 and 18b are measured against a slower floor: pip install orjson")
        return json_dumps


def _written(folder: Path, count: int) -> Path:
    from kit_jupyter.messages import Assistant, ResultFacts, TextPart, User, new_id, now
    from kit_jupyter.session import Session

    session = Session.create(folder)
    kept = ""
    for i in range(count):
        kind = User if i % 2 == 0 else Assistant
        entry = session.append(kind(id=new_id("msg"), time=now(), parts=(TextPart("x" * 150),), turn_id=f"t{i // 2}"))
        if i == count - 100:
            kept = entry.id
        if i == count - 50:
            summary = Assistant(
                id=new_id("msg"), time=now(), parts=(TextPart("summary"),), result=ResultFacts(kind="summary")
            )
            session.append_compaction(summary, first_kept=kept)
    session.close()
    assert session.path is not None
    return session.path


def _row_18(folder: Path) -> None:
    import gc

    from kit_jupyter.session import Session

    try:
        from orjson import loads
    except ImportError:
        from json import loads

    counts = (10_000, 100_000)
    paths = {count: _written(folder, count) for count in counts}
    ready = {}
    full: dict[int, list[float]] = {count: [] for count in counts}
    lines: dict[int, list[float]] = {count: [] for count in counts}
    for count, path in paths.items():
        opened = []
        for _ in range(9):
            begun = time.process_time()
            session = Session.open(path)
            assert len(session.messages()) == 101
            opened.append(time.process_time() - begun)
        ready[count] = statistics.median(opened)
    for _ in range(11):  # side by side, for a machine that is not alone
        for count, path in paths.items():
            gc.collect()
            begun = time.process_time()
            gc.disable()
            with path.open("rb") as file:
                values = [loads(line) for line in file]
            gc.enable()
            lines[count].append(time.process_time() - begun)
            del values
            gc.collect()
            begun = time.process_time()
            session = Session.open(path)
            typed = session.load_typed()
            full[count].append(time.process_time() - begun)
            assert len(typed) == count + 1
            del session, typed
    print(
        f"row 18  ready, tail of 100: {_ms(ready[10_000]):.2f} ms at 10,000, {_ms(ready[100_000]):.2f} ms at 100,000"
        f"   ratio {ready[100_000] / ready[10_000]:.2f}   (budget 1 ms, 1.1)"
    )
    ratio = statistics.median(ours / floor for ours, floor in zip(full[100_000], lines[100_000], strict=True))
    print(
        f"row 18b full typed load of 100,000: {_ms(statistics.median(full[100_000])):.0f} ms, {loads.__module__} lines "
        f"{_ms(statistics.median(lines[100_000])):.0f} ms   median of ratios {ratio:.2f}   (budget 2.3)"
    )
    growth = statistics.median(large / small / 10 for large, small in zip(full[100_000], full[10_000], strict=True))
    floors = statistics.median(large / small / 10 for large, small in zip(lines[100_000], lines[10_000], strict=True))
    print(f"row 18c µs a message at 100,000 ÷ at 10,000: {growth:.2f}   (budget 1.15; of the floor: {floors:.2f})")


def _versions() -> str:
    names = ("httpx2", "httpx", "pydantic", "orjson")
    found = []
    for name in names:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    return f"python {sys.version.split()[0]}, {', '.join(found)}; client {_client_class().__module__.split('.')[0]}"


def main(rows: list[str]) -> None:
    """Measure the rows named, or all."""
    wanted = set(rows) or {"5", "6", "8", "17", "18"}
    print(_versions())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["KIT_DATA_DIR"] = name
        server = subprocess.Popen(
            [sys.executable, "-c", "from tests.benchmarks.bench_core import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        try:
            assert server.stdout is not None
            port = int(server.stdout.readline())
            if "8" in wanted:
                _row_8()
            if "17" in wanted:
                _row_17(folder)
            if "18" in wanted:
                _row_18(folder)
            if "5" in wanted:
                asyncio.run(_row_5(port, folder))
            if "6" in wanted:
                asyncio.run(_row_6(port, folder))
                asyncio.run(_row_6_law(folder))
        finally:
            server.communicate()


if __name__ == "__main__":
    main(sys.argv[1:])
