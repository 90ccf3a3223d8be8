"""A planted key is looked for in everything that a talk leaves behind (U73, issue 5 point 6)."""

from __future__ import annotations

import base64
import dataclasses
import io
import json
import logging
import pickle
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from kit_jupyter import Kit
from kit_jupyter.errors import KitError
from kit_jupyter.messages import ModelRef
from kit_jupyter.providers import replay
from kit_jupyter.providers.registry import ROWS, open_provider
from kit_jupyter.testing_contract import Scenario, ScriptedCall

from .conftest import KEY
from .contract_services import SERVICES, reply_for
from .loopback import Loopback, refuse


def forms() -> list[bytes]:
    """The key as it may be written: plain, base64, reversed, and its tail alone."""
    raw = KEY.encode()
    return [raw, base64.b64encode(raw), raw[::-1], raw[-16:], raw.hex().encode()]


def assert_clean(data: bytes | str, where: str) -> None:
    """No form of the key is in it."""
    text = data.encode("utf-8", "replace") if isinstance(data, str) else data
    for form in forms():
        assert form not in text, f"the key is in {where}: …{text[max(0, text.index(form) - 60) : text.index(form)]!r}"


def files_under(*folders: Path) -> list[Path]:
    return [path for folder in folders for path in folder.rglob("*") if path.is_file()]


def row_of(protocol: str) -> str:
    return next(row.name for row in ROWS if row.wire == protocol)


@pytest.mark.parametrize("protocol", list(SERVICES))
@pytest.mark.parametrize("way", ["environment", "argument"])
async def test_a_talk_leaves_no_key_behind(
    protocol: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Session, recording, events, last request, reprs, log at its most talkative, output: nothing holds it."""
    row = next(row for row in ROWS if row.name == row_of(protocol))
    monkeypatch.setenv("KIT_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("KIT_REPLAY", "record")
    monkeypatch.chdir(tmp_path)
    if way == "environment":
        monkeypatch.setenv(row.key_env[0], KEY)
    caplog.set_level(logging.DEBUG)
    call = ScriptedCall("call_1", "look", {})
    tool_turn = Scenario(name="tool", text=("Let me look.",), calls=(call,), stop="tool_calls")
    last = Scenario(name="text", text=("Done.",))

    def look() -> str:
        "Look."
        return "a result"

    out, err = io.StringIO(), io.StringIO()
    async with Loopback(reply_for(protocol, tool_turn), reply_for(protocol, last)) as server:
        provider: Any = open_provider(
            ModelRef(row.name, "m"), base_url=server.url, api_key=KEY if way == "argument" else None
        )
        kit = Kit(model=f"{row.name}/m", provider=provider, tools=[look], permissions=[("look", "*", "allow")])
        seen: list[Any] = []
        kit.subscribe(seen.append)
        with redirect_stdout(out), redirect_stderr(err):
            result = await kit.prompt("Look, please")
        assert str(result) == "Done."
        shown = [
            repr(kit),
            repr(result),
            repr(dataclasses.asdict(result)),
            repr(kit.messages),
            repr(tuple(kit.messages)),
            repr(kit.last_request),
            repr(provider),
            repr(provider.endpoint),
        ]
        shown += [str(kit.last_request), repr(vars(result)) if hasattr(result, "__dict__") else ""]
        await kit.aclose()

    sent = server.requests[0]
    assert any(KEY in value for value in sent.headers.values()), "the key did not reach the service: the test is void"
    assert KEY not in sent.path
    assert_clean(sent.body, "the request's body")
    assert_clean("\n".join(shown), "a repr")
    assert_clean("\n".join(json.dumps(event.to_json(), default=repr) for event in seen), "an event")
    assert_clean("\n".join(record.getMessage() + repr(record.args) for record in caplog.records), "the log")
    assert_clean(out.getvalue() + err.getvalue(), "the output")
    found = files_under(tmp_path)
    assert any(path.suffix == ".json" and "recordings" in path.parts for path in found), "nothing was recorded"
    assert any(path.suffix == ".jsonl" for path in found), "no session was written"
    for path in found:
        assert_clean(path.read_bytes(), str(path.relative_to(tmp_path)))


@pytest.mark.parametrize("protocol", list(SERVICES))
async def test_an_error_that_echoes_the_key_shows_none(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Message, repr, traceback, facts, pickle, stored message and event."""
    row = row_of(protocol)
    monkeypatch.setenv("KIT_DATA_DIR", str(tmp_path / "data"))
    body = {"error": {"message": f"Incorrect API key provided: {KEY}", "type": "authentication_error", "param": KEY}}
    async with Loopback(refuse(401, body)) as server:
        provider: Any = open_provider(ModelRef(row, "m"), base_url=server.url, api_key=KEY)
        kit = Kit(model=f"{row}/m", provider=provider)
        seen: list[Any] = []
        kit.subscribe(seen.append)
        with pytest.raises(KitError) as caught:
            await kit.prompt("Hi")
        await kit.aclose()

    error: BaseException | None = caught.value
    while error is not None:
        assert_clean("".join(traceback.format_exception(error)), "a traceback")
        assert_clean(repr(error) + repr(vars(error)), "the facts of an error")
        assert_clean(pickle.dumps(error), "a pickled error")
        error = error.__cause__ or error.__context__
    assert_clean("\n".join(json.dumps(event.to_json(), default=repr) for event in seen), "an event")
    for path in files_under(tmp_path):
        assert_clean(path.read_bytes(), str(path.relative_to(tmp_path)))


async def test_locals_in_a_traceback_show_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """IPython's verbose mode prints the locals of every frame."""
    async with Loopback(refuse(404, {"error": {"message": "no such model"}})) as server:
        provider: Any = open_provider(ModelRef("openai-chat", "m"), base_url=server.url, api_key=KEY)
        from .conftest import ask

        with pytest.raises(KitError) as caught:
            async for _ in provider.stream(ask(model=ModelRef("openai-chat", "m"))):
                pass
        await provider.close()

    shown = traceback.TracebackException.from_exception(caught.value, capture_locals=True)
    lines = [line for line in shown.format() if "KEY" not in line]
    assert_clean("".join(lines), "the locals of a frame")


def test_a_recording_of_a_key_in_the_talk_is_clean() -> None:
    """A key that a person pasted is masked in the file too."""
    value = replay.normalised({"messages": [{"role": "user", "content": f"my key is {KEY}"}]})

    assert_clean(json.dumps(value), "a normalised request")
