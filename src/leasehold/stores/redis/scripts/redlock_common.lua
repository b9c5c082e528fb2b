-- What the scripts of one node of Redlock share. Put between common.lua and each of them; the whole text is constant.
--
-- KEYS  1 vote     hash: t ticket, f its token, l lease in ms, d delay in ms, o owner, m meta. Its time to live is the lease
--                  left + delay. What `lock` is in common.lua.
--       2 to 4     queue, beat and waiters, as in common.lua; the order of arrival is the client's, so it is the same on
--                  all nodes
--       5 token    hash: f the highest token that this node has voted for; it outlives lease, delay and release by KEEP
local top_key = KEYS[5]

local highest_token                                  -- read once: nobody else writes while a script runs

local function top()
  highest_token = highest_token or tonumber(redis.call('HMGET', top_key, 'f')[1] or 0)
  return highest_token
end

-- Never vote for less from now on; so a claim that comes late, after its ticket has left, finds no vote.
local function raise(token, lease)
  local highest = top()
  if token > highest then
    redis.call('HSET', top_key, 'f', text(token))
    highest_token = token
    redis.call('PEXPIRE', top_key, text(lease + KEEP))
  end
end

local function vote_left()
  return math.max(redis.call('PTTL', lock), 0)
end

local function stand_in_line(ticket, order, lease, channel, owner, meta)
  local fields = table.concat({channel, text(lease), '0', owner, meta}, SEP)
  redis.call('ZADD', queue, order, ticket)
  redis.call('ZADD', beat, text(now() / 1000 + lease), ticket)
  redis.call('HSET', waiters, ticket, fields)         -- again at each claim: the channel may be open by now
  keep_waiters(lease)
end

-- Notify the first waiter that can be reached that this node has its vote to give, and no other. It may ask for it or
-- not; ME is not notified.
local function wake(me)
  local tried = 0
  while true do
    local head = redis.call('ZRANGE', queue, tried, tried)[1]
    if not head then return end
    if tonumber(redis.call('ZSCORE', beat, head) or 0) <= now() / 1000 then
      unqueue(head)
    else
      local fields = redis.call('HGET', waiters, head)
      local channel = fields and string.match(fields, '^([^' .. SEP .. ']*)') or ''
      if head ~= me and channel ~= '' and redis.call('PUBLISH', channel, head) > 0 then return end
      tried = tried + 1
    end
  end
end
