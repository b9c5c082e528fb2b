"""The line of those who wait for a lock that a session holds, without a server."""

from __future__ import annotations

import pytest

from leasehold.model import Owner, Rule, Terms, Ticket
from leasehold.runtimes.base import drive
from leasehold.runtimes.blocking import BlockingRuntime
from leasehold.stores.sql.lines import Lines


class Taken:
    """Sessions of a server where somebody else has every lock."""

    def __init__(self) -> None:
        self.open: list[object] = []

    async def tried(self, name: str, ticket: Ticket, until: float) -> tuple[object, bool]:
        self.open.append(object())
        return self.open[-1], False

    async def wait(self, session: object, name: str, until: object) -> None:
        """Wait for good; nobody gets so far here."""

    async def free(self, session: object, name: str, until: float, *, has: bool) -> None:
        self.close(session)

    async def end(self, session: object, name: str, until: float) -> None:
        self.close(session)

    def close(self, session: object) -> None:
        self.open.remove(session)


class Threadless(BlockingRuntime):
    """One that can start no thread."""

    def spawn(self, work: object, name: str) -> object:  # type: ignore[override]
        raise RuntimeError("can't start new thread")


def ticket(number: int) -> Ticket:
    return Ticket(f"t{number}", Terms(Rule(), Owner("h", 1, "c"), lease=30.0))


def test_a_session_that_nobody_can_wait_on_is_not_parked() -> None:
    """Else all in line would wait for it for good."""
    sessions = Taken()
    runtime = Threadless()
    lines: Lines[object] = Lines(runtime, sessions)
    first, second = (lines.enter("x", ticket(number)) for number in (1, 2))
    until = runtime.now() + 5
    with pytest.raises(RuntimeError, match="thread"):
        drive(lines.turn(first, until))
    assert not sessions.open
    assert lines.parked(first) is None
    assert first.signal.is_set()
    drive(lines.leave(first, until))
    assert second.signal.is_set()
    with pytest.raises(RuntimeError, match="thread"):
        drive(lines.turn(second, until))  # it asks
    drive(lines.leave(second, until))
    assert not sessions.open
    assert not lines.anybody("x")
