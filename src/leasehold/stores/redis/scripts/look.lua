-- Show the queue of one name. It writes nothing.
-- Reply {now in us, fields of lock, ms until free, {ticket, order, expires, entry, ...} in order of arrival,
--        {ticket, expires, entry, ...} of the holders of a shared name}
local holders, terms = KEYS[5], KEYS[6]
local fields = redis.call('HMGET', lock, 't', 'f', 'l', 'd', 'o', 'm', 'k', 'b')
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
local shares = {}
for _, ticket in ipairs(redis.call('ZRANGE', holders, 0, -1)) do
  local entry = redis.call('HGET', terms, ticket)
  if entry then
    shares[#shares + 1] = ticket
    shares[#shares + 1] = redis.call('ZSCORE', holders, ticket)
    shares[#shares + 1] = entry
  end
end
return {text(now()), fields, text(blocked(fields[1])), seats, shares}
