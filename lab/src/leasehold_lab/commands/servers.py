"""``leasehold servers``: start a deployment of Redis on this machine, for development."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping

import click

from leasehold.cli.codes import Exit
from leasehold.cli.options import Command, Failed, json_option
from leasehold.cli.output import as_json
from leasehold_lab.lifetime import Ended, end_on_signals
from leasehold_lab.servers import (
    Group,
    MissingServer,
    RedisCluster,
    RedisReplicas,
    RedisSentinel,
    RedlockNodes,
    Server,
)

KINDS: Mapping[str, tuple[Callable[[], Group], str]] = {
    "replicas": (lambda: RedisReplicas(3), "1 primary with 3 replicas"),
    "sentinel": (RedisSentinel, "1 primary with 3 replicas, watched over by 3 sentinels"),
    "cluster": (RedisCluster, "3 primaries with 1 replica each"),
    "redlock": (RedlockNodes, "5 servers that know nothing of each other"),
}
"""What each word of the command line starts."""


@click.command(cls=Command)
@click.argument("kind", type=click.Choice(list(KINDS)), metavar="|".join(KINDS))
@json_option
def servers(kind: str, json_: bool) -> None:
    """Start Redis servers on this machine for development, and print the URL to reach them.

    They listen on free ports of 127.0.0.1, keep nothing on disk, and end with this command: Ctrl-C, SIGTERM, or the
    end of whatever runs it. It needs the program redis-server or valkey-server.

    Exit code: 0 when ended by Ctrl-C or SIGTERM, 3 if the program is missing.
    """
    make, description = KINDS[kind]
    end_on_signals()
    try:
        with make() as group:
            _print(kind, group, description, json_)
            while True:
                signal.pause()
    except Ended:
        if not json_:
            click.echo("\nended", err=True)
    except MissingServer as error:
        raise Failed(str(error), Exit.MISSING) from None


def _print(kind: str, group: Group, description: str, json_: bool) -> None:
    roles = [_role(server, group) for server in group.servers]
    if json_:
        nodes = [
            {"role": role, "address": f"127.0.0.1:{server.port}", "pid": server.pid, "folder": str(server.folder)}
            for role, server in zip(roles, group.servers, strict=True)
        ]
        as_json({"kind": kind, "url": group.url, "version": group.version, "nodes": nodes})
    else:
        click.echo(f"{group.version}: {description}\n")
        for role, server in zip(roles, group.servers, strict=True):
            click.echo(f"  {role:<9} 127.0.0.1:{server.port:<6} pid {server.pid}")
        click.echo(f"\n{group.url}\n\nCtrl-C ends them.")
    sys.stdout.flush()


def _role(server: Server, group: Group) -> str:
    if isinstance(group, RedlockNodes):
        return "server"
    if isinstance(group, RedisSentinel) and server in group.sentinels:
        return "sentinel"
    if isinstance(group, RedisCluster):
        return "primary" if server in group.primaries else "replica"
    return "primary" if isinstance(group, RedisReplicas) and server is group.primary else "replica"
