//! Mistakes of writers who know another proxy: its words, shapes, units and variables.

use super::{Mistake, check_only, read};

#[rustfmt::skip]
pub(super) const MISTAKES: &[Mistake] = &[
    ("locations:\n  - location: /api\n    upstream: demo\n", 2, 5,
        "unknown field `location`", "did you mean `path`? write path: /api"),
    ("locations:\n  - { pathPrefix: /api, upstream: demo }\n", 2, 7, "unknown field `pathPrefix`", "write path: /api"),
    ("locations:\n  - rule: PathPrefix(`/api`)\n    upstream: demo\n", 2, 5,
        "unknown field `rule`", "write path: /api"),
    ("locations:\n  - { path: /, reverse_proxy: \"http://127.0.0.1:9000\" }\n", 2, 16,
        "unknown field `reverse_proxy`", "write upstream: http://127.0.0.1:9000"),
    ("locations:\n  - { path: /, use_backend: demo }\n", 2, 16, "unknown field `use_backend`", "write upstream: demo"),
    ("locations:\n  - { path: /, root: /var/www }\n", 2, 16, "unknown field `root`", "files are not served here"),
    ("locations:\n  - { path: /, status: 404 }\n", 2, 16, "unknown field `status`", "write respond: { status: 404 }"),
    ("locations:\n  - { path: /, return: \"301 https://$host$request_uri\" }\n", 2, 16,
        "unknown field `return`", "write redirect: { to: \"https://${host}${request_uri}\", status: 301 }"),
    ("locations:\n  - { path: /, redirect: { url: \"https://a.example\" } }\n", 2, 28,
        "unknown field `url`", "did you mean `to`? write to: https://a.example"),
    ("upstreams: { app: { nodes: [10.0.0.1:80] } }\n", 1, 21, "unknown field `nodes`", "write servers: [10.0.0.1:80]"),
    ("upstreams: { app: { loadBalancer: { servers: [{ url: \"http://a\" }] } } }\n", 1, 21,
        "unknown field `loadBalancer`", "write servers: [{ url: http://a }]"),
    ("upstreams: { app: { servers: [{ host: 10.0.0.1, port: 80 }] } }\n", 1, 33,
        "unknown field `host`", "write url: \"http://10.0.0.1:80\""),
    ("upstreams: { app: { servers: { a: 10.0.0.1:80 } } }\n", 1, 32,
        "unknown field `a`", "`url` is missing; the fields here are url, weight, backup"),
    ("state: { store: redis, redis: { host: 10.0.0.1, port: 6379 } }\n", 1, 33,
        "unknown field `host`", "write url: \"redis://10.0.0.1:6379\""),
    ("limits:\n  a: { requests_per_minute: 100 }\n", 2, 8, "unknown field `requests_per_minute`", "write rate: 100/m"),
    ("limits:\n  a: { algorithm: fixed_window, limit: 100, window: 1m }\n", 2, 33,
        "unknown field `limit`", "write rate: 100/1m"),
    ("limits:\n  a: { rate: 10, per: minute }\n", 2, 18,
        "unknown field `per`", "the period belongs to the rate: write rate: 10/m"),
    ("limits:\n  a: { rate: { requests: 10, per: 1s } }\n", 2, 8, "`rate` must be one value", "write rate: 10/1s"),
    ("limits:\n  a: { algorithm: concurrency, limit: 10 }\n", 2, 32,
        "unknown field `limit`", "write max_concurrent: 10"),
    ("limits:\n  a: { max_concurrent: 10 }\n", 2, 8,
        "`max_concurrent` is not a field of token_bucket", "write algorithm: concurrency"),
    ("limits:\n  a: { algorithm: concurrency, max_concurrent: 5, max_wait: 1s }\n", 2, 51,
        "`max_wait` is not a field of concurrency", "no setting waits for a free slot"),
    ("limits:\n  a: { rate: 10/s, whitelist: [10.0.0.0/8] }\n", 2, 20,
        "unknown field `whitelist`", "did you mean `bypass`?"),
    ("limits:\n  a: { rate: 10/s, status: 429 }\n", 2, 20,
        "unknown field `status`", "write on_reject: { status: 429 }"),
    ("limits:\n  a: { rate: 10/s, mode: shadow }\n", 2, 20, "unknown field `mode`", "write dry_run: true"),
    ("limits:\n  a: { rate: \"zone=one:10m rate=10r/s\" }\n", 2, 14, "is not a whole number", "write 10/s"),
    ("limits:\n  a: { rate: 10/s, burst: 20 nodelay }\n", 2, 27,
        "is not a whole number", "write burst: 20; requests within it pass at once"),
    ("limits:\n  a: { rate: unlimited }\n", 2, 14, "has no period", "leave the limit out of the chain"),
    ("limits:\n  a: { rate: 10/s, key: \"ip,uri\" }\n", 2, 25,
        "`ip,uri` is not a valid word", "write a list: key: [ip, uri]"),
    ("limits:\n  a: { rate: 10/s, key: none }\n", 2, 25, "`none` is not a valid word", "did you mean `global`?"),
    ("limits:\n  a: { rate: 10/s, tiers: { gold: 100/s } }\n", 2, 29,
        "`gold` must be a mapping", "write gold: { rate: 100/s }"),
    ("limits:\n  a: { rate: 10/s, tiers: { gold: unlimited } }\n", 2, 29,
        "`gold` must be a mapping", "write gold: none"),
    ("limits: [{ name: a, rate: 10/s }]\n", 1, 1,
        "`limits` must be a mapping, not a list", "write limits: { a: { rate: 10/s } }"),
    ("upstreams: [{ name: app, servers: [a:1] }]\nlocations: [{ path: /, upstream: app }]\n", 1, 1,
        "`upstreams` must be a mapping, not a list", "write upstreams: { app: { servers: [a:1] } }"),
    ("locations:\n  - { path: /, upstream: demo, limits: { per-ip: { rate: 10/s } } }\n", 2, 42,
        "unknown field `per-ip`", "write rate: 10/s here, or define `per-ip`"),
    ("locations:\n  - { path: /, upstream: demo, limits: \"a, b\" }\n", 2, 40,
        "the limit `a, b` is not defined", "write a list: limits: [a, b]"),
    ("locations:\n  - { path: /, upstream: demo, limits: \"zone=one burst=5\" }\n", 2, 40,
        "is not defined", "write limits: one"),
    ("upstreams: { app: { servers: [a:1], max_fails: 3, fail_timeout: 10 } }\n", 1, 37,
        "unknown field `max_fails`", "write eject: { errors: 3, for: 10s }"),
    ("upstreams: { app: { servers: [a:1], ssl: true } }\n", 1, 37,
        "unknown field `ssl`", "write https:// before each server"),
    ("upstreams: { app: { servers: [a:1], protocol: https } }\n", 1, 47,
        "`https` is not a valid word", "write https:// before each server"),
    ("upstreams: { app: { servers: [a:1], protocol: h2c } }\n", 1, 47,
        "`h2c` is not a valid word", "did you mean `http2`?"),
    ("upstreams: { app: { servers: [a:1], keepalive: off } }\n", 1, 48,
        "`off` is not a whole number", "write keepalive: 0"),
    ("upstreams: { app: \"a:1, b:2\" }\n", 1, 19, "the server `a:1, b:2`", "write a list: app: [a:1, b:2]"),
    ("upstreams: { app: 9000 }\n", 1, 19, "the server `9000` has no port", "write 127.0.0.1:9000"),
    ("upstreams: { app: [10.0.0.1:80 weight=2] }\n", 1, 20,
        "is not a port", "write { url: \"http://10.0.0.1:80\", weight: 2 }"),
    ("upstreams: { app: \"grpc://a:1\" }\n", 1, 19,
        "`grpc://` is not a scheme", "write http://host:port, and protocol: http2"),
    ("locations:\n  - { path: /api/, upstream: \"http://10.0.0.1:80/v1/\" }\n", 2, 30,
        "has a path", "write http://10.0.0.1:80; the path of a request is forwarded as it is, and strip"),
    ("locations:\n  - { path: /, upstream: [a:1, b:2] }\n", 2, 16,
        "`upstream` must be one value, not a list", "define it at the top"),
    ("locations:\n  - { path: /, upstream: 10.0.0.1 }\n", 2, 26, "is not defined", "http://10.0.0.1"),
    ("locations:\n  - { path: [/a, /b], upstream: demo }\n", 2, 7,
        "`path` must be one value, not a list", "write a location for each path"),
    ("locations:\n  - { path: ^/api, upstream: demo }\n", 2, 13, "does not start with /", "write ~ ^/api"),
    ("locations:\n  - { path: \"/a?b=1\", upstream: demo }\n", 2, 13, "can never match", "write /a"),
    ("locations:\n  - { path: /, host: .example.com, upstream: demo }\n", 2, 22,
        "is not a host name", "write [example.com, \"*.example.com\"]"),
    ("locations:\n  - { path: /, host: \"~^a\", upstream: demo }\n", 2, 22,
        "is not a host name", "a host is no regular expression"),
    ("locations:\n  - { path: /, host: \"a.test b.test\", upstream: demo }\n", 2, 22,
        "is not a host name", "write a list: host: [a.test, b.test]"),
    ("locations:\n  - { path: /, upstream: demo, methods: GET|POST }\n", 2, 41,
        "is not a request method", "write a list: methods: [GET, POST]"),
    ("locations:\n  - { path: /, upstream: demo, methods: \"*\" }\n", 2, 41,
        "is not a request method", "write methods: any"),
    ("locations:\n  - { path: /, upstream: demo, timeout: 0 }\n", 2, 41,
        "the duration `0` has no unit", "write timeout: none"),
    ("locations:\n  - { path: /, upstream: demo, proxy_read_timeout: 30 }\n", 2, 32,
        "unknown field `proxy_read_timeout`", "write timeouts: { response: 30s } in the upstream"),
    ("locations:\n  - { path: /, upstream: demo, strip: true }\n", 2, 39,
        "does not start with /", "write the prefix to remove"),
    ("locations:\n  - { path: /, upstream: demo, websocket: true }\n", 2, 32,
        "unknown field `websocket`", "remove it: WebSockets"),
    ("locations:\n  - { path: /, upstream: demo, allow: [10.0.0.0/8], deny: all }\n", 2, 32,
        "unknown field `allow`", "write access: { allow: [10.0.0.0/8] }"),
    ("locations:\n  - { path: /, upstream: demo, access: { deny: all } }\n", 2, 48,
        "`all` is not an address", "allow: [10.0.0.0/8] admits these addresses alone"),
    ("locations:\n  - { path: /, upstream: demo, proxy_set_header: X-Real-IP $remote_addr }\n", 2, 32,
        "unknown field `proxy_set_header`", "write request_headers: { set: { X-Real-IP: \"${client_ip}\" } }"),
    ("locations:\n  - { path: /, upstream: demo, add_header: { X-A: b } }\n", 2, 32,
        "unknown field `add_header`", "write response_headers: { set: { X-A: b } }"),
    ("locations:\n  - { path: /, upstream: demo, request_headers: [\"X-A: b\"] }\n", 2, 32,
        "`request_headers` must be a mapping", "write request_headers: { set: { X-A: b } }"),
    ("locations:\n  - { path: /, upstream: demo, request_headers: { set: { X-A: \"${remote_addr}\" } } }\n", 2, 63,
        "unknown template variable", "did you mean `client_ip`?"),
    ("locations:\n  - { path: /, upstream: demo, respond: { status: 200 } }\n", 2, 32,
        "only one of", "remove the others"),
    ("locations:\n  - { path: /, upstream: demo, cors: \"*\" }\n", 2, 32,
        "`cors` must be a mapping", "write cors: { origins: \"*\" }"),
    ("locations:\n  - { path: /, upstream: demo, cors: { allow_origins: [\"https://a.test\"] } }\n", 2, 40,
        "unknown field `allow_origins`", "write origins: [https://a.test]"),
    ("locations:\n  - { path: /, upstream: demo, bandwidth: 1MB/s }\n", 2, 32,
        "`bandwidth` must be a mapping", "write bandwidth: { rate: 1MB/s }"),
    ("locations:\n  - { path: /, upstream: demo, bandwidth: { rate: 1MB } }\n", 2, 51, "has no period", "write 1MB/s"),
    ("on_reject: { 429: { body: none } }\n", 1, 14,
        "unknown field `429`", "write on_reject: { status: 429, body: none }"),
    ("on_reject: 429\n", 1, 1, "`on_reject` must be a mapping", "write on_reject: { status: 429 }"),
    ("on_reject: { body: slow down }\n", 1, 20,
        "`slow down` is not a valid word", "write body: { template: slow down, content_type: text/plain }"),
    ("on_reject: { retry_after: 5 }\n", 1, 14, "unknown field `retry_after`", "remove it: Retry-After is computed"),
    ("on_reject: { headers: [{ X-A: b }] }\n", 1, 14, "`headers` must be a mapping", "write headers: { X-A: b }"),
    ("server: { trusted_proxies: all }\n", 1, 28, "`all` is not an address", "name the proxies before the gateway"),
    ("server: { trusted_proxies: \"10.0.0.0/8, 192.0.2.7\" }\n", 1, 28,
        "is not an address", "write a list: trusted_proxies: [10.0.0.0/8, 192.0.2.7]"),
    ("server: { trusted_proxies: 10.0.0.0/255.0.0.0 }\n", 1, 28, "is not an address", "write 10.0.0.0/8"),
    ("server: { trusted_proxies: private_ranges }\n", 1, 28, "is not an address", "write [10.0.0.0/8, 172.16.0.0/12,"),
    ("server: { max_body: 10 MB }\n", 1, 21, "is not a unit of size", "write 10MB"),
    ("server: { max_body: 1.5MB }\n", 1, 21, "is not a whole number", "write 1500KB"),
    ("server: { max_body: 1_000_000 }\n", 1, 21, "is not a unit of size", "write 1000000B"),
    ("server: { max_body: unlimited }\n", 1, 21, "is not a size", "write max_body: none"),
    ("server: { max_connections: 1,000 }\n", 1, 30, "unknown field `000`", "write numbers without commas"),
    ("server: { timeouts: 30s }\n", 1, 11,
        "`timeouts` must be a mapping", "write timeouts: { header: 30s, body: 30s }"),
    ("server: { timeouts: { header: 1min } }\n", 1, 31, "is not a unit of time", "write 1m"),
    ("server: { keepalive_timeout: 65 }\n", 1, 11,
        "unknown field `keepalive_timeout`", "write timeouts: { idle: 65s }"),
    ("server: { set_real_ip_from: 10.0.0.0/8 }\n", 1, 11,
        "unknown field `set_real_ip_from`", "did you mean `trusted_proxies`?"),
    ("server:\n  locations: [{ path: /, upstream: demo }]\n", 2, 3,
        "unknown field `locations`", "write `locations` at the top of the file"),
    ("http: { server: { locations: [] } }\nlocations: [{ path: /, upstream: demo }]\n", 1, 1,
        "unknown field `http`", "write what is in it at the top of the file"),
    ("location /api: { upstream: demo }\nlocations: [{ path: /, upstream: demo }]\n", 1, 1,
        "unknown field `location /api`", "write locations: [{ path: /api, upstream: demo }]"),
    ("apiVersion: networking.k8s.io/v1\nkind: Ingress\n", 1, 1,
        "unknown field `apiVersion`", "a manifest of Kubernetes"),
    ("listen: $PORT\n", 1, 9, "is not an address", "write ${PORT} for the environment variable"),
    ("listen: 8080, 8081\n", 1, 9, "is not an address", "write a list: listen: [8080, 8081]"),
    ("listen: { host: 0.0.0.0, port: 80 }\n", 1, 11, "unknown field `host`", "write address: 0.0.0.0:80"),
    ("admin: { listen: 127.0.0.1:9901, token: \"${file:no-such-token}\" }\n", 1, 41,
        "the file `no-such-token` does not exist", "relative paths start at the folder of gateway.yaml: /"),
    ("state: { redis: { url: \"${SLUICEGATE_NO_SUCH_URL:-http://a}\" } }\n", 1, 24,
        "this is not the URL of a Redis", "write redis://"),
    ("state: redis\n", 1, 1,
        "`state` must be a mapping", "write state: { store: redis, redis: { url: \"redis://HOST:6379\" } }"),
    ("reload: 5s\n", 1, 1, "`reload` must be a mapping", "write reload: { watch: 5s }"),
    ("account: header:X-Id\n", 1, 1, "`account` must be a mapping", "write account: { from: header:X-Id }"),
    ("account: { tiers: { alice: gold } }\n", 1, 12,
        "unknown field `tiers`", "write tier: { members: { alice: gold } }"),
    ("account: { from: \"header: X-Id\" }\n", 1, 18, "is not a header name", "write X-Id without spaces"),
    ("access_log: true\n", 1, 1, "`access_log` must be a mapping", "remove it: requests are logged"),
    ("access_log: { path: /var/log/a.log }\n", 1, 15, "unknown field `path`", "did you mean `output`?"),
    ("access_log: { sample: 0.1 }\n", 1, 23, "`0.1` is not a percentage", "write 10% for this share"),
    ("account: { from: jwt:sub, jwt: { jwks: tests/keys/rsa.pem } }\n", 1, 40,
        "holds a private key", "openssl pkey -in tests/keys/rsa.pem -pubout -out public.pem"),
    ("account: { from: jwt:sub, jwt: { jwks: tests/keys/upstream.pem } }\n", 1, 40,
        "holds a certificate", "openssl x509 -in tests/keys/upstream.pem -pubkey -noout"),
    ("locations:\n  - { path: /api, pathType: Prefix, upstream: demo }\n", 2, 0,
        "unknown field `pathType`", "remove it: a path such as /api matches every path that begins with it"),
    ("locations:\n  - { path: /api, pathType: Exact, upstream: demo }\n", 2, 0,
        "unknown field `pathType`", "such as path: = /api"),
    ("on_reject: { body: \"<h1>no</h1>\" }\n", 1, 20,
        "is not a valid word", "write body: { template: \"<h1>no</h1>\", content_type: text/html }"),
    ("on_reject: { body: { file: busy.html } }\n", 1, 0,
        "unknown field `file`", "write template: \"${file:busy.html}\""),
    ("locations:\n  - { path: /, respond: { body: { file: busy.html } } }\n", 2, 0,
        "`body` must be text", "write body: \"${file:busy.html}\""),
    ("locations:\n  - { path: /, upstream: demo, timeouts: { response: 5s } }\n", 2, 0,
        "unknown field `timeouts`", "write timeouts: { response: 5s } in upstreams.NAME"),
    ("locations:\n  - { rule: \"Host(`a.test`)\", upstream: demo }\n", 2, 0,
        "unknown field `rule`", "write path: / and host: a.test"),
    ("locations:\n  - { rule: \"Host(`a.test`) && PathPrefix(`/api`)\", upstream: demo }\n", 2, 0,
        "unknown field `rule`", "write path: /api and host: a.test"),
    ("locations:\n  - { path: /, upstream: demo, request_headers: { set: { X-A: \"${request-id}\" } } }\n", 2, 0,
        "`${request-id}` is not a variable", "did you mean `${request_id}`?"),
    ("limits:\n  a: { algorithm: concurrency, max_concurrent: 5, tiers: { premium: 100 } }\n", 2, 0,
        "`premium` must be a mapping", "write premium: { max_concurrent: 100 }"),
    ("limits:\n  a: { rate: 10/s, except: [/healthz] }\n", 2, 20,
        "unknown field `except`", "write a location of its own for /healthz, without this limit"),
    ("limits:\n  a: { rate: 10/s, key: [ip, header: X-User] }\n", 2, 0,
        "must be one value, not a mapping", "write header:X-User without a space"),
    ("admin: { address: \"127.0.0.1:9901\" }\n", 1, 0, "unknown field `address`", "write listen: 127.0.0.1:9901"),
    ("account: { from: jwt:sub, jwt: { jwks: \"${SLUICEGATE_NO_SUCH_FILE:-keys/no.json}\" } }\n", 1, 40,
        "does not hold a usable file: the file `keys/no.json` does not exist", "keys/no.json was tried"),
    ("account: { from: jwt:sub, jwt: { jwks: \"${SLUICEGATE_NO_SUCH_FILE:-/nowhere/keys_1}\" } }\n", 1, 40,
        "the file `/nowhere/keys_1` does not exist", "that the user of the gateway may read"),
    ("account: { from: jwt:sub, jwt: { jwks: \"${SLUICEGATE_NO_SUCH_FILE:-/9jHunter2}\" } }\n", 1, 40,
        "` does not hold a usable file", "the value should be such as jwks"),
    ("state: { redis: { url: \"redis://:${SLUICEGATE_NO_SUCH:-p/q@x}@h:6379\" } }\n", 1, 24,
        "a Redis URL cannot contain an at sign after a slash", "write @ as %40"),
    ("admin: { listen: 127.0.0.1:9901, token: \"${SLUICEGATE_NO_SUCH_TOKEN}\" }\n", 1, 41,
        "`SLUICEGATE_NO_SUCH_TOKEN` is not set", "set it in the environment of the gateway"),
    ("locations:\n  - { path: /, upstream: demo, client_max_body_size: 10m }\n", 2, 32,
        "unknown field `client_max_body_size`", "write server: { max_body: 10MiB }"),
    ("server: { client_max_body_size: 10m }\n", 1, 11,
        "unknown field `client_max_body_size`", "write max_body: 10MiB"),
    ("upstreams: { app: { servers: [a:1], balance: hash:cookie:sid } }\n", 1, 0,
        "`hash:cookie:sid`", "there are no cookies for it: write hash:ip"),
    ("upstreams: { app: { servers: [a:1], timeouts: { connect: 1m30s } } }\n", 1, 0,
        "`m30s` is not a unit of time", "write 90s"),
    ("account: { from: jwt:sub, jwt: { secret: \"0123456789012345678901234567890123456789\", \
      algorithms: [RS256, ES256] } }\n", 1, 0,
        "no algorithm here uses `secret`", "remove `algorithms`"),
    ("server: { trusted_proxies: 10.0.0.0/33 }\n", 1, 28, "is not an address", "the prefix is at most 32"),
    ("server: { trusted_proxies: \"2001:db8::/129\" }\n", 1, 28, "is not an address", "the prefix is at most 128"),
    ("locations:\n  - { path: /, upstream: demo }\n  - { path: /, upstream: demo }\n", 3, 0,
        "as locations[0] in line 2", "remove one"),
    ("server: { ssl_certificate: a.pem }\n", 1, 11,
        "unknown field `ssl_certificate`", "write listen: { address: \":443\", tls: { cert: a.pem, key: key.pem } }"),
    ("server: { error_page: 429 }\n", 1, 11, "unknown field `error_page`", "write on_reject: { body: "),
    ("locations:\n  - { path: /, upstream: demo, header_up: X-A b }\n", 2, 32,
        "unknown field `header_up`", "write request_headers: { set: { X-A: b } }"),
    ("locations:\n  - { path: /, upstream: demo, if: \"($host = a)\" }\n", 2, 32,
        "unknown field `if`", "there are no conditions"),
    ("locations:\n  - { path: /, upstream: demo, mirror: /copy }\n", 2, 32,
        "unknown field `mirror`", "requests are not copied"),
    ("upstreams: { app: { servers: [a:1], idle_timeout: 60 } }\n", 1, 37,
        "unknown field `idle_timeout`", "write timeouts: { idle: 60s }"),
    ("include: conf.d/a.yaml\n", 1, 1, "unknown field `include`", "there is one file"),
    ("rate_limits: { a: { rate: 10/s } }\n", 1, 1, "unknown field `rate_limits`", "did you mean `limits`?"),
    ("state: { redis: { url: \"redis://h\", password: hunter2 } }\n", 1, 0,
        "unknown field `password`", "redis://:${REDIS_PASSWORD}@HOST:6379"),
    ("state: { redis: { url: \"redis://h\", password_file: /run/pw } }\n", 1, 0,
        "unknown field `password_file`", "redis://:${file:/run/pw}@HOST:6379"),
    ("upstreams: { app: { servers: [{ url: \"http://a\", weight: 5% }] } }\n", 1, 0,
        "`5%` is not a whole number", "write weight: 5; its share of the sum of all weights counts"),
    ("server: { client_ip: X-Real-IP }\n", 1, 22, "`X-Real-IP`", "write header:X-Real-IP"),
    ("limits:\n  a: { rate: 10/s, key: account, missing_key: { status: 401 } }\n", 2, 0,
        "unknown field `status`", "write reject: 401"),
    ("limits:\n  a: { rate: \"10/s, 1000/h\" }\n", 2, 14, "10/s, 1000/h", "write a list: rate: [10/s, 1000/h]"),
    ("locations:\n  - { path: /, upstream: demo, rewrite: \"^/api/(.*) /$1\" }\n", 2, 32,
        "unknown field `rewrite`", "write e.g. strip: /api"),
    ("listen: { address: \":443\", tls: auto }\n", 1, 28,
        "`tls` must be a mapping", "certificates are not fetched here"),
    ("state: { redis: { url: \"10.0.0.1:6379\" } }\n", 1, 24, "this is not a URL", "write redis:// before the host"),
    ("limits:\n  a: { rate: 10/s, max_wait: 1s }\n", 2, 20,
        "`max_wait` is not a field of token_bucket", "write algorithm: leaky_bucket"),
    ("account: { from: header:x-user, tier: { members: { gold: [alice, bob] } } }\n", 1, 0,
        "`gold` must be one tier", "write members: { alice: gold }, one for each"),
];

/// Valid files with their only warning.
#[rustfmt::skip]
const TRAPS: &[Mistake] = &[
    ("locations:\n  - { path: /, upstream: demo, request_headers: { set: { X-Client: $remote_addr } } }\n", 2, 68,
        "`$remote_addr` is text", "write \"${client_ip}\""),
    ("locations:\n  - { path: /, redirect: { to: \"https://$host$request_uri\" } }\n", 2, 32,
        "`$host` is text", "write \"https://${host}${request_uri}\""),
    ("locations:\n  - { path: /, redirect: { to: \"https://{host}/\" } }\n", 2, 32,
        "`{host}` is text", "write ${host}"),
    ("locations:\n  - { path: /, upstream: demo, request_headers: { set: { X-A: $geoip_country } } }\n", 2, 63,
        "`$geoip_country` is text", "the variables here are ${client_ip}, ${request_id}"),
    ("locations:\n  - { path: /, upstream: demo, request_headers: { set: { X-A: \"%[src]\" } } }\n", 2, 63,
        "`%[src]` is text", "the variables here are"),
    ("locations:\n  - { path: /, upstream: demo, request_headers: { set: { X-A: \"%[src]\" } } }\n", 2, 63,
        "`%[src]` is text", "write ${client_ip}; the variables"),
    ("account: { from: jwt:sub, jwt: { jwks: tests/keys/rsa.pub.pem }, tier: { members: { gold: alice } } }\n\
      limits: { a: { rate: 10/s, key: account, tiers: { gold: { rate: 20/s } } } }\n\
      locations: [{ path: /, upstream: demo, limits: a }]\n", 2, 0,
        "no caller can be in the tier `gold`", "write members: { alice: gold }"),
    ("locations:\n  - { path: /, respond: { body: \"hello $remote_addr\" } }\n", 2, 33,
        "`$remote_addr` is text", "write ${client_ip}"),
    ("on_reject: { headers: { X-A: $host } }\n", 1, 30, "`$host` is text", "no variables here"),
    ("admin: { listen: 127.0.0.1:9901, token: $ADMIN_TOKEN }\n", 1, 41,
        "this secret is written like a variable", "in braces"),
    ("access_log: { headers: [user-agent, authorization] }\n", 1, 37,
        "would hold `authorization` in clear", "remove it"),
    ("access_log: { headers: Cookie }\n", 1, 24, "would hold `cookie` in clear", "remove it"),
    ("server: { trusted_proxies: 10.0.0.0 }\n", 1, 28, "`10.0.0.0` is one address", "write 10.0.0.0/8 for the network"),
    ("locations: [{ path: \"/api/{id}\", upstream: demo }]\n", 1, 21,
        "`{id}` is text", "write /api/, which matches every path below it"),
    ("locations: [{ path: \"/api/:id/x\", upstream: demo }]\n", 1, 21, "`:id` is text", "~ ^/api/[^/]+/x$"),
    ("locations: [{ path: \"/a, /b\", upstream: demo }]\n", 1, 21,
        "one path with a space", "write a location for each path"),
    ("locations: [{ path: /, host: _, upstream: demo }]\n", 1, 30, "`_` is a name like any other", "write host: any"),
    ("locations: [{ path: /, methods: [ANY], upstream: demo }]\n", 1, 24,
        "`ANY` is a name like any other", "write methods: any"),
    ("locations: [{ path: /api/, upstream: \"http://127.0.0.1:1/\" }]\n", 1, 38,
        "the slash at the end does not remove /api", "write strip: /api"),
    ("listen: [80, { address: \":443\", tls: { cert: tests/keys/tls/a.pem, key: tests/keys/tls/a.key.pem } }]\n\
      locations: [{ path: /, redirect: { to: \"https://${host}${request_uri}\" } }]\n", 2, 0,
        "redirects to itself over https", "write scheme: http"),
    ("listen: [80, { address: \":443\", tls: { cert: tests/keys/tls/a.pem, key: tests/keys/tls/a.key.pem } }]\n\
      locations:\n  - { path: /, scheme: http, redirect: { to: \"https://${host}${request_uri}\" } }\n\
      \x20 - { path: /, upstream: demo }\n  - { path: /api/, upstream: demo }\n", 5, 13,
        "/api/ is also served without TLS, because it is longer than /", "write scheme: https"),
    ("locations:\n  - { path: \"^~ /api/\", upstream: demo }\n  - { path: \"~ ^/api/v2/\", upstream: demo }\n", 3, 13,
        "this location is never reached: locations[0], `^~ /api/`", "^~ keeps regular expressions from being tried"),
    ("limits: { a: { rate: 10/s } }\nserver: { limits: [a] }\n\
      locations: [{ path: /, upstream: demo, limits: none }]\n", 3, 0,
        "`none` does not lift server.limits", "name `a` in the other locations"),
    ("locations: [{ path: \"/api$\", upstream: demo }]\n", 1, 21,
        "`$` is a character like any other in this path", "write = /api"),
    ("on_reject: { body: { template: busy.html } }\n", 1, 32,
        "`busy.html` is the text itself, not the name of a file", "write \"${file:busy.html}\""),
    ("locations: [{ path: /, respond: { body: busy.html } }]\n", 1, 41,
        "`busy.html` is the text itself, not the name of a file", "write \"${file:busy.html}\""),
    ("locations:\n  - { path: /, redirect: { to: \"https://a.test{http.request.uri}\" } }\n", 2, 32,
        "`{http.request.uri}` is text", "write ${request_uri}"),
    ("account: { from: jwt:sub, jwt: { jwks: tests/keys/rsa.pub.pem }, tier: { members: { alice: gold } } }\n\
      limits: { a: { rate: 10/s, key: account, tiers: { glod: { rate: 20/s } } } }\n\
      locations: [{ path: /, upstream: demo, limits: a }]\n", 2, 0,
        "no caller can be in the tier `glod`", "did you mean `gold`?"),
    ("limits: { a: { rate: 10/s } }\n", 1, 11,
        "the limit `a` is defined and never used", "write limits: a in a location"),
];

#[test]
fn every_trap_has_one_warning_that_says_what_to_write() {
    let mut wrong = String::new();
    for trap in TRAPS {
        match read(trap.0) {
            Ok(loaded) if check_only(&loaded.warnings, trap) => {}
            Ok(loaded) => wrong += &format!("--- expected {trap:?}\n{:#?}\n", loaded.warnings),
            Err(report) => wrong += &format!("--- expected {trap:?}\n{report}\n"),
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn prices_and_ends_of_expressions_are_no_variables() {
    for text in [
        "locations: [{ path: /, respond: { body: \"$5, US$ 7, 10$\" } }]\n",
        "locations: [{ path: /, upstream: demo, response_headers: { set: { X-Price: \"$5\" } } }]\n",
        "locations: [{ path: \"~ ^/(a$|B$B)\", upstream: demo }]\n",
        "locations: [{ path: /, redirect: { to: \"https://${host}/a\" } }]\n",
        "access_log: { headers: [user-agent, referer] }\n",
        "locations: [{ path: /, redirect: { to: \"https://${host}${request_uri}\" } }]\n",
        "locations: [{ path: \"^~ /api/\", upstream: demo }, { path: \"~ ^/ap\", upstream: demo }]\n",
        "locations: [{ path: \"^~ /api/\", upstream: demo }, { path: /api/v2/, upstream: demo }, \
         { path: \"~ ^/api/v2/x\", upstream: demo }]\n",
        "locations: [{ path: /, respond: { body: \"see busy.html\" } }]\n",
        "locations: [{ path: /, scheme: http, redirect: { to: \"https://${host}/\" } }, \
         { path: /.well-known/acme-challenge/, upstream: demo }, { path: /api/, scheme: https, upstream: demo }, \
         { path: /, upstream: demo }]\nserver: { trusted_proxies: 10.0.0.0/8 }\n",
    ] {
        let loaded = read(text).unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(loaded.warnings, [], "{text}");
    }
}

#[test]
fn another_client_cannot_use_up_counters_by_its_own_address() {
    let message = |key: &str| {
        let text = format!(
            "limits: {{ a: {{ rate: 10/s, key: {key} }} }}\nlocations: [{{ path: /, upstream: demo, limits: a }}]\n"
        );
        let warnings = read(&text).unwrap_or_else(|report| panic!("{report}")).warnings;
        warnings.into_iter().map(|warning| warning.message).collect::<String>()
    };
    assert!(message("[ip, \"header:X-User\"]").ends_with("a new value gets fresh counters"));
    assert!(message("header:X-User").ends_with("another client's value uses up its counters"));
}

#[test]
fn masking_leaves_the_message_and_the_brackets_readable() {
    let text = "admin: { listen: nowhere, token: \"hunter2\" }\n\
                state: { redis: { url: \"redis://:${SLUICEGATE_NO_SUCH:-p/q@x}@h:6379\" } }\n";
    let report = read(text).expect_err(text).to_string();
    assert!(report.contains("listen: nowhere, token: \"*******\" }"), "{report}");
    assert!(report.contains("does not hold the URL of a Redis or Valkey: a Redis URL cannot"), "{report}");
    assert!(!report.contains("hunter2") && !report.contains("p/q"), "{report}");
}

#[test]
fn no_help_repeats_a_secret() {
    for text in [
        "locations: [{ path: /, upstream: demo, proxy_set_header: X-Token hunter2 }]\n",
        "locations: [{ path: /, upstream: demo, proxy_set_header: { Authorization: hunter2 } }]\n",
        "locations: [{ path: /, upstream: demo, request_headers: [\"X-Secret: hunter2\"] }]\n",
        "locations: [{ path: /, upstream: demo, request_headers: { set: \"Cookie: hunter2\" } }]\n",
        "locations: [{ path: /, upstream: \"http://u:hunter2@10.0.0.1/v1\" }]\n",
        "state: { redis: { url: \"redis://:hunter2,x@a, b c\" } }\n",
        "state: { redis: { url: \"redis://:x$HUNTER2@a b\" } }\n",
        "state: { redis: { host: \"u:hunter2@a\" } }\n",
    ] {
        let report = read(text).expect_err(text);
        let helps: Vec<&str> = report.problems.iter().filter_map(|one| one.suggestion.as_deref()).collect();
        assert!(
            !helps.is_empty() && !helps.join(" ").to_lowercase().contains("hunter2"),
            "{text}: {helps:?}"
        );
    }
    let trap =
        "locations: [{ path: /, upstream: demo, request_headers: { set: { X-Token: hunter2$host } } }]\n";
    let warnings = read(trap).unwrap_or_else(|report| panic!("{report}")).warnings;
    assert!(warnings.len() == 1 && !format!("{warnings:?}").contains("hunter2"), "{warnings:?}");
}
