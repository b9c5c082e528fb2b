-- Renews the queue entries of many waiters of one name; an entry that is gone is not restored. Waiters that may hold by now,
-- since a lease has ended unnoticed, are granted.
-- ARGV  1 use, then for each: ticket, lease ms
-- Reply {now, for each: 1 holds by now, 2 waits, 0 gone}
local replies = {text(now())}
load(ARGV[1])
local ours = not s.kind or s.kind == use
if ours then clear() end                             -- first a removal: then the rest is allowed when memory is full
local longest = 0
for i = 2, #ARGV, 2 do
  local ticket, lease, reply = ARGV[i], tonumber(ARGV[i + 1]), 0
  if ours and holding(ticket) then                   -- it holds, and missed the message: renewed like any holder
    extend(ticket, lease)
    reply = 1
  elseif ours and waiting(ticket) then
    redis.call('ZADD', beat, 'XX', text(now() / 1000 + lease), ticket)
    longest = math.max(longest, lease)
    reply = 2
  end
  replies[#replies + 1] = reply
end
if ours then
  if longest > 0 then keep_waiters(longest) end
  grant_next()
  save()
end
return replies
