"""Which keys of an etcd queue wake a waiter: one of them must be deleted before it can enter, and they are few."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold._model import Kind, LeaseTerms, LockMode, Owner, Ticket
from leasehold.stores.etcd.entries import QueueKey, blockers, is_its_turn, may_enter, may_overtake


def key(at: int, mode: LockMode, *, holds: bool) -> QueueKey:
    ticket = Ticket(f"{at}", LeaseTerms(mode, Owner("host", 1, "client"), 30.0))
    return QueueKey(f"queue/{at}", at, at, 7, ticket, holds)


def permits_of(keys: Sequence[QueueKey]) -> int:
    return sum(one.mode.permits for one in keys)


@st.composite
def semaphores(draw: st.DrawFn, permits: st.SearchStrategy[int]) -> list[QueueKey]:
    """Draw the keys of a semaphore; the last one is fair and waits, and has no room."""
    limit = draw(st.integers(1, 6))
    wanted = [min(one, limit) for one in draw(st.lists(permits, min_size=2, max_size=12))]
    modes = [LockMode(Kind.SEMAPHORE, permits=one, limit=limit, fair=True) for one in wanted]
    order = draw(st.permutations(range(len(modes) - 1)))  # who arrived early need not have entered early
    held, free = set[int](), limit
    for at in order:
        if modes[at].permits <= free:
            held.add(at)
            free -= modes[at].permits
    if modes[-1].permits <= free:  # the first one takes what is free
        modes[0] = LockMode(Kind.SEMAPHORE, permits=modes[0].permits + free, limit=limit, fair=True)
        held.add(0)
    return [key(at, mode, holds=at in held) for at, mode in enumerate(modes)]


@given(semaphores(st.just(1)) | semaphores(st.integers(1, 6)))
def test_a_fair_permit_waits_for_as_many_as_there_are_too_many_but_one(present: list[QueueKey]) -> None:
    *before, own = present
    watched = blockers(present, own.ticket)
    limit, wanted = own.mode.limit, own.mode.permits
    assert permits_of(watched) + wanted > limit  # while all of them are there, it cannot enter
    assert permits_of(watched[1:]) + wanted <= limit  # and none of them is there in vain
    assert watched == before[len(before) - len(watched) :]


class Story:
    """A queue through which tickets go: they arrive, enter, leave, end, die as waiters, and are woken by deletions."""

    def __init__(self, seed: int, kind: Kind, fair: Sequence[bool]) -> None:
        self.random = random.Random(seed)
        self.kind = kind
        self.fair = fair
        self.limit = self.random.randint(1, 5)
        self.keys = list[QueueKey]()
        self.watched = dict[str, set[str]]()
        self.woken = list[str]()
        self.dead = set[str]()
        self.tickets = dict[str, Ticket]()
        self.revision = 0

    def arrive(self) -> None:
        fair, alongside, of_mine = self.random.choice(self.fair), "", None
        if self.kind is Kind.SEMAPHORE:
            mode = LockMode(Kind.SEMAPHORE, permits=self.random.randint(1, self.limit), limit=self.limit, fair=fair)
        else:
            wants = self.random.choice("rrwwuu" if any(one.mode.upgradeable for one in self.keys) else "rwuu")
            based = {one.ticket.alongside for one in self.keys}
            held = [one for one in self.keys if one.holds and one.ticket.id not in based]
            upgradeable = [one for one in held if one.mode.upgradeable]
            writers = [one for one in held if one.mode.exclusive]
            if upgradeable and self.random.random() < 0.7:
                wants, of_mine = "w", upgradeable[0]
            elif writers and self.random.random() < 0.1:
                wants, of_mine = "r", writers[0]
            if of_mine is not None:
                alongside, fair = of_mine.ticket.id, of_mine.mode.fair
            mode = LockMode(Kind.READ_WRITE, exclusive=wants == "w", upgradeable=wants == "u", fair=fair)
        name = f"t{len(self.tickets)}"
        self.tickets[name] = Ticket(name, LeaseTerms(mode, Owner("host", 1, "client"), 30.0), alongside)
        self.attempt(name)

    def attempt(self, name: str) -> None:
        ticket = self.tickets[name]
        if not self.can_enter(ticket):
            self.put(ticket, holds=False)
        if self.can_enter(ticket):
            self.put(ticket, holds=True)
            self.watched.pop(name, None)
        else:
            self.watched[name] = {one.key for one in blockers(self.keys, ticket)}

    def can_enter(self, ticket: Ticket) -> bool:
        own = next((one for one in self.keys if one.ticket.id == ticket.id), None)
        if own is not None and is_its_turn(self.keys, own):
            return True
        return (may_overtake(ticket) or not self.keys) and may_enter("x", self.keys, ticket)

    def put(self, ticket: Ticket, *, holds: bool) -> None:
        self.revision += 1
        for at, one in enumerate(self.keys):
            if one.ticket.id == ticket.id:
                if holds != one.holds:
                    self.keys[at] = replace(one, written=self.revision, holds=holds)
                return
        self.keys.append(QueueKey(ticket.id, self.revision, self.revision, 7, ticket, holds))

    def delete(self, name: str) -> None:
        self.keys = [one for one in self.keys if one.key != name]
        self.watched.pop(name, None)
        self.woken = [one for one in self.woken if one != name]
        self.woken += [one for one, keys in self.watched.items() if name in keys and one not in self.woken]

    def go_on(self) -> None:
        """Let all woken tickets retry, in any order, until no ticket is woken any more."""
        while alive := [one for one in self.woken if one not in self.dead]:
            chosen = self.random.choice(alive)
            self.woken.remove(chosen)
            self.attempt(chosen)

    def step(self) -> None:
        waiters = [one.key for one in self.keys if not one.holds]
        match self.random.random():
            case draw if draw < 0.4 and len(self.keys) < 9:
                self.arrive()
            case draw if draw < 0.75 and self.keys:
                self.delete(self.random.choice(self.keys).key)
            case draw if draw < 0.8 and waiters:
                self.dead.add(self.random.choice(waiters))

    def sleeps_in_vain(self) -> list[str]:
        waiting = [one.ticket for one in self.keys if not one.holds and one.key not in self.dead]
        return [ticket.id for ticket in waiting if self.can_enter(ticket)]


@pytest.mark.parametrize("fair", [(True,), (False,), (True, False)], ids=["fair", "overtaking", "both"])
@pytest.mark.parametrize("kind", [Kind.SEMAPHORE, Kind.READ_WRITE])
def test_nobody_sleeps_who_could_enter(kind: Kind, fair: Sequence[bool]) -> None:
    """Among others: an upgrade whose reader ended meanwhile, waiters that died, and large permits before small ones."""
    for seed in range(1_000):
        story = Story(seed, kind, fair)
        for _ in range(40):
            story.step()
            if story.random.random() < 0.5:
                story.go_on()
                assert story.sleeps_in_vain() == [], f"seed {seed}"


def test_an_older_key_of_the_same_ticket_is_in_nobodys_way_but_that_of_others() -> None:
    """It joined again under another session, since a former leader had said that its session had ended."""
    mode = LockMode(Kind.SEMAPHORE, permits=1, limit=1, fair=True)
    older, own, other = (key(at, mode, holds=False) for at in range(3))
    own = replace(own, ticket=older.ticket)
    assert is_its_turn([older, own, other], own)
    assert not is_its_turn([older, own, other], other)
