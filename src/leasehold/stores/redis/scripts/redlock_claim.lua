-- Votes for a ticket with the token that it proposes, if this node's vote is free and the token is the highest so far.
-- ARGV  1 ticket  2 lease ms  3 lock delay ms  4 join the queue 0/1  5 token  6 channel  7 owner  8 meta  9 order
--       10 quarantine ms, 0 for none  11 memory, the key of a hash: r identity of this server, s server time in ms since
--       which it remembers its votes. On a cluster it is in another slot of the same node
-- Reply {1, token}                             has the vote
--       {0, highest token, ms, ticket, owner}  has not; another has it for so many ms, or nobody does (0, '')
--       {3, highest token, ms}                 the node abstains for so many ms: it may have forgotten votes
local ticket, lease, delay, join = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] == '1'
local proposed, quarantine = tonumber(ARGV[5]), tonumber(ARGV[10])

-- A server that was restarted or emptied may have forgotten votes: returns ms until none of those can still count.
local function abstains()
  if quarantine == 0 then return 0 end
  -- A restart changes the first part, a promotion the second, even if the same server is primary again.
  local run = (string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') or '') .. ' '
    .. (string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)') or '')
  local known = redis.call('HMGET', ARGV[11], 'r', 's')
  local since, ms = tonumber(known[2] or 0), now() / 1000
  if known[1] ~= run or since > ms then               -- or the clock was set back: one more quarantine, no longer
    since = ms
    redis.call('HSET', ARGV[11], 'r', run, 's', text(since))
  end
  return math.max(since + quarantine - ms, 0)
end

local state = redis.call('HMGET', lock, 't', 'f', 'd', 'o', 'l')
local holder, token, holders_delay = state[1], tonumber(state[2] or 0), tonumber(state[3] or 0)
local left, highest = vote_left(), top()
local crowd = crowded()
local longest = tonumber(state[5] or left) + holders_delay

if left > longest then                                -- the clock was set back: a vote lasts at most its length from now
  redis.call('PEXPIRE', lock, text(longest))
  left = longest
end

local mine = holder == ticket and left > holders_delay
-- Of a ticket too: data from before a restart may have a vote that it gave back since then, and that went to another.
local abstained = (mine or left <= 0) and abstains() or 0

if mine and abstained <= 0 then                       -- the same round repeated, or a new one with a higher token
  if proposed > highest then
    raise(proposed, lease + delay)
    token = proposed
    redis.call('HSET', lock, 'f', text(token))
  end
  redis.call('PEXPIRE', lock, text(lease + holders_delay))
  keep_top(lease + holders_delay)
  if crowd then unqueue(ticket) end
  return {1, text(token)}
end

if left > 0 or proposed <= highest or abstained > 0 then
  if join then
    enqueue(ticket, ARGV[9], lease, ARGV[6], ARGV[7], ARGV[8])
  elseif crowd then
    unqueue(ticket)
  end
  if abstained > 0 then return {3, text(highest), text(abstained)} end
  if left <= 0 then return {0, text(highest), '0', '', ''} end
  return {0, text(highest), text(left), holder or '', left > holders_delay and state[4] or ''}
end

raise(proposed, lease + delay)                        -- first: no vote may exist without its token being remembered
redis.call('HSET', lock, 't', ticket, 'f', text(proposed), 'l', ARGV[2], 'd', ARGV[3], 'o', ARGV[7], 'm', ARGV[8])
redis.call('PEXPIRE', lock, text(lease + delay))
if crowd then unqueue(ticket) end
return {1, text(proposed)}
