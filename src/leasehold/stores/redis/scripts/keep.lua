-- For how long the key with the highest token of a name is kept. Precedes the scripts on locks.
local KEEP = 3600000        -- ms for which the state of an unused name is kept, at least

local time
local function now()        -- the server's clock in microseconds: exact as a double until the year 2255
  if not time then
    local t = redis.call('TIME')
    time = t[1] * 1000000 + t[2]
  end
  return time
end

-- Makes the lock's key outlive so many MS, the rest of a lease and lock delay, by KEEP + AHEAD, its field a; returns AHEAD.
-- Without the key only the clock keeps the next token above FENCE, the highest. So the key lives until the clock is past
-- FENCE: if that is far ahead, since the clock was set back, field a is raised. It stays as long as the key.
local function keep(lock, ms, fence, ahead)
  local needed = ((fence or 0) - now()) / 1000
  if needed > ms + ahead + KEEP / 2 then              -- half of KEEP is for nodes of a cluster whose clocks differ
    ahead = math.ceil(needed)
    redis.call('HDEL', lock, '')                      -- a removal: then the rest is allowed when memory is full
    redis.call('HSET', lock, 'a', ahead)
  end
  redis.call('PEXPIRE', lock, ms + KEEP + ahead)
  return ahead
end
