-- Keeps one report of each gateway for a while, and returns them.
--
-- KEYS[1]: the names of gateways, scored by the time (ms since 1970) until which their reports count. Then the reports:
--          of the gateway that publishes one, or those to read.
-- ARGV[1]: u8 operation: 1 publishes the report that follows the 16 bytes of its gateway's name, 2 returns the names, 3
--          returns the reports of KEYS, each behind its u32 length; one that ended is empty.
-- A published report is answered by u8 0, or 1 if there are too many gateways.
local REPORTS_MAX, LIFE_MS = 256, 10000
local time, body = call('TIME'), ARGV[1]
local now = time[1] * 1000 + floor(time[2] / 1000)
own(KEYS[1], 'zset')
call('ZREMRANGEBYSCORE', KEYS[1], '-inf', whole(now))

local operation = string.byte(body, 1)
if operation == 1 then
  own(KEYS[2], 'string')
  if not call('GET', KEYS[2]) and call('ZCARD', KEYS[1]) >= REPORTS_MAX then return '\1' end
  call('SET', KEYS[2], string.sub(body, 18), 'PX', LIFE_MS)
  call('ZADD', KEYS[1], whole(now + LIFE_MS), string.sub(body, 2, 17))
  call('PEXPIRE', KEYS[1], LIFE_MS)
  return '\0'
end
local told = {}
if operation == 2 then
  local names = call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf', 'LIMIT', 0, REPORTS_MAX)
  for n = 1, #names do
    if #names[n] == 16 then told[#told + 1] = names[n] end
  end
else
  for n = 2, #KEYS do
    local report = call('TYPE', KEYS[n]).ok == 'string' and call('GET', KEYS[n]) or ''
    told[#told + 1] = struct.pack('<I4', #report) .. report
  end
end
return table.concat(told)
