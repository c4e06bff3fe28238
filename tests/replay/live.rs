//! The log of a running gateway, judged again.

use std::thread;

use sluicegate_limit::LimitOutcome;

use crate::support::*;
use crate::{line, replay};

/// Requests of some clients, by a proxy that is trusted, each client at its own pace.
fn send_requests(gateway: &Gateway, clients: u64, requests: u64) {
    let addr = gateway.addr();
    let send = move |client: u64| {
        let mut connection = Client::connect(addr);
        for n in 0..requests {
            let ask = get("/").header("x-forwarded-for", format!("192.0.2.{client}"));
            connection.ask(&ask);
            thread::sleep(std::time::Duration::from_micros((client * 131 + n * 977) % 4_000));
        }
    };
    let threads: Vec<_> = (1..=clients).map(|client| thread::spawn(move || send(client))).collect();
    for thread in threads {
        thread.join().expect("a client");
    }
}

#[test]
fn a_dry_run_is_judged_again_as_it_was() {
    let yaml = |dry_run: bool| {
        format!(
            "server: {{ trusted_proxies: 127.0.0.1, workers: 2 }}\nlimits:\n  \
             per-ip: {{ key: ip, rate: 40/s, burst: 10, dry_run: {dry_run} }}\n\
             locations: [{{ path: /, upstream: demo, limits: per-ip }}]\n"
        )
    };
    let gateway = Gateway::start(&yaml(true));
    send_requests(&gateway, 8, 500);
    let log: String = gateway.wait_log(4_000).iter().map(|line| format!("{line}\n")).collect();
    let dry = replay(&log, &yaml(true));
    let told = log.matches("per-ip=reject").count() as u64;
    assert!(told > 400, "the limit must act: {told}");
    assert_eq!(dry.logged.compared, 4_000);
    assert!(dry.logged.agreed >= 3_996, "{} of 4000 agree\n{dry}", dry.logged.agreed);
    assert_eq!(dry.rejected, 0);
    let enforced = replay(&log, &yaml(false));
    assert!(enforced.logged.agreed >= 3_996, "{} of 4000 agree", enforced.logged.agreed);
    assert!(enforced.rejected.abs_diff(told) <= 4, "{} and {told}", enforced.rejected);
}

#[test]
fn the_verdicts_of_an_enforced_run_are_those_of_the_replay() {
    let yaml = "server: { trusted_proxies: 127.0.0.1 }\nlimits:\n  \
                a: { key: ip, rate: 50/s, burst: 5 }\n  b: { key: global, rate: 300/s, burst: 50 }\n\
                locations: [{ path: /, upstream: demo, limits: [a, b] }]\n";
    let gateway = Gateway::start(yaml);
    send_requests(&gateway, 6, 300);
    let log: String = gateway.wait_log(1_800).iter().map(|line| format!("{line}\n")).collect();
    let report = replay(&log, yaml);
    assert!(report.logged.rejected > 100, "{report}");
    assert!(report.logged.agreed >= 1_797, "{} of 1800 agree\n{report}", report.logged.agreed);
}

#[test]
fn a_disagreement_is_counted() {
    let told = |verdict: &str| format!(",\"verdict\":\"{verdict}\"");
    let log = ["reject", "admit"].map(|verdict| line(0, "192.0.2.1", "/", &told(verdict))).concat();
    let report = replay(&log, &crate::yaml("  x: { rate: 1/s, burst: 1 }"));
    assert_eq!((report.logged.compared, report.logged.agreed, report.logged.rejected), (2, 0, 1));
    assert!(LimitOutcome::Reject > LimitOutcome::Wait);
}
