-- What the scripts share that look at who waits for a mutex. Put after common.lua.
local COME_BACK = 1000      -- ms for which a waiter that could not be told keeps its place
local SEP = '\31'
local MOST_REFUSED = 16     -- tickets of a name whose claims are refused

-- Whole numbers below 10^17 go to commands, and into replies, as they are: no server writes them with an exponent. As text
-- only what has a fraction, or becomes part of a longer text: this is a dear step, a tenth of a whole claim.
local function text(number)
  return string.format('%.0f', number)
end

local function later(ms)    -- the server's clock so many ms from now, in ms
  return math.floor(now() / 1000) + ms
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
  local expires = redis.call('ZSCORE', beat, ticket)
  return expires and tonumber(expires) > now() / 1000 and redis.call('ZSCORE', queue, ticket)
end

-- Each of the three keys lives as long as the lease of any waiter, and KEEP / 2 at least: looked at one by one, since one
-- may have been evicted or deleted alone.
local function keep_waiters(lease)
  for _, key in ipairs({queue, beat, waiters}) do
    if redis.call('PTTL', key) < lease + KEEP / 2 then
      redis.call('PEXPIRE', key, lease + KEEP)
    end
  end
end

-- Tells one client what it waits for; returns whether it listens here. What is published here is also heard at replicas, as
-- by who came when its server was the primary, and on a common channel at all nodes of a cluster, and nobody there is
-- counted: a grant that is about to be taken back must not be told to them. So first a word without meaning is said, by
-- which those here are counted; those elsewhere are then told, by the ticket alone, to ask again.
local function tell(channel, ticket, token)
  local publish, heard = 'PUBLISH', nil
  if string.find(channel, '}:shard:', 1, true) then
    heard = redis.pcall('SPUBLISH', channel, '')
    if type(heard) == 'number' then
      publish = 'SPUBLISH'
    elseif string.find(heard.err, 'nknown', 1, true) then  -- before 7.0 it is no command, and the common channel is heard
      heard = nil
    else                                             -- the slot of the channel is another node's by now
      heard = 0
    end
  end
  heard = heard or redis.call(publish, channel, '')
  if heard == 0 then
    redis.call('PUBLISH', channel, ticket)
    return false
  end
  local stamp = text(now())
  redis.call(publish, channel, ticket .. ' ' .. (token == now() and stamp or text(token)) .. ' ' .. stamp)
  return true
end

local function unqueue(ticket)
  local was_there = redis.call('ZREM', queue, ticket)
  if was_there == 1 then
    redis.call('ZREM', beat, ticket)
    redis.call('HDEL', waiters, ticket)
  end
  return was_there
end

-- A claim without an answer may be overtaken by its own leave, on another connection. Nobody would leave for it after that,
-- so it must be refused when it arrives. Such a leave puts its ticket into field g of the lock, which every claim reads. No
-- client uses a ticket again after that leave. The field lives as long as the lock's key, so KEEP at least.
local function refused(tickets, ticket)
  return tickets and string.find(tickets, ticket, 1, true)
end

local function refuse_later(ticket)
  local tickets = redis.call('HGET', lock, 'g') or ''
  if refused(tickets, ticket) then return end
  local failed = redis.pcall('HSET', lock, 'g', string.sub(ticket .. ' ' .. tickets, 1, MOST_REFUSED * (#ticket + 1)))
  if type(failed) == 'table' and failed.err then
    if string.find(failed.err, 'OOM', 1, true) then return end  -- memory is full: the leave counts all the same
    error(failed.err)
  end
  if redis.call('PTTL', lock) < KEEP then redis.call('PEXPIRE', lock, KEEP) end  -- while somebody holds, it is more
end

-- Give the name, which is free or about to be, to the first live waiter that can be told, and tell it. Returns its ticket,
-- token, owner and lease + delay; nothing if nobody waits. One that nobody hears for (its connection is down) keeps its
-- place for COME_BACK: it asks again as soon as it is back. ME needs no message: it is told by the reply.
local function hand_over(fence, me)
  local tried = 0
  while true do
    local found = redis.call('ZRANGE', queue, tried, tried, 'WITHSCORES')
    local head, place = found[1], found[2]
    if not head then break end
    local expires, fields = tonumber(redis.call('ZSCORE', beat, head) or 0), redis.call('HGET', waiters, head)
    unqueue(head)            -- a removal first, after all types were looked at: then the rest is done even if memory is full
    if fields and expires > now() / 1000 then
      local channel, lease, delay, owner, meta = string.match(fields,
        '^([^' .. SEP .. ']*)' .. SEP .. '(%d+)' .. SEP .. '(%d+)' .. SEP .. '([^' .. SEP .. ']*)' .. SEP .. '(.*)$')
      local token = next_token(fence)
      local failed = hold(head, lease, delay, owner, meta, token)
      if failed then error(failed.err) end
      -- A channel that is not open yet is '': its client is about to ask again, and finds that it holds.
      local told = head == me or channel == '' or tell(channel, head, token)
      if told then return head, token, owner, tonumber(lease) + tonumber(delay) end
      let_go()
      redis.call('HSET', waiters, head, fields)
      redis.call('ZADD', queue, place, head)
      redis.call('ZADD', beat, math.floor(math.min(expires, later(COME_BACK))), head)
      keep_waiters(COME_BACK)
      tried = tried + 1
    end
  end
end
