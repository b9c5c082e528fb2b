"""Runs the text of a script of Redis as the server does: in Lua 5.1, with nothing left over from one call to the next.

Arguments and replies are converted by the rules of the manual ("Redis Lua API reference"). A script may neither make
a global variable nor read one that is not there, and errors of commands are tables with the field ``err``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

from leasehold.errors import MissingDriver
from leasehold.wires.redis.base import ReplyError

Invoke = Callable[[Sequence[bytes]], Any]
"""Carries out a command inside a script."""

MOST_EXACT = 10**17
"""From here on Redis writes a number of Lua with an exponent."""

PLAIN = frozenset({bytes, int})
"""Types of replies that Lua takes as they are."""

PRELUDE = """
local invoke = ...
local function guarded(t)
  return setmetatable(t, {
    __newindex = function(_, name) error("Attempt to modify a readonly table script: " .. tostring(name), 2) end,
    __index = function(_, name)
      error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
    end,
  })
end
local redis = {pcall = invoke}
function redis.call(...)
  local reply = invoke(...)
  if type(reply) == 'table' and reply.err then error(reply) end
  return reply
end
function redis.error_reply(text) return {err = text} end
function redis.status_reply(text) return {ok = text} end
function redis.sha1hex() error('the model has no sha1hex') end
local env = guarded({
  redis = redis, string = string, table = table, math = math, tonumber = tonumber, tostring = tostring, type = type,
  ipairs = ipairs, pairs = pairs, next = next, pcall = pcall, error = error, select = select, unpack = unpack,
  assert = assert,
})
local function compile(text)
  local made, why = loadstring(text, '@user_script')
  if not made then return nil, why end
  setfenv(made, env)
  return made, false
end
local function run(made, keys, args)
  rawset(env, 'KEYS', keys)
  rawset(env, 'ARGV', args)
  local fine, reply = pcall(made)
  if not fine and type(reply) ~= 'table' then reply = {err = 'ERR ' .. tostring(reply)} end
  return reply
end
return compile, run
"""


class Machine:
    """One Lua state for all scripts of this process: scripts keep nothing in it."""

    def __init__(self) -> None:
        try:
            lupa: Any = importlib.import_module("lupa.lua51")  # it has no types
        except ImportError:
            raise MissingDriver("the model of Redis runs scripts by lupa; install it: pip install lupa") from None
        self._type: Callable[[object], str | None] = lupa.lua_type
        self._lua: Any = lupa.LuaRuntime(encoding=None, unpack_returned_tuples=True)
        self._table: Callable[[Any], Any] = self._lua.table_from
        self._invoke: Invoke | None = None
        made: tuple[Any, Any] = self._lua.execute(PRELUDE, self._called)
        self._compile, self._run = made
        self._made: dict[bytes, Any] = {}

    def run(self, text: bytes, keys: Sequence[bytes], args: Sequence[bytes], invoke: Invoke) -> Any:
        """Run a script to its end; return its reply."""
        made = self._made.get(text)
        if made is None:
            made, why = self._compile(text)
            if made is None:
                return ReplyError(f"ERR Error compiling script: {why.decode()}")
            self._made[text] = made
        self._invoke = invoke
        try:
            reply: Any = self._run(made, self._table(list(keys)), self._table(list(args)))
        finally:
            self._invoke = None
        return self._to_redis(reply)

    def _called(self, *words: Any) -> Any:
        """Carry out one command: it is what a history spends most of its time with."""
        assert self._invoke is not None
        told = list[bytes]()
        for word in words:
            kind = cast("type[object]", type(word))
            if kind is bytes:
                told.append(word)
            elif kind is int or kind is float:
                told.append(_word(word))
            else:
                return self._to_lua(ReplyError("ERR Lua redis lib command arguments must be strings or integers"))
        reply = self._invoke(told)
        return reply if type(reply) in PLAIN else self._to_lua(reply)

    def _to_lua(self, reply: Any) -> Any:
        if isinstance(reply, bytes | int):
            return reply
        if reply is None:
            return False
        if isinstance(reply, ReplyError):
            return self._lua.table_from({b"err": str(reply).encode()})
        if isinstance(reply, str):
            return self._lua.table_from({b"ok": reply.encode()})
        return self._table([one if type(one) in PLAIN else self._to_lua(one) for one in reply])

    def _to_redis(self, reply: Any) -> Any:
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
            found.append(self._to_redis(one))
        return found


@cache
def _machine() -> Machine:
    return Machine()


def run(text: bytes, keys: Sequence[bytes], args: Sequence[bytes], invoke: Invoke) -> Any:
    """Run the text of a script; its commands go to ``invoke``.

    Raises:
        MissingDriver: lupa is not installed.

    """
    return _machine().run(text, keys, args, invoke)


def _word(value: bytes | int | float) -> bytes:
    if isinstance(value, bytes):
        return value
    return b"%d" % value if isinstance(value, int) and abs(value) < MOST_EXACT else b"%.17g" % value
