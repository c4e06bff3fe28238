//! Slots that are part of a longer chain: whatever becomes of the request, they are given back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate::admission::chain::{Chain, Decisions, LimitDemand, WaitingCap};
use sluicegate::base::clock::Now;
use sluicegate::config::LimitId;
use sluicegate::config::{self, OnFailure};
use sluicegate::limit::table::CounterKey;
use sluicegate::limit::{Limit, Units};
use sluicegate::shared::{Session, SharedKey, SharedLimit, StoreRefund};

use crate::link_support::{settled, single, until, with_store};
use crate::support::fleet::counting_on;
use crate::support::*;

/// More limits than fit a byte, all of slots, all under one key.
#[test]
fn every_slot_of_a_long_chain_is_given_back() {
    const LIMITS: usize = 300;
    const KEY: SharedKey = SharedKey([1; 16]);
    let redis = Redis::start();
    with_store(&single(redis.addr()), |store| async move {
        settled(&store).await;
        let session = Session::new(&store, 0);
        let clerk = tokio::task::spawn_local(session.clone().run_flusher());
        let text = "limits: { slots: { algorithm: concurrency, max_concurrent: 5 } }
locations: [{ path: /, limits: slots, respond: { status: 200 } }]";
        let limit = config::parse(text, "test").unwrap().config.limits.remove(0);
        let named = |n: usize| config::LimitConfig { name: format!("slots-{n}"), ..limit.clone() };
        let limits = (0..LIMITS).map(|n| Arc::new(Limit::new(LimitId(n), &named(n), 10))).collect();
        let side = |n| Some(Arc::new(SharedLimit::new(n, &named(n.0), OnFailure::Reject, 10)));
        let sides: Vec<_> = (0..LIMITS).map(LimitId).map(side).collect();
        let chain = Chain::new(limits).with_shared(&sides);
        let units = Units { key: CounterKey { id: 1, prefix: 0 }, cost: 1, variant: 0, fair: 0 };
        let (waiting, mut decisions) = (Arc::new(WaitingCap::new(10)), Decisions::new());
        let (mut passage, mut fell_back) = (None, false);
        let ask = |_: &Limit| LimitDemand::Shared(units, KEY);
        chain.judge_into(Now::read_clock(), &waiting, ask, &mut decisions, &mut passage);
        let asked = passage.unwrap().ask_store(&session, &waiting, &mut decisions, &mut fell_back).await;
        let slots = &session.outbox.slots;
        let held = || sides.iter().flatten().map(|side| slots.held_for(&side.slot_key(0, KEY))).sum::<u64>();
        assert_eq!((fell_back, held()), (false, LIMITS as u64));
        drop(asked.unwrap());
        assert_eq!(held(), 0);
        until("the store has heard of it", || !has_slots(&redis.keys())).await;
        clerk.abort();
    });
}

/// At the end of a worker, what its clerk has taken up is still waited for.
#[test]
fn a_desk_is_not_empty_before_the_last_answer() {
    let redis = Redis::start();
    with_store(&single(redis.addr()), |store| async move {
        settled(&store).await;
        let session = Session::new(&store, 0);
        let clerk = tokio::task::spawn_local(session.clone().run_flusher());
        let text = "locations: [{ path: /, limits: 1/h, respond: { status: 200 } }]";
        let limit = config::parse(text, "test").unwrap().config.limits.remove(0);
        let limit = Arc::new(SharedLimit::new(LimitId(0), &limit, OnFailure::Reject, 10));
        let give =
            || StoreRefund { limit: limit.clone(), rate: 0, key: SharedKey([1; 16]), cost: 1, mark: 1 };
        session.outbox.queue_refund(give());
        session.outbox.wait_flushed().await;
        let before = (redis.judgements(), limit.lost_count());
        redis.pause();
        session.outbox.queue_refund(give());
        // So that the clerk takes it up.
        tokio::time::sleep(ms(20)).await;
        let emptied = tokio::time::timeout(ms(100), session.outbox.wait_flushed()).await;
        redis.resume();
        assert!(emptied.is_err());
        session.outbox.wait_flushed().await;
        // It was answered, or its loss was counted.
        assert!(redis.judgements() > before.0 || limit.lost_count() > before.1);
        clerk.abort();
    });
}

/// Somebody holds slots, as far as the store knows.
fn has_slots(keys: &[(Vec<u8>, i64)]) -> bool {
    keys.iter().any(|(key, _)| key.windows(3).any(|part| part == b":C:"))
}

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
fn slots_are_not_kept_by_who_is_refused_or_waits() {
    let cluster = Cluster::start();
    undisturbed(|| {
        cluster.primaries().for_each(|primary| primary.command(&["FLUSHALL"]));
        let fleet = two_gateways(&cluster);
        let [one, other] = [0, 1].map(|place| &fleet.gateways[place]);
        let is_free = || other.ask(&from("/slot")).status == 200;
        eventually("a request that counts", || one.ask(&from("/once")).status == 200);
        let all_told = || eventually("no slot that is held", || !has_slots(&cluster.keys()));
        all_told();
        // One server grants the slot, the other refuses.
        let status = one.ask(&from("/once")).status;
        let refused = Instant::now();
        let is_degraded = || fleet.metric("sluicegate_degraded_decisions_total", &[]) > 0.0;
        if is_degraded() {
            return None;
        }
        assert_eq!(status, 429);
        eventually("the slot that nobody needs", is_free);
        assert!(refused.elapsed() < Duration::from_secs(6), "it expired, after {:?}", refused.elapsed());
        all_told();
        // One server grants the slot, the other says that it has to wait.
        one.ask(&from("/queued")).expect(200);
        all_told();
        let mut waiter = one.client();
        waiter.send(from("/queued").bytes());
        let waits = || one.metric("sluicegate_decisions_total", &["verdict=\"wait\""]) > 0.0;
        // A stalled store does not know who was first.
        eventually("a waiter", || waits() || is_degraded());
        if is_degraded() {
            return None;
        }
        eventually("the slot that nobody uses", is_free);
        waiter.response_within(PATIENCE).expect("an answer");
        if is_degraded() {
            return None;
        }
        let targets = fleet.upstream.targets();
        assert_eq!(targets[targets.len() - 2..], ["/slot", "/queued"], "{targets:?}");
        Some(())
    });
}
