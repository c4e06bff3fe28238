//! The commands that show and steer the keys and bans of a running gateway.

use serde_json::Value;

use crate::support::*;

const FILE: &str = "account: { from: header:x-account }
limits:
  per-ip: { rate: 3/h }
  per-uri: { key: uri, rate: 1/h }
upstreams: { app: 127.0.0.1:1 }
locations:
  - { path: /, respond: { body: ok }, limits: per-ip }
  - { path: /uri, respond: { body: ok }, limits: per-uri }
  - { path: /app, upstream: app }
";

/// The file of the gateway with the real port of its admin listener.
struct Operator {
    gateway: Gateway,
    dir: Scratch,
}

impl Operator {
    fn start(yaml: &str) -> Operator {
        let gateway = Gateway::start(yaml);
        let dir = Scratch::new();
        dir.file("gateway.yaml", &format!("admin: {}\n{yaml}", gateway.admin()));
        Operator { gateway, dir }
    }

    fn run(&self, args: &[&str]) -> Finished {
        Run::default().args(args).finish(self.dir.path())
    }

    #[track_caller]
    fn expect(&self, args: &[&str]) -> String {
        let finished = self.run(args);
        assert!(finished.code == Some(0) && finished.stderr.is_empty(), "{args:?}: {finished:?}");
        finished.stdout
    }

    #[track_caller]
    fn assert_refused(&self, args: &[&str], message: &str) {
        let finished = self.run(args);
        assert!(finished.code == Some(1) && finished.stdout.is_empty(), "{args:?}: {finished:?}");
        assert!(
            finished.stderr.starts_with("error: ") && finished.stderr.contains(message),
            "{args:?}: {finished:?}"
        );
    }
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn keys_are_listed_reset_and_granted_other_numbers() {
    let operator = Operator::start(FILE);
    let gateway = &operator.gateway;
    let statuses = [(); 4].map(|()| gateway.get("/").status);
    assert_eq!(statuses, [200, 200, 200, 429]);
    let listed = operator.expect(&["keys", "per-ip"]);
    assert!(listed.starts_with("key           asked/s  ") && listed.contains("\nip=127.0.0.1  "), "{listed}");
    let listed = json(&operator.expect(&["keys", "per-ip", "--by", "asked", "--top", "1", "--json"]));
    assert_eq!((&listed["by"], &listed["keys"][0]["key"]), (&"asked".into(), &"ip=127.0.0.1".into()));
    let shown = json(&operator.expect(&["show", "per-ip", "ip=127.0.0.1", "--json"]));
    assert_eq!(shown["remaining"], 0);

    let reset = ["reset", "per-ip", "ip=127.0.0.1", "--reason", "a false alarm"];
    assert_eq!(operator.expect(&reset), "ip=127.0.0.1 of per-ip was reset\n");
    gateway.get("/").expect(200);
    let mut grant =
        vec!["grant", "per-ip", "ip=127.0.0.1", "--rate", "100/s", "--burst", "200", "--for", "1h"];
    let told = operator.expect(&grant);
    assert!(
        told.starts_with("ip=127.0.0.1 of per-ip was granted 100 requests per second, burst 200 for "),
        "{told}"
    );
    assert!((0..9).all(|_| gateway.get("/").status == 200));
    grant.extend(["--reason", "a demo", "--json"]);
    assert_eq!(json(&operator.expect(&grant))["grant"]["reason"], "a demo");
    let shown = operator.expect(&["show", "per-ip", "ip=127.0.0.1"]);
    assert!(shown.contains("100 requests per second, burst 200, 3"), "{shown}");

    let revoke = ["revoke", "per-ip", "ip=127.0.0.1", "--reason", "the demo is over"];
    assert_eq!(operator.expect(&revoke), "the grant for ip=127.0.0.1 of per-ip was revoked\n");
    // The counter of the limit's own numbers stood still: one of three was left after the reset and a request.
    let statuses = [(); 3].map(|()| gateway.get("/").status);
    assert_eq!(statuses, [200, 200, 429]);
    operator.assert_refused(&revoke, "no grant");
    operator.expect(&grant);
    let revoked = json(&operator.expect(&["revoke", "per-ip", "ip=127.0.0.1", "--json"]));
    assert!(revoked["key"] == "ip=127.0.0.1" && revoked["grant"].is_null(), "{revoked}");

    operator.assert_refused(&["keys", "nowhere"], "no limit is called `nowhere`");
    operator.assert_refused(&["show", "per-ip", "color=red"], "counts by ip");
    operator.assert_refused(&["grant", "per-ip", "ip=127.0.0.1", "--rate", "fast", "--for", "1h"], "fast");
}

/// A client chooses the text of such a key.
#[test]
fn keys_with_percents_and_hashes_are_found_by_the_listed_name() {
    let operator = Operator::start(FILE);
    let statuses = [(); 2].map(|()| operator.gateway.get("/uri/%1b%5B2J%23?%25").status);
    assert_eq!(statuses, [200, 429]);
    let listed = json(&operator.expect(&["keys", "per-uri", "--json"]));
    let name = listed["keys"][0]["key"].as_str().expect("a key");
    let told = operator.expect(&["reset", "per-uri", name]);
    assert_eq!(told, format!("{name} of per-uri was reset\n"));
    operator.gateway.get("/uri/%1b%5B2J%23?%25").expect(200);
}

#[test]
fn clients_are_banned_and_unbanned() {
    let operator = Operator::start(FILE);
    let gateway = &operator.gateway;
    assert_eq!(operator.expect(&["bans"]), "nobody is banned\n");
    let told = operator.expect(&["ban", "127.0.0.0/24", "--for", "1h", "--reason", "scraping"]);
    assert_eq!(told, "127.0.0.0/24 is banned for 1h\n");
    // Limits let it pass.
    assert_eq!(gateway.get("/").status, 429);
    let listed = operator.expect(&["bans"]);
    assert!(listed.contains("\n127.0.0.0/24  ") && listed.contains("scraping"), "{listed}");
    assert_eq!(operator.expect(&["ban", "account=a#b"]), "account=a#b is banned for 10m\n");
    assert_eq!(operator.expect(&["unban", "account=a#b"]), "account=a#b is no longer banned\n");
    assert_eq!(operator.expect(&["unban", "127.0.0.0/24"]), "127.0.0.0/24 is no longer banned\n");
    gateway.get("/").expect(200);
    assert_eq!(json(&operator.expect(&["bans", "--json"]))["bans"], serde_json::json!([]));
    operator.assert_refused(&["unban", "192.0.2.7"], "it is not banned");
    for verb in ["ban", "unban"] {
        let refused = operator.run(&[verb, "joe"]);
        let why = "error: `joe` is neither an address nor a network; for an account, write account=joe\n";
        assert_eq!((refused.code, refused.stderr.as_str()), (Some(2), why));
    }
    operator
        .assert_refused(&["ban", "10.0.0.0/2"], "is too large: a banned network of IPv4 has at least /8\n");
    operator.assert_refused(&["ban", "192.0.2.7", "--for", "x"], "--for: `x` is not a duration");
}

#[test]
fn top_prints_once_without_a_terminal() {
    let operator = Operator::start(FILE);
    (0..4).for_each(|_| drop(operator.gateway.get("/")));
    for args in [&["top"][..], &["top", "--once"], &["top", "--no-color"]] {
        let text = operator.expect(args);
        for part in [
            "rejections ",
            "\nlimit ",
            "\nkeys of per-ip\nkey ",
            "\nip=127.0.0.1 ",
            "\nserver ",
            "\napp ",
            "  5xx/s  p50 ms  p99 ms  ",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
    let all = json(&operator.expect(&["top", "--json"]));
    assert_eq!((&all["limits"][0]["limit"], &all["keys"]["limit"]), (&"per-ip".into(), &"per-ip".into()));
    assert_eq!(all["status"]["upstreams"][0]["upstream"], "app");
    assert_eq!((&all["upstreams"][0]["upstream"], &all["bans"]), (&"app".into(), &serde_json::json!([])));
}

#[test]
fn a_gateway_that_does_not_answer_is_exit_5() {
    let dir = Scratch::new();
    let file =
        dir.file("gateway.yaml", "admin: 127.0.0.1:1\nlocations: [{ path: /, respond: { body: ok } }]\n");
    let file = file.display().to_string();
    for args in [
        &["top"][..],
        &["keys", "a"],
        &["show", "a", "b"],
        &["reset", "a", "b"],
        &["grant", "a", "b", "--rate", "1/s", "--for", "1h"],
        &["revoke", "a", "b"],
        &["bans"],
        &["ban", "192.0.2.7"],
        &["unban", "192.0.2.7"],
    ] {
        let args: Vec<&str> = args.iter().copied().chain(["-c", &file]).collect();
        let finished = Run::default().args(&args).finish(dir.path());
        assert!(
            finished.code == Some(5) && finished.stderr.contains("does not answer"),
            "{args:?}: {finished:?}"
        );
    }
}
