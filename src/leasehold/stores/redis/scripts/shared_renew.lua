-- Sets the leases of many holders, of many shared names, to full length.
-- KEYS  for each: lock, holders, terms; ARGV  for each: use, ticket, lease ms
-- Reply for each 1 held, 0 gone
local ms = now() / 1000
local replies = {}
-- When memory is full only the first write of a script is refused. A removal never is, and what follows adds nothing new.
redis.pcall('ZREM', KEYS[2], '')

local function text(number)
  return string.format('%.0f', number)
end

for i = 1, #KEYS, 3 do
  local lock, holders, terms, use, ticket, lease = KEYS[i], KEYS[i + 1], KEYS[i + 2], ARGV[i], ARGV[i + 1], ARGV[i + 2]
  -- An error means a wrong type: only this holder is gone.
  local state, expires, fields = redis.pcall('HMGET', lock, 'k', 'x', 'a'), redis.pcall('ZSCORE', holders, ticket),
    redis.pcall('HGET', terms, ticket)
  local ours = not state.err and (not state[1] or state[1] == use)
  local reply = 0
  if ours and type(expires) == 'string' and tonumber(expires) > math.floor(ms) and type(fields) == 'string' then
    redis.call('ZADD', holders, 'XX', text(math.ceil(ms + lease)), ticket)
    local life = lease + tonumber(state[2] or 0)
    local kept = life + KEEP + (state[3] or 0)
    if redis.call('PTTL', lock) < kept then
      redis.call('PEXPIRE', lock, text(math.ceil(kept)))
    end
    for _, key in ipairs({holders, terms}) do        -- not at each renewal: they must only outlive the lease
      if redis.call('PTTL', key) < life + KEEP / 2 then redis.call('PEXPIRE', key, text(life + KEEP)) end
    end
    reply = 1
  end
  replies[#replies + 1] = reply
end
return replies
