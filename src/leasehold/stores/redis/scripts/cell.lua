-- Reads or changes a cell, if its version and its fence allow the change.
-- KEYS  1 cell   hash: v value, n version, f highest fence
-- ARGV  1 write 0/1  2 value  3 version that it must have, or ''  4 fence, or ''  5 time to live ms
-- Reply {value or false, version, fence, changed 0/1}
local cell = KEYS[1]
local state = redis.call('HMGET', cell, 'v', 'n', 'f')
local version, fence = state[2] or '0', state[3] or '0'

-- Compares texts of digits without leading zeros: numbers of scripts are exact to 53 bits only.
local function below(fence, highest)
  return #fence < #highest or (#fence == #highest and fence < highest)
end

local stale = ARGV[4] ~= '' and below(ARGV[4], fence)
local moved = ARGV[3] ~= '' and ARGV[3] ~= version
if ARGV[1] == '0' or stale or moved then
  -- A server that has become a replica would answer a read, with an old value, for as long as the connection lasts. It
  -- refuses a write, also this one of nothing. Other refusals, as of a disk that is full, do not concern a read.
  local done = redis.pcall('HDEL', cell, '')
  if type(done) == 'table' and done.err and string.find(done.err, 'READONLY', 1, true) then return done end
  return {state[1], version, fence, 0}
end
version = string.format('%.0f', version + 1)
if ARGV[4] ~= '' then fence = ARGV[4] end
redis.call('HSET', cell, 'v', ARGV[2], 'n', version, 'f', fence)
redis.call('PEXPIRE', cell, ARGV[5])
return {ARGV[2], version, fence, 1}
