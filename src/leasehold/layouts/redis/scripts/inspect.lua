-- Reply {now, permits, last token, holders: {id, ms left, {t, f, o, m, l}}, waiters in order: id, arrival, entry}; no
-- holders and no waiters if the key is of another kind.
local done = redis.pcall('HDEL', side, '')            -- refused by a server that has become a replica: it must not answer
if type(done) == 'table' and done.err and string.find(done.err, 'READONLY', 1, true) then return done end
local value, other = holder()
local held, found = {}, {}
local entries = other and {} or redis.call('ZRANGE', queue, '0', '-1', 'WITHSCORES')
for i = 1, #entries, 2 do
  local record = redis.call('HGET', waiters, entries[i])
  if live(record) then
    for _, part in ipairs({entries[i], entries[i + 1], record}) do found[#found + 1] = part end
  end
end
local all = holders and not other and before_writes(holders) or value and {{value, redis.call('PTTL', lock)}} or {}
for _, one in ipairs(all) do
  local noted = before_writes(redis.call, 'HMGET', holder_key(one[1]), 't', 'f', 'o', 'm', 'l')
  held[#held + 1] = {one[1], whole(one[2]), noted}
end
return {whole(now()), other and 0 or limit(), redis.call('HGET', side, 'f'), held, found}
