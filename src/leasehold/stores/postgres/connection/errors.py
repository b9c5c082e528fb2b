"""What PostgreSQL's errors mean for the transaction, and what a person can do. A table, tested row by row."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from leasehold.errors import StoreUnavailable
from leasehold.stores._common.answers import with_remedy
from leasehold.stores._sql.transport import Outcome, Refused

AGAIN = frozenset({"40001", "40P01"})
"""Serialization failure and deadlock: rolled back; retry at once."""

UNKNOWN_IN_COMMIT = ("08", "40003", "53", "57", "58", "XX")
"""Prefixes of codes after which the outcome of a COMMIT is unknown.

The connection broke, resources ran out, an operator or a crash ended it, or there was an I/O or internal error. Any
other statement that fails is rolled back. If an operator ends the wait for a standby *after* the commit, there is no
code: the connection closes."""

LASTING = ("28", "3D", "3F", "42")
"""Prefixes of codes after which a retry cannot help until a person changes something: authentication, missing database
or schema, rights (42501), missing tables (42P01) and columns (42703)."""

READ_ONLY = "it is a standby, or read-only; name all hosts and target_session_attrs=read-write in the URL"

REMEDIES: Mapping[str, str] = {
    "08P01": "the pooler in between cannot use its connection to the server; look at its log",
    "0A000": READ_ONLY,  # a standby, of a transaction that is to write
    "25006": READ_ONLY,
    "25P03": "it ended an idle transaction of leasehold; this process was stopped, or short of processor time",
    "28000": "it lets this user not in from here; look at its log and its pg_hba.conf",
    "28P01": "the user name or password is wrong",
    "3D000": "there is no such database; check the path of the URL",
    "3F000": "no schema of its user's search_path is there; create one",
    "42501": "grant its user the rights listed in docs/backends/postgresql.md",
    "42P01": "the tables of leasehold are missing (or not on its search_path); create them with: leasehold init URL",
    "42703": "the tables are of another layout; run: leasehold init URL",
    "53100": "its disk is full; make room",
    "53200": "it is out of memory, or of room for locks (max_locks_per_transaction)",
    "53300": "it has as many connections as its max_connections allows; raise that, or close some",
    "53400": "a limit of its configuration is exceeded",
    "55000": "the database allows no connections; ALTER DATABASE ... ALLOW_CONNECTIONS true",
    "55P03": "another session keeps the row of this name locked; look for long transactions in pg_stat_activity",
    "57014": "it was too slow, or the row of this name was locked for too long",
    "57P01": "an operator ended the connection, or the server is shutting down",
    "57P03": "it is starting or shutting down; try again",
    "57P05": "its idle_session_timeout ended the connection",
}
"""What to do about each code."""

UNLISTED = "its log may say more; `leasehold doctor` looks at its settings"

NO_ANSWER_REMEDY = "look whether it is up, reachable and not overloaded"


class Hint(NamedTuple):
    """What a failed connection means.

    Attributes:
        code: the server's SQLSTATE, of which libpq reports only the text; empty if the error is not the server's.
        remedy: what to do.
    """

    code: str
    remedy: str


HINTS: Mapping[str, Hint] = {
    "password authentication failed": Hint("28P01", REMEDIES["28P01"]),
    "authentication failed for user": Hint("28000", REMEDIES["28000"]),
    "no password supplied": Hint("28000", "put the password into the URL: postgresql://user:password@host/database"),
    "no pg_hba.conf entry": Hint("28000", REMEDIES["28000"]),
    "pg_hba.conf rejects": Hint("28000", REMEDIES["28000"]),
    "is not permitted to log in": Hint("28000", "its user may not log in; ALTER ROLE ... LOGIN"),
    'role ".*" does not exist': Hint("28000", "there is no such user; check that of the URL"),
    'database ".*" does not exist': Hint("3D000", REMEDIES["3D000"]),
    "permission denied for database": Hint("42501", "its user may not use the database; GRANT CONNECT ON DATABASE"),
    "not currently accepting connections": Hint("55000", REMEDIES["55000"]),
    "too many clients": Hint("53300", REMEDIES["53300"]),
    "remaining connection slots": Hint("53300", REMEDIES["53300"]),
    "too many connections for": Hint("53300", "the CONNECTION LIMIT of the user or of the database is reached"),
    "out of shared memory": Hint("53200", REMEDIES["53200"]),
    "is starting up": Hint("57P03", REMEDIES["57P03"]),
    "is shutting down": Hint("57P03", REMEDIES["57P03"]),
    "in recovery mode": Hint("57P03", REMEDIES["57P03"]),
    "not (yet )?accepting connections": Hint("57P03", REMEDIES["57P03"]),
    "imed out": Hint("", NO_ANSWER_REMEDY),
    "onnection refused": Hint("", "nobody listens there; check host and port, and that the server runs"),
    "No such file": Hint("", "there is no such socket; check its path"),
    "ermission denied": Hint("", "this process may not open it; check the rights of the socket's file"),
    "the DNS did not answer": Hint("", "the DNS of this machine does not answer; check it, or write an address"),
    "could not translate host name": Hint("", "the host name is unknown; check its spelling and the DNS"),
    "does not support SSL": Hint("", "it has no TLS; write sslmode=prefer, or set TLS up"),
    "certificate": Hint("", "name the authority that signed its certificate with sslrootcert=FILE"),
    "read-only": Hint("", READ_ONLY),
    "hot standby mode": Hint("", READ_ONLY),
    "closed the connection": Hint("", "it hung up; look at its log"),
}
"""What to do about a failed connection, by a regular expression on the error's text. The first match counts."""

CHECK = Hint("", "check host, port and that the server runs")

EACH_HOST = re.compile("(?=connection to server )")


class ServerError(Exception):
    """An error of the server in answer to a statement.

    Attributes:
        code: SQLSTATE, five characters.
        fatal: whether it ended the connection, or the connection ended behind it.
        in_commit: whether it answers the COMMIT itself.
        stale: whether a prepared statement caused it; the connection plans it anew the next time.
    """

    def __init__(self, code: str, text: str, *, fatal: bool, in_commit: bool) -> None:
        super().__init__(text)
        self.code = code
        self.fatal = fatal
        self.in_commit = in_commit
        self.stale = False


class Broken(Exception):
    """The connection ended, or cannot be used any more."""


def outcome_of(code: str, *, in_commit: bool) -> Outcome:
    """Return what an error with this SQLSTATE means for the transaction."""
    if in_commit and code.startswith(UNKNOWN_IN_COMMIT):
        return Outcome.UNKNOWN
    if code in AGAIN:
        return Outcome.AGAIN
    return Outcome.LASTING if code.startswith(LASTING) else Outcome.NOT_APPLIED


def refused(where: str, error: ServerError) -> Refused:
    """Make the error for a server that answered with an error."""
    remedy = REMEDIES.get(error.code, UNLISTED)
    text = with_remedy(f"PostgreSQL at {where} refused ({error.code}): {error}", remedy)
    outcome = Outcome.AGAIN if error.stale else outcome_of(error.code, in_commit=error.in_commit)
    return Refused(text, code=error.code, outcome=outcome)


def no_answer(where: str, why: object, *, unknown: bool) -> StoreUnavailable:
    """Make the error for a server that did not answer."""
    reason = str(why) or type(why).__name__
    text = with_remedy(f"PostgreSQL at {where} did not answer: {reason}", NO_ANSWER_REMEDY)
    return StoreUnavailable(text, unknown=unknown)


ASKS_ANOTHER = re.compile("(LDAP|RADIUS|PAM|GSSAPI|SSPI|BSD|Ident|OAuth bearer) authentication failed")
"""A login that PostgreSQL lets another service decide on. It reports a service that is down in the same words."""


def cannot_connect(where: str, why: str) -> StoreUnavailable:
    """Make the error for a connection that could not be opened. Only the login was sent.

    The text has the reason of each host. The error is lasting only if all of them are: one host may come back.
    """
    text = one_line(why)
    hint = _hint(text)
    words = with_remedy(f"cannot connect to PostgreSQL at {where}: {text}", hint.remedy)
    if not hint.code:
        return StoreUnavailable(words)
    outcomes = {outcome_of(_hint(part).code, in_commit=False) for part in EACH_HOST.split(text) if part}
    may_pass = len(outcomes) != 1 or ASKS_ANOTHER.search(text)
    return Refused(words, code=hint.code, outcome=Outcome.NOT_APPLIED if may_pass else outcomes.pop())


def ends_the_list(why: str) -> bool:
    """Return whether libpq tries no further host after this error: the server refused, and not because it starts."""
    return _hint(one_line(why)).code not in ("", "57P03")


def one_line(text: object) -> str:
    """Return a text, such as that of an error, without its line breaks."""
    return " ".join(str(text).split())


def _hint(text: str) -> Hint:
    return next((hint for words, hint in HINTS.items() if re.search(words, text)), CHECK)
