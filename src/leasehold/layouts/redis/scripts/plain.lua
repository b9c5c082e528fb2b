-- The plain key: a string whose value is the holder's id, with a time to live. redis-py's Lock, redlock-py, redsync,
-- node-redlock and others use it.

local function free()
  redis.call('DEL', lock)
end

local topic = nil  -- a release publishes nothing
