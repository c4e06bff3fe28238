//! Histories of counters that only the clock of the test moves.

use std::fmt::Write as _;

use serde_json::Value;

use super::series::SECONDS;
use super::*;
use crate::operate::explain::build_offline;
use sluicegate_config as config;
use sluicegate_model::{Config, LimitId, ServerId, UpstreamId};
use sluicegate_observe::metrics::{AnswerOrigin, DecisionKind, UpstreamOutcome};
use sluicegate_proxy::gateway::Gateway;

const ONE: &str = "limits: { a: { rate: 5/s } }\nupstreams: { app: \"127.0.0.1:1\" }\n\
                   locations: [{ path: /, upstream: app, limits: a }]\n";

fn build(text: &str, before: Option<&Gateway>) -> Gateway {
    let config = config::parse(text, "x").unwrap_or_else(|report| panic!("{report}")).config;
    match before {
        None => build_offline(config).unwrap(),
        Some(before) => {
            let (access_log, server) = (before.config.access_log.clone(), before.config.server.clone());
            Gateway::build(&Config { access_log, server, ..config }, Some(before)).unwrap()
        }
    }
}

/// A file with so many limits, and so many locations and upstreams.
fn many(count: usize) -> String {
    let (mut limits, mut upstreams, mut locations) = (String::new(), String::new(), String::new());
    for at in 0..count {
        writeln!(limits, "  l{at}: {{ rate: 5/s }}").unwrap();
        writeln!(upstreams, "  u{at}: \"127.0.0.1:1\"").unwrap();
        writeln!(locations, "  - {{ path: /{at}, upstream: u{at}, limits: l{at} }}").unwrap();
    }
    format!("limits:\n{limits}upstreams:\n{upstreams}locations:\n{locations}")
}

fn count(gateway: &Gateway, limit: usize, kind: DecisionKind, times: u32) {
    (0..times).for_each(|_| gateway.metrics.count_decision(0, (LimitId(limit), 0), kind));
}

fn at(ms: u64) -> Now {
    Now(1_000_000_000_000 + ms * 1_000_000)
}

fn row(history: &TrafficHistory, kind: SeriesKind, of_minutes: bool, name: Option<&str>) -> Value {
    let mut out = Vec::new();
    history.write_row(&mut out, (kind, name), (of_minutes, history.end_of(of_minutes).0));
    serde_json::from_slice(&out).unwrap()
}

/// The last values of a column of a limit, the newest last.
fn last(
    history: &TrafficHistory,
    of_minutes: bool,
    name: Option<&str>,
    column: &str,
    values: usize,
) -> Value {
    let row = row(history, SeriesKind::Limits, of_minutes, name);
    let all = row[column].as_array().unwrap();
    all[all.len() - values..].to_vec().into()
}

const MINUTES_10: bool = false;

#[test]
fn each_second_has_what_was_counted_in_it() {
    let gateway = build(ONE, None);
    let mut history = TrafficHistory::new(&gateway.metrics);
    assert_eq!(history.end_of(MINUTES_10), (0, 0));
    for second in 1..=3 {
        count(&gateway, 0, DecisionKind::Admit, second);
        count(&gateway, 0, DecisionKind::Degrade, 1);
        count(&gateway, 0, DecisionKind::DryRunReject, 2);
        history.record(&gateway.metrics, at(u64::from(second) * 1_000 + u64::from(second) * 7));
    }
    let row = row(&history, SeriesKind::Limits, MINUTES_10, Some("a"));
    assert_eq!(row["limit"], "a");
    for (column, values) in [("admitted", [1, 2, 3]), ("waited", [0; 3]), ("rejected", [1; 3])] {
        let all = row[column].as_array().unwrap();
        assert_eq!((all.len(), all[597..].to_vec()), (600, values.map(Value::from).to_vec()), "{column}");
        assert!(all[..597].iter().all(Value::is_null), "{column}");
    }
    assert_eq!(last(&history, MINUTES_10, Some("a"), "would_reject", 1), serde_json::json!([2]));
    assert_eq!(
        last(&history, MINUTES_10, Some("b"), "admitted", 1),
        serde_json::json!([null]),
        "no such name"
    );
}

#[test]
fn locations_and_upstreams_tell_servers_apart() {
    let gateway = build(ONE, None);
    let mut history = TrafficHistory::new(&gateway.metrics);
    let status = |code| http::StatusCode::from_u16(code).unwrap();
    for (code, by) in [(200, AnswerOrigin::Server), (503, AnswerOrigin::Server), (503, AnswerOrigin::Limit)] {
        gateway.metrics.count_request(
            0,
            gateway.config.locations.first().map(|_| sluicegate_model::LocationId(0)),
            (status(code), by),
            None,
        );
    }
    gateway.metrics.count_request(0, None, (status(404), AnswerOrigin::Fault), None);
    for code in [200, 503] {
        let outcome = UpstreamOutcome::Status(status(code));
        gateway.metrics.count_upstream_outcome(0, UpstreamId(0), ServerId(0), outcome);
        gateway.metrics.observe_upstream_time(0, UpstreamId(0), 40_000_000);
    }
    history.record(&gateway.metrics, at(0));
    history.record(&gateway.metrics, at(1_000));
    let at_end = |kind, name, column: &str, from_end: usize| {
        let row = row(&history, kind, MINUTES_10, Some(name));
        row[column][600 - from_end].clone()
    };
    for (column, value) in [("2xx", 1), ("4xx", 0), ("5xx", 1), ("own", 1)] {
        assert_eq!(at_end(SeriesKind::Locations, "/", column, 2), value, "{column}");
    }
    assert_eq!(at_end(SeriesKind::Locations, "none", "own", 2), 1);
    assert_eq!(at_end(SeriesKind::Upstreams, "app", "5xx", 2), 1);
    let (p50, p99) = (
        at_end(SeriesKind::Upstreams, "app", "p50_ms", 2),
        at_end(SeriesKind::Upstreams, "app", "p99_ms", 2),
    );
    assert!((25.0..=50.0).contains(&p50.as_f64().unwrap()) && p99.as_f64() >= p50.as_f64(), "{p50} {p99}");
    assert_eq!(at_end(SeriesKind::Upstreams, "app", "p50_ms", 1), Value::Null, "no responses");
    assert_eq!(at_end(SeriesKind::Upstreams, "app", "2xx", 1), 0);
}

#[test]
fn a_late_sample_is_spread_and_a_gap_is_null() {
    let gateway = build(ONE, None);
    let mut history = TrafficHistory::new(&gateway.metrics);
    history.record(&gateway.metrics, at(0));
    count(&gateway, 0, DecisionKind::Admit, 10);
    history.record(&gateway.metrics, at(4_000));
    assert_eq!(last(&history, MINUTES_10, Some("a"), "admitted", 5), serde_json::json!([0, 2, 3, 2, 3]));
    count(&gateway, 0, DecisionKind::Admit, 1_000);
    history.record(&gateway.metrics, at(16_000));
    history.record(&gateway.metrics, at(16_400));
    count(&gateway, 0, DecisionKind::Admit, 5);
    history.record(&gateway.metrics, at(17_010));
    let expected =
        serde_json::json!([2, 3, null, null, null, null, null, null, null, null, null, null, null, null, 5]);
    assert_eq!(last(&history, MINUTES_10, Some("a"), "admitted", 15), expected);
    // Longer than anything that is kept.
    history.record(&gateway.metrics, at(17_010 + 3 * 86_400_000));
    for span in [false, true] {
        let row = row(&history, SeriesKind::Limits, span, Some("a"));
        assert!(row["admitted"].as_array().unwrap().iter().all(Value::is_null));
    }
    assert_eq!(history.end_of(MINUTES_10).1, at(17_000 + 3 * 86_400_000).to_unix_ns() / 1_000_000);
}

#[test]
fn the_rings_hold_ten_minutes_and_a_day() {
    let gateway = build(ONE, None);
    let mut history = TrafficHistory::new(&gateway.metrics);
    let seconds = (MINUTES + 5) * MINUTE + 30;
    for second in 0..seconds {
        count(&gateway, 0, DecisionKind::Admit, (second / MINUTE % 7) as u32);
        history.record(&gateway.metrics, at(second * 1_000));
    }
    let of_seconds = row(&history, SeriesKind::Limits, MINUTES_10, Some("a"));
    let of_minutes = row(&history, SeriesKind::Limits, true, Some("a"));
    let expected = |second: u64| second / MINUTE % 7;
    for (ago, value) in of_seconds["admitted"].as_array().unwrap().iter().rev().enumerate() {
        assert_eq!(*value, expected(seconds - 1 - ago as u64));
    }
    let minutes = of_minutes["admitted"].as_array().unwrap();
    assert_eq!(minutes.len(), 1_440);
    for (ago, value) in minutes.iter().rev().enumerate() {
        assert_eq!(*value, MINUTE * expected((MINUTES + 4 - ago as u64) * MINUTE), "{ago}");
    }
    let end = |span| history.end_of(span).1;
    assert_eq!(end(MINUTES_10) - end(true), 30_000);
    // A body that is read slowly: what was overwritten meanwhile is null.
    let mut before = Vec::new();
    let end = history.end_of(MINUTES_10).0 - 2;
    history.write_row(&mut before, (SeriesKind::Limits, Some("a")), (MINUTES_10, end));
    let before: Value = serde_json::from_slice(&before).unwrap();
    assert_eq!((&before["admitted"][0], &before["admitted"][1]), (&Value::Null, &Value::Null));
    assert_eq!(before["admitted"][2], of_seconds["admitted"][0]);
}

#[test]
fn a_reload_keeps_names_and_a_renamed_one_begins_anew() {
    let gateway = build(ONE, None);
    let mut history = TrafficHistory::new(&gateway.metrics);
    count(&gateway, 0, DecisionKind::Reject, 3);
    history.record(&gateway.metrics, at(0));
    let moved = "limits: { new: { rate: 1/s }, a: { rate: 9/s } }\n\
                 locations: [{ path: /, respond: { body: x }, limits: [new, a] }]\n";
    let next = build(moved, Some(&gateway));
    count(&next, 1, DecisionKind::Reject, 4);
    history.record(&next.metrics, at(1_000));
    assert_eq!(last(&history, MINUTES_10, Some("a"), "rejected", 2), serde_json::json!([3, 4]));
    assert_eq!(last(&history, MINUTES_10, Some("new"), "rejected", 2), serde_json::json!([null, 0]));
    assert_eq!(history.names(SeriesKind::Upstreams).count(), 0);
    // A name that comes back, whose counters began anew.
    let renamed = build(&moved.replace("a:", "b:").replace(", a", ", b"), Some(&next));
    history.record(&renamed.metrics, at(2_000));
    let back = build(moved, Some(&renamed));
    count(&back, 1, DecisionKind::Reject, 2);
    history.record(&back.metrics, at(3_000));
    assert_eq!(
        last(&history, MINUTES_10, Some("a"), "rejected", 4),
        serde_json::json!([null, null, null, 2])
    );
}

#[test]
fn counters_that_restart_count_from_zero() {
    let gateway = build(ONE, None);
    let mut history = TrafficHistory::new(&gateway.metrics);
    count(&gateway, 0, DecisionKind::Admit, 9);
    history.record(&gateway.metrics, at(0));
    let restarted = build(ONE, None);
    count(&restarted, 0, DecisionKind::Admit, 4);
    history.record(&restarted.metrics, at(1_000));
    assert_eq!(last(&history, MINUTES_10, Some("a"), "admitted", 2), serde_json::json!([9, 4]));
}

#[test]
fn the_busiest_hundred_have_a_series_and_the_rest_is_one_sum() {
    let gateway = build(&many(SERIES_MAX + 3), None);
    let mut history = TrafficHistory::new(&gateway.metrics);
    let names = |history: &TrafficHistory| history.names(SeriesKind::Limits).collect::<Vec<_>>();
    assert_eq!(names(&history).len(), 101);
    assert_eq!(names(&history).last(), Some(&None));
    let busy = SERIES_MAX + 1;
    for second in 0..2 * MINUTE {
        (0..SERIES_MAX + 3).for_each(|limit| count(&gateway, limit, DecisionKind::Admit, 1));
        count(&gateway, busy, DecisionKind::Admit, 9);
        history.record(&gateway.metrics, at(second * 1_000));
    }
    let shown = names(&history);
    assert!(shown.contains(&Some("l101".into())) && shown.len() == 101, "{shown:?}");
    // The values of the one that it replaced are in the rest, so that the sum of all is that of the counters.
    let sum: u64 = shown
        .iter()
        .flat_map(|name| {
            row(&history, SeriesKind::Limits, MINUTES_10, name.as_deref())["admitted"]
                .as_array()
                .unwrap()
                .clone()
        })
        .filter_map(|value| value.as_u64())
        .sum();
    assert_eq!(sum, 2 * MINUTE * (SERIES_MAX as u64 + 3 + 9));
    assert_eq!(last(&history, true, None, "admitted", 2), serde_json::json!([12 * 60 + 60, 3 * 60]));
}

#[test]
fn the_memory_is_bounded() {
    let gateway = build(&many(SERIES_MAX + 1), None);
    let mut history = TrafficHistory::new(&gateway.metrics);
    history.record(&gateway.metrics, at(0));
    let bytes = history.bytes();
    let most = 16 << 20;
    // The most names that are told apart would add 96 bytes each.
    assert!((11_000_000..most - 3 * 4_096 * 96).contains(&bytes), "{bytes}");
}

#[test]
fn another_process_goes_on_after_the_gap() {
    let gateway = build(ONE, None);
    let mut history = TrafficHistory::new(&gateway.metrics);
    for second in 0..90 {
        count(&gateway, 0, DecisionKind::Admit, 2);
        history.record(&gateway.metrics, at(second * 1_000));
    }
    let saved = history.save();
    assert!(saved.len() < 200_000, "{}", saved.len());
    let saved: SavedHistory = serde_json::from_slice(&saved).unwrap();
    let next = build(&ONE.replace("path: /", "path: /x"), None);
    let mut restored = TrafficHistory::new(&next.metrics);
    restored.restore(saved, &next.metrics, at(104_200));
    count(&next, 0, DecisionKind::Admit, 5);
    restored.record(&next.metrics, at(105_300));
    let seconds = last(&restored, MINUTES_10, Some("a"), "admitted", 17);
    assert_eq!((&seconds[0], &seconds[16]), (&2.into(), &5.into()));
    assert!((1..16).all(|at| seconds[at].is_null()), "{seconds}");
    assert_eq!(last(&restored, true, Some("a"), "admitted", 2), serde_json::json!([null, 120]));
    let renamed = row(&restored, SeriesKind::Locations, MINUTES_10, Some("/x"));
    assert_eq!(renamed["own"].as_array().unwrap().iter().filter(|value| !value.is_null()).count(), 1);
    for second in 106..163 {
        restored.record(&next.metrics, at(second * 1_000 + 300));
    }
    assert_eq!(last(&restored, true, Some("a"), "admitted", 2), serde_json::json!([120, 65]));
}

/// What another release wrote may not fit.
#[test]
fn a_foreign_history_is_taken_as_far_as_it_fits() {
    let gateway = build(ONE, None);
    let mut history = TrafficHistory::new(&gateway.metrics);
    let rows = |length| vec![[8; 6]; length];
    let series =
        |kind: &str, name: Option<&str>, length| (kind.to_owned(), name.map(str::to_owned), rows(length));
    let whole = (SECONDS + MINUTES) as usize;
    let foreign =
        vec![series("colours", None, whole), series("limits", None, whole), series("limits", Some("a"), 3)];
    history.restore((2, u64::MAX, foreign), &gateway.metrics, at(0));
    history.record(&gateway.metrics, at(1_000));
    assert_eq!(last(&history, MINUTES_10, Some("a"), "admitted", 3), serde_json::json!([null, null, 0]));
    let foreign = vec![series("limits", Some("a"), whole)];
    history.restore((u64::MAX, u64::MAX, foreign), &gateway.metrics, at(2_000));
    history.record(&gateway.metrics, at(3_000));
    assert_eq!(last(&history, MINUTES_10, Some("a"), "admitted", 2), serde_json::json!([7, 0]));
}
