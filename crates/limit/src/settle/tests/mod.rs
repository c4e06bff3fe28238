//! Settled charges of each algorithm, by example and against plain models.

mod bounds;
mod plain;
mod properties;

use std::time::Duration;

use super::*;
use crate::{Decision, LimitOutcome, Units};
use sluicegate_config as config;
use sluicegate_model::{self as model, Algorithm, LimitId, Rate, TokenBucketRate, WindowAlign};

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1 << 60;

fn rate(units: u64, period_ns: u64) -> Rate {
    let units = std::num::NonZeroU64::new(units).unwrap();
    Rate::new(units, Duration::from_nanos(period_ns))
}

fn all_algorithms(units: u64, period_ns: u64) -> Vec<Algorithm> {
    let rate = rate(units, period_ns);
    vec![
        Algorithm::TokenBucket { rates: vec![TokenBucketRate { rate, burst: units }] },
        Algorithm::FixedWindow { rates: vec![rate], align: WindowAlign::First },
        Algorithm::FixedWindow { rates: vec![rate], align: WindowAlign::Clock },
        Algorithm::SlidingWindow { rates: vec![rate], buckets: 10 },
        Algorithm::SlidingWindow { rates: vec![rate], buckets: 60 },
        Algorithm::SlidingLog { rates: vec![rate] },
    ]
}

fn limit_of(algorithm: Algorithm) -> Limit {
    Limit::new(LimitId(0), &config_of(algorithm), 1000)
}

fn config_of(algorithm: Algorithm) -> model::LimitConfig {
    let text = "locations: [{ path: /, limits: 1/s, respond: { status: 200 } }]";
    let limit = config::parse(text, "test").unwrap().config.limits.remove(0);
    let charge = model::ChargeConfig {
        when: None,
        clear: model::ResponseSet { grpc_codes: vec![0], ..Default::default() },
        units: vec![model::ChargedUnits::Request],
        reserve: model::Reserve::Cost,
        missing: model::MissingUnits::Reserved,
        over: model::OverrunAction::Finish,
        counts_kib: false,
        pricing: None,
    };
    model::LimitConfig { algorithm, charge: Some(charge), ..limit }
}

fn key(id: u128) -> CounterKey {
    CounterKey::new(id, 0)
}

fn reserve(limit: &Limit, at: u64, cost: u64) -> Result<ChargeRecord, Decision> {
    let units = Units::new(key(1), cost);
    let (decision, charge) = limit.charge_units(0, &units, Now(START + at));
    charge.ok_or(modelled(decision))
}

/// The models do not know when nothing is used any more.
fn modelled(decision: Decision) -> Decision {
    Decision { full_ns: 0, ..decision }
}

fn peek(limit: &Limit, at: u64, cost: u64) -> Decision {
    let units = Units::new(key(1), cost);
    modelled(limit.peek_units(0, &units, Now(START + at)))
}

fn settle(limit: &Limit, at: u64, units: (u64, u64), charge: &ChargeRecord) -> u64 {
    limit.settle_charge(0, &key(1), units, charge, Now(START + at))
}

#[test]
fn units_that_were_not_used_make_room_at_once() {
    for algorithm in all_algorithms(10, 10 * SECOND) {
        let limit = limit_of(algorithm.clone());
        let charge = reserve(&limit, 0, 10).unwrap();
        assert!(reserve(&limit, 0, 1).is_err(), "{algorithm:?}");
        assert_eq!(settle(&limit, 0, (10, 3), &charge), 0);
        assert_eq!(peek(&limit, 0, 1).remaining, 7, "{algorithm:?}");
        assert!(reserve(&limit, 0, 7).is_ok() && reserve(&limit, 0, 1).is_err(), "{algorithm:?}");
    }
}

#[test]
fn an_excess_is_debt_that_only_waiting_pays_back() {
    for algorithm in all_algorithms(10, 10 * SECOND) {
        let limit = limit_of(algorithm.clone());
        let charge = reserve(&limit, 0, 10).unwrap();
        assert_eq!(settle(&limit, 0, (10, 17), &charge), 0);
        let decision = peek(&limit, 0, 1);
        assert_eq!((decision.outcome, decision.remaining), (LimitOutcome::Reject, 0), "{algorithm:?}");
        assert_eq!(decision.reset_ns, decision.retry_after_ns);
        let retry = decision.retry_after_ns;
        assert!(reserve(&limit, retry - 1, 1).is_err(), "{algorithm:?} before {retry}");
        assert!(reserve(&limit, retry, 1).is_ok(), "{algorithm:?} at {retry}");
        let all = peek(&limit, retry, 10).retry_after_ns;
        assert!(reserve(&limit, retry + all - 1, 10).is_err(), "{algorithm:?}");
        assert!(reserve(&limit, retry + all, 10).is_ok(), "{algorithm:?} at {retry} + {all}");
    }
}

#[test]
fn a_debt_is_a_whole_limit_at_most_and_the_rest_is_forgiven() {
    for algorithm in all_algorithms(10, 10 * SECOND) {
        let limit = limit_of(algorithm.clone());
        let charge = reserve(&limit, 0, 4).unwrap();
        assert_eq!(settle(&limit, 0, (4, 1004), &charge), 984, "{algorithm:?}");
        assert!(reserve(&limit, 9 * SECOND, 1).is_err(), "{algorithm:?}");
        let late = settle(&limit, 60 * SECOND, (4, u64::MAX), &charge);
        assert_eq!(late, u64::MAX - 24, "{algorithm:?}: a counter that was dropped is charged anew");
    }
}

#[test]
fn a_cleared_key_keeps_its_open_reservations() {
    for algorithm in all_algorithms(10, 10 * SECOND) {
        let limit = limit_of(algorithm.clone());
        let open = [reserve(&limit, 0, 2).unwrap(), reserve(&limit, 0, 1).unwrap()];
        let used = reserve(&limit, 0, 6).unwrap();
        settle(&limit, 0, (6, 6), &used);
        limit.clear_key(0, &key(1), Now(START));
        assert_eq!(peek(&limit, 0, 1).remaining, 7, "{algorithm:?}");
        settle(&limit, 0, (2, 0), &open[0]);
        assert_eq!(peek(&limit, 0, 1).remaining, 9, "{algorithm:?}");
        settle(&limit, 0, (1, 3), &open[1]);
        assert_eq!(peek(&limit, 0, 1).remaining, 7, "{algorithm:?}");
        limit.clear_key(0, &key(1), Now(START));
        assert_eq!(peek(&limit, 0, 1).remaining, 10, "{algorithm:?}");
    }
}

/// A reload to a lower limit cuts nothing of a window that is over, so a later clear keeps just what still counts.
#[test]
fn a_lower_limit_cuts_nothing_of_a_window_that_is_over() {
    let algorithm = |max| Algorithm::FixedWindow { rates: vec![rate(max, 10)], align: WindowAlign::First };
    let limit = limit_of(algorithm(5));
    let first = reserve(&limit, 0, 1).unwrap();
    reserve(&limit, 10, 5).unwrap();
    let lower = Limit::continue_from(Some(&limit), LimitId(0), &config_of(algorithm(1)), 1000);
    lower.apply_numbers(&|| Now(START + 20));
    reserve(&lower, 20, 1).unwrap();
    settle(&lower, 20, (1, 2), &first);
    lower.clear_key(0, &key(1), Now(START + 20));
    assert_eq!(peek(&lower, 20, 1).retry_after_ns, 10);
}
