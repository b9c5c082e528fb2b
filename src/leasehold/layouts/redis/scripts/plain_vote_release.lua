-- As redlock_release.lua. With the vote the plain key ends.
redis.call('ZREM', KEYS[2], '')  -- first a removal, which is never refused: then the rest is allowed when memory is full
local wrong = agree()
if wrong then return wrong end
local found = step(KEYS, ARGV)
if redis.call('HGET', vote, 't') ~= ARGV[1] and redis.call('GET', plain) == ARGV[1] then redis.call('DEL', plain) end
return found
