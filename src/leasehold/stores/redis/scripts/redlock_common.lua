-- The common part of the scripts of one Redlock node. It follows queue.lua; the whole text is constant.
--
-- KEYS  1 vote     hash: t ticket, f its token, l lease in ms, d lock delay in ms, o owner, m meta. Its time to live is the
--                  rest of the lease + delay. It takes the part of `lock` in common.lua.
--       2 to 4     queue, beat and waiters, as in common.lua; the client chooses the order of arrival, so it is the same
--                  on all nodes
--       5 token    hash: f the highest token that this node has voted for; it outlives lease, delay and release by KEEP;
--                  g tickets that get no queue entry any more, since they were released
local top_key = KEYS[5]

local highest_token, released                        -- read once: nothing else writes while a script runs

local function top()
  if not highest_token then
    local known = redis.call('HMGET', top_key, 'f', 'g')
    highest_token, released = tonumber(known[1] or 0), known[2]
  end
  return highest_token
end

-- Makes the highest token outlive so many MS by KEEP. The client whose clock it is from may be ahead of this node: then it
-- also outlives the time at which this node's clock passes it. As keep.lua.
local function keep_top(ms)
  redis.call('PEXPIRE', top_key, text(math.max(ms, (top() - now()) / 1000) + KEEP))
end

-- Never votes for a lower token from now on; so a late claim, after its ticket was released, gets no vote.
local function raise(token, lease)
  local highest = top()
  if token > highest then
    redis.call('HSET', top_key, 'f', text(token))
    highest_token = token
    keep_top(lease)
  end
end

local function vote_left()
  return math.max(redis.call('PTTL', lock), 0)
end

local function enqueue(ticket, order, lease, channel, owner, meta)  -- `top` was called before
  if refused(released, ticket) then return end        -- this call is late: the ticket would not be released again
  local fields = table.concat({channel, text(lease), '0', owner, meta}, SEP)
  redis.call('ZADD', queue, order, ticket)
  redis.call('ZADD', beat, text(now() / 1000 + lease), ticket)
  redis.call('HSET', waiters, ticket, fields)         -- written at each claim: the channel may be open by now
  keep_waiters(lease)
end

-- Notifies the first waiter that can be notified, and no other, that this node's vote is free. CALLER needs no message.
local function notify_next(caller)
  local skipped = 0
  while true do
    local head = redis.call('ZRANGE', queue, skipped, skipped)[1]
    if not head then return end
    if tonumber(redis.call('ZSCORE', beat, head) or 0) <= now() / 1000 then
      unqueue(head)
    else
      local fields = redis.call('HGET', waiters, head)
      local channel = fields and string.match(fields, '^([^' .. SEP .. ']*)') or ''
      if head ~= caller and channel ~= '' and redis.call('PUBLISH', channel, head) > 0 then return end
      skipped = skipped + 1
    end
  end
end
