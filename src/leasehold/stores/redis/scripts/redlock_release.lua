-- Takes back a ticket's vote and queue entry, or (keep_entry) the vote alone; and notifies the next waiter that the vote is free.
-- ARGV  1 ticket  2 force release 0/1  3 token: the highest that the ticket proposed, 0 if unknown  4 lease ms + delay ms
--       5 what the ticket does after it:
--           0  it may ask again
--           1  it stays in the queue, with 6 order  7 lease ms  8 channel  9 owner  10 meta
--           2  nothing, and it has asked with one token only
--           3  nothing, and it has asked with several tokens
-- Reply 1 if the ticket had the vote or waited, else 0
local ticket, broken, proposed, keep_entry = ARGV[1], ARGV[2] == '1', tonumber(ARGV[3]), ARGV[5] == '1'

local state = redis.call('HMGET', lock, 't', 'f', 'd')
local holder, token, delay = state[1], tonumber(state[2] or 0), tonumber(state[3] or 0)
local crowd = crowded()
top()
-- When memory is full only the first write of a script is refused. A removal never is.
redis.call('ZREM', queue, '')

-- This call is late: its round was given up, and the node has voted in a later round of the ticket, which may have won.
if holder == ticket and not broken and proposed > 0 and token > proposed then return 1 end

local found = 0
if holder == ticket then
  found = 1
  if broken then proposed = math.max(token, top()) + 1 end
  if broken and delay > 0 then                        -- no holder, but not free: the previous one may still be at work
    redis.call('HSET', lock, 't', '', 'o', '', 'm', '')
    redis.call('PEXPIRE', lock, text(delay))
  else
    redis.call('HDEL', lock, 't', 'f', 'l', 'd', 'o', 'm')
  end
end
raise(proposed, tonumber(ARGV[4]))
if keep_entry then
  enqueue(ticket, ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9], ARGV[10])
elseif crowd then
  if unqueue(ticket) == 1 then found = 1 end
end
-- A request of the ticket may still be on its way, unless it has the vote, and has asked only once.
if ARGV[5] == '3' or ARGV[5] == '2' and (holder ~= ticket or token < proposed) then refuse_later(ticket, top_key) end
if crowd and vote_left() <= 0 then notify_next(ticket) end
return found
