"""Every error number of the table for MySQL and MariaDB, provoked on a real server, and the outcome of the transaction.

The server of the tests is MariaDB. It raises some errors only by ``SIGNAL`` with their number: those of MySQL alone
(`MYSQLS`), those that need exhausted memory or disk (`SIGNALLED`), and those with which a server closes the connection
(`CLOSING_ERRORS`). For these the meaning of the number is tested, not that MySQL raises it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pymysql
import pytest
from erring_mysql import ended, in_a_transaction, server, transport_to

from leasehold import Client, StoreUnavailable, tables
from leasehold._runtimes.base import finish
from leasehold.stores._sql.transport import Outcome, Refused, Statement, Transaction
from leasehold.stores.mysql.connection import handshake
from leasehold.stores.mysql.connection.base import AGAIN, CLOSING_ERRORS, LASTING, REMEDIES
from leasehold_lab.servers import MariaDBServer
from support.patience import until
from support.stores.refusals import MARK, Case, after, check_nothing_is_done, refusals

__all__ = ["server"]  # pytest finds the fixture here

Provoked = Callable[[MariaDBServer], Sequence[StoreUnavailable]]


# --- by a client: it claims a name ---------------------------------------------------------------------------------


def to(server: MariaDBServer, user: str, database: str = "locks") -> str:
    return f"mysql://{user}@127.0.0.1:{server.port}/{database}"


def as_user(user: str, database: str = "locks") -> Provoked:
    return lambda server: refusals(to(server, user, database))


def too_many(server: MariaDBServer) -> Sequence[StoreUnavailable]:
    with contextlib.ExitStack() as opened:
        with contextlib.suppress(pymysql.MySQLError):
            while True:
                opened.callback(server.connect().close)
        return refusals(server.url)


def too_many_of_one(server: MariaDBServer) -> Sequence[StoreUnavailable]:
    with contextlib.closing(server.connect(user="app")):
        server.query("SET GLOBAL max_user_connections = 1")
        try:
            return refusals(server.url)
        finally:
            server.query("SET GLOBAL max_user_connections = 50")


def used_up(server: MariaDBServer) -> Sequence[StoreUnavailable]:
    """Each claim begins a session, which uses up more of the hour."""
    until(lambda: not _succeeds(to(server, "frugal")))
    return refusals(to(server, "frugal"))


def _succeeds(url: str) -> bool:
    with Client.from_url(url) as client, contextlib.suppress(StoreUnavailable):
        client.inspect("x")
        return True
    return False


def from_address(address: str) -> Provoked:
    """Connect from another address of this host, as the drivers do and no URL can say."""

    def provoke(server: MariaDBServer) -> Sequence[StoreUnavailable]:
        with pytest.raises(pymysql.MySQLError) as caught:
            pymysql.connect(host="127.0.0.1", port=server.port, user="loud", bind_address=address)
        return [handshake.cannot_connect(caught.value, "here")]

    return provoke


def blocked(server: MariaDBServer) -> Sequence[StoreUnavailable]:
    """Others from that address have hung up too often in the middle of a handshake."""
    for _ in range(4):
        with socket.create_connection(("127.0.0.1", server.port), source_address=("127.0.0.2", 0)) as hasty:
            hasty.recv(100)
    return from_address("127.0.0.2")(server)


def another_users_session(server: MariaDBServer) -> Sequence[StoreUnavailable]:
    with (
        Client.from_url(f"{server.url}?mode=session") as holder,
        Client.from_url(f"{to(server, 'other')}?mode=session") as stranger,
    ):
        hold = holder.lock("y").acquire()
        assert hold is not None
        with pytest.raises(StoreUnavailable) as caught:
            stranger.force_release("y", hold.token)
        hold.release()
    return [caught.value]


@contextlib.contextmanager
def row_locked(server: MariaDBServer) -> Iterator[None]:
    with contextlib.closing(server.connect()) as other:
        other.begin()
        other.cursor().execute("SELECT * FROM leasehold_name WHERE name = 'x' FOR UPDATE")
        yield
        other.rollback()


def killed_query(server: MariaDBServer) -> Sequence[StoreUnavailable]:
    """An operator ends the statement of each claim that waits."""
    over = threading.Event()

    def operator() -> None:
        while not over.is_set():
            ended(server, "FOR UPDATE", "QUERY")
            time.sleep(0.02)

    thread = threading.Thread(target=operator)
    thread.start()
    try:
        with row_locked(server):
            return refusals(server.url, within=5.0)
    finally:
        over.set()
        thread.join()


def forced_to_read(server: MariaDBServer) -> Sequence[StoreUnavailable]:
    """A server that was started to save what is left of it."""
    with MariaDBServer() as damaged:
        tables.create(damaged.url)
        damaged.terminate()
        damaged._config["innodb-force-recovery"] = "5"
        damaged.start()
        return refusals(damaged.url)


# --- by the transport: what a claim has no cause for, or not at will
# ----------------------------------------------------


def narrow_look(server: MariaDBServer) -> Sequence[StoreUnavailable]:
    """Look at a column without the right to, where there is one to another."""
    with transport_to(to(server, "narrow")) as transport, pytest.raises(StoreUnavailable) as caught:
        finish(transport.transact(lambda tx: tx.commit(Statement("SELECT version FROM leasehold_meta")), within=5.0))
    return [caught.value]


def steps(*steps: str) -> Provoked:
    return lambda server: in_a_transaction(server, *steps)


def told(code: int) -> str:
    return f"SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'as told'"


def changed_record(server: MariaDBServer) -> Sequence[StoreUnavailable]:
    """A transaction that sees a snapshot, as none of ours does, wants a row that was changed since."""
    with contextlib.closing(server.connect()) as other:
        return in_a_transaction(
            server,
            "SET SESSION innodb_snapshot_isolation = ON",
            "ROLLBACK",
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "START TRANSACTION",
            "SELECT * FROM pair",
            lambda: other.cursor().execute("UPDATE pair SET x = x + 10"),
            "SELECT * FROM pair FOR UPDATE",
        )


def deadlocked(server: MariaDBServer) -> Sequence[StoreUnavailable]:
    """Two sessions lock two rows in opposite order; the one that has written less is the victim."""
    lock = "SELECT * FROM pair ORDER BY x {} LIMIT 1 FOR UPDATE"
    with contextlib.closing(server.connect()) as other, other.cursor() as cursor:
        other.begin()
        cursor.execute("INSERT INTO mark SELECT 1 FROM information_schema.COLLATIONS")
        cursor.execute(lock.format("DESC"))
        thread = threading.Thread(target=lambda: cursor.execute(lock.format("ASC")))

        def cross() -> None:
            thread.start()
            until(lambda: int(server.query("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_current_waits'")[0][1]))

        try:
            return in_a_transaction(server, lock.format("ASC"), cross, lock.format("DESC"))
        finally:
            thread.join()
            other.rollback()


def read_only_meanwhile(server: MariaDBServer) -> Sequence[StoreUnavailable]:
    """It becomes a replica between the last write and the commit: the commit is refused, and so is a new connection."""
    said = list[StoreUnavailable]()

    async def work(tx: Transaction) -> None:
        await tx.ask(MARK)
        server.query("SET GLOBAL read_only = ON")
        try:
            await tx.commit()
        except StoreUnavailable as error:
            said.append(error)
            raise

    with transport_to(server.url) as transport:
        try:
            with pytest.raises(Refused, match="it is read-only, as a replica is"):
                finish(transport.transact(work, within=5.0))
        finally:
            server.query("SET GLOBAL read_only = OFF")
    return said


def kept_locked(server: MariaDBServer) -> Sequence[StoreUnavailable]:
    with contextlib.closing(server.connect()) as other:
        other.begin()
        other.cursor().execute("SELECT * FROM pair FOR UPDATE")
        return in_a_transaction(server, "SET SESSION innodb_lock_wait_timeout = 0", "SELECT * FROM pair FOR UPDATE")


def lasting(provoke: Provoked) -> Case[MariaDBServer]:
    return Case(provoke, Outcome.LASTING)


MYSQLS = {  # by group replication, or settings of MySQL alone
    3024: Outcome.NOT_APPLIED,
    3098: Outcome.LASTING,
    3100: Outcome.NOT_APPLIED,
    3118: Outcome.LASTING,
    3159: Outcome.LASTING,
}

SIGNALLED = {1021: Outcome.NOT_APPLIED, 1037: Outcome.NOT_APPLIED}

PROVOKED = {
    1020: Case(changed_record, Outcome.AGAIN),
    1038: Case(
        steps(
            "SET SESSION sort_buffer_size = 1024, max_sort_length = 8388608",
            "SELECT x FROM pair ORDER BY REPEAT(x, 100000)",
        )
    ),
    1040: Case(too_many),
    1044: lasting(as_user("nowhere")),
    1045: lasting(as_user("stranger:wr0ng")),
    1049: lasting(as_user("root", "nothing")),
    1054: lasting(
        after(
            "ALTER TABLE leasehold_name RENAME COLUMN holder_meta TO aside",
            "ALTER TABLE leasehold_name RENAME COLUMN aside TO holder_meta",
        )
    ),
    1095: lasting(another_users_session),
    1114: Case(
        steps(
            "SET SESSION max_heap_table_size = 16384",
            "CREATE TEMPORARY TABLE small (x CHAR(250)) ENGINE = MEMORY",
            "INSERT INTO small SELECT 'x' FROM information_schema.COLLATIONS",
        )
    ),
    1129: Case(blocked),
    1130: lasting(from_address("127.0.0.3")),
    1142: lasting(as_user("poor")),
    1143: lasting(narrow_look),
    1146: lasting(after("RENAME TABLE leasehold_name TO aside", "RENAME TABLE aside TO leasehold_name")),
    1203: Case(too_many_of_one),
    1205: Case(kept_locked, Outcome.AGAIN),
    1213: Case(deadlocked, Outcome.AGAIN),
    1226: Case(used_up),
    1227: lasting(steps("SET GLOBAL max_connections = 1")),
    1290: Case(read_only_meanwhile),
    1317: Case(killed_query),
    1524: lasting(as_user("modern")),
    1665: lasting(after("SET GLOBAL binlog_format = 'STATEMENT'", "SET GLOBAL binlog_format = 'ROW'")),
    1698: lasting(as_user("local")),
    1792: Case(steps("ROLLBACK", "START TRANSACTION READ ONLY", MARK.text)),
    1820: lasting(as_user("late")),
    1836: Case(forced_to_read),
    1862: lasting(  # where that is so set, whose password has expired is not let in at all
        after(
            "SET GLOBAL disconnect_on_expired_password = ON",
            "SET GLOBAL disconnect_on_expired_password = OFF",
            as_user("late"),
        )
    ),
    1969: Case(steps("SET STATEMENT max_statement_time = 0.05 FOR SELECT SLEEP(5)")),
    4151: lasting(as_user("shut")),
    **{code: Case(steps(told(code)), outcome) for code, outcome in (MYSQLS | SIGNALLED).items()},
}


def test_every_error_of_the_table_is_provoked() -> None:
    at_galera = {1047}  # below
    assert PROVOKED.keys() | at_galera == REMEDIES.keys()
    assert {code for code, case in PROVOKED.items() if case.outcome is Outcome.AGAIN} == AGAIN
    assert {code for code, case in PROVOKED.items() if case.outcome is Outcome.LASTING} == LASTING


@pytest.mark.parametrize("code", PROVOKED)
def test_the_refused_request_changes_nothing_and_its_error_names_the_remedy(code: int, server: MariaDBServer) -> None:
    said = check_nothing_is_done(server, PROVOKED[code], str(code), REMEDIES[code])
    assert not any("wr0ng" in str(error) for error in said)


@pytest.mark.parametrize("code", sorted(CLOSING_ERRORS))
@pytest.mark.parametrize("in_commit", [False, True], ids=["before", "commit"])
def test_a_connection_that_the_server_closes_is_not_reused(code: int, in_commit: bool, server: MariaDBServer) -> None:
    async def work(tx: Transaction) -> None:
        await tx.ask(MARK)
        await (tx.commit if in_commit else tx.ask)(Statement(told(code)))

    with transport_to(server.url) as transport:
        before = server.query("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = 'app'")
        with pytest.raises(StoreUnavailable) as caught:
            finish(transport.transact(work, within=5.0))
        assert caught.value.unknown is in_commit
        until(lambda: server.query("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = 'app'") == before)
    assert server.query("SELECT COUNT(*) FROM mark") == [(0,)]
