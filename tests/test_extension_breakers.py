"""Guests at their worst: each hook, each way to be bad, in a live Kit that goes on."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kit_jupyter import Kit
from kit_jupyter.errors import ExtensionError
from kit_jupyter.events import ErrorEvent
from kit_jupyter.extension import HOOKS, Extension
from kit_jupyter.testing import ScriptedProvider, record_events, text, tool_call
from kit_jupyter.tool import tool

RUN_TIME = [row.name for row in HOOKS if row.name not in ("configure", "bind")]
OBSERVERS = [row.name for row in HOOKS if row.returns == "-"]  # what they return is nobody's business
SYNC_ONLY = ("system_prompt_snippets", "trifecta_contribution")
WAYS = [
    "raises",
    "hangs",
    "hangs async",
    "wrong type",
    "exits",
    "recurses",
    "raises what cannot be shown",
    "returns what cannot be shown",
]


class Unshowable(Exception):
    def __str__(self):
        raise ValueError("no text")


class Unreprable:
    def __repr__(self):
        raise ValueError("no look")


def bad(way, release):
    """A hook that is bad in one way."""

    def sync(*args):
        match way:
            case "raises":
                raise ValueError("guest's fault")
            case "hangs":
                release.wait(30)
            case "exits":
                raise SystemExit(3)
            case "recurses":
                return sync(*args)
            case "raises what cannot be shown":
                raise Unshowable
            case "returns what cannot be shown":
                return Unreprable()
        return 4711

    async def hangs(*args):
        await asyncio.Event().wait()

    return hangs if way == "hangs async" else sync


@tool
def note(words: str) -> str:
    """Note words."""
    return f"noted {words}"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("hook", RUN_TIME)
async def test_a_bad_hook_is_reported_and_the_kit_goes_on(hook, way):
    """S229, bad input: every hook of the table, every way: an event names it, all verbs work, gates block."""
    if hook in SYNC_ONLY and way == "hangs async":
        pytest.skip("cannot be async")
    returns = "type" in way or "returns" in way
    release = threading.Event()
    wrong = bad(way, release)

    class Guest(Extension):
        hook_timeout_seconds = 0.3

    setattr(Guest, hook, staticmethod(wrong))
    long = "x" * 4000
    provider = ScriptedProvider([text(long)], [tool_call("note", words="w")], [text("done")], repeat_last=True)
    kit = Kit(provider=provider, session="memory", extensions=[Guest()], tools=[note], permissions="auto")
    try:
        with record_events(kit) as log:
            assert await kit.apply_input("hi", "cell") == "hi"
            await kit.prompt("hi")
            result = await kit.prompt("use the tool")
            if hook == "before_compact":
                await kit.compact()
            elif hook == "trifecta_contribution" and returns:
                with pytest.raises(ExtensionError, match=r"trifecta_contribution returned (int|Unreprable)"):
                    _ = kit.trifecta
            else:
                assert kit.trifecta.verdict
            await kit.clear_conversation()
            await kit.prompt("anew")
    finally:
        release.set()

    assert str(result) == "done"
    results = [m for request in provider.requests for m in request.messages if m.role == "tool"]
    assert results[0].parts[0].is_error is (hook == "before_tool")
    if not (returns and hook in ("trifecta_contribution", *OBSERVERS)):
        assert [e for e in log.of(ErrorEvent) if hook in e.message and e.source == "Guest"]
    kit.close()
