//! A running gateway does what the scenario says, on the same traces.

use super::assert_passes;
use crate::support::*;

fn statuses_of(gateway: &Gateway, requests: usize, ask: &Ask) -> Vec<u16> {
    let mut client = gateway.client();
    (0..requests).map(|_| client.ask(ask).status).collect()
}

fn count(statuses: &[u16], status: u16) -> usize {
    statuses.iter().filter(|seen| **seen == status).count()
}

/// The numbers are such that the seconds that a test may take change nothing.
#[test]
fn rates_bans_and_tiers() {
    let config = "server: { trusted_proxies: 127.0.0.1 }\n\
        account: { from: header:X-Account, tier: { members: { acme: gold }, default: free } }\n\
        limits:\n  per-account: { key: account, rate: 5/1h, tiers: { gold: { rate: 50/1h } } }\n\
        bans: { after: 3/1h, for: 1h, key: account }\n\
        locations: [{ path: /, upstream: demo, limits: per-account }]\n";
    let gateway = Gateway::start(config);
    let gold = statuses_of(&gateway, 52, &get("/").header("X-Account", "acme"));
    let free = statuses_of(&gateway, 12, &get("/").header("X-Account", "someone"));
    assert_eq!((count(&gold, 200), count(&gold, 429)), (50, 2));
    assert_eq!((count(&free, 200), count(&free, 429)), (5, 7));
    assert_passes(
        config,
        &[
            "send: 52, account: acme, expect: { admitted: 50, rejected: 2, status: { 200: 50, 429: 2 } }",
            "send: 8, account: someone, expect: { admitted: 5, rejected: 3, by: per-account, status: 429 }",
            "send: 4, account: someone, expect: { rejected: 4, by: ban, status: 429 }",
        ],
    );
    let log = gateway.wait_log(64);
    let verdicts = |word: &str| log.iter().filter(|line| line["verdict"] == word).count();
    assert_eq!((verdicts("admit"), verdicts("reject"), verdicts("ban")), (55, 5, 4));
}

#[test]
fn charges_by_the_answer() {
    let limits = "limits: { login: { key: ip, rate: 3/1h, charge: { when: 401, clear: 2xx } } }\n";
    let upstream = Upstream::new(|seen| {
        Reply::with(seen.target.trim_start_matches('/').parse().unwrap_or(500), &[], "x")
    });
    let config = |to: &str| {
        format!(
            "{limits}upstreams: {{ app: \"{to}\" }}\nlocations: [{{ path: /, upstream: app, limits: login }}]\n"
        )
    };
    let gateway = Gateway::start(&config(&upstream.url()));
    let seen: Vec<u16> = [404, 401, 401, 200, 401, 401, 401, 401, 200]
        .iter()
        .map(|status| gateway.ask(&get(&format!("/{status}"))).status)
        .collect();
    assert_eq!(seen, [404, 401, 401, 200, 401, 401, 401, 429, 429]);
    assert_passes(
        &config("http://127.0.0.1:9"),
        &[
            "answer: 404, expect: { admitted: 1, status: 404 }",
            "at: 1ms, send: 2, every: 1ms, answer: 401, expect: { admitted: 2, status: 401 }",
            "at: 5ms, answer: 200, expect: { admitted: 1, status: 200 }",
            "at: 6ms, send: 4, every: 1ms, answer: 401, expect: { admitted: 3, rejected: 1, status: 429 }",
            "at: 20ms, answer: 200, expect: { rejected: 1, status: 429 }",
        ],
    );
}

#[test]
fn queues_and_slots() {
    let config = "limits:\n  queue: { key: global, algorithm: leaky_bucket, rate: 5/s, queue: 4 }\n\
        locations: [{ path: /, upstream: demo, limits: queue }]\n";
    let gateway = Gateway::start(config);
    let noise = Noise::listen();
    let shots = volley(gateway.addr(), (0..8).map(|_| get("/")));
    assert_eq!(statuses(&shots).iter().filter(|status| **status == 429).count(), 3);
    noise.assert_schedule(&crate::support::volley::answered(&shots, 200), &[0, 200, 400, 600, 800]);
    assert_passes(config, &["send: 8, expect: { admitted: 5, rejected: 3, waited: 4, waited_max: 800ms }"]);
}
