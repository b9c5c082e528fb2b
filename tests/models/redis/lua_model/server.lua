-- Commands by name, the environment of scripts, and the replies to the caller.

local function clock()
  return {format('%d', floor(now_us / 1000000)), format('%d', now_us % 1000000)}
end

local function publish(channel, message)
  return deliver(channel, message)
end

-- On a channel of a shard: a number, or why not.
local function spublish(channel, message)
  local subscribers = deliver(channel, message, true)
  if type(subscribers) == 'string' then error({err = subscribers}, 0) end
  return subscribers
end

-- How many words follow, at least if it is negative, and what carries it out.
local COMMANDS = {
  EXISTS = {-1, exists}, DEL = {-1, delete}, UNLINK = {-1, delete}, TYPE = {1, kind_of}, PEXPIRE = {2, pexpire},
  PTTL = {1, pttl}, GET = {1, get}, SET = {2, set}, HSET = {-3, hset}, HGET = {2, hget}, HMGET = {-2, hmget},
  HGETALL = {1, hgetall}, HLEN = {1, hlen}, HDEL = {-2, hdel}, ZADD = {-3, zadd}, ZCARD = {1, zcard},
  ZSCORE = {2, zscore}, ZREM = {-2, zrem}, ZRANGE = {-3, zrange}, ZRANGEBYSCORE = {-3, zrangebyscore},
  TIME = {0, clock}, PUBLISH = {2, publish}, SPUBLISH = {2, spublish},
}

-- Carry out a command; what goes wrong is an error that is a table.
local function command(name, ...)
  local known = COMMANDS[name] or COMMANDS[upper(name)]
  if not known then refuse('command ' .. name) end
  local least, count = known[1], select('#', ...)
  if least >= 0 and count ~= least or count < -least then
    error({err = "ERR wrong number of arguments for '" .. lower(name) .. "' command"}, 0)
  end
  return known[2](...)
end

-- --- scripts --------------------------------------------------------------------------------------------------------

local NO_WORDS = {err = 'ERR Lua redis lib command arguments must be strings or integers'}

-- Carry out a command of a script; numbers become words as the server writes them.
local redis = {}
function redis.call(...)
  if select('#', ...) == 2 then              -- most are a name and a key: spare them the table
    local name, key = ...
    if type(name) == 'string' and type(key) == 'string' then return command(name, key) end
  end
  local words, changed = {...}, false
  for at = 1, select('#', ...) do
    local kind = type(words[at])
    if kind == 'number' then
      words[at], changed = format('%.17g', words[at]), true
    elseif kind ~= 'string' then
      error(NO_WORDS, 0)
    end
  end
  if changed then return command(unpack(words)) end
  return command(...)
end
function redis.pcall(...)
  local fine, reply = pcall(redis.call, ...)
  if fine or type(reply) == 'table' then return reply end
  error(reply, 0)
end
function redis.error_reply(text) return {err = text} end
function redis.status_reply(text) return {ok = text} end
function redis.sha1hex() refuse('sha1hex') end

-- A script may neither make a global variable nor read one that is not there.
local env = setmetatable({
  redis = redis, string = string, table = table, math = math, tonumber = tonumber, tostring = tostring, type = type,
  ipairs = ipairs, pairs = pairs, next = next, pcall = pcall, error = error, select = select, unpack = unpack,
  assert = assert,
}, {
  __newindex = function(_, name) error('Attempt to modify a readonly table script: ' .. tostring(name), 2) end,
  __index = function(_, name)
    error("Script attempted to access nonexistent global variable '" .. tostring(name) .. "'", 2)
  end,
})

-- --- what the caller is told: a kind, and the reply -------------------------------------------------------------------

local PLAIN, ERROR, STATUS, WORD_LIST, NESTED = 0, 1, 2, 3, 4

local function truncated(number)
  return number < 0 and math.ceil(number) or floor(number)
end

local function told(reply)
  local kind = type(reply)
  if unknown then
    local what = unknown
    unknown = nil
    return -1, what
  elseif kind == 'string' then
    return PLAIN, reply
  elseif kind == 'number' then
    return PLAIN, truncated(reply)
  elseif kind ~= 'table' then
    return PLAIN, reply == true and 1 or nil
  elseif reply.err then
    return ERROR, reply.err
  elseif reply.ok then
    return STATUS, reply.ok
  end
  local count = 0
  while reply[count + 1] ~= nil do           -- the first nil ends it
    count = count + 1
    local one = type(reply[count])
    if one == 'number' then
      reply[count] = truncated(reply[count])
    elseif one ~= 'string' then
      return NESTED, reply
    end
  end
  return WORD_LIST, unpack(reply, 1, count)
end

local function compile(text)
  local script, why = loadstring(text, '@user_script')
  if not script then return nil, why end
  return setfenv(script, env)
end

local function at_work(its_entries, its_clock)
  entries, now_us, now_ms, unknown = its_entries, its_clock, floor(its_clock / 1000), nil
end

local function run(its_entries, its_clock, script, count, ...)
  at_work(its_entries, its_clock)
  local words, keys, args = {...}, {}, {}
  for at = 1, count do keys[at] = words[at] end
  for at = count + 1, #words do args[at - count] = words[at] end
  rawset(env, 'KEYS', keys)
  rawset(env, 'ARGV', args)
  local fine, reply = pcall(script)
  if not fine and type(reply) ~= 'table' then reply = {err = 'ERR ' .. tostring(reply)} end
  return told(reply)
end

local function ask(its_entries, its_clock, ...)
  at_work(its_entries, its_clock)
  local fine, reply = pcall(command, ...)
  if not fine and type(reply) ~= 'table' then reply = {err = reply} end
  return told(reply)
end

local function fresh() return {} end

local function copied(one)
  if type(one) ~= 'table' then return one end
  local copy = {}
  for key, value in pairs(one) do copy[key] = copied(value) end
  return copy
end

-- All keys that are alive, in order.
local function alive(its_entries, its_clock)
  at_work(its_entries, its_clock)
  local names = {}
  for key in pairs(entries) do names[#names + 1] = key end
  local found = {}
  for _, key in ipairs(names) do
    if look(key) then found[#found + 1] = key end
  end
  sort(found)
  return told(found)
end

return compile, run, ask, fresh, copied, alive
