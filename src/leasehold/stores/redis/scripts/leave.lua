-- Take a ticket out, holding or waiting, and hand the name to the next.
-- ARGV  1 ticket  2 break 0/1
-- Reply 1 if it was there, else 0
local ticket, broken = ARGV[1], ARGV[2] == '1'

local state = redis.call('HMGET', lock, 't', 'f', 'd')
local holder, fence, delay = state[1], state[2], tonumber(state[3] or 0)

if holder ~= ticket then
  local was_there = crowded() and unqueue(ticket) or 0
  if blocked(holder) <= 0 then hand_over(fence) end
  return was_there
end

if broken then
  crowded()
  redis.call('HDEL', lock, 't', 'l', 'd', 'o', 'm')
  fence = text(next_token(fence))
  redis.call('HSET', lock, 'f', fence)
  if delay > 0 then                                  -- nobody's, and not free: the one who held may still be at work
    redis.call('HSET', lock, 't', '', 'd', 0)
    redis.call('PEXPIRE', lock, delay + KEEP)
    return 1
  end
end
if redis.call('EXISTS', queue) == 0 or not hand_over(fence) then let_go() end  -- nobody waits for most locks
return 1
