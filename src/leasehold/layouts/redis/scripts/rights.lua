-- Tries commands of the other scripts, in a form that changes nothing. A server checks the right before the arguments.
-- KEYS  as in common.lua, and those that the other scripts name themselves
-- ARGV  1 channel on which a release publishes  2 its message, which makes waiters claim again  3... commands
-- Reply the rights that the user lacks, as access rules; '&' for the channel
local none = side .. ':rights'  -- no such key
local forms = {
  DECRBY = {none, 'no number'}, DEL = {none}, EXISTS = {none}, GET = {none}, HDEL = {none, ''}, HEXISTS = {none, ''},
  HGET = {none, ''}, HGETALL = {none}, HKEYS = {none}, HMGET = {none, ''}, HSET = {none, '', '', 'no value'},
  INCRBY = {none, 'no number'}, LINDEX = {none, '0'}, LLEN = {none}, LPOP = {none}, LPUSH = {none, ''},
  LRANGE = {none, '0', '0'}, LREM = {none, '0', ''}, PEXPIRE = {none, '1'}, PTTL = {none},
  PUBLISH = {ARGV[1], ARGV[2]}, RPUSH = {none, ''}, SET = {none, '', 'NX', 'XX'}, SPUBLISH = {ARGV[1], ARGV[2]},
  TIME = {}, TYPE = {none}, ZADD = {none, 'XX', '0', ''}, ZCARD = {none}, ZCOUNT = {none, '0', '0'},
  ZRANGE = {none, '0', '0'}, ZREM = {none, ''}, ZREMRANGEBYSCORE = {none, '0', '0'}, ZSCORE = {none, ''},
}
local missing = {}
for i = 3, #ARGV do
  local reply = redis.pcall(ARGV[i], unpack(forms[ARGV[i]]))
  local err = type(reply) == 'table' and reply.err or ''
  if string.find(err, "user executing the script can't", 1, true) or string.find(err, 'ACL failure', 1, true)
    or string.find(err, 'NOPERM', 1, true) then
    missing[#missing + 1] = string.find(err, 'channel', 1, true) and '&' or '+' .. string.lower(ARGV[i])
  end
  if ARGV[i] == 'RPUSH' or ARGV[i] == 'LPUSH' then  -- these write
    redis.pcall('LPOP', none)
    redis.pcall('DEL', none)
  end
end
return missing
