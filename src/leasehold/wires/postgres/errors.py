"""What PostgreSQL's errors mean: for the transaction, and for the person who reads them. A table, tested row by row."""

from __future__ import annotations

from collections.abc import Mapping

from leasehold.errors import StoreUnavailable
from leasehold.wires.sql import Outcome, Refused

AGAIN = frozenset({"40001", "40P01"})
"""Serialization failure and deadlock: rolled back, and worth another try at once."""

UNKNOWN_IN_COMMIT = ("08", "40003", "53", "57", "58", "XX", "F0")
"""Beginnings of codes that say, in answer to a COMMIT, nothing about whether it was carried out: the connection broke,
resources ran out, an operator or a crash ended it (57P01 is also what ends the wait for a standby *after* the commit),
an I/O or internal error. In answer to anything else every error rolls back."""

LASTING = ("0A", "28", "3D", "3F", "42")
"""Beginnings of codes with which asking again cannot help until somebody changes something: features that are missing,
authentication, no such database or schema, rights (42501), tables (42P01) and columns (42703) that are not there."""

REMEDIES: Mapping[str, str] = {
    "25006": "it is a standby, or read-only; name all hosts and target_session_attrs=read-write in the URL",
    "25P02": "an earlier statement of the transaction failed",
    "25P03": "it ended a transaction of ours that stood idle; this process was stopped, or short of processor time",
    "28000": "its pg_hba.conf lets this user not in from here; look at its log",
    "28P01": "the user name or password is wrong",
    "3D000": "there is no such database; check the path of the URL",
    "42501": "grant its user the rights listed in docs/backends/postgresql.md",
    "42P01": "the tables of leasehold are not there (or not on its search_path); make them with: leasehold init URL",
    "42703": "the tables are of another layout; run: leasehold init URL",
    "53100": "its disk is full; make room",
    "53200": "it is out of memory",
    "53300": "it has as many connections as its max_connections allows; raise that, or close some",
    "53400": "a limit of its configuration is exceeded",
    "55P03": "somebody keeps the row of this name locked; look for long transactions in pg_stat_activity",
    "57014": "it was too slow, or the row of this name was locked for too long",
    "57P01": "an operator ended the connection, or the server is shutting down",
    "57P02": "it crashed and recovers; try again",
    "57P03": "it is starting or shutting down; try again",
    "57P04": "the database was dropped",
    "57P05": "its idle_session_timeout ended the connection",
}
"""What to do about each code."""

UNLISTED = "its log may say more; `leasehold doctor` looks at its settings"

SILENCE = "look whether it is up, reachable and not overloaded"

HINTS: Mapping[str, str] = {
    "password authentication failed": REMEDIES["28P01"],
    "no password supplied": "put the password into the URL: postgresql://user:password@host/database",
    "no pg_hba.conf entry": REMEDIES["28000"],
    "does not exist": "check the user and the database of the URL",
    "too many clients": REMEDIES["53300"],
    "remaining connection slots": REMEDIES["53300"],
    "too many connections": REMEDIES["53300"],
    "starting up": REMEDIES["57P03"],
    "shutting down": REMEDIES["57P03"],
    "recovery mode": REMEDIES["57P03"],
    "onnection refused": "nobody listens there; check host and port, and that the server runs",
    "No such file": "there is no such file; check the path of the socket or of the certificate",
    "ermission denied": "this process may not open it; check the rights of the socket's file",
    "could not translate host name": "the host name is unknown; check its spelling and the DNS",
    "does not support SSL": "it has no TLS; write sslmode=prefer, or set TLS up",
    "certificate": "name the authority that signed its certificate with sslrootcert=FILE",
    "read-only": REMEDIES["25006"],
    "session is not": REMEDIES["25006"],
    "closed the connection": "it hung up; look at its log",
    "imed out": SILENCE,
}
"""What to do about a connection that fails, by words of the error."""


class ServerError(Exception):
    """An error of the server in answer to a statement.

    Attributes:
        code: SQLSTATE, five characters.
        fatal: whether the connection is gone with it.
        in_commit: whether it answers the COMMIT itself.
        stale: whether a statement that was prepared is to blame; the same connection plans it anew the next time.

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
    """Say what an error with this SQLSTATE means for the transaction."""
    if in_commit and code.startswith(UNKNOWN_IN_COMMIT):
        return Outcome.UNKNOWN
    if code in AGAIN:
        return Outcome.AGAIN
    return Outcome.LASTING if code.startswith(LASTING) else Outcome.NOT_APPLIED


def refused(where: str, error: ServerError) -> Refused:
    """Make the error for a server that answered with an error."""
    remedy = REMEDIES.get(error.code, UNLISTED)
    text = f"PostgreSQL at {where} refused ({error.code}): {error}; {remedy}"
    outcome = Outcome.AGAIN if error.stale else outcome_of(error.code, in_commit=error.in_commit)
    return Refused(text, code=error.code, outcome=outcome)


def no_answer(where: str, why: object, *, unknown: bool) -> StoreUnavailable:
    """Make the error for a server that did not answer."""
    reason = str(why) or type(why).__name__
    return StoreUnavailable(f"PostgreSQL at {where} did not answer: {reason}; {SILENCE}", unknown=unknown)


def cannot_connect(where: str, why: str) -> StoreUnavailable:
    """Make the error for a connection that could not be made. Nothing was sent, but who we are."""
    text = " ".join(why.split())
    hint = next((hint for words, hint in HINTS.items() if words in text), "check host, port and that the server runs")
    return StoreUnavailable(f"cannot connect to PostgreSQL at {where}: {text}; {hint}")
