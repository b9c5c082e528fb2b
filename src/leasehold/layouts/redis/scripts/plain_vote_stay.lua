-- As redlock_stay.lua.
redis.call('ZREM', KEYS[2], '')  -- first a removal, which is never refused: then the rest is allowed when memory is full
agree()
return step(KEYS, ARGV)
