-- Tries commands of the other scripts, in a form that changes nothing. A server checks the right before the arguments.
-- KEYS  as in common.lua, and those that the other scripts name themselves
-- ARGV  1 channel of ours on which a release publishes  2 one beside that of the other library; '' if there is none
--       3... commands, in order
-- Reply the rights that the user lacks, as access rules; '&1' and '&2' for the channels
local none = side .. ':rights'  -- no such key
local forms = {
  DECRBY = {none, 'no number'}, DEL = {none}, EXISTS = {none}, GET = {none}, HDEL = {none, ''}, HEXISTS = {none, ''},
  HGET = {none, ''}, HGETALL = {none}, HKEYS = {none}, HMGET = {none, ''}, HSET = {none, '', '', 'no value'},
  INCRBY = {none, 'no number'}, LINDEX = {none, '0'}, LLEN = {none}, LPUSH = {none, ''},
  LRANGE = {none, '0', '0'}, LREM = {none, '0', ''}, PEXPIRE = {none, '1'}, PTTL = {none}, RPUSH = {none, ''},
  SET = {none, '', 'NX', 'XX'}, TIME = {}, TYPE = {none}, ZADD = {none, 'XX', '0', ''}, ZCARD = {none},
  ZCOUNT = {none, '0', '0'}, ZRANGE = {none, '0', '0'}, ZREM = {none, ''}, ZREMRANGEBYSCORE = {none, '0', '0'},
  ZSCORE = {none, ''},
}
local missing = {}
local function try(command, ...)
  local reply = redis.pcall(command, ...)
  local err = type(reply) == 'table' and reply.err or ''
  if string.find(err, "user executing the script can't", 1, true) or string.find(err, 'ACL failure', 1, true)
    or string.find(err, 'NOPERM', 1, true) then
    missing[#missing + 1] = string.find(err, 'channel', 1, true) and '&' or '+' .. string.lower(command)
  end
  return missing[#missing]
end
local function publish(command, at)
  if ARGV[at] ~= '' and try(command, ARGV[at], '') == '&' then missing[#missing] = '&' .. at end
end
local shards = redis.REDIS_VERSION_NUM and string.find(table.concat(ARGV, ' ', 3) .. ' ', 'SPUBLISH ', 1, true)
for i = 3, #ARGV do
  local command = ARGV[i]
  if command == 'PUBLISH' then
    if not shards then  -- else the scripts publish there alone
      publish(command, 1)
      publish(command, 2)
    end
  elseif command == 'SPUBLISH' then
    publish(command, 2)
  elseif command ~= 'LPUSH' and command ~= 'RPUSH' then
    try(command, unpack(forms[command]))
  elseif not string.find(table.concat(missing, ' '), '+del', 1, true) then  -- these write: what could not be deleted stays
    try(command, unpack(forms[command]))
    redis.pcall('DEL', none)
  end
end
return missing
