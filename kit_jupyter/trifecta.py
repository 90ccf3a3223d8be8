"""The lethal trifecta: private data, untrusted text and a way out, and where the three meet.

Theory of operation
-------------------
Each tool declares its `Legs`. An agent and its sub-agents are a tree of `Node`; `walk` asks of each
node which legs can meet there:

- its own tools;
- what comes up from a child: private data in its answer, its untrusted text one step softer, and
  its way out, for what this node hands down, as far as the edge's gate lets that pass unread;
- what comes down from the parent in a task: private data and, one step softer, untrusted text; for
  what came down the child's own way out is capped by the same gate.

So two agents that are each harmless can be loud together, which tags on single tools cannot show.
A report says what could happen, not what does: it blocks nothing. The idea of the three legs is
Simon Willison's ("the lethal trifecta", 2025); tree, gates and demotion follow Pikuri.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Final, Literal, Protocol

from kit_jupyter.errors import UsageError

__all__ = ["ALL_LEGS", "Change", "Contribution", "Legs", "Node", "Report", "Source", "closes_triangle", "tree", "walk"]

Untrusted = Literal["none", "soft", "hard"]
Review = Literal["none", "reviewed", "unreviewed"]
Destination = Literal["none", "vouched", "any"]
Verdict = Literal["quiet", "watch", "loud"]

_UNTRUSTED: Final[tuple[Untrusted, ...]] = ("none", "soft", "hard")
_REVIEW: Final[tuple[Review, ...]] = ("none", "reviewed", "unreviewed")
_DESTINATION: Final[tuple[Destination, ...]] = ("none", "vouched", "any")
_VERDICT: Final[tuple[Verdict, ...]] = ("quiet", "watch", "loud")


@dataclass(frozen=True, slots=True, kw_only=True)
class Legs:
    """What a tool touches.

    Parameters
    ----------
    private : bool
        It can read data that must not leave.
    untrusted : {"none", "soft", "hard"}
        Text that others may have written comes in through it: ``hard`` as they wrote it, ``soft``
        retold or from a place that only few can write to.
    egress : {"none", "reviewed", "unreviewed"}
        What it can send out, and whether a person sees the payload first.
    destination : {"none", "vouched", "any"}
        Where it can send to: fixed places, or wherever the model says.

    Raises
    ------
    UsageError
        On another value; and when one of `egress` and `destination` is ``none`` and the other is
        not: what goes out goes somewhere.

    Examples
    --------
    >>> web = Legs(untrusted="hard", egress="unreviewed", destination="any")
    >>> print(Legs(private=True) | web)
    private + untrusted (hard) + egress (unreviewed, to any place)
    >>> (Legs(private=True) | web).verdict
    'loud'
    """

    private: bool = False
    untrusted: Untrusted = "none"
    egress: Review = "none"
    destination: Destination = "none"

    def __post_init__(self) -> None:
        if not isinstance(self.private, bool):
            raise UsageError(f"private is True or False, got {self.private!r}")
        for name, known in (("untrusted", _UNTRUSTED), ("egress", _REVIEW), ("destination", _DESTINATION)):
            if getattr(self, name) not in known:
                raise UsageError(f"{name} is one of {', '.join(known)}; got {getattr(self, name)!r}")
        if (self.egress == "none") != (self.destination == "none"):
            raise UsageError(
                f"egress={self.egress!r} with destination={self.destination!r}: both are 'none' or neither is"
            )

    def __or__(self, other: Legs) -> Legs:
        """Both together: the greater grade on each axis."""
        return Legs(
            private=self.private or other.private,
            untrusted=max(self.untrusted, other.untrusted, key=_UNTRUSTED.index),
            egress=max(self.egress, other.egress, key=_REVIEW.index),
            destination=max(self.destination, other.destination, key=_DESTINATION.index),
        )

    def __bool__(self) -> bool:
        return self != _NO_LEGS

    def cap_payload_review(self, gate: Review) -> Legs:
        """The way out as it is behind a gate: the lesser of its own grade and the gate's."""
        egress = min(self.egress, gate, key=_REVIEW.index)
        return replace(self, egress=egress, destination="none" if egress == "none" else self.destination)

    def relabel_inbound(self) -> Legs:
        """Untrusted text that was retold by another agent: one step softer."""
        return replace(self, untrusted=_UNTRUSTED[max(0, _UNTRUSTED.index(self.untrusted) - 1)])

    @property
    def verdict(self) -> Verdict:
        """``loud`` when the three meet and what goes out goes anywhere unread; ``watch`` when they meet otherwise."""
        if not (self.private and self.untrusted != "none" and self.egress != "none"):
            return "quiet"
        return "loud" if self.egress == "unreviewed" and self.destination == "any" else "watch"

    def __str__(self) -> str:
        named = (
            "private" if self.private else "",
            f"untrusted ({self.untrusted})" if self.untrusted != "none" else "",
            f"egress ({self.egress}, {_PLACES[self.destination]})" if self.egress != "none" else "",
        )
        return " + ".join(text for text in named if text) or "no legs"


_PLACES: Final = {"none": "nowhere", "vouched": "to vouched places", "any": "to any place"}
_NO_LEGS: Final = Legs()
UNNAMED: Final = "(extension)"
_DECLARE: Final = "what is not declared may touch anything; @tool(legs=Legs(...)) says what a tool does"
MAX_NODES: Final = 10_000
MAX_DEPTH: Final = 100
MAX_WORK: Final = 200_000
ALL_LEGS: Final = Legs(private=True, untrusted="hard", egress="unreviewed", destination="any")
"""What must be assumed of a tool about which nothing is known."""


@dataclass(frozen=True, slots=True)
class Source:
    """Who brings legs: a tool by its name, or an extension; None for not declared."""

    name: str
    legs: Legs | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One agent of the tree.

    Parameters
    ----------
    label : str
    sources : tuple of Source
        Its tools, and legs that extensions add.
    children : tuple of Node
        Sub-agents it may hand tasks to.
    gate : {"none", "reviewed", "unreviewed"}
        The edge from the parent: ``reviewed`` when a person approves each hand-off. At the root it
        has no meaning.
    gaps : tuple of str
        What is not known, in words, beyond sources without legs.
    """

    label: str
    sources: tuple[Source, ...] = ()
    children: tuple[Node, ...] = ()
    gate: Review = "unreviewed"
    gaps: tuple[str, ...] = ()

    @property
    def legs(self) -> Legs:
        """Legs of its own sources together."""
        return _union(source.legs for source in self.sources)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contribution:
    """What an extension adds to the tree.

    Parameters
    ----------
    label : str
        Shown in the report; the extension's name when not set.
    legs : Legs
        Held by the agent beyond its own tools, for example by a foreign tool surface.
    children : tuple of Node
        One for each sub-agent, with the gate of its edge.
    gaps : tuple of str
        What is not known.
    """

    label: str = UNNAMED
    legs: Legs = _NO_LEGS
    children: tuple[Node, ...] = ()
    gaps: tuple[str, ...] = ()


class _Spec(Protocol):
    @property
    def name(self) -> str: ...


class Declares(Protocol):
    """What is read of a tool."""

    @property
    def spec(self) -> Any: ...
    @property
    def legs(self) -> Legs | None: ...


def sources_of(tools: Iterable[Declares], *, asks: Callable[[Any], bool | None] | None = None) -> tuple[Source, ...]:
    """One source per tool; where a person is asked before each call, what it sends is reviewed.

    A built-in tool declares what holds while calls are asked for, so where `asks` says False its way out is unread.
    """
    found = []
    for tool in tools:
        legs = tool.legs
        asked = asks(tool) if legs is not None and asks is not None else None
        if legs is not None and asked:
            legs = legs.cap_payload_review("reviewed")
        elif legs is not None and asked is False and legs.egress == "reviewed" and getattr(tool, "is_builtin", False):
            legs = replace(legs, egress="unreviewed")
        found.append(Source(tool.spec.name, legs))
    return tuple(found)


def tree(
    label: str,
    tools: Iterable[Declares],
    contributions: Sequence[Contribution] = (),
    *,
    asks: Callable[[Any], bool | None] | None = None,
) -> Node:
    """The root node of an agent.

    Parameters
    ----------
    label : str
    tools : tools of the agent itself
    contributions : sequence of Contribution
        Of its extensions.
    asks : callable (tool) -> bool or None, or None
        True for tools whose every call a person approves; None where that is not known.
    """
    added = tuple(Source(c.label, c.legs) for c in contributions if c.legs)
    return Node(
        label=label,
        sources=(*sources_of(tools, asks=asks), *added),
        children=tuple(child for c in contributions for child in c.children),
        gate="none",
        gaps=tuple(f"{c.label}: {gap}" for c in contributions for gap in c.gaps),
    )


@dataclass(frozen=True, slots=True)
class Meeting:
    """Which legs can meet at a node, and how loud that is."""

    node: Node
    path: tuple[str, ...]
    legs: Legs
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Change:
    """One change that alone would make the tree less loud, in words, and the verdict after it."""

    text: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Report:
    """What could leak: a verdict for the tree, and why.

    Parameters
    ----------
    root : Node
    meetings : tuple of Meeting
        One for each node, root first.
    changes : tuple of Change
        Single changes that would quiet it; empty when it is quiet.
    gaps : tuple of str
        Tools that declare nothing and what else is not known: not "safe", only not seen.
    """

    root: Node
    meetings: tuple[Meeting, ...]
    changes: tuple[Change, ...]
    gaps: tuple[str, ...]

    @property
    def verdict(self) -> Verdict:
        """The loudest of all nodes."""
        return max((m.verdict for m in self.meetings), key=_VERDICT.index)

    @property
    def is_loud(self) -> bool:
        """True when the three legs meet somewhere on an ungated path."""
        return self.verdict == "loud"

    @property
    def title(self) -> str:
        """One line."""
        words = {
            "quiet": "the three legs do not meet",
            "watch": "the three legs meet behind a review or a vouched destination",
            "loud": "the three legs meet, and nothing stands before the way out",
        }
        if not self.gaps:
            return f"trifecta: {self.verdict} ({words[self.verdict]})"
        more = f" and {len(self.gaps) - 3} more" if len(self.gaps) > 3 else ""
        bound = "" if self.is_loud else ", as far as is declared"  # nothing is louder
        unknown = f"not known to be harmless: {', '.join(self.gaps[:3])}{more}"
        return f"trifecta: {self.verdict}{bound} ({words[self.verdict]}; {unknown})"

    def __str__(self) -> str:
        lines = [self.title]
        at = iter(self.meetings)
        lines += _text_tree(self.root, at)
        if self.gaps:
            lines += ["not declared: " + ", ".join(self.gaps), _DECLARE]
        if self.changes:
            lines.append("one of these would quiet it:")
            lines += [f"  - {change.text} (then {change.verdict})" for change in self.changes]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        shade = "watch" if self.gaps and self.verdict == "quiet" else self.verdict  # green is for what is known
        color = {"quiet": "#2e7d32", "watch": "#b26a00", "loud": "#c62828"}[shade]
        parts = [
            '<div class="kit-trifecta">',
            f'<p><strong style="color:{color}">{html.escape(self.title)}</strong></p>',
            f"<ul>{_html_tree(self.root, iter(self.meetings))}</ul>",
        ]
        if self.gaps:
            parts.append(f"<p>Not declared: {html.escape(', '.join(self.gaps))}<br>{html.escape(_DECLARE)}</p>")
        if self.changes:
            items = "".join(f"<li>{html.escape(c.text)} (then {c.verdict})</li>" for c in self.changes)
            parts.append(f"<p>One of these would quiet it:</p><ul>{items}</ul>")
        return "".join((*parts, "</div>"))

    def _repr_markdown_(self) -> str:
        return f"```text\n{str(self).replace('```', '`` `')}\n```"


def walk(root: Node) -> Report:
    """Which legs meet where in the tree, and which single change would quiet it.

    Raises
    ------
    UsageError
        If the nodes form a ring, or are more than 10 000, or nested deeper than 100.

    Examples
    --------
    >>> reader = Source("read_file", Legs(private=True))
    >>> web = Source("web_fetch", Legs(untrusted="hard", egress="unreviewed", destination="any"))
    >>> miner = Node(label="agent", sources=(reader,), children=(Node(label="researcher", sources=(web,)),))
    >>> walk(miner).verdict
    'loud'
    >>> print(walk(miner).changes[0].text)
    have a person approve each hand-off from agent to researcher
    """
    flat = _Flat(root)
    meetings = tuple(
        Meeting(node, path, legs := _legs_of(met), legs.verdict)
        for node, path, met in zip(flat.nodes, flat.paths, flat.meet(), strict=True)
    )
    return Report(root, meetings, tuple(flat.changes()), tuple(_gaps(root)))


def closes_triangle(held: Legs, legs: Legs | None) -> str:
    """Why a call with `legs` would close the triangle after what the conversation holds already; empty if it would not.

    Parameters
    ----------
    held : Legs
        Union of the legs of all calls so far.
    legs : Legs or None
        Of the call that is next; None for not declared, which is taken as all legs.

    Examples
    --------
    >>> held = Legs(private=True, untrusted="hard")
    >>> print(closes_triangle(held, Legs(egress="unreviewed", destination="any")))
    this call can send data to any place unread, after private data and untrusted text came in
    >>> closes_triangle(held, Legs(private=True))
    ''
    """
    new = ALL_LEGS if legs is None else legs
    both = held | new
    sends = new.egress == "unreviewed" and new.destination == "any"
    if both.verdict != "loud" or (held.verdict == "loud" and not sends):
        return ""
    brings = [
        text
        for text, is_new in (
            ("read private data", new.private),
            ("bring in untrusted text", new.untrusted != "none"),
            ("send data to any place unread", sends),
        )
        if is_new
    ]
    if not brings:
        return ""
    before = [
        text
        for text, was in (
            ("private data", held.private),
            ("untrusted text", held.untrusted != "none"),
        )
        if was
    ]
    can = " and ".join(brings)
    if legs is None:
        can += " (it declares nothing, so all must be assumed)"
    came = f", after {' and '.join(before)} came in" if before else ""
    out = " and a way out was used" if held.egress != "none" and before else ""
    return f"this call can {can}{came}{out}"


# ---------------------------------------------------------------- private


def _union(legs: Iterable[Legs | None]) -> Legs:
    total = _NO_LEGS
    for one in legs:
        if one is not None:
            total = total | one
    return total


_Grades = tuple[int, int, int, int]  # legs as numbers: the walk is done again for each change that might help
_NOTHING: Final[_Grades] = (0, 0, 0, 0)


def _grades(legs: Legs) -> _Grades:
    return (
        int(legs.private),
        _UNTRUSTED.index(legs.untrusted),
        _REVIEW.index(legs.egress),
        _DESTINATION.index(legs.destination),
    )


def _legs_of(grades: _Grades) -> Legs:
    private, untrusted, egress, destination = grades
    return Legs(
        private=bool(private),
        untrusted=_UNTRUSTED[untrusted],
        egress=_REVIEW[egress],
        destination=_DESTINATION[destination],
    )


def _join(a: _Grades, b: _Grades) -> _Grades:
    return (max(a[0], b[0]), max(a[1], b[1]), max(a[2], b[2]), max(a[3], b[3]))


def _cap(grades: _Grades, gate: int) -> _Grades:
    egress = min(grades[2], gate)
    return (grades[0], grades[1], egress, grades[3] if egress else 0)


def _soften(grades: _Grades) -> _Grades:
    return (grades[0], max(0, grades[1] - 1), grades[2], grades[3])


def _loudness(grades: _Grades) -> int:
    if not (grades[0] and grades[1] and grades[2]):
        return 0
    return 2 if grades[2] == 2 and grades[3] == 2 else 1


def _without_each(all_of: Sequence[_Grades]) -> list[_Grades]:
    """For each position the union of the others."""
    before = list(accumulate(all_of, _join, initial=_NOTHING))
    after = list(accumulate(reversed(all_of), _join, initial=_NOTHING))[::-1]
    return [_join(before[at], after[at + 1]) for at in range(len(all_of))]


class _Flat:
    """The nodes of a tree in order, a parent before its children; nothing here recurses."""

    def __init__(self, root: Node) -> None:
        self.nodes: list[Node] = []
        self.paths: list[tuple[str, ...]] = []
        self.children: list[list[int]] = []
        waiting: list[tuple[Node, int, tuple[Node, ...]]] = [(root, -1, ())]
        while waiting:
            node, parent, above = waiting.pop()
            if any(node is one for one in above):
                ring = " → ".join(one.label for one in (*above, node))
                raise UsageError(f"agents that hand tasks round in a ring are no tree: {ring[:500]}")
            if len(above) >= MAX_DEPTH or len(self.nodes) >= MAX_NODES:
                raise UsageError(
                    f"a tree of agents has at most {MAX_NODES} nodes, {MAX_DEPTH} deep; it is larger at {node.label!r}"
                )
            at = len(self.nodes)
            self.nodes.append(node)
            self.paths.append((*(self.paths[parent] if parent >= 0 else ()), node.label))
            self.children.append([])
            if parent >= 0:
                self.children[parent].append(at)
            waiting += [(child, at, (*above, node)) for child in reversed(node.children)]
        self.own = [_grades(node.legs) for node in self.nodes]
        self.gates = [_REVIEW.index(node.gate) for node in self.nodes]

    def meet(self) -> list[_Grades]:
        """Which legs can meet at each node."""
        count = len(self.nodes)
        held, up, down = list(self.own), [_NOTHING] * count, [_NOTHING] * count
        for at in reversed(
            range(count)
        ):  # what a node shows to its parent: all it holds, retold, behind the edge's gate
            for child in self.children[at]:
                held[at] = _join(held[at], up[child])
            up[at] = _cap(_soften(held[at]), self.gates[at])
        met = []
        for at in range(count):
            # A child's own legs do not come down to it again: the parent without this child.
            above = _join(self.own[at], down[at])
            others = _without_each([up[child] for child in self.children[at]])
            for child, other in zip(self.children[at], others, strict=True):
                private, untrusted, *_ = _soften(_join(above, other))
                down[child] = (private, untrusted, 0, 0)
            with_down = held[at] if at == 0 else _join(_cap(held[at], self.gates[at]), down[at])
            met.append(max(with_down, held[at], key=_loudness))
        return met

    def loudest(self) -> int:
        return max(map(_loudness, self.meet()))

    def changes(self) -> list[Change]:
        """Single changes that alone make it less loud, the cheapest first; in a huge tree not all are tried."""
        loudness = self.loudest()
        tries = max(20, MAX_WORK // len(self.nodes) // 3)  # of each cost
        found = []
        candidates = list(self._candidates()) if loudness else []
        ranked = [one for cost in range(3) for one in [c for c in candidates if c[0] == cost][:tries]]
        for _, text, at, own, gate in ranked:
            before = self.own[at], self.gates[at]
            self.own[at], self.gates[at] = own, gate
            after = self.loudest()
            self.own[at], self.gates[at] = before
            if after < loudness:
                found.append(Change(text, _VERDICT[after]))
        return found

    def _candidates(self) -> Iterator[tuple[int, str, int, _Grades, int]]:
        """All that differs in one thing: what that costs (0 a gate, 1 a bound, 2 a loss), words, and the node then."""
        for at, node in enumerate(self.nodes):
            own, gate = self.own[at], self.gates[at]
            if at and gate == 2:
                hand_off = f"have a person approve each hand-off from {self.paths[at][-2]} to {node.label}"
                yield 0, hand_off, at, own, 1
            legs = [_grades(source.legs) if source.legs is not None else _NOTHING for source in node.sources]
            for source, one, others in zip(node.sources, legs, _without_each(legs), strict=True):
                if one == _NOTHING:
                    continue
                name = f"{source.name} in {node.label}"
                if one[2] == 2:
                    yield 0, f"ask a person before each call of {name}", at, _join(others, _cap(one, 1)), gate
                if one[3] == 2:
                    bound = f"let {name} send to vouched places only"
                    yield 1, bound, at, _join(others, (*one[:3], 1)), gate
                yield 2, f"take {source.name} away from {node.label}", at, others, gate


def _gaps(node: Node) -> Iterator[str]:
    yield from (f"{source.name} (in {node.label})" for source in node.sources if source.legs is None)
    yield from node.gaps
    for child in node.children:
        yield from _gaps(child)


def _brings(node: Node) -> Iterator[tuple[str, str]]:
    """``(leg, who brings it)`` for one node."""
    legs: tuple[tuple[str, Callable[[Legs], str | None]], ...] = (
        ("private", lambda held: "" if held.private else None),
        ("untrusted", lambda held: f" ({held.untrusted})" if held.untrusted != "none" else None),
        (
            "egress",
            lambda held: f" ({held.egress}, {_PLACES[held.destination]})" if held.egress != "none" else None,
        ),
    )
    for leg, grade in legs:
        names = [
            source.name + text
            for source in node.sources
            if source.legs is not None and (text := grade(source.legs)) is not None
        ]
        if names:
            yield leg, ", ".join(names)


def _head(meeting: Meeting) -> str:
    node = meeting.node
    edge = f" [hand-off {node.gate}]" if len(meeting.path) > 1 else ""
    is_known = not node.gaps and all(source.legs is not None for source in node.sources)
    more = "" if is_known else " + what is not declared"
    bound = "" if is_known or meeting.verdict == "loud" else ", as far as is declared"
    return f"{node.label}{edge}: {meeting.legs}{more} → {meeting.verdict}{bound}"


def _text_tree(node: Node, meetings: Iterator[Meeting], indent: str = "") -> list[str]:
    lines = [_head(next(meetings))]
    rows: list[list[str]] = [[f"{leg}: {names}"] for leg, names in _brings(node)]
    rows += [_text_tree(child, meetings) for child in node.children]
    for at, row in enumerate(rows):
        last = at == len(rows) - 1
        lines.append(("└─ " if last else "├─ ") + row[0])
        lines += [("   " if last else "│  ") + line for line in row[1:]]
    return lines


def _html_tree(node: Node, meetings: Iterator[Meeting]) -> str:
    head = html.escape(_head(next(meetings)))
    rows = [f"<li>{leg}: {html.escape(names)}</li>" for leg, names in _brings(node)]
    rows += [_html_tree(child, meetings) for child in node.children]
    return f"<li>{head}<ul>{''.join(rows)}</ul></li>" if rows else f"<li>{head}</li>"
