"""The wheel carries all that is needed, works where there is no node, and leaves nothing behind."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXTENSION = "share/jupyter/labextensions/kit-jupyter"


def run(*command: object, cwd: Path | None = None, path: str = "") -> str:
    """Output of a command with nothing but `path` on PATH."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, "PATH": path, "PYTHONPATH": "", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of this tree, built as from an sdist with built assets: no node, no network."""
    if not (ROOT / "kit_jupyter/labextension/static/style.js").exists():
        pytest.skip("the browser side is not built; an editable install builds it")
    pytest.importorskip("hatch_jupyter_builder", reason="needs the build requirements of the test extra")
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    ignore = shutil.ignore_patterns("node_modules", "__pycache__", ".git", ".venv", "build", "lib")
    for name in ("kit_jupyter", "labextension"):
        shutil.copytree(ROOT / name, source / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE", "install.json"):
        shutil.copy(ROOT / name, source)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", place, source)
    (built,) = place.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh environment with the wheel; its dependencies are seen through a path file, not installed again."""
    place = tmp_path_factory.mktemp("environment") / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", place)
    python = place / "bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return place


def test_wheel_carries_the_extension_once(wheel: Path) -> None:
    """S74: labextension, view and renderer are in the wheel; sources of the browser side are not."""
    names = zipfile.ZipFile(wheel).namelist()

    shared = [name for name in names if EXTENSION in name]
    assert any(name.endswith("/install.json") for name in shared)
    assert any("/static/remoteEntry." in name for name in shared)
    assert not [name for name in names if name.startswith("kit_jupyter/labextension/")]
    assert not [name for name in names if name.endswith((".ts", "package-lock.json")) or "node_modules" in name]
    assert "kit_jupyter/jupyter/static/chat.js" in names
    assert "kit_jupyter/jupyter/static/render.js" in names


def test_a_fresh_environment_without_node_imports_and_loads(environment: Path) -> None:
    """S74, U103: pip install is the only step; the import comes from the wheel, and %load_ext works."""
    script = (
        "import shutil, kit_jupyter\n"
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.run_line_magic('load_ext', 'kit_jupyter')\n"
        "print(kit_jupyter.__file__, shutil.which('node'), 'kit' in shell.magics_manager.magics['cell'])\n"
    )

    file, node, has_magic = run(environment / "bin/python", "-c", script, cwd=environment).split()[-3:]

    assert Path(file).is_relative_to(environment)
    assert (node, has_magic) == ("None", "True")


def test_the_server_finds_the_extension(environment: Path) -> None:
    """U103: Lab looks under share/jupyter of the environment; the build it is told to load is there."""
    import json

    package = json.loads((environment / EXTENSION / "package.json").read_text())

    built = package["jupyterlab"]["_build"]
    assert (environment / EXTENSION / built["load"]).is_file()
    assert {"extension", "mimeExtension", "style"} <= set(built)


def test_uninstalling_leaves_nothing_behind(environment: Path, wheel: Path) -> None:
    """Issue 8: after pip uninstall no file of ours is in the environment."""
    python = environment / "bin/python"

    run(sys.executable, "-m", "pip", "--python", python, "uninstall", "-y", "kit-jupyter")

    left = [path for path in environment.rglob("*") if "kit" in path.name and path.suffix != ".pyc" and path.is_file()]
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    assert [path for path in left if "kit_jupyter" in str(path) or "kit-jupyter" in str(path)] == []
