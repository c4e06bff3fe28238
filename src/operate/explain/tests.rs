//! The exact text of explanations, and that it matches the decisions of production.

use super::*;
use sluicegate_admission::chain::{ChainVerdict, Charge};
use sluicegate_admission::operator_bans::NewBan;
use sluicegate_http::request::client::Client;
use sluicegate_proxy::gateway::{KeyRef, NewGrant};
use sluicegate_proxy::judge::JudgeMode;
use sluicegate_store::SharedKey;

const FILE: &str = r#"
server:
  trusted_proxies: [10.0.0.0/8]
  limits: everyone
account: { from: header:X-Account-Id }
upstreams: { app: 127.0.0.1:9000 }
limits:
  everyone: { key: global, rate: [1000/s, 10000/m], bypass: 192.0.2.0/24 }
  per-account: { key: [account, host], missing_key: reject, rate: 10/s, burst: 20 }
  writes: { key: ip, rate: 1/s, methods: [POST, PUT] }
  sms: { key: global, algorithm: leaky_bucket, rate: 5/s, queue: 20 }
  slots: { key: global, algorithm: concurrency, max_concurrent: 2 }
  priced: { key: uri, rate: 5/s, cost: header:X-Cost }
locations:
  - { path: /, upstream: demo }
  - { path: /api/, upstream: app, strip: /api, limits: [per-account, writes, slots] }
  - { path: "~ \\.gif$", respond: { status: 204 } }
  - { path: /sms/, methods: POST, upstream: app, limits: sms }
  - { path: /short/, upstream: app, limits: sms, timeout: 100ms }
  - { path: /priced/, upstream: app, limits: priced }
  - { path: /api/, host: b.example, methods: GET, upstream: demo }
"#;

fn gateway() -> Gateway {
    let loaded = sluicegate_config::parse(FILE, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
    build_offline(loaded.config).unwrap()
}

fn query(method: &str, url: &str, ip: &str, headers: &[&str]) -> Query {
    Query {
        method: method.to_owned(),
        url: url.to_owned(),
        ip: ip.to_owned(),
        headers: headers.iter().map(|line| (*line).to_owned()).collect(),
        listener: None,
        auth: Vec::new(),
        data: None,
        call: None,
    }
}

const AT: Now = Now(1 << 40);

/// As [`explain_request`] with local counters only.
fn explain_locally(gateway: &Gateway, query: &Query, now: Now) -> Result<Explanation, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(super::explain_request(gateway, None, query, now))
}

fn explain_one(method: &str, url: &str, ip: &str, headers: &[&str]) -> Explanation {
    explain_locally(&gateway(), &query(method, url, ip, headers), AT).unwrap()
}

#[test]
fn an_admitted_request() {
    let headers = ["X-Account-Id: acme", "X-Forwarded-For: 198.51.100.9, 203.0.113.7, 10.1.1.1"];
    let text =
        explain_one("GET", "http://A.Example:8080/api//x%20y?q=1#top", "10.0.0.1", &headers).to_string();
    let expected = "\
client    203.0.113.7: the right-most hop of x-forwarded-for that is not a trusted proxy; the peer 10.0.0.1 is one
host      a.example
path      /api/x y
location  /api/ -> app: the longest prefix, and no regular expression matches
          not / -> demo: a shorter prefix
servers   1 up
account   acme, from header x-account-id
limits
  everyone: 1000 requests per second for all clients together, 1000 at once, and 10000 requests per 60 seconds, \
10000 at once; anything above one of them is rejected with 429 and told when to return; not for clients of 192.0.2.0/24
    counts by all clients together
    1000 requests per second: 1000 of 1000 left: admit
    10000 requests per 60 seconds: 10000 of 10000 left: admit
  per-account: 10 requests per second per account and host, 20 at once; the 21st is rejected with 429 and told when \
to return; requests without account or host are rejected with 403
    counts by account acme + host a.example
    20 of 20 left: admit
  writes: 1 POST or PUT request per second per client IP, 1 at once; the 2nd is rejected with 429 and told when to \
return
    skipped: it limits POST and PUT only
  slots: 2 requests in flight for all clients together; the 3rd is rejected with 503
    counts by all clients together
    2 of 2 slots free: admit
verdict   admit: forwarded to upstream app as GET /x%20y?q=1
";
    assert_eq!(text, expected);
}

#[test]
fn a_request_without_its_key() {
    let text = explain_one("POST", "/api/", "192.0.2.5", &["X-Forwarded-For: 10.0.0.7"]).to_string();
    let (head, limits) = text.split_once("limits\n").unwrap();
    let expected = "\
client    192.0.2.5: the peer, which is not in server.trusted_proxies: its x-forwarded-for is not believed
host      localhost
path      /api/
location  /api/ -> app: the longest prefix, and no regular expression matches
          not / -> demo: a shorter prefix
servers   1 up
account   none: there is no header x-account-id
";
    assert_eq!(head, expected);
    assert!(limits.contains("    skipped: 192.0.2.5 is in its bypass\n"), "{limits}");
    assert!(
        limits.contains("    refused: the request has no account, and missing_key is reject\n"),
        "{limits}"
    );
    assert!(limits.contains("    counts by client IP 192.0.2.5\n    1 of 1 left: admit\n"), "{limits}");
    assert!(limits.ends_with("verdict   reject with 403 by limit per-account: missing_key\n"), "{limits}");
}

#[test]
fn no_location_and_other_methods() {
    let text = explain_one("GET", "/sms/", "203.0.113.7", &[]).to_string();
    assert!(
        text.contains(
            "location  / -> demo: the longest prefix, and no regular expression matches\n          \
             not /sms/ (POST) -> app: its methods do not match\n"
        ),
        "{text}"
    );
    let text = explain_one("DELETE", "http://b.example/api/x.gif", "203.0.113.7", &[]).to_string();
    let expected = "\
location  ~ \\.gif$ -> answers 204: the first regular expression in file order that matches
          not /api/ (b.example, GET) -> demo: its methods do not match
          not /api/ -> app: a regular expression comes before it
          not / -> demo: a regular expression comes before it
";
    assert!(text.contains(expected), "{text}");
    assert!(text.ends_with("verdict   admit: answered here with 204\n"), "{text}");
}

/// Charges every limit.
struct SpendMode;

impl JudgeMode<'_> for SpendMode {
    type Chain = Charge;

    fn try_count_in_flight(&mut self, _: &Gateway) -> bool {
        true
    }
}

/// Charges the limits of a request `requests` times, and keeps the charges.
fn spend_tokens(gateway: &Gateway, path: &str, requests: usize) {
    let headers = ["X-Account-Id: acme", "Host: a.example"];
    let parsed = ParsedQuery::parse_query(&query("POST", path, "203.0.113.7", &headers), &[]).unwrap();
    let client = Client { ip: parsed.peer, trusted_peer: false };
    for _ in 0..requests {
        let mut facts = RequestFacts::new(parsed.to_head(client, AT), parsed.body_size(), None);
        let mut verdict = None;
        judge::judge(gateway, &mut facts, &mut SpendMode, &mut Decisions::new(), &mut verdict).unwrap();
        match verdict.unwrap() {
            ChainVerdict::Admit(permit) => std::mem::forget(permit),
            ChainVerdict::Wait(queued) => std::mem::forget(queued),
            ChainVerdict::AskStore(_) => panic!("the limits are local"),
            ChainVerdict::Reject(rejection) => panic!("{rejection:?}"),
        }
    }
}

#[test]
fn spent_counters_are_shown_and_not_charged() {
    let gateway = gateway();
    spend_tokens(&gateway, "/api/", 1);
    let ask = query("POST", "/api/", "203.0.113.7", &["X-Account-Id: acme", "Host: a.example"]);
    let first = explain_locally(&gateway, &ask, AT).unwrap().to_string();
    assert!(
        first.contains("    0 of 1 left, one more in 1000 ms: reject, it would fit in 1000 ms\n"),
        "{first}"
    );
    assert!(first.contains("    19 of 20 left: admit\n"), "{first}");
    assert!(
        first.ends_with("verdict   reject with 429 by limit writes: rate, Retry-After 1 (in 1000 ms)\n"),
        "{first}"
    );
    for _ in 0..50 {
        assert_eq!(explain_locally(&gateway, &ask, AT).unwrap().to_string(), first);
    }
}

#[test]
fn a_wait_names_its_queue() {
    let gateway = gateway();
    spend_tokens(&gateway, "/sms/", 3);
    let text =
        explain_locally(&gateway, &query("POST", "/sms/x", "203.0.113.7", &[]), AT).unwrap().to_string();
    assert!(text.contains("    18 of 21 left: wait 600 ms\n"), "{text}");
    let end =
        "verdict   wait 600 ms in the queue of limit sms, then forwarded to upstream app as POST /sms/x\n";
    assert!(text.ends_with(end), "{text}");
    let text =
        explain_locally(&gateway, &query("GET", "/short/", "203.0.113.7", &[]), AT).unwrap().to_string();
    assert!(
        text.ends_with("verdict   reject with 503 by limit sms: queued_too_long, Retry-After 1\n"),
        "{text}"
    );
}

const SHARED: &str = "state: { store: redis, redis: { url: \"redis://127.0.0.1:1\" } }
limits:
  far: { algorithm: fixed_window, rate: 2/1h }
  here: { rate: 5/h, state: local }
locations:
  - { path: /, respond: { status: 204 }, limits: [far, here] }
";

#[test]
fn counters_in_redis_are_unknown_offline() {
    let loaded = sluicegate_config::parse(SHARED, "x").unwrap_or_else(|report| panic!("{report}"));
    let gateway = build_offline(loaded.config).unwrap();
    let explanation = explain_locally(&gateway, &query("GET", "/", "203.0.113.7", &[]), AT).unwrap();
    let text = explanation.to_string();
    let far =
        "    counts by client IP 203.0.113.7\n    counted in Redis; its counters are unknown offline\n  here";
    assert!(text.contains(far) && text.contains("    5 of 5 left: admit\n"), "{text}");
    assert!(text.ends_with("verdict   admit: answered here with 204\n"), "{text}");
    let json = serde_json::to_value(&explanation).unwrap();
    assert_eq!(json["limits"][0]["without_redis"], "offline");
    assert_eq!(json["limits"][0]["counters"], serde_json::json!([]));
    assert_eq!(json["limits"][1].get("without_redis"), None);
}

#[test]
fn a_cost_above_the_limit_is_rejected_offline() {
    let file = SHARED.replace("rate: 2/1h", "rate: 2/1h, cost: header:X-Cost");
    let loaded = sluicegate_config::parse(&format!("server: {{ trusted_proxies: 10.0.0.1 }}\n{file}"), "x");
    let gateway = build_offline(loaded.unwrap_or_else(|report| panic!("{report}")).config).unwrap();
    let text =
        explain_locally(&gateway, &query("GET", "/", "10.0.0.1", &["X-Cost: 3"]), AT).unwrap().to_string();
    assert!(text.ends_with("verdict   reject with 413 by limit far: too_costly\n"), "{text}");
}

#[test]
fn costs_and_repeated_keys() {
    let text = explain_one("GET", "/priced/", "10.0.0.1", &["X-Cost: 3"]).to_string();
    assert!(text.contains("    counts by URI /priced/, cost 3\n    5 of 5 left: admit\n"), "{text}");
    let text = explain_one("GET", "/priced/", "203.0.113.7", &["X-Cost: 3"]).to_string();
    assert!(text.contains("    counts by URI /priced/\n"), "{text}");
    let text = explain_one("GET", "/priced/", "10.0.0.1", &["X-Cost: 9"]).to_string();
    assert!(text.ends_with("verdict   reject with 413 by limit priced: too_costly\n"), "{text}");
    let text = explain_one("GET", "/", "10.0.0.1", &["X-Account-Id: a", "X-Account-Id: b"]).to_string();
    assert!(text.ends_with("verdict   reject with 400: repeated_key\n"), "{text}");
}

#[test]
fn client_text_cannot_control_a_terminal() {
    let text = explain_one("GET", "/%1b%5b31m", "203.0.113.7", &[]).to_string();
    assert!(text.contains("path      /\\u{1b}[31m\n") && !text.contains('\u{1b}'), "{text}");
}

#[test]
fn json_says_the_same() {
    let explanation = explain_one("GET", "/api/", "2001:db8::1", &["X-Account-Id: acme"]);
    let json = serde_json::to_value(&explanation).unwrap();
    assert_eq!(json["location"]["index"], 1);
    assert_eq!(json["client"]["ip"], "2001:db8::1");
    assert_eq!(json["verdict"]["outcome"], "admit");
    assert_eq!(json["limits"][1]["counters"][0]["remaining"], 20);
    assert_eq!(json["limits"][2]["skipped"], "it limits POST and PUT only");
    let host =
        explain_locally(&gateway(), &query("PUT", "/api/", "2001:db8::1", &["X-Account-Id: a"]), AT).unwrap();
    assert_eq!(host.limits[2].counts_by.as_deref(), Some("client IP 2001:db8::/64"));
}

#[test]
fn invalid_queries_are_rejected_with_a_hint() {
    for (method, url, ip, header, expected) in [
        ("get", "/", "127.0.0.1", "a: b", "capitals: GET"),
        ("G T", "/", "127.0.0.1", "a: b", "not a method"),
        ("GET", "api", "127.0.0.1", "a: b", "neither a path nor a URL"),
        ("GET", "ftp://a/", "127.0.0.1", "a: b", "neither a path nor a URL"),
        ("GET", "/", "localhost", "a: b", "not an address"),
        ("GET", "/", "::1", "a b", "not a header"),
    ] {
        let error = explain_locally(&gateway(), &query(method, url, ip, &[header]), AT).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn a_request_that_the_head_alone_rejects_is_explained() {
    let file = "server: { max_body: 1KiB, max_headers: 5, max_header_size: 8KiB }
locations: [{ path: /, upstream: demo, bandwidth: { rate: 1MiB/s, key: header:X-K } }]
";
    let loaded = sluicegate_config::parse(file, "x").unwrap_or_else(|report| panic!("{report}"));
    let gateway = build_offline(loaded.config).unwrap();
    let long = format!("X-Long: {}", "x".repeat(8192));
    for (headers, verdict) in [
        (&["X-K: a", "X-K: b"][..], "reject with 400: repeated_key"),
        (&["A: 1", "B: 1", "C: 1", "D: 1", "E: 1"], "reject with 431: head_too_large"),
        (&[&long], "reject with 431: head_too_large"),
        (&["Transfer-Encoding: gzip"], "reject with 400: bad_framing"),
        (&["Expect: more"], "reject with 417: bad_expectation"),
        (&["Content-Length: 1025"], "reject with 413: body_too_large"),
        (&["Content-Length: +5"], "reject with 400: bad_head"),
        (&["Content-Length: 5", "Content-Length: 6"], "reject with 400: bad_head"),
        (&["X-K: a", "Content-Length: 1024"], "admit: answered by the built-in upstream demo"),
    ] {
        let text =
            explain_locally(&gateway, &query("POST", "/", "127.0.0.1", headers), AT).unwrap().to_string();
        assert!(text.ends_with(&format!("verdict   {verdict}\n")), "{headers:?}\n{text}");
    }
}

#[test]
fn bans_and_grants_of_operators_are_named_with_their_reasons() {
    let (gateway, now) = (gateway(), Now::read_clock());
    let lasts = std::time::Duration::from_secs(600);
    let (reason, by) = ("a\u{1b}[1m demo".to_owned(), "ann".to_owned());
    let target = "198.51.100.0/24".parse().unwrap();
    let ban = NewBan { target, lasts, reason: reason.clone(), by: by.clone() };
    gateway.add_ban(ban, now).unwrap();
    let key = gateway.keys.hash_ip([192, 0, 3, 1].into());
    let key = KeyRef { name: "ip=192.0.3.1".to_owned(), key, shared: SharedKey([0; 16]) };
    let (limit, numbers) = ("writes".to_owned(), "{ burst: 9 }".to_owned());
    let grant = NewGrant { limit, key, numbers, lasts, reason, by };
    let (config, ..) = gateway.config_with_grant(&grant, now).unwrap();
    let next = Gateway::build(&config, Some(&gateway)).unwrap();
    next.apply_numbers(&|| now);
    let explain = |ip: &str| {
        let query = query("POST", "http://h.test/api/", ip, &["X-Forwarded-For: 1.1.1.1"]);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(explain_request(&next, None, &query, now)).unwrap()
    };
    let banned = explain("198.51.100.7");
    let text = banned.to_string();
    let line = "ban       600 s left: 198.51.100.0/24, banned by ann: a\\u{1b}[1m demo\n";
    assert!(text.contains(line) && text.contains("verdict   reject with 429: ban"), "{text}");
    assert_eq!(serde_json::to_value(&banned).unwrap()["ban"]["target"], "198.51.100.0/24");
    let granted = explain("192.0.3.1");
    let line = "    by other numbers for 600 s, granted by ann: a\\u{1b}[1m demo\n    9 of 9 left: admit\n";
    assert!(granted.to_string().contains(line), "{granted}");
    assert!(explain("192.0.3.2").limits.iter().all(|limit| limit.grant.is_none()));
}

/// Such a ban overrules `bypass`.
#[test]
fn a_bypassed_client_that_an_operator_banned_is_not_called_free() {
    let file = "access: { bypass: 192.0.2.0/24 }\nlocations: [{ path: /, upstream: demo }]\n";
    let loaded = sluicegate_config::parse(file, "x").unwrap_or_else(|report| panic!("{report}"));
    let (gateway, now) = (build_offline(loaded.config).unwrap(), Now::read_clock());
    let lasts = std::time::Duration::from_secs(600);
    let target = "192.0.2.7".parse().unwrap();
    let ban = NewBan { target, lasts, reason: "scraping".to_owned(), by: "ann".to_owned() };
    gateway.add_ban(ban, now).unwrap();
    let explain = |ip: &str| explain_locally(&gateway, &query("GET", "/", ip, &[]), now).unwrap().to_string();
    let free = explain("192.0.2.8");
    assert!(free.contains("\naccess    bypassed: no limits and no bans\n"), "{free}");
    let banned = explain("192.0.2.7");
    assert!(
        banned.contains("\naccess    bypassed, but the ban of an operator holds all the same\n"),
        "{banned}"
    );
    assert!(!banned.contains("no bans"), "{banned}");
}

const EDGE: &str = r#"
bans: { after: 1/1m, for: 10m }
access: { deny: 192.0.2.0/24 }
limits: { one: { rate: 1/m } }
locations:
  - { path: /, redirect: { to: "https://${host}/new${request_uri}" } }
  - { path: /api/, upstream: demo, limits: one }
"#;

fn explain_edge(url: &str, ip: &str) -> Result<Explanation, String> {
    let loaded = sluicegate_config::parse(EDGE, "gateway.yaml").unwrap_or_else(|report| panic!("{report}"));
    explain_locally(&build_offline(loaded.config).unwrap(), &query("GET", url, ip, &[]), AT)
}

#[test]
fn a_redirect_shows_its_target() {
    let text = explain_edge("http://a.test/x?q=1", "203.0.113.7").unwrap().to_string();
    assert!(text.ends_with("redirected to https://a.test/new/x?q=1 with 308\n"), "{text}");
}

#[test]
fn limits_that_are_not_reached_are_named() {
    let explained = explain_edge("/api/", "192.0.2.1").unwrap();
    let text = explained.to_string();
    assert!(text.contains("\nlimits    not judged: one\nverdict   reject with 403"), "{text}");
    let json = serde_json::to_value(&explained).unwrap();
    assert_eq!(json["limits_not_judged"], serde_json::json!(["one"]));
    assert!(explain_edge("/x", "203.0.113.7").unwrap().to_string().contains("\nlimits    none\n"));
}

#[test]
fn a_scheme_that_no_listener_serves_is_said() {
    let why = explain_edge("https://a.test/", "203.0.113.7").unwrap_err();
    assert!(why.starts_with("no listener serves https; write an http URL"), "{why}");
}
