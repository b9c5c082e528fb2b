-- python-redis-lock: a string whose value is the holder's id, with a time to live. Its waiters block in BLPOP on the list
-- KEYS[5]: a release leaves one element there, for the one that blocks or comes within SIGNAL_LIFE.
local SIGNAL_LIFE = 1000  -- ms, as in python-redis-lock

local function free()
  redis.call('DEL', lock, KEYS[5])  -- first: after a write, LPUSH is not refused when memory is full
  redis.call('LPUSH', KEYS[5], '1')
  redis.call('PEXPIRE', KEYS[5], SIGNAL_LIFE)
end

local topic = nil  -- a release publishes nothing
