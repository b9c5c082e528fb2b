-- The common part of all scripts on one mutex; it precedes each of them, and the whole text is constant. Each run defines
-- its functions anew, and a few definitions take as long as a command. So what only waiters need is in queue.lua, which
-- follows the part that does not need it.
--
-- KEYS  1 lock     hash: k kind, f highest token granted; while it is held also t ticket, l lease in ms,
--                  d lock delay in ms, o owner, m meta; without a holder, but not free (lock delay): t '', d 0 and l
--                  that delay; and g tickets whose claims are refused (refuse_later, queue.lua), a ms by which it is kept
--                  longer (keep.lua). Its time to live is the rest of the lease + delay + KEEP + a. So a renewal is one
--                  PEXPIRE, which needs no memory, and the token outlives the lease by KEEP.
--       2 queue    zset: ticket -> order of arrival
--       3 beat     zset: ticket -> server time in ms at which the waiter's entry expires
--       4 waiters  hash: ticket -> channel, lease in ms, lock delay in ms, owner, meta, joined by SEP
local lock, queue, beat, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local ahead = 0             -- field a of the lock, once it has been read

-- ms until the name is free: the rest of the lease and lock delay of TICKET, the holder, or of a delay; 0 or less is free.
local function blocked(ticket)
  if not ticket then return 0 end
  return redis.call('PTTL', lock) - KEEP - ahead
end

local function next_token(fence)
  return math.max((tonumber(fence) or 0) + 1, now())
end

local function hold(ticket, lease, delay, owner, meta, token)
  local done = redis.pcall('HSET', lock, 'k', 'mutex', 'f', token, 't', ticket, 'l', lease, 'd', delay,
    'o', owner, 'm', meta)
  if type(done) == 'table' and done.err then return done end
  ahead = keep(lock, lease + delay, token, ahead)
end

-- Frees the name. The other fields mean nothing without a ticket, and the next holder overwrites them. The key goes on to
-- outlive the LEASE that it had: to shorten that is worth a command only after a long one.
local function free_lock(lease, fence)
  redis.call('HDEL', lock, 't', 'm')
  if tonumber(lease or 0) > KEEP then keep(lock, 0, fence, ahead) end
end
