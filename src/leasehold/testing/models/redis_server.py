"""A server of Redis in simulated time: the model, a clock of its own, connections, and faults to order.

Theory of operation
-------------------
A `Line` is one connection. What is sent on it arrives in order, after the delay of its client's `Link`, unless the line
ends first: then what is under way arrives or is lost, as TCP cannot tell. A client that stands still reads later what
came meanwhile. Each command is carried out at the moment of its arrival, and its reply travels back in the same order
as the messages to that connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from leasehold.runtimes.simulated import SimulatedRuntime
from leasehold.runtimes.virtual import Machine, Scheduler
from leasehold.testing.models.redis import RedisModel, Rewrite
from leasehold.wires.redis.base import ReplyError

Hear = Callable[[Any, bool], None]
"""Called on the client's machine with a reply, or (true) a message."""


@dataclass(slots=True)
class Link:
    """The way between one client and the server, as faults have made it. Times are true times.

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


class Line:
    """One connection. The client ends it, or the server; both learn of it."""

    def __init__(self, server: RedisServerModel, client: Machine, link: Link, hear: Hear, ended: Callable[[], None]):
        self.open = True
        self.client = client
        self.link = link
        self.channels: set[bytes] = set()
        self._server = server
        self._hear = hear
        self._ended = ended
        self._requests: deque[tuple[Sequence[bytes], ...]] = deque()
        self._replies: deque[tuple[Any, bool]] = deque()
        self._requests_at = self._replies_at = 0.0  # when the last of each arrives: the next does not come before it

    def send(self, *commands: Sequence[bytes]) -> None:
        """Send commands in one write."""
        self._requests.append(commands)
        self._requests_at = self._server.arrival(self.link, self.link.requests_held, self._requests_at)
        self._server.scheduler.at(self._requests_at, self._server.machine, self._arrive)

    def tell(self, reply: Any, message: bool = False) -> None:
        """Send a reply or a message to the client."""
        self._replies.append((reply, message))
        self._replies_at = self._server.arrival(self.link, self.link.replies_held, self._replies_at)
        self._server.scheduler.at(self._replies_at, self.client, self._return)

    def end(self, *, arrives: bool = True) -> None:
        """End it at once; ``arrives`` says whether what is under way to the server still gets there."""
        if not self.open:
            return
        self.open = False
        self.channels.clear()
        self._replies.clear()
        if not arrives:
            self._requests.clear()
        self._server.breaks.append((self.client.name, self._server.scheduler.time))
        self._server.lines.discard(self)
        self._ended()

    def _arrive(self) -> None:
        if self._requests:
            for words in self._requests.popleft():
                self._server.carry_out(self, words)

    def _return(self) -> None:
        if self._replies:
            self._hear(*self._replies.popleft())


class RedisServerModel:
    """The server. ``step`` moves its clock; `restart`, `forget_scripts` and `flush` are what may happen to it."""

    def __init__(
        self, scheduler: Scheduler, *, rate: float = 1.0, name: str = "redis", rewrite: Rewrite | None = None
    ) -> None:
        self.scheduler = scheduler
        self.machine = Machine(name, rate=rate)
        self.runtime = SimulatedRuntime(scheduler, self.machine)
        self.counts = Counts()
        self.down_until = 0.0
        self.lines: set[Line] = set()
        self.breaks: list[tuple[str, float]] = []  # whose connection ended, and when
        self._step_us = 0
        self.model = RedisModel(self.now_us, self._publish, rewrite)

    def now_us(self) -> int:
        """Read its clock in microseconds."""
        return self.runtime.wall_us() + self._step_us

    def connect(self, client: Machine, link: Link, hear: Hear, ended: Callable[[], None]) -> Line | None:
        """Accept a connection; None if nobody listens."""
        if self.scheduler.time < max(self.down_until, link.refused):
            return None
        line = Line(self, client, link, hear, ended)
        self.lines.add(line)
        self.counts.lines += 1
        return line

    def arrival(self, link: Link, held: float, last: float) -> float:
        """Return when what is sent now arrives."""
        when = self.scheduler.time + self.scheduler.random.uniform(*link.latency)
        return max(when, held, last)

    def carry_out(self, line: Line, words: Sequence[bytes]) -> None:
        """Carry out a command that has arrived; nobody does while the server is down."""
        if self.scheduler.time < self.down_until:
            return
        if words[0] == b"SUBSCRIBE":
            if line.open:
                line.channels.add(words[1])
                line.tell([b"subscribe", words[1], len(line.channels)])
            return
        reply = self._answer(line, words)
        if line.open:
            line.tell(reply)

    def step(self, seconds: float) -> None:
        """Set its clock forward, or back."""
        self.scheduler.note(self.machine.name, f"sets its clock by {seconds:.6f} s")
        self._step_us += int(seconds * 1e6)

    def forget_scripts(self) -> None:
        """Lose all scripts."""
        self.scheduler.note(self.machine.name, "forgets its scripts")
        self.model.forget_scripts()

    def flush(self) -> None:
        """Lose all keys."""
        self.scheduler.note(self.machine.name, "loses its keys")
        self.model.forget_data()

    def restart(self, seconds: float, *, lose: bool) -> None:
        """End all connections and be away for so long; ``lose``: come back without keys. Scripts are gone anyway."""
        self.scheduler.note(self.machine.name, f"is away for {seconds:.6f} s")
        self.down_until = self.scheduler.time + seconds
        self.model.forget_scripts()
        if lose:
            self.flush()
        self.hang_up(arrives=False)

    def hang_up(self, client: Machine | None = None, *, arrives: bool) -> None:
        """End all connections, or those of one client."""
        for line in sorted(self.lines, key=lambda line: line.client.name):
            if client is None or line.client is client:
                line.end(arrives=arrives)

    def _answer(self, line: Line, words: Sequence[bytes]) -> Any:
        self.counts.commands += 1
        reply = self.model.execute(words)
        if self.scheduler.random.random() < line.link.repeats:
            self.counts.repeated += 1
            reply = self.model.execute(words)
        self.scheduler.note(self.machine.name, f"answers {line.client.name} {_shown(words, reply)}")
        return reply

    def _publish(self, channel: bytes, message: bytes) -> int:
        heard = 0
        for line in sorted(self.lines, key=lambda line: line.client.name):
            if channel in line.channels and not line.client.killed:
                heard += 1
                self.counts.messages += 1
                if self.scheduler.random.random() < line.link.deaf:
                    self.counts.lost_messages += 1
                else:
                    line.tell(message, True)
        return heard


def _shown(words: Sequence[bytes], reply: Any) -> str:
    """Return a line for the trace: what was asked of which key, and how it was answered, without who asked."""
    key = words[3].decode() if words[0] in (b"EVAL", b"EVALSHA") and len(words) > 3 else ""
    what = words[1].decode()[:8] if words[0] == b"EVALSHA" else words[0].decode()
    return f"{what} {key} {_cut(reply)}"


def _cut(reply: Any) -> Any:
    if isinstance(reply, ReplyError):
        return reply.code
    if reply is None or isinstance(reply, bytes | int | str):
        return reply
    return [_cut(one) for one in reply[:3]]
