-- Sets the leases of many holders to full length, with commands that are allowed when memory is full.
-- KEYS  the lock of each; ARGV  for each: ticket, lease ms
-- Reply for each 1 held, 0 gone
local replies = {}
for i, lock in ipairs(KEYS) do
  local ticket, lease = ARGV[2 * i - 1], ARGV[2 * i]
  local state = redis.pcall('HMGET', lock, 't', 'd', 'f', 'a')  -- an error means a wrong type: only this is gone
  local delay, ahead = tonumber(state[2] or 0), state[4] or 0
  replies[i] = 0
  if state[1] == ticket and redis.call('PTTL', lock) - KEEP - ahead > delay then
    keep(lock, lease + delay, state[3], ahead)
    replies[i] = 1
  end
end
return replies
