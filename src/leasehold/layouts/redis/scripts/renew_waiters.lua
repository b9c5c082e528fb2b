-- Sets the entries of waiters of one name to full length, and the lease of one that holds by now.
-- ARGV  for each: id, lease ms
-- Reply for each 0 gone, 1 held, 2 queued
redis.call('ZREM', queue, '')  -- first a removal, which is never refused: then the rest is allowed when memory is full
local replies = {}
for i = 1, #ARGV, 2 do
  local id, lease = ARGV[i], ARGV[i + 1]
  local record = redis.call('HGET', waiters, id)
  local reply = 0
  if holder(id) == id then
    renew_hold(id, lease)
    reply = 1
  elseif live(record) then
    redis.call('HSET', waiters, id, (string.gsub(record, '^%d+', whole(now() / 1000 + lease), 1)))
    set_place(id, lease)
    for _, key in ipairs({queue, waiters}) do
      if redis.call('PTTL', key) < tonumber(lease) then redis.call('PEXPIRE', key, lease) end
    end
    reply = 2
  else
    forget(id)
  end
  replies[#replies + 1] = reply
end
wake_next()  -- a release may have notified one that is dead, and the next sleeps to the end of the holder's lease
return replies
