"""A node of a Galera cluster for tests: it is alone in its cluster, which Debian's server can be as it is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from leasehold_lab.servers.base import MissingServer, free_port
from leasehold_lab.servers.sql.mariadb import MariaDBServer

LIBRARY = Path("/usr/lib/galera/libgalera_smm.so")
"""Where Debian's package puts what makes a server a node."""


class GaleraServer(MariaDBServer):
    """A node of a cluster of one. It certifies and replicates every commit, to no other node.

    Args:
        config: further settings, by name without dashes in front.
        binary: the program; without it ``mariadbd`` or else ``mysqld``.

    """

    def __init__(self, *, config: Mapping[str, str] | None = None, binary: str | None = None) -> None:
        if not LIBRARY.exists():
            raise MissingServer(f"no {LIBRARY}; install it, on Debian with: apt-get install galera-4")
        port = free_port()
        here = f"base_port={port};gmcast.listen_addr=tcp://127.0.0.1:{port};ist.recv_addr=127.0.0.1:{free_port()}"
        node = {
            "wsrep-on": "ON",
            "wsrep-provider": str(LIBRARY),
            "wsrep-provider-options": here,
            "wsrep-cluster-address": "gcomm://",
            "wsrep-node-address": "127.0.0.1",
            "wsrep-sst-method": "rsync",
            "binlog-format": "ROW",
            "innodb-autoinc-lock-mode": "2",
        }
        super().__init__(config={**node, **(config or {})}, binary=binary)

    def _ready(self) -> bool:
        return super()._ready() and self.query("SHOW STATUS LIKE 'wsrep_ready'") == [("wsrep_ready", "ON")]
