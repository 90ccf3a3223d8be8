"""Keys mapped in Python: one notation for Lab and for the IPython terminal.

Theory of operation
-------------------
A mapping is data: keys, a command's id or a function of this kernel, what it is for, and when it
holds. In Lab the page has the keymap (layers, pending sequences, which-key); mappings made here are
sent to it as a layer of their own, and a key that is mapped to a function comes back as a request.
In a terminal the same notation becomes bindings of prompt_toolkit.

The notation and its canonical form are those of `labextension/src/keys.ts`; one table of cases
holds both to it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kit_jupyter.errors import UsageError
from kit_jupyter.messages import new_id

__all__ = [
    "COUNT",
    "LEADER",
    "Binding",
    "Keymap",
    "KeymapError",
    "TerminalKeys",
    "format_keys",
    "label_of",
    "parse_alternatives",
    "parse_keys",
    "terminal_keys",
]

LEADER = "<leader>"
COUNT = "<count>"
TERMINAL_LEADER = "ctrl+x"  # a terminal cannot send the leader of Lab, ctrl+;

_MODIFIERS = {
    **dict.fromkeys(("c", "ctrl", "control"), "ctrl"),
    **dict.fromkeys(("a", "m", "alt", "option", "opt"), "alt"),
    **dict.fromkeys(("s", "shift"), "shift"),
    **dict.fromkeys(("d", "meta", "cmd", "command", "super", "win"), "meta"),
}
_ORDER = ("ctrl", "alt", "shift", "meta")
_NAMED = {
    **{name: name for name in ("space", "enter", "tab", "escape", "backspace", "delete", "insert")},
    **{name: name for name in ("up", "down", "left", "right", "home", "end", "pageup", "pagedown")},
    **{f"f{number}": f"f{number}" for number in range(1, 25)},
    **{"return": "enter", "cr": "enter", "esc": "escape", "bs": "backspace", "del": "delete", "ins": "insert"},
    **{"pgup": "pageup", "pgdn": "pagedown"},
    **{f"arrow{way}": way for way in ("up", "down", "left", "right")},
    **{"comma": ",", "lt": "<", "gt": ">", "plus": "+", "minus": "-"},
}
_SPELT = {",": "<comma>", "<": "<lt>", ">": "<gt>", "+": "<plus>"}
_BRACKET = re.compile(r"<([^<>\s]+|[^<>\s]*[<>])>")
_WHEN = re.compile(r"\s*!?\s*[A-Za-z][\w-]*\s*")
#: A whole override that means "no key".
_NONE = ("none", "", None, False)


class KeymapError(UsageError):
    """A mapping that cannot be: keys that cannot be read, or something left out."""


def _chord(modifiers: Iterable[str], key: str) -> str:
    held = set(modifiers)
    if len(key) == 1 and key.isascii() and key.isalpha():
        if key.isupper():
            held.add("shift")
        key = key.lower()
    elif len(key) == 1 and "shift" in held:
        raise KeymapError(f"shift+{key}: write the character that Shift gives; it differs between keyboards")
    return "+".join([*(name for name in _ORDER if name in held), key])


def _read_chord(text: str) -> str | None:
    *parts, last = re.split(r"[+-](?!$)", text)
    modifiers = [_MODIFIERS.get(part.lower()) for part in parts]
    if any(name is None for name in modifiers):
        return None
    held = [name for name in modifiers if name]
    named = _NAMED.get(last.lower())
    if named is not None:
        return _chord(held, named)
    if len(last) != 1 or not parts:
        return None
    # Ctrl+W is what people write for ctrl+w; only a letter alone means Shift by its case.
    return _chord(held, last.lower() if last.isascii() else last)


def parse_keys(text: str) -> tuple[str, ...]:
    """Keys of one sequence, each in canonical form.

    Raises
    ------
    KeymapError
        For an empty sequence, or a key that is none.

    Examples
    --------
    >>> parse_keys("<leader>ks"), parse_keys("Shift+Ctrl+W"), parse_keys("K")
    (('<leader>', 'k', 's'), ('ctrl+shift+w',), ('shift+k',))
    """
    keys: list[str] = []
    for word in text.split():
        at = 0
        while at < len(word):
            bracket = _BRACKET.match(word, at)
            if bracket:
                inner = bracket[1]
                if inner.lower() in ("leader", "count"):
                    keys.append(f"<{inner.lower()}>")
                else:
                    one = _read_chord(inner) or (_chord((), inner) if len(inner) == 1 else None)
                    if one is None:
                        raise KeymapError(f"unknown key {bracket[0]} in {text!r}")
                    keys.append(one)
                at = bracket.end()
                continue
            end = word.find("<", at + 1)
            run = word[at:] if end < 0 else word[at:end]
            whole = _read_chord(run) if "+" in run or run.lower() in _NAMED else None
            if whole is not None:
                keys.append(whole)
            elif re.match(r"[A-Za-z]+\+.", run):
                raise KeymapError(f"unknown key {run} in {text!r}")
            else:
                keys.extend(_chord((), char) for char in run)
            at += len(run)
    if not keys:
        raise KeymapError("a key sequence must not be empty")
    return tuple(keys)


def parse_alternatives(text: str) -> tuple[tuple[str, ...], ...]:
    """Sequences that a comma parts; the key itself is ``<comma>``.

    Examples
    --------
    >>> parse_alternatives("ctrl+k, g g")
    (('ctrl+k',), ('g', 'g'))
    """
    return tuple(parse_keys(part) for part in text.split(","))


def format_keys(keys: Sequence[str]) -> str:
    """A canonical sequence as text that reads back to itself.

    Examples
    --------
    >>> format_keys(("<leader>", "k", "ctrl+w", ","))
    '<leader>k<ctrl+w><comma>'
    """
    out: list[str] = []
    run: list[str] = []

    def flush() -> None:
        # u and p in turn are not the key "up"
        out.append((" " if "".join(run) in _NAMED else "").join(run))
        run.clear()

    for key in keys:
        if len(key) == 1 and key not in _SPELT:
            run.append(key)
            continue
        flush()
        spelt = f"<{key[:-1]}comma>" if key.endswith("+,") else key if key in (LEADER, COUNT) else f"<{key}>"
        out.append(_SPELT.get(key, spelt))
    flush()
    return "".join(out)


def label_of(key: str) -> str:
    """A key as people write it.

    Examples
    --------
    >>> label_of("ctrl+shift+k"), label_of("shift+k"), label_of("space")
    ('Ctrl+Shift+K', 'K', 'Space')
    """
    if len(key) == 1:
        return key
    if re.fullmatch(r"shift\+[a-z]", key):
        return key[-1].upper()
    return "+".join(part.upper() if len(part) == 1 else part[0].upper() + part[1:] for part in _parts(key))


def _parts(key: str) -> list[str]:
    """Modifiers and key."""
    if len(key) == 1:
        return [key]
    return [*key[:-2].split("+"), "+"] if key.endswith("++") else key.split("+")


def _check_when(text: str) -> str:
    for one in re.split(r"\|\||&&", text) if text else ():
        if not _WHEN.fullmatch(one):
            raise KeymapError(f"when {text!r}: {one.strip()!r} is not a name or !name")
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """One mapping.

    Parameters
    ----------
    sequences : tuple of sequences
        Alternatives, each a tuple of canonical keys.
    command : str or None
        Id of a command of the front end; None when `function` is run here, or when the keys are taken away.
    function : callable or None
        Called with a context dict, or with nothing when it takes nothing.
    description, category : str
        Shown to the person.
    when : str
        Names of the context with ``!``, ``&&`` and ``||``; empty: always.
    priority : int
        Higher wins; mappings that are shipped have 0.
    """

    id: str
    sequences: tuple[tuple[str, ...], ...]
    command: str | None
    description: str
    function: Callable[..., Any] | None = field(default=None, hash=False)
    category: str = "Python"
    when: str = ""
    priority: int = 10

    @property
    def text(self) -> str:
        """The keys, as they are written."""
        return ", ".join(format_keys(keys) for keys in self.sequences)

    @property
    def does(self) -> str:
        """The command's id, or the function's name."""
        if self.function is not None:
            return f"{getattr(self.function, '__qualname__', type(self.function).__name__)}()"
        return self.command or "nothing"

    def call(self, context: dict[str, Any]) -> Any:
        """Run the function, with the context if it takes one."""
        import inspect

        if self.function is None:
            return None
        try:
            takes = bool(inspect.signature(self.function).parameters)
        except (TypeError, ValueError):  # some builtins have no signature
            takes = False
        return self.function(context) if takes else self.function()

    def to_json(self) -> dict[str, Any]:
        """What the page is told."""
        command = self.command if self.function is None else None
        return {
            "id": self.id,
            "keys": [format_keys(keys) for keys in self.sequences],
            "command": command,
            "python": self.function is not None,
            "description": self.description,
            "category": self.category,
            "when": self.when,
            "priority": self.priority,
        }


class Keymap:
    """The mappings that were made in this kernel, in order. Any thread."""

    def __init__(self) -> None:
        self._bindings: dict[str, Binding] = {}
        self._listeners: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """Oldest first."""
        return tuple(self._bindings.values())

    def add(
        self,
        keys: str | Sequence[str],
        command: str | Callable[..., Any] | None,
        *,
        description: str = "",
        category: str = "Python",
        when: str = "",
        priority: int = 10,
    ) -> Callable[[], None]:
        """Map keys to a command of the front end, or to a function of this kernel.

        Parameters
        ----------
        keys : str or sequence of str
            For example ``"<leader>ks"`` or ``["ctrl+shift+y", "<leader>y"]``; a comma parts alternatives.
        command : str, callable or None
            A command's id; a function, run here on the user's thread with a dict of where the key was
            pressed (``focus``, ``count``, ``kit``) if it takes an argument; None takes the keys away.
        description : str
            What it is for; which-key shows it. A function's docstring will do.
        category : str
            The group in which it is shown.
        when : str
            Where it holds: ``command``, ``edit``, ``notebook``, ``panel``, ``composer``, ``review``,
            with ``!``, ``&&`` and ``||``.
        priority : int
            Higher wins over what others map to the same keys; what is shipped has 0.

        Returns
        -------
        callable
            Takes the mapping away again; what was below is back.

        Raises
        ------
        KeymapError
            If the keys cannot be read or something is left out.

        Examples
        --------
        >>> keymap = Keymap()
        >>> remove = keymap.add("<leader>ks", print, description="Say so")
        >>> [(binding.text, binding.does) for binding in keymap.bindings]
        [('<leader>ks', 'print()')]
        >>> remove()
        >>> keymap.bindings
        ()
        """
        if command is not None and not callable(command) and not (isinstance(command, str) and command.strip()):
            raise KeymapError(f"a mapping needs a command id, a function or None, got {command!r}")
        texts = [keys] if isinstance(keys, str) else list(keys)
        sequences = tuple(sequence for text in texts for sequence in parse_alternatives(text))
        if not sequences:
            raise KeymapError("a mapping needs keys")
        for sequence in sequences:
            if any(key in ("escape", "backspace") for key in sequence[1:]):
                raise KeymapError("escape clears and backspace takes back; they cannot stand within a sequence")
        function = command if callable(command) else None
        if not description.strip() and function is not None:
            description = (function.__doc__ or "").strip().split("\n", 1)[0]
        if command is not None and not description.strip():
            raise KeymapError(f"{format_keys(sequences[0])}: a mapping says what it is for (description=...)")
        binding = Binding(
            id=new_id("key"),
            sequences=sequences,
            command=command if isinstance(command, str) else None,
            function=function,
            description=description.strip(),
            category=category,
            when=_check_when(when),
            priority=priority,
        )
        with self._lock:
            self._bindings[binding.id] = binding
        self._changed()

        def remove() -> None:
            with self._lock:
                found = self._bindings.pop(binding.id, None)
            if found is not None:
                self._changed()

        return remove

    __call__ = add

    def find(self, binding_id: str) -> Binding | None:
        """The mapping with this id."""
        return self._bindings.get(binding_id)

    def subscribe(self, fn: Callable[[], object]) -> Callable[[], None]:
        """Call `fn` whenever a mapping comes or goes; returns who ends it."""
        self._listeners.append(fn)
        return lambda: self._listeners.remove(fn) if fn in self._listeners else None

    def conflicts(self) -> tuple[tuple[Binding, Binding], ...]:
        """Pairs that map one sequence in one scope: the one that wins first."""
        pairs = []
        known = list(self._bindings.values())
        for at, older in enumerate(known):
            for newer in known[at + 1 :]:
                if set(older.sequences) & set(newer.sequences) and (
                    older.when == newer.when or not older.when or not newer.when
                ):
                    pairs.append((older, newer) if older.priority > newer.priority else (newer, older))
        return tuple(pairs)

    def _changed(self) -> None:
        for listener in list(self._listeners):
            listener()


def overridden(shipped: Iterable[Mapping[str, Any]], overrides: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Shipped mappings after the person's map: command id to keys, a list of them, or None to remove.

    Examples
    --------
    >>> overridden([{"keys": "<leader>k", "command": "a"}], {"a": "ctrl+k, g g"})
    [{'keys': '<ctrl+k>, gg', 'command': 'a'}]
    >>> overridden([{"keys": "<leader>k", "command": "a"}], {"a": None})
    []
    """
    out = []
    done: set[str] = set()
    for mapping in shipped:
        command = mapping["command"]
        if command not in overrides:
            out.append(dict(mapping))
        elif command not in done and overrides[command] not in _NONE:
            wish = overrides[command]
            texts = [wish] if isinstance(wish, str) else wish
            keys = ", ".join(format_keys(one) for text in texts for one in parse_alternatives(text))
            out.append({**mapping, "keys": keys})
        done.add(command)
    return out


# ---------------------------------------------------------------- the terminal

_PT_NAMES = {"space": " ", "escape": "escape", "enter": "enter", "tab": "tab", "backspace": "backspace"}


def terminal_keys(keys: Sequence[str], *, leader: str = TERMINAL_LEADER) -> tuple[str, ...]:
    """A sequence as prompt_toolkit names it.

    Raises
    ------
    KeymapError
        For keys that a terminal cannot send.

    Examples
    --------
    >>> terminal_keys(parse_keys("<leader>kS")), terminal_keys(parse_keys("alt+x ctrl+up"))
    (('c-x', 'k', 'S'), ('escape', 'x', 'c-up'))
    """
    out: list[str] = []
    for key in keys:
        if key == LEADER:
            out.extend(terminal_keys(parse_keys(leader)))
            continue
        if key == COUNT:
            raise KeymapError("a terminal takes counts by alt and a digit; leave <count> out")
        *modifiers, last = _parts(key)
        if "meta" in modifiers:
            raise KeymapError(f"a terminal cannot send {label_of(key)}")
        if "alt" in modifiers:
            out.append("escape")
            modifiers.remove("alt")
        out.append(_terminal_key(key, modifiers, last))
    return tuple(out)


def _terminal_key(key: str, modifiers: list[str], last: str) -> str:
    if not modifiers:
        return _PT_NAMES.get(last, last)
    if modifiers == ["shift"] and len(last) == 1:
        return last.upper()
    if len(last) == 1 and (modifiers != ["ctrl"] or not re.fullmatch(r"[a-z\\\]^_@]", last)):
        raise KeymapError(f"a terminal cannot send {label_of(key)}")
    if modifiers == ["ctrl"] and last == "space":
        return "c-space"
    if last in ("space", "enter", "escape", "backspace") or (last == "tab" and modifiers != ["shift"]):
        raise KeymapError(f"a terminal cannot send {label_of(key)}")
    short = {"ctrl": "c", "shift": "s"}
    return "-".join([*(short[name] for name in modifiers), last])


class TerminalKeys:
    """Keeps an IPython terminal's bindings equal to a keymap.

    Parameters
    ----------
    ip : TerminalInteractiveShell
    keymap : Keymap
    commands : mapping of id to callable(context)
        What command ids mean here.
    warn : callable(str)
        Told once of keys that a terminal cannot send, and of commands that it does not have.
    """

    def __init__(
        self,
        ip: Any,
        keymap: Keymap,
        commands: Mapping[str, Callable[[dict[str, Any]], Any]],
        warn: Callable[[str], object] = print,
    ) -> None:
        self._ip = ip
        self._keymap = keymap
        self._commands = commands
        self._warn = warn
        self._said: set[str] = set()
        self._original = ip.pt_app.key_bindings
        self._stop = keymap.subscribe(self.update)
        self.update()

    def update(self) -> None:
        """Make the bindings anew."""
        from prompt_toolkit.key_binding import KeyBindings, merge_key_bindings

        mine = KeyBindings()
        # Lowest first: of two handlers for one sequence prompt_toolkit runs the one that was added last.
        for binding in sorted(self._keymap.bindings, key=lambda one: one.priority):
            for sequence in binding.sequences:
                try:
                    mine.add(*terminal_keys(sequence))(self._handler(binding))
                except (KeymapError, ValueError) as exc:
                    self._say(f"{binding.text}: {exc}")
        self._ip.pt_app.key_bindings = merge_key_bindings([self._original, mine])

    def close(self) -> None:
        """Give the terminal its own bindings back."""
        self._stop()
        self._ip.pt_app.key_bindings = self._original

    def _handler(self, binding: Binding) -> Callable[[Any], Any]:
        def handle(event: Any) -> Any:
            from prompt_toolkit.application import run_in_terminal

            context = {"buffer": event.current_buffer, "count": event.arg if event.arg_present else None}
            if binding.function is not None:
                return run_in_terminal(lambda: binding.call(context))
            if binding.command is None:
                return None
            act = self._commands.get(binding.command)
            if act is None:
                self._say(f"{binding.text}: a terminal has no command {binding.command}")
                return None
            return act(context)

        return handle

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            self._warn(f"kit keys: {text}")


def terminal_of(ip: Any, keymap: Keymap) -> TerminalKeys | None:
    """Bind keys in an IPython terminal, with what is shipped for it; None elsewhere."""
    if getattr(ip, "pt_app", None) is None:
        return None

    def prompt_cell(context: dict[str, Any]) -> None:
        context["buffer"].insert_text("%%kit\n")

    keymap.add("<leader>p", "kit:insert-prompt-cell", description="Begin a prompt", category="Chat", priority=0)
    return TerminalKeys(ip, keymap, {"kit:insert-prompt-cell": prompt_cell})


def listing(keymap: Keymap, *, leader: str = "", notes: Sequence[str] = ()) -> str:
    """Mappings of this kernel as lines: keys, what it does, what it is for, when; then what is doubtful.

    Examples
    --------
    >>> keymap = Keymap()
    >>> _ = keymap.add("<leader>h", print, description="Help me", when="command")
    >>> print(listing(keymap))
    <leader>h     Help me (print(), in Python, when command)
    """
    lines = [
        f"{binding.text:<14}{binding.description} ({binding.does}, in Python"
        + (f", when {binding.when}" if binding.when else "")
        + ")"
        for binding in keymap.bindings
    ]
    lines += [f"two on one key: {wins.text} {wins.does} goes before {loses.does}" for wins, loses in keymap.conflicts()]
    if leader:
        lines.insert(0, f"<leader> is {leader}")
    return "\n".join([*lines, *notes])
