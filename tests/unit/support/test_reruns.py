"""Which tests are run again, and the reasons that are reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from support.plugins import reruns

REPORTS = """
from support.plugins import reruns

def pytest_runtest_logreport(report):
    reruns.note(report)

def pytest_terminal_summary(terminalreporter):
    for line in reruns.reasons:
        terminalreporter.line("AGAIN " + line)
"""

TESTS = """
from pathlib import Path
import pytest

@pytest.fixture
def broom():
    yield
    once("teardown", "the test leaves behind: a thread")

def once(name, said):
    path = Path(__file__).parent / name
    if not path.exists():
        path.touch()
        pytest.fail(said, pytrace=False)

def test_call():
    path = Path(__file__).parent / "call"
    if not path.exists():
        path.touch()
        assert 1 + 1 == 3, "a sum"

def test_teardown(broom):
    pass

def test_good():
    pass
"""


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_each_run_that_was_not_the_last_has_its_reason(tmp_path: Path, workers: list[str]) -> None:
    (tmp_path / "conftest.py").write_text(REPORTS)
    (tmp_path / "test_flaky.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "--reruns", "2", *workers, "-p", "no:cacheprovider", "."]
    environment = {"PYTHONPATH": str(Path(reruns.__file__).parents[2]), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert sorted(line for line in done.stdout.splitlines() if line.startswith("AGAIN")) == [
        "AGAIN test_flaky.py::test_call (call): AssertionError: a sum",
        "AGAIN test_flaky.py::test_teardown (teardown): the test leaves behind: a thread",
    ]


def test_the_reason_is_the_first_marked_line_or_the_last() -> None:
    assert (
        reruns.reason("def f():\n>  assert x\nE   ValueError: first\nE   second\n\nf.py:3: ValueError")
        == "ValueError: first"
    )
    assert reruns.reason("one\ntwo\n\n") == "two"
    assert reruns.reason("") == "it does not say why"
    assert len(reruns.reason("x" * 1000)) == reruns.LONGEST
