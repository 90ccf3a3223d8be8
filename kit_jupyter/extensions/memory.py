"""Remembers over sessions what you said, and brings it back beside your message.

Theory of operation
-------------------
Your words go through a queue to one writer thread and into a JSON-lines file; a turn never waits for
the disk. A clear keeps queue and thread: it is not a quit. `on_user_message` looks up what is near to
the new message by rare words in common (BM25) and adds it as a reference block. A persona file beside
it is a section of the system prompt that follows the file at each clear.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import re
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kit_jupyter.errors import ToolError
from kit_jupyter.extension import Configurator, Extension, ExtensionContext
from kit_jupyter.extensions._tool import GuestTool
from kit_jupyter.masking import mask
from kit_jupyter.messages import new_id, now
from kit_jupyter.places import data_dir, project_root
from kit_jupyter.tool import Tool
from kit_jupyter.trifecta import Contribution, Legs

__all__ = ["Memory", "Remembered", "memory_dir"]

_WORD = re.compile(r"\w{3,}")
_LONGEST = 2_000


def memory_dir() -> Path:
    """The user's folder for memories of this project; ``KIT_MEMORY_DIR`` moves it."""
    if set_dir := os.environ.get("KIT_MEMORY_DIR"):
        return Path(set_dir)
    name = re.sub(r"\W+", "-", str(project_root())).strip("-")[-80:]
    return data_dir() / "memory" / name


@dataclass(frozen=True, slots=True)
class Remembered:
    """One thing remembered: an id, when, in whose words (``you`` or ``model``), and the words."""

    id: str
    time: str
    by: str
    text: str


class Memory(Extension):
    """Records the user's own words and recalls what fits the present message.

    Parameters
    ----------
    folder : Path or None
        Where ``memory.jsonl`` and ``persona.md`` lie; None for the project's folder in the user's data.
    record : bool
        False recalls only.
    recall : int
        At most this many memories beside a message; 0 for none.

    Notes
    -----
    Secrets are masked before anything is written. ``kit.clear_conversation()`` forgets nothing;
    delete the file, or use `forget`.
    """

    name = "Memory"

    def __init__(self, folder: Path | str | None = None, *, record: bool = True, recall: int = 3) -> None:
        self.folder = Path(folder) if folder is not None else memory_dir()
        self._record = record
        self._recall = recall
        self._ctx: ExtensionContext | None = None
        self._kept: list[Remembered] = []
        self._bags: dict[str, Counter[str]] = {}  # words of each memory, counted once
        self._lock = threading.Lock()
        self._queue: queue.Queue[Remembered | None] = queue.Queue()
        self._writer: threading.Thread | None = None

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / "memory.jsonl"

    @property
    def persona_path(self) -> Path:
        """What is always told of the person, in Markdown; edit it as you like."""
        return self.folder / "persona.md"

    @property
    def memories(self) -> tuple[Remembered, ...]:
        """All there is, oldest first."""
        with self._lock:
            return tuple(self._kept)

    # -- hooks

    def configure(self, c: Configurator) -> None:
        """Read what is there, start the writer, add the tools."""
        self._kept = self._load()
        c.on_close(self.close)
        self._writer = threading.Thread(target=self._write_all, name="kit-memory", daemon=True)
        self._writer.start()
        c.add_tool(
            GuestTool(self.remember, name="remember", legs=Legs(), kind="act", resource="text", parallel_safe=False)
        )
        c.add_tool(GuestTool(self.recall, name="recall", legs=Legs(private=True), resource="about"))
        c.add_tool(GuestTool(self.forget, name="forget", legs=Legs(), kind="act", resource="memory_id"))

    def bind(self, ctx: ExtensionContext) -> None:
        """Keep the context, for warnings."""
        self._ctx = ctx

    def system_prompt_snippets(self) -> list[str]:
        """The persona file as it is now."""
        with contextlib.suppress(OSError):
            text = self.persona_path.read_text("utf-8", errors="replace").strip()
            if text:
                return [f"About the person you talk with:\n{text}"]
        return []

    def on_user_message(self, ctx: ExtensionContext, content: str) -> str | None:
        """Recall what fits, then record the message."""
        near = self.near(content, self._recall)
        if self._record and content.strip():
            self._put("you", content)
        if not near:
            return None
        lines = "\n".join(f"- ({one.time[:10]}, {one.by}) {one.text}" for one in near)
        return f"From earlier sessions, as far as it may help:\n{lines}"

    def trifecta_contribution(self, tools: Sequence[Tool]) -> Contribution:
        """What was said in other sessions is private data."""
        return Contribution(label="Memory", legs=Legs(private=True))

    # -- tools

    def remember(self, text: str) -> str:
        """Remember one fact or wish of the person for later sessions, in one sentence."""
        if not text.strip():
            raise ToolError("there is nothing to remember in an empty text")
        return f"remembered as {self._put('model', text).id}"

    def recall(self, about: str, count: int = 5) -> str:
        """Look up what was said in earlier sessions about something."""
        found = self.near(about, min(max(count, 1), 20))
        return "\n".join(f"{one.id} ({one.time[:10]}, {one.by}) {one.text}" for one in found) or "nothing is remembered"

    def forget(self, memory_id: str) -> str:
        """Forget one memory by its id."""
        with self._lock:
            left = [one for one in self._kept if one.id != memory_id]
            if len(left) == len(self._kept):
                raise ToolError(f"there is no memory {memory_id!r}")
            self._kept = left
        self.flush()
        with self._lock:
            self._rewrite(memory_id)
        return f"forgot {memory_id}"

    # -- looking up

    def near(self, text: str, count: int) -> list[Remembered]:
        """The `count` memories nearest to `text`, best first; those without a word in common never."""
        words = set(_words(text))
        kept = self.memories
        if not words or not kept or count <= 0:
            return []
        bags = [self._bags.get(one.id) or self._count(one) for one in kept]
        spread = Counter(word for bag in bags for word in bag)
        mean = sum(bag.total() for bag in bags) / len(bags) or 1.0
        scored: list[tuple[float, int]] = []
        for at, (one, bag) in enumerate(zip(kept, bags, strict=True)):
            if one.text.strip() == text.strip():
                continue  # the same words again tell nothing
            length = 0.25 + 0.75 * bag.total() / mean
            score = sum(
                math.log(1 + (len(kept) - spread[word] + 0.5) / (spread[word] + 0.5))
                * bag[word]
                * 2.2
                / (bag[word] + 1.2 * length)
                for word in words & bag.keys()
            )
            if score > 0.3:
                scored.append((score, at))
        scored.sort(reverse=True)
        return [kept[at] for _, at in scored[:count]]

    def _count(self, one: Remembered) -> Counter[str]:
        bag = self._bags[one.id] = Counter(_words(one.text))
        return bag

    # -- the queue

    def _put(self, by: str, text: str) -> Remembered:
        one = Remembered(new_id("mem"), now().created, by, mask(text)[:_LONGEST])
        with self._lock:
            self._kept.append(one)
        self._queue.put(one)
        return one

    def flush(self) -> None:
        """Wait until all that was said is on disk."""
        if self._writer is not None:
            self._queue.join()

    def close(self) -> None:
        """Write what waits, end the writer."""
        if self._writer is not None:
            self._queue.put(None)
            self._writer.join(5)
            self._writer = None

    def _write_all(self) -> None:
        while (one := self._queue.get()) is not None:
            try:
                with self._lock:
                    if one in self._kept:  # not forgotten meanwhile
                        self._append(one)
            except OSError as exc:
                if self._ctx is not None:
                    self._ctx.warn(f"memory could not be written to {self.path}: {exc.strerror or exc}")
            finally:
                self._queue.task_done()
        self._queue.task_done()

    def _append(self, one: Remembered) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab+", opener=_private) as file:
            torn = file.seek(0, os.SEEK_END) and (file.seek(-1, os.SEEK_END), file.read(1))[1] != b"\n"
            # The end of a line that a dying kernel left torn, so that it does not swallow this one.
            file.write((b"\n" if torn else b"") + _line(one).encode())

    def _rewrite(self, forgotten: str) -> None:
        # What is on disk, not what we know: other kernels write to it, too.
        left = [one for one in self._load() if one.id != forgotten]
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        with open(temporary, "w", encoding="utf-8", opener=_private) as file:
            file.writelines(_line(one) for one in left)
        os.replace(temporary, self.path)

    def _load(self) -> list[Remembered]:
        found = []
        with contextlib.suppress(OSError):
            for line in self.path.read_text("utf-8", errors="replace").splitlines():
                try:
                    values = json.loads(line)
                    found.append(Remembered(*(str(values[key]) for key in ("id", "time", "by", "text"))))
                except (ValueError, KeyError, TypeError):
                    continue  # a torn line costs one memory, not all
        return found


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _line(one: Remembered) -> str:
    values = {"id": one.id, "time": one.time, "by": one.by, "text": one.text}
    return json.dumps(values, ensure_ascii=False) + "\n"


def _words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]
