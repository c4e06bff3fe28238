-- One limit as gateways commonly implement it: GCRA in seconds, its state a number as text.
-- KEYS[1] = the counter; ARGV = requests, per seconds, burst. Returns 1 or 0, the remaining units, seconds to wait.
local interval = ARGV[2] / ARGV[1]
local burst = tonumber(ARGV[3])
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
local following = tat + interval
local allowed_at = following - burst * interval
if allowed_at > now then
  return { 0, 0, tostring(allowed_at - now) }
end
redis.call('SET', KEYS[1], string.format('%.6f', following), 'PX', math.ceil((following - now) * 1000))
return { 1, math.floor((now - allowed_at) / interval), '0' }
