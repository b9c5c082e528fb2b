-- Claim several names in order, up to the first that cannot be had. Put after the four functions that it calls, each
-- made of the whole text of the script for one name; see together.py.
-- ARGV  1 keep 0/1  then for each name: '' or 'shared', how many keys, claim's arguments and leave's arguments it has,
--       and these arguments
-- Reply {how many were taken back, replies of claim.lua for those after them}. An error: all were taken back.
local keep, at, key = ARGV[1] == '1', 1, 0
local replies, taken = {0}, {}

local function some(from, start, count)
  local found = {}
  for i = 1, count do found[i] = from[start + i] end
  return found
end

local function take_back()
  for i = #taken, 1, -1 do
    taken[i].leave(taken[i].keys, taken[i].words)
  end
end

while at < #ARGV do
  local shared, keys, words, last = ARGV[at + 1] == 'shared', ARGV[at + 2] + 0, ARGV[at + 3] + 0, ARGV[at + 4] + 0
  local those, mine = some(KEYS, key, keys), some(ARGV, at + 4, words)
  local back = some(ARGV, at + 4 + words, last)
  local fine, reply = pcall(shared and claim_shared or claim, those, mine)
  if not fine then reply = type(reply) == 'table' and reply or {err = tostring(reply)} end
  if reply.err then
    take_back()
    return reply
  end
  if reply[1] ~= 1 then
    if not keep then
      take_back()
      return {#taken, reply}
    end
    replies[#replies + 1] = reply
    break
  end
  replies[#replies + 1] = reply
  taken[#taken + 1] = {leave = shared and leave_shared or leave, keys = those, words = back}
  at, key = at + 4 + words + last, key + keys
end
return replies
