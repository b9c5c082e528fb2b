-- Acquires several names in order, until one is not free. Follows the four functions that it calls; each has the whole text
-- of the script for one name, see _compose in __init__.py.
-- ARGV  1 keep 0/1: whether names acquired before the first failure are kept; then for each name: '' or 'shared', the
--       numbers of its keys, claim arguments and release arguments, then these arguments
-- Reply {how many were released again, replies of claim.lua for the names after those}. An error: all were released.
local keep, at, key = ARGV[1] == '1', 1, 0
local replies, taken = {0}, {}

local function slice(list, start, count)
  local part = {}
  for i = 1, count do part[i] = list[start + i] end
  return part
end

local function release_all()
  for i = #taken, 1, -1 do
    taken[i].release(taken[i].keys, taken[i].args)
  end
end

while at < #ARGV do
  local shared, keys, claims, releases = ARGV[at + 1] == 'shared', ARGV[at + 2] + 0, ARGV[at + 3] + 0, ARGV[at + 4] + 0
  local its_keys, claim_args = slice(KEYS, key, keys), slice(ARGV, at + 4, claims)
  local release_args = slice(ARGV, at + 4 + claims, releases)
  local ok, reply = pcall(shared and claim_shared or claim, its_keys, claim_args)
  if not ok then reply = type(reply) == 'table' and reply or {err = tostring(reply)} end
  if reply.err then
    release_all()
    return reply
  end
  if reply[1] ~= 1 then
    if not keep then
      release_all()
      return {#taken, reply}
    end
    replies[#replies + 1] = reply
    break
  end
  replies[#replies + 1] = reply
  taken[#taken + 1] = {release = shared and release_shared or release, keys = its_keys, args = release_args}
  at, key = at + 4 + claims + releases, key + keys
end
return replies
