-- The part of take.lua for class 4: one rate whose charges are settled by responses, in a string of its own.
--
-- An item: u8 kind, u8 flags, f64 x, f64 w, f64 limit, f64 unit, then by the op:
--   1, 2  f64 units, f64 z: the item is accepted if it finds a level of at most z
--   3     f64 units, f64 the mark of their charge: nothing of it was used
--   5     f64 units to charge
--   6     one after another, as many as the group says items: f64 mark, f64 reserved, f64 used units, u8 whether to forget
--   kind 0 token_bucket    x ticks per microsecond, w units per microsecond; units and limit in ticks, `unit` of which are one
--   kind 1 fixed_window    x period; the first unit begins a window
--   kind 2 fixed_window    x period; the windows are those of UTC
--   kind 3 sliding_window  x period, w width of a sub-window
--   kind 4 sliding_log     x period
-- Units beyond the limit, at most as many again, are debt: always the newest. As older units leave, the whole debt
-- counts as if it had been charged at that moment. Units that are reserved are named by the mark of the answer; a key
-- that is forgotten keeps them. Those of a gateway that was killed are never named again, and leave with their window.
--
-- The string of a window: f64 units, f64 reserved, then runs of f64 when its units leave, f64 units, f64 reserved, in
-- the order of time. A log of many runs becomes coarser: units then leave late by at most 0.4 % of the period.
-- The string of a bucket: f64 TAT, f64 ticks beyond it, f64 last charge, f64 x, f64 w, then the reservations: f64
-- moment, f64 the lowest level that the charges after it found, until that of the next reservation, f64 ticks. It
-- bounds the ticks that can be given back: those regained since would be regained without the charge as well.
--
-- The answer to 1 and 2: f64 level, f64 mark, f64 when the units fit, f64 when one more unit fits, f64 reserved; to 6,
-- for each, f64 units that were charged beyond the reservation, or -1 if it was settled before.

local kind, flags, x, w, max, unit
kind, flags, x, w, max, unit, p = unpack_from('<BBdddd', body, p)
local HEAD, RUN, RUNS_MAX = kind == 0 and 40 or 16, 24, 512
local text = get(key)
if type(text) ~= 'string' or #text > 32768 or #text < HEAD or (#text - HEAD) % RUN ~= 0 then
  text = string.rep('\0', HEAD)
end
-- The runs, or reservations, after the first `gone`.
local gone, length, level, reserved, last, back = 0, (#text - HEAD) / RUN, 0, 0, 0, false

local function run(i) return unpack_from('<ddd', text, HEAD + 1 + (i - 1) * RUN) end

local function replace(i, values)
  text = sub(text, 1, HEAD + (i - 1) * RUN) .. values .. sub(text, HEAD + 1 + i * RUN)
end

-- Replaces all from the place `i` on.
local function rewrite(i, parts)
  text, length = sub(text, 1, HEAD + (i - 1) * RUN) .. table.concat(parts), i - 1 + #parts
end

-- Merges neighbours: those of a log leave late, and a reservation counts with the one before.
local function shorten()
  local parts, one, two, three = {}, run(gone + 1)
  local width = x * 2 / RUNS_MAX
  for i = gone + 2, length do
    local a, b, c = run(i)
    if kind == 0 and i % 2 == 0 then
      two, three = b < two and b or two, three + c
    elseif kind == 4 and math.floor(a / width) == math.floor(one / width) then
      one, two, three = a, two + b, three + c
    else
      parts[#parts + 1] = pack('<ddd', one, two, three)
      one, two, three = a, b, c
    end
  end
  parts[#parts + 1] = pack('<ddd', one, two, three)
  text, gone, length = sub(text, 1, HEAD) .. table.concat(parts), 0, #parts
end

local function push(a, b, c)
  text = text .. pack('<ddd', a, b, c)
  length = length + 1
  if length - gone > RUNS_MAX then shorten() end
end

-- Adds units to the newest run, or to a newer one.
local function append(leaves, units, held)
  if length > gone then
    local a, b, c = run(length)
    if a >= leaves then return replace(length, pack('<ddd', a, b + units, c + held)) end
  end
  push(leaves, units, held)
end

local span = kind == 3 and math.ceil(x / w) * w or x

-- When units leave that are charged now.
local function leaving()
  local leaves = now + x
  if kind == 2 then leaves = now - now % x + x end
  if kind == 3 then leaves = now - now % w + w + x end
  if length > gone and (kind > 1 or level > 0) then
    local newest = run(length)
    if kind == 1 or newest > leaves then leaves = newest end
  end
  return leaves
end

-- When so many units more have left; those that leave first count once more as debt.
local function left_at(units)
  local later = 0
  if units > max then units, later = units - max, span end
  local leaves = now + 1
  for i = gone + 1, length do
    local a, b = run(i)
    leaves, units = a, units - b
    if units <= 0 then break end
  end
  return leaves + later
end

-- The charges after this one found at least this level.
local function note_charge()
  if level == 0 then
    -- All that was reserved is regained.
    text, length = sub(text, 1, HEAD), 0
  elseif length > 0 then
    local a, b, c = run(length)
    if a ~= now and level < b then replace(length, pack('<ddd', a, level, c)) end
  end
  last = now
end

local function force(units)
  local room = 2 * max - level
  room = room - room % unit
  if units > room then units = room end
  if not (units > 0) then return 0 end
  if kind == 0 then note_charge() else append(leaving(), units, 0) end
  level = level + units
  return units / unit
end

-- Corrects a charge from `was` units to `used` ones; returns the units beyond that were charged.
local function settle(mark, was, used)
  -- Its own run, and that of its units: in a log they may have become newer.
  local own, home, found
  for i = length, gone + 1, -1 do
    local a, b = run(i)
    if kind == 0 then
      if a == mark then own = i break end
      if a < mark and not found then found = i end
    else
      if a < mark or mark <= now then break end
      own = i
      if b > 0 then home = i end
    end
  end
  own = own or found
  local a, b, c
  if own then
    a, b, c = run(own)
    if kind > 0 and kind < 4 then
      home = own
      if a ~= mark then own = nil end
    end
    -- The key was forgotten meanwhile. Ticks of another rate are rounded.
    if (kind == 0 and c * 1.000001 + 1 or c) < was then own = nil end
  end
  local charged, excess = 0, used - was
  if own and kind == 0 then
    local given, parts = excess < 0 and -excess or 0, {}
    for i = own, length do
      local _, lowest = run(i)
      if lowest < given then given = lowest end
    end
    level = level > given and level - given or 0
    b = b - given
    local from = own
    if c > was then
      parts[1] = pack('<ddd', a, b, c - was)
    elseif own > 1 then
      local moment, lowest, held = run(own - 1)
      from, parts[1] = own - 1, pack('<ddd', moment, b < lowest and b or lowest, held)
    end
    for i = own + 1, length do
      local moment, lowest, held = run(i)
      parts[#parts + 1] = pack('<ddd', moment, lowest - given, held)
    end
    rewrite(from, parts)
  elseif own then
    local added = 0
    if home and excess ~= 0 then
      local leaves, units, held = run(home)
      local room = 2 * max - level
      added = excess < room and excess or room > 0 and room or 0
      if excess < 0 then added = excess < -units and -units or excess end
      if home ~= own then replace(home, pack('<ddd', leaves, units + added, held)) else b = b + added end
      level, charged, excess = level + added, added, 0
    end
    reserved = reserved - was
    local rest = c > was or b > 0
    replace(own, rest and pack('<ddd', a, b, c - was) or '')
    if not rest then length = length - 1 end
  end
  if excess > 0 then charged = force(excess) end
  return charged > 0 and charged or 0
end

-- Forgets all but what is reserved.
local function forget()
  local parts, kept, waits, elsewhere, count = {}, {}, 0, 0, 0
  if kind == 0 then
    local ahead, before = -WHOLE, nil
    for i = 1, length do
      local moment, _, held = run(i)
      local since = (moment - now) * x
      if since > ahead then ahead = since end
      if before then parts[i - 1] = pack('<ddd', before[1], ahead > since and ahead - since or 0, before[2]) end
      ahead, before = ahead + held, { moment, held }
    end
    if before then parts[length] = pack('<ddd', before[1], math.huge, before[2]) end
    if ahead < level then level = ahead > 0 and ahead or 0 end
    return rewrite(1, parts)
  end
  for i = gone + 1, length do
    local _, units, held = run(i)
    waits, kept[i] = waits + held, 0
    if units > 0 or kind < 4 then
      kept[i] = waits < units and waits or units
      waits, elsewhere = 0, elsewhere + waits - kept[i]
    end
  end
  -- Reservations that count later than they were charged are among the newest units.
  elsewhere, level = elsewhere + waits, 0
  for i = length, gone + 1, -1 do
    local leaves, units, held = run(i)
    local more = units - kept[i] < elsewhere and units - kept[i] or elsewhere
    elsewhere, units = elsewhere - more, kept[i] + more
    level = level + units
    local rest = units > 0 or held > 0
    parts[i - gone], count = rest and pack('<ddd', leaves, units, held) or '', count + (rest and 1 or 0)
  end
  rewrite(1, parts)
  gone, length = 0, count
end

if kind == 0 then
  local t, a, x_then, w_then
  t, a, last, x_then, w_then = unpack_from('<ddddd', text)
  if last > now then t, last, back = t - last + now, now, true end
  level = t >= now and (t - now) * x_then + a or 0
  if level > 0 and (x_then ~= x or w_then ~= w) then
    -- Charged at another rate: as many units count here.
    local factor = w_then / w * x / x_then
    level = level * factor - level * factor % 1
    local parts = {}
    for i = 1, length do
      local moment, lowest, held = run(i)
      lowest = lowest < math.huge and lowest * factor - lowest * factor % 1 or lowest
      parts[i] = pack('<ddd', moment, lowest, held * factor - held * factor % 1)
    end
    rewrite(1, parts)
    if level > 2 * max then level = 2 * max end
  end
  if not (level > 0 and level < WHOLE) then level, length, text, back = 0, 0, sub(text, 1, HEAD), false end
  reserved = length
else
  level, reserved = unpack_from('<dd', text)
  local newest = length > 0 and run(length) or 0
  if not (level >= 0 and level < WHOLE and reserved >= 0 and newest > 0 and newest < WHOLE) then
    level, reserved, length, text = 0, 0, 0, sub(text, 1, HEAD)
  elseif newest > now + x + (kind == 3 and w or kind == 4 and SKEW_US or 0) then
    local runs, parts = length, {}
    back, length = true, 0
    local shift = newest - leaving()
    for i = 1, runs do
      local leaves, units, held = run(i)
      parts[i] = pack('<ddd', leaves - shift, units, held)
    end
    rewrite(1, parts)
  end
  while gone < length do
    local leaves, units, held = run(gone + 1)
    if leaves > now then break end
    gone, reserved = gone + 1, reserved - held
    if level <= max then
      level = level - units
    else
      local debt = level - max
      local leaving_debt = debt > level - units and debt - level + units or 0
      local others, i, rests = debt - leaving_debt, length + 1, {}
      level = level - units + leaving_debt
      while others > 0 and i > gone + 1 do
        i = i - 1
        local a, b, c = run(i)
        local taken = b < others and b or others
        others = others - taken
        if b > taken or c > 0 then rests[#rests + 1] = pack('<ddd', a, b - taken, c) end
      end
      local parts = {}
      for k = #rests, 1, -1 do parts[#parts + 1] = rests[k] end
      rewrite(i, parts)
      append(leaves + span, debt, 0)
    end
  end
end
if back then healed = true end

local changed = back and op == 1
if op < 3 then
  local y, z
  y, z, p = unpack_from('<dd', body, p)
  local mark, fits, one = now, 0, 0
  if kind > 0 then
    mark = leaving()
    if level > z then
      fits = left_at(level - z)
      one = left_at(level - z - y + 1)
    elseif level == z then
      one = level > 0 and left_at(1) or mark
    end
  end
  outs = outs + 1
  out[outs] = pack('<ddddd', level, mark, fits, one, reserved)
  if accepts(flags, level, z, kind == 0 and (level - z) / x or fits - now) then
    changed = true
    if kind > 0 then
      append(mark, y, y)
    else
      note_charge()
      local a, b, c
      if length > 0 then a, b, c = run(length) end
      if a == now then replace(length, pack('<ddd', a, b, c + y)) else push(now, math.huge, y) end
    end
    level, reserved = level + y, reserved + y
  end
elseif op == 6 then
  for _ = 1, count do
    local mark, was, used, forgets
    mark, was, used, forgets, p = unpack_from('<dddB', body, p)
    local charged = -1
    if not known then
      changed, charged = true, settle(mark, was, used)
      if forgets > 0 then forget() end
    end
    outs = outs + 1
    out[outs] = pack('<d', charged)
  end
else
  local y, z
  if op == 3 then
    y, z, p = unpack_from('<dd', body, p)
    settle(z, y, 0)
    changed = true
  elseif op == 5 then
    y, p = unpack_from('<d', body, p)
    if not known then
      changed = true
      force(y)
    end
  end
end

if changed then
  local value, until_us = '', now
  if kind == 0 and level > 0 then
    local us = level / x
    us = us - us % 1
    until_us = now + us
    value = pack('<ddddd', until_us, level - us * x, last, x, w) .. sub(text, HEAD + 1)
  elseif kind > 0 and length > gone and (level > 0 or reserved > 0) then
    until_us = run(length) + (level > max and span or 0)
    value = pack('<dd', level, reserved) .. sub(text, HEAD + 1 + gone * RUN)
  end
  local ttl = (until_us - now) / 1000 + 1000
  writes[#writes + 1] = { 0, key, value, ttl - ttl % 1 }
end
