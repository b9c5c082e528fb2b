"""Which tests run by default, and which measure wall-clock time: one table for both.

There are three tiers:

- The default tier is for a fresh clone of the repository. It checks the logic, needs no server but one Redis,
  and takes minutes. A test that is repeated with many seeds runs with a few of them.
- ``--all`` runs everything on all servers. CI runs it. Where the table says so, each case runs in one flavor.
- ``--nightly`` adds the tests with the mark ``nightly``, and the other flavor of each case.

Beside them, ``--foreign`` runs the tests with programs of other libraries, and no others: their tools build them, from
packages that come over the network.

A run that names files, or chooses tests with ``-k`` or ``-m``, runs all that it names, as ``--all`` does.

A test that measures wall-clock time has the mark ``timing``. It can fail on a busy machine, so it is not in the default
tier. The mark is given to the files that the table names, and to each test that compares a real clock with a limit.

A test of real servers and processes with leases of about a second has the mark ``real_time`` in a run with all tests:
on a machine that stands still for half a second it can fail. Only tests with one of these marks may run again.
"""

from __future__ import annotations

import enum
import functools
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from leasehold_lab.runtimes.harnesses import SimulatedHarness
from support.plugins.time_limits import has_wide_limits, measures

TESTS = Path(__file__).parents[2]

_run = {"whole": True, "named": False}
"""Whether this run has all tests, for `repetitions`; and whether it names files."""

SERVERS = "postgres|mysql|mariadb|etcd|zookeeper|sentinel|cluster|redlock|replicas|strict|nginx"
"""A pattern of the servers that the default tier does without, as they occur in the ids of tests."""

OTHERS = r"\[(?!memory-simulated-0|sqlite-|redis-blocking)|\[(?:sqlite|redis).*(?:short_lease|is_renewed)"
"""A pattern of the runs of the conformance kit that the default tier does without.

Memory runs in virtual time. In real time, cases with leases of a fraction of a second can fail on a busy machine.
"""

SEARCHES = "is_found|finds_a_broken|made_small|power_is_told"
"""A pattern of the simulations that search for a seed which finds a mistake, for up to hundreds of histories."""

FLAVOR = re.compile(r"(?<![a-z])(?:blocking|asyncio)(?![a-z])")
"""The flavor of a test, as it occurs in the id of its parameters."""

SEEDS = ("seed", "block", "part", "number", "steps", "turns", "second")
"""Parameters that repeat a test: their values are seeds or moments, not different cases."""

RERUNS = 2
"""How often a test that measures wall-clock time is repeated if it fails; the last time alone, on new servers."""

RERUN_AFTER = 5.0
"""Seconds before a repetition. A burst of other work may have passed by then."""


class Tier(enum.Enum):
    """When a test runs."""

    DEFAULT = "always"
    ALL = "with --all"
    FOREIGN = "with --foreign, alone"


@dataclass(frozen=True, slots=True)
class Part:
    """A folder, a file, or a test function of a file, and its tier.

    Attributes:
        path: below ``tests/``; the name of a function follows its file after ``::``.
        tier: when its tests run.
        why: the reason.
        without: a pattern of names with parameters; tests that match it do not run by default.
        one_in: by default, only each so-many-th value of a parameter in `SEEDS` runs.
        timing: whether all its tests measure wall-clock time.
        beside: what its timing tests may have beside them: "nobody", a "few" timing tests, or "all" tests. The last
            is right if they subtract the time without a processor, or have limits of several seconds.
        real_time: whether its tests have real leases of about a second, on servers or between processes.
        one_flavor: whether by day each case runs in one flavor, which depends on its name, and in both by night.

    """

    path: str
    tier: Tier
    why: str
    without: str = ""
    one_in: int = 1
    timing: bool = False
    beside: str = "few"
    real_time: bool = False
    one_flavor: bool = False

    def runs_by_default(self, item: pytest.Item) -> bool:
        """Return whether a test of this part is in the default tier."""
        if self.tier is not Tier.DEFAULT or (self.without and re.search(self.without, item.name)):
            return False
        indices: dict[str, int] = getattr(getattr(item, "callspec", None), "indices", {})
        return all(indices.get(name, 0) % self.one_in == 0 for name in SEEDS)


def _default(path: str, why: str, **options: Any) -> Part:
    return Part(path, Tier.DEFAULT, why, **options)


def _all(path: str, why: str, **options: Any) -> Part:
    return Part(path, Tier.ALL, why, **options)


def _foreign(path: str, why: str, **options: Any) -> Part:
    return Part(path, Tier.FOREIGN, why, **options)


HISTORIES = "simulated/histories/test_histories.py"
BROKEN = "simulated/histories/test_broken_locks.py"
WATCHDOG = "unit/engine/watchdog/test_watchdog.py"

PARTS = (
    _default("api", "imports, types, the same API in both flavors"),
    _default(
        "api/test_docs.py",
        "the documentation, with its examples",
        without=f"{SERVERS}|docs/integrations/",
        real_time=True,
    ),
    _default("cli", "the command line, on SQLite", without=r"\bredis\b", real_time=True),
    _all("cli/test_cli_families.py", "the time until a guard has killed all", timing=True),
    _default("cli/test_cli_servers.py", "servers of Redis", without="postgresql|mariadb|zookeeper|etcd"),
    _default("conformance", "the kit: memory in virtual time, SQLite, one Redis", without=OTHERS, real_time=True),
    _default("guard", "fenced writes", without=SERVERS, real_time=True),
    _default("history", "the checker of histories"),
    _default("lock_tests", "CPython's tests of locks, on ours"),
    _default("model_tests/test_redis_model.py", "the model of Redis answers as Redis does"),
    _default("mutants", "each mutant fits the code"),
    _default("redisson", "each test of Redisson has one of ours, or a reason"),
    _default("security/test_names.py", "names and passwords as data"),
    _default("security/test_urls.py", "no password of a URL is shown"),
    _default("simulated", "stores on models of their servers, in virtual time", without=SEARCHES, one_in=10),
    _default(f"{HISTORIES}::test_every_promise_is_kept", "500 histories instead of 3,000", one_in=6),
    _default(f"{BROKEN}::test_a_broken_lock_is_found", "those that are found soon", without="believes a leader"),
    _default("unit", "rules, engine, primitives, and parts of stores"),
    _all(f"{HISTORIES}::test_the_same_seed_gives_the_same_history_in_another_process", "200 histories"),
    _all(f"{HISTORIES}::test_no_waiter_is_stuck_when_messages_are_lost", "5,000 hand-overs"),
    _all(f"{HISTORIES}::test_each_kind_of_fault_strikes_each_system_that_has_it", "3,000 plans of histories"),
    _all(f"{WATCHDOG}::test_many_holds_cost_one_watchdog_thread", "holds with leases of seconds", real_time=True),
    _all(f"{WATCHDOG}::test_ten_thousand_holds_are_renewed_in_batches_by_one_watchdog", "10,000 holds"),
    _all("api/test_typing.py", "runs two type checkers"),
    _all("api/test_import_cost.py::test_the_benchmark_measures_each_row", "starts each program several times"),
    _all("bench", "benchmarks on real servers", real_time=True),
    _all("bench/test_bench.py", "samples of processor time", timing=True),
    _all("branches", "runs the tests of the core again, with coverage"),
    _all("chaos", "faults of real servers and machines", timing=True, one_flavor=True),
    _all("chaos/test_chaos.py", "histories on servers that are broken", timing=True, beside="all"),
    _all("chaos/test_coverage.py", "compares the catalogue of faults with the tests"),
    _all("chaos/test_rows_of_the_catalogue.py", "faults of real servers", one_flavor=True),
    _all("demo", "services, load and nginx", real_time=True),
    _all("demo/test_interrupted_demo.py", "the time from Ctrl-C to the end of the demo", timing=True),
    _all("examples", "programs with real processes", real_time=True),
    _foreign("foreign", "programs in Java, Go and JavaScript", timing=True),
    _all("integrations", "frameworks, with their workers and servers", real_time=True),
    _all("integrations/metrics/test_cost.py", "what an observer costs", timing=True, beside="nobody"),
    _all("integrations/test_lowest_frameworks.py", "installs the lowest version of each framework"),
    _all("layouts", "locks in the format of other libraries", real_time=True, one_flavor=True),
    _default("layouts/test_layout_urls.py", "what a layout refuses"),
    _all("model_tests", "models of servers that the default tier does not start", real_time=True),
    _all("museum", "defects of other libraries, on real servers", real_time=True, one_flavor=True),
    _all("mutants/test_mutants.py::test_each_expression_selects_tests", "collects tests again"),
    _all("mutants/test_mutants.py::test_the_sample_is_killed_and_what_changes_nothing_survives", "runs tests"),
    _all("packaging", "builds and installs distributions, and runs tests with other drivers", real_time=True),
    _all("process", "processes that are killed, forked and shut down", real_time=True),
    _all("process/test_crash_of_a_doer.py", "the time until another acquires a killed holder's lock", timing=True),
    _all("process/test_crash_of_a_leader.py", "the time until another acquires a killed holder's lock", timing=True),
    _all("process/test_members.py", "the time until a barrier notices a killed member", timing=True),
    _all("releases", "other releases of the servers", real_time=True),
    _all("security", "secrets and rights on real servers", real_time=True, one_flavor=True),
    _all("site", "the documentation site in a browser that has seconds for a page", real_time=True),
    _all("soak", "many clients for a long time", real_time=True),
    _all("specs", "TLA+ specifications, which need Java"),
    _all("stores", "one folder for each store, on its servers", real_time=True, one_flavor=True),
    _all(
        "stores/common/test_killed_holders.py",
        "the same, less the time it stood still",
        timing=True,
        beside="all",
        one_flavor=True,
    ),
    _all("stores/etcd/test_etcd_crash.py", "the time until another acquires a killed holder's lock", timing=True),
    _all("stores/etcd/test_etcd_crash.py::test_the_demo_counts_right", "services and load", real_time=True),
    _all(
        "stores/redis/test_redis_crash.py",
        "the time until another acquires a killed holder's lock",
        timing=True,
        one_flavor=True,
    ),
    _all("stores/sqlite/test_sqlite_processes.py", "the time that processes wait for a file", timing=True),
    _all("sweep", "a fault at each step of each operation, for minutes", real_time=True),
    _all("testing", "starts all servers", real_time=True),
    _all("unit/support", "the tools of the tests themselves; they start runs of pytest"),
    _all("verify", "the parts of `leasehold verify`", real_time=True),
    _all("verify/test_verify.py", "verifies stores while it stops and kills clients", timing=True, beside="all"),
)
"""A test belongs to the longest path that leads to it."""


def whole(config: pytest.Config) -> bool:
    """Return whether this run has all tests, and not only those of the default tier."""
    return bool(config.getoption("--all") or config.getoption("--nightly") or config.getoption("--foreign"))


def repetitions(whole_run: int, by_default: int) -> int:
    """Return how often a test repeats itself: in a run with all tests, or in the default tier."""
    return whole_run if _run["whole"] else by_default


@functools.cache
def part_of(path: Path, function: str = "") -> Part | None:
    """Return the part that a test file belongs to, or a function of it; None if the table has none."""
    name = path.relative_to(TESTS).as_posix()
    places = [name, *(parent.as_posix() for parent in Path(name).parents)]
    table = _table()
    return next((table[place] for place in (f"{name}::{function}", *places) if place in table), None)


@functools.cache
def _table() -> dict[str, Part]:
    return {part.path: part for part in PARTS}


@functools.cache
def _tiers_within(path: Path) -> frozenset[Tier]:
    """Return the tiers of the tests in a file or a folder."""
    name = path.relative_to(TESTS).as_posix()
    within = [part for part in PARTS if part.path.startswith((f"{name}/", f"{name}::"))]
    return frozenset(part.tier for part in [part_of(path), *within] if part is not None)


def measures_time(item: pytest.Item) -> bool:
    """Return whether a test compares a real clock with a limit."""
    harness = getattr(getattr(item, "callspec", None), "params", {}).get("harness")
    if harness is SimulatedHarness or isinstance(harness, SimulatedHarness):
        return False
    function = getattr(item, "function", None)
    return function is not None and measures(function) and "simulated" not in item.path.parts


# --- hooks -------------------------------------------------------------------------------------------------------


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Select all tests if the run names some, and record for `repetitions` whether this run has all."""
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    if named or config.option.keyword or config.option.markexpr:
        config.option.all = True
    _run["named"] = named
    _run["whole"] = whole(config)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore files and folders without a test of this run: their conftests may need a framework that is not there.

    Foreign tests run where files are named, or with ``--foreign``, which runs no others.
    """
    if _run["named"] or collection_path == TESTS or not collection_path.is_relative_to(TESTS):
        return None
    if not collection_path.is_dir() and not collection_path.name.startswith("test_"):
        return None
    if config.getoption("--foreign"):
        wanted = {Tier.FOREIGN}
    else:
        wanted = {Tier.DEFAULT, Tier.ALL} if whole(config) else {Tier.DEFAULT}
    return None if wanted & _tiers_within(collection_path) else True


def mark_timing(items: list[pytest.Item], *, whole_run: bool = False) -> None:
    """Mark each test that depends on wall-clock time. Only such a test is repeated if it fails."""
    for item in items:
        part = part_of(item.path, getattr(item, "originalname", ""))
        if (part is not None and part.timing) or measures_time(item):
            item.add_marker(pytest.mark.timing(beside=_beside(item, part)))
        elif part is not None and part.real_time and whole_run:
            item.add_marker(pytest.mark.real_time)
        if item.get_closest_marker("timing") or item.get_closest_marker("real_time"):
            item.add_marker(pytest.mark.flaky(reruns=RERUNS, reruns_delay=RERUN_AFTER))


def _beside(item: pytest.Item, part: Part | None) -> str:
    if part is not None and part.timing:
        return part.beside
    return "all" if has_wide_limits(item.function) else "few"  # type: ignore[attr-defined]


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect nightly tests by day, or skip those that the run names; in the default tier, deselect all its others."""
    if whole(config):
        if not config.getoption("--nightly"):
            _leave_out_nightly(config, items)
        return
    chosen = [item for item in items if _runs_by_default(item)]
    rest = set(items).difference(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item in rest])
    items[:] = chosen


def _leave_out_nightly(config: pytest.Config, items: list[pytest.Item]) -> None:
    nightly = [item for item in items if item.get_closest_marker("nightly")]
    if _run["named"]:
        for item in nightly:
            item.add_marker(pytest.mark.skip(reason="nightly: run it with --nightly"))
        return
    left_out = set(nightly)
    if not config.option.keyword and not config.option.markexpr:
        left_out |= _second_flavors([item for item in items if item not in left_out])
    config.hook.pytest_deselected(items=list(left_out))  # thousands: each that is skipped is reported
    items[:] = [item for item in items if item not in left_out]


def _second_flavors(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return one of each two tests that differ in their flavor only, in parts that run one of them by day.

    Which one depends on the name of the test, so that a new test changes nothing for the others.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        part = part_of(item.path, getattr(item, "originalname", ""))
        if part is not None and part.one_flavor:
            cases.setdefault(FLAVOR.sub("*", item.nodeid), []).append(item)
    pairs = {name: tests for name, tests in cases.items() if len(tests) == 2}
    return {tests[zlib.crc32(name.encode()) % 2] for name, tests in pairs.items()}


def _runs_by_default(item: pytest.Item) -> bool:
    part = part_of(item.path, getattr(item, "originalname", ""))
    marked = item.get_closest_marker("nightly") or item.get_closest_marker("timing")
    return part is not None and part.runs_by_default(item) and not marked
