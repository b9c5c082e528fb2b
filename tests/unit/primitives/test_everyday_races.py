"""Objects for every day, whose users come in between each other's steps at the worst moment."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from leasehold import Leader, LeaseLost, StoreUnavailable, Unsupported
from leasehold._model import Change, Owner, Wait, ticket_id
from leasehold.primitives.coordination import journal
from leasehold.stores.memory import Memory, MemoryStore
from leasehold_lab.faulty_store import Call, Fault, Faulty, Kind
from leasehold_lab.runtimes.harnesses import Harness, SimulatedHarness

numbers = itertools.count()


def space() -> Memory:
    return Memory(f"everyday-{next(numbers)}")


class At:
    """A plan that delays some calls of a method, told by their number from 0."""

    def __init__(self, **delays: dict[int, Fault]) -> None:
        self.delays = delays
        self.met = dict.fromkeys(delays, 0)

    def __call__(self, call: Call) -> Fault | None:
        if call.method not in self.delays:
            return None
        number = self.met[call.method]
        self.met[call.method] += 1
        return self.delays[call.method].get(number)


def test_two_who_do_it_at_once_do_it_once(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        memory, done = space(), list[int]()

        async def work() -> int:
            await harness.sleep(0.1)
            done.append(1)
            return len(done)

        clients = [harness.client(memory) for _ in range(3)]
        assert await harness.gather(*(client.once("a", ttl=60).run(work) for client in clients)) == [1, 1, 1]
        assert done == [1]

    harness.run(body)


def test_a_leader_that_proclaims_two_things_at_once_proclaims_both_one_after_the_other() -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(space())
        async with client.election("a") as leadership:
            await harness.gather(leadership.proclaim("one"), leadership.proclaim("two"))
            leader = await client.election("a").leader()
            assert leader is not None
            assert leader.value in ("one", "two")
            assert (await client.store.compare_and_set("election/a", Change())).version == 2

    for seed in range(5):
        SimulatedHarness(seed).run(body)


def test_who_looks_while_the_lead_changes_is_shown_the_newer_leader(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        memory = space()
        slow = harness.client(Faulty(memory, At(inspect={0: Fault(Kind.DELAY_REPLY, 0.4)})))
        one, two = (harness.client(memory).election("a", name) for name in ("one", "two"))
        first = await one.campaign()
        assert first is not None
        looks = harness.spawn(slow.election("a").leader)
        await harness.sleep(0.1)
        await first.resign()
        async with two as second:
            await second.proclaim("two, at work")
            assert await looks.result() == Leader("two, at work", second.token, second.owner)

    harness.run(body)


def test_a_count_whose_reply_was_lost_among_too_many_others_is_told_as_unknown(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "KEPT", 2)

    async def body(harness: Harness) -> None:
        memory = space()
        client = harness.client(Faulty(memory, At(compare_and_set={1: Fault(Kind.DROP_REPLY, 1.5)})))
        job = harness.spawn(lambda: client.latch("a", 100).count_down())
        await harness.sleep(0.1)
        other = harness.client(memory).latch("a", 100)
        for _ in range(5):
            await other.count_down()
        with pytest.raises(StoreUnavailable, match="too many others followed to tell") as caught:
            await job.result()
        assert caught.value.unknown
        assert await other.count() in (94, 95)

    harness.run(body)


def test_a_tick_that_an_earlier_holder_stamps_at_the_last_moment_runs_here_no_more(harness: Harness) -> None:
    """The write of one whose lease has run out comes between the look and the stamp of its successor."""

    async def body(harness: Harness) -> None:
        memory, ran = space(), list[int]()
        client = harness.client(Faulty(memory, At(compare_and_set={0: Fault(Kind.DELAY_REPLY, 1.5)})))
        job = harness.spawn(lambda: client.scheduled("a", at_least=60, at_most=5).run(lambda: ran.append(1)))
        await harness.sleep(0.1)
        other = harness.client(memory)
        core = other.blocking._core if hasattr(other, "blocking") else other
        stamped = await core.store.compare_and_set(
            "scheduled/a", Change(b'j12345678"an earlier holder"', if_version=0, fence=1)
        )
        assert stamped.changed
        assert await job.result() is False
        assert ran == []
        assert await other.holds() == []

    harness.run(body)


def test_a_value_that_was_fetched_by_another_and_has_ended_since_is_fetched_again(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        memory, fetched = space(), list[int]()

        async def fetch() -> int:
            fetched.append(1)
            return len(fetched)

        delays = At(
            try_acquire={0: Fault(Kind.DELAY_REQUEST, 0.6)}, compare_and_set={3: Fault(Kind.DELAY_REQUEST, 1.6)}
        )
        slow = harness.client(Faulty(memory, delays)).cached("a", 1.6, fetch, early=0.8)
        quick = harness.client(memory).cached("a", 1.6, fetch, early=0.8)
        assert await quick.get() == 1
        await harness.sleep(1.0)  # the value is there still, and it is time to fetch another
        job = harness.spawn(slow.get)
        await harness.sleep(0.2)
        assert await quick.get() == 2
        assert await job.result() == 3

    harness.run(body)


def test_a_value_that_another_fetched_just_now_is_taken_from_it(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        memory, fetched = space(), list[int]()

        async def fetch() -> int:
            fetched.append(1)
            return len(fetched)

        late = Faulty(memory, At(try_acquire={0: Fault(Kind.DELAY_REQUEST, 0.4)}))
        slow, quick = (harness.client(where).cached("a", 20.0, fetch, early=19.4) for where in (late, memory))
        assert await quick.get() == 1
        await harness.sleep(0.8)  # it is time to fetch another
        job = harness.spawn(slow.get)
        await harness.sleep(0.1)
        assert await quick.get() == 2
        assert await job.result() == 2
        assert len(fetched) == 2

    harness.run(body)


def test_an_early_fetch_that_fails_when_the_old_value_has_ended_fails(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        fails = [False]

        async def fetch() -> int:
            if fails[0]:
                await harness.sleep(0.8)
                raise ZeroDivisionError
            return 1

        shared = harness.client(space()).cached("a", 1.0, fetch, early=0.6)
        assert await shared.get() == 1
        await harness.sleep(0.6)
        fails[0] = True
        with pytest.raises(ZeroDivisionError):
            await shared.get()

    harness.run(body)


def test_what_takes_longer_to_fetch_than_it_lives_is_given_to_its_caller_and_not_kept(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        fetched = list[int]()

        async def fetch() -> int:
            await harness.sleep(0.2)
            fetched.append(1)
            return len(fetched)

        shared = harness.client(space()).cached("a", 0.1, fetch)
        assert [await shared.get(), await shared.get()] == [1, 2]

    harness.run(body)


def test_who_loses_its_lock_at_each_fetch_gives_up_after_three(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        client, fetched = harness.client(space()), list[int]()

        async def fetch() -> int:
            fetched.append(1)
            found = await client.inspect("shared/a")
            assert found is not None
            assert found.token is not None
            await client.force_release("shared/a", found.token)
            await harness.sleep(0.2)
            return len(fetched)

        with pytest.raises(LeaseLost):
            await client.cached("a", 0.1, fetch).get()
        assert len(fetched) == 3

    harness.run(body)


# --- what stores say, and what they are told ---------------------------------------------------------------------


def test_a_store_that_takes_no_long_lease_refuses_the_lock_when_it_is_made(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStore, "capabilities", replace(MemoryStore.capabilities, longest=10.0))

    async def body(harness: Harness) -> None:
        client = harness.client(space())
        with pytest.raises(
            Unsupported, match="no lease longer than 10 s, lock delay included, and this is one of 11 s"
        ):
            client.lock("a", lease=9, lock_delay=2)
        async with client.lock("a", lease=8, lock_delay=2):
            pass

    harness.run(body)


def test_a_store_without_versions_has_no_latch(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryStore, "capabilities", replace(MemoryStore.capabilities, cells=False))

    async def body(harness: Harness) -> None:
        with pytest.raises(Unsupported, match="keeps no values with versions"):
            harness.client(space()).latch("a", 2)

    harness.run(body)


def test_who_waits_where_nobody_may_enter_is_told_why_and_for_how_long(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(harness: Harness) -> None:
        client = harness.client(space())
        core = client.blocking._core if hasattr(client, "blocking") else client

        async def claim(*args: object, **options: object) -> Wait:
            return Wait(None, 7.0, None, "the server may have forgotten what it granted")

        monkeypatch.setattr(core.store, "try_acquire", claim)
        with pytest.raises(TimeoutError, match=r"may have forgotten what it granted for [67]\.\d s more"):
            async with client.lock("a", timeout=0.1):
                pytest.fail("the block ran")

    harness.run(body)


def test_a_client_says_what_it_finds_of_its_store(harness: Harness) -> None:
    async def body(harness: Harness) -> None:
        (finding,) = await harness.client(space()).diagnose()
        assert finding.subject == "memory"
        assert finding.meaning == "locks end with the process"

    harness.run(body)


def test_owners_are_read_back_and_what_another_wrote_is_shown_as_it_is() -> None:
    owner = Owner("host", 7, "client")
    assert Owner.parse(str(owner)) == owner
    assert Owner.parse("somebody else") == Owner("somebody else", 0, "")


def test_a_ticket_is_made_of_sixteen_bytes() -> None:
    assert len(ticket_id(bytes(16))) == 22
    with pytest.raises(ValueError, match="16 random bytes"):
        ticket_id(bytes(15))
