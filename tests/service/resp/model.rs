//! The five numbers against a model of redis-cell, written with wide integers after its source
//! (github.com/brandur/redis-cell, `src/cell/mod.rs` and `src/lib.rs`), on a virtual clock.

use std::collections::HashMap;

use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::throttle::{ThrottleTable, ThrottleTerms};

use super::Random;

const NS: i128 = 1_000_000_000;
/// Where a 64-bit number of nanoseconds ends, which is where redis-cell panics or wraps around.
const SPAN_MAX: i128 = i64::MAX as i128;
/// The clock begins far from zero, as that of the gateway does.
const START: i128 = 1 << 60;

/// One TAT per key, as redis-cell's store holds them; a TAT in the past has expired.
#[derive(Default)]
struct Model(HashMap<usize, i128>);

impl Model {
    /// `None` = no limit, or one that redis-cell cannot count.
    fn call(&mut self, key: usize, call: [i64; 4], now: i128) -> Option<[i128; 5]> {
        let [max_burst, count, period, quantity] = call.map(i128::from);
        if max_burst < 0 || count < 1 || period < 1 || quantity < 0 || period * NS > SPAN_MAX {
            return None;
        }
        let emission = (period * NS).div_euclid(count);
        let limit = max_burst + 1;
        let tolerance = emission * limit;
        if emission == 0 || limit > i128::from(i64::MAX) || tolerance > SPAN_MAX {
            return None;
        }
        let tat = self.0.get(&key).copied().filter(|tat| *tat > now).unwrap_or(now);
        let increment = emission * quantity;
        let new_tat = tat + increment;
        let allow_at = new_tat - tolerance;
        let diff = now - allow_at;
        let (limited, ttl, retry) = if diff < 0 {
            (1, tat - now, if increment <= tolerance { seconds(-diff) } else { -1 })
        } else {
            self.0.insert(key, new_tat);
            (0, new_tat - now, -1)
        };
        let next = tolerance - ttl;
        let remaining = match (next <= 0, emission / 1_000) {
            (true, _) => 0,
            // redis-cell divides by zero here.
            (false, 0) => next / emission,
            // Whole microseconds may show more than the limit.
            (false, emission_us) => (next / 1_000 / emission_us).min(limit),
        };
        Some([limited, limit, remaining, retry, seconds(ttl)])
    }
}

/// Whole seconds, and one more if whole milliseconds are left.
fn seconds(ns: i128) -> i128 {
    ns / NS + i128::from(ns % NS / 1_000_000 > 0)
}

/// Small numbers mostly, and every size up to the ends of 64 bits.
fn number(random: &mut Random) -> i64 {
    match random.below(20) {
        0 => random.next() as i64 >> random.below(64),
        1 => [0, -1, i64::MAX, i64::MIN, i64::MAX - 1, 9_223_372_036, 1_000_000_000, 1][random.below(8)],
        2..=4 => random.below(1_000_000) as i64,
        _ => random.below(12) as i64,
    }
}

#[test]
fn the_five_numbers_are_those_of_redis_cell() {
    let (table, mut model, mut random) = (ThrottleTable::new(100_000), Model::default(), Random(7));
    let mut now = START;
    let (mut admitted, mut limited, mut refused, mut peeked) = (0, 0, 0, 0);
    for case in 0..300_000 {
        now += match random.below(8) {
            0 => 0,
            1 => i128::from(random.next() >> 40),
            2..=4 => random.below(2_000_000_000) as i128,
            5 | 6 => random.below(1_000_000) as i128,
            _ => random.below(3_000) as i128 * 1_000_000,
        };
        let mut key = random.below(8);
        let mut call = [(); 4].map(|()| number(&mut random));
        if random.below(3) > 0 {
            // Reasonable calls, on keys that no other fills up for years.
            key += 8 + random.below(24);
            call =
                [call[0].clamp(0, 20), call[1].clamp(1, 1_000), call[2].clamp(1, 100), call[3].clamp(0, 25)];
        }
        let expected = model.call(key, call, now);
        let [max_burst, count, period, quantity] = call;
        let counter = CounterKey::new(key as u128 + 1, 0);
        let answer = ThrottleTerms::new(max_burst, count, period, quantity)
            .ok()
            .map(|terms| table.judge_call(&counter, &terms, Now(now as u64)).expect("room"))
            .map(|answer| answer.reply_numbers().map(i128::from));
        assert_eq!(answer, expected, "call {case}: {call:?} on key {key} at {now}");
        match answer {
            None => refused += 1,
            Some([1, ..]) => limited += 1,
            Some(_) if quantity == 0 => peeked += 1,
            Some(_) => admitted += 1,
        }
    }
    assert!(
        [admitted, limited, refused, peeked].into_iter().all(|count| count > 5_000),
        "{admitted} {limited} {refused} {peeked}"
    );
}

/// redis-cell divides in floating point; up to 104 days the result is the same.
#[test]
fn floating_point_gives_the_same_intervals() {
    let mut random = Random(11);
    for _ in 0..1_000_000 {
        let period = 1 + random.next() as i64 % 9_000_000;
        let count = 1 + (random.next() >> (1 + random.below(60))) as i64;
        let ns = period.unsigned_abs() * NS as u64;
        let float = ((ns as f64) / (count as f64)) as u64;
        assert_eq!(float, ns / count.unsigned_abs(), "{ns} / {count}");
    }
}

/// The steps of redis-cell's own test `it_rate_limits`: five at once, one a second.
#[test]
fn the_vectors_of_redis_cell_hold() {
    let table = ThrottleTable::new(100);
    let key = CounterKey::new(1, 0);
    for (ms, quantity, limited, remaining, retry_ms, reset_ms) in [
        (0, 6, true, 5, None, 0),
        (0, 1, false, 4, None, 1_000),
        (0, 1, false, 3, None, 2_000),
        (0, 1, false, 2, None, 3_000),
        (0, 1, false, 1, None, 4_000),
        (0, 1, false, 0, None, 5_000),
        (0, 1, true, 0, Some(1_000), 5_000),
        (3_000, 1, false, 2, None, 3_000),
        (3_100, 1, false, 1, None, 3_900),
        (4_000, 1, false, 1, None, 4_000),
        (8_000, 1, false, 4, None, 1_000),
        (9_500, 1, false, 4, None, 1_000),
        (9_500, 0, false, 4, None, 1_000),
        (9_500, 2, false, 2, None, 3_000),
        (9_500, 5, true, 2, Some(3_000), 3_000),
    ] {
        let terms = ThrottleTerms::new(4, 1, 1, quantity).expect("a limit");
        let now = Now((START + ms * 1_000_000) as u64);
        let answer = table.judge_call(&key, &terms, now).expect("room");
        assert_eq!(
            (answer.is_limited, answer.limit, answer.remaining),
            (limited, 5, remaining),
            "{ms} {quantity}"
        );
        let times = (answer.retry_after_ns, answer.reset_after_ns);
        assert_eq!(times, (retry_ms.map(|ms: u64| ms * 1_000_000), reset_ms * 1_000_000), "{ms} {quantity}");
    }
}

/// Parts of a millisecond are cut before seconds are rounded up.
#[test]
fn seconds_are_rounded_as_in_redis_cell() {
    let table = ThrottleTable::new(100);
    let cases = [(1, 1, 1), (999, 1_000, 2), (999_999, 1_000_000, 1), (3, 1_000, 334), (10_000, 1, 0)];
    for (id, (count, period, expected)) in cases.into_iter().enumerate() {
        let key = CounterKey::new(id as u128 + 1, 0);
        let terms = ThrottleTerms::new(0, count, period, 1).expect("a limit");
        let answer = table.judge_call(&key, &terms, Now(START as u64)).expect("room");
        assert_eq!(answer.reply_numbers()[4], expected, "{count} in {period} s");
    }
}
