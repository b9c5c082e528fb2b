-- Renews the queue entries of waiters of one name; an entry that is gone is not restored.
-- ARGV  for each: ticket, lease ms
-- Reply for each 1 has the vote, 2 waits, 3 waits and the vote is free, 0 gone
local replies = {}
local holder = redis.call('HGET', lock, 't')
local free = vote_left() <= 0
crowded()                                            -- checks all types before the first write
-- When memory is full only the first write of a script is refused. A removal never is, and what follows adds nothing new.
redis.call('ZREM', queue, '')
local longest = 0
for i = 1, #ARGV, 2 do
  local ticket, lease = ARGV[i], tonumber(ARGV[i + 1])
  local reply = 0
  if holder == ticket and not free then
    reply = 1
  elseif waiting(ticket) then
    redis.call('ZADD', beat, 'XX', text(now() / 1000 + lease), ticket)
    longest = math.max(longest, lease)
    reply = free and 3 or 2
  end
  replies[#replies + 1] = reply
end
if longest > 0 then keep_waiters(longest) end
return replies
