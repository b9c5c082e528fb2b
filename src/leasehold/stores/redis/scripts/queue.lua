-- The part of the scripts that deals with the waiters of a mutex. Follows common.lua.
local COME_BACK = 1000      -- ms for which a waiter that could not be notified keeps its queue entry
local BATCH = 100            -- waiters read at a time, after the first
local SEP = '\31'
local FIELDS = '^([^\31]*)\31(%d+)\31(%d+)\31([^\31]*)\31(.*)$'  -- those of a waiter
local MOST_REFUSED = 16     -- tickets of a name whose claims are refused

-- Whole numbers below 10^17 go to commands and into replies unchanged: no server writes them with an exponent. Only a
-- number with a fraction, or inside a longer text, needs this step, which costs a tenth of a whole acquire.
local function text(number)
  return string.format('%.0f', number)
end

local function later(ms)    -- the server's clock so many ms from now, in ms
  return math.floor(now() / 1000) + ms
end

-- Returns whether there may be waiters. Ends the script with an error if a key that it may write has another type, so it is
-- called before the first write. Most locks have no waiters, and then it is one command.
local function crowded()
  if redis.call('EXISTS', queue, beat, waiters) == 0 then return false end
  redis.call('ZCARD', queue)
  redis.call('ZCARD', beat)
  redis.call('HLEN', waiters)
  return true
end

-- Returns the order of a ticket that waits; nothing if its entry has expired.
local function waiting(ticket)
  local expires = redis.call('ZSCORE', beat, ticket)
  return expires and tonumber(expires) > now() / 1000 and redis.call('ZSCORE', queue, ticket)
end

-- Makes each of the three keys outlive a waiter with this LEASE by KEEP / 2 at least. They are checked one by one, since
-- one may have been evicted or deleted alone.
local function keep_waiters(lease)
  for _, key in ipairs({queue, beat, waiters}) do
    if redis.call('PTTL', key) < lease + KEEP / 2 then
      redis.call('PEXPIRE', key, lease + KEEP)
    end
  end
end

-- Returns the command that publishes on a client's channel, or nothing if the client has not subscribed at this server. A
-- message also reaches subscribers at replicas, such as clients that connected when that server was the primary, and on a
-- common channel those at all nodes of a cluster. PUBLISH does not count them, and a grant that is not made must not reach
-- them. So an empty message first counts the subscribers here. If there is none, the ticket alone is published:
-- subscribers at other servers then retry.
local function publisher(channel)
  local publish, subscribers = 'PUBLISH', nil
  if string.find(channel, '}:shard:', 1, true) then
    subscribers = redis.pcall('SPUBLISH', channel, '')
    if type(subscribers) == 'number' then
      publish = 'SPUBLISH'
    elseif string.find(subscribers.err, 'nknown', 1, true) then  -- no such command before 7.0: clients use the common one
      subscribers = nil
    else                                             -- the channel's slot has moved to another node
      subscribers = 0
    end
  end
  subscribers = subscribers or redis.call(publish, channel, '')
  return subscribers > 0 and publish
end

local function notify(publish, channel, ticket, token)
  local stamp = text(now())
  redis.call(publish, channel, ticket .. ' ' .. (token == now() and stamp or text(token)) .. ' ' .. stamp)
end

local function unqueue(ticket)
  local was_there = redis.call('ZREM', queue, ticket)
  if was_there == 1 then
    redis.call('ZREM', beat, ticket)
    redis.call('HDEL', waiters, ticket)
  end
  return was_there
end

-- An unanswered claim may be overtaken by its own release, on another connection. It would never be released. So it
-- must be refused when it arrives: such a release writes its ticket into field g of the lock, which every claim reads.
-- No client uses a ticket again after that release. The field lives as long as the lock's key, so KEEP at least.
local function refused(tickets, ticket)
  return tickets and string.find(tickets, ticket, 1, true)
end

local function refuse_later(ticket, key)
  local tickets = redis.call('HGET', key, 'g') or ''
  if refused(tickets, ticket) then return end
  local failed = redis.pcall('HSET', key, 'g', string.sub(ticket .. ' ' .. tickets, 1, MOST_REFUSED * (#ticket + 1)))
  if type(failed) == 'table' and failed.err then
    if string.find(failed.err, 'OOM', 1, true) then return end  -- memory is full: the release still counts
    error(failed.err)
  end
  if redis.call('PTTL', key) < KEEP then redis.call('PEXPIRE', key, KEEP) end  -- a held lock has more
end

-- Grants the name, which is free or about to be, to the first live waiter that can be notified, and notifies it. Returns its
-- ticket, token, owner and lease + delay; nothing if there is no such waiter. A waiter without a subscriber (its connection
-- is down) keeps its entry for COME_BACK: it retries as soon as it is connected. CALLER needs no message but the reply.
-- FIRST holds the first in the queue, if that has just been read.
-- A client may die with many thousand waiters. So they are passed over before anything is written for them, and a channel
-- that has no subscriber is not tried again.
local function hand_over(fence, caller, first)
  local skipped, deaf, shortened = 0, {}, later(COME_BACK)
  local heads = first or redis.call('ZRANGE', queue, 0, 0)
  while heads[1] do
    local known = redis.call('HMGET', waiters, unpack(heads))
    for i, head in ipairs(heads) do
      local expires, fields = tonumber(redis.call('ZSCORE', beat, head) or 0), known[i]
      if fields and expires > now() / 1000 then
        local channel, lease, delay, owner, meta = string.match(fields, FIELDS)
        -- Without a message: an empty channel is not open yet. Its client is about to retry, and finds that it holds.
        local quiet = head == caller or channel == ''
        local publish = not quiet and not deaf[channel] and publisher(channel)
        if quiet or publish then
          unqueue(head)      -- first a removal, with all types checked: then the rest is allowed when memory is full
          local token = next_token(fence)
          local failed = hold(head, lease, delay, owner, meta, token)
          if failed then error(failed.err) end
          if publish then notify(publish, channel, head, token) end
          return head, token, owner, tonumber(lease) + tonumber(delay)
        end
        if skipped == 0 then redis.call('ZREM', queue, '') end  -- a removal, before the first ZADD
        -- One message for each, but not at each hand-over: a ticket that retries has its full lease again.
        if expires > shortened or not deaf[channel] then redis.call('PUBLISH', channel, head) end
        if expires > shortened then redis.call('ZADD', beat, shortened, head) end
        deaf[channel], skipped = true, skipped + 1
      else
        unqueue(head)
      end
    end
    heads = redis.call('ZRANGE', queue, skipped, skipped + BATCH - 1)
  end
end
