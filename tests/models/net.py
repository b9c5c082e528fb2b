"""Servers, connections and links in simulated time, for the models of all stores: delays, and faults to order.

Theory of operation
-------------------
A `Connection` is one connection. What is sent on it arrives in order, after the delay of its client's `Link`, unless
the line ends first: then what is under way arrives or is lost, as TCP cannot tell. A client that stands still reads
later what came meanwhile. A `Host` is a server with a clock of its own; it takes each request at the moment of its
arrival, and its answers travel back in the order in which it gave them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from leasehold_lab.runtimes.simulated import SimulatedRuntime
from leasehold_lab.runtimes.virtual import Machine, Scheduler

LossCallback = Callable[[Any, bool], None]
"""Called on the client's machine with an answer, or (true) something that it did not ask for: a message, an event."""


@dataclass(slots=True)
class Link:
    """The way between one client and one server, as faults have made it. Times are true times.

    Attributes:
        latency: seconds that a message takes, at least and at most.
        requests_held: until then nothing reaches the server; it arrives after that.
        replies_held: until then nothing reaches the client.
        refused: until then no connection is made.
        repeats: chance that a request is carried out twice.
        deaf: chance that a message is lost, though the server has sent it.

    """

    latency: tuple[float, float] = (0.0001, 0.001)
    requests_held: float = 0.0
    replies_held: float = 0.0
    refused: float = 0.0
    repeats: float = 0.0
    deaf: float = 0.0


@dataclass(slots=True)
class Counts:
    """What a server has done, for those who want to know whether a history had anything in it."""

    commands: int = 0
    messages: int = 0
    lost_messages: int = 0
    repeated: int = 0
    lines: int = 0


class Connection:
    """One connection. The client ends it, or the server; both learn of it."""

    __slots__ = (
        "_ended",
        "_hear",
        "_replies",
        "_replies_at",
        "_requests",
        "_requests_at",
        "client",
        "held",
        "host",
        "link",
        "number",
        "open",
    )

    def __init__(
        self, host: Host, number: int, client: Machine, link: Link, hear: LossCallback, ended: Callable[[], None]
    ):
        self.open = True
        self.client = client
        self.link = link
        self.host = host
        self.held = 0.0  # until then nothing that is sent on it reaches the server; another line is not held up
        self.number = number  # of all of its host: the order in which they were made
        self._hear = hear
        self._ended = ended
        self._requests: deque[Any] = deque()
        self._replies: deque[tuple[Any, bool]] = deque()
        self._requests_at = self._replies_at = 0.0  # when the last of each arrives: the next does not come before it

    @property
    def sent_until(self) -> float:
        """When the last of what was sent arrives."""
        return self._requests_at

    def send(self, request: Any) -> None:
        """Send something to the server."""
        self.client.spoke = self.host.scheduler.time
        self._requests.append(request)
        self._requests_at = self.host.arrival(self.link, max(self.link.requests_held, self.held), self._requests_at)
        self.host.scheduler.at(self._requests_at, self.host.machine, self._arrive)

    def tell(self, reply: Any, message: bool = False) -> None:
        """Send an answer or a message to the client."""
        self._replies.append((reply, message))
        self._replies_at = self.host.arrival(self.link, self.link.replies_held, self._replies_at)
        self.host.scheduler.at(self._replies_at, self.client, self._return)

    def end(self, *, arrives: bool = True) -> None:
        """End it at once; ``arrives`` says whether what is under way to the server still gets there."""
        if not self.open:
            return
        self.open = False
        self._replies.clear()
        if not arrives:
            self._requests.clear()
        self.host.over(self)
        self._ended()

    def _arrive(self) -> None:
        if self._requests:
            self.host.take(self, self._requests.popleft())

    def _return(self) -> None:
        if self._replies:
            self._hear(*self._replies.popleft())


class ServerClock:
    """The clock of a server, and the process that lives by it. `step` may happen to it."""

    def __init__(self, scheduler: Scheduler, *, rate: float = 1.0, name: str = "server") -> None:
        self.scheduler = scheduler
        self.machine = Machine(name, rate=rate)
        self.runtime = SimulatedRuntime(scheduler, self.machine)
        self._step_us = 0

    def now_us(self) -> int:
        """Read it in microseconds."""
        return self.runtime.wall_us() + self._step_us

    def step(self, seconds: float) -> None:
        """Set it forward, or back."""
        self.note(f"sets its clock by {seconds:.6f} s")
        self._step_us += int(seconds * 1e6)

    def note(self, what: object) -> None:
        """Write a line of the trace; see `Scheduler.note`."""
        self.scheduler.note(self.machine.name, what)


class Host(ServerClock, ABC):
    """A server: what it does with a request is its model's. `restart`, `step`, `hang_up` may happen to it."""

    def __init__(self, scheduler: Scheduler, *, rate: float = 1.0, name: str = "server") -> None:
        super().__init__(scheduler, rate=rate, name=name)
        self.counts = Counts()
        self.down_until = 0.0
        self.links: dict[str, Link] = {}
        self.lines: dict[int, Connection] = {}
        self.breaks: list[tuple[str, float]] = []  # whose connection ended, and when

    def link(self, machine: str) -> Link:
        """Return the way between a machine and this server."""
        return self.links.setdefault(machine, Link())

    @property
    def is_down(self) -> bool:
        """Whether it is away."""
        return self.scheduler.time < self.down_until

    def connect(self, client: Machine, hear: LossCallback, ended: Callable[[], None]) -> Connection | None:
        """Accept a connection; None without a listener."""
        link = self.link(client.name)
        if self.scheduler.time < max(self.down_until, link.refused):
            return None
        self.counts.lines += 1
        line = self.lines[self.counts.lines] = Connection(self, self.counts.lines, client, link, hear, ended)
        return line

    def arrival(self, link: Link, held: float, last: float) -> float:
        """Return when what is sent now arrives."""
        least, most = link.latency
        when = self.scheduler.time + least + (most - least) * self.scheduler.random.random()
        return max(when, held, last)

    def take(self, line: Connection, request: Any) -> None:
        """Take a request that has arrived, unless the server is down."""
        if not self.is_down:
            self.receive(line, request)

    @abstractmethod
    def receive(self, line: Connection, request: Any) -> None:
        """Carry out a request; the line may have ended meanwhile."""

    def over(self, line: Connection) -> None:
        """Take note that a line has ended."""
        del self.lines[line.number]
        self.breaks.append((line.client.name, self.scheduler.time))

    def restart(self, seconds: float) -> None:
        """End all connections and be away for so long."""
        self.note(f"is away for {seconds:.6f} s")
        self.down_until = max(self.down_until, self.scheduler.time + seconds)
        self.hang_up(arrives=False)

    def hang_up(self, client: Machine | None = None, *, arrives: bool) -> None:
        """End all connections, or those of one client."""
        for line in list(self.lines.values()):
            if client is None or line.client is client:
                line.end(arrives=arrives)
