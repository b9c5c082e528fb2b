"""One state of Lua 5.1 in which the model of Redis keeps its keys and runs scripts, as the server does.

Arguments and replies are converted by the rules of the manual ("Redis Lua API reference"). A script may neither make
a global variable nor read one that is not there, errors of commands are tables with the field ``err``, and nothing is
left over from one call to the next but the keys, which each server has for itself.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, NewType

from leasehold.errors import MissingDriver
from leasehold.stores.redis.connection.base import ReplyError

Keys = NewType("Keys", object)
"""All keys of a server: a table of Lua's."""

Deliver = Callable[[bytes, bytes, bool], int | bytes]
"""Delivers a message on a channel, or (true) on one of a shard; returns how many listen, or why it may not."""

PARTS = ("values", "keys", "zsets", "server")
"""The files of the model, one text."""

UNKNOWN, PLAIN, ERROR, STATUS, WORDS, NESTED = range(-1, 5)
"""What kind of reply Lua tells of; see ``server.lua``."""


class Machine:
    """One Lua state for all servers and scripts of this process."""

    def __init__(self) -> None:
        try:
            lupa: Any = importlib.import_module("lupa.lua51")  # it has no types
        except ImportError:
            raise MissingDriver("the model of Redis runs scripts by lupa; install it: pip install lupa") from None
        self._type: Callable[[object], str | None] = lupa.lua_type
        self._deliver: Deliver | None = None
        folder = files("models.redis").joinpath("lua_model")
        text = "\n".join(folder.joinpath(f"{part}.lua").read_text(encoding="utf-8") for part in PARTS)
        runtime: Any = lupa.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        made: tuple[Callable[..., Any], ...] = runtime.execute(text, self._publish)
        self._compile, self._run, self._ask, self._fresh, self._copied, self._alive = made
        self._scripts: dict[bytes, Any] = {}

    def run(self, keys: Keys, now_us: int, text: bytes, count: int, words: Sequence[bytes], deliver: Deliver) -> Any:
        """Run a script with the first ``count`` words as its keys and the rest as its arguments; return its reply."""
        script = self._scripts.get(text)
        if script is None:
            made: Any = self._compile(text)
            if self._type(made) != "function":  # nothing, and why
                return ReplyError(f"ERR Error compiling script: {made[1]!s}")
            script = self._scripts[text] = made
        self._deliver = deliver
        return self._reply(self._run(keys, now_us, script, count, *words))

    def ask(self, keys: Keys, now_us: int, words: Sequence[bytes], deliver: Deliver) -> Any:
        """Carry out one command that is no script; return its reply."""
        self._deliver = deliver
        return self._reply(self._ask(keys, now_us, *words))

    def fresh(self) -> Keys:
        """Return no keys."""
        return Keys(self._fresh())

    def copied(self, keys: Keys) -> Keys:
        """Return the same keys once more."""
        return Keys(self._copied(keys))

    def move(self, key: bytes, source: Keys, target: Keys, ahead_ms: int) -> None:
        """Move a key, which has as long to live as it had; the clock of the target is ``ahead_ms`` ahead."""
        theirs: Any = source
        ours: Any = target
        entry = theirs[key]
        theirs[key] = None
        if (expires := entry[b"expires"]) is not None:
            entry[b"expires"] = expires + ahead_ms
        ours[key] = entry

    def alive(self, keys: Keys, now_us: int) -> list[bytes]:
        """Return the names of those that have not expired, in order."""
        found: list[bytes] = self._reply(self._alive(keys, now_us))
        return found

    def _publish(self, channel: bytes, message: bytes, sharded: bool = False) -> int | bytes:
        assert self._deliver is not None
        return self._deliver(channel, message, sharded)

    def _reply(self, told: Any) -> Any:
        if told == WORDS:  # an empty list of words is its kind alone
            return []
        words: tuple[Any, ...] = told
        kind, value = words[0], words[1]
        if kind == WORDS:
            return list(words[1:])
        if kind == PLAIN:
            return value
        if kind == ERROR:
            return ReplyError(value.decode(errors="replace"))
        if kind == STATUS:
            return value.decode()
        if kind == UNKNOWN:
            raise NotImplementedError(f"the model of Redis has no {value.decode()}")
        return self._nested(value)

    def _nested(self, reply: Any) -> Any:
        if isinstance(reply, bytes):
            return reply
        if reply is None or isinstance(reply, bool):
            return 1 if reply else None
        if isinstance(reply, int | float):
            return int(reply)
        if self._type(reply) != "table":
            return None
        if (text := reply[b"err"]) is not None:
            return ReplyError(text.decode(errors="replace"))
        if (text := reply[b"ok"]) is not None:
            return text.decode()
        found: list[Any] = []
        while (one := reply[len(found) + 1]) is not None:  # the first nil ends it
            found.append(self._nested(one))
        return found


@cache
def machine() -> Machine:
    """Return the state of this process.

    Raises:
        MissingDriver: lupa is not installed.

    """
    return Machine()
