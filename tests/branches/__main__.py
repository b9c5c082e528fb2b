"""Measure which branches of the core tests reach: ``python tests/branches``. Fails below the figure of pyproject.toml.

What counts as the core, and what is left out with which reason, stands there, too. Forked children and processes that
tests start are measured as well. Tracing takes its time, so tests that hold the machine to times may fail meanwhile:
they are run again, as in continuous integration.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

TESTS = (
    *("unit", "process", "sweep", "api/test_reprs.py", "conformance"),
    *(
        "simulated/histories/test_getting_on.py",
        "simulated/objects/test_barrier.py::test_a_member_that_was_stopped_beyond_its_lease_gets_an_error",
    ),
)

CHOSEN = "not redis and not servers and not simulated-1 and not simulated-2 and (not conformance or memory)"
"""Those that need no server, and one seed of virtual time."""


def main() -> int:
    """Measure and report; return 0 if the tests pass and the figure is reached."""
    parser = argparse.ArgumentParser(prog="python tests/branches", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=2, help="how many tests at once (2)")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = f"--data-file={folder}/coverage"
        tests = [f"tests/{name}" for name in TESTS]
        options = ["-q", "-p", "no:cacheprovider", f"-n{words.jobs}", "--reruns=2", "--reruns-delay=5", "-k", CHOSEN]
        passed = coverage("run", data, "-m", "pytest", *options, *tests)
        coverage("combine", "-q", data, folder)
        reached = coverage("report", data)
    return passed or reached


def coverage(*words: str) -> int:
    """Run the tool; return its exit status."""
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "coverage", *words]
    return subprocess.run(command, cwd=ROOT, env={**outer, "PYTHONPATH": str(ROOT / "src")}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
