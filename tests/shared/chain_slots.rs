//! Slots as part of a longer chain: they are given back, however the request ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_admission::chain::{Chain, ChainVerdict, Charge, Decisions, LimitDemand, WaitingCap};
use sluicegate_base::clock::Now;
use sluicegate_config as config;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{Limit, Units};
use sluicegate_model::{self as model, LimitId, OnFailure};
use sluicegate_store::{Session, SharedKey, SharedLimit, StoreRefund};

use crate::link::support::{settled, single, until, with_store};
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
        let flusher = tokio::task::spawn_local(session.clone().run_flusher());
        let text = "limits: { slots: { algorithm: concurrency, max_concurrent: 5 } }
locations: [{ path: /, limits: slots, respond: { status: 200 } }]";
        let limit = config::parse(text, "test").unwrap().config.limits.remove(0);
        let named = |n: usize| model::LimitConfig { name: format!("slots-{n}"), ..limit.clone() };
        let limits = (0..LIMITS).map(|n| Arc::new(Limit::new(LimitId(n), &named(n), 10))).collect();
        let shared_limit = |n| Some(Arc::new(SharedLimit::new(n, &named(n.0), OnFailure::Reject, 10)));
        let shared_limits: Vec<_> = (0..LIMITS).map(LimitId).map(shared_limit).collect();
        let chain = Chain::new(limits).with_shared(&shared_limits);
        let units = Units {
            key: CounterKey { id: 1, prefix: 0 },
            cost: 1,
            variant: 0,
            fair_hash: 0,
            unenforced: false,
        };
        let (waiting, mut decisions) = (Arc::new(WaitingCap::new(10)), Decisions::new());
        let ask = |_: &Limit| LimitDemand::Shared(units, KEY);
        let now = Now::read_clock();
        let ChainVerdict::AskStore(pending) = chain.judge::<Charge>(now, &waiting, true, ask, &mut decisions)
        else {
            panic!("all limits are shared");
        };
        let mut unanswered = Vec::new();
        let verdict = pending.ask(&session, &waiting, &mut decisions, &mut unanswered).await;
        let slots = &session.outbox.slots;
        let held = || {
            shared_limits
                .iter()
                .flatten()
                .map(|shared_limit| slots.held_for(&shared_limit.slot_key(0, KEY)))
                .sum::<u64>()
        };
        assert!(unanswered.is_empty() && matches!(&verdict, ChainVerdict::Admit(_)));
        assert_eq!(held(), LIMITS as u64);
        drop(verdict);
        assert_eq!(held(), 0);
        until("the store has received the report", || !has_slots(&redis.keys())).await;
        flusher.abort();
    });
}

/// At the end of a worker, refunds that its flusher has taken up are still awaited.
#[test]
fn a_desk_is_not_empty_before_the_last_answer() {
    let redis = Redis::start();
    with_store(&single(redis.addr()), |store| async move {
        settled(&store).await;
        let session = Session::new(&store, 0);
        let flusher = tokio::task::spawn_local(session.clone().run_flusher());
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
        // The flusher takes it up meanwhile.
        tokio::time::sleep(ms(20)).await;
        let emptied = tokio::time::timeout(ms(100), session.outbox.wait_flushed()).await;
        redis.resume();
        assert!(emptied.is_err());
        session.outbox.wait_flushed().await;
        // It was answered, or its loss was counted.
        assert!(redis.judgements() > before.0 || limit.lost_count() > before.1);
        flusher.abort();
    });
}

/// Lets another gateway hold slots, as far as the store knows.
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
