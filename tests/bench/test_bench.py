"""The benchmark, end to end in a tiny run: all are measured, counts are right, and one without a lock is detected."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest

from leasehold._engine.lease import deadline_of
from leasehold_lab.bench.contestants import CONTESTANTS, by_key
from leasehold_lab.bench.measures import MEASURES
from leasehold_lab.bench.processes.server_counters import Counters
from leasehold_lab.bench.profile import Profile
from leasehold_lab.bench.result import Entry, Sample, Spread
from leasehold_lab.bench.run import Settings, takes_part
from leasehold_lab.bench.subjects.base import Scope
from leasehold_lab.bench.subjects.floors.tap import NAME, record
from leasehold_lab.bench.trials import pairs
from leasehold_lab.bench.trials.handover import CELLS, FREED, START, UNTIL, Tally
from leasehold_lab.bench.trials.sampling import KERNEL, OTHERS, Sampling, part_of
from leasehold_lab.bench.trials.trial_pipe import Outcome, quantile
from leasehold_lab.servers import RedisServer

KEYS = ["blocking-1", "handover-2", "handover-asyncio", "sqlite-1"]
"""Others are measured by the test of the quick ratios."""


def bench(*options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "leasehold", "bench", "--seconds", "0.05", "--rounds", "1", *options]
    return subprocess.run(words, capture_output=True, text=True, timeout=100, env={**os.environ})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    only = [word for key in KEYS for word in ("--only", key)]
    done = bench(*only, "--json", "--report", str(folder / "r.html"), "--docs", str(folder / "p.md"))
    assert done.returncode == 0, done.stderr
    return SimpleNamespace(json=json.loads(done.stdout), folder=folder)


def test_all_measures_have_leasehold_and_their_floor(run):
    found = {row["key"]: {one["key"] for one in row["contestants"]} for row in run.json["measures"]}
    assert [row["key"] for row in run.json["measures"]] == [
        measure.key for measure in MEASURES if any(measure.is_called(key) for key in KEYS) and not measure.full
    ]
    for measure in MEASURES:
        if measure.key in found:
            assert {"leasehold", measure.floor} <= found[measure.key]
    assert "redis-py" in found["blocking-1"] & found["handover-2"] & found["handover-asyncio-1000"]


def test_json_has_the_facts_and_every_round(run):
    assert run.json["format"] == 1
    assert {"machine", "python", "server", "drivers", "trials", "leasehold"} <= run.json["facts"].keys()
    only = " ".join(f"--only {key}" for key in KEYS)
    assert run.json["facts"]["again"] == f"leasehold bench --pin alone --seconds 0.05 --rounds 1 {only} --profile"
    for row in run.json["measures"]:
        for one in row["contestants"]:
            assert one["error"] is None, (row["key"], one)
            (sample,) = one["rounds"]
            assert sample["turns"] > 0
            assert sample["operations"] <= sample["turns"]
            assert one["overlaps"] == 0
            assert one["operations_per_second"].keys() == {"median", "least", "most"}


def test_round_trips_and_commands_are_counted_on_the_server(run):
    of = {row["key"]: {one["key"]: one for one in row["contestants"]} for row in run.json["measures"]}
    ours, floor, peer = (of["blocking-1"][key] for key in ("leasehold", "floor-scripts", "redis-py"))
    assert ours["server_reads"] == pytest.approx(2, abs=0.02)
    assert floor["server_reads"] == pytest.approx(2, abs=0.02)
    assert ours["server_commands"] == pytest.approx(floor["server_commands"], rel=0.02)
    assert peer["server_commands"] == pytest.approx(4, abs=0.1)  # SET, EVALSHA, and GET and DEL inside
    (sample,) = floor["rounds"]
    assert sample["commands"]["evalsha"] == pytest.approx(2 * sample["turns"], abs=2)


def test_report_and_docs_are_complete(run):
    tree = ElementTree.parse(run.folder / "r.html")
    tables = [element.get("data-measure") for element in tree.iter("{http://www.w3.org/1999/xhtml}table")]
    assert tables == [row["key"] for row in run.json["measures"]]
    assert len(list(tree.iter("{http://www.w3.org/2000/svg}svg"))) == len(tables)
    short, text = ((run.folder / name).read_text(encoding="utf-8") for name in ("p.md", "p-details.md"))
    for row in run.json["measures"]:
        assert row["title"][1:] in short
        assert f"### {row['title'][0].upper()}{row['title'][1:]}\n" in text
    assert "peers/bin/pip install" in text
    assert "](p-details.md#repeat-it)" in short
    drawn = ElementTree.parse(run.folder / "performance.svg")
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}rect"))) >= len(KEYS) - 1, "on Redis"


def test_the_docs_contain_the_profile(run):
    text = (run.folder / "p-details.md").read_text(encoding="utf-8")
    assert text.count("server: commands and scripts") == len(KEYS) - 1, "one table for each measure on Redis"
    for row in run.json["measures"]:
        known = {one["key"]: one["profile_us"] for one in row["contestants"] if "profile_us" in one}
        assert set(known) == (set() if row["key"] == "sqlite-1" else {"leasehold", row["contestants"][0]["key"]})
        for profile in known.values():
            assert sum(profile["client"].values()) > 0
            assert profile["executing"] > 0


def test_samples_are_divided_among_the_parts():
    until, sampling = time.process_time() + 0.3, Sampling()
    sampling.start()
    try:
        while time.process_time() < until:
            deadline_of(1.0, 30.0)
    finally:
        seconds = sampling.stop()
    kernel = seconds.pop(KERNEL)
    assert kernel < sum(seconds.values()) == pytest.approx(0.3, abs=0.05)
    assert set(seconds) <= {"engine: tickets, leases, watchdog, waiting", OTHERS}
    assert part_of("/x/leasehold/stores/redis/connection/aio.py").startswith("transport")
    assert part_of("/x/leasehold/primitives/hold.py") == part_of("/x/leasehold/client/aio.py")
    assert part_of("/usr/lib/python3/asyncio/base_events.py") == "event loop"
    assert part_of("/usr/lib/python3/json/encoder.py") == OTHERS


def test_commands_inside_scripts_count_once():
    before = Counters({}, 0, 1.0, 0, {"evalsha": 0.1, "get": 0.05, "info": 9.0})
    after = Counters({}, 0, 2.0, 0, {"evalsha": 0.5, "get": 0.25, "info": 9.5})
    profile = Profile.of(Outcome(100, 100, 1.0, 0.5, 0.0, 0.0, profile={"a": 0.01, "b": 0.04}), after.since(before))
    assert list(profile.client.items()) == [("b", pytest.approx(400)), ("a", pytest.approx(100))]
    assert (profile.executing, profile.serving) == (pytest.approx(4000), pytest.approx(6000))
    plain = Counters({}, 0, 2.0, 0, {"get": 0.25, "info": 9.5}).since(
        Counters({}, 0, 1.0, 0, {"get": 0.05, "info": 9.0})
    )
    assert plain.executed == pytest.approx(0.2)


def test_the_command_that_repeats_a_run_has_no_password():
    settings = Settings("redis://:s3cret@h", 0.3, full=True, peers_python="/x/bin/python")
    again = "leasehold bench URL --pin alone --seconds 0.3 --rounds 3 --full --peers-python peers/bin/python"
    assert settings.again == again


def test_a_given_server_is_left_clean():
    with RedisServer() as server:
        server.command("SET", "mine", "1")
        done = bench(server.url, "--only", "blocking-8", "--only", "handover-2", "--json")
        assert done.returncode == 0, done.stderr
        assert server.command("KEYS", "*") == ["mine"]


def test_a_missing_library_is_named():
    done = bench("--only", "sqlite", "--json", "--peers-python", sys.executable)
    missing = json.loads(done.stdout)["missing"]
    assert ("filelock" in missing) == (not _importable("filelock"))


def test_an_unknown_measure_is_a_usage_error():
    done = bench("--only", "blocking-2")
    assert done.returncode == 64
    assert "blocking-1" in done.stderr


class NoLock:
    """A contestant that grants every acquire."""

    def turn(self, name: str):
        return (lambda: True), (lambda: None)

    def refused(self, name: str) -> bool:
        return False


class Stuck(NoLock):
    """A contestant whose release does nothing."""

    def __init__(self) -> None:
        self.held = False

    def turn(self, name: str):
        def take() -> bool:
            had, self.held = self.held, True
            return not had

        return take, (lambda: None)

    def refused(self, name: str) -> bool:
        return self.held


@pytest.mark.parametrize("session", [NoLock(), Stuck()])
def test_a_contestant_that_does_not_lock_fails(session):
    with pytest.raises(pairs.NotLocked):
        pairs.check(session)


def test_two_holders_at_once_are_counted():
    cells = [0] * (CELLS + 3)
    cells[UNTIL] = 100
    one, two = Tally(1, cells), Tally(2, cells)
    one.enter(True, 10)
    one.leave()
    two.enter(True, 20)
    assert (one.overlaps, two.overlaps) == (0, 0)
    one.enter(True, 30)
    two.leave()
    assert one.overlaps + two.overlaps == 2


def test_an_older_token_is_counted_as_an_overlap():
    cells = [0] * (CELLS + 3)
    cells[UNTIL] = 100
    one, two = Tally(1, cells), Tally(2, cells)
    one.enter(SimpleNamespace(token=7), 10)
    one.leave()
    two.enter(SimpleNamespace(token=7), 20)
    assert two.overlaps == 1


def test_only_hand_overs_inside_the_run_count():
    cells = [0] * (CELLS + 3)
    cells[START], cells[UNTIL], cells[FREED] = 10, 20, 11
    one, two = Tally(1, cells), Tally(2, cells)
    for tally, now in ((one, 5), (one, 12), (two, 13), (two, 14), (one, 21)):
        tally.enter(True, now)
        tally.leave()
    assert (one.turns, one.switches, two.turns, two.switches) == (1, 0, 2, 1)


def test_the_recording_is_what_leasehold_sends_with_another_name():
    with RedisServer() as server:
        those = record(Scope(server.url, "bench-tap", 1, ""))
    assert (NAME % 0).encode() in those.acquire
    assert those.acquire.count(b"\r\n*") == 0
    renamed = those.renamed(NAME % 42)
    assert (NAME % 42).encode() in renamed.release
    assert (NAME % 0).encode() not in renamed.release
    with pytest.raises(ValueError, match="not of the form"):
        those.renamed("short")


def test_ratios_are_taken_round_by_round():
    def entry(rates):
        samples = [Sample(Outcome(rate, rate, 1.0, 0.0, 0.0, 0.0), {}, 0, 0.0, 0) for rate in rates]
        return Entry(by_key("leasehold"), samples)

    assert entry([10, 40, 90]).ratio(entry([10, 20, 30])) == Spread(2.0, 1.0, 3.0)
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert quantile([], 0.99) == 0.0


def test_every_contestant_takes_part_somewhere_and_has_settings():
    for contestant in CONTESTANTS:
        assert any(takes_part(contestant, measure) for measure in MEASURES)
        assert contestant.settings


def test_a_default_run_skips_long_measures():
    keys = {measure.key for measure in Settings().measures()}
    assert "held-10000" not in keys
    assert {measure.key for measure in Settings(full=True).measures()} == {measure.key for measure in MEASURES}


def _importable(name: str) -> bool:
    return subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True).returncode == 0
