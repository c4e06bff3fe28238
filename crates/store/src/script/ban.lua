-- Counts strikes, starts bans, takes over bans that a gateway knows, and announces the bans of other gateways.
--
-- KEYS     the announcements by their numbers, the same by their ends, the clock, the name of the store; then for each
--          client its last ban and its strikes; then for each ban that a gateway knows the client's last ban.
-- ARGV[1]  little endian: f64 period, f64 first, f64 longest (microseconds), u32 strikes that start a ban, f64 number
--          of the last known announcement, f64 name of the store that made it, u32 bans that the gateway knows; then
--          for each client its 16 bytes, f64 microseconds since its strikes, u32 strikes (0: its ban is lifted and its
--          strikes are forgotten; the f64 is then the time for which gateways may know the ban); then each such ban in
--          the format of an announcement in the answer.
-- ARGV[2]  the time in microseconds since 1970; in tests only.
--
-- The clock: f64 latest time seen, f64 total by which the server's clock was set back, f64 number of the last
-- announcement. The name of the store: the time of its first memory, so that it changes once the store was emptied.
-- A last ban: f64 end, f64 length, u32 consecutive bans before it. Strikes: a list of their times, oldest first.
-- An announcement: f64 end, f64 length, u32 consecutive bans before it, the client's 16 bytes. A length of 0 lifts the
-- ban; scripts of releases that lift none do not tell such an announcement.
--
-- The answer: f64 number of the last announcement in it, f64 name of the store or 0 if it could not be kept, u8 1 if
-- there are more; for each client u8 0 nothing, 1 banned before, 2 banned now, and if it is banned f64 left, f64
-- length, u32 consecutive bans before; then for each announcement the client's 16 bytes, f64 left, f64 length, u32
-- consecutive bans before.

local NUMBERED, ENDING, CLOCK, STORE = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local ANNOUNCED_MAX, TOLD_MAX, DROPPED_MAX, PUSHED_MAX = 100000, 1000, 1000, 1000

local body = ARGV[1]
local period, first, longest, after, known, known_store, told_bans, place = unpack_from('<dddI4ddI4', body)

local now, clock, is_new, was_set_back = read_clock(CLOCK, 3)
local seen, ahead, number = unpack(clock)
-- Announcements of another clock are of no use.
own(NUMBERED, is_new and 'none' or 'zset')
own(ENDING, is_new and 'none' or 'zset')

own(STORE, 'string')
local store = tonumber(call('GET', STORE) or nil)
local is_new_store = is_new or not (store and store > 0 and is_time(store))
if is_new_store then
  store = floor(now)
end
-- Numbers only grow: a gateway that knows a later one, or another store, knows bans that this store has lost.
if known_store ~= 0 and known_store ~= store or known > number then
  known = 0
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
  -- A ban that is left for longer than its length is unsound.
  if is_time(ends) and is_time(lasts) and ends - now <= lasts then
    return ends, lasts, repeats
  end
end

-- True if `count` strikes at `at` start a ban; if not, they are remembered.
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

local has_started = false

local function announce(id, ends, lasts, repeats)
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
end

-- Starts a ban and announces it.
local function begin(key, id, ends, lasts, repeats)
  call('SET', key, pack('<ddI4', ends, lasts, repeats), 'PX', ms(ends - now + longest))
  announce(id, ends, lasts, repeats)
end

-- Ends a ban, which gateways may know for `left`, and forgets strikes.
local function lift(ban, strikes, id, left)
  local ends, lasts, repeats = last_ban(ban)
  if ends then
    drop({ pack('<ddI4', ends, lasts, repeats) .. id })
  end
  call('DEL', ban)
  call('DEL', strikes)
  local known_until = math.max(now + left, ends or 0)
  if left >= 0 and known_until > now and is_time(known_until) then
    announce(id, known_until, 0, 0)
  end
end

local answers = {}
local clients = (#KEYS - 4 - told_bans) / 2
for n = 1, clients do
  local ban, strikes = KEYS[3 + 2 * n], KEYS[4 + 2 * n]
  local id, age, count
  id, age, count, place = unpack_from('<c16dI4', body, place)
  own(ban, 'string')
  own(strikes, 'list')
  local ends, lasts, repeats = last_ban(ban)
  if count == 0 then
    lift(ban, strikes, id, age)
    answers[n] = '\0'
  elseif ends and ends > now - age then
    answers[n] = ends > now and pack('<BddI4', 1, ends - now, lasts, repeats) or '\0'
  elseif not strike(strikes, now - age, count) then
    answers[n] = '\0'
  else
    repeats = ends and now - ends < longest and math.min(repeats + 1, 4294967295) or 0
    lasts = math.min(first * 2 ^ repeats, longest)
    ends = now + lasts
    call('DEL', strikes)
    begin(ban, id, ends, lasts, repeats)
    answers[n] = pack('<BddI4', 2, lasts, lasts, repeats)
  end
end

-- Bans that a gateway knows; one that ends as late here is the same ban, reported by another gateway.
for n = 1, told_bans do
  local ban = KEYS[4 + 2 * clients + n]
  local id, left, lasts, repeats
  id, left, lasts, repeats, place = unpack_from('<c16ddI4', body, place)
  own(ban, 'string')
  local ends = last_ban(ban)
  if left <= lasts and is_time(now + lasts) and not (ends and ends + SECOND >= now + left) then
    begin(ban, id, now + left, lasts, repeats)
  end
end

if has_started then
  drop(call('ZRANGEBYSCORE', ENDING, '-inf', whole(now), 'LIMIT', 0, DROPPED_MAX))
  local excess = math.min(call('ZCARD', NUMBERED) - ANNOUNCED_MAX, DROPPED_MAX)
  if excess > 0 then
    drop(call('ZRANGE', NUMBERED, 0, excess - 1))
  end
  local stays = math.max(longest, time_to_last(ENDING, now))
  call('PEXPIRE', NUMBERED, ms(stays))
  call('PEXPIRE', ENDING, ms(stays))
end
if is_new_store or was_set_back or has_started or now - seen >= SECOND then
  -- Where there is no memory for these, announcements are still returned.
  local life = ms(period + 2 * longest)
  redis.pcall('SET', CLOCK, pack('<ddd', now, ahead, number), 'PX', life)
  local kept = redis.pcall('SET', STORE, whole(store), 'PX', life)
  if is_new_store and kept.err then
    store = 0
  end
end

local news = call('ZRANGEBYSCORE', NUMBERED, '(' .. whole(known), whole(number), 'WITHSCORES', 'LIMIT', 0, TOLD_MAX)
local told = clients
for n = 1, #news, 2 do
  known = tonumber(news[n + 1])
  if #news[n] == 36 then
    local ends, lasts, repeats, id = unpack_from('<ddI4c16', news[n])
    if lasts == 0 and is_time(ends) and ends > now then
      told = told + 1
      answers[told] = pack('<c16ddI4', id, 0, 0, 0)
    elseif is_time(ends) and is_time(lasts) and ends > now and ends - now <= lasts then
      told = told + 1
      answers[told] = pack('<c16ddI4', id, ends - now, lasts, repeats)
    end
  end
end
return pack('<ddB', known, store, #news == 2 * TOLD_MAX and 1 or 0) .. table.concat(answers)
