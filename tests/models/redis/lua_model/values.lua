-- A model of the commands of Redis that scripts and stores use: the same replies, by a clock of the caller's.
--
-- It stands in the same Lua state as the scripts that it serves, since what they do most is call it. A key has a type, a value
-- and perhaps an expiry in whole milliseconds. Hashes keep the order in which fields came, as small ones do in Redis; sorted sets
-- are kept in order. A command or an option that is not known is an error of the model's own, never a guess.
--
-- Values: string   value
--         hash     value: field -> bytes   order: fields
--         zset     value: member -> score  order: members
-- Replies are those of a script: false for nil, {ok = text} for a status, {err = text} for an error.
local deliver = ...          -- deliver(channel, message) -> how many listen
collectgarbage("setpause", 400)

local find, format, lower, upper, sub = string.find, string.format, string.lower, string.upper, string.sub
local floor, huge = math.floor, math.huge
local insert, remove, sort = table.insert, table.remove, table.sort

local EXACT = 2 ^ 53         -- whole numbers beyond it are not exact here
local NOT_AN_INTEGER = {err = 'ERR value is not an integer or out of range'}
local NOT_A_FLOAT = {err = 'ERR value is not a valid float'}
local NOT_A_BOUND = {err = 'ERR min or max is not a float'}
local WRONG_TYPE = {err = 'WRONGTYPE Operation against a key holding the wrong kind of value'}
local SYNTAX = {err = 'ERR syntax error'}
local WRONG_PAIRS = {err = "ERR wrong number of arguments for 'hset' command"}
local BAD_EXPIRY = {err = "ERR invalid expire time in 'pexpire' command"}
local OK = {ok = 'OK'}

local entries, now_us, now_ms   -- of the server at work, and its clock
local unknown                   -- what the model was asked that it does not know

local function refuse(what)
  unknown = unknown or what
  error('the model of Redis has no ' .. what, 0)
end

local function whole(word)
  local digits = find(word, '^%-?[1-9]%d*$') and word or word == '0' and word
  if not digits then error(NOT_AN_INTEGER, 0) end
  local size = #digits - (sub(digits, 1, 1) == '-' and 1 or 0)
  if size > 15 then
    local most = sub(digits, 1, 1) == '-' and '9223372036854775808' or '9223372036854775807'
    if size > 19 or size == 19 and sub(digits, -19) > most then error(NOT_AN_INTEGER, 0) end
  end
  return tonumber(digits)
end

local function real(word)
  if find(word, '^%d+$') then return tonumber(word) end
  local plain = lower(word)
  local sign = sub(plain, 1, 1)
  if sign == '+' or sign == '-' then plain = sub(plain, 2) end
  local number
  if plain == 'inf' or plain == 'infinity' then
    number = huge
  elseif find(plain, '^%d+%.?%d*$') or find(plain, '^%.%d+$') or find(plain, '^%d+%.?%d*e[+-]?%d+$')
      or find(plain, '^%.%d+e[+-]?%d+$') then
    number = tonumber(plain)
  else
    error(NOT_A_FLOAT, 0)
  end
  return sign == '-' and -number or number
end

-- A bound of scores, and whether it is excluded itself.
local function bound(word)
  local excluded = sub(word, 1, 1) == '('
  local fine, number = pcall(real, excluded and sub(word, 2) or word)
  if not fine then error(NOT_A_BOUND, 0) end
  return number, excluded
end

local function written(score)
  return format('%.17g', score)
end
