"""A server of Redis in simulated time: the model of its commands behind connections, with channels for messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from leasehold.stores.redis.connection.base import ReplyError
from leasehold_lab.runtimes.virtual import Scheduler
from models.net import Connection, Host
from models.redis.commands import RedisModel, Rewrite
from models.redis.orphans import Orphans

Words = Sequence[bytes]

UNSUBSCRIBED = object()
"""The message that a subscription has ended, since its slot has moved to another node."""


class RedisServerModel(Host):
    """The server. ``step`` moves its clock; `restart`, `forget_scripts` and `flush` are what may happen to it."""

    def __init__(
        self, scheduler: Scheduler, *, rate: float = 1.0, name: str = "redis", rewrite: Rewrite | None = None
    ) -> None:
        super().__init__(scheduler, rate=rate, name=name)
        self.role = b"master"
        self._channels: defaultdict[bytes, dict[int, Connection]] = defaultdict(dict)
        self.model = RedisModel(self.now_us, self._publish, rewrite)
        self.orphans = Orphans(self.model.execute)

    def receive(self, line: Connection, request: Sequence[Words]) -> None:
        """Carry out commands that were sent in one write."""
        for words in request:
            if words[0] == b"SUBSCRIBE":
                if line.open:
                    self._channels[words[1]][line.number] = line
                    line.tell([b"subscribe", words[1], 1])
                continue
            reply = self._answer(line, words)
            if line.open:
                line.tell(reply)

    def over(self, line: Connection) -> None:
        """Remove the subscriptions of a closed connection."""
        super().over(line)
        for lines in self._channels.values():
            lines.pop(line.number, None)

    def forget_scripts(self) -> None:
        """Lose all scripts."""
        self.note("forgets its scripts")
        self.model.forget_scripts()

    def flush(self) -> None:
        """Lose all keys."""
        self.note("loses its keys")
        self.model.forget_data()

    def restart(self, seconds: float, *, lose: bool = False) -> None:
        """Close all connections and be down for so long; ``lose``: restart without keys. Scripts are lost anyway."""
        super().restart(seconds)
        self.model.forget_scripts()
        if lose:
            self.flush()

    def answer(self, words: Words) -> Any:
        """Carry out one command and return its reply."""
        if words[0] == b"ROLE":
            return [self.role]
        if words[0] == b"INFO":
            return f"run_id:{self.machine.name}\r\n".encode()
        if self.role != b"master" and words[0] in (b"EVALSHA", b"EVAL"):
            return ReplyError("READONLY You can't write against a read only replica.")
        return self.model.execute(words)

    def _answer(self, line: Connection, words: Words) -> Any:
        self.counts.commands += 1
        reply = self.answer(words)
        if line.link.repeats and self.scheduler.random.random() < line.link.repeats:
            self.counts.repeated += 1
            reply = self.answer(words)
        self.orphans.saw(words, reply)
        self.note(Answer(line.client.name, words, _cut(reply)))
        return reply

    def _publish(self, channel: bytes, message: bytes) -> int:
        return self.tell_all(self._channels[channel], message)

    def tell_all(self, lines: Mapping[int, Connection], message: bytes) -> int:
        """Send a message to all who listen; return how many they are."""
        heard = 0
        for line in list(lines.values()):
            if not line.client.killed:
                heard += 1
                self.counts.messages += 1
                if line.link.deaf and self.scheduler.random.random() < line.link.deaf:
                    self.counts.lost_messages += 1
                else:
                    line.tell(message, True)
        return heard


@dataclass(slots=True)
class Answer:
    """A line for the trace: whom, what was asked of which key, and how it was answered, without the caller's ids."""

    who: str
    words: Words
    reply: Any

    def __str__(self) -> str:
        words = self.words
        key = words[3].decode() if words[0] in (b"EVAL", b"EVALSHA") and len(words) > 3 else ""
        what = words[1].decode()[:8] if words[0] == b"EVALSHA" else words[0].decode()
        return f"answers {self.who} {what} {key} {self.reply}"


def _cut(reply: Any) -> Any:
    if isinstance(reply, ReplyError):
        return reply.code
    if reply is None or isinstance(reply, bytes | int | str):
        return reply
    return [_cut(one) for one in reply[:3]]
