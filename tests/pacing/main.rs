//! The pacing of an upstream by the queue that three gateways share; a program of its own, because it measures
//! milliseconds and no other test may disturb it.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

use sluicegate_testkit as support;

use std::thread;
use std::time::{Duration, Instant};

use support::fleet::{DEGRADED, numbered, three};
use support::*;

/// Requests that wait in one queue at three gateways leave 20 ms apart, as at a single one.
#[test]
fn a_queue_shared_by_three_gateways_paces_the_upstream() {
    const PERIOD: Duration = ms(20);
    let redis = Redis::start();
    let fleet = three(&redis, "algorithm: leaky_bucket, rate: 50/s, queue: 200");
    let mut fewest_close = usize::MAX;
    for _ in 0..15 {
        thread::sleep(ms(50));
        let (before, degraded) = (fleet.upstream.count(), fleet.metric(DEGRADED, &[]));
        let start = Instant::now();
        fleet.fire(32, Until::Span(ms(4000)), numbered);
        if fleet.metric(DEGRADED, &[]) > degraded {
            continue;
        }
        let arrivals = fleet.arrivals().split_off(before);
        // However late a request was, none left early.
        for (index, arrival) in arrivals.iter().enumerate() {
            let due = PERIOD * index as u32;
            assert!(*arrival - start + ms(1) >= due, "number {index} arrived after {:?}", *arrival - start);
        }
        // A queue that is uneven by itself is so in every two seconds; a stalled host spares some.
        for stretch in arrivals.windows(101) {
            let gaps = stretch.windows(2).map(|pair| pair[1] - pair[0]);
            let is_crowded = stretch.windows(52).any(|some| some[51] - some[0] < ms(1000));
            if !is_crowded {
                fewest_close = fewest_close.min(gaps.filter(|&gap| gap < ms(17)).count());
            }
        }
        if fewest_close <= 1 {
            return;
        }
    }
    panic!("in every two seconds, at least {fewest_close} of 100 gaps were shorter than 17 ms");
}
