"""The requests of ZooKeeper, typed: kazoo's form of each, and the parser of its answer."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leasehold.stores.zookeeper.connection.errors import NoNode
from leasehold.stores.zookeeper.connection.settings import Settings

_requests: Any = importlib.import_module("kazoo.protocol.serialization")
_security: Any = importlib.import_module("kazoo.security")

EPHEMERAL, SEQUENCE, CONTAINER = 1, 2, 4
"""Flags of a create; a container is removed by the server some time after its last child."""


@dataclass(frozen=True, slots=True)
class Node:
    """A node and its metadata, as the server reports it."""

    path: str
    data: bytes
    czxid: int
    mzxid: int
    version: int
    owner: int
    changed_ms: int


@dataclass(frozen=True, slots=True)
class Request:
    """A request before it is sent: kazoo's form of it, and the parser of its answer."""

    form: Any
    read: Callable[[Any], Any]


class _Container(_requests.Create2):  # type: ignore[misc]
    type = 19


class Requests:
    """Makes requests; nodes are made with the rights that the settings name."""

    def __init__(self, settings: Settings) -> None:
        self._rights: Any = {
            "creator": _security.CREATOR_ALL_ACL,
            "creator+read": _security.CREATOR_ALL_ACL + _security.READ_ACL_UNSAFE,
            "open": _security.OPEN_ACL_UNSAFE,
        }[settings.acl]

    def create(self, path: str, data: bytes, flags: int) -> Request:
        """Create a node; the answer is the node."""
        kind = _Container if flags == CONTAINER else _requests.Create2
        return Request(kind(path, data, self._rights, flags), lambda value: _node(value[0], data, value[1]))

    def get(self, path: str, watcher: Callable[[Any], None] | None = None) -> Request:
        """Read a node, and watch for its next change; the answer is the node."""
        return Request(_requests.GetData(path, watcher), lambda value: _node(path, value[0], value[1]))

    def exists(self, path: str, watcher: Callable[[Any], None] | None = None) -> Request:
        """Ask whether a node exists, which needs no right, and watch for its creation, change or removal."""
        return Request(_requests.Exists(path, watcher), lambda stat: stat is not None)

    def children(self, path: str, watcher: Callable[[Any], None] | None = None) -> Request:
        """List the names of a node's children."""
        return Request(_requests.GetChildren(path, watcher), lambda value: list[str](value))

    def listing(self, path: str) -> Request:
        """List the names of a node's children; the answer has them and the version of the node's data."""
        return Request(_requests.GetChildren2(path, None), lambda value: (list[str](value[0]), int(value[1].version)))

    def delete(self, path: str, version: int = -1) -> Request:
        return Request(_requests.Delete(path, version), lambda value: None)

    def set(self, path: str, data: bytes, version: int = -1) -> Request:
        """Write a node; the answer is the node."""
        return Request(_requests.SetData(path, data, version), lambda stat: _node(path, data, stat))

    def sync(self, path: str) -> Request:
        """Let the server catch up with its leader, which must still know this session."""
        return Request(_requests.Sync(path), lambda value: None)

    def all_or_none(self, *forms: Request) -> Request:
        """Make several changes in one transaction; the answer has one for each, or is the first that failed."""

        def read(value: Any) -> Any:
            failed = [one for one in value if isinstance(one, Exception)]
            cause = [one for one in failed if type(one).__name__ not in ("RolledBackError", "RuntimeInconsistency")]
            return [*cause, *failed][0] if failed else value

        return Request(_requests.Transaction([form.form for form in forms]), read)

    def create_in_transaction(self, path: str, data: bytes, flags: int) -> Request:
        """Create a node, as a part of `all_or_none`; the answer is its path."""
        return Request(_requests.Create(path, data, self._rights, flags), str)

    def check(self, path: str, version: int = -1) -> Request:
        """Require that a node exists, with that version if one is given, as a part of `all_or_none`."""
        return Request(_requests.CheckVersion(path, version), bool)


def names_in(answer: Any) -> list[str]:
    """Return the names in the answer to `Requests.children`; none if there is no node."""
    return [] if isinstance(answer, NoNode) else answer


def _node(path: str, data: bytes | None, stat: Any) -> Node:
    return Node(path, data or b"", stat.czxid, stat.mzxid, stat.version, stat.ephemeralOwner, stat.mtime)
