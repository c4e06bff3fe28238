//! Requests without the key of their limit: refused for good, not told to wait.

use crate::support::{Gateway, get};

fn gateway() -> Gateway {
    Gateway::start(
        "bans: { after: 2/1h, for: 1h }\n\
         account: { from: header:X-Account-Id }\n\
         limits:\n  per-ip: { rate: 1/h, burst: 3 }\n  \
           per-account: { key: account, missing_key: reject, rate: 1/h, burst: 100 }\n  \
           keyed: { key: \"header:X-Key\", missing_key: { reject: 401 }, rate: 1/h }\n  \
           trial: { rate: 1/h, burst: 9, dry_run: true }\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: [per-ip, per-account, trial] }\n  \
           - { path: /keyed, respond: { body: ok }, limits: keyed }\n",
    )
}

#[test]
fn they_are_forbidden_and_never_told_to_wait() {
    let gateway = gateway();
    let known = get("/").header("X-Account-Id", "acme");
    assert!(gateway.ask(&known).expect(200).header("ratelimit").is_some());
    // More than the strikes of a ban.
    for _ in 0..5 {
        let refused = gateway.get("/").expect(403);
        for name in ["retry-after", "ratelimit", "ratelimit-policy", "www-authenticate"] {
            assert_eq!(refused.header(name), None, "{name}");
        }
        assert!(refused.header("sluicegate-dry-run").is_some());
        let body = refused.json();
        assert_eq!(body["type"], "about:blank");
        assert_eq!(body["detail"], "limit per-account: the request has no account");
        assert_eq!(
            (&body["limit"], &body["retry_after_ms"]),
            (&"per-account".into(), &serde_json::Value::Null)
        );
        assert_eq!(body.get("violated-policies"), None);
    }
    // They took nothing from the limit before theirs, and are no strikes.
    for _ in 0..2 {
        gateway.ask(&known).expect(200);
    }
    gateway.ask(&known).expect(429);
    // Waiting would not help a request that also exceeds a rate.
    assert_eq!(gateway.get("/").expect(403).header("ratelimit"), None);
    let counted = |verdict: &str| {
        let verdict = format!("verdict=\"{verdict}\"");
        gateway.metric("sluicegate_decisions_total", &["limit=\"per-account\"", &verdict])
    };
    assert_eq!(["missing_key", "reject", "admit"].map(counted), [6.0, 0.0, 3.0]);
    let lines = gateway.wait_log(10);
    let refused: Vec<_> = lines.iter().filter(|line| line["verdict"] == "missing_key").collect();
    assert_eq!(refused.len(), 6, "{lines:#?}");
    for line in refused {
        assert_eq!((&line["limit"], &line["status"]), (&"per-account".into(), &403.into()));
        assert_eq!(line.get("retry_after"), None);
    }
}

#[test]
fn a_401_asks_for_credentials() {
    let gateway = gateway();
    let refused = gateway.get("/keyed").expect(401);
    assert_eq!(refused.header("www-authenticate").as_deref(), Some("ApiKey realm=\"gateway\""));
    assert_eq!(refused.header("retry-after"), None);
    assert_eq!(refused.json()["detail"], "limit keyed: the request has no header x-key");
    gateway.ask(&get("/keyed").header("X-Key", "k")).expect(200);
}
