"""Three nodes of beat, what is done to them, and what they sent."""

from __future__ import annotations

import base64
import json
import math
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import redis
from workers import PATIENCE, Program, Site, end

from leasehold import Client, Leader, StoreUnavailable
from support.patience import until

BEAT = (
    *("beat", "--scheduler", "leasehold.integrations.celery:ElectedScheduler"),
    *("--loglevel", "INFO", "--pidfile="),
)


@dataclass
class Nodes:
    """Nodes of beat on one site, each with a file of its own."""

    site: Site
    every: float
    entries: int
    client: Client
    programs: dict[int, Program] = field(default_factory=dict)
    began: float = 0.0
    hand_overs: list[float] = field(default_factory=list)
    kills: int = 0

    def start(self, number: int, **env: str) -> None:
        name = f"beat{number}"
        self.programs[number] = self.site.start(
            name, "-m", "celery", "--app", self.site.app, *BEAT, "--schedule", name, **env
        )

    def leader(self) -> Leader | None:
        try:
            return self.client.election(f"celery-beat/{self.site.app}").leader()
        except StoreUnavailable:
            return None

    def until_led(self, after: int = 0) -> Leader:
        """Wait until a node leads, with a token above ``after``."""
        found: list[Leader] = []

        def led() -> bool:
            leader = self.leader()
            if leader is not None and leader.token > after:
                found.append(leader)
            return bool(found)

        until(led, within=PATIENCE)
        return found[0]

    def number_of(self, leader: Leader) -> int:
        pid = int(leader.owner.split(":")[1])
        return next(number for number, program in self.programs.items() if program.process.pid == pid)

    def until_first(self) -> None:
        """Wait until one leads and has sent something."""
        self.until_led()
        with redis.Redis.from_url(self.site.broker) as broker:
            until(lambda: broker.llen("celery") or broker.exists("records:ticks"), within=PATIENCE)
        self.began = time.time()

    def until_quiet(self) -> None:
        """Wait until the middle between two ticks, when the leader has nothing to send."""
        time.sleep((0.5 - time.time() / self.every) % 1 * self.every)

    def strike(self, kind: int) -> int:
        """Send a signal to the leader, and wait for the next; return the number of the former."""
        leader = self.until_led()
        number = self.number_of(leader)
        self.programs[number].send(kind)
        struck = time.monotonic()
        self.until_led(after=leader.token)
        self.hand_overs.append(time.monotonic() - struck)
        self.kills += 1
        return number

    def kill_leader(self) -> None:
        """Kill the leader, and start it again."""
        number = self.strike(signal.SIGKILL)
        end(self.programs[number])
        self.start(number)

    def sent(self) -> list[dict[str, Any]]:
        """Return the messages in the queue of the broker."""
        with redis.Redis.from_url(self.site.broker) as broker:
            raw: Any = broker.lrange("celery", 0, -1)
        found: list[dict[str, Any]] = []
        for each in map(json.loads, reversed(raw)):
            (entry, sent), *_ = json.loads(base64.b64decode(each["body"]))
            found.append({"id": each["headers"]["id"], "entry": entry, "sent": sent})
        return found

    def judge(self, messages: list[dict[str, Any]], until: float) -> Figures:
        """Compare what was sent with the grid, from the tick of ``began`` until a time."""
        first, last = math.floor(self.began / self.every), math.floor(until / self.every)
        run = lost = doubled = other = 0
        late: list[float] = []
        for entry in {f"entry {number}" for number in range(self.entries)}:
            ids = {each["id"]: each for each in reversed(messages) if each["entry"] == entry}  # the first of each
            ids = {key: each for key, each in ids.items() if first <= each["sent"] / self.every < last}
            own, firsts = [each for each in messages if each["id"] in ids], ids.values()
            run += len(own)
            slots = [math.floor(each["sent"] / self.every) for each in firsts]
            doubled += len(own) - len(firsts)
            other += len(slots) - len(set(slots))
            lost += sum(slot not in slots for slot in range(first, last))
            late += [each["sent"] % self.every for each in firsts]
        return Figures((last - first) * self.entries, run, lost, doubled, other, max(late, default=0.0))


@dataclass(frozen=True)
class Figures:
    """What became of the ticks.

    Attributes:
        expected: points of the grid, times entries.
        run: messages.
        lost: ticks that were not sent before the next one was due.
        doubled: messages with the id of an earlier one.
        twice: ticks that were sent with two ids, which must never happen.
        latest: seconds after which the latest was sent.
    """

    expected: int
    run: int
    lost: int
    doubled: int
    twice: int
    latest: float


@contextmanager
def beating(
    site: Site,
    *,
    every: float,
    entries: int = 3,
    lease: float = 1.5,
    nodes: int = 3,
    app: str = "clockwork",
    wait: bool = True,
    **env: str,
) -> Iterator[Nodes]:
    """Run nodes of beat; with ``wait``, one leads and has sent its first tick when the block begins."""
    site.app = app
    site.env = {"EVERY": str(every), "ENTRIES": str(entries), "LEASE": str(lease), **env}
    with redis.Redis.from_url(site.broker) as broker:
        broker.flushdb()
    with Client.from_url(site.server.url, response_timeout=1) as client:
        made = Nodes(site, every, entries, client)
        try:
            for number in range(nodes):
                made.start(number)
            if wait:
                made.until_first()
            yield made
        finally:
            for program in made.programs.values():
                end(program)
