-- Acquires the lock if it is free, or the id holds it already.
-- ARGV  1 id  2 lease ms  3 join the queue 0/1  4 channel  5 owner  6 meta  7 what the layout's part reads
-- Reply {1, token}                              acquired
--       {2, type}                               the key is no lock
--       {0, now, ms, owner, first 0/1, holder}  not acquired; ms of the holder's lease (below 0: it has no end), the
--                                               holder's owner ('' if it is not one of ours) and id
local id, lease = ARGV[1], ARGV[2]
local value, other = holder(id)
if other then return {2, other} end
local refused = redis.call('HGET', side, 'g')
if refused and string.find(refused, id, 1, true) then return {0, whole(now()), 1000, '', 1, ''} end

if value == id or not value and may_take(id) then
  local mine = holder_key(id)
  local known = redis.call('HMGET', mine, 't', 'f')
  if value then extend(id, lease) end
  local last = redis.call('HGET', side, 'f')
  local token = value and known[1] == id and known[2] or whole(next_token(last))
  if tonumber(token) > (tonumber(last) or 0) then redis.call('HSET', side, 'f', token) end  -- else others had higher ones
  redis.call('HSET', mine, 't', id, 'f', token, 'o', ARGV[5], 'm', ARGV[6], 'l', lease)
  redis.call('PEXPIRE', mine, lease)
  local highest = math.max(tonumber(token), tonumber(last) or 0)
  redis.call('PEXPIRE', side, whole(math.max(lease, (highest - now()) / 1000) + KEEP))
  forget(id)
  if not value then take(id, lease) end  -- last: a user without the right to one of these commands leaves no lock behind
  return {1, token}
end

-- Before the first write: on a cluster a key of the holder may have left the node.
local known = value and redis.call('HMGET', holder_key(value), 't', 'o') or {}
if ARGV[3] == '1' then
  redis.call('ZADD', queue, 'NX', whole(now()), id)
  redis.call('HSET', waiters, id,
    table.concat({whole(now() / 1000 + lease), lease, ARGV[4], ARGV[5], ARGV[6]}, SEP))
  set_place(id, lease)
  for _, key in ipairs({queue, waiters}) do
    if redis.call('PTTL', key) < tonumber(lease) then redis.call('PEXPIRE', key, lease) end
  end
end
local ahead = first()
local owner = known[1] == value and known[2] or ''
return {0, whole(now()), whole(ms_until_retry(value)), owner, ahead == id and 1 or 0, value or ''}
