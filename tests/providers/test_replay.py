# ruff: noqa: ASYNC240 (a test may look at its own small file)
"""Recordings: made, kept private, read by people, and played without key or network (U79, U106, U111)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit_jupyter.errors import ReplayMiss, UsageError, WireError
from kit_jupyter.messages import MediaPart, ModelRef, TextDelta, TextPart, ToolCallPart
from kit_jupyter.prompt import PromptMessage, ToolResultPart
from kit_jupyter.provider import asking_cell
from kit_jupyter.providers import registry, replay
from kit_jupyter.providers._client import Network
from kit_jupyter.providers._wire import WireProvider
from kit_jupyter.providers.codec import Endpoint
from kit_jupyter.providers.replay import Recording, normalised
from kit_jupyter.providers.replay.layout import write_exchanges

from .conftest import KEY, QUICK, ask, read
from .loopback import DONE, STOP, USED, Loopback, Out, Received, answer, refuse, said, silence, stream, whole
from .wire_cases import CODECS, ROOT, WireCase, codec_of, request_of

Make = Callable[..., WireProvider]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The recording of this test."""
    path = tmp_path / "recordings" / "demo.json"
    replay.use_file(path)
    return path


@pytest.fixture
def made(library: str) -> Callable[..., WireProvider]:
    """Makes a provider on the transport of a mode."""

    def make(url: str, how: str, *, api_key: str = KEY, needs_key: bool = True, **more: Any) -> WireProvider:
        network = Network(library=library)
        endpoint = Endpoint(name="demo", base_url=url, api_key=api_key)
        transport = replay.transport_for(network, how=how, **more)
        return WireProvider(
            codec_of("openai-chat"), endpoint, transport=transport, limits=QUICK, network=network, needs_key=needs_key
        )

    return make


@contextmanager
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Any connection fails the test."""

    def refused(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    with monkeypatch.context() as patch:
        patch.setattr("socket.socket.connect", refused)
        patch.setattr("socket.socket.connect_ex", refused)
        patch.setattr("socket.getaddrinfo", refused)
        patch.setattr("socket.create_connection", refused)
        yield


async def text_of(provider: WireProvider, text: str = "Hi", **more: Any) -> str:
    return (await read(provider.stream(ask(text, **more)))).text


# ---------------------------------------------------------------- record, then play


async def test_what_was_recorded_is_played_without_key_or_network(
    file: Path, made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strict: sockets blocked, no key, another address; the same deltas in the same pieces."""
    async with Loopback(stream(said("Hel") + said("lo"), said(" 🌍"), STOP, USED, DONE)) as server:
        live = [delta async for delta in made(server.url, "record").stream(ask())]
    replay.reset()

    with no_sockets(monkeypatch):
        strict = made("https://elsewhere.invalid/v1", "strict", api_key="")
        played = [delta async for delta in strict.stream(ask())]

    assert played == live
    assert [d.text for d in played if isinstance(d, TextDelta)] == ["Hello", " 🌍"]


async def test_auto_asks_once_and_plays_then(file: Path, made: Make) -> None:
    """What is missing is asked for and kept; what is there is not asked for again."""
    async with Loopback(answer("one")) as server:
        assert await text_of(made(server.url, "auto")) == "one"
        replay.reset()
        assert await text_of(made(server.url, "auto")) == "one"

        assert len(server.requests) == 1


async def test_record_asks_again_and_replaces(file: Path, made: Make) -> None:
    """The first of its kind in a run takes the place of what earlier runs recorded."""
    async with Loopback(answer("old"), answer("old too"), answer("new")) as server:
        first = made(server.url, "record")
        await text_of(first)
        await text_of(first)
        replay.reset()
        await text_of(made(server.url, "record"))
    replay.reset()

    assert len(Recording(file).exchanges) == 1
    assert await text_of(made("http://x.invalid/v1", "strict")) == "new"


async def test_equal_requests_are_answered_in_their_order_then_by_the_last(file: Path, made: Make) -> None:
    """Asking the same thing three times gave three answers."""
    async with Loopback(answer("a"), answer("b"), answer("c")) as server:
        live = made(server.url, "record")
        for _ in range(3):
            await text_of(live)
    replay.reset()
    played = made("http://x.invalid/v1", "strict")

    assert [await text_of(played) for _ in range(5)] == ["a", "b", "c", "c", "c"]


async def test_two_streams_at_once_are_played_whole(file: Path, made: Make) -> None:
    """Recorded and played side by side."""

    async def echo(request: Received, out: Out) -> None:
        await stream(*(said(c) for c in request.json["messages"][-1]["content"]), STOP, DONE)(request, out)

    async with Loopback(echo) as server:
        live = made(server.url, "record")
        await asyncio.gather(text_of(live, "abc"), text_of(live, "xyz"))
    replay.reset()
    played = made("http://x.invalid/v1", "strict")

    assert await asyncio.gather(text_of(played, "xyz"), text_of(played, "abc")) == ["xyz", "abc"]


async def test_a_plain_json_answer_is_kept_as_such(file: Path, made: Make) -> None:
    """And played as one."""
    body = {"id": "r", "model": "m", "choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
    async with Loopback(whole(json.dumps(body).encode())) as server:
        await text_of(made(server.url, "record"))
    replay.reset()

    assert json.loads(file.read_text())["exchanges"][0]["answer"]["json"]["choices"] == body["choices"]
    assert await text_of(made("http://x.invalid/v1", "strict")) == "Hi"


async def test_a_refusal_that_the_request_caused_is_kept_others_are_not(file: Path, made: Make) -> None:
    """A 404 is part of the story, a 401 or 503 is weather."""
    async with Loopback(
        refuse(404, {"error": {"message": "no such model"}}), refuse(401, {"error": {"message": "x"}})
    ) as server:
        live = made(server.url, "record")
        for text in ("a", "b"):
            with pytest.raises(Exception, match="HTTP"):
                await text_of(live, text)
    replay.reset()
    played = made("http://x.invalid/v1", "strict")

    with pytest.raises(Exception, match="no such model"):
        await text_of(played, "a")
    with pytest.raises(ReplayMiss):
        await text_of(played, "b")


async def test_a_stopped_answer_is_not_kept(file: Path, made: Make) -> None:
    """Half an answer would play as a cut one."""
    async with Loopback(silence(said("Hi"))) as server:
        deltas = made(server.url, "record").stream(ask())
        async for delta in deltas:
            if isinstance(delta, TextDelta):
                break
        await deltas.aclose()  # type: ignore[attr-defined]
        await asyncio.wait_for(server.closed.wait(), 2)

    assert not file.exists()


async def test_a_cut_answer_is_not_kept(file: Path, made: Make) -> None:
    """Nor one that is no answer."""
    async with Loopback(stream(said("Hi"))) as server:
        with pytest.raises(WireError):
            await text_of(made(server.url, "record"))

    assert not file.exists()


async def test_a_transport_of_one_s_own_is_not_called_while_the_recording_answers(
    file: Path, made: Make, library: str
) -> None:
    """A local model needs neither weights nor a child process to replay (issue 2)."""
    from kit_jupyter.providers._client import http_library

    httpx = http_library(library)
    started = 0

    class Child(httpx.AsyncBaseTransport):  # type: ignore[misc, name-defined]
        async def handle_async_request(self, request: Any) -> Any:
            nonlocal started
            started += 1
            return httpx.Response(
                200, content=said("child") + STOP + DONE, headers={"content-type": "text/event-stream"}
            )

    for _ in range(2):
        assert await text_of(made("http://kit.localhost/v1", "auto", inner=Child())) == "child"
        replay.reset()
    assert await text_of(made("http://kit.localhost/v1", "strict", inner=Child())) == "child"

    assert started == 1


# ---------------------------------------------------------------- what a request means


async def test_ids_times_ports_and_folders_do_not_matter(file: Path, made: Make, tmp_path: Path) -> None:
    """The next run on another machine sends other ids, times and addresses, and means the same."""

    def talk(call_id: str, when: str, port: int, address: str) -> dict[str, Any]:
        noise = f"<Figure at {address}> {when} http://127.0.0.1:{port}/x took 0.{port} s in {Path.cwd()}/nb"
        return {
            "messages": (
                PromptMessage("user", (TextPart("plot"),)),
                PromptMessage("assistant", (ToolCallPart(call_id, "run", "{}"),)),
                PromptMessage("tool", (ToolResultPart(call_id, "run", (TextPart(noise),)),)),
            ),
            "session_id": f"ses_{call_id}",
        }

    async with Loopback(answer("done")) as server:
        await text_of(made(server.url, "record"), **talk("call_1", "2026-11-30T10:00:00.123Z", 5001, "0x7f00aa12"))
    replay.reset()
    again = talk("call_zzz", "2027-01-02 11:30", 61234, "0x55d1c0ffee")

    assert await text_of(made("http://x.invalid/v1", "strict"), **again) == "done"


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.1},
        {"system": "other"},
        {"model": ModelRef("demo", "other")},
        {"messages": (PromptMessage("user", (TextPart("hi"),)),)},
    ],
)
async def test_what_matters_matters(file: Path, made: Make, change: dict[str, Any]) -> None:
    """Another model, setting, instruction or word is another request."""
    async with Loopback(answer("done")) as server:
        await text_of(made(server.url, "record"))
    replay.reset()

    with pytest.raises(ReplayMiss):
        await read(made("http://x.invalid/v1", "strict").stream(ask(**change)))


def test_normalising_twice_changes_nothing() -> None:
    """What stands in the file matches what is asked."""
    body = {
        "id": "x",
        "messages": [
            {"tool_calls": [{"id": "call_1"}], "signature": "s" * 80},
            {"tool_call_id": "call_1", "content": f"at 0xdeadbeef {KEY} 2026-01-01 " + "A" * 900},
        ],
    }

    once = normalised(body)

    assert normalised(once) == once
    assert once["messages"][0]["tool_calls"][0]["id"] == once["messages"][1]["tool_call_id"]
    assert KEY not in json.dumps(once)
    assert len(json.dumps(once)) < 500


@pytest.mark.parametrize("protocol", list(CODECS))
def test_a_whole_conversation_replays_in_each_wire(
    protocol: str, file: Path, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Signatures and encrypted reasoning go to the file as digests, back to us, and out again with the next turn."""
    name = {
        "openai-chat": "openrouter-stream-reasoning-details-tool",
        "anthropic-messages": "chain-thinking-tool-turn1",
        "openai-responses": "stream-encrypted-reasoning-tool",
        "gemini": "stream-thinking-tool",
    }[protocol]
    folder = ROOT / protocol / name
    if not folder.is_dir():
        pytest.skip(f"no recorded cases at {ROOT}; set KIT_WIRE_CASES to their folder")
    case = WireCase(protocol, name, folder)

    async def talk(url: str, how: str) -> tuple[list[Any], str]:
        network = Network(library=library)
        endpoint = Endpoint(name="demo", base_url=url, api_key=KEY if how == "record" else "")
        provider = WireProvider(
            codec_of(protocol),
            endpoint,
            transport=replay.transport_for(network, how=how),
            limits=QUICK,
            network=network,
        )
        first_request = request_of(case)
        asked = ask(model=first_request.model)
        first = await read(provider.stream(asked))
        history = [*asked.messages, PromptMessage("assistant", first.parts, message_id="a1")]
        for part in first.parts:
            if isinstance(part, ToolCallPart):
                result = ToolResultPart(part.call_id, part.name, (TextPart("15 °C"),))
                history.append(PromptMessage("tool", (result,), message_id="t1"))
        then = await read(provider.stream(ask(model=first_request.model, messages=tuple(history))))
        await provider.close()
        return [type(part) for part in first.parts], then.text + str(then.finished)

    async def run() -> None:
        async with Loopback(stream(case.body)) as server:
            live = await talk(server.url, "record")
            assert len(server.requests) == 2
        replay.reset()
        with no_sockets(monkeypatch):
            assert await talk("https://elsewhere.invalid/v1", "strict") == live

    asyncio.run(run())
    kept = file.read_text()
    assert "opaque-" in kept
    for secret in _secrets(case):
        assert secret not in kept


def _secrets(case: WireCase) -> list[str]:
    """Signatures and encrypted pieces in a recorded body."""
    import re

    text = case.body.decode()
    found = re.findall(r'"(?:signature|thoughtSignature|encrypted_content)"\s*:\s*"([^"]{40,})"', text)
    assert found
    return found


# ---------------------------------------------------------------- the file


async def test_the_file_is_made_for_people(file: Path, made: Make) -> None:
    """One line a network read, repetition referred to, no ids of a run, and the same bytes each time."""
    system = "You are helpful. " * 10

    async def record() -> str:
        file.unlink(missing_ok=True)
        replay.reset()
        async with Loopback(answer("Hi"), answer("Yo")) as server:
            live = made(server.url, "record")
            token = asking_cell.set("cell 3")
            await text_of(live, "first", system=system)
            history = (*ask("first").messages, PromptMessage("assistant", (TextPart("Hi"),)), *ask("then").messages)
            await text_of(live, messages=history, system=system)
            asking_cell.reset(token)
        return file.read_text()

    text = await record()

    assert text == await record()
    entries = json.loads(text)["exchanges"]
    assert [entry["cell"] for entry in entries] == ["cell 3", "cell 3"]
    assert entries[1]["request"]["messages"][0] == {"$from": 1}
    assert [m["role"] for m in entries[1]["request"]["messages"][1:]] == ["assistant", "user"]
    assert text.count(system) == 1
    reads = [line for line in text.splitlines() if line.strip().startswith('[{"data"')]
    assert len(reads) == 10
    assert all("created" not in line for line in reads)


async def test_no_secret_reaches_the_file(file: Path, made: Make) -> None:
    """Not the key, not one in an answer, not headers, not a picture's bytes (U73)."""
    picture = "iVBORw0KGgo" + "A" * 2000
    async with Loopback(
        stream(said(f"your key is {KEY}"), STOP, DONE, headers={"openai-organization": "org-secret"})
    ) as server:
        live = made(server.url, "record")
        asked = ask(messages=(PromptMessage("user", (TextPart(f"my key is {KEY}"), MediaPart("image/png", picture))),))
        await read(live.stream(asked))

    text = file.read_text()
    assert KEY not in text
    assert "org-secret" not in text
    assert picture not in text
    assert "authorization" not in text.lower()
    replay.reset()
    assert await read(made("http://x.invalid/v1", "strict").stream(asked))


async def test_a_recording_edited_by_hand_is_played(file: Path, made: Make) -> None:
    """Words may be changed, and a change on disk is seen by a running kernel."""
    async with Loopback(answer("Hi")) as server:
        await text_of(made(server.url, "record"))
    file.write_text(file.read_text().replace('"H"', '"Hurray, H"'))

    assert await text_of(made("http://x.invalid/v1", "strict")) == "Hurray, Hi"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: "{broken", "line 1"),
        (lambda d: json.dumps([1]), "not a recording"),
        (lambda d: json.dumps({**d, "kit_recording": 99}), "newer"),
        (lambda d: json.dumps({**d, "exchanges": [{}]}), "exchange 1"),
        (lambda d: json.dumps({**d, "exchanges": [{**d["exchanges"][0], "answer": {"status": 200}}]}), "stream, json"),
        (
            lambda d: json.dumps(
                {**d, "exchanges": [{**d["exchanges"][0], "answer": {"status": 200, "stream": ["x"]}}]}
            ),
            "exchange 1",
        ),
        (
            lambda d: json.dumps({**d, "exchanges": [{**d["exchanges"][0], "request": {"messages": [{"$from": 7}]}}]}),
            "exchange 7",
        ),
    ],
)
async def test_a_recording_that_cannot_be_read_is_named(
    file: Path, made: Make, change: Callable[[Any], str], words: str
) -> None:
    """Broken, of another version, or with a piece missing: file, place and what to do."""
    async with Loopback(answer("Hi")) as server:
        await text_of(made(server.url, "record"))
    file.write_text(change(json.loads(file.read_text())))
    replay.reset()

    with pytest.raises(UsageError, match=words) as caught:
        await text_of(made("http://x.invalid/v1", "strict"))

    assert "demo.json" in str(caught.value)


def test_a_recording_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    """Bad input: the place is a folder."""
    place = tmp_path / "recordings" / "demo.json"
    place.mkdir(parents=True)

    with pytest.raises(UsageError, match="cannot write the recording"):
        write_exchanges(place, [])
    assert list(place.parent.iterdir()) == [place]


# ---------------------------------------------------------------- misses


async def test_a_miss_names_cell_nearest_recording_and_difference(file: Path, made: Make) -> None:
    """All that is needed to mend the notebook (U111)."""
    async with Loopback(answer("Hi")) as server:
        live = made(server.url, "record")
        asking_cell.set("cell 1")
        await text_of(live, "Plot the sales of last year by month")
        asking_cell.set("cell 2")
        await text_of(live, "Something else entirely, about bananas")
    replay.reset()
    asking_cell.set("cell 7")

    with pytest.raises(ReplayMiss) as caught:
        await text_of(made("http://x.invalid/v1", "strict"), "Plot the sales of last year by week")

    message = str(caught.value)
    for words in (
        "cell 7",
        "Plot the sales of last year by week",
        "exchange 1, cell 1",
        "by month",
        "demo.json",
        "KIT_REPLAY=record",
    ):
        assert words in message


async def test_a_missing_file_is_named(file: Path, made: Make) -> None:
    """With what to do."""
    with pytest.raises(ReplayMiss, match=r"no file .*demo\.json.*KIT_REPLAY=record"):
        await text_of(made("http://x.invalid/v1", "strict"))


async def test_auto_without_a_key_is_a_miss_not_a_refusal(
    file: Path, made: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Docs build without a key; what is missing is named (U111)."""
    with no_sockets(monkeypatch), pytest.raises(ReplayMiss, match="no key"):
        await text_of(made("https://service.invalid/v1", "auto", api_key=""))


async def test_auto_without_a_network_is_a_miss(file: Path, made: Make) -> None:
    """The service cannot be reached, and the recording has no answer."""
    with pytest.raises(ReplayMiss, match="cannot be reached"):
        await text_of(made("http://127.0.0.1:9/v1", "auto"))


# ---------------------------------------------------------------- settings


def test_modes() -> None:
    """Off by default; an unknown word is refused."""
    assert replay.mode({}) == "off"
    assert replay.mode({"KIT_REPLAY": " Strict "}) == "strict"
    assert replay.transport_for(how="off") is None
    assert replay.mode({"KIT_REPLAY": "0"}) == "off"
    with pytest.raises(UsageError, match="cassette"):
        replay.mode({"KIT_REPLAY": "cassette"})


def test_where_the_file_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the notebook, by its name; without one, in every file there; or where one says."""
    monkeypatch.chdir(tmp_path)
    assert replay.recording_file({}) == Path("recordings/notebook.json")
    assert replay.recording_file({"JPY_SESSION_NAME": "/a/b/01_intro.ipynb"}) == Path("recordings/01_intro.json")
    assert replay.recording_file({"KIT_REPLAY_FILE": "/x/y.json"}) == Path("/x/y.json")
    Path("recordings").mkdir()
    Path("recordings/only.json").write_text("{}")
    assert replay.recording_file({}) == Path("recordings/notebook.json")
    assert replay.recording_files({}) == (Path("recordings/notebook.json"), Path("recordings/only.json"))
    replay.use_file("chosen.json")
    assert replay.recording_file({"KIT_REPLAY_FILE": "/x/y.json"}) == Path("chosen.json")


async def test_the_recorded_model_is_chosen_and_opened(file: Path, made: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook that names no model replays with the one it was recorded with, without key or network."""
    async with Loopback(answer("Hi")) as server:
        await made(server.url, "record").close()
        monkeypatch.setenv("KIT_REPLAY", "record")
        live = registry.open_provider(ModelRef("groq", "m"), base_url=server.url, api_key=KEY)
        await read(live.stream(ask(model=ModelRef("groq", "m"))))
        await live.close()
    replay.reset()
    monkeypatch.setenv("KIT_REPLAY", "strict")

    with no_sockets(monkeypatch):
        choice = registry.choose()
        provider = registry.open_provider(choice.ref)
        played = await read(provider.stream(ask(model=choice.ref)))

    assert str(choice.ref) == "groq/m"
    assert "recording" in choice.why
    assert played.text == "Hi"


async def test_a_recording_can_be_named_as_a_model(file: Path, made: Make) -> None:
    """``replay/provider/model`` plays whatever KIT_REPLAY says; ``replay/default`` takes the first."""
    async with Loopback(answer("Hi")) as server:
        live = registry.open_provider(
            ModelRef("groq", "m"), base_url=server.url, api_key=KEY, transport=replay.transport_for(how="record")
        )
        await read(live.stream(ask(model=ModelRef("groq", "m"))))
    replay.reset()

    for name in ("replay/default", "replay/groq/m"):
        ref = ModelRef.parse(name)
        provider = registry.open_provider(ref)
        assert (await read(provider.stream(ask(model=ref)))).text == "Hi"
        await provider.close()
