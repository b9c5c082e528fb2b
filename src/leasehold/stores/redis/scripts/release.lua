-- Removes a ticket, the holder or a waiter, and hands the name to the next waiter. Follows release_free.lua, whose arguments,
-- state and reply it has.
if holder ~= ticket then
  redis.call('ZREM', queue, '')                       -- a server that takes no writes must not say that it is not there
  local was_there = crowded() and unqueue(ticket) or 0
  if blocked(holder) <= 0 then hand_over(fence) end
  if ARGV[2] == '2' then refuse_later(ticket, lock) end
  return was_there
end

if forced then
  local delay = tonumber(state[3] or 0)
  crowded()
  redis.call('HDEL', lock, 't', 'l', 'd', 'o', 'm')
  fence = text(next_token(fence))
  redis.call('HSET', lock, 'f', fence)
  ahead = keep(lock, delay, fence, ahead)
  if delay > 0 then                                  -- no holder, but not free: the previous one may still be at work
    redis.call('HSET', lock, 't', '', 'd', 0, 'l', delay)
    return 1
  end
end
if not hand_over(fence, nil, first) then free_lock(state[4], fence) end
if ARGV[2] == '2' then refuse_later(ticket, lock) end
return 1
