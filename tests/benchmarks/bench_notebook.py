"""The notebook's side: loading, first use, memory, bytes and frames to the browser, time to paint.

Run: ``python -m tests.benchmarks.bench_notebook [--browser]``. Each row names its budget; ratios are taken in
one run. Peers here are the floors: an import, a process with bare httpx. Real kernels; with ``--browser``
Debian's Chromium, too.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "jupyter"))

from kernels import Kernel, Said, kernel

CHUNKS = 20
OFFSETS = 56  # bytes that say where the parts of a message begin, in the binary form of the protocol
CPU = "__import__('time').process_time()"
RSS = "int(open('/proc/self/statm').read().split()[1]) * 4096 / 1e6"


def row(name: str, value: str, budget: str) -> None:
    """One line of the table."""
    print(f"{name:<58} {value:>26}   budget {budget}", flush=True)


class Sse(BaseHTTPRequestHandler):
    """Answers any request with a short stream."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        for at in range(CHUNKS):
            choice = {
                "index": 0,
                "delta": {"content": f"word{at} "},
                "finish_reason": "stop" if at == CHUNKS - 1 else None,
            }
            self.wfile.write(b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n")
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *_: object) -> None:
        pass


def first_use() -> None:
    """Rows 10 and 11: a process from its start to the end of its first answer."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Sse)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    told = "import resource; u = resource.getrusage(resource.RUSAGE_SELF)\n"
    # Not ru_maxrss: it begins with what the parent had.
    told += "peak = next(x for x in open('/proc/self/status') if x.startswith('VmHWM')).split()[1]\n"
    told += "print(u.ru_utime + u.ru_stime, int(peak) / 1e3)"
    ours = f"from kit_jupyter import Kit\nKit('openai-compatible/m', session='memory').prompt_sync('hi')\n{told}"
    bare = (
        "import json\ntry:\n    import httpx2 as httpx\nexcept ImportError:\n    import httpx\n"
        f"with httpx.Client() as c, c.stream('POST', {url!r} + '/chat/completions', json={{}}) as r:\n"
        "    [json.loads(line[6:]) for line in r.iter_lines() if line.startswith('data: {')]\n" + told
    )
    bare_async = (
        "import asyncio, json\ntry:\n    import httpx2 as httpx\nexcept ImportError:\n    import httpx\n"
        "async def ask():\n    async with httpx.AsyncClient() as c:\n"
        f"        async with c.stream('POST', {url!r} + '/chat/completions', json={{}}) as r:\n"
        "            return [json.loads(line[6:]) async for line in r.aiter_lines() if line.startswith('data: {')]\n"
        "asyncio.run(ask())\n" + told
    )
    found: dict[str, list[tuple[float, ...]]] = {"ours": [], "bare": [], "bare async": [], "keyless": []}
    with tempfile.TemporaryDirectory() as compiled:
        # As installed: both sides' modules are compiled, and the key stands in the environment.
        env = {**os.environ, "KIT_OPENAI_COMPATIBLE_BASE_URL": url, "PYTHONPYCACHEPREFIX": compiled}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        keyed = {**env, "KIT_OPENAI_COMPATIBLE_API_KEY": "key-of-the-benchmark"}
        for at in range(16):
            for name, code in (("ours", ours), ("bare", bare), ("bare async", bare_async), ("keyless", ours)):
                begin = time.perf_counter()
                with_env = env if name == "keyless" else keyed
                out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=with_env)
                if at:  # the first compiles
                    found[name].append((time.perf_counter() - begin, *map(float, out.stdout.split()[-2:])))
    server.shutdown()
    middle = {name: [statistics.median(values) for values in zip(*runs, strict=True)] for name, runs in found.items()}
    mine, keyless = middle["ours"], middle["keyless"]
    for name, client in (("bare", "blocking"), ("bare async", "async")):  # a kernel has asyncio in any case
        floor = middle[name]
        ratio = f"{mine[1]:.3f} s / {floor[1]:.3f} = {mine[1] / floor[1]:.2f}"
        row(f"10 first use, CPU ÷ httpx, {client}", ratio, "≤ 1.4")
        row(f"10 first use, wall ÷ httpx, {client}", f"{mine[0]:.3f} s / {floor[0]:.3f} = {mine[0] / floor[0]:.2f}", "")
        ratio = f"{mine[2]:.0f} / {floor[2]:.0f} MB = {mine[2] / floor[2]:.2f}"
        row(f"11 first use, peak RSS ÷ httpx, {client}", ratio, "≤ 1.35")
    ratio = f"{keyless[1] / mine[1]:.2f}, RSS {keyless[2] / mine[2]:.2f}"
    row("10 without a key, so the keyring is asked, ÷ with one", ratio, "")


def loading(env: dict[str, str]) -> None:
    """Rows 9 and 11: what `%load_ext` costs a kernel, and a first cell adds to it."""
    cost, floor, added = [], [], []
    for _ in range(3):
        with kernel(env, setup="") as it:
            it.ok("pass")
            cost.append(float(it.ok(f"a = {CPU}\n%load_ext kit_jupyter\nprint({CPU} - a)").stream.split()[-1]))
        with kernel(env, setup="") as it:
            it.ok("pass")
            code = f"a = {CPU}\ntry:\n    import httpx2\nexcept ImportError:\n    import httpx\n"
            code += f"import pydantic\nprint({CPU} - a)"
            floor.append(float(it.ok(code).stream.split()[-1]))
        with kernel(env, setup="import httpx, pydantic, anywidget") as it:
            before = float(it.ok(f"print({RSS})").stream)
            it.ok("%load_ext kit_jupyter\nfrom kit_jupyter import Kit\nfrom kit_jupyter.testing import *")
            it.script("[text('hi')]")
            it.ok("%%kit\nhi")
            added.append(float(it.ok(f"print({RSS})").stream) - before)
    row("9 %load_ext, CPU ÷ import httpx, pydantic", f"{min(cost):.3f} / {min(floor):.3f} s", "≤ 1.5, 70 ms")
    row("11 RSS a first cell adds to httpx, pydantic, anywidget", f"{min(added):.1f} MB", "≤ 10 MB")


def _sent(it: Kernel, begin: int) -> tuple[int, int]:
    """Bytes and number of the messages of live views since then, as they go over a page's socket."""
    frames = [
        m for m in it.log[begin:] if m["msg_type"] == "comm_msg" and "m" in m["content"]["data"].get("content", {})
    ]
    parts = ("header", "parent_header", "metadata", "content")
    sizes = [sum(len(json.dumps(m[part], default=str)) for part in parts) for m in frames]
    return sum(sizes) + OFFSETS * len(frames), len(frames)


def _in_a_page(it: Kernel) -> Said:
    """Run the cell as a page of Lab sees it: it opens the view and says what it is."""
    cell = it.send("%%kit\ngo")
    it.comm(it.view_of(cell), {"kind": "ask", "what": "sync", "n": 0, "page": True})
    return it.wait(cell, timeout=120)


def stream(it: Kernel) -> None:
    """Rows 12 to 14: bytes and frames, first text, CPU."""
    it.script("[text('warm')]")
    it.ok("%%kit\nwarm")
    for size, most in ((20_000, 1.25), (100_000, 1.08), (400_000, 1.06)):
        it.script(f"[text('words and more ' * ({size} // 15), chunks={size} // 20)]")
        cpu, begin = it.value(CPU), len(it.log)
        it.ok("%%kit\ngo", timeout=120)
        cpu = it.value(CPU) - cpu
        total, frames = _sent(it, begin)
        row(f"12 {size // 1000} kB burst: bytes ÷ text", f"{total / size:.3f} in {frames} frames", f"≤ {most}")
        row(f"12d {size // 1000} kB burst: kernel CPU a chunk", f"{cpu / (size // 20) * 1e6:.0f} µs", "flat")
    it.script("[x for i in range(5000) for x in (text('words and more, yes ', chunks=1), delay(0.001))]")
    begin = len(it.log)
    _in_a_page(it)
    total, frames = _sent(it, begin)
    row("12c 100 kB at 1 ms a chunk: bytes ÷ text", f"{total / 100_000:.2f} in {frames} frames", "≤ 1.4")
    timed = "[x for i in range(400) for x in (text('word ', chunks=1), delay(0.005))]"
    alone = (
        "from kit_jupyter.provider import ModelRequest\nfrom kit_jupyter.messages import ModelRef\n"
        "async for _ in provider.stream(ModelRequest(model=ModelRef('scripted', 'm'), messages=())): pass"
    )
    spent: dict[str, list[float]] = {"streamed": [], "one word": [], "script alone": []}
    for _ in range(3):
        for name, script, code in (
            ("streamed", timed, "%%kit\ngo"),
            ("one word", "[text('word')]", "%%kit\ngo"),
            ("script alone", timed, alone),
        ):
            it.script(script)
            before = it.value(CPU)
            if code.startswith("%%kit"):
                _in_a_page(it)
            else:
                it.ok(code)
            spent[name].append(it.value(CPU) - before)
    cpu, bare, floor = (statistics.median(values) for values in spent.values())
    row("14 kernel CPU, 2 s and 400 chunks, without cell and waits", f"{cpu - bare - floor:.3f} s", "≤ 0.05 s")
    row("14 the script's own 400 waits, nobody listening", f"{floor:.3f} s", "the floor")
    row("14 kernel CPU of a cell with a one-word answer", f"{bare:.3f} s", "")
    waits = []
    for _ in range(10):
        it.ok(
            "import time\nclass Timed(ScriptedProvider):\n    async def stream(self, request):\n"
            "        async for delta in super().stream(request):\n"
            "            if type(delta).__name__ == 'TextDelta' and not hasattr(self, 'at'):\n"
            "                self.at = time.time()\n"
            "            yield delta\n"
            "provider = Timed([delay(0.2), text('first words', chunks=1), delay(0.1)])\n"
            "kit = Kit(provider=provider, session='memory')"
        )
        said = it.ok("%%kit\ngo")
        first = next(
            m["header"]["date"].timestamp()
            for m in said.messages
            if m["msg_type"] == "comm_msg" and "first words" in str(m["content"])
        )
        waits.append(first - it.value("provider.at"))
    row("13 first text after the model's first byte, median", f"{sorted(waits)[5] * 1000:.1f} ms", "≤ 20 ms")


def cold(env: dict[str, str]) -> None:
    """The built-in model's first token, from a cell in a kernel where nothing runs yet."""
    from kit_jupyter.providers import local_models

    if local_models.find("smollm2") is None:
        row("first local token of a cold cell", "no weights here", "≤ 10 s on 2 cores")
        return
    took = []
    for _ in range(3):
        with kernel({**env, "KIT_MODEL": "local/smollm2"}, setup="%load_ext kit_jupyter") as it:
            it.ok(
                "import time\nfrom kit_jupyter.events import MessageUpdate\nseen, began = [], time.monotonic()\n"
                "stop = kit.subscribe(lambda event: seen.append(time.monotonic()), MessageUpdate, inline=True)\n"
                "await kit.prompt('Say hello in one short sentence.')",
                timeout=120,
            )
            took.append(it.value("seen[0] - began"))
    row("first local token of a cold cell, median of 3", f"{statistics.median(took):.1f} s", "≤ 10 s on 2 cores")


def memory(it: Kernel) -> None:
    """Memory of 1,000 turns with a panel open."""
    it.ok("nbk = notebook_of(get_ipython()); nbk.panel = None")
    it.script("*[[text('an answer of some words, ' * 40)] for _ in range(1100)]")
    it.ok("p = kit.panel()")
    grow = "for n in range(%d):\n    kit.prompt_sync(f'question {n}'); provider.requests.clear()"
    it.ok(grow % 100, timeout=120)
    first = it.value(RSS)
    begin = time.perf_counter()
    it.ok(grow % 900, timeout=300)
    seconds = time.perf_counter() - begin
    last = it.value(RSS)
    row(
        "memory: kB a turn (answers of 1 kB), turns 100 to 1,000",
        f"{(last - first) / 900 * 1000:.1f}",
        "flat, a few kB",
    )
    row("memory: RSS of the kernel after 1,000 turns", f"{last:.0f} MB", "")
    row("time of a turn with a panel open, mean of 900", f"{seconds / 900 * 1000:.1f} ms", "")


def browser_rows() -> None:
    """Painting: p95 from delta to painted, frames a second with 200 kB in view, typing in a panel of 300 turns."""
    from labs import browser
    from test_view import View, grown, item, turn

    para = "Some **bold** words and `code` in a paragraph that is about a hundred characters long, really so.\n\n"
    with browser() as chromium:
        view = View(chromium, view={"n": 0, "turns": [], "bar": {}})
        idle = view.page.evaluate(
            "() => new Promise(ok => { let n = 0; const t = performance.now(); const f = () => { n++;"
            " const d = performance.now() - t; d > 2000 ? ok(n / d * 1000) : requestAnimationFrame(f); }; f(); })"
        )
        row("an idle page on this machine: frames a second", f"{idle:.0f}", "the floor")
        view.say({"kind": "start", "turn": turn()}, item("a"))
        view.say(grown("a", 0, para * 2000))
        got: dict[str, Any] = view.page.evaluate(
            """async ([at, para, n]) => {
              let frames = 0, stop = false; const took = [];
              const tick = () => { frames++; if (!stop) requestAnimationFrame(tick); };
              requestAnimationFrame(tick);
              const begin = performance.now();
              for (let i = 0; i < 600; i++) {
                const piece = para.slice((i * 20) % para.length, (i * 20) % para.length + 20);
                const t = performance.now();
                say({n: ++n, m: [{kind: 'delta', d: [['a', 'text', at, piece]]}]}); at += piece.length;
                requestAnimationFrame(() => { const c = new MessageChannel();
                  c.port1.onmessage = () => took.push(performance.now() - t); c.port2.postMessage(0); });
                await new Promise(ok => setTimeout(ok, 5));
              }
              stop = true; took.sort((a, b) => a - b);
              return {fps: frames / (performance.now() - begin) * 1000, p95: took[Math.floor(took.length * 0.95)],
                      rate: 600 / (performance.now() - begin) * 1000};
            }""",
            [len(para) * 2000, para, view.n],
        )
        row(f"200 kB in view, {got['rate']:.0f} deltas/s: frames a second", f"{got['fps']:.0f}", "≥ 45")
        row("delta in the page to painted, p95", f"{got['p95']:.0f} ms", "≤ 80 ms with the way there")
        view.close()
        answer = {"kind": "text", "text": para * 3, "done": True}
        turns = [turn(f"k{n}", status="done", items=[{"id": f"k{n}.0", **answer}]) for n in range(300)]
        view = View(chromium, view={"n": 0, "turns": turns, "bar": {}, "panel": True})
        view.page.get_by_label("Prompt").focus()
        view.page.evaluate(
            "() => { window.took = []; document.querySelector('textarea').addEventListener('keydown', () => {"
            " const t = performance.now(); requestAnimationFrame(() => { const c = new MessageChannel();"
            " c.port1.onmessage = () => took.push(performance.now() - t); c.port2.postMessage(0); }); }); }"
        )
        view.page.keyboard.type("a hundred letters typed into a long panel " * 3, delay=20)
        took = sorted(view.page.evaluate("() => took"))
        row("typing in a panel of 300 turns: key to painted, p95", f"{took[int(len(took) * 0.95)]:.0f} ms", "< 50 ms")
        view.close()


def main() -> None:
    """All rows."""
    with tempfile.TemporaryDirectory() as home:
        env = {"XDG_DATA_HOME": home, "IPYTHONDIR": f"{home}/ipython", "KIT_UI": ""}
        first_use()
        loading(env)
        cold(env)
        with kernel(env) as it:
            stream(it)
            memory(it)
    if "--browser" in sys.argv:
        browser_rows()


if __name__ == "__main__":
    main()
