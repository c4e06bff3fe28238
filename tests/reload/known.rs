//! USR2 and the state of the old process: changed numbers are converted as by a reload, and servers keep their state.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use crate::support::*;

/// How many of thirty requests are admitted.
fn admitted(gateway: &Gateway) -> usize {
    (0..30).filter(|_| gateway.get("/").status == 200).count()
}

fn limited(limit: &str) -> String {
    format!(
        "limits: {{ one: {{ key: global, {limit} }} }}\n\
         locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: one }}\n"
    )
}

/// With every algorithm, a new process admits exactly the requests that the old one would have admitted after a reload.
#[test]
fn changed_numbers_are_converted_as_by_a_reload() {
    for (before, after) in [
        ("rate: 10/1d", "rate: 20/1d"),
        ("rate: 10/1d", "rate: 5/1d"),
        ("rate: [10/1d, 100/2d], burst: [10, 12]", "rate: [20/1d, 100/2d], burst: [20, 25]"),
        ("rate: [10/1d, 100/2d], burst: [10, 12]", "rate: 100/2d, burst: 22"),
        ("algorithm: leaky_bucket, rate: 1/1d, burst: 10", "algorithm: leaky_bucket, rate: 2/1d, burst: 20"),
        ("rate: 10/1d, warm_up: 1h", "rate: 20/1d, warm_up: 2h"),
        ("algorithm: fixed_window, rate: 10/1d", "algorithm: fixed_window, rate: 20/1d"),
        ("algorithm: sliding_window, rate: 10/1d", "algorithm: sliding_window, rate: 20/1d"),
        ("algorithm: sliding_log, rate: 10/1d", "algorithm: sliding_log, rate: 20/1d"),
        ("algorithm: sliding_log, rate: 10/1d", "algorithm: fixed_window, rate: 7/1d"),
    ] {
        let reloaded = Gateway::start(&limited(before));
        let mut upgraded = Gateway::start(&limited(before));
        assert_eq!(admitted(&reloaded), admitted(&upgraded), "{before}");
        reloaded.change(&limited(after));
        upgraded.write(&limited(after));
        let _successor = upgraded.upgrade();
        let (one, other) = (admitted(&reloaded), admitted(&upgraded));
        assert_eq!(one, other, "{before} → {after}: after a reload, and after an upgrade");
        assert!(before != "rate: 10/1d" || one <= 10, "{before} → {after}: {one}");
        // The counters are now expressed in the new numbers, for the next process.
        let _third = again(&upgraded, &_successor);
        assert_eq!(admitted(&upgraded), 0, "{before} → {after}");
    }
}

/// Upgrades once more.
fn again(gateway: &Gateway, successor: &Successor) -> Successor {
    let pid = rustix::process::Pid::from_raw(successor.0).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::USR2).expect("it lives");
    eventually("a third process", || gateway.process() != successor.0 as u32);
    Successor(gateway.process() as i32)
}

/// Running bans continue, and tiers keep their usage, though the numbers of both change.
#[test]
fn bans_and_tiers_survive_changed_numbers() {
    let file = |bans: &str, gold: &str| {
        format!(
            "server: {{ trusted_proxies: 127.0.0.1 }}\naccount: {{ from: header:x-user, tier: {{ from: header:x-tier }} }}\n\
             limits: {{ two: {{ key: account, rate: 2/1d, tiers: {{ gold: {{ rate: {gold} }} }} }} }}\nbans: {bans}\n\
             locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: two }}\n"
        )
    };
    let mut gateway = Gateway::start(&file("{ after: 3/1h, for: 30m, max: 1h }", "5/1d"));
    let ask = |gateway: &Gateway, ip: &str, user: &str, tier: &str| {
        let ask = get("/").header("x-forwarded-for", ip).header("x-user", user).header("x-tier", tier);
        gateway.ask(&ask).status
    };
    for _ in 0..6 {
        ask(&gateway, "192.0.2.66", "eve", "none");
    }
    assert_eq!(gateway.metric("sluicegate_bans_active", &[]), 1.0);
    let gold = |gateway: &Gateway| {
        (0..9).filter(|n| ask(gateway, &format!("192.0.2.{n}"), "ann", "gold") == 200).count()
    };
    assert_eq!(gold(&gateway), 5);
    gateway.write(&file("{ after: 90/1h, for: 20m, max: 2h }", "8/1d"));
    let _successor = gateway.upgrade();
    assert_eq!(gateway.metric("sluicegate_bans_active", &[]), 1.0);
    assert_eq!(ask(&gateway, "192.0.2.66", "bob", "none"), 429);
    assert_eq!(gold(&gateway), 3);
}

/// Answers everything, checks included, with 503 while it is unhealthy.
fn ailing(name: &'static str) -> (Upstream, Arc<AtomicBool>) {
    let ill = Arc::new(AtomicBool::new(false));
    let script = ill.clone();
    let upstream = Upstream::new(move |_| match script.load(Relaxed) {
        true => Reply::with(503, &[], "ill"),
        false => Reply::text(name),
    });
    (upstream, ill)
}

fn file(servers: &[&Upstream], more: &str) -> String {
    let servers: Vec<String> = servers.iter().map(|one| one.addr().to_string()).collect();
    format!(
        "upstreams:\n  app: {{ servers: [{}], balance: round_robin, {more} }}\n\
         locations:\n  - {{ path: /, upstream: app }}\n",
        servers.join(", ")
    )
}

fn assert_alone(gateway: &Gateway, name: &str) {
    let answers: Vec<String> = (0..20).map(|_| gateway.get("/").expect(200).text()).collect();
    assert_eq!(answers, vec![name; 20]);
}

fn state(gateway: &Gateway, server: &Upstream) -> String {
    let status = gateway.admin_get("/upstreams").expect(200).json();
    let servers = status["upstreams"][0]["servers"].as_array().expect("servers").clone();
    let name = server.addr().to_string();
    let one = servers.iter().find(|one| one["server"] == name.as_str()).expect("the server");
    one["state"].as_str().expect("a state").to_owned()
}

/// A server that checks found down gets no request from the new process before its own first check.
#[test]
fn a_server_that_is_down_stays_down() {
    let ((one, ill), two) = (ailing("one"), Upstream::named("two"));
    let health = |interval: &str| format!("health: {{ path: /h, interval: {interval}, rise: 1, fall: 1 }}");
    let mut gateway = Gateway::start(&file(&[&one, &two], &health("100ms")));
    ill.store(true, Relaxed);
    eventually("down", || state(&gateway, &one) == "down");
    ill.store(false, Relaxed);
    // The server is healthy again, but has not been checked yet.
    gateway.write(&file(&[&one, &two], &health("10m")));
    ill.store(true, Relaxed);
    eventually("down", || state(&gateway, &one) == "down");
    let _successor = gateway.upgrade();
    ill.store(false, Relaxed);
    assert_alone(&gateway, "two");
    assert_eq!(state(&gateway, &one), "down");
    // Without checks, an old result no longer excludes the server.
    gateway.write(&file(&[&one, &two], "eject: none"));
    gateway.reload().expect(200);
    eventually("a request to one", || gateway.get("/").expect(200).text() == "one");
}

/// An ejected server stays ejected for the rest of its time.
#[test]
fn an_ejected_server_stays_ejected() {
    let ((one, ill), two) = (ailing("one"), Upstream::named("two"));
    let yaml = file(&[&one, &two], "eject: { errors: 2, for: 6s, status: 5xx }");
    let mut gateway = Gateway::start(&yaml);
    ill.store(true, Relaxed);
    eventually("an ejection", || {
        gateway.get("/");
        state(&gateway, &one) == "ejected"
    });
    ill.store(false, Relaxed);
    let _successor = gateway.upgrade();
    assert_alone(&gateway, "two");
    assert_eq!(gateway.metric("sluicegate_upstream_ejections_total", &[]), 1.0);
    eventually("its return", || gateway.get("/").expect(200).text() == "one");
}

/// A drained server stays drained, also under other settings and beside a new one, until it is undrained.
#[test]
fn a_drained_server_stays_drained() {
    let [one, two, three] = ["one", "two", "three"].map(Upstream::named);
    let mut gateway = Gateway::start(&file(&[&one, &two], "keepalive: 4"));
    let tell = |gateway: &Gateway, verb: &str| {
        let path = format!("/upstreams/app/servers/{}/{verb}", one.addr());
        let ask =
            Ask::new("POST", &path).header("Content-Length", 0).header("Content-Type", "application/json");
        gateway.ask_admin(&ask).expect(200);
    };
    tell(&gateway, "drain");
    gateway.write(&file(&[&three, &one, &two], "keepalive: 5"));
    let _successor = gateway.upgrade();
    let answers: Vec<String> = (0..20).map(|_| gateway.get("/").expect(200).text()).collect();
    assert!(!answers.contains(&"one".to_owned()) && answers.contains(&"three".to_owned()), "{answers:?}");
    assert_eq!(state(&gateway, &one), "draining");
    tell(&gateway, "undrain");
    eventually("its return", || gateway.get("/").expect(200).text() == "one");
}

/// A server in slow start continues it, and a new server begins one.
#[test]
fn a_slow_start_continues() {
    let [one, two, three] = ["one", "two", "three"].map(Upstream::named);
    let mut gateway = Gateway::start(&file(&[&one], "slow_start: 10m"));
    gateway.change(&file(&[&one, &two], "slow_start: 10m"));
    gateway.write(&file(&[&one, &two, &three], "slow_start: 10m"));
    let _successor = gateway.upgrade();
    let status = gateway.admin_get("/upstreams").expect(200).json();
    let servers = status["upstreams"][0]["servers"].as_array().expect("servers").clone();
    let shares: Vec<u64> = servers.iter().map(|one| one["share"].as_u64().expect("a share")).collect();
    assert!(shares[0] == 100 && shares[1] <= 11 && shares[2] <= 11, "{shares:?}");
}
