-- RLock and RFencedLock of Redisson on a cluster. A release publishes in the shard of the lock's slot, as Redisson does
-- from Redis 7.0 on. Our waiters do not hear that: the first is woken by its own channel, and looks again and again.
free = function()
  redis.call('DEL', lock)
  if type(redis.pcall('SPUBLISH', topic, '0')) == 'table' then redis.call('PUBLISH', topic, '0') end  -- before 7.0
end

wake_next = function() end  -- no fair locks
local topic = nil
