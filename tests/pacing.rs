//! How evenly the queue that three gateways share paces an upstream; a program of its own, because it measures
//! milliseconds and no other test may disturb it.

#![allow(clippy::disallowed_types, reason = "real sockets are timed by the real clock")]

#[allow(dead_code, unused_imports, reason = "shared by several test binaries")]
mod support;

use std::thread;
use std::time::{Duration, Instant};

use support::fleet::{DEGRADED, numbered, three};
use support::*;

/// R051: requests that wait in one queue at three gateways leave 20 ms apart, as at one.
#[test]
fn a_queue_shared_by_three_gateways_paces_the_upstream() {
    const PERIOD: Duration = ms(20);
    let redis = Redis::start();
    let fleet = three(&redis, "algorithm: leaky_bucket, rate: 50/s, queue: 200");
    let mut uneven = None;
    // One that is uneven by itself is so every time; a host that stalls a gateway, which no noise tells, is not.
    for _ in 0..15 {
        thread::sleep(ms(50));
        let (before, degraded) = (fleet.upstream.count(), fleet.metric(DEGRADED, &[]));
        let noise = Noise::listen();
        let start = Instant::now();
        fleet.fire(32, Until::Span(ms(4000)), numbered);
        if fleet.metric(DEGRADED, &[]) > degraded {
            continue;
        }
        let arrivals = fleet.arrivals().split_off(before);
        // However late anything was, nothing left early.
        for (place, arrival) in arrivals.iter().enumerate() {
            let due = PERIOD * place as u32;
            assert!(*arrival - start + ms(1) >= due, "number {place} arrived after {:?}", *arrival - start);
        }
        let gaps: Vec<_> = arrivals.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let close = gaps.iter().filter(|&&gap| gap < ms(17)).count();
        let crowded = arrivals.windows(52).filter(|some| some[51] - some[0] < ms(1000)).count();
        if noise.worst() < ms(4) {
            if 100 * close <= gaps.len() && crowded == 0 && arrivals.len() >= 190 {
                return;
            }
            uneven =
                Some(format!("{} left, {close} gaps too short, {crowded} crowded: {gaps:?}", arrivals.len()));
        }
    }
    assert_eq!(uneven, None, "on a calm machine");
}
