"""Independent servers for Redlock: none knows of the others."""

from __future__ import annotations

from collections.abc import Mapping

from leasehold_lab.servers.group import Group
from leasehold_lab.servers.redis.replicas import userinfo
from leasehold_lab.servers.redis.server import RedisServer


class RedlockNodes(Group):
    """``count`` servers on free ports of 127.0.0.1.

    Args:
        count: how many.
        password: of the default user of each.
        append_only: keep data by an append-only file, synced at each write.
        config: further settings of each.
        binary: the program.

    """

    def __init__(
        self,
        count: int = 5,
        *,
        password: str | None = None,
        append_only: bool = False,
        config: Mapping[str, str] | None = None,
        binary: str | None = None,
    ) -> None:
        self.nodes = [
            RedisServer(password=password, append_only=append_only, config=config, binary=binary) for _ in range(count)
        ]
        self._password = password
        super().__init__(self.nodes)

    @property
    def url(self) -> str:
        """The URL that names all of them."""
        hosts = ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)
        return f"redlock://{userinfo(self._password)}{hosts}"
