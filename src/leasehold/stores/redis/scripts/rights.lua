-- Tries each command that the other scripts use, in a form that changes nothing. A server checks the right before it checks
-- the arguments. The keys belong to no name.
-- KEYS  as in common.lua  ARGV  1 channel  2 whether scripts use INFO 0/1
-- Reply the rights that the user lacks, as access rules; '&' for the channel
local lock, queue, beat, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local missing = {}
local function try(...)
  local reply = redis.pcall(...)
  local err = type(reply) == 'table' and reply.err
  if err and (string.find(err, "The user executing the script can't", 1, true) or string.find(err, 'ACL failure', 1, true)
      or string.find(err, 'NOPERM', 1, true)) then
    missing[#missing + 1] = string.find(err, 'channel', 1, true) and '&' or '+' .. string.lower((...))
  end
end
try('TIME')
try('EXISTS', queue)
try('HMGET', lock, 't')
try('HGET', waiters, '')
try('HLEN', waiters)
try('HSET', lock, 't', '', 'no value')     -- an odd number of arguments: refused, and nothing is written
try('HDEL', lock, 't')
try('PTTL', lock)
try('PEXPIRE', lock, '1')
try('ZADD', queue, 'XX', '0', '')
try('ZCARD', queue)
try('ZRANGE', queue, '0', '0')
try('ZRANGEBYSCORE', queue, '0', '0')
try('ZSCORE', queue, '')
try('ZREM', beat, '')
if ARGV[2] == '1' then try('INFO', 'server') end
try('PUBLISH', ARGV[1], '')
if string.find(ARGV[1], '}:shard:', 1, true) then try('SPUBLISH', ARGV[1], '') end
return missing
