-- Renews the queue entries of many waiters of one name; an entry that is gone is not restored. If the name has become free
-- unnoticed (its holder crashed and no timer fired), the first waiter gets it.
-- ARGV  for each: ticket, lease ms
-- Reply {now, for each: 1 holds by now, 2 waits, 0 gone}
local replies = {text(now())}
local state = redis.call('HMGET', lock, 't', 'f', 'd', 'a')
local holder, delay = state[1], tonumber(state[3] or 0)
ahead = state[4] or 0
crowded()                                            -- checks all types before the first write
-- When memory is full only the first write of a script is refused. A removal never is, and what follows adds nothing new.
redis.call('ZREM', queue, '')
local longest = 0
for i = 1, #ARGV, 2 do
  local ticket, lease = ARGV[i], tonumber(ARGV[i + 1])
  local reply = 0
  if holder == ticket then                           -- it holds, and missed the message: renewed like any holder
    if blocked(holder) > delay then
      ahead = keep(lock, lease + delay, state[2], ahead)
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
