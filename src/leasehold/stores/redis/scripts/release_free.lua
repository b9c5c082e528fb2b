-- Releases a ticket that holds a name without waiters, as is usual. The other cases are in release.lua, which follows this
-- script and queue.lua.
-- ARGV  1 ticket  2 mode: 0 release  1 force release  2 release, and refuse later claims of the ticket
-- Reply 1 if the ticket was the holder or a waiter, else 0
local ticket, forced = ARGV[1], ARGV[2] == '1'

local state = redis.call('HMGET', lock, 't', 'f', 'd', 'l', 'a')
local holder, fence = state[1], state[2]
ahead = state[5] or 0

local first                 -- holds the first in the queue, if that is known
if holder == ticket and ARGV[2] == '0' then
  first = redis.call('ZRANGE', queue, 0, 0)
  if not first[1] then
    free_lock(state[4], fence)
    return 1
  end
end
