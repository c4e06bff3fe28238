//! Successive gateways: adopted objects, fresh objects, and no leaks.

use std::sync::{Arc, Weak};

use super::*;
use sluicegate_admission::chain::{ChainVerdict, Charge, Decisions, LimitDemand, Look};
use sluicegate_base::clock::Now;
use sluicegate_config as config;
use sluicegate_limit::Units;
use sluicegate_limit::table::CounterKey;
use sluicegate_model::{LimitId, LocationId, ServerId, UpstreamId};
use sluicegate_observe::metrics::{AnswerOrigin, DecisionKind};

const START: Now = Now(1 << 40);

fn config(text: &str) -> Config {
    let log = "\naccess_log: { output: none }";
    config::parse(&format!("{text}{log}"), "test").unwrap_or_else(|report| panic!("{report}")).config
}

fn gateway(text: &str) -> Gateway {
    Gateway::build(&config(text), None).unwrap()
}

fn next(before: &Gateway, text: &str) -> Gateway {
    let gateway = Gateway::build(&config(text), Some(before)).unwrap();
    gateway.apply_numbers(&|| START);
    gateway
}

/// The text of a location with these limits, after the lines of `rest`.
fn located(limits: &str, rest: &str) -> String {
    format!("{rest}\nlocations: [{{ path: /, limits: {limits}, respond: {{ status: 200 }} }}]")
}

/// The verdict on a request, unless it is a rejection.
fn judge_once(gateway: &Gateway) -> Option<ChainVerdict> {
    let units = Units::new(CounterKey::new(1, 1), 1);
    let chain = &gateway.chain_for(Some(LocationId(0))).chain;
    let demand_of = |_: &_| LimitDemand::Units(units);
    let verdict = chain.judge::<Charge>(START, &gateway.load.waiting, true, demand_of, &mut Decisions::new());
    (!matches!(verdict, ChainVerdict::Reject(_))).then_some(verdict)
}

/// The number of admitted requests out of ten.
fn count_admitted(gateway: &Gateway) -> usize {
    let mut admitted = 0;
    for _ in 0..10 {
        if let Some(ChainVerdict::Admit(mut permit)) = judge_once(gateway) {
            permit.keep_charges();
            admitted += 1;
        }
    }
    admitted
}

#[test]
fn counters_belong_to_a_limits_name() {
    let with = |name: &str, rate: &str| located(name, &format!("limits: {{ {name}: {{ rate: {rate} }} }}"));
    let first = gateway(&with("a", "3/h"));
    assert_eq!(count_admitted(&first), 3);
    let same = next(&first, &with("a", "3/h"));
    let more = next(&same, &with("a", "5/h"));
    assert_eq!((count_admitted(&more), count_admitted(&same), count_admitted(&first)), (2, 0, 0));
    let renamed = next(&more, &with("b", "5/h"));
    assert_eq!(count_admitted(&renamed), 5, "another name is another limit");
    let back = next(&renamed, &with("a", "5/h"));
    assert_eq!(count_admitted(&back), 5, "removed and added again: fresh");
}

#[test]
fn an_inline_limit_is_known_by_its_location_and_place() {
    let first = gateway(&located("3/h", ""));
    assert_eq!(count_admitted(&first), 3);
    let moved = "locations:
- { path: /other, limits: 9/h, respond: { status: 200 } }
- { path: /, limits: 4/h, respond: { status: 200 } }";
    let next = next(&first, moved);
    let units = Units::new(CounterKey::new(1, 1), 1);
    let left = |route| {
        let (mut decisions, demand_of) = (Decisions::new(), |_: &_| LimitDemand::Units(units));
        let chain = &next.chain_for(Some(route)).chain;
        drop(chain.judge::<Look>(START, &next.load.waiting, true, demand_of, &mut decisions));
        decisions[0].decision.remaining
    };
    assert_eq!((left(LocationId(0)), left(LocationId(1))), (9, 1));
}

#[test]
fn a_gateway_that_is_not_applied_changes_nothing() {
    let first = gateway(&located("a", "limits: { a: { rate: 3/h } }"));
    assert_eq!(count_admitted(&first), 3);
    let unused =
        Gateway::build(&config(&located("a", "limits: { a: { rate: 9/h } }")), Some(&first)).unwrap();
    assert_eq!(count_admitted(&first), 0);
    drop(unused);
    assert_eq!(count_admitted(&first), 0);
}

#[test]
fn keys_bans_and_waiters_continue() {
    let rest = |bans: &str, max| format!("bans: {bans}\nserver: {{ max_waiting: {max} }}");
    let queue = "{ algorithm: leaky_bucket, rate: 1/s, queue: 5 }";
    let first = gateway(&located(queue, &rest("{ after: 2/1m, for: 10m }", 2)));
    let client = first.keys.hash_ip([10, 0, 0, 1].into());
    let bans = first.bans.as_ref().unwrap();
    bans.count_strike(&client, START);
    bans.count_strike(&client, START);
    let waits: Vec<_> = (0..9).filter_map(|_| judge_once(&first)).collect();
    assert_eq!((waits.len(), first.load.waiting.count_waiting()), (3, 2));
    let second = next(&first, &located(queue, &rest("{ after: 1/1m, for: 20m }", 3)));
    assert_eq!(second.keys.hash_ip([10, 0, 0, 1].into()), client);
    let bans = second.bans.as_ref().unwrap();
    assert_eq!(bans.ban_left_ns(&client, START), Some(600_000_000_000), "the ban keeps its end");
    let other = second.keys.hash_ip([10, 0, 0, 2].into());
    assert!(matches!(bans.count_strike(&other, START), sluicegate_admission::ban::StrikeOutcome::Started(_)));
    let more: Vec<_> = (0..9).filter_map(|_| judge_once(&second)).collect();
    assert_eq!((more.len(), second.load.waiting.count_waiting()), (1, 3));
    drop((waits, more));
    assert_eq!((first.load.waiting.count_waiting(), second.limits[0].waiter_count()), (0, 0));
    let by_account = rest("{ after: 1/1m, for: 20m, key: account }\naccount: { from: header:x-account }", 3);
    let third = next(&second, &located(queue, &by_account));
    assert_eq!(third.bans.as_ref().unwrap().ban_left_ns(&client, START), None, "another key starts fresh");
}

#[test]
fn counters_in_metrics_never_go_back() {
    let two =
        "limits: { a: { rate: 3/h }, b: { rate: 3/h } }\nupstreams: { app: [127.0.0.1:1, 127.0.0.1:2] }";
    let first = gateway(&located("[a, b]", two));
    first.metrics.count_decision(0, (LimitId(0), 0), DecisionKind::Admit);
    first.metrics.count_decision(0, (LimitId(1), 0), DecisionKind::Reject);
    first.metrics.count_request(0, Some(LocationId(0)), (StatusCode::OK, AnswerOrigin::Server), Some(1));
    first.metrics.count_request(0, None, (StatusCode::NOT_FOUND, AnswerOrigin::Fault), Some(1));
    first.metrics.count_upstream_outcome(
        0,
        UpstreamId(0),
        ServerId(1),
        sluicegate_observe::metrics::UpstreamOutcome::Status(StatusCode::OK),
    );
    first.metrics.watch_process(sluicegate_observe::metrics::values::CONNECTIONS, Vec::new(), || 7);
    let moved =
        "limits: { c: { rate: 3/h }, b: { rate: 3/h } }\nupstreams: { new: 127.0.0.1:9, app: 127.0.0.1:2 }";
    let second = next(&first, &located("[c, b]", moved));
    // A request of the previous gateway ends later.
    first.metrics.count_decision(0, (LimitId(1), 0), DecisionKind::Reject);
    second.metrics.count_decision(0, (LimitId(1), 0), DecisionKind::Reject);
    let page = second.metrics.render();
    for line in [
        "sluicegate_decisions_total{limit=\"b\",verdict=\"reject\"} 3",
        "sluicegate_decisions_total{limit=\"c\",verdict=\"admit\"} 0",
        "sluicegate_requests_total{location=\"/\",by=\"server\",status=\"2xx\"} 1",
        "sluicegate_requests_total{location=\"none\",by=\"gateway\",status=\"4xx\"} 1",
        "sluicegate_upstream_requests_total{upstream=\"app\",server=\"127.0.0.1:2\",outcome=\"2xx\"} 1",
        "sluicegate_upstream_requests_total{upstream=\"new\",server=\"127.0.0.1:9\",outcome=\"2xx\"} 0",
        "sluicegate_request_duration_seconds_count{location=\"/\"} 1",
        "sluicegate_request_duration_seconds_count{location=\"none\"} 1",
        "sluicegate_connections 7",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is not in\n{page}");
    }
    assert!(!page.contains("limit=\"a\"") && !page.contains("127.0.0.1:1\""));
}

#[test]
fn a_changed_store_is_not_adopted() {
    let redis = |url: &str, rate: &str| {
        let state = format!("state: {{ redis: {{ url: \"redis://{url}\" }} }}\n");
        located("a", &format!("{state}limits: {{ a: {{ rate: {rate}, state: redis }} }}"))
    };
    let first = gateway(&redis("127.0.0.1:1", "3/h"));
    let users = Arc::downgrade(first.sharing.store_usage.as_ref().unwrap());
    let same = next(&first, &redis("127.0.0.1:1", "5/h"));
    assert!(Arc::ptr_eq(first.store.as_ref().unwrap(), same.store.as_ref().unwrap()));
    let [one, two] = [&first, &same].map(|gateway| gateway.shared[0].as_ref().unwrap());
    assert!(Arc::ptr_eq(&one.departures[0], &two.departures[0]), "old and new waiters share one queue");
    let other = next(&same, &redis("127.0.0.1:2", "5/h"));
    assert!(!Arc::ptr_eq(same.store.as_ref().unwrap(), other.store.as_ref().unwrap()));
    drop((first, same));
    assert_eq!(users.strong_count(), 0);
    let local = next(&other, &located("a", "limits: { a: { rate: 5/h } }"));
    assert!(local.store.is_none() && count_admitted(&local) == 5);
}

#[test]
fn a_change_that_needs_a_restart_is_named() {
    let first = gateway(&located("3/h", "server: { workers: 2 }\nadmin: 127.0.0.1:1"));
    let reason = |rest: &str| first.restart_reason(&config(&located("3/h", rest)));
    assert_eq!(reason("server: { workers: 2 }\nadmin: 127.0.0.1:1"), None);
    let workers = reason("server: { workers: 3 }\nadmin: 127.0.0.1:1").unwrap();
    assert_eq!(workers, "server.workers changes from 2 to 3: that needs a restart");
    let admin = reason("server: { workers: 2 }\nadmin: none").unwrap();
    assert_eq!(admin, "admin changes (127.0.0.1:1 to none): that needs a restart");
    let token = reason("server: { workers: 2 }\nadmin: { listen: 127.0.0.1:1, token: s3cret }").unwrap();
    assert!(token.contains("admin") && !token.contains("s3cret"));
}

#[test]
fn an_access_log_that_cannot_be_opened_fails_the_build() {
    let first = gateway(&located("3/h", ""));
    let mut wrong = config(&located("9/h", ""));
    wrong.access_log.output = model::AccessLogOutput::File("/nowhere/at/all".into());
    assert!(Gateway::build(&wrong, Some(&first)).is_err());
    assert_eq!(count_admitted(&first), 3, "the first gateway is unchanged");
}

#[test]
fn a_hundred_gateways_leave_nothing_behind() {
    let text = |n: usize| {
        let limit = format!("{{ rate: {}/h }}", 1 + n % 7);
        let once = format!("limits: {{ a: {limit}, only-{n}: {limit} }}\nbans: {{ after: 20/1m }}");
        located(&format!("[a, only-{n}]"), &once)
    };
    let mut gateway = Arc::new(gateway(&text(0)));
    let known = Arc::downgrade(gateway.bans.as_ref().unwrap());
    let (mut gateways, mut limits) = (vec![Arc::downgrade(&gateway)], Vec::<Weak<Limit>>::new());
    for n in 1..101 {
        limits.extend(gateway.limits.iter().map(Arc::downgrade));
        count_admitted(&gateway);
        gateway = Arc::new(next(&gateway, &text(n)));
        gateways.push(Arc::downgrade(&gateway));
    }
    assert_eq!(gateways.iter().filter(|gateway| gateway.strong_count() > 0).count(), 1);
    assert_eq!(limits.iter().filter(|limit| limit.strong_count() > 0).count(), 0);
    assert_eq!(known.strong_count(), 0);
    let page = gateway.metrics.render();
    assert_eq!(page.lines().filter(|line| line.starts_with("sluicegate_bans_active ")).count(), 1);
}
