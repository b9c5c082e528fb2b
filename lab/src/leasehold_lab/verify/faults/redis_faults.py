"""Faults of one Redis server: of its process, memory, connections, scripts and data."""

from __future__ import annotations

import re
import time
from collections import defaultdict

from leasehold_lab.servers import RedisServer
from leasehold_lab.servers.redis.resp import RedisError
from leasehold_lab.verify.faults.actions import FaultContext, ServerFault, freeze, restart_after

BUSY = "while true do end"
"""A script that blocks the server until it is killed."""


def _terminate(server: RedisServer, context: FaultContext) -> None:
    restart_after(server, context, crash=False)


def _crash(server: RedisServer, context: FaultContext) -> None:
    restart_after(server, context)


def _long_down(server: RedisServer, context: FaultContext) -> None:
    restart_after(server, context, 1.5)


def _amnesia(server: RedisServer, context: FaultContext) -> None:
    server.restart(keep_data=False)


def _old_backup(server: RedisServer, context: FaultContext) -> None:
    """Save a snapshot, go on for a while, and restart with the snapshot."""
    server.command("SAVE")
    saved = (server.folder / "dump.rdb").read_bytes()
    context.sleep(0.7 * context.lease)
    server.kill()
    server._forget_data()
    (server.folder / "dump.rdb").write_bytes(saved)
    server._config["appendonly"] = "no"  # where there is an append-only file, the snapshot is not read
    try:
        server.start()
    finally:
        server._config["appendonly"] = "yes"
    server.command("CONFIG", "SET", "appendonly", "yes")


def _freeze(server: RedisServer, context: FaultContext) -> None:
    freeze(server, context, 0.5)


def _freeze_long(server: RedisServer, context: FaultContext) -> None:
    freeze(server, context, 1.5)


def _sleepy(server: RedisServer, context: FaultContext) -> None:
    connection = server.connect()
    connection.socket.settimeout(5 + 2 * context.lease)
    try:
        connection.command("DEBUG", "SLEEP", f"{0.6 * context.lease:.3f}")
    finally:
        connection.close()


def _busy(server: RedisServer, context: FaultContext) -> None:
    server.command("CONFIG", "SET", "busy-reply-threshold", "50")
    connection = server.connect()
    connection.socket.settimeout(0.5 * context.lease)
    try:
        connection.command("EVAL", BUSY, 0)
    except TimeoutError:  # expected: the script never ends
        server.command("SCRIPT", "KILL")
    finally:
        connection.close()


def _drop_clients(server: RedisServer, context: FaultContext) -> None:
    until = time.monotonic() + context.lease
    while time.monotonic() < until:
        for kind in ("normal", "pubsub"):
            server.command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        context.sleep(0.05)


def _drop_listeners(server: RedisServer, context: FaultContext) -> None:
    until = time.monotonic() + context.lease
    while time.monotonic() < until:
        server.command("CLIENT", "KILL", "TYPE", "pubsub")
        context.sleep(0.05)


def _hold_writes(server: RedisServer, context: FaultContext) -> None:
    server.command("CLIENT", "PAUSE", int(1000 * context.lease), "WRITE")
    context.sleep(context.lease)
    server.command("CLIENT", "UNPAUSE")


def _hold_all(server: RedisServer, context: FaultContext) -> None:
    server.command("CLIENT", "PAUSE", int(600 * context.lease), "ALL")
    context.sleep(0.7 * context.lease)


def _forget_scripts(server: RedisServer, context: FaultContext) -> None:
    for _ in range(5):
        server.command("SCRIPT", "FLUSH")
        context.sleep(0.1 * context.lease)


def _full(server: RedisServer, context: FaultContext) -> None:
    server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    server.command("CONFIG", "SET", "maxmemory", "1mb")
    try:
        context.sleep(context.lease)
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")


def _evict(server: RedisServer, context: FaultContext) -> None:
    server.command("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
    server.command("CONFIG", "SET", "maxmemory", "1mb")
    try:
        context.sleep(0.5 * context.lease)
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")
        server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")


def _no_replicas(server: RedisServer, context: FaultContext) -> None:
    server.command("CONFIG", "SET", "min-replicas-to-write", "1")
    try:
        context.sleep(context.lease)
    finally:
        server.command("CONFIG", "SET", "min-replicas-to-write", "0")


def _new_password(server: RedisServer, context: FaultContext) -> None:
    server.command("CONFIG", "SET", "requirepass", "changed")
    try:
        connection = server.connect("default", "changed")
        try:
            connection.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            context.sleep(context.lease)
            connection.command("CONFIG", "SET", "requirepass", "")
        finally:
            connection.close()
    except RedisError as error:
        raise RuntimeError(f"the password was not changed back: {error}") from error


def _flush(server: RedisServer, context: FaultContext) -> None:
    server.flush()


def _delete_names(server: RedisServer, context: FaultContext) -> None:
    for key in _some_name(server, context):
        server.command("DEL", key)


def _expire_names(server: RedisServer, context: FaultContext) -> None:
    """Expire all keys of a name at once, as a step of the server's clock does."""
    for key in _some_name(server, context):
        server.command("PEXPIRE", key, 1)


def _some_name(server: RedisServer, context: FaultContext) -> list[str]:
    """Return the keys of a random name of the run."""
    found = server.command("KEYS", f"*{context.namespace}*")
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    for key in map(str, found if isinstance(found, list) else []):
        tag = re.search(r"\{(.*?)\}", key)
        by_name[tag[1] if tag else key].append(key)
    return by_name[context.random.choice(sorted(by_name))] if by_name else []


PROCESS = (
    ServerFault("server-restart", "the server is restarted, with its data", ("D2",), _terminate),
    ServerFault("server-crash", "the server is killed (SIGKILL) and started again, with its data", ("D2",), _crash),
    ServerFault("server-outage", "the server is killed and is down for one and a half leases", ("D2",), _long_down),
    ServerFault("server-amnesia", "the server is killed and restarted empty", ("C1", "C6"), _amnesia, loses=True),
    ServerFault(
        "server-old-backup", "the server is restarted with old data", ("C2", "C21", "C6"), _old_backup, loses=True
    ),
    ServerFault("server-freeze", "the server is paused (SIGSTOP) for half a lease", ("C15",), _freeze),
    ServerFault("server-freeze-long", "the server is paused for one and a half leases", ("C15",), _freeze_long),
)

COMMANDS = (
    ServerFault("server-sleep", "the server does not answer for a part of a lease (DEBUG SLEEP)", ("C15",), _sleepy),
    ServerFault("server-busy", "a foreign script runs; clients get the error BUSY", ("C15",), _busy),
    ServerFault(
        "server-drop-clients", "all connections are killed, for a lease (CLIENT KILL)", ("C17",), _drop_clients
    ),
    ServerFault(
        "server-drop-listeners", "all subscriptions are killed, for a lease", ("C17", "D2", "D3"), _drop_listeners
    ),
    ServerFault("server-hold-writes", "writes are delayed for a lease (CLIENT PAUSE WRITE)", ("C16",), _hold_writes),
    ServerFault("server-hold-all", "all commands are delayed for a part of a lease", ("C16", "B7"), _hold_all),
    ServerFault("server-forget-scripts", "the server forgets all scripts (SCRIPT FLUSH)", ("C8",), _forget_scripts),
    ServerFault("server-full", "the server's memory is full, for a lease", ("C13",), _full),
    ServerFault("server-no-replicas", "writes are refused since replicas are missing", (), _no_replicas),
    ServerFault(
        "server-password", "the password changes for a lease, and all must log in again", ("B11",), _new_password
    ),
    ServerFault("server-flush", "all data are deleted (FLUSHALL)", ("C6",), _flush, loses=True),
    ServerFault("server-evict", "memory is short, and the server may delete locks", ("C12",), _evict, loses=True),
    ServerFault("server-delete", "the keys of one name are deleted", ("C18", "C6"), _delete_names, loses=True),
    ServerFault("server-expire", "the keys of one name expire early", ("A4",), _expire_names, loses=True),
)
