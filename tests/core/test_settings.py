"""Settings, options, structured formats, media, prices: what goes in, and what is refused."""

from __future__ import annotations

import asyncio
import io
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from kit_jupyter import MediaPart, ModelRef, PromptOptions, TextPart, UsageError
from kit_jupyter.media import as_part, sniff
from kit_jupyter.messages import Tokens
from kit_jupyter.price import has_prices, load_prices, price_of
from kit_jupyter.settings import Settings
from kit_jupyter.structured import Format, Misfit
from kit_jupyter.testing import delay, text, usage

PNG = b"\x89PNG\r\n\x1a\n"


def test_every_setting_has_help_and_a_place_in_the_config() -> None:
    """A setting is one trait; unknown names and bad values change nothing at all."""
    settings = Settings()
    for name in settings.trait_names(config=True):
        assert settings.trait_metadata(name, "help"), name
    settings.update({"max_steps": 3, "agent": "x"})
    with pytest.raises(UsageError, match="did you mean 'agent'"):
        settings.update({"max_steps": 4, "agnet": "y"})
    with pytest.raises(UsageError, match="known: "):
        settings.update({"zzzzz": 1})
    with pytest.raises(UsageError):
        settings.update({"agent": "z", "max_steps": 0})
    assert (settings.max_steps, settings.agent) == (3, "x")


def test_options_are_frozen_once_per_turn() -> None:
    """Law 6: what a turn goes by does not change when a setting does; a call's option goes first."""
    settings = Settings(max_steps=9, temperature=0.5, max_tokens=10, model="a/b")
    frozen = settings.options(PromptOptions(max_steps=2, model="c/d", temperature=0.0))
    settings.update({"temperature": 1.0, "max_tokens": 20})

    assert (frozen.max_steps, frozen.model, frozen.temperature, frozen.max_tokens) == (2, "c/d", 0.0, 10)
    assert settings.options().max_steps == 9


async def test_a_setting_changed_during_a_turn_holds_for_the_next_one(make: Any) -> None:
    """Law 6, in a Kit: both calls of the running turn use what was set at its start."""
    import threading

    from kit_jupyter.testing import gate, tool_call

    from .helpers import area, until

    hold = threading.Event()
    kit, provider = make([tool_call("area", width=1, height=1), gate(hold)], "a", "b", tools=[area], temperature=0.1)
    task = asyncio.ensure_future(kit.prompt("go"))
    await until(lambda: provider.requests)
    kit.settings.update({"temperature": 0.9})
    hold.set()
    await task
    await kit.prompt("again")

    assert [r.temperature for r in provider.requests] == [0.1, 0.1, 0.9]


# ---------------------------------------------------------------- structured formats


class Colour(Enum):
    RED = "red"


@dataclass
class Point:
    x: int
    y: int = 0


@pytest.mark.parametrize(
    ("shape", "said", "value"),
    [
        (int, '{"value": 3}', 3),
        (list[int], '```json\n{"value": [1, 2]}\n```', [1, 2]),
        (Point, '{"x": 1}', Point(1)),
        (Colour, '{"value": "red"}', Colour.RED),
        (dict[str, int], '{"a": 1}', {"a": 1}),
        ({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}, '{"a": 1}', {"a": 1}),
        ({"type": "array", "items": {"type": "string"}}, '{"value": ["x"]}', ["x"]),
    ],
)
def test_an_answer_is_read_as_its_shape(shape: Any, said: str, value: Any) -> None:
    """S112: types, models and JSON schemas; a shape that is no object is wrapped."""
    fmt = Format(shape)
    assert fmt.read(said) == value
    assert fmt.schema["type"] == "object" or "$ref" in fmt.schema


@pytest.mark.parametrize(
    ("shape", "said", "fault"),
    [
        (Point, "no json", "is not JSON"),
        (Point, '{"x": "wide"}', "x: "),
        (int, "3", 'the key "value"'),
        ({"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}, "{}", "a"),
        ({"type": "object", "properties": {"a": {"type": "integer"}}}, '{"a": "x"}', "a: "),
    ],
)
def test_what_does_not_fit_says_where(shape: Any, said: str, fault: str) -> None:
    """S112: one line per fault, in words a model can act on."""
    with pytest.raises(Misfit, match=fault):
        Format(shape).read(said)


def test_a_shape_that_is_none_is_a_usage_error() -> None:
    """Bad input: no schema can be made of it."""
    with pytest.raises(UsageError, match="empty JSON schema"):
        Format({})
    with pytest.raises(UsageError, match="no JSON schema"):
        Format(object())


def test_a_partial_answer_is_read_as_far_as_it_has_come() -> None:
    """While it streams: plain values so far, None before it begins."""
    assert Format(list[int]).read_partial('{"value": [1, 2') == [1, 2]
    assert Format(Point).read_partial('{"x": 1, "y"') == {"x": 1}
    assert Format(Point).read_partial("") is None
    assert Format(Point).read_partial('```json\n{"x": 1, "y"') == {"x": 1}
    assert Format(Point).read_partial('```json\n{"x": 1, "y": 2}\n```') == {"x": 1, "y": 2}
    assert Format(int).read_partial("[") is None


# ---------------------------------------------------------------- parts


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (PNG, "image/png"),
        (b"\xff\xd8\xff\xe0", "image/jpeg"),
        (b"GIF89a", "image/gif"),
        (b"RIFF....WEBP", "image/webp"),
        (b"RIFF....WAVE", "audio/wav"),
        (b"%PDF-1.7", "application/pdf"),
        (b"\0\1", "application/octet-stream"),
    ],
)
def test_bytes_are_known_by_their_beginning(raw: bytes, kind: str) -> None:
    """Parts in: no name is needed."""
    assert sniff(raw) == kind
    part = as_part(raw)
    assert isinstance(part, MediaPart)
    assert (part.media_type, part.raw) == (kind, raw)


def test_paths_text_parts_and_pictures(tmp_path: Path) -> None:
    """Parts in: files by path, text, parts as they are, figures, PIL images, anything with a PNG of itself."""
    (tmp_path / "p.png").write_bytes(PNG)
    (tmp_path / "t.csv").write_text("a,b\n")
    (tmp_path / "b.bin").write_bytes(b"\xff\xfe\0\xd8")
    assert as_part(tmp_path / "p.png").name == "p.png"  # type: ignore[union-attr]
    assert as_part(str(tmp_path / "p.png")).type == "media"
    assert as_part(tmp_path / "t.csv") == TextPart("t.csv:\na,b\n")
    assert as_part(tmp_path / "b.bin").type == "media"
    assert as_part("just words") == TextPart("just words")
    assert as_part(TextPart("x")) == TextPart("x")
    assert as_part("x" * 5000).type == "text"

    class Shows:
        def _repr_png_(self) -> Any:
            return PNG, {"width": 3}

    assert as_part(Shows()).name == "Shows.png"  # type: ignore[union-attr]
    with pytest.raises(UsageError, match="cannot attach a set"):
        as_part({1})
    with pytest.raises(UsageError, match="cannot read"):
        as_part(tmp_path / "nope.png")


def test_figures_and_images_become_png() -> None:
    """Parts in: matplotlib figures and axes, PIL images of every mode."""
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    axes.plot([1, 2])
    for shown in (figure, axes):
        part = as_part(shown)
        assert isinstance(part, MediaPart)
        assert part.raw.startswith(PNG)
    image = pytest.importorskip("PIL.Image")
    for mode in ("RGB", "CMYK", "L", "P", "F"):
        part = as_part(image.new(mode, (2, 2)))
        assert isinstance(part, MediaPart)
        assert image.open(io.BytesIO(part.raw)).size == (2, 2)


# ---------------------------------------------------------------- prices


def test_unknown_models_have_no_price_and_known_ones_have() -> None:
    """S119, price and limits: never a false zero."""
    pytest.importorskip("genai_prices")
    tokens = Tokens(input=1_000_000, output=1_000)
    known = price_of(ModelRef("openai", "gpt-4o-mini"), tokens)
    assert known is not None
    assert known > 0
    assert price_of(ModelRef("openai", "gpt-4o-mini"), Tokens()) is None
    assert price_of(ModelRef("openai", "no-such-model-x"), tokens) is None
    assert price_of(ModelRef("pydantic-ai", "openai:gpt-4o-mini"), tokens) == known
    for free in ("local", "ollama", "scripted", "replay", "test"):
        assert not has_prices(ModelRef(free, "gpt-4o-mini"))
        assert price_of(ModelRef(free, "gpt-4o-mini"), tokens) is None


async def test_a_cost_is_stored_with_the_answer(make: Any) -> None:
    """S119: a number when the price is known; the turn's cost is None as soon as one part of it is unknown."""
    pytest.importorskip("genai_prices")
    from kit_jupyter.testing import ScriptedProvider

    provider = ScriptedProvider([text("x"), usage(input=1000, output=1000)], name="openai")
    kit, _ = make(provider=provider, model="openai/gpt-4o-mini")

    result = await kit.prompt("hi")

    assert result.cost is not None
    assert result.cost == kit.messages[-1].usage.cost == kit.usage.cost > 0


def test_the_price_table_is_loaded_off_the_engine_and_only_for_those_who_charge() -> None:
    """Importing it takes 0.4 s: a scripted turn never loads it, a priced one loads it on another thread."""
    code = (
        "import sys, threading\nfrom kit_jupyter import Kit\n"
        "from kit_jupyter.testing import ScriptedProvider, text, usage\n"
        "Kit(provider=ScriptedProvider([text('x'), usage(input=1)]), session='memory').prompt_sync('a')\n"
        "print('genai_prices' in sys.modules)\n"
        "import builtins; real = builtins.__import__\n"
        "def spy(name, *a, **k):\n"
        "    if name == 'genai_prices': print(threading.current_thread().name != 'kit-loop')\n"
        "    return real(name, *a, **k)\n"
        "builtins.__import__ = spy\n"
        "p = ScriptedProvider([text('x')], name='openai')\n"
        "Kit('openai/gpt-4o-mini', provider=p, session='memory').prompt_sync('a')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split()[:2] == ["False", "True"]


def test_turns_side_by_side_all_get_the_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is still looking a model up, the others wait for what it finds, and do not take it for unknown."""
    genai_prices = pytest.importorskip("genai_prices")
    calc, begun = genai_prices.calc_price, threading.Barrier(6)

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(0.1)
        return calc(*args, **kwargs)

    monkeypatch.setattr(genai_prices, "calc_price", slow)
    found: list[float | None] = []

    def ask() -> None:
        begun.wait()
        found.append(price_of(ModelRef("openai", "gpt-4o-mini-2024-07-18"), Tokens(input=1000, output=10)))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert None not in found
    assert len(set(found)) == 1


async def test_loading_prices_of_a_free_model_does_nothing() -> None:
    """The hot path of a local model."""
    await load_prices(ModelRef("local", "x"))
    assert delay(0).kind == "delay"
