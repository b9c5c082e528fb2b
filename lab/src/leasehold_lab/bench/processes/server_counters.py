"""Reads the version and the counters of a Redis server."""

from __future__ import annotations

import re
import socket
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from leasehold_lab.bench.subjects.base import Scope
from leasehold_lab.bench.trials.sampling import added
from leasehold_lab.servers.redis.resp import Connection

ANSWER_WITHIN = 30.0
"""Seconds. The server may be busy with the contestants."""

SCRIPTS = ("eval", "evalsha", "fcall")
"""Commands that call other commands."""


@dataclass(frozen=True, slots=True)
class Counters:
    """The counters of a server since its start.

    Attributes:
        commands: executed, by name; those called by scripts count, too.
        reads: from connections, except those of this observer. One read may bring many commands.
        cpu: seconds of processor time.
        memory: bytes used by data and connections.
        executing: seconds of the execution of commands, by name; those called by a script count in the script, and by
            their own names, too.

    """

    commands: dict[str, int]
    reads: int
    cpu: float
    memory: int
    executing: dict[str, float] = field(default_factory=dict[str, float])

    def since(self, before: Counters) -> Counters:
        """Return the difference to earlier counters, without the commands of the observer itself."""
        commands = {name: count - before.commands.get(name, 0) for name, count in self.commands.items()}
        commands.pop("info", None)
        return Counters(
            {name: count for name, count in sorted(commands.items()) if count},
            self.reads - before.reads,
            self.cpu - before.cpu,
            self.memory - before.memory,
            {name: seconds - before.executing.get(name, 0.0) for name, seconds in self.executing.items()},
        )

    @property
    def executed(self) -> float:
        """Seconds of the execution of clients' own commands: if there are scripts, they call all other commands."""
        scripts = sum(self.executing.get(name, 0.0) for name in SCRIPTS)
        return scripts or sum(seconds for name, seconds in self.executing.items() if name != "info")


class Observer(Protocol):
    """Reads the counters of a store while it is measured, and cleans up afterwards."""

    @property
    def version(self) -> str:
        """Program and version."""
        ...

    def read(self) -> Counters:
        """Return the counters; unknown ones are 0."""
        ...

    def clean(self, namespace: str) -> None:
        """Delete everything in namespaces with this prefix."""
        ...

    def close(self) -> None:
        """Close connections."""
        ...


class RedisObserver:
    """Reads the counters of one Redis server."""

    def __init__(self, scope: Scope) -> None:
        self._connection = Connection(socket.create_connection(scope.address, ANSWER_WITHIN))
        if scope.credentials is not None:
            self._connection.command("AUTH", *scope.credentials)
        self._connection.command("SELECT", scope.database)
        self._looks = 0

    @property
    def version(self) -> str:
        """Program and version."""
        said = str(self._connection.command("INFO", "server"))
        for program, line in (("Valkey", "valkey_version"), ("Redis", "redis_version")):
            if found := re.search(rf"^{line}:(\S+)", said, re.MULTILINE):
                return f"{program} {found[1]}"
        return "unknown"

    def read(self) -> Counters:
        """Return the counters."""
        self._looks += 1
        said = str(self._connection.command("INFO", "all"))
        fields = dict(re.findall(r"^(\w+):([\d.]+)\r?$", said, re.MULTILINE))
        calls = re.findall(r"^cmdstat_([^:]+):calls=(\d+),usec=(\d+)", said, re.MULTILINE)
        return Counters(
            {name.lower(): int(count) for name, count, _ in calls},
            int(fields.get("total_reads_processed", self._looks)) - self._looks,
            float(fields["used_cpu_sys"]) + float(fields["used_cpu_user"]),
            int(fields["used_memory"]),
            {name.lower(): int(microseconds) / 1e6 for name, _, microseconds in calls},
        )

    def clean(self, namespace: str) -> None:
        """Delete all keys that have the namespace in their names."""
        cursor = "0"
        while True:
            reply = self._connection.command("SCAN", cursor, "MATCH", f"*{namespace}*", "COUNT", 1000)
            if not isinstance(reply, list):
                raise TypeError(f"SCAN answered {reply!r}")
            cursor, keys = str(reply[0]), reply[1]
            if isinstance(keys, list) and keys:
                self._connection.command("UNLINK", *map(str, keys))
            if cursor == "0":
                return

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


class Observers:
    """The sum of several servers."""

    def __init__(self, scope: Scope) -> None:
        self._scopes = [replace(scope, url=url) for url in scope.urls]
        self._each = [RedisObserver(one) for one in self._scopes]

    @property
    def version(self) -> str:
        """Program and version of the first."""
        return f"{self._each[0].version} × {len(self._each)}"

    def read(self) -> Counters:
        """Return the sum of all counters."""
        counts = [one.read() for one in self._each]
        commands = sum((Counter(each.commands) for each in counts), Counter[str]())
        return Counters(
            dict(commands),
            sum(each.reads for each in counts),
            sum(each.cpu for each in counts),
            sum(each.memory for each in counts),
            added(each.executing for each in counts),
        )

    @contextmanager
    def without(self, index: int) -> Generator[None, None, None]:
        """Ignore one server during the block, and reconnect to it at the end."""
        self._each.pop(index).close()
        yield
        self._each.insert(index, RedisObserver(self._scopes[index]))

    def clean(self, namespace: str) -> None:
        """Delete all keys that have the namespace in their names."""
        for one in self._each:
            one.clean(namespace)

    def close(self) -> None:
        """Close the connections."""
        for one in self._each:
            one.close()
