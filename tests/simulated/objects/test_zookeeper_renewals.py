"""ZooKeeper: a renewal that is under way while an acquire of the same ticket enters. Its answer may be late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from test_zookeeper_tickets import KINDS, STEPS, Scene, play

from leasehold._model import Granted, Kind, LeaseTerms, LockMode, Owner, ReleaseReason, RenewalResult, Ticket, ticket_id

MODES = {
    "lock": LockMode(),
    "reader": LockMode(Kind.READ_WRITE, exclusive=False),
    "writer": LockMode(Kind.READ_WRITE),
    "permits": LockMode(Kind.SEMAPHORE, exclusive=False, permits=2, limit=2),
}


def ticket_of(kind: str) -> Ticket:
    return Ticket(ticket_id(bytes(range(16))), LeaseTerms(MODES[kind], Owner("host", 1, "x"), 9.0))


@pytest.mark.parametrize("late", range(STEPS))
@pytest.mark.parametrize("kind", KINDS)
def test_a_renewal_that_a_grant_overtakes_never_says_that_it_is_gone(kind: str, late: int) -> None:
    """It begins at each request of the acquire, and its answer is looked at some requests later, or after the grant."""
    overtaken = 0

    async def story(scene: Scene) -> None:
        nonlocal overtaken
        store: Any = scene.first.store
        read, ask_all = store._read, store._transport.ask_all
        ticket = ticket_of(kind)
        sent, renewing, granted = 0, False, False
        jobs, results = list[Any](), list[RenewalResult]()

        async def slow_read(paths: Sequence[str], until: float) -> dict[str, object]:
            nonlocal renewing, overtaken
            renewing = True
            found: dict[str, object] = await read(paths, until)
            while sent < step + late and not granted:
                await scene.harness.sleep(0.0001)
            overtaken += granted
            return found

        async def renew() -> None:
            results.extend(await store.renew([("a", ticket)], within=5.0))

        async def ask(requests: Sequence[Any], until: float) -> list[Any]:
            nonlocal sent, renewing
            if renewing:
                renewing = False
            else:
                if sent == step:
                    jobs.append(scene.machine.spawn(renew))
                sent += 1
            return list(await ask_all(requests, until))

        holder = await scene.rival().acquire()
        assert holder is not None
        assert not isinstance(await store.try_acquire("a", ticket, join=True, within=5.0), Granted)
        await holder.release()
        store._read, store._transport.ask_all = slow_read, ask
        assert isinstance(await store.try_acquire("a", ticket, join=True, within=5.0), Granted)
        granted = True
        for job in jobs:
            await job.result()
        assert RenewalResult.GONE not in results, f"asked at request {step}"
        await renew()
        assert results[-1] is RenewalResult.HELD
        assert await store.release("a", ticket, reason=ReleaseReason.RELEASE, within=5.0)

    for step in range(STEPS):
        play(step, story, kind=kind)
    assert overtaken or late == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_hold_of_an_earlier_session_is_gone(kind: str) -> None:
    async def story(scene: Scene) -> None:
        store: Any = scene.first.store
        assert isinstance(await store.try_acquire("a", ticket_of(kind), join=True, within=5.0), Granted)
        scene.system.ensemble.end(store._transport.session.id)
        async with scene.first.lock("b"):  # in the next session
            assert list(await store.renew([("a", ticket_of(kind))], within=5.0)) == [RenewalResult.GONE]

    play(1, story, kind=kind)
