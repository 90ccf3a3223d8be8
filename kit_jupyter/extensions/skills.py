"""Skills: folders with a ``SKILL.md``, told by name and description, loaded when the model asks.

Theory of operation
-------------------
The format is that of https://agentskills.io/specification: front matter with ``name`` and
``description``, then instructions; other files of the folder are read by name. Disclosure is
progressive: the prompt holds one line per skill, the ``skill`` tool gives the instructions,
``skill_file`` a file beside them.

A skill's text tells the model what to do, so a project's own skills, which may have come with a
clone, are used only after a person has said yes: with the first message, when there is someone who can
be asked, and in the way tools are asked for. The answer holds for exactly that content; an "always" is
a rule beside the other rules. What comes late is told in a block after the message, since the system
prompt stays as it was sent; the next clear has it in the prompt.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from kit_jupyter.errors import ToolError, UsageError
from kit_jupyter.extension import Configurator, Extension, ExtensionContext
from kit_jupyter.extensions._tool import GuestTool
from kit_jupyter.guest import reference_block
from kit_jupyter.messages import text_of
from kit_jupyter.permissions import Need, Rule, RuleStore
from kit_jupyter.rules import literal
from kit_jupyter.session import project_root
from kit_jupyter.tool import Tool
from kit_jupyter.trifecta import Contribution, Legs

__all__ = ["BrokenSkill", "Skill", "Skills", "read_front_matter", "read_skill"]

FOLDERS = (".agents/skills", ".claude/skills", ".kit/skills")
"""Where skills lie, under the user's home and under the project's root."""

ACTION = "skills.project"
"""What rules name; with a dot, so that no tool can be called so."""

_LIMIT_BYTES = 200_000
_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


class BrokenSkill(UsageError):
    """A skill that cannot be used: which file, which line, and why."""


@dataclass(frozen=True, slots=True)
class Skill:
    """One skill.

    Parameters
    ----------
    name, description : str
        Of the front matter.
    folder : Path
        Its folder, resolved.
    is_foreign : bool
        It came with the project, not from the user's home.
    facts : dict
        All of the front matter.
    """

    name: str
    description: str
    folder: Path
    is_foreign: bool = False
    facts: Mapping[str, object] = field(default_factory=dict, hash=False)

    @property
    def instructions(self) -> str:
        """The text after the front matter, as it is on disk now."""
        return _split(self.folder / "SKILL.md")[1].strip()

    @property
    def files(self) -> tuple[str, ...]:
        """Other files of the folder, relative to it."""
        found = (p for p in sorted(self.folder.rglob("*")) if p.is_file() and p.name != "SKILL.md")
        return tuple(str(p.relative_to(self.folder)) for p in found if self._holds(p))[:200]

    def _holds(self, path: Path) -> bool:
        return self.folder in path.resolve().parents

    def read(self, path: str) -> str:
        """Text of a file of the folder.

        Raises
        ------
        ToolError
            If the path leaves the folder, or is no text file of at most 200 000 bytes.
        """
        file = self.folder / path
        if not self._holds(file):
            raise ToolError(f"{path!r} leaves the folder of skill {self.name!r}")
        return _text(file, path)


class Skills(Extension):
    """Offers the skills found on this machine.

    Parameters
    ----------
    folders : sequence of Path
        Folders of skill folders that you vouch for, beside those under your home.
    home, project : bool
        Look under your home; look under the project's root.
    trust : bool, callable (question) -> bool, or None
        Whether a project's own skills may be used. None asks with the first message, in the notebook, the
        terminal or your approver, and leaves them out with a warning where nobody is there: once is for this
        Kit, always is for this content of the project. A function is asked while the Kit is built; its yes
        is an always.

    Notes
    -----
    Where two skills have one name, the first found counts: `folders`, then home, then the project. A
    broken skill is left out with a warning that names file and line. A rule may answer beforehand:
    ``Rule("skills.project", "*", "allow")``.
    """

    name = "Skills"
    hook_timeout_seconds = None  # `on_user_message` waits for a person

    def __init__(
        self,
        folders: Sequence[Path | str] = (),
        *,
        home: bool = True,
        project: bool = True,
        trust: bool | Callable[[str], bool] | None = None,
    ) -> None:
        self._folders = tuple(Path(os.path.expanduser(folder)) for folder in folders)
        self._home = home
        self._project = project
        self._trust = trust
        self._skills: dict[str, Skill] = {}
        self._in_prompt: frozenset[str] = frozenset()
        self._tools: tuple[GuestTool, ...] = ()
        self._lock = threading.RLock()
        self._allowed = ""  # the content that a person said yes to in this Kit
        self._refused = ""
        self._asking: _Offer | None = None
        self._theirs: _Offer | None = None  # what of the project is in use, when not everything may be
        self.problems: tuple[str, ...] = ()

    @property
    def skills(self) -> Mapping[str, Skill]:
        """Skills by name; read-only."""
        return MappingProxyType(self._skills)

    # -- hooks

    def configure(self, c: Configurator) -> None:
        """Find the skills, ask about the project's, add the tools."""
        self.find()
        self._tools = (
            GuestTool(self.load, name="skill", legs=self._legs(), resource="name"),
            GuestTool(self.load_file, name="skill_file", legs=self._legs(), resource="name"),
        )
        for tool in self._tools:
            c.add_tool(tool)

    def bind(self, ctx: ExtensionContext) -> None:
        """Tell what could not be used."""
        for problem in self.problems:
            ctx.warn(problem)

    def system_prompt_snippets(self) -> list[str]:
        """The catalog, one line per skill."""
        self._in_prompt = frozenset(self._skills)
        if not self._skills:
            return []
        return [
            "Skills. When one fits the task, load it with the skill tool before you begin:\n"
            + _catalog(self._skills.values())
        ]

    async def on_user_message(self, ctx: ExtensionContext, content: str) -> str | None:
        """Ask about a project's skills, if that is still open; tell of skills that the system prompt lacks."""
        if (offer := self._asking) is not None:
            await self._ask(ctx, offer)
        late = [skill for name, skill in self._skills.items() if name not in self._in_prompt]
        if not late:
            return None
        text = f"More skills, to be loaded with the skill tool:\n{_catalog(late)}"
        inner = reference_block(text).split("\n", 1)[1].rsplit("\n", 1)[0]
        blocks = (m for m in ctx.kit.messages if str(getattr(m, "source", "")).startswith("extension:"))
        return None if any(inner in text_of(message.parts) for message in blocks) else text

    def on_conversation_reset(self, ctx: ExtensionContext) -> None:
        """Nothing to drop: skills are files, and the catalog is pulled again."""

    def trifecta_contribution(self, tools: Sequence[Tool]) -> Contribution | None:
        """Descriptions of a project's skills stand in the prompt: soft untrusted text."""
        legs = self._legs()
        return Contribution(label="Skills", legs=legs) if legs else None

    # -- tools

    def load(self, name: str) -> str:
        """Load the instructions of a skill.

        Parameters
        ----------
        name : str
            As in the list of skills.
        """
        skill = self._named(name)
        try:
            text = skill.instructions
        except (OSError, BrokenSkill) as exc:
            raise ToolError(f"skill {name!r} cannot be read: {exc}") from exc
        files = "\n".join(f"- {path}" for path in skill.files)
        more = f"\n\nFiles of this skill, in {skill.folder}; read one with skill_file:\n{files}" if files else ""
        return (text or "(the skill has no instructions)") + more

    def load_file(self, name: str, path: str) -> str:
        """Read a file of a skill.

        Parameters
        ----------
        name : str
            The skill.
        path : str
            Relative to the skill's folder, as its instructions name it.
        """
        return self._named(name).read(path)

    def _named(self, name: str) -> Skill:
        with self._lock:
            skill, offer = self._skills.get(name), self._theirs
            if skill is not None and skill.is_foreign and offer is not None and not offer.is_unchanged():
                self.find(while_built=False)
                if name not in self._skills:
                    raise ToolError(
                        "the skills of this project have changed since they were allowed, so they are not used; "
                        "go on without them"
                    )
            try:
                return self._skills[name]
            except KeyError:
                known = ", ".join(self._skills) or "none"
                raise ToolError(f"there is no skill {name!r}; there are: {known}") from None

    # -- finding

    def find(self, *, while_built: bool = True) -> None:
        """Look again for skills; the next message tells the model of new ones.

        Parameters
        ----------
        while_built : bool
            False keeps a `trust` function from being asked: it belongs to the thread that builds the Kit.
        """
        with self._lock:
            self._find(while_built)

    def _find(self, while_built: bool) -> None:
        problems: list[str] = []
        places = [*self._folders, *((Path.home() / name for name in FOLDERS) if self._home else ())]
        mine = list(_skills_in(places, problems, is_foreign=False))
        theirs: list[Skill] = []
        self._asking = self._theirs = None
        if self._project:
            root = project_root()
            known = {place.resolve() for place in places}
            folders = [root / name for name in FOLDERS if (root / name).resolve() not in known]
            theirs = list(_skills_in(folders, problems, is_foreign=True))
            if theirs and not self._may_use(_Offer(root, theirs), problems, while_built=while_built):
                theirs = []
        self._skills, self.problems = _first_of_each((*mine, *theirs), problems), tuple(problems)

    def _may_use(self, offer: _Offer, problems: list[str], *, while_built: bool) -> bool:
        if isinstance(self._trust, bool):
            return self._trust
        said = offer.remembered()
        if said is None and offer.resource == self._allowed:
            said = True
        if said is None and offer.resource == self._refused:
            said = False
        if said is None and self._trust is None:
            self._asking = offer
            return False
        if said is None and while_built and callable(self._trust):
            said = bool(self._trust(offer.question))
            if said:
                offer.remember()
        if not said:
            problems.append(offer.refusal("the answer was no" if while_built else "they have changed"))
            return False
        self._theirs = offer
        return True

    async def _ask(self, ctx: ExtensionContext, offer: _Offer) -> None:
        answer = await ctx.ask(offer.question, action=ACTION, resource=offer.resource)
        if not answer.allowed:
            by_nobody = answer.by == "nobody"
            ctx.warn(offer.refusal("nobody is here to be asked" if by_nobody else answer.reason or "the answer was no"))
            if answer.reason or not by_nobody:
                self._asking, self._refused = None, offer.resource
            return
        self._allowed = offer.resource
        await asyncio.to_thread(self.find, while_built=False)  # what was allowed, if that is still what lies there
        for tool in self._tools:
            tool.legs = self._legs()

    def _legs(self) -> Legs:
        return Legs(untrusted="soft") if any(s.is_foreign for s in self._skills.values()) else Legs()


# ---------------------------------------------------------------- reading


def read_skill(folder: Path, *, is_foreign: bool = False) -> Skill:
    """The skill in `folder`.

    Raises
    ------
    BrokenSkill
        With file and line, if its front matter breaks the format or its file leads out of the folder.
    """
    file = folder / "SKILL.md"
    if folder.resolve() not in file.resolve().parents:
        raise BrokenSkill(f"{file} leads out of its folder")
    try:
        facts, _ = _split(file)
    except OSError as exc:
        raise BrokenSkill(f"{file} cannot be read: {exc.strerror or exc}") from exc
    name, description = facts.get("name"), facts.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or len(name) > 64:
        raise BrokenSkill(f"{file}: name is at most 64 small letters, digits and single hyphens, got {name!r}")
    if name != folder.name:
        raise BrokenSkill(f"{file}: name {name!r} differs from the folder's name {folder.name!r}")
    if not isinstance(description, str) or not description.strip() or len(description) > 1024:
        raise BrokenSkill(f"{file}: description is a text of at most 1024 characters, got {str(description)[:60]!r}")
    return Skill(name, description, folder.resolve(), is_foreign, MappingProxyType(dict(facts)))


def _skills_in(places: Iterable[Path], problems: list[str], *, is_foreign: bool) -> Iterable[Skill]:
    for place in places:
        with contextlib.suppress(OSError):
            for folder in sorted(place.iterdir()):
                if not (folder / "SKILL.md").is_file():
                    continue
                if place.resolve() not in folder.resolve().parents and is_foreign:
                    problems.append(f"skill folder {folder} leads out of {place}; it is not used")
                    continue
                try:
                    yield read_skill(folder, is_foreign=is_foreign)
                except BrokenSkill as exc:
                    problems.append(exc.message)


def _text(file: Path, shown: str) -> str:
    try:
        if file.exists() and not file.is_file():
            raise ToolError(f"{shown} is no regular file")  # a pipe would be waited for
        if file.stat().st_size > _LIMIT_BYTES:
            raise ToolError(f"{shown} has more than {_LIMIT_BYTES} bytes")
        return file.read_text("utf-8")
    except UnicodeDecodeError:
        raise ToolError(f"{shown} is not a text file in UTF-8") from None
    except OSError as exc:
        raise ToolError(f"{shown} cannot be read: {exc.strerror or exc}") from exc


def _split(file: Path) -> tuple[dict[str, object], str]:
    try:
        text = _text(file, str(file)).removeprefix("\ufeff").replace("\r\n", "\n")
    except ToolError as exc:
        raise BrokenSkill(exc.message) from exc
    lines = text.split("\n")
    if lines[0].rstrip() != "---":
        raise BrokenSkill(f"{file}, line 1: a skill begins with front matter between two lines of ---")
    end = next((n for n, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
    if end is None:
        raise BrokenSkill(f"{file}: the front matter is not closed with ---")
    try:
        return read_front_matter(lines[1:end]), "\n".join(lines[end + 1 :])
    except BrokenSkill as exc:
        raise BrokenSkill(f"{file}, {exc.message}") from None


def read_front_matter(lines: Sequence[str]) -> dict[str, object]:
    """The part of YAML that skills use: texts plain, quoted or as a block, one level of maps, and lists of texts.

    Raises
    ------
    BrokenSkill
        With the line, counted in the file, for anything else.

    Examples
    --------
    >>> read_front_matter(["name: pdf", "description: >-", "  Fill in", "  forms.", "metadata:", "  version: '1.0'"])
    {'name': 'pdf', 'description': 'Fill in forms.', 'metadata': {'version': '1.0'}}
    """
    facts: dict[str, object] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.strip() or line.lstrip().startswith("#"):
            at += 1
            continue
        key, value = _pair(line, at)
        if line[0].isspace() or key in facts:
            raise BrokenSkill(f"line {at + 2}: {'unexpected indent' if line[0].isspace() else f'{key!r} stands twice'}")
        block = at + 1
        while block < len(lines) and (not lines[block].strip() or lines[block][0] in " \t" or _is_item(lines[block])):
            block += 1
        facts[key] = _value(value, lines[at + 1 : block], at)
        at = block
    return facts


def _is_item(line: str) -> bool:
    return line.startswith("- ") or line.rstrip() == "-"


def _pair(line: str, at: int) -> tuple[str, str]:
    match = re.match(r"\s*([A-Za-z_][\w.-]*)\s*:(?:\s+(.*))?$", line)
    if match is None:
        raise BrokenSkill(f"line {at + 2}: not a `key: value` pair: {line.strip()[:60]!r}")
    return match[1], (match[2] or "").strip()


def _value(value: str, block: Sequence[str], at: int) -> object:
    body = [line.strip() for line in block if line.strip() and not line.lstrip().startswith("#")]
    if value[:1] in ("|", ">"):
        return _block(value, block)
    if value[:1] in ('"', "'"):
        return _scalar(" ".join([value, *body]), at)
    if value[:1] == "[" and value.endswith("]"):
        return [_scalar(item.strip(), at) for item in value[1:-1].split(",") if item.strip()]
    if value:
        return _scalar(" ".join([value, *body]), at)
    if body and all(_is_item(line) for line in body):
        return [_scalar(line[1:].strip(), at) for line in body]
    inner: dict[str, object] = {}
    for offset, line in enumerate(block, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            key, text = _pair(line, at + offset)
            inner[key] = _scalar(text, at + offset)
    return inner or ""


def _scalar(text: str, at: int) -> str:
    try:
        if text[:1] == '"':
            end = re.match(r'"(?:[^"\\]|\\.)*"', text)
            return str(json.loads(end[0])) if end else _unclosed(at)
        if text[:1] == "'":
            end = re.match(r"'(?:[^']|'')*'", text)
            return end[0][1:-1].replace("''", "'") if end else _unclosed(at)
    except ValueError:
        return _unclosed(at)
    if text[:1] in ("{", "&", "*", "!", "%", "@", "`"):
        raise BrokenSkill(f"line {at + 2}: {text[:1]!r} begins something other than text; put quotes around it")
    # A colon within plain text is wrong YAML, but common in descriptions and cannot be mistaken here.
    return re.sub(r"\s+#.*$", "", text)


def _unclosed(at: int) -> str:
    raise BrokenSkill(f"line {at + 2}: a quote that is not closed, or a wrong escape")


def _block(style: str, block: Sequence[str]) -> str:
    lines = [line.rstrip() for line in block]
    depth = min((len(line) - len(line.lstrip()) for line in lines if line), default=0)
    lines = [line[depth:] for line in lines]
    if style[0] == "|":
        return "\n".join(lines).strip("\n")
    return re.sub(r"(?<!\n)\n(?!\n)", " ", "\n".join(lines).strip("\n")).replace("\n\n", "\n")


# ---------------------------------------------------------------- trust


class _Offer:
    """Skills that a project brings, as they are on disk now."""

    def __init__(self, root: Path, skills: Sequence[Skill]) -> None:
        self._root = root
        self._skills = tuple(skills)
        self._names = ", ".join(skill.name for skill in skills)
        self.resource = f"{re.sub(r'[^A-Za-z0-9._-]+', '-', root.name)[:40]}@{_digest(skills)}"
        self.question = (
            f"The project {root} brings skills: {self._names}. Their text will instruct the model. Use them?"
        )

    def is_unchanged(self) -> bool:
        return self.resource == _Offer(self._root, self._skills).resource

    def refusal(self, why: str) -> str:
        which = f"skills of the project {self._root} are not used ({self._names})"
        return f"{which}: {why}; allow them with Skills(trust=True)"

    def remembered(self) -> bool | None:
        """The answer that is kept for this content; None when there is none."""
        need = Need(ACTION, self.resource, "outside")
        found = [rule.effect for rule in RuleStore(self._root).rules if rule.action == ACTION and rule.matches(need)]
        return {"allow": True, "deny": False}.get(found[-1]) if found else None

    def remember(self) -> None:
        RuleStore(self._root).add([Rule(ACTION, literal(self.resource), "allow")])


def _digest(skills: Sequence[Skill]) -> str:
    """Of every file of these skills: a changed script is a new question, too."""
    total = hashlib.blake2b(digest_size=16)
    for skill in skills:
        for path in sorted(skill.folder.rglob("*")):
            if not path.is_file() or not skill._holds(path):
                continue
            total.update(f"{skill.name}\0{path.relative_to(skill.folder)}\0".encode("utf-8", "surrogateescape"))
            try:
                with path.open("rb") as file:
                    total.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as exc:
                total.update(f"unreadable {exc.errno}\0".encode())
    return total.hexdigest()


def _catalog(skills: Iterable[Skill]) -> str:
    return "\n".join(f"- {skill.name}: {' '.join(skill.description.split())}" for skill in skills)


def _first_of_each(skills: Iterable[Skill], problems: list[str]) -> dict[str, Skill]:
    found: dict[str, Skill] = {}
    for skill in skills:
        if skill.name in found:
            problems.append(f"skill {skill.name!r} is also in {skill.folder}; that one is not used")
        else:
            found[skill.name] = skill
    return found
