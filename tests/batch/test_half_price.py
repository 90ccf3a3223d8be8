"""`kit.map(batch=True)`: the providers' half-price batch APIs, against a server that keeps batches (issue 9.4)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from kit_jupyter import Kit, PromptOptions, UsageError
from kit_jupyter.batch import BatchOptions, amap_rows, cancel_batches, open_batches
from kit_jupyter.errors import AuthFailed, ProviderError
from kit_jupyter.messages import ModelRef, Tokens
from kit_jupyter.price import price_of
from kit_jupyter.testing import ScriptedProvider

from .batch_server import BatchServer, Fault

pytestmark = pytest.mark.filterwarnings("ignore:(none of the|the only row)")  # a map without one answer says so

MODELS = {
    "openai/gpt-4.1-mini": "/v1",
    "openai-chat/gpt-4.1-mini": "/v1",
    "groq/llama-3.3-70b-versatile": "/v1",
    "anthropic/claude-haiku-4-5": "",
    "gemini/gemini-2.5-flash": "/v1beta",
}


class Clock:
    """Waits without waiting, and remembers how long it should have."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await asyncio.sleep(0.001)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server() -> Iterator[BatchServer]:
    with BatchServer(str.upper) as made:
        yield made


def ask(
    server: BatchServer,
    rows: Any,
    store: Path,
    clock: Clock,
    *,
    model: str = "openai/gpt-4.1-mini",
    template: Any = "{text}",
    size: int = 10_000,
    options: dict[str, Any] | None = None,
    **more: Any,
) -> Any:
    kit = Kit(model, session="memory")
    given = PromptOptions(base_url=server.url + MODELS[model], api_key="sk-the-key-of-a-test", **(options or {}))
    try:
        batch = BatchOptions(size=size, sleep=clock.sleep)
        return kit.map(rows, template, options=given, store=store, progress=False, batch=batch, **more)
    finally:
        kit.close()


@pytest.mark.parametrize("model", MODELS)
def test_rows_come_back_from_a_batch_at_half_the_price(
    server: BatchServer, tmp_path: Path, clock: Clock, model: str
) -> None:
    """Each wire that has batches: answers out of order find their rows, equal rows go once, cost is halved."""
    rows = ["a", "b", "a", "ö {x}"]

    out = ask(server, rows, tmp_path / "s", clock, model=model)

    assert [row.answer for row in out] == ["A", "B", "A", "Ö {X}"]
    assert sorted(server.rows) == ["a", "b", "ö {x}"]
    assert server.posts == 1
    assert server.keys == {"sk-the-key-of-a-test"}
    assert [row.tokens for row in out] == [1100, 1100, 0, 1100]
    answered_by = {"anthropic": "claude-haiku-4-5", "gemini": "gemini-2.5-flash"}.get(
        model.split("/")[0], "gpt-4.1-mini"
    )
    full = price_of(ModelRef(model.split("/")[0], answered_by), Tokens(input=1000, output=100))
    if full is not None:
        assert out[0].cost == pytest.approx(full / 2)
    assert open_batches(tmp_path / "s") == []


def test_a_frame_keeps_its_index_and_a_second_run_pays_nothing(
    server: BatchServer, tmp_path: Path, clock: Clock
) -> None:
    """The same results as without a batch, and the same store."""
    frame = pd.DataFrame({"text": ["a", None, "b"]}, index=[7, 7, 9])

    first = ask(server, frame, tmp_path / "s", clock)
    second = ask(server, frame, tmp_path / "s", clock)

    assert list(first.index) == [7, 7, 9]
    assert first["answer"].tolist()[0] == "A"
    assert "missing" in first["error"].tolist()[1]
    assert second["answer"].tolist()[2] == "B"
    assert server.posts == 1


@pytest.mark.parametrize("model", ["openai/gpt-4.1-mini", "anthropic/claude-haiku-4-5", "gemini/gemini-2.5-flash"])
def test_a_row_that_failed_says_so_in_its_own_row(tmp_path: Path, clock: Clock, model: str) -> None:
    """Errored, expired and cancelled rows are errors in the column; the others have their answers."""

    def reply(text: str) -> str | Fault:
        return {"bad": Fault("errored", 400, "the words are bad"), "late": Fault("expired")}.get(text, text.upper())

    with BatchServer(reply) as server:
        out = ask(server, ["a", "bad", "late", "b", "bad"], tmp_path / "s", clock, model=model)

        assert [row.answer for row in out] == ["A", None, None, "B", None]
        assert "the words are bad" in out[1].error
        if not model.startswith("gemini"):  # its expired rows are errors like others
            assert "ended before this row was answered (expired); run it again" in out[2].error
        assert out[4].error == out[1].error
        assert server.posts == 1

        server.reply = str.upper
        again = ask(server, ["a", "bad", "late", "b", "bad"], tmp_path / "s", clock, model=model)

    assert [row.answer for row in again] == ["A", "BAD", "LATE", "B", "BAD"]
    assert sorted(server.rows) == ["a", "b", "bad", "bad", "late", "late"]


def test_a_row_that_met_a_busy_service_goes_into_another_batch(tmp_path: Path, clock: Clock) -> None:
    """A fault that may pass is tried again, `retries` times and no more."""
    seen: list[str] = []

    def reply(text: str) -> str | Fault:
        seen.append(text)
        often = seen.count(text)
        return Fault("errored", 500, "busy") if text == "never" or (often == 1 and text == "once") else text.upper()

    with BatchServer(reply) as server:
        out = ask(server, ["a", "once", "never"], tmp_path / "s", clock, model="anthropic/claude-haiku-4-5", retries=1)

    assert [row.answer for row in out] == ["A", "ONCE", None]
    assert "busy" in out[2].error
    assert seen.count("a") == 1
    assert seen.count("once") == 2
    assert seen.count("never") == 2


@dataclass
class Label:
    tone: str
    score: int


def test_a_misfit_is_asked_again_in_a_further_batch(tmp_path: Path, clock: Clock) -> None:
    """With a schema, an answer that does not fit goes back to the model with the next batch (issue 9.3)."""

    def reply(text: str) -> str:
        return '{"tone": "warm", "score": 3}' if "does not fit" in text or text == "good" else '{"tone": 1}'

    with BatchServer(reply) as server:
        out = ask(server, ["good", "odd"], tmp_path / "s", clock, schema=Label)

    assert [row.answer for row in out] == [Label("warm", 3), Label("warm", 3)]
    assert server.posts == 2
    assert [len(batch.rows) for batch in server.batches.values()] == [2, 1]


def test_many_rows_become_several_batches(server: BatchServer, tmp_path: Path, clock: Clock) -> None:
    """A batch holds `size` rows at most; what does not fill one goes last."""
    out = ask(server, (str(i) for i in range(25)), tmp_path / "s", clock, size=10)

    assert [row.answer for row in out] == [str(i) for i in range(25)]
    assert sorted(len(batch.rows) for batch in server.batches.values()) == [5, 10, 10]


def test_looks_become_rarer(server: BatchServer, tmp_path: Path, clock: Clock) -> None:
    """Between two looks is a wait that grows to its limit; a service that is down is looked at again."""
    server.looks_needed = 12
    server.down = 0

    ask(server, ["a"], tmp_path / "s", clock)

    assert clock.waits == sorted(clock.waits)
    assert clock.waits[0] == 5.0
    assert clock.waits[-1] == 120.0
    assert len(clock.waits) == 11


def test_a_service_that_is_down_for_a_while_costs_nothing(server: BatchServer, tmp_path: Path, clock: Clock) -> None:
    """The line may break while a batch is out: it is looked for again, and not sent again."""
    server.down = 9

    out = ask(server, ["a"], tmp_path / "s", clock)

    assert out[0].answer == "A"
    assert server.posts == 1


@pytest.mark.parametrize("model", ["openai/gpt-4.1-mini", "anthropic/claude-haiku-4-5", "gemini/gemini-2.5-flash"])
def test_a_killed_run_goes_on_by_looking_and_pays_nothing_twice(tmp_path: Path, clock: Clock, model: str) -> None:
    """kill -9 while the batch is out: the same call finds it again (issue 9.4)."""
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        from kit_jupyter import Kit, PromptOptions
        from kit_jupyter.batch import BatchOptions
        url, store, model = sys.argv[1:]
        kit = Kit(model, session="memory")
        options = PromptOptions(base_url=url, api_key="sk-the-key-of-a-test")
        kit.map([str(i) for i in range(30)], "say {text}", options=options, store=store, progress=False,
                batch=BatchOptions(size=20, first_poll_seconds=0.05, last_poll_seconds=0.1))
        """
    )
    with BatchServer(str.upper) as server:
        server.gate.clear()
        args = [sys.executable, "-c", script, server.url + MODELS[model], str(tmp_path / "s"), model]
        process = subprocess.Popen(args)
        try:
            while server.posts < 2 or len({b.looks > 0 for b in server.batches.values()}) != 1:
                assert process.poll() is None
                assert server.looked.wait(30)
                server.looked.clear()
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
        server.gate.set()
        left = open_batches(tmp_path / "s")

        out = ask(
            server, [str(i) for i in range(30)], tmp_path / "s", clock, model=model, template="say {text}", size=20
        )

    assert [batch.size for batch in left] == [20, 10]
    assert [row.answer for row in out] == [f"SAY {i}" for i in range(30)]
    assert server.posts == 2
    assert open_batches(tmp_path / "s") == []


@pytest.mark.parametrize("model", ["openai/gpt-4.1-mini", "anthropic/claude-haiku-4-5", "gemini/gemini-2.5-flash"])
def test_a_batch_whose_sending_nobody_heard_the_end_of_is_found_again(
    server: BatchServer, tmp_path: Path, clock: Clock, model: str
) -> None:
    """The line breaks right after the service took the batch: it is found by its name, not sent again."""
    server.refuse = ["lose"]

    out = ask(server, ["a", "b"], tmp_path / "s", clock, model=model)

    assert [row.answer for row in out] == ["A", "B"]
    assert server.posts == 1


def kill_before_it_is_stored(server: BatchServer, path: Path, clock: Clock) -> None:
    """Leave the store as a kill does that comes between sending a batch and storing its id."""
    from kit_jupyter.batch.store import ResultStore

    server.gate.clear()
    with pytest.raises(KeyboardInterrupt):
        interrupt_when_looked_at(server, lambda: ask(server, ["a", "b"], path, clock))
    store = ResultStore(path)
    [batch] = store.batches()
    store.was_sent(batch.name, "")
    store.close()


def test_a_kill_between_sending_and_storing_is_made_good(server: BatchServer, tmp_path: Path, clock: Clock) -> None:
    """The store knows that a batch was about to go out; the next run asks the service whether it did."""
    kill_before_it_is_stored(server, tmp_path / "s", clock)
    server.gate.set()

    out = ask(server, ["a", "b"], tmp_path / "s", clock)

    assert [row.answer for row in out] == ["A", "B"]
    assert server.posts == 1


def test_a_batch_that_never_went_out_is_sent(server: BatchServer, tmp_path: Path, clock: Clock) -> None:
    """The service does not know the name: nothing was paid, the rows are asked."""
    kill_before_it_is_stored(server, tmp_path / "s", clock)
    server.batches.clear()
    server.gate.set()

    out = ask(server, ["a", "b"], tmp_path / "s", clock)

    assert [row.answer for row in out] == ["A", "B"]
    assert server.posts == 2


def interrupt_when_looked_at(server: BatchServer, work: Any) -> Any:
    """Run `work` and press Ctrl-C once the server was looked at."""
    server.looked.clear()

    def press() -> None:
        server.looked.wait(30)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    try:
        return work()
    finally:
        thread.join()


def test_stop_leaves_the_batch_running_and_says_so(server: BatchServer, tmp_path: Path, clock: Clock) -> None:
    """An interrupt ends the call, not the batch; the note says how to come back and how to stop it."""
    server.gate.clear()

    with pytest.raises(KeyboardInterrupt) as stopped:
        interrupt_when_looked_at(server, lambda: ask(server, ["a"], tmp_path / "s", clock))

    [note] = stopped.value.__notes__
    assert note.startswith("batch batch_1 runs on at openai")
    assert "cancel_batches" in note
    assert not server.batches["batch_1"].cancelled


@pytest.mark.parametrize("model", ["openai/gpt-4.1-mini", "anthropic/claude-haiku-4-5", "gemini/gemini-2.5-flash"])
def test_a_batch_can_be_cancelled(tmp_path: Path, clock: Clock, model: str) -> None:
    """cancel_batches stops what is out; the same call then tells which rows got nothing."""
    with BatchServer(str.upper) as server:
        server.gate.clear()
        with pytest.raises(KeyboardInterrupt):
            interrupt_when_looked_at(server, lambda: ask(server, ["a"], tmp_path / "s", clock, model=model))
        kit = Kit(model, session="memory")
        options = PromptOptions(base_url=server.url + MODELS[model], api_key="sk-the-key-of-a-test")

        stopped = cancel_batches(kit, store=tmp_path / "s", options=options)

        assert stopped == list(server.batches)
        assert server.batches[stopped[0]].cancelled
        out = ask(server, ["a"], tmp_path / "s", clock, model=model)
        kit.close()

    assert out[0].answer is None
    assert out[0].error
    assert open_batches(tmp_path / "s") == []


def test_a_time_limit_ends_the_waiting_not_the_batch(server: BatchServer, tmp_path: Path, clock: Clock) -> None:
    """max_seconds: rows say which batch has them, and a later call gets them."""
    server.gate.clear()

    out = ask(server, ["a", "b"], tmp_path / "s", clock, max_seconds=0.2)
    server.gate.set()
    later = ask(server, ["a", "b"], tmp_path / "s", clock)

    assert out[0].error == (
        "not answered within 0.2 s; batch batch_1 runs on at openai: the same call fetches its answers"
    )
    assert [row.answer for row in later] == ["A", "B"]
    assert server.posts == 1


@pytest.mark.parametrize(
    ("limit", "words"),
    [({"max_tokens_total": 2600}, "might use more than 2,600 tokens"), ({"max_cost": 0.0021}, "might cost more than")],
)
def test_a_budget_is_kept_before_anything_is_sent(
    server: BatchServer, tmp_path: Path, clock: Clock, limit: dict[str, Any], words: str
) -> None:
    """What a row may cost at most, its max_tokens included, must fit in the budget before it goes out."""
    if "max_cost" in limit:
        pytest.importorskip("genai_prices")
    out = ask(server, list("abcdef"), tmp_path / "s", clock, options={"max_tokens": 1000}, concurrency=1, **limit)

    assert [row.answer for row in out[:2]] == ["A", "B"]
    assert all(words in row.error for row in out[2:])
    assert sorted(server.rows) == ["a", "b"]


def test_a_batch_that_is_refused_fails_its_rows(server: BatchServer, tmp_path: Path, clock: Clock) -> None:
    """The service takes no batch: each row says why, nothing is left open, and the next run sends it anew."""
    server.refuse = [400]

    with pytest.warns(UserWarning, match="none of the 2 rows was answered"):
        out = ask(server, ["a", "b"], tmp_path / "s", clock)
    again = ask(server, ["a", "b"], tmp_path / "s", clock)

    assert all("no batch for you" in row.error for row in out)
    assert [row.answer for row in again] == ["A", "B"]
    assert server.posts == 1


def test_a_batch_refused_for_its_key_ends_the_map(server: BatchServer, tmp_path: Path, clock: Clock) -> None:
    """A wrong key is no row's own fault: it is raised, nothing is left open, and the right key sends the batch anew."""
    server.refuse = [401]

    with pytest.raises(AuthFailed, match=r"map stopped: .*no batch for you"):
        ask(server, ["a", "b"], tmp_path / "s", clock)
    again = ask(server, ["a", "b"], tmp_path / "s", clock)

    assert [row.answer for row in again] == ["A", "B"]
    assert server.posts == 1


def test_a_batch_that_fails_validation_fails_its_rows(server: BatchServer, tmp_path: Path, clock: Clock) -> None:
    """OpenAI looks at the file after taking it; its reason reaches each row."""
    server.fault = "enqueued token limit reached"

    out = ask(server, ["a", "b"], tmp_path / "s", clock)

    assert all("refused the batch: enqueued token limit reached" in row.error for row in out)
    assert open_batches(tmp_path / "s") == []


def test_a_batch_the_service_does_not_know_is_kept_for_the_right_key(
    server: BatchServer, tmp_path: Path, clock: Clock
) -> None:
    """Another account's key sees no such batch: the rows say so, and nothing is sent again meanwhile."""
    server.gate.clear()
    with pytest.raises(KeyboardInterrupt):
        interrupt_when_looked_at(server, lambda: ask(server, ["a"], tmp_path / "s", clock))
    theirs, server.batches = server.batches, {}
    server.gate.set()

    lost = ask(server, ["a"], tmp_path / "s", clock)
    server.batches = theirs
    found = ask(server, ["a"], tmp_path / "s", clock)

    assert "No such batch" in lost[0].error
    assert found[0].answer == "A"
    assert server.posts == 1


async def test_it_can_be_awaited(server: BatchServer, tmp_path: Path, clock: Clock) -> None:
    """Under a running loop, too."""
    kit = Kit("openai/gpt-4.1-mini", session="memory")
    options = PromptOptions(base_url=server.url + "/v1", api_key="sk-the-key-of-a-test")

    out = await amap_rows(
        kit,
        ["a"],
        "{text}",
        options=options,
        store=tmp_path / "s",
        batch=BatchOptions(sleep=clock.sleep),
        progress=True,
    )
    await kit.aclose()

    assert out[0].answer == "A"


def test_the_bar_says_how_far_the_batches_are(
    server: BatchServer, tmp_path: Path, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    """While nothing can be counted, the bar says what the service says."""
    kit = Kit("openai/gpt-4.1-mini", session="memory")
    options = PromptOptions(base_url=server.url + "/v1", api_key="sk-the-key-of-a-test")

    kit.map(["a"], "{text}", options=options, store=tmp_path / "s", batch=BatchOptions(sleep=clock.sleep))
    kit.close()

    assert "openai: in_progress, 0/1 answered" in capsys.readouterr().err


def test_a_wire_without_batches_is_refused_with_those_that_have_them(tmp_path: Path) -> None:
    """A provider that has no batch API: nothing is asked, the message names who has one."""
    provider = ScriptedProvider("ok", repeat_last=True)
    kit = Kit(provider=provider, session="memory")

    with pytest.raises(UsageError, match=r"scripted has no batch API .* anthropic/, gemini/, groq/, openai/"):
        kit.map(["a"], "{text}", batch=True, store=tmp_path / "s", progress=False)

    assert provider.requests == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"store": False}, "needs a store"),
        ({"executor": object()}, "executor"),
        ({"tools": [lambda x: x]}, "tools"),
        ({"batch": "yes"}, "True or BatchOptions"),
    ],
)
def test_what_cannot_go_with_a_batch_is_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    """Bad combinations say so before anything is asked."""
    kit = Kit(provider=ScriptedProvider("ok", repeat_last=True), session="memory")
    if "executor" in options:
        import concurrent.futures

        options = {"executor": concurrent.futures.ThreadPoolExecutor(1)}
    if "tools" in options:

        def add(a: int) -> int:
            """Add."""
            return a

        options = {"tools": [add]}

    with pytest.raises(UsageError, match=words):
        kit.map(["a"], "{text}", **{"batch": True, "store": tmp_path / "s", "progress": False, **options})


@pytest.mark.parametrize(("size", "first"), [(0, 5.0), (1, 0.0), (1, 500.0)])
def test_bad_batch_options_are_refused(size: int, first: float) -> None:
    """Sizes and waits that make no sense."""
    with pytest.raises(UsageError):
        BatchOptions(size=size, first_poll_seconds=first)


def test_results_that_are_no_json_fail_the_rows_and_keep_the_batch(
    server: BatchServer, tmp_path: Path, clock: Clock
) -> None:
    """A gateway that garbles the results: a clear error; the batch stays known and is fetched by the next run."""
    ready = server._openai_shape

    def garbled(batch: Any, status: str) -> dict[str, Any]:
        shape = ready(batch, status)
        if shape["output_file_id"]:
            server.files[shape["output_file_id"]] = b"<html>oops</html>"
        return shape

    server._openai_shape = garbled  # type: ignore[method-assign]
    out = ask(server, ["a"], tmp_path / "s", clock)
    server._openai_shape = ready  # type: ignore[method-assign]
    again = ask(server, ["a"], tmp_path / "s", clock)

    assert "not this protocol's JSON" in out[0].error
    assert again[0].answer == "A"
    assert server.posts == 1


def test_the_key_is_in_no_store(server: BatchServer, tmp_path: Path, clock: Clock) -> None:
    """What is kept on disk is answers and ids."""
    ask(server, ["a"], tmp_path / "s", clock)

    assert all(b"sk-the-key" not in path.read_bytes() for path in tmp_path.iterdir())


def test_errors_have_the_class_they_would_have_without_a_batch() -> None:
    """Anthropic's error objects have no status of their own; it is told from their type."""
    from kit_jupyter.errors import Overloaded
    from kit_jupyter.providers.batches import batch_service
    from kit_jupyter.providers.registry import open_provider

    provider = open_provider(ModelRef("anthropic", "claude-haiku-4-5"), api_key="sk-x")
    service = batch_service(provider)
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    from kit_jupyter.provider import ModelRequest

    outcome = service._outcome(  # type: ignore[attr-defined]
        {"type": "errored", "error": error}, ModelRequest(model=ModelRef("anthropic", "claude-haiku-4-5"), messages=())
    )

    assert isinstance(outcome, Overloaded)
    assert isinstance(outcome, ProviderError)
    assert json.dumps(outcome.message)


def test_a_replay_refuses_a_batch(
    server: BatchServer, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A recording holds no batch: said at once, and nothing goes out."""
    (tmp_path / "r.json").write_text('{"version": 1, "exchanges": []}')
    monkeypatch.setenv("KIT_REPLAY", "strict")
    monkeypatch.setenv("KIT_REPLAY_FILE", str(tmp_path / "r.json"))

    with pytest.raises(UsageError, match="recordings hold no batches"):
        ask(server, ["a"], tmp_path / "s", clock)

    assert server.posts == 0


# ---------------------------------------------------------------- the server is like the services


def test_openais_own_client_reads_what_we_sent(server: BatchServer, tmp_path: Path, clock: Clock) -> None:
    """The test's server speaks as the service does: the official client finds our batch and its results."""
    openai = pytest.importorskip("openai")
    ask(server, ["a", "b"], tmp_path / "s", clock)
    client = openai.OpenAI(base_url=server.url + "/v1", api_key="sk-x")

    batch = client.batches.retrieve("batch_1")
    lines = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]

    assert batch.status == "completed"
    assert batch.metadata["kit_batch"].startswith("kit_")
    answers = [openai.types.responses.Response.model_validate(line["response"]["body"] | PADDING) for line in lines]
    assert sorted(answer.output_text for answer in answers) == ["A", "B"]


PADDING = {"created_at": 0, "object": "response", "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}


def test_anthropics_own_client_reads_what_we_sent(server: BatchServer, tmp_path: Path, clock: Clock) -> None:
    """As above, for message batches; ours never follows ``results_url`` with the key."""
    anthropic = pytest.importorskip("anthropic")
    ask(server, ["a", "b"], tmp_path / "s", clock, model="anthropic/claude-haiku-4-5")
    client = anthropic.Anthropic(base_url=server.url, api_key="sk-x")
    server.results_url = ""

    batch = client.messages.batches.retrieve("batch_1")
    results = list(client.messages.batches.results("batch_1"))

    assert batch.processing_status == "ended"
    assert sorted(each.result.message.content[0].text for each in results) == ["A", "B"]
    assert len({each.custom_id for each in results}) == 2


def test_geminis_own_client_reads_what_we_sent(server: BatchServer, tmp_path: Path, clock: Clock) -> None:
    """As above, for inlined requests."""
    genai = pytest.importorskip("google.genai")
    ask(server, ["a", "b"], tmp_path / "s", clock, model="gemini/gemini-2.5-flash")
    client = genai.Client(api_key="sk-x", http_options={"base_url": server.url, "api_version": "v1beta"})

    batch = client.batches.get(name="batches/1")

    assert batch.state.name == "JOB_STATE_SUCCEEDED"
    answers = [each.response.text for each in batch.dest.inlined_responses]
    assert sorted(answers) == ["A", "B"]
    assert all(each.metadata["key"] for each in batch.dest.inlined_responses)


def test_the_official_clients_make_the_same_calls(server: BatchServer, tmp_path: Path, clock: Clock) -> None:
    """What they send is taken by the same server: our calls have the form of theirs."""
    openai, anthropic, genai = (pytest.importorskip(name) for name in ("openai", "anthropic", "google.genai"))
    line = {
        "custom_id": "x",
        "method": "POST",
        "url": "/v1/responses",
        "body": {"model": "m", "input": [{"content": "a"}]},
    }
    one = openai.OpenAI(base_url=server.url + "/v1", api_key="sk-x")
    file = one.files.create(file=("x.jsonl", json.dumps(line).encode()), purpose="batch")
    one.batches.create(
        input_file_id=file.id, endpoint="/v1/responses", completion_window="24h", metadata={"kit_batch": "n"}
    )
    params = {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}]}
    two = anthropic.Anthropic(base_url=server.url, api_key="sk-x")
    two.messages.batches.create(requests=[{"custom_id": "x", "params": params}])
    three = genai.Client(api_key="sk-x", http_options={"base_url": server.url, "api_version": "v1beta"})
    contents = [{"parts": [{"text": "a"}], "role": "user"}]
    three.batches.create(
        model="gemini-2.5-flash",
        src=[{"contents": contents, "metadata": {"key": "x"}}],
        config={"display_name": "n"},
    )

    assert server.rows == ["a", "a", "a"]
    assert [batch.name for batch in server.batches.values()] == ["n", "", "n"]
