"""The extension protocol: how guests are added, in which order they are called, what they may do."""

from __future__ import annotations

import asyncio
import doctest
import inspect
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kit_jupyter import extension as seam
from kit_jupyter import host as host_room
from kit_jupyter.errors import ExtensionError, UsageError
from kit_jupyter.extension import (
    HOOKS,
    Configurator,
    Extension,
    ExtensionContext,
    ExtensionHost,
    ExtensionProtocol,
    GuestContext,
    KitView,
    list_installed,
    once,
    reference_block,
)
from kit_jupyter.hooks import nearest_hook
from kit_jupyter.prompt import join_sections
from kit_jupyter.tool import Toolbox
from kit_jupyter.trifecta import Contribution

REQUIRED = ["configure", "bind", "on_user_message", "on_conversation_reset", "system_prompt_snippets"]


class Duck:
    """Every required hook, no base class."""

    def configure(self, c):
        self.configured = c

    def bind(self, ctx):
        self.ctx = ctx

    def on_user_message(self, ctx, content):
        return f"quack: {content}"

    def on_conversation_reset(self, ctx):
        self.reset = True

    def system_prompt_snippets(self):
        return ["Quack."]


class Recorder(Extension):
    """Writes each call into a shared list."""

    def __init__(self, name, calls):
        self.name = name
        self.calls = calls

    def configure(self, c):
        self.calls.append((self.name, "configure", c))

    def bind(self, ctx):
        self.calls.append((self.name, "bind", ctx))

    def on_user_message(self, ctx, content):
        self.calls.append((self.name, "on_user_message", ctx))
        return None

    def on_conversation_reset(self, ctx):
        self.calls.append((self.name, "on_conversation_reset", ctx))

    def system_prompt_snippets(self):
        self.calls.append((self.name, "system_prompt_snippets", None))
        return [f"I am {self.name}."]


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def search(query: str) -> str:
    """Search the web."""
    return query


def kit(**more):
    """What a host needs to know of a Kit."""
    facts = {"id": "kit_1", "model": "a/b", "tools": Toolbox(), "messages": (), "session_id": "s", "is_running": False}
    return SimpleNamespace(**{**facts, **more})


def bound(*extensions, emit=lambda name, content: None, **more) -> ExtensionHost:
    host = ExtensionHost.build(extensions)
    host.bind(kit(**more), emit)
    return host


# ---------------------------------------------------------------- the protocol


def test_the_protocol_is_a_public_type():
    """S142: base class and typing protocol are exported and documented."""
    import kit_jupyter

    assert {"Extension", "ExtensionProtocol"} <= set(seam.__all__) & set(kit_jupyter.__all__)
    assert kit_jupyter.ExtensionProtocol is ExtensionProtocol
    assert isinstance(Extension(), ExtensionProtocol)
    assert isinstance(Duck(), ExtensionProtocol)
    assert not isinstance(object(), ExtensionProtocol)
    assert Extension.__doc__
    assert ExtensionProtocol.__doc__


def test_a_section_is_added_without_touching_the_base_prompt():
    """S143, S195: sections follow the base, in order of registration."""
    host = ExtensionHost.build([Recorder("A", []), Recorder("B", [])])

    prompt = join_sections("You help with notebooks.", host.system_sections())

    assert prompt == "You help with notebooks.\n\nI am A.\n\nI am B."
    assert host.sections == (("A", "I am A."), ("B", "I am B."))


def test_a_tool_is_added_in_configure():
    """S144: a function becomes a tool of the agent; one for sub-agents stays apart."""

    class Tools(Extension):
        def configure(self, c):
            self.mine = c.add_tool(add)
            self.theirs = c.add_sub_agent_tool(search)

    tools = Tools()
    host = ExtensionHost.build([tools])

    assert host.tools == [tools.mine]
    assert [tool.spec.name for tool in host.sub_agent_tools] == ["search"]


async def test_every_hook_is_optional_to_override():
    """S145, S196: an empty subclass lives a whole life; the defaults do nothing."""

    class Empty(Extension):
        pass

    host = bound(Empty())
    assert host.system_sections() == ()
    assert await host.reference_blocks("hello") == ()
    await host.reset()
    assert host.contributions() == ()
    await host.close()


def test_after_construction_the_configurator_raises():
    """S146, S225: extensions, tools and hooks are added while the Kit is built, not later."""
    kept: list[Configurator] = []

    class Keeps(Extension):
        def configure(self, c):
            kept.append(c)

    ExtensionHost.build([Keeps()], lambda c: kept.append(c))

    for use in (
        lambda c: c.add_extension(Extension()),
        lambda c: c.add_tool(add),
        lambda c: c.add_sub_agent_tool(add),
        lambda c: c.add_listener(print),
        lambda c: c.add_hook("before_tool", print),
        lambda c: c.on_close(print),
    ):
        with pytest.raises(UsageError, match="only while the Kit is being built"):
            use(kept[0])
    assert kept[0] is kept[1]


def test_the_hooks_are_one_table():
    """S147: no hidden hook; what the host looks up is what the table lists, and the docs show the same table."""
    names = [row.name for row in HOOKS]

    assert names[:2] == ["configure", "system_prompt_snippets"]
    assert {row.name for row in HOOKS if row.required} == set(REQUIRED)
    assert len(names) == len(set(names)) == 14
    base = {name for name, value in vars(Extension).items() if callable(value) and not name.startswith("_")}
    assert base == set(REQUIRED)

    asked: set[str] = set()

    class Nosy(Duck):
        def __getattribute__(self, name):
            asked.add(name)
            return super().__getattribute__(name)

    async def life():
        host = bound(Nosy())
        host.system_sections()
        await host.reference_blocks("x")
        host.contributions()
        await host.reset()
        await host.close()

    asyncio.run(life())
    public = {name for name in asked if not name.startswith("_")}
    assert public - {"name", "hook_timeout_seconds", "configured", "ctx", "reset"} == set(names)


def test_configure_runs_before_add_extension_returns():
    """S148: at once."""
    calls: list[tuple] = []

    def configure(c):
        c.add_extension(Recorder("A", calls))
        assert calls[0][:2] == ("A", "configure")

    ExtensionHost.build(configure_fn=configure)


def test_an_instance_is_configured_once():
    """S149: the same instance twice raises; two instances of a class are two guests."""
    calls: list[tuple] = []
    one = Recorder("A", calls)

    with pytest.raises(UsageError, match="added already"):
        ExtensionHost.build([one, one])
    host = ExtensionHost.build([Extension(), Extension()])

    assert len(calls) == 1
    assert len(host.extensions) == 2


def test_configure_gets_the_configurator_of_the_kit():
    """S150: tools, listeners, closers, hooks and nested extensions can be added through it."""
    seen: list[str] = []

    class Whole(Extension):
        def configure(self, c):
            c.add_tool(add)
            c.add_listener(print)
            c.on_close(lambda: seen.append("closed"))
            c.add_hook("after_turn", print)
            c.add_extension(Recorder("inner", []))

    host = ExtensionHost.build([Whole()])

    assert [type(e).__name__ for e in host.extensions] == ["Whole", "Recorder"]
    assert host.listeners == [(print, ())]
    assert host.has_hooks("after_turn")
    host.close_sync()
    assert seen == ["closed"]


def test_configure_needs_no_model_and_no_session():
    """S151: the host configures with nothing else there."""
    calls: list[tuple] = []

    ExtensionHost.build([Recorder("A", calls)])

    assert [hook for _, hook, _ in calls] == ["configure"]


def test_a_slow_snippet_is_warned_of(monkeypatch):
    """S152: the warning names the extension and says what to do."""
    monkeypatch.setattr(host_room, "SLOW_SNIPPET_SECONDS", 0.01)
    told: list[tuple[str, str]] = []

    class Slow(Extension):
        def system_prompt_snippets(self):
            time.sleep(0.03)
            return ["late"]

    host = ExtensionHost.build([Slow()], on_warning=lambda message, source: told.append((message, source)))

    assert host.system_sections() == ("late",)
    assert told[0][1] == "Slow"
    assert "once()" in told[0][0]


def test_in_bind_the_kit_is_complete():
    """S153: tools, prompt and id can be read."""
    seen = {}

    class Looks(Extension):
        def bind(self, ctx):
            seen.update(id=ctx.kit.id, model=ctx.kit.model, tools=list(ctx.kit.tools), system=ctx.kit.system)

    host = ExtensionHost.build([Looks()], lambda c: c.add_tool(add))
    host.bind(kit(tools=Toolbox(tuple(host.tools)), system="Base."), lambda name, content: None)

    assert seen == {"id": "kit_1", "model": "a/b", "tools": ["add"], "system": "Base."}


async def test_the_context_is_one_object_for_all_hooks():
    """S154, S172, S224: bind, on_user_message and reset get the same object, and only those three get it."""
    calls: list[tuple] = []
    host = bound(Recorder("A", calls), Recorder("B", calls))
    await host.reference_blocks("x")
    await host.reset()

    contexts = [c for _, hook, c in calls if hook in ("bind", "on_user_message", "on_conversation_reset")]
    assert len(contexts) == 6
    assert {id(c) for c in contexts} == {id(host.context)}
    with_ctx = [n for n in REQUIRED if "ctx" in inspect.signature(getattr(Extension, n)).parameters]
    assert with_ctx == ["bind", "on_user_message", "on_conversation_reset"]
    assert [row.name for row in HOOKS if "ctx" in row.gets] == with_ctx


def test_two_kits_keep_their_extensions_apart():
    """S155: state is keyed to the live agent."""
    one, other = Duck(), Duck()
    first, second = bound(one), bound(other)

    assert one.ctx is first.context
    assert other.ctx is second.context
    assert one.ctx is not other.ctx


async def test_every_sweep_goes_in_order_of_registration():
    """S156: configure, snippets, bind, on_user_message, reset; nested ones after the one that added them."""
    calls: list[tuple] = []

    class Outer(Recorder):
        def configure(self, c):
            super().configure(c)
            c.add_extension(Recorder("B", calls))

    host = ExtensionHost.build([Outer("A", calls), Recorder("C", calls)])
    host.system_sections()
    host.bind(kit(), lambda name, content: None)
    await host.reference_blocks("x")
    await host.reset()

    hooks = ["configure", "system_prompt_snippets", "bind", "on_user_message", "on_conversation_reset"]
    assert [(hook, name) for name, hook, _ in calls] == [(hook, name) for hook in hooks for name in "ABC"]


def test_a_guest_that_comes_late_is_bound_with_those_it_brings():
    """S156: the outer one first, as when the Kit is built."""
    calls: list[tuple] = []

    class Outer(Recorder):
        def configure(self, c):
            c.add_extension(Recorder("B", calls))

    bound().admit(Outer("A", calls))

    assert [(name, hook) for name, hook, _ in calls] == [("B", "configure"), ("A", "bind"), ("B", "bind")]


# ---------------------------------------------------------------- reference blocks


class Says(Extension):
    def __init__(self, text, name="Says"):
        self.text = text
        self.name = name

    def on_user_message(self, ctx, content):
        return self.text


async def test_text_becomes_an_enveloped_block():
    """S161, S164: begins and ends with the tag; one block per extension."""
    host = bound(Says("It rains."), Says("It is late.", "Clock"))

    blocks = await host.reference_blocks("hi")

    assert [name for name, _ in blocks] == ["Says", "Clock"]
    for _, text in blocks:
        assert text.startswith("<system-reminder>")
        assert text.endswith("</system-reminder>")
        assert text.count("<system-reminder>") == 1


@pytest.mark.parametrize("text", [None, "", "  \n "])
async def test_nothing_said_adds_nothing(text):
    """S162: None or blank text gives no block at all."""
    assert await bound(Says(text)).reference_blocks("hi") == ()


@pytest.mark.parametrize(
    "text", ["  {x} $y\n\n", "a </system-reminder> b", "</SYSTEM-REMINDER  >", "< / b", "{{ 7*7 }}"]
)
async def test_a_block_is_verbatim_with_its_own_closing_tag_escaped(text):
    """S163: no trimming, no templating; a nested closing tag cannot end the envelope."""
    ((_, block),) = await bound(Says(text)).reference_blocks("hi")

    inner = block.removeprefix("<system-reminder>\n").removesuffix("\n</system-reminder>")
    assert len(re.findall(r"</\s*system-reminder\s*>", block, re.IGNORECASE)) == 1
    assert inner.replace("&lt;/", "</") == text
    assert reference_block(text) == block


async def test_the_context_can_queue_a_block():
    """S166: only the context can; it joins the extension's block after the next user message."""

    class Later(Extension):
        def bind(self, ctx):
            ctx.append_reference_block("from bind")

        def on_user_message(self, ctx, content):
            return "from the message"

    host = bound(Later())

    ((name, block),) = await host.reference_blocks("one")
    assert name == "Later"
    assert block == reference_block("from bind\n\nfrom the message")
    assert (await host.reference_blocks("two"))[0][1] == reference_block("from the message")


async def test_an_async_hook_is_awaited():
    """Sync and async hooks do the same."""

    class Async(Extension):
        async def on_user_message(self, ctx, content):
            await asyncio.sleep(0)
            return content.upper()

    ((_, block),) = await bound(Async()).reference_blocks("hi")

    assert "HI" in block


async def test_sync_hooks_run_off_the_engine_with_the_callers_context():
    """Rule 1 of the threads: guest code never runs on the engine."""
    import contextvars

    place = contextvars.ContextVar("place", default="nowhere")
    seen = []

    class Where(Extension):
        def on_user_message(self, ctx, content):
            seen.append((threading.current_thread(), place.get()))

    place.set("cell 3")
    await bound(Where()).reference_blocks("hi")

    assert seen[0][0] is not threading.current_thread()
    assert seen[0][1] == "cell 3"


# ---------------------------------------------------------------- reset and snippets


async def test_reset_calls_each_once_in_order_and_default_is_a_no_op():
    """S171, S173: recorded order; an extension without the hook is not affected."""
    calls: list[tuple] = []
    host = bound(Recorder("A", calls), Extension(), Recorder("B", calls))
    calls.clear()

    await host.reset()

    assert [(n, h) for n, h, _ in calls] == [("A", "on_conversation_reset"), ("B", "on_conversation_reset")]


async def test_a_clear_is_no_quit():
    """S176: no closer runs in a reset."""
    closed: list[int] = []
    host = ExtensionHost.build(configure_fn=lambda c: c.on_close(lambda: closed.append(1)))
    host.bind(kit(), lambda name, content: None)

    await host.reset()
    assert closed == []
    await host.close()
    await host.close()

    assert closed == [1]


async def test_touching_the_system_prompt_in_reset_raises_with_a_hint():
    """S177: the error names the way to go; it is reported and the sweep goes on."""
    told: list[ExtensionError] = []
    calls: list[tuple] = []

    class Touches(Extension):
        def on_conversation_reset(self, ctx):
            ctx.kit.system = "new"

    host = bound(Touches(), Recorder("B", calls))
    host.on_error = told.append
    await host.reset()

    assert "system_prompt_snippets" in str(told[0])
    assert calls[-1][:2] == ("B", "on_conversation_reset")


def test_snippets_are_a_list_of_text_and_empty_by_default():
    """S184, S185: zero or more sections."""

    class Two(Extension):
        def system_prompt_snippets(self):
            return ["one", "two"]

    assert Extension().system_prompt_snippets() == []
    assert ExtensionHost.build([Extension(), Two()]).system_sections() == ("one", "two")


def test_there_is_no_way_to_push_a_section():
    """S186: neither configurator nor context has one; snippets are pulled."""
    names = {n for cls in (Configurator, GuestContext, ExtensionContext) for n in dir(cls) if not n.startswith("_")}

    assert not [n for n in names if re.search(r"section|snippet|prompt|system", n)]


def test_snippets_take_no_argument_and_read_what_configure_made():
    """S189, S190: configure is proved to run first."""

    class Probes(Extension):
        def configure(self, c):
            self.made = "made in configure"

        def system_prompt_snippets(self):
            return [self.made]

    assert list(inspect.signature(Extension.system_prompt_snippets).parameters) == ["self"]
    assert ExtensionHost.build([Probes()]).system_sections() == ("made in configure",)


def test_a_live_section_is_recomputed_when_pulled(tmp_path):
    """S191, S178: the file's new text is seen at the next pull."""
    file = tmp_path / "MACHINE.md"
    file.write_text("old")

    class Reads(Extension):
        def system_prompt_snippets(self):
            return [file.read_text()]

    host = ExtensionHost.build([Reads()])
    before = host.system_sections()
    file.write_text("new")

    assert (before, host.system_sections()) == (("old",), ("new",))


def test_a_static_section_gives_the_same_bytes():
    """S192: pulled twice, equal."""
    host = ExtensionHost.build([Duck()])

    assert join_sections("b", host.system_sections()) == join_sections("b", host.system_sections())


def test_once_probes_once():
    """S193: one call over three pulls; an error is not kept; two threads share one call."""
    calls: list[int] = []

    def probe():
        calls.append(1)
        if len(calls) == 1:
            raise OSError("busy")
        time.sleep(0.01)
        return ["probed"]

    known = once(probe)
    with pytest.raises(OSError, match="busy"):
        known()
    threads = [threading.Thread(target=known) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert known() == ["probed"]
    assert len(calls) == 2


def test_blank_sections_are_dropped():
    """S194: None, empty and blank."""

    class Gaps(Extension):
        def system_prompt_snippets(self):
            return [None, "", " \n", "kept"]

    assert ExtensionHost.build([Gaps()]).system_sections() == ("kept",)


# ---------------------------------------------------------------- duck typing


async def test_a_class_without_the_base_works():
    """S197, S210: every required hook is enough; the optional ones are looked up by name."""
    duck = Duck()
    host = bound(duck)

    assert host.system_sections() == ("Quack.",)
    assert "quack: hi" in (await host.reference_blocks("hi"))[0][1]
    await host.reset()
    assert duck.reset
    assert host.contributions() == ()


@pytest.mark.parametrize("missing", REQUIRED)
def test_a_missing_hook_is_named_when_it_is_added(missing):
    """S198: at add time, with the name."""
    broken = type("Broken", (), {name: value for name, value in vars(Duck).items() if name != missing})

    with pytest.raises(UsageError, match=rf"Broken.*\b{missing}\b"):
        ExtensionHost.build([broken()])


def test_a_class_in_place_of_an_instance_is_told():
    """Bad input: the usual slip."""
    with pytest.raises(UsageError, match=r"Duck\(\)"):
        ExtensionHost.build([Duck])


# ---------------------------------------------------------------- rights


def test_the_context_alone_has_run_time_rights():
    """S222: emit and add_tool are the context's; the view has neither."""
    emitted: list[tuple] = []
    host = bound(Extension(), emit=lambda name, content: emitted.append((name, content)))
    ctx = host.context

    ctx.emit("tasks.list_changed", [])
    made = ctx.add_tool(add)

    assert emitted == [("tasks.list_changed", [])]
    assert host.tools == [made]
    assert host.tools_version == 1
    for name in ("emit", "add_tool", "_kit", "prompt", "session"):
        with pytest.raises(AttributeError):
            getattr(ctx.kit, name)
    with pytest.raises(UsageError, match="already"):
        ctx.add_tool(add)
    ctx.remove_tool("add")
    assert host.tools == []


def test_the_view_reads_and_cannot_write():
    """S223: id, model, tools, history, all read-only; agent is the same view."""
    ctx = bound(Extension(), messages=["m"], history=["h"]).context

    assert (ctx.agent.id, ctx.agent.model, ctx.agent.messages, ctx.kit.history) == ("kit_1", "a/b", ("m",), ("h",))
    assert ctx.agent is ctx.kit
    with pytest.raises(AttributeError, match="cannot set 'model'"):
        ctx.kit.model = "x/y"
    with pytest.raises(AttributeError):
        del ctx.kit.model
    assert isinstance(ctx.kit, KitView)


async def test_state_told_by_snippets_needs_no_reset_hook():
    """S228: the section follows the file over a clear, and the class has no reset hook of its own."""
    stored = ["first"]

    class Persona(Extension):
        def system_prompt_snippets(self):
            return [stored[-1]]

    host = bound(Persona())
    before = host.system_sections()
    stored.append("second")
    after = host.system_sections()
    await host.reset()

    assert (before, after) == (("first",), ("second",))
    assert "on_conversation_reset" not in vars(Persona)


def test_the_politeness_example_is_a_doctest_of_three_lines():
    """S226: it stands in the base class's docstring and runs there."""
    text = inspect.getdoc(Extension) or ""

    assert text.count(">>> class Politeness(Extension):") == 1
    body = text[text.index(">>> class Politeness") : text.index(">>> ExtensionHost")]
    assert len(body.strip().splitlines()) == 3
    (example,) = doctest.DocTestFinder(recurse=False).find(Extension, "Extension", globs={"Extension": Extension})
    ran = doctest.DocTestRunner(verbose=False).run(example)
    assert (ran.failed, ran.attempted) == (0, 3)


@pytest.mark.parametrize("name", REQUIRED)
def test_each_hook_says_when_what_and_what_on_error(name):
    """S227: time of call, what it gets, what it returns, what an error does."""
    text = inspect.getdoc(getattr(Extension, name)) or ""

    for word in ("Called", "Gets", "eturns", "error"):
        assert word in text, f"{name} does not say: {word}"


def test_the_docs_show_the_hook_table_as_the_code_has_it():
    """S147, S227, S229: one row per hook in docs/extensions.md, with the same words, error behaviour included."""
    page = (Path(__file__).parents[1] / "docs" / "extensions.md").read_text()

    for row in HOOKS:
        needed = "required" if row.required else "optional"
        assert f"| `{row.name}` | {row.when} | {row.gets} | {row.returns} | {row.on_error} | {needed} |" in page


# ---------------------------------------------------------------- failures (S229)


@pytest.mark.parametrize("hook", ["configure", "bind"])
def test_a_failure_while_building_runs_the_closers(hook):
    """S229: construction fails, what was opened is closed, last opened first."""
    closed: list[str] = []

    class Opens(Extension):
        def configure(self, c):
            c.on_close(lambda: closed.append("first"))
            c.on_close(lambda: closed.append("second"))

    class Fails(Extension):
        pass

    def fail(self, argument):
        raise ValueError("no server")

    setattr(Fails, hook, fail)

    with pytest.raises(ExtensionError, match=f"Fails.{hook} failed: ValueError: no server") as caught:
        bound(Opens(), Fails())

    assert closed == ["second", "first"]
    assert (caught.value.extension, caught.value.hook) == ("Fails", hook)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_failing_configure_function_runs_the_closers_too():
    """S229: the function of Kit.build is part of construction."""
    closed: list[str] = []

    async def close_async():
        closed.append("async")

    def configure(c):
        c.on_close(close_async)
        c.on_close(lambda: closed.append("sync"))
        c.on_close(lambda: 1 / 0)
        raise KeyError("oops")

    with pytest.raises(KeyError):
        ExtensionHost.build(configure_fn=configure)

    assert closed == ["sync", "async"]


def test_an_async_configure_is_refused():
    """Bad input: it would silently never run."""

    class Async(Extension):
        async def configure(self, c):
            pass

    with pytest.raises(ExtensionError, match="cannot be async"):
        ExtensionHost.build([Async()])


BAD_SNIPPETS = {
    "raises": lambda: 1 / 0,
    "text": lambda: "not a list",
    "number": lambda: [3],
    "exit": lambda: (_ for _ in ()).throw(SystemExit(1)),
}


@pytest.mark.parametrize("bad", BAD_SNIPPETS)
def test_a_bad_snippet_is_reported_and_left_out(bad):
    """S229, bad input: the other sections stand; the report names extension and hook."""
    told: list[ExtensionError] = []

    class Bad(Extension):
        def system_prompt_snippets(self):
            return list(BAD_SNIPPETS[bad]()) if bad == "exit" else BAD_SNIPPETS[bad]()

    host = ExtensionHost.build([Bad(), Duck()], on_error=told.append)

    assert host.system_sections() == ("Quack.",)
    assert [(e.extension, e.hook) for e in told] == [("Bad", "system_prompt_snippets")]


def test_a_hanging_snippet_is_passed_over():
    """Bad input: it cannot hold the Kit for ever."""
    release = threading.Event()
    told: list[ExtensionError] = []

    class Hangs(Extension):
        hook_timeout_seconds = 0.05

        def system_prompt_snippets(self):
            release.wait(30)
            return ["never"]

    host = ExtensionHost.build([Hangs(), Duck()], on_error=told.append)

    assert host.system_sections() == ("Quack.",)
    assert "did not return within 0.05 seconds" in str(told[0])
    release.set()


@pytest.mark.parametrize("bad", ["raises", "type", "hangs", "hangs-async", "cancels"])
async def test_a_bad_message_hook_is_reported_and_passed_over(bad):
    """S229, bad input: raises, wrong type, hangs (sync and async), cancels itself: the next guest is asked."""
    release = threading.Event()
    told: list[ExtensionError] = []

    class Bad(Extension):
        hook_timeout_seconds = 0.05

    def sync_hook(self, ctx, content):
        if bad == "raises":
            raise RuntimeError("broken")
        if bad == "hangs":
            release.wait(30)
        return 42

    async def async_hook(self, ctx, content):
        if bad == "cancels":
            raise asyncio.CancelledError
        await asyncio.Event().wait()

    Bad.on_user_message = async_hook if bad in ("hangs-async", "cancels") else sync_hook
    host = bound(Bad(), Duck())
    host.on_error = told.append

    blocks = await host.reference_blocks("hi")
    release.set()

    assert [name for name, _ in blocks] == ["Duck"]
    assert [(e.extension, e.hook) for e in told] == [("Bad", "on_user_message")]


async def test_a_bad_closer_does_not_stop_the_others():
    """S229: each closer is isolated; failures are reported."""
    told: list[ExtensionError] = []
    closed: list[str] = []

    async def last():
        closed.append("async")

    def configure(c):
        c.on_close(last)
        c.on_close(lambda: 1 / 0)

    host = ExtensionHost.build(configure_fn=configure, on_error=told.append)
    await host.close()

    assert closed == ["async"]
    assert told[0].hook == "on_close"


def test_reports_made_before_anyone_listens_are_kept():
    """A snippet that fails while the Kit is built is still heard of."""
    told: list[ExtensionError] = []

    class Bad(Extension):
        def system_prompt_snippets(self):
            raise ValueError("early")

    host = ExtensionHost.build([Bad()])
    host.system_sections()
    host.on_error = told.append

    assert "early" in str(told[0])


async def test_a_stopped_turn_stops_waiting_for_a_hook():
    """A cancel passes through a hook at once and is not taken for its failure."""
    entered = asyncio.Event()
    told: list[ExtensionError] = []

    class Waits(Extension):
        async def on_user_message(self, ctx, content):
            entered.set()
            await asyncio.Event().wait()

    host = bound(Waits())
    host.on_error = told.append
    task = asyncio.ensure_future(host.reference_blocks("x"))
    await entered.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == []


# ---------------------------------------------------------------- contributions


def test_a_contribution_is_optional_and_none_gives_no_node():
    """S202, S203: default and None add nothing; a Contribution is merged."""

    class Says(Extension):
        def trifecta_contribution(self, tools):
            return Contribution(label="says")

    class Nothing(Extension):
        def trifecta_contribution(self, tools):
            return None

    host = ExtensionHost.build([Nothing(), Says(), Extension()])

    assert [c.label for c in host.contributions()] == ["says"]


def test_another_type_of_contribution_raises():
    """S203: a wrong answer about risk is not passed over."""

    class Wrong(Extension):
        def trifecta_contribution(self, tools):
            return {"private": True}

    with pytest.raises(ExtensionError, match="returned dict"):
        ExtensionHost.build([Wrong()]).contributions()


def test_a_failing_contribution_is_a_gap():
    """S229: reported, and not taken for safe."""
    told: list[ExtensionError] = []

    class Fails(Extension):
        def trifecta_contribution(self, tools):
            raise OSError("no network")

    host = ExtensionHost.build([Fails()], on_error=told.append)
    report = host.trifecta(())

    assert told[0].hook == "trifecta_contribution"
    assert "Fails: its trifecta_contribution failed" in report.gaps


def test_the_hook_gets_the_agents_and_the_sub_agents_tools():
    """S208: the same objects."""
    seen: list[object] = []

    class Looks(Extension):
        def configure(self, c):
            self.theirs = c.add_sub_agent_tool(search)

        def trifecta_contribution(self, tools):
            seen.extend(tools)

    looks = Looks()
    host = ExtensionHost.build([looks], lambda c: c.add_tool(add))
    host.contributions(host.tools)

    assert [id(tool) for tool in seen] == [id(host.tools[0]), id(looks.theirs)]


# ---------------------------------------------------------------- installed ones


def test_installed_extensions_are_listed_and_not_imported(monkeypatch, tmp_path):
    """Entry points: listed with their package, by the doctor too; loaded on request, never enabled by themselves."""
    import sys

    info = tmp_path / "weather_kit-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: weather-kit\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(
        "[kit_jupyter.extensions]\nweather = weather_kit:Weather\nbroken = weather_kit_gone:Gone\n"
    )
    (tmp_path / "weather_kit.py").write_text(
        "from kit_jupyter.extension import Extension\nclass Weather(Extension):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    found = {one.name: one for one in list_installed() if one.package == "weather-kit"}

    assert found["weather"].version == "1.2"
    assert found["weather"].target == "weather_kit:Weather"
    assert "weather_kit" not in sys.modules
    assert ExtensionHost.build().extensions == []
    from kit_jupyter.__main__ import _about_guests

    assert any("weather (weather_kit:Weather), of weather-kit 1.2" in text for _, text in _about_guests())
    assert "weather_kit" not in sys.modules
    assert issubclass(found["weather"].load(), Extension)
    with pytest.raises(ExtensionError, match="broken"):
        found["broken"].load()
    sys.modules.pop("weather_kit", None)


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("before_tools", "before_tool"),
        ("befor_tool", "before_tool"),
        ("beforeTool", "before_tool"),
        ("before_tool_call", "before_tool"),
        ("before_turns", "before_turn"),
        ("before_compaction", "before_compact"),
    ],
)
def test_a_misspelt_gate_is_refused(name, hook):
    """A gate that is never called lets everything through: an error when the guest is added, and nothing stays open."""
    guest = type("Guard", (Extension,), {name: lambda self, *args: None})()
    with pytest.raises(UsageError, match=rf"Guard\.{name} is no hook and is never called; did you mean {hook}\?"):
        ExtensionHost.build([guest])


@pytest.mark.parametrize(
    ("name", "hook"),
    [
        ("on_usermessage", "on_user_message"),
        ("on_message", "on_user_message"),
        ("after_tools", "after_tool"),
        ("system_prompt_snippet", "system_prompt_snippets"),
        ("edit_prompts", "edit_prompt"),
        ("confgure", "configure"),
    ],
)
def test_another_misspelt_hook_is_warned_of(name, hook):
    """What is no gate may be a method of its own, so it is told and taken."""
    guest = type("Guard", (Extension,), {name: lambda self, *args: None})()
    with pytest.warns(UserWarning, match=rf"Guard\.{name} is no hook and is never called; did you mean {hook}\?"):
        host = ExtensionHost.build([guest])
    assert host.extensions == [guest]


def test_a_misspelt_gate_over_a_good_one_is_refused():
    """A subclass that means to override a gate is looked at by itself."""

    class Guard(Extension):
        def before_tool(self, call, arguments):
            """Lets all through."""

    class Strict(Guard):
        def before_tools(self, call, arguments):
            """Would block all."""

    with pytest.raises(UsageError, match="did you mean before_tool"):
        ExtensionHost.build([Strict()])


def test_methods_of_ones_own_are_no_misspelt_hooks(recwarn):
    """Ordinary names, private ones, what stands beside its hook, and the guests that come with it."""
    from kit_jupyter import extensions

    ordinary = "load save reload reconfigure configured unbind bind_tools bound find on_close on_change on_output"
    ordinary += " on_tool_result before_tests before_save prepare render run call close edit tools reset"
    methods = {name: lambda self, *args: None for name in ordinary.split()}
    beside = {"before_tool": lambda self, call, arguments: None, "before_tools": lambda self: None}
    guests = [type("Own", (Extension,), methods)(), type("Beside", (Extension,), beside)()]
    guests.append(type("Private", (Extension,), {"_before_tools": lambda self: None})())
    ours = [getattr(extensions, name) for name in extensions.__all__]

    ExtensionHost.build(guests)

    assert not recwarn.list
    assert [nearest_hook(name) for one in ours for name in dir(one) if nearest_hook(name)] == []
