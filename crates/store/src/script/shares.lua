-- The part of take.lua for class 8: one rate with guaranteed shares, in a string of its own.
--
-- A group: u8 kind, u8 flags, u8 classes, 8 bytes list, f64 x, f64 y, f64 common, f64 z, then the numbers of a class.
--   kind 0 token_bucket    x tokens of a unit, y tokens of the whole; tokens that the common bucket holds, and those
--     per microsecond that no class has for itself. A class: f64 depth and f64 rate of its own bucket, f64 depth and
--     f64 rate of the one for all that it takes, infinite and 0 if it may use the whole limit
--   kind 2 fixed_window, 3 sliding_window  x period, y sub-windows that count; units that no class has for itself, and
--     the width of a sub-window. A class: f64 units that it has for itself, f64 most units; the last class is of units
--     whose class is not known
-- Then the items: u8 class, from 0, and by the op:
--   1, 2  f64 units, f64 owed ones of the class, f64 of other classes: accepted if the class can take them
--   3     f64 units, f64 the mark of their charge
--   5     f64 units to charge
--   6     f64 mark, f64 reserved, f64 used units, u8 whether to forget
-- Flag 4: of a bucket, responses settle the charges; of a window, it begins by the clock.
--
-- `list` is a hash of all that the tokens of classes depend on, or of the names of the classes of a window. State of
-- another list keeps the sum of what is used, which is dealt out among the present classes in proportion; the last
-- class of a window has the rest.
--
-- The string of a bucket: 8 bytes list, f64 time of the tokens, f64 last charge, f64 tokens reserved as of then (those
-- regained since are given back by nobody), f64 tokens of a unit, f64 of the whole, f64 tokens in the common bucket,
-- below 0 for debt; of each class f64 its own, f64 those that it may still take. The string of a window: 8 bytes list,
-- f64 when the newest units leave, f64 units of each class in each sub-window, newest first.
--
-- The answer to 1 and 2: of a bucket f64 common, f64 reserved, of each class f64 own, f64 those that it may still take;
-- of a window f64 when the newest units leave, or 0, then the units of the sub-windows that still count; to 6, for each
-- item, f64 units that were charged beyond the reservation, or -1 if it was settled before.

local kind, flags, classes, list, x, y, common_max, z
kind, flags, classes, list, x, y, common_max, z, p = unpack_from('<BBBc8dddd', body, p)
local terms = {}
for i = 1, classes do
  terms[i] = { unpack_from(kind == 0 and '<dddd' or '<dd', body, p) }
  p = terms[i][#terms[i]]
end
local min, max, ceil = math.min, math.max, math.ceil
local text, back = get(key), false
if type(text) ~= 'string' or #text > 32768 then text = '' end

-- What the class can take, and in how many microseconds more; what it takes, gets back, and is charged whatever is
-- left; the string and its end.
local reach, wait, take, refund, force, to_text, found
local reserved, forget = 0, nil
if kind == 0 then
  local last, common, own, most, rate = now, common_max, {}, {}, z
  for i = 1, classes do
    own[i], most[i], rate = terms[i][1], terms[i][3], rate + terms[i][2]
  end
  local known_classes = (#text - 56) / 16
  if known_classes >= 1 and known_classes % 1 == 0 then
    local owner, t, l, held, unit, all, c = unpack_from('<c8dddddd', text)
    local owns, mosts, left, sound = {}, {}, c, true
    for i = 1, known_classes do
      owns[i], mosts[i] = unpack_from('<dd', text, 41 + i * 16)
      left = left + owns[i]
      sound = sound and owns[i] >= 0 and owns[i] % 1 == 0 and mosts[i] > -WHOLE
        and (mosts[i] == math.huge or mosts[i] % 1 == 0)
    end
    sound = sound and t % 1 == 0 and c % 1 == 0
    if sound and t >= 0 and t < WHOLE and l >= 0 and l < WHOLE and held >= 0 and held < WHOLE and unit >= 1
      and all >= unit and all < WHOLE and left >= -all and left <= all
    then
      reserved = held
      if owner == list and known_classes == classes then
        common, own, most = c, owns, mosts
      else
        -- Whole units stay exact.
        local used = all - left
        used = min((used - used % unit) / unit * x + ceil(used % unit / unit * x), 2 * y)
        reserved, common = ceil(held / unit * x), y - used
        for i = 1, classes do
          own[i] = max(own[i] - ceil(own[i] / y * used), 0)
          most[i] = max(most[i] - ceil(used / rate * terms[i][4]), 0)
          common = common - own[i]
        end
      end
      if t > now then l, t, back = max(l - t + now, 0), now, true end
      last = min(l, now)
      local spilled = z * (now - t)
      for i = 1, classes do
        local full = own[i] + terms[i][2] * (now - t)
        own[i] = min(full, terms[i][1])
        most[i] = terms[i][4] > 0 and min(max(most[i], -y) + terms[i][4] * (now - t), terms[i][3]) or terms[i][3]
        spilled = spilled + full - own[i]
      end
      common = min(common + spilled, common_max)
    end
  end
  found = { pack('<dd', common, reserved) }
  for i = 1, classes do
    found[i + 1] = pack('<dd', own[i], most[i])
  end

  local function draw(i, tokens)
    local from_own = min(tokens, own[i])
    own[i], common = own[i] - from_own, common - tokens + from_own
    -- Bounded, so that numbers stay exact.
    most[i] = max(most[i] - tokens, -y)
  end
  local function note_charge(tokens)
    reserved, last = max(reserved - rate * (now - last), 0) + tokens, now
  end
  function reach(i, owed, of_others)
    local rest = max(owed * x - own[i], 0)
    local mine = max(own[i] - owed * x, 0)
    return max(mine, min(mine + max(common - rest - of_others * x, 0), most[i] - owed * x)) / x
  end
  -- By what flows in now.
  function wait(i, units, owed, of_others)
    local depth, own_rate, _, most_rate = unpack(terms[i])
    local inflow, amount = z + own_rate, (units + owed) * x
    for k = 1, classes do
      if k ~= i and own[k] >= terms[k][1] then inflow = inflow + terms[k][2] end
    end
    local by_own = own_rate > 0 and units * x <= depth and (amount - own[i]) / own_rate or math.huge
    local by_flow = inflow > 0 and (amount + of_others * x - own[i] - common) / inflow or math.huge
    return min(by_own, max(by_flow, most_rate > 0 and (amount - most[i]) / most_rate or 0))
  end
  function take(i, units)
    draw(i, units * x)
    note_charge(flags % 8 >= 4 and units * x or 0)
  end
  function refund(i, mark, was, used)
    -- Without the charge the bucket might have been full, and regained nothing, from then until the last charge.
    local regained = rate * max(last - mark, 0)
    local given = (was - used) * x - regained
    if flags % 8 >= 4 then given = min(given, reserved) end
    if given > 0 then
      local full = own[i] + given
      own[i] = min(full, terms[i][1])
      common, most[i] = min(common + full - own[i], common_max), min(most[i] + given, terms[i][3])
    end
    reserved = max(reserved - max(was * x - regained, 0), 0)
  end
  function force(i, units)
    local room = max(own[i] + common + y, 0)
    local tokens = min(units * x, room - room % x)
    if tokens > 0 then
      draw(i, tokens)
      note_charge(0)
    end
    return tokens / x
  end
  function forget()
    note_charge(0)
    common = common_max - min(reserved, common_max + y)
    for i = 1, classes do own[i], most[i] = terms[i][1], terms[i][3] end
  end
  function to_text()
    local parts, us = { pack('<c8dddddd', list, now, last, reserved, x, y, common) }, 0
    for i = 1, classes do
      local depth, own_rate, most_depth, most_rate = unpack(terms[i])
      if own_rate > 0 then us = max(us, (depth - own[i]) / own_rate) end
      if most_rate > 0 then us = max(us, (most_depth - most[i]) / most_rate) end
      parts[i + 1] = pack('<dd', own[i], most[i])
    end
    us = us + (common_max - common) / rate
    return us > 0 and table.concat(parts) or '', us
  end
else
  local slots, width, t, counts, used, live = y, z, 0, {}, {}, 0
  local known_classes, whole = (#text - 16) / 8 / slots, common_max
  for i = 1, classes do whole, used[i] = whole + terms[i][1], 0 end
  for i = 1, classes * slots do counts[i] = 0 end
  if known_classes >= 1 and known_classes % 1 == 0 then
    local owner
    owner, t = unpack_from('<c8d', text)
    if not (t > now and t < WHOLE) then t = 0 end
    local ahead = now + x + (kind == 3 and width or 0)
    if t > ahead then
      back, t = true, now + x
      if kind == 3 then t = now - now % width + width + x elseif flags % 8 >= 4 then t = t - t % x end
    end
    live = t > 0 and min(ceil((t - now) / width), slots) or 0
    for k = 0, live - 1 do
      local sum = 0
      for i = 1, known_classes do
        local units = unpack_from('<d', text, 9 + (k * known_classes + i) * 8)
        if not (units >= 0 and units < WHOLE) then units = 0 end
        sum = min(sum + units, WHOLE - 1)
        if owner == list and i <= classes then counts[k * classes + i] = units end
      end
      if owner ~= list or known_classes ~= classes then
        local rest = sum
        for i = 1, classes - 1 do
          local part = sum * terms[i][1] / whole
          counts[k * classes + i] = part - part % 1
          rest = rest - counts[k * classes + i]
        end
        counts[k * classes + classes] = rest
      end
      for i = 1, classes do used[i] = used[i] + counts[k * classes + i] end
    end
    if owner ~= list or known_classes ~= classes then
      -- Units that neither the last part nor the common one holds are used of the others, so that the sum stays.
      local excess = -common_max
      for i = 1, classes do excess = excess + max(used[i] - terms[i][1], 0) end
      for i = 1, classes - 1 do
        for last = classes, live * classes, classes do
          local at = last - classes + i
          local moved = max(min(terms[i][1] - used[i], excess, counts[last]), 0)
          counts[last], counts[at] = counts[last] - moved, counts[at] + moved
          used[i], used[classes], excess = used[i] + moved, used[classes] - moved, excess - moved
        end
      end
    end
  end
  found = { pack('<d' .. string.rep('d', live * classes), t, unpack(counts, 1, live * classes)) }

  function reach(i, owed, of_others)
    local free = common_max - of_others
    for k = 1, classes do
      if k ~= i then free = free - max(used[k] - terms[k][1], 0) end
    end
    return min(terms[i][1] + max(free, 0), terms[i][2]) - used[i] - owed
  end
  -- After a refusal alone, because it forgets what is used.
  function wait(i, units, owed, of_others)
    for age = live - 1, 0, -1 do
      for k = 1, classes do used[k] = used[k] - counts[age * classes + k] end
      if reach(i, owed, of_others) >= units then return t - age * width - now end
    end
    return math.huge
  end
  function take(i, units)
    if kind == 3 then
      local newest = now - now % width + width + x
      local shift = (t > 0 and max(newest - t, 0) / width or slots) * classes
      for k = classes * slots, 1, -1 do counts[k] = k > shift and counts[k - shift] or 0 end
      t = max(newest, t)
    elseif t == 0 then
      t = now + x
      if flags % 8 >= 4 then t = t - t % x end
    end
    counts[i], used[i] = counts[i] + units, used[i] + units
  end
  function force(i, units)
    take(i, units)
    return units
  end
  function refund(i, mark, was, units)
    local age = (t - mark) / width
    local place = age % 1 == 0 and age * classes + i
    if counts[place] then counts[place] = max(counts[place] - was + units, 0) end
  end
  function to_text()
    for i = 1, classes * slots do
      if counts[i] > 0 then
        return pack('<c8d' .. string.rep('d', classes * slots), list, t, unpack(counts)), t - now
      end
    end
    return '', 0
  end
end
if back then healed = true end

local changed = back and op == 1
for n = 1, count do
  local class, one, two, three, forgets
  class, p = unpack_from('<B', body, p)
  class = class + 1
  if op < 3 then
    one, two, three, p = unpack_from('<ddd', body, p)
    for i = 1, #found do out[outs + i] = found[i] end
    outs = outs + #found
    local fits = reach(class, two, three)
    if accepts(flags, one, fits, one > fits and wait(class, one, two, three) or 0) then
      changed = true
      take(class, one)
    end
  elseif op == 3 then
    one, two, p = unpack_from('<dd', body, p)
    changed = true
    refund(class, two, one, 0)
  elseif op == 5 then
    one, p = unpack_from('<d', body, p)
    if not known then
      changed = true
      force(class, one)
    end
  else
    one, two, three, forgets, p = unpack_from('<dddB', body, p)
    local charged = -1
    if not known then
      changed, charged = true, 0
      refund(class, one, two, min(two, three))
      if three > two then charged = force(class, three - two) end
      if forgets > 0 then forget() end
    end
    outs = outs + 1
    out[outs] = pack('<d', charged)
  end
end

if changed then
  local value, us = to_text()
  local ttl = min(us / 1000, 10000000000000) + 1000
  writes[#writes + 1] = { 0, key, value, ttl - ttl % 1 }
end
