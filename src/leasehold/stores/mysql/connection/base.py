"""The port to one connection of MySQL or MariaDB, the literals of values, and the meaning of errors.

Several statements go in one request and their results come back one after another. So a transaction costs as many round
trips as it has decisions, not statements. Values are sent as numbers and hexadecimal literals only: no quoting rule,
SQL mode or character set of the server changes their meaning.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from leasehold.errors import StoreUnavailable
from leasehold.stores._common.answers import with_remedy
from leasehold.stores._sql.transport import Outcome, Refused, Row, Statement, Value

Rows = Sequence[Row]


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a server reported when a connection was opened.

    Attributes:
        session: number of the connection, which the server reuses only after a restart.
        read_only: whether it takes no writes.
        galera: whether writes of other nodes are replicated into it.
    """

    session: int
    read_only: bool
    galera: bool


class Refusal(Exception):
    """The server answered a statement with an error. The connection can still be used.

    Attributes:
        code: the server's error number.
        answers: those of the earlier statements of the request.
    """

    def __init__(self, code: int, text: str, answers: Sequence[Rows] = ()) -> None:
        super().__init__(text)
        self.code = code
        self.answers = answers


class NoAnswer(Exception):
    """The connection broke, or no answer came in time. It cannot be used any more."""


class Connection(Protocol):
    """One connection, used by one task or thread at a time; `abort` may come from any."""

    greeting: Greeting

    marker: str
    """A lock of the server that this connection alone has, with ``mode=session``; empty before."""

    async def run(self, statements: bytes, until: float) -> list[Rows]:
        """Send statements, joined by semicolons, in one request; return the rows of each.

        After the first error the server runs no further statement.

        Raises:
            Refusal: one of them failed.
            NoAnswer: no answer before ``until`` on the runtime's clock; whether they ran is unknown.

        Any other exception, such as a cancellation, closes the connection: a reply may still be on its way.
        """
        ...

    def number(self) -> int:
        """Return the LAST_INSERT_ID of the last statement, or else how many rows it changed; 0 if it changed none."""
        ...

    def usable(self) -> bool:
        """Return whether it is open and nothing arrived unasked: that can only be the end of the connection."""
        ...

    def abort(self) -> None:
        """Close it at once; a caller that waits for an answer gets `NoAnswer`."""

    async def close(self) -> None:
        """End the session and close it, without waiting for an answer."""

    def disown(self) -> None:
        """Drop it in a forked child without sending anything: the session is the parent's."""


PLAIN = re.compile(r"[A-Za-z0-9_.:/-]*")
"""Texts that need no escaping. Sent as they are, they cause no conversion of columns of another character set."""


def literal(value: Value) -> bytes:
    """Return a value as a literal that means the same whatever the server's settings."""
    match value:
        case None:
            return b"NULL"
        case int():
            return b"%d" % value
        case str() if PLAIN.fullmatch(value):
            return b"'" + value.encode() + b"'"
        case str():
            return b"_utf8mb4 x'" + value.encode("utf-8", "replace").hex().encode() + b"'"
        case bytes():
            return b"x'" + value.hex().encode() + b"'"


PLACEHOLDER = re.compile(r"\$(\d+)")


def bind(statement: Statement) -> bytes:
    """Return a statement with its placeholders, ``$1`` for the first value and so on, replaced."""
    words, numbers = _template(statement.text)
    literals = [literal(value) for value in statement.args]
    parts = list(words)
    parts[1::2] = [literals[number] for number in numbers]
    return b"".join(parts)


@lru_cache(maxsize=512)
def _template(text: str) -> tuple[tuple[bytes, ...], tuple[int, ...]]:
    """Return the parts of a text, with a gap for each placeholder at odd indexes, and the values' numbers."""
    parts = PLACEHOLDER.split(text)
    numbers = tuple(int(part) - 1 for part in parts[1::2])
    return tuple(b"" if odd % 2 else part.encode() for odd, part in enumerate(parts)), numbers


def joined(statements: Iterable[Statement]) -> bytes:
    """Return several statements as one request."""
    return b"; ".join(map(bind, statements))


# --- what errors mean --------------------------------------------------------------------------------------------

DUPLICATE = 1062
LOCK_TIMED_OUT = 1205
DEADLOCK = 1213
RECORD_CHANGED = 1020
NO_SUCH_TABLE = 1146
NO_SUCH_SESSION = 1094
READ_ONLY_TRANSACTION = 1792

READ_ONLY_SERVER, READ_ONLY_MODE = 1290, 1836

AGAIN = frozenset({LOCK_TIMED_OUT, DEADLOCK, RECORD_CHANGED})
"""Rolled back by a conflict with another transaction; retried while there is time."""

GRANTS = "grant its user the rights listed in docs/backends/mysql.md"

REMEDIES = {
    RECORD_CHANGED: "another program changes the same rows; look for other programs that write these tables",
    1021: "its disk is full; nothing was changed",
    1037: "it is out of memory",
    1038: "it is out of memory",
    1040: "it has as many connections as its max_connections allows; raise that, or close some",
    1044: GRANTS,
    1045: "the user name or password in the URL is wrong, or may not come from this host, or without ?ssl=true",
    1047: "it is a node that has lost its cluster, or is joining it",
    1049: "there is no such database; create it, or name another in the URL",
    1054: "its tables are of another version; run: leasehold init URL",
    1095: "the session is another user's; use the same user, or grant CONNECTION ADMIN (of MySQL: CONNECTION_ADMIN)",
    1114: "a table or its disk is full; nothing was changed",
    1129: "it blocks this host after many failed connections; run FLUSH HOSTS there",
    1130: "it does not let this host in; grant its user the right to come from here",
    1142: GRANTS,
    1143: GRANTS,
    NO_SUCH_TABLE: "its tables are missing; create them with: leasehold init URL",
    1203: "its user has as many connections as max_user_connections allows",
    LOCK_TIMED_OUT: "another session keeps the row or the table locked; look for a long transaction",
    DEADLOCK: "it ended a deadlock again and again; look for other programs that lock these tables",
    1226: "its account has a limit, of connections or of what it may use in an hour; raise that",
    1227: GRANTS,
    READ_ONLY_SERVER: "it is read-only, as a replica is; connect to the primary",
    1317: "an operator ended the statement",
    1524: "its user logs in by a method that is not installed there",
    1665: "its binlog_format is STATEMENT, which cannot log what locks need; set MIXED or ROW",
    1698: "its user may log in over the local socket only",
    READ_ONLY_TRANSACTION: "the transaction is read-only, as on a replica; connect to the primary",
    1820: "the password of its user has expired; set another",
    READ_ONLY_MODE: "it is read-only, as a replica is; connect to the primary",
    1862: "the password of its user has expired; set another",
    1969: "a limit on the time of statements ended it (max_statement_time)",
    3024: "a limit on the time of statements ended it (max_execution_time)",
    3098: "its group replication refuses the table",
    3100: "its group replication has no majority",
    3118: "the account of its user is locked; ALTER USER ... ACCOUNT UNLOCK",
    3159: "it takes encrypted connections only; add ?ssl=true to the URL",
    4151: "the account of its user is locked; ALTER USER ... ACCOUNT UNLOCK",
}
"""What to do about each error number after which the statement was certainly not applied (mariadb.com/kb/en/
mariadb-error-code-reference, dev.mysql.com/doc/mysql-errors)."""

LASTING = frozenset(
    {
        *(1044, 1045, 1049, 1054, 1095, 1130, 1142, 1143, NO_SUCH_TABLE, 1227),
        *(1524, 1665, 1698, 1820, 1862, 3098, 3118, 3159, 4151),
    }
)
"""Errors that last until a person changes something."""

READ_ONLY = frozenset({READ_ONLY_SERVER, READ_ONLY_MODE, READ_ONLY_TRANSACTION})
"""Errors of a server that takes no writes: it may have been the primary when the connection was opened."""

NO_ANSWER_REMEDY = "look whether it is up, reachable and not overloaded"

UNLISTED = "its log may say more; `leasehold doctor` looks at its settings"


def refused(where: str, error: Refusal, *, committing: bool = False, committed: bool = False) -> Refused:
    """Make the error for a server that answered with an error.

    A statement that fails has changed nothing, and an uncommitted transaction leaves nothing. The outcome is unknown
    after an unlisted error of the commit itself (``committing``), and after any error that follows the answer to the
    commit (``committed``).
    """
    remedy = REMEDIES.get(error.code, UNLISTED)
    text = with_remedy(f"the database at {where} refused: {error} ({error.code})", remedy)
    outcome = Outcome.UNKNOWN if committed else outcome_of(error.code, committing=committing)
    return Refused(text, code=str(error.code), outcome=outcome)


def outcome_of(code: int, *, committing: bool) -> Outcome:
    """Return what an error number means for the transaction."""
    if code in AGAIN:
        return Outcome.AGAIN
    if code in LASTING:
        return Outcome.LASTING
    return Outcome.UNKNOWN if committing and code not in REMEDIES else Outcome.NOT_APPLIED


def is_read_only(error: BaseException) -> bool:
    """Return whether nothing was changed because the server takes no writes."""
    return isinstance(error, Refused) and error.outcome is Outcome.NOT_APPLIED and int(error.code or 0) in READ_ONLY


def no_answer(where: str, why: object, *, unknown: bool) -> StoreUnavailable:
    """Make the error for a server that did not answer."""
    reason = str(why) or type(why).__name__
    text = with_remedy(f"the database at {where} did not answer: {reason}", NO_ANSWER_REMEDY)
    return StoreUnavailable(text, unknown=unknown)


CLOSING_ERRORS = frozenset({1053, 1158, 1159, 1927, 3169, 4031})
"""Errors with which the server closes the connection: it shuts down, an operator ended the session, it was idle for too
long, or the network failed. Whether the statement was run is unknown."""


def is_connection_error(code: int) -> bool:
    """Return whether an error number, of the server or of the driver, means that the connection is gone."""
    return code in CLOSING_ERRORS or code == 0 or 2000 <= code < 3000
