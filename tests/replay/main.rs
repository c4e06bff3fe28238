//! `replay` and `recommend`: logs written by hand, random ones beside brute force, those of a running gateway and of a
//! real nginx, and the page in a browser.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

use sluicegate_testkit as support;

#[allow(dead_code, reason = "shared with the tests of the page for operators")]
#[path = "../page/browser.rs"]
mod browser;

mod bad_input;
mod brute_force;
mod golden;
mod introduction;
mod live;
mod nginx;
mod quota;
mod report_page;

use sluicegate::simulate::log::LogStream;
use sluicegate::simulate::log::line_format::LogLineFormat;
use sluicegate::simulate::replay::replay_log;
use sluicegate::simulate::replay::report::ReplayReport;
use sluicegate_config as config;
use sluicegate_model as model;

/// A configuration with these limits, all of them on `/`.
pub fn yaml(limits: &str) -> String {
    let names: Vec<&str> = limits
        .lines()
        .filter_map(|line| line.trim().split_once(':').map(|(name, _)| name).filter(|_| line.contains('{')))
        .collect();
    format!(
        "limits:\n{limits}\nlocations:\n  - {{ path: /, upstream: demo, limits: [{}] }}\n",
        names.join(", ")
    )
}

pub fn load(yaml: &str) -> model::Config {
    config::parse(yaml, "gateway.yaml").unwrap_or_else(|report| panic!("{report}")).config
}

pub fn stream(log: &str, format: Option<&str>) -> LogStream {
    let format = format.map(|name| LogLineFormat::named(name).expect("a format"));
    LogStream::from_bytes(log.as_bytes().to_vec(), format.as_ref()).unwrap_or_else(|error| panic!("{error}"))
}

pub fn replay(log: &str, yaml: &str) -> ReplayReport {
    replay_log(&mut stream(log, None), load(yaml), None, |_, _| {}, |_, _| {}).expect("a replay")
}

/// One line of the gateway's own log, `us` microseconds after the start of a minute.
pub fn line(us: u64, ip: &str, path: &str, more: &str) -> String {
    let (second, us) = (us / 1_000_000, us % 1_000_000);
    let (minute, second) = (second / 60, second % 60);
    format!(
        "{{\"ts\":\"2026-01-01T00:{minute:02}:{second:02}.{us:06}Z\",\"id\":\"x\",\"ip\":\"{ip}\",\"method\":\"GET\",\
         \"host\":\"a.test\",\"path\":\"{path}\",\"status\":200,\"bytes\":0,\"dur_ms\":0.100,\"wait_ms\":0.000{more}}}\n"
    )
}
