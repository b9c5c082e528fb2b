-- Sets the votes of many tickets to full length, with commands that are allowed when memory is full.
-- KEYS  for each: vote, token, plain key; ARGV  for each: ticket, lease ms
-- Reply for each 1 held, 0 gone
local KEEP = 3600000
local replies = {}
for i = 1, #ARGV, 2 do
  local ticket, lease, at = ARGV[i], ARGV[i + 1], (i - 1) / 2 * 3
  local reply = 0
  if redis.pcall('GET', KEYS[at + 3]) == ticket then  -- an error means a wrong type: only this vote is gone
    redis.call('PEXPIRE', KEYS[at + 1], lease)
    if redis.call('PTTL', KEYS[at + 2]) < lease + KEEP / 2 then  -- never shorter: keep_top of redlock_common.lua
      redis.call('PEXPIRE', KEYS[at + 2], string.format('%.0f', lease + KEEP))
    end
    redis.call('PEXPIRE', KEYS[at + 3], lease)
    reply = 1
  end
  replies[#replies + 1] = reply
end
return replies
