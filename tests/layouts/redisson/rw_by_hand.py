"""The scripts of Redisson's read-write lock, as its Java client sends them."""

from __future__ import annotations

import redis

OWNER = "6b7b6e8c-7ad5-4e0c-a2ae-18cd1f5b2b60:37"

READ = """
local mode = redis.call('hget', KEYS[1], 'mode')
if not mode then
  redis.call('hset', KEYS[1], 'mode', 'read')
  redis.call('hset', KEYS[1], ARGV[2], 1)
  redis.call('set', KEYS[2] .. ':1', 1)
  redis.call('pexpire', KEYS[2] .. ':1', ARGV[1])
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
if mode == 'read' or (mode == 'write' and redis.call('hexists', KEYS[1], ARGV[3]) == 1) then
  local i = redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('set', KEYS[2] .. ':' .. i, 1)
  redis.call('pexpire', KEYS[2] .. ':' .. i, ARGV[1])
  redis.call('pexpire', KEYS[1], math.max(redis.call('pttl', KEYS[1]), ARGV[1]))
  return nil
end
return redis.call('pttl', KEYS[1])
"""

READ_UNLOCK = """
local mode = redis.call('hget', KEYS[1], 'mode')
if not mode then redis.call('publish', KEYS[2], ARGV[1]); return nil end
if redis.call('hexists', KEYS[1], ARGV[2]) == 0 then return nil end
local count = redis.call('hincrby', KEYS[1], ARGV[2], -1)
if count == 0 then redis.call('hdel', KEYS[1], ARGV[2]) end
redis.call('del', KEYS[3] .. ':' .. (count + 1))
if redis.call('hlen', KEYS[1]) > 1 then
  local most = -3
  for _, field in ipairs(redis.call('hkeys', KEYS[1])) do
    local holds = tonumber(redis.call('hget', KEYS[1], field))
    if type(holds) == 'number' then
      for i = holds, 1, -1 do
        most = math.max(redis.call('pttl', KEYS[4] .. ':' .. field .. ':rwlock_timeout:' .. i), most)
      end
    end
  end
  if most > 0 then redis.call('pexpire', KEYS[1], most); return 0 end
  if mode == 'write' then return 0 end
end
redis.call('del', KEYS[1])
redis.call('publish', KEYS[2], ARGV[1])
return 1
"""

WRITE = """
local mode = redis.call('hget', KEYS[1], 'mode')
if not mode then
  redis.call('hset', KEYS[1], 'mode', 'write')
  redis.call('hset', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], ARGV[1])
  return nil
end
if mode == 'write' and redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
  redis.call('hincrby', KEYS[1], ARGV[2], 1)
  redis.call('pexpire', KEYS[1], redis.call('pttl', KEYS[1]) + ARGV[1])
  return nil
end
return redis.call('pttl', KEYS[1])
"""

WRITE_UNLOCK = """
local mode = redis.call('hget', KEYS[1], 'mode')
if not mode then redis.call('publish', KEYS[2], ARGV[1]); return nil end
if mode ~= 'write' or redis.call('hexists', KEYS[1], ARGV[3]) == 0 then return nil end
if redis.call('hincrby', KEYS[1], ARGV[3], -1) > 0 then redis.call('pexpire', KEYS[1], ARGV[2]); return 0 end
redis.call('hdel', KEYS[1], ARGV[3])
if redis.call('hlen', KEYS[1]) == 1 then
  redis.call('del', KEYS[1])
  redis.call('publish', KEYS[2], ARGV[1])
else
  redis.call('hset', KEYS[1], 'mode', 'read')
end
return 1
"""


class Java:
    """One thread of a Java program, by the recorded scripts of Redisson 4.7."""

    def __init__(self, client: redis.Redis, key: str, owner: str = OWNER) -> None:
        self.redis = client
        self.key = key
        self.owner = owner
        self.channel = f"redisson_rwlock:{{{key}}}"

    def hold_key(self, owner: str) -> str:
        return f"{{{self.key}}}:{owner}:rwlock_timeout"

    def read(self, lease: float = 30.0) -> bool:
        keys = self.key, self.hold_key(self.owner)
        return self.redis.eval(READ, 2, *keys, round(lease * 1000), self.owner, f"{self.owner}:write") is None

    def read_unlock(self) -> int | None:
        keys = self.key, self.channel, self.hold_key(self.owner), f"{{{self.key}}}"
        return self.redis.eval(READ_UNLOCK, 4, *keys, "0", self.owner)

    def write(self, lease: float = 30.0) -> bool:
        return self.redis.eval(WRITE, 1, self.key, round(lease * 1000), f"{self.owner}:write") is None

    def write_unlock(self) -> int | None:
        return self.redis.eval(WRITE_UNLOCK, 2, self.key, self.channel, "1", 30_000, f"{self.owner}:write")
