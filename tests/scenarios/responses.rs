//! What depends on accounts, bodies, answers and servers.

use super::{assert_fails, assert_passes, run_steps};

const UPSTREAM: &str = "upstreams: { app: { servers: [127.0.0.1:9, 127.0.0.1:10]";

fn with_upstream(extra: &str, limits: &str, chain: &str) -> String {
    format!("{UPSTREAM}{extra} }} }}\n{limits}locations: [{{ path: /, upstream: app, limits: [{chain}] }}]\n")
}

#[test]
fn a_charge_is_settled_by_the_answer() {
    let failed = "limits: { login: { key: ip, rate: 3/1h, charge: { when: 401, clear: 2xx } } }\n";
    assert_passes(
        &with_upstream("", failed, "login"),
        &[
            "send: 50, every: 1s, answer: 404, expect: { admitted: 50 }",
            "at: 1m, send: 4, answer: 401, expect: { admitted: 3, rejected: 1, by: login }",
            "at: 30m, send: 1, answer: 200, expect: { admitted: 1 }",
            "at: 31m, send: 4, answer: 401, expect: { admitted: 3, rejected: 1 }",
        ],
    );
    let bytes = "limits: { out: { key: ip, rate: 3KiB/1h, charge: { units: bytes } } }\n";
    let body = "x".repeat(1024);
    let step = format!("send: 9, every: 1ms, answer: {{ body: {body} }}, expect: {{ admitted: 3, by: out }}");
    let empty = "at: 2h, send: 300, answer: { status: 204 }, expect: { admitted: 300, status: 204 }";
    assert_passes(&with_upstream("", bytes, "out"), &[&step, empty]);
    let header = "limits: { cost: { key: ip, rate: 100/1h, charge: { units: header:X-Cost } } }\n";
    assert_passes(
        &with_upstream("", header, "cost"),
        &["send: 5, every: 1s, answer: { headers: { X-Cost: 40 } }, expect: { admitted: 3, rejected: 2 }"],
    );
    let json = "limits: { tokens: { key: ip, rate: 100/1h, charge: { units: json:/usage/total } } }\n";
    assert_passes(
        &with_upstream("", json, "tokens"),
        &[
            "send: 5, every: 1s, answer: { json: { usage: { total: 40 } } }, expect: { admitted: 3, rejected: 2 }",
        ],
    );
}

#[test]
fn accounts_are_written_where_they_are_read() {
    let limit = "limits: { per-account: { key: account, rate: 5/1m, missing_key: reject } }\n";
    let steps = &[
        "send: 7, account: acme, expect: { admitted: 5, rejected: 2, by: per-account }",
        "send: 5, account: other one, expect: { admitted: 5 }",
        "send: 1, expect: { rejected: 1, by: per-account, status: 403 }",
    ];
    let secret = "0123456789abcdef0123456789abcdef";
    for account in [
        "{ from: header:X-Account }".to_owned(),
        "{ from: cookie:account }".to_owned(),
        "{ from: query:account }".to_owned(),
        format!(
            "{{ from: jwt:sub, jwt: {{ secret: {secret}, algorithms: HS256, issuer: me, audience: us }} }}"
        ),
    ] {
        let trusting = "server: { trusted_proxies: 127.0.0.1 }\n";
        let config = with_upstream("", &format!("{trusting}account: {account}\n{limit}"), "per-account");
        assert_passes(&config, steps);
    }
    let body = with_upstream("", &format!("account: {{ from: json:/user }}\n{limit}"), "per-account");
    assert_passes(
        &body,
        &["send: 7, to: POST /, json: { user: acme }, expect: { admitted: 5, rejected: 2 }"],
    );
    let wrong = run_steps(&body, &["account: acme"]);
    assert!(wrong.stderr.contains("the account is read from the body, at `json:/user`"), "{}", wrong.stderr);
}

#[test]
fn tokens_are_signed_in_place_of_their_issuer() {
    let keys = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/keys");
    for jwt in [
        format!("{{ jwks: {keys}/rsa.pub.pem }}"),
        format!(
            "[{{ issuer: https://id.test/, jwks: discover, audience: api, tls: {{ ca: {keys}/upstream.pem }} }}]"
        ),
    ] {
        let config = format!(
            "account: {{ from: jwt:sub, jwt: {jwt} }}\n\
             limits: {{ per-account: {{ key: account, rate: 5/1m, missing_key: reject }} }}\n\
             locations: [{{ path: /, upstream: demo, limits: per-account }}]\n"
        );
        let steps = [
            "send: 7, account: acme, expect: { admitted: 5, rejected: 2 }",
            "send: 1, expect: { rejected: 1 }",
        ];
        assert_passes(&config, &steps);
    }
}

#[test]
fn tiers_have_their_own_numbers() {
    let config = "server: { trusted_proxies: 127.0.0.1 }\n\
        account: { from: header:X-Account, tier: { members: { acme: gold }, default: free } }\n\
        limits: { per-account: { key: account, rate: 5/1m, tiers: { gold: { rate: 50/1m } } } }\n\
        locations: [{ path: /, upstream: demo, limits: per-account }]\n";
    assert_passes(
        config,
        &[
            "send: 60, account: acme, expect: { admitted: 50, rejected: 10 }",
            "send: 60, account: someone, expect: { admitted: 5, rejected: 55 }",
        ],
    );
}

#[test]
fn values_in_bodies_are_keys() {
    let limits = "limits: { per-model: { key: json:/model, rate: 2/1m } }\n";
    assert_passes(
        &with_upstream("", limits, "per-model"),
        &[
            "send: 3, to: POST /, json: { model: small }, expect: { admitted: 2, rejected: 1 }",
            "send: 3, to: POST /, body: '{\"model\":\"large\"}', headers: { Content-Type: application/json }, \
             expect: { admitted: 2 }",
        ],
    );
}

#[test]
fn on_reject_answers() {
    let config = "limits: { per-ip: { key: ip, rate: 1/1m, on_reject: { status: 420 } } }\n\
        locations:\n  - { path: /, upstream: demo, limits: per-ip }\n\
        \x20 - { path: /sale, upstream: demo, limits: per-ip, \
        on_reject: { degrade: { status: 200, body: later, content_type: text/plain } } }\n";
    assert_passes(
        config,
        &[
            "send: 3, expect: { admitted: 1, rejected: 2, degraded: 0, status: 420 }",
            "send: 3, to: /sale, expect: { rejected: 3, degraded: 3, by: per-ip, status: 200 }",
        ],
    );
    let other = "upstreams: { spare: 127.0.0.1:9 }\nlimits: { per-ip: { key: ip, rate: 1/1m } }\n\
        locations: [{ path: /, upstream: demo, limits: per-ip, on_reject: { degrade: spare } }]\n";
    assert_passes(other, &["send: 3, answer: 203, expect: { admitted: 1, degraded: 2, status: 203 }"]);
}

#[test]
fn requests_wait_for_servers() {
    let queue = with_upstream(", max_connections: 2, queue: { size: 3, max_wait: 5s }", "", "");
    assert_passes(
        &queue,
        &[
            "send: 8, hold: 1s, expect: { admitted: 7, waited: 3, waited_max: 1s, rejected: 1, by: no_server }",
            "at: 10s, send: 4, hold: 9s, expect: { admitted: 4 }",
            "at: 10s, send: 1, expect: { rejected: 1, by: server_queue_timeout, status: 503 }",
        ],
    );
    let full = with_upstream(", max_connections: 2", "", "");
    assert_passes(
        &full,
        &["send: 5, hold: 1s, expect: { admitted: 4, rejected: 1, by: no_server, status: 503 }"],
    );
}

#[test]
fn servers_that_fail_are_ejected() {
    let eject = ", max_connections: 1, eject: { errors: 2, for: 10s, max: 100%, status: 5xx }";
    // The last one is never ejected.
    assert_passes(
        &with_upstream(eject, "", ""),
        &[
            "send: 2, hold: 1ms, answer: 500, expect: { admitted: 2 }",
            "at: 10ms, send: 2, hold: 1ms, answer: 500, expect: { admitted: 2 }",
            "at: 1s, send: 2, hold: 1s, expect: { admitted: 1, rejected: 1, by: no_server }",
            "at: 11s, send: 2, hold: 1s, expect: { admitted: 2 }",
        ],
    );
}

#[test]
fn timeouts_end_waits_and_answers() {
    let limits = "limits: { queue: { key: global, algorithm: leaky_bucket, rate: 1/s, queue: 10 } }\n";
    let config = format!(
        "{UPSTREAM}, timeouts: {{ response: 5s }} }} }}\n{limits}locations:\n\
         \x20 - {{ path: /, upstream: app }}\n  - {{ path: /slow, upstream: app, timeout: 2s }}\n\
         \x20 - {{ path: /queue, upstream: app, timeout: 2500ms, limits: queue }}\n"
    );
    assert_passes(
        &config,
        &[
            "hold: 6s, expect: { admitted: 1, status: 504 }",
            "hold: 4s, expect: { admitted: 1, status: 200 }",
            "to: /slow, hold: 3s, expect: { admitted: 1, status: 504 }",
            "to: /slow, hold: 1s, expect: { admitted: 1, status: 200 }",
            "to: /queue, send: 6, expect: { admitted: 3, rejected: 3, by: queue }",
            "at: 1h, to: /slow, hold: 1s, expect: { admitted: 1, status: 200 }",
        ],
    );
}

#[test]
fn an_upstream_that_wants_no_requests_is_obeyed() {
    let limits =
        "limits: { pace: { key: global, algorithm: leaky_bucket, rate: 100/s, queue: 50, max_wait: 4s } }\n";
    assert_passes(
        &with_upstream(", obey: {}", limits, "pace"),
        &[
            "answer: { status: 429, headers: { Retry-After: 2 } }, expect: { admitted: 1, status: 429 }",
            "at: 1s, send: 5, expect: { admitted: 5, waited: 5, waited_max: [1s, 3s] }",
        ],
    );
}

#[test]
fn locations_hosts_and_lists_decide_as_in_production() {
    let config = "access: { deny: 198.51.100.0/24 }\n\
        server: { trusted_proxies: 10.0.0.0/8 }\n\
        locations:\n  - { path: /a, host: a.test, methods: GET, respond: { status: 201, body: a } }\n";
    assert_passes(
        config,
        &[
            "to: /a, host: a.test, expect: { admitted: 1, status: 201 }",
            "to: \"http://a.test/a\", expect: { admitted: 1, status: 201 }",
            "to: /a, host: b.test, expect: { rejected: 1, by: no_location, status: 404 }",
            "to: POST /a, host: a.test, expect: { rejected: 1, by: bad_method, status: 405 }",
            "to: /a, host: a.test, from: 198.51.100.7, expect: { rejected: 1, by: access_denied, status: 403 }",
            "to: /a, host: a.test, from: 10.0.0.1, headers: { X-Forwarded-For: 198.51.100.7 }, expect: { rejected: 1 }",
        ],
    );
}

#[test]
fn limits_on_redis_count_locally() {
    let config = "state: { store: redis, redis: { url: \"redis://127.0.0.1:1\" } }\n\
        bans: { after: 100/1m }\n\
        limits: { per-ip: { key: ip, rate: 10/s, burst: 20 } }\n\
        locations: [{ path: /, upstream: demo, limits: per-ip }]\n";
    assert_passes(config, &["send: 25, expect: { admitted: 20, rejected: 5, by: per-ip }"]);
    assert_fails(config, &["send: 25, expect: { admitted: 10 }"], "admitted     expected 10; seen 20");
}
