"""A primary with replicas, without Sentinel or a cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from urllib.parse import quote

from leasehold_lab.servers.certificates import Certificates
from leasehold_lab.servers.group import LINK, Group, Node

FAST = {"repl-diskless-sync": "yes", "repl-diskless-sync-delay": "0", "repl-ping-replica-period": "1"}
"""Settings by which replicas follow at once."""


class RedisReplicas(Group):
    """One primary and ``replicas`` replicas, on free ports of 127.0.0.1.

    Args:
        replicas: how many.
        password: of the default user of each.
        users: further users of each, as for `RedisServer`.
        tls: speak TLS, also among themselves; `certificates` has the files.
        config: further settings of each.
        binary: the program.

    """

    def __init__(
        self,
        replicas: int = 1,
        *,
        password: str | None = None,
        users: Sequence[str] = (),
        tls: bool = False,
        config: Mapping[str, str] | None = None,
        binary: str | None = None,
    ) -> None:
        self.nodes: list[Node] = []
        settings = {**FAST, **(config or {})}
        certificates: bool | Certificates = tls
        for _ in range(1 + replicas):
            node = Node.make(password=password, users=users, tls=certificates, config=settings, binary=binary)
            certificates = node.certificates or False
            self.nodes.append(node)
        self._share_secret()
        for node in self.nodes[1:]:
            node._config["replicaof"] = f"127.0.0.1 {self.nodes[0].port}"
        super().__init__(self.nodes)

    @property
    def certificates(self) -> Certificates | None:
        """The files for TLS."""
        return self.nodes[0].certificates

    @property
    def primary(self) -> Node:
        """The node that reports to be the primary; if several do, the one with most replicas."""
        found = [node for node in self.nodes if node.running and node.role == "master"]
        if not found:
            raise RuntimeError("no server is the primary now")
        return max(found, key=lambda node: int(node.info("replication")["connected_slaves"]))

    @property
    def replicas(self) -> list[Node]:
        """The nodes that run and are not the primary."""
        primary = self.primary
        return [node for node in self.nodes if node.running and node is not primary]

    @property
    def url(self) -> str:
        """The URL of the primary."""
        return self.primary.url

    def promote(self, node: Node) -> None:
        """Make ``node`` the primary, as an operator does who knows nothing of the old one; the others follow it."""
        node.command("REPLICAOF", "NO", "ONE")
        for other in self.nodes:
            if other is not node and other.running:
                other.command("REPLICAOF", "127.0.0.1", node.port)

    def catch_up(self, within: float = 10.0) -> None:
        """Wait until each replica has all that the primary has now."""
        offset = self.primary.offset
        self.wait_until(
            lambda: all(node.offset >= offset for node in self.replicas), within, "the replicas have caught up"
        )

    def _share_secret(self) -> None:
        """Let each know the secret by which any other may become its primary."""
        first = self.nodes[0]
        for node in self.nodes:
            node.users = (*node.users[:-1], first.users[-1])
            node.secret = first.secret
            node._config.update(masteruser=LINK, masterauth=first.secret)

    def _healthy(self) -> bool:
        primary = self.primary
        running = sum(node.running for node in self.nodes)
        if int(primary.info("replication")["connected_slaves"]) < running - 1:
            return False
        return all(node.info("replication").get("master_link_status") == "up" for node in self.replicas)


def userinfo(password: str | None) -> str:
    """Return what stands before the hosts of a URL."""
    return f":{quote(password, safe='')}@" if password else ""
