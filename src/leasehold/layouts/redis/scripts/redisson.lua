-- RLock, RFencedLock and RFairLock of Redisson: a hash with one field, the owner with the number of its holds, and a
-- time to live.
-- KEYS  5 token   string: the counter of RFencedLock, which all holds of ours raise. Redisson gives it no time to live.
--       6 fair    list: owners that wait for the fair lock, the first first
--       7 places  zset: owner -> client's time in ms at which its place ends, once it is the first
-- ARGV  7 1 if the claim is fair
-- A release publishes '0' on a channel that is not a key, so that waiters of both libraries claim again; and on a
-- channel of its own for the first in the fair queue.
--
-- When an owner leaves the queue, the time for which it would wait is subtracted from the places of all behind it; in
-- Redisson that is WAIT, in ours the lease. So a place of ours ends one lease from now, plus the times of all ahead;
-- our watchdog sets it anew. Redisson sets its own once, after the last one's: they end too early while the queue is
-- never empty.
local WAIT = 300000         -- ms: fairLockWaitTimeout of Redisson, unless it is configured
local token, fair, places = KEYS[5], KEYS[6], KEYS[7]
local topic = 'redisson_lock__channel:' .. (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}')

-- The id of the holder, false if there is none; and the type of the key if it is no such lock.
local function holder()
  local fields = redis.pcall('HKEYS', lock)
  if fields.err then return false, type_after(fields) end
  for _, field in ipairs(fields) do
    if field == 'mode' then return false, 'read-write lock' end
  end
  return fields[1] or false
end

local function take(id, lease)  -- the lock is free
  redis.call('HSET', lock, id, '1')
  redis.call('PEXPIRE', lock, lease)
end

local function next_token(last)  -- above the last one of both libraries, and not below the server's clock
  local next = math.max((tonumber(last) or 0) + 1, (tonumber(redis.call('GET', token)) or 0) + 1, now())
  redis.call('SET', token, whole(next))
  return next
end

local function free()
  redis.call('DEL', lock)
  publish(topic, '0')
end

-- The first in the fair queue; those before it whose places have ended are removed, and ours that have died. One of ours
-- that came earlier may be behind a dead one: Redisson had taken it out, and it queued again.
local function head()
  first()
  while true do
    local owner = redis.call('LINDEX', fair, '0')
    local ends = owner and redis.call('ZSCORE', places, owner)
    local record = owner and redis.call('HGET', waiters, owner)
    if not owner or ends and tonumber(ends) > now() / 1000 and (not record or live(record)) then return owner end
    if record then forget(owner) end
    redis.call('LREM', fair, '1', owner)
    redis.call('ZREM', places, owner)
  end
end

may_take = function(id)
  if ARGV[7] ~= '1' then return true end
  local before = redis.call('LLEN', fair)
  local owner = head()
  if not owner or owner == id then return true end
  if redis.call('LLEN', fair) < before then
    wake_next()
  else
    publish(topic .. ':' .. owner, '0')  -- it may sleep: nothing is published when a lease runs out
  end
  return false
end

set_place = function(id, lease)
  if not string.find(redis.call('HGET', waiters, id), SEP .. 'mutex fair' .. SEP, 1, true) then return end
  local ends, there = now() / 1000 + lease, false
  for _, owner in ipairs(redis.call('LRANGE', fair, '0', '-1')) do
    there = owner == id
    if there then break end
    local record = redis.call('HGET', waiters, owner)
    ends = ends + (record and string.match(record, '^%d+' .. SEP .. '(%d+)') or WAIT)
  end
  redis.call('ZADD', places, whole(ends), id)
  if there then return end
  redis.call('RPUSH', fair, id)  -- it is new; or it was late, and Redisson has removed it: it would not be woken
  wake_next()
end

remove_place = function(id)
  if redis.call('ZREM', places, id) == 0 then return 0 end
  local record, behind = redis.call('HGET', waiters, id), false
  local lease = record and string.match(record, '^%d+' .. SEP .. '(%d+)') or 0
  for _, owner in ipairs(redis.call('LRANGE', fair, '0', '-1')) do
    if behind then redis.pcall('ZADD', places, 'XX', 'INCR', '-' .. lease, owner) end  -- not when memory is full
    behind = behind or owner == id
  end
  redis.call('LREM', fair, '1', id)
  return 1
end

-- Redisson wakes the first alone. Where that does not listen, the next of ours is to learn when the first one's place ends.
wake_next = function(freed)
  if not redis.call('LINDEX', fair, '0') or not freed and holder() or not head() then return end
  for at, owner in ipairs(redis.call('LRANGE', fair, '0', MOST_WOKEN)) do
    local asked = at == 1 or redis.call('HEXISTS', waiters, owner) == 1
    if asked and publish(topic .. ':' .. owner, '0') > 0 then return end
  end
end

ms_until_retry = function(id)
  if id then return redis.call('PTTL', lock) end
  local owner = head()
  local ends, record = redis.call('ZSCORE', places, owner), redis.call('HGET', waiters, owner)
  return math.max(math.min(ends, record and string.match(record, '^%d+') or ends) - now() / 1000, 1)
end
