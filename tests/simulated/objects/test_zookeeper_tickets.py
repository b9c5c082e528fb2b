"""ZooKeeper: tickets of a client that is cut off while its session lives on. Their nodes are removed, by the client.

A ticket may outlive its lease meanwhile: its nodes are removed in the background then. An acquire of the same ticket
may be repeated at that time, since it is repeated for as long as the store does not answer.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from leasehold import AsyncHold, Cancellation
from leasehold._model import Granted, LeaseTerms, LockMode, Owner, ReleaseReason, Ticket, ticket_id
from leasehold.client import AsyncClient
from leasehold.errors import StoreUnavailable
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness, SimulatedMachine
from models.history import quiet
from models.system import GOOD
from models.systems.zookeeper import ZooKeeperSystem
from models.zookeeper.transport import SimulatedZooKeeper

SEEDS = 30

BEFORE = 0.004
"""Seconds after the acquire at which the outage begins at the latest: among its requests, unless it is quicker."""

STEPS = 8
"""Requests of a try, or groups of them that are sent together: more than any has."""

KINDS = ("lock", "reader", "writer", "permits")

Chosen = Callable[[Sequence[Any]], bool]
"""Whether something happens just before these requests are sent."""


@dataclass
class Scene:
    """Two clients of an ensemble; the first is cut off from it, but its session lives on."""

    harness: SimulatedHarness
    session: float = 30.0
    kind: str = "lock"
    lease: float = 2.0
    patience: float = 9.0
    machine: SimulatedMachine = field(init=False)

    def __post_init__(self) -> None:
        self.system = ZooKeeperSystem(self.harness, 1.0, GOOD)
        opener = SimulatedZooKeeper(self.system.members, self.session)
        self.machine = self.harness.machine("first")
        self.first = self.machine.client(opener, response_timeout=self.patience)
        self.second = self.harness.machine("second").client(opener)

    def lock(self, client: AsyncClient, lease: float, kind: str = "") -> Any:
        """Return the lock of this kind."""
        match kind or self.kind:
            case "reader":
                return client.rw_lock("a", lease=lease).reader()
            case "writer":
                return client.rw_lock("a", lease=lease).writer()
            case "permits":
                return client.semaphore("a", 2, lease=lease)
        return client.lock("a", lease=lease)

    def mine(self) -> Any:
        """Return the lock of the first client."""
        if self.kind == "permits":
            return self.first.semaphore("a", 2, lease=self.lease).permits(2)
        return self.lock(self.first, self.lease)

    def rival(self) -> Any:
        """Return the lock of the second, which never shares it with the first."""
        return self.lock(self.second, 30.0, "writer" if self.kind == "reader" else "")

    async def connect(self) -> None:
        """Let each acquire once: the nodes above exist, and there are sessions."""
        for lock in (self.mine(), self.rival()):
            async with lock:
                pass

    def cut_off(self, seconds: float, *, arrives: bool) -> None:
        """Cut the first client off; ``arrives`` says whether what is under way gets there."""
        for member in self.system.members:
            member.link("first").refused = self.harness.scheduler.time + seconds
            member.hang_up(self.machine.machine, arrives=arrives)

    def nodes(self) -> list[str]:
        """Return the contenders' nodes."""
        return [path for path in self.system.ensemble.tree.nodes if "/_c_" in path]

    def at_request(self, when: Chosen, then: Callable[[], object]) -> None:
        """Do something just before the first client sends the first requests that ``when`` chooses."""
        transport: Any = self.first.store._transport  # type: ignore[attr-defined]
        ask_all = transport.ask_all

        async def ask_and_do(requests: Sequence[Any], until: float) -> list[Any]:
            if when([request.form for request in requests]):
                transport.ask_all = ask_all
                then()
            answers: list[Any] = await ask_all(requests, until)
            return answers

        transport.ask_all = ask_and_do


def creates(forms: Sequence[Any]) -> bool:
    """Choose the create of a contender."""
    return any(type(form).__name__ == "Create2" and "/_c_" in form.path for form in forms)


def play(seed: int, story: Callable[[Scene], Awaitable[None]], **options: Any) -> None:
    harness = SimulatedHarness(seed)

    async def body(_: Harness) -> None:
        scene = Scene(harness, **options)
        await scene.connect()
        await story(scene)

    with quiet():
        harness.run(body)


# --- an acquire that is repeated for longer than its lease ------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("session", "lease"), [(30.0, 1.0), (30.0, 4.0), (4.0, 30.0), (6.0, 30.0)])
def test_an_acquire_that_outlasts_its_lease_in_an_outage_holds_alone(session: float, lease: float, kind: str) -> None:
    """An outage longer than the lease (here: at most 0.6 of the session) and shorter than the session."""
    cut, entered = 0, 0

    async def story(scene: Scene) -> None:
        nonlocal entered
        chance, harness = random.Random(f"{seed}/{session}/{lease}/{kind}"), scene.harness
        outage = chance.uniform(min(lease, 0.6 * session), min(session, 6.0))
        after = harness.scheduler.time + chance.choice((0.0, chance.uniform(0.0, BEFORE)))
        arrives = chance.random() < 0.5
        holding, overlaps = list[AsyncHold](), list[float]()

        def cut_off() -> None:
            nonlocal cut
            if not holding:
                scene.cut_off(outage, arrives=arrives)
                cut += 1

        harness.scheduler.at(after, harness.fate, cut_off)

        async def rival() -> None:
            nonlocal entered
            async with scene.rival():
                overlaps.extend(hold.remaining for hold in holding if not hold.lost)
                entered += 1

        hold = await scene.mine().acquire(timeout=20.0)
        assert hold is not None
        holding.append(hold)
        job = harness.spawn(rival)
        await harness.sleep(chance.uniform(0.5, 3.0))
        assert overlaps == [], f"seed {seed}: both held; the first for another {overlaps} s"
        assert not hold.lost, "nothing happened that could end it"
        holding.clear()
        await hold.release()
        await job.result()
        await harness.sleep(1.0)
        assert scene.nodes() == []

    for seed in range(SEEDS):
        play(seed, story, session=session, lease=lease, kind=kind)
    assert entered == SEEDS
    assert cut >= SEEDS / 2


async def try_acquire(scene: Scene, ticket: Ticket, within: float = 10.0) -> Granted:
    answer = await scene.first.store.try_acquire("a", ticket, join=True, within=within)
    assert isinstance(answer, Granted)
    return answer


def ticket_of(lease: float) -> Ticket:
    return Ticket(ticket_id(bytes(range(16))), LeaseTerms(LockMode(), Owner("host", 1, "x"), lease))


@pytest.mark.parametrize("seed", range(5))
def test_a_ticket_does_not_expire_while_an_acquire_of_it_is_under_way(seed: int) -> None:
    """One try waits for a connection for longer than the lease. Then its state is still the one in use."""

    async def story(scene: Scene) -> None:
        ticket = ticket_of(1.0)
        scene.at_request(creates, lambda: scene.cut_off(3.0, arrives=True))
        first = await try_acquire(scene, ticket)
        assert first.since + first.lease < scene.first.store._runtime.now(), "too late"  # type: ignore[attr-defined]
        again = await try_acquire(scene, ticket)
        assert again.token == first.token
        await scene.harness.sleep(1.5)
        assert scene.nodes() == [], "it expires after that"
        assert (await try_acquire(scene, ticket)).token > first.token

    play(seed, story)


@pytest.mark.parametrize("seed", range(5))
def test_a_create_in_a_later_session_than_its_acquire_began_in_is_found_again(seed: int) -> None:
    """The old session ends while the create waits for a connection. No second node is made behind the first."""

    async def story(scene: Scene) -> None:
        scene.at_request(creates, lambda: scene.cut_off(6.0, arrives=True))
        hold = await scene.mine().acquire(timeout=20.0)
        assert hold is not None
        assert len(scene.nodes()) == 1
        await hold.release()
        assert scene.nodes() == []

    play(seed, story, session=4.0)


@pytest.mark.parametrize("released", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_a_create_in_a_later_session_is_removed_by_a_release_or_when_its_ticket_expires(
    seed: int, *, released: bool
) -> None:
    async def story(scene: Scene) -> None:
        ticket = ticket_of(2.0)
        scene.at_request(creates, lambda: scene.cut_off(6.0, arrives=True))
        with pytest.raises(StoreUnavailable) as failed:
            await try_acquire(scene, ticket)
        assert failed.value.unknown
        assert len(scene.nodes()) == 1
        if released:
            assert await scene.first.store.release("a", ticket, reason=ReleaseReason.RELEASE, within=10.0)
        else:
            await scene.harness.sleep(1.0)
        assert scene.nodes() == []

    play(seed, story, session=4.0)


# --- a waiter ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cancels", [True, False])
@pytest.mark.parametrize("seed", range(10))
def test_a_waiter_whose_lease_ran_out_is_woken_and_waits_in_the_queue_again(seed: int, *, cancels: bool) -> None:
    """Its process stops for longer than the lease, and its session lives on."""

    async def story(scene: Scene) -> None:
        harness, cancel = scene.harness, Cancellation()
        holder, ended = await scene.rival().acquire(), list[float]()

        async def wait() -> None:
            hold = await scene.mine().acquire(timeout=300.0, cancel=cancel)
            ended.append(harness.now())
            assert (hold is None) is cancels
            if hold is not None:
                await hold.release()

        job = scene.machine.spawn(wait)
        await harness.sleep(1.0)
        assert len(scene.nodes()) == 2
        scene.machine.stall(4.0)
        await harness.sleep(6.0)
        assert len(scene.nodes()) == 2, "its node is removed, and it has made another"
        until = harness.now()
        if cancels:
            scene.machine.spawn(cancel_it(cancel))
        else:
            await holder.release()
        await job.join(100.0)
        assert [round(when - until) for when in ended] == [0]
        if cancels:
            await holder.release()
        await harness.sleep(1.0)
        assert scene.nodes() == []

    play(seed, story)


def cancel_it(cancel: Cancellation) -> Callable[[], Awaitable[None]]:
    async def now() -> None:
        cancel.cancel()

    return now


# --- a try that fails in a later step ---------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_an_acquire_that_fails_after_any_of_its_requests_leaves_no_node_behind(kind: str, *, taken: bool) -> None:
    """The outage is longer than the engine repeats the acquire. It releases a ticket if something may be stored."""
    failures = 0

    async def story(scene: Scene) -> None:
        nonlocal failures
        sent, holder = 0, None
        if taken:
            holder = await scene.rival().acquire()
        before = scene.nodes()

        def chosen(_: Sequence[Any]) -> bool:
            nonlocal sent
            sent += 1
            return sent > step

        scene.at_request(chosen, lambda: scene.cut_off(4.0, arrives=True))
        try:
            hold = await scene.mine().acquire(timeout=20.0)
        except StoreUnavailable as error:
            failures += 1
            honest = error.unknown or scene.nodes() == before
        else:
            honest = (hold is None) is taken
            if hold is not None:
                await hold.release()
        assert honest
        await scene.harness.sleep(6.0)
        assert scene.nodes() == before
        if holder is not None:
            await holder.release()

    for step in range(STEPS):
        play(step, story, kind=kind, lease=30.0, patience=2.0)
    assert failures >= 1
