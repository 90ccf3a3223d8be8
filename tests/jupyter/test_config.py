"""Configuration and what an administrator locks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernels import SETUP, Kernel, kernel


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    home = tmp_path_factory.mktemp("hub")
    admin = home / "jupyter_kit_config.json"
    locks = {"models": ["scripted/*", "hub/small"], "base_urls": ["https://hub.test/*"], "deny_tools": ["danger*"]}
    admin.write_text(json.dumps({"KitNotebook": {"ui": "static"}, "locked": locks}))
    with kernel({"KIT_ADMIN_CONFIG": str(admin), "XDG_DATA_HOME": str(home), "KIT_UI": ""}, setup=SETUP) as it:
        yield it


def test_locked_models_are_refused_and_named(locked: Kernel) -> None:
    """U120: a user cannot choose another model, by option or by magic."""
    locked.script('[text("ok")]')

    said = locked.run("%%kit -m openai/gpt-5\nhi")
    assert "not allowed here; allowed: scripted/*, hub/small" in said.reply["traceback"][0]
    assert "not allowed" in locked.run("%kit_model openai/gpt-5").reply["traceback"][0]
    locked.ok("%%kit\nhi")


def test_locked_tools_are_refused(locked: Kernel) -> None:
    """U120: tools denied fleet-wide."""
    locked.ok("def dangerous() -> str:\n    'D.'\n    return 'x'")
    locked.script('[text("never")]', more=", tools=[dangerous]")

    said = locked.run("%%kit\nhi")

    assert "the tool 'dangerous' is not allowed here" in said.reply["traceback"][0]
    assert locked.value("len(provider.requests)") == 0


def test_the_administrators_defaults_hold_until_a_user_sets_them(locked: Kernel) -> None:
    """Point 10: what is not locked is a default."""
    locked.script('[text("one")]', '[text("two")]')

    said = locked.ok("%%kit\nhi")
    assert said.frames == []  # static
    assert locked.value("notebook_of(get_ipython()).config.ui") == "static"
    locked.ok("%config KitNotebook.ui = 'widget'")
    assert locked.ok("%%kit\nhi").frames


def test_a_broken_lock_fails_closed(tmp_path: Path) -> None:
    """U120: a file that cannot be read locks everything and says why."""
    admin = tmp_path / "jupyter_kit_config.json"
    admin.write_text("{broken")
    with kernel({"KIT_ADMIN_CONFIG": str(admin), "XDG_DATA_HOME": str(tmp_path)}) as it:
        it.script('[text("never")]')
        said = it.run("%%kit\nhi")
        assert said.reply["status"] == "error"
        assert "cannot be read" in said.reply["evalue"]


def test_settings_from_ipython_config(tmp_path: Path) -> None:
    """Point 10: `c.Kit` and `c.KitNotebook` in a kernel's configuration; `%config Kit` at run time."""
    profile = tmp_path / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    (profile / "ipython_kernel_config.py").write_text(
        "c = get_config()\nc.KitNotebook.ui = 'static'\nc.Kit.max_steps = 7\nc.KitNotebook.session = 'memory'\n"
        "c.IPKernelApp.extensions = ['kit_jupyter']\n"
    )
    env = {"IPYTHONDIR": str(tmp_path / "ipython"), "XDG_DATA_HOME": str(tmp_path), "KIT_UI": ""}
    with kernel(env, setup="") as it:
        assert it.value("kit.settings.max_steps") == 7
        assert it.value("kit.session.path") is None
        it.ok("%config Kit.max_steps = 9")
        assert it.value("kit.settings.max_steps") == 9
        assert "max_steps" in it.ok("%config Kit").stream
        assert it.run("%config Kit.max_steps = 0").reply["status"] == "error" or it.value("kit.settings.max_steps") == 9
        it.ok("from kit_jupyter import Kit\nfrom kit_jupyter.testing import *")
        it.script('[text("static")]')
        said = it.ok("%%kit\nhi")
        assert said.frames == []
        assert said.kit()["text/plain"] == "static"
