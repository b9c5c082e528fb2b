"""The SQLite store with real processes: exclusion, crashes, stops, forks, boots, bad files."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import random
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold import AsyncClient, Client, LeaseLost, StoreUnavailable, Unsupported, WrongKind
from leasehold.model import Change, Departure, Granted, Kind, Owner, Rule, Severity, Standing, Terms, Ticket, ticket_id
from leasehold.runtimes.base import Colour, drive
from leasehold.runtimes.blocking import BlockingRuntime
from leasehold.stores import registry
from leasehold.stores.memory import Memory
from leasehold.stores.sqlite import SQLite, rows, sweep
from leasehold.stores.sqlite.database import LAYOUT
from leasehold.stores.sqlite.machine import Machine, Process
from leasehold.wires import datagram
from leasehold.wires.datagram import Bell

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
root = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root and unshare")

PEER = """
import json, os, sys, threading, time
from leasehold import Client, LeaseLost
from leasehold.runtimes.base import drive
from leasehold.model import Change
from leasehold.stores.sqlite import SQLite
from leasehold.stores.sqlite.machine import Machine
from pathlib import Path
path, proc = sys.argv[1:]
locks = Client(SQLite(Path(path), machine=Machine(proc)), response_timeout=10)
holds = {}
def take(name, **options):
    timeout = options.pop("timeout", None)
    hold = locks.lock(name, **options).acquire(timeout=timeout)
    holds[name] = hold
    return None if hold is None else hold.token
def tell(work):
    try:
        work()
    except Exception as error:
        return type(error).__name__
    return "ok"
for line in sys.stdin:
    print(json.dumps(eval(line)), flush=True)
"""


def boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Peer:
    """Another process with a client, which evaluates what it is told."""

    def __init__(self, path: Path, proc: str = "/proc") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PEER, str(path), proc], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def ask(self, line: str) -> Any:
        self.tell(line)
        return self.answer()

    def close(self) -> None:
        with self.process:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def peers(path: Path) -> Iterator[Callable[..., Peer]]:
    with contextlib.ExitStack() as stack:

        def make(proc: str = "/proc") -> Peer:
            peer = Peer(path, proc)
            stack.callback(peer.close)
            return peer

        yield make


@pytest.fixture
def locks(path: Path) -> Iterator[Client]:
    with Client.from_url(f"sqlite:{path}") as client:
        yield client


def fake_proc(
    folder: Path, *, boot: str = "", offset: int = 0, mounts: str = "", pid: int = 0, started: int = 1
) -> str:
    """Write a /proc of another machine; `self` is this process, ``pid`` another one that began at ``started``."""
    real = Path("/proc")
    me = folder / str(os.getpid())
    (me / "ns").mkdir(parents=True)
    for name in ("pid", "net", "time", "time_for_children"):
        (me / "ns" / name).symlink_to(os.readlink(f"/proc/self/ns/{name}"))
    (folder / "self").symlink_to(str(os.getpid()))
    (me / "stat").write_text((real / "self/stat").read_text())
    (me / "timens_offsets").write_text(f"monotonic 0 0\nboottime {offset} 0\n")
    (me / "mountinfo").write_text(mounts or (real / "self/mountinfo").read_text())
    (folder / "sys/kernel/random").mkdir(parents=True)
    own = (real / "sys/kernel/random/boot_id").read_text()
    (folder / "sys/kernel/random/boot_id").write_text(boot or own)
    if pid:
        (folder / str(pid)).mkdir()
        fields = "S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0"
        (folder / str(pid) / "stat").write_text(f"{pid} (any) ) thing) {fields} {started} 0\n")
    return str(folder)


def client_on(path: Path, proc: str, **options: Any) -> Client:
    return Client(SQLite(path, machine=Machine(proc), **options), response_timeout=0.5)


def raw(path: Path, statement: str, *values: object) -> list[Any]:
    """Run one statement in a process of its own: a second SQLite user in this process is not the point here."""
    code = (
        "import json, sqlite3, sys\n"
        "db = sqlite3.connect(sys.argv[1], timeout=5)\n"
        "print(json.dumps(db.execute(sys.argv[2], json.loads(sys.argv[3])).fetchall()))\n"
        "db.commit()\n"
        "db.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), statement, json.dumps(values)], check=True, capture_output=True
    )
    found: list[Any] = json.loads(done.stdout)
    return found


def run_python(code: str, *arguments: object, before: tuple[str, ...] = ()) -> str:
    done = subprocess.run(
        [*before, sys.executable, "-W", "error", "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr, done.stderr
    return done.stdout


# --- URL and opener ------------------------------------------------------------------------------------------------


def opened(url: str | None) -> Path:
    opener = registry.opener(url)
    assert isinstance(opener, SQLite)
    return opener.path


def test_url_forms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    assert opened("sqlite:/var/lib/locks.db") == Path("/var/lib/locks.db")
    assert opened("sqlite:///var/lib/locks.db") == Path("/var/lib/locks.db")
    assert opened("sqlite:locks.db") == tmp_path / "locks.db"
    assert opened("sqlite:sub/../locks.db") == tmp_path / "locks.db"
    assert opened("sqlite:~/locks.db") == Path("/home/someone/locks.db")
    assert opened("sqlite:/with%20space/%23.db") == Path("/with space/#.db")
    monkeypatch.delenv("LEASEHOLD_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", "/a state/50% #1?")
    assert opened(None) == Path("/a state/50% #1?/leasehold/locks.db")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:", "names no file; write sqlite:/path/locks.db"),
        ("sqlite:///", "names no file"),
        ("sqlite:/tmp/", "names no file"),
        ("sqlite:.", "names no file"),
        ("sqlite:/a%00b", "control characters"),
        ("sqlite::memory:", "write memory:"),
        ("sqlite://host/path.db", "no host"),
        ("sqlite:/a.db?mode=ro", "unknown option 'mode'"),
        ("sqlite:/a.db?allow_network=maybe", "1 or 0"),
    ],
)
def test_url_refused(url: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        registry.opener(url)


def test_nothing_before_first_use(tmp_path: Path) -> None:
    with Client.from_url(f"sqlite:{tmp_path}/a/b/locks.db"):
        assert not (tmp_path / "a").exists()


def test_made_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "locks.db"
    umask = os.umask(0)
    try:
        with Client.from_url(f"sqlite:{path}") as locks, locks.lock("x"):
            for file in (path, Path(f"{path}-wal"), Path(f"{path}-shm")):
                assert file.stat().st_mode & 0o777 == 0o600
            for folder in (path.parent, path.parent.parent):
                assert folder.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(umask)


def test_literal_prefix(locks: Client) -> None:
    names = ["a%b", "a_b", "axb", "a", "A", "a\0b", "a\U0010ffff", "b", "ä", "%"]
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(locks.lock(name))

        def found(prefix: str) -> list[str]:
            return [info.name for info in locks.holds(prefix)]

        assert found("") == sorted(names)
        assert found("a%") == ["a%b"]
        assert found("a_") == ["a_b"]
        assert found("a\0") == ["a\0b"]
        assert found("a\U0010ffff") == ["a\U0010ffff"]
        assert found("a") == sorted(name for name in names if name.startswith("a"))
        info = locks.inspect("a")
        assert info is not None
        assert info.name == "a"
        assert locks.inspect("a\0") is None
    assert locks.holds() == []


def test_namespaces_never_meet(path: Path, locks: Client) -> None:
    with Client.from_url(f"sqlite:{path}", namespace="other") as others, locks.lock("x"), others.lock("x", timeout=0):
        assert len(others.holds()) == 1


# --- against the reference -----------------------------------------------------------------------------------------


class Frozen(BlockingRuntime):
    """Time that stands still until it is told to go on; no threads for it."""

    colour = Colour.SIMULATED

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:  # type: ignore[override]
        return self.at

    def wall_us(self) -> int:  # type: ignore[override]
        return int(self.at * 1e6)


RULES = [
    Rule(),
    Rule(fair=True),
    Rule(Kind.READ_WRITE),
    Rule(Kind.READ_WRITE, exclusive=False),
    Rule(Kind.READ_WRITE, exclusive=False, fair=True),
    Rule(Kind.READ_WRITE, fair=True),
    Rule(Kind.READ_WRITE, exclusive=False, upgradeable=True),
    Rule(Kind.READ_WRITE, exclusive=False, upgradeable=True, fair=True),
    Rule(Kind.SEMAPHORE, permits=1, limit=4),
    Rule(Kind.SEMAPHORE, permits=3, limit=4, fair=True),
]


@pytest.mark.parametrize("seed", [0, 1, 2, 106, 107, 112, 140])
def test_agrees_with_the_memory_store(path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random operations with queues far longer than the window have the same outcome as on whole queues."""
    monkeypatch.setattr("leasehold.stores.sqlite.database.boottime", lambda: 0.0)
    chance, runtime = random.Random(seed), Frozen()
    stores = [SQLite(path).open(runtime, "n"), Memory(f"same-{seed}").open(runtime, "n")]
    owner = Owner("h", 1, "c")
    tickets: list[tuple[str, Ticket]] = []
    views: list[list[object]] = [[], []]
    crowd = seed % 2 == 0
    for _ in range(350):
        kind = chance.choice(list(Kind))
        name = kind.value if chance.random() < 0.97 else "mutex"
        rule = chance.choice([rule for rule in RULES if rule.kind is kind])
        what = chance.random()
        if what < 0.45 or not tickets:
            lease = chance.choice([3.0, 30.0, 300.0])
            terms = Terms(rule, owner, lease, delay=chance.choice([0.0, 0.0, 2.0]))
            mates = [ticket.id for where, ticket in tickets if where == name]
            beside = chance.choice(mates) if mates and kind is Kind.READ_WRITE and chance.random() < 0.4 else ""
            one = (name, Ticket(ticket_id(chance.randbytes(16)), terms, beside))
            tickets.append(one)
            join = chance.random() < 0.9
            outcomes = [outcome(store.claim(*one, join=join, within=1)) for store in stores]
        elif what < 0.6:
            one = chance.choice(tickets)
            outcomes = [outcome(store.claim(*one, join=True, within=1)) for store in stores]
            for store in stores:  # the SQLite store may leave a waiter's expiry as it was
                drive(store.renew([one], within=1))
        elif what < (0.75 if crowd else 0.9):
            one = tickets.pop(chance.randrange(len(tickets)))
            how = chance.choice(list(Departure))
            there = any(one[1].id in str(view) for view in views[0])
            outcomes = [outcome(store.leave(*one, how=how, within=1)) for store in stores]
            if not there:  # a void seat far back in the queue may still have its row
                outcomes = [None, None]
        elif what < 0.95:
            some = chance.sample(tickets, min(5, len(tickets)))
            outcomes = [drive(store.renew(some, within=1)) for store in stores]
        else:
            runtime.at += chance.choice([0.5, 2.5, 20.0])
            outcomes = [None, None]
        assert outcomes[0] == outcomes[1]
        views = [sorted((shown(view) for view in drive(store.look(""))), key=str) for store in stores]
        assert views[0] == views[1]
    for store in stores:
        drive(store.close())


def outcome(work: Coroutine[Any, Any, Any]) -> object:
    try:
        answer = drive(work)
    except WrongKind:
        return "wrong kind"
    if isinstance(answer, Granted):
        return answer.token
    return answer if isinstance(answer, bool) else "wait"


def shown(view: Any) -> object:
    def seat(one: Any) -> object:
        return one.ticket.id, one.token, round(one.expires, 3)

    return view.name, view.token, {seat(one) for one in view.holders}, [seat(one) for one in view.waiters]


def test_an_upgrade_far_behind_in_the_queue_passes_all(path: Path) -> None:
    """It waits behind more writers than a step reads, and enters first; the row has all that decides."""
    runtime = Frozen()
    store, owner = SQLite(path).open(runtime, "n"), Owner("h", 1, "c")

    def ticket(rule: Rule, beside: str = "") -> Ticket:
        return Ticket(ticket_id(os.urandom(16)), Terms(rule, owner, 60.0), beside)

    def claim(mine: Ticket) -> bool:
        return isinstance(drive(store.claim("rw", mine, join=True, within=5)), Granted)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("leasehold.stores.sqlite.database.boottime", lambda: 0.0)
        reader = ticket(Rule(Kind.READ_WRITE, exclusive=False, fair=True))
        upgradeable = ticket(Rule(Kind.READ_WRITE, exclusive=False, upgradeable=True, fair=True))
        assert claim(reader)
        assert claim(upgradeable)
        writers = [ticket(Rule(Kind.READ_WRITE, fair=True)) for _ in range(3 * rows.WINDOW)]
        assert [claim(writer) for writer in writers] == [False] * len(writers)
        upgrade = ticket(Rule(Kind.READ_WRITE, fair=True), upgradeable.id)
        assert not claim(upgrade)
        writers.append(ticket(Rule(Kind.READ_WRITE, fair=True)))
        assert not claim(writers[-1])
        assert drive(store.leave("rw", reader, how=Departure.RELEASE, within=5))
        (view,) = drive(store.look("rw", exact=True))
        assert [seat.ticket for seat in view.holders] == [upgradeable, upgrade]
        assert [seat.ticket for seat in view.waiters] == writers
        drive(store.close())


def test_a_step_costs_the_same_with_a_thousand_waiters(path: Path, locks: Client) -> None:
    def read_rows(waiting: int) -> int:
        name = f"q{waiting}"
        with locks.lock(name):
            terms = Terms(Rule(fair=True), Owner("h", 1, "c"), 60.0)
            for _ in range(waiting):
                drive(locks.store.claim(name, Ticket(ticket_id(os.urandom(16)), terms), join=True, within=5))
            seen: list[int] = []
            original = sweep.rows.pages.seat_of

            def counted(row: Any) -> Any:
                seen.append(1)
                return original(row)

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(sweep.rows.pages, "seat_of", counted)
                drive(locks.store.claim(name, Ticket(ticket_id(os.urandom(16)), terms), join=True, within=5))
            return len(seen)

    assert read_rows(1000) == read_rows(20) <= 12


# --- processes -----------------------------------------------------------------------------------------------------

WORKER = """
import asyncio, sys, time
from pathlib import Path
from leasehold import AsyncClient, Client
url, shared, rounds, colour = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]

def work(token):
    entered = time.clock_gettime(time.CLOCK_BOOTTIME)
    count, last = map(int, shared.read_text().split())
    assert token > last
    time.sleep(0.002)
    shared.write_text(f"{count + 1} {token}")
    print(token, entered, time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)

async def tasks():
    async with AsyncClient.from_url(url) as locks:
        for _ in range(rounds):
            async with locks.lock("count") as hold:
                work(hold.token)

if colour == "asyncio":
    asyncio.run(tasks())
else:
    with Client.from_url(url) as locks:
        for _ in range(rounds):
            with locks.lock("count") as hold:
                work(hold.token)
"""


def contend(path: Path, rounds: int, colours: list[str]) -> list[tuple[int, float, float, int]]:
    """Let processes count under the lock; return (token, entered, left, process) by token."""
    shared = path.parent / "count"
    shared.write_text("0 0")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, f"sqlite:{path}", str(shared), str(rounds), colour],
            stdout=subprocess.PIPE,
            text=True,
        )
        for colour in colours
    ]
    records = []
    for number, process in enumerate(processes):
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        for line in output.splitlines():
            token, entered, left = line.split()
            records.append((int(token), float(entered), float(left), number))
    assert shared.read_text().split()[0] == str(rounds * len(colours))
    return sorted(records)


def test_counts_correctly_over_processes(path: Path) -> None:
    records = contend(path, 50, ["blocking", "asyncio", "blocking", "asyncio"])
    assert len({token for token, *_ in records}) == 200
    for (_, _, left, _), (_, entered, _, _) in itertools.pairwise(records):
        assert left <= entered


@pytest.mark.parametrize("colours", [["blocking", "blocking"], ["asyncio", "blocking"]], ids="-".join)
def test_wakes_the_next_process_within_milliseconds(path: Path, colours: list[str]) -> None:
    records = contend(path, 200, colours)  # how often they alternate, the scheduler decides
    pauses = [later[1] - earlier[2] for earlier, later in itertools.pairwise(records) if earlier[3] != later[3]]
    assert len(pauses) >= 50
    assert statistics.median(pauses) < 0.010


def test_lost_hints_cost_a_quarter_of_a_second(path: Path, locks: Client, peers: Callable[..., Peer]) -> None:
    peer = peers()
    peer.ask("setattr(__import__('leasehold.wires.datagram').wires.datagram, '_send', lambda *a: None)")
    peer.ask("take('x')")
    threading.Timer(0.3, lambda: peer.tell("holds['x'].release()")).start()
    began = boottime()
    with locks.lock("x", timeout=5):
        assert 0.3 <= boottime() - began < 0.3 + 0.25 + 0.35


def test_no_socket_to_be_had(locks: Client, peers: Callable[..., Peer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagram, "_loopback", lambda: None)
    peer = peers()
    peer.ask("take('x')")
    threading.Timer(0.3, lambda: peer.tell("holds['x'].release()")).start()
    began = boottime()
    with locks.lock("x", timeout=5):
        assert boottime() - began < 0.3 + 0.25 + 0.35


def test_forged_hints_do_no_harm(locks: Client) -> None:
    with locks.lock("x"):
        got: list[object] = []
        waiter = threading.Thread(target=lambda: got.append(locks.lock("x").acquire(timeout=0.6)))
        waiter.start()
        time.sleep(0.1)
        address = next(iter(datagram._bells))
        for _ in range(300):
            datagram._send(int(address.split()[1]), os.urandom(38))
            for ticket in list(locks.store._waiters._waiting):  # type: ignore[attr-defined]
                datagram._send(int(address.split()[1]), bytes.fromhex(address.split()[2]) + ticket.encode())
        waiter.join()
        assert got == [None]


def test_a_claim_and_a_thread_that_ends_for_want_of_waiters_do_not_wait_for_each_other(
    path: Path, locks: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim has the database and wants the bell's thread; that one, about to end, must not want the database."""
    registered, ending, end, listen = threading.Event(), threading.Event(), Bell._ends_idle, Bell.listen

    def end_late(bell: Bell) -> bool:
        ending.set()
        registered.wait(5)
        return end(bell)

    def listen_late(bell: Bell) -> str | None:
        registered.set()
        time.sleep(0.3)
        return listen(bell)

    monkeypatch.setattr(datagram, "LINGER", 1)
    monkeypatch.setattr(Bell, "_ends_idle", end_late)
    with Client.from_url(f"sqlite:{path}") as holder, holder.lock("x"):
        assert locks.lock("x").acquire(timeout=0.05) is None
        assert ending.wait(5)
        monkeypatch.setattr(Bell, "listen", listen_late)
        results: list[object] = []
        waiter = threading.Thread(target=lambda: results.append(locks.lock("x").acquire(timeout=0.5)), daemon=True)
        waiter.start()
        waiter.join(5)
        assert results == [None]


def test_a_claim_that_could_not_be_written_leaves_no_waiter(path: Path, locks: Client) -> None:
    with Client.from_url(f"sqlite:{path}") as holder, holder.lock("x"):
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("CREATE TRIGGER full BEFORE INSERT ON seat BEGIN SELECT RAISE(ABORT, 'full'); END")
        with pytest.raises(StoreUnavailable):
            locks.lock("x").acquire(timeout=1)
        assert not locks.store._waiters._waiting  # type: ignore[attr-defined]


@pytest.mark.parametrize("reaped", [False, True], ids=["zombie", "reaped"])
@pytest.mark.parametrize("fair", [False, True], ids=["any", "fair"])
def test_killed_holder(locks: Client, peers: Callable[..., Peer], reaped: bool, fair: bool) -> None:
    peer = peers()
    token = peer.ask("take('x', lease=60)")
    assert locks.lock("x").acquire(timeout=0.05) is None
    killed: list[float] = []

    def kill() -> None:
        peer.process.kill()
        killed.append(boottime())
        if reaped:
            peer.process.wait()

    threading.Timer(0.3, kill).start()
    with locks.lock("x", timeout=5, fair=fair) as hold:
        assert boottime() - killed[0] < 1.0
        assert hold.token > token


@pytest.mark.parametrize("side", ["reader", "upgradeable", "writer"])
def test_killed_side_of_a_read_write_lock(locks: Client, peers: Callable[..., Peer], side: str) -> None:
    peer, lock = peers(), locks.rw_lock("x")
    token = peer.ask(f"holds.setdefault('x', locks.rw_lock('x', lease=60).{side}().acquire()).token")
    assert lock.writer().acquire(timeout=0.05) is None
    peer.process.kill()
    killed = boottime()
    with lock.writer() as hold:
        assert boottime() - killed < 1.0
        assert hold.token > token


def test_killed_while_it_upgrades(locks: Client, peers: Callable[..., Peer]) -> None:
    """Neither its seat nor its place in the queue stands in the way of others."""
    peer, reader = peers(), locks.rw_lock("x").reader().acquire()
    assert reader is not None
    peer.ask("holds.setdefault('x', locks.rw_lock('x', lease=60).upgradeable().acquire()).token")
    peer.ask("threading.Thread(target=holds['x'].upgrade, daemon=True).start()")
    until = boottime() + 5.0
    while len(locks.holds("x")[0].waiters) < 1 and boottime() < until:
        time.sleep(0.01)
    with Client.from_url(f"sqlite:{locks.store._database.path}") as others:  # type: ignore[attr-defined]
        assert others.rw_lock("x").reader().acquire(blocking=False) is None
        peer.process.kill()
        killed = boottime()
        late = others.rw_lock("x").reader().acquire(timeout=5)
        assert late is not None
        late.release()
        reader.release()
        others.rw_lock("x").writer().acquire(timeout=5).release()  # type: ignore[union-attr]
        assert boottime() - killed < 1.0


def test_killed_holder_of_permits(locks: Client, peers: Callable[..., Peer]) -> None:
    peer, semaphore = peers(), locks.semaphore("x", 3)
    peer.ask("holds.setdefault('x', locks.semaphore('x', 3, lease=60).acquire(2)).token")
    assert semaphore.available() == 1
    assert semaphore.acquire(2, timeout=0.05) is None
    peer.process.kill()
    killed = boottime()
    with semaphore.permits(3):
        assert boottime() - killed < 1.0
    assert semaphore.available() == 3


def test_killed_holder_with_delay_keeps_the_name_shut(locks: Client, peers: Callable[..., Peer]) -> None:
    peer = peers()
    peer.ask("take('x', lease=60, delay=1.0)")
    peer.process.kill()
    killed = boottime()
    with locks.lock("x", timeout=5):
        assert 1.0 <= boottime() - killed < 1.0 + 1.0


def test_killed_waiter_first_in_line(locks: Client, peers: Callable[..., Peer]) -> None:
    hold = locks.lock("x").acquire()
    assert hold is not None
    first = peers()
    first.tell("take('x', lease=60, fair=True)")
    wait_until(lambda: len(locks.inspect("x").waiters) == 1)  # type: ignore[union-attr]
    first.process.kill()
    got: list[float] = []

    def second() -> None:
        with locks.lock("x", fair=True, timeout=5):
            got.append(boottime())

    thread = threading.Thread(target=second)
    thread.start()
    time.sleep(0.1)
    released = boottime()
    hold.release()
    thread.join()
    assert got[0] - released < 1.0


def test_killed_between_grant_and_news(locks: Client, peers: Callable[..., Peer]) -> None:
    """The next in line is stopped when it gets the lock, and then killed: those behind it do not wait for its lease."""
    hold = locks.lock("x").acquire()
    assert hold is not None
    first = peers()
    first.tell("take('x', lease=60, fair=True)")
    wait_until(lambda: len(locks.inspect("x").waiters) == 1)  # type: ignore[union-attr]
    first.process.send_signal(signal.SIGSTOP)
    hold.release()
    info = locks.inspect("x")
    assert info is not None
    assert info.holders[0].pid == first.process.pid
    threading.Timer(0.2, first.process.kill).start()
    began = boottime()
    with locks.lock("x", timeout=5):
        assert boottime() - began < 0.2 + 1.0


def test_dead_permit_holders_make_room_for_all(path: Path, locks: Client, peers: Callable[..., Peer]) -> None:
    """Two of two permits go at once with their process; both waiters enter, not only the one that noticed."""
    rule = Rule(Kind.SEMAPHORE, permits=1, limit=2)
    peer = peers()
    for _ in range(2):
        row = "Rule(Kind.SEMAPHORE, permits=1, limit=2), locks._core._engine.owner, 60.0"
        code = f"locks.store.claim('s', Ticket(ticket_id(os.urandom(16)), Terms({row})), join=True, within=5)"
        peer.ask("exec('from leasehold.model import *; from leasehold.model import ticket_id', globals())")
        peer.ask(f"drive({code}).token")
    got: list[float] = []

    def enter() -> None:
        ticket = Ticket(ticket_id(os.urandom(16)), Terms(rule, Owner("h", 1, "c"), 60.0))
        while True:
            answer = drive(locks.store.claim("s", ticket, join=True, within=5))
            if isinstance(answer, Granted):
                break
            if drive(locks.store.changed("s", ticket, answer.mark, timeout=min(answer.ask_again, 30))) is not None:
                break
        got.append(boottime())

    threads = [threading.Thread(target=enter) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    peer.process.kill()
    killed = boottime()
    for thread in threads:
        thread.join(10)
    assert len(got) == 2
    assert max(got) - killed < 1.0


def test_stopped_holder(locks: Client, peers: Callable[..., Peer]) -> None:
    peer = peers()
    old = peer.ask("take('x', lease=0.5)")
    write = "drive(locks.store.cell('row', Change(b'old', fence=holds['x'].token))).changed"
    assert peer.ask(write) is True
    peer.process.send_signal(signal.SIGSTOP)
    stopped = boottime()
    with locks.lock("x", timeout=5) as hold:
        assert boottime() - stopped < 0.5 + 0.5
        assert hold.token > old
        assert drive(locks.store.cell("row", Change(b"new", fence=hold.token))).changed
        peer.process.send_signal(signal.SIGCONT)
        assert peer.ask("tell(holds['x'].check)") == "LeaseLost"
        assert peer.ask(write) is False
        assert peer.ask("tell(holds['x'].release)") == "LeaseLost"
        hold.check()
        assert drive(locks.store.cell("row", Change())).value == b"new"
        info = locks.inspect("x")
        assert info is not None
        assert [one.token for one in info.holders] == [hold.token]


def test_two_hundred_waiters(path: Path, locks: Client) -> None:
    tokens: list[int] = []

    def thread() -> None:
        with locks.lock("x", lease=20) as hold:
            tokens.append(hold.token)

    async def tasks() -> None:
        async with AsyncClient.from_url(f"sqlite:{path}") as others:

            async def task() -> None:
                async with others.lock("x", lease=20, fair=True) as hold:
                    tokens.append(hold.token)

            await asyncio.gather(*(task() for _ in range(120)))

    with locks.lock("x"):
        threads = [threading.Thread(target=thread) for _ in range(80)]
        threads.append(threading.Thread(target=lambda: asyncio.run(tasks())))
        for one in threads:
            one.start()
        wait_until(lambda: len(locks.inspect("x").waiters) == 200)  # type: ignore[union-attr]
        began = boottime()
    for one in threads:
        one.join(30)
    assert boottime() - began < 10
    assert len(tokens) == 200
    assert tokens == sorted(set(tokens))
    assert raw(path, "SELECT count(*) FROM seat") == [[0]]


def test_blocking_and_asyncio_clients_share_a_file(path: Path, locks: Client) -> None:
    async def body() -> None:
        async with AsyncClient.from_url(f"sqlite:{path}") as others:
            with locks.lock("a") as mine:
                assert await others.lock("a").acquire(timeout=0.05) is None
                waiting = asyncio.create_task(others.lock("a").acquire(timeout=5))
                await asyncio.sleep(0.1)
            theirs = await waiting
            assert theirs is not None
            assert theirs.token > mine.token
            assert locks.lock("a").acquire(blocking=False) is None
            await theirs.release()

    with pytest.warns(RuntimeWarning, match="running event loop"):
        asyncio.run(body())


@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
def test_cancellation_leaves_nothing(path: Path, held: bool) -> None:
    async def body() -> None:
        async with AsyncClient.from_url(f"sqlite:{path}") as locks:
            blocker = await locks.lock("x").acquire() if held else None
            for step in range(60):
                task = asyncio.create_task(locks.lock("x").acquire())
                if step % 2:
                    await asyncio.sleep(step * 0.0001)
                else:
                    for _ in range(step // 2):
                        await asyncio.sleep(0)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    hold = await task
                    assert hold is not None
                    await hold.release()
                info = await locks.inspect("x")
                assert info is None if blocker is None else (info is not None and info.waiters == ())
            assert locks.store._waiters._waiting == {}  # type: ignore[attr-defined]
            if blocker is not None:
                await blocker.release()

    asyncio.run(body())


def test_repeated_claims_and_leaves(locks: Client) -> None:
    store = locks.store
    ticket = Ticket(ticket_id(os.urandom(16)), Terms(Rule(), Owner("h", 1, "c"), 5.0))
    first = drive(store.claim("x", ticket, join=True, within=1))
    again = drive(store.claim("x", ticket, join=True, within=1))
    assert isinstance(first, Granted)
    assert isinstance(again, Granted)
    assert again.token == first.token
    assert drive(store.renew([("x", ticket), ("y", ticket)], within=1)) == [Standing.HELD, Standing.GONE]
    assert drive(store.leave("x", ticket, how=Departure.RELEASE, within=1)) is True
    assert drive(store.leave("x", ticket, how=Departure.RELEASE, within=1)) is False
    assert drive(store.renew([("x", ticket)], within=1)) == [Standing.GONE]


def test_busy_file_is_bounded(path: Path, peers: Callable[..., Peer]) -> None:
    with Client.from_url(f"sqlite:{path}", response_timeout=0.5) as locks:
        with locks.lock("x"):
            pass
        writer = subprocess.Popen(
            [
                sys.executable,
                "-c",
                "import sqlite3, sys\n"
                "db = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
                "db.execute('BEGIN IMMEDIATE'); print('in', flush=True); sys.stdin.read()",
                str(path),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        with writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            began = boottime()
            with pytest.raises(StoreUnavailable, match="busy") as caught:
                locks.lock("x").acquire(timeout=0.1)
            assert not caught.value.unknown
            assert boottime() - began < 2.0
            writer.kill()
        with locks.lock("x", timeout=2):
            pass


# --- forks ---------------------------------------------------------------------------------------------------------


@linux
def test_fork(path: Path) -> None:
    """What the child commits survives the parent's close, and the child neither renews nor releases the parent's hold.

    With a connection inherited through the fork the last write of the child vanishes without an error.
    """
    code = """
        import os, sys, time, warnings
        from leasehold import Client
        from leasehold.model import Change
        from leasehold.runtimes.base import drive
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 warns of any fork with threads
        locks = Client.from_url("sqlite:" + sys.argv[1])
        hold = locks.lock("x", lease=2).acquire()
        r, w = os.pipe()
        r2, w2 = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                assert hold.remaining() == 0
                assert locks.lock("x").acquire(timeout=0) is None
                with locks.lock("y"):
                    drive(locks.store.cell("child", Change(b"1")))
                os.write(w, b"1")
                os.read(r2, 1)  # the parent has closed
                drive(locks.store.cell("child", Change(b"2")))
                assert locks.inspect("x") is None
            except BaseException:
                import traceback; traceback.print_exc(); os._exit(1)
            sys.exit(0)
        os.read(r, 1)
        hold.extend()
        drive(locks.store.cell("parent", Change(b"1")))
        hold.release()
        locks.close()
        os.write(w2, b"1")
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        with Client.from_url("sqlite:" + sys.argv[1]) as again:
            print(drive(again.store.cell("child", Change())).value, drive(again.store.cell("parent", Change())).value)
        """
    assert run_python(code, path).split() == ["b'2'", "b'1'"]


@linux
def test_fork_amid_other_threads(path: Path) -> None:
    code = """
        import os, sys, threading, warnings
        from leasehold import Client
        warnings.simplefilter("ignore", DeprecationWarning)
        locks = Client.from_url("sqlite:" + sys.argv[1])
        stop = threading.Event()
        def work(name):
            while not stop.is_set():
                with locks.lock(name): pass
        threads = [threading.Thread(target=work, args=(name,)) for name in "aab"]
        for thread in threads: thread.start()
        for _ in range(12):
            pid = os.fork()
            if pid == 0:
                for _ in range(3):
                    with locks.lock("a", timeout=20): pass
                locks.close()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        stop.set()
        for thread in threads: thread.join()
        print(locks.holds())
        locks.close()
        """
    assert run_python(code, path).strip() == "[]"
    assert raw(path, "PRAGMA integrity_check") == [["ok"]]


@linux
def test_fork_that_could_not_be_prepared_for_is_refused(path: Path) -> None:
    code = """
        import os, sys
        from leasehold import Client, StoreUnavailable
        from leasehold.stores.sqlite.database import Database
        locks = Client.from_url("sqlite:" + sys.argv[1])
        with locks.lock("x"): pass
        Database._drop, drop = (lambda self: None), Database._drop  # as if forked from C, without Python's hooks
        pid = os.fork()
        if pid == 0:
            try:
                locks.lock("x").acquire()
            except StoreUnavailable as error:
                assert "forked" in str(error)
                sys.exit(0)
            sys.exit(1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        Database._drop = drop
        with locks.lock("x"): pass
        locks.close()
        """
    assert run_python(code, path).strip() == "0"


# --- boot and clock ------------------------------------------------------------------------------------------------


@linux
def test_new_boot_voids_all(path: Path, tmp_path: Path) -> None:
    with Client.from_url(f"sqlite:{path}") as before:
        held = before.lock("x", lease=600, delay=500).acquire()
        assert held is not None
        before.lock("broken", delay=600).acquire()
        info = before.inspect("broken")
        assert info is not None
        before.break_("broken", info.token)
        drive(before.store.cell("c", Change(b"kept", life=1000)))
        before._core._engine.store._close()  # type: ignore[attr-defined]  # power fails: nothing is released
        with client_on(path, fake_proc(tmp_path / "p", boot="another boot")) as after:
            assert after.holds() == []
            for name in ("x", "broken"):
                hold = after.lock(name).acquire(blocking=False)
                assert hold is not None
                assert hold.token > held.token
            assert drive(after.store.cell("c", Change())).value == b"kept"


@linux
def test_another_boot_while_the_first_still_runs_is_refused(
    path: Path, tmp_path: Path, peers: Callable[..., Peer]
) -> None:
    peer = peers()
    token = peer.ask("take('x', lease=60)")
    other = fake_proc(tmp_path / "p", boot="a container with a boot id of its own")
    with client_on(path, other) as locks:
        with pytest.raises(StoreUnavailable, match="under another boot") as caught:
            locks.lock("x").acquire(timeout=0)
        assert not caught.value.unknown
        assert peer.ask("tell(holds['x'].extend)") == "ok"
        peer.process.kill()
        peer.process.wait()
        with locks.lock("x", timeout=0) as hold:
            assert hold.token > token


@linux
def test_many_start_after_a_boot(path: Path, tmp_path: Path, peers: Callable[..., Peer]) -> None:
    with Client.from_url(f"sqlite:{path}") as before, before.lock("x"):
        pass
    proc = fake_proc(tmp_path / "p", boot="the next boot")
    crowd = [peers(proc) for _ in range(6)]
    for peer in crowd:
        peer.tell("take('y', timeout=20) and holds['y'].release()")
    assert [peer.answer() for peer in crowd] == [True] * 6


@linux
def test_file_taken_over_is_noticed(path: Path, locks: Client) -> None:
    hold = locks.lock("x").acquire()
    assert hold is not None
    raw(path, "UPDATE host SET boot = 'of another machine'")
    with pytest.raises(Unsupported, match="taken over"):
        hold.extend()
    raw(path, "UPDATE host SET boot = ?", Machine().boot())
    hold.release()


@linux
def test_other_time_namespace_is_refused(path: Path, tmp_path: Path, locks: Client) -> None:
    proc = fake_proc(tmp_path / "p", offset=86400)
    with locks.lock("x"), client_on(path, proc) as others, pytest.raises(Unsupported, match="time namespace"):
        others.lock("x").acquire()
    assert locks.inspect("x") is None


@root
def test_real_time_namespace(path: Path, locks: Client) -> None:
    unshare = ("unshare", "--time", "--boottime", "1000", "--fork")
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("time namespaces cannot be made here")
    code = """
        import sys
        from leasehold import Client, Unsupported
        with Client.from_url("sqlite:" + sys.argv[1]) as locks:
            try:
                locks.lock("x").acquire(timeout=0)
            except Unsupported as error:
                print(error)
        """
    with locks.lock("x"):
        assert "time namespace" in run_python(code, path, before=unshare)


@linux
def test_boot_unknown(path: Path, tmp_path: Path) -> None:
    with client_on(path, str(tmp_path / "nothing")) as locks, pytest.raises(Unsupported, match="identity of the boot"):
        locks.lock("x").acquire()


# --- who is alive --------------------------------------------------------------------------------------------------


@linux
def test_pid_used_again(tmp_path: Path) -> None:
    sleeper = subprocess.Popen(["sleep", "30"])
    try:
        machine = Machine(fake_proc(tmp_path / "p", pid=sleeper.pid, started=777))
        me = machine.process()
        assert not machine.is_gone(Process(sleeper.pid, 777, me.pids), me)
        assert machine.is_gone(Process(sleeper.pid, 776, me.pids), me)
        assert not machine.is_gone(Process(sleeper.pid, 776, "pid:[1]"), me)  # a number of another namespace
        assert not machine.is_gone(Process(sleeper.pid, 0, me.pids), me)
    finally:
        sleeper.kill()
        sleeper.wait()
    assert Machine().is_gone(Process(sleeper.pid, 0, me.pids), me)
    assert not Machine().is_gone(Machine().process(), Machine().process())


@linux
def test_hidden_process_counts_as_alive(tmp_path: Path) -> None:
    """With hidepid the folder of another user's process is not there, but the process is."""
    machine = Machine(fake_proc(tmp_path / "p"))
    me = machine.process()
    assert not machine.is_gone(Process(1, 1, me.pids), me)


@linux
def test_seat_of_a_reused_pid_is_void(path: Path, locks: Client, peers: Callable[..., Peer]) -> None:
    peer = peers()
    peer.ask("take('x', lease=60)")
    assert locks.lock("x").acquire(timeout=0.1) is None
    raw(path, "UPDATE seat SET started = started - 1")
    with locks.lock("x", timeout=1):
        pass


# --- files and file systems ----------------------------------------------------------------------------------------

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / {point} rw,relatime shared:1 - {kind} server:/export rw
"""


@linux
@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "afs", "lustre", "virtiofs"]
)
def test_network_file_systems_are_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a share" / "sub" / "locks.db"
    point = str(path.parent.parent).replace(" ", r"\040")
    proc = fake_proc(tmp_path / "p", mounts=MOUNTS.format(point=point, kind=kind))
    with client_on(path, proc) as locks, pytest.raises(Unsupported, match=rf"{kind}.*allow_network=1"):
        locks.lock("x").acquire()
    assert not path.parent.exists()
    with client_on(path, proc, allow_network=True) as locks:
        with locks.lock("x", timeout=0):
            pass
        assert any(one.severity is Severity.WARNING and kind in one.found for one in locks.diagnose())


@linux
def test_local_file_systems_are_not(path: Path, tmp_path: Path) -> None:
    proc = fake_proc(tmp_path / "p", mounts=MOUNTS.format(point=path.parent.parent / "elsewhere", kind="nfs4"))
    with client_on(path, proc) as locks, locks.lock("x", timeout=0):
        pass


@linux
def test_single_file_mount_is_refused(path: Path, tmp_path: Path) -> None:
    path.touch()
    proc = fake_proc(tmp_path / "p", mounts=MOUNTS.format(point=path, kind="ext4"))
    with client_on(path, proc) as locks, pytest.raises(Unsupported, match="mount its folder"):
        locks.lock("x").acquire()


def refused(path: Path) -> BaseException:
    began = boottime()
    with (
        Client.from_url(f"sqlite:{path}") as locks,
        pytest.raises((StoreUnavailable, Unsupported)) as caught,
    ):
        locks.lock("x").acquire()
    assert boottime() - began < 1.0
    assert not getattr(caught.value, "unknown", False)
    return caught.value


def test_folder_given(tmp_path: Path) -> None:
    assert f"name a file in it, for example sqlite:{tmp_path}/locks.db" in str(refused(tmp_path))


def test_device_given() -> None:
    assert "not a regular file" in str(refused(Path("/dev/null")))


def test_not_a_database(path: Path) -> None:
    path.write_bytes(b"keep this text\n" * 100)
    assert "is not a SQLite database" in str(refused(path))
    assert path.read_bytes() == b"keep this text\n" * 100


def test_database_of_another_application(path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t (x)")
        db.commit()
    before = path.read_bytes()
    assert "of another application" in str(refused(path))
    assert path.read_bytes() == before


def test_newer_layout(path: Path, locks: Client) -> None:
    with locks.lock("x"):
        pass
    raw(path, f"PRAGMA user_version={LAYOUT + 1}")
    assert "upgrade it" in str(refused(path))


def test_empty_file_is_taken(path: Path) -> None:
    path.touch()
    with Client.from_url(f"sqlite:{path}") as locks, locks.lock("x", timeout=0):
        pass


def test_old_sqlite(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leasehold.stores.sqlite.database.OLDEST_SQLITE", (99, 0, 0))
    assert "need SQLite 99.0.0" in str(refused(path))


def test_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "cannot be made or reached" in str(refused(tmp_path / "file" / "locks.db"))
    assert "cannot be made or reached" in str(refused(Path("/proc/nowhere/locks.db")))


@pytest.mark.skipif(os.name != "posix", reason="permissions")
@pytest.mark.parametrize("what", ["file", "folder", "closed"])
def test_no_permission(tmp_path: Path, what: str) -> None:
    """As a user who may not write, or not even enter."""
    folder = tmp_path / "theirs"
    path = folder / "locks.db"
    with Client.from_url(f"sqlite:{path}") as locks, locks.lock("x"):
        pass
    path.chmod(0o444 if what == "file" else 0o666)
    folder.chmod({"file": 0o777, "folder": 0o555, "closed": 0o700}[what])
    code = """
        import os, sys
        from leasehold import Client, StoreUnavailable
        import leasehold.stores.sqlite, encodings.idna  # while this user may read them
        if os.geteuid() == 0:
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
        with Client.from_url("sqlite:" + sys.argv[1]) as locks:
            try:
                locks.lock("x").acquire()
            except StoreUnavailable as error:
                assert not error.unknown
                print(error)
        """
    for parent in tmp_path.parents:
        if os.geteuid() == 0 and parent.owner() == "root" and len(parent.parts) > 2:
            parent.chmod(parent.stat().st_mode | 0o011)
    tmp_path.chmod(0o755)
    if what == "closed" and os.geteuid() != 0:
        folder.chmod(0o000)
    try:
        said = run_python(code, path)
    finally:
        folder.chmod(0o755)
    assert str(path) in said
    assert any(words in said for words in ("cannot be written", "Permission denied", "must be writable"))


@root
def test_disk_full(tmp_path: Path) -> None:
    code = """
        import os, sys
        from pathlib import Path
        from leasehold import Client, StoreUnavailable
        folder = Path(sys.argv[1])
        with Client.from_url(f"sqlite:{folder}/locks.db") as locks:
            first = locks.lock("first").acquire()
            with open(folder / "filler", "wb", buffering=0) as filler:
                try:
                    while True: filler.write(bytes(4096))
                except OSError: pass
            failed = 0
            for number in range(3000):
                try:
                    locks.lock(f"n{number}", meta="x" * 1000).acquire()
                except StoreUnavailable as error:
                    assert not error.unknown and "full" in str(error), error
                    failed += 1
                    if failed == 3: break
            assert failed == 3
            first.check()
            names = len(locks.holds())
            os.unlink(folder / "filler")
            assert first.release() is True
            assert len(locks.holds()) == names - 1 == number - 2
            with locks.lock("after"): pass
        print("ok")
        """
    mount = f'mount -t tmpfs -o size=1m none {tmp_path} && exec "$0" "$@"'
    assert run_python(code, tmp_path, before=("unshare", "--mount", "sh", "-c", mount)).strip() == "ok"


@root
def test_read_only_file_system(tmp_path: Path) -> None:
    code = """
        import sys
        from leasehold import Client, StoreUnavailable
        for name in ("locks.db", "new.db"):
            with Client.from_url(f"sqlite:{sys.argv[1]}/{name}") as locks:
                try:
                    locks.lock("x").acquire()
                except StoreUnavailable as error:
                    print(error)
        """
    with Client.from_url(f"sqlite:{tmp_path}/locks.db") as locks, locks.lock("x"):
        pass
    mount = f'mount --bind {tmp_path} {tmp_path} && mount -o remount,ro,bind {tmp_path} && exec "$0" "$@"'
    said = run_python(code, tmp_path, before=("unshare", "--mount", "sh", "-c", mount)).splitlines()
    assert len(said) == 2
    assert "Read-only file system" in said[1]


def test_deleted_file_is_noticed(path: Path) -> None:
    with Client.from_url(f"sqlite:{path}") as locks, Client.from_url(f"sqlite:{path}") as others:
        hold = locks.lock("x").acquire()
        assert hold is not None
        for file in path.parent.glob("locks.db*"):
            file.unlink()
        other = others.lock("x").acquire(timeout=0)
        assert other is not None
        assert other.token > hold.token
        with pytest.raises(LeaseLost):
            hold.extend()
        other.check()


def test_tokens_after_an_old_copy_was_restored(path: Path, tmp_path: Path) -> None:
    """As after a loss of power that took back commits, or a restore: the clock keeps tokens rising."""
    with Client.from_url(f"sqlite:{path}") as locks, locks.lock("x"):
        shutil.copytree(path.parent, tmp_path.parent / f"{tmp_path.name}-copy")
    with Client.from_url(f"sqlite:{path}") as locks, locks.lock("x") as hold:
        last = hold.token
    for file in (tmp_path.parent / f"{tmp_path.name}-copy").iterdir():
        shutil.copy(file, path.parent / file.name)
    with Client.from_url(f"sqlite:{path}") as locks:
        with locks.lock("y", timeout=0) as hold:
            assert hold.token > last
        info = locks.inspect("x")  # the copy has it held; its holder is this process, so the lease decides
        assert info is not None
        assert locks.break_("x", info.token)
        with locks.lock("x", timeout=1) as hold:
            assert hold.token > last


# --- rows do not pile up -------------------------------------------------------------------------------------------


def test_unused_rows_are_swept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client.from_url(f"sqlite:{path}") as locks:
        for number in range(150):
            with locks.lock(f"n{number}") as hold:
                last = hold.token
        drive(locks.store.cell("short", Change(b"1", life=0.01)))
        drive(locks.store.cell("long", Change(b"1")))
        kept = locks.lock("kept", lease=86_000).acquire()
        assert kept is not None
    with Client.from_url(f"sqlite:{path}") as locks:
        kept = locks.lock("kept", lease=86_000).acquire()
        assert kept is not None
        dead = Ticket(ticket_id(os.urandom(16)), Terms(Rule(), Owner("h", 1, "c"), 0.05))
        drive(locks.store.claim("abandoned", dead, join=True, within=1))
        time.sleep(0.06)
        raw(path, "UPDATE name SET used = used - ?", int((sweep.IDLE_LIFE + 1) * 1e9))
        monkeypatch.setattr(sweep, "EVERY", 1)
        monkeypatch.setattr(BlockingRuntime, "wall_us", staticmethod(lambda: 1))
        for _ in range(4):
            with locks.lock("used"):
                pass
        left = raw(path, "SELECT CAST(name AS TEXT) FROM name ORDER BY name")
        assert left == [["kept"], ["used"]]
        assert raw(path, "SELECT CAST(name AS TEXT) FROM cell") == [["long"]]
        assert raw(path, "SELECT count(*) FROM seat") == [[1]]
        kept.check()
        with locks.lock("n149") as hold:  # forgotten, and the wall clock was set back to 1970
            assert hold.token > last
        kept.release()


def test_a_name_in_use_for_hours_is_not_forgotten_when_it_is_released(path: Path, locks: Client) -> None:
    hold = locks.lock("x").acquire()
    assert hold is not None
    raw(path, "UPDATE name SET used = used - ?", int((sweep.IDLE_LIFE + 1) * 1e9))
    hold.release()
    ((behind,),) = raw(path, "SELECT used FROM name")
    assert boottime() - behind / 1e9 < 600


# --- the end -------------------------------------------------------------------------------------------------------


def test_diagnose(path: Path, locks: Client) -> None:
    with locks.lock("x"):
        pass
    found = {one.subject: one for one in locks.diagnose()}
    assert found["sqlite file"].found == str(path)
    assert found["sqlite durability"].found == "journal_mode=wal synchronous=full"
    assert found["permissions"].severity is Severity.OK
    assert {"sqlite version", "file system", "boot and clock", "process liveness"} <= found.keys()
    path.chmod(0o666)
    found = {one.subject: one for one in locks.diagnose()}
    assert found["permissions"].severity is Severity.WARNING
    path.chmod(0o640)
    found = {one.subject: one for one in locks.diagnose()}
    assert found["permissions"].severity is Severity.NOTE


def test_close_ends_thread_and_socket(path: Path) -> None:
    locks = Client.from_url(f"sqlite:{path}")
    with locks.lock("x"):
        assert locks.lock("x").acquire(timeout=0.05) is None
        assert any(thread.name == "leasehold-sqlite-bell" for thread in threading.enumerate())
    locks.close()
    assert not any(thread.name == "leasehold-sqlite-bell" for thread in threading.enumerate())
    assert not datagram._bells
    if sys.platform == "linux":
        for descriptor in os.listdir("/proc/self/fd"):
            with contextlib.suppress(FileNotFoundError):  # the one that lists them is closed by now
                assert str(path) not in os.readlink(f"/proc/self/fd/{descriptor}")
    locks.close()


def test_idle_bell_ends_by_itself(path: Path, locks: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datagram, "LINGER", 1)
    for _ in range(2):
        with locks.lock("x"):
            assert locks.lock("x").acquire(timeout=0.05) is None
        wait_until(lambda: not any(one.name == "leasehold-sqlite-bell" for one in threading.enumerate()))


def wait_until(true: Callable[[], bool], within: float = 10.0) -> None:
    until = boottime() + within
    while not true():
        assert boottime() < until
        time.sleep(0.01)
