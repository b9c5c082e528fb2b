"""The scripts of Redisson's fair lock, as its Java client sends them."""

from __future__ import annotations

import time

import redis

WAIT = 300_000
"""Milliseconds: Redisson's ``fairLockWaitTimeout``."""

ACQUIRE = """
while true do
  local head = redis.call('lindex', KEYS[2], 0)
  if not head then break end
  local ends = redis.call('zscore', KEYS[3], head)
  if not ends or tonumber(ends) > tonumber(ARGV[4]) then break end
  redis.call('zrem', KEYS[3], head)
  redis.call('lpop', KEYS[2])
end
local head = redis.call('lindex', KEYS[2], 0)
if redis.call('exists', KEYS[1]) == 0 and (not head or head == ARGV[2]) then
  redis.call('lpop', KEYS[2])
  redis.call('zrem', KEYS[3], ARGV[2])
  for _, other in ipairs(redis.call('zrange', KEYS[3], 0, -1)) do
    redis.call('zincrby', KEYS[3], -tonumber(ARGV[3]), other)
  end
  redis.call('hset', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
if redis.call('zscore', KEYS[3], ARGV[2]) then return math.max(0, redis.call('pttl', KEYS[1])) end
local last, base = redis.call('lindex', KEYS[2], -1), nil
if last and last ~= ARGV[2] and redis.call('zscore', KEYS[3], last) then
  base = tonumber(redis.call('zscore', KEYS[3], last)) - tonumber(ARGV[4])
else
  base = redis.call('pttl', KEYS[1])
end
if redis.call('zadd', KEYS[3], base + tonumber(ARGV[3]) + tonumber(ARGV[4]), ARGV[2]) == 1 then
  redis.call('rpush', KEYS[2], ARGV[2])
end
return base
"""

UNLOCK = """
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return nil end
redis.call('del', KEYS[1])
local head = redis.call('lindex', KEYS[2], 0)
if head then redis.call('publish', KEYS[3] .. ':' .. head, ARGV[1]) end
return 1
"""


class Java:
    """One thread of a Java program with the fair lock, by the recorded scripts of Redisson 4.7."""

    def __init__(self, client: redis.Redis, key: str, thread: int) -> None:
        self.redis = client
        self.key = key
        self.owner = f"6b7b6e8c-7ad5-4e0c-a2ae-18cd1f5b2b60:{thread}"
        self.queue, self.places = f"redisson_lock_queue:{{{key}}}", f"redisson_lock_timeout:{{{key}}}"
        self.channel = f"redisson_lock__channel:{{{key}}}"

    def lock(self, lease: float = 30.0) -> bool:
        """Take the lock, or stay in the queue."""
        keys = self.key, self.queue, self.places
        return self.redis.eval(ACQUIRE, 3, *keys, round(lease * 1000), self.owner, WAIT, self.now()) is None

    def unlock(self) -> int | None:
        return self.redis.eval(UNLOCK, 3, self.key, self.queue, self.channel, "0", self.owner)

    def now(self) -> int:
        return round(time.time() * 1000)

    def waiting(self) -> list[str]:
        return [owner.decode() for owner in self.redis.lrange(self.queue, 0, -1)]

    def place(self, owner: str) -> float:
        """Return seconds after which the place of an owner ends."""
        return (float(self.redis.zscore(self.places, owner)) - self.now()) / 1000
