-- Show what one node knows of a name. It writes nothing.
-- Reply {now in us, {ticket, token, lease, delay, owner, meta} or nils, ms left of the vote, highest token,
--        {ticket, order, expires, entry, ...} in order of arrival}
local fields = redis.call('HMGET', lock, 't', 'f', 'l', 'd', 'o', 'm')
local seats = {}
for _, ticket in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
  local entry = redis.call('HGET', waiters, ticket)
  local expires = redis.call('ZSCORE', beat, ticket)
  if entry and expires then
    seats[#seats + 1] = ticket
    seats[#seats + 1] = redis.call('ZSCORE', queue, ticket)
    seats[#seats + 1] = expires
    seats[#seats + 1] = entry
  end
end
return {text(now()), fields, text(vote_left()), text(top()), seats}
