"""PostgreSQL behind a pooler, whose sessions keep the default isolation of the database: two never hold one name."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from leasehold import Client, tables
from leasehold.stores._sql import plain
from leasehold.stores._sql.plain import PlainCase
from leasehold.stores._sql.transport import Statement
from leasehold_lab.servers import PgBouncerServer, PostgresServer

THREADS, TURNS = 4, 15


@pytest.mark.parametrize("level", ["read committed", "repeatable read", "serializable"])
def test_the_plain_case_excludes_at_every_level_of_isolation(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done, counter, inside, original = Counter[bool](), [0], [0], PlainCase._change

    async def counted(self: PlainCase, name: str, statement: Statement, now: float, within: float) -> int:
        number = await original(self, name, statement, now, within)
        done[number > 0] += 1
        return number

    monkeypatch.setattr(PlainCase, "_change", counted)
    monkeypatch.setattr(plain, "CROWDED_FOR", 0.0)  # each acquire and release tries it
    with PostgresServer() as server, PgBouncerServer(server) as pooler:
        tables.create(server.url)
        server.configure(default_transaction_isolation=level)
        assert server.query("SHOW default_transaction_isolation") == [(level,)]

        def work() -> None:
            with Client.from_url(pooler.url) as locks:
                for _ in range(TURNS):
                    with locks.lock("x", timeout=60):
                        inside[0] += 1
                        assert inside[0] == 1
                        before = counter[0]
                        time.sleep(0.002)
                        counter[0] = before + 1
                        inside[0] -= 1
                    time.sleep(0.002)

        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with Client.from_url(pooler.url) as locks:
            for _ in range(3):
                with locks.lock("alone"):
                    pass
    assert counter == [THREADS * TURNS]
    assert done[True] > 3
    assert done[False] > 0
