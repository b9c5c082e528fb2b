"""A leader, or a holder of several locks, is killed or stopped: the next follows within the bound, and it learns it."""

from __future__ import annotations

import signal
import time

import pytest
from test_crash_of_a_doer import BOUND, LEASE, NOISE, at_work, place  # noqa: F401

from leasehold import Client

LEADS = f"client.election('x', 'old', lease={LEASE}).run(lambda leadership: work())"
HOLDS = f"with client.multi_lock(['c', 'a', 'b'], lease={LEASE}): work()"

GOES_ON = """hold = {take}
    print("began", flush=True)
    while True:
        at = time.monotonic()
        hold.raise_if_lost()
        print(at, flush=True)
        time.sleep(0.005)
"""
"""What a process does that looks before each step: the last line that it prints was true when it was looked at."""


@pytest.mark.parametrize("place", ["sqlite", "redis"], indirect=True)
def test_a_leader_that_was_killed_is_followed(place: tuple[str, str], namespace: str) -> None:  # noqa: F811
    kind, url = place
    with at_work(LEADS, url, namespace) as process, Client.from_url(url, namespace=namespace) as client:
        election = client.election("x", "new", lease=LEASE)
        assert election.campaign(timeout=0.2) is None
        before = election.leader()
        assert before is not None
        assert before.value == "old"
        stream = election.observe(every=0.05)
        assert next(stream) == before
        process.kill()
        start = time.monotonic()
        with election as leadership:
            assert time.monotonic() - start < BOUND[kind] + NOISE
            assert leadership.token > before.token
            seen = next(leader for leader in stream if leader is not None)
            assert (seen.value, seen.token) == ("new", leadership.token)


@pytest.mark.parametrize("place", ["sqlite", "redis"], indirect=True)
def test_all_locks_of_a_holder_that_was_killed_are_free(place: tuple[str, str], namespace: str) -> None:  # noqa: F811
    kind, url = place
    with at_work(HOLDS, url, namespace) as process, Client.from_url(url, namespace=namespace) as client:
        assert len(client.holds()) == 3
        assert client.multi_lock(["a", "z"]).acquire(timeout=0) is None
        process.kill()
        start = time.monotonic()
        with client.multi_lock(["a", "b", "c"], lease=LEASE):
            assert time.monotonic() - start < BOUND[kind] + NOISE


@pytest.mark.parametrize("place", ["sqlite", "redis"], indirect=True)
def test_killed_as_it_waits_for_the_second_it_blocks_nobody(place: tuple[str, str], namespace: str) -> None:  # noqa: F811
    kind, url = place
    waits = f"print('began', flush=True); client.multi_lock(['a', 'b'], lease={LEASE}).acquire()"
    with (
        Client.from_url(url, namespace=namespace) as client,
        client.lock("b") as hold,
        at_work(waits, url, namespace) as process,
    ):
        end = time.monotonic() + 10
        while not ((info := client.inspect("b")) and info.waiters):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert client.lock("a").acquire(blocking=False) is None
        process.kill()
        start = time.monotonic()
        with client.lock("a", lease=LEASE):
            assert time.monotonic() - start < BOUND[kind] + NOISE
        hold.release()
        with client.lock("b", lease=LEASE):
            assert time.monotonic() - start < 2 * BOUND[kind] + NOISE


@pytest.mark.parametrize("place", ["sqlite", "redis"], indirect=True)
@pytest.mark.parametrize(
    ("take", "other"),
    [
        (f"client.election('x', 'old', lease={LEASE}).campaign()", "election"),
        (f"client.multi_lock(['a', 'b'], lease={LEASE}).acquire()", "several"),
    ],
    ids=["leader", "several"],
)
def test_who_was_stopped_is_told_before_another_begins(
    place: tuple[str, str],  # noqa: F811
    namespace: str,
    take: str,
    other: str,
) -> None:
    _, url = place
    with (
        at_work(GOES_ON.format(take=take), url, namespace) as process,
        Client.from_url(url, namespace=namespace) as client,
    ):
        process.send_signal(signal.SIGSTOP)
        start = time.monotonic()
        lock = client.election("x", "new") if other == "election" else client.multi_lock(["b", "a"])
        with lock:
            began = time.monotonic()
            assert began - start < LEASE + 0.25 + NOISE
            process.send_signal(signal.SIGCONT)
            assert process.stdout is not None
            steps = [float(line) for line in process.stdout.read().split()]
            assert process.wait(10) != 0, "LeaseLost ended it"
            assert max(steps, default=0.0) < began, "it believed that it held when another did"
