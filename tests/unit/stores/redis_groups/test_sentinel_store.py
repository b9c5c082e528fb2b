"""How the store on Sentinel repeats a claim during a failover, and how much of the caller's time each attempt gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from leasehold._model import Granted, LeaseTerms, LockMode, Owner, Ticket
from leasehold._url import parse
from leasehold.stores.redis.connection.base import RetryableError
from leasehold.stores.redis.openers import sentinels_from_url
from leasehold.stores.redis.sentinel.store import SentinelStore
from leasehold.stores.redis.store import RedisStore
from leasehold.stores.redis.strict.quorum import Strict
from support.flavors import on_runtimes


class Attempts:
    """What the store of one server was given for each claim; ``answers`` are its answers, and then it has none."""

    def __init__(self, patch: pytest.MonkeyPatch, *answers: Granted) -> None:
        self.within = list[float]()
        self.answers = [*answers]
        patch.setattr(RedisStore, "try_acquire", self._try_acquire)

    async def _try_acquire(self, name: str, ticket: Ticket, *, join: bool, within: float) -> Granted:
        self.within.append(within)
        if not self.answers:
            raise RetryableError("no primary")
        return self.answers.pop()


async def ask(runtime: Any, lease: float, within: float, strict: Strict | None = None) -> None:
    watched = sentinels_from_url(parse("redis+sentinel://a,b,c/main"))
    watched = replace(watched, server=replace(watched.server, strict=strict))
    ticket = Ticket("t" * 22, LeaseTerms(LockMode(), Owner("host", 1, "c"), lease))
    await SentinelStore(runtime, watched, "ns").try_acquire("x", ticket, join=True, within=within)


@on_runtimes
async def test_a_claim_with_a_short_lease_is_repeated_after_growing_pauses(runtime: Any) -> None:
    """Each attempt has a third of the lease, and ends at once. A hundred waiters would keep the sentinels busy."""
    with pytest.MonkeyPatch.context() as patch:
        attempts = Attempts(patch)
        with pytest.raises(RetryableError):
            await ask(runtime(), 0.05, 1.0)
        assert 3 <= len(attempts.within) <= 9


@on_runtimes
async def test_an_attempt_leaves_most_of_the_lease(runtime: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        attempts = Attempts(patch, Granted(1, 0.0, 6.0))
        await ask(runtime(), 6.0, 5.0)
        assert attempts.within == [pytest.approx(2.0, abs=0.1)]


@on_runtimes
async def test_in_strict_mode_an_attempt_has_time_for_the_replicas(runtime: Any) -> None:
    """They have half of it: with a lease of 6 s a sixth of that was too little for the disks."""
    for strict, lease, least in ((Strict(fsync=True), 6.0, 2400), (Strict(), 1.0, 490), (Strict(), 30.0, 1000)):
        with pytest.MonkeyPatch.context() as patch:
            attempts = Attempts(patch, Granted(1, 0.0, lease))
            await ask(runtime(), lease, 5.0, strict)
            command = strict.wait(1, attempts.within[0])
            assert int(command.split()[-1]) >= least, command
