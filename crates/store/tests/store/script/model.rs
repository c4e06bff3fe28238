//! The script and the local engine decide alike on every trace.

use proptest::prelude::*;
use sluicegate_model::{self as model, Algorithm, LeakyBucketRate, Rate, TokenBucketRate, WindowAlign};

use crate::limits::{config as limit, rate};
use crate::script::support::*;

/// Microseconds since the previous request, key, cost.
pub type Request = (u64, u8, u64);

pub fn any_requests(gap_max: u64) -> impl Strategy<Value = Vec<Request>> {
    let gap = prop_oneof![2 => Just(0), 2 => 0..gap_max / 16 + 2, 1 => 0..gap_max];
    let request = (gap, 1..3u8, prop_oneof![3 => Just(1u64), 1 => 1..6u64]);
    proptest::collection::vec(request, 1..60)
}

/// 1 to 20 units in a period that is divisible by `buckets`.
fn any_rate(buckets: u64) -> impl Strategy<Value = Rate> {
    let period = prop_oneof![Just(50 * MS_US), Just(SECOND_US), 1..2_000_000u64];
    (1..20u64, period)
        .prop_map(move |(units, period)| rate(units, period.div_ceil(buckets) * buckets * 1_000))
}

fn any_rates(buckets: u64) -> impl Strategy<Value = Vec<Rate>> {
    proptest::collection::vec(any_rate(buckets), 1..4)
}

fn token_bucket() -> impl Strategy<Value = Algorithm> {
    let one = (any_rate(1), 1..30u64).prop_map(|(rate, burst)| TokenBucketRate { rate, burst });
    proptest::collection::vec(one, 1..4).prop_map(|rates| Algorithm::TokenBucket { rates })
}

fn leaky_bucket() -> impl Strategy<Value = Algorithm> {
    let one = (any_rate(1), 1..5u64, 0..8u64);
    let one = one.prop_map(|(rate, burst, queue)| LeakyBucketRate { rate, burst, queue });
    let max_wait = proptest::option::of((1..2_000u64).prop_map(std::time::Duration::from_millis));
    let rates = proptest::collection::vec(one, 1..4);
    (rates, max_wait).prop_map(|(rates, max_wait)| Algorithm::LeakyBucket { rates, max_wait })
}

fn fixed_window() -> impl Strategy<Value = Algorithm> {
    let align = prop_oneof![Just(WindowAlign::First), Just(WindowAlign::Clock)];
    (any_rates(1), align).prop_map(|(rates, align)| Algorithm::FixedWindow { rates, align })
}

fn sliding_window() -> impl Strategy<Value = Algorithm> {
    (1..=60u8).prop_flat_map(|buckets| {
        any_rates(buckets.into()).prop_map(move |rates| Algorithm::SlidingWindow { rates, buckets })
    })
}

fn sliding_log() -> impl Strategy<Value = Algorithm> {
    any_rates(1).prop_map(|rates| Algorithm::SlidingLog { rates })
}

pub fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    prop_oneof![token_bucket(), leaky_bucket(), fixed_window(), sliding_window(), sliding_log()]
}

/// Costs are bounded by the capacity of the smallest rate: greater ones are rejected before.
pub fn cost_max(configs: &[model::LimitConfig]) -> u64 {
    let quotas = configs.iter().flat_map(|config| config.algorithm.rate_quotas());
    quotas.map(|(_, most)| most).min().unwrap_or(1)
}

fn same(counters: &mut Counters, configs: Vec<model::LimitConfig>, own_keys: bool, requests: &[Request]) {
    counters.flush();
    let shared = Shared::new(configs);
    let local = Local::new(&shared.configs);
    let most = cost_max(&shared.configs);
    let mut now = START_US;
    for (index, (gap, id, cost)) in requests.iter().enumerate() {
        now += gap;
        let other = if own_keys { key(id + 100) } else { key(*id) };
        let keys = [key(*id), other, key(*id)];
        let cost = (*cost).min(most);
        let (ours, theirs) = (shared.take(counters, &keys, cost, now), local.take(&keys, cost, now));
        assert_eq!(ours, theirs, "request {index}");
    }
}

fn check(cases: u32, algorithm: impl Strategy<Value = Algorithm>) {
    let counters = std::cell::RefCell::new(Counters::start());
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases) };
    let chains = proptest::collection::vec((algorithm, proptest::bool::weighted(0.2)), 1..2);
    proptest!(config, |(chain in chains, requests in any_requests(SECOND_US))| {
        let configs = chain.into_iter().map(|(algorithm, dry_run)| model::LimitConfig { dry_run, ..limit(algorithm) });
        same(&mut counters.borrow_mut(), configs.collect(), false, &requests);
    });
}

#[test]
fn token_buckets() {
    check(200, token_bucket());
}

#[test]
fn leaky_buckets() {
    check(200, leaky_bucket());
}

#[test]
fn fixed_windows() {
    check(200, fixed_window());
}

#[test]
fn sliding_windows() {
    check(200, sliding_window());
}

#[test]
fn sliding_logs() {
    check(200, sliding_log());
}

#[test]
fn chains() {
    let counters = std::cell::RefCell::new(Counters::start());
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) };
    let chains = proptest::collection::vec((any_algorithm(), proptest::bool::weighted(0.2)), 1..4);
    proptest!(config, |(chain in chains, own in any::<bool>(), requests in any_requests(SECOND_US))| {
        let configs = chain.into_iter().map(|(algorithm, dry_run)| model::LimitConfig { dry_run, ..limit(algorithm) });
        same(&mut counters.borrow_mut(), configs.collect(), own, &requests);
    });
}
