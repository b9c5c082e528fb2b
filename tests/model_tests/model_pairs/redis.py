"""The model of Redis and a real server, asked the same."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Sequence
from itertools import starmap
from typing import Any

import hiredis

from leasehold.stores.redis import keys, scripts
from leasehold.stores.redis.connection.base import ReplyError, pack
from leasehold.stores.redis.scripts import Script
from leasehold_lab.servers import RedisServer
from models.redis.commands import RedisModel

NAMES = ("a", "b")
APART = "apart"
TICKETS = [b"ticket-%d" % number for number in range(4)]
HEARD, UNHEARD = b"model:heard", b"model:unheard"
FAR = 3_600_000
NUMBER = re.compile(rb"-?\d+")

Words = list[bytes]


class Rival:
    """The real server: carries out commands between two readings of its clock, and keeps the messages it sends."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._link, self._ear = server.connect().socket, server.connect()
        self._reader = hiredis.Reader(replyError=ReplyError)
        self._ear.command("SUBSCRIBE", HEARD)
        for script in scripts.ALL:
            assert self.ask([b"SCRIPT", b"LOAD", script.text])[1] == script.digest

    def ask(self, words: Words) -> tuple[int, Any, int]:
        """Return the server's time before the command, its reply, and by how much its idea of now may differ.

        The server reads its clock when it wakes up for a request, and takes that time for all that expires within it:
        it lies between our sending and the second TIME. All in microseconds.
        """
        sent = time.time_ns() // 1000
        parts = [pack(b"MULTI"), pack(b"TIME"), pack(*words), pack(b"TIME"), pack(b"EXEC")]
        self._link.sendall(b"".join(parts))
        *_, replies = [self._reply() for _ in parts]
        if isinstance(replies, ReplyError):  # a command that is refused before it is queued
            return self._alone(words, sent)
        before, reply, after = replies
        return _us(before), reply, _us(after) - sent

    def messages(self, count: int) -> list[str]:
        """Return so many messages."""
        return [self._ear._reply()[2] for _ in range(count)]  # type: ignore[index]

    def forget(self) -> None:
        """Drop all keys, and all unread messages."""
        self.ask([b"FLUSHALL"])
        self._ear.close()
        self._ear = self._server.connect()
        self._ear.command("SUBSCRIBE", HEARD)

    def close(self) -> None:
        self._link.close()
        self._ear.close()

    def _alone(self, words: Words, sent: int) -> tuple[int, Any, int]:
        self._link.sendall(pack(b"TIME") + pack(*words) + pack(b"TIME"))
        before, reply, after = (self._reply() for _ in range(3))
        return _us(before), reply, _us(after) - sent

    def _reply(self) -> Any:
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._link.recv(65536))
        return reply


def _us(reply: Sequence[bytes]) -> int:
    return int(reply[0]) * 1_000_000 + int(reply[1])


class Pair:
    """One sequence, on both."""

    def __init__(self, rival: Rival, seed: int) -> None:
        self.chance = random.Random(seed)
        self.namespace = f"s{seed}"
        self.rival = rival
        self.now = 0
        self.slack = 0  # microseconds by which times may differ so far
        self.published: list[bytes] = []
        self.model = RedisModel(lambda: self.now, self.publish)
        self.log: list[str] = []
        for script in scripts.ALL:
            self.model.execute([b"SCRIPT", b"LOAD", script.text])

    def publish(self, channel: bytes, message: bytes) -> int:
        if channel != HEARD:
            return 0
        self.published.append(message)
        return 1

    def ask(self, *words: bytes) -> None:
        """Carry out a command on both, and compare."""
        before, real, slack = self.rival.ask(list(words))
        self.now = before
        self.slack = max(self.slack, slack)
        modelled = self.model.execute(list(words))
        self.log.append(f"{_brief(words)} -> {real!r}")
        assert self.alike(real, modelled), f"the model says {modelled!r}, the server {real!r}\n" + "\n".join(self.log)

    def run(self, script: Script, those: Sequence[bytes], *args: bytes) -> None:
        form = b"EVAL" if self.chance.random() < 0.1 else b"EVALSHA"
        word = script.text if form == b"EVAL" else script.digest
        self.ask(form, word, b"%d" % len(those), *those, *args)

    def alike(self, real: Any, modelled: Any) -> bool:
        if isinstance(real, list) and isinstance(modelled, list):
            if len(real) != len(modelled):
                return False
            return all(map(self.alike, real, modelled)) or any(self.same_entries(real, modelled, by) for by in (2, 3))
        if isinstance(real, ReplyError) and isinstance(modelled, ReplyError):
            return str(real).split()[0] == str(modelled).split()[0]
        if isinstance(modelled, str):
            return bool(real == modelled.encode())
        return bool(real == modelled) or self.same_time(real, modelled)

    def same_entries(self, real: list[Any], modelled: list[Any], by: int) -> bool:
        """Whether both are the same members of a sorted set, each with its time behind it, ``by`` words for each.

        Of two times that are the same moment, either may come first; but each list must be in the order of its own.
        """
        entries = [[some[at : at + by] for at in range(0, len(some), by)] for some in (real, modelled)]
        if len(real) % by or not all(isinstance(word, bytes) for word in (*real, *modelled)):
            return False
        try:
            in_order = all(
                [float(entry[1]) for entry in some] == sorted(float(entry[1]) for entry in some) for some in entries
            )
        except ValueError:
            return False
        return in_order and all(starmap(self.alike, zip(*map(_flat, entries), strict=True)))

    def same_time(self, real: Any, modelled: Any) -> bool:
        """Whether both are the same moment, as a number or as words with such a number in them."""
        if isinstance(real, int) and isinstance(modelled, int):
            return self._close(real, modelled)
        if not isinstance(real, bytes) or not isinstance(modelled, bytes):
            return False
        ours, theirs = modelled.replace(b"\x1f", b" ").split(b" "), real.replace(b"\x1f", b" ").split(b" ")
        return len(ours) == len(theirs) and all(map(self._same_word, theirs, ours))

    def _same_word(self, real: bytes, modelled: bytes) -> bool:
        if real == modelled:
            return True
        if not (NUMBER.fullmatch(real) and NUMBER.fullmatch(modelled)):
            return False
        return self._close(int(real), int(modelled))

    def _close(self, real: int, modelled: int) -> bool:
        size, apart = abs(real), abs(real - modelled)
        in_us = size > 1e14  # else in ms: a time, or what is left of one
        return size >= 1000 and (apart if in_us else apart * 1000) <= self.slack + (10 if in_us else 2000)

    def finish(self) -> None:
        """Compare all keys, and all messages, and leave nothing behind."""
        all_keys = [key for name in NAMES for key in (*keys.shared_keys(self.namespace, name), self.cell(name))]
        all_keys.append(self.cell(APART))
        for key in all_keys:
            self.ask(b"TYPE", key)
            self.ask(b"PTTL", key)
            kind = self.model.execute([b"TYPE", key])
            if kind == "hash":
                self.ask(b"HLEN", key)
                self.ask(b"HMGET", key, *sorted(self.model.execute([b"HGETALL", key])[::2]))
            elif kind == "zset":
                self.ask(b"ZRANGE", key, b"0", b"-1", b"WITHSCORES")
        heard = [message.encode() for message in self.rival.messages(len(self.published))]
        assert self.alike(heard, self.published), f"{heard} {self.published}\n" + "\n".join(self.log)
        self.ask(b"DEL", *all_keys)

    def cell(self, name: str) -> bytes:
        return keys.cell_key(self.namespace, name)


def _flat(entries: list[list[bytes]]) -> list[bytes]:
    return [word for entry in sorted(entries) for word in entry]


def _brief(words: Sequence[bytes]) -> str:
    if words[0] in (b"EVAL", b"EVALSHA"):
        known = {word: script.name for script in scripts.ALL for word in (script.text, script.digest)}
        words = [known[words[1]].encode(), *words[2:]]
    return " ".join(word.decode(errors="replace")[:60] for word in words)
