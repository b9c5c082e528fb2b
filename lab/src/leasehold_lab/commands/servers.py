"""``leasehold servers``: start a deployment of a store on this machine, for development."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import click

from leasehold import tables
from leasehold.cli.options import Exit, Failed, json_option
from leasehold.cli.output import as_json
from leasehold_lab.lifetime import Ended, end_on_signals
from leasehold_lab.servers import (
    EtcdCluster,
    Group,
    MariaDBServer,
    MissingServer,
    PostgresServer,
    RedisCluster,
    RedisReplicas,
    RedisSentinel,
    RedisServer,
    RedlockNodes,
    Server,
    ZooKeeperEnsemble,
)

Servers = RedisServer | PostgresServer | MariaDBServer | Group | EtcdCluster | ZooKeeperEnsemble

KINDS: Mapping[str, tuple[Callable[[], Servers], str]] = {
    "redis": (RedisServer, "1 server"),
    "replicas": (lambda: RedisReplicas(3), "1 primary with 3 replicas"),
    "sentinel": (RedisSentinel, "1 primary with 3 replicas, watched over by 3 sentinels"),
    "cluster": (RedisCluster, "3 primaries with 1 replica each"),
    "redlock": (RedlockNodes, "5 servers that know nothing of each other"),
    "postgresql": (PostgresServer, "1 server, with the tables of leasehold"),
    "mariadb": (MariaDBServer, "1 server, with the tables of leasehold"),
    "zookeeper": (ZooKeeperEnsemble, "an ensemble of 3"),
    "etcd": (EtcdCluster, "a cluster of 3"),
}
"""What each word of the command line starts."""

LOOKS = 0.5
"""Seconds between two looks at whether the parent still runs."""

DATABASES = ("postgresql", "mariadb")
"""Kinds whose tables are created first."""


@click.command()
@click.argument("kind", type=click.Choice(list(KINDS)), metavar="|".join(KINDS))
@json_option
def servers(kind: str, json_: bool) -> None:
    """Start servers on this machine for development, and print the URL to reach them.

    They listen on free ports of 127.0.0.1, keep nothing after their end, and end with this command: Ctrl-C, SIGTERM, or
    the end of whatever runs it, unless nohup does. Their programs must be installed, such as redis-server or
    valkey-server.

    Exit code: 0 when ended so, 3 if the program is missing.
    """
    make, description = KINDS[kind]
    parent = os.getppid()
    end_on_signals()
    try:
        with make() as started:
            if kind in DATABASES:
                tables.create(started.url)
            _print(kind, started, description, json_)
            while os.getppid() == parent or signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
                time.sleep(LOOKS)  # `end_with` ends with the thread that started this process
    except Ended:
        if not json_:
            click.echo("\nended", err=True)
    except MissingServer as error:
        raise Failed(str(error), Exit.MISSING) from None


def _print(kind: str, started: Servers, description: str, json_: bool) -> None:
    members = _members(started)
    roles = [_role(server, started) for server in members]
    version = members[0].version
    if json_:
        nodes = [
            {"role": role, "address": f"127.0.0.1:{server.port}", "pid": server.pid, "folder": str(server.folder)}
            for role, server in zip(roles, members, strict=True)
        ]
        as_json({"kind": kind, "url": started.url, "version": version, "nodes": nodes})
    else:
        click.echo(f"{version}: {description}\n")
        for role, server in zip(roles, members, strict=True):
            click.echo(f"  {role:<9} 127.0.0.1:{server.port:<6} pid {server.pid}")
        click.echo(f"\n{started.url}\n\nCtrl-C ends them.")
    sys.stdout.flush()


def _members(started: Servers) -> Sequence[Server]:
    match started:
        case Server():
            return [started]
        case Group():
            return started.servers
        case _:
            return started.members


def _role(server: Server, started: Servers) -> str:
    if isinstance(started, RedisSentinel) and server in started.sentinels:
        return "sentinel"
    if isinstance(started, RedisCluster):
        return "primary" if server in started.primaries else "replica"
    if isinstance(started, RedisReplicas):
        return "primary" if server is started.primary else "replica"
    return "member" if isinstance(started, (EtcdCluster, ZooKeeperEnsemble)) else "server"
