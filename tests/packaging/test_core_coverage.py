"""The tests of the core cover the core: measured in a process of its own, so that nothing else runs traced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core.test_laws import CORE

ROOT = Path(__file__).parents[2]
WHOLE, EACH = 95.0, 85.0  # a room may vary by a few lines with the timing of threads
#: What people hold in hands is held higher.
HIGHER = {"kit": 95.0, "kit_parts": 95.0, "kit_path": 95.0, "tree": 95.0}
CONFIG = """
[run]
branch = true
parallel = true
concurrency = thread
patch = subprocess
data_file = {folder}/data
include =
    {rooms}
[report]
exclude_also =
    if TYPE_CHECKING:
    raise NotImplementedError
    ^\\s*\\.\\.\\.$
    except ImportError:  # Windows
"""


@pytest.mark.timeout(1200)
def test_the_core_is_covered(tmp_path: Path) -> None:
    """At least 95 % of the lines and branches of the core, 85 % of each room, 95 % of the Kit's own, by ``tests/core``.

    What the subprocesses of these tests run counts, too; a test that fails here fails in the run around
    this one as well, and is told there.
    """
    rooms = "\n    ".join(f"*/kit_jupyter/{room}.py" for room in CORE)
    config = tmp_path / "coverage.ini"
    config.write_text(CONFIG.format(folder=tmp_path, rooms=rooms))
    outside = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_", "COVERAGE_"))
    }

    def coverage(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "coverage", words[0], f"--rcfile={config}", *words[1:]],
            cwd=ROOT,
            env=outside,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.stdout

    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:cov", "-m", "not slow", "--timeout=300")
    run = coverage("run", "-m", "pytest", *options, "tests/core")
    coverage("combine", "-q")
    coverage("json", "-q", "-o", str(tmp_path / "report.json"))
    report = json.loads((tmp_path / "report.json").read_text())

    covered = {Path(name).stem: facts["summary"]["percent_covered"] for name, facts in report["files"].items()}
    thin = {room: round(share, 1) for room, share in sorted(covered.items()) if share < HIGHER.get(room, EACH)}
    table = coverage("report", "-m", "--skip-covered")
    assert set(covered) == set(CORE), run[-3000:]
    assert report["totals"]["percent_covered"] >= WHOLE, f"{table}\n{run[-1500:]}"
    assert not thin, f"{thin}\n{table}"
