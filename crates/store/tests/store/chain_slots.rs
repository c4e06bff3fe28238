//! Slots as part of a longer chain: they are given back, however the request ends.

use std::sync::Arc;

use sluicegate_admission::chain::{Chain, ChainVerdict, Charge, Decisions, LimitDemand, WaitingCap};
use sluicegate_base::clock::Now;
use sluicegate_config as config;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{Limit, Units};
use sluicegate_model::{self as model, LimitId, OnFailure};
use sluicegate_store::{Session, SharedKey, SharedLimit, StoreUnits};

use crate::link::support::{settled, single, until, with_store};
use crate::support::{Redis, has_slots, ms};

/// A limit with these fields.
fn limit_of(fields: &str) -> model::LimitConfig {
    let text = format!(
        "limits: {{ slots: {{ {fields} }} }}\n\
         locations: [{{ path: /, limits: slots, respond: {{ status: 200 }} }}]"
    );
    config::parse(&text, "test").unwrap().config.limits.remove(0)
}

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
        let limit = limit_of("algorithm: concurrency, max_concurrent: 5");
        let named = |n: usize| model::LimitConfig { name: format!("slots-{n}"), ..limit.clone() };
        let limits = (0..LIMITS).map(|n| Arc::new(Limit::new(LimitId(n), &named(n), 10))).collect();
        let shared_limit = |n| Some(Arc::new(SharedLimit::new(n, &named(n.0), OnFailure::Reject, 10)));
        let shared_limits: Vec<_> = (0..LIMITS).map(LimitId).map(shared_limit).collect();
        let chain = Chain::new(limits).with_shared(&shared_limits);
        let units = Units::new(CounterKey::new(1, 0), 1);
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
                .map(|shared_limit| slots.peek_slots(&shared_limit.slot_key(0, KEY, 0), 0).slots)
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

/// Requests in flight of a paused limit count on, so that it has too many when it acts again.
#[test]
fn slots_beyond_those_of_a_paused_limit_count() {
    let redis = Redis::start();
    with_store(&single(redis.addr()), |store| async move {
        settled(&store).await;
        let session = Session::new(&store, 0);
        let flusher = tokio::task::spawn_local(session.clone().run_flusher());
        let config = limit_of("algorithm: concurrency, max_concurrent: 5");
        let (waiting, now) = (Arc::new(WaitingCap::new(10)), Now::read_clock());
        let chain_of = |config: &model::LimitConfig| {
            let shared = Some(Arc::new(SharedLimit::new(LimitId(0), config, OnFailure::Reject, 10)));
            shared.iter().for_each(|shared| shared.apply_numbers(&|| now));
            Chain::new(vec![Arc::new(Limit::new(LimitId(0), config, 10))]).with_shared(&[shared])
        };
        let ask = async |chain: &Chain| {
            let (mut decisions, mut unanswered) = (Decisions::new(), Vec::new());
            let units =
                |_: &Limit| LimitDemand::Shared(Units::new(CounterKey::new(1, 0), 1), SharedKey([1; 16]));
            match chain.judge::<Charge>(now, &waiting, true, units, &mut decisions) {
                ChainVerdict::AskStore(pending) => {
                    pending.ask(&session, &waiting, &mut decisions, &mut unanswered).await
                }
                _ => panic!("all limits are shared"),
            }
        };
        let mut paused = config.clone();
        let (limit, by, reason) = (config.name.clone(), String::new(), String::new());
        paused.change(model::LimitChange { limit, until_unix_ns: u64::MAX, by, reason, numbers: None }, None);
        let (chain, mut held) = (chain_of(&paused), Vec::new());
        for _ in 0..7 {
            match ask(&chain).await {
                ChainVerdict::Admit(permit) => held.push(permit),
                _ => panic!("a paused limit never acts"),
            }
        }
        until("the store has received the report", || session.outbox.slots.are_reported()).await;
        let resumed = chain_of(&config);
        for _ in 0..3 {
            assert!(matches!(ask(&resumed).await, ChainVerdict::Reject(_)), "{} in flight", held.len());
            drop(held.remove(0));
        }
        until("the store has received the report", || session.outbox.slots.are_reported()).await;
        assert!(matches!(ask(&resumed).await, ChainVerdict::Admit(_)));
        held.clear();
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
        let limit = limit_of("rate: 1/h");
        let limit = Arc::new(SharedLimit::new(LimitId(0), &limit, OnFailure::Reject, 10));
        let give = || StoreUnits {
            limit: limit.clone(),
            rate: 0,
            key: SharedKey([1; 16]),
            cost: 1,
            mark: 1,
            anchor: None,
            class: 0,
        };
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
