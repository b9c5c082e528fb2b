-- Removes a ticket, a holder or a waiter, and grants the next waiters.
-- ARGV  1 ticket  2 use  3 mode, as the second of release_free.lua
-- Reply 1 if the ticket was a holder or a waiter, else 0
local ticket, forced = ARGV[1], ARGV[3] == '1'

load(ARGV[2], ticket)
if s.kind and s.kind ~= use then
  if ARGV[3] == '2' then refuse_later(ticket, lock) end
  return 0
end

local expires, fields = redis.call('ZSCORE', holders, ticket), redis.call('HGET', terms, ticket)
clear()                                              -- first a removal: then the rest is allowed when memory is full
local found = unqueue(ticket)
if expires then
  found = 1
  local mine = fields and holder_of(fields)
  if mine and tonumber(expires) > ms then            -- else it was removed with the expired ones
    redis.call('ZREM', holders, ticket)
    redis.call('HDEL', terms, ticket)
    count(mine, -1)
  end
  if mine and forced then                            -- the previous holder may still be at work
    s.fence = text(next_token(s.fence))
    s.blocked_until = math.max(s.blocked_until, mine.delay > 0 and math.ceil(now() / 1000) + mine.delay or 0)
  end
end
grant_next()
save()
if ARGV[3] == '2' then refuse_later(ticket, lock) end
return found
