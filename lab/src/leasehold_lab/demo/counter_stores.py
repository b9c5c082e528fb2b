"""The demo's counters in each kind of store: cells of the store, keys of Redis or etcd, rows of a table.

Reading and writing are two requests. A row of the demo without a lock writes without a token, as programs without locks
do.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any, Protocol

from leasehold._model import Change
from leasehold._runtimes.base import run_sync
from leasehold.client import Client
from leasehold.errors import StoreUnavailable
from leasehold.guards import Stale, sql
from leasehold.guards.connection import Statement, Statements, run
from leasehold.primitives.locks.hold import Hold
from leasehold_lab.demo.rows import COUNTER_LIFE, LEFT_FOR, Guard, counter_name

ANSWERS_WITHIN = 10.0
"""Seconds that a request of a counter may take."""


class Counter(Protocol):
    """The counters of all rows of the demo, seen from one process. Used by many threads at once."""

    def read(self, guard: Guard) -> int:
        """Return the count."""
        ...

    def write(self, guard: Guard, value: int, hold: Hold | None) -> None:
        """Set the counter, under the token of ``hold`` if there is one.

        Raises:
            Stale: a newer holder has written before.
            LeaseLost: the lock is no longer held.

        """
        ...

    def discard(self) -> None:
        """Delete the counters that do not expire; idempotent."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Cells:
    """Cells of the store."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def read(self, guard: Guard) -> int:
        return int(run_sync(self._client.store.compare_and_set(counter_name(guard), Change())).value or b"0")

    def write(self, guard: Guard, value: int, hold: Hold | None) -> None:
        token = None if hold is None else hold.token
        change = Change(value=b"%d" % value, fence=token, ttl=COUNTER_LIFE)
        if not run_sync(self._client.store.compare_and_set(counter_name(guard), change)).changed:
            raise Stale(f"the write with token {token} was refused", token=token)

    def discard(self) -> None:
        """Do nothing: the counters expire."""

    def close(self) -> None:
        """Do nothing: the client belongs to the caller."""


class Keys:
    """Keys of one Redis server."""

    def __init__(self, settings: Any, namespace: str) -> None:
        import redis

        classes = {"tcp": redis.Connection, "tls": redis.SSLConnection, "unix": redis.UnixDomainSocketConnection}
        connection_class: Any = classes[settings.kind]
        pool = redis.ConnectionPool(connection_class=connection_class, **settings.options)
        self._redis: Any = redis.Redis(connection_pool=pool)
        self._namespace = namespace
        self._mutex = threading.Lock()  # one connection is enough

    def read(self, guard: Guard) -> int:
        with self._mutex:
            return int(self._redis.get(self._key(guard)) or b"0")

    def write(self, guard: Guard, value: int, hold: Hold | None) -> None:
        from leasehold.guards import redis

        with self._mutex:
            if hold is None:
                self._redis.set(self._key(guard), b"%d" % value, px=int(COUNTER_LIFE * 1000))
            else:
                redis.write(self._redis, self._key(guard), b"%d" % value, token=hold.token, ttl=COUNTER_LIFE)

    def discard(self) -> None:
        """Do nothing: the counters expire."""

    def close(self) -> None:
        self._redis.close()
        self._redis.connection_pool.disconnect()

    def _key(self, guard: Guard) -> str:
        from leasehold.stores.redis.keys import PREFIX, tag

        return f"{PREFIX}:{{{tag(self._namespace, counter_name(guard))}}}:demo"


class EtcdKeys:
    """Keys of etcd. A write under a lock of another system, as of the row with Redlock, goes to a cell.

    Args:
        client: whose connections they use.
        root: the first part of all keys of its store.
        namespace: that of the run.
        lease: the ID of the lease with which the keys end: also if they are not discarded, and for late writes.

    """

    def __init__(self, client: Client, root: str, namespace: str, lease: int) -> None:
        self._client = client
        self._stem = f"{root}/{namespace}/demo/"
        self._lease = lease
        self._cells = Cells(client)

    @staticmethod
    def make(client: Client) -> int:
        """Get a lease for the keys of a run; return its ID."""
        return int(_send(client, "/v3/lease/grant", {"TTL": str(round(LEFT_FOR))})["ID"])

    def read(self, guard: Guard) -> int:
        from leasehold.stores.etcd.keys import only, unb64

        if guard is Guard.REDLOCK:
            return self._cells.read(guard)
        found: list[dict[str, str]] = _send(self._client, "/v3/kv/range", only(self._key(guard))).get("kvs", [])
        return int(unb64(found[0]["value"])) if found else 0

    def write(self, guard: Guard, value: int, hold: Hold | None) -> None:
        from leasehold.guards.etcd import EtcdGuard
        from leasehold.stores.etcd.keys import b64

        if guard is Guard.REDLOCK:
            self._cells.write(guard, value, hold)
        elif hold is None:
            put = {"key": b64(self._key(guard)), "value": b64(b"%d" % value), "lease": str(self._lease)}
            _send(self._client, "/v3/kv/put", put)
        else:
            EtcdGuard(hold).put(self._key(guard), b"%d" % value, lease=self._lease)

    def discard(self) -> None:
        """End their lease, and them with it."""
        with suppress(StoreUnavailable):  # it has expired, or it will
            _send(self._client, "/v3/lease/revoke", {"ID": str(self._lease)})

    def close(self) -> None:
        """Do nothing: the client belongs to the caller."""

    def _key(self, guard: Guard) -> str:
        return self._stem + counter_name(guard)


def _send(client: Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    store: Any = client.store
    answer: dict[str, Any] = run_sync(store.send(path, body, within=ANSWERS_WITHIN))
    return answer


class Rows:
    """Rows of a table: name, value and the fence that the guard compares."""

    def __init__(self, connection: Any, table: str) -> None:
        self._connection = connection
        self._table = table
        self._mutex = threading.Lock()

    def create(self) -> None:
        """Make the table, with a row for each row of the demo."""
        columns = "name VARCHAR(64) NOT NULL PRIMARY KEY, value BIGINT NOT NULL, fence BIGINT NOT NULL DEFAULT 0"
        self._ask(f"CREATE TABLE {self._table} ({columns})")
        for guard in Guard:
            self._ask(f"INSERT INTO {self._table} (name, value) VALUES ({{}}, 0)", counter_name(guard))

    def discard(self) -> None:
        """Drop the table."""
        self._ask(f"DROP TABLE IF EXISTS {self._table}")

    def read(self, guard: Guard) -> int:
        rows = self._ask(f"SELECT value FROM {self._table} WHERE name = {{}}", counter_name(guard))
        return int(rows[0][0])

    def write(self, guard: Guard, value: int, hold: Hold | None) -> None:
        name = counter_name(guard)
        if hold is None:
            self._ask(f"UPDATE {self._table} SET value = {{}} WHERE name = {{}}", value, name)
        else:
            with self._mutex:
                sql.update(self._connection, self._table, {"value": value}, where={"name": name}, token=hold.token)

    def close(self) -> None:
        self._connection.close()

    def _ask(self, text: str, *args: Any) -> list[tuple[Any, ...]]:
        def asking() -> Statements[list[tuple[Any, ...]]]:
            return (yield Statement(text, args)).rows

        with self._mutex:
            return run(self._connection, asking())
