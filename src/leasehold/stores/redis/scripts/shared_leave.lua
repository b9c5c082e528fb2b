-- Take a ticket out, holding or waiting, and let in those who are next.
-- ARGV  1 ticket  2 use  3 as leave_free.lua's second
-- Reply 1 if it was there, else 0
local ticket, broken = ARGV[1], ARGV[3] == '1'

load(ARGV[2], ticket)
if s.kind and s.kind ~= use then
  if ARGV[3] == '2' then refuse_later(ticket) end
  return 0
end

local expires, fields = redis.call('ZSCORE', holders, ticket), redis.call('HGET', terms, ticket)
clear()                                              -- a removal first: then the rest is done even if memory is full
local found = unqueue(ticket)
if expires then
  found = 1
  local mine = fields and holder_of(fields)
  if mine and tonumber(expires) > ms then            -- else it went with those whose lease has ended
    redis.call('ZREM', holders, ticket)
    redis.call('HDEL', terms, ticket)
    count(mine, -1)
  end
  if mine and broken then                            -- the one who held may still be at work
    s.fence = text(next_token(s.fence))
    s.blocked_until = math.max(s.blocked_until, mine.delay > 0 and math.ceil(now() / 1000) + mine.delay or 0)
  end
end
let_in()
save()
if ARGV[3] == '2' then refuse_later(ticket) end
return found
