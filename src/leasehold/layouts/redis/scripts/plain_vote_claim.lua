-- As redlock_claim.lua. A vote of ours is the plain key, too.
local wrong = agree()
if wrong then return wrong end
local reply = step(KEYS, ARGV)
if reply[1] == 1 then redis.call('SET', plain, ARGV[1], 'PX', ARGV[2]) end
return reply
