-- The common beginning of the scripts of bans, of entries of operators and of reports.
--
-- Bans and entries are announced in logs. A log numbers its announcements upwards, and its clock is a string of f64,
-- little endian: the latest time seen, the total by which the server's clock was set back, then numbers of its own.
-- Unsound state counts as absent. Time stands still when the server's clock is set back, so that nothing that was
-- announced lasts longer.

local call, pack, unpack_from, floor = redis.call, struct.pack, struct.unpack, math.floor
local LATEST, SECOND = 4503599627370496, 1000000

local function whole(number)
  return string.format('%.0f', number)
end

local function ms(us)
  return whole(floor(us / 1000) + 1)
end

-- A value of another type under this name is not ours.
local function own(key, kind)
  local found = call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then
    call('DEL', key)
  end
end

local function is_time(number)
  return number >= 0 and number < LATEST
end

-- Returns the time in microseconds, the numbers of the clock (all 0 for a new one), whether it is new, and whether the
-- server's clock was set back.
local function read_clock(key, count)
  own(key, 'string')
  local now = tonumber(ARGV[2])
  if not now then
    local time = call('TIME')
    now = time[1] * SECOND + time[2]
  end
  local text, numbers = call('GET', key), {}
  local is_new = not text or #text ~= 8 * count
  for n = 1, is_new and 0 or count do
    numbers[n] = unpack_from('<d', text, 8 * n - 7)
    is_new = is_new or not is_time(numbers[n])
  end
  for n = 1, is_new and count or 0 do
    numbers[n] = 0
  end
  now = now + numbers[2]
  local was_set_back = now < numbers[1]
  if was_set_back then
    now, numbers[2] = numbers[1], numbers[2] + numbers[1] - now
  end
  return now, numbers, is_new, was_set_back
end

-- The time from `now` until the last end among the scores of `key`; 0 if there is none.
local function time_to_last(key, now)
  local last = tonumber(call('ZRANGE', key, -1, -1, 'WITHSCORES')[2] or nil)
  return last and is_time(last) and last > now and last - now or 0
end
