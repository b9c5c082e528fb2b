-- Acquires the name, or joins its queue. Follows claim_free.lua, whose arguments it has: the name is held, or has waiters.
-- Reply as claim_free.lua, and
--       {0, now, ms, owner}           must wait; nothing changes for so many ms unless a ticket is released
--       {2, kind}                     the name is in use as another kind
local lease, join, fair = tonumber(ARGV[2]), ARGV[4] == '1', ARGV[5] == '1'
local other = state[4] and state[4] ~= 'mutex' and left > 0
if other then
  -- In use by a holder, whose lease ends before the lock delay, by a waiter, or in another layout. Else only a delay is left.
  local shared, last = redis.call('HMGET', lock, 'c', 'x'), redis.call('ZRANGE', beat, -1, -1, 'WITHSCORES')[2]
  local held = not shared[1] or shared[1] ~= '0' and left > tonumber(shared[2] or 0)
  if held or tonumber(last or 0) > now() / 1000 or string.find(state[4], '^layout ') then return {2, state[4]} end
  state[3], state[5], state[6] = false, false, false
end
local holders_delay = tonumber(state[3] or 0)
local longest = tonumber(state[6] or left) + holders_delay

if left > longest then                               -- the clock was set back: a lease lasts at most its length from now
  ahead = keep(lock, longest, fence, ahead)
  left = longest
end

if holder == ticket and left > holders_delay then    -- a repeated claim: the same reply, and a full lease
  keep(lock, lease + holders_delay, fence, ahead)
  return {1, tonumber(fence), now()}
end

local function must_wait(ms, owner)
  return {0, now(), ms, owner}
end

-- Types are checked before the first write: those of queue and beat by reading, that of waiters by that write itself.
local function enqueue()
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2]
  local others = redis.call('EXISTS', beat, waiters)  -- how many of the other two keys there are
  -- An entry that has expired is lost: the ticket goes to the end. Without a key there is no entry, and no type to check.
  local queued = others > 0 and waiting(ticket)
  -- Written at each claim: the channel may be open by now.
  redis.call('HSET', waiters, ticket, table.concat({ARGV[6], ARGV[2], ARGV[3], ARGV[7], ARGV[8]}, SEP))
  if holder == ticket then                            -- never holder and waiter at once
    -- What is left is a lock delay: as the lease of nobody it, too, lasts at most its length if the clock is set back.
    redis.call('HSET', lock, 't', '', 'd', 0, 'o', '', 'l', holders_delay)
  end
  if other then                                       -- from now on it is the waiter's use that counts
    redis.call('HSET', lock, 'k', 'mutex', 'd', 0, 'l', left)
    redis.call('HDEL', lock, 'o')
  end
  if not queued then redis.call('ZADD', queue, (last or 0) + 1, ticket) end
  redis.call('ZADD', beat, later(lease), ticket)
  if not last and others == 0 then                    -- all three are new, as when it is the first to wait
    for _, key in ipairs({queue, beat, waiters}) do redis.call('PEXPIRE', key, lease + KEEP) end
  -- All three get their time to live together, so if none is new, the first one shows it for all.
  elseif not last or others < 2 or redis.call('PTTL', queue) < lease + KEEP / 2 then
    keep_waiters(lease)
  end
end

if left > 0 then
  if join then enqueue() end
  return must_wait(left, left > holders_delay and state[5])  -- during a lock delay it has no holder
end

if fair then                                         -- the first waiter acquires, possibly this one
  if join then enqueue() end
  local winner, token, owner, held = hand_over(fence, ticket)
  if winner == ticket then return {1, token, now()} end
  if winner then return must_wait(held, owner) end
end

crowded()
local token = next_token(fence)
local failed = hold(ticket, ARGV[2], ARGV[3], ARGV[7], ARGV[8], token)
if failed then return failed end
unqueue(ticket)
return {1, token, now()}
