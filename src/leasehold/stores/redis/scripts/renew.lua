-- Sets the leases of many holders to full length, with commands that are allowed when memory is full.
-- KEYS  the lock of each; ARGV  for each: ticket, lease ms
-- Reply for each 1 held, 0 gone
local KEEP = 3600000
local replies = {}
for i, lock in ipairs(KEYS) do
  local ticket, lease = ARGV[2 * i - 1], ARGV[2 * i]
  local state = redis.pcall('HMGET', lock, 't', 'd') -- an error means a wrong type: only this lock is gone
  local delay = tonumber(state[2] or 0)
  replies[i] = 0
  if state[1] == ticket and redis.call('PTTL', lock) - KEEP > delay then
    redis.call('PEXPIRE', lock, string.format('%.0f', lease + delay + KEEP))
    replies[i] = 1
  end
end
return replies
