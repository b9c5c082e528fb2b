-- As redlock_inspect.lua. It changes nothing.
local reply, value, wrong = step(KEYS, ARGV), read()
if reply.err or wrong then return reply.err and reply or wrong end
if not value then
  reply[2], reply[3] = {'', '', '', '', '', ''}, '0'
elseif value ~= reply[2][1] or reply[2][2] == '0' then
  local left = string.format('%.0f', left_of(plain))
  reply[2], reply[3] = {value, '0', left, '0', of_others(value), ''}, left
end
return reply
