//! `POST /explain` shows the counts in Redis, changes nothing there, and reports when Redis does not answer.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::fleet::counting_on;
use crate::support::*;

const DEGRADED: &str = "sluicegate_degraded_decisions_total";
/// The time that a test may take between two readings of an hourly counter.
const MARGIN: u64 = 60_000;

fn post_query(gateway: &Gateway, target: &str, accept: &str) -> Response {
    let body = serde_json::json!({ "method": "GET", "url": target }).to_string();
    let query = post("/explain", body.as_bytes()).header("Accept", accept);
    gateway.ask_admin(&query).expect(200)
}

fn explained(gateway: &Gateway, target: &str) -> Value {
    post_query(gateway, target, "application/json").json()
}

/// As above, if Redis answered in time.
fn answered(gateway: &Gateway, target: &str) -> Option<Value> {
    let explained = explained(gateway, target);
    let limits = explained["limits"].as_array().expect("limits");
    limits.iter().all(|limit| limit.get("without_redis").is_none()).then_some(explained)
}

fn text(gateway: &Gateway, target: &str) -> String {
    post_query(gateway, target, "text/plain").text()
}

/// All counters of clients, byte by byte.
fn counters(redis: &Redis) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
    let mut connection = redis.connect();
    let names = redis.counters().into_iter().map(|(name, _)| name);
    let mut all: Vec<_> = names
        .map(|name| {
            (name.clone(), ::redis::cmd("DUMP").arg(name).query(&mut connection).expect("DUMP answers"))
        })
        .collect();
    all.sort();
    all
}

fn fleet(count: usize, redis: &Redis, upstream: Upstream, rest: &str) -> Fleet {
    let head = counting_on(&redis.url(), "200ms");
    let fleet = Fleet::before(upstream, count, |_, url| format!("{head}{}", rest.replace("UPSTREAM", url)));
    fleet.wait_enforcing();
    fleet
}

/// The response of `gateway` to a request: status, limit, and milliseconds to wait before the next one.
fn real(gateway: &Gateway, target: &str) -> (u64, Option<String>, Option<u64>) {
    let answer = gateway.get(target);
    if answer.status == 200 {
        return (200, None, None);
    }
    let explained = answer.json();
    (
        answer.status.into(),
        explained["limit"].as_str().map(str::to_owned),
        explained["retry_after_ms"].as_u64(),
    )
}

/// Explains `target` at `gateway` without a trace in Redis, then sends it. `None` if a busy machine was too slow for
/// Redis meanwhile.
fn foretell(gateway: &Gateway, redis: &Redis, target: &str) -> Option<Value> {
    let before = counters(redis);
    let first = answered(gateway, target)?;
    let second = answered(gateway, target)?;
    assert_eq!(counters(redis), before, "{target}: explaining wrote something");
    assert_eq!(first["verdict"]["outcome"], second["verdict"]["outcome"]);
    let (status, limit, retry) = real(gateway, target);
    if gateway.metric(DEGRADED, &[]) > 0.0 {
        return None;
    }
    let verdict = &first["verdict"];
    assert_eq!(verdict["status"].as_u64().unwrap_or(200), status, "{target}: {first:#}");
    assert_eq!(verdict["limit"].as_str(), limit.as_deref(), "{target}: {first:#}");
    let foretold = verdict["retry_after_ms"].as_u64();
    assert_eq!(foretold.is_some(), retry.is_some(), "{target}: {first:#}");
    if let (Some(foretold), Some(retry)) = (foretold, retry) {
        assert!(retry <= foretold && foretold - retry < MARGIN, "{target}: {retry}; explained {foretold}");
    }
    Some(first)
}

fn remaining(explained: &Value) -> Vec<u64> {
    let limits = explained["limits"].as_array().expect("limits").iter();
    let counters = limits.flat_map(|limit| limit["counters"].as_array().expect("counters"));
    counters.map(|counter| counter["remaining"].as_u64().expect("a number")).collect()
}

const LIMITS: &str = "limits:
  bucket: { rate: 2/h, burst: 2 }
  window: { algorithm: fixed_window, rate: 3/1h }
  sliding: { algorithm: sliding_window, rate: 2/2h }
  log: { algorithm: sliding_log, rate: [2/3h, 9/9h] }
  day: { algorithm: fixed_window, rate: 1/1d }
  here: { rate: 1/h, state: local }
  part: { rate: 5/h, burst: 5 }
locations:
  - { path: /bucket, upstream: \"UPSTREAM\", limits: bucket }
  - { path: /window, upstream: \"UPSTREAM\", limits: window }
  - { path: /sliding, upstream: \"UPSTREAM\", limits: sliding }
  - { path: /log, upstream: \"UPSTREAM\", limits: log }
  - { path: /all, upstream: \"UPSTREAM\", limits: [part, bucket, window, sliding, log] }
  - { path: /day, upstream: \"UPSTREAM\", limits: day }
  - { path: /here, upstream: \"UPSTREAM\", limits: here }
  - { path: /mixed, upstream: \"UPSTREAM\", limits: [day, here] }
  - { path: /part, upstream: \"UPSTREAM\", limits: part }
";

/// Limits that were used up at one gateway, explained at another that never saw the client.
#[test]
fn the_counts_of_another_gateway_are_shown() {
    undisturbed(|| {
        let redis = Redis::start();
        let fleet = fleet(2, &redis, Upstream::ok(), LIMITS);
        let [user, other] = [&fleet.gateways[0], &fleet.gateways[1]];
        for (target, requests) in [("/bucket", 2), ("/window", 3), ("/sliding", 2), ("/log", 2), ("/day", 1)]
        {
            (0..requests).for_each(|_| drop(user.get(target)));
            user.get(target);
        }
        (0..2).for_each(|_| drop(user.get("/part")));
        other.get("/here").expect(200);
        if fleet.metric(DEGRADED, &[]) > 0.0 {
            return None;
        }
        // First the chain: of all rejections, the longest retry is shown.
        let all = foretell(other, &redis, "/all")?;
        assert_eq!(all["verdict"]["limit"], "log");
        assert_eq!(remaining(&all), [3, 0, 0, 0, 0, 7]);
        for target in ["/bucket", "/window", "/sliding", "/log"] {
            let explained = foretell(other, &redis, target)?;
            assert_eq!(
                (&explained["verdict"]["status"], remaining(&explained)[0]),
                (&429.into(), 0),
                "{explained:#}"
            );
        }
        // A request that is rejected here is not asked about in Redis, however much longer it would have to wait
        // there.
        let mixed = foretell(other, &redis, "/mixed")?;
        assert_eq!((&mixed["verdict"]["limit"], remaining(&mixed)), (&"here".into(), vec![0, 0]));
        foretell(other, &redis, "/day")?;
        let part = foretell(other, &redis, "/part")?;
        assert_eq!((&part["verdict"]["outcome"], remaining(&part)), (&"admit".into(), vec![3]));
        assert_eq!(remaining(&answered(user, "/part")?), [2], "and the gateway that saw less now knows");
        (fleet.metric(DEGRADED, &[]) == 0.0).then_some(())
    });
}

/// A queue in which clients of another gateway wait.
#[test]
fn the_wait_in_a_shared_queue_is_shown() {
    undisturbed(|| {
        let redis = Redis::start();
        let rest = "limits: { line: { key: global, algorithm: leaky_bucket, rate: 1/3s, queue: 5 } }
locations:
  - { path: /late, upstream: \"UPSTREAM\", limits: line, timeout: 50ms }
  - { path: /, upstream: \"UPSTREAM\", limits: line }
";
        let fleet = fleet(2, &redis, Upstream::ok(), rest);
        let [user, other] = [&fleet.gateways[0], &fleet.gateways[1]];
        user.get("/").expect(200);
        let before = counters(&redis);
        let [explained, late] = [answered(other, "/")?, answered(other, "/late")?];
        assert_eq!(counters(&redis), before);
        let sent = Instant::now();
        let wait = explained["verdict"]["wait_ms"].as_u64().filter(|wait| *wait > 500)?;
        assert_eq!(
            (&explained["verdict"]["outcome"], &explained["verdict"]["limit"]),
            (&"wait".into(), &"line".into()),
            "{explained:#}"
        );
        assert_eq!(
            (&late["verdict"]["status"], &late["verdict"]["cause"]),
            (&503.into(), &"queued_too_long".into())
        );
        assert_eq!(explained["limits"][0]["counters"][0]["wait_ms"].as_u64(), Some(wait));
        other.get("/").expect(200);
        let waited = sent.elapsed();
        if fleet.metric(DEGRADED, &[]) > 0.0 || waited + ms(1000) < ms(wait) {
            return None;
        }
        assert!(waited < ms(wait) + Duration::from_secs(2), "{waited:?}; explained {wait} ms");
        Some(())
    });
}

/// Slots held by another gateway are in use here, as are those held by this one.
#[test]
fn slots_that_any_gateway_holds_are_in_use() {
    undisturbed(|| {
        let redis = Redis::start();
        let gate = Gate::default();
        let rest = "limits: { slots: { key: global, algorithm: concurrency, max_concurrent: 2 } }
locations: [{ path: /, upstream: \"UPSTREAM\", limits: slots }]
";
        let fleet = fleet(2, &redis, Upstream::held_by(&gate), rest);
        let mut busy: Vec<Client> = fleet.gateways.iter().map(Gateway::client).collect();
        for (index, client) in busy.iter_mut().enumerate() {
            client.send(get("/").bytes());
            fleet.upstream.wait_for(index + 1);
            let free = 1 - index;
            for gateway in &fleet.gateways {
                let explained = text(gateway, "/");
                if explained.contains("Redis does not answer") || fleet.metric(DEGRADED, &[]) > 0.0 {
                    return None;
                }
                let outcome = ["reject", "admit"][free];
                assert!(
                    explained.contains(&format!("\n    {free} of 2 slots free: {outcome}\n")),
                    "{explained}"
                );
                let verdict = ["reject with 503 by limit slots: concurrency", "admit: forwarded"][free];
                assert!(explained.contains(&format!("\nverdict   {verdict}")), "{explained}");
            }
        }
        if fleet.gateways[0].get("/").status != 503 {
            return None;
        }
        gate.open();
        busy.iter_mut().for_each(|client| drop(client.response().expect(200)));
        eventually("free slots", || text(&fleet.gateways[1], "/").contains("2 of 2 slots free: admit"));
        Some(())
    });
}

/// While Redis is away, the fallback is shown, in words and as data, and then decides.
#[test]
fn the_fallback_without_redis_is_shown() {
    let mut redis = Redis::start();
    let rest = "limits:
  share: { algorithm: fixed_window, rate: 10/1h, on_failure: local }
  slots: { key: global, algorithm: concurrency, max_concurrent: 3 }
  open: { rate: 1/h, on_failure: allow }
  shut: { rate: 1/h, on_failure: reject }
  dry: { rate: 1/h, on_failure: reject, dry_run: true }
locations:
  - { path: /share, upstream: \"UPSTREAM\", limits: share }
  - { path: /slots, upstream: \"UPSTREAM\", limits: slots }
  - { path: /open, upstream: \"UPSTREAM\", limits: open }
  - { path: /shut, upstream: \"UPSTREAM\", limits: [open, shut] }
  - { path: /dry, upstream: \"UPSTREAM\", limits: dry }
";
    let fleet = fleet(2, &redis, Upstream::ok(), rest);
    fleet.wait_nodes(2);
    let gateway = &fleet.gateways[0];
    let counted = gateway.get("/share").expect(200).header("sluicegate-state").is_none();
    redis.kill();
    fleet.wait_degraded();
    let decided = gateway.metric(DEGRADED, &[]);
    for _ in 0..2 {
        let explained = text(gateway, "/share");
        // Nine of ten were left, so half of that is left now.
        let share = "    Redis does not answer; this gateway's share decides\n    5 of 5 left: admit\n";
        assert!(explained.contains(share) || !counted, "{explained}");
    }
    for (target, words) in [
        ("/slots", "this gateway's share decides\n    2 of 2 slots free: admit\nverdict   admit:"),
        ("/open", "the request passes\nverdict   admit:"),
        ("/shut", "the request is rejected with 503\nverdict   reject with 503: state_unavailable"),
        ("/dry", "the request would be rejected with 503\nverdict   admit:"),
    ] {
        let explained = text(gateway, target);
        assert!(explained.contains(&format!("    Redis does not answer; {words}")), "{explained}");
    }
    for (target, words) in
        [("/share", &["local"][..]), ("/open", &["allow"]), ("/shut", &["allow", "reject"])]
    {
        let explained = explained(gateway, target);
        for (index, word) in words.iter().enumerate() {
            assert_eq!(explained["limits"][index]["without_redis"], **word, "{explained:#}");
        }
    }
    assert_eq!(gateway.metric(DEGRADED, &[]), decided, "explaining decided something");
    assert_eq!(
        (real(gateway, "/open").0, real(gateway, "/shut").0, real(gateway, "/dry").0),
        (200, 503, 200)
    );
    let passed = (0..10).take_while(|_| gateway.get("/share").status == 200).count();
    assert!(passed == 5 || !counted, "{passed} passed");
    let explained = explained(gateway, "/share");
    let (status, limit, retry) = real(gateway, "/share");
    assert_eq!(
        (explained["verdict"]["status"].as_u64(), explained["verdict"]["limit"].as_str()),
        (Some(status), limit.as_deref())
    );
    let foretold = explained["verdict"]["retry_after_ms"].as_u64().expect("a time");
    let retry = retry.expect("a time");
    assert!(retry <= foretold && foretold - retry < MARGIN, "{retry}; explained {foretold}");
    assert_eq!(explained["limits"][0]["counters"][0]["of"], 5);
    redis.restart();
    fleet.wait_enforcing();
    eventually("what Redis says", || !text(gateway, "/share").contains("Redis does not answer"));
}

/// Offline, no server is asked, not even whether Redis is there.
#[test]
fn offline_asks_no_server() {
    let redis = Redis::start();
    let dir = Scratch::new();
    let head = counting_on(&redis.url(), "200ms");
    let rest = "locations: [{ path: /, respond: { body: ok }, limits: { rate: 1/h } }]\n";
    let file = dir.file("gateway.yaml", &format!("{head}{rest}")).display().to_string();
    let connections =
        || redis.info("stats", "total_connections_received").and_then(|n| n.parse::<u64>().ok());
    let before = connections().expect("a number");
    let explained = Run::default().args(&["explain", "GET", "/", "-c", &file]).finish(dir.path());
    assert_eq!(explained.code, Some(0), "{explained:?}");
    let end =
        "    counted in Redis; its counters are unknown offline\nverdict   admit: answered here with 200\n";
    assert!(explained.stdout.ends_with(end), "{}", explained.stdout);
    // The question itself counts as one.
    assert_eq!(connections(), Some(before + 1));
}
