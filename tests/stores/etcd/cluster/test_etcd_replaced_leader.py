"""A stopped and replaced leader of a real cluster continues: its answers to keep-alives must not count.

In each trial a client holds locks and knows the leader only, over a proxy; rivals wait at the other members. The leader
is stopped for longer than an election takes, and for less than the lease: until the second keep-alive was sent to it.
When the leader continues and has answered, the proxy cuts the client off. From then on the client believes only because
of that answer. A rival that enters while the client still believes is an overlap.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

import pytest

from leasehold import Client, Hold, LeaseLost, StoreUnavailable
from leasehold_lab.proxy.proxy import FaultProxy
from leasehold_lab.servers import EtcdCluster

LEASE = 5.0
STOPPED = (0.4, 1.3)
"""Seconds after a renewal at which the leader is stopped: before the next, at a third of the lease."""

RENEWED_WITHIN = 1.5
"""Seconds for the renewal to be over after the leader has gone on."""

LOCKS = 3
FREE_WITHIN = 2 * LEASE + 10.0
KEEP_ALIVE = b"/v3/lease/keepalive"


@dataclass
class Rival:
    """Enters after the holder, and looks at once what that believes."""

    client: Client
    hold: Hold
    entered: bool = False
    overlap: float | None = None
    thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=self.work)
        self.thread.start()

    def work(self) -> None:
        with self.client.lock(self.hold.name, lease=LEASE, timeout=FREE_WITHIN):
            self.entered, left = True, self.hold.remaining
            with suppress(LeaseLost):
                self.hold.raise_if_lost()
                self.overlap = left


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + seconds
    while not condition() and time.monotonic() < until:
        time.sleep(0.005)
    return condition()


def trial(cluster: EtcdCluster, namespace: str, seconds: float) -> tuple[list[Rival], bool]:
    """Return the rivals, all of whom have entered, and whether the second keep-alive reached the stopped leader."""
    leader = cluster.leader()
    others = ",".join(f"127.0.0.1:{one.port}" for one in cluster.members if one is not leader)
    with ExitStack() as stack:
        proxy = stack.enter_context(FaultProxy(leader.port))
        one = f"etcd://127.0.0.1:{proxy.port}"
        holder = stack.enter_context(Client.from_url(one, namespace=namespace, response_timeout=LEASE))
        client = stack.enter_context(Client.from_url(f"etcd://{others}", namespace=namespace))
        holds = [holder.lock(f"x{number}", lease=LEASE).acquire() for number in range(LOCKS)]
        rivals = [Rival(client, hold) for hold in holds]
        renewed = within(LEASE, lambda: proxy.count(KEEP_ALIVE) > 0)
        time.sleep(seconds)
        leader.pause()
        try:
            sent = proxy.count(KEEP_ALIVE)
            asked = renewed and within(LEASE, lambda: proxy.count(KEEP_ALIVE) >= sent + 2)
        finally:
            leader.resume()
        within(RENEWED_WITHIN, lambda: holds[0].remaining > LEASE / 2)
        proxy.blackhole()
        for rival in rivals:
            rival.thread.join()
        proxy.heal()
        for hold in holds:
            with suppress(LeaseLost, StoreUnavailable):
                hold.release()
    return rivals, asked


def run_trials(count: int, namespace: str) -> None:
    asked, overlaps = 0, list[str]()
    with EtcdCluster() as cluster:
        for number in range(count):
            seconds = random.uniform(*STOPPED)
            rivals, was_asked = trial(cluster, f"{namespace}-{number}", seconds)
            asked += was_asked
            assert all(rival.entered for rival in rivals)
            lefts = [rival.overlap for rival in rivals if rival.overlap is not None]
            if lefts:
                overlaps.append(f"trial {number}: a rival was inside with {max(lefts):.3f} s left")
                print(overlaps[-1], flush=True)
    print(f"{count} trials of {LOCKS} locks; asked in {asked}; overlaps in {len(overlaps)}")
    assert overlaps == []
    assert asked >= count / 2


@pytest.mark.timeout(300)
def test_a_holder_renewed_by_a_replaced_leader_never_overlaps_a_rival(namespace: str) -> None:
    run_trials(5, namespace)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_no_overlap_when_a_hundred_leaders_are_replaced(namespace: str) -> None:
    run_trials(100, namespace)
