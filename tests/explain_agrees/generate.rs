//! Random configurations and requests.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use sluicegate::operate::explain::Query;

/// One request, as it arrives.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// Milliseconds after the request before.
    pub gap_ms: u64,
    pub query: Query,
    /// Milliseconds until the upstream answers.
    pub hold_ms: u64,
}

fn algorithm() -> impl Strategy<Value = String> {
    let rates = select(vec!["1/s", "2/s", "5/s", "3/10s", "10/1m", "[3/s, 6/10s]"]);
    prop_oneof![
        3 => (rates.clone(), 1..6u32).prop_map(|(rate, burst)| match rate.starts_with('[') {
            true => format!("rate: {rate}"),
            false => format!("rate: {rate}, burst: {burst}"),
        }),
        6 => (rates.clone(), 0..4u32, select(vec!["30s", "700ms", "2s"])).prop_map(|(rate, queue, max_wait)| {
            match rate.starts_with('[') {
                true => format!("algorithm: leaky_bucket, rate: {rate}"),
                false => format!("algorithm: leaky_bucket, rate: {rate}, queue: {queue}, max_wait: {max_wait}"),
            }
        }),
        1 => (rates.clone(), select(vec!["first", "clock"]))
            .prop_map(|(rate, align)| format!("algorithm: fixed_window, rate: {rate}, align: {align}")),
        1 => rates.clone().prop_map(|rate| format!("algorithm: sliding_window, rate: {rate}")),
        1 => rates.prop_map(|rate| format!("algorithm: sliding_log, rate: {rate}")),
        2 => (1..4u32).prop_map(|max| format!("algorithm: concurrency, max_concurrent: {max}")),
    ]
}

fn key() -> impl Strategy<Value = &'static str> {
    select(vec![
        "ip",
        "account",
        "uri",
        "host",
        "global",
        "method",
        "location",
        "tier",
        "header:X-K",
        "cookie:k",
        "query:q",
        "[ip, account]",
        "[header:X-K, uri]",
    ])
}

fn limit() -> impl Strategy<Value = String> {
    let extras = subsequence(
        vec![
            "missing_key: reject",
            "dry_run: true",
            "cost: header:X-Cost",
            "methods: [POST, GET]",
            "bypass: 192.0.2.7",
            "on_reject: { status: 418, body: envelope }",
        ],
        0..3,
    );
    let missing = select(vec!["", ", missing_key: shared", ", missing_key: skip"]);
    let trial = select(vec!["", "", ", enforce: 50%", ", shadow: true", ", enforce: 50%, shadow: true"]);
    let degrade = prop_oneof![
        6 => Just(""),
        1 => Just(", on_reject: { degrade: { status: 203, body: calm } }"),
        1 => Just(", on_reject: { degrade: spare }"),
    ];
    (key(), algorithm(), extras, missing, degrade, trial).prop_map(
        |(key, algorithm, extras, missing, degrade, trial)| {
            let names = |field: &str| extras.iter().any(|extra: &&str| extra.starts_with(field));
            let missing = if names("missing_key") { "" } else { missing };
            let degrade = if names("on_reject") { "" } else { degrade };
            let fits = |extra: &&&str| !(extra.starts_with("cost") && algorithm.contains("concurrency"));
            let extras: String = extras.iter().filter(fits).map(|extra| format!(", {extra}")).collect();
            let numbers = if algorithm.contains("concurrency") { "max_concurrent: 2" } else { "rate: 3/s" };
            let mut trial = trial.replace("shadow: true", &format!("shadow: {{ {numbers} }}"));
            if key == "global" || extras.contains("dry_run") {
                trial = trial.replace(", enforce: 50%", "");
            }
            format!("{{ key: {key}, {algorithm}{extras}{missing}{degrade}{trial} }}")
        },
    )
}

fn location() -> impl Strategy<Value = String> {
    let path =
        select(vec!["/", "/", "/", "/api/", "= /exact", "^~ /api/static/", "~ \\.gif$", "~* ^/API/v[0-9]/"]);
    let action = select(vec![
        "upstream: app",
        "upstream: app",
        "upstream: app",
        "respond: { status: 204 }",
        "redirect: { to: \"https://a.test/\", status: 308 }",
    ]);
    let extras = subsequence(
        vec![
            "methods: [GET, POST]",
            "host: a.test",
            "access: { deny: 198.51.100.0/24 }",
            "access: { bypass: 192.0.2.0/24 }",
            "bandwidth: { rate: 1MiB/s, key: header:X-K }",
            "timeout: 1500ms",
            "strip: /api",
            "cors: { origins: 'https://a.test' }",
            "cors: { origins: '*', methods: [GET] }",
            "when: { 'header:X-K': '*' }",
            "when: { 'query:q': '!', 'cookie:k': '~ .' }",
            "max_body: 50B",
            "scheme: http",
            "scheme: https",
        ],
        0..5,
    );
    (path, action, extras, subsequence(vec!["l0", "l1", "l2", "l3"], 0..4)).prop_map(
        |(path, action, extras, limits)| {
            let mut fields = format!("path: '{path}', {action}, limits: [{}]", limits.join(", "));
            let mut named: Vec<&str> = Vec::new();
            for extra in extras {
                let name = extra.split(':').next().unwrap_or_default();
                let fits = name != "strip" || path == "/api/" && action.starts_with("upstream");
                let is_local = name == "bandwidth" && !action.starts_with("upstream");
                if fits && !is_local && !named.contains(&name) {
                    named.push(name);
                    fields.push_str(&format!(", {extra}"));
                }
            }
            format!("  - {{ {fields} }}\n")
        },
    )
}

/// A whole gateway.yaml.
pub fn configuration() -> impl Strategy<Value = String> {
    let server = subsequence(
        vec!["max_body: 100B", "max_headers: 7", "max_in_flight: 6", "limits: [l0]", "max_waiting: 3"],
        0..3,
    );
    let bans = select(vec![
        "",
        "",
        "bans: { after: 3/1m, for: 5s }\n",
        "bans: { after: 2/1m, for: 3s, key: account }\n",
    ]);
    let access = select(vec!["", "", "access: { deny: 198.51.100.9 }\n", "access: { bypass: 192.0.2.9 }\n"]);
    let locations = prop::collection::vec(location(), 1..5);
    (server, bans, access, prop::collection::vec(limit(), 4), locations).prop_map(
        |(server, bans, access, limits, locations)| {
            let server: String = server.iter().map(|field| format!(", {field}")).collect();
            let limits: String =
                limits.iter().enumerate().map(|(index, limit)| format!("  l{index}: {limit}\n")).collect();
            let mut distinct: Vec<String> = Vec::new();
            for location in locations {
                // Equal paths are told apart by their schemes and conditions.
                let place = |text: &str| {
                    let scheme = text.split("scheme: ").nth(1).map(|rest| rest.starts_with("https"));
                    let when = text.split("when: ").nth(1).map(|rest| rest.starts_with("{ 'header"));
                    (text.split(", ").next().map(str::to_owned), scheme, when)
                };
                if !distinct.iter().any(|other| place(other) == place(&location)) {
                    distinct.push(location);
                }
            }
            format!(
                "admin: none\nserver: {{ trusted_proxies: 10.0.0.0/8{server} }}\n\
                 account: {{ from: header:X-Account, tier: {{ from: header:X-Tier }} }}\n{bans}{access}\
                 upstreams: {{ app: 127.0.0.1:9, spare: 127.0.0.1:9 }}\nlimits:\n{limits}locations:\n{}",
                distinct.concat()
            )
        },
    )
}

pub fn arrival() -> impl Strategy<Value = Arrival> {
    let method = select(vec!["GET", "GET", "GET", "POST", "POST", "HEAD", "OPTIONS", "OPTIONS", "DELETE"]);
    let url = select(vec![
        "/",
        "/api/",
        "/api/x?q=1",
        "/api/x?q=1&q=2",
        "/exact",
        "/a.gif",
        "/api/v1/x",
        "/api/static/y",
        "/none",
        "/api/%2e%2e/exact",
        "/%ff",
        "/a/../../b",
    ]);
    let ip = select(vec!["192.0.2.7", "192.0.2.9", "198.51.100.9", "203.0.113.1", "10.0.0.1", "10.0.0.2"]);
    let usual = subsequence(
        vec![
            "X-Account: acme",
            "X-K: one",
            "X-Tier: gold",
            "Cookie: k=v",
            "X-Cost: 2",
            "Host: a.test",
            "X-Forwarded-For: 203.0.113.9",
            "X-Forwarded-Proto: https",
            "Expect: 100-continue",
            "Content-Length: 50",
            "Content-Type: application/grpc",
            "X-A: 1",
            "X-B: 1",
            "Origin: https://a.test",
            "Access-Control-Request-Method: POST",
            "Access-Control-Request-Headers: x-k",
        ],
        0..7,
    );
    let faulty = subsequence(
        vec![
            "X-Account: other",
            "X-K: two",
            "X-Tier: lead",
            "Cookie: k=w",
            "X-Cost: many",
            "Host: b.test",
            "Expect: more",
            "Transfer-Encoding: chunked",
            "Transfer-Encoding: gzip",
            "Content-Length: 5000",
        ],
        1..3,
    );
    let headers = (usual, prop_oneof![6 => Just(Vec::new()), 1 => faulty])
        .prop_map(|(usual, faulty)| [usual, faulty].concat());
    (method, url, ip, headers, select(vec![0, 0, 30, 200, 900, 4000]), select(vec![0, 0, 50, 500, 3000]))
        .prop_map(|(method, url, ip, headers, gap_ms, hold_ms)| Arrival {
            gap_ms,
            query: Query {
                method: method.to_owned(),
                url: url.to_owned(),
                ip: ip.to_owned(),
                headers: one_length(headers),
                ..Query::default()
            },
            hold_ms,
        })
}

/// The parser of HTTP/1 passes on a single length.
fn one_length(headers: Vec<&str>) -> Vec<String> {
    let mut lengths = 0;
    let is_kept = |line: &&str| {
        lengths += usize::from(line.starts_with("Content-Length"));
        lengths < 2 || !line.starts_with("Content-Length")
    };
    headers.into_iter().filter(is_kept).map(str::to_owned).collect()
}
