-- Counts the gateways that live, and those that count each limit.
--
-- KEYS[1]: the live gateways, scored by the time (ms since 1970) until which they count.
-- KEYS[2]: a hash of the limits that they count. A field is 16 bytes gateway and 8 bytes name; its value, little
--          endian, f64 time until which it counts, 4 bytes shape and 4 bytes numbers: hashes, equal for equal limits.
-- ARGV: this gateway's name, ms that it counts without another heartbeat, its limits: 8 bytes name, 4 shape, 4 numbers
--       for each.
-- Returns how many gateways live, and for each limit u32 gateways that count it by this name and shape, and u8 flags:
-- 1 if some of them have other numbers, 2 if others have this name for another shape.
local LIMITS_MAX = 50000
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local own, life, limits = ARGV[1], ARGV[2], ARGV[3]
-- A value of another type under these names is not ours.
for place, type in ipairs({ 'zset', 'hash' }) do
  local kind = redis.call('TYPE', KEYS[place]).ok
  if kind ~= type and kind ~= 'none' then redis.call('DEL', KEYS[place]) end
end
-- This write comes first, because a server checks its memory only before the first write of a script.
redis.call('ZADD', KEYS[1], string.format('%.0f', now + life), own)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now))
redis.call('PEXPIRE', KEYS[1], life)

local counted, places = {}, {}
for at = 1, #limits - 15, 16 do
  local name, same = limits:sub(at, at + 7), limits:sub(at + 8, at + 15)
  redis.call('HSET', KEYS[2], own .. name, struct.pack('<d', now + life) .. same)
  counted[#counted + 1] = { same = same, nodes = 0, differs = 0, collides = 0 }
  places[name] = counted[#counted]
end
local all = redis.call('HGETALL', KEYS[2])
local living = redis.call('ZCARD', KEYS[1])
-- Reading more would hold up the server; all live gateways are assumed to count each limit then.
local too_many = #all > 2 * LIMITS_MAX
for n = 1, too_many and 0 or #all, 2 do
  local field, value = all[n], all[n + 1]
  local until_ms = #field == 24 and #value == 16 and struct.unpack('<d', value)
  if not (until_ms and until_ms >= now and until_ms <= now + 60000) then
    redis.call('HDEL', KEYS[2], field)
  else
    local count, same = places[field:sub(17)], value:sub(9)
    if count and same:sub(1, 4) == count.same:sub(1, 4) then
      count.nodes = count.nodes + 1
      if same ~= count.same then count.differs = 1 end
    elseif count then
      count.collides = 2
    end
  end
end
if #counted > 0 then redis.call('PEXPIRE', KEYS[2], life) end
local answer = {}
for n, count in ipairs(counted) do
  answer[n] = struct.pack('<I4B', too_many and living or count.nodes, count.differs + count.collides)
end
return { living, table.concat(answer) }
