//! A strict parser reads the page, as a monitoring system would.

use sluicegate_model::{LimitId, LocationId, ServerId, UpstreamId};
use std::collections::{HashMap, HashSet};

use super::*;

fn metrics() -> Arc<Metrics> {
    let text = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    Metrics::new(MetricLabels {
        workers: 2,
        locations: text(&["/", "~ \"\\.x\n", "/"]),
        limits: text(&["per-ip", "line", "per-ip"]),
        classes: Vec::new(),
        charging: vec![true, false, true],
        upstreams: vec![
            ("app".to_owned(), text(&["10.0.0.1:80", "10.0.0.1:80", "b:81"])),
            ("app".to_owned(), text(&["10.0.0.1:80", "10.0.0.1:80", "b:81"])),
        ],
        faults: vec!["no_location", "no_server"],
        version: "1.2.3",
    })
}

/// Every sample by its name and labels; panics if the page violates OpenMetrics.
fn parse(page: &str) -> HashMap<String, f64> {
    let mut samples = HashMap::new();
    let mut families: HashSet<String> = HashSet::new();
    let mut current = String::new();
    assert!(page.ends_with("\n# EOF\n"), "{page}");
    for line in page.lines().take_while(|line| *line != "# EOF") {
        if let Some(comment) = line.strip_prefix("# ") {
            let mut words = comment.splitn(3, ' ');
            let (kind, name) = (words.next().unwrap(), words.next().unwrap());
            assert!(["HELP", "TYPE", "UNIT"].contains(&kind), "{line}");
            if name != current {
                assert!(families.insert(name.to_owned()), "{name} comes twice");
                current = name.to_owned();
            }
            continue;
        }
        let (series, value) = line.rsplit_once(' ').expect(line);
        let name = series.split('{').next().unwrap();
        assert!(name.starts_with(&current), "{line} stands under {current}");
        if let Some(labels) = series.strip_prefix(name).filter(|labels| !labels.is_empty()) {
            labels_are_wellformed(labels);
        }
        let value = value.parse().expect(line);
        assert!(samples.insert(series.to_owned(), value).is_none(), "{series} comes twice");
    }
    samples
}

fn labels_are_wellformed(labels: &str) {
    let inner = labels.strip_prefix('{').and_then(|rest| rest.strip_suffix('}')).expect(labels);
    let mut rest = inner;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").expect(labels);
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{labels}");
        let mut escaped = false;
        let end = after
            .find(|c: char| {
                let ends = c == '"' && !escaped;
                escaped = c == '\\' && !escaped;
                ends
            })
            .expect(labels);
        rest = after[end + 1..].strip_prefix(',').unwrap_or(&after[end + 1..]);
    }
}

#[test]
fn an_idle_gateway_shows_every_series_as_zero() {
    let samples = parse(&metrics().render());
    assert_eq!(samples["sluicegate_build_info{version=\"1.2.3\"}"], 1.0);
    assert_eq!(samples["sluicegate_requests_total{location=\"/\",by=\"server\",status=\"2xx\"}"], 0.0);
    assert_eq!(
        samples["sluicegate_requests_total{location=\"~ \\\"\\\\.x\\n\",by=\"server\",status=\"5xx\"}"],
        0.0
    );
    assert_eq!(samples["sluicegate_own_answers_total{location=\"/\",cause=\"queue\"}"], 0.0);
    assert_eq!(samples["sluicegate_faults_total{cause=\"no_server\"}"], 0.0);
    assert_eq!(samples["sluicegate_connections_accepted_total"], 0.0);
}

#[test]
fn each_class_of_a_limit_with_shares_is_a_series() {
    let labels = |classes: &[&str]| MetricLabels {
        workers: 1,
        limits: vec!["plain".to_owned(), "backend".to_owned()],
        classes: vec![Vec::new(), classes.iter().map(|name| (*name).to_owned()).collect()],
        ..MetricLabels::default()
    };
    let first = Metrics::new(labels(&["gold", "silver", "default"]));
    first.count_decision(0, (LimitId(0), 0), DecisionKind::Admit);
    for (class, times) in [(0, 1), (1, 2), (2, 4), (u8::MAX, 8)] {
        (0..times).for_each(|_| first.count_decision(0, (LimitId(1), class), DecisionKind::Reject));
    }
    // The cells follow the names of the classes, and not their order.
    let second = Metrics::continue_from(Some(&first), labels(&["silver", "iron", "default"]));
    let rejected = |metrics: &Arc<Metrics>, class: &str| {
        let series =
            format!("sluicegate_decisions_total{{limit=\"backend\",class=\"{class}\",verdict=\"reject\"}}");
        parse(&metrics.render()).get(&series).copied()
    };
    let of = |metrics| ["gold", "silver", "iron", "default"].map(|class| rejected(metrics, class));
    assert_eq!(of(&first), [Some(1.0), Some(2.0), None, Some(12.0)], "an unknown class is the default one");
    assert_eq!(of(&second), [None, Some(2.0), Some(0.0), Some(12.0)]);
    let page = parse(&second.render());
    assert_eq!(page["sluicegate_decisions_total{limit=\"plain\",verdict=\"admit\"}"], 1.0);
    assert!(!page.contains_key("sluicegate_decisions_total{limit=\"backend\",verdict=\"reject\"}"));
    assert_eq!(second.limit_counts(LimitId(1)).rejected, 14);
    let counts: Vec<(&str, u64)> =
        second.class_counts(LimitId(1)).map(|(class, counts)| (class, counts.rejected)).collect();
    assert_eq!(counts, [("silver", 2), ("iron", 0), ("default", 12)]);
}

#[test]
fn the_counts_of_workers_are_summed() {
    let metrics = metrics();
    let status = |code: u16| StatusCode::from_u16(code).unwrap();
    metrics.count_request(0, Some(LocationId(0)), (status(200), AnswerOrigin::Server), Some(3_000_000));
    metrics.count_request(1, Some(LocationId(2)), (status(204), AnswerOrigin::Server), Some(700_000_000));
    metrics.count_request(1, None, (status(404), AnswerOrigin::Fault), Some(0));
    metrics.count_request(1, Some(LocationId(99)), (status(404), AnswerOrigin::Fault), Some(0));
    metrics.count_request(0, Some(LocationId(0)), (status(999), AnswerOrigin::Server), None);
    metrics.count_decision(0, (LimitId(0), 0), DecisionKind::Reject);
    metrics.count_decision(1, (LimitId(2), 0), DecisionKind::Reject);
    metrics.count_decision(1, (LimitId(1), 0), DecisionKind::DryRunWait);
    metrics.count_decision(0, (LimitId(1), 0), DecisionKind::Degrade);
    metrics.observe_wait(1, LimitId(1), 150_000_000);
    metrics.count_upstream_outcome(0, UpstreamId(0), ServerId(1), UpstreamOutcome::Status(status(503)));
    metrics.count_upstream_outcome(0, UpstreamId(1), ServerId(2), UpstreamOutcome::Abandoned);
    metrics.observe_upstream_time(0, UpstreamId(0), 3_000_000);
    metrics.count_fault(1, 1);
    metrics.count_ban_event(0, BanEvent::Strike);
    metrics.count_ban_event(1, BanEvent::Strike);
    metrics.count_ban_event(1, BanEvent::Started);
    metrics.count_ban_event(0, BanEvent::Rejected);
    metrics.count_accepted(0);
    metrics.count_accepted(1);
    metrics.count_rejected_per_ip(1);
    metrics.count_accept_fault(1);
    let samples = parse(&metrics.render());
    for (series, value) in [
        ("sluicegate_requests_total{location=\"/\",by=\"server\",status=\"2xx\"}", 2.0),
        ("sluicegate_requests_total{location=\"/\",by=\"server\",status=\"5xx\"}", 1.0),
        ("sluicegate_requests_total{location=\"none\",by=\"gateway\",status=\"4xx\"}", 2.0),
        ("sluicegate_request_duration_seconds_bucket{le=\"0.0025\",location=\"/\"}", 0.0),
        ("sluicegate_request_duration_seconds_bucket{le=\"0.005\",location=\"/\"}", 1.0),
        ("sluicegate_request_duration_seconds_bucket{le=\"1.0\",location=\"/\"}", 2.0),
        ("sluicegate_request_duration_seconds_sum{location=\"/\"}", 0.703),
        ("sluicegate_request_duration_seconds_count{location=\"/\"}", 2.0),
        ("sluicegate_request_duration_seconds_count{location=\"none\"}", 2.0),
        ("sluicegate_decisions_total{limit=\"per-ip\",verdict=\"reject\"}", 2.0),
        ("sluicegate_decisions_total{limit=\"line\",verdict=\"dry_run_wait\"}", 1.0),
        ("sluicegate_decisions_total{limit=\"line\",verdict=\"degrade\"}", 1.0),
        ("sluicegate_wait_seconds_bucket{le=\"0.1\",limit=\"line\"}", 0.0),
        ("sluicegate_wait_seconds_bucket{le=\"0.25\",limit=\"line\"}", 1.0),
        ("sluicegate_wait_seconds_bucket{le=\"+Inf\",limit=\"line\"}", 1.0),
        ("sluicegate_wait_seconds_sum{limit=\"line\"}", 0.15),
        ("sluicegate_wait_seconds_count{limit=\"line\"}", 1.0),
        ("sluicegate_upstream_requests_total{upstream=\"app\",server=\"10.0.0.1:80\",outcome=\"5xx\"}", 1.0),
        ("sluicegate_upstream_requests_total{upstream=\"app\",server=\"b:81\",outcome=\"abandoned\"}", 1.0),
        ("sluicegate_upstream_response_seconds_count{upstream=\"app\"}", 1.0),
        ("sluicegate_faults_total{cause=\"no_server\"}", 1.0),
        ("sluicegate_connections_rejected_total{reason=\"accept_failed\"}", 1.0),
        ("sluicegate_strikes_total", 2.0),
        ("sluicegate_strikes_uncounted_total", 0.0),
        ("sluicegate_bans_total", 1.0),
        ("sluicegate_bans_learned_total", 0.0),
        ("sluicegate_bans_rejected_total", 1.0),
        ("sluicegate_connections_accepted_total", 2.0),
        ("sluicegate_connections_rejected_total{reason=\"per_client\"}", 1.0),
    ] {
        assert_eq!(samples.get(series), Some(&value), "{series}");
    }
}

#[test]
fn watched_numbers_are_read_at_the_scrape() {
    let metrics = metrics();
    metrics.watch_limit(values::QUEUE_DEPTH, LimitId(1), None, || 7);
    metrics.watch_limit(values::KEYS, LimitId(0), None, || 3);
    metrics.watch_limit(values::QUEUE_DEPTH, LimitId(0), None, || 5);
    metrics.watch_limit(values::QUEUE_DEPTH, LimitId(2), None, || 1);
    metrics.watch_limit(values::OVERFLOW, LimitId(2), None, || 8);
    metrics.watch_limit(values::OVERFLOW, LimitId(0), None, || 1);
    metrics.watch_value(values::DROPPED_LINES, Vec::new(), || 11);
    metrics.watch_value(values::IN_FLIGHT, Vec::new(), || 2);
    metrics.watch_process(values::CONNECTIONS, Vec::new(), || 4);
    metrics.watch_value(values::BANS, Vec::new(), || 9);
    let samples = parse(&metrics.render());
    assert_eq!(samples["sluicegate_queue_depth{limit=\"line\"}"], 7.0);
    assert_eq!(samples["sluicegate_queue_depth{limit=\"per-ip\"}"], 6.0);
    assert_eq!(samples["sluicegate_keys{limit=\"per-ip\"}"], 3.0);
    assert_eq!(samples["sluicegate_limit_overflow_total{limit=\"per-ip\"}"], 9.0);
    assert_eq!(samples["sluicegate_access_log_dropped_total"], 11.0);
    assert_eq!(samples["sluicegate_requests_in_flight"], 2.0);
    assert_eq!(samples["sluicegate_connections"], 4.0);
    assert_eq!(samples["sluicegate_bans_active"], 9.0);
}

#[test]
fn answers_are_told_by_maker_and_by_cause() {
    let metrics = metrics();
    for (at, origin) in AnswerOrigin::ALL.into_iter().enumerate() {
        let status = StatusCode::from_u16(200 + 100 * (at as u16 % 4)).unwrap();
        metrics.count_request(at % 2, Some(LocationId(2 * (at % 2))), (status, origin), None);
    }
    let samples = parse(&metrics.render());
    let sum = |by: &str| -> f64 {
        let is_maker = |name: &str| name.starts_with("sluicegate_requests_total") && name.contains(by);
        samples.iter().filter(|(name, _)| is_maker(name)).map(|(_, count)| count).sum()
    };
    let makers = ["server", "limit", "location", "gateway"].map(|by| sum(&format!("by=\"{by}\"")));
    assert_eq!(makers, [1.0, 3.0, 1.0, 4.0]);
    let (name, answers) = metrics.location_answers().next().unwrap();
    assert_eq!((name, answers.responses, answers.own), ("/", [0, 1, 0, 0, 0], [1, 1, 2, 1, 1]));
    assert_eq!(metrics.location_answers().last(), Some(("none", LocationAnswers::default())));
}

#[test]
fn an_upstream_counts_the_last_response_of_a_request() {
    let (metrics, id) = (metrics(), UpstreamId(1));
    let outcome = |status| UpstreamOutcome::Status(StatusCode::from_u16(status).unwrap());
    metrics.count_upstream_outcome(0, id, ServerId(1), outcome(503));
    let retried = UpstreamOutcome::Retried(StatusCode::SERVICE_UNAVAILABLE);
    metrics.count_upstream_outcome(0, id, ServerId(1), retried);
    metrics.count_upstream_outcome(1, id, ServerId(2), outcome(200));
    metrics.count_upstream_outcome(1, id, ServerId(2), UpstreamOutcome::Timeout);
    assert_eq!(metrics.server_responses(id, ServerId(0)), [0, 0, 0, 0, 1], "equal names share a series");
    assert_eq!(metrics.server_responses(id, ServerId(2)), [0, 1, 0, 0, 0]);
    assert_eq!(metrics.upstream_responses(UpstreamId(0)), [0, 1, 0, 0, 0]);
}
