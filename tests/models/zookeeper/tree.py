"""The nodes of a model of ZooKeeper, and what a write does to them: the leader and all members apply the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple


class Failed(Exception):
    """A request does not fit; by kazoo's name of the error."""


@dataclass(slots=True)
class Znode:
    """A node. ``made`` counts the children that it ever had."""

    data: bytes
    czxid: int
    mzxid: int
    owner: int
    mtime: int
    version: int = 0
    made: int = 0
    container: bool = False
    children: dict[str, None] = field(default_factory=dict[str, None])


class Stat(NamedTuple):
    """What is told of a node, by kazoo's names."""

    czxid: int
    mzxid: int
    mtime: int
    version: int
    ephemeralOwner: int
    numChildren: int


class Change(NamedTuple):
    """One step of a write, as all members apply it."""

    kind: str  # create, delete, set
    path: str
    data: bytes = b""
    owner: int = 0
    container: bool = False


@dataclass(slots=True)
class Write:
    """A committed write."""

    zxid: int
    time: int
    changes: Sequence[Change]


class Tree:
    """Nodes by path."""

    def __init__(self) -> None:
        self.nodes: dict[str, Znode] = {"/": Znode(b"", 0, 0, 0, 0)}
        self.zxid = 0

    def apply(self, write: Write) -> None:
        """Carry out a write that fits."""
        self.zxid = write.zxid
        for change in write.changes:
            parent, _, name = change.path.rpartition("/")
            match change.kind:
                case "create":
                    made = Znode(change.data, write.zxid, write.zxid, change.owner, write.time)
                    made.container = change.container
                    self.nodes[change.path] = made
                    above = self.nodes[parent or "/"]
                    above.children[name] = None
                    above.made += 1
                case "delete":
                    del self.nodes[change.path]
                    del self.nodes[parent or "/"].children[name]
                case _:
                    node = self.nodes[change.path]
                    node.data, node.mzxid, node.mtime = change.data, write.zxid, write.time
                    node.version += 1

    def draft(self, paths: Sequence[str]) -> Tree:
        """Return copies of these nodes and of those above them, as far as they are there: to see what would be."""
        draft = Tree()
        for path in paths:
            for one in (path, path.rpartition("/")[0] or "/"):
                if one in self.nodes:
                    draft.nodes[one] = replace(self.nodes[one], children=dict(self.nodes[one].children))
        return draft

    def find(self, path: str) -> Znode:
        """Return a node.

        Raises:
            Failed: there is none.

        """
        node = self.nodes.get(path)
        if node is None:
            raise Failed("NoNodeError")
        return node

    def stat(self, path: str) -> Stat:
        """Return what is told of a node."""
        node = self.find(path)
        return Stat(node.czxid, node.mzxid, node.mtime, node.version, node.owner, len(node.children))
