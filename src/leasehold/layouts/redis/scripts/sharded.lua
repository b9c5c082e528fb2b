-- Redisson on a cluster: its channels are those of the shard that has the lock's slot, as from Redis 7.0 on.
publish = function(channel, message)
  if redis.REDIS_VERSION_NUM then return redis.call('SPUBLISH', channel, message) end
  return redis.call('PUBLISH', channel, message)  -- before 7.0 there are no such channels
end
