"""An ensemble of three: leaders that are killed repeatedly, members that stall, and no quorum."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from leasehold import Client, LeaseLost
from leasehold._model import Severity
from leasehold.errors import LeaseholdError, StoreUnavailable
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import ZooKeeperEnsemble
from leasehold_lab.servers.zookeeper import TICK

pytestmark = pytest.mark.leaks("its servers last for the module")

SESSION = 6.0
NOISE = 1.5


@pytest.fixture(scope="module")
def servers() -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble() as ensemble:
        yield ensemble


@pytest.fixture
def ensemble(servers: ZooKeeperEnsemble) -> Iterator[ZooKeeperEnsemble]:
    """Give the ensemble whole, and make it whole again."""
    yield servers
    for member in servers.members:
        if member.running:
            member.resume()
        else:
            member.start()
    servers.wait()


class Workers:
    """Threads with a client each that add to one number under the lock, and watch over overlaps and tokens."""

    def __init__(self, url: str, namespace: str, count: int) -> None:
        self.number = self.inside = self.done = 0
        self.tokens: list[int] = []
        self.wrong: list[str] = []
        self.failed: list[LeaseholdError] = []
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(url, namespace)) for _ in range(count)]
        for thread in self.threads:
            thread.start()

    def work(self, url: str, namespace: str) -> None:
        with Client.from_url(url, namespace=namespace) as locks:
            while not self.stop.is_set():
                try:
                    with locks.lock("a", timeout=60) as hold:
                        self.visit(hold.token)
                        hold.raise_if_lost()
                except (LeaseLost, StoreUnavailable) as error:
                    self.failed.append(error)

    def visit(self, token: int) -> None:
        self.inside += 1
        if self.inside != 1:
            self.wrong.append("two inside")
        if self.tokens and token <= self.tokens[-1]:
            self.wrong.append(f"token {token} after {self.tokens[-1]}")
        self.tokens.append(token)
        seen = self.number
        time.sleep(0.002)
        self.number = seen + 1
        self.inside -= 1

    def end(self) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join(90)
        assert not any(thread.is_alive() for thread in self.threads)
        assert self.wrong == []
        assert self.number == len(self.tokens)


@pytest.mark.parametrize("times", [2, pytest.param(12, marks=[pytest.mark.nightly, pytest.mark.timeout(600)])])
def test_leaders_that_are_killed_again_and_again(ensemble: ZooKeeperEnsemble, namespace: str, times: int) -> None:
    """No two clients hold at once, tokens increase, and all continue after each election."""
    workers = Workers(f"{ensemble.url}/killed?session_timeout={SESSION}", namespace, 4)
    try:
        for _ in range(times):
            leader = ensemble.wait()
            seen = len(workers.tokens)
            leader.kill()
            ensemble.wait(serving=2, within=90)  # how long they take to elect is theirs
            until = time.monotonic() + 2 * SESSION + 20
            while len(workers.tokens) < seen + 20:
                assert time.monotonic() < until, f"they do not go on: {workers.failed[-3:]}"
                time.sleep(0.05)
            leader.start()
    finally:
        workers.end()


def test_a_hold_survives_the_death_of_its_member(ensemble: ZooKeeperEnsemble, namespace: str) -> None:
    """In the same session, on another member: in doubt for a moment, never lost."""
    with Client.from_url(f"{ensemble.url}/member?session_timeout=20", namespace=namespace) as locks:
        hold = locks.lock("a").acquire(timeout=30)
        assert hold is not None
        victim = _member_of(ensemble, locks)
        victim.kill()
        start = time.monotonic()
        while True:
            hold.raise_if_lost()
            try:
                hold.renew()
                break
            except StoreUnavailable:  # if it was the leader, the others first choose another
                assert time.monotonic() - start < 12  # what one confirmation is good for
        assert hold.release() is True


def test_a_client_leaves_a_stalled_member_before_its_hold_is_lost(ensemble: ZooKeeperEnsemble, namespace: str) -> None:
    """It accepts and says nothing: after one request without an answer the client goes on with another."""
    ensemble.wait()
    with Client.from_url(
        f"{ensemble.url}/stalled?session_timeout=20", namespace=namespace, response_timeout=2
    ) as locks:
        hold = locks.lock("a").acquire(timeout=30)
        assert hold is not None
        victim = _member_of(ensemble, locks)
        assert victim.role == "follower" or len(ensemble.followers()) == 2
        victim.pause()
        start = time.monotonic()
        while time.monotonic() - start < 14:  # longer than what one confirmation is good for
            hold.raise_if_lost()
            time.sleep(0.1)
        assert _member_of(ensemble, locks) is not victim
        victim.resume()
        assert hold.release() is True


def test_no_acquire_succeeds_without_a_quorum(ensemble: ZooKeeperEnsemble, namespace: str) -> None:
    url = f"{ensemble.url}/quorum?session_timeout=4"
    with Client.from_url(url, namespace=namespace, response_timeout=1) as locks:
        hold = locks.lock("a").acquire(timeout=30)
        assert hold is not None
        down = [member for member in ensemble.members if member is not ensemble.leader()]
        for member in down:
            member.kill()
        start = time.monotonic()
        while not hold.lost:
            assert time.monotonic() - start < 4 + NOISE
            time.sleep(0.02)
        with pytest.raises(StoreUnavailable):
            locks.lock("b").acquire(timeout=1)
        for member in down:
            member.start()
        ensemble.wait()
        until = time.monotonic() + 30
        while True:  # the dead session is counted anew by the new leader
            try:
                again = locks.lock("a").acquire(timeout=5)
                if again is not None:
                    break
            except StoreUnavailable:
                pass
            assert time.monotonic() < until
        assert again.token > hold.token
        again.release()


def test_a_killed_holder_and_a_killed_leader_cost_an_election_and_two_timeouts(
    ensemble: ZooKeeperEnsemble, namespace: str
) -> None:
    """The new leader gives every session its full time again."""
    url = f"{ensemble.url}/both?session_timeout=4"
    with Client.from_url(url, namespace=namespace) as locks:
        dead = Client.from_url(url, namespace=namespace)
        hold = dead.lock("a").acquire(timeout=30)
        assert hold is not None
        _kill_connection(dead)
        leader = ensemble.wait()
        start = time.monotonic()
        leader.kill()
        after = locks.lock("a", timeout=60).acquire()
        assert after is not None
        assert time.monotonic() - start < 2 * (4 + TICK) + 20 * TICK + NOISE
        assert after.token > hold.token
        assert hold.lost
        after.release()
        dead.close()


def test_a_hold_ends_when_its_member_is_cut_off_from_the_leader(namespace: str) -> None:
    """It still answers reads, but its clients' pings no longer reach the leader: its holders are notified in time."""
    timeout, proxies = 5.0, dict[tuple[int, int], FaultProxy]()

    def between(member: int, other: int, port: int) -> int:
        proxies[member, other] = FaultProxy(port).start()
        return proxies[member, other].port

    with ExitStack() as stack:
        cut_off = ZooKeeperEnsemble(between=between)
        for proxy in proxies.values():
            stack.callback(proxy.close)
        stack.enter_context(cut_off)
        leader, follower = cut_off.wait(), cut_off.followers()[0]
        there = Client.from_url(f"{follower.url}/cut?session_timeout={timeout}", namespace=namespace)
        here = stack.enter_context(Client.from_url(f"{leader.url}/cut?session_timeout=20", namespace=namespace))
        hold = there.lock("a").acquire(timeout=20)
        assert hold is not None
        to_error: list[float] = []
        hold.on_lost(lambda _: to_error.append(time.monotonic()))
        taken: list[float] = []

        def take() -> None:
            with here.lock("a", timeout=60):
                taken.append(time.monotonic())

        waiter = threading.Thread(target=take)
        waiter.start()
        while not ((info := here.inspect("a")) and info.waiters):
            time.sleep(0.01)
        proxies[follower.member, leader.member].blackhole()
        cut = time.monotonic()
        waiter.join(60)
        assert to_error, "another had it, and the holder still believed"
        assert to_error[0] < taken[0], (
            f"told {to_error[0] - cut:.2f} s after the cut, taken after {taken[0] - cut:.2f} s"
        )
        assert taken[0] - cut < timeout + 4 * TICK + NOISE
        proxies[follower.member, leader.member].heal()
        there.close()


def test_the_doctor_of_an_ensemble(ensemble: ZooKeeperEnsemble, namespace: str) -> None:
    ensemble.wait()
    with Client.from_url(f"{ensemble.url}/doctor", namespace=namespace) as locks:
        findings = {finding.subject: finding for finding in locks.diagnose()}
        assert findings["ensemble"].severity is Severity.OK
        assert findings["ensemble"].found.startswith("3 members; connected to a ")
        assert "members in the URL" not in findings
    with Client.from_url(f"{ensemble.members[0].url}/doctor", namespace=namespace) as locks:
        findings = {finding.subject: finding for finding in locks.diagnose()}
        assert findings["members in the URL"].found == "1 of 3"


def _member_of(ensemble: ZooKeeperEnsemble, locks: Client):  # type: ignore[no-untyped-def]
    port = locks.store._transport._kazoo._connection._socket.getpeername()[1]  # type: ignore[attr-defined]
    return next(member for member in ensemble.members if member.port == port)


def _kill_connection(locks: Client) -> None:
    """Stop a client's driver as its death would: nothing more is sent, and the session is not closed."""
    connection = locks.store._transport._kazoo  # type: ignore[attr-defined]
    connection._stopped.set()
    connection._connection._socket.shutdown(2)
