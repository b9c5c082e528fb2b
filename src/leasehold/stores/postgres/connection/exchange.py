"""One connection, as generators that yield when the socket must be ready; their driver blocks or suspends.

libpq runs in its pipeline mode: the statements of a batch leave in one write and their answers come in one read. So a
transaction of many statements costs two round trips. psycopg's own connection classes are not used: they have no
deadline for a silent server, and wait for it when they are cancelled.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from psycopg import pq
from psycopg.errors import Error

from leasehold._url import Secret
from leasehold.stores._sql.transport import Row, Statement, Value
from leasehold.stores.postgres.connection.errors import Broken, ServerError, one_line

T = TypeVar("T")


READ, WRITE = select.POLLIN, select.POLLOUT


class SocketWait(NamedTuple):
    """The socket that must be ready before the generator can continue, and for what: `READ`, `WRITE` or both."""

    fd: int
    events: int


Steps = Generator[SocketWait, None, T]

COMMIT = Statement("COMMIT")


class Alone(Statement):
    """A statement that is a transaction of its own: an error after its answer is that of its commit."""

    __slots__ = ()


MOST_PREPARED = 64
"""Statements that a connection prepares; the others are planned at each use."""

STALE = frozenset({"0A000", "26000"})
"""Errors of a prepared statement whose tables were created anew, or that another program has dropped."""


class Connection:
    """One connection. Only one exchange runs at a time, but any thread or task may close it at any moment.

    The number of a closed descriptor is given to the next file that is opened. A thread that still waits on it would
    wait on another socket. So the running exchange closes the connection when it ends; `close` does only if none runs.
    """

    def __init__(self, pgconn: pq.abc.PGconn) -> None:
        self._pgconn = pgconn
        self._pid = os.getpid()
        # Held for a few lines that never wait; re-entrant, because a signal handler may close, too.
        self._mutex = threading.RLock()
        self._running = 0  # exchanges that run now
        self.open = True
        self.facts: dict[str, Any] = {}
        self.prepares = False  # whether the session is not shared, so that prepared statements stay in it
        self._count = 0
        self._prepared: dict[str, bytes | None] = {}  # by text: the name, or None if it was sent once
        pgconn.nonblocking = 1
        pgconn.notice_handler = None
        pgconn.enter_pipeline_mode()

    @property
    def fd(self) -> int:
        """The socket's descriptor.

        Raises:
            Broken: libpq has closed it, because the server did.
        """
        try:
            return self._pgconn.socket
        except Error as error:
            raise Broken(one_line(error)) from None

    @property
    def backend(self) -> int:
        """The process id that the server reported at the start; a pooler reports another one."""
        return self._pgconn.backend_pid

    @property
    def encrypted(self) -> bool:
        """Whether it uses TLS."""
        return bool(self._pgconn.ssl_in_use)

    def exchange(self, statements: Sequence[Statement]) -> Steps[list[list[Row]]]:
        """Send the statements in one batch and return the rows of each.

        Raises:
            ServerError: one was refused; the later ones were not run.
            Broken: the connection cannot be used any more.
        """
        self._begin()
        try:
            preparing = [self._send(statement) for statement in statements]
            self._pgconn.pipeline_sync()
            yield from self._flush()
            return (yield from self._answers(statements, preparing))
        except ServerError as error:
            if error.code in STALE and self.prepares:
                self.prepares, error.stale = False, True
            raise
        except Error as error:
            raise Broken(one_line(error)) from None
        finally:
            self._end()

    def receive_messages(self, on_message: Callable[[str], None]) -> Steps[None]:
        """Call ``on_message`` with each message, for ever.

        Raises:
            Broken: the connection ended.
        """
        self._begin()
        try:
            while True:
                while (note := self._pgconn.notifies()) is not None:
                    on_message(bytes(note.extra).decode("utf-8", "replace"))
                yield SocketWait(self.fd, READ)
                self._pgconn.consume_input()
        except Error as error:
            raise Broken(one_line(error)) from None
        finally:
            self._end()

    def close(self) -> None:
        """Close the connection without waiting for statements; a running exchange gets an error, and closes it."""
        with self._mutex:
            self.open = False
            if self._running:
                self._shut()
            else:
                self._finish()

    def shut(self) -> None:
        """End the connection from another thread; a reader gets an error."""
        with self._mutex:
            self._shut()

    def disown(self) -> None:
        """Close the copy of the socket in a forked child, without sending anything."""
        if self.open:
            self.open = False
            try:
                os.close(self.fd)  # not by libpq, which would end the parent's session
            except (OSError, Broken):
                pass

    # --- inside ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        with self._mutex:
            if not self.open:
                raise Broken("the connection is closed")
            self._running += 1

    def _end(self) -> None:
        with self._mutex:
            self._running -= 1
            if not self.open and not self._running:
                self._finish()

    def _shut(self) -> None:
        try:
            with socket.socket(fileno=os.dup(self.fd)) as twin:
                twin.shutdown(socket.SHUT_RDWR)
        except (OSError, Broken):  # closed meanwhile
            pass

    def _finish(self) -> None:
        if self._pid == os.getpid():  # else it was disowned: libpq would end the parent's session
            self._pgconn.finish()

    def _send(self, statement: Statement) -> str | None:
        """Send a statement; return its text if it is prepared first, which has an answer of its own.

        A statement with values is prepared at its second use, since planning takes longer than running it.
        """
        text, args = statement
        packed = [_packed(arg) for arg in args]
        formats = [pq.Format.BINARY if isinstance(arg, bytes) else pq.Format.TEXT for arg in args]
        known, preparing = text in self._prepared, None
        if known and self.prepares:
            name = self._prepared[text]
            if name is None:
                self._count += 1
                preparing, name = text, b"leasehold_%d" % self._count
                self._prepared[text] = name
                self._pgconn.send_prepare(name, text.encode())
            self._pgconn.send_query_prepared(name, packed, formats, pq.Format.BINARY)
            return preparing
        if args and not known and len(self._prepared) < MOST_PREPARED:
            self._prepared[text] = None
        self._pgconn.send_query_params(text.encode(), packed, None, formats, pq.Format.BINARY)
        return None

    def _flush(self) -> Steps[None]:
        while self._pgconn.flush():
            yield SocketWait(self.fd, READ | WRITE)
            self._pgconn.consume_input()  # which reads nothing if the socket is not ready for that

    def _answers(self, statements: Sequence[Statement], preparing: Sequence[str | None]) -> Steps[list[list[Row]]]:
        pgconn, results = self._pgconn, list[list[Row]]()
        failure: ServerError | None = None
        prepared = set[str]()
        while True:
            try:
                while pgconn.is_busy():
                    yield SocketWait(self.fd, READ)
                    pgconn.consume_input()
            except Error:
                if failure is None:
                    raise
                raise _closing_error(failure, statements) from None
            result = pgconn.get_result()
            if result is None:
                if pgconn.status == pq.ConnStatus.BAD:
                    if failure is None:
                        raise Broken("the server closed the connection")
                    raise _closing_error(failure, statements)
            elif result.status == pq.ExecStatus.PIPELINE_SYNC:
                break
            elif result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
                text = preparing[len(results)] if len(results) < len(preparing) else None
                if text is not None and text not in prepared:
                    prepared.add(text)
                else:
                    results.append(_rows(result))
            elif failure is None:
                answered = statements[min(len(results), len(statements) - 1)]  # it may come after the last answer
                late = len(results) == len(statements) and isinstance(answered, Alone)
                failure = _failure(result, in_commit=answered is COMMIT or late)
        if failure is not None:
            self._prepared |= {text: None for text in preparing if text is not None and text not in prepared}
            raise failure
        if len(results) != len(statements):
            raise Broken("an answer is missing")
        return results


def connecting(conninfo: Secret) -> Steps[Connection]:
    """Open a connection.

    Raises:
        Broken: it could not be opened; the text says why, without secrets.
    """
    why = ""
    try:
        pgconn = pq.PGconn.connect_start(conninfo.reveal().encode())
        try:
            while True:
                if pgconn.status == pq.ConnStatus.BAD:
                    break
                poll = pgconn.connect_poll()
                if poll == pq.PollingStatus.OK:
                    return Connection(pgconn)
                if poll == pq.PollingStatus.FAILED:
                    break
                yield SocketWait(pgconn.socket, READ if poll == pq.PollingStatus.READING else WRITE)
            why = pgconn.get_error_message()
            pgconn.finish()
        except BaseException:
            pgconn.finish()
            raise
    except Error as error:
        why = one_line(error)
    raise Broken(why or "the connection failed")  # out here it has no context


def _packed(value: Value) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return str(int(value)).encode() if isinstance(value, int) else value.encode()


def _rows(result: pq.abc.PGresult) -> list[Row]:
    count = result.ntuples
    if not count:
        return []
    get = result.get_value
    readers = [_READERS.get(result.ftype(column), _text) for column in range(result.nfields)]
    return [
        tuple([None if (cell := get(row, at)) is None else read(cell) for at, read in enumerate(readers)])
        for row in range(count)
    ]


def _integer(cell: bytes) -> int:
    return int.from_bytes(cell, "big", signed=True)


def _text(cell: bytes) -> str:
    return bytes(cell).decode("utf-8", "replace")


_READERS: dict[int, Callable[[bytes], Any]] = {20: _integer, 21: _integer, 23: _integer, 26: _integer, 17: bytes}
"""What reads a cell of each type: int8, int2, int4, oid and bytea (see pg_type.dat). All others are texts."""


def _failure(result: pq.abc.PGresult, *, in_commit: bool) -> ServerError:
    code = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode("ascii", "replace")
    severity = result.error_field(pq.DiagnosticField.SEVERITY_NONLOCALIZED) or b""
    text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode("utf-8", "replace")
    if not code:
        raise Broken(one_line(result.get_error_message()) or "the connection broke")
    return ServerError(code, text, fatal=severity in (b"FATAL", b"PANIC"), in_commit=in_commit)


def _commits(statement: Statement) -> bool:
    return statement is COMMIT or isinstance(statement, Alone)


def _closing_error(failure: ServerError, statements: Sequence[Statement]) -> ServerError:
    """Return an error that ended the connection: a pooler may have lost the answers before it.

    So it may be that of the COMMIT, wherever in the batch it seems to be.
    """
    failure.fatal = True
    failure.in_commit = failure.in_commit or any(_commits(statement) for statement in statements)
    return failure
