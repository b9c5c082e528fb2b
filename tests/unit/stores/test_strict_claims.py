"""The claims of strict mode, on replies made by hand: which replicas must have a grant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest

from leasehold._model import LeaseTerms, LockMode, Owner, Ticket
from leasehold._runtimes.base import finish
from leasehold.stores.redis.connection.base import Transport
from leasehold.stores.redis.connection.settings import Settings
from leasehold.stores.redis.scripts import commands
from leasehold.stores.redis.strict.quorum import Strict, waits
from leasehold.stores.redis.strict.strict import Claims, Unconfirmed

CLAIM = commands.try_acquire(
    "", "a", Ticket("t" * 22, LeaseTerms(LockMode(), Owner("host", 1, "x"), 30.0)), join=True, channel=b""
)


class Answering:
    """A server that grants, and has so many replicas, of which some acknowledge."""

    def __init__(self, replicas: int, acknowledge: int) -> None:
        self.replicas = replicas
        self.acknowledge = acknowledge
        self.waits: list[bool] = []

    async def call_all(self, packed: Sequence[bytes], *, within: float) -> list[Any]:
        self.waits.append(waits(packed[-1]))
        return [[1, 7, 7, self.replicas], self.acknowledge][: len(packed)]


class Overtaken(Claims):
    """Claims of a client of which another thread, whose server had lost its replicas, has written just now."""

    @property
    def _needed(self) -> int:
        return 0

    @_needed.setter
    def _needed(self, needed: int) -> None: ...


def ask(claims: type[Claims], server: Answering) -> Any:
    made = claims(Strict(), Settings("there"), lambda _: b"marker")
    return finish(made.ask(cast(Transport, server), CLAIM, within=2.0))


@pytest.mark.parametrize("claims", [Claims, Overtaken])
def test_a_grant_counts_if_those_replicas_have_it_that_the_server_had(claims: type[Claims]) -> None:
    server = Answering(replicas=2, acknowledge=1)
    assert ask(claims, server)[0] == 1
    assert server.waits == [False, True]
    with pytest.raises(Unconfirmed, match="of 1 replicas that must have it in time only 0 did"):
        ask(claims, Answering(replicas=2, acknowledge=0))
