-- Sets the votes of many tickets to full length, with commands that are allowed when memory is full.
-- KEYS  for each: vote, token; ARGV  for each: ticket, lease ms
-- Reply for each 1 held, 0 gone
local replies = {}
for i = 1, #ARGV, 2 do
  local ticket, lease, vote, top = ARGV[i], ARGV[i + 1], KEYS[i], KEYS[i + 1]
  local state = redis.pcall('HMGET', vote, 't', 'd') -- an error means a wrong type: only this vote is gone
  local delay = tonumber(state[2] or 0)
  local reply = 0
  if state[1] == ticket and redis.call('PTTL', vote) > delay then
    redis.call('PEXPIRE', vote, string.format('%.0f', lease + delay))
    if redis.call('PTTL', top) < lease + delay + KEEP / 2 then  -- never shorter: keep_top of redlock_common.lua
      redis.call('PEXPIRE', top, string.format('%.0f', lease + delay + KEEP))
    end
    reply = 1
  end
  replies[#replies + 1] = reply
end
return replies
