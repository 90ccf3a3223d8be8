"""`kit.map` on one machine: rows, templates, errors, budgets, the store, interrupts (issue 9, U50)."""

from __future__ import annotations

import asyncio
import enum
import json
import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit_jupyter import Kit, PromptOptions, UsageError
from kit_jupyter.batch import MapRow, Template, amap_rows, stream_rows
from kit_jupyter.errors import (
    AuthFailed,
    ConnectionFailed,
    KitError,
    Overloaded,
    RateLimited,
    Rejected,
    ReplayMiss,
    WireError,
)
from kit_jupyter.messages import text_of
from kit_jupyter.provider import ModelInfo, ModelRequest
from kit_jupyter.testing import ScriptedProvider, delay, overflow, provider_error, text, usage

pytestmark = pytest.mark.filterwarnings("ignore:(none of the|the only row)")  # a map without one answer says so


def said(request: ModelRequest) -> str:
    return text_of(request.messages[-1].parts)  # type: ignore[arg-type]


def echo(request: ModelRequest) -> str:
    return said(request).upper()


@pytest.fixture
def kit() -> Kit:
    return Kit(provider=ScriptedProvider(echo, repeat_last=True), session="memory")


def requests(kit: Kit) -> list[str]:
    provider = kit._provider_given
    assert isinstance(provider, ScriptedProvider)
    return [said(r) for r in provider.requests]


def test_a_pandas_frame_keeps_index_and_columns(kit: Kit) -> None:
    """The answer comes beside the row, a duplicate index included (U50)."""
    frame = pd.DataFrame({"text": ["a", "b", "c"], "n": [1, 2, 3]}, index=["x", "x", "y"])

    out = kit.map(frame, "say {text} {n}", progress=False, store=False)

    assert list(out.index) == ["x", "x", "y"]
    assert list(out.columns) == ["text", "n", "answer", "error"]
    assert list(out["answer"]) == ["SAY A 1", "SAY B 2", "SAY C 3"]
    assert out["error"].isna().all()
    assert list(frame.columns) == ["text", "n"]


def test_only_the_results_when_the_input_is_not_wanted(kit: Kit) -> None:
    """keep=False gives the new columns only, the index all the same."""
    out = kit.map(pd.Series(["a"], index=[7]), "{text}", keep=False, progress=False, store=False)

    assert out.to_dict() == {"answer": {7: "A"}, "error": {7: None}}


def test_polars_arrow_and_lists_come_back_as_they_went_in(kit: Kit) -> None:
    """The kind of table is kept (U50)."""
    p = kit.map(pl.DataFrame({"t": ["a"]}), "{t}", progress=False, store=False)
    a = kit.map(pa.table({"t": ["a"]}), "{t}", progress=False, store=False)
    rows = kit.map(["a"], "{text}!", progress=False, store=False)

    assert isinstance(p, pl.DataFrame)
    assert p["answer"].to_list() == ["A"]
    assert a.column("answer").to_pylist() == ["A"]
    assert a.column("error").to_pylist() == [None]
    assert rows[0] == MapRow(position=0, label=0, answer="A!")


def test_columns_that_are_there_already_are_not_overwritten(kit: Kit) -> None:
    """A frame that has an ``answer`` keeps it; ours gets another name."""
    out = kit.map(pd.DataFrame({"answer": ["mine"]}), "{answer}", progress=False, store=False)

    assert list(out["answer"]) == ["mine"]
    assert list(out["answer_"]) == ["MINE"]


def test_zero_rows_give_an_empty_frame_and_ask_nothing(kit: Kit) -> None:
    """An empty frame is no error."""
    out = kit.map(pd.DataFrame({"t": []}), "{t}", progress=False, store=False)

    assert len(out) == 0
    assert "error" in out.columns
    assert requests(kit) == []


@given(st.text(alphabet="{}\\$%a\"':, ", max_size=40))
def test_braces_in_the_data_are_never_looked_at(value: str) -> None:
    """Data goes in byte for byte, whatever braces it holds (issue 9.4, U47)."""
    assert Template("<{x}>", ["x"]).fill({"x": value}) == f"<{value}>"


def test_braces_in_the_template_that_name_nothing_stay() -> None:
    """JSON and LaTeX in a template are text; doubled braces are single ones."""
    template = Template('{"a": 1} \\frac{1}{2} {{x}} {x}', ["x"])

    assert template.fill({"x": "v"}) == '{"a": 1} \\frac{1}{2} {x} v'


def test_a_mark_that_names_no_column_is_an_error_with_the_nearest_name(kit: Kit) -> None:
    """A missing column fails before anything is paid."""
    with pytest.raises(UsageError, match=r"\{texts\}, which is no column; did you mean \{text\}"):
        kit.map(pd.DataFrame({"text": ["a"]}), "{texts}", progress=False, store=False)

    assert requests(kit) == []


def test_a_missing_value_is_that_rows_error(kit: Kit) -> None:
    """NaN is not sent as the word nan; the other rows go on."""
    frame = pd.DataFrame({"text": ["a", None, float("nan")]})

    out = kit.map(frame, "{text}", progress=False, store=False)

    assert out["answer"].iloc[0] == "A"
    assert out["error"].notna().tolist() == [False, True, True]
    assert requests(kit) == ["a"]


def test_errors_are_a_column_and_not_an_exception() -> None:
    """A refused row says why; its neighbours are answered (U50)."""

    def reply(request: ModelRequest) -> object:
        return overflow() if "b" in said(request) else text("ok")

    kit = Kit(provider=ScriptedProvider(reply, repeat_last=True), session="memory")

    out = kit.map(["a", "b", "c"], "{text}", progress=False, store=False, retries=0)

    assert [row.answer for row in out] == ["ok", None, "ok"]
    assert "row failed" in out[1].error


def test_a_busy_service_is_tried_again() -> None:
    """A row that was refused for load is asked again, at most `retries` times."""
    kit = Kit(
        provider=ScriptedProvider([provider_error("rate_limited", retry_after_seconds=0.01)], "fine"), session="memory"
    )

    out = kit.map(["a"], "{text}", progress=False, store=False)

    assert out[0].answer == "fine"


def test_one_rate_limit_pauses_every_row() -> None:
    """When the service asks for patience, no other row is sent meanwhile (issue 9.4)."""
    times: list[tuple[str, float]] = []

    def reply(request: ModelRequest) -> object:
        first = not times
        times.append((said(request), time.monotonic()))
        return provider_error("rate_limited", retry_after_seconds=0.3) if first else text("ok")

    kit = Kit(provider=ScriptedProvider(reply, repeat_last=True), session="memory")

    kit.map([str(i) for i in range(6)], "{text}", concurrency=1, progress=False, store=False)

    assert times[1][1] - times[0][1] >= 0.25


def test_equal_prompts_are_asked_once(kit: Kit) -> None:
    """Equal rows share one answer and one bill."""
    out = kit.map(["same"] * 50 + ["other"], "{text}", progress=False, store=False)

    assert {row.answer for row in out} == {"SAME", "OTHER"}
    assert sorted(requests(kit)) == ["other", "same"]


def test_a_second_run_pays_nothing(kit: Kit, tmp_path: Path) -> None:
    """What is in the store is not asked again, by this Kit or another of the same model."""
    store = tmp_path / "answers.sqlite"
    kit.map(["a", "b"], "{text}", progress=False, store=store)
    other = Kit(provider=ScriptedProvider(echo, repeat_last=True), session="memory")

    out = other.map(["a", "b", "c"], "{text}", progress=False, store=store)

    assert [row.is_stored for row in out] == [True, True, False]
    assert requests(other) == ["c"]


def test_what_one_script_says_does_not_answer_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tests that map the same row, each with its own script: no answer of the first comes from the disk."""
    monkeypatch.setenv("KIT_DATA_DIR", str(tmp_path))
    first = Kit(provider=ScriptedProvider("yes"), session="memory").map(["a"], "{text}", progress=False)
    second = Kit(provider=ScriptedProvider("no"), session="memory").map(["a"], "{text}", progress=False)

    assert [first[0].answer, second[0].answer] == ["yes", "no"]
    assert not list(tmp_path.rglob("*.sqlite"))


def test_another_system_prompt_or_schema_is_another_question(kit: Kit, tmp_path: Path) -> None:
    """The key is made of all that decides the answer."""
    store = tmp_path / "answers.sqlite"
    kit.map(["a"], "{text}", progress=False, store=store)

    kit.map(["a"], "{text}", progress=False, store=store, options=PromptOptions(temperature=0.5))

    assert requests(kit) == ["a", "a"]


def test_a_file_that_is_no_store_is_refused(kit: Kit, tmp_path: Path) -> None:
    """A wrong path as store= says so and touches nothing."""
    path = tmp_path / "notes.txt"
    path.write_text("my notes, quite long, surely no database at all" * 50)

    with pytest.raises(UsageError, match="no result store"):
        kit.map(["a"], "{text}", store=path, progress=False)

    assert path.read_text().startswith("my notes")


@dataclass
class Label:
    tone: str
    score: int


class Mood(enum.Enum):
    good = "good"
    bad = "bad"


def test_a_schema_gives_a_column_a_field() -> None:
    """Records become columns; a misfit goes back to the model, then is that row's error (issue 9.3)."""

    def reply(request: ModelRequest) -> str:
        return '{"tone": "warm", "score": 3}' if "good" in str(request.messages) else '{"tone": 1}'

    kit = Kit(provider=ScriptedProvider(reply, repeat_last=True), session="memory")

    out = kit.map(pd.DataFrame({"t": ["good", "odd"]}), "{t}", schema=Label, progress=False, store=False)

    assert out["tone"].tolist()[0] == "warm"
    assert out["score"].tolist()[0] == 3
    assert "does not fit" in out["error"].tolist()[1]


def test_an_enum_gives_its_value() -> None:
    """A schema that is no record gives one column."""
    kit = Kit(provider=ScriptedProvider('{"value": "bad"}', repeat_last=True), session="memory")

    out = kit.map(pl.DataFrame({"t": ["x"]}), "{t}", schema=Mood, progress=False, store=False)

    assert out["answer"].to_list() == ["bad"]


def test_a_budget_stops_the_asking() -> None:
    """Rows beyond the budget are not asked and say so."""
    provider = ScriptedProvider([text("ok"), usage(input=10, output=10)], repeat_last=True)
    kit = Kit(provider=provider, session="memory")

    out = kit.map(
        [str(i) for i in range(10)], "{text}", concurrency=1, max_tokens_total=50, progress=False, store=False
    )

    assert len(provider.requests) == 3
    assert "budget of 50 tokens" in out[-1].error
    assert out[2].answer == "ok"


def test_a_function_as_template_may_attach_pictures() -> None:
    """A callable gives the prompt, or the prompt and parts; it runs on the caller's thread."""
    seen: list[str] = []
    threads: list[bool] = []

    def reply(request: ModelRequest) -> str:
        seen.extend(type(p).__name__ for p in request.messages[-1].parts)
        return "ok"

    def prompt(row: dict[str, object]) -> tuple[str, bytes]:
        threads.append(threading.current_thread() is threading.main_thread())
        return f"look at {row['n']}", b"\x89PNG\r\n\x1a\n1"

    kit = Kit(provider=ScriptedProvider(reply, repeat_last=True), session="memory")

    kit.map(pd.DataFrame({"n": [1]}), prompt, progress=False, store=False)

    assert seen == ["TextPart", "MediaPart"]
    assert threads == [True]


def test_a_function_that_fails_fails_its_row_only(kit: Kit) -> None:
    """One bad row does not stop the run."""
    out = kit.map([1, 0], lambda n: f"{1 // n}", progress=False, store=False)

    assert [row.answer for row in out] == ["1", None]
    assert "ZeroDivisionError" in out[1].error


def test_a_row_that_is_taken_for_an_object_is_told_as_a_dict(kit: Kit) -> None:
    """`row.n` is what frames teach; the error says what to write, where that would have helped."""
    frame = pd.DataFrame({"n": [1]})

    near = kit.map(frame, lambda row: f"is {row.n} odd?", progress=False, store=False)
    far = kit.map(frame, lambda row: f"is {row.m} odd?", progress=False, store=False)

    assert near["error"][0].endswith("no attribute 'n'; the function gets the row as a dict: row['n']")
    assert far["error"][0].endswith("no attribute 'm'")


def test_what_cannot_be_attached_fails_its_row_only(kit: Kit) -> None:
    """A function that attaches nothing useful to one row does not end the map (bad input)."""
    out = kit.map([1, 2, 3], lambda n: ("look", None) if n == 2 else f"n {n}", progress=False, store=False)

    assert [row.answer for row in out] == ["N 1", None, "N 3"]
    assert "cannot attach a NoneType" in out[1].error


def test_a_mark_for_columns_of_one_name_is_refused(kit: Kit) -> None:
    """Which of them is meant nobody can tell; a frame that has such columns is mapped by its others (bad input)."""
    frame = pd.DataFrame([["1", "2", "3"]], columns=["a", "a", "b"])

    with pytest.raises(UsageError, match="2 columns are called so"):
        kit.map(frame, "{a}", progress=False, store=False)
    out = kit.map(frame, "{b}", progress=False, store=False)
    assert list(out.columns) == ["a", "a", "b", "answer", "error"]
    assert list(out["answer"]) == ["3"]


def test_a_cell_of_a_megabyte_goes_through(kit: Kit) -> None:
    """Long texts are sent whole."""
    out = kit.map(["x" * 1_000_000], "{text}", progress=False, store=False)

    assert out[0].answer == "X" * 1_000_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"chunk": 0}, "chunk"),
        ({"retries": -1}, "retries"),
        ({"missing": "drop"}, "missing"),
        ({"executor": object()}, "executor"),
    ],
)
def test_bad_limits_are_refused(kit: Kit, options: dict[str, object], message: str) -> None:
    """Bad input gets a clear error before anything is asked."""
    with pytest.raises(UsageError, match=message):
        kit.map(["a"], "{text}", progress=False, **options)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("concurency", r"^'concurency' is no argument of kit\.map; did you mean 'concurrency'\?$"),
        ("progres", "did you mean 'progress'"),
        ("temperature", r"kit\.map\(rows, template, options=PromptOptions\(temperature=\.\.\.\)\)"),
        ("frobnicate", "known: batch, chunk, concurrency, .*, progress, "),
    ],
)
def test_a_misspelt_argument_is_told_with_the_nearest_one(kit: Kit, name: str, words: str) -> None:
    """By the name that the person called, not one of ours inside; a TypeError as any wrong argument (U50)."""
    with pytest.raises(UsageError, match=words) as caught:
        kit.map(["a"], "{text}", **{name: 2})

    assert isinstance(caught.value, TypeError)
    assert requests(kit) == []


async def test_the_awaited_verbs_name_themselves(kit: Kit) -> None:
    """A stream has no bar and no frame to keep."""
    with pytest.raises(TypeError, match="argument of amap_rows; did you mean 'retries'"):
        await amap_rows(kit, ["a"], "{text}", retry=1)
    with pytest.raises(TypeError, match="'keep' is no argument of stream_rows"):
        await anext(stream_rows(kit, ["a"], "{text}", keep=False))


def test_a_string_is_no_table(kit: Kit) -> None:
    """A lone text is refused, since it would be mapped letter by letter."""
    with pytest.raises(UsageError, match="goes over a frame"):
        kit.map("hello", "{text}")


async def test_map_can_be_awaited_and_streamed(kit: Kit) -> None:
    """Under a running loop: awaited whole, or row by row as they finish."""
    whole = await amap_rows(kit, ["a", "b"], "{text}", progress=False, store=False)
    rows = [row async for row in stream_rows(kit, ["c", "d"], "{text}", store=False)]

    assert [row.answer for row in whole] == ["A", "B"]
    assert {row.answer for row in rows} == {"C", "D"}


async def test_leaving_the_stream_stops_the_asking(kit: Kit) -> None:
    """An endless iterable is pulled only as far as it is needed."""

    def endless() -> object:
        i = 0
        while True:
            yield str(i)
            i += 1

    count = 0
    async with aclosing(stream_rows(kit, endless(), "{text}", concurrency=2, store=False)) as rows:
        async for _ in rows:
            count += 1
            if count == 5:
                break
    asked = len(requests(kit))
    await asyncio.sleep(0.05)

    assert len(requests(kit)) == asked


def test_the_bar_counts_rows_and_errors(kit: Kit, capsys: pytest.CaptureFixture[str]) -> None:
    """Progress is shown, and it says how many rows failed."""
    kit.map(["a", "", "b"], "{text}", store=False)

    err = capsys.readouterr().err
    assert "3/3" in err
    assert "errors=1" in err


def test_an_interrupted_run_goes_on_without_paying_twice(tmp_path: Path) -> None:
    """kill -9 in the middle: the next run asks only what was not answered (issue 9.4)."""
    script = textwrap.dedent(
        """
        import os, sys
        from kit_jupyter import Kit
        from kit_jupyter.testing import ScriptedProvider
        asked = 0
        def reply(request):
            global asked
            asked += 1
            with open(sys.argv[2], "a") as log:
                log.write(request.messages[-1].parts[0].text + "\\n")
            if asked == int(sys.argv[3]):
                os.kill(os.getpid(), 9)
            return "ok"
        kit = Kit(provider=ScriptedProvider(reply, repeat_last=True), session="memory")
        kit.map([str(i) for i in range(40)], "{text}", concurrency=1, store=sys.argv[1], progress=False)
        """
    )
    args = [sys.executable, "-c", script, str(tmp_path / "s.sqlite"), str(tmp_path / "log")]

    first = subprocess.run([*args, "20"], check=False, timeout=60)
    second = subprocess.run([*args, "0"], check=False, timeout=60)

    asked = (tmp_path / "log").read_text().split()
    assert first.returncode == -9
    assert second.returncode == 0
    assert len(asked) == 41  # the one that was killed in flight is asked again, no other
    assert set(asked) == {str(i) for i in range(40)}


class Unprintable:
    """A cell that cannot even be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words for this")


def test_rows_that_no_file_could_hold_are_asked_or_say_why(kit: Kit, tmp_path: Path) -> None:
    """Locks, functions and open files in a frame: what can be put into words is asked, the rest is that row's error."""
    lock = threading.Lock()
    frame = pd.DataFrame({"text": ["a", "b", "c"], "thing": [lock, Unprintable(), "\ud800"]}, index=[0, 0, 1])

    by_text = kit.map(frame, "{text}", progress=False, store=tmp_path / "s")
    by_thing = kit.map(frame, "{thing}", progress=False, store=tmp_path / "s")

    assert list(by_text["answer"]) == ["A", "B", "C"]
    assert by_text["thing"].iloc[0] is lock
    assert str(by_thing["answer"].iloc[0]).startswith("<UNLOCKED _THREAD.LOCK")
    assert "no words for this" in by_thing["error"].iloc[1]
    assert "surrogate" in by_thing["error"].iloc[2]


def test_rows_with_objects_go_to_other_processes_as_words(tmp_path: Path) -> None:
    """Only the prompt travels, so a row need not be picklable."""
    import concurrent.futures
    import multiprocessing

    from tests.batch.workers import Echo

    kit = Kit(provider=Echo(), session="memory")
    rows = [{"text": "a", "lock": threading.Lock()}, {"text": "b", "lock": threading.Lock()}]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        out = kit.map(rows, "{text}", executor=pool, progress=False, store=False)

    assert [row.answer for row in out] == ["A", "B"]


def test_a_schema_that_the_service_rejects_is_told_once_a_row_and_never_retried(tmp_path: Path) -> None:
    """The service's own words reach the error column; nothing is kept, so a better schema is asked anew."""
    rejected = provider_error("rejected", "Invalid schema for response_format: too deep")
    provider = ScriptedProvider(rejected, rejected, '{"tone": "warm", "score": 1}', '{"tone": "cold", "score": 2}')
    kit = Kit(provider=provider, session="memory")

    first = kit.map(["a", "b"], "{text}", schema=Label, concurrency=1, progress=False, store=tmp_path / "s")
    asked = len(provider.requests)
    second = kit.map(["a", "b"], "{text}", schema=Label, concurrency=1, progress=False, store=tmp_path / "s")

    assert ["too deep" in row.error for row in first] == [True, True]
    assert asked == 2
    assert [row.answer for row in second] == [Label("warm", 1), Label("cold", 2)]


def test_a_type_of_which_no_schema_can_be_made_is_refused_before_anything_is_asked(kit: Kit) -> None:
    """A lock is no form for an answer."""
    with pytest.raises(UsageError, match="no JSON schema can be made"):
        kit.map(["a"], "{text}", schema=type(threading.Lock()), progress=False, store=False)

    assert requests(kit) == []


class Recorded:
    """`kit.map` in a process of its own, over a recording; a service that answers in capitals is there to be recorded.

    Parameters
    ----------
    folder : Path
        Where the recording and the data folder of the runs are.
    """

    SCRIPT = textwrap.dedent(
        """
        import json, sys
        from kit_jupyter import Kit, PromptOptions
        more = json.loads(sys.argv[2])
        kit = Kit("openai-chat/gpt-4.1-mini", session="memory")
        options = PromptOptions(base_url=sys.argv[1], api_key="sk-x")
        for _ in range(more.pop("times", 1)):
            out = kit.map(sys.argv[3:], "say {text}", options=options, concurrency=1, progress=False, **more)
        print(json.dumps([[row.answer, row.error, row.is_stored] for row in out]))
        """
    )

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = HTTPServer(("127.0.0.1", 0), Capitals)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/v1"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def run(self, mode: str, *rows: str, **more: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", self.SCRIPT, self.url, json.dumps(more), *rows],
            env={
                **os.environ,
                "KIT_REPLAY": mode,
                "KIT_REPLAY_FILE": str(self.folder / "r.json"),
                "XDG_DATA_HOME": str(self.folder),
                "KIT_DATA_DIR": str(self.folder),
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def answers(self, mode: str, *rows: str, **more: object) -> list[list[object]]:
        done = self.run(mode, *rows, **more)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Capitals(BaseHTTPRequestHandler):
    """A chat service that gives the prompt back in capitals."""

    def log_message(self, format: str, *args: object) -> None: ...

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"][-1]["content"]
        words = asked if isinstance(asked, str) else asked[-1]["text"]
        message = {"role": "assistant", "content": words.upper()}
        body = json.dumps({"id": "c", "model": "m", "choices": [{"message": message, "finish_reason": "stop"}]})
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    found = Recorded(tmp_path)
    yield found
    found.close()


def test_a_row_that_no_recording_answers_fails_the_run(recorded: Recorded) -> None:
    """KIT_REPLAY=strict: what was recorded is played; a row that was not ends the map, so CI is red (U50)."""
    made = recorded.answers("record", "a", "b", store=False)
    played = recorded.answers("strict", "b", "a", store=False)
    missed = recorded.run("strict", "a", "x", "b", store=False)

    assert [row[0] for row in made] == ["SAY A", "SAY B"]
    assert [row[0] for row in played] == ["SAY B", "SAY A"]
    assert missed.returncode != 0
    assert "ReplayMiss: map stopped: no recording answers ('say x')" in missed.stderr


def test_rows_that_were_paid_before_are_recorded_all_the_same(recorded: Recorded) -> None:
    """The store on the author's disk neither keeps rows out of a recording nor answers for it (U50)."""
    recorded.answers("off", "a", "b")
    assert all(row[2] for row in recorded.answers("off", "a", "b"))

    made = recorded.answers("record", "a", "b")
    played = recorded.answers("strict", "a", "b")
    recorded.answers("off", "x")
    missed = recorded.run("strict", "a", "x")

    assert made == [["SAY A", "", False], ["SAY B", "", False]]
    assert played == made
    assert "no recording answers ('say x')" in missed.stderr


def test_a_store_of_ones_own_answers_a_replay_only_what_that_run_put_there(recorded: Recorded) -> None:
    """A path shows what a store does, also in a recorded notebook; a file from before decides nothing."""
    store = str(recorded.folder / "mine.sqlite")
    recorded.answers("off", "a", "x", store=store)

    made = recorded.answers("record", "a", store=store, times=2)
    played = recorded.answers("strict", "a", store=store, times=2)
    missed = recorded.run("strict", "a", "x", store=store)
    later = recorded.answers("off", "a", "x", store=store)

    assert made == played == [["SAY A", "", True]]
    assert "no recording answers ('say x')" in missed.stderr
    assert [row[2] for row in later] == [True, True]


@pytest.mark.parametrize(
    "fault",
    [
        AuthFailed("wrong key", status=401),
        AuthFailed("not in your region", status=403),
        ReplayMiss("no recording answers this"),
        UsageError("KIT_SOMETHING is no number"),
        Rejected("gone", status=404),
        Rejected("no", status=400, details={"code": "model_not_found"}),
        Rejected("no", status=400, details={"message": "gtp-9 is not a valid model ID"}),
        Rejected("no credit left", status=402),
    ],
    ids=lambda fault: f"{type(fault).__name__} {getattr(fault, 'status', '')}".strip(),
)
def test_what_every_row_would_meet_ends_the_map_at_once(fault: Exception) -> None:
    """A wrong key, no recording, no such model, a wrong setting: raised, and no other row is asked."""
    provider = ScriptedProvider([provider_error(fault)], "never said", repeat_last=True)
    kit = Kit(provider=provider, session="memory")

    with pytest.raises(type(fault), match=r"^map stopped: "):
        kit.map([str(i) for i in range(20)], "{text}", concurrency=1, progress=False, store=False)

    assert len(provider.requests) == 1


def test_a_setting_that_is_found_wrong_by_the_first_request_ends_the_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """The built-in model looks at KIT_REPLAY only when it is asked; its rows were errors and the run was green."""
    monkeypatch.setenv("KIT_REPLAY", "bogus")
    kit = Kit("local/default", session="memory")

    with pytest.raises(UsageError, match="KIT_REPLAY must be one of"):
        kit.map(["a", "b"], "{text}", progress=False, store=False)


@pytest.mark.parametrize("address", ["ftp://example.org", "http://127.0.0.1:9"])
def test_a_wrong_address_ends_the_map(address: str) -> None:
    """Nobody listens there, or nobody could: no row is to blame."""
    kit = Kit("openai-chat/gpt-4.1-mini", session="memory")

    with pytest.raises(KitError, match=r"map stopped: .*base_url"):
        kit.map(["a"], "{text}", options=PromptOptions(base_url=address, api_key="k"), progress=False, store=False)


@pytest.mark.parametrize(
    "fault",
    [
        Overloaded("busy"),
        RateLimited("too many"),
        Rejected("bad words", status=400),
        AuthFailed("your input was flagged", status=403),
        ConnectionFailed("the line broke"),
        WireError("half an answer"),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_a_rows_own_fault_stays_in_its_row(fault: Exception) -> None:
    """What its words brought about, and what may pass, is that row's error; the others go on."""
    kit = Kit(provider=ScriptedProvider([provider_error(fault)], "fine", repeat_last=True), session="memory")

    out = kit.map(["a", "b"], "{text}", concurrency=1, retries=0, progress=False, store=False)

    assert [row.answer for row in out] == [None, "fine"]
    assert str(fault) in out[0].error.replace("row failed: ", "")


def test_a_timeout_or_an_attachment_that_is_refused_stays_in_its_row() -> None:
    """Both are said by a UsageError, as a wrong setting is; but another row may well be answered."""

    def reply(request: ModelRequest) -> object:
        return [delay(30)] if said(request) == "slow" else "fine"

    provider = ScriptedProvider(reply, repeat_last=True, info=ModelInfo(takes=frozenset()))
    kit = Kit(provider=provider, session="memory")

    def prompt(word: str) -> object:
        return (word, b"\x89PNG\r\n\x1a\n1") if word == "picture" else word

    out = kit.map(
        ["slow", "picture", "a"], prompt, options=PromptOptions(timeout_seconds=0.3), progress=False, store=False
    )

    assert "longer than timeout_seconds" in out[0].error
    assert "cannot take image/png" in out[1].error
    assert out[2].answer == "fine"


def test_a_key_that_is_taken_back_loses_no_answer(tmp_path: Path) -> None:
    """What was answered before stays in the store, the error says so, and the same call goes on from there."""
    store = tmp_path / "s"
    kit = Kit(provider=ScriptedProvider("1", "2", [provider_error("auth_failed")]), session="memory")
    with pytest.raises(AuthFailed) as caught:
        kit.map(["a", "b", "c"], "{text}", concurrency=1, progress=False, store=store)
    other = Kit(provider=ScriptedProvider("3"), session="memory")

    out = other.map(["a", "b", "c"], "{text}", concurrency=1, progress=False, store=store)

    assert "2 rows were answered before and stay in the store" in caught.value.__notes__[0]
    assert [(row.answer, row.is_stored) for row in out] == [("1", True), ("2", True), ("3", False)]


def test_one_row_that_a_gateway_forbids_stays_in_its_row_once_others_were_answered() -> None:
    """The key is good then: 403 was about this row."""
    provider = ScriptedProvider("fine", [provider_error(AuthFailed("not for you", status=403))], "fine")
    kit = Kit(provider=provider, session="memory")

    out = kit.map(["a", "b", "c"], "{text}", concurrency=1, progress=False, store=False)

    assert [row.answer for row in out] == ["fine", None, "fine"]


async def test_a_map_without_one_answer_warns_once_at_the_callers_line() -> None:
    """Rows' own faults are quiet; when there is nothing else, a warning has the count and the first error (U50)."""
    kit = Kit(provider=ScriptedProvider([provider_error("wire", "half an answer")], repeat_last=True), session="memory")
    asked: dict[str, Any] = {"concurrency": 1, "retries": 0, "store": False}

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        await asyncio.to_thread(kit.map, ["a", "b"], "{text}", progress=False, **asked)
        await amap_rows(kit, ["a", "b", "c"], "{text}", progress=False, **asked)
        assert len([row async for row in stream_rows(kit, ["a"], "{text}", **asked)]) == 1

    assert [str(one.message) for one in seen] == [
        "none of the 2 rows was answered; the first error: row failed: half an answer",
        "none of the 3 rows was answered; the first error: row failed: half an answer",
        "the only row was not answered: row failed: half an answer",
    ]
    assert [Path(one.filename).name for one in seen][1:] == ["test_map.py"] * 2


@pytest.mark.filterwarnings("error")
def test_a_map_with_one_answer_or_without_rows_does_not_warn(kit: Kit) -> None:
    """The error column is enough where something was answered."""
    assert kit.map(["a", ""], "{text}", progress=False, store=False)[1].error
    assert kit.map([], "{text}", progress=False, store=False) == []
