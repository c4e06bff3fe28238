//! Reloads and upgrades under load: no request fails, and each is counted exactly once.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;

use crate::support::*;

/// The results of a load generator.
#[derive(Debug)]
struct Seen {
    answered: u64,
    /// Answers with another status than 2xx.
    refused: u64,
    /// Connects, reads and writes that failed, and answers that took too long.
    errors: String,
}

/// Loads `addr` by wrk for `seconds` while `act` runs.
#[track_caller]
fn under_wrk(addr: SocketAddr, seconds: u32, act: impl FnOnce()) -> Seen {
    let wrk = Command::new("wrk")
        .args(["-t2", "-c32", "--timeout", "8s", &format!("-d{seconds}s"), &format!("http://{addr}/")])
        .stdout(Stdio::piped())
        .spawn()
        .expect("wrk is installed");
    act();
    let output = wrk.wait_with_output().expect("wrk ends");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = |mark: &str| -> Option<u64> {
        let line = text.lines().find(|line| line.contains(mark))?;
        line.split_whitespace().find_map(|word| word.parse().ok())
    };
    Seen {
        answered: number("requests in").unwrap_or_else(|| panic!("{text}")),
        refused: number("Non-2xx").unwrap_or(0),
        errors: text.lines().find(|line| line.contains("Socket errors")).unwrap_or_default().to_owned(),
    }
}

/// A bucket that 1,000 requests empty and that does not refill during the test.
const EXACT: &str =
    "limits: { exact: { key: global, algorithm: fixed_window, rate: 1000/1h } }\naccess_log: none\n";

/// Twenty reloads under wrk: every request is answered.
#[test]
fn twenty_reloads_lose_no_request() {
    let file = |n: usize| {
        format!(
            "access_log: none\nlocations:\n  - {{ path: /, respond: {{ body: n{n} }} }}\n  - {{ path: /n{n}, upstream: demo }}\n"
        )
    };
    let gateway = Gateway::start(&file(0));
    let seen = under_wrk(gateway.addr(), 8, || {
        for n in 1..=20 {
            thread::sleep(ms(250));
            gateway.change(&file(n));
        }
    });
    assert!(seen.errors.is_empty() && seen.refused == 0 && seen.answered > 1000, "{seen:?}");
    eventually("one gateway", || gateway.metric("sluicegate_config_live", &[]) == 1.0);
}

/// Through twenty reloads a limit of 1,000 admits exactly 1,000.
#[test]
fn twenty_reloads_lose_no_count() {
    let file = |n: usize| {
        format!(
            "{EXACT}locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: exact }}\n  - {{ path: /n{n}, upstream: demo }}\n"
        )
    };
    let gateway = Gateway::start(&file(0));
    let seen = under_wrk(gateway.addr(), 6, || {
        for n in 1..=20 {
            thread::sleep(ms(200));
            gateway.change(&file(n));
        }
    });
    assert!(seen.errors.is_empty(), "{seen:?}");
    assert_eq!(seen.answered - seen.refused, 1000, "{seen:?}");
    let counted = gateway.metric("sluicegate_decisions_total", &["limit=\"exact\""]);
    assert!(counted >= seen.answered as f64, "{counted} counted of {seen:?}");
}

/// An upgrade under wrk: every request is answered, and spent tokens stay spent.
#[test]
fn an_upgrade_loses_no_request_and_no_count() {
    let mut gateway = Gateway::start(&format!(
        "{EXACT}locations:\n  - {{ path: /, respond: {{ body: ok }}, limits: exact }}\n"
    ));
    let mut successors = Vec::new();
    let seen = under_wrk(gateway.addr(), 8, || {
        thread::sleep(ms(1000));
        successors.push(gateway.upgrade());
    });
    assert!(seen.errors.is_empty(), "{seen:?}");
    assert_eq!(seen.answered - seen.refused, 1000, "{seen:?}");
}

/// The same while the limit is being spent: the last second before the upgrade counts too.
#[test]
fn what_is_admitted_in_the_last_moment_is_counted() {
    let mut gateway = Gateway::start(
        "limits: { exact: { key: global, algorithm: fixed_window, rate: 6000/1h } }\naccess_log: none\n\
         locations:\n  - { path: /, respond: { body: ok }, limits: exact }\n",
    );
    let mut successors = Vec::new();
    let seen = under_wrk(gateway.addr(), 10, || {
        // At some moment in between.
        eventually("some hundreds", || gateway.metric("sluicegate_decisions_total", &["admit"]) > 300.0);
        successors.push(gateway.upgrade());
    });
    assert!(seen.errors.is_empty(), "{seen:?}");
    assert!(seen.refused > 0, "the limit was never reached: {seen:?}");
    assert_eq!(seen.answered - seen.refused, 6000, "{seen:?}");
}

/// HTTP/2 connections stay through reloads: all streams are answered.
#[test]
fn h2_streams_pass_through_reloads() {
    let file =
        |n: usize| format!("access_log: none\nlocations:\n  - {{ path: /, respond: {{ body: n{n} }} }}\n");
    let gateway = Gateway::start(&file(0));
    let h2load = Command::new("h2load")
        .args(["-c8", "-m10", "-D4", &format!("http://{}/", gateway.addr())])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("h2load is installed");
    for n in 1..=10 {
        thread::sleep(ms(200));
        gateway.change(&file(n));
    }
    let text = String::from_utf8_lossy(&h2load.wait_with_output().expect("h2load ends").stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("requests:")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains(" 0 failed, 0 errored, 0 timeout"), "{line}");
    assert!(!line.contains(" 0 succeeded"), "{line}");
}
