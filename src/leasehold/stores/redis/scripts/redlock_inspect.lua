-- Shows the state of a name on one node. It changes nothing.
-- Reply {now in us, {ticket, token, lease, delay, owner, meta} or nils, ms left of the vote, highest token,
--        {ticket, order, expires, fields, ...} of the waiters in order of arrival}
local done = redis.pcall('HDEL', lock, '')           -- as in cell.lua: a server that has become a replica must not answer
if type(done) == 'table' and done.err and string.find(done.err, 'READONLY', 1, true) then return done end
local fields = redis.call('HMGET', lock, 't', 'f', 'l', 'd', 'o', 'm')
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
return {text(now()), fields, text(vote_left()), text(top()), entries}
