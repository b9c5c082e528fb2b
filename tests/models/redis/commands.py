"""A model of one Redis server, as far as our scripts and stores use it, with the caller's clock.

Theory of operation
-------------------
A key has a type, a value and perhaps an expiry in whole milliseconds. It is gone once the clock has passed that, and
is removed when it is read, as in Redis 7. A script runs at one reading of the clock, without interruption. An unknown
command or option is an error of the model, never a guess: random sequences compare its replies with a real server.

The commands on keys are in ``lua_model/*.lua``, in the same Lua state as the scripts (`lua`). This file has the state
of the server that does not belong to keys.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from leasehold.stores.redis.connection.base import ReplyError
from models.redis import lua

OK = "OK"
"""Replies are bytes, int, None, a list, a `ReplyError`, or, for a status, a str."""

NO_SCRIPT = "NOSCRIPT No matching script. Please use EVAL."

_WHOLE = re.compile(rb"-?[1-9][0-9]*|0")

Publish = Callable[[bytes, bytes], int]
"""Delivers a message on a channel; returns the number of subscribers."""

PublishInShard = Callable[[bytes, bytes], "int | bytes"]
"""The same on a channel of a shard, which another node may have: then it returns that error."""

Rewrite = Callable[[bytes], bytes]
"""Changes the text of a script before it runs, for a test that must detect it."""


def nobody(channel: bytes, message: bytes) -> int:
    """Deliver a message to nobody."""
    return 0


class RedisModel:
    """One server without connections. ``now_us`` reads its clock in microseconds.

    Attributes:
        publish: delivers a message.
        publish_in_shard: delivers one on a channel of a shard; a server that is no node of a cluster has one shard.

    """

    def __init__(self, now_us: Callable[[], int], publish: Publish = nobody, rewrite: Rewrite | None = None) -> None:
        self._machine = lua.machine()
        self._rewrite = rewrite
        self._now_us = now_us
        self.publish = publish
        self.publish_in_shard: PublishInShard = publish
        self._keys = self._machine.fresh()
        self._scripts: dict[bytes, bytes] = {}

    def execute(self, words: Sequence[bytes]) -> Any:
        """Carry out one command that a client sent; return its reply, which may be a `ReplyError`.

        Raises:
            NotImplementedError: the model does not know the command, or not in this form.

        """
        name = words[0].upper()
        if name == b"EVALSHA":
            text = self._scripts.get(words[1].lower())
            return ReplyError(NO_SCRIPT) if text is None else self._script(text, words[2:])
        if name == b"EVAL":
            self._scripts[_digest(words[1])] = words[1]
            return self._script(words[1], words[2:])
        if (own := OWN.get(name)) is not None:
            return own(self, *words[1:])
        return self._machine.ask(self._keys, self._now_us(), words, self._deliver)

    def has(self, key: bytes) -> bool:
        """Return whether a key exists."""
        return bool(self._machine.ask(self._keys, self._now_us(), (b"EXISTS", key), self._deliver))

    def all_keys(self) -> list[bytes]:
        """Return the names of all keys, in order."""
        return self._machine.alive(self._keys, self._now_us())

    def give(self, key: bytes, to: RedisModel) -> None:
        """Move an existing key to another server, as by MIGRATE."""
        ahead_us = to._now_us() - self._now_us()
        self._machine.move(key, self._keys, to._keys, round(ahead_us / 1000))

    def keys(self) -> lua.Keys:
        """Return a copy of all keys."""
        return self._machine.copied(self._keys)

    def take_keys(self, keys: lua.Keys) -> None:
        """Replace all keys by those of another server."""
        self._keys = keys

    def forget_scripts(self) -> None:
        """Lose all scripts, as by SCRIPT FLUSH or a restart."""
        self._scripts.clear()

    def forget_data(self) -> None:
        """Lose all keys, as by FLUSHALL or a restart without persistence."""
        self._keys = self._machine.fresh()

    def _script(self, text: bytes, words: Sequence[bytes]) -> Any:
        if not _WHOLE.fullmatch(words[0]):
            return ReplyError("ERR value is not an integer or out of range")
        if self._rewrite is not None:
            text = self._rewrite(text)
        return self._machine.run(self._keys, self._now_us(), text, int(words[0]), words[1:], self._deliver)

    def _deliver(self, channel: bytes, message: bytes, sharded: bool) -> int | bytes:
        return self.publish_in_shard(channel, message) if sharded else self.publish(channel, message)

    def _scan(self, cursor: bytes, *options: bytes) -> list[Any]:
        pattern = re.compile(b".*", re.DOTALL)
        for option, value in zip(options[::2], options[1::2], strict=True):
            match option.upper():
                case b"MATCH":
                    pattern = _glob(value)
                case b"COUNT":
                    pass
                case _:
                    raise NotImplementedError(f"the model of Redis has no SCAN {option.decode()}")
        return [b"0", [key for key in self.all_keys() if pattern.fullmatch(key)]]

    def _script_command(self, what: bytes, *words: bytes) -> Any:
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

    def _flush(self) -> str:
        self.forget_data()
        return OK

    def _ping(self) -> str:
        return "PONG"


OWN: dict[bytes, Callable[..., Any]] = {
    b"SCAN": RedisModel._scan,
    b"SCRIPT": RedisModel._script_command,
    b"FLUSHALL": RedisModel._flush,
    b"PING": RedisModel._ping,
}
"""The commands of clients that are not about one key."""


def _glob(pattern: bytes) -> re.Pattern[bytes]:
    if re.search(rb"[\[\]\\]", pattern):
        raise NotImplementedError("the model of Redis matches keys by * and ? only")
    return re.compile(re.escape(pattern).replace(rb"\*", b".*").replace(rb"\?", b"."), re.DOTALL)


@lru_cache(100)
def _digest(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
