-- KEYS[1]: the gateways that live, by the moment (ms since 1970) until which they count.
-- ARGV: this gateway's name, ms that it counts without another beat. Answers how many live.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local kind = redis.call('TYPE', KEYS[1]).ok
-- A value of another type at this name is nobody's.
if kind ~= 'zset' and kind ~= 'none' then
  redis.call('DEL', KEYS[1])
end
-- First, because a server checks its memory only before the first write of a script.
redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[2]), ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('(%.0f', now))
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return redis.call('ZCARD', KEYS[1])
