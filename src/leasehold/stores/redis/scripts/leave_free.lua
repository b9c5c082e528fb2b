-- Take out a ticket that holds a name for which nobody waits, as for most. The other cases are in leave.lua, put after this
-- and queue.lua.
-- ARGV  1 ticket  2 0 release  1 break  2 release, and refuse later claims of the ticket
-- Reply 1 if it was there, else 0
local ticket, broken = ARGV[1], ARGV[2] == '1'

local state = redis.call('HMGET', lock, 't', 'f', 'd')
local holder, fence = state[1], state[2]

if holder == ticket and ARGV[2] == '0' and redis.call('EXISTS', queue) == 0 then
  let_go()
  return 1
end
