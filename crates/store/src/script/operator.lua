-- Changes the named entries of operators and announces them to all gateways.
--
-- KEYS     the announcements by their revisions, the revisions by their ends, the clock; then for each change the
--          record of its entry.
-- ARGV[1]  little endian: f64 revision up to which the gateway knows all entries, f64 revision of the last entry that
--          it received, f64 name of the store that told it, then the changes: u8 kind, f64 microseconds that the entry
--          lasts, u16 and u16 bytes of name and value, then name and value.
--          Kind 1 puts an entry, 2 deletes one, 3 puts one unless the store knows its name.
-- ARGV[2]  the time in microseconds since 1970; in tests only.
--
-- The clock: f64 latest time seen, f64 total by which the server's clock was set back, f64 last revision, f64 name of
-- the store (the time of its first memory), f64 revision of the last deletion.
-- A record: f64 name of the store, f64 revision, f64 end, u8 1 if the entry lives and 0 if it was deleted; a deletion
-- is remembered as long as gateways may know the entry.
-- An announcement: f64 end, u16 bytes of the name, name, value.
--
-- The answer: f64 last revision, f64 revision up to which entries were told, f64 name of the store or 0 if it could not
-- be kept, u8 flags (1: there are more; 2: this begins with the first entry), for each change u8 0 done, 1 there are
-- too many entries, 2 the store knows its name; then for each entry f64 microseconds left, u16 and u16 bytes of name
-- and value, name, value.

local ANNOUNCED, ENDS, CLOCK = KEYS[1], KEYS[2], KEYS[3]
local ENTRIES_MAX, TOLD_MAX, DROPPED_MAX = 12000, 200, 1000
local DAY = 86400000000

local body = ARGV[1]
local as_of, position, known_store, place = unpack_from('<ddd', body)

local now, clock, is_new, was_set_back = read_clock(CLOCK, 5)
local seen, ahead, revision, store, deleted = unpack(clock)
own(ANNOUNCED, 'zset')
own(ENDS, 'zset')
-- A store that lost only a part of its memory is another one, too.
if is_new or call('ZCARD', ANNOUNCED) ~= call('ZCARD', ENDS) then
  is_new = true
  call('DEL', ANNOUNCED)
  call('DEL', ENDS)
  store = floor(now)
end

-- The announcement of this revision leaves; true if there was one.
local function withdraw(old)
  local found = call('ZRANGEBYSCORE', ANNOUNCED, old, old)
  for n = 1, #found do
    call('ZREM', ANNOUNCED, found[n])
  end
  return call('ZREM', ENDS, old) > 0
end

local ended = call('ZRANGEBYSCORE', ENDS, '-inf', whole(now), 'LIMIT', 0, DROPPED_MAX)
for n = 1, #ended do
  withdraw(ended[n])
end

-- Revisions only grow, also after a failover to a replica that missed some.
local function next_revision()
  revision = math.max(revision + 1, floor(now))
  return revision
end

local answers, changed = {}, false
for n = 4, #KEYS do
  local record = KEYS[n]
  local kind, lasts, name_bytes, value_bytes
  kind, lasts, name_bytes, value_bytes, place = unpack_from('<BdI2I2', body, place)
  local name = string.sub(body, place, place + name_bytes - 1)
  local value = string.sub(body, place + name_bytes, place + name_bytes + value_bytes - 1)
  place = place + name_bytes + value_bytes

  own(record, 'string')
  local text, ends, old, is_living = call('GET', record), 0, nil, false
  if text and #text == 25 then
    local of, number, its_end, lives = unpack_from('<dddB', text)
    if of == store and is_time(number) and is_time(its_end) and its_end > now then
      ends, old, is_living = its_end, whole(number), lives == 1
    end
  end
  local until_us = now + lasts
  if not (lasts > 0 and is_time(until_us)) then
    answers[n - 3] = '\0'
  elseif kind == 2 then
    if is_living and withdraw(old) then
      deleted, changed = next_revision(), true
    end
    until_us = math.max(until_us, ends)
    call('SET', record, pack('<dddB', store, revision, until_us, 0), 'PX', ms(until_us - now))
    answers[n - 3] = '\0'
  elseif kind == 3 and old then
    answers[n - 3] = '\2'
  else
    local replaces = is_living and withdraw(old)
    if not replaces and call('ZCARD', ENDS) >= ENTRIES_MAX then
      answers[n - 3] = '\1'
    else
      local number = whole(next_revision())
      call('SET', record, pack('<dddB', store, revision, until_us, 1), 'PX', ms(lasts))
      call('ZADD', ANNOUNCED, number, pack('<dI2', until_us, name_bytes) .. name .. value)
      call('ZADD', ENDS, whole(until_us), number)
      changed = true
      answers[n - 3] = '\0'
    end
  end
end

local stays = time_to_last(ENDS, now)
if changed then
  call('PEXPIRE', ANNOUNCED, ms(stays))
  call('PEXPIRE', ENDS, ms(stays))
end
local told_store = store
if is_new or was_set_back or changed or now - seen >= SECOND then
  -- Where there is no memory for it, entries are still told.
  local kept = redis.pcall('SET', CLOCK, pack('<ddddd', now, ahead, revision, store, deleted), 'PX', ms(stays + DAY))
  if is_new and kept.err then
    told_store = 0
  end
end

-- A gateway that missed a deletion, or that knows another store or a later revision, begins with the first entry.
local flags = 0
if known_store ~= store or as_of < deleted or as_of > revision then
  position, flags = 0, 2
end
local news = call('ZRANGEBYSCORE', ANNOUNCED, '(' .. whole(position), '+inf', 'WITHSCORES', 'LIMIT', 0, TOLD_MAX)
position = revision
if #news == 2 * TOLD_MAX then
  position, flags = tonumber(news[#news]), flags + 1
end
local told = {}
for n = 1, #news, 2 do
  local text = news[n]
  if #text >= 10 then
    local ends, name_bytes = unpack_from('<dI2', text)
    if is_time(ends) and ends > now and #text - 10 >= name_bytes then
      told[#told + 1] = pack('<dI2I2', ends - now, name_bytes, #text - 10 - name_bytes) .. string.sub(text, 11)
    end
  end
end
return pack('<dddB', revision, position, told_store, flags) .. table.concat(answers) .. table.concat(told)
