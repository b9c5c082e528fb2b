-- Keep the places of many waiters of one name alive; none is put back that is not there. If the name has become free
-- unseen (its holder crashed and nobody's timer rang), the first waiter gets it.
-- ARGV  for each: ticket, lease ms
-- Reply {now, for each: 1 holds by now, 2 waits, 0 gone}
local replies = {text(now())}
local state = redis.call('HMGET', lock, 't', 'f', 'd')
local holder, delay = state[1], tonumber(state[3] or 0)
crowded()                                            -- all types are looked at before the first write
-- Full memory forbids only the first write of a script. This one is never forbidden, and what follows adds nothing new.
redis.call('ZREM', queue, '')
local longest = 0
for i = 1, #ARGV, 2 do
  local ticket, lease = ARGV[i], tonumber(ARGV[i + 1])
  local reply = 0
  if holder == ticket then                           -- it holds, and has not heard so: renewed, as any holder
    if blocked(holder) > delay then
      redis.call('PEXPIRE', lock, text(lease + delay + KEEP))
      reply = 1
    end
  elseif waiting(ticket) then
    redis.call('ZADD', beat, 'XX', text(now() / 1000 + lease), ticket)
    longest = math.max(longest, lease)
    reply = 2
  end
  replies[#replies + 1] = reply
end
if longest > 0 then keep_waiters(longest) end
if blocked(holder) <= 0 then hand_over(state[2]) end
return replies
