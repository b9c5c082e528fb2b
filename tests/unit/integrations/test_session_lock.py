"""The lock of a user's own database session, when a signal handler raises in one of its statements.

A driver in C, as mysqlclient, runs a handler when its call has returned: the server has granted the lock by then. The
exception is a plain `Exception`: Celery's `SoftTimeLimitExceeded`, or RQ's `JobTimeoutException`.
"""

from __future__ import annotations

from typing import Any

import pytest

from leasehold import LeaseLost, StoreUnavailable
from leasehold.integrations._common.advisory import session_lock


class SoftTimeLimit(Exception):
    """What the handler raises."""


class Error(Exception):
    """DB-API's name of the base class of a driver's errors."""


class OperationalError(Error):
    """As a driver raises it."""


class Session:
    """A connection of Django, as far as it is asked, to a server with one lock."""

    invalidated = False

    def __init__(self, vendor: str) -> None:
        self.vendor = vendor
        self.held = False
        self.said: list[str] = []
        self.raises: dict[str, tuple[str, Exception]] = {}

    def cursor(self) -> Cursor:
        return Cursor(self)

    def interrupt(self, when: str, statement: str, error: Exception) -> None:
        """Let the next statement of a kind raise, before or after the server has carried it out."""
        self.raises[statement] = when, error


class Cursor:
    """Answers the statements of a lock."""

    description = (1,)
    rowcount = 1

    def __init__(self, session: Session) -> None:
        self._session = session

    def execute(self, text: str, args: tuple[Any, ...] = ()) -> None:
        session = self._session
        self._rows: list[tuple[Any, ...]] = [] if "wsrep" in text else [("shop" if "DATABASE" in text else 1,)]
        kind = "release" if "RELEASE" in text or "unlock" in text else "acquire" if "_LOCK(" in text.upper() else "ask"
        session.said.append(kind)
        when, error = session.raises.pop(kind, ("", None))
        if when == "before" and error:
            raise error
        if kind == "release":
            self._rows, session.held = [(int(session.held),)], False
        if kind == "acquire":
            session.held = True
        if when == "after" and error:
            raise error

    def fetchall(self) -> list[tuple[Any, ...]]:
        return self._rows

    def close(self) -> None: ...


@pytest.fixture(params=["postgresql", "mysql"])
def session(request: pytest.FixtureRequest) -> Session:
    return Session(request.param)


def test_a_lock_is_acquired_and_released(session: Session) -> None:
    with session_lock(session, "nightly"):
        assert session.held
    assert not session.held


@pytest.mark.parametrize("when", ["before", "after"])
def test_what_a_signal_handler_raises_passes_and_leaves_nothing_held(session: Session, when: str) -> None:
    session.interrupt(when, "acquire", SoftTimeLimit("too long"))
    with pytest.raises(SoftTimeLimit, match="too long"), session_lock(session, "nightly"):
        pass
    assert not session.held


def test_a_signal_handler_that_raises_just_before_the_release_leaves_nothing_held(session: Session) -> None:
    with pytest.raises(SoftTimeLimit), session_lock(session, "nightly"):
        session.interrupt("before", "release", SoftTimeLimit())
    assert not session.held


def test_an_error_of_the_database_says_what_to_do(session: Session) -> None:
    """The lock may have been granted: a statement's limit of time counts to its last byte."""
    session.interrupt("after", "acquire", OperationalError("too late"))
    with pytest.raises(StoreUnavailable, match=r"the database failed .* too late; nothing"):
        session_lock(session, "nightly").__enter__()
    assert not session.held


def test_after_an_error_of_the_database_in_the_release_nobody_knows(session: Session) -> None:
    with pytest.raises(LeaseLost, match="could not be released"), session_lock(session, "nightly"):
        session.interrupt("before", "release", OperationalError())


def test_nothing_is_asked_of_a_connection_that_would_connect_again(session: Session) -> None:
    """SQLAlchemy's connection opens another session after an error, and that has no lock."""
    session.interrupt("before", "acquire", OperationalError())
    session.invalidated = True
    with pytest.raises(StoreUnavailable):
        session_lock(session, "nightly").__enter__()
    assert "release" not in session.said


def test_a_session_that_ended_in_the_block_is_reported(session: Session) -> None:
    with pytest.raises(LeaseLost, match="ended before its block"), session_lock(session, "nightly"):
        session.held = False
