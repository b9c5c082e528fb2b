-- Keep the places of many waiters of one name alive; none is put back that is not there. If the name has become free
-- unseen (its holder crashed and nobody's timer rang), the first waiter gets it.
-- ARGV  for each: ticket, lease ms
-- Reply {now, for each: 1 holds by now, 2 waits, 0 gone, 3 could not be kept}
local replies = {text(now())}
local state = redis.call('HMGET', lock, 't', 'f')
local holder = state[1]
local longest = 0
for i = 1, #ARGV, 2 do
  local ticket, lease = ARGV[i], tonumber(ARGV[i + 1])
  local expires = redis.call('ZSCORE', beat, ticket)
  local reply = 0
  if holder == ticket then
    reply = 1
  elseif expires and tonumber(expires) > now() / 1000 then
    local done = redis.pcall('ZADD', beat, 'XX', text(now() / 1000 + lease), ticket)
    reply = type(done) == 'table' and 3 or 2         -- a table is an error: out of memory
    longest = math.max(longest, lease)
  end
  replies[#replies + 1] = reply
end
if longest > 0 and redis.call('PTTL', queue) < longest + KEEP / 2 then
  for _, key in ipairs({queue, beat, waiters}) do
    redis.call('PEXPIRE', key, text(longest + KEEP))
  end
end
if blocked(holder) <= 0 then hand_over(state[2]) end
return replies
