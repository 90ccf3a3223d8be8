"""Keys mapped in Python: the notation is the page's, mappings are data, a terminal has them too. Rows S81-S98."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kit_jupyter.errors import UsageError
from kit_jupyter.jupyter.keymap import (
    Keymap,
    KeymapError,
    TerminalKeys,
    format_keys,
    label_of,
    overridden,
    parse_alternatives,
    parse_keys,
    terminal_keys,
)

ROOT = Path(__file__).parents[2]
NOTATION = json.loads((ROOT / "tests/labextension/notation.json").read_text())
SCHEMA = json.loads((ROOT / "labextension/schema/keymap.json").read_text())
SHIPPED = SCHEMA["properties"]["mappings"]["default"]


@pytest.mark.parametrize(("text", "keys"), NOTATION["canonical"])
def test_the_notation_is_that_of_the_page(text: str, keys: list[str]) -> None:
    """S86: one table holds both sides to one canonical form, which reads back to itself."""
    assert list(parse_keys(text)) == keys
    assert list(parse_keys(format_keys(keys))) == keys


@pytest.mark.parametrize("text", NOTATION["wrong"])
def test_what_is_no_key_is_refused(text: str) -> None:
    """S86: with the text that could not be read."""
    with pytest.raises(KeymapError):
        parse_keys(text)


@pytest.mark.parametrize(("key", "label"), NOTATION["labels"])
def test_labels_are_those_of_the_page(key: str, label: str) -> None:
    """S86: the same words in both."""
    assert label_of(key) == label


PLAIN = st.sampled_from([chr(code) for code in range(33, 127) if not chr(code).isupper()])
KEY = st.one_of(
    PLAIN, st.sampled_from(["space", "enter", "shift+k", "ctrl+,", "ctrl+<", "alt+up", "<leader>", "<count>"])
)


@example(["u", "p"])
@example(["ctrl+k", "e", "n", "d"])
@example(["a", "+", "!"])
@given(st.lists(KEY, min_size=1, max_size=6))
def test_any_sequence_survives_being_written(keys: list[str]) -> None:
    """S86: as one of several alternatives, too."""
    text = format_keys(keys)

    assert parse_keys(text) == tuple(keys)
    assert parse_alternatives(f"{text}, ctrl+k") == (tuple(keys), ("ctrl+k",))


@given(st.permutations(["ctrl", "alt", "shift"]), st.sampled_from(["enter", "f5", "k"]))
def test_the_order_of_modifiers_does_not_matter(held: list[str], key: str) -> None:
    """S86."""
    assert parse_keys("+".join([*held, key])) == (f"ctrl+alt+shift+{key}",)


@given(st.text(max_size=12))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Bad input: no other error than ours."""
    try:
        keys = parse_keys(text)
    except KeymapError:
        return

    assert parse_keys(format_keys(keys)) == keys


@pytest.mark.parametrize(
    "wrong",
    [
        {"keys": "", "command": "a", "description": "x"},
        {"keys": [], "command": "a", "description": "x"},
        {"keys": "k", "command": "", "description": "x"},
        {"keys": "k", "command": 3, "description": "x"},
        {"keys": "k", "command": "a", "description": " "},
        {"keys": "k<esc>", "command": "a", "description": "x"},
        {"keys": "k", "command": "a", "description": "x", "when": "1 +"},
    ],
)
def test_a_mapping_is_checked(wrong: dict[str, Any]) -> None:
    """S83, S93: keys, command and description are all needed; the mistake is said at once, to the one who made it."""
    keymap = Keymap()

    with pytest.raises(UsageError):
        keymap.add(wrong.pop("keys"), wrong.pop("command"), **wrong)

    assert keymap.bindings == ()


def test_a_function_is_a_command() -> None:
    """S85: it runs with the context, its docstring can stand for a description, its name is readable."""
    seen: list[Any] = []

    def greet(context: dict[str, Any]) -> None:
        """Say hello."""
        seen.append(context)

    keymap = Keymap()
    remove = keymap.add("<leader>g", greet)
    binding = keymap.bindings[0]

    binding.call({"command": True})
    assert seen == [{"command": True}]
    assert binding.description == "Say hello."
    assert "greet()" in binding.does
    keymap.add("<leader>h", lambda: seen.append("bare"), description="Bare")
    keymap.bindings[1].call({})
    assert seen[-1] == "bare"
    assert binding.to_json()["python"] is True
    remove()
    remove()
    assert [one.text for one in keymap.bindings] == ["<leader>h"]


def test_listeners_hear_of_each_change_and_conflicts_name_both() -> None:
    """S90, S96, S97: what comes, goes; two on one key in one scope are reported, the winner first."""
    keymap = Keymap()
    heard: list[int] = []
    stop = keymap.subscribe(lambda: heard.append(len(keymap.bindings)))
    keymap.add("<leader>a", "one", description="One")
    second = keymap.add("<leader>a, <leader>b", "two", description="Two")
    keymap.add("<leader>a", "three", description="Elsewhere", when="panel", priority=20)

    pairs = [(wins.command, loses.command) for wins, loses in keymap.conflicts()]

    assert pairs == [("two", "one"), ("three", "one"), ("three", "two")]
    second()
    stop()
    keymap.add("<leader>c", "four", description="Four")
    assert heard == [1, 2, 3, 2]


def test_the_persons_map_changes_adds_and_removes() -> None:
    """S91: `c.KitNotebook.keymap` over what is shipped; None removes."""
    mapped = overridden(SHIPPED, {"kit:stop-turn": ["<leader>x", "ctrl+shift+x"], "kit:fix-cell": None})

    by_command = {one["command"]: one["keys"] for one in mapped}
    assert by_command["kit:stop-turn"] == "<leader>x, <ctrl+shift+x>"
    assert "kit:fix-cell" not in by_command
    assert len(mapped) == len(SHIPPED) - 1


@pytest.mark.parametrize("mapping", SHIPPED, ids=lambda one: one["command"])
def test_each_shipped_mapping_says_what_it_is_for(mapping: dict[str, str]) -> None:
    """S81, S93: data in the schema, with description and category; a known command; no key twice."""
    commands = (ROOT / "labextension/src/commands.ts").read_text()

    assert mapping["description"].strip()
    assert mapping["category"].strip()
    assert f"'{mapping['command']}'" in commands
    same = [one for one in SHIPPED if parse_keys(one["keys"]) == parse_keys(mapping["keys"])]
    assert same == [mapping]


def test_command_ids_are_documented_and_old_ones_kept() -> None:
    """S98: each id, and each old name, stands in the documentation."""
    import re

    source = (ROOT / "labextension/src/commands.ts").read_text()
    page = (ROOT / "docs/lab.md").read_text()

    ids = set(re.findall(r"'(kit:[a-z-]+)'", source))
    assert len(ids) > 15
    assert [one for one in sorted(ids) if f"`{one}`" not in page] == []


def test_no_code_compares_keys_by_hand() -> None:
    """S92: a key is data, in the extension and in the view; only the notation, and one line of the view, read one."""
    import re

    wrong = re.compile(
        r"\be(vent)?\.key\s*(===|!==|==|in\b)|\(e(vent)?\.key\)|\bkeyCode\b|\be(vent)?\.code\b|\.which\b"
        r"|case ['\"](Enter|Escape|Tab|Arrow\w+)['\"]"
    )
    files = [*(ROOT / "labextension/src").rglob("*.ts"), ROOT / "kit_jupyter/jupyter/static/chat.js"]
    lines = [
        (path, number, line.strip())
        for path in sorted(files)
        if path.name != "keys.ts"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if not line.lstrip().startswith(("//", "*"))
    ]

    assert [f"{path.name}:{number}: {line}" for path, number, line in lines if wrong.search(line)] == []
    assert len([line for path, _, line in lines if path.name == "chat.js" and re.search(r"\be\.key\b", line)]) == 1
    for bad in ('if (e.key === "Enter")', '["a"].includes(e.key)', "event.code", 'case "Escape":', "e.keyCode"):
        assert wrong.search(bad), bad


# -- the terminal


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("<leader>ks", ("c-x", "k", "s")),
        ("ctrl+w", ("c-w",)),
        ("K", ("K",)),
        ("alt+x", ("escape", "x")),
        ("shift+tab", ("s-tab",)),
        ("ctrl+space", ("c-space",)),
        ("ctrl+shift+up", ("c-s-up",)),
        ("<f5><space>?", ("f5", " ", "?")),
    ],
)
def test_the_same_text_in_a_terminal(text: str, names: tuple[str, ...]) -> None:
    """S86: prompt_toolkit accepts what the notation becomes."""
    from prompt_toolkit.key_binding import KeyBindings

    assert terminal_keys(parse_keys(text)) == names
    KeyBindings().add(*names)(lambda event: None)


@pytest.mark.parametrize("text", ["ctrl+;", "meta+k", "ctrl+shift+k", "ctrl+enter", "<count>j", "alt+ctrl+."])
def test_what_a_terminal_cannot_send_is_said(text: str) -> None:
    """Bad input: a reason, at the mapping."""
    with pytest.raises(KeymapError, match="terminal"):
        terminal_keys(parse_keys(text))


class FakeTerminal:
    """What of an IPython terminal the bindings touch."""

    def __init__(self) -> None:
        from prompt_toolkit.key_binding import KeyBindings

        self.pt_app = SimpleNamespace(key_bindings=KeyBindings())


def pressed(terminal: FakeTerminal, *keys: str) -> list[Any]:
    """Handlers that a terminal would find for these keys."""
    from prompt_toolkit.keys import Keys

    wanted = tuple(Keys(key) if key in {one.value for one in Keys} else key for key in keys)
    return list(terminal.pt_app.key_bindings.get_bindings_for_keys(wanted))


def test_a_terminal_follows_the_keymap() -> None:
    """Point 3: mappings come and go; commands run; what cannot be sent or is unknown is told once."""
    terminal, keymap, told, ran = FakeTerminal(), Keymap(), [], []
    original = terminal.pt_app.key_bindings
    keys = TerminalKeys(terminal, keymap, {"kit:known": ran.append}, told.append)

    remove = keymap.add("<leader>k", "kit:known", description="Known")
    keymap.add("<leader>u", "kit:unknown", description="Unknown")
    keymap.add("ctrl+;", "kit:known", description="Not here")
    event = SimpleNamespace(current_buffer="buffer", arg=1, arg_present=False)
    pressed(terminal, "c-x", "k")[-1].handler(event)
    pressed(terminal, "c-x", "u")[-1].handler(event)
    pressed(terminal, "c-x", "u")[-1].handler(event)

    assert ran == [{"buffer": "buffer", "count": None}]
    assert len(told) == 2
    assert "cannot send" in told[0]
    assert "has no command kit:unknown" in told[1]
    remove()
    assert pressed(terminal, "c-x", "k") == []
    keys.close()
    assert terminal.pt_app.key_bindings is original


# -- the page's side, without a browser


def npm() -> str:
    """npm of the machine, or of the environment."""
    import shutil
    import sys

    return shutil.which("npm") or shutil.which("npm", path=str(Path(sys.executable).parent)) or ""


def test_the_pages_keymap_and_edits() -> None:
    """S81-S98, point 5: the tests in TypeScript, with their properties."""
    folder = ROOT / "tests/labextension"
    if not npm() or not (folder / "node_modules").is_dir():
        pytest.skip("the tools of the browser side are not installed (npm --prefix tests/labextension ci)")
    if not (ROOT / "labextension/node_modules").is_dir():
        pytest.skip("labextension/node_modules is missing; an editable install makes it")

    done = subprocess.run([npm(), "test"], cwd=folder, capture_output=True, text=True, timeout=110)

    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    print(done.stdout[-400:])


def test_the_page_compiles() -> None:
    """S76: TypeScript in strict mode, no error."""
    if not npm() or not (ROOT / "labextension/node_modules").is_dir():
        pytest.skip("labextension/node_modules is missing; an editable install makes it")

    done = subprocess.run(
        [npm(), "run", "check"], cwd=ROOT / "labextension", capture_output=True, text=True, timeout=110
    )

    assert done.returncode == 0, done.stdout[-4000:]


def test_page_and_kernel_say_the_same() -> None:
    """One list of operations and kinds in Python and in TypeScript; targets, too."""
    import re

    from kit_jupyter.jupyter import lab

    source = (ROOT / "labextension/src/protocol.ts").read_text()

    def listed(name: str) -> list[str]:
        found = re.search(rf"{name} = \[(.*?)\]", source, re.DOTALL)
        assert found is not None
        return re.findall(r"'([\w-]+)'", found[1])

    assert tuple(listed("OPS")) == lab.OPS
    assert tuple(listed("KINDS")) == lab.KINDS
    assert f"'{lab.LAB_TARGET}'" in source
    assert f"'{lab.PANEL_TARGET}'" in source
    assert [kind for kind in lab.KINDS if f"kind: '{kind}'" not in source] == []
