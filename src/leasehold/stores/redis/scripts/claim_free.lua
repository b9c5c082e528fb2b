-- Acquires the name if it is free and has no waiters, as is usual. The other cases are in claim.lua, which follows this
-- script and queue.lua.
-- ARGV  1 ticket  2 lease ms  3 lock delay ms  4 join the queue 0/1  5 fair 0/1  6 channel  7 owner  8 meta
-- Reply {1, token, now}               acquired
--       {0, now, ms}                  refused: the ticket was released, see refuse_later in queue.lua
local ticket = ARGV[1]

local state = redis.call('HMGET', lock, 't', 'f', 'd', 'k', 'o', 'l', 'g', 'a')
local holder, fence = state[1], state[2]
ahead = state[8] or 0
local left = blocked(holder)

if state[7] and string.find(state[7], ticket, 1, true) then return {0, now(), 1000} end

if left <= 0 and redis.call('EXISTS', queue) == 0 then
  local token = next_token(fence)
  return hold(ticket, ARGV[2], ARGV[3], ARGV[7], ARGV[8], token) or {1, token, now()}
end
