-- Judges the shared limits of one request: all accept and are charged, or none is charged.
--
-- The body, little endian: u8 op (1 take, 2 peek, 3 refund, 4 report slots, 5 charge, 6 settle), then groups.
--
-- A group: u8 class, u16 index of the key among those of the call, u16 items, then the items. Flag 1: a dry run; flag 2:
-- first rate of its limit.
--   class 0, rates in one packed string: u32 id, u8 kind, u8 flags, f64 x, f64 y, f64 z
--     kind 0 token_bucket    x ticks per microsecond, y ticks to charge, then f32 units per microsecond
--     kind 1 leaky_bucket    the same, then f64 the level above which the request waits
--     kind 2 fixed_window    x period, y units to charge; flag 4: the windows are those of UTC
--     kind 3 sliding_window  x width of a sub-window, y units to charge, then f64 period
--   class 1, one rate of a sliding_log, in a list: u8 flags, f64 x period, f64 y units, f64 z
--   class 2, concurrency, in a hash by node: u8 flags, 8 bytes node, u32 u32 sequence, f64 slots that the node knows to
--     hold, f64 sequence of its oldest call under way, f64 slots of this one, f64 most of all nodes, u8 class or 255,
--     u8 classes; and with classes what slot_shares.lua says
--   class 3, of op 5 and 6, the last call of a node, in a string of digits: f64 sequence, f64 milliseconds to keep it
--   class 4, one rate of a limit that responses settle: see settled.lua; class 6, one by a calendar: see calendar.lua
--   class 7, behind all others: the turns of a limit, in a string of its own: u16 items before its own ones, f64 furthest
--     turn in microseconds, and for each of its items f64 microseconds in which the rate lets the units pass
--   class 8, one with guaranteed shares: see shares.lua
--   class 5, the waiters of a gateway for the slots of the class 2 that follows, in a hash by gateway: 8 bytes gateway,
--     f64 microseconds that the first one has waited, or -1 if nobody waits; f64 microseconds between its polls, or 0 if
--     it does not stand in the queue
-- An item is accepted if it finds a level of at most z. For op 3, z is the mark of the charge. Slots come last, because
-- a request that has to wait takes them afterwards. For op 5 and 6, a class 3 precedes the groups of its key: they are
-- charged or settled, whatever their state, unless that call or a later one of the node was made before; z bounds a
-- bucket's level.
--
-- The packed string: entries of u32 id and (4 + id % 64) words of 32 bits; the first two are an f64 time after which
-- the entry is idle.
--   buckets         f64 TAT, u32 ticks beyond it, f32 microseconds from the last charge to the TAT, f32 units per
--                   microsecond of that charge: they give the used units to an item of any rate
--   fixed_window    f64 end, f64 units
--   sliding_window  f64 when the newest sub-window leaves, u32 units of each, newest first
-- The list: an f64 time for every unit, oldest first. The hash: u32 u32 sequence, f64 slots, f64 expiry; under the
-- name with `g` behind it f64 sequence of the oldest call under way, and of each call that was granted since f64 sequence,
-- u32 slots: a call counts the slots that its node knows of and these, so that what is asked for is not taken. A call that
-- comes when its node has given it up counts until the next word of the node. The hash of
-- waiters: f64 time after which requests that began to wait later get no slot, f64 most slots of its limit, f64 expiry.
--
-- The answer: f64 now, u8 admitted, then the state that each item found:
--   buckets f64 ticks; fixed_window f64 end, f64 units; sliding_window f64 leaves, u32 units of each
--   sliding_log f64 units, f64 time of the log, f64 oldest time, f64 time that has to leave; the last two if needed
--   concurrency f64 slots that the request can take, none while others have their turn; -1: not judged
-- and for each class 7 f64 the turn; 0: none.
--
-- Slots go to requests in the order in which they began to wait, in whatever gateway. A gateway notices a free slot when
-- it polls, so it is passed over for as long as four polls take; nothing is gained if slots rest for it any earlier. A
-- gateway with a lower limit cannot use the slots that others ask for, and holds up none of them.
--
-- A request that items of one limit alone refuse gets the moment behind the one promised last, if that has not passed,
-- but not before its units fit; see crates/limit/src/turns.rs. The string has that f64 moment.
--
-- A write has a kind and a key: 0 a string, or '' to delete it, and its milliseconds; 1 a list: whether to delete it, how
-- many times to drop, those to append, its milliseconds; 2 how many times equal to one to drop from a list; 3 a hash:
-- whether to delete it, the fields to delete and those to set.
--
-- Unsound state counts as absent. Everything is read before the first write, after which nothing can fail. State from
-- an impossible future shows that this server's clock was set back: no time has passed for it then, its units keep their
-- distances, and even a rejected request brings it back to now, so that no client is locked out until that future comes.

local size, op = #body, unpack_from('<B', body)
-- The call that the last class 3 names was made before.
local known = false
local refused, waits, healed = false, false, false
local out, outs, writes, notes, line, answer

-- The second pass is for a rejected request that found the clock set back: it charges nothing.
for pass = 1, 2 do
  local taking, healing = op == 1 and pass == 1, pass == 2
  local p = 2
  local first, before, dry_refused
  out, outs, writes, notes = {}, 0, {}, {}
  -- The number of the item, and of the first, the last and the longest waiting one that refuses.
  local nth, lowest, highest, refuser, longest = 0, nil, 0, 0, -1

  local function refuse(wait)
    refused, lowest, highest = true, lowest or nth, nth
    if wait > longest then refuser, longest = nth, wait end
  end

  -- Whether an item with a key of its own, which has `level` units and takes at most `z`, is charged; else it fits in
  -- `wait` microseconds.
  local function accepts(flags, level, z, wait)
    nth = nth + 1
    local dry = flags % 2 == 1
    if dry and flags % 4 >= 2 then first, dry_refused = #writes + 1, false end
    if level > z then
      if dry then
        -- The rates of a limit in a dry run are a transaction of their own.
        for i = #writes, first, -1 do writes[i] = nil end
        dry_refused = true
      else
        refuse(wait)
      end
      return false
    end
    return taking and not refused and not (dry and dry_refused)
  end

  while p <= size do
    local class, place, count
    class, place, count, p = unpack_from('<BI2I2', body, p)
    local key = KEYS[before_keys + place]
    if place > last_key then last_key = place end
    if class == 0 then
      local old, length = get(key), 0
      if old and not old.err then length = #old end
      -- None of our strings is that long, and a foreign one must not hold up the server.
      if length > 32768 then length = 0 end
      local new, changed, last = {}, taking, now
      local at, missed, taken = 1, nil, nil

      for n = 1, count do
        local id, kind, flags, x, y, z, pace
        id, kind, flags, x, y, z, p = unpack_from('<I4BBddd', body, p)
        if kind < 2 then pace, p = unpack_from('<f', body, p) end
        local found, after = at, at + 20 + id % 64 * 4
        local other, t, a, b
        -- Usually the entries stand in the order of the call.
        if after <= length + 1 then other, t, a, b = unpack_from('<I4dI4f', old, at) end
        if other == id then
          at = after
          if taken then taken[found] = true end
        else
          if not missed then missed, taken = at, {} end
          t = nil
          while found + 19 <= length do
            other = unpack_from('<I4', old, found)
            after = found + 20 + other % 64 * 4
            if other == id then
              if after <= length + 1 then
                other, t, a, b = unpack_from('<I4dI4f', old, found)
                taken[found] = true
              end
              break
            end
            found = after
          end
        end

        -- The state found, and whether no time has passed for it because the clock was set back.
        local level, back, period, slots, counts, live = 0, false, nil, nil, nil, 0
        if kind < 2 then
          local ahead = t and t - now
          if ahead and ahead >= 0 then
            local used_pace = unpack_from('<f', old, found + 20)
            if not (ahead <= b * 1.0000003 + 1) then ahead, back = b, true end
            if used_pace == pace then
              -- More ticks than a microsecond has are unsound.
              if a > x then a = x end
              level = ahead * x + a
            else
              -- Charged at another rate: as many units count here, to the seven digits of a pace.
              level = ahead * used_pace / pace * x * 0.9999998
              level = level - level % 1
            end
            -- This covers NaN, too.
            if not (level >= 0 and level < WHOLE) then level, back, t = 0, false, nil end
          end
          outs = outs + 1
          out[outs] = pack('<d', level)
        elseif kind == 2 then
          if t then
            level = unpack_from('<d', old, found + 12)
            if not (t > now and t < WHOLE and level >= 1 and level < WHOLE) then level = 0 end
          end
          if level == 0 then
            t = nil
          elseif t > now + x then
            t, back = now + x, true
            if flags >= 4 then t = t - now % x end
          end
          outs = outs + 1
          out[outs] = pack('<dd', t or 0, level)
        else
          period, p = unpack_from('<d', body, p)
          slots, counts = id % 64 + 2, {}
          if t and t > now and t < WHOLE then
            counts = { unpack_from('<' .. string.rep('I4', slots), old, found + 12) }
            if t > now + x + period then t, back = now - now % x + x + period, true end
            live = (t - now) / x
            if live % 1 > 0 then live = live - live % 1 + 1 end
            if live > slots then live = slots end
            for i = 1, live do level = level + counts[i] end
          else
            t = nil
          end
          for i = live + 1, slots do counts[i] = 0 end
          outs = outs + 1
          out[outs] = pack('<d' .. string.rep('I4', slots), t or 0, unpack(counts, 1, slots))
        end
        if back then healed = true end
        nth = nth + 1

        -- The amount to add; nil: nothing, and the entry need not be written.
        local add, charged
        if op < 3 then
          local dry = flags % 2 == 1
          if dry and flags % 4 >= 2 then first, before, dry_refused = n, {}, false end
          if level > z then
            if dry then
              for i = first, n - 1 do new[i] = before[i] end
              dry_refused = true
            elseif kind < 2 then
              refuse((level - z) / x)
            else
              -- Units of the oldest sub-windows leave first.
              local age, left = live, level - z
              while age > 1 and left > counts[age] do age, left = age - 1, left - counts[age] end
              refuse((t or now + 1) - (age > 1 and age - 1 or 0) * x - now)
            end
          elseif not refused and not (dry and dry_refused) then
            if kind == 1 and level > unpack_from('<d', body, p) then waits = true end
            if taking then add = y end
          end
          if kind == 1 then p = p + 8 end
          if back and not add and op == 1 then add, changed = 0, true end
          if dry then before[n] = t and t >= now and sub(old, found, after - 1) or '' end
        elseif op == 3 and t then
          charged = kind < 2 and t - b < now and t - b or now
          if kind == 0 then
            -- Without this charge the bucket might have been full, and regained nothing, from then until the last
            -- charge: the units regained meanwhile are kept, or more than burst + rate * span would pass.
            local spent = charged - z
            add = (spent > 0 and spent * x or 0) - y
            if add > 0 then add = nil end
          elseif kind == 1 then
            p = p + 8
            -- A departure lapses if later ones were handed out behind it.
            if t == z then add = -y end
          elseif kind == 2 then
            if t == z then add = -y end
          else
            local age = (t - z) / x + 1
            if age >= 1 and age <= live and age % 1 == 0 then
              add = -(counts[age] < y and counts[age] or y)
              counts[age] = counts[age] + add
            end
          end
          if add then
            changed = true
            if level + add <= 0 then add, t = nil, nil end
          end
        else
          if kind == 1 then p = p + 8 end
          if op == 5 and not known then
            add, changed = y, true
            if kind < 2 and add > z - level then add = z > level and z - level or nil end
          end
        end

        if not add then
          new[n] = t and t >= now and sub(old, found, after - 1) or ''
        elseif kind < 2 then
          local sum = level + add
          local us = sum / x
          us = us - us % 1
          local lead = us
          if charged then lead = now + us - charged end
          -- Beyond the exact range of an f32, the last charge seems later than it was.
          if lead > 16777216 then lead = lead * 0.9999999 end
          t = now + us
          new[n] = pack('<I4dI4ff', id, t, sum - us * x, lead, pace)
        elseif kind == 2 then
          if not t then
            t = now + x
            if flags >= 4 then t = t - now % x end
          end
          new[n] = pack('<I4dd', id, t, level + add)
        else
          if add > 0 then
            local newest = now - now % x + x + period
            local shift = t and (newest - t) / x or slots
            if shift > 0 then
              t = newest
              for i = slots, 1, -1 do counts[i] = i > shift and counts[i - shift] or 0 end
            end
            counts[1] = counts[1] + add
            if counts[1] > 4294967295 then counts[1] = 4294967295 end
          end
          new[n] = pack('<I4d' .. string.rep('I4', slots), id, t, unpack(counts, 1, slots))
        end
        if t and t > last and t < WHOLE then last = t end
      end

      if changed and not (taking and refused) then
        local n, from = count, missed or at
        -- Entries that the call does not name are kept until they are idle.
        while from + 19 <= length do
          local other, t = unpack_from('<I4d', old, from)
          local after = from + 20 + other % 64 * 4
          if after > length + 1 then break end
          if t >= now and t < WHOLE and not (taken and taken[from]) then
            n = n + 1
            new[n] = sub(old, from, after - 1)
            if t > last then last = t end
          end
          from = after
        end
        local ttl = (last - now) / 1000 + 1000
        writes[#writes + 1] = { 0, key, table.concat(new), ttl - ttl % 1 }
      end
    elseif class == 1 then
      local flags, x, y, z
      flags, x, y, z, p = unpack_from('<Bddd', body, p)
      local length, sound = pcall('LLEN', key), true
      if type(length) ~= 'number' or length > LOG_MAX then length, sound = 0, false end
      if op == 3 then
        -- Units charged at the same time are alike, whichever request they belong to.
        if length > 0 then writes[#writes + 1] = { 2, key, -y, pack('<d', z) } end
      elseif op < 3 or op == 5 and not known then
        local function at(index)
          local time = call('LINDEX', key, index)
          time = time and #time == 8 and unpack_from('<d', time)
          if time and time >= 0 and time < WHOLE then return time end
          sound = false
          return 0
        end
        local present, oldest, leaves, gone, level, back, times = now, 0, 0, 0, 0, false, {}
        if length > 0 then
          local newest = at(-1)
          oldest, level = at(0), length
          if newest > now then present = newest end
          if newest + x <= present then
            gone = length
          elseif oldest + x <= present then
            -- The oldest has left, and the newest has not.
            local live = length - 1
            while live - gone > 1 do
              local middle = (gone + live - (gone + live) % 2) / 2
              if at(middle) + x <= present then gone = middle else live = middle end
            end
            gone = live
          end
          level = length - gone
          if level > 0 and level >= z then
            if gone > 0 then oldest = at(gone) end
            leaves = oldest
            if level > z + 1 and z >= 0 then leaves = at(gone + level - z - 1) end
          end
          if newest > now + SKEW_US then
            back, present = true, now
            local shift = newest - now
            oldest, leaves = math.max(oldest - shift, 0), math.max(leaves - shift, 0)
            for i = 1, op == 2 and 0 or level do times[i] = pack('<d', at(gone + i - 1) - shift) end
          end
          if not sound then present, oldest, leaves, gone, level, back = now, 0, 0, 0, 0, false end
        end
        if back then healed = true end
        outs = outs + 1
        out[outs] = pack('<dddd', level, present, oldest, leaves)

        local add = 0
        if op == 5 then
          -- A longer list would be unsound.
          add = y < LOG_MAX - level and y or LOG_MAX - level
        elseif accepts(flags, level, z, level > 0 and leaves + x - present or 1) then
          add = y
        end
        local anew = back or not sound
        if add > 0 or back then
          local ttl = (present + x - now) / 1000 + 1000
          if not back then times = {} end
          local time = pack('<d', present)
          for i = #times + 1, #times + add do times[i] = time end
          writes[#writes + 1] = { 1, key, anew, gone, times, ttl - ttl % 1 }
        end
      end
    elseif class == 2 then
      local flags, node, high, low, held, oldest, cost, max, at, n
      flags, node, high, low, held, oldest, cost, max, at, n, p = unpack_from('<Bc8I4I4ddddBB', body, p)
      nth = nth + 1
      local left, list, terms, waiting = -1, nil, p + 8, 0
      if n > 0 then
        list = unpack_from('<c8', body, p)
        waiting, p = unpack_from('<d', body, terms + n * 24)
      end
      if at < 255 then
        node = node .. string.char(at)
        if line then line[2] = line[2] .. string.char(at) end
      end
      if healing or not (op == 1 and (waits or refused)) then
        local nodes = pcall('HGETALL', key)
        local anew, sets, drops, state = nodes.err ~= nil, {}, {}, nil
        -- The slots in flight and waited for by class, and those of the one whose requests elsewhere have waited longer.
        local held_by, waited_by, ahead = {}, {}, {}
        local others, stored, newest, grants, known = 0, 0, 0, '', {}
        for i = 1, #nodes, 2 do
          local field, value = nodes[i], nodes[i + 1]
          local high_known, low_known, slots, expiry
          if #value == 24 then high_known, low_known, slots, expiry = unpack_from('<I4I4dd', value) end
          if field == 'classes' then
            state = value
          elseif field == node .. 'g' then
            grants = value
          elseif #field > 8 and sub(field, -1) == 'g' then
            known[field] = known[field] or false
          elseif not (slots and slots >= 0 and slots <= 4294967295 and expiry > now) then
            drops[#drops + 1] = field
          elseif field == node then
            newest, stored = high_known * 4294967296 + low_known, slots
          else
            known[field .. 'g'], others = true, others + slots
            local class_of = string.byte(field, 9)
            if class_of then held_by[class_of] = (held_by[class_of] or 0) + slots end
            if expiry > now + NODE_US then
              sets[#sets + 1] = { field, pack('<I4I4dd', high_known, low_known, slots, now + NODE_US) }
              healed = true
            end
          end
        end
        for field, has_node in pairs(known) do
          if not has_node then drops[#drops + 1] = field end
        end

        -- What this node holds: the slots that it knew of, and those granted since to calls that it still waits for.
        local sequence, own, given, granted = high * 4294967296 + low, held, '', 0
        local stale = newest > sequence
        if stale and #grants > 7 then oldest = unpack_from('<d', grants) end
        for q = 9, #grants - 11, 12 do
          local at_sequence, slots = unpack_from('<dI4', grants, q)
          if at_sequence >= oldest and newest > 0 then
            given, granted = given .. sub(grants, q, q + 11), granted + slots
          end
        end
        if stale then own = stored else own, newest = held + granted, sequence end
        local freed = math.max(stored - own, 0)

        local tell, lines, gone = op > 2, line and pcall('HGETALL', line[1]) or {}, {}
        for i = 1, #lines, 2 do
          local length, class_of, due, most, expiry, units = #lines[i + 1], string.byte(lines[i], 9) or -1
          if length == 24 or length == 40 then due, most, expiry = unpack_from('<ddd', lines[i + 1]) end
          if not (expiry and expiry > now and expiry <= now + NODE_US) then
            gone[#gone + 1] = lines[i]
          elseif lines[i] ~= line[2] then
            local first = 1
            if length == 40 then
              units, first = unpack_from('<dd', lines[i + 1], 25)
              waited_by[class_of] = (waited_by[class_of] or 0) + units
            end
            if due < now - line[3] and most >= max then ahead[class_of] = first end
          end
        end
        if n > 0 then
          -- slot_shares.lua stands here.
        else
          left = next(ahead) and 0 or math.max(max - others - own, 0)
        end
        if op < 3 and left < cost then
          if flags % 2 == 0 then refuse(math.huge) end
        elseif taking then
          tell = true
        end
        if line and line[4] > 0 then
          local since, span, set = now - line[3], 4 * line[4], {}
          if tell or line[3] < 0 then
            gone[#gone + 1] = line[2]
          else
            set[1] = { line[2], pack('<ddd', since + span, max, now + 1000000 + span) }
            if n > 0 then set[1][2] = set[1][2] .. pack('<dd', waiting, cost) end
          end
          notes[#notes + 1] = { 3, line[1], lines.err ~= nil, gone, set, NODE_US / 1000 }
        end
        -- A question that is refused tells of slots that its node has freed.
        local refused_here = op == 1 and not tell
        local sets_now, drops_now = refused_here and {} or sets, refused_here and {} or drops
        if tell and not (stale and op > 2) or refused_here and freed > 0 then
          if op < 3 and tell then own, given = own + cost, given .. pack('<dI4', sequence, cost) end
          if own > 0 then
            local high_now = (newest - newest % 4294967296) / 4294967296
            sets_now[#sets_now + 1] = { node, pack('<I4I4dd', high_now, newest % 4294967296, own, now + NODE_US) }
          else
            drops_now[#drops_now + 1] = node
          end
          if own > 0 and given ~= '' then
            sets_now[#sets_now + 1] = { node .. 'g', pack('<d', oldest) .. given }
          elseif grants ~= '' then
            drops_now[#drops_now + 1] = node .. 'g'
          end
        end
        if n > 0 and (tell or refused_here) then sets_now[#sets_now + 1] = { 'classes', state } end
        -- What classes needed in the last second outlives their slots.
        local ms = others + own > 0 and NODE_US / 1000 or 1250
        if refused_here and #sets_now + #drops_now > 0 then
          notes[#notes + 1] = { 3, key, anew, drops_now, sets_now, ms }
        end
        if tell or #sets > 0 then writes[#writes + 1] = { 3, key, anew, drops, sets, ms } end
      end
      line = nil
      outs = outs + 1
      out[outs] = pack('<d', left)
    elseif class == 3 then
      local sequence, keep
      sequence, keep, p = unpack_from('<dd', body, p)
      local last = get(key)
      last = type(last) == 'string' and tonumber(last)
      known = last and last >= sequence
      if not known then writes[#writes + 1] = { 0, key, string.format('%.0f', sequence), keep } end
    elseif class == 5 then
      line = { key, unpack_from('<c8dd', body, p) }
      p = line[5]
    elseif class == 7 then
      local before, most, due = unpack_from('<I2d', body, p)
      due, p = 0, p + 10 + count * 8
      if lowest and lowest > before and highest <= before + count then
        local span, last = unpack_from('<d', body, p - (before + count + 1 - refuser) * 8), get(key)
        last = type(last) == 'string' and #last == 8 and unpack_from('<d', last) or 0
        due = now + longest
        if last > now and last + span > due then due = last + span end
        local ttl = (due - now) / 1000 + 1000
        if due - now > most then
          due = 0
        elseif op == 1 then
          notes[#notes + 1] = { 0, key, pack('<d', due), ttl - ttl % 1 }
        end
      end
      outs = outs + 1
      out[outs] = pack('<d', due)
    elseif class == 6 then
      -- calendar.lua stands here.
    elseif class == 8 then
      -- shares.lua stands here.
    else
      -- settled.lua stands here.
    end
  end
  answer = answer or table.concat(out)
  if not (op == 1 and refused and healed) then break end
end

-- Waiters are noted in any case.
if op ~= 2 and not (op == 1 and refused and not healed) then
  for i = 1, #writes do notes[#notes + 1] = writes[i] end
end
for i = 1, #notes do
  local write, key, a, b, c, d = unpack(notes[i])
  if write == 0 then
    put(key, a, b)
  elseif write == 1 then
    if a then call('DEL', key) elseif b > 0 then call('LTRIM', key, b, -1) end
    -- At most as many values at once as the stack of a call holds.
    for from = 1, #c, 1000 do call('RPUSH', key, unpack(c, from, math.min(from + 999, #c))) end
    call('PEXPIRE', key, d)
  elseif write == 2 then
    call('LREM', key, a, b)
  else
    if a then call('DEL', key) end
    for n = 1, #b do call('HDEL', key, b[n]) end
    for n = 1, #c do call('HSET', key, c[n][1], c[n][2]) end
    if #c > 0 then call('PEXPIRE', key, d) end
  end
end

answers[nth_call] = pack('<dB', now, refused and 0 or 1) .. ((op < 4 or op == 6) and answer or '')
