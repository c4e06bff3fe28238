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
