"""`@tool`: schema, arguments, running on the user's thread, results, stop."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
import linecache
import sys
import threading
import time
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from kit_jupyter import Kit
from kit_jupyter.errors import BadArguments, UsageError
from kit_jupyter.loop import Desk, engine
from kit_jupyter.messages import MediaPart, TextPart
from kit_jupyter.testing import ScriptedProvider
from kit_jupyter.tool import Tool, Toolbox, ToolContext, ToolOutcome, as_tool, halt, parse_arguments, tool
from kit_jupyter.trifecta import Legs


class Context:
    """A `ToolContext` over a `Desk`, as a turn makes one."""

    def __init__(self, desk: Desk) -> None:
        self.call_id, self.tool_name, self.turn_id, self.session_id = "c1", "t", "turn", "session"
        self.desk = desk
        self.said: list[tuple[str, str]] = []
        self.media: list[Any] = []
        self.state: dict[str, Any] = {}
        self.started = threading.Event()

    def progress(self, text: str, *, stream: str = "stdout", parts: tuple[Any, ...] = ()) -> None:
        self.said.append((stream, text))
        self.media.extend(parts)
        self.started.set()

    async def on_user_thread(self, fn: Any, *args: Any) -> Any:
        return await self.desk.run(fn, *args)

    async def ask(self, question: str, *, suggestion: str = "") -> bool:
        return False


def run(item: Any, arguments: dict[str, Any] | None = None, context: Context | None = None, **more: Any) -> ToolOutcome:
    """Validate and run on the engine, this thread being the user's."""
    item = as_tool(item)
    context = context or Context(Desk())

    async def go() -> ToolOutcome:
        return await asyncio.wait_for(item.run(context, item.validate(arguments or {})), more.get("timeout"))

    return context.desk.serve_blocking(engine.start(go(), context.desk))


# ---------------------------------------------------------------- schema


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: float
    y: float = 0.0


def test_schema_comes_from_hints_and_a_numpy_docstring():
    """Types, defaults, enums, literals, models and texts reach the model (issue 6, item 1)."""

    @tool
    def plot(at: Point, colour: Colour = Colour.RED, mode: Literal["a", "b"] = "a", n: int = 3, *, tags: list[str]):
        """Plot a point.

        It is drawn at once.

        Parameters
        ----------
        at : Point
            Where.
        n : int, optional
            How often.
        """

    spec = plot.spec
    assert spec.name == "plot"
    assert spec.description.startswith("Plot a point.")
    assert "drawn at once" in spec.description
    assert "Parameters" not in spec.description
    assert spec.schema["required"] == ["at", "tags"]
    assert spec.schema["properties"]["n"] == {"default": 3, "type": "integer", "description": "How often."}
    assert spec.schema["properties"]["mode"]["enum"] == ["a", "b"]
    assert spec.schema["$defs"]["Colour"]["enum"] == ["red", "blue"]
    assert "title" not in str(spec.schema)
    assert spec.schema["additionalProperties"] is False


def test_google_docstrings_and_annotated_descriptions_are_read():
    """Google style works, and `Annotated` wins over the docstring."""

    @tool
    def fetch(url: str, depth: Annotated[int, Field(description="how deep", ge=1)] = 1):
        """Fetch.

        Args:
            url: Where from.
            depth: not this.
        """

    assert fetch.spec.schema["properties"]["url"]["description"] == "Where from."
    assert fetch.spec.schema["properties"]["depth"]["description"] == "how deep"


def test_parameter_names_that_pydantic_reserves_are_fine():
    """`schema`, `copy`, `model_x`, `_private`, `self`-like names stay as written."""

    @tool
    def odd(schema: str, copy: int = 1, model_config: str = "", _x: int = 0, title: str = "t"):
        return [schema, copy, model_config, _x, title]

    assert set(odd.spec.schema["properties"]) == {"schema", "copy", "model_config", "_x", "title"}
    assert run(odd, {"schema": "s", "_x": 2}).text == '["s",1,"",2,"t"]'


def test_the_context_parameter_is_injected_and_hidden():
    """A parameter annotated `ToolContext` is not in the schema and receives the context."""

    @tool
    def who(ctx: ToolContext, n: int = 1) -> str:
        ctx.progress("working")
        return f"{ctx.call_id} {n}"

    context = Context(Desk())
    assert list(who.spec.schema["properties"]) == ["n"]
    assert run(who, {}, context).text == "c1 1"
    assert context.said == [("stdout", "working")]


def test_star_arguments_keyword_arguments_and_positional_only():
    """Every kind of parameter can be called."""

    def spread(a, /, b=2, *rest: int, **named: Any):
        return [a, b, list(rest), named]

    item = as_tool(spread)
    assert item.spec.schema["properties"]["rest"]["items"] == {"type": "integer"}
    assert run(item, {"a": 1, "rest": [3, 4], "z": 5}).text == '[1,2,[3,4],{"z":5}]'
    assert run(item, {"a": 1}).text == "[1,2,[],{}]"


def test_options_and_both_forms_of_the_decorator():
    """`@tool` and `@tool(...)`; options land on the tool; the function stays callable."""

    @tool(
        name="twice", description="Two.", legs=Legs(private=True), approve="ask", timeout_seconds=3, parallel_safe=True
    )
    def f(n: int) -> int:
        return 2 * n

    assert (f.spec.name, f.spec.description, f.legs, f.approve) == ("twice", "Two.", Legs(private=True), "ask")
    assert (f.timeout_seconds, f.parallel_safe, f(2)) == (3, True, 4)
    assert isinstance(f, Tool)
    assert Toolbox((f,))["twice"] is f


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: tool(lambda: 1), "name"),
        (lambda: tool(name="no spaces")(print), "no spaces"),
        (lambda: tool(approve="maybe")(print), "maybe"),
        (lambda: tool(timeout_seconds=0)(print), "timeout_seconds"),
        (lambda: as_tool(3), "int"),
    ],
)
def test_wrong_options_are_told_at_once(make, says):
    """The caller's move: a UsageError that names the value."""
    with pytest.raises(UsageError, match=says):
        make()


def test_a_type_that_json_cannot_say_is_named():
    """A DataFrame parameter is refused with its name, when the schema is first needed."""

    def f(frame: threading.Thread):
        return 1

    with pytest.raises(UsageError, match="'frame'"):
        _ = as_tool(f).spec


def test_methods_partials_and_callable_objects():
    """What people hand over is not always a plain function."""

    class Robot:
        def move(self, steps: int) -> str:
            "Move."
            return f"moved {steps}"

        @tool
        def turn(self, degrees: int) -> str:
            "Turn."
            return f"turned {degrees}"

        def __call__(self, word: str) -> str:
            return word

    robot = Robot()
    assert run(robot.move, {"steps": 2}).text == "moved 2"
    assert run(robot.turn, {"degrees": 9}).text == "turned 9"
    assert run(robot, {"word": "hi"}).text == "hi"
    assert run(functools.partial(robot.move, steps=4), {}).text == "moved 4"


def test_pydantic_is_imported_when_the_schema_is_first_needed():
    """Decorating a function costs no pydantic import (budget of `import kit_jupyter`)."""
    import subprocess

    code = (
        "import sys\nfrom kit_jupyter.tool import tool\n@tool\ndef f(x: int): 'F.'\n"
        "assert 'pydantic' not in sys.modules and 'docstring_parser' not in sys.modules\nf.spec\n"
        "assert 'pydantic' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ---------------------------------------------------------------- arguments


def test_one_line_per_fault():
    """Missing, extra, wrong enum, wrong type, huge strings: the model can act on each line (bad input)."""

    @tool
    def f(path: str, n: int, mode: Literal["r", "w"] = "r", at: Point | None = None):
        return 1

    with pytest.raises(BadArguments) as caught:
        f.validate({"n": "x" * 100_000, "mode": "q", "pth": "p", "at": {"x": "left"}})

    lines = caught.value.message.splitlines()
    assert len(lines) == 5
    assert "- path: missing, it is required" in lines
    assert any(line.startswith("- n: ") and "100,000 characters" in line and len(line) < 250 for line in lines)
    assert any(line.startswith("- mode: ") and "'r' or 'w'" in line for line in lines)
    assert any(line.startswith("- pth: no such argument; did you mean 'path'") for line in lines)
    assert any(line.startswith("- at.x: ") for line in lines)


def test_many_faults_are_bounded():
    """A list of a thousand wrong items does not flood the model."""

    @tool
    def f(items: list[int]):
        return 1

    with pytest.raises(BadArguments) as caught:
        f.validate({"items": ["no"] * 1000})
    assert caught.value.message.splitlines()[-1] == "- and 988 more faults"


def test_values_are_converted_and_lists_in_text_are_unpacked():
    """Small slips of models are mended, not punished."""

    @tool
    def f(n: int, items: list[int], at: Point):
        return [n, items, at.x]

    assert run(f, {"n": "3", "items": "[1, 2]", "at": '{"x": 1}'}).text == "[3,[1,2],1.0]"
    with pytest.raises(BadArguments, match="items"):
        f.validate({"n": 1, "items": "[1, 2", "at": {"x": 1}})


@pytest.mark.parametrize("text", ["{", "[1]", "3", '{"a": 1,}', "[" * 100_000, "nul"])
def test_arguments_that_are_not_a_json_object(text):
    """Not JSON, or not an object: told with the place (bad input)."""
    with pytest.raises(BadArguments, match="- arguments: "):
        parse_arguments(text)


def test_arguments_encoded_twice_are_read():
    """Some models encode the object as a JSON string."""
    assert parse_arguments('"{\\"a\\": 1}"') == {"a": 1}


# ---------------------------------------------------------------- running and results


@pytest.mark.parametrize("kind", ["sync", "async", "generator", "async generator", "lambda returning a coroutine"])
def test_every_kind_of_function_runs_on_the_users_thread(kind):
    """Law 8: user code, sync or async, runs on the user's thread."""
    seen: list[threading.Thread] = []

    def sync():
        seen.append(threading.current_thread())
        return "ok"

    async def coroutine():
        await asyncio.sleep(0)
        return sync()

    def generator():
        yield sync()

    async def async_generator():
        yield sync()

    made = {"sync": sync, "async": coroutine, "generator": generator, "async generator": async_generator}
    fn = made.get(kind) or tool(name="c")(lambda: coroutine())

    assert run(fn).text == "ok"
    assert seen == [threading.current_thread()]


def test_yields_are_live_output_and_a_return_value_is_the_result():
    """Generators stream; what they return is the result, else all they yielded."""

    def with_return():
        yield "one "
        yield "two"
        return {"n": 2}

    def without():
        yield "one "
        yield "two"

    context = Context(Desk())
    assert run(with_return, {}, context).text == '{"n":2}'
    assert [text for _, text in context.said] == ["one ", "two"]
    assert run(without).text == "one two"


def test_prints_are_live_and_stand_for_a_missing_result():
    """Functions that print instead of returning still tell the model; stdout is put back."""
    before = sys.stdout

    def f():
        print("hello")
        print("oops", file=sys.stderr)

    context = Context(Desk())
    assert run(f, {}, context).text == "hello\noops\n"
    assert ("stderr", "oops\n") in context.said
    assert sys.stdout is before


def test_closing_stdout_harms_nobody():
    """`sys.stdout.close()` in a tool closes nothing (bad input)."""

    def f():
        sys.stdout.close()
        print("still here")

    assert run(f).text == "still here\n"
    print("and here")


def test_a_flood_of_prints_is_bounded():
    """A gigabyte of prints stays small for the model, the view and the memory (bad input)."""

    def f():
        piece = "x" * 1_000_000
        for _ in range(200):
            print(piece)

    context = Context(Desk())
    outcome = run(f, {}, context)
    assert len(outcome.text) < 50_000
    assert "left out" in outcome.text
    assert sum(len(text) for _, text in context.said) < 250_000


@dataclasses.dataclass
class Row:
    a: int
    b: set[int]


def test_values_become_parts():
    """Text, parts, models, dataclasses, plain data, bytes, None, odd reprs (issue 6, item 1)."""

    class Llm:
        def _repr_llm_(self):
            return "words for a model"

    class Broken:
        def __repr__(self):
            raise ValueError("no")

    assert run(lambda_(Point(x=1))).text == '{"x":1.0,"y":0.0}'
    assert run(lambda_(Row(1, {2}))).text == '{"a":1,"b":[2]}'
    assert run(lambda_(Llm())).text == "words for a model"
    assert "repr failed" in run(lambda_(Broken())).text
    assert run(lambda_(None)).text == "(no result)"
    assert run(lambda_(b"abc")).text == "3 bytes, not shown: b'abc'"
    assert run(lambda_(float("nan"))).text == "NaN"
    assert run(lambda_(TextPart("t"))).parts == (TextPart("t"),)
    assert run(lambda_(ToolOutcome.of_text("x", is_error=True))).is_error


def lambda_(value: Any) -> Any:
    """A tool that returns `value`."""

    def give():
        return value

    return give


def test_frames_figures_and_pictures():
    """Tables become compact text, figures and pictures become PNG of at most 1568 pixels (U53)."""
    pandas = pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    image = pytest.importorskip("PIL.Image")
    figure_module = pytest.importorskip("matplotlib.figure")

    big = pandas.DataFrame({"a": range(100_000), "b": 1.23456789})
    text = run(lambda_(big)).text
    assert text.startswith("table, 100,000 rows x 2 columns (first 60 rows)\na,b\n0,1.23457\n")
    assert len(text) < 1500
    assert run(lambda_(polars.DataFrame({"a": [1]}))).text == "table, 1 rows x 1 columns\na\n1\n"

    figure = figure_module.Figure(figsize=(40, 10))
    figure.subplots().plot([1, 2])
    outcome = run(lambda_(["see", figure, image.new("RGB", (3000, 10))]))
    assert [type(part) for part in outcome.parts] == [TextPart, MediaPart, MediaPart]
    for part in outcome.parts[1:]:
        with image.open(__import__("io").BytesIO(part.raw)) as opened:
            assert max(opened.size) <= 1568


def test_halt_ends_with_a_value():
    """`halt(value)` asks the turn to end with that value."""
    outcome = run(lambda_(halt({"label": "spam"})))
    assert (outcome.halt, outcome.value, outcome.text) == (True, {"label": "spam"}, '{"label":"spam"}')


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    "error",
    [ValueError("bad"), SystemExit(3), KeyboardInterrupt(), RecursionError("deep"), StopIteration(1), GeneratorExit()],
)
def test_errors_become_results(error, is_async):
    """Whatever a tool raises, SystemExit and KeyboardInterrupt too, is an error result (bad input)."""

    def sync():
        raise error

    async def coroutine():
        raise error

    outcome = run(coroutine if is_async else sync)
    assert outcome.is_error
    assert not outcome.details
    assert type(error).__name__ in outcome.text
    assert "usercall" not in outcome.text
    assert engine.loop.is_running()


@pytest.mark.parametrize("name", ["/tmp/ipykernel_4711/1996461606.py", "<ipython-input-3-0a1b2c>"])
def test_a_failure_in_a_cell_reads_the_same_in_each_kernel(name):
    """The number of the process was in what is saved and sent: no second run could be equal."""
    source = "def f():\n    raise ValueError('bad')\n"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    names: dict = {}
    exec(compile(source, name, "exec"), names)

    text = run(names["f"]).text

    assert "File \"<cell>\", line 2, in f\n    raise ValueError('bad')" in text
    assert "4711" not in text
    assert "ipython-input" not in text


def test_endless_recursion_has_a_short_traceback():
    """A RecursionError does not flood the model."""

    def f(n: int = 0):
        return f(n + 1)

    outcome = run(f)
    assert outcome.is_error
    assert "RecursionError" in outcome.text
    assert len(outcome.text) < 4_100


# ---------------------------------------------------------------- stop


def stopped(fn: Any, context: Context | None = None) -> float:
    """Run `fn` until it says something, cancel the engine's task, and give the seconds until it ended."""
    context = context or Context(Desk())
    item = as_tool(fn)
    ended_at: list[float] = []

    async def go() -> None:
        task = asyncio.ensure_future(item.run(context, {}))
        await asyncio.to_thread(context.started.wait, 10)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        ended_at.append(time.monotonic() - began)

    context.desk.serve_blocking(engine.start(go(), context.desk))
    return ended_at[0]


def test_stop_interrupts_blocking_sync_code():
    """U20: `time.sleep(30)` in a sync tool ends in under a second and its finally runs."""
    seen = []

    def f():
        print("go")
        try:
            time.sleep(30)
        finally:
            seen.append("finally")

    assert stopped(f) < 1.0
    assert seen == ["finally"]


def test_stop_interrupts_busy_code_async_code_and_blocking_code_in_async():
    """The other ways to be busy; a generator's and a coroutine's finally run too."""
    seen = []

    def busy():
        print("go")
        while True:
            pass

    async def awaiting():
        print("go")
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.01)
            seen.append("awaiting")

    async def blocking():
        print("go")
        time.sleep(30)  # noqa: ASYNC251  - the point of it

    def generator():
        try:
            yield "go"
            time.sleep(30)
        finally:
            seen.append("generator")

    for fn in (busy, awaiting, blocking, generator):
        assert stopped(fn) < 1.5, fn.__name__
    assert seen == ["awaiting", "generator"]


def test_stop_ends_code_that_catches_the_first_interrupt():
    """A tool that swallows one KeyboardInterrupt is interrupted again."""

    def stubborn():
        print("go")
        for _ in range(2):
            try:
                time.sleep(30)
            except KeyboardInterrupt:
                pass

    assert stopped(stubborn) < 6.0


def test_stop_on_a_worker_thread():
    """A detached turn in a script runs user code on a worker; computing code is stopped there too."""

    def busy():
        print("go")
        while True:
            time.sleep(0.01)

    async def outer() -> float:
        context = Context(Desk())
        item = as_tool(busy)
        task = asyncio.ensure_future(item.run(context, {}))
        await asyncio.to_thread(context.started.wait, 10)
        began = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - began

    assert engine.start(outer()).future.result(20) < 2.0


def test_a_timeout_leaves_nothing_running():
    """When the wait ends by time, the code has ended as well (issue 6, item 8)."""
    seen = []

    def f():
        try:
            time.sleep(30)
        finally:
            seen.append("ended")

    with pytest.raises(asyncio.TimeoutError):
        run(f, {}, timeout=0.2)
    assert seen == ["ended"]


def test_a_call_stopped_before_it_begins_does_not_begin():
    """A job still in the queue when the stop comes never runs."""
    ran = []
    context = Context(Desk(loop=asyncio.new_event_loop()))  # a loop that nobody runs: the job stays queued

    async def go() -> None:
        task = asyncio.ensure_future(as_tool(lambda_ran(ran)).run(context, {}))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    engine.start(go()).future.result(10)

    async def nothing() -> None: ...

    context.desk.serve_blocking(engine.start(nothing()))
    assert ran == []


def lambda_ran(ran: list[int]) -> Any:
    def f():
        ran.append(1)

    return f


def test_the_interrupt_handler_is_put_back():
    """Signals mean what they meant before."""
    import signal

    before = signal.getsignal(signal.SIGINT)
    run(lambda_("x"))
    assert signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_in_a_tool_ends_the_wait_and_the_next_call_works():
    """A person's SIGINT breaks the tool's code and is raised from the blocking call, as Ctrl-C should be."""
    import os
    import signal

    seen = []

    def f():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(30)
        finally:
            seen.append("ended")

    with pytest.raises(KeyboardInterrupt):
        run(f)

    assert seen == ["ended"]
    assert run(lambda_("next")).text == "next"


async def test_an_interrupt_by_a_person_is_told_from_a_stop():
    """The outcome says interrupted, so that the turn stops; the code's own KeyboardInterrupt is an error."""
    import os
    import signal

    def f():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(30)

    context = Context(Desk())
    previous = signal.signal(signal.SIGINT, lambda *_: None)  # a front end's handler that only takes note
    try:
        outcome = await context.desk.serve(engine.start(as_tool(f).run(context, {}), context.desk))
    finally:
        signal.signal(signal.SIGINT, previous)

    assert outcome.is_error
    assert outcome.details == {"interrupted": True}
    assert "interrupted by the user" in outcome.text


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_coroutine_dropped_before_its_first_step_is_over():
    """A wait that is cancelled between the call and the awaiting leaves no handler, no call, no warning behind."""
    import signal

    from kit_jupyter import usercall

    ran = []

    async def f():
        ran.append(1)

    class Dropping(Context):
        async def on_user_thread(self, fn: Any, *args: Any) -> Any:
            waiting = await self.desk.run(lambda: [fn(*args)])
            waiting[0].close()
            raise asyncio.CancelledError

    context = Dropping(Desk())
    before = signal.getsignal(signal.SIGINT)

    async def go() -> str:
        try:
            await as_tool(f).run(context, {})
        except asyncio.CancelledError:
            return "cancelled"
        return "ended"

    began = time.monotonic()
    assert context.desk.serve_blocking(engine.start(go(), context.desk)) == "cancelled"
    assert time.monotonic() - began < 2
    assert ran == []
    assert usercall._active == []
    assert signal.getsignal(signal.SIGINT) is before


def test_a_stand_in_for_stdout_is_never_freed_under_a_print():
    """A user's thread may be printing as the last tool ends; `print` only borrows ``sys.stdout``."""
    import gc
    import sys
    import weakref

    from kit_jupyter.printed import Sink, catch_prints

    before = sys.stdout
    with catch_prints(Sink()):
        first = weakref.ref(sys.stdout)
    gc.collect()
    assert sys.stdout is before
    assert first() is not None

    with catch_prints(Sink()) as sink:
        assert sys.stdout is first()
        print("again")
    assert sink.text == "again\n"


def test_a_mistake_in_a_signature_is_told_where_the_tool_is_given() -> None:
    """Bad input: by `Kit(tools=…)` and by `add_tool`, in one line without pydantic's own; not by the first prompt."""

    def frame(df: threading.Lock) -> None: ...  # type: ignore[valid-type]

    with pytest.raises(UsageError, match=r"the type of parameter 'df' .* cannot come from JSON") as told:
        Kit(provider=ScriptedProvider(), session="memory", tools=[frame])
    assert told.value.__cause__ is None
    kit = Kit(provider=ScriptedProvider(), session="memory")
    with pytest.raises(UsageError, match="parameter 'df'"):
        kit.add_tool(frame)
    assert not kit.tools
