"""The README says what is true: its table is the registry's, its code runs, its tree is the tree."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


def test_the_table_of_providers_is_made_from_the_registry() -> None:
    """The README's provider table is what the registry prints (issue 5, "Done when")."""
    made = subprocess.run(
        [sys.executable, "-m", "kit_jupyter.providers.registry"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.strip()

    between = README.split("checked by a test -->\n", 1)[1].split("<!-- /providers -->", 1)[0].strip()
    assert between == made


def test_the_first_script_runs_with_the_local_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first code block runs as it is, with a scripted model in the local one's place (U32)."""
    from kit_jupyter import Kit
    from kit_jupyter.testing import ScriptedProvider, text, tool_call

    provider = ScriptedProvider([tool_call("area", width=4, height=5)], [text("20")], name="local")
    made: list[Kit] = []

    def kit(*args: object, **kwargs: object) -> Kit:
        made.append(Kit(*args, provider=provider, **kwargs))  # type: ignore[arg-type]
        return made[-1]

    namespace: dict[str, object] = {"__name__": "readme"}
    source = BLOCKS[0].replace("from kit_jupyter import Kit\n", "")
    exec(compile(source, "README.md", "exec"), {**namespace, "Kit": kit})

    assert [m.role for m in made[0].messages] == ["user", "assistant", "tool", "assistant"]


def test_the_scripted_example_runs() -> None:
    """The second code block runs as it is, after the first one's function (issue 3, "Done when")."""

    def area(width: float, height: float) -> float:
        """Area of a rectangle."""
        return width * height

    exec(compile(BLOCKS[1], "README.md", "exec"), {"__name__": "readme", "area": area})


def test_rooms_that_the_tree_names_exist() -> None:
    """The tree in the README is true (design §3)."""
    tree = README.split("## How the code lies", 1)[1].split("```", 2)[1]
    for name in ("provider", "extension", "tool", "turn", "compaction", "session", "inbox", "settings", "loop"):
        assert name in tree
        assert (ROOT / "kit_jupyter" / f"{name}.py").exists(), name
    for folder in ("providers", "tools", "extensions", "jupyter", "batch"):
        assert f"{folder}/" in tree
        assert (ROOT / "kit_jupyter" / folder).is_dir(), folder
