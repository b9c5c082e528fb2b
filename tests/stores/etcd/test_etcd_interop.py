"""``etcdctl lock``, Go's concurrency.Mutex and leasehold contend for one prefix; processes are killed at random."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from leasehold import Client
from leasehold_lab.servers import EtcdServer
from leasehold_lab.servers.base import MissingServer
from leasehold_lab.servers.etcd import CTL_ENV

HERE = Path(__file__).parent
LEASE = 2
NOISE = 1.0
MET = 3
"""Exit code of a party that met another in the room."""


class Party:
    """A process that takes the lock again and again, started anew when it was killed."""

    def __init__(self, command: list[str], env: dict[str, str] | None = None) -> None:
        self.command = command
        self.env = env
        self.process = self.start()

    def start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command, env=self.env, stdout=subprocess.DEVNULL)

    def look(self) -> None:
        """Start it again if it ended; it must not have met anybody."""
        if self.process.poll() is not None:
            assert self.process.returncode != MET, f"{self.command[0]} met somebody in the room"
            self.process = self.start()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.kill()


class Room:
    """A prefix in etcd, a room that has place for one, and the visits to it."""

    def __init__(self, server: EtcdServer, namespace: str, folder: Path) -> None:
        self.server = server
        self.url = f"{server.url}/{namespace}"
        self.prefix = f"{namespace}/default/lock/x"
        self.door, self.log = str(folder / "room"), folder / "log"
        self.log.write_text("")

    def ours(self, flavor: str) -> Party:
        return Party(
            [
                sys.executable,
                str(HERE.parents[1] / "support" / "programs" / "etcd_client.py"),
                flavor,
                self.url,
                "x",
                str(LEASE),
                self.door,
                str(self.log),
            ]
        )

    def etcdctl(self) -> Party:
        """One visit for each process: etcdctl runs a command while it holds."""
        visit = ["flock", "-n", "-E", str(MET), self.door, "sh", "-c", f"echo ctl 0 >> {self.log}"]
        command = self.server.ctl_command("lock", f"--ttl={LEASE}", "--", self.prefix, *visit)
        return Party(command, {**os.environ, **CTL_ENV})

    def go(self, binary: Path) -> Party:
        endpoint = f"127.0.0.1:{self.server.port}"
        return Party([str(binary), endpoint, self.prefix, str(LEASE), self.door, str(self.log)])

    def visits(self) -> list[tuple[str, int]]:
        return [(who, int(token)) for who, token in map(str.split, self.log.read_text().splitlines())]


def contend(room: Room, parties: list[Party], visits: int, kills: int) -> Counter[str]:
    """Let them contend until there were so many visits, killing one at random now and then."""
    chance = random.Random(visits)
    with ExitStack() as stack:
        for party in parties:
            stack.enter_context(party)
        deaths = sorted(chance.randrange(visits) for _ in range(kills))
        last, moved = 0, time.monotonic()
        while (count := len(room.visits())) < visits:
            for party in parties:
                party.look()
            while deaths and deaths[0] <= count:
                deaths.pop(0)
                chance.choice(parties).kill()
            if count > last:
                last, moved = count, time.monotonic()
            assert time.monotonic() - moved < 2 * (LEASE + 1.0) + 10 * NOISE, "no client makes progress"
            time.sleep(0.01)
    seen = room.visits()
    ours = [token for who, token in seen if who == "us"]
    assert ours == sorted(set(ours))
    return Counter(who for who, _ in seen)


def test_etcdctl_lock_and_leasehold_exclude_each_other(etcd_server, namespace, tmp_path):
    room = Room(etcd_server, namespace, tmp_path)
    parties = [room.ours("blocking"), room.ours("asyncio"), room.etcdctl(), room.etcdctl(), room.etcdctl()]
    count = contend(room, parties, visits=300, kills=6)
    print(dict(count))
    assert count["us"] > 50
    assert count["ctl"] > 20


def test_leasehold_waits_for_etcdctl_and_the_reverse(etcd_server, namespace):
    """Either is woken at once when the other releases."""
    prefix = f"leasehold/{namespace}/lock/x"
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        hold = locks.lock("x").acquire()
        command = etcd_server.ctl_command("lock", prefix)
        with subprocess.Popen(command, env={**os.environ, **CTL_ENV}, stdout=subprocess.PIPE, text=True) as other:
            try:
                while len(locks.inspect("x").waiters) < 1:
                    time.sleep(0.01)
                start = time.monotonic()
                hold.release()
                key = other.stdout.readline().strip()
                assert time.monotonic() - start < NOISE
                assert key.startswith(f"{prefix}/")
                assert locks.lock("x").acquire(timeout=0.2) is None
                other.terminate()  # etcdctl then unlocks
                locks.lock("x").acquire(timeout=5).release()
            finally:
                other.kill()


FENCED = r"""
token=$(etcdctl get "$ETCD_LOCK_KEY" --write-out=fields | sed -n 's/^"CreateRevision" : //p')
etcdctl txn <<EOF
create("$ETCD_LOCK_KEY") = "$token"

put stock/42 17


EOF
echo "$ETCD_LOCK_REV $token"
"""
"""What `docs/backends/etcd.md` shows, and then both numbers."""


def test_a_script_under_etcdctl_uses_its_create_revision_as_token(etcd_server, namespace):
    """The revision that etcdctl passes on is another one if it had to wait: another client may write meanwhile."""
    page = (HERE.parents[2] / "docs/backends/etcd.md").read_text()
    assert FENCED.partition("echo")[0].strip() in page
    with Client.from_url(etcd_server.url, namespace=namespace) as locks:
        hold = locks.lock("x").acquire()
        prefix = f"leasehold/{namespace}/lock/x"
        etcdctl, *_ = etcd_server.ctl_command()
        command = [etcdctl, "lock", prefix, "--", "bash", "-c", FENCED]
        where = {**os.environ, **CTL_ENV, "ETCDCTL_ENDPOINTS": f"127.0.0.1:{etcd_server.port}"}
        with subprocess.Popen(command, env=where, stdout=subprocess.PIPE, text=True) as other:
            while len(locks.inspect("x").waiters) < 1:
                assert other.poll() is None
                time.sleep(0.01)
            locks.versioned("y").put("somebody writes")
            hold.release()
            said, _ = other.communicate(timeout=10)
        assert "SUCCESS" in said
        handed_on, token = map(int, said.split()[-2:])
        assert handed_on > token > hold.token
        with locks.lock("x") as later:
            assert later.token > token


@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_ten_thousand_visits_with_etcdctl_and_go(etcd_server, namespace, tmp_path):
    binary = build(tmp_path)
    room = Room(etcd_server, namespace, tmp_path)
    parties = [room.ours("blocking"), room.ours("asyncio"), room.go(binary), room.go(binary), room.etcdctl()]
    count = contend(room, parties, visits=10_000, kills=60)
    print(dict(count))
    assert min(count["us"], count["go"], count["ctl"]) > 300


def build(folder: Path) -> Path:
    """Build the contender that is written in Go."""
    go = shutil.which("go", path=f"{os.environ.get('PATH', '')}:/usr/local/go/bin")
    if go is None:
        raise MissingServer("no go on the PATH; install it, on Debian with: apt-get install golang-go")
    source = folder / "go_mutex"
    shutil.copytree(HERE / "go_mutex", source)
    env = {**os.environ, "GOFLAGS": "-mod=mod"}
    subprocess.run([go, "mod", "tidy"], cwd=source, env=env, check=True, timeout=600)
    subprocess.run([go, "build", "-o", str(folder / "contender"), "."], cwd=source, env=env, check=True, timeout=900)
    return folder / "contender"
