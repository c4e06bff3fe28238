-- Judges slots with guaranteed shares, as crates/limit/src/algorithm/concurrency/shares.rs does, over all gateways.
--
-- The item goes on: 8 bytes list, a hash of the names of the classes; for each class f64 floor, f64 part of it that is
-- not lent, f64 most; then f64 slots waited for in the gateway. Names of fields end with the class; slots of classes
-- that are not listed count in the sum. The field `classes`, which holds for its list alone: 8 bytes list, f64 period of
-- 250 ms, then for each class u32 kept, u32 set aside, u32 refused in the period, and u32 most needed in it and in each
-- of the four before it. A note of waiters goes on with f64 slots waited for, f64 those of the first.
--
-- `left` becomes the slots that the class can take, and `state` the new field.
held_by[at], waited_by[at] = (held_by[at] or 0) + own, (waited_by[at] or 0) + waiting
local free, period, passed = math.max(max - others - own, 0), (now - now % 250000) / 250000, 5
if state and #state == 16 + 32 * n and sub(state, 1, 8) == list then
  passed = period - unpack_from('<d', state, 9)
  if not (passed >= 0 and passed <= 5) then passed = 5 end
else
  state = nil
end
local classes = {}
for c = 0, n - 1 do
  local one, held = { 0, 0, 0, 0, 0, 0, 0, 0 }, held_by[c] or 0
  if state then one = { unpack_from('<I4I4I4I4I4I4I4I4', state, 17 + c * 32) } end
  local need, floor, not_lent = held + (waited_by[c] or 0), unpack_from('<dd', body, terms + c * 24)
  if c == at then need = need + freed end
  for i = 8, 4, -1 do one[i] = i - passed >= 4 and one[i - passed] or need end
  if passed > 0 then one[3] = 0 end
  if need > one[4] then one[4] = need end
  -- What the class has freed stays set aside for it, as far as it is kept.
  if c == at then one[2] = one[2] + math.min(freed, math.max(one[1] - held - one[2], 0)) end
  local most_needed = math.max(one[4], one[5], one[6], one[7], one[8])
  one[1] = math.max(math.min(most_needed, floor), not_lent)
  one[2] = math.min(one[2], math.max(one[1] - held, 0), free)
  free = free - one[2]
  classes[c] = one
end
while free > 0 do
  local most_lacking, class_of = 0, nil
  for c = 0, n - 1 do
    local lacking = classes[c][1] - (held_by[c] or 0) - classes[c][2]
    if lacking > most_lacking then most_lacking, class_of = lacking, c end
  end
  if not class_of then break end
  local part = math.min(most_lacking, free)
  classes[class_of][2], free = classes[class_of][2] + part, free - part
end
if op < 3 then
  -- Those who have waited longer have the common slots first, unless they would take their class above its `most`.
  for c = 0, n - 1 do
    if ahead[c] and (held_by[c] or 0) + ahead[c] <= unpack_from('<d', body, terms + c * 24 + 16) then free = 0 end
  end
  local one = classes[at]
  local reach = math.min(unpack_from('<d', body, terms + at * 24 + 16) - held_by[at], one[2] + free)
  left = ahead[at] and 0 or math.max(reach, 0)
  if cost > left then
    if not line then
      one[3] = one[3] + cost
      one[4] = math.max(one[4], held_by[at] + waited_by[at] + one[3])
    end
  elseif taking then
    one[2] = math.max(one[2] - cost, 0)
  end
end
state = list .. pack('<d', period)
for c = 0, n - 1 do
  for i = 1, 8 do state = state .. pack('<I4', math.min(classes[c][i], 4294967295)) end
end
