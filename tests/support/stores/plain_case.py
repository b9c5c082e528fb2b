"""Both ways of the plain case on a database: by one statement, or by the store's own steps."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

from leasehold._model import Granted, Kind, LeaseTerms, LockMode, Owner, ReleaseReason, Ticket, ticket_id
from leasehold.stores._sql import plain

MODES = (LockMode(), LockMode(), LockMode(fair=True), LockMode(Kind.SEMAPHORE, limit=2))
COLUMNS = (
    "ticket, place, token, expires, kind, exclusive, upgradeable, permits, most, fair, lease, delay, owner, meta, "
    "alongside"
)
HOLDER = "holder_fair, holder_lease, holder_delay, holder_owner, holder_meta"
HOUR = 3600 * 10**9


@pytest.fixture
def by_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """No client takes the plain case."""
    monkeypatch.setattr(plain, "is_plain", lambda ticket: False)


@pytest.fixture(params=["alone", "steps"])
def way(request: pytest.FixtureRequest) -> str:
    """Run the test in both ways."""
    if request.param == "steps":
        request.getfixturevalue("by_steps")
    return str(request.param)


class Database:
    """A real server, and what is looked at and changed there."""

    def __init__(self, server: Any, url: str) -> None:
        self.server = server
        self.url = url

    def run(self, text: str, *args: Any) -> list[tuple[Any, ...]]:
        connection = self.server.connect()
        try:
            cursor = connection.cursor()
            cursor.execute(text, args)
            return list(cursor.fetchall()) if cursor.description else []
        finally:
            connection.commit()
            connection.close()

    def rows(self, space: str) -> tuple[list[Any], list[Any]]:
        """Return names and entries, with what time is, and which token, in words that do not differ.

        A lock delay counts if it ends after now and after the last use, which is later than now if the clock was set
        back.
        """
        names, entries = list[Any](), list[Any]()
        found = self.run(
            f"SELECT id, name, fence, entries, blocked_until > GREATEST(used, %s), holder, holder_token, "
            f"holder_expires > 1, {HOLDER} FROM leasehold_name WHERE space = %s ORDER BY name",
            *(time.time_ns(), space.encode()),
        )
        for number, name, fence, count, delayed, holder, token, lasts, *terms in found:
            in_row = (holder, token == fence, bool(lasts), *terms) if holder else ()
            names.append((bytes(name), fence > 0, bool(delayed), *in_row))
            some = self.run(f"SELECT {COLUMNS} FROM leasehold_entry WHERE name_id = %s ORDER BY ticket", number)
            assert count == len(some), (bytes(name), count, some)
            entries += [(bytes(name), *row[:2], row[2] == fence, row[3] > 1, *row[4:]) for row in some]
        return names, entries

    def let_pass(self, space: str, what: str) -> None:
        """Let leases end; or lock delays, after which twenty minutes pass; or set the clock back by an hour."""
        mine = "(SELECT id FROM leasehold_name WHERE space = %s)"
        if what == "leases":
            self.run(f"UPDATE leasehold_entry SET expires = 1 WHERE name_id IN {mine}", space.encode())
            self.run("UPDATE leasehold_name SET holder_expires = 1 WHERE space = %s", space.encode())
            return
        later = HOUR if what == "back" else -HOUR // 3
        moved = f"used = used + {later}, blocked_until = GREATEST(blocked_until + {later}, 0)"
        self.run(f"UPDATE leasehold_name SET {moved} WHERE space = %s", space.encode())
        if what == "back":
            columns = f"holder_expires = holder_expires + {later}"
            self.run(f"UPDATE leasehold_name SET {columns} WHERE space = %s AND holder <> ''", space.encode())
            self.run(f"UPDATE leasehold_entry SET expires = expires + {later} WHERE name_id IN {mine}", space.encode())


@pytest.fixture(params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setattr(plain, "CROWDED_FOR", 0.0)  # it calls each time
    if request.param == "postgresql":
        server = request.getfixturevalue("postgres_server")
        return Database(server, server.url)
    return Database(request.getfixturevalue("mariadb_server"), request.getfixturevalue("mariadb_url"))


def ticket(mode: LockMode = MODES[0], delay: float = 0.0) -> Ticket:
    terms = LeaseTerms(mode, Owner("höst", 1, "c"), 30.0, lock_delay=delay, meta='{"a": "; \'\\\\ $$ ü"}')
    return Ticket(ticket_id(os.urandom(16)), terms)


async def known(store: Any, name: str) -> None:
    """Make a name known: it is free, and has a row."""
    one = ticket()
    assert isinstance(await store.try_acquire(name, one, join=False, within=5), Granted)
    assert await store.release(name, one, reason=ReleaseReason.RELEASE, within=5)
