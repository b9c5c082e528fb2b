"""Faults of one Redis server: of its process, its memory, its connections, its scripts and its data."""

from __future__ import annotations

import re
import time
from collections import defaultdict

from leasehold_lab.servers import RedisServer
from leasehold_lab.servers.redis.resp import RedisError
from leasehold_lab.verify.faults.actions import ServerFault, Spell, down, frozen

BUSY = "while true do end"
"""A script that keeps the server to itself until it is killed."""


def _terminate(server: RedisServer, spell: Spell) -> None:
    down(server, spell, crash=False)


def _crash(server: RedisServer, spell: Spell) -> None:
    down(server, spell)


def _long_down(server: RedisServer, spell: Spell) -> None:
    down(server, spell, 1.5)


def _amnesia(server: RedisServer, spell: Spell) -> None:
    server.restart(keep_data=False)


def _old_backup(server: RedisServer, spell: Spell) -> None:
    """Save, go on for a while, and come back with what was saved."""
    server.command("SAVE")
    saved = (server.folder / "dump.rdb").read_bytes()
    spell.sleep(0.7 * spell.lease)
    server.kill()
    server._forget_data()
    (server.folder / "dump.rdb").write_bytes(saved)
    server._config["appendonly"] = "no"  # where there is an append-only file, the snapshot is not read
    try:
        server.start()
    finally:
        server._config["appendonly"] = "yes"
    server.command("CONFIG", "SET", "appendonly", "yes")


def _freeze(server: RedisServer, spell: Spell) -> None:
    frozen(server, spell, 0.5)


def _freeze_long(server: RedisServer, spell: Spell) -> None:
    frozen(server, spell, 1.5)


def _sleepy(server: RedisServer, spell: Spell) -> None:
    connection = server.connect()
    connection.link.settimeout(5 + 2 * spell.lease)
    try:
        connection.command("DEBUG", "SLEEP", f"{0.6 * spell.lease:.3f}")
    finally:
        connection.close()


def _busy(server: RedisServer, spell: Spell) -> None:
    server.command("CONFIG", "SET", "busy-reply-threshold", "50")
    connection = server.connect()
    connection.link.settimeout(0.5 * spell.lease)
    try:
        connection.command("EVAL", BUSY, 0)
    except TimeoutError:  # as it must
        server.command("SCRIPT", "KILL")
    finally:
        connection.close()


def _drop_clients(server: RedisServer, spell: Spell) -> None:
    until = time.monotonic() + spell.lease
    while time.monotonic() < until:
        for kind in ("normal", "pubsub"):
            server.command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")
        spell.sleep(0.05)


def _drop_listeners(server: RedisServer, spell: Spell) -> None:
    until = time.monotonic() + spell.lease
    while time.monotonic() < until:
        server.command("CLIENT", "KILL", "TYPE", "pubsub")
        spell.sleep(0.05)


def _hold_writes(server: RedisServer, spell: Spell) -> None:
    server.command("CLIENT", "PAUSE", int(1000 * spell.lease), "WRITE")
    spell.sleep(spell.lease)
    server.command("CLIENT", "UNPAUSE")


def _hold_all(server: RedisServer, spell: Spell) -> None:
    server.command("CLIENT", "PAUSE", int(600 * spell.lease), "ALL")
    spell.sleep(0.7 * spell.lease)


def _forget_scripts(server: RedisServer, spell: Spell) -> None:
    for _ in range(5):
        server.command("SCRIPT", "FLUSH")
        spell.sleep(0.1 * spell.lease)


def _full(server: RedisServer, spell: Spell) -> None:
    server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    server.command("CONFIG", "SET", "maxmemory", "1mb")
    try:
        spell.sleep(spell.lease)
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")


def _evict(server: RedisServer, spell: Spell) -> None:
    server.command("CONFIG", "SET", "maxmemory-policy", "volatile-ttl")
    server.command("CONFIG", "SET", "maxmemory", "1mb")
    try:
        spell.sleep(0.5 * spell.lease)
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")
        server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")


def _no_replicas(server: RedisServer, spell: Spell) -> None:
    server.command("CONFIG", "SET", "min-replicas-to-write", "1")
    try:
        spell.sleep(spell.lease)
    finally:
        server.command("CONFIG", "SET", "min-replicas-to-write", "0")


def _new_password(server: RedisServer, spell: Spell) -> None:
    server.command("CONFIG", "SET", "requirepass", "changed")
    try:
        connection = server.connect("default", "changed")
        try:
            connection.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            spell.sleep(spell.lease)
            connection.command("CONFIG", "SET", "requirepass", "")
        finally:
            connection.close()
    except RedisError as error:
        raise RuntimeError(f"the password was not changed back: {error}") from error


def _flush(server: RedisServer, spell: Spell) -> None:
    server.flush()


def _delete_names(server: RedisServer, spell: Spell) -> None:
    for key in _some_name(server, spell):
        server.command("DEL", key)


def _expire_names(server: RedisServer, spell: Spell) -> None:
    """End the time to live of all keys of a name at once, as a step of the server's clock does."""
    for key in _some_name(server, spell):
        server.command("PEXPIRE", key, 1)


def _some_name(server: RedisServer, spell: Spell) -> list[str]:
    """Return the keys of one name of the run, chosen by chance."""
    found = server.command("KEYS", f"*{spell.namespace}*")
    by_name: defaultdict[str, list[str]] = defaultdict(list)
    for key in map(str, found if isinstance(found, list) else []):
        tag = re.search(r"\{(.*?)\}", key)
        by_name[tag[1] if tag else key].append(key)
    return by_name[spell.random.choice(sorted(by_name))] if by_name else []


PROCESS = (
    ServerFault("server-restart", "the server is restarted, with its data", ("D2",), _terminate),
    ServerFault("server-crash", "the server is killed (SIGKILL) and started again, with its data", ("D2",), _crash),
    ServerFault("server-outage", "the server is killed and is down for one and a half leases", ("D2",), _long_down),
    ServerFault("server-amnesia", "the server is killed and comes back empty", ("C1", "C6"), _amnesia, loses=True),
    ServerFault(
        "server-old-backup", "the server comes back as it was a while ago", ("C2", "C21", "C6"), _old_backup, loses=True
    ),
    ServerFault("server-freeze", "the server stands still (SIGSTOP) for half a lease", ("C15",), _freeze),
    ServerFault("server-freeze-long", "the server stands still for one and a half leases", ("C15",), _freeze_long),
)

COMMANDS = (
    ServerFault("server-sleep", "the server answers nobody for a part of a lease (DEBUG SLEEP)", ("C15",), _sleepy),
    ServerFault("server-busy", "a script of somebody else runs; all are told BUSY", ("C15",), _busy),
    ServerFault(
        "server-drop-clients", "all connections are killed, for a lease (CLIENT KILL)", ("C17",), _drop_clients
    ),
    ServerFault(
        "server-drop-listeners", "all subscriptions are killed, for a lease", ("C17", "D2", "D3"), _drop_listeners
    ),
    ServerFault("server-hold-writes", "writes are kept back for a lease (CLIENT PAUSE WRITE)", ("C16",), _hold_writes),
    ServerFault("server-hold-all", "all commands are kept back for a part of a lease", ("C16", "B7"), _hold_all),
    ServerFault("server-forget-scripts", "the server forgets all scripts (SCRIPT FLUSH)", ("C8",), _forget_scripts),
    ServerFault("server-full", "the server's memory is full, for a lease", ("C13",), _full),
    ServerFault("server-no-replicas", "writes are refused for want of replicas", (), _no_replicas),
    ServerFault(
        "server-password", "the password changes for a lease, and all must log in anew", ("B11",), _new_password
    ),
    ServerFault("server-flush", "all data are deleted (FLUSHALL)", ("C6",), _flush, loses=True),
    ServerFault("server-evict", "memory is short, and the server may delete locks", ("C12",), _evict, loses=True),
    ServerFault("server-delete", "the keys of one name are deleted", ("C18", "C6"), _delete_names, loses=True),
    ServerFault("server-expire", "the keys of one name expire early", ("A4",), _expire_names, loses=True),
)
