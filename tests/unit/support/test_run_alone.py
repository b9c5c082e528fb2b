"""A test that measures time runs in quiet; the last run of a test that failed runs alone, on fresh servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from support.plugins import background, run_alone

SUITE = """
import json, os, time
from pathlib import Path
import pytest

NOTES = Path(os.environ["NOTES"])

def note(what, begin):
    with NOTES.open("a") as file:
        file.write(json.dumps([what, os.getpid(), begin, time.monotonic()]) + chr(10))

def count(what):
    return NOTES.read_text().count(what) if NOTES.exists() else 0

def test_that_fails_twice():
    begin, before = time.monotonic(), count("crowd")
    if count("failing") == 0:  # its first run has company
        while count("crowd") == before and time.monotonic() < begin + 20:
            time.sleep(0.01)
    time.sleep(0.3)
    note("failing", begin)
    assert count("failing") == 3

@pytest.mark.parametrize("number", range(60))
def test_of_the_crowd(number):
    begin = time.monotonic()
    time.sleep(0.1)
    note("crowd", begin)
"""


PYTEST = (
    *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"),
    *("-p", "xdist", "-p", "timeout", "-p", "rerunfailures"),
)
"""Pytest with no more plugins than these suites need: to load all that are installed takes longer than a suite."""

ENVIRONMENT = os.environ | {
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTHONPATH": str(Path(run_alone.__file__).parents[2]),
}

Run = list[Any]
"""Which test, in which process, from when to when."""


def test_the_third_run_has_no_company(tmp_path: Path) -> None:
    runs = play(tmp_path, SUITE, "--reruns", "2")
    failing = alongside("failing", runs)
    assert len(failing) == 3
    assert failing[0] > 0, "the first run has company, so that the test shows something"
    assert failing[2] == 0
    assert len([run for run in runs if run[0] == "crowd"]) == 60
    assert not list(tmp_path.glob("leasehold-tests-*"))


def play(tmp_path: Path, text: str, *options: str, conftest: str = "", computing: str = "") -> list[Run]:
    """Run a suite on three workers; return its runs as it noted them."""
    notes, suite = tmp_path / "notes", tmp_path / "suite"
    suite.mkdir()
    (suite / "pytest.ini").write_text("[pytest]\nmarkers = timing:\n")
    (suite / "conftest.py").write_text(
        "from support.plugins import run_alone\npytest_configure = run_alone.join\n" + conftest
    )
    (suite / "test_suite.py").write_text(text)
    (suite / "simulated").mkdir()
    (suite / "simulated" / "test_computing.py").write_text(computing)
    words = ["-n", "3", "--timeout", "60", *options]
    done = subprocess.run(
        [*PYTEST, *words, suite],
        env=ENVIRONMENT | {"NOTES": str(notes), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(line) for line in notes.read_text().splitlines()]


def alongside(name: str, runs: list[Run]) -> list[int]:
    """Return for each run of a test how many runs of other processes overlapped it."""
    return [
        sum(other[1] != run[1] and other[2] < run[3] and other[3] > run[2] for other in runs)
        for run in runs
        if run[0] == name
    ]


MEASURING = (
    SUITE.replace("def test_that_fails_twice", "@pytest.mark.timing\ndef test_that_fails_twice")
    .replace('count("failing") == 0:  # its first run has company', "False:")
    .replace("== 3", "== 1")
)


def test_a_test_that_measures_time_has_no_company(tmp_path: Path) -> None:
    runs = play(tmp_path, MEASURING)
    assert alongside("failing", runs) == [0]
    assert len([run for run in runs if run[0] == "crowd"]) == 60


def test_one_that_subtracts_lost_time_has_company(tmp_path: Path) -> None:
    text = SUITE.replace("def test_that_fails_twice", "@pytest.mark.timing(beside='all')\ndef test_that_fails_twice")
    (found,) = alongside("failing", play(tmp_path, text.replace("== 3", "== 1")))
    assert found > 0


OF_EACH_KIND = (
    SUITE[: SUITE.index("def test_that_fails_twice")]
    + """
BESIDE = ["few", "all", "nobody"]

@pytest.mark.parametrize(
    "number", [pytest.param(n, marks=pytest.mark.timing(beside=BESIDE[n % 3])) for n in range(60)]
)
def test_of_each_kind(number):
    begin = time.monotonic()
    time.sleep(0.1)
    note(BESIDE[number % 3], begin)
"""
)


def test_two_that_measure_time_have_no_others_beside_them(tmp_path: Path) -> None:
    runs = play(tmp_path, OF_EACH_KIND)
    measured = [run for run in runs if run[0] == "few"]
    assert len(runs) == 60
    assert alongside("nobody", runs) == [0] * 20
    measuring = alongside("few", runs)
    assert sum(measuring) > 0
    assert measuring == alongside("few", measured), "those beside them measure, too"


COMPUTING = (
    SUITE[: SUITE.index("def test_that_fails_twice")]
    + """
@pytest.mark.parametrize("number", range(20))
def test_that_computes(number):
    begin = time.monotonic()
    time.sleep(0.1)
    note("computing", begin)
"""
)


@pytest.mark.skipif(not background.can_restore(), reason="this user cannot raise a priority again")
def test_nothing_computes_beside_one_that_is_alone(tmp_path: Path) -> None:
    runs = play(tmp_path, OF_EACH_KIND, computing=COMPUTING)
    assert len(runs) == 80
    assert alongside("nobody", runs) == [0] * 20
    measured = [run for run in runs if run[0] in ("few", "computing")]
    assert sum(alongside("few", measured)) > 0, "they go on beside others"


ARRANGED = """
def pytest_collection_modifyitems(config, items):
    run_alone.arrange(items, getattr(config, "workerinput", {}).get("workercount", 1))
"""


def test_a_worker_stays_in_the_room_while_it_measures(tmp_path: Path) -> None:
    text = OF_EACH_KIND.replace('"nobody"', '"few"').replace("0.1", "0.05")
    runs = play(tmp_path, text, "-n", "2", "--dist", "worksteal", conftest=ARRANGED)
    measured = [run for run in runs if run[0] == "few"]
    assert len(measured) == 40
    for worker in {run[1] for run in measured}:  # one may begin much later than the other
        begin = min(run[2] for run in measured if run[1] == worker)
        end = max(run[3] for run in measured if run[1] == worker)
        assert [run for run in runs if run[0] == "all" and run[2] < end and run[3] > begin] == []


class Item:
    """An item as `arrange` sees it; of a file with a fixture of its own, if the file has a name."""

    def __init__(self, kind: str, top: Path, file: str = "") -> None:
        self.kind = kind
        self.path = top / ("simulated" if kind == "computes" else "unit") / f"test_{file or 'it'}.py"
        self.config = SimpleNamespace(rootpath=top)
        scope = SimpleNamespace(scope="module" if file else "session")
        self._fixtureinfo = SimpleNamespace(name2fixturedefs={"server": [scope]})

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        marks = {"measures": pytest.mark.timing.mark, "alone": pytest.mark.timing(beside="nobody").mark}
        return marks.get(self.kind) if name == "timing" else None


@pytest.mark.parametrize("workers", [1, 2, 3, 6, 7, 8])
def test_some_workers_measure_while_the_others_compute(workers: int, tmp_path: Path) -> None:
    kinds = [*["plain", "computes", "plain", "measures", "plain", "plain"] * 20, "alone"]
    items: list[Any] = [Item(kind, tmp_path) for kind in kinds]
    before = list(items)
    run_alone.arrange(items, workers)
    assert sorted(map(id, items)) == sorted(map(id, before))
    begins, left = list[int](), len(items)
    for remaining in range(workers, 0, -1):  # as pytest-xdist divides them
        begins.append(len(items) - left)
        left -= left // remaining
    quiet = min(run_alone.QUIET, workers - 1)
    assert [items[begin].kind for begin in begins] == (["measures"] * quiet + ["computes"] * (workers - quiet))
    measured = [items[begin : begin + 20 // quiet] for begin in begins[:quiet]]
    assert all(item.kind == "measures" for part in measured for item in part)
    if workers > 2:
        own = [item.kind for item in items[: begins[1]]]
        assert own.index("alone") == own.count("measures"), "alone at the end, when nothing computes any more"


def test_tests_that_share_a_fixture_of_their_module_stay_together(tmp_path: Path) -> None:
    files = [*["", "", "a", "a", "a", "", "b", "b", "b", "b", "", ""], *["c"] * 4, *[""] * 8, *["d"] * 16]
    items: list[Any] = [Item("measures", tmp_path, file) for file in files]
    before = list(items)
    run_alone.arrange(items, 5)
    parts = [items[begin : begin + 10] for begin in range(0, 40, 10)]
    assert sorted(map(id, items)) == sorted(map(id, before))
    for name in "abc":
        assert sum(any(item.path.name == f"test_{name}.py" for item in part) for part in parts) == 1
    for part in parts:
        assert [before.index(item) for item in part] == sorted(before.index(item) for item in part)
        assert sum(item.path.name == "test_d.py" for item in part) <= 8, "one module alone does not fill a worker"


SHARED = """
import pytest

runs, ended = [], []

@pytest.fixture(scope="session")
def server():
    left = []
    yield left
    ended.append(left)

@pytest.fixture(scope="module")
def tables(server):
    return server

def test_that_breaks_off(tables):
    runs.append(list(tables))
    tables.append("something")
    assert len(runs) > 1, "the first run fails"
    tables.remove("something")
    assert tables == []

def test_that_follows(server, tables):
    assert runs == [[], ["something"], []]
    assert ended == [["something"]]
    assert server is tables
    assert tables == []
"""


def test_shared_fixtures_are_made_anew_for_the_third_run(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from support.plugins import run_alone\npytest_configure = run_alone.join\n")
    (tmp_path / "test_suite.py").write_text(SHARED)
    done = subprocess.run(
        [*PYTEST, "-n", "1", "--reruns", "2", tmp_path],
        env=ENVIRONMENT | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 2 rerun" in done.stdout


def test_the_wait_for_the_others_to_leave_is_limited(tmp_path: Path) -> None:
    mine, theirs = run_alone.Room(tmp_path, "x"), run_alone.Room(tmp_path, "x")
    mine.enter()
    theirs.enter()
    assert not mine.enter_alone(within=0.2)
    came = threading.Event()
    third = run_alone.Room(tmp_path, "x")
    newcomer = threading.Thread(target=lambda: (third.enter(), came.set()))
    newcomer.start()
    assert not came.wait(0.2), "the door is locked"
    mine.leave()
    assert came.wait(5)
    newcomer.join()
    theirs.leave()
    third.leave()
    mine.enter()
    assert mine.enter_alone(within=0.2)
    for room in (mine, theirs, third):
        room.close()


PROMPT = """
import socket

def test_it(pytestconfig):
    assert pytestconfig.failures_db.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
"""


def test_a_worker_reports_reruns_without_delay(tmp_path: Path) -> None:
    conftest = "import pytest\nfrom support.plugins import run_alone\n"
    conftest += "pytest_configure = pytest.hookimpl(trylast=True)(run_alone.send_at_once)\n"
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_suite.py").write_text(PROMPT)
    done = subprocess.run(
        [*PYTEST, "-n", "1", "--reruns", "1", tmp_path],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
