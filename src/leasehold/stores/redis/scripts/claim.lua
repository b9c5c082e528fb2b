-- Take the name, or join its queue. Put after claim_free.lua, which has looked at the name: it is not free, or somebody waits.
-- Reply as there, and
--       {0, now, ms, owner}           waits; nothing changes for so many ms unless someone leaves
--       {2, kind}                     in use as another kind
local lease, join, fair = tonumber(ARGV[2]), ARGV[4] == '1', ARGV[5] == '1'
local holders_delay = tonumber(state[3] or 0)
local longest = tonumber(state[6] or left) + holders_delay

if left > longest then                               -- the clock was set back: no lease lasts longer for that than once more
  redis.call('PEXPIRE', lock, longest + KEEP)
  left = longest
end

if holder == ticket and left > holders_delay then    -- a repeated claim: the same answer, and a full lease again
  redis.call('PEXPIRE', lock, lease + holders_delay + KEEP)
  return {1, tonumber(fence), now()}
end

if state[4] and state[4] ~= 'mutex' and left > 0 then
  return {2, state[4]}
end

local function waits(ms, owner)
  return {0, now(), ms, owner}
end

-- Types are looked at before the first write: those of queue and beat by reading, that of waiters by that write itself.
local function enqueue()
  local all = redis.call('EXISTS', queue, beat, waiters) == 3
  local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')[2] or 0
  local placed = waiting(ticket)                     -- a place that was given up is not had back
  -- Again at each claim: the channel may be open by now.
  redis.call('HSET', waiters, ticket, table.concat({ARGV[6], ARGV[2], ARGV[3], ARGV[7], ARGV[8]}, SEP))
  if holder == ticket then redis.call('HSET', lock, 't', '', 'd', 0, 'o', '') end  -- never holder and waiter at once
  if not placed then redis.call('ZADD', queue, last + 1, ticket) end
  redis.call('ZADD', beat, later(lease), ticket)
  -- All three are given their time to live at once, so if none is new, one speaks for all.
  if not all or redis.call('PTTL', queue) < lease + KEEP / 2 then keep_waiters(lease) end
end

if left > 0 then
  if join then enqueue() end
  return waits(left, left > holders_delay and state[5])  -- during a delay nobody holds it
end

if fair then                                         -- whoever is first enters, and that may be me
  if join then enqueue() end
  local winner, token, owner, held = hand_over(fence, ticket)
  if winner == ticket then return {1, token, now()} end
  if winner then return waits(held, owner) end
end

crowded()
local token = next_token(fence)
local failed = hold(ticket, ARGV[2], ARGV[3], ARGV[7], ARGV[8], token)
if failed then return failed end
unqueue(ticket)
return {1, token, now()}
