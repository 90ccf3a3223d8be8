"""The lethal trifecta: legs, the tree, who brings what, and what would quiet it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kit_jupyter import Kit, trifecta
from kit_jupyter.builtin import builtin_tools
from kit_jupyter.errors import UsageError
from kit_jupyter.extension import Extension, ExtensionHost
from kit_jupyter.extensions import Persona, SubAgents, TriangleGuard
from kit_jupyter.testing import ScriptedProvider
from kit_jupyter.tool import tool as make_tool
from kit_jupyter.trifecta import ALL_LEGS, Contribution, Legs, Node, Source, closes_triangle, tree, walk

PRIVATE = Legs(private=True)
PAGE = Legs(untrusted="hard")
SEND = Legs(egress="unreviewed", destination="any")
WEB = PAGE | SEND
LEGLESS = Legs()


def tool(name, legs):
    return SimpleNamespace(spec=SimpleNamespace(name=name), legs=legs)


def agent(label, *sources, children=(), gate="unreviewed"):
    return Node(label=label, sources=tuple(Source(*s) for s in sources), children=tuple(children), gate=gate)


legs = st.builds(
    lambda private, untrusted, egress: Legs(
        private=private, untrusted=untrusted, egress=egress[0], destination=egress[1]
    ),
    st.booleans(),
    st.sampled_from(["none", "soft", "hard"]),
    st.sampled_from(
        [
            ("none", "none"),
            ("reviewed", "vouched"),
            ("reviewed", "any"),
            ("unreviewed", "vouched"),
            ("unreviewed", "any"),
        ]
    ),
)
GRADES = {"quiet": 0, "watch": 1, "loud": 2}


# ---------------------------------------------------------------- legs


@pytest.mark.parametrize(
    "bad",
    [
        {"egress": "unreviewed"},
        {"destination": "any"},
        {"untrusted": "very"},
        {"egress": "maybe", "destination": "any"},
        {"private": "yes"},
        {"untrusted": True},
    ],
)
def test_incoherent_legs_are_refused(bad):
    """Egress and destination are both present or both absent; other values are named."""
    with pytest.raises(UsageError):
        Legs(**bad)


@settings(deadline=None)
@given(legs, legs, legs)
def test_union_is_the_maximum_on_each_axis(a, b, c):
    """Union: commutative, associative, idempotent, never less than its parts."""
    assert a | b == b | a
    assert (a | b) | c == a | (b | c)
    assert a | a == a
    assert a | Legs() == a
    assert GRADES[(a | b).verdict] >= max(GRADES[a.verdict], GRADES[b.verdict])


@settings(deadline=None)
@given(legs)
def test_capping_and_demoting_stay_coherent(a):
    """A cap lowers the review grade only; text is one step softer; both give legal legs."""
    assert a.cap_payload_review("unreviewed") == a
    assert a.cap_payload_review("reviewed").egress in ("none", "reviewed")
    assert a.cap_payload_review("none") == Legs(private=a.private, untrusted=a.untrusted)
    step = {"hard": "soft", "soft": "none", "none": "none"}
    assert a.relabel_inbound().untrusted == step[a.untrusted]


def test_verdicts():
    """Loud: all three, and out goes anywhere unread. Watch: they meet behind a review or a vouched place."""
    assert (PRIVATE | WEB).verdict == "loud"
    assert (PRIVATE | PAGE | Legs(egress="reviewed", destination="any")).verdict == "watch"
    assert (PRIVATE | PAGE | Legs(egress="unreviewed", destination="vouched")).verdict == "watch"
    for two in (PRIVATE | PAGE, PRIVATE | SEND, WEB, Legs()):
        assert two.verdict == "quiet"


# ---------------------------------------------------------------- the tree


def test_two_safe_agents_joined_ungated_are_loud_and_gated_are_not():
    """S212: structure counts; each agent alone is quiet, together they leak, a gate on the edge quiets it."""
    researcher = agent("researcher", ("web_fetch", WEB))
    reader = agent("agent", ("read_file", PRIVATE))

    assert walk(researcher).verdict == "quiet"
    assert walk(reader).verdict == "quiet"
    ungated = walk(agent("agent", ("read_file", PRIVATE), children=[researcher]))
    gated = walk(
        agent("agent", ("read_file", PRIVATE), children=[agent("researcher", ("web_fetch", WEB), gate="reviewed")])
    )

    assert ungated.is_loud
    assert not gated.is_loud
    assert [m.verdict for m in ungated.meetings] == ["loud", "loud"]


def test_untrusted_text_comes_up_one_step_softer():
    """S212: a child's answer carries its untrusted text to a parent that has the other two legs."""
    reader = agent("reader", ("read_page", PAGE))
    report = walk(agent("agent", ("read_file", PRIVATE), ("mail", SEND), children=[reader]))

    assert report.is_loud
    assert report.meetings[0].legs.untrusted == "soft"
    twice = walk(agent("agent", ("read_file", PRIVATE), ("mail", SEND), children=[agent("mid", children=[reader])]))
    assert twice.meetings[0].legs.untrusted == "none"


def test_private_data_comes_up_from_a_child():
    """S212: a parent on the web with a child that reads files."""
    report = walk(agent("agent", ("web_fetch", WEB), children=[agent("miner", ("read_file", PRIVATE))]))

    assert report.is_loud


def test_siblings_leak_through_their_parent():
    """S212: one child reads files, another is on the web, the parent holds nothing."""
    children = [agent("miner", ("read_file", PRIVATE)), agent("researcher", ("web_fetch", WEB))]

    assert walk(agent("agent", children=children)).is_loud
    gated = [children[0], agent("researcher", ("web_fetch", WEB), gate="reviewed")]
    assert not walk(agent("agent", children=gated)).is_loud


def test_a_child_that_is_loud_by_itself_stays_loud_behind_a_gate():
    """The gate reads the hand-off, not what the child does with its own data."""
    alone = agent("free", ("read_file", PRIVATE), ("web_fetch", WEB), gate="reviewed")

    assert walk(agent("agent", children=[alone])).is_loud


def test_the_edge_caps_the_childs_payload_review():
    """S206: behind a reviewed hand-off the child's way out counts as reviewed for the parent."""
    gated = agent("researcher", ("web_fetch", WEB), gate="reviewed")
    report = walk(agent("agent", ("read_file", PRIVATE), children=[gated]))

    assert report.meetings[0].legs.egress == "reviewed"
    assert report.verdict == "watch"


@settings(deadline=None)
@given(st.lists(legs, max_size=4), st.lists(legs, max_size=3), legs)
def test_one_more_tool_is_never_quieter(own, child, more):
    """Monotone: adding a tool anywhere cannot lower the verdict; a gate cannot raise it."""

    def verdict(own, child, gate="unreviewed"):
        kids = [agent("child", *((f"c{i}", x) for i, x in enumerate(child)), gate=gate)]
        return GRADES[walk(agent("agent", *((f"o{i}", x) for i, x in enumerate(own)), children=kids)).verdict]

    base = verdict(own, child)
    assert verdict([*own, more], child) >= base
    assert verdict(own, [*child, more]) >= base
    assert verdict(own, child, "reviewed") <= base


def by_the_book(node, path=(), down=LEGLESS, gate="none"):
    """The definition in words of the module, one recursion each: slow, and plain to read."""

    def up(one):
        held = one.legs
        for child in one.children:
            held = held | up(child)
        return held.relabel_inbound().cap_payload_review(one.gate)

    held = node.legs
    for child in node.children:
        held = held | up(child)
    behind = held.cap_payload_review(gate) | down if path else held
    yield (*path, node.label), max(behind, held, key=lambda one: GRADES[one.verdict])
    for at, child in enumerate(node.children):
        others = node.legs | down
        for other, one in enumerate(node.children):
            others = others if other == at else others | up(one)
        task = Legs(private=others.private, untrusted=others.relabel_inbound().untrusted)
        yield from by_the_book(child, (*path, node.label), task, child.gate)


nodes = st.recursive(
    st.builds(lambda own: agent("leaf", *((f"t{n}", one) for n, one in enumerate(own))), st.lists(legs, max_size=3)),
    lambda kids: st.builds(
        lambda own, children, gate: agent(
            "node", *((f"t{n}", one) for n, one in enumerate(own)), children=children, gate=gate
        ),
        st.lists(legs, max_size=3),
        st.lists(kids, max_size=3),
        st.sampled_from(["none", "reviewed", "unreviewed"]),
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(nodes)
def test_the_walk_is_the_definition(root):
    """S212: the quick walk finds at each node what the plain recursion says."""
    report = walk(root)

    assert [(m.path, m.legs) for m in report.meetings] == list(by_the_book(root))


@settings(deadline=None)
@given(nodes)
def test_each_named_change_does_what_it_says(root):
    """S211: the verdict after a named change is less loud; quiet trees name none."""
    report = walk(root)

    assert all(GRADES[change.verdict] < GRADES[report.verdict] for change in report.changes)
    assert report.verdict != "quiet" or report.changes == ()


def test_a_ring_of_agents_is_a_clear_error():
    """Bad input: an extension's child that holds itself, near or far."""
    children: list[Node] = []
    inner = Node(label="b", children=children)  # type: ignore[arg-type]
    outer = Node(label="a", children=(inner,))
    children.append(outer)

    with pytest.raises(UsageError, match=r"ring .*: root → a → b → a$"):
        walk(Node(label="root", children=(outer,)))


def test_one_node_in_two_places_is_no_ring():
    """The same persona under two agents."""
    shared = agent("web", ("web_fetch", WEB))

    assert (
        len(walk(agent("root", children=[agent("a", children=[shared]), agent("b", children=[shared])])).meetings) == 5
    )


def test_a_tree_without_end_is_a_clear_error():
    """Bad input: nested without end, and doubled at each level, which is more nodes than there are in memory."""
    deep = doubled = agent("leaf", ("web", WEB))
    for level in range(3000):
        deep = agent(f"n{level}", children=[deep])
    for level in range(60):
        doubled = agent(f"n{level}", children=[doubled, doubled])

    for root in (deep, doubled):
        with pytest.raises(UsageError, match="at most 10000 nodes, 100 deep"):
            walk(root)


def test_work_on_a_large_tree_is_bounded(monkeypatch):
    """A thousand tools, and hundreds of agents beside each other: walks grow with the tree, not with its square."""
    walks = []
    meet = trifecta._Flat.meet
    monkeypatch.setattr(trifecta._Flat, "meet", lambda self: walks.append(len(self.nodes)) or meet(self))

    many = walk(agent("agent", *((f"t{n}", WEB if n % 2 else PRIVATE) for n in range(1000))))
    wide = walk(agent("agent", ("p", PRIVATE), children=[agent(f"c{n}", ("w", WEB)) for n in range(400)]))

    assert many.is_loud
    assert wide.is_loud
    assert "take p away from agent" in [change.text for change in wide.changes]
    assert sum(walks) < 500_000


# ---------------------------------------------------------------- the report


def test_the_report_says_who_brings_which_leg():
    """S211: text tree with each leg's tools."""
    report = walk(agent("agent", ("read_file", PRIVATE), ("web_fetch", WEB), ("add", Legs())))
    text = str(report)

    assert text.splitlines()[0] == report.title
    assert "private: read_file" in text
    assert "untrusted: web_fetch (hard)" in text
    assert "egress: web_fetch (unreviewed, to any place)" in text
    assert "add" not in text


def test_the_report_names_single_changes_that_quiet_it():
    """S211: each listed change alone lowers the verdict; gates come before losses."""
    report = walk(agent("agent", ("read_file", PRIVATE), children=[agent("researcher", ("web_fetch", WEB))]))
    texts = [change.text for change in report.changes]

    assert texts[0] == "have a person approve each hand-off from agent to researcher"
    assert "ask a person before each call of web_fetch in researcher" in texts
    assert "take read_file away from agent" in texts
    assert all(GRADES[c.verdict] < GRADES[report.verdict] for c in report.changes)
    assert texts.index("let web_fetch in researcher send to vouched places only") < texts.index(
        "take read_file away from agent"
    )
    assert walk(agent("agent", ("read_file", PRIVATE))).changes == ()


def test_two_ways_out_need_two_changes():
    """No single change is named that would not help: closing one of two ways out is not enough."""
    report = walk(agent("agent", ("read", PRIVATE), ("web", WEB), ("mail", SEND)))

    assert [c.text for c in report.changes] == ["take read away from agent", "take web away from agent"]


def test_an_undeclared_tool_is_a_gap_not_safe():
    """A tool that declares nothing is named where the verdict stands; "quiet" alone had read as harmless."""
    report = walk(tree("agent", [tool("mystery", None), tool("add", Legs())]))

    assert report.verdict == "quiet"
    assert report.gaps == ("mystery (in agent)",)
    assert str(report).splitlines() == [
        "trifecta: quiet, as far as is declared (the three legs do not meet; "
        "not known to be harmless: mystery (in agent))",
        "agent: no legs + what is not declared → quiet, as far as is declared",
        "not declared: mystery (in agent)",
        "what is not declared may touch anything; @tool(legs=Legs(...)) says what a tool does",
    ]
    shown = report._repr_html_()
    assert "not known to be harmless: mystery" in shown
    assert "#2e7d32" not in shown  # green is for what is known
    assert "#2e7d32" in walk(tree("agent", [tool("add", Legs())]))._repr_html_()


def test_many_undeclared_tools_are_counted_in_the_title_and_named_below():
    """The title stays one line; what is loud anyway is not called so "as far as is declared"."""
    unknown = [tool(f"t{n}", None) for n in range(9)]

    report = walk(tree("agent", [*unknown, tool("read", PRIVATE), tool("web", WEB)]))

    assert report.title.startswith("trifecta: loud (the three legs meet")
    assert report.title.endswith("not known to be harmless: t0 (in agent), t1 (in agent), t2 (in agent) and 6 more)")
    assert all(f"t{n} (in agent)" in str(report) for n in range(9))


def test_tools_that_a_person_approves_count_as_reviewed():
    """The policy that is in force can be taken into account."""
    tools = [tool("read", PRIVATE), tool("web", WEB)]

    assert walk(tree("agent", tools)).verdict == "loud"
    assert walk(tree("agent", tools, asks=lambda t: t.spec.name == "web")).verdict == "watch"


def test_the_report_renders_escaped_as_a_tree_in_a_notebook():
    """S211: nested lists, names escaped, all meetings shown."""
    report = walk(agent("agent<b>", ("read", PRIVATE), children=[agent("child", ("<img src=x>", WEB))]))
    html = report._repr_html_()

    assert html.count("<ul>") >= 2
    assert "<img" not in html
    assert "<b>" not in html
    assert "child [hand-off unreviewed]" in html
    assert report._repr_markdown_().startswith("```text\ntrifecta: loud")
    assert repr(report) == str(report)


# ---------------------------------------------------------------- contributions


class Foreign(Extension):
    name = "mcp"

    def trifecta_contribution(self, tools):
        return Contribution(label="mcp: files (assumed)", legs=ALL_LEGS, gaps=("files declares no legs",))


def test_a_contribution_adds_legs_to_the_agents_own_node():
    """S202, S204, S207: under the extension's label; assumed legs count until declared."""
    report = ExtensionHost.build([Foreign()]).trifecta([tool("add", Legs())])

    assert report.is_loud
    assert "mcp: files (assumed)" in str(report)
    assert report.root.sources[-1].legs == ALL_LEGS
    assert any("declares no legs" in gap for gap in report.gaps)


def test_each_persona_gives_one_child_and_its_owner_resolves_the_names():
    """S205, S209: the core knows no personas; the extension picks their tools out of what it is given."""

    class Team(Extension):
        def trifecta_contribution(self, tools):
            by_name = {t.spec.name: t for t in tools}
            return Contribution(
                children=tuple(
                    Node(label=label, sources=(Source(name, by_name[name].legs),), gate=gate)
                    for label, name, gate in (("researcher", "web", "unreviewed"), ("miner", "read", "reviewed"))
                )
            )

    report = ExtensionHost.build([Team()]).trifecta([tool("read", PRIVATE), tool("web", WEB)])

    assert [child.label for child in report.root.children] == ["researcher", "miner"]
    assert len(report.meetings) == 3


# ---------------------------------------------------------------- under the policy in force


def kit_with(permissions, *tools, extensions=()):
    return Kit(
        provider=ScriptedProvider(), session="memory", tools=tools, extensions=extensions, permissions=permissions
    )


@pytest.mark.parametrize(
    ("permissions", "verdict", "unread"),
    [
        ("read-only", "watch", []),
        ("ask", "watch", []),
        ("auto", "loud", ["python", "shell", "web_fetch"]),
        ([("web_fetch", "https://docs.python.org/*", "allow")], "watch", []),
        ([("web_fetch", "*", "allow")], "loud", ["web_fetch"]),
        ([("web_fetch", "https://*", "allow")], "loud", ["web_fetch"]),
        ([("shell", "git log *", "allow")], "watch", []),
        ([("shell", "curl *", "allow")], "loud", ["shell"]),
        ([("python", "*", "allow")], "loud", ["python"]),
        ([("*", "*", "allow"), ("*", "*", "ask")], "watch", []),
        ([("web_fetch", "*", "allow"), ("web_fetch", "*", "deny")], "watch", []),
        ({"preset": "auto", "rules": [("web_fetch", "*", "ask")]}, "loud", ["python", "shell"]),
    ],
)
def test_the_report_of_a_kit_looks_at_the_policy_in_force(permissions, verdict, unread):
    """S211: what is asked for counts as read, what runs unasked does not, whatever the tools say of themselves."""
    report = kit_with(permissions, *builtin_tools()).trifecta

    assert report.verdict == verdict
    sends = {s.name: s.legs.egress for s in report.root.sources if s.legs.egress != "none"}
    assert sorted(name for name, egress in sends.items() if egress == "unreviewed") == unread
    assert sorted(sends) == ["python", "shell", "web_fetch"]


def test_a_rule_makes_a_tool_of_yours_gated():
    """S211: the change that the report names first is one that the policy can make."""

    @make_tool(legs=PRIVATE | WEB)
    def browse(url: str) -> str:
        "Browse."
        return url

    @make_tool(legs=PRIVATE | WEB, approve="ask")
    def careful(url: str) -> str:
        "Browse, asking."
        return url

    @make_tool(legs=PRIVATE | WEB, approve=lambda arguments, context: "ask")
    def moody(url: str) -> str:
        "Browse, asking when it likes."
        return url

    assert kit_with("ask", browse).trifecta.changes[0].text == "ask a person before each call of browse in agent"
    assert kit_with([("browse", "*", "ask")], browse).trifecta.verdict == "watch"
    assert kit_with([("browse", "*", "ask", lambda a, c: True)], browse).trifecta.is_loud  # not every call
    assert kit_with([("browse", "https://only.this/*", "ask")], browse).trifecta.is_loud
    assert kit_with("ask", careful).trifecta.verdict == "watch"
    assert kit_with([("careful", "*", "allow")], careful).trifecta.is_loud
    assert kit_with("ask", moody).trifecta.is_loud


def test_personas_and_hand_offs_stand_under_the_same_policy():
    """S206, S211: a persona's tools are judged as the parent's, and a rule on the hand-off is a gate."""

    @make_tool(legs=WEB)
    def browse(url: str) -> str:
        "Browse."
        return url

    @make_tool(legs=PRIVATE)
    def notes() -> str:
        "Notes."
        return ""

    scout = Persona(name="scout", description="Scouts.", system_prompt="Scout.", tool_names=["browse"])

    def report(rules):
        def configure(c):
            c.add_sub_agent_tool(browse)

        return Kit.build(
            configure,
            provider=ScriptedProvider(),
            session="memory",
            tools=[notes],
            extensions=[SubAgents([scout])],
            permissions=rules,
        ).trifecta

    assert report([]).is_loud
    assert report([("browse", "*", "ask")]).verdict == "watch"
    gated = report([("agent", "scout", "ask")])
    assert (gated.verdict, gated.root.children[0].gate) == ("watch", "reviewed")
    assert report([("agent", "other", "ask")]).is_loud


def test_under_the_guard_no_way_out_is_unread():
    """S211: the guard asks before the call that closes the triangle, so the report is not loud."""
    guard = TriangleGuard("auto")

    assert kit_with(guard.policy, *builtin_tools(), extensions=[guard]).trifecta.verdict == "watch"


def test_a_policy_of_your_own_that_cannot_tell_leaves_what_tools_declare():
    """Neither gated nor opened by a guess."""

    class Mine:
        def decide(self, tool, arguments, context):
            raise AssertionError

        def remember(self, question, approval):
            raise AssertionError

    assert kit_with(Mine(), *builtin_tools()).trifecta.verdict == "watch"

    @make_tool(legs=PRIVATE | WEB)
    def browse(url: str) -> str:
        "Browse."
        return url

    assert kit_with(Mine(), browse).trifecta.is_loud


# ---------------------------------------------------------------- the policy's helper


def test_the_call_that_closes_the_triangle_is_named():
    """The sentence says what the call would do and what has come in before."""
    assert closes_triangle(Legs(), SEND) == ""
    assert closes_triangle(PRIVATE, PAGE) == ""
    assert "private data and untrusted text" in closes_triangle(PRIVATE | PAGE, SEND)
    assert "read private data" in closes_triangle(WEB, PRIVATE)
    assert "bring in untrusted text" in closes_triangle(PRIVATE | SEND, PAGE)


def test_gated_ways_out_do_not_close_it():
    """A reviewed payload or a vouched place is no ungated path."""
    held = PRIVATE | PAGE

    assert closes_triangle(held, Legs(egress="reviewed", destination="any")) == ""
    assert closes_triangle(held, Legs(egress="unreviewed", destination="vouched")) == ""


def test_once_closed_only_ways_out_are_asked_for_again():
    """Reading on leaks nothing by itself; each further sending does."""
    held = PRIVATE | WEB

    assert closes_triangle(held, PRIVATE) == ""
    assert closes_triangle(held, SEND)


def test_an_undeclared_tool_counts_with_all_legs():
    """Fails closed: nothing known is not nothing done."""
    assert "declares nothing" in closes_triangle(Legs(), None)
