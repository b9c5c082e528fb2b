-- Take a share of the name, or join its queue.
-- ARGV  1 ticket  2 use  3 lease ms  4 delay ms  5 join 0/1  6 fair 0/1  7 channel  8 owner  9 meta  10 alone 0/1
--       11 upgradeable 0/1  12 permits  13 alongside: a ticket, or ''
-- Reply as claim.lua
local ticket, join, fair, lease = ARGV[1], ARGV[5] == '1', ARGV[6] == '1', tonumber(ARGV[3])
local me = shape({channel = ARGV[7], alongside = ARGV[13]}, lease, ARGV[4], ARGV[8], ARGV[10], ARGV[11], ARGV[12], ARGV[9])

load(ARGV[2])

if refused(s.refused, ticket) then return {0, text(now()), '1000', false} end  -- it has left

local function waits(left, owner)
  return {0, text(now()), text(left), owner}
end

local function done(reply)
  if s.begun or #s.expired > 0 or s.kept then
    clear()
    save()
  end
  return reply
end

if used_otherwise() then
  return done({2, s.kind})
end

local mine = holding(ticket)
if mine then                                         -- a repeated claim: the same answer, and a full lease again
  clear()
  extend(ticket, lease)
  save()
  return {1, mine.token, text(now())}
end

local alongside = holding(me.alongside)
local free = s.complete and s.blocked_until <= ms and fits(me, alongside) and not (fair and redis.call('ZCARD', queue) > 0)
if join and not free then
  begin()
  if not waiting(ticket) then                        -- a place that was given up is not had back
    s.last = s.last + 1
    redis.call('ZADD', queue, text(alongside and s.last - FIRST or s.last), ticket)
  end
  redis.call('ZADD', beat, text(now() / 1000 + lease), ticket)
  redis.call('HSET', waiters, ticket, table.concat({ARGV[7], ARGV[3], ARGV[4], ARGV[8], ARGV[10], ARGV[11], ARGV[12],
    ARGV[13], ARGV[9]}, SEP))                        -- again at each claim: the channel may be open by now
  keep_waiters(lease)
end

if fair and not free and redis.call('ZCARD', queue) > 0 then  -- whoever is first enters, and that may be me
  begin()
  local token = let_in(ticket)
  if token then return done({1, text(token), text(now())}) end
end

-- Expiry and owner of the holder whose lease ends first, of those in my way: before that nothing changes by itself.
local function first_to_end()
  local found = redis.call('ZRANGEBYSCORE', holders, '(' .. text(ms), '+inf', 'WITHSCORES', 'LIMIT', 0, 2)
  local i = found[1] == me.alongside and 3 or 1
  if not found[i] then return nil end
  local fields = redis.call('HGET', terms, found[i])
  return tonumber(found[i + 1]), fields and holder_of(fields).owner
end

-- The waiter ahead of me that I must not overtake: its ticket and owner. As rules.decide; who stands behind PASSED others
-- is behind one of them.
local function ahead()
  local found = redis.call('ZRANGE', queue, 0, PASSED - 1, 'WITHSCORES')
  local place = tonumber(redis.call('ZSCORE', queue, ticket) or FIRST)
  if place < 0 then place = place + FIRST end
  local other, owner
  for i = 1, #found, 2 do
    local arrival = tonumber(found[i + 1])
    local inside = arrival < 0
    if inside then arrival = arrival + FIRST end
    if not inside and arrival >= place then return nil end
    local entry = arrival < place and waiter(found[i])
    if entry then
      other, owner = found[i], entry.owner
      if limit or me.alone == 1 or entry.alone == 1 then return other, owner end
    end
  end
  if #found == 2 * PASSED then return other, owner end
end

if not s.complete then return done(waits(0, false)) end
if s.blocked_until > ms then return done(waits(s.blocked_until - ms, false)) end
if not fits(me, alongside) then
  local ends, owner = first_to_end()
  return done(waits((ends or ms + lease) - ms, owner or false))
end
if fair and not free and not alongside then
  local other, owner = ahead()
  if other then
    local ends = tonumber(redis.call('ZSCORE', beat, other))
    return done(waits(math.min(ends, first_to_end() or ends) - ms, owner))
  end
end

begin()
unqueue(ticket)
local token = next_token(s.fence)
grant(ticket, me, token)
return done({1, text(token), text(now())})
