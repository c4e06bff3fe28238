//! Floods of invented keys in Redis: `max_keys` bounds what a gateway puts there, and honest clients go on.

use crate::support::fleet::by_name;
use crate::support::*;

const MAX_KEYS: usize = 40;

fn fleet(redis: &Redis, count: usize) -> Fleet {
    let fleet = Fleet::start(count, |_, upstream| {
        format!(
            "server: {{ trusted_proxies: 127.0.0.0/8 }}\n\
             state: {{ store: redis, max_keys: {MAX_KEYS}, redis: {{ url: \"{}\", timeout: 200ms }} }}\n\
             account: {{ from: header:x-account }}\n{}",
            redis.url(),
            by_name(
                upstream,
                &[
                    ("bucket", "key: account, rate: 2/1h"),
                    ("window", "key: account, algorithm: fixed_window, rate: 2/1h"),
                    ("log", "key: account, algorithm: sliding_log, rate: 2/1h"),
                ]
            )
        )
    });
    fleet.wait_enforcing();
    fleet
}

fn status(client: &mut Client, target: &str, network: &str, account: &str) -> u16 {
    let ask = get(target).header("X-Forwarded-For", network).header("X-Account", account);
    client.ask(&ask).status
}

#[test]
fn invented_keys_fill_redis_up_to_the_bound_and_lock_nobody_out() {
    for target in ["/bucket", "/window", "/log"] {
        let redis = Redis::start();
        let fleet = fleet(&redis, 2);
        let mut clients = [fleet.gateways[0].client(), fleet.gateways[1].client()];
        // Known to the first gateway; and known to the second alone, where it used its budget up.
        assert_eq!(status(&mut clients[0], target, "192.0.2.1", "here"), 200);
        let there = [0, 0, 0].map(|_| status(&mut clients[1], target, "192.0.2.1", "there"));
        assert_eq!(there, [200, 200, 429], "{target}");
        let flood = (0..12 * MAX_KEYS)
            .map(|turn| status(&mut clients[0], target, "203.0.113.7", &format!("invented-{turn}")));
        let admitted = flood.filter(|status| *status == 200).count();
        assert_eq!(admitted, MAX_KEYS - 1 + 2, "{target}: the table, and one counter of the network");
        let keys = redis.counters().len();
        assert!((MAX_KEYS..=MAX_KEYS + 2).contains(&keys), "{target}: {keys} keys");
        assert_eq!(status(&mut clients[0], target, "198.51.100.1", "newcomer"), 200, "{target}");
        let used_up = status(&mut clients[0], target, "198.51.100.1", "there");
        assert_eq!(used_up, 429, "{target}: an existing key keeps its own counter");
        let here = ["198.51.100.1", "203.0.113.7"].map(|net| status(&mut clients[0], target, net, "here"));
        assert_eq!(here, [200, 429], "{target}: one budget from all networks");
        // The network of the flood has one counter for all gateways that are full.
        for turn in 0..2 * MAX_KEYS {
            status(&mut clients[1], target, "203.0.113.7", &format!("more-{turn}"));
        }
        let keys = redis.counters().len();
        assert!(keys <= 2 * MAX_KEYS + 3, "{target}: {keys} keys");
        assert!(fleet.gateways[0].metric("sluicegate_limit_overflow_total", &[]) > 0.0);
    }
}

/// A server that evicts forgets quotas: the gateway says so at its start and in its status, and counts evictions.
#[test]
fn a_server_that_may_evict_is_named() {
    let limit = "locations:\n  - { path: /, respond: {}, limits: { key: \"header:x-k\", rate: 9/1h } }\n";
    let text = |redis: &Redis| {
        format!("state: {{ store: redis, redis: {{ url: \"{}\", timeout: 200ms }} }}\n{limit}", redis.url())
    };
    let evicting = Redis::start_with(&["--maxmemory", "8mb", "--maxmemory-policy", "volatile-ttl"]);
    let gateway = Gateway::start(&text(&evicting));
    gateway.wait_stderr("maxmemory-policy");
    let server = || {
        let status =
            gateway.ask_admin(&get("/status").header("Accept", "application/json")).expect(200).json();
        status["redis"]["servers"][0].clone()
    };
    eventually("the policy in the status", || server()["evicts_by"] == "volatile-ttl");
    assert!(gateway.admin_get("/status").text().contains("volatile-ttl"));
    for turn in 0..200 {
        evicting.command(&["SET", &format!("x{turn}"), &"v".repeat(50_000), "PX", "60000"]);
    }
    let evicted = || gateway.metric("sluicegate_redis_evicted_keys_total", &[]);
    eventually("counted evictions", || evicted() > 0.0);
    // Warned of once, and not of a server that evicts nothing.
    assert_eq!(gateway.stderr().matches("maxmemory-policy").count(), 1, "{}", gateway.stderr());
    for options in [
        &["--maxmemory", "99mb", "--maxmemory-policy", "noeviction"][..],
        &["--maxmemory-policy", "allkeys-lru"],
    ] {
        let redis = Redis::start_with(options);
        let gateway = Gateway::start(&text(&redis));
        eventually("a question about memory", || redis.calls("info") > 0);
        let status = gateway.ask_admin(&get("/status").header("Accept", "application/json")).json();
        assert_eq!(status["redis"]["servers"][0]["evicts_by"], serde_json::Value::Null, "{status}");
        assert!(!gateway.stderr().contains("maxmemory-policy"), "{}", gateway.stderr());
    }
}

/// A user without INFO: nothing is known, nothing is said, and limits count as ever.
#[test]
fn a_server_that_does_not_tell_its_policy_is_used_as_ever() {
    let redis = Redis::start_with(&["--maxmemory", "9mb", "--maxmemory-policy", "allkeys-lru"]);
    redis.command(&["ACL", "SETUSER", "limited", "on", ">pw", "~sg:*", "+@all", "-info"]);
    let url = redis.url().replace("redis://", "redis://limited:pw@");
    let gateway = Gateway::start(&format!(
        "state: {{ store: redis, redis: {{ url: \"{url}\", timeout: 200ms }} }}\n\
         locations:\n  - {{ path: /, respond: {{}}, limits: {{ key: ip, rate: 1/1h }} }}\n"
    ));
    eventually("a gateway that uses Redis", || !gateway.admin_get("/readyz").text().contains("degraded"));
    gateway.get("/").expect(200);
    gateway.get("/").expect(429);
    std::thread::sleep(ms(1_200));
    assert_eq!(gateway.metric("sluicegate_degraded_decisions_total", &[]), 0.0);
    assert!(!gateway.stderr().contains("maxmemory-policy"), "{}", gateway.stderr());
}
