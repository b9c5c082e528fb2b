-- Shows holders and waiters of one name. It changes nothing.
-- Reply {now in us, fields of lock, ms until free, {ticket, order, expires, fields, ...} of the waiters in order of arrival,
--        {ticket, expires, fields, ...} of the holders of a shared name}
local holders, terms = KEYS[5], KEYS[6]
local done = redis.pcall('HDEL', lock, '')           -- as in cell.lua: a server that has become a replica must not answer
if type(done) == 'table' and done.err and string.find(done.err, 'READONLY', 1, true) then return done end
ahead = redis.call('HGET', lock, 'a') or 0
local fields = redis.call('HMGET', lock, 't', 'f', 'l', 'd', 'o', 'm', 'k', 'b')
local entries = {}
for _, ticket in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
  local fields = redis.call('HGET', waiters, ticket)
  local expires = redis.call('ZSCORE', beat, ticket)
  if fields and expires then
    entries[#entries + 1] = ticket
    entries[#entries + 1] = redis.call('ZSCORE', queue, ticket)
    entries[#entries + 1] = expires
    entries[#entries + 1] = fields
  end
end
local held = {}
for _, ticket in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
  local fields = redis.call('HGET', terms, ticket)
  if fields then
    held[#held + 1] = ticket
    held[#held + 1] = redis.call('ZSCORE', holders, ticket)
    held[#held + 1] = fields
  end
end
return {text(now()), fields, text(blocked(fields[1])), entries, held}
