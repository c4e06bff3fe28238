-- Keeps a secret that all gateways share: the first one that is offered.
--
-- KEYS[1]: the secret. ARGV[1]: 16 bytes to keep if there is none. Returns the secret, which is kept for 90 days from
-- now.
local LIFE_MS = 7776000000
local kind = redis.call('TYPE', KEYS[1]).ok
local secret = kind == 'string' and redis.call('GET', KEYS[1])
if not secret or #secret ~= 16 then
  secret = ARGV[1]
  redis.call('SET', KEYS[1], secret, 'PX', LIFE_MS)
else
  redis.call('PEXPIRE', KEYS[1], LIFE_MS)
end
return secret
