//! Rates from counters that only the clock of the test moves.

use super::*;
use crate::operate::explain::build_offline;
use sluicegate_base::clock::Now;
use sluicegate_config as config;
use sluicegate_model as model;
use sluicegate_observe::metrics::{DecisionKind, VerdictKind};

fn build(text: &str, before: Option<&Gateway>) -> Gateway {
    let config = config::parse(text, "x").unwrap_or_else(|report| panic!("{report}")).config;
    match before {
        None => build_offline(config).unwrap(),
        Some(_) => {
            let config = model::Config { access_log: before.unwrap().config.access_log.clone(), ..config };
            let config = model::Config { server: before.unwrap().config.server.clone(), ..config };
            Gateway::build(&config, before).unwrap()
        }
    }
}

const TWO: &str = "limits: { a: { rate: 5/s }, b: { rate: 5/s } }\n\
                   locations: [{ path: /, upstream: demo, limits: [a, b] }]\n";

fn at(start: Now, ms: u64) -> Now {
    Now::from_instant(start.to_instant() + Duration::from_millis(ms))
}

#[tokio::test(start_paused = true)]
async fn rates_are_those_of_now_and_of_a_minute() {
    let (gateway, start) = (build(TWO, None), Now::read_clock());
    let sampler = TrafficSampler::new(&gateway, start);
    let (a, count) = (gateway.limits[0].id, |kind| gateway.metrics.count_decision(0, (LimitId(0), 0), kind));
    // Ten a second for two minutes, then nothing.
    for second in 1..=120 {
        (0..10).for_each(|_| count(DecisionKind::Reject));
        gateway.metrics.count_verdict(0, VerdictKind::Reject);
        sampler.take_sample(&gateway, at(start, second * 1_000));
    }
    let look = sampler.look_at(&gateway, at(start, 120_200));
    assert_eq!(look.limits.len(), 2);
    let Traffic { total, per_s, per_s_1m } = look.limits[0].rejected;
    assert_eq!((look.limits[0].limit, total), (a, 1_200));
    assert!((8.0..=10.0).contains(&per_s) && (9.5..=10.1).contains(&per_s_1m), "{per_s} {per_s_1m}");
    assert!((1.0..=2.0).contains(&look.over_seconds), "{}", look.over_seconds);
    assert_eq!(look.verdicts[VerdictKind::Reject as usize].total, 120);
    assert_eq!(look.limits[1].rejected, Traffic::default());
    for second in 121..=150 {
        sampler.take_sample(&gateway, at(start, second * 1_000));
    }
    let Traffic { per_s, per_s_1m, .. } = sampler.look_at(&gateway, at(start, 150_000)).limits[0].rejected;
    assert!(per_s == 0.0 && (4.0..=6.0).contains(&per_s_1m), "{per_s} {per_s_1m}");
    assert!(sampler.samples.borrow().len() <= SAMPLES_MAX);
}

#[tokio::test(start_paused = true)]
async fn the_first_moments_do_not_look_busy() {
    let (gateway, start) = (build(TWO, None), Now::read_clock());
    let sampler = TrafficSampler::new(&gateway, start);
    gateway.metrics.count_decision(0, (LimitId(1), 0), DecisionKind::Admit);
    let look = sampler.look_at(&gateway, at(start, 10));
    assert_eq!(look.limits[1].admitted, Traffic { total: 1, per_s: 1.0, per_s_1m: 1.0 });
}

#[tokio::test(start_paused = true)]
async fn a_reload_keeps_the_rates_of_names() {
    let (gateway, start) = (build(TWO, None), Now::read_clock());
    let sampler = TrafficSampler::new(&gateway, start);
    (0..10).for_each(|_| gateway.metrics.count_decision(0, (LimitId(1), 0), DecisionKind::Reject));
    sampler.take_sample(&gateway, at(start, 1_000));
    let moved = "limits: { new: { rate: 5/s }, x: { rate: 1/s }, b: { rate: 5/s } }\n\
                 locations: [{ path: /, upstream: demo, limits: [new, x, b] }]\n";
    let next = build(moved, Some(&gateway));
    let b = &sampler.look_at(&next, at(start, 2_000)).limits[2];
    assert_eq!((b.rejected.total, b.rejected.per_s, b.rejected.per_s_1m), (10, 0.0, 5.0));
    sampler.take_sample(&next, at(start, 2_000));
    let new = &sampler.look_at(&next, at(start, 3_000)).limits[0];
    assert_eq!(new.rejected, Traffic::default());
}
