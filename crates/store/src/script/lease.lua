-- Leases of token buckets and windows: a call returns what a gateway does not keep, serves requests that wait, and takes
-- units or a part of the rate in advance. See crates/store/src/lease.
--
-- KEYS[1]  a hash.
-- ARGV[1]  the body of the call; in tests, ARGV[2] is the time in microseconds since 1970.
--
-- The body, little endian: 8 bytes node, then f64 each: ticks per microsecond, ticks of a unit, of a full bucket, and at
-- most in the hands of gateways; microseconds of a term, of a lease, and that it counts beyond its end; microseconds of a
-- window (0: a bucket), earlier windows that count, 1 if windows begin at multiples of their length; the number of
-- the call and of the last one whose answer was applied; ticks held, kept, and wanted; demand in thousandths of a unit
-- per second; 1 if the node has no rate, nor uses one on its way; ticks to charge beyond the lease, and the number of the
-- first call that asked for it; ticks to give back beyond it, and microseconds since their charge; 1 in a region. There
-- f64 each: microseconds of a term and of a lease at the home; ticks per microsecond and of a full bucket of the floor;
-- the number of a call that the home answered, the ticks then held, rate, depth, and ticks left there, and the number of
-- one that it did not answer (0: none); 8 bytes a new name of the region. Then u16 runs of requests that wait, and for
-- each u32 requests, u32 units of one.
--
-- The hash: under `1`, `2` ..., 64 bytes each, because Redis keeps a hash of longer values in thrice the memory: f64
-- each: free ticks, ticks in hands, the time, the sum of rates, the sum of demands, the time at which some lease may end;
-- of windows also the end of the present one, and u32 units of earlier ones, newest first. In a region: 8 bytes name, then
-- f64 each: the number of the last call of the home, of the last one that was answered, the time of that call, the end of
-- the lease, the time until which no other call is made, the ticks kept, the time before which the home has nothing (0: it
-- has); ticks to charge there, those on their way, and the number of the first call with them; 1 if the home does not
-- answer; the leased rate, its depth, what it has brought, and the time of that.
-- Under the name of a node: u56 the end, u48 the number of the last call, f32 demand; then, in the shortest of some forms,
-- u32 units held; u40 rate and u32 units of depth of the last answer, and those that count. When its lease has ended: u56
-- the time at which it is forgotten, u48 the number.
--
-- The answer: f64 each: ticks held, rate, depth, requests granted, free ticks; microseconds until the window ends (of a
-- bucket: of a lease), the window, and microseconds until the first request that was not granted might be, or a unit (0:
-- by the rate). In a region f64 1 if requests may wait for the home, 2 if another node asks it now; and if the caller is to
-- call it: 8 bytes name, then f64 each: its number, the last one that was answered, ticks held, kept and wanted, demand,
-- 1 if it has no rate, ticks owed, and the number of the first call with them.
--
-- A lease ends with its window, and brings no rate. A window is named by its end.
--
-- A region is a node of its home: its bucket holds what it leases there, and no lease of its nodes outlives that. What a
-- leased rate brings serves requests that wait, and no lease of a node. While the home does not answer, and the lease is
-- over, the bucket refills by a floor, and what that brings is charged at the home later.
--
-- Numbers are whole, so nothing is lost by rounding. Limits with other numbers have other keys. Unsound state counts as
-- absent. If the clock was set back, no time has passed.

local call, pcall = redis.call, redis.pcall
local pack, unpack_from, floor = struct.pack, struct.unpack, math.floor
local key, body, now = KEYS[1], ARGV[1], tonumber(ARGV[2])
if not now then
  now = call('TIME')
  now = now[1] * 1000000 + now[2]
end
local NUMBER_KEPT_US, OWED_KEPT_US, RATE_UNITS, TIME_MAX = 600000000, 60000000, 8, 1e17
local STATE, HOME, PIECE = '<dddddd', '<c8ddddddddddddddd', 64
local HELD, RATE, ALL, ENDED = '<I7I6fI4', '<I7I6fI5I4', '<I7I6fI4I5I4I5I4', '<I7I6'

local node = string.sub(body, 1, 8)
local rate, unit, depth, leased_max, term, hold, guard, width, earlier, is_aligned = unpack_from('<dddddddddd', body, 9)
local number, applied, held, keep, want, demand, stopped, owed, owed_since, refund, refund_age, in_region, at =
  unpack_from('<dddddddddddd', body, 89)
local is_window, home = width > 0, false

-- Forms differ in length. `false` if its lease has ended, `nil` for what is no record.
local function read_node(text)
  local size, has_lease = #text, true
  local ends, last, asked, units, rate, depth, rate_counted, depth_counted = 0, 0, 0, 0, 0, 0, 0, 0
  if size == 21 then
    ends, last, asked, units = unpack_from(HELD, text)
  elseif size == 26 then
    ends, last, asked, rate, depth = unpack_from(RATE, text)
    rate_counted, depth_counted = rate, depth
  elseif size == 39 then
    ends, last, asked, units, rate, depth, rate_counted, depth_counted = unpack_from(ALL, text)
  elseif size == 13 then
    has_lease, ends, last = false, unpack_from(ENDED, text)
  else
    has_lease = nil
  end
  return has_lease, ends, last, asked, units * unit, rate, depth * unit, rate_counted, depth_counted * unit
end

local function write_node(ends, last, asked, held, rate, depth, rate_counted, depth_counted)
  if rate_counted ~= rate or depth_counted ~= depth or rate > 0 and held > 0 then
    return pack(ALL, ends, last, asked, held / unit, rate, depth / unit, rate_counted, depth_counted / unit)
  end
  if rate > 0 then return pack(RATE, ends, last, asked, rate, depth / unit) end
  return pack(HELD, ends, last, asked, held / unit)
end

-- `full`: ticks of the present window if nothing were used, or of the bucket.
local full, window, counts, counts_format = depth, 0, nil, nil
if is_window then counts, counts_format = {}, '<d' .. string.rep('I4', earlier) end
local size = 48 + (is_window and 8 + 4 * earlier or in_region == 1 and 128 or 0)
local pieces = math.ceil(size / PIECE)
local own, state = false, pcall('HGET', key, 1)
if state and state.err then state = false end
for i = 2, state and pieces or 1 do state = state .. (call('HGET', key, i) or '') end
local text = state
state = text and #text == size
local free, out, time, rates, demands, first_end = depth, 0, now, 0, 0, now
if state then
  free, out, time, rates, demands, first_end = unpack_from(STATE, text)
  if is_window then
    counts = { unpack_from(counts_format, text, 49) }
    window = table.remove(counts, 1)
    for i = 1, earlier do full = full - counts[i] end
  end
  state = free <= depth and free >= -depth and out >= 0 and out <= depth
    and rates >= 0 and rates <= rate and demands >= 0 and first_end < TIME_MAX and window >= 0
end
local home_term, home_hold, answered, home_held, home_rate, home_depth, home_left, failed, new_name
if in_region == 1 then
  home = {}
  home_term, home_hold, rate, full, answered, home_held, home_rate, home_depth, home_left, failed, new_name, at =
    unpack_from('<ddddddddddc8', body, at)
  local function read_home(bytes)
    home.name, home.number, home.applied, home.begun, home.ends, home.calling, home.kept, home.quiet, home.owed,
      home.sent, home.sent_since, home.failing, home.rate, home.depth, home.level, home.filled = unpack_from(HOME, bytes)
    return home.number >= 0 and home.begun >= 0 and home.ends >= 0 and home.ends < TIME_MAX and home.kept >= 0
      and home.owed >= 0 and home.sent >= 0 and home.rate >= 0 and home.depth >= 0 and home.level >= 0
  end
  state = state and read_home(string.sub(text, 49))
  if not state then
    read_home(new_name .. string.rep('\0', 120))
    -- Numbers begin at the time, so that no answer to a region that was forgotten has one of this region.
    home.number = floor(now / 64)
  end
end
local runs
runs, at = unpack_from('<I2', body, at)
if state then
  own = call('HGET', key, node)
else
  call('DEL', key)
  free, out, time, rates, demands, first_end = home and 0 or depth, 0, now, 0, 0, now + NUMBER_KEPT_US
  window = 0
  if is_window then
    full = depth
    for i = 1, earlier do counts[i] = 0 end
  end
end

local function refill(to)
  if to > time then
    local gained, from, before = rate - rates, time, free
    if home and (home.failing == 0 or home.ends > from) then from = home.failing == 1 and home.ends or to end
    if gained < 0 then gained = 0 end
    local most = full - out
    if most < free then most = free end
    if to > from then free = free + gained * (to - from) end
    if free > most then free = most end
    if home then home.owed = home.owed + free - before end
    time = to
  end
end

-- Leases end in the order of their ends, each after the refill of its time.
local is_set_back, latest = time > now, now + hold + guard
local next_border = is_window and now + width - (is_aligned == 1 and now % width or 0)
if is_window then
  if window > now + width then window = next_border end
  if window > now and window < latest then latest = window end
end
if home and is_set_back then
  local function step(at) return math.max(at + now - time, 0) end
  home.ends, home.begun, home.quiet = step(home.ends), step(home.begun), step(home.quiet)
  home.calling, home.filled = 0, now
end
if now >= first_end or is_set_back then
  if is_set_back then time = now end
  local all, ending = call('HGETALL', key), {}
  first_end = now + NUMBER_KEPT_US
  for i = 1, #all, 2 do
    local name, has_lease = all[i], nil
    local ends, last, asked, held, r, d, r_counted, d_counted
    if #name == 8 then has_lease, ends, last, asked, held, r, d, r_counted, d_counted = read_node(all[i + 1]) end
    if has_lease and is_set_back and ends > latest then
      ends = latest
      call('HSET', key, name, write_node(ends, last, asked, held, r, d, r_counted, d_counted))
    end
    if has_lease and ends <= now then
      ending[#ending + 1] = { ends, name, last, held + d_counted, r_counted, asked }
    elseif has_lease ~= nil and ends > now then
      if ends < first_end then first_end = ends end
    elseif has_lease == false or not tonumber(name) or tonumber(name) > pieces then
      call('HDEL', key, name)
    end
  end
  table.sort(ending, function(one, other) return one[1] < other[1] end)
  for i = 1, #ending do
    local ends, name, last, ticks, r_counted, asked = unpack(ending[i])
    refill(ends)
    out, rates, demands = out - ticks, rates - r_counted, demands - asked
    local forgotten = ends + NUMBER_KEPT_US
    if forgotten > now then
      call('HSET', key, name, pack(ENDED, forgotten, last))
      if forgotten < first_end then first_end = forgotten end
    else
      call('HDEL', key, name)
    end
  end
  own = call('HGET', key, node)
end
refill(now)
if is_window and (now >= window or is_aligned == 0 and free == full and out == 0) then
  local shift, used = 1 + floor((now - window) / width), full - free
  full = depth
  for i = earlier, 1, -1 do
    counts[i] = i > shift and counts[i - shift] or i == shift and used or 0
    if counts[i] > 4294967295 then counts[i] = 4294967295 end
    full = full - counts[i]
  end
  free, window = full, next_border
end

-- What a region leases at its home, until the lease ends: then all counts as spent there.
local is_floor = false
if home then
  local is_over = now >= home.ends
  home.level = is_over and 0 or math.min(home.level + home.rate * (now - home.filled), home.depth)
  home.filled = now
  if is_over then home.rate, home.depth = 0, 0 end
  if is_over and free > 0 then free = home.failing == 1 and math.min(free, math.max(full - out, 0)) or 0 end
  if failed > 0 and failed == home.number then
    -- A region that its home never answered begins with a full floor.
    local unused = home.failing == 0 and home.applied == 0 and math.max(full - free - out, 0) or 0
    free, home.owed, home.failing = free + unused, home.owed + unused, 1
  end
  -- An answer that comes after the end of its lease is of no use.
  if answered > 0 and answered == home.number and home.applied < answered and now < home.begun + home_hold then
    local spent = is_over and home.kept or home.kept - free - out
    if home.failing == 1 and is_over then home.owed = math.max(home.owed - math.max(free, 0) - out, 0) end
    free = math.max(home_held - spent - out, -depth)
    home.ends, home.applied, home.calling, home.failing, home.sent = home.begun + home_hold, answered, 0, 0, 0
    home.rate, home.depth, home.kept = home_rate, home_depth, home_held
    home.quiet = home_left < unit and home_rate == 0 and now + home_term / 8 or 0
  end
  is_floor = home.failing == 1 and now >= home.ends
end

local has_lease, last_end, last, own_demand, own_held, own_rate, own_depth, rate_counted, depth_counted =
  read_node(own or '')
local granted = 0

local ends, lacking, rest, is_unmet = now + hold + guard, unit, hold, false
if is_window then
  rest = window - now
  if ends > window then ends = window end
elseif home and not is_floor then
  rest = math.max(home.ends - guard - now, 0)
  if ends > home.ends then ends = math.max(home.ends, now) end
end
if number > last then
  -- Only what the record holds counts.
  local kept = keep < own_held and keep or own_held
  local told = held < own_held and held or own_held
  out = out - own_held + kept
  if told > kept then free = free + told - kept end
  own_held = kept
  local counted_rate, counted_depth = rate_counted, depth_counted
  if stopped == 1 then
    counted_rate, counted_depth = 0, 0
  elseif applied == last then
    counted_rate, counted_depth = own_rate, own_depth
  end
  rates, out = rates + counted_rate - rate_counted, out + counted_depth - depth_counted

  -- All calls from that one until an answer charge the same.
  if owed > 0 and owed_since > last then
    free = free - owed
    if free < -depth then free = -depth end
  end
  -- After the end of a window no lease is left, nor a charge that might be undone.
  if refund > 0 and applied == last and has_lease and not home then
    -- Less what the bucket has regained since the charge, and since the last call at most while this one was under way.
    refund = refund - rate * (refund_age + now - last_end + hold + guard)
    local most = full - out
    if most < free then most = free end
    if refund > 0 then free = free + refund end
    if free > most then free = most end
  end

  for run = 1, runs do
    local requests, cost
    requests, cost, at = unpack_from('<I4I4', body, at)
    local count = floor((free + (home and home.level or 0)) / (cost * unit))
    if count < 0 then count = 0 end
    if count > requests then count = requests end
    free, granted = free - count * cost * unit, granted + count
    if home and free < 0 and count > 0 then
      local of_rate = math.min(-free, home.level)
      free, home.level = free + of_rate, home.level - of_rate
    end
    if count < requests then
      lacking, is_unmet = cost * unit, true
      break
    end
  end

  demands = demands + demand - own_demand
  if demands > 0 then
    if rest < term then want = floor(want * rest / term) end
    local units = want - own_held
    -- What does not refill is taken in ever smaller parts: it might be used elsewhere.
    local part_of_rest = free * demand / demands / 2
    if (is_window or home) and part_of_rest < units then units = part_of_rest end
    if free < units then units = free end
    if leased_max - out < units then units = leased_max - out end
    local part = floor(leased_max * demand / demands) - own_held
    if part < units then units = part end
    units = floor(units / unit) * unit
    if units > 0 then free, out, own_held = free - units, out + units, own_held + units end
  end

  own_rate, own_depth = 0, 0
  if free >= 0 and free < unit and demand > 0 and not home then
    local part = floor(rate * demand / demands)
    local offered = rate - rates + counted_rate
    if part < offered then offered = part end
    local most = floor(offered * term / 2)
    if most < unit then most = unit end
    if leased_max - out + counted_depth < most then most = leased_max - out + counted_depth end
    if full - free - out + counted_depth < most then most = full - free - out + counted_depth end
    most = floor(most / unit) * unit
    if part * term >= RATE_UNITS * unit and offered > 0 and most >= unit then own_rate, own_depth = offered, most end
  end
  -- Until the node has the rate, the larger of the old and the new one counts.
  rate_counted = own_rate > counted_rate and own_rate or counted_rate
  depth_counted = own_depth > counted_depth and own_depth or counted_depth
  rates, out = rates + rate_counted - counted_rate, out + depth_counted - counted_depth
  if ends < first_end then first_end = ends end
  own = write_node(ends, number, demand, own_held, own_rate, own_depth, rate_counted, depth_counted)
end

-- A call of the home, which one node at a time makes for its region.
local told, wait, free_shown = '', 0, free > 0 and free or 0
if home then
  local total = free + out
  local home_demand = unpack_from('<f', pack('<f', demands))
  local wanted = floor(home_demand * home_term / 1000000000) * unit
  if wanted < 2 * unit then wanted = 0 end
  local is_due = is_unmet and (home.rate == 0 or lacking > home.depth) or now >= home.begun + home_term / 4 and (
    home.rate == 0 and wanted > 0 and (total < wanted / 2 or home.ends < now + home_hold / 2)
    or home.rate > 0 and now >= home.begun + home_term
    or home_demand <= 0 and (free > 0 or home.rate > 0) and not is_floor or home.owed + home.sent >= unit)
  if is_due and now >= home.calling and now >= home.quiet then
    if free < 0 then free, home.owed = 0, home.owed - free end
    if home.owed > depth then home.owed = depth end
    -- The home knows nothing of what gateways have of the floor.
    local had = math.min(free + out, home.kept)
    if is_floor or now >= home.ends then
      had, home.kept = 0, 0
    elseif home_demand <= 0 then
      free, home.kept = 0, math.min(out, home.kept)
    else
      home.kept = had
    end
    if wanted == 0 then home.rate, home.depth, home.level = 0, 0, 0 end
    home.number, home.begun, home.calling = home.number + 1, now, now + home_term
    if home.sent == 0 then
      local unspent = is_floor and free + out or 0
      home.sent, home.sent_since = floor(math.max(home.owed - unspent, 0)), home.number
      home.owed = home.owed - home.sent
    end
    told = home.name .. pack('<ddddddddd', home.number, home.applied, had, home.kept, wanted, home_demand,
      home.rate == 0 and 1 or 0, home.sent, home.sent_since)
  end
  -- Requests wait for the home unless it had nothing left a term ago, or did not answer.
  local may_wait = home.failing == 0 and home.rate == 0 and (home.quiet == 0 or now >= home.quiet + home_term)
  told = pack('<d', may_wait and (told == '' and now < home.calling and 2 or 1) or 0) .. told
  wait = math.max(home.quiet - now, home_term / 8)
  local refilled = is_floor and rate or home.rate
  if refilled > 0 then wait = math.max(lacking - free - home.level, unit) / refilled end
  free_shown = math.max(free + home.level, 0)
end

state = pack(STATE, free, out, time, rates, demands, first_end)
-- After that no lease is left, and the bucket is full; a call that is sent again does not charge what is owed twice.
local life_us = hold + guard + OWED_KEPT_US
if is_window then
  state = state .. pack(counts_format, window, unpack(counts, 1, earlier))
  life_us = life_us + rest + (earlier + 1) * width
  lacking, wait = lacking - free, rest
  for i = earlier, 1, -1 do
    lacking = lacking - counts[i]
    if lacking <= 0 then break end
    wait = wait + width
  end
elseif home then
  state = state .. pack(HOME, home.name, home.number, home.applied, home.begun, home.ends, home.calling, home.kept,
    home.quiet, home.owed, home.sent, home.sent_since, home.failing, home.rate, home.depth, home.level, home.filled)
  life_us = life_us + 2 * home_hold + math.max(home.ends - now, 0) + full / rate
else
  life_us = life_us + (free < 0 and depth - free or depth) / rate
  -- The answer shows no debt.
  if free < 0 then wait = (lacking - free) / rate end
end
local words = { key }
for i = 1, pieces do words[2 * i], words[2 * i + 1] = i, string.sub(state, PIECE * i - PIECE + 1, PIECE * i) end
if own then words[2 * pieces + 2], words[2 * pieces + 3] = node, own end
call('HSET', unpack(words))
call('PEXPIRE', key, floor(life_us / 1000) + 1000)
return pack('<dddddddd', own_held, own_rate, own_depth, granted, free_shown, rest, window, floor(wait)) .. told
