"""The default tier needs no framework: a newcomer's environment has the group ``dev`` only."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import sys, pytest

class Hiding:
    def __init__(self, finder): self.finder = finder
    def __getattr__(self, name): return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else self.finder.find_spec(name, path, target)

HIDDEN = set(sys.argv[1].split(","))
sys.meta_path[:] = map(Hiding, sys.meta_path)
sys.exit(pytest.main(sys.argv[2:]))
"""


def normal(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.split(r"[\s\[<>=;]", requirement)[0]).lower()


def frameworks() -> set[str]:
    """Return the names under which the frameworks are imported that only ``--all`` installs."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    wanted = {normal(line) for line in (*groups["integrations"], *groups["docs"])} - set(map(normal, groups["dev"]))
    return {
        name
        for name, owners in packages_distributions().items()
        if name != "leasehold" and wanted & set(map(normal, owners))
    }


def test_the_default_tier_is_collected_and_reads_the_library() -> None:
    hidden = frameworks()
    assert {"django", "starlette", "textual", "material", "opentelemetry"} <= hidden
    here = {name: value for name, value in os.environ.items() if name != "CI"}  # where each must be there
    arguments = ["-q", "-p", "no:cacheprovider", "--no-header"]
    for more in (["--collect-only"], ["tests/api/test_errors.py"]):
        command = [sys.executable, "-c", PROGRAM, ",".join(hidden), *arguments, *more]
        done = subprocess.run(command, cwd=ROOT, env=here, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
