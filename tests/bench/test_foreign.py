"""Libraries of other languages: their programs are found, driven and kept on their cores; what is missing is said."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from leasehold_lab.bench.contestants import CONTESTANTS, by_key
from leasehold_lab.bench.foreign import FOREIGN
from leasehold_lab.bench.processes import worker
from leasehold_lab.bench.processes.foreign_contenders import ForeignContenders
from leasehold_lab.bench.processes.program import TrialFailed
from leasehold_lab.bench.processes.workers import Worker
from leasehold_lab.bench.trials.trial_pipe import Task
from leasehold_lab.servers import RedisServer

NONE = "its program belongs to an environment that --peers-python names"


def environment(folder: Path, *keys: str) -> str:
    """Make what counts like an environment of peers, with programs that are workers of Python; return its Python."""
    python = folder / "python"
    python.symlink_to(sys.executable)
    for key in keys:
        program = FOREIGN[key].program(folder)
        command = worker.command(sys.executable, "peers.redis_py", "redis", "redis")
        program.write_text(f"#!/bin/sh\nexec {shlex.join(command)}\n")
        program.chmod(0o755)
    return str(python)


def task(url: str, cores: tuple[int, ...] = ()) -> Task:
    return Task("", "pairs", "blocking", 1, False, 0.0, 0.05, url, "bench-foreign", "", cores, 8)


def test_each_program_is_a_contestant_that_has_no_module() -> None:
    assert {one.key for one in CONTESTANTS if not one.module} == FOREIGN.keys()
    assert all(any(one.sources.iterdir()) for one in FOREIGN.values())


def test_a_program_is_measured_as_others_are(tmp_path: Path) -> None:
    python = environment(tmp_path, "redsync")
    words = [sys.executable, "-m", "leasehold", "bench", "--seconds", "0.05", "--rounds", "1", "--json"]
    words += ["--only", "blocking-1", "--peers-python", python]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=True)
    found = json.loads(done.stdout)
    (row,) = found["measures"]
    rates = {one["key"]: one["rounds"] for one in row["contestants"]}
    assert rates["redsync"][0]["turns"] > 0
    assert "redsync" not in found["missing"]
    assert "Python" in found["facts"]["version of redsync (Go)"]
    assert found["missing"]["Redisson (Java)"].endswith(
        f"java and mvn: python -m leasehold_lab.bench.foreign {tmp_path}"
    )


def test_a_program_is_pinned_to_its_cores(tmp_path: Path) -> None:
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("this system does not say where a process runs")
    everywhere = os.sched_getaffinity(0)
    python = environment(tmp_path, "redsync")
    with RedisServer() as server, Worker(by_key("redsync"), python) as one:
        assert one.program is not None
        for cores in ((min(everywhere),), ()):
            one.begin(task(server.url, cores))
            assert os.sched_getaffinity(one.program.pid) == set(cores or everywhere)
            one.go()
            assert one.outcome()["turns"] > 0


CONTENDER = """
import json, mmap, sys, time
from leasehold import Client
from leasehold_lab.bench.trials.handover import Tally, UNTIL

def say(**facts):
    print(json.dumps(facts), flush=True)

say(step="hello", version="1", runs="Python")
for line in sys.stdin:
    asked = json.loads(line)
    with open(asked["cells"], "r+b") as file:
        cells = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
    if asked["me"] == int(sys.argv[1]):
        sys.exit(1)
    with Client.from_url(asked["url"], namespace=asked["namespace"]) as client:
        tally, lock = Tally(asked["me"], cells), client.lock("a")
        say(step="ready")
        sys.stdin.readline()
        while True:
            hold = lock.acquire()
            now = time.monotonic_ns()
            tally.enter(hold, now)
            tally.leave()
            hold.release()
            if now >= cells[UNTIL]:
                break
    say(step="part", turns=tally.turns, switches=tally.switches, overlaps=tally.overlaps, cpu=0.1, took=tally.took)
"""
"""A contender in Python that speaks as those of other languages do; the one with the number that is given ends."""


def contenders(folder: Path, *, ends: int = 0) -> ForeignContenders:
    program = folder / "contender.py"
    program.write_text(CONTENDER)
    return ForeignContenders([sys.executable, str(program), str(ends)])


def test_programs_hand_a_lock_over_and_are_kept_for_the_next_trial(tmp_path: Path) -> None:
    with RedisServer() as server, closing(contenders(tmp_path)) as those:
        kept = list[int]()
        for _ in range(2):
            those.begin(replace(task(server.url), trial="handover", concurrency=2, seconds=0.5))
            those.go()
            found = those.outcome()
            assert found.turns >= found.operations > 0
            assert found.overlaps == 0
            assert 0 < found.p50 <= found.p99
            assert found.cpu == pytest.approx(0.2)
            kept.append(hash(tuple(program.pid for program in those._programs)))
        assert len(set(kept)) == 1


def test_a_contender_that_ends_fails_the_trial_and_is_started_anew(tmp_path: Path) -> None:
    with RedisServer() as server, closing(contenders(tmp_path, ends=2)) as those:
        for _ in range(2):
            with pytest.raises(TrialFailed, match="ended before it had answered"):
                those.begin(replace(task(server.url), trial="handover", concurrency=2))


def test_without_an_environment_foreign_programs_are_skipped() -> None:
    for key in FOREIGN:
        with Worker(by_key(key), None) as one:
            assert NONE in one.missing


def test_a_program_that_cannot_start_is_missing(tmp_path: Path) -> None:
    python = environment(tmp_path, "redisson")
    FOREIGN["redisson"].program(tmp_path).write_text("#!/bin/sh\nexit 3\n")
    with Worker(by_key("redisson"), python) as one:
        assert one.missing == "its process ended before it had answered"


def build(folder: Path | str, **environ: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "leasehold_lab.bench.foreign", str(folder)]
    return subprocess.run(
        words, capture_output=True, text=True, timeout=600, env={**os.environ, **environ}, check=False
    )


def test_a_program_without_its_tools_is_skipped(tmp_path: Path) -> None:
    done = build(tmp_path, PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "redisson: left out, not installed: java and mvn",
        "redsync: left out, not installed: go",
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_failed_build_is_reported(tmp_path: Path) -> None:
    for tool in ("java", "mvn", "go"):
        (tmp_path / tool).write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / tool).chmod(0o755)
    done = build(tmp_path, PATH=str(tmp_path))
    assert done.returncode == 1
    assert "redisson: " in done.stderr
    assert "redsync: " in done.stderr


def test_the_folder_must_exist(tmp_path: Path) -> None:
    done = build(tmp_path / "none")
    assert done.returncode == 2
    assert "usage: python -m leasehold_lab.bench.foreign FOLDER" in done.stderr


@pytest.mark.nightly
@pytest.mark.timeout(900)
@pytest.mark.parametrize("key", FOREIGN)
def test_the_programs_lock(tmp_path: Path, key: str) -> None:
    """Built by their languages' tools, which this machine may not have, from packages that come over the network."""
    if any(shutil.which(tool) is None for tool in FOREIGN[key].tools):
        pytest.skip(f"the tools of {FOREIGN[key].language} are not installed")
    python = environment(tmp_path)
    done = build(tmp_path)
    assert done.returncode == 0, done.stderr
    with RedisServer() as server, Worker(by_key(key), python) as one:
        assert not one.missing
        assert FOREIGN[key].language in one.version
        for _ in range(2):
            one.begin(task(server.url))
            one.go()
            found = one.outcome()
            assert found["turns"] == found["operations"] > 0
            assert found["seconds"] >= 0.05
            assert 0 < found["p50"] <= found["p99"]
            assert found["cpu"] > 0
            assert server.command("DBSIZE") == 0, "all that was locked is free"
        one.begin(replace(task(server.url), trial="handover", concurrency=2, seconds=0.5))
        one.go()
        found = one.outcome()
        assert found["turns"] >= found["operations"] > 0
        assert found["overlaps"] == 0
        assert server.command("DBSIZE") == 0
        with pytest.raises(TrialFailed, match="knows no trial"):
            one.begin(replace(task(server.url), trial="held"))
