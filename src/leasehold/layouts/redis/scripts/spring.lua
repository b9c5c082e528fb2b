-- RedisLockRegistry of Spring Integration: a string whose value is the holder's id, with a time to live. A release
-- publishes the key; the channel begins with the registry's name, so the script that frees has it as ARGV 3.

local function free()
  redis.call('DEL', lock)
  redis.call('PUBLISH', ARGV[3], lock)
end

local topic = true  -- its message wakes waiters of both libraries
