"""The models of the locks of sessions beside real servers: who has which lock, who waits, and what is written down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from model_sequences import compare_many
from session_sequences import SessionPlaying, SessionServers, at_random
from sql_sequences import play
from sql_sides import Pair
from test_mysql_model import MySQLServers
from test_mysql_model import Real as MySQLLine
from test_postgres_model import PostgresServers
from test_postgres_model import Real as PostgresLine

from leasehold._model import Ticket
from leasehold.stores._sql.queue_snapshot import ns
from leasehold.stores._sql.session import statements as shared
from leasehold.stores._sql.transport import Statement
from leasehold.stores.mysql import session_statements as own
from leasehold.stores.mysql import statements as mysql
from leasehold.stores.mysql.connection.base import NoAnswer
from leasehold.stores.mysql.connection.handshake import opening
from leasehold.stores.postgres import advisory
from leasehold.stores.postgres import statements as postgres
from leasehold.stores.postgres.connection.errors import Broken, ServerError
from leasehold_lab.servers import PostgresServer
from models.sql.session_locks import SessionLocks

BY_DAY, BY_NIGHT = 8, 500
LENGTH = 40

FOR_EVER = 600
"""Seconds that a session waits: longer than any sequence takes."""


class MySQLSessions(MySQLServers, SessionServers):
    """GET_LOCK."""

    ends_any = True

    def number(self, line: MySQLLine) -> int:
        return line._line.greeting.session

    async def greet(self, pair: Pair) -> None:
        assert pair.modelled.line is not None
        pair.modelled.line.send(opening())

    def keys(self, space: bytes) -> Sequence[str]:
        return [own.lock_name("leasehold", (space, name)) for name in (b"a", b"b")]

    def tries(self, key: str) -> Statement:
        return own.get_lock(key, 0)

    def waits(self, key: str) -> Statement:
        return own.get_lock(key, FOR_EVER)

    def frees(self, key: str) -> Statement:
        return own.release_lock(key)

    def asks(self, keys: Sequence[str], number: int) -> Sequence[Statement]:
        return own.lock_holders(keys), *map(own.has_lock, keys)

    def ends(self, number: int, key: str) -> Sequence[Statement]:
        return [own.kill(number)]

    def lives(self, seconds: float) -> Statement:
        return own.ttl(int(seconds))

    def takes(self, key: tuple[bytes, bytes], ticket: Ticket, number: int) -> Sequence[Statement]:
        writes = (own.used_by_leases(key), own.raise_token(key), *own.store_holder(key, ticket, number), own.token(key))
        return *self.opening(5.0), *writes, *self.commit

    def shows(self, key: tuple[bytes, bytes], ticket: Ticket) -> Sequence[Statement]:
        return (
            *self.opening(5.0),
            shared.holder(key),
            own.remove_stale(key),
            *own.store_waiter(key, ticket),
            *self.commit,
        )

    def others(self, key: tuple[bytes, bytes], ticket: Ticket) -> Sequence[Statement]:
        entries = Statement(self.dialect.names, (key[0], b"a", b"z", 0))
        return entries, entries, *_of_ticket(key, ticket, mysql.CLOCK)

    def known(self, number: int) -> Statement:
        return Statement("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = $1", (number,))

    def error(self, answer: Any) -> str | None:
        return "ended" if isinstance(answer, NoAnswer) else super().error(answer)


class PostgresSessions(PostgresServers, SessionServers):
    """Advisory locks."""

    ends_any = False

    def number(self, line: PostgresLine) -> int:
        return line.backend

    async def greet(self, pair: Pair) -> None:
        assert pair.modelled.line is not None
        pair.modelled.line.send(())

    def keys(self, space: bytes) -> Sequence[int]:
        return [advisory.key_of(space.decode(), name) for name in ("a", "b")]

    def tries(self, key: int) -> Statement:
        return Statement(advisory.TRY, (key,))

    def waits(self, key: int) -> Statement:
        return Statement(advisory.WAIT, (key,))

    def frees(self, key: int) -> Statement:
        return Statement(advisory.UNLOCK, (key,))

    def asks(self, keys: Sequence[int], number: int) -> Sequence[Statement]:
        return Statement(advisory.LOCKS), *(Statement(advisory.QUEUED, (number, key)) for key in keys)

    def ends(self, number: int, key: int) -> Sequence[Statement]:
        return [Statement(advisory.END, (number, key))]

    def lives(self, seconds: float) -> Statement:
        return Statement(advisory.SESSION_LIMITS, (f"{int(seconds * 1000)}ms",))

    def takes(self, key: tuple[bytes, bytes], ticket: Ticket, number: int) -> Sequence[Statement]:
        return [Statement(advisory.GRANT, _shown(key, ticket, f"pid:{number}"))]

    def shows(self, key: tuple[bytes, bytes], ticket: Ticket) -> Sequence[Statement]:
        writes = (Statement(advisory.STALE, key), Statement(advisory.QUEUE, _shown(key, ticket, "")))
        return *self.opening(5.0), shared.holder(key), *writes, *self.commit

    def others(self, key: tuple[bytes, bytes], ticket: Ticket) -> Sequence[Statement]:
        entries = Statement(self.dialect.names, (key[0], b"a", b"z", 0))
        return entries, entries, *_of_ticket(key, ticket, postgres.CLOCK), Statement(advisory.RAISE, key)

    def known(self, number: int) -> Statement:
        return Statement("SELECT count(*) FROM pg_stat_activity WHERE pid = $1", (number,))

    def error(self, answer: Any) -> str | None:
        ended = isinstance(answer, Broken) or (isinstance(answer, ServerError) and answer.fatal)
        return "ended" if ended else super().error(answer)


def _of_ticket(key: tuple[bytes, bytes], ticket: Ticket, clock: str) -> tuple[Statement, ...]:
    reads, removes = shared.hint_of(key, ticket.id), shared.remove_entry(key, ticket.id)
    return reads, removes, shared.renew_entries(clock, [ticket.id])


def _shown(key: tuple[bytes, bytes], ticket: Ticket, hint: str) -> tuple[Any, ...]:
    terms = ticket.terms
    return *key, ticket.id, ns(terms.lease), str(terms.owner), terms.meta, hint


@pytest.fixture(params=["postgres", "mariadb"])
def servers(request: pytest.FixtureRequest) -> SessionServers:
    if request.param == "mariadb":
        return MySQLSessions(request.getfixturevalue("mariadb_url"))
    server: PostgresServer = request.getfixturevalue("postgres_server")
    return PostgresSessions(server)


THERE = ("rows", "waits", "waited", *(f"step {name}" for name in ("ends", "hangs_up", "is_silent", "takes")))
"""What a day's sequences have in them."""


@pytest.mark.timeout(300)
def test_the_models_answer_as_the_servers_do(servers: SessionServers) -> None:
    seen = compare_many(at_random(servers), BY_DAY, LENGTH)
    assert all(seen[what] for what in THERE), seen


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_the_models_answer_as_the_servers_do_in_many_sequences(servers: SessionServers) -> None:
    seen = compare_many(at_random(servers), BY_NIGHT, LENGTH)
    assert all(seen[what] for what in THERE), seen


def wakes_nobody(locks: SessionLocks[Any], key: Any, who: Any) -> list[Any]:
    """Free a lock, and grant it to no waiter."""
    locks._times[key, who] -= 1
    if not locks._times[key, who]:
        locks._had[who].remove(key)
        del locks._times[key, who], locks._owners[key]
    return []


def keeps_what_the_dead_had(locks: SessionLocks[Any], who: Any) -> list[Any]:
    """Free nothing when a session ends."""
    locks.give_up(who)
    return []


MISTAKES = [("unlock", wakes_nobody, "frees"), ("end", keeps_what_the_dead_had, "hangs up")]


def hand_over(servers: SessionServers, how: str) -> None:
    """Let one who has a lock free it, or hang up, while another waits for it."""

    async def steps(playing: SessionPlaying) -> None:
        holder, waiter, *_ = playing.pairs
        key = playing.keys[0]
        await playing.both(holder, [servers.tries(key)])
        await playing.both(waiter, [servers.waits(key)])
        assert waiter.waits
        if how == "frees":
            await playing.both(holder, [servers.frees(key)])
        else:
            await playing.hangs_up(holder)
        assert not waiter.waits

    play(SessionPlaying, servers, steps)


@pytest.mark.parametrize("how", ["frees", "hangs up"])
def test_a_lock_goes_to_who_waits(servers: SessionServers, how: str) -> None:
    hand_over(servers, how)


@pytest.mark.parametrize(("what", "mistake", "how"), MISTAKES, ids=[mistake[0] for mistake in MISTAKES])
def test_a_model_that_is_wrong_differs(
    servers: SessionServers, monkeypatch: pytest.MonkeyPatch, what: str, mistake: Any, how: str
) -> None:
    monkeypatch.setattr(SessionLocks, what, mistake)
    with pytest.raises(AssertionError):
        hand_over(servers, how)
