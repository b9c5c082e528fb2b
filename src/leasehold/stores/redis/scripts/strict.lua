-- Acquires in strict mode (docs/strict.md): nothing is granted while this dataset may have forgotten grants. Follows the
-- script that acquires, as the function `claim`, whose keys and arguments come first.
-- ARGV  the last two: marker's key, longest lease in ms
--   marker  hash: i which server wrote this dataset last, u server time in ms before which nothing is granted, l longest
--           lease in ms. Marker and name are read in one script: no other command comes between.
-- Reply {3, ms}                 quarantine: nothing is granted for so many ms, and nothing was changed
--       {1, token, now, count}  as the function; count is the number of replicas that WAIT can count
--       else as the function
local MARKER_LIFE = 2592000000                       -- ms: 30 days after the last claim the history counts as unknown
local longest = tonumber(table.remove(ARGV))
local marker = table.remove(ARGV)

-- A restart changes the first part, a promotion the second, even if the same server is primary again.
local replication = redis.call('INFO', 'replication')
local identity = string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') .. ' '
  .. string.match(replication, 'master_replid:(%w+)')

local t = redis.call('TIME')
local ms = t[1] * 1000 + math.floor(t[2] / 1000)
local known = redis.call('HMGET', marker, 'i', 'u', 'l')
local before, bound = tonumber(known[2] or 0), math.max(longest, tonumber(known[3] or 0))

if known[1] ~= identity then before = ms + bound + 1 end
before = math.min(before, ms + bound + 1)            -- less only if the clock was set back: one more quarantine, no longer
if known[1] ~= identity or before ~= tonumber(known[2]) or tonumber(known[3] or 0) < bound
    or redis.call('PTTL', marker) < MARKER_LIFE / 2 then
  redis.call('HSET', marker, 'i', identity, 'u', string.format('%.0f', before), 'l', string.format('%.0f', bound))
  redis.call('PEXPIRE', marker, MARKER_LIFE)
end
if before > ms then return {3, string.format('%.0f', before - ms)} end

local reply = claim(KEYS, ARGV)
-- Not connected_slaves: that includes replicas in their full sync, which acknowledge nothing until its end.
if reply[1] == 1 then reply[4] = select(2, string.gsub(replication, 'state=online', '')) end
return reply
