-- Keys of any type, strings and hashes.

local function look(key)
  local fields = entries[key]
  if fields and fields.expires and now_ms > fields.expires then
    entries[key] = nil
    return nil
  end
  return fields
end

-- The fields of a key of that kind; nil if there is none.
local function of(key, kind)
  local fields = look(key)
  if fields and fields.kind ~= kind then error(WRONG_TYPE, 0) end
  return fields
end

local function made(key, kind)
  local fields = of(key, kind)
  if not fields then
    fields = {kind = kind, value = {}, order = {}}
    entries[key] = fields
  end
  return fields
end

local function drop(order, word)
  for at = 1, #order do
    if order[at] == word then return remove(order, at) end
  end
end

-- Take fields or members out; a key without any is gone.
local function take(key, kind, ...)
  local fields = of(key, kind)
  if not fields then return 0 end
  local gone = 0
  for at = 1, select('#', ...) do
    local word = select(at, ...)
    if fields.value[word] ~= nil then
      fields.value[word] = nil
      drop(fields.order, word)
      gone = gone + 1
    end
  end
  if #fields.order == 0 then entries[key] = nil end
  return gone
end

local function exists(...)
  local count = 0
  for at = 1, select('#', ...) do
    if look((select(at, ...))) then count = count + 1 end
  end
  return count
end

local function delete(...)
  local count = 0
  for at = 1, select('#', ...) do
    local key = select(at, ...)
    if look(key) then
      entries[key] = nil
      count = count + 1
    end
  end
  return count
end

local function kind_of(key)
  local fields = look(key)
  return {ok = fields and fields.kind or 'none'}
end

local function pexpire(key, life)
  local when = whole(life) + now_ms
  if when >= 2 ^ 63 or when < 0 then error(BAD_EXPIRY, 0) end
  if when > EXACT then refuse('expiry so far away') end
  local fields = look(key)
  if not fields then return 0 end
  fields.expires = when
  if when <= now_ms then entries[key] = nil end
  return 1
end

local function pttl(key)
  local fields = look(key)
  if not fields then return -2 end
  if not fields.expires then return -1 end
  return fields.expires - now_ms
end

local function get(key)
  local fields = of(key, 'string')
  return fields and fields.value or false
end

local function set(key, value)
  entries[key] = {kind = 'string', value = value}
  return OK
end

local function hset(key, ...)
  local count = select('#', ...)
  if count % 2 == 1 then error(WRONG_PAIRS, 0) end
  local fields, words, added = made(key, 'hash'), {...}, 0
  local value, order = fields.value, fields.order
  for at = 1, count, 2 do
    local field = words[at]
    if value[field] == nil then
      added = added + 1
      order[#order + 1] = field
    end
    value[field] = words[at + 1]
  end
  return added
end

local function hget(key, field)
  local fields = of(key, 'hash')
  return fields and fields.value[field] or false
end

local function hmget(key, ...)
  local fields, found = of(key, 'hash'), {...}
  for at = 1, #found do
    found[at] = fields and fields.value[found[at]] or false
  end
  return found
end

local function hgetall(key)
  local fields, found = of(key, 'hash'), {}
  for _, field in ipairs(fields and fields.order or {}) do
    found[#found + 1] = field
    found[#found + 1] = fields.value[field]
  end
  return found
end

local function hlen(key)
  local fields = of(key, 'hash')
  return fields and #fields.order or 0
end

local function hdel(key, ...)
  return take(key, 'hash', ...)
end
