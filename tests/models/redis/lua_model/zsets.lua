-- Sorted sets.

local ZADD_OPTIONS = {XX = true, NX = true, GT = true, LT = true, CH = true, INCR = true}

local function put(fields, member, score)
  local value, order = fields.value, fields.order
  if value[member] ~= nil then drop(order, member) end
  local at = #order
  while at > 0 do
    local other = order[at]
    local its = value[other]
    if its < score or its == score and other < member then break end
    at = at - 1
  end
  value[member] = score
  insert(order, at + 1, member)
end

local function zadd(key, ...)
  local words, on, at = {...}, {}, 1
  while words[at] and ZADD_OPTIONS[upper(words[at])] do
    on[upper(words[at])] = true
    at = at + 1
  end
  if on.CH or on.INCR then refuse('ZADD with CH or INCR') end
  if at > #words or (#words - at + 1) % 2 == 1 then error(SYNTAX, 0) end
  if on.NX and on.XX then
    error({err = 'ERR XX and NX options at the same time are not compatible'}, 0)
  end
  if on.NX and on.GT or on.NX and on.LT or on.GT and on.LT then
    error({err = 'ERR GT, LT, and/or NX options at the same time are not compatible'}, 0)
  end
  local scores, added = {}, 0
  for place = at, #words, 2 do scores[place] = real(words[place]) end
  if on.XX and not of(key, 'zset') then return 0 end
  local fields = made(key, 'zset')
  for place = at, #words, 2 do
    local member, score = words[place + 1], scores[place]
    local old = fields.value[member]
    if old == nil then
      if not on.XX then
        put(fields, member, score)
        added = added + 1
      end
    elseif not (on.NX or on.GT and score <= old or on.LT and score >= old) then
      put(fields, member, score)
    end
  end
  return added
end

local function zcard(key)
  local fields = of(key, 'zset')
  return fields and #fields.order or 0
end

local function zscore(key, member)
  local fields = of(key, 'zset')
  local score = fields and fields.value[member]
  return score and written(score) or false
end

local function zrem(key, ...)
  return take(key, 'zset', ...)
end

local function listed(fields, members, scores)
  if not scores then return members end
  local found = {}
  for _, member in ipairs(members) do
    found[#found + 1] = member
    found[#found + 1] = written(fields.value[member])
  end
  return found
end

local function zrange(key, start, stop, ...)
  for at = 1, select('#', ...) do
    if upper((select(at, ...))) ~= 'WITHSCORES' then refuse('ZRANGE but by rank') end
  end
  local first, last = whole(start), whole(stop)
  local fields = of(key, 'zset')
  if not fields then return {} end
  local count, found = #fields.order, {}
  if first < 0 then first = math.max(0, first + count) end
  if last < 0 then last = last + count end
  for at = first + 1, math.min(last + 1, count) do found[#found + 1] = fields.order[at] end
  return listed(fields, found, select('#', ...) > 0)
end

local function zrangebyscore(key, low, high, ...)
  local words, scores, offset, most, at = {...}, false, 0, -1, 1
  while words[at] do
    local option = upper(words[at])
    if option == 'WITHSCORES' then
      scores = true
    elseif option == 'LIMIT' then
      offset, most = whole(words[at + 1] or ''), whole(words[at + 2] or '')
      at = at + 2
    else
      error(SYNTAX, 0)
    end
    at = at + 1
  end
  local above, not_above = bound(low)
  local below, not_below = bound(high)
  local fields = of(key, 'zset')
  if not fields or offset < 0 then return {} end
  local found, skipped = {}, 0
  for _, member in ipairs(fields.order) do
    local score = fields.value[member]
    if (score > above or score == above and not not_above) and (score < below or score == below and not not_below) then
      if skipped < offset then
        skipped = skipped + 1
      elseif most < 0 or #found < most then
        found[#found + 1] = member
      end
    end
  end
  return listed(fields, found, scores)
end
