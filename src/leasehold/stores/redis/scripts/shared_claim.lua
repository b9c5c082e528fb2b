-- Acquires a name with many holders, or joins its queue.
-- ARGV  1 ticket  2 use  3 lease ms  4 lock delay ms  5 join the queue 0/1  6 fair 0/1  7 channel  8 owner  9 meta
--       10 alone (exclusive) 0/1  11 upgradeable 0/1  12 permits  13 alongside: the caller's own holding ticket, or ''
-- Reply as claim.lua
local ticket, join, fair, lease = ARGV[1], ARGV[5] == '1', ARGV[6] == '1', tonumber(ARGV[3])
local me = shape({channel = ARGV[7], alongside = ARGV[13]}, lease, ARGV[4], ARGV[8], ARGV[10], ARGV[11], ARGV[12], ARGV[9])

load(ARGV[2])

if refused(s.refused, ticket) then return {0, text(now()), '1000', false} end  -- it was released

local function must_wait(left, owner)
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
if mine then                                         -- a repeated claim: the same reply, and a full lease
  clear()
  extend(ticket, lease)
  save()
  return {1, mine.token, text(now())}
end

local alongside = holding(me.alongside)
local free = s.complete and s.blocked_until <= ms and fits(me, alongside) and not (fair and redis.call('ZCARD', queue) > 0)
if join and not free then
  begin()
  if not waiting(ticket) then                        -- an entry that has expired is lost: the ticket goes to the end
    s.last = s.last + 1
    redis.call('ZADD', queue, text(alongside and s.last - FIRST or s.last), ticket)
  end
  redis.call('ZADD', beat, text(now() / 1000 + lease), ticket)
  redis.call('HSET', waiters, ticket, table.concat({ARGV[7], ARGV[3], ARGV[4], ARGV[8], ARGV[10], ARGV[11], ARGV[12],
    ARGV[13], ARGV[9]}, SEP))                        -- written at each claim: the channel may be open by now
  keep_waiters(lease)
end

if fair and not free and redis.call('ZCARD', queue) > 0 then  -- the first waiter acquires, possibly this one
  begin()
  local token = grant_next(ticket)
  if token then return done({1, text(token), text(now())}) end
end

-- Expiry and owner of that holder in the way whose lease ends first: before that nothing changes by itself.
local function first_to_end()
  local found = redis.call('ZRANGEBYSCORE', holders, '(' .. text(ms), '+inf', 'WITHSCORES', 'LIMIT', 0, 2)
  local i = found[1] == me.alongside and 3 or 1
  if not found[i] then return nil end
  local fields = redis.call('HGET', terms, found[i])
  return tonumber(found[i + 1]), fields and holder_of(fields).owner
end

-- Ticket and owner of the waiter ahead that this one must not overtake. As _rules.decide. A waiter behind PASSED others
-- waits for one of them.
local function ahead()
  local found = redis.call('ZRANGE', queue, 0, PASSED - 1, 'WITHSCORES')
  local order = tonumber(redis.call('ZSCORE', queue, ticket) or FIRST)
  if order < 0 then order = order + FIRST end
  local other, owner
  for i = 1, #found, 2 do
    local arrival = tonumber(found[i + 1])
    local upgrades = arrival < 0
    if upgrades then arrival = arrival + FIRST end
    if not upgrades and arrival >= order then return nil end
    local entry = arrival < order and waiter(found[i])
    if entry then
      other, owner = found[i], entry.owner
      if limit or me.alone == 1 or entry.alone == 1 then return other, owner end
    end
  end
  if #found == 2 * PASSED then return other, owner end
end

if not s.complete then return done(must_wait(0, false)) end
if s.blocked_until > ms then return done(must_wait(s.blocked_until - ms, false)) end
if not fits(me, alongside) then
  local ends, owner = first_to_end()
  return done(must_wait((ends or ms + lease) - ms, owner or false))
end
if fair and not free and not alongside then
  local other, owner = ahead()
  if other then
    local ends = tonumber(redis.call('ZSCORE', beat, other))
    return done(must_wait(math.min(ends, first_to_end() or ends) - ms, owner))
  end
end

begin()
unqueue(ticket)
local token = next_token(s.fence)
grant(ticket, me, token)
return done({1, text(token), text(now())})
