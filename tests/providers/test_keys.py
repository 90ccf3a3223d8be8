"""Keys: where they come from, how they are kept, and that they are never shown (U72, U73, U78)."""

from __future__ import annotations

import copy
import json
import os
import pickle
import stat
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from kit_jupyter.errors import UsageError
from kit_jupyter.messages import ModelRef
from kit_jupyter.providers import keys, registry
from kit_jupyter.providers.keys import Key, find_key

from .conftest import KEY


class FakeKeyring:
    """A keyring in memory, with the shape of the library."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}
        self.priority = 5

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeKeyring:
        module: Any = types.ModuleType("keyring")
        module.get_keyring = lambda: self
        module.get_password = lambda service, name: self.kept.get((service, name))
        module.set_password = lambda service, name, value: self.kept.__setitem__((service, name), value)
        module.delete_password = lambda service, name: self.kept.pop((service, name))
        backends: Any = types.ModuleType("keyring.backends")
        fail: Any = types.ModuleType("keyring.backends.fail")
        fail.Keyring = type("Keyring", (), {})
        backends.fail = fail
        for name, made in (("keyring", module), ("keyring.backends", backends), ("keyring.backends.fail", fail)):
            monkeypatch.setitem(sys.modules, name, made)
        monkeypatch.setenv("KIT_KEYRING", "on")
        return self


def test_the_first_place_that_has_a_key_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Argument, environment, keyring, file; the source is told (U72)."""
    ring = FakeKeyring().install(monkeypatch)
    keys.store("demo", api_key="from-file")
    assert find_key("demo", ["DEMO_KEY"]).source.startswith("config file")
    ring.kept["kit-jupyter", "demo"] = "from-ring"
    assert find_key("demo", ["DEMO_KEY"]) == Key("from-ring", "keyring")
    monkeypatch.setenv("DEMO_KEY", "from-env")
    assert find_key("demo", ["DEMO_KEY"]) == Key("from-env", "environment DEMO_KEY")
    monkeypatch.setenv("KIT_DEMO_API_KEY", "from-kit")
    assert find_key("demo", ["DEMO_KEY"]).value == "from-kit"
    assert find_key("demo", ["DEMO_KEY"], given="given-one") == Key("given-one", "argument")


def test_no_key_is_false_and_says_so() -> None:
    """Nothing is made up; an empty variable is none."""
    found = find_key("demo", ["DEMO_KEY"], environ={"DEMO_KEY": "  "})

    assert not found
    assert str(found) == "no key"


def test_white_space_around_a_key_is_dropped() -> None:
    """Copying brings a line end along."""
    assert find_key("demo", ["K"], environ={"K": " abc123\n"}).value == "abc123"


@pytest.mark.parametrize("value", ["a b", "clé", "“quoted”", "a\nb"])
def test_what_cannot_be_a_key_is_refused_without_showing_it(value: str) -> None:
    """The caller's move; the value is not in the text."""
    with pytest.raises(UsageError) as caught:
        find_key("demo", given=value)

    assert value not in str(caught.value)


def test_a_key_is_never_printed() -> None:
    """repr, str, format, copies and tracebacks with locals show its source only."""
    key = find_key("demo", given=KEY)

    for shown in (
        repr(key),
        str(key),
        f"{key!r} {key}",
        repr([key]),
        repr(copy.copy(key)),
        repr(pickle.loads(pickle.dumps(key))),
    ):
        assert KEY not in shown
    assert "argument" in str(key)


def test_the_file_is_readable_by_its_owner_alone() -> None:
    """Mode 0600 from the first byte; one that was opened up is closed again."""
    path = keys.store("demo", api_key=KEY, base_url="https://gateway")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)

    assert find_key("demo").value == KEY

    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["providers.json"]


def test_keys_do_not_depend_on_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A hub that starts in another folder keeps its keys (U78)."""
    keys.store("demo", api_key=KEY)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    assert find_key("demo").value == KEY


def test_without_a_setting_the_file_is_the_user_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The platform's folder for configuration."""
    monkeypatch.delenv("KIT_CONFIG_DIR")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))

    assert keys.config_file().name == "providers.json"
    assert "kit-jupyter" in str(keys.config_file())


@pytest.mark.parametrize("raw", [b"{not json", b"[1]", b'"x"', b"\xff\xfe{\x00}\x00", b"[" * 100_000])
def test_a_broken_file_is_named(raw: bytes) -> None:
    """With what to do; nothing of it is shown. UTF-16, and nested without end, too."""
    path = keys.config_file()
    path.parent.mkdir(parents=True)
    path.write_bytes(raw)

    with pytest.raises(UsageError, match=r"providers\.json"):
        find_key("demo")


def test_login_asks_without_showing_and_keeps(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By getpass; the key is found afterwards, and neither printed nor returned (U73)."""
    asked: list[str] = []
    monkeypatch.setattr("getpass.getpass", lambda prompt: asked.append(prompt) or f" {KEY}\n")

    told = registry.login("groq")

    assert "groq" in asked[0]
    assert KEY not in told
    assert KEY not in "".join(capsys.readouterr())
    assert find_key("groq", ["GROQ_API_KEY"]).value == KEY
    assert json.loads(keys.config_file().read_text())["groq"]["api_key"] == KEY
    assert registry.choose(probe=False).ref.provider == "groq"


def test_login_prefers_a_keyring_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """And leaves no copy in the file; logout forgets both."""
    ring = FakeKeyring().install(monkeypatch)
    keys.store("groq", api_key="an-old-one")
    monkeypatch.setattr("getpass.getpass", lambda _: KEY)

    assert registry.login("groq") == "kept in the keyring"
    assert ring.kept == {("kit-jupyter", "groq"): KEY}
    assert "groq" not in json.loads(keys.config_file().read_text())

    keys.logout("groq")
    assert not find_key("groq")


def test_logout_forgets_the_key_and_keeps_the_address() -> None:
    """Only the key goes."""
    keys.store("demo", api_key=KEY, base_url="https://gateway")

    keys.logout("demo")

    assert keys.provider_config("demo") == {"base_url": "https://gateway"}


@pytest.mark.parametrize("entered", ["", "   ", "a key with spaces"])
def test_login_refuses_what_is_no_key(monkeypatch: pytest.MonkeyPatch, entered: str) -> None:
    """Nothing is kept."""
    monkeypatch.setattr("getpass.getpass", lambda _: entered)

    with pytest.raises(UsageError):
        registry.login("groq")

    assert not keys.config_file().exists()


def test_login_to_nobody_names_the_nearest() -> None:
    """A typing error is told before anything is asked."""
    with pytest.raises(UsageError, match="did you mean groq"):
        registry.login("grok")


def test_a_keyring_that_hangs_or_breaks_is_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some backends wait for a dialog that nobody sees."""
    import time

    FakeKeyring().install(monkeypatch)
    monkeypatch.setattr(keys, "KEYRING_SECONDS", 0.1)
    monkeypatch.setattr(sys.modules["keyring"], "get_password", lambda *_: time.sleep(0.5))
    assert not find_key("demo")

    def broken(*_: str) -> str:
        raise RuntimeError("no D-Bus")

    monkeypatch.setattr(sys.modules["keyring"], "get_password", broken)
    assert not find_key("demo")


def test_a_folder_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file itself in the way of the folder: an error with a way out, whoever runs it."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("KIT_CONFIG_DIR", str(tmp_path / "file" / "x"))

    with pytest.raises(UsageError, match="KIT_CONFIG_DIR"):
        keys.store("demo", api_key=KEY)


@pytest.mark.parametrize(
    "text",
    [
        f"Incorrect API key provided: {KEY}",
        f"Authorization: Bearer {KEY}",
        f"https://host/v1?key={KEY}&alt=sse",
        json.dumps({"headers": {"x-api-key": KEY}}),
    ],
)
def test_masking_leaves_no_key(text: str) -> None:
    """By shape and by place."""
    assert KEY not in keys.mask(text)


def test_a_key_of_any_shape_is_masked_once_it_was_used() -> None:
    """A gateway's key has no known shape; the process knows it."""
    find_key("demo", given="correct-horse-battery")

    assert "battery" not in keys.mask("echo: correct-horse-battery")


def test_the_source_can_be_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """For status pages: where from, or that none is there or needed."""
    assert registry.key_source("groq") == "none"
    assert registry.key_source("ollama") == "not needed"
    monkeypatch.setenv("GROQ_API_KEY", KEY)

    assert registry.key_source("groq") == "environment GROQ_API_KEY"


def test_an_opened_provider_shows_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor its endpoint, nor its network with a proxy's password."""
    monkeypatch.setenv("GROQ_API_KEY", KEY)
    monkeypatch.setenv("KIT_PROXY", "http://me:hush-hush@proxy:1")

    made: Any = registry.open_provider(ModelRef("groq", "m"))

    shown = repr(made) + repr(made.endpoint) + repr(made.network)
    assert KEY not in shown
    assert "hush" not in shown
    assert made.endpoint.api_key == KEY


def test_the_environment_is_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Child processes see no more than they did."""
    before = dict(os.environ)
    keys.store("groq", api_key=KEY)
    registry.open_provider(ModelRef("groq", "m"))

    assert dict(os.environ) == before
