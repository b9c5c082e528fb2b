"""A primary, its replicas, and the sentinels that monitor them and promote a replica when the primary is down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self
from urllib.parse import quote

from leasehold_lab.servers.base import Server
from leasehold_lab.servers.group import HEALTHY_WITHIN, LINK, Node
from leasehold_lab.servers.redis.replicas import RedisReplicas, userinfo
from leasehold_lab.servers.redis.resp import RedisError, Reply
from leasehold_lab.servers.redis.server import RedisServer

HURRY = (
    *("info-period", "300", "publish-period", "300", "ask-period", "200", "ping-period", "200"),
    *("election-timeout", "2000", "tilt-trigger", "5000", "tilt-period", "2000"),
)
"""Periods in ms. With these, sentinels (7.0 and later) notice within one second what takes ten by default."""


class SentinelServer(RedisServer):
    """One sentinel, which watches one primary.

    Args:
        name: the name under which the sentinels know the primary.
        primary: the server that is the primary at the start.
        quorum: how many sentinels must agree that the primary is down.
        down_after: seconds of silence after which this sentinel considers the primary down.
        password: of the sentinel's default user; without it, no password is needed.
        users: further users of the sentinel.

    """

    def __init__(
        self,
        name: str,
        primary: Node,
        *,
        quorum: int,
        down_after: float,
        password: str | None = None,
        users: Sequence[str] = (),
        binary: str | None = None,
    ) -> None:
        super().__init__(password=password, tls=primary.certificates or False, binary=binary)
        self._name = name
        self._primary = primary
        self._sentinel_users = tuple(users)
        self._quorum = quorum
        self._down_after = round(down_after * 1000)

    def start(self) -> Self:
        """Start it, and make it check the primary often."""
        super().start()
        if self._major >= 7:
            self.command("SENTINEL", "DEBUG", *HURRY)
        return self

    def state(self) -> dict[str, str]:
        """Return what it reports about the primary (``ip``, ``port``, ``flags``, ``config-epoch``, ...)."""
        return _pairs(self.command("SENTINEL", "MASTER", self._name))

    def _arguments(self) -> Sequence[str]:
        path = self.folder / "sentinel.conf"
        if not path.exists():  # the sentinel itself stores its state in this file
            path.write_text("\n".join(self._lines()) + "\n")
        return [str(path), "--sentinel"]

    def _lines(self) -> list[str]:
        tls = self.certificates
        lines = ["bind 127.0.0.1", f"port {0 if tls else self.port}", f"dir {self.folder}", "daemonize no"]
        lines += self._tls_lines()
        if tls is not None:
            lines.append("tls-replication yes")
        if self.password is not None:
            lines += [f'requirepass "{self.password}"', f'sentinel sentinel-pass "{self.password}"']
        lines += [f"user {user}" for user in self._sentinel_users]
        name = self._name
        return [
            *lines,
            f"sentinel monitor {name} 127.0.0.1 {self._primary.port} {self._quorum}",
            f"sentinel down-after-milliseconds {name} {self._down_after}",
            f"sentinel failover-timeout {name} {max(2000, 2 * self._down_after)}",
            f"sentinel parallel-syncs {name} 9",
            f"sentinel auth-user {name} {LINK}",
            f"sentinel auth-pass {name} {self._primary.secret}",
        ]


class RedisSentinel(RedisReplicas):
    """One primary, ``replicas`` replicas and ``sentinels`` sentinels, on free ports of 127.0.0.1.

    Args:
        replicas: how many.
        sentinels: how many; most of them must agree on a failover.
        name: the name under which the sentinels know the primary.
        down_after: seconds of silence after which the primary counts as down.
        password: of the default user of primary and replicas.
        users: their further users.
        sentinel_password: of the sentinels' default user.
        sentinel_users: their further users.
        tls: speak TLS everywhere.
        config: further settings of primary and replicas.
        binary: the program.

    """

    def __init__(
        self,
        replicas: int = 3,
        sentinels: int = 3,
        *,
        name: str = "locks",
        down_after: float = 1.0,
        password: str | None = None,
        users: Sequence[str] = (),
        sentinel_password: str | None = None,
        sentinel_users: Sequence[str] = (),
        tls: bool = False,
        config: Mapping[str, str] | None = None,
        binary: str | None = None,
    ) -> None:
        super().__init__(replicas, password=password, users=users, tls=tls, config=config, binary=binary)
        self.name = name
        self.sentinels = [
            SentinelServer(
                name,
                self.nodes[0],
                quorum=sentinels // 2 + 1,
                down_after=down_after,
                password=sentinel_password,
                users=sentinel_users,
                binary=binary,
            )
            for _ in range(sentinels)
        ]
        self._sentinel_password = sentinel_password
        self.servers: tuple[Server, ...] = (*self.nodes, *self.sentinels)

    @property
    def url(self) -> str:
        """The URL that names the sentinels."""
        scheme = "rediss+sentinel" if self.certificates else "redis+sentinel"
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        secret = self._sentinel_password
        options = f"?sentinel_password={quote(secret, safe='')}" if secret else ""
        return f"{scheme}://{userinfo(self.nodes[0].password)}{hosts}/{self.name}{options}"

    @property
    def primary(self) -> Node:
        """The node that most sentinels name as the primary, and that has this role."""
        ports = [sentinel.state()["port"] for sentinel in self.sentinels if sentinel.running]
        named = max(set(ports), key=ports.count, default="")
        for node in self.nodes:
            if str(node.port) == named and node.running and node.role == "master":
                return node
        raise RuntimeError("no server is the primary now")

    def wait_failover(self, old: Node, within: float = HEALTHY_WITHIN) -> Node:
        """Wait until most sentinels name another primary than ``old``; return it."""
        self.wait_until(lambda: self.primary is not old, within, "another server is the primary")
        return self.primary

    def _start_all(self) -> None:
        every, self.servers = self.servers, tuple(self.nodes)  # a sentinel that starts first thinks the primary is down
        try:
            super()._start_all()
            self.servers = tuple(self.sentinels)
            super()._start_all()
        finally:
            self.servers = every

    def _healthy(self) -> bool:
        others = sum(sentinel.running for sentinel in self.sentinels) - 1
        for sentinel in self.sentinels:
            if not sentinel.running:
                continue
            state = sentinel.state()
            if state["flags"] != "master" or int(state["num-other-sentinels"]) < others:
                return False
            if not self._knows_replicas(sentinel):
                return False
        return super()._healthy()

    def _knows_replicas(self, sentinel: SentinelServer) -> bool:
        reply = sentinel.command("SENTINEL", "REPLICAS", self.name)
        replicas = [_pairs(each) for each in reply] if isinstance(reply, list) else []
        usable = {each["port"] for each in replicas if each["flags"] == "slave" and each["master-link-status"] == "ok"}
        return {str(node.port) for node in self.replicas} <= usable


def _pairs(reply: Reply) -> dict[str, str]:
    if not isinstance(reply, list):
        raise RedisError("not a list of names and values")
    words = [str(word) for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))
