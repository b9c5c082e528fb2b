-- What all scripts on one mutex share. Put before each of them; the whole text is constant. Each run makes its functions
-- anew, which takes as long as a command for every few of them: those for who waits are in queue.lua, put after what
-- needs none of them.
--
-- KEYS  1 lock     hash: k kind, f highest token given out; while someone holds also t ticket, l lease in ms,
--                  d delay in ms, o owner, m meta; and g tickets whose claims are refused, see refuse_later in queue.lua.
--                  Its time to live is the lease left + delay + KEEP, so that renewing is one PEXPIRE, which needs no
--                  memory, and the token outlives the lease by KEEP.
--       2 queue    zset: ticket -> order of arrival
--       3 beat     zset: ticket -> server time in ms at which the waiter is given up
--       4 waiters  hash: ticket -> channel, lease in ms, delay in ms, owner, meta, joined by SEP
local KEEP = 3600000        -- ms for which a name that nobody uses is remembered

local lock, queue, beat, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local time
local function now()        -- the server's clock in microseconds: exact as a double until the year 2255
  if not time then
    local t = redis.call('TIME')
    time = t[1] * 1000000 + t[2]
  end
  return time
end

-- ms until the name is free: lease and delay of whoever holds it, or what is left of a delay; 0 and less is free.
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

-- The other fields say nothing without a ticket, and the next holder writes them anew.
local function let_go()
  redis.call('HDEL', lock, 't', 'm')
  redis.call('PEXPIRE', lock, KEEP)
end
