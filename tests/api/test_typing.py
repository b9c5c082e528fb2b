"""The types that users see are those that both checkers see, in their strict modes."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
PAGE = TOP / "tests" / "typing" / "api.py"


def check(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=TOP, capture_output=True, text=True, timeout=800, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def need(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed; it is in the dependency group dev")


def test_mypy(tmp_path: Path) -> None:
    need("mypy")
    said = check("mypy", "--strict", "--warn-unused-ignores", "--cache-dir", str(tmp_path), str(PAGE))
    assert "1 source file" in said


def test_pyright() -> None:
    need("pyright")
    said = json.loads(check("pyright", "--outputjson", "--pythonpath", sys.executable, str(PAGE)))
    assert said["summary"]["filesAnalyzed"] == 1
