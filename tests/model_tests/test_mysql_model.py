"""The model of MySQL beside a real server: the same requests on sessions side by side, the same rows, waits and errors.

The requests are those of lease rows, spelled as the transport spells them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from model_sequences import compare_many
from sql_sequences import Playing, at_random, play
from sql_sides import RealLine, Servers

from leasehold._runtimes.base import finish
from leasehold._runtimes.blocking import BlockingRuntime
from leasehold._url import parse
from leasehold.stores._sql.transport import Statement
from leasehold.stores.mysql.connection import blocking, settings
from leasehold.stores.mysql.connection.base import NoAnswer, Refusal, joined
from leasehold.stores.mysql.connection.transport import BEGIN, COMMIT, RESTORE_TIMEOUT, ROLLBACK, limits
from leasehold.stores.mysql.statements import DIALECT
from leasehold_lab.runtimes.virtual import Scheduler
from models.sql.mysql import MySQLModel

PLAIN = (DIALECT.acquire_free, DIALECT.release_held)

SEQUENCES = 30
LENGTH = 30


class Real:
    """A connection to the real server."""

    def __init__(self, line: blocking.BlockingConnection) -> None:
        self._line = line

    def ask(self, statements: Sequence[Statement]) -> Any:
        try:
            answers = finish(self._line.run(joined(statements), BlockingRuntime().now() + 60.0))
            return [[(self._line.number(),)]] if statements[0].text in PLAIN else answers
        except (Refusal, NoAnswer) as error:
            return error

    def abort(self) -> None:
        self._line.abort()


class MySQLServers(Servers):
    dialect = DIALECT
    commit, rollback = (COMMIT, RESTORE_TIMEOUT), (ROLLBACK, RESTORE_TIMEOUT)

    def __init__(self, url: str) -> None:
        self._settings = settings.from_url(parse(url))

    def opening(self, within: float) -> Sequence[Statement]:
        return limits(within), BEGIN

    def alone(self, statement: Statement) -> Statement:
        return statement

    def real(self) -> RealLine:
        return Real(finish(blocking.connect(self._settings, BlockingRuntime(), 5.0)))

    def model(self, scheduler: Scheduler) -> MySQLModel:
        return MySQLModel(scheduler)

    def sent(self, statements: Sequence[Statement]) -> bytes:
        return joined(statements)

    def error(self, answer: Any) -> str | None:
        return f"error {answer.code} after {len(answer.answers)}" if isinstance(answer, Refusal) else None


@pytest.mark.timeout(300)
def test_the_model_answers_as_the_server_does(mariadb_url: str) -> None:
    seen = compare_many(at_random(Playing, MySQLServers(mariadb_url)), SEQUENCES, LENGTH)
    assert seen.keys() >= {"rows", "waits", "waited"}
    assert seen["changed alone"] > 9


@pytest.mark.timeout(120)
def test_the_counter_of_ids_is_waited_for(mariadb_url: str) -> None:
    """Who adds a name that another has locked keeps all from adding names meanwhile."""

    async def steps(playing: Playing) -> None:
        holder, first, second, third = playing.pairs
        await playing.lock(holder, [b"a"])
        await playing.add(first, b"a")
        await playing.add(second, b"b")
        assert first.waits
        assert second.waits
        await playing.lock(third, [b"c"])  # no row of which is added
        assert not third.waits
        await playing.rolls_back(holder)
        assert not first.waits
        assert not second.waits
        await playing.rolls_back(third)

    play(Playing, MySQLServers(mariadb_url), steps)


@pytest.mark.timeout(120)
def test_a_wait_that_is_too_long_ends_the_statement_only(mariadb_url: str) -> None:
    """The transaction keeps what it has locked until it is rolled back."""

    async def steps(playing: Playing) -> None:
        holder, first, second, _ = playing.pairs
        await playing.lock(holder, [b"b"])
        await playing.lock(first, [b"a", b"b"], within=1.0)
        assert first.waits
        await playing.passes(1.5)
        await playing.settle()
        assert any("1205" in what for what in playing.seen)
        await playing.lock(second, [b"a"])
        assert second.waits
        await playing.rolls_back(first)
        assert not second.waits
        await playing.rolls_back(second)
        await playing.rolls_back(holder)

    play(Playing, MySQLServers(mariadb_url), steps)
