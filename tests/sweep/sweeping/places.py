"""The systems on whose servers the sweeps run, and what is stored there."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SYSTEMS = {
    "redis": ("redis_server", ""),
    "redis-plain": ("redis_server", "?layout=plain"),
    "redis-redisson": ("redis_server", "?layout=redisson"),
    "replicas": ("redis_replicas", ""),
    "sentinel": ("redis_sentinel", ""),
    "cluster": ("redis_cluster", ""),
    "redlock": ("redlock_nodes", ""),
    "postgresql": ("postgres_server", ""),
    "postgresql-session": ("postgres_server", "?mode=session"),
    "mariadb": ("mariadb_server", ""),
    "mariadb-session": ("mariadb_server", "?mode=session"),
    "etcd": ("etcd_server", ""),
    "zookeeper": ("zookeeper_server", "/operations"),
    "sqlite": ("", ""),
}
"""The fixture of each system's server, and the suffix of the URL."""


@dataclass(frozen=True, slots=True)
class Place:
    """A running system. ``server`` is its server or group; for SQLite, it is the path of the file."""

    system: str
    url: str
    server: Any


def place_of(system: str, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return a running system; start its server if it does not run yet."""
    fixture, options = SYSTEMS[system]
    if not fixture:
        return Place(system, f"sqlite:{tmp_path}/locks", tmp_path / "locks")
    if fixture == "mariadb_server":
        request.getfixturevalue("mariadb_url")  # with the tables made
    server = request.getfixturevalue(fixture)
    return Place(system, server.url + options, server)


def stored(place: Place, prefix: str) -> dict[str, set[str]]:
    """Read from the servers, without a client, what each namespace with this prefix contains: keys, rows, nodes."""
    found = defaultdict[str, set[str]](set)
    for namespace, thing in _things(place, prefix):
        if namespace.startswith(prefix):
            found[namespace].add(thing)
    return found


def _things(place: Place, prefix: str) -> Iterable[tuple[str, str]]:
    match place.system.partition("-")[0]:
        case "redis":
            _, _, layout = place.system.partition("-")
            return _keys_of_layout(place.server, layout, prefix) if layout else _keys_of_redis([place.server], prefix)
        case "replicas" | "sentinel":
            return _keys_of_redis([place.server.primary], prefix)
        case "cluster":
            return _keys_of_redis(place.server.primaries, prefix)
        case "redlock":
            return _keys_of_redis(place.server.nodes, prefix)
        case "postgresql" | "mariadb":
            return _texts(place.server.query(ROWS.format("leasehold_") + HOLDERS))
        case "sqlite":
            with sqlite3.connect(place.server) as file:
                rows = file.execute(ROWS.format("")).fetchall()
            file.close()
            return _texts(rows)
        case "etcd":
            return [_halves(key.removeprefix("leasehold/"), "/") for key in place.server.keys(f"leasehold/{prefix}")]
        case _:
            return _nodes(place.server.address, prefix)


ROWS = """
    SELECT space, name, 'name' FROM {0}name
    UNION ALL SELECT space, name, ticket FROM {0}entry JOIN {0}name ON id = name_id
    UNION ALL SELECT space, name, 'cell' FROM {0}cell
"""

HOLDERS = "UNION ALL SELECT space, name, holder FROM leasehold_name WHERE holder <> ''"
"""Holders that are stored in the rows of their names."""


def _texts(rows: Iterable[tuple[bytes, bytes, str]]) -> Iterator[tuple[str, str]]:
    for space, name, what in rows:
        namespace = space.removeprefix(b"\xff").removesuffix(b"\xffsession")  # these mark session locks
        yield namespace.decode(), f"{name.decode()}: {what}"


def _keys_of_redis(servers: Iterable[Any], prefix: str) -> Iterator[tuple[str, str]]:
    for server in servers:
        for key in server.command("KEYS", f"leasehold:{{{prefix}*"):
            yield _halves(str(key).removeprefix("leasehold:{"), ":")


def _keys_of_layout(server: Any, layout: str, prefix: str) -> Iterator[tuple[str, str]]:
    begins = "", "{", f"leasehold:layout:{layout}:{{", *(f"redisson_lock_{what}:{{" for what in ("queue", "timeout"))
    for begin in begins:
        for key in server.command("KEYS", f"{begin}{prefix}*"):
            yield _halves(str(key).removeprefix(begin), ":")


def _nodes(address: str, prefix: str) -> list[tuple[str, str]]:
    from kazoo.client import KazooClient
    from kazoo.exceptions import NoNodeError

    root, found = SYSTEMS["zookeeper"][1], list[tuple[str, str]]()

    def walk(namespace: str, path: str) -> None:
        found.append((namespace, path.removeprefix(f"{root}/{namespace}")))
        try:
            for child in client.get_children(path):
                walk(namespace, f"{path}/{child}")
        except NoNodeError:  # the node was removed meanwhile
            pass

    client = KazooClient(address)
    client.start()
    try:
        for child in client.get_children(root):
            if child.startswith(prefix):
                walk(child.partition("~")[0], f"{root}/{child}")
    finally:
        client.stop()
        client.close()
    return found


def _halves(key: str, at: str) -> tuple[str, str]:
    namespace, _, rest = key.partition(at)
    return namespace, rest
