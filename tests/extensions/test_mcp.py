"""MCP: real servers on stdio and loopback HTTP, and servers that break the rules."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kit_jupyter import Kit
from kit_jupyter.errors import BadArguments, ExtensionError, ToolError, UsageError
from kit_jupyter.events import ApprovalAsked
from kit_jupyter.extensions.mcp import Mcp, Server
from kit_jupyter.permissions import Approval, CallbackApprover
from kit_jupyter.prompt import ToolResultPart
from kit_jupyter.testing import ScriptedProvider, record_events, text, tool_call
from kit_jupyter.tools.mcp import Connection, McpTool
from kit_jupyter.trifecta import Legs

pytest.importorskip("mcp", reason="the mcp package is not installed")

HERE = Path(__file__).parent
DEMO = str(HERE / "mcp_server.py")
ODD = str(HERE / "odd_mcp_server.py")
SLOW = 90.0  # seconds that a start may take on a busy machine


def demo(name="demo", **more):
    return Server(name=name, command=sys.executable, args=[DEMO], start_timeout_seconds=SLOW, **more)


def odd(way, *words, **more):
    options = {"start_timeout_seconds": SLOW, **more}
    return Server(name="odd", command=sys.executable, args=[ODD, way, *words], **options)


def plain(**more):
    """A server that starts at once: for tests of processes, not of the protocol."""
    return Server(**{"name": "plain", "command": sys.executable, "args": [ODD, "plain"], **more})


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextlib.contextmanager
def connected(server):
    """A started connection; its warnings are in ``.told``."""
    told: list[str] = []
    connection = Connection(server, on_warning=told.append)
    connection.told = told
    try:
        connection.start()
        yield connection
    finally:
        connection.close()


@contextlib.contextmanager
def http_server(port=0, *options):
    """A server process on loopback HTTP; gives it and its port."""
    command = [sys.executable, DEMO, "--http", str(port), *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process, int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


@pytest.fixture(scope="module")
def shared():
    """One stdio server for the tests that leave it as it was; a key was set where it was started."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SOME_API_KEY", "secret")
        with connected(demo(env={"GIVEN": "yes"})) as connection:
            yield connection


@pytest.fixture(scope="module")
def address():
    """Where one HTTP server listens that the tests leave as it was; a server takes more than one client."""
    with http_server() as (_, port):
        yield f"http://127.0.0.1:{port}/mcp"


def at(address, name="demo", **more):
    return Server(name=name, url=address, start_timeout_seconds=SLOW, **more)


@pytest.fixture(scope="module")
def shared_http(address):
    with connected(at(address, "web")) as connection:
        yield connection


@pytest.fixture(params=["stdio", "http"])
def either(request):
    return request.getfixturevalue("shared" if request.param == "stdio" else "shared_http")


# ---------------------------------------------------------------- calls, on both transports


async def test_tools_are_namespaced_and_called(either):
    """S213: server__tool, the server's schema and description, its result."""
    names = {tool.remote_name: tool.spec.name for tool in either.tools}
    assert names["add"] == f"{either.server.name}__add"
    assert {"pid", "fail", "dot"} <= set(names)
    add = next(tool for tool in either.tools if tool.remote_name == "add")
    assert add.spec.description == "Add two numbers."
    assert add.spec.schema["required"] == ["a", "b"]

    outcome = await either.call("add", {"a": 2, "b": 3})

    assert (outcome.text, outcome.is_error) == ("5", False)


async def test_a_tool_that_fails_is_an_error_result(either):
    """The server's words, as an error; the connection lives."""
    outcome = await either.call("fail", {"words": "no such table"})

    assert outcome.is_error
    assert "no such table" in outcome.text
    assert either.is_connected


async def test_pictures_come_as_media(either):
    """Image content is a media part."""
    (part,) = (await either.call("dot", {})).parts

    assert (part.type, part.media_type) == ("media", "image/png")
    assert part.raw.startswith(b"\x89PNG")


async def test_progress_is_live_output(either):
    """What a tool reports while it works."""
    heard: list[str] = []

    outcome = await either.call("steps", {}, lambda text, **more: heard.append(text))

    assert outcome.text == "there"
    assert heard == ["half way (1/2)\n"]


async def test_resources_and_prompts(either):
    """Listed, read, filled in; templates too."""
    listed = dict(await either.resources())

    assert "notes://today" in listed
    assert "notes://{day}" in listed
    assert (await either.read_resource("notes://today"))[0].text == "buy milk"
    assert (await either.read_resource("notes://monday"))[0].text == "notes of monday"
    assert dict(await either.prompts())["review"].startswith("Review code.")
    assert await either.prompt("review", {"code": "x=1"}) == "user: Please review: x=1"
    with pytest.raises(ToolError):
        await either.read_resource("other://thing")


async def test_several_calls_at_once(either):
    """Answers find their calls."""
    outcomes = await asyncio.gather(*(either.call("add", {"a": n, "b": 0}) for n in range(8)))

    assert [outcome.text for outcome in outcomes] == [str(n) for n in range(8)]


async def test_a_stopped_call_leaves_the_server_usable(either):
    """A cancel ends the wait at once; the next call works."""
    call = asyncio.ensure_future(either.call("wait", {}))
    await either.call("add", {"a": 1, "b": 1})  # the first is on its way by now
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    assert (await either.call("add", {"a": 1, "b": 2})).text == "3"


def test_arguments_are_checked_before_they_are_sent(shared):
    """One line per fault, with the place."""
    add = next(tool for tool in shared.tools if tool.remote_name == "add")

    assert add.validate({"a": 1, "b": 2}) == {"a": 1, "b": 2}
    with pytest.raises(BadArguments) as caught:
        add.validate({"a": "one"})
    assert len(str(caught.value).splitlines()) == 2
    assert "'b' is a required property" in str(caught.value)
    assert "a: 'one' is not of type 'integer'" in str(caught.value)


async def test_the_environment_is_clean(shared):
    """A server does not see our keys; it sees what it is given."""
    assert os.environ["SOME_API_KEY"] == "secret"
    assert (await shared.call("env", {"name": "SOME_API_KEY"})).text == "(not set)"
    assert (await shared.call("env", {"name": "GIVEN"})).text == "yes"


# ---------------------------------------------------------------- death


async def test_a_death_in_a_call_is_told_and_the_next_call_starts_again(shared):
    """Bad input: exit code and last words; reconnect at the next call; no call is repeated by itself."""
    first = (await shared.call("pid", {})).text

    with pytest.raises(ToolError) as caught:
        await shared.call("die", {"words": "out of memory"})
    assert "died during tool die" in str(caught.value)
    assert "exit code 7" in str(caught.value)
    assert "out of memory" in str(caught.value)
    assert "not known" in str(caught.value)

    second = (await shared.call("pid", {})).text
    assert second != first


async def test_a_death_between_calls_is_healed():
    """A server that died while idle is not taken for connected, and the next call starts it again."""
    with connected(plain()) as connection:
        os.kill(connection.pid, 9)
        for _ in range(1000):
            if not connection.is_connected:
                break
            await asyncio.sleep(0.01)

        assert (await connection.call("good", {})).text == "fine"
        assert connection.is_connected


@pytest.mark.slow
async def test_an_http_server_that_comes_back_is_found_again():
    """The same over HTTP: down, told; up again on its port, used."""
    with (
        http_server() as (_, port),
        connected(Server(name="web", url=f"http://127.0.0.1:{port}/mcp", start_timeout_seconds=SLOW)) as connection,
    ):
        assert (await connection.call("add", {"a": 1, "b": 1})).text == "2"
        with pytest.raises(ToolError):
            await connection.call("die", {"words": "x"})
        with pytest.raises(ToolError, match="did not start"):
            await connection.call("add", {"a": 1, "b": 1})
        with http_server(port):
            assert (await connection.call("add", {"a": 1, "b": 2})).text == "3"


def test_closing_ends_the_process():
    """No process is left behind, and a closed connection does not start again."""
    connection = Connection(plain())
    connection.start()
    pid = connection.pid
    assert is_alive(pid)

    connection.close()
    connection.close()

    assert not is_alive(pid)
    with pytest.raises(ToolError, match="is closed"):
        connection.start()


def test_an_interpreter_that_ends_takes_its_servers_along(tmp_path):
    """A Kit that nobody closes leaves no process."""
    code = (
        "import sys; from kit_jupyter.tools.mcp import Connection, Server\n"
        f"c = Connection(Server(name='plain', command=sys.executable, args=[{ODD!r}, 'plain']))\n"
        "c.start(); print(c.pid)\n"
    )
    root = HERE.parents[1]
    ran = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=100)

    pid = int(ran.stdout)
    for _ in range(100):
        if not is_alive(pid):
            break
        threading.Event().wait(0.05)
    assert not is_alive(pid)


# ---------------------------------------------------------------- servers that break the rules


async def test_rubbish_on_stdout_is_passed_over_and_told_once_per_line():
    """Bad input: lines that are no messages, half a message, bad bytes, an answer nobody waits for."""
    with connected(odd("rubbish")) as connection:
        assert (await connection.call("good", {})).text == "fine"

        assert any("debug: got a line" in text for text in connection.told)
        assert len(connection.told) == len(set(connection.told)) <= 4


def test_a_server_that_only_prints_rubbish_does_not_start():
    """Bad input: the limit holds, and the warning shows what it printed."""
    told: list[str] = []
    connection = Connection(odd("rubbish-only", start_timeout_seconds=2), on_warning=told.append)

    with pytest.raises(ToolError, match="did not answer within 2 s"):
        connection.start()

    assert any("Welcome to my server!" in text for text in told)
    connection.close()


def test_a_server_that_exits_at_once_tells_why():
    """Bad input: exit code and stderr are in the error."""
    connection = Connection(odd("exits"))

    with pytest.raises(ToolError) as caught:
        connection.start()

    assert "exit code 3" in str(caught.value)
    assert "cannot open the database" in str(caught.value)
    connection.close()


def test_a_silent_server_is_given_up():
    """Bad input: it never answers; nothing stays behind."""
    connection = Connection(odd("silent", start_timeout_seconds=1))

    with pytest.raises(ToolError, match=r"did not answer within 1 s$"):
        connection.start()

    assert connection.pid is None
    connection.close()


def test_a_command_that_is_not_there():
    """Bad input: the error names it."""
    connection = Connection(Server(name="none", command="no-such-program-at-all"))

    with pytest.raises(ToolError, match="no-such-program-at-all"):
        connection.start()
    connection.close()


async def test_fifty_megabytes_are_not_taken_in():
    """Bad input: the call gets an error that says how much it was; the connection lives."""
    with connected(odd("large")) as connection:
        with pytest.raises(ToolError, match=r"the answer has 5\d{7} bytes, more than the limit of 16000000"):
            await connection.call("good", {})

        assert connection.is_connected


async def test_a_limit_below_one_read_still_tells_whose_answer_it_was():
    """Bad input: the head of the line is kept, however small the limit is."""
    with connected(odd("large", "600000", max_message_bytes=20_000)) as connection:
        with pytest.raises(ToolError, match="bytes, more than the limit of 20000"):
            await connection.call("good", {})

        assert connection.is_connected


async def test_why_we_hung_up_is_told():
    """Bad input: a message too large to read that answers nobody ends the connection, and the error says so."""
    says = r"it sent a message of 500\d+ bytes without an id in its head"
    with connected(odd("large-notice", max_message_bytes=20_000)) as connection, pytest.raises(ToolError, match=says):
        await connection.call("good", {})


@pytest.mark.slow
async def test_fifty_megabytes_over_http(address):
    """Bad input: the same limit for an event of a stream; the next call works."""
    with connected(at(address, call_timeout_seconds=60)) as connection:
        with pytest.raises(ToolError):
            await connection.call("large", {"size": 50_000_000})

        assert (await connection.call("add", {"a": 1, "b": 1})).text == "2"


async def test_a_long_text_below_the_limit_is_cut(shared):
    """What the model is told is bounded, and says so."""
    outcome = await shared.call("large", {"size": 150_000})

    assert outcome.text.endswith("[cut: 50000 more characters]")


async def test_a_server_that_cries_change_is_asked_a_few_times_only():
    """Bad input: three hundred notices at once: the list is read again, not three hundred times beside each other."""
    with connected(odd("chatty")) as connection:
        before = int((await connection.call("lists", {})).text)
        await connection.call("good", {})
        for _ in range(200):
            if (asked := int((await connection.call("lists", {})).text)) > before:
                break

        assert before < asked <= before + 20
        assert int((await connection.call("lists", {})).text) <= before + 20


def test_duplicate_names():
    """Bad input: the first of two counts and the other is told; names that only look alike here are kept apart."""
    with connected(odd("duplicates")) as connection:
        names = [tool.spec.name for tool in connection.tools]

        assert names[:2] == ["odd__good", "odd__a_b"]
        assert len(set(names)) == 3
        assert connection.tools[0].spec.description == "A good tool."
        assert [t for t in connection.told if "two tools are named 'good'" in t]


def test_invalid_schemas_are_left_out():
    """Bad input: told with the reason; the good tool is there; a remote reference is never fetched."""
    with connected(odd("schemas")) as connection:
        names = [tool.remote_name for tool in connection.tools]

        assert names == ["good", "remote_ref"]
        told = "\n".join(connection.told)
        for words in ("'wrong_type'", "'no_schema'", "without a name"):
            assert words in told
        assert "'wrong_keyword'" in told
        assert connection.tools[1].validate({"x": 1}) == {"x": 1}


@pytest.mark.parametrize(
    "of_x", [{"type": "string", "pattern": "("}, {"$ref": "#/nowhere"}, {"$ref": "#"}, {"$ref": "http://127.0.0.1:9/s"}]
)
def test_a_schema_that_cannot_be_checked_is_left_to_the_server(of_x):
    """Bad input: a pattern that is none, references to nowhere, round in a ring, to elsewhere: no crash, no fetch."""
    schema = {"type": "object", "properties": {"x": of_x}}
    made = McpTool(Connection(plain()), "odd", "Odd.", schema)

    assert made.validate({"x": "y"} if "type" in of_x else {"x": {}}) is not None


def test_a_tool_list_that_is_no_list_of_tools():
    """Bad input: the server does not start, and the error says that it broke the protocol."""
    connection = Connection(odd("broken-list"))

    with pytest.raises(ToolError, match="did not start"):
        connection.start()
    connection.close()


def test_an_endless_tool_list_ends():
    """Bad input: at most a hundred pages."""
    with connected(odd("endless")) as connection:
        assert len(connection.tools) == 100


async def test_a_wrong_result_is_an_error_not_a_crash():
    """Bad input: a result that is none, a picture that is none."""
    with connected(odd("wrong-result")) as connection:
        with pytest.raises(ToolError, match=r"breaks the protocol|odd"):
            await connection.call("good", {})
        assert connection.is_connected
    with connected(odd("bad-image")) as connection:
        assert "not valid base64" in (await connection.call("good", {})).text


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "Bad Name", "command": "x"},
        {"name": "x"},
        {"name": "x", "command": "x", "url": "http://127.0.0.1"},
        {"name": "x" * 31, "command": "x"},
    ],
)
def test_wrong_servers_are_told(wrong):
    """Bad input: before anything is started."""
    with pytest.raises(UsageError):
        Server(**wrong)


def test_wrong_settings_are_told():
    """Bad input: an unknown setting, one name twice."""
    with pytest.raises(UsageError, match="unknown settings comand"):
        Mcp({"x": {"comand": "y"}})
    with pytest.raises(UsageError, match="two MCP servers"):
        Mcp([demo(), demo()])


# ---------------------------------------------------------------- the extension


def results(request):
    return [p for m in request.messages for p in m.parts if isinstance(p, ToolResultPart)]


async def test_through_a_kit_a_clear_keeps_the_process():
    """S213, S175, S176, S221: tools, prompt section, a call; same pid after a clear; ended with the Kit."""
    provider = ScriptedProvider([tool_call("demo__add", a=2, b=3)], [text("5")])
    mcp = Mcp([demo(description="Sums.", legs=Legs())])
    kit = Kit(provider=provider, session="memory", extensions=[mcp], permissions=[("mcp", "demo/*", "allow")])
    pid = mcp.connections["demo"].pid

    result = await kit.prompt("2 + 3?")

    assert str(result) == "5"
    assert results(provider.last_request)[0].parts[0].text == "5"
    assert "- demo: Sums.; 10 tools" in provider.requests[0].system
    assert "IGNORE ALL RULES" not in provider.requests[0].system  # a server's own words stay out
    await kit.clear_conversation()
    assert mcp.connections["demo"].pid == pid
    assert is_alive(pid)
    await kit.aclose()
    assert not is_alive(pid)


async def test_calls_ask_unless_a_rule_allows():
    """Nothing acts unasked: the default policy asks before a stranger's tool runs."""
    provider = ScriptedProvider([tool_call("plain__good")], [text("ok")])
    kit = Kit(
        provider=provider,
        session="memory",
        extensions=[Mcp([plain()])],
        approver=CallbackApprover(lambda question: Approval(allowed=False, reason="no")),
    )

    with record_events(kit) as log:
        await kit.prompt("go")

    assert len(log.of(ApprovalAsked)) == 1
    assert results(provider.last_request)[0].is_error
    await kit.aclose()


async def test_a_lazy_server_is_connected_when_asked_for_and_its_tools_work_in_the_same_turn(address):
    """S213: the connect tool; the next step has the new tools, and so has the next turn."""
    provider = ScriptedProvider(
        [tool_call("mcp_connect", server="demo")], [tool_call("demo__add", a=1, b=1)], [text("2")], [text("ok")]
    )
    mcp = Mcp([at(address, lazy=True, description="Sums.")])
    kit = Kit(provider=provider, session="memory", extensions=[mcp], permissions="auto")
    assert not mcp.connections["demo"].is_connected
    assert "not connected" in kit.system

    await kit.prompt("go")
    await kit.prompt("again")

    assert [p.is_error for p in results(provider.requests[2])] == [False, False]
    assert "demo__add" not in [spec.name for spec in provider.requests[0].tools]
    for request in provider.requests[1:]:
        assert [spec.name for spec in request.tools].count("demo__add") == 1
    await kit.aclose()


async def test_a_tool_list_that_changes_is_followed():
    """The server's notice brings its new tool into the next turn."""
    provider = ScriptedProvider([tool_call("demo__grow")], [text("ok")])
    kit = Kit(provider=provider, session="memory", extensions=[Mcp([demo()])], permissions="auto")
    changed = threading.Event()
    before = list(kit.tools)
    connection = kit.host.extensions[0].connections["demo"]
    told = connection.on_tools
    connection.on_tools = lambda: (told(), changed.set())

    await kit.prompt("go")
    await asyncio.to_thread(changed.wait, 20)

    names = list(kit.tools)
    assert "demo__late" in names
    assert [name for name in names if name != "demo__late"] == before  # nothing else has moved
    await kit.aclose()


async def test_resources_and_prompts_through_the_extension(address):
    """S213: the two tools list and read."""
    mcp = Mcp([at(address)])
    kit = Kit(provider=ScriptedProvider(), session="memory", extensions=[mcp])

    assert "notes://today" in (await mcp.mcp_resource("demo")).text
    assert (await mcp.mcp_resource("demo", "notes://today")).text == "buy milk"
    assert "review" in await mcp.mcp_prompt("demo")
    assert "x=1" in await mcp.mcp_prompt("demo", "review", {"code": "x=1"})
    with pytest.raises(ToolError, match="there are: demo"):
        await mcp.mcp_connect("other")
    assert {"mcp_connect", "mcp_resource", "mcp_prompt"} <= set(kit.tools)
    await kit.aclose()


def test_legs_are_assumed_until_declared(hosted):
    """S207, S213: an unknown server counts with all legs and is a gap; declared ones count as declared."""
    unknown = hosted(Mcp([demo(lazy=True)])).trifecta(())
    declared = hosted(Mcp([demo(lazy=True, legs=Legs(private=True))])).trifecta(())

    assert unknown.is_loud
    assert any("server demo declares no legs" in gap for gap in unknown.gaps)
    assert not declared.is_loud
    assert "assumed" not in str(declared)


@pytest.mark.parametrize(("permissions", "is_loud"), [("ask", False), ("auto", True), ([("mcp", "*", "allow")], True)])
def test_assumed_legs_count_as_read_where_each_call_is_asked_for(permissions, is_loud):
    """S207, S211: the policy in force is taken into account for what a server is assumed to do, too."""
    with Kit(
        provider=ScriptedProvider(), session="memory", extensions=[Mcp([plain()])], permissions=permissions
    ) as kit:
        report = kit.trifecta

    assert report.is_loud is is_loud
    assert report.gaps


def test_single_tools_can_be_declared(address):
    """Legs of one tool go before those of its server."""
    with connected(at(address, legs=Legs(private=True), tool_legs={"add": Legs()}, only=["add", "pid"])) as connection:
        legs = {tool.remote_name: tool.legs for tool in connection.tools}

    assert legs == {"add": Legs(), "pid": Legs(private=True)}


def test_a_server_that_fails_is_warned_of_and_the_others_start(hosted):
    """Two-phase start: one broken server does not cost the others; the warning says why."""
    mcp = Mcp([odd("exits"), plain()])
    host = hosted(mcp)

    assert "exit code 3" in host.warned[0]
    assert mcp.connections["plain"].is_connected
    assert "- odd: not connected" in mcp.system_prompt_snippets()[0]


def test_a_required_server_that_fails_stops_the_construction_and_ends_the_others():
    """Two-phase start, S229: the closer was armed before anything started."""
    mcp = Mcp([plain(), odd("exits", required=True)])

    with pytest.raises(ExtensionError, match="exit code 3"):
        Kit(provider=ScriptedProvider(), session="memory", extensions=[mcp])

    assert mcp.connections["plain"].pid is None


async def test_http_headers_reach_the_server():
    """Pins the one private name of mcp that we use: the maker of its HTTP client."""
    from mcp.shared._httpx_utils import create_mcp_http_client

    async with create_mcp_http_client(headers={"X-Test": "1"}) as client:
        assert client.headers["X-Test"] == "1"
