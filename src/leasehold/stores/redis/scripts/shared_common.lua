-- The common part of the scripts on names with many holders: read-write locks and semaphores. Follows queue.lua.
--
-- KEYS  1 lock     hash: k use ('rw', 'semaphore of 5'), f highest token. While the name is held or waited for also t ''
--                  (in use, but by no mutex), c holders, w exclusive ones, u upgradeable ones, p permits in use, b server
--                  time in ms before which nobody acquires, x longest lock delay of a holder, n last order of arrival.
--                  Its time to live is the rest of the longest lease or queue entry, + delay + KEEP: so a mutex sees that
--                  the name is in use.
--       2 - 4      as of a mutex; the fields of waiters are channel, lease, delay, owner, alone (exclusive), upgradeable,
--                  permits, alongside, meta
--       5 holders  zset: ticket -> server time in ms at which its lease ends
--       6 terms    hash: ticket -> token, lease, delay, owner, alone, upgradeable, permits, meta, joined by SEP
--
-- A script reads first (load). It writes after begin(), which fails when memory is full, or after a ZREM, which never does.
local MOST = 1000           -- holders removed, and waiters granted, by one call: the next call continues
local PASSED = 100          -- waiters skipped by one call
local FIRST = 2 ^ 52        -- a waiter alongside its own holding ticket precedes all others: arrival - FIRST

local holders, terms = KEYS[5], KEYS[6]
local ms = math.floor(now() / 1000)
local use, limit            -- what this call uses the name as
local s = {}                -- state of the name; the counters are those after s.expired are removed

local function split(fields)
  local found = {}
  for field in string.gmatch(fields .. SEP, '([^' .. SEP .. ']*)' .. SEP) do found[#found + 1] = field end
  return found
end

local function shape(entry, lease, delay, owner, alone, upgradeable, permits, meta)
  entry.lease, entry.delay, entry.owner, entry.meta = tonumber(lease), tonumber(delay), owner, meta
  entry.alone, entry.upgradeable, entry.permits = tonumber(alone), tonumber(upgradeable), tonumber(permits)
  return entry
end

local function holder_of(fields)
  local w = split(fields)
  return shape({token = w[1]}, w[2], w[3], w[4], w[5], w[6], w[7], w[8])
end

-- The queue entry of a live waiter, or nothing.
local function waiter(ticket)
  local alive = tonumber(redis.call('ZSCORE', beat, ticket) or 0) > now() / 1000
  local fields = alive and redis.call('HGET', waiters, ticket)
  local w = fields and split(fields) or {}
  if #w < 9 then return nil end                      -- of another kind: its lock was evicted
  return shape({channel = w[1], alongside = w[8]}, w[2], w[3], w[4], w[5], w[6], w[7], w[9])
end

-- The terms of a ticket that holds, or nothing.
local function holding(ticket)
  local expires = ticket ~= '' and redis.call('ZSCORE', holders, ticket)
  local fields = expires and tonumber(expires) > ms and redis.call('HGET', terms, ticket)
  return fields and holder_of(fields)
end

local function count(entry, by)
  s.count, s.permits = s.count + by, s.permits + by * entry.permits
  s.alone, s.upgradeable = s.alone + by * entry.alone, s.upgradeable + by * entry.upgradeable
end

-- The counters do not match the holders: one key of the name was evicted or deleted. A holder counts if it is in both keys.
local function recount()
  s.count, s.alone, s.upgradeable, s.permits, s.delay = 0, 0, 0, 0, 0
  s.orphans, s.kept = {}, {}
  for _, ticket in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
    local fields = redis.call('HGET', terms, ticket)
    if fields then
      local entry = holder_of(fields)
      count(entry, 1)
      s.delay = math.max(s.delay, entry.delay)
      s.kept[#s.kept + 1] = {ticket, fields}
    else
      s.orphans[#s.orphans + 1] = ticket
    end
  end
end

-- Collects the holders whose lease has ended. RELEASED is being released, so its lock delay does not apply.
local function note_expired(released)
  local found = redis.call('ZRANGEBYSCORE', holders, '-inf', ms, 'WITHSCORES', 'LIMIT', 0, MOST)
  for i = 1, #found, 2 do
    local fields = redis.call('HGET', terms, found[i])
    if fields then
      local entry = holder_of(fields)
      count(entry, -1)
      if found[i] ~= released and entry.delay > 0 then
        s.blocked_until = math.max(s.blocked_until, found[i + 1] + entry.delay)
      end
    end
    s.expired[#s.expired + 1] = found[i]
  end
  s.complete = #found < 2 * MOST
end

local function load(wanted, released)
  use, limit = wanted, tonumber(string.match(wanted, '^semaphore of (%d+)$'))
  local f = redis.call('HMGET', lock, 'k', 'f', 'c', 'w', 'u', 'p', 'b', 'x', 'n', 't', 'd', 'g', 'a')
  s.kind, s.fence, s.refused, s.expired, s.complete = f[1], f[2], f[12], {}, true
  ahead = f[13] or 0
  s.count, s.alone, s.upgradeable = tonumber(f[3] or 0), tonumber(f[4] or 0), tonumber(f[5] or 0)
  s.permits, s.blocked_until, s.delay = tonumber(f[6] or 0), tonumber(f[7] or 0), tonumber(f[8] or 0)
  redis.call('ZCARD', queue)                         -- an error if a key has another type, before the first write
  redis.call('ZCARD', beat)
  redis.call('HLEN', waiters)
  local held, known = redis.call('ZCARD', holders), redis.call('HLEN', terms)
  s.last = tonumber(f[9] or redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0)
  local other_layout = s.kind and string.sub(s.kind, 1, 7) == 'layout '  -- see LAYOUT in commands.py
  if s.kind == 'mutex' or other_layout then          -- a mutex used the name after the last shared holder
    local left = blocked(f[10])
    s.mutex = f[10] and (other_layout and left > 0 or f[10] ~= '' and left > tonumber(f[11] or 0))
    s.count, s.alone, s.upgradeable, s.permits, s.delay = 0, 0, 0, 0, 0
    s.blocked_until, s.void = left > 0 and ms + left or 0, held + known > 0
    return
  end
  if s.count ~= held or held ~= known then recount() end
  if held > 0 then note_expired(released) end
end

local function last_of(zset)
  return tonumber(redis.call('ZRANGE', zset, -1, -1, 'WITHSCORES')[2] or 0)
end

-- Returns whether the name is in use as something else.
local function used_otherwise()
  if not s.kind or s.kind == use then return false end
  return s.mutex or s.count > 0 or last_of(beat) > ms
end

-- Removes what load found. A removal is allowed when memory is full, and so is what follows it.
local function clear()
  redis.call('ZREM', holders, '')
  if s.void then
    redis.call('PEXPIRE', holders, 0)
    redis.call('PEXPIRE', terms, 0)
  end
  if s.kept then
    for _, ticket in ipairs(s.orphans) do redis.call('ZREM', holders, ticket) end
    redis.call('PEXPIRE', terms, 0)
    for _, pair in ipairs(s.kept) do redis.call('HSET', terms, pair[1], pair[2]) end
    redis.call('PEXPIRE', terms, text(math.max(0, last_of(holders) - ms) + s.delay + KEEP))
  end
  for _, ticket in ipairs(s.expired) do
    redis.call('ZREM', holders, ticket)
    redis.call('HDEL', terms, ticket)
  end
  s.void, s.orphans, s.kept, s.expired = nil, nil, nil, {}
end

-- Precedes the first write of a call that adds something: refused when memory is full, and then nothing has changed.
local function begin()
  if s.begun then return end
  redis.call('HSET', lock, 'k', use)
  if s.kind == 'mutex' then redis.call('HDEL', lock, 'l', 'd', 'o', 'm') end
  s.kind, s.begun = use, true
  clear()
end

-- Writes the new state of the name; an unused name keeps its token for KEEP at least.
local function save()
  if s.count == 0 then s.delay = 0 end
  local taken = math.max(s.blocked_until, last_of(holders) + s.delay, last_of(beat))
  if taken <= ms then
    if s.fence then redis.call('HSET', lock, 'f', s.fence) end
    redis.call('HDEL', lock, 't', 'c', 'w', 'u', 'p', 'b', 'x', 'n')
    keep(lock, 0, s.fence, ahead)
    return
  end
  redis.call('HSET', lock, 'k', s.kind or use, 'f', s.fence or 0, 't', '', 'c', s.count, 'w', s.alone, 'u', s.upgradeable,
    'p', s.permits, 'b', text(s.blocked_until), 'x', text(s.delay), 'n', text(s.last))
  keep(lock, math.ceil(taken - ms), s.fence, ahead)
end

-- The two keys outlive every lease in them with its lock delay, so that the delay can be read from them.
local function keep_holders(lease)
  for _, key in ipairs({holders, terms}) do
    if redis.call('PTTL', key) < lease + s.delay + KEEP / 2 then
      redis.call('PEXPIRE', key, text(lease + s.delay + KEEP))
    end
  end
end

local function extend(ticket, lease)
  redis.call('ZADD', holders, 'XX', text(math.ceil(now() / 1000 + lease)), ticket)
  keep_holders(lease)
end

local function grant(ticket, entry, token)
  redis.call('ZADD', holders, text(math.ceil(now() / 1000 + entry.lease)), ticket)
  redis.call('HSET', terms, ticket, table.concat({text(token), text(entry.lease), text(entry.delay), entry.owner,
    entry.alone, entry.upgradeable, text(entry.permits), entry.meta}, SEP))
  count(entry, 1)
  s.fence, s.delay = text(token), math.max(s.delay, entry.delay)
  keep_holders(entry.lease)
end

-- Returns whether an entry may hold alongside all holders but ALONGSIDE, its own ticket. As _rules.conflicts.
local function fits(entry, alongside)
  local mine = alongside or {alone = 0, upgradeable = 0, permits = 0}
  if limit then return s.permits - mine.permits + entry.permits <= limit end
  if entry.alone == 1 then return s.count - (alongside and 1 or 0) == 0 end
  return s.alone - mine.alone == 0 and not (entry.upgradeable == 1 and s.upgradeable - mine.upgradeable > 0)
end

-- Grants the next waiters, as far as they fit together, and notifies each one's client; returns the token of CALLER if it is
-- among them: the reply notifies it. As _rules.successors. A waiter without a subscriber keeps its entry for COME_BACK.
local function grant_next(caller)
  local mine, skipped, upgrade_waits = nil, 0, false
  if s.blocked_until > ms or not s.complete then return nil end
  for _ = 1, MOST do
    local head = redis.call('ZRANGE', queue, skipped, skipped, 'WITHSCORES')
    if not head[1] or skipped >= PASSED then break end
    local ticket, order, entry = head[1], tonumber(head[2]), waiter(head[1])
    local alongside = entry and holding(entry.alongside)
    if not entry then
      unqueue(ticket)
    elseif order < 0 and not alongside then          -- its own holding ticket is gone: to its order by arrival
      redis.call('ZADD', queue, 'XX', text(order + FIRST), ticket)
    elseif order >= 0 and upgrade_waits then         -- an upgrade waits until the readers release: no more may enter
      break
    elseif fits(entry, alongside) then
      local token = next_token(s.fence)
      if s.count == 0 then                           -- an error, before any message, if their slot migrates: there
        redis.call('ZCARD', holders)                 -- a key that does not exist cannot be written
        redis.call('HLEN', terms)
      end
      -- Without a message: an empty channel is not open yet. Its client is about to retry, and finds that it holds.
      local quiet = ticket == caller or entry.channel == ''
      local publish = not quiet and publisher(entry.channel)
      if quiet or publish then
        if publish then notify(publish, entry.channel, ticket, token) end
        unqueue(ticket)
        grant(ticket, entry, token)
        if ticket == caller then mine = token end
      else
        redis.call('PUBLISH', entry.channel, ticket)
        redis.call('ZADD', beat, 'LT', text(now() / 1000 + COME_BACK), ticket)
        skipped = skipped + 1
      end
    elseif order < 0 or entry.upgradeable == 1 then  -- upgradeable: it may wait for its like only, so others may pass
      upgrade_waits = upgrade_waits or order < 0
      skipped = skipped + 1
    else
      break
    end
  end
  return mine
end
