-- The part of take.lua for class 6: one rate with windows of a calendar, in a string of its own.
--
-- An item: u8 flags, f64 longest window, four f64 borders around the time that the gateway takes this server to have, in
-- order; then by the op:
--   1, 2  f64 units, f64 z: the item is accepted if it finds at most z used units
--   3     f64 units, f64 the mark of their charge
--   5     f64 units to charge
--   6     one after another, as many as the group says items: f64 mark, f64 reserved, f64 used units, u8 whether to forget
-- Flag 4: responses settle the charges, so that units are reserved until then.
-- All times are in seconds since 1970, and a mark is the beginning of a window. A counter keeps the latest window that it
-- has seen, and the units of the one before for settlements. A later window than this server's shows that its clock was
-- set back, and gets the number of the present one.
--
-- The string: f64 begin, f64 end, f64 used units, f64 reserved ones; of the window before f64 begin, f64 used, f64
-- reserved.
--
-- The answer to 1 and 2: f64 used, f64 begin, f64 end, f64 reserved; to 6, for each, f64 units that were charged beyond
-- the reservation, or -1 if it was settled before. If this server's time is beyond the borders, the call does nothing,
-- and its u8 admitted is 2.

local flags, longest, b, c, d, e
flags, longest, b, c, d, e, p = unpack_from('<Bddddd', body, p)
local at = now / 1000000
if at < b or at >= e then return pack('<dB', now, 2) end
if at >= d then b, c = d, e elseif at >= c then b, c = c, d end

local begins, ends, used, held, begins_before, used_before, held_before = 0, 0, 0, 0, 0, 0, 0
local text, back = pcall('GET', key), false
if type(text) == 'string' and #text == 56 then
  local a, z, u, h, a_before, u_before, h_before = unpack_from('<ddddddd', text)
  if a > 0 and z > a and z < WHOLE and u >= 0 and u < WHOLE and h >= 0 and u_before >= 0 and u_before < WHOLE then
    begins, ends, used, held, begins_before, used_before, held_before = a, z, u, h, a_before, u_before, h_before
  end
end
if begins < b then
  begins_before, used_before, held_before = begins, used, held
  begins, ends, used, held = b, c, 0, 0
elseif begins > at + 60 then
  begins, ends, back = b, c, true
elseif ends < c then
  ends = c
end
if back then healed = true end

-- Corrects a charge from `was` units to `spent` ones; of an older window only the excess counts, now.
local function settle(mark, was, spent)
  local change = spent - was
  if mark == begins then
    used, held = math.max(used + change, 0), math.max(held - was, 0)
  elseif mark == begins_before then
    used_before, held_before = math.max(used_before + change, 0), math.max(held_before - was, 0)
  elseif change > 0 then
    used = used + change
  end
end

local changed = back and op == 1
if op < 3 then
  local y, z
  y, z, p = unpack_from('<dd', body, p)
  outs = outs + 1
  out[outs] = pack('<dddd', used, begins, ends, held)
  if accepts(flags, used, z) then
    changed, used = true, used + y
    if flags >= 4 then held = held + y end
  end
elseif op == 6 then
  for _ = 1, count do
    local mark, was, spent, forgets
    mark, was, spent, forgets, p = unpack_from('<dddB', body, p)
    local charged = -1
    if not known then
      changed, charged = true, spent > was and spent - was or 0
      settle(mark, was, spent)
      if forgets > 0 and held < used then used = held end
    end
    outs = outs + 1
    out[outs] = pack('<d', charged)
  end
elseif op == 3 then
  local y, mark
  y, mark, p = unpack_from('<dd', body, p)
  settle(mark, y, 0)
  changed = true
else
  local y
  y, p = unpack_from('<d', body, p)
  if op == 5 and not known then
    changed, used = true, used + y
  end
end

if changed then
  local value = ''
  if used + used_before + held + held_before > 0 then
    value = pack('<ddddddd', begins, ends, used, held, begins_before, used_before, held_before)
  end
  local ttl = (ends - at + longest) * 1000
  writes[#writes + 1] = { 0, key, value, ttl - ttl % 1 }
end
