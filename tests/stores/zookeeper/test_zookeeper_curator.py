"""Apache Curator and leasehold exclude each other on one path; processes of either are killed at random."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from leasehold import Client
from leasehold_lab.servers import MissingServer, ZooKeeperServer
from leasehold_lab.servers.base import find_program
from support.programs.zookeeper_client import children

HERE = Path(__file__).parent
JAVA = Path("/usr/share/java")
JARS = ("curator-recipes.jar", "curator-framework.jar", "curator-client.jar", "zookeeper.jar", "slf4j-nop.jar")

SESSION_MS = 1500
"""Session timeout of all contenders: so long does the kill of a holder block the others, and a tick more."""

MANY = 10_000


@pytest.fixture(scope="session")
def contender(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Compile the Java contender; return the command that runs it."""
    missing = [jar for jar in JARS if not (JAVA / jar).exists()]
    if missing:
        raise MissingServer(
            f"no {missing[0]} in {JAVA}; install it, on Debian with: apt-get install libcurator-recipes-java"
        )
    javac = find_program(("javac",), "default-jdk-headless")
    folder = tmp_path_factory.mktemp("curator")
    classes = os.pathsep.join([str(folder), *(str(JAVA / jar) for jar in JARS)])
    subprocess.run([javac, "-cp", classes, "-d", str(folder), str(HERE / "curator" / "Contender.java")], check=True)
    java = shutil.which("java")
    assert java is not None
    return [java, "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp", classes, "Contender"]


class Ring:
    """Contenders of both sides; one that is killed is replaced until all have made their acquisitions."""

    def __init__(self, commands: Sequence[Sequence[str]], folder: Path) -> None:
        self.commands = commands
        self.folder = folder
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.started = 0
        for side in range(len(commands)):
            self.start(side)

    def start(self, side: int) -> None:
        self.started += 1
        out = (self.folder / f"out-{side}-{self.started}").open("wb")
        error = (self.folder / f"error-{side}-{self.started}").open("wb")
        with out, error:
            self.running[side] = subprocess.Popen(self.commands[side], stdout=out, stderr=error)

    def lines(self, side: int | None = None) -> list[list[str]]:
        """Return what was done so far, by all or by one side; a line that a kill cut off does not count."""
        pattern = "out-*" if side is None else f"out-{side}-*"
        texts = [path.read_text().split("\n")[:-1] for path in self.folder.glob(pattern)]
        lines = [line.split() for text in texts for line in text]
        assert ["OVERLAP"] not in lines, "two were inside together"
        return lines

    def errors(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self.folder.glob("error-*"))

    def kill(self, side: int) -> None:
        self.running[side].kill()
        self.running.pop(side).wait()

    def run(self, wanted: int, kills: int, within: float) -> int:
        """Let them contend until there are so many acquisitions in all; return how many were killed on the way."""
        until, killed = time.monotonic() + within, 0
        while len(self.lines()) < wanted:
            assert time.monotonic() < until, f"{len(self.lines())} acquisitions in {within:.0f} s: {self.errors()}"
            if killed < kills and len(self.lines()) > (killed + 1) * wanted / (kills + 1):
                side = killed % len(self.commands)  # each side in turn
                self.kill(side)
                self.start(side)
                killed += 1
            for process in self.running.values():
                assert process.poll() in (None, 0), self.errors()
            time.sleep(random.uniform(0.02, 0.1))
        return killed

    def end(self) -> None:
        for side in list(self.running):
            self.kill(side)


@pytest.fixture
def rings() -> Iterator[list[Ring]]:
    made: list[Ring] = []
    yield made
    for ring in made:
        ring.end()


def contend(
    rings: list[Ring], contender: list[str], server: ZooKeeperServer, place: Path, kind: str, wanted: int, kills: int
) -> Ring:
    path = f"/curator/{place.name}/{kind.partition(':')[0]}"
    arguments = [server.address, path, kind, str(place / "file"), str(10 * wanted), str(SESSION_MS)]
    python = [sys.executable, str(HERE.parents[1] / "support" / "programs" / "zookeeper_contender.py")]
    (place / "out").mkdir()
    ring = Ring([[*contender, *arguments], [*python, *arguments]] * 2, place / "out")
    rings.append(ring)
    assert ring.run(wanted, kills, 60 + kills * 5 + wanted / 20) == kills
    for side in range(4):
        assert ring.lines(side), f"side {side} never had it: {ring.errors()}"
    ring.end()
    return ring


def exclusive(
    rings: list[Ring], contender: list[str], server: ZooKeeperServer, place: Path, kind: str, n: int, k: int
) -> None:
    ring = contend(rings, contender, server, place, kind, n, k)
    visits = sorted((int(start), int(end), what) for what, start, end in ring.lines())
    latest = {"w": 0, "r": 0}  # until when somebody was inside
    for start, end, what in visits:
        assert start >= latest["w"], "after every writer"
        assert what == "r" or start >= latest["r"], "a writer after every reader"
        latest[what] = max(latest[what], end)
    written = sum(what == "w" for _, _, what in visits)
    counted = int((place / "file").read_text() or 0)
    assert written <= counted <= written + k + 4, "no update was lost; a killed process may have an unrecorded write"
    if kind == "rw":
        together = sum(
            start < before
            for (start, _, what), (_, before, other) in zip(visits[1:], visits, strict=False)
            if what == other == "r"
        )
        assert together, "readers were inside together"


@pytest.mark.parametrize("kind", ["mutex", "rw"])
def test_curator_and_leasehold_exclude_each_other(
    rings: list[Ring], contender: list[str], zookeeper_server: ZooKeeperServer, tmp_path: Path, kind: str
) -> None:
    exclusive(rings, contender, zookeeper_server, tmp_path, kind, 500, 2)


@pytest.mark.nightly
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("kind", ["mutex", "rw"])
def test_curator_and_leasehold_exclude_each_other_for_long(
    rings: list[Ring], contender: list[str], zookeeper_server: ZooKeeperServer, tmp_path: Path, kind: str
) -> None:
    exclusive(rings, contender, zookeeper_server, tmp_path, kind, MANY, 40)


def test_curator_and_leasehold_share_the_permits_of_a_semaphore(
    rings: list[Ring], contender: list[str], zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    ring = contend(rings, contender, zookeeper_server, tmp_path, "semaphore:2", 300, 0)
    steps = sorted(step for _, start, end in ring.lines() for step in ((int(start), 1), (int(end), -1)))
    inside = most = 0
    for _, step in steps:
        inside += step
        most = max(most, inside)
    assert most == 2


def test_holders_and_waiters_of_curator_are_shown_and_can_be_freed(
    contender: list[str], zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> None:
    """A process of Curator that is stopped while it holds: shown with its address, and broken by its token."""
    path, file = f"/curator/{tmp_path.name}/a", tmp_path / "file"
    command = [*contender, zookeeper_server.address, path, "mutex", str(file), "1000000", "60000"]
    with (
        Client.from_url(f"{zookeeper_server.url}/curator", namespace=tmp_path.name) as locks,
        subprocess.Popen(command, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith(b"w ")
            hold = locks.lock("a").acquire(timeout=30)
            assert hold is not None
            until = time.monotonic() + 10
            while (info := locks.inspect("a")) is None or not info.waiters:
                assert time.monotonic() < until
            assert info.holders[0].token == hold.token
            assert info.waiters[0].host  # the address that Curator writes
            assert len(children(zookeeper_server, path)) == 2
            hold.release()
            process.send_signal(19)  # SIGSTOP, whatever it does just now
            time.sleep(0.1)
            for _ in range(50):  # it may have been stopped between two of its acquisitions
                info = locks.inspect("a")
                if info is not None and info.holders:
                    assert info.holders[0].token is not None
                    assert locks.force_release("a", info.holders[0].token)
                    break
            after = locks.lock("a").acquire(timeout=5)
            assert after is not None
            after.release()
        finally:
            process.kill()
