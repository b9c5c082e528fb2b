"""Checks of a transaction that a database refuses: which error is raised, and that nothing of it lasts.

An error is provoked by a client of each flavor that acquires the name "x", or by a transport of the store. Each
database of these tests has the tables, and one more, ``mark``. Only transactions that are rolled back write into it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pytest

from leasehold import Client, StoreUnavailable
from leasehold._runtimes.base import finish
from leasehold.stores._sql.transport import Outcome, Refused, SQLTransport, Statement, Transaction
from leasehold_lab.runtimes.harnesses import Harness
from support.flavors import FLAVORS

NOBODY = 65534
"""A user id without rights."""

MARK = Statement("INSERT INTO mark VALUES (1)")
"""The write of a transaction that is rolled back."""


class Server(Protocol):
    """A database server of the tests."""

    @property
    def url(self) -> str: ...

    def query(self, sql: str) -> list[tuple[Any, ...]]: ...


S = TypeVar("S", bound=Server)


@dataclass(frozen=True)
class Case(Generic[S]):
    """How an error is provoked, and the outcome of the transaction."""

    provoke: Callable[[S], Sequence[StoreUnavailable]]
    outcome: Outcome = Outcome.NOT_APPLIED


def refusals(url: str, within: float = 5.0) -> Sequence[StoreUnavailable]:
    """Acquire the name "x" with a client of each flavor, the blocking one first; return the error of each."""

    async def body(harness: Harness) -> StoreUnavailable:
        with pytest.raises(StoreUnavailable) as caught:
            await harness.client(url, response_timeout=within).lock("x").acquire(timeout=within)
        return caught.value

    return [harness.run(body) for harness in FLAVORS]


def claims(server: Server) -> Sequence[StoreUnavailable]:
    """Acquire as the user in the server's URL; return the errors."""
    return refusals(server.url)


def after(
    change: str, back: str, then: Callable[[S], Sequence[StoreUnavailable]] = claims
) -> Callable[[S], Sequence[StoreUnavailable]]:
    """Provoke an error between two statements: ``change`` breaks something on the server, and ``back`` repairs it."""

    def provoke(server: S) -> Sequence[StoreUnavailable]:
        server.query(change)
        try:
            return then(server)
        finally:
            server.query(back)

    return provoke


def rolled_back(
    transport: SQLTransport, steps: Sequence[str | Callable[[], object]], *last: Statement
) -> Sequence[StoreUnavailable]:
    """Write the mark, take the steps, and commit with the last statements; return the error, as a list of one."""

    async def work(tx: Transaction) -> None:
        await tx.ask(MARK)
        for step in steps:
            if isinstance(step, str):
                await tx.ask(Statement(step))
            else:
                step()
        await tx.commit(*last)

    with pytest.raises(StoreUnavailable) as caught:
        finish(transport.transact(work, within=5.0))
    finish(transport.transact(lambda tx: tx.commit(Statement("SELECT 1")), within=5.0))  # the transport still works
    return [caught.value]


def check_nothing_is_done(server: S, case: Case[S], code: str, remedy: str) -> Sequence[StoreUnavailable]:
    """Provoke an error, and check it. Check that held names are still held, and free names free. Return the errors."""
    with Client.from_url(server.url) as client:
        kept, before = (client.lock(name, lease=60.0).acquire(timeout=5) for name in ("kept", "x"))
        assert kept is not None
        assert before is not None
        before.release()
        said = case.provoke(server)
        assert said
        for error in said:
            assert isinstance(error, Refused), error
            assert error.code == code, error
            assert error.outcome is case.outcome
            assert not error.unknown
            assert error.lasting is (error.outcome is Outcome.LASTING)
            assert str(error).endswith(remedy), error
        assert server.query("SELECT COUNT(*) FROM mark") == [(0,)]
        assert client.inspect("x") is None
        got = client.lock("x").acquire(timeout=5)
        assert got is not None
        assert got.token > before.token
        assert got.release()
        assert kept.release()
        return said


@contextlib.contextmanager
def closed(folder: Path) -> Iterator[Path]:
    """Make a subfolder that no user may read. Root may read everything, so root becomes another user for the block."""
    within = folder / "closed"
    within.mkdir(mode=0)
    me = os.geteuid()
    if me == 0:
        os.seteuid(NOBODY)
    try:
        yield within
    finally:
        os.seteuid(me)
