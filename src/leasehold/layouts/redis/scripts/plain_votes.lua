-- The common part of the scripts on one node of a Redlock whose votes other programs share: the plain key decides who has
-- the vote. Our own vote also keeps token, owner and waiters. Each script calls the one on our own vote, as `step`.
--
-- KEYS  1 to 5 as there (redlock_common.lua), 6 the plain key
local ENDLESS = 1000  -- ms for which a key without an end counts as held, until the next look

local vote, plain = KEYS[1], KEYS[6]

local function left_of(key)  -- ms, at least 1: a key that is there is held
  local left = redis.call('PTTL', key)
  return left < 0 and ENDLESS or math.max(left, 1)
end

local function of_others(value) return 'another program:0:' .. string.sub(value, 1, 8) end

-- The value of the plain key; and an error if it is of another type.
local function read()
  local value = redis.pcall('GET', plain)
  if type(value) ~= 'table' then return value end
  if not string.find(value.err, 'WRONGTYPE', 1, true) then error(value.err) end
  return nil, redis.error_reply("WRONGKEY the key '" .. plain .. "' is no plain lock")
end

-- Makes our vote agree with the plain key. That of another program is one with the token 0. Returns an error if it cannot.
local function agree()
  local value, wrong = read()
  if wrong then return wrong end
  local ours = redis.call('HMGET', vote, 't', 'f')
  if not value then
    if ours[1] then redis.call('DEL', vote) end  -- another program has deleted the key
  elseif value ~= ours[1] or ours[2] == '0' then
    local left = left_of(plain)
    redis.call('HSET', vote, 't', value, 'f', '0', 'l', left, 'd', '0', 'o', of_others(value), 'm', '')
    redis.call('PEXPIRE', vote, left)
  end
end
