-- The part of take.lua for class 6: one rate with windows of a calendar, or with steps, in a string of its own.
--
-- An item: u8 flags, f64 longest window, four f64 borders around the time that the gateway takes this server to have, in
-- order; f64 the most units, f64 the quota; u8 steps, and of each f64 fewest units that reach it, f64 most units below
-- it, f64 microseconds of a request above it (-1: it only warns, 0: nothing passes), f64 microseconds that requests may
-- be ahead; u16 length of the key's name, and the name; then by the op:
--   1, 2  f64 units, f64 units with those owed: the item is accepted if the steps let it pass
--   3     f64 units, f64 the mark of their charge
--   5     f64 units to charge
--   6     one after another, as many as the group says items: f64 mark, f64 reserved, f64 used units, u8 whether to forget
-- Flag 4: responses settle the charges, so that units are reserved until then. Flag 8: a window begins with its first
-- request, and the borders are not used.
-- Times are in seconds since 1970 where nothing else is said, and a mark is the beginning of a window. A counter keeps
-- the latest window that it has seen, and the units of the one before for settlements and invoices. A later window than
-- this server's shows that its clock was set back, and gets the number of the present one.
--
-- The string: f64 begin, f64 end, f64 used units, f64 reserved ones; of the window before f64 begin, f64 used, f64
-- reserved; f64 microseconds at which the bucket above a step is full; f64 steps reached, a bit for each, and those of
-- the window before; f64 the quota of the last charge, and that of the window before; the name of the key.
--
-- The answer to 1 and 2: f64 used, f64 begin, f64 end, f64 reserved, f64 steps reached, f64 microseconds at which the
-- bucket is full, all before the call; to 6, for each, f64 units that were charged beyond the reservation, or -1 if it
-- was settled before. If this server's time is beyond the borders, the call does nothing, and its u8 admitted is 2.

local flags, longest, b, c, d, e, most, quota, size_of_steps
flags, longest, b, c, d, e, most, quota, size_of_steps, p = unpack_from('<BdddddddB', body, p)
local steps = {}
for i = 1, size_of_steps do
  local reached_at, below, interval, ahead
  reached_at, below, interval, ahead, p = unpack_from('<dddd', body, p)
  steps[i] = { reached_at, below, interval, ahead }
end
local length
length, p = unpack_from('<I2', body, p)
local name = sub(body, p, p + length - 1)
p = p + length

local begins, ends, used, held, begins_before, used_before, held_before = 0, 0, 0, 0, 0, 0, 0
local full_at, reached, reached_before, quota_seen, quota_before = 0, 0, 0, quota, 0
local text, back = get(key), false
if type(text) == 'string' and #text >= 96 then
  local a, z, u, h, a_before, u_before, h_before, f, r, r_before, q, q_before = unpack_from('<dddddddddddd', text)
  if a > 0 and z > a and z < WHOLE and u >= 0 and u < WHOLE and h >= 0 and h < WHOLE and u_before >= 0 and u_before < WHOLE
    and f >= 0 and f < WHOLE and r >= 0 and r < 256 and r_before >= 0 and r_before < 256
  then
    begins, ends, used, held, begins_before, used_before, held_before = a, z, u, h, a_before, u_before, h_before
    full_at, reached, reached_before, quota_seen, quota_before = f, r - r % 1, r_before - r_before % 1, q, q_before
    if name == '' then name = sub(text, 97) end
  end
end
local at = now / 1000000
if flags >= 8 then
  at = at - at % 1
  b, c = at, at + longest
  if at >= begins - 60 and at < ends then b, c = begins, ends end
else
  if at < b or at >= e then return pack('<dB', now, 2) end
  if at >= d then b, c = d, e elseif at >= c then b, c = c, d end
end
if begins < b then
  begins_before, used_before, held_before, reached_before, quota_before = begins, used, held, reached, quota_seen
  begins, ends, used, held, full_at, reached, quota_seen = b, c, 0, 0, 0, 0, quota
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

-- Notes the steps that are reached by the used units, and the one that refuses; returns whether one is new.
local function note_steps(refusing)
  local before = reached
  for i = 1, #steps do
    local bit = 2 ^ (i - 1)
    if (used >= steps[i][1] or i == refusing) and reached % (2 * bit) < bit then reached = reached + bit end
  end
  return reached > before
end

-- The write that keeps the window.
local function to_write()
  local value = ''
  if used + used_before + held + held_before + reached + reached_before > 0 then
    value = pack('<dddddddddddd', begins, ends, used, held, begins_before, used_before, held_before, full_at, reached,
      reached_before, quota_seen, quota_before) .. name
  end
  local ttl = (ends - at + longest) * 1000
  return { 0, key, value, ttl - ttl % 1 }
end

local changed = back and op == 1
if op < 3 then
  local y, taken
  y, taken, p = unpack_from('<dd', body, p)
  outs = outs + 1
  out[outs] = pack('<dddddd', used, begins, ends, held, reached, full_at)
  local barrier, level, later, wait = nil, used, full_at, ends * 1000000 - now
  for i = 1, #steps do
    if steps[i][3] >= 0 and used + taken > steps[i][2] then barrier = i end
  end
  local pace = barrier and steps[barrier][3] or 0
  if pace > 0 then
    local ahead, from = steps[barrier][4], full_at > now and full_at or now
    -- No request has gone as far ahead: the clock was set back, or the pace was slower.
    if full_at > now + ahead + pace then from = now + ahead end
    if from - now > ahead then level, wait = math.huge, from - ahead - now end
    later = from + pace
  end
  if accepts(flags, level, most - taken, wait) then
    changed, used, quota_seen = true, used + y, quota
    if pace > 0 then full_at = later end
    if flags % 8 >= 4 then held = held + y end
    -- A dry run tells nothing.
    if flags % 2 == 0 then note_steps() end
  elseif op == 1 and flags % 2 == 0 and level > most - taken and note_steps(barrier) then
    -- A refusal is kept although it charges nothing.
    notes[#notes + 1] = to_write()
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

if changed then writes[#writes + 1] = to_write() end
