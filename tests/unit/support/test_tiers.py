"""Each test file belongs to a tier, and a run has the tests of its tier."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.patience import until
from support.plugins import tiers
from support.plugins.tiers import PARTS, TESTS, Part, part_of

FILES = sorted(TESTS.rglob("test_*.py"))


def test_each_test_file_belongs_to_a_part() -> None:
    assert [str(path) for path in FILES if part_of(path) is None] == []


def functions(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.path)
def test_a_part_has_tests_and_a_reason(part: Part) -> None:
    file, _, function = part.path.partition("::")
    assert part.why
    if function:
        assert function in functions(TESTS / file), f"there is no test {part.path}"
    else:
        assert any(part_of(path) is part for path in FILES), f"no test file belongs to {part.path}"


def test_no_part_is_listed_twice() -> None:
    assert len({part.path for part in PARTS}) == len(PARTS)


def test_a_run_has_fewer_repetitions_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tiers._run, "whole", False)
    assert tiers.repetitions(5000, 50) == 50
    monkeypatch.setitem(tiers._run, "whole", True)
    assert tiers.repetitions(5000, 50) == 5000


# --- what a run selects --------------------------------------------------------------------------------------------

CONFTEST = """
from pathlib import Path
from support.plugins import tiers
from support.plugins.tiers import Part, Tier

tiers.TESTS = Path(__file__).parent
tiers.PARTS = (
    Part("logic", Tier.DEFAULT, "logic", without="etcd", one_in=3),
    Part("logic/test_a.py::test_long", Tier.ALL, "long"),
    Part("servers", Tier.ALL, "servers"),
    Part("servers/test_f.py", Tier.ALL, "both flavors", one_flavor=True),
    Part("servers/test_c.py::test_quick", Tier.DEFAULT, "logic"),
    Part("frameworks", Tier.ALL, "frameworks"),
    Part("peers", Tier.FOREIGN, "programs of others"),
)

def pytest_addoption(parser):
    parser.addoption("--all", action="store_true")
    parser.addoption("--nightly", action="store_true")
    parser.addoption("--foreign", action="store_true")

def pytest_configure(config):
    config.pluginmanager.register(tiers, "tiers")

def pytest_collection_modifyitems(config, items):
    tiers.mark_timing(items)
    tiers.select(config, items)
"""

LOGIC = """
import time
import pytest

@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("store", ["memory", "etcd"])
def test_seeds(store, seed):
    pass

def test_long():
    pass

def test_clock():
    begin = time.monotonic()
    assert time.monotonic() - begin < 60

@pytest.mark.nightly
def test_night():
    pass
"""

FLAVORS = """
import pytest

@pytest.mark.parametrize("fault", range(20))
@pytest.mark.parametrize("flavor", ["blocking", "asyncio"])
def test_fault(flavor, fault):
    pass

@pytest.mark.parametrize("flavor", ["blocking", pytest.param("asyncio", marks=pytest.mark.nightly)])
def test_long(flavor):
    pass

@pytest.mark.parametrize("name", ["asyncio", "of_blocking_clients"])
def test_name(name):
    pass
"""

PLUGINS = ("-p", "xdist", "-p", "rerunfailures")
ENVIRONMENT = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(TESTS)}
"""With no more than these: to load all plugins that are installed takes longer than the suite."""

BY_DEFAULT = {f"test_a.py::test_seeds[memory-{seed}]" for seed in (0, 3, 6, 9)} | {"test_c.py::test_quick"}
LOGIC_WHOLE = {f"test_a.py::test_seeds[{store}-{seed}]" for store in ("memory", "etcd") for seed in range(10)}
LOGIC_WHOLE |= {"test_a.py::test_long", "test_a.py::test_clock"}
SERVERS = {"test_b.py::test_server", "test_c.py::test_server", "test_c.py::test_quick"}
FAULTS = {
    flavor: {f"test_f.py::test_fault[{flavor}-{fault}]" for fault in range(20)} for flavor in ("blocking", "asyncio")
}
ONCE = {
    f"test_f.py::{test}" for test in ("test_long[blocking]", "test_name[asyncio]", "test_name[of_blocking_clients]")
}
BOTH = FAULTS["blocking"] | FAULTS["asyncio"]
WHOLE = LOGIC_WHOLE | SERVERS | {"test_d.py::test_framework"} | ONCE


@pytest.fixture
def ran(tmp_path: Path) -> Callable[..., set[str]]:
    """Run a suite of a few files with these options; return the tests that passed."""
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = tests\nmarkers =\n nightly:\n timing:\n")
    for name, text in {
        "conftest.py": CONFTEST,
        "logic/test_a.py": LOGIC,
        "servers/test_b.py": "def test_server(): pass\n",
        "servers/test_c.py": "def test_server(): pass\ndef test_quick(): pass\n",
        "servers/test_f.py": FLAVORS,
        "frameworks/conftest.py": "import os\nassert os.environ['FRAMEWORK'] == 'installed'\n",
        "frameworks/test_d.py": "def test_framework(): pass\n",
        "peers/test_e.py": "def test_peer(): pass\n",
    }.items():
        path = tmp_path / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(*options: str) -> set[str]:
        needed = {"--all", "--nightly", "-k", "-m"}.intersection(options)  # no other run may import `frameworks`
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", *PLUGINS, *options],
            cwd=tmp_path,
            env=ENVIRONMENT | {"FRAMEWORK": "installed" if needed else ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        lines = [line.split() for line in done.stdout.splitlines()]
        return {Path(word).name for line in lines if "PASSED" in line for word in line if "::" in word}

    return run


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_a_run_without_options_has_the_default_tier(ran: Callable[..., set[str]], workers: list[str]) -> None:
    assert ran(*workers) == BY_DEFAULT


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_a_run_of_all_has_all_but_the_nightly_tests(ran: Callable[..., set[str]], workers: list[str]) -> None:
    assert ran("--all", *workers) - BOTH == WHOLE


def test_by_day_a_case_of_some_parts_runs_in_one_flavor_that_depends_on_its_name(ran: Callable[..., set[str]]) -> None:
    by_day = ran("--all") & BOTH
    blocking, asyncio = ({test.replace(flavor, "") for test in by_day & FAULTS[flavor]} for flavor in FAULTS)
    assert not blocking & asyncio
    assert len(blocking | asyncio) == len(by_day) == 20
    assert min(len(blocking), len(asyncio)) > 3
    assert by_day == ran("--all", "-n", "2") & BOTH


def test_a_nightly_run_has_all(ran: Callable[..., set[str]]) -> None:
    assert ran("--nightly") == WHOLE | BOTH | {"test_a.py::test_night", "test_f.py::test_long[asyncio]"}


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_a_foreign_run_has_no_others(ran: Callable[..., set[str]], workers: list[str]) -> None:
    assert ran("--foreign", *workers) == {"test_e.py::test_peer"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["tests/logic"], LOGIC_WHOLE),
        (["tests/servers", "-n", "2"], SERVERS | ONCE | BOTH),
        (["tests/peers"], {"test_e.py::test_peer"}),
        (["-k", "server"], SERVERS | ONCE | BOTH),
        (["-m", "timing"], {"test_a.py::test_clock"}),
    ],
    ids=["folder", "folder and workers", "foreign", "expression", "mark"],
)
def test_a_run_that_names_tests_has_what_it_names(
    ran: Callable[..., set[str]], options: list[str], expected: set[str]
) -> None:
    assert ran(*options) == expected


# --- which tests measure time --------------------------------------------------------------------------------------


def since() -> None:
    start = time.monotonic()
    assert time.monotonic() - start < 1.0


def between(harness: Any, start: float) -> None:
    assert 0.2 <= harness.now() - start < 0.3


def named(took: float) -> None:
    assert took <= 5.0


def until_true() -> None:
    assert until(lambda: True, 5) < 1.0


def at_least(start: float) -> None:
    assert time.monotonic() - start >= 0.2


def deadline(until: float) -> None:
    assert time.monotonic() < until


@pytest.mark.parametrize("function", [since, between, named, until_true])
def test_a_limit_for_a_time_is_found(function: Callable[..., None]) -> None:
    assert tiers.measures(function)


@pytest.mark.parametrize("function", [at_least, deadline])
def test_a_time_without_an_upper_limit_is_no_measurement(function: Callable[..., None]) -> None:
    assert not tiers.measures(function)


NOISE = 1.5


def wide(start: float) -> None:
    assert time.monotonic() - start < 1 + NOISE, "a message"


def narrow(start: float) -> None:
    assert time.monotonic() - start < 5
    assert time.monotonic() - start < NOISE


def of_its_own(start: float, lease: float) -> None:
    assert time.monotonic() - start < lease + 5
    assert time.monotonic() - start < max(lease, 5.0)


@pytest.mark.parametrize(("function", "found"), [(wide, True), (narrow, False), (of_its_own, False)])
def test_a_limit_is_wide_if_all_of_a_test_are(function: Callable[..., None], found: bool) -> None:
    assert tiers.measures(function)
    assert tiers.has_wide_limits(function) is found
