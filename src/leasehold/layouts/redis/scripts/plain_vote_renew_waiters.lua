-- As redlock_renew_waiters.lua.
redis.call('ZREM', KEYS[2], '')  -- first a removal, which is never refused: then the rest is allowed when memory is full
local wrong = agree()
if wrong then return wrong end
return step(KEYS, ARGV)
