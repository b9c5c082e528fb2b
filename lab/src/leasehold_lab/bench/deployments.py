"""The stores of a run, each opened at the first measure that needs it: given by a URL, or started for the run."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from leasehold import Client, tables
from leasehold._url import parse
from leasehold_lab.bench.other_stores import EtcdObserver, FileObserver, SqlObserver, ZooKeeperObserver
from leasehold_lab.bench.places import StoreKind, lacks
from leasehold_lab.bench.processes.relay import Relay
from leasehold_lab.bench.processes.server_counters import Observer, Observers, RedisObserver
from leasehold_lab.bench.subjects.base import Scope
from leasehold_lab.servers import (
    EtcdServer,
    MariaDBServer,
    MissingServer,
    PostgresServer,
    RedisServer,
    RedlockNodes,
    ZooKeeperServer,
)
from leasehold_lab.servers.base import Server

PORTS = {StoreKind.POSTGRES: 5432, StoreKind.MYSQL: 3306, StoreKind.ZOOKEEPER: 2181, StoreKind.ETCD: 2379}
"""Default ports of URLs."""

SAFE = {"fsync": "on", "full_page_writes": "on", "shared_buffers": "64MB"}
"""Settings of a PostgreSQL server that is measured: its commits reach the disk."""


@dataclass(slots=True)
class OpenStore:
    """One store that is measured.

    Attributes:
        scope: its URL, and a namespace for this run.
        observer: reads its counters.
        server: the server that this process started, if it is one process that can be pinned.
        servers: the servers that this process started, if there are several of a kind.
        relay: counts the requests; None if the server counts them itself, or if there is no network.
        relayed: the URL through the relay.

    """

    scope: Scope
    observer: Observer
    server: RedisServer | None = None
    relay: Relay | None = None
    relayed: str = ""
    servers: Sequence[RedisServer] = ()


class OpenStores:
    """Opens stores, and closes them at the end of the run."""

    def __init__(self, stack: ExitStack, url: str | None) -> None:
        self._stack = stack
        self._url = url
        self.folder = self._folder(url)
        self.opened: dict[StoreKind, OpenStore] = {}

    def open(self, place: StoreKind) -> OpenStore:
        """Open a store.

        Raises:
            MissingServer: its program or its driver is not installed; the message names what to install.
            LeaseholdError: the server at the URL cannot be used.

        """
        if lack := lacks(place):
            raise MissingServer(lack)
        url, server = (self._url, None) if self._url else self._start(place)
        scope = Scope(url or "", f"bench-{secrets.token_hex(4)}", 1, self.folder)
        if place in (StoreKind.POSTGRES, StoreKind.MYSQL) and not self._url:
            tables.create(scope.url)
        if self._url:
            _try(scope)
        observer = _observer(place, scope, server.pid if isinstance(server, Server) else None)
        self._stack.callback(observer.close)
        self._stack.callback(observer.clean, scope.namespace)
        store = OpenStore(scope, observer, server if isinstance(server, RedisServer) else None)
        if isinstance(server, RedlockNodes):
            store.servers = server.nodes
        if place in PORTS:
            self._insert_relay(store, PORTS[place])
        self.opened[place] = store
        return store

    def _start(self, place: StoreKind) -> tuple[str, Any]:
        if place is StoreKind.FILE:
            return f"sqlite:{self.folder}/locks.db", None
        server = self._stack.enter_context(_server(place))
        return server.url, server

    def _insert_relay(self, store: OpenStore, port: int) -> None:
        there = parse(store.scope.url)
        parts = urlsplit(store.scope.url)
        if len(there.hosts) != 1:
            return
        host, given = there.hosts[0]
        store.relay = self._stack.enter_context(Relay((host, given or port)))
        user, at, _ = parts.netloc.rpartition("@")
        store.relayed = parts._replace(netloc=f"{user}{at}127.0.0.1:{store.relay.port}").geturl()

    def _folder(self, url: str | None) -> str:
        """Make a folder for files: beside the file that the URL names, or where temporary files are."""
        alongside = None
        if url is not None and url.startswith("sqlite:"):
            alongside = str(Path(parse(url).path).expanduser().absolute().parent)
            self._url = None  # a file of its own on the same disk
        return self._stack.enter_context(tempfile.TemporaryDirectory(prefix="leasehold-bench-", dir=alongside))


def _try(scope: Scope) -> None:
    """Check that the store can be used before anything is measured; leasehold's errors explain best why not."""
    with Client.from_url(scope.url, namespace=scope.namespace) as client:
        hold = client.lock("try").acquire()
        if hold is not None:
            hold.release()


def _server(place: StoreKind) -> Any:
    """Make a server that forces its data to the disk; the servers of tests do not."""
    match place:
        case StoreKind.REDIS:
            return RedisServer()
        case StoreKind.REDLOCK:
            return RedlockNodes(5)
        case StoreKind.POSTGRES:
            return PostgresServer(config=SAFE)
        case StoreKind.MYSQL:
            return MariaDBServer()
        case StoreKind.ZOOKEEPER:
            return ZooKeeperServer(tick=2.0, properties={"zookeeper.forceSync": "yes"})
        case StoreKind.ETCD:
            return EtcdServer(config={"unsafe-no-fsync": "false"})
        case StoreKind.FILE:
            raise ValueError("a file has no server")


def _observer(place: StoreKind, scope: Scope, pid: int | None) -> Observer:
    match place:
        case StoreKind.REDIS:
            return RedisObserver(scope)
        case StoreKind.REDLOCK:
            return Observers(scope)
        case StoreKind.POSTGRES:
            return SqlObserver(scope, pid, import_module("leasehold_lab.bench.subjects.floors.postgres_rows"))
        case StoreKind.MYSQL:
            return SqlObserver(scope, pid, import_module("leasehold_lab.bench.subjects.floors.mysql_rows"))
        case StoreKind.ZOOKEEPER:
            return ZooKeeperObserver(scope, pid)
        case StoreKind.ETCD:
            return EtcdObserver(scope, pid)
        case StoreKind.FILE:
            return FileObserver(pid)


def through(store: OpenStore) -> Scope:
    """Return the scope whose requests the relay counts."""
    return replace(store.scope, url=store.relayed)
