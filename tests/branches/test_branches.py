"""Every branch of the core is reached by a test that needs no server; see ``python tests/branches``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_every_branch_of_the_core_is_reached() -> None:
    run = subprocess.run([sys.executable, Path(__file__).parent], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-10_000:] + run.stderr[-2_000:]
