"""What the provider tests share: an environment without keys, and providers on a loopback server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit_jupyter.messages import MessageBuilder, ModelDelta, ModelRef, TextPart
from kit_jupyter.prompt import PromptMessage
from kit_jupyter.provider import ModelRequest
from kit_jupyter.providers import replay
from kit_jupyter.providers._client import Network
from kit_jupyter.providers._watch import Limits
from kit_jupyter.providers._wire import WireProvider
from kit_jupyter.providers.codec import Endpoint
from kit_jupyter.providers.openai_chat import OpenAIChatCodec

KEY = "sk-planted-0123456789abcdefghijklmnop"


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No key, proxy, setting or recording of this machine reaches a test."""
    import os

    from kit_jupyter.providers.registry import ROWS

    names = {name for row in ROWS for name in (*row.key_env, *row.url_env, *row.headers_env.values())}
    for name in (*os.environ,):
        ours = name.startswith("KIT_") and name != "KIT_WIRE_CASES"
        if ours or name in names or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("KIT_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("KIT_KEYRING", "off")
    replay.reset()
    replay.use_file(None)
    yield
    replay.reset()
    replay.use_file(None)


@pytest.fixture(params=["httpx", "httpx2", None], ids=["httpx", "httpx2", "sockets"])
def library(request: pytest.FixtureRequest) -> str | None:
    """Both client libraries with their own transports, and what is taken when none is named: ours."""
    name: str | None = request.param
    if name is not None:
        pytest.importorskip(name)
    return name


def ask(text: str = "Hi", **more: Any) -> ModelRequest:
    """A request of one user message."""
    values: dict[str, Any] = {"model": ModelRef("demo", "m"), "messages": (PromptMessage("user", (TextPart(text),)),)}
    return ModelRequest(**(values | more))


QUICK = Limits(connect_seconds=2, first_seconds=5, idle_seconds=5, max_retries=3, base_seconds=0.01, cap_seconds=2)


@pytest.fixture
async def provider(library: str) -> AsyncIterator[Callable[..., WireProvider]]:
    """Makes chat providers for a base URL; closes them."""
    made: list[WireProvider] = []

    def make(url: str, *, limits: Limits = QUICK, api_key: str = KEY, **more: Any) -> WireProvider:
        network = more.pop("network", Network(library=library))
        endpoint = Endpoint(name="demo", base_url=url, api_key=api_key, headers=more.pop("headers", {}))
        made.append(WireProvider(OpenAIChatCodec(), endpoint, limits=limits, network=network, **more))
        return made[-1]

    yield make
    for one in made:
        await one.close()


async def read(deltas: AsyncIterator[ModelDelta]) -> MessageBuilder:
    """Everything a stream says, joined."""
    builder = MessageBuilder()
    async for delta in deltas:
        builder.feed(delta)
    return builder
