//! What settled charges promise, whatever their order: the bound over any span, and room for all that cost nothing.

use proptest::prelude::*;

use super::*;

/// Units per period, and the least time of one unit.
fn any_rate() -> impl Strategy<Value = (u64, u64)> {
    (1..12u64, prop_oneof![Just(1), 2..50u64, Just(SECOND)])
}

/// (gap in ‰ of the period, units, which open reservation settles, its units in % of the reserved ones).
fn any_traffic() -> impl Strategy<Value = Vec<(u64, u64, Option<usize>, u64)>> {
    let gap = prop_oneof![4 => Just(0), 3 => 0..120u64, 1 => 0..2500u64, 1 => Just(1000)];
    let percent = prop_oneof![Just(0), Just(100), 0..100u64, 100..1500u64];
    proptest::collection::vec((gap, 1..5u64, proptest::option::of(any::<usize>()), percent), 1..150)
}

/// Every algorithm, and a bucket that warms up: 1/`unit_ns` each, `max` deep.
fn all_limits(max: u64, unit_ns: u64) -> Vec<(Limit, bool, u64)> {
    let period = max * unit_ns;
    let bucket =
        Algorithm::TokenBucket { rates: vec![TokenBucketRate { rate: rate(1, unit_ns), burst: max }] };
    let warm_up = Some(Duration::from_nanos(period));
    let warm = model::LimitConfig { warm_up, ..config_of(bucket.clone()) };
    let mut limits = vec![(limit_of(bucket), true, 2), (Limit::new(LimitId(0), &warm, 1000), true, 4)];
    let windows = all_algorithms(max, period).into_iter().skip(1);
    limits.extend(windows.map(|algorithm| (limit_of(algorithm), false, 0)));
    limits
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    #[test]
    fn no_span_has_more_than_the_promise_and_the_debt((max, unit_ns) in any_rate(), traffic in any_traffic()) {
        let period = max * unit_ns;
        for (limit, is_bucket, depths) in all_limits(max, unit_ns) {
            // Units that passed, at the moment of their reservation or of their excess.
            let mut passed: Vec<(u64, u64)> = vec![];
            let mut open: Vec<(usize, u64, ChargeRecord)> = vec![];
            let mut at = 0;
            for &(gap, units, settles, percent) in &traffic {
                at += gap * period / 1000;
                let Some(which) = settles.filter(|_| !open.is_empty()) else {
                    let units = units.min(max);
                    if let Ok(charge) = reserve(&limit, at, units) {
                        passed.push((at, units));
                        open.push((passed.len() - 1, units, charge));
                    }
                    continue;
                };
                let (index, reserved, charge) = open.swap_remove(which % open.len());
                let actual = reserved * percent / 100;
                let before = peek(&limit, at, 1).remaining;
                let forgiven = settle(&limit, at, (reserved, actual), &charge);
                let after = peek(&limit, at, 1).remaining;
                prop_assert!(after <= before + reserved.saturating_sub(actual), "more than was reserved comes back");
                passed[index].1 = reserved.min(actual);
                passed.push((at, actual.saturating_sub(reserved) - forgiven));
            }
            for from in 0..passed.len() {
                let mut sum = 0;
                for &(until, units) in &passed[from..] {
                    let span = until - passed[from].0;
                    sum += units;
                    let allowed = match is_bucket {
                        true => depths * max + span / unit_ns,
                        false => (span / period + 3) * max,
                    };
                    prop_assert!(sum <= allowed, "{} units in {} ns of {:?}", sum, span, limit.config.algorithm);
                }
            }
        }
    }

    /// Right passwords, at most as many at once as the limit has, cost nothing and are never refused.
    #[test]
    fn requests_that_cost_nothing_always_find_room(
        (max, unit_ns) in any_rate(),
        traffic in any_traffic(),
        clears in any::<bool>(),
    ) {
        let period = max * unit_ns;
        for algorithm in all_algorithms(max, period) {
            let limit = limit_of(algorithm.clone());
            let (mut open, mut at) = (vec![], 0);
            for &(gap, _, settles, _) in &traffic {
                at += gap * period / 1000;
                let settles = settles.filter(|_| !open.is_empty()).or((open.len() as u64 == max).then_some(0));
                let Some(which) = settles else {
                    let charge = reserve(&limit, at, 1);
                    prop_assert!(charge.is_ok(), "{:?} refused one at {}: {:?}", &algorithm, at, charge);
                    open.extend(charge);
                    continue;
                };
                let charge: ChargeRecord = open.swap_remove(which % open.len());
                settle(&limit, at, (1, 0), &charge);
                if clears {
                    limit.clear_key(0, &key(1), Now(START + at));
                }
            }
        }
    }
}

/// A key without a cell of its own settles on the counter that it shares, and clears nothing there.
#[test]
fn a_shared_counter_is_settled_and_never_cleared() {
    for algorithm in all_algorithms(10, 10 * SECOND) {
        let limit = Limit::new(LimitId(0), &config_of(algorithm.clone()), 1);
        assert!(reserve(&limit, 0, 1).is_ok());
        let units = |cost| Units::new(key(2), cost);
        let charge = limit.charge_units(0, &units(8), Now(START)).1.unwrap();
        assert!(charge.overflow);
        limit.clear_key(0, &key(2), Now(START));
        assert_eq!(limit.peek_units(0, &units(1), Now(START)).remaining, 2, "{algorithm:?}");
        limit.settle_charge(0, &key(2), (8, 3), &charge, Now(START));
        assert_eq!(limit.peek_units(0, &units(1), Now(START)).remaining, 7, "{algorithm:?}");
        let charge = limit.charge_units(0, &units(1), Now(START)).1.unwrap();
        assert_eq!(limit.settle_charge(0, &key(2), (1, 100), &charge, Now(START)), 83, "{algorithm:?}");
        assert_eq!(peek(&limit, 0, 1).remaining, 9, "{algorithm:?}: the own counter stays");
    }
}

/// Streams that reserve much and use little get all of it back, however long they take.
#[test]
fn late_give_backs_of_a_busy_key_are_whole() {
    let bucket = TokenBucketRate { rate: rate(100_000, 60 * SECOND), burst: 100_000 };
    let limit = limit_of(Algorithm::TokenBucket { rates: vec![bucket] });
    let mut open = std::collections::VecDeque::new();
    // Each uses 500 of 2000 units, and one begins every 300 ms for ten minutes: the whole rate is used.
    for index in 0..2000u64 {
        let at = index * 300_000_000;
        let charge = reserve(&limit, at, 2000);
        assert!(charge.is_ok(), "refused at {} ms", index * 300);
        open.extend(charge);
        if open.len() > 30 {
            let first = open.pop_front().unwrap();
            settle(&limit, at, (2000, 500), &first);
        }
    }
}

/// A debt is not forgotten when the table looks for cells.
#[test]
fn a_counter_with_debt_keeps_its_cell() {
    for algorithm in all_algorithms(10, 10 * SECOND) {
        let limit = Limit::new(LimitId(0), &config_of(algorithm.clone()), 1);
        let charge = reserve(&limit, 0, 10).unwrap();
        settle(&limit, 0, (10, 20), &charge);
        let newcomer = Units::new(key(2), 1);
        let charge = limit.charge_units(0, &newcomer, Now(START + 15 * SECOND)).1.unwrap();
        assert!(charge.overflow, "{algorithm:?}: the cell of a key with debt was reused");
        assert!(peek(&limit, 15 * SECOND, 6).retry_after_ns > 0, "{algorithm:?}");
    }
}
