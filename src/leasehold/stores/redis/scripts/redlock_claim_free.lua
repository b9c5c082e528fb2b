-- Votes for a ticket if this node has no vote and no waiters, as is usual. It comes first, so that nothing else need be
-- defined. The other cases are in redlock_claim.lua, which follows with the same arguments.
if ARGV[10] == '0' and not redis.call('HMGET', KEYS[1], 't')[1]
  and redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) == 0
  and tonumber(ARGV[5]) > tonumber(redis.call('HMGET', KEYS[5], 'f')[1] or 0) then
  redis.call('HSET', KEYS[5], 'f', ARGV[5])          -- first: no vote may exist without its token being remembered
  local t, ms = redis.call('TIME'), ARGV[2] + ARGV[3]
  ms = math.max(ms, math.ceil(ARGV[5] / 1000 - t[1] * 1000 - t[2] / 1000))  -- keep_top of redlock_common.lua
  redis.call('PEXPIRE', KEYS[5], ms + 3600000)       -- KEEP of keep.lua
  redis.call('HSET', KEYS[1], 't', ARGV[1], 'f', ARGV[5], 'l', ARGV[2], 'd', ARGV[3], 'o', ARGV[7], 'm', ARGV[8])
  redis.call('PEXPIRE', KEYS[1], ARGV[2] + ARGV[3])
  return {1, ARGV[5]}
end
