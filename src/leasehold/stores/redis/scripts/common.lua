-- What all scripts on the queue of one mutex share. Put before each of them; the whole text is constant.
--
-- KEYS  1 lock     hash: k kind, f highest token given out; while someone holds also t ticket, l lease in ms,
--                  d delay in ms, o owner, m meta. Its time to live is the lease left + delay + KEEP, so that renewing
--                  is one PEXPIRE, which needs no memory, and the token outlives the lease by KEEP.
--       2 queue    zset: ticket -> order of arrival
--       3 beat     zset: ticket -> server time in ms at which the waiter is given up
--       4 waiters  hash: ticket -> channel, lease in ms, delay in ms, owner, meta, joined by SEP
local KEEP = 3600000        -- ms for which a name that nobody uses is remembered
local COME_BACK = 1000      -- ms for which a waiter that could not be told keeps its place
local SEP = '\31'

local lock, queue, beat, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local time
local function now()        -- the server's clock in microseconds: exact as a double until the year 2255
  if not time then
    local t = redis.call('TIME')
    time = t[1] * 1000000 + t[2]
  end
  return time
end

local function text(number)
  return string.format('%.0f', number)
end

-- ms until the name is free: lease and delay of whoever holds it, or what is left of a delay; 0 and less is free.
local function blocked(ticket)
  if not ticket then return 0 end
  return redis.call('PTTL', lock) - KEEP
end

-- Whether anybody may be waiting. Ends the script with an error if a key that it may write is not ours: called before the
-- first write. Nobody waits for most locks, and then it is one command.
local function crowded()
  if redis.call('EXISTS', queue, beat, waiters) == 0 then return false end
  redis.call('ZCARD', queue)
  redis.call('ZCARD', beat)
  redis.call('HLEN', waiters)
  return true
end

-- Whether the ticket waits, and its place is not given up.
local function waiting(ticket)
  local seated = redis.call('ZSCORE', queue, ticket)
  local expires = redis.call('ZSCORE', beat, ticket)
  return seated and expires and tonumber(expires) > now() / 1000
end

-- Each of the three keys lives as long as the lease of any waiter, and KEEP / 2 at least: looked at one by one, since one
-- may have been evicted or deleted alone.
local function keep_waiters(lease)
  for _, key in ipairs({queue, beat, waiters}) do
    if redis.call('PTTL', key) < lease + KEEP / 2 then
      redis.call('PEXPIRE', key, text(lease + KEEP))
    end
  end
end

local function next_token(fence)
  return math.max((tonumber(fence) or 0) + 1, now())
end

local function hold(ticket, lease, delay, owner, meta, token)
  local done = redis.pcall('HSET', lock, 'k', 'mutex', 'f', text(token), 't', ticket, 'l', lease, 'd', delay,
    'o', owner, 'm', meta)
  if type(done) == 'table' and done.err then return done end
  redis.call('PEXPIRE', lock, text(lease + delay + KEEP))
end

local function let_go()
  redis.call('HDEL', lock, 't', 'l', 'd', 'o', 'm')
  redis.call('PEXPIRE', lock, KEEP)
end

local function unqueue(ticket)
  local was_there = redis.call('ZREM', queue, ticket)
  if was_there == 1 then
    redis.call('ZREM', beat, ticket)
    redis.call('HDEL', waiters, ticket)
  end
  return was_there
end

-- Give the free name to the first live waiter that can be told, and tell it. Returns its ticket, token and owner; nothing
-- if nobody waits. One that nobody hears for (its connection is down) keeps its place for COME_BACK: it asks again
-- as soon as it is back. ME needs no message: it is told by the reply.
local function hand_over(fence, me)
  local token, tried = next_token(fence), 0
  while true do
    local head = redis.call('ZRANGE', queue, tried, tried)[1]
    if not head then break end
    local alive = tonumber(redis.call('ZSCORE', beat, head) or 0) > now() / 1000
    local entry = alive and redis.call('HGET', waiters, head)
    if not entry then
      unqueue(head)
    else
      local channel, lease, delay, owner, meta = string.match(entry,
        '^([^' .. SEP .. ']*)' .. SEP .. '(%d+)' .. SEP .. '(%d+)' .. SEP .. '([^' .. SEP .. ']*)' .. SEP .. '(.*)$')
      -- Held before told: if there is no memory for it, nobody must have heard of it.
      local failed = hold(head, lease, delay, owner, meta, token)
      if failed then break end
      -- A channel that is not open yet is '': its client is about to ask again, and finds that it holds.
      local told = head == me or channel == ''
        or redis.call('PUBLISH', channel, head .. ' ' .. text(token) .. ' ' .. text(now())) > 0
      if told then
        unqueue(head)
        return head, token, owner, tonumber(lease) + tonumber(delay)
      end
      let_go()
      redis.call('ZADD', beat, 'LT', text(now() / 1000 + COME_BACK), head)
      tried = tried + 1
    end
  end
end
