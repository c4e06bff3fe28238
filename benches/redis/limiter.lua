-- Three limits of a client in nginx with OpenResty's Lua and its Redis client, as gateways commonly write them.
local redis = require "nginx.redis"
local SHA = "SCRIPT_SHA"
local LIMITS = { { "per-second", FIRST_LIMIT }, { "per-minute", 60000000, 60, 100000 }, { "per-hour", 1000000000, 3600, 100000 } }
local PIPELINED = IS_PIPELINED

local limiter = {}

local function refuse(name, wait)
  ngx.status = 429
  ngx.header["Retry-After"] = math.ceil(tonumber(wait))
  ngx.header["Content-Type"] = "application/problem+json"
  ngx.print('{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests",',
    '"status":429,"detail":"limit ', name, '","limit":"', name, '","retry_after_ms":', math.ceil(wait * 1000),
    ',"violated-policies":["', name, '"],"request_id":"', ngx.var.request_id, '"}')
  return ngx.exit(429)
end

local function ask(client, limit)
  local key = "rl:CLIENT:" .. ngx.var.remote_addr .. ":" .. limit[1]
  return client:evalsha(SHA, 1, key, limit[2], limit[3], limit[4])
end

local function fail(what)
  ngx.log(ngx.CRIT, what)
  return ngx.exit(500)
end

function limiter.check()
  local client = redis:new()
  client:set_timeout(250)
  local connected, problem = client:connect("127.0.0.1", REDIS_PORT)
  if not connected then return fail(problem) end
  local answers
  if PIPELINED then
    client:init_pipeline(#LIMITS)
    for _, limit in ipairs(LIMITS) do ask(client, limit) end
    answers, problem = client:commit_pipeline()
    if not answers then return fail(problem) end
  end
  local least, name, wait = math.huge, nil, nil
  for place, limit in ipairs(LIMITS) do
    local answer
    if answers then answer = answers[place] else answer, problem = ask(client, limit) end
    if not answer or not answer[1] then return fail(problem or answer[2]) end
    if answer[1] == 0 then
      name, wait = limit[1], answer[3]
      break
    end
    least = math.min(least, answer[2])
  end
  client:set_keepalive(60000, 128)
  if name then return refuse(name, wait) end
  ngx.header["X-RateLimit-Remaining"] = least
end

return limiter
