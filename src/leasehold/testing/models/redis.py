"""A model of the commands of Redis that our scripts and stores use: the same replies, by a clock of the caller's.

Theory of operation
-------------------
A key has a type, a value and perhaps an expiry in whole milliseconds. It is gone once the clock has passed that, and
is removed when it is looked at, as in Redis 7. All of a script happens at one reading of the clock, and nothing comes
in between. A command or an option that the model does not know is an error of the model's, never a guess: whatever it
answers is compared with a real server by random sequences.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from leasehold.testing.models import lua
from leasehold.wires.redis.base import ReplyError

OK = "OK"
"""Replies are bytes, int, None, a list, a `ReplyError`, or, for a status, a str."""

WRONG_TYPE = "WRONGTYPE Operation against a key holding the wrong kind of value"
NO_SCRIPT = "NOSCRIPT No matching script. Please use EVAL."
NOT_AN_INTEGER = "ERR value is not an integer or out of range"
NOT_A_FLOAT = "ERR value is not a valid float"
SYNTAX = "ERR syntax error"

FAR = 2**63 - 1

_WHOLE = re.compile(rb"-?[1-9][0-9]*|0")
_REAL = re.compile(rb"[+-]?(inf|infinity|[0-9]+\.?[0-9]*(e[+-]?[0-9]+)?|\.[0-9]+(e[+-]?[0-9]+)?)", re.IGNORECASE)

Publish = Callable[[bytes, bytes], int]
"""Delivers a message on a channel; returns how many listen."""


@dataclass(slots=True)
class Entry:
    """What a key holds; ``expires`` in ms of the server's clock."""

    kind: str  # string, hash or zset
    value: Any
    expires: int | None = None


Rewrite = Callable[[bytes], bytes]
"""Spoils the text of a script before it runs: for a test that must find out."""


def nobody(channel: bytes, message: bytes) -> int:
    """Deliver a message to nobody."""
    return 0


class RedisModel:
    """One server without connections. ``now_us`` reads its clock in microseconds."""

    def __init__(self, now_us: Callable[[], int], publish: Publish = nobody, rewrite: Rewrite | None = None) -> None:
        self._rewrite = rewrite
        self._now_us = now_us
        self._publish = publish
        self.entries: dict[bytes, Entry] = {}
        self._scripts: dict[bytes, bytes] = {}
        self._now = 0

    def execute(self, words: Sequence[bytes]) -> Any:
        """Carry out one command that a client sent; return its reply, which may be a `ReplyError`."""
        self._now = self._now_us()
        match words[0].upper():
            case b"EVALSHA":
                text = self._scripts.get(words[1].lower())
                return ReplyError(NO_SCRIPT) if text is None else self._script(text, words[2:])
            case b"EVAL":
                self._scripts[_digest(words[1])] = words[1]
                return self._script(words[1], words[2:])
        return self.command(words)

    def command(self, words: Sequence[bytes]) -> Any:
        """Carry out a command that is no script, now or inside a script."""
        found = COMMANDS.get(words[0]) or COMMANDS.get(words[0].upper())
        if found is None:
            raise NotImplementedError(f"the model of Redis has no command {words[0].decode()}")
        least, carry_out = found
        count = len(words) - 1
        if count != least if least >= 0 else count < -least:
            return ReplyError(f"ERR wrong number of arguments for '{words[0].decode().lower()}' command")
        try:
            return carry_out(self, *words[1:])
        except ReplyError as error:
            return error

    def forget_scripts(self) -> None:
        """Lose all scripts, as by SCRIPT FLUSH or a restart."""
        self._scripts.clear()

    def forget_data(self) -> None:
        """Lose all keys, as by FLUSHALL or a restart without persistence."""
        self.entries.clear()

    def _script(self, text: bytes, words: Sequence[bytes]) -> Any:
        count = _whole(words[0])
        if self._rewrite is not None:
            text = self._rewrite(text)
        return lua.run(text, words[1 : 1 + count], words[1 + count :], self.command)

    # --- keys --------------------------------------------------------------------------------------------------

    def _find(self, key: bytes) -> Entry | None:
        entry = self.entries.get(key)
        if entry is not None and entry.expires is not None and self._now // 1000 > entry.expires:
            del self.entries[key]
            return None
        return entry

    def _value(self, key: bytes, kind: str) -> Any:
        """Return the value of a key of that kind; an empty one if there is none."""
        entry = self._find(key)
        if entry is None:
            return {}
        if entry.kind != kind:
            raise ReplyError(WRONG_TYPE)
        return entry.value

    def _made(self, key: bytes, kind: str) -> Any:
        self._value(key, kind)
        return self.entries.setdefault(key, Entry(kind, {})).value

    def _remove(self, key: bytes, kind: str, fields: Sequence[bytes]) -> int:
        value = self._value(key, kind)
        gone = sum(value.pop(field, None) is not None for field in fields)
        if not value:
            self.entries.pop(key, None)
        return gone

    def exists(self, *keys: bytes) -> int:
        return sum(self._find(key) is not None for key in keys)

    def delete(self, *keys: bytes) -> int:
        gone = [key for key in dict.fromkeys(keys) if self._find(key) is not None]
        for key in gone:
            del self.entries[key]
        return len(gone)

    def type(self, key: bytes) -> str:
        entry = self._find(key)
        return "none" if entry is None else entry.kind

    def pexpire(self, key: bytes, life: bytes) -> int:
        when = _whole(life) + self._now // 1000
        if when > FAR or when < 0:
            raise ReplyError("ERR invalid expire time in 'pexpire' command")
        entry = self._find(key)
        if entry is None:
            return 0
        entry.expires = when
        if when <= self._now // 1000:
            del self.entries[key]
        return 1

    def pttl(self, key: bytes) -> int:
        entry = self._find(key)
        if entry is None:
            return -2
        return -1 if entry.expires is None else max(0, entry.expires - self._now // 1000)

    def scan(self, cursor: bytes, *options: bytes) -> list[Any]:
        pattern = re.compile(b".*")
        for option, value in zip(options[::2], options[1::2], strict=True):
            match option.upper():
                case b"MATCH":
                    pattern = _glob(value)
                case b"COUNT":
                    pass
                case _:
                    raise NotImplementedError(f"the model of Redis has no SCAN {option.decode()}")
        return [b"0", [key for key in sorted(self.entries) if self._find(key) and pattern.fullmatch(key)]]

    def get(self, key: bytes) -> bytes | None:
        return self._value(key, "string") or None

    def set(self, key: bytes, value: bytes) -> str:
        self.entries[key] = Entry("string", value)
        return OK

    # --- hashes ------------------------------------------------------------------------------------------------

    def hset(self, key: bytes, *pairs: bytes) -> int:
        if len(pairs) % 2:
            raise ReplyError("ERR wrong number of arguments for 'hset' command")
        value = self._made(key, "hash")
        before = len(value)
        value.update(zip(pairs[::2], pairs[1::2], strict=True))
        return len(value) - before

    def hget(self, key: bytes, field: bytes) -> bytes | None:
        found: bytes | None = self._value(key, "hash").get(field)
        return found

    def hmget(self, key: bytes, *fields: bytes) -> list[bytes | None]:
        value = self._value(key, "hash")
        return [value.get(field) for field in fields]

    def hgetall(self, key: bytes) -> list[bytes]:
        return [word for pair in self._value(key, "hash").items() for word in pair]

    def hlen(self, key: bytes) -> int:
        return len(self._value(key, "hash"))

    def hdel(self, key: bytes, *fields: bytes) -> int:
        return self._remove(key, "hash", fields)

    # --- sorted sets -------------------------------------------------------------------------------------------

    def zadd(self, key: bytes, *words: bytes) -> int:
        at, options = 0, set[bytes]()
        while at < len(words) and words[at].upper() in (b"XX", b"NX", b"GT", b"LT", b"CH", b"INCR"):
            options.add(words[at].upper())
            at += 1
        if options & {b"CH", b"INCR"}:
            raise NotImplementedError("the model of Redis has no ZADD with CH or INCR")
        if len(words) == at or (len(words) - at) % 2:
            raise ReplyError(SYNTAX)
        _check_zadd(options)
        pairs = [(_real(score), member) for score, member in zip(words[at::2], words[at + 1 :: 2], strict=True)]
        if b"XX" in options and not self._value(key, "zset"):
            return 0
        return _add(self._made(key, "zset"), pairs, options)

    def zcard(self, key: bytes) -> int:
        return len(self._value(key, "zset"))

    def zscore(self, key: bytes, member: bytes) -> bytes | None:
        score = self._value(key, "zset").get(member)
        return None if score is None else _written(score)

    def zrem(self, key: bytes, *members: bytes) -> int:
        return self._remove(key, "zset", members)

    def zrange(self, key: bytes, start: bytes, stop: bytes, *options: bytes) -> list[bytes]:
        if any(option.upper() != b"WITHSCORES" for option in options):
            raise NotImplementedError("the model of Redis has no ZRANGE but by rank")
        first, last = _whole(start), _whole(stop)
        members = _in_order(self._value(key, "zset"))
        first = max(0, first + len(members)) if first < 0 else first
        last = last + len(members) if last < 0 else last
        return _listed(members[first : max(0, last + 1)], bool(options))

    def zrangebyscore(self, key: bytes, low: bytes, high: bytes, *options: bytes) -> list[bytes]:
        scores, offset, count = False, 0, -1
        words = iter(options)
        for option in words:
            match option.upper():
                case b"WITHSCORES":
                    scores = True
                case b"LIMIT":
                    offset, count = _whole(next(words, b"")), _whole(next(words, b""))
                case _:
                    raise ReplyError(SYNTAX)
        above, below = _bound(low, 1), _bound(high, -1)
        members = _in_order(self._value(key, "zset"))
        found = [(member, score) for member, score in members if above <= (score, 0) and (score, 0) <= below]
        if offset < 0:
            return []
        return _listed(found[offset:] if count < 0 else found[offset : offset + count], scores)

    # --- the rest ----------------------------------------------------------------------------------------------

    def time(self) -> list[bytes]:
        return [b"%d" % (self._now // 1_000_000), b"%d" % (self._now % 1_000_000)]

    def publish(self, channel: bytes, message: bytes) -> int:
        return self._publish(channel, message)

    def script(self, what: bytes, *words: bytes) -> Any:
        match what.upper():
            case b"FLUSH":
                self.forget_scripts()
                return OK
            case b"LOAD":
                self._scripts[_digest(words[0])] = words[0]
                return _digest(words[0])
            case b"EXISTS":
                return [int(word.lower() in self._scripts) for word in words]
            case _:
                raise NotImplementedError(f"the model of Redis has no SCRIPT {what.decode()}")

    def flush(self) -> str:
        self.forget_data()
        return OK

    def ping(self) -> str:
        return "PONG"


COMMANDS: dict[bytes, tuple[int, Callable[..., Any]]] = {
    b"EXISTS": (-1, RedisModel.exists),
    b"DEL": (-1, RedisModel.delete),
    b"UNLINK": (-1, RedisModel.delete),
    b"TYPE": (1, RedisModel.type),
    b"PEXPIRE": (2, RedisModel.pexpire),
    b"PTTL": (1, RedisModel.pttl),
    b"SCAN": (-1, RedisModel.scan),
    b"GET": (1, RedisModel.get),
    b"SET": (2, RedisModel.set),
    b"HSET": (-3, RedisModel.hset),
    b"HGET": (2, RedisModel.hget),
    b"HMGET": (-2, RedisModel.hmget),
    b"HGETALL": (1, RedisModel.hgetall),
    b"HLEN": (1, RedisModel.hlen),
    b"HDEL": (-2, RedisModel.hdel),
    b"ZADD": (-3, RedisModel.zadd),
    b"ZCARD": (1, RedisModel.zcard),
    b"ZSCORE": (2, RedisModel.zscore),
    b"ZREM": (-2, RedisModel.zrem),
    b"ZRANGE": (-3, RedisModel.zrange),
    b"ZRANGEBYSCORE": (-3, RedisModel.zrangebyscore),
    b"TIME": (0, RedisModel.time),
    b"PUBLISH": (2, RedisModel.publish),
    b"SPUBLISH": (2, RedisModel.publish),
    b"SCRIPT": (-1, RedisModel.script),
    b"FLUSHALL": (0, RedisModel.flush),
    b"PING": (0, RedisModel.ping),
}
"""By name: how many words follow, at least if it is negative, and what carries it out."""


def _check_zadd(options: set[bytes]) -> None:
    if {b"NX", b"XX"} <= options:
        raise ReplyError("ERR XX and NX options at the same time are not compatible")
    if len(options & {b"NX", b"GT", b"LT"}) > 1:
        raise ReplyError("ERR GT, LT, and/or NX options at the same time are not compatible")


def _add(value: dict[bytes, float], pairs: Sequence[tuple[float, bytes]], options: set[bytes]) -> int:
    added = 0
    for score, member in pairs:
        old = value.get(member)
        if old is None:
            if b"XX" not in options:
                value[member] = score
                added += 1
        elif b"NX" not in options and not ((b"GT" in options and score <= old) or (b"LT" in options and score >= old)):
            value[member] = score
    return added


def _in_order(value: dict[bytes, float]) -> list[tuple[bytes, float]]:
    return sorted(value.items(), key=lambda pair: (pair[1], pair[0]))


def _listed(members: Sequence[tuple[bytes, float]], scores: bool) -> list[bytes]:
    return list(_flat(members)) if scores else [member for member, _ in members]


def _flat(members: Sequence[tuple[bytes, float]]) -> Iterator[bytes]:
    for member, score in members:
        yield member
        yield _written(score)


def _written(score: float) -> bytes:
    return b"%.17g" % score


def _bound(word: bytes, inward: int) -> tuple[float, int]:
    """Read a bound of scores: one that is excluded lies a little inward."""
    excluded = word.startswith(b"(")
    try:
        return _real(word[excluded:]), inward if excluded else 0
    except ReplyError:
        raise ReplyError("ERR min or max is not a float") from None


def _whole(word: bytes) -> int:
    if not _WHOLE.fullmatch(word) or not -FAR - 1 <= (number := int(word)) <= FAR:
        raise ReplyError(NOT_AN_INTEGER)
    return number


def _real(word: bytes) -> float:
    if not _REAL.fullmatch(word):
        raise ReplyError(NOT_A_FLOAT)
    number = float(word)
    if math.isnan(number):
        raise ReplyError(NOT_A_FLOAT)
    return number


def _glob(pattern: bytes) -> re.Pattern[bytes]:
    if re.search(rb"[\[\]\\]", pattern):
        raise NotImplementedError("the model of Redis matches keys by * and ? only")
    return re.compile(re.escape(pattern).replace(rb"\*", b".*").replace(rb"\?", b"."), re.DOTALL)


def _digest(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
