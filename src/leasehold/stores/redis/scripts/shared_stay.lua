-- Keep the places of many waiters of one name alive; none is put back that is not there. Those who may hold by now, since a
-- lease has ended unseen, are let in.
-- ARGV  1 use, then for each: ticket, lease ms
-- Reply {now, for each: 1 holds by now, 2 waits, 0 gone}
local replies = {text(now())}
load(ARGV[1])
local ours = not s.kind or s.kind == use
if ours then clear() end                             -- a removal first: then the rest is done even if memory is full
local longest = 0
for i = 2, #ARGV, 2 do
  local ticket, lease, reply = ARGV[i], tonumber(ARGV[i + 1]), 0
  if ours and holding(ticket) then                   -- it holds, and has not heard so: renewed, as any holder
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
  let_in()
  save()
end
return replies
