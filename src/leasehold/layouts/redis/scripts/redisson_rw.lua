-- RReadWriteLock of Redisson: a hash with the mode, 'read' or 'write', and a field for each owner with the number of its
-- holds: 'owner' reads, 'owner:write' writes. Its time to live is the longest lease of a holder.
-- Each hold of a reader has a key {NAME}:owner:rwlock_timeout:i too, which lives as long as the hold's lease: a reader
-- that leaves sets the life of the hash to the longest of the others. The ids of ours are the fields.
-- ARGV  7 the field of a writer of ours alongside which a reader reads, or ''
-- A release publishes '0' when the last reader has left, '1' when the writer has.
local braced = string.find(lock, '{', 1, true) and lock or '{' .. lock .. '}'
local topic = 'redisson_rwlock:' .. braced

local function hold_key(owner, i) return braced .. ':' .. owner .. ':rwlock_timeout:' .. i end
local function writes(id) return string.sub(id, -6) == ':write' end

-- The id if it holds; else an owner that keeps it out, false if there is none; and the type of the key if it is no such
-- lock.
local function holder(id)
  local mode = redis.pcall('HGET', lock, 'mode')
  if type(mode) == 'table' then return false, type_after(mode) end
  if not mode then return false, redis.call('EXISTS', lock) == 1 and 'lock' or nil end
  if not id then return false end
  if redis.call('HEXISTS', lock, id) == 1 and (writes(id) or redis.call('EXISTS', hold_key(id, 1)) == 1) then
    return id
  end
  if not writes(id) and (mode == 'read' or redis.call('HEXISTS', lock, ARGV[7] or '') == 1) then return false end
  for _, field in ipairs(redis.call('HKEYS', lock)) do
    if field ~= 'mode' and (mode == 'read' or writes(id) or writes(field)) then return field end
  end
  return false
end

extend = function(id, lease)
  if not writes(id) then redis.call('PEXPIRE', hold_key(id, 1), lease) end
  if redis.call('PTTL', lock) < tonumber(lease) then redis.call('PEXPIRE', lock, lease) end
end

local function take(id, lease)  -- no holder excludes it
  local longer = redis.call('PTTL', lock) < tonumber(lease)
  if writes(id) then
    redis.call('HSET', lock, 'mode', 'write', id, '1')
  else
    redis.call('SET', hold_key(id, 1), '1', 'PX', lease)
    local mode = redis.call('HGET', lock, 'mode') or 'read'
    redis.call('HSET', lock, 'mode', mode, id, '1')
  end
  if longer then redis.call('PEXPIRE', lock, lease) end
end

holders = function()
  local found, fields = {}, redis.call('HGETALL', lock)
  for at = 1, #fields, 2 do
    local owner, left = fields[at], -2
    for i = 1, writes(owner) and 0 or tonumber(fields[at + 1]) or 0 do
      left = math.max(left, redis.call('PTTL', hold_key(owner, i)))
    end
    if writes(owner) then left = redis.call('PTTL', lock) end
    if owner ~= 'mode' and left ~= -2 then found[#found + 1] = {owner, left} end
  end
  return found
end

local function free(id)
  local longest = -2
  for _, other in ipairs(before_writes(holders)) do
    if other[1] ~= id then longest = math.max(longest, other[2]) end
  end
  redis.call('HDEL', lock, id)
  if not writes(id) then redis.call('DEL', hold_key(id, 1)) end
  if writes(id) and longest ~= -2 then
    redis.pcall('HSET', lock, 'mode', 'read')  -- it reads, too, and others may now: Redisson does not publish that
    publish(topic, '1')
  elseif redis.call('HGET', lock, 'mode') == 'write' and longest ~= -2 then
    return
  elseif longest == -2 then
    redis.call('DEL', lock)
    publish(topic, writes(id) and '1' or '0')
  end
  if longest > 0 then redis.call('PEXPIRE', lock, longest) end
end

holder_key = function(id) return side .. ':' .. id end
