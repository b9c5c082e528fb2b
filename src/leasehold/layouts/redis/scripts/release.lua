-- Releases the lock for an id, or takes the id out of the queue; wakes the first waiter of ours if the lock is free then.
-- ARGV  1 id  2 refuse later claims of the id 0/1  3 channel on which the other library notifies, '' if it has none
-- Reply 1 if the id was there, else 0
local id, held = ARGV[1], holder(ARGV[1]) == ARGV[1] or partly(ARGV[1])
local found = forget(id)
local waiting = first()  -- also removes those before it whose entries have ended
-- Only now: if the script ends since those were the last in a key (before_writes), then the lock is still held.
if held then
  free(id)
  if holder_key(id) ~= side then redis.call('DEL', holder_key(id)) end
  redis.call('HDEL', side, 't', 'o', 'm', 'l')
  found = 1
end
wake_next(held)
if ARGV[2] == '1' then
  local refused = redis.call('HGET', side, 'g') or ''
  if not string.find(refused, id, 1, true) then
    local failed = redis.pcall('HSET', side, 'g', string.sub(id .. ' ' .. refused, 1, MOST_REFUSED * (#id + 1)))
    if type(failed) ~= 'table' and redis.call('PTTL', side) < KEEP then redis.call('PEXPIRE', side, KEEP) end
  end
end
if topic or holder() or not waiting then return found end  -- on a topic the message has notified a waiter of each client
for _, waiter in ipairs(redis.call('ZRANGE', queue, '0', MOST_WOKEN)) do
  local record = redis.call('HGET', waiters, waiter)
  local channel = live(record) and string.match(record, '^%d+' .. SEP .. '%d+' .. SEP .. '([^' .. SEP .. ']*)')
  if channel and channel ~= '' and redis.call('PUBLISH', channel, waiter) > 0 then break end
end
return found
