"""Tests that only compute run at a lower priority, and nothing after them does."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.plugins import background

NEIGHBOURS = """
import os

def test_priority():
    print("priority", os.getpriority(os.PRIO_PROCESS, 0))
"""

CONFTEST = """
from support.plugins import background
from support.plugins.background import in_the_background

def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: not background.computes(item))
"""


def test_only_the_folders_that_compute_have_a_lower_priority(tmp_path: Path) -> None:
    if not background.can_restore():
        pytest.skip("this user cannot raise a priority again")
    now = os.getpriority(os.PRIO_PROCESS, 0)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for folder in ("cli", "simulated/histories", "stores"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / f"test_{Path(folder).name}.py").write_text(NEIGHBOURS)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-sq", "-p", "no:cacheprovider", tmp_path],
        env={**os.environ, "PYTHONPATH": str(Path(background.__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    seen = [int(line.split()[1]) for line in done.stdout.replace(".", "").splitlines() if "priority" in line]
    assert seen == [min(now + background.NICE_STEPS, 19), now, now], (
        "they run first, and the others at the usual priority"
    )
    assert os.getpriority(os.PRIO_PROCESS, 0) == now


def test_garbage_collections_spare_the_tests_themselves() -> None:
    assert gc.isenabled()
    assert gc.get_freeze_count() > 10_000
