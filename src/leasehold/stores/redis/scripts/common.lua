-- The common part of all scripts on one mutex; it precedes each of them, and the whole text is constant. Each run defines
-- its functions anew, and a few definitions take as long as a command. So what only waiters need is in queue.lua, which
-- follows the part that does not need it.
--
-- KEYS  1 lock     hash: k kind, f highest token granted; while it is held also t ticket, l lease in ms,
--                  d lock delay in ms, o owner, m meta; and g tickets whose claims are refused (refuse_later, queue.lua).
--                  Its time to live is the rest of the lease + delay + KEEP. So a renewal is one PEXPIRE, which needs no
--                  memory, and the token outlives the lease by KEEP.
--       2 queue    zset: ticket -> order of arrival
--       3 beat     zset: ticket -> server time in ms at which the waiter's entry expires
--       4 waiters  hash: ticket -> channel, lease in ms, lock delay in ms, owner, meta, joined by SEP
local KEEP = 3600000        -- ms for which the state of an unused name is kept

local lock, queue, beat, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local time
local function now()        -- the server's clock in microseconds: exact as a double until the year 2255
  if not time then
    local t = redis.call('TIME')
    time = t[1] * 1000000 + t[2]
  end
  return time
end

-- ms until the name is free: the rest of the lease and lock delay of TICKET, the holder, or of a delay; 0 or less is free.
local function blocked(ticket)
  if not ticket then return 0 end
  return redis.call('PTTL', lock) - KEEP
end

local function next_token(fence)
  return math.max((tonumber(fence) or 0) + 1, now())
end

local function hold(ticket, lease, delay, owner, meta, token)
  local done = redis.pcall('HSET', lock, 'k', 'mutex', 'f', token, 't', ticket, 'l', lease, 'd', delay,
    'o', owner, 'm', meta)
  if type(done) == 'table' and done.err then return done end
  redis.call('PEXPIRE', lock, lease + delay + KEEP)
end

-- Frees the name. The other fields mean nothing without a ticket, and the next holder overwrites them.
local function free_lock()
  redis.call('HDEL', lock, 't', 'm')
  redis.call('PEXPIRE', lock, KEEP)
end
