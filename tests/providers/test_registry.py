"""Which providers there are, how each is opened, and which is chosen when none is named (U72, U74, U75)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from kit_jupyter.errors import UsageError
from kit_jupyter.messages import ModelRef
from kit_jupyter.provider import ModelInfo, Provider
from kit_jupyter.providers import keys, registry, replay
from kit_jupyter.providers._models import info_of
from kit_jupyter.providers.registry import ROWS, Choice, Row, choose, names, open_provider

from .conftest import KEY, ask, read
from .loopback import Loopback, answer


def opened(name: str, **more: Any) -> Any:
    return open_provider(ModelRef.parse(name), **more)


# ---------------------------------------------------------------- rows


def test_every_row_opens_with_its_own_variables() -> None:
    """Key and address are found under the names that the vendor's SDK reads; the codec is there."""
    for row in ROWS:
        environ = dict.fromkeys(row.key_env, KEY)
        for name in ("AZURE_OPENAI_ENDPOINT", "DATABRICKS_HOST"):
            environ[name] = "https://host.example/"
        environ |= {
            "CLOUDFLARE_ACCOUNT_ID": "acc",
            "AWS_REGION": "eu-west-1",
            "GOOGLE_CLOUD_LOCATION": "eu-west1",
            "GOOGLE_CLOUD_PROJECT": "p",
            "KIT_OPENAI_COMPATIBLE_BASE_URL": "http://h/v1",
        }

        made = opened(f"{row.name}/some-model", environ=environ)

        assert isinstance(made, Provider)
        assert made.name == row.name
        assert made.codec.wire == row.wire
        assert made.endpoint.api_key == KEY
        assert made.endpoint.base_url.startswith("http")
        assert "{" not in made.endpoint.base_url
        assert not made.endpoint.base_url.endswith("/")
        assert isinstance(made.info("some-model"), ModelInfo)


def test_names_are_distinct_and_defaults_are_known() -> None:
    """Two rows of one name would hide one; a default that no price table knows is likely misspelt."""
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)

    data = pytest.importorskip("genai_prices.data")
    known = {model.id for provider in data.providers for model in provider.models}
    for row in ROWS:
        if row.model:
            tail = row.model.rsplit("/", 1)[-1]
            assert row.model in known or tail in known or any(tail in model for model in known), row


def test_windows_agree_with_the_price_table() -> None:
    """Our short table says nothing that the long one contradicts."""
    data = pytest.importorskip("genai_prices.data")
    wrong = []
    for provider in data.providers:
        if provider.id not in ("openai", "anthropic", "google", "x-ai", "deepseek"):
            continue
        for model in provider.models:
            ours = info_of(model.id).context_window
            if ours and model.context_window and not 0.9 <= ours / model.context_window <= 1.1:
                wrong.append((model.id, ours, model.context_window))

    assert wrong == []


@pytest.mark.parametrize(
    ("environ", "given", "expected"),
    [
        ({}, None, "https://api.groq.com/openai/v1"),
        ({"GROQ_BASE_URL": "https://gw/groq/"}, None, "https://gw/groq"),
        ({"GROQ_BASE_URL": "https://gw/groq", "KIT_GROQ_BASE_URL": "https://kit"}, None, "https://kit"),
        ({"GROQ_BASE_URL": "https://gw/groq"}, "https://arg/v1/", "https://arg/v1"),
    ],
)
def test_the_address_comes_from_the_first_place_that_names_one(
    environ: dict[str, str], given: str | None, expected: str
) -> None:
    """Argument, ours, the SDK's, the row's (U74)."""
    assert opened("groq/m", environ=environ, base_url=given).endpoint.base_url == expected


def test_the_user_s_file_sets_a_provider_s_network() -> None:
    """Address, headers, proxy and certificates by config; the environment goes before (U74)."""
    keys.store("groq", base_url="https://file", headers={"X-Team": "a"}, proxy="http://p:1", ca_bundle="/ca.pem")

    made = opened("groq/m", environ={"KIT_GROQ_HEADERS": "X-Team: b; X-More: c", "KIT_CA_BUNDLE": ""})

    assert made.endpoint.base_url == "https://file"
    assert made.endpoint.headers == {"x-team": "b", "x-more": "c"}
    assert (made.network.proxy, made.network.ca_bundle) == ("http://p:1", "/ca.pem")


@pytest.mark.parametrize("text", ["no colon", "{broken", "[1]"])
def test_headers_of_a_wrong_shape_are_refused(text: str) -> None:
    """The variable is named."""
    with pytest.raises(UsageError, match="KIT_GROQ_HEADERS"):
        opened("groq/m", environ={"KIT_GROQ_HEADERS": text})


def test_organisation_headers_of_openai_are_sent() -> None:
    """As its SDK does."""
    made = opened("openai-chat/m", environ={"OPENAI_ORG_ID": "org-1", "OPENAI_PROJECT_ID": "proj-1"})

    assert made.endpoint.headers == {"openai-organization": "org-1", "openai-project": "proj-1"}


def test_an_address_that_needs_a_variable_names_it() -> None:
    """Azure without an endpoint."""
    with pytest.raises(UsageError, match="AZURE_OPENAI_ENDPOINT"):
        opened("azure/my-deployment", environ={})


def test_a_query_in_the_address_is_kept() -> None:
    """Azure's older form with api-version."""
    made = opened(
        "azure/d", environ={}, base_url="https://r.openai.azure.com/openai/deployments/d?api-version=2024-10-21"
    )

    assert made.endpoint.base_url == "https://r.openai.azure.com/openai/deployments/d"
    assert made.endpoint.query == {"api-version": "2024-10-21"}


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0:9999", "http://127.0.0.1:9999/v1"),
        ("http://box:1234", "http://box:1234/v1"),
        ("https://box/ollama/v1", "https://box/ollama/v1"),
    ],
)
def test_ollama_s_own_variable_is_understood(host: str, expected: str) -> None:
    """OLLAMA_HOST is what the server listens at (U75)."""
    assert opened("ollama/m", environ={"OLLAMA_HOST": host}).endpoint.base_url == expected


def test_a_local_server_needs_one_line_and_no_key() -> None:
    """Its models' windows are its own business."""
    made = opened("ollama/gpt-oss:20b", environ={})

    assert made.endpoint.api_key == ""
    assert made.info("gpt-oss:20b") == ModelInfo()


async def test_a_local_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for Ollama, llama.cpp and the like (U75)."""
    async with Loopback(answer("local")) as server:
        for name in ("ollama", "lmstudio", "llamacpp", "vllm", "openai-compatible"):
            made = opened(f"{name}/m", base_url=server.url, environ={})
            assert (await read(made.stream(ask()))).text == "local"
            await made.close()


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(("name", "near"), [("antropic", "anthropic"), ("openia", "openai"), ("ollamma", "ollama")])
def test_an_unknown_provider_names_the_nearest(name: str, near: str) -> None:
    """The caller's move."""
    with pytest.raises(UsageError, match=f"did you mean {near}/m"):
        opened(f"{name}/m")


def test_any_model_id_passes() -> None:
    """Services name new models every week; an unknown one only lacks facts."""
    made = opened("openai/a-model-of-next-year", environ={"OPENAI_API_KEY": KEY})

    assert made.info("a-model-of-next-year") == ModelInfo()


def test_a_row_and_a_callable_can_be_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a provider of one's own; a name must be one."""
    monkeypatch.setattr(names, "_registered", {})
    row = Row(name="mine", title="Mine", wire="openai-chat", base_url="https://mine/v1")
    registry.register("mine", row)
    made: list[Any] = []
    registry.register("other", lambda ref, **options: made.append((ref, options)) or opened("mine/x"))

    assert opened("mine/m").endpoint.base_url == "https://mine/v1"
    opened("other/m", api_key="k")
    assert made == [(ModelRef("other", "m"), {"base_url": None, "api_key": "k"})]
    with pytest.raises(UsageError, match="lower-case"):
        registry.register("Not A Name", row)


class Point:
    """An entry point of another package."""

    name, value = "guest", "guest_package:provider"

    def __init__(self, made: Any) -> None:
        self.made = made

    def load(self) -> Any:
        if isinstance(self.made, Exception):
            raise self.made
        return self.made


def test_other_packages_bring_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Entry-point group ``kit_jupyter.providers``; one that does not load is named."""
    row = Row(name="guest", title="Guest", wire="openai-chat", base_url="https://guest/v1")
    monkeypatch.setattr(names, "_entry_points", lambda: {"guest": Point(row)})
    assert opened("guest/m").endpoint.base_url == "https://guest/v1"
    assert "guest" in registry.known_names()

    monkeypatch.setattr(names, "_entry_points", lambda: {"guest": Point(ImportError("no module"))})
    with pytest.raises(UsageError, match="guest_package"):
        opened("guest/m")


# ---------------------------------------------------------------- choosing


def test_a_setting_goes_before_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then KIT_MODEL, then keys in the order of the table."""
    environ = {"KIT_MODEL": "groq/m", "ANTHROPIC_API_KEY": KEY}

    assert choose(environ, explicit="ollama/x") == Choice(ModelRef("ollama", "x"), "the setting")
    assert choose(environ) == Choice(ModelRef("groq", "m"), "KIT_MODEL")
    assert choose({"ANTHROPIC_API_KEY": KEY, "OPENAI_API_KEY": KEY}).ref.provider == "anthropic"
    assert choose({"OPENAI_API_KEY": KEY}).why == "OPENAI_API_KEY is set"


def test_a_wrong_setting_is_an_error_not_another_model() -> None:
    """Nothing is chosen behind the caller's back."""
    with pytest.raises(UsageError, match="unknown provider"):
        choose({"KIT_MODEL": "nobody/m"})
    with pytest.raises(UsageError, match="provider/id"):
        choose({}, explicit="gpt-4o")


def test_tokens_for_other_things_choose_nothing() -> None:
    """GITHUB_TOKEN is set in every CI run."""
    assert choose({"GITHUB_TOKEN": "x"}, probe=False).ref.provider == "local"


def test_the_built_in_model_is_last() -> None:
    """And says why."""
    found = choose({}, probe=False)

    assert found.ref == ModelRef("local", "default")
    assert "no key" in found.why


class Models(BaseHTTPRequestHandler):
    """A local server that lists models, or something else on its port."""

    reply: tuple[int, bytes] = (200, b"")

    def do_GET(self) -> None:
        status, body = self.reply
        if status == 0:
            time.sleep(1)
            return
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def local() -> Iterator[HTTPServer]:
    server = HTTPServer(("127.0.0.1", 0), Models)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def around(server: HTTPServer) -> dict[str, str]:
    """An environment where only this server is looked at."""
    free = {"LMSTUDIO_BASE_URL": "http://127.0.0.1:9/v1", "LLAMACPP_BASE_URL": "http://127.0.0.1:9/v1"}
    return {**free, "OLLAMA_HOST": f"127.0.0.1:{server.server_address[1]}"}


def test_a_server_on_this_machine_is_found(local: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its first chat model (U75)."""
    listed = {"data": [{"id": "nomic-embed-text"}, {"id": "qwen3:8b"}]}
    monkeypatch.setattr(Models, "reply", (200, json.dumps(listed).encode()))

    found = choose(around(local))

    assert found.ref == ModelRef("ollama", "qwen3:8b")
    assert "Ollama answers" in found.why


def test_what_a_person_may_pick(local: HTTPServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Services with a key, every chat model of a server that answers, the built-in ones; nothing without a key."""
    listed = {"data": [{"id": "nomic-embed-text"}, {"id": "qwen3:8b"}, {"id": "gemma3"}]}
    monkeypatch.setattr(Models, "reply", (200, json.dumps(listed).encode()))
    environ = {**around(local), "ANTHROPIC_API_KEY": KEY, "GROQ_API_KEY": "not a key", "GITHUB_TOKEN": KEY}

    found = registry.offered(environ)

    assert [name for name in found if not name.startswith("local/")] == [
        "anthropic/claude-sonnet-5-5",
        "ollama/qwen3:8b",
        "ollama/gemma3",
    ]
    assert len(found) == len(set(found))


@pytest.mark.parametrize("reply", [(404, b""), (200, b"<html>"), (200, b'{"data": []}'), (200, b"[1]"), (0, b"")])
def test_another_program_on_the_port_is_not_taken(
    local: HTTPServer, monkeypatch: pytest.MonkeyPatch, reply: tuple[int, bytes]
) -> None:
    """A web server, an empty list, a page, or one that does not answer in time."""
    monkeypatch.setattr(Models, "reply", reply)
    begin = time.monotonic()

    assert choose(around(local)).ref.provider == "local"
    assert time.monotonic() - begin < 1


def test_only_this_machine_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """No address elsewhere is tried on anybody's behalf."""
    asked: list[object] = []
    monkeypatch.setattr("http.client.HTTPConnection", lambda *a, **k: asked.append(a))
    far = {"OLLAMA_HOST": "http://10.0.0.1:1", "LMSTUDIO_BASE_URL": "https://x/v1", "LLAMACPP_BASE_URL": "http://x/v1"}

    assert choose(far).ref.provider == "local"
    assert asked == []


def test_nobody_is_asked_in_strict_replay() -> None:
    """No connection at all."""
    assert choose({"KIT_REPLAY": "strict"}).ref.provider == "local"


def test_a_key_of_login_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any variable."""
    keys.store("mistral", api_key=KEY)

    found = choose({}, probe=False)

    assert found.ref.provider == "mistral"
    assert KEY not in found.why


# ---------------------------------------------------------------- people


def test_the_table_for_the_readme_names_every_row() -> None:
    """Generated, so that it cannot be wrong."""
    table = registry.provider_table()

    assert all(f"`{row.name}/`" in table for row in ROWS)
    assert all(line.count("|") == 6 for line in table.strip().splitlines())


def test_importing_the_registry_is_light() -> None:
    """No client, no codec, no pydantic models, no recordings, no network (U79); nor does choosing by a key."""
    import subprocess
    import sys

    code = (
        "import sys, socket\n"
        "def refuse(*_): raise SystemExit('a connection')\n"
        "socket.socket.connect = refuse\n"
        "from kit_jupyter.providers import registry\n"
        "heavy = {'httpx', 'httpx2', 'pydantic', 'genai_prices', 'keyring', 'kit_jupyter.providers.replay'}\n"
        "assert registry.choose({'GROQ_API_KEY': 'k'}).ref.provider == 'groq'\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_bridge_is_not_taken_for_replayable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strict means no network; its clients are not ours."""
    monkeypatch.setenv("KIT_REPLAY", "strict")

    with pytest.raises(UsageError, match="cannot be replayed"):
        opened("pydantic-ai/bedrock:m")


def test_replay_names_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``replay/`` model without a recording says where it looked."""
    replay.use_file("/nowhere/x.json")

    with pytest.raises(UsageError, match="nowhere"):
        opened("replay/default")
