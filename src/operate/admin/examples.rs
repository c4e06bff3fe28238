//! Examples of bodies and answers, as JSON.

pub(super) const SERVERS: &str = r#"[
  { "server": "10.0.0.7:8080", "state": "draining", "weight": 1, "share": 100, "backup": false, "in_flight": 3,
    "ejections": 0, "responses": { "2xx": 81204, "3xx": 310, "4xx": 77, "5xx": 9 } }
]"#;

pub(super) const UPSTREAM: &str = r#"{
  "upstream": "app",
  "balance": "p2c",
  "queue": { "size": 1000, "waiting": 3, "waits": 5120, "wait_seconds": 614.25, "timeouts": 2 },
  "responses": { "2xx": 81204, "3xx": 310, "4xx": 77, "5xx": 4 }, "servers": [
    { "server": "10.0.0.7:8080", "state": "up", "weight": 1, "share": 100, "backup": false, "in_flight": 12,
      "max_connections": 12, "ejections": 1,
      "responses": { "2xx": 81204, "3xx": 310, "4xx": 77, "5xx": 9 },
      "last_error": { "error": "connection refused", "seconds_ago": 812.5 } }
  ]
}"#;

pub(super) const UPSTREAM_LIST: &str = r#"{
  "upstreams": [
    { "upstream": "app", "balance": "p2c", "responses": { "2xx": 81204, "3xx": 310, "4xx": 77, "5xx": 9 }, "servers": [
      { "server": "10.0.0.7:8080", "state": "up", "weight": 1, "share": 100, "backup": false, "in_flight": 12,
        "ejections": 0, "responses": { "2xx": 81204, "3xx": 310, "4xx": 77, "5xx": 9 } }
    ] }
  ]
}"#;

pub(super) const QUERY: &str =
    r#"{"method": "GET", "url": "/api/", "ip": "203.0.113.7", "headers": ["A: b"]}"#;

pub(super) const EXPLANATION: &str = r#"{
  "client": { "ip": "203.0.113.7", "peer": "203.0.113.7", "trusted_peer": false, "why": "the peer" },
  "host": "localhost",
  "path": "/api/",
  "location": { "index": 0, "location": "/api/ -> app", "why": "longest prefix" },
  "passed_over": [],
  "limits": [
    { "name": "per-ip", "does": "per-ip: 10 requests per second per client IP, 20 at once", "dry_run": false,
      "counts_by": "client IP 203.0.113.7", "cost": 1, "counters": [
        { "rate": "10 requests per second", "remaining": 19, "of": 20, "reset_ms": 0, "outcome": "admit", "wait_ms": 0 }
    ] }
  ],
  "verdict": { "outcome": "admit", "then": "forwarded to upstream app as GET /api/" }
}"#;

pub(super) const RELOADED: &str = r#"{ "result": "ok", "generation": 2, "changes": "limits: changed per-ip",
  "values": [{ "path": "limits.per-ip.rate", "from": "10/s", "to": "20/s" }], "more": 0 }"#;

pub(super) const NOT_RELOADED: &str = r#"{
  "error": "server.workers changes from 2 to 4: that needs a restart",
  "result": "refused",
  "message": "server.workers changes from 2 to 4: that needs a restart"
}"#;

pub(super) const STATUS: &str = r#"{
  "version": "0.1.0", "pid": 4711, "file": "/etc/sluicegate/gateway.yaml", "uptime_s": 86400, "generation": 3,
  "workers": 2, "token": { "name": "ops", "allow": "all" }, "listening": ["http://0.0.0.0:8080"],
  "connections": 117, "in_flight": 9,
  "rejections": { "per_s": 4.5, "over_s": 1.4 },
  "bans": { "active": 2, "rejected": 610, "rejected_per_s": 0.5 },
  "shared_limits": [],
  "redis": {
    "reachable": true, "unreachable_since_ms": null, "outages": 1,
    "last_outage": { "began_at_ms": 1767221000000, "lasted_s": 4.2 }, "gateways": 2,
    "servers": [
      { "server": "10.0.0.9:6379", "role": null, "up": true, "breaker": "closed", "calls": 81204, "mean_ms": 0.31,
        "evicts_by": null }
    ],
    "nodes": [
      { "name": "edge-1", "version": "0.1.0", "file_hash": "3f2a9c11b0d4", "started_at_ms": 1767139200000,
        "own": true, "file_differs": false },
      { "name": "edge-2", "version": "0.1.0", "file_hash": "77e01b5a9f20", "started_at_ms": 1767139260000,
        "own": false, "file_differs": true }
    ]
  },
  "files": [],
  "issuers": [{ "issuer": "https://id.example.com/", "keys": 2, "age_s": 341, "error": null }],
  "snapshot": null,
  "last_reload": { "at": 1767225600, "result": "ok", "told": "limits: changed per-ip", "problems": [] },
  "warnings": [], "history": { "bytes": 171360 },
  "certificates": [{ "use": "listener", "name": "0.0.0.0:8443", "file": "/etc/sluicegate/chain.pem",
                     "expires_at": 1769040000, "days_left": 20, "expired": false }],
  "acme": [{ "domains": ["example.com"], "directory": "https://acme-v02.api.letsencrypt.org/directory",
             "file": "/var/lib/sluicegate/acme/example.com-0f3a5b7c9d1e2f40.pem", "issued": true,
             "next_order_at": 1767312000, "next_order_in_s": 86400, "error": null }],
  "paused": [],
  "limits": [{ "limit": "per-ip", "keys": 1204, "rejected": 5120, "rejected_per_s": 4.0, "would_reject": 0 }],
  "upstreams": []
}"#;

pub(super) const LIMIT_LIST: &str = r#"{
  "limits": [
    { "limit": "per-ip", "algorithm": "token_bucket", "key": "client IP",
      "sentence": "per-ip: 10 requests per second per client IP, 20 at once; the 21st is rejected with 429",
      "numbers": "10 requests per second, burst 20",
      "rates": [{ "units": 10, "period_ms": 1000.0, "burst": 20 }],
      "max_concurrent": null, "tiers": [], "dry_run": false, "paused": null, "enforce": null, "shadow_of": null,
      "shared": false, "state": "local", "keys": 1204, "waiting": 0,
      "admitted": { "total": 812004, "per_s": 96.5, "per_s_1m": 91.2 },
      "waited": { "total": 0, "per_s": 0.0, "per_s_1m": 0.0 },
      "rejected": { "total": 5120, "per_s": 4.0, "per_s_1m": 3.1 },
      "dry_run_rejected": { "total": 0, "per_s": 0.0, "per_s_1m": 0.0 } }
  ]
}"#;

pub(super) const NEW_PAUSE: &str = r#"{"for": "10m", "reason": "it rejects good clients"}"#;

pub(super) const LIMIT_NUMBERS: &str = r#"{ "limit": "per-ip", "file": { "rate": "10/s" }, "paused": null,
  "set": { "rate": "20/s", "left_s": 7200.0, "by": "billing", "reason": "plan B" },
  "sentence": "per-ip acts; numbers {\"rate\":\"20/s\"}, in the file {\"rate\":\"10/s\"}" }"#;

pub(super) const NEW_NUMBERS: &str = r#"{"rate": "20/s", "burst": 40, "for": "2h", "reason": "plan B"}"#;

pub(super) const TRAFFIC_EVENT: &str = r#"{
  "at_ms": 1767225600000,
  "requests": { "admit": 96.5, "wait": 2.0, "reject": 4.0, "missing_key": 0.0, "degrade": 0.0, "ban": 0.5,
                "fault": 0.0 },
  "in_flight": 9, "waiting": 1, "bans": 2,
  "wait": { "p50_ms": 40.0, "p99_ms": 230.0 },
  "limits": [
    { "limit": "per-ip", "admitted_per_s": 96.5, "waited_per_s": 2.0, "rejected_per_s": 4.0,
      "would_reject_per_s": 0.0, "keys": 1204, "waiting": 1 }
  ],
  "upstreams": [
    { "upstream": "app", "up": 2, "down": 0, "ejected": 1, "draining": 0, "in_flight": 9,
      "waiting": 3, "stopped_s": 0.0, "response": { "p50_ms": 12.5, "p99_ms": 88.0 },
      "responses": { "2xx": 93.0, "3xx": 1.0, "4xx": 4.0, "5xx": 0.5 } }
  ],
  "locations": [{ "location": "/api/", "responses": { "2xx": 93.0, "3xx": 1.0, "4xx": 4.0, "5xx": 0.5 },
    "own": { "limit": 4.0, "ban": 0.5, "queue": 0.0, "server": 0.0, "fault": 0.0 } }],
  "refusals": [
    { "at_ms": 1767225599870, "limit": "per-ip", "key": "ip=192.0.2.7", "ip": "192.0.2.7", "location": "/api/",
      "status": 429, "cause": "rate", "retry_after_ms": 62 }
  ],
  "steps": [
    { "at_ms": 1767225590113, "limit": "plan", "key": "account=acme", "data": { "limit": "plan", "key": "account=acme",
      "step": { "at": 80, "then": "warn" }, "text": "acme reached 80 % of plan" } }
  ],
  "redis": { "reachable": true, "outages": 1, "nodes": 2 }
}"#;

pub(super) const HISTORY: &str = r#"{
  "end_ms": 1767225600000, "step_ms": 1000,
  "limits": [{ "limit": "per-ip", "admitted": [null, 96, 101], "waited": [null, 2, 0], "rejected": [null, 4, 9],
               "would_reject": [null, 0, 0] }],
  "upstreams": [{ "upstream": "app", "2xx": [null, 95], "3xx": [null, 0], "4xx": [null, 1], "5xx": [null, 2],
                  "p50_ms": [null, 12.5], "p99_ms": [null, 88.0] }]
}"#;

pub(super) const BAN_LIST: &str = r#"{
  "active": 2, "unnamed": 0,
  "bans": [
    { "banned": "203.0.113.0/24", "by": "ops", "reason": "scraping", "left_s": 540.0, "at_ms": 1767225600000 },
    { "banned": "192.0.2.7", "by": "automatic", "reason": null, "left_s": 31.5, "at_ms": null }
  ]
}"#;

pub(super) const BAN: &str = r#"{
  "banned": "203.0.113.0/24", "by": "ops", "reason": "scraping", "left_s": 600.0, "at_ms": 1767225600000
}"#;

pub(super) const ENDED_BANS: &str = r#"{
  "ended": [{ "banned": "192.0.2.7", "by": "automatic", "reason": null, "left_s": 31.5, "at_ms": null }],
  "left": [{ "limit": "per-ip", "key": "ip=192.0.2.7", "remaining": 0, "reset_s": 0.062 }]
}"#;

pub(super) const NEW_BAN: &str = r#"{"ip": "203.0.113.0/24", "for": "10m", "reason": "scraping"}"#;

pub(super) const KEY_LIST: &str = r#"{
  "limit": "per-ip", "by": "refused", "gateways": 1,
  "keys": [
    { "key": "ip=192.0.2.7", "asked_per_s": 42.0, "refused_per_s": 32.1, "error_per_s": 0.0, "remaining": 0,
      "leased": null, "reset_s": 0.062, "step": null, "waiting": 0, "grant": null, "ban": "192.0.2.7" }
  ]
}"#;

pub(super) const KEY: &str = r#"{
  "key": "ip=192.0.2.7", "asked_per_s": 42.0, "refused_per_s": 32.1, "error_per_s": 0.0, "remaining": 200,
  "leased": null, "reset_s": 0.0, "step": null, "waiting": 0,
  "grant": { "numbers": "100 requests per second, burst 200", "left_s": 3600.0, "reason": "a demo", "by": "ops" },
  "usage": [{
    "limit": "per-ip", "key": "ip=192.0.2.7", "rate": "100/s", "unit": "request", "quota": 200, "used": 0,
    "reserved": 0, "left": 200, "begins": null, "ends": null, "step": null
  }],
  "ban": "192.0.2.7"
}"#;

pub(super) const USAGE: &str = r#"{"limit": "plan", "window": "last", "keys": [{
  "limit": "plan", "key": "account=acme", "rate": "100000/month", "unit": "request", "quota": 100000,
  "used": 81234, "reserved": 12, "left": 18766, "begins": "2026-01-15T00:00:00+01:00",
  "ends": "2026-02-15T00:00:00+01:00", "step": { "at": 80, "then": "warn" }
}]}"#;

pub(super) const RESET: &str = r#"{"reason": "a false alarm"}"#;

pub(super) const NEW_GRANT: &str = r#"{"rate": "100/s", "burst": 200, "for": "1h", "reason": "a demo"}"#;
