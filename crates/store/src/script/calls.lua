-- Runs calls of take.lua, one after the other, as if each came alone.
--
-- KEYS  the names of all counters, call by call.
-- ARGV  the body of each call; in tests, then the time in microseconds since 1970.
--
-- The answer: that of the call, or a list of them. A string is read and written once, however many calls count in it.

local call, pcall, unpack = redis.call, redis.pcall, unpack
local pack, unpack_from, sub = struct.pack, struct.unpack, string.sub
local now, calls = tonumber(ARGV[#ARGV]), #ARGV
if now then
  calls = calls - 1
else
  now = call('TIME')
  now = now[1] * 1000000 + now[2]
end
local WHOLE, SKEW_US, NODE_US, LOG_MAX = 9007199254740992, 2000000, 10000000, 100000

-- The strings as the calls so far leave them, false if there is none; and the milliseconds that changed ones live.
local strings, lives, changed = {}, {}, {}

local function get(key)
  local value = strings[key]
  if value == nil then
    value = pcall('GET', key)
    strings[key] = value
  end
  return value
end

local function put(key, value, ms)
  if not lives[key] then changed[#changed + 1] = key end
  strings[key], lives[key] = value ~= '' and value, ms or 0
end

local answers, before_keys = {}, 0
for nth_call = 1, calls do
  local body, last_key = ARGV[nth_call], 0
  -- take.lua stands here.
  before_keys = before_keys + last_key
end

for i = 1, #changed do
  local key = changed[i]
  if strings[key] then call('SET', key, strings[key], 'PX', lives[key]) else call('DEL', key) end
end

return calls == 1 and answers[1] or answers
