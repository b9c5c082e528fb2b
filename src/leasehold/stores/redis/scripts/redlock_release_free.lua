-- Takes back the vote of a ticket that asked once, if there are no waiters here, as is usual. It comes first, so that
-- nothing else need be defined. The other cases are in redlock_release.lua, which follows with the same arguments.
if ARGV[2] == '0' and (ARGV[5] == '0' or ARGV[5] == '2') then
  local vote = redis.call('HMGET', KEYS[1], 't', 'f')
  if vote[1] == ARGV[1] and tonumber(vote[2] or 0) == tonumber(ARGV[3])
    and redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4]) == 0
    and tonumber(ARGV[3]) <= tonumber(redis.call('HMGET', KEYS[5], 'f')[1] or 0) then
    redis.call('HDEL', KEYS[1], 't', 'f', 'l', 'd', 'o', 'm')
    return 1
  end
end
