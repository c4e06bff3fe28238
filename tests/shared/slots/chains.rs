//! Slots as part of a longer chain, judged for two gateways by several servers: they are given back, however the
//! request ends.

use std::time::{Duration, Instant};

use crate::support::fleet::counting_on;
use crate::support::*;

/// Two gateways on a Cluster, where a rate and slots are judged by different servers at once.
fn two_gateways(cluster: &Cluster) -> Fleet {
    let head = counting_on(&cluster.url(), "200ms");
    let fleet = Fleet::start(2, |_, upstream| {
        format!(
            "{head}limits:\n  once: {{ key: \"header:x-a\", algorithm: fixed_window, rate: 1/1h }}\n  \
               queue: {{ key: \"header:x-a\", algorithm: leaky_bucket, rate: 12/1m, queue: 5 }}\n  \
               slot: {{ key: \"header:x-b\", algorithm: concurrency, max_concurrent: 1, on_failure: reject }}\n\
             locations:\n  - {{ path: /once, upstream: \"{upstream}\", limits: [once, slot] }}\n  \
               - {{ path: /queued, upstream: \"{upstream}\", limits: [queue, slot] }}\n  \
               - {{ path: /slot, upstream: \"{upstream}\", limits: slot }}\n"
        )
    });
    fleet.wait_enforcing();
    fleet
}

fn from(target: &str) -> client::Ask {
    get(target).header("X-A", "a").header("X-B", "b")
}

#[test]
fn slots_are_not_kept_by_rejected_or_waiting_requests() {
    let cluster = Cluster::start();
    undisturbed(|| {
        cluster.primaries().for_each(|primary| primary.command(&["FLUSHALL"]));
        let fleet = two_gateways(&cluster);
        let [one, other] = [0, 1].map(|index| &fleet.gateways[index]);
        let is_free = || other.ask(&from("/slot")).status == 200;
        eventually("a request that counts", || one.ask(&from("/once")).status == 200);
        let all_reported = || eventually("no slot that is held", || !has_slots(&cluster.keys()));
        all_reported();
        // One server grants the slot, the other rejects.
        let status = one.ask(&from("/once")).status;
        let rejected = Instant::now();
        let is_degraded = || fleet.metric("sluicegate_degraded_decisions_total", &[]) > 0.0;
        if is_degraded() {
            return None;
        }
        assert_eq!(status, 429);
        eventually("the unneeded slot", is_free);
        assert!(rejected.elapsed() < Duration::from_secs(6), "it expired, after {:?}", rejected.elapsed());
        all_reported();
        // One server grants the slot, the other says that it has to wait.
        one.ask(&from("/queued")).expect(200);
        all_reported();
        let mut waiter = one.client();
        waiter.send(from("/queued").bytes());
        let waits = || one.metric("sluicegate_decisions_total", &["verdict=\"wait\""]) > 0.0;
        // A stalled store does not know which request was first.
        eventually("a waiter", || waits() || is_degraded());
        if is_degraded() {
            return None;
        }
        eventually("the unused slot", is_free);
        waiter.response_within(PATIENCE).expect("an answer");
        if is_degraded() {
            return None;
        }
        let targets = fleet.upstream.targets();
        assert_eq!(targets[targets.len() - 2..], ["/slot", "/queued"], "{targets:?}");
        Some(())
    });
}
