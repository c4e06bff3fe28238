-- Forgets what one limit counts for one key.
--
-- KEYS     the packed string of the key's rates (see take.lua), then the keys of rates that have one of their own.
-- ARGV[1]  little endian, for each rate in the string: u32 id, f64 units that a leaky bucket lets go at once; 0 for
--          other algorithms.
-- ARGV[2]  the time in microseconds since 1970; in tests only.
--
-- A leaky bucket that counts more units than it lets go at once has handed out departures that are still to come. It is
-- kept, because requests after the reset would depart between those that wait. Charges that other nodes named stay
-- named, so that none is made twice.
--
-- The answer: u32 counters forgotten, u32 counters kept.

local call, pack, unpack_from, sub = redis.call, struct.pack, struct.unpack, string.sub
local now = tonumber(ARGV[2])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end
local WHOLE = 9007199254740992

local body, named = ARGV[1], {}
for place = 1, #body - 11, 12 do
  local id, at_once = unpack_from('<I4d', body, place)
  named[id] = at_once
end

local forgotten, kept = 0, 0
local old = redis.pcall('GET', KEYS[1])
if type(old) == 'string' and #old <= 32768 then
  local at, rest, last, changed = 1, {}, now, false
  while at + 19 <= #old do
    local id, t = unpack_from('<I4d', old, at)
    local after = at + 20 + id % 64 * 4
    if after > #old + 1 then break end
    local at_once, drops = named[id], true
    if not at_once then
      drops = not (t >= now and t < WHOLE)
    elseif t >= now and t < WHOLE then
      if at_once > 0 and id % 64 > 0 then
        local b, pace = unpack_from('<ff', old, at + 16)
        drops = not (math.min(t - now, b) * pace > at_once * 1.000001)
      end
      if drops then forgotten = forgotten + 1 else kept = kept + 1 end
    end
    if drops then
      changed = true
    else
      rest[#rest + 1] = sub(old, at, after - 1)
      if t > last then last = t end
    end
    at = after
  end
  if #rest > 0 and changed then
    local ttl = (last - now) / 1000 + 1000
    call('SET', KEYS[1], table.concat(rest), 'PX', string.format('%.0f', ttl - ttl % 1))
  elseif changed then
    call('DEL', KEYS[1])
  end
end
for n = 2, #KEYS do
  local kind = call('TYPE', KEYS[n]).ok
  if kind == 'list' or kind == 'string' or kind == 'hash' and string.find(KEYS[n], '}:[HR]:') then
    call('DEL', KEYS[n])
    forgotten = forgotten + 1
  end
end
return pack('<I4I4', forgotten, kept)
