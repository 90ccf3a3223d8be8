"""What installing and importing costs: distributions, modules, sockets, addresses in what is committed."""

from __future__ import annotations

import gzip
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def closure(requirements: list[str]) -> set[str]:
    """Names of all distributions that `requirements` bring here, markers honoured."""
    found: set[str] = set()
    queue = [(Requirement(text), "") for text in requirements]
    while queue:
        wanted, extra = queue.pop()
        if wanted.marker and not wanted.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(wanted.name)
        if name in found and not wanted.extras:
            continue
        found.add(name)
        for text in importlib.metadata.requires(name) or []:
            inner = Requirement(text)
            if inner.marker is None or inner.marker.evaluate({"extra": ""}):
                queue.append((inner, ""))
            queue.extend((inner, e) for e in wanted.extras if inner.marker and inner.marker.evaluate({"extra": e}))
    return found


def test_base_install_adds_at_most_fifteen_distributions() -> None:
    """U101: counted over an environment that has ipykernel and ipywidgets, ourselves included."""
    there = closure(["ipykernel", "ipywidgets"])

    added = closure(PROJECT["dependencies"]) - there | {"kit-jupyter"}

    assert len(added) <= 15, sorted(added)


def test_nothing_is_pinned_from_above() -> None:
    """U102: users pin these too; an upper bound would be a conflict to come."""
    requirements = [
        *PROJECT["dependencies"],
        *(r for extra in PROJECT["optional-dependencies"].values() for r in extra),
    ]

    bounds = {r: str(Requirement(r).specifier) for r in requirements}

    assert {r: s for r, s in bounds.items() if re.search(r"<|==|~=", s)} == {}


def test_constraints_name_what_the_extras_ask_for() -> None:
    """Every direct requirement has its known-to-work version, so that two machines install the same."""
    pinned = {canonicalize_name(line.split("==")[0]) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    extras = PROJECT["optional-dependencies"]
    asked = [*PROJECT["dependencies"], *(r for name in extras for r in extras[name])]

    missing = {canonicalize_name(Requirement(r).name) for r in asked} - pinned - {"kit-jupyter"}

    assert missing == set()


@pytest.mark.parametrize(
    "name", ["labextension/package-lock.json", "tests/labextension/package-lock.json", "constraints.txt"]
)
def test_lock_files_bear_no_addresses(name: str) -> None:
    """A lock names versions and hashes; where they are fetched is the machine's business."""
    text = (ROOT / name).read_text()

    lines = [line for line in text.splitlines() if "://" in line and (name.endswith(".txt") or '"resolved"' in line)]

    assert lines == []


def test_the_browser_side_is_light() -> None:
    """Issue 8: all that a page may load of us and our libraries, compressed, is at most 350 kB."""
    static = ROOT / "kit_jupyter" / "labextension" / "static"
    if not static.is_dir():
        pytest.skip("the browser side is not built; an editable install builds it")

    sizes = {path.name: len(gzip.compress(path.read_bytes())) for path in static.glob("*.js")}

    print(f"{sum(sizes.values()) / 1000:.0f} kB compressed")
    assert sum(sizes.values()) <= 350_000, sizes


def test_import_is_light() -> None:
    """U79, U100: `import kit_jupyter` opens no socket and pulls in none of the heavy packages."""
    script = (
        "import socket, sys, time\n"
        "def refuse(*a, **k): raise AssertionError('a socket at import')\n"
        "socket.socket.connect = refuse; socket.getaddrinfo = refuse\n"
        "before = set(sys.modules); start = time.process_time()\n"
        "import kit_jupyter\n"
        "spent = time.process_time() - start\n"
        "new = set(sys.modules) - before\n"
        "heavy = {'httpx', 'pydantic', 'IPython', 'ipywidgets', 'anywidget', 'comm', 'numpy', 'pandas', 'mcp'} & new\n"
        "print(len(new), round(spent, 3), sorted(heavy))\n"
    )

    count, seconds, heavy = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.split(maxsplit=2)

    assert heavy.strip() == "[]"
    assert int(count) < 250, f"{count} modules"
    assert float(seconds) < 1.0, "the budget is 0.12 s; this bound only catches a change of kind"


def test_import_contracts_hold() -> None:
    """S53, law 12: an import never goes up, wings do not know each other, walls stand."""
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )

    assert done.returncode == 0, done.stdout[-4000:]
