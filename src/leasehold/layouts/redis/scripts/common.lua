-- The common part of all scripts of a layout; the layout's own part (plain.lua, redisson.lua) follows it, then the script.
--
-- KEYS  1 lock     the key of the other library, in its format: the only one that decides who holds
--       2 side     hash of ours: f highest token granted to us, t id of our last holder, o its owner, m its meta, l its
--                  lease in ms; g ids whose claims are refused. Lives KEEP longer than the lease, and longer than it takes
--                  until the server's clock is past f, if that was set back: then a token of the clock alone is above f.
--                  Where many hold, each holder's t, o, m, l are in a key of their own, which ends with its lease.
--       3 queue    zset of ours: id -> server time of arrival in microseconds. Only for waking and for people.
--       4 waiters  hash of ours: id -> end of the entry in ms, lease in ms, channel (or kind of lock, where the other
--                  library notifies), owner, meta, joined by SEP
--       5 ...      further keys of the layout
--
-- An id is what the lock's key has as its value for one acquisition.
local KEEP = 3600000        -- ms for which the state of an unused name is kept
local SEP = '\31'
local MOST_REFUSED = 32     -- ids that are refused, of one name
local MOST_WOKEN = 100      -- waiters that a release tries to wake before it leaves the rest to their timers

local lock, side, queue, waiters = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local time
local function now()        -- the server's clock in microseconds: exact as a double until the year 2255
  if not time then
    local t = redis.call('TIME')
    time = t[1] * 1000000 + t[2]
  end
  return time
end

local function whole(number) return string.format('%.0f', number) end  -- tostring() would round a large one

local function live(record)  -- whether a waiter's entry has not ended
  return record and tonumber(string.match(record, '^%d+')) > now() / 1000
end

-- The type of the lock's key, after a command for another type has failed; other failures end the script.
local function type_after(failed)
  if not string.find(failed.err, 'WRONGTYPE', 1, true) then error(failed.err) end
  return redis.call('TYPE', lock).ok
end

-- Calls a function that reads other keys, before the first write of the script. While the slot migrates, such a key
-- may have left the node. Then the error says that nothing was carried out, and the caller repeats it. Elsewhere that error
-- says nothing of the kind: a key that the script itself has deleted counts as one that has left, too.
local function before_writes(read, ...)
  local done, found = pcall(read, ...)
  if done then return found end
  local text = type(found) == 'table' and found.err or found
  error(string.find(text, 'non local key', 1, true) and 'TRYAGAIN ' .. text or found)
end

-- A lock that is a string, with its holder's id as the value. The parts of other layouts have functions of these names.

-- The id of the holder, false if there is none; and the type of the key if it is no lock.
local function holder()
  local value = redis.pcall('GET', lock)
  if type(value) == 'table' then return false, type_after(value) end
  return value
end

local function take(id, lease)  -- the lock is free
  redis.call('SET', lock, id, 'PX', lease)
end

local function next_token(last)  -- above our last one, and not below the server's clock
  return math.max((tonumber(last) or 0) + 1, now())
end

-- Notifies those who follow a channel of the other library; returns how many of them are known to have received it.
local function publish(channel, message) return redis.call('PUBLISH', channel, message) end

-- What a layout's part may replace. A layout with many holders has fields t, o, m, l, f of each in a hash holder_key(id).
local function partly(id) return false end          -- whether an id that does not hold has some of its permits
local function may_take(id) return true end         -- whether an id may take the free lock, or others are ahead in a queue
local function set_place(id, lease) end             -- our entry was made, or goes on
local function remove_place(id) return 0 end        -- our entry has ended; 1 if it was in the other library's queue
local function wake_next(freed) end                 -- wakes who is next in the other library's queue; FREED: the lock is free
local function ms_until_retry(id) return redis.call('PTTL', lock) end  -- until a waiter for this holder claims again
local function extend(id, lease) redis.call('PEXPIRE', lock, lease) end
local function holder_key(id) return side end
local function limit() return 0 end                 -- permits that there are
local holders                                       -- all holders: {id, ms left} of each

local function forget(id)
  local found = remove_place(id)
  redis.call('HDEL', waiters, id)
  return math.max(redis.call('ZREM', queue, id), found)
end

-- The first live waiter; those before it have ended and are removed.
local function first()
  while true do
    local head = redis.call('ZRANGE', queue, '0', '0')[1]
    if not head or live(redis.call('HGET', waiters, head)) then return head end
    forget(head)
  end
end

local function renew_hold(id, lease)
  extend(id, lease)
  if holder_key(id) ~= side then redis.call('PEXPIRE', holder_key(id), lease) end
  if redis.call('PTTL', side) < lease + KEEP / 2 then redis.call('PEXPIRE', side, whole(lease + KEEP)) end
end
