-- RPermitExpirableSemaphore of Redisson: a string with the number of free permits; and a sorted set of those that are
-- out, 16 bytes each, by the client's time in ms at which they expire.
-- KEYS  5 out   that sorted set
-- ARGV  7 'of N', where the semaphore has N permits; not in the ARGV of other scripts
--
-- An id of ours is its first permit in hexadecimal, ':', and how many permits it has; the others follow the first. Permits
-- that have expired become free at the next claim. Each change publishes how many are free, or have become so.
local out = KEYS[5]
local topic = 'redisson_sc:' .. (string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}')
local SKEW = 1000               -- ms by which ours outlive their lease: the clock of another client may be ahead
local ENDLESS = 922337203685477 -- the end of a permit of Redisson without one

local function permits(id)  -- the bytes of each
  local hex, n = string.match(id, '^(%x+):?(%d*)$')
  local first = string.gsub(hex, '%x%x', function(pair) return string.char(tonumber(pair, 16)) end)
  local low, all = struct.unpack('>I4', first, 13), {}
  for i = 1, tonumber(n) or 1 do all[i] = string.sub(first, 1, 12) .. struct.pack('>I4', (low + i - 1) % 4294967296) end
  return all
end

holder_key = function(id) return side .. ':' .. string.sub(id, 1, 32) end

local function missing(id)  -- how many of its permits are not out: another program has released them, or they have expired
  local count = 0
  for _, permit in ipairs(permits(id)) do
    if tonumber(redis.call('ZSCORE', out, permit) or 0) <= now() / 1000 then count = count + 1 end
  end
  return count
end

partly = function(id) return missing(id) < #permits(id) end

local function id_of(permit)  -- ours has noted its id
  local hex = string.gsub(permit, '.', function(byte) return string.format('%02x', string.byte(byte)) end)
  return redis.call('HGET', holder_key(hex), 't') or hex
end

-- Before they are taken out of the set. The caller has first tried to take nothing out: without that right the count is
-- to stay as it is. And after a removal this is not refused when memory is full.
local function add(n)
  local free = redis.call('GET', lock) and redis.call('INCRBY', lock, n) or n  -- without it the next claim sets it
  if free > 0 then pcall(publish, topic, free) end  -- without that right, too, the count must stay true
end

limit = function() return (tonumber(redis.call('GET', lock)) or 0) + redis.call('ZCARD', out) end

-- The id if it holds; else one that keeps it out, false if there are enough permits; and the type of the key if it is no
-- such semaphore.
local function holder(id)
  local free = redis.pcall('GET', lock)
  if type(free) == 'table' then return false, type_after(free) end
  if free and not string.match(free, '^-?%d+$') then return false, 'string' end
  if not id then return false end
  if missing(id) == 0 then return id end
  local all = string.match(ARGV[7] or '', '^of (%d+)$')
  if not all then return false end
  if not free then  -- never set, or lost alone, as by an eviction
    local left = all - redis.call('ZCARD', out)
    redis.call('SET', lock, whole(left))
    if left > 0 then pcall(publish, topic, whole(left)) end
  elseif limit() ~= tonumber(all) then
    return false, 'semaphore of ' .. limit() .. ' permits'
  end
  local expired = redis.call('ZCOUNT', out, '-inf', whole(now() / 1000))
  if expired > 0 then
    redis.call('ZREMRANGEBYSCORE', out, '1', '0')
    add(expired)
    redis.call('ZREMRANGEBYSCORE', out, '-inf', whole(now() / 1000))
  end
  if tonumber(redis.call('GET', lock)) >= missing(id) then return false end
  local mine = permits(id)  -- some may still be out: an id that lacks others does not hold
  for i, permit in ipairs(mine) do mine[permit] = i end
  for _, permit in ipairs(redis.call('ZRANGE', out, '0', whole(#mine))) do
    if not mine[permit] then return id_of(permit) end
  end
  return '-'
end

extend = function(id, lease)
  redis.call('ZREM', out, '')  -- first a removal, which is never refused: then the rest is allowed when memory is full
  for _, permit in ipairs(permits(id)) do redis.call('ZADD', out, whole(now() / 1000 + lease + SKEW), permit) end
end

local function take(id, lease)
  redis.call('ZADD', out, 'XX', '0', '')  -- changes nothing: without that right, the count is to stay as it is
  redis.call('DECRBY', lock, missing(id))
  extend(id, lease)
end

local function free(id)
  local held = {}
  for _, permit in ipairs(permits(id)) do
    if redis.call('ZSCORE', out, permit) then held[#held + 1] = permit end
  end
  redis.call('ZREM', out, '')
  add(#held)
  for _, permit in ipairs(held) do redis.call('ZREM', out, permit) end
end

ms_until_retry = function()  -- until the next permit expires
  local ends = tonumber(redis.call('ZRANGE', out, '0', '0', 'WITHSCORES')[2])
  return ends and ends < ENDLESS and math.max(ends - now() / 1000, 1) or -1
end

holders = function()
  local found, known, all = {}, {}, redis.call('ZRANGE', out, '0', '-1', 'WITHSCORES')
  for at = 1, #all, 2 do known[all[at]] = id_of(all[at]) end
  for _, id in pairs(known) do  -- the further permits of ours are not noted
    local its = id and permits(id) or {}
    for i = 2, #its do known[its[i]] = false end
  end
  for at = 1, #all, 2 do
    local ends = tonumber(all[at + 1])
    if known[all[at]] and ends > now() / 1000 then
      found[#found + 1] = {known[all[at]], ends < ENDLESS and ends - now() / 1000 or -1}
    end
  end
  return found
end
