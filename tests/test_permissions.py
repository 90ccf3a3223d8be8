"""Who may do what: rules, presets, memory, approvers."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from kit_jupyter import Kit, Session
from kit_jupyter.errors import UsageError
from kit_jupyter.loop import Desk, engine
from kit_jupyter.permissions import (
    Access,
    Approval,
    CallbackApprover,
    Decision,
    Need,
    NobodyThere,
    PendingApprover,
    Question,
    Rule,
    RulePolicy,
    RuleStore,
    StdinApprover,
    approver_of,
    audit_record,
    policy_of,
    question_of,
)
from kit_jupyter.testing import ScriptedProvider, text, tool_call
from kit_jupyter.tool import FunctionTool, tool

NUMBERS = itertools.count()


class Context:
    """The little of a `ToolContext` that policies look at."""

    def __init__(self, session: Any = None) -> None:
        self.call_id, self.session_id, self.session = "c", "s", session


class Acting(FunctionTool):
    """A tool that tells what it needs."""

    def __init__(self, *needs: Need, **more: Any) -> None:
        super().__init__(lambda command="": command, name="shell", **more)
        self.needs = needs

    def access(self, arguments: Any, context: Any) -> Access:
        return Access(needs=self.needs or (Need("shell", str(arguments.get("command", ""))),))


def effect(policy: Any, item: Any, **arguments: Any) -> str:
    context = Context()
    context.call_id = str(next(NUMBERS))
    return policy.decide(item, arguments, context).effect


def plain(x: str = "") -> str:
    """A user's function."""
    return x


PLAIN = tool(plain)
KINDS = ("look", "act", "outside", "sensitive", "unsure")


@pytest.mark.parametrize(
    ("preset", "expected", "function"),
    [
        ("read-only", ("allow", "deny", "deny", "deny", "deny"), "ask"),
        ("ask", ("allow", "ask", "ask", "ask", "ask"), "allow"),
        ("auto", ("allow", "allow", "ask", "ask", "ask"), "allow"),
    ],
)
def test_presets(preset, expected, function):
    """The table at the top of the room: by default code, shell, writes and network ask (U59)."""
    policy = RulePolicy(preset)

    assert tuple(effect(policy, Acting(Need("x", "r", kind))) for kind in KINDS) == expected  # type: ignore[arg-type]
    assert effect(policy, PLAIN, x="a") == function


def test_the_last_rule_that_matches_wins():
    """opencode's law (semantics 5.10)."""
    policy = policy_of([("shell", "*", "deny"), ("shell", "git *", "allow"), ("shell", "git push *", "ask")])

    assert effect(policy, Acting(), command="rm x") == "deny"
    assert effect(policy, Acting(), command="git") == "allow"
    assert effect(policy, Acting(), command="git log -p") == "allow"
    assert effect(policy, Acting(), command="git push -f") == "ask"
    assert effect(policy, Acting(), command="gitx") == "deny"


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("*", "", True),
        ("*a*b*", "xxaxxbxx", True),
        ("*a*b", "a b c b", True),
        ("a*b*c", "abcbc", True),
        ("a*b*c", "acb", False),
        ("a?c*", "abcd", True),
        ("*b *", "ab abc b", True),
        ("*b *", "ab abc", True),
        ("*b *", "abc", False),
        ("a\\*b", "a*b", True),
        ("a\\*b", "axb", False),
        ("**a", "ba", True),
    ],
)
def test_patterns(pattern, text, fits):
    """Stars, question marks, literal ones, and "git *" for "git" alone."""
    assert Rule("x", pattern).matches(Need("x", text)) is fits


def test_patterns_with_many_stars_end():
    """A rule over a long text is decided at once: with backtracking this would take longer than the universe lasts."""
    rule = Rule("python", "*" + "a*" * 30 + "b")

    assert not rule.matches(Need("python", "a" * 20_000))
    assert rule.matches(Need("python", "a" * 20_000 + "b"))


def test_the_strictest_need_decides():
    """One denied command in a line denies the line."""
    policy = policy_of([("shell", "*", "allow"), ("shell", "rm *", "deny")])

    assert effect(policy, Acting(Need("shell", "ls"), Need("shell", "rm -rf /"))) == "deny"


def test_what_could_not_be_read_is_never_allowed_by_a_rule():
    """Unparsable means ask, whatever the rules say; and a rule for everything opens nothing outside."""
    policy = policy_of({"preset": "auto", "rules": [("*", "*", "allow"), ("shell", "*", "allow")]})

    assert effect(policy, Acting(Need("shell", "$(", "unsure"))) == "ask"
    assert effect(policy, Acting(Need("write", "/etc/passwd", "outside"))) == "ask"
    assert effect(policy_of([("write", "/etc/*", "allow")]), Acting(Need("write", "/etc/p", "outside"))) == "allow"


def test_rules_see_arguments_and_session():
    """U69: a condition gets both; one that raises counts as ask."""
    context = Context(session={"trusted": True})
    policy = policy_of(
        [Rule("shell", when=lambda arguments, ctx: ctx.session["trusted"] and arguments["command"] == "ls")]
    )
    broken = policy_of([Rule("shell", when=lambda arguments, ctx: 1 / 0)])

    assert policy.decide(Acting(), {"command": "ls"}, context).effect == "allow"  # type: ignore[arg-type]
    assert policy.decide(Acting(), {"command": "rm"}, context).effect == "ask"  # type: ignore[arg-type]
    assert broken.decide(Acting(), {"command": "ls"}, context).effect == "ask"  # type: ignore[arg-type]
    assert "ZeroDivisionError" in broken.decide(Acting(), {"command": "l"}, context).reason  # type: ignore[arg-type]


def test_a_tools_own_wish():
    """U69: approve as a word or a function; what a function says to ask or deny is final, odd words ask."""
    rules = [("*", "*", "allow"), ("f", "*", "allow")]

    def wish(approve: Any) -> str:
        return effect(policy_of(rules), FunctionTool(plain, name="f", approve=approve), x="1")

    assert wish(None) == "allow"
    assert wish("ask") == "allow"  # a person's rule goes before the tool's plain wish
    assert wish("deny") == "deny"
    assert wish(lambda arguments, context: "ask" if arguments["x"] == "1" else "allow") == "ask"
    assert wish(lambda arguments, context: "yes please") == "ask"
    assert wish(lambda arguments, context: 1 / 0) == "ask"
    assert wish(lambda arguments, context: "deny") == "deny"
    assert effect(policy_of(), FunctionTool(plain, name="f", approve="ask")) == "ask"


def test_a_policy_that_cannot_judge_asks():
    """Gates fail closed."""

    class Broken(Acting):
        def access(self, arguments: Any, context: Any) -> Access:
            raise RuntimeError("no")

    decision = policy_of("auto").decide(Broken(), {}, Context())  # type: ignore[arg-type]
    assert decision.effect == "ask"
    assert "RuntimeError" in decision.reason


def test_the_same_call_three_times_asks():
    """Doom loop: the third identical call in a row asks, another call between resets, a rule may allow it."""
    policy = policy_of("auto")
    seen = [effect(policy, PLAIN, x="a") for _ in range(3)]
    other = effect(policy, PLAIN, x="b")
    again = effect(policy, PLAIN, x="a")

    assert seen == ["allow", "allow", "ask"]
    assert (other, again) == ("allow", "allow")
    poll = policy_of([("loop", "plain", "allow")])
    assert [effect(poll, PLAIN) for _ in range(5)] == ["allow"] * 5


def test_one_call_judged_twice_counts_once():
    """Edited arguments are judged again; that is no repetition."""
    policy = policy_of("auto")
    for _ in range(5):
        decision = policy.decide(PLAIN, {"x": "a"}, Context())  # type: ignore[arg-type]
    assert decision.effect == "allow"


# ---------------------------------------------------------------- memory


def asked(policy: Any, item: Any, **arguments: Any) -> Question:
    context = Context()
    context.call_id = str(next(NUMBERS))
    return question_of(item, arguments, policy.decide(item, arguments, context), "c1")


def test_session_scope_is_kept_and_forgotten(tmp_path):
    """ "This session" ends with the session."""
    policy = RulePolicy(store=RuleStore(tmp_path, folder=tmp_path / "c"))
    policy.remember(asked(policy, Acting(), command="make"), Approval(allowed=True, scope="session"))

    assert effect(policy, Acting(), command="make") == "allow"
    assert effect(policy, Acting(), command="make x") == "ask"
    policy.forget_session()
    assert effect(policy, Acting(), command="make") == "ask"
    assert not (tmp_path / "c").exists()


def test_always_is_stored_by_project_outside_it(tmp_path):
    """ "Always" lasts for this project only, in the user's configuration."""
    project, config = tmp_path / "p", tmp_path / "config"
    project.mkdir()
    policy = RulePolicy(store=RuleStore(project, folder=config))
    policy.remember(asked(policy, Acting(), command="make"), Approval(allowed=True, scope="always"))
    policy.remember(asked(policy, Acting(), command="rm"), Approval(allowed=False, scope="always"))

    later = RulePolicy(store=RuleStore(project, folder=config))
    assert effect(later, Acting(), command="make") == "allow"
    assert effect(later, Acting(), command="rm") == "deny"
    assert effect(RulePolicy(store=RuleStore(tmp_path, folder=config)), Acting(), command="make") == "ask"
    assert list(project.iterdir()) == []


def test_a_command_with_stars_is_remembered_literally(tmp_path):
    """Always for `rm *.tmp` is not always for every rm."""
    policy = RulePolicy()
    policy.remember(asked(policy, Acting(), command="rm *"), Approval(allowed=True, scope="session"))

    assert effect(policy, Acting(), command="rm *") == "allow"
    assert effect(policy, Acting(), command="rm -rf /") == "ask"


@pytest.mark.parametrize("body", ["{", "[]", '{"rules": [{"action": 3}]}', '{"rules": 3}', "\x00"])
def test_a_broken_rules_file_means_ask(tmp_path, body, caplog):
    """Fails closed, and says so."""
    store = RuleStore(tmp_path, folder=tmp_path)
    store.path.write_text(body)

    assert effect(RulePolicy(store=store), Acting(), command="make") == "ask"
    assert "not readable" in caplog.text


def test_a_broken_rules_file_is_kept_when_a_rule_is_stored(tmp_path):
    """There may be denials in it, which a person can still mend; what is stored then holds."""
    store = RuleStore(tmp_path, folder=tmp_path)
    for body in ('{"rules": [{"action": "shell", "pattern": "rm *", "effect": "deny"},]}', "[" * 100_000):
        store.path.write_text(body)

        store.add([Rule("shell", "ls *", "allow")])

        assert store.path.with_suffix(".broken").read_text() == body
        assert store.rules == (Rule("shell", "ls *", "allow"),)


def test_config_dir_can_be_moved(tmp_path, monkeypatch):
    """KIT_CONFIG_DIR, for tests and shared homes."""
    monkeypatch.setenv("KIT_CONFIG_DIR", str(tmp_path))
    assert RuleStore(Path("/x")).path.parent == tmp_path / "permissions"


def test_sub_agents_inherit_denials():
    """A child may be stricter, never laxer; its answers are its parent's."""
    parent = policy_of([("shell", "rm *", "deny"), ("shell", "ls *", "allow")])
    child = parent.for_child("auto", [("shell", "*", "allow")])
    grandchild = child.for_child()

    for policy in (child, grandchild):
        assert effect(policy, Acting(), command="rm x") == "deny"
        assert effect(policy, Acting(), command="make") == "ask"
        assert effect(policy, Acting(), command="ls") == "allow"
    child.remember(asked(child, Acting(), command="make"), Approval(allowed=False, scope="session"))
    assert effect(parent, Acting(), command="make") == "deny"
    assert effect(parent.for_child("read-only"), Acting(), command="touch") == "deny"


@pytest.mark.parametrize(
    "value", ["sometimes", 3, [("a",)], [{"effect": "allow"}], {"x": 1}, [("a", "*", "maybe")], [3]]
)
def test_wrong_permissions_are_told(value):
    """The caller's move."""
    with pytest.raises(UsageError):
        policy_of(value)


# ---------------------------------------------------------------- approvers


QUESTION = Question(call_id="c1", tool_name="shell", arguments={"command": "ls"}, text="Run ls?", suggestion="shell ls")


def test_nobody_there_says_what_to_do():
    """Denied with words for the model and for the user (U60)."""
    approval = asyncio.run(NobodyThere().ask(QUESTION))

    assert not approval.allowed
    assert approval.by == "nobody"
    assert "Do not try it again" in approval.reason
    assert "Kit(permissions=[('shell', 'ls', 'allow')])" in approval.reason


def test_nobody_there_names_every_rule_and_says_when_none_can_help():
    """The remedy that is printed is the whole one; what no rule can allow says why instead (U60)."""

    def denied(**facts: Any) -> str:
        question = Question(call_id="c", tool_name="shell", arguments={}, text="Run?", **facts)
        return asyncio.run(NobodyThere().ask(question)).reason

    several = denied(suggestion="shell ls *\nshell head *")
    assert "kit.permissions = [('shell', 'ls *', 'allow'), ('shell', 'head *', 'allow')]" in several
    none = denied(reason="shell lines cannot be read without the package bashlex: pip install 'kit-jupyter[tools]'")
    assert "pip install 'kit-jupyter[tools]'" in none
    assert "permissions =" not in none


def test_permissions_of_a_live_kit_are_set_as_they_were_given():
    """`kit.permissions` takes what ``Kit(permissions=…)`` takes, and what is wrong is told."""
    from kit_jupyter import Kit
    from kit_jupyter.testing import ScriptedProvider

    kit = Kit(provider=ScriptedProvider(), session="memory")
    kit.permissions = [("shell", "ls *", "allow")]

    assert kit.permissions is kit.policy
    assert effect(kit.permissions, Acting(), command="ls x") == "allow"
    with pytest.raises(UsageError):
        kit.permissions = "sometimes"


async def test_pending_questions_are_answered_from_any_thread():
    """`kit.approve` and `kit.deny` by call id; the question is gone afterwards."""
    emitted: list[Question] = []
    approver = PendingApprover(emitted.append)
    asking = asyncio.ensure_future(approver.ask(QUESTION))
    await asyncio.sleep(0)
    assert approver.pending == (QUESTION,)

    threading.Thread(target=approver.answer, args=("c1", Approval(allowed=True, by="widget"))).start()

    assert (await asking).by == "widget"
    assert emitted == [QUESTION]
    assert approver.pending == ()
    with pytest.raises(UsageError, match="'c1'"):
        approver.answer("c1", Approval(allowed=True))


async def test_a_stopped_question_is_gone():
    """A cancelled turn leaves no question behind."""
    approver = PendingApprover()
    asking = asyncio.ensure_future(approver.ask(QUESTION))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.wait([asking])

    assert approver.pending == ()


def served(coro: Any) -> Any:
    """Run on the engine, this thread being the user's."""
    desk = Desk()
    return desk.serve_blocking(engine.start(coro, desk))


@pytest.mark.parametrize(
    ("fn", "allowed", "reason"),
    [
        (lambda q: True, True, ""),
        (lambda q: False, False, "denied"),
        (lambda q: "too risky", False, "too risky"),
        (lambda q: Approval(allowed=True, scope="always"), True, ""),
        (lambda q: 1 / 0, False, "ZeroDivisionError"),
        (lambda q: 7, False, "int"),
    ],
)
def test_callbacks(fn, allowed, reason):
    """A function of the question decides, on the user's thread; one that fails denies."""
    threads = []

    def asked_here(question: Question) -> Any:
        threads.append(threading.current_thread())
        return fn(question)

    async def asynchronous(question: Question) -> Any:
        return fn(question)

    for approver in (CallbackApprover(asked_here), CallbackApprover(asynchronous)):
        approval = served(approver.ask(QUESTION))
        assert approval.allowed is allowed
        assert reason in approval.reason
    assert threads == [threading.current_thread()]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["y"], (True, "once", None, "")),
        (["what", "Yes"], (True, "once", None, "")),
        (["s"], (True, "session", None, "")),
        (["always"], (True, "always", None, "")),
        (["n use ls instead"], (False, "once", None, "use ls instead")),
        (["e", "{", "e", '{"command": "pwd"}'], (True, "once", {"command": "pwd"}, "")),
    ],
)
def test_stdin(lines, expected):
    """Approve, deny with a reason, edit, by the terminal (U60)."""
    left = list(lines)
    approval = served(StdinApprover(lambda prompt: left.pop(0)).ask(QUESTION))

    assert (approval.allowed, approval.scope, approval.arguments, approval.reason) == expected
    assert left == []


def test_stdin_where_no_input_is():
    """EOF is nobody."""

    def no_input(prompt: str) -> str:
        raise EOFError

    assert served(StdinApprover(no_input).ask(QUESTION)).by == "nobody"


@pytest.mark.parametrize(
    "answer",
    [{"allowed": "no"}, {"allowed": 1}, {"allowed": True, "arguments": ["a"]}, {"allowed": True, "scope": "ever"}],
)
async def test_an_answer_that_is_none_denies(answer):
    """A text for a yes, a list for arguments, an unknown scope: refused where it is made, so the gate stays shut."""
    with pytest.raises(UsageError):
        Approval(**answer)

    denied = await CallbackApprover(lambda q: Approval(**answer)).ask(QUESTION)

    assert not denied.allowed
    assert "the approver failed (UsageError" in denied.reason


async def test_a_reason_that_no_file_can_hold_denies_all_the_same(tmp_path, monkeypatch):
    """A terminal that knows no UTF-8 gives halves of characters: the answer counts, the session opens (bad input)."""
    monkeypatch.setenv("KIT_DATA_DIR", str(tmp_path))
    provider = ScriptedProvider([tool_call("act", call_id="c\udcff", x="1")], [text("fine")])

    def act(x: str) -> str:
        """Act."""
        raise AssertionError(x)

    kit = Kit(
        provider=provider, tools=[act], permissions=[("act", "*", "ask")], approver=lambda question: "no \udcc3\udca4"
    )

    assert str(await kit.prompt("go")) == "fine"

    await kit.aclose()
    again = Session.open(kit.session.path)
    assert again.warnings == []
    assert [message.role for message in again.messages()] == ["user", "assistant", "tool", "assistant"]


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\n", "\u202e"])
def test_always_stores_no_other_rules_than_were_shown(tmp_path, sign):
    """A sign in a path or command that ends a line would store what stands behind it as a rule: ``python *``."""
    store = RuleStore(tmp_path, folder=tmp_path / "c")
    policy = RulePolicy(store=store)
    arguments = {"command": f"make notes{sign}python{sign}shell"}
    decision = policy.decide(Acting(), arguments, Context())

    policy.remember(question_of(Acting(), arguments, decision, "c"), Approval(allowed=True, scope="session"))
    policy.remember(question_of(Acting(), arguments, decision, "c"), Approval(allowed=True, scope="always"))

    assert decision.effect == "ask"
    assert policy.session_rules == []
    assert store.rules == ()


def test_blanks_at_the_ends_are_not_lost_in_a_rule():
    """A rule's text is stripped when it is stored: for `` x`` none is offered, or it would hold for ``x``."""
    policy = RulePolicy()

    assert policy.decide(Acting(), {"command": " x"}, Context()).suggestion == ""
    assert policy.decide(Acting(), {"command": "x "}, Context()).suggestion == ""


def test_nothing_hides_in_a_question():
    """Escape sequences that erase a line, carriage returns, marks that turn the direction: written out."""
    arguments = {"command": "rm -rf x #\x1b[2K\x1b[1G\rls \u202egnp\u2066"}

    question = question_of(
        Acting(), arguments, Decision(effect="ask", question=f"Run this?\n\n{arguments['command']}\tgrüße 世界 😀"), "c"
    )

    assert question.text.startswith("Run this?\n\nrm -rf x #\\x1b[2K\\x1b[1G\\rls \\u202egnp\\u2066\tgrüße 世界 😀")
    assert question.arguments == arguments


def test_approver_of():
    """What people may write for approver=."""
    assert approver_of(None) is None
    assert isinstance(approver_of("stdin"), StdinApprover)
    assert isinstance(approver_of("nobody"), NobodyThere)
    assert isinstance(approver_of(lambda q: True), CallbackApprover)
    pending = PendingApprover()
    assert approver_of(pending) is pending
    with pytest.raises(UsageError):
        approver_of("me")


def test_the_audit_record_is_json_without_secrets(monkeypatch):
    """Every decision can be written down: by whom, why, with which arguments."""
    monkeypatch.setenv("DEMO_API_KEY", "abcdef-123456")
    record = audit_record(
        "shell",
        "c1",
        {"command": "curl -H abcdef-123456"},
        Decision(effect="ask", reason="shell runs code", suggestion="shell curl *"),
        Approval(allowed=True, scope="always", by="widget", arguments={"command": "ls"}),
    )

    text = json.dumps(record)
    assert "abcdef-123456" not in text
    assert (record["policy"], record["allowed"], record["by"], record["scope"]) == ("ask", True, "widget", "always")
    assert record["edited"] == {"command": '"ls"'}
    assert audit_record("f", "c", {}, Decision(effect="allow"))["by"] == "policy"


@pytest.mark.parametrize(
    "written",
    [
        lambda: Rule("python", "deny"),
        lambda: Rule("python", " Deny "),
        lambda: Rule("python", pattern="ask"),
        lambda: policy_of({"preset": "auto", "rules": [{"action": "python", "pattern": "deny"}]}),
    ],
)
def test_an_effect_in_the_place_of_the_pattern_is_refused(written: Any) -> None:
    """It would be an "allow" of what the writer meant to deny."""
    with pytest.raises(UsageError, match=r"write Rule\('python', '\*', '(deny|ask)'\)"):
        written()


def test_a_pattern_that_reads_like_an_effect_can_be_meant(tmp_path: Path) -> None:
    """With the effect beside it, as a stored rule has it; and two of a tuple are action and effect."""
    assert Rule("ask_user", "deny", "allow").matches(Need("ask_user", "deny"))
    assert Rule.parse("ask_user deny") == Rule("ask_user", "deny", "allow")
    assert policy_of([("python", "deny")]).rules == (Rule("python", "*", "deny"),)  # type: ignore[attr-defined]
    assert type(Rule("shell").effect) is str
    RuleStore(tmp_path, folder=tmp_path).add([Rule("ask_user", "deny", "allow"), Rule("shell", "ask", "deny")])

    stored = RuleStore(tmp_path, folder=tmp_path).rules

    assert stored == (Rule("ask_user", "deny", "allow"), Rule("shell", "ask", "deny"))


def _named(name: str) -> FunctionTool:
    return FunctionTool(lambda: "done", name=name, description="Does it.")


@pytest.mark.parametrize(
    ("action", "tools", "near"),
    [
        ("pyhton", ["python"], "python"),
        ("Python", ["python"], "python"),
        ("web-fetch", ["python"], "web_fetch"),
        ("web_fecth*", ["python"], "web_fetch"),
        ("delete_row", ["delete_rows"], "delete_rows"),
    ],
)
def test_a_rule_for_a_misspelt_name_is_told(action: str, tools: list[str], near: str) -> None:
    """A denial that matches nothing denies nothing: said with the nearest name, whenever the rule or the tool comes."""
    rules, named = [(action, "*", "deny")], [_named(name) for name in tools]
    with pytest.warns(UserWarning, match=rf"no tool or action is called .*did you mean '{near}'\?"):
        Kit(provider=ScriptedProvider(), session="memory", tools=named, permissions=rules)
    kit = Kit(provider=ScriptedProvider(), session="memory", tools=named)
    with pytest.warns(UserWarning, match=f"did you mean '{near}'"):
        kit.permissions = rules
    later = Kit(provider=ScriptedProvider(), session="memory", permissions=rules)
    with pytest.warns(UserWarning, match=f"did you mean '{near}'"):
        later.add_tool(named[0])


@pytest.mark.parametrize("action", ["python", "pyth*", "*", "mcp", "python.*", "deploy", "skills.project", "areas"])
def test_a_rule_that_may_match_is_not_told(action: str, recwarn: pytest.WarningsRecorder) -> None:
    """Known names, patterns over them, and names of tools that may come later; nor is it told again of siblings."""
    rules = [(action, "*", "deny")]
    kit = Kit(provider=ScriptedProvider(), session="memory", tools=[_named("areas")], permissions=rules)
    kit.sibling()
    kit.child(type("Scout", (), {"name": "scout", "system_prompt": "", "tools": (_named("area"),)})())

    assert not [str(w.message) for w in recwarn if "permission rule" in str(w.message)]
