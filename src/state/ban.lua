-- Counts strikes, starts bans, and tells what bans other gateways started.
--
-- KEYS     the announcements by their numbers, the same by their ends, the clock; then of each client its last ban and
--          its strikes.
-- ARGV[1]  little endian: f64 period, f64 first, f64 longest (microseconds), u32 strikes that start a ban, f64 number of
--          the last announcement that is known; then of each client its 16 bytes, f64 microseconds since its strikes,
--          u32 strikes.
-- ARGV[2]  the time in microseconds since 1970; in tests only.
--
-- The clock: f64 latest time seen, f64 what the server's clock was set back in all, f64 number of the last announcement.
-- A last ban: f64 end, f64 length, u32 bans in a row before it. Strikes: a list of their times, oldest first.
-- An announcement: f64 end, f64 length, u32 bans in a row before it, the client's 16 bytes.
--
-- The answer: f64 number of the last announcement told, u8 1 if there are more; of each client u8 0 nothing, 1 banned
-- before, 2 banned now, and if it is banned f64 left, f64 length, u32 bans in a row before; then of each announcement
-- the client's 16 bytes, f64 left, f64 length, u32 bans in a row before.
--
-- What is no sound state counts as absent. Time goes on where it was when the server's clock is set back, so that no
-- ban gets longer.

local call, pack, unpack_from, floor = redis.call, struct.pack, struct.unpack, math.floor
local NUMBERED, ENDING, CLOCK = KEYS[1], KEYS[2], KEYS[3]
local ANNOUNCED_MAX, TOLD_MAX, DROPPED_MAX, PUSHED_MAX = 100000, 1000, 1000, 1000
local LATEST, SECOND = 4503599627370496, 1000000

local function whole(number)
  return string.format('%.0f', number)
end

local function ms(us)
  return whole(floor(us / 1000) + 1)
end

-- A value of another type at this name is nobody's.
local function own(key, kind)
  local found = call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then
    call('DEL', key)
  end
end

local function is_time(number)
  return number >= 0 and number < LATEST
end

local body = ARGV[1]
local period, first, longest, after, known, place = unpack_from('<dddI4d', body)

own(CLOCK, 'string')
local now = tonumber(ARGV[2])
if not now then
  local time = call('TIME')
  now = time[1] * SECOND + time[2]
end
local clock, seen, ahead, number = call('GET', CLOCK), 0, 0, 0
local is_new = true
if clock and #clock == 24 then
  seen, ahead, number = unpack_from('<ddd', clock)
  is_new = not (is_time(seen) and is_time(ahead) and is_time(number))
end
if is_new then
  seen, ahead, number = 0, 0, 0
end
-- What another clock announced is of no use.
own(NUMBERED, is_new and 'none' or 'zset')
own(ENDING, is_new and 'none' or 'zset')
now = now + ahead
local was_set_back = now < seen
if was_set_back then
  now, ahead = seen, ahead + seen - now
end

local function drop(members)
  if #members > 0 then
    call('ZREM', NUMBERED, unpack(members))
    call('ZREM', ENDING, unpack(members))
  end
end

local function last_ban(key)
  local value = call('GET', key)
  if not value or #value ~= 20 then
    return nil
  end
  local ends, lasts, repeats = unpack_from('<ddI4', value)
  -- One that has longer to run than it lasts is none.
  if is_time(ends) and is_time(lasts) and ends - now <= lasts then
    return ends, lasts, repeats
  end
end

-- Whether `count` strikes at `at` start a ban; if not, they are remembered.
local function strike(key, at, count)
  local newest = call('LINDEX', key, -1)
  if newest then
    newest = tonumber(newest)
    if newest and newest <= now then
      at = math.max(at, newest)
    else
      call('DEL', key)
    end
  end
  local missing = after - count
  if missing <= 0 then
    return true
  end
  local oldest = call('LINDEX', key, -missing)
  if oldest and (tonumber(oldest) or 0) > at - period then
    return true
  end
  local times, time = {}, whole(at)
  for n = 1, math.min(count, PUSHED_MAX) do
    times[n] = time
  end
  while count > 0 do
    call('RPUSH', key, unpack(times, 1, math.min(count, PUSHED_MAX)))
    count = count - PUSHED_MAX
  end
  call('LTRIM', key, -(after - 1), -1)
  call('PEXPIRE', key, ms(period))
  return false
end

local answers, has_started = {}, false
local clients = (#KEYS - 3) / 2
for n = 1, clients do
  local ban, strikes = KEYS[2 + 2 * n], KEYS[3 + 2 * n]
  local id, age, count
  id, age, count, place = unpack_from('<c16dI4', body, place)
  own(ban, 'string')
  own(strikes, 'list')
  local ends, lasts, repeats = last_ban(ban)
  if ends and ends > now - age then
    answers[n] = ends > now and pack('<BddI4', 1, ends - now, lasts, repeats) or '\0'
  elseif not strike(strikes, now - age, count) then
    answers[n] = '\0'
  else
    repeats = ends and now - ends < longest and math.min(repeats + 1, 4294967295) or 0
    lasts = math.min(first * 2 ^ repeats, longest)
    ends = now + lasts
    call('SET', ban, pack('<ddI4', ends, lasts, repeats), 'PX', ms(lasts + longest))
    call('DEL', strikes)
    if not has_started then
      has_started = true
      if call('ZCARD', NUMBERED) ~= call('ZCARD', ENDING) then
        call('DEL', NUMBERED, ENDING)
      end
    end
    number = math.max(number + 1, floor(now))
    local announced = pack('<ddI4', ends, lasts, repeats) .. id
    call('ZADD', NUMBERED, whole(number), announced)
    call('ZADD', ENDING, whole(ends), announced)
    answers[n] = pack('<BddI4', 2, lasts, lasts, repeats)
  end
end

if has_started then
  drop(call('ZRANGEBYSCORE', ENDING, '-inf', whole(now), 'LIMIT', 0, DROPPED_MAX))
  local excess = math.min(call('ZCARD', NUMBERED) - ANNOUNCED_MAX, DROPPED_MAX)
  if excess > 0 then
    drop(call('ZRANGE', NUMBERED, 0, excess - 1))
  end
  call('PEXPIRE', NUMBERED, ms(longest))
  call('PEXPIRE', ENDING, ms(longest))
end
if is_new or was_set_back or has_started or now - seen >= SECOND then
  -- Where there is no memory for it, what was announced is told all the same.
  redis.pcall('SET', CLOCK, pack('<ddd', now, ahead, number), 'PX', ms(period + 2 * longest))
end

-- Numbers only grow: who knows a later one knew a store that has lost it.
if known > number then
  known = 0
end
local news = call('ZRANGEBYSCORE', NUMBERED, '(' .. whole(known), whole(number), 'WITHSCORES', 'LIMIT', 0, TOLD_MAX)
local told = clients
for n = 1, #news, 2 do
  known = tonumber(news[n + 1])
  if #news[n] == 36 then
    local ends, lasts, repeats, id = unpack_from('<ddI4c16', news[n])
    if is_time(ends) and is_time(lasts) and ends > now and ends - now <= lasts then
      told = told + 1
      answers[told] = pack('<c16ddI4', id, ends - now, lasts, repeats)
    end
  end
end
return pack('<dB', known, #news == 2 * TOLD_MAX and 1 or 0) .. table.concat(answers)
