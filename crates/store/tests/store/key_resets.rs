//! A key is reset in the store, and by all gateways that remember a rejection of it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use sluicegate_base::clock::Now;
use sluicegate_limit::Units;
use sluicegate_model::{LimitId, OnFailure, WindowAlign};
use sluicegate_store::operator_entries::{OperatorEntries, share_entries};
use sluicegate_store::{
    KnownResets, ResetEntry, ScriptOp, Session, SharedKey, SharedLimit, Store, StoreAnswer, StoreQuestion,
    StoreReset,
};

use crate::limits::{self, SECOND as SECOND_NS, config as limit, fixed, leaky, log, sliding, token};
use crate::link::support::{settled, single, until};
use crate::script::settle::charging;
use crate::script::support::*;
use crate::support::Redis;

/// Resets the limit at `index` for key 1.
#[track_caller]
fn reset(counters: &mut Counters, shared: &Shared, index: usize, now: u64) -> (u32, u32) {
    let packed = StoreReset::pack_call("sg", &shared.rules[index], &key(1));
    let mut command = redis::cmd("EVAL");
    command.arg(StoreReset::script().code).arg(packed.keys.len());
    packed.keys.iter().for_each(|key| {
        command.arg(key);
    });
    let answer: Vec<u8> = command.arg(&packed.body).arg(now).query(&mut counters.connection).unwrap();
    let reset = StoreReset::parse_reply(&answer).unwrap();
    (reset.forgotten, reset.kept)
}

fn remaining(counters: &mut Counters, shared: &Shared, id: u8, now: u64) -> Vec<u64> {
    let items = shared.items(&[key(id)], 1);
    let reply = counters.call(ScriptOp::Peek, &items, now);
    reply.answers.iter().map(|answer| answer.decision.remaining).collect()
}

#[test]
fn a_reset_forgets_one_limit_of_one_key_and_nothing_else() {
    let mut counters = Counters::start();
    let kinds = [
        token(10, SECOND_NS, 10),
        leaky(10, SECOND_NS, 10, 5),
        fixed(10, SECOND_NS, WindowAlign::First),
        fixed(10, SECOND_NS, WindowAlign::Clock),
        sliding(10, SECOND_NS, 5),
        log(10, SECOND_NS),
    ];
    let shared = Shared::new(kinds.into_iter().map(limit).collect());
    for id in [1, 2] {
        assert!(shared.take(&mut counters, &[key(id)], 10, START_US).admitted);
    }
    let full = [0, 5, 0, 0, 0, 0];
    assert_eq!(remaining(&mut counters, &shared, 1, START_US), full);
    let fresh = [10, 15, 10, 10, 10, 10];
    for index in 0..6 {
        assert_eq!(reset(&mut counters, &shared, index, START_US), (1, 0), "limit {index}");
        let expected: Vec<u64> = (0..6).map(|n| if n <= index { fresh[n] } else { full[n] }).collect();
        assert_eq!(remaining(&mut counters, &shared, 1, START_US), expected);
        assert_eq!(reset(&mut counters, &shared, index, START_US), (0, 0), "there is nothing more");
    }
    assert_eq!(remaining(&mut counters, &shared, 2, START_US), full, "another key");
    assert!(shared.take(&mut counters, &[key(1)], 10, START_US).admitted);
    // A charge from before the reset that is refunded now gives nothing that was never taken.
    reset(&mut counters, &shared, 0, START_US);
    let before = remaining(&mut counters, &shared, 1, START_US);
    let items = shared.items(&[key(1)], 10);
    counters.call(ScriptOp::Refund, &items, START_US);
    assert_eq!(remaining(&mut counters, &shared, 1, START_US)[0], before[0]);
}

#[test]
fn a_reset_forgets_what_responses_settle() {
    let mut counters = Counters::start();
    let kinds = [token(10, SECOND_NS, 10), fixed(10, SECOND_NS, WindowAlign::First), log(10, SECOND_NS)];
    let shared = Shared::new(kinds.into_iter().map(charging).collect());
    assert!(shared.take(&mut counters, &[key(1)], 10, START_US).admitted);
    for index in 0..3 {
        assert_eq!(reset(&mut counters, &shared, index, START_US), (1, 0), "limit {index}");
        let expected: Vec<u64> = (0..3).map(|n| if n <= index { 10 } else { 0 }).collect();
        assert_eq!(remaining(&mut counters, &shared, 1, START_US), expected);
    }
}

#[test]
fn departures_that_were_handed_out_keep_their_place() {
    let mut counters = Counters::start();
    let shared = Shared::one(leaky(10, SECOND_NS, 1, 5));
    let wait = |counters: &mut Counters, now: u64| {
        shared.pass(counters, now).map(|answer| answer.decision.wait_ns / 1_000_000)
    };
    let waits: Vec<_> = (0..3).map(|_| wait(&mut counters, START_US)).collect();
    assert_eq!(waits, [Some(0), Some(100), Some(200)]);
    assert_eq!(reset(&mut counters, &shared, 0, START_US), (0, 1));
    assert_eq!(wait(&mut counters, START_US), Some(300), "behind those that wait");
    // The last departure, at 300 ms, is over: the bucket may begin again.
    assert_eq!(wait(&mut counters, START_US + 310 * MS_US).map(|wait| wait > 0), Some(true));
    assert_eq!(reset(&mut counters, &shared, 0, START_US + 420 * MS_US), (1, 0));
    assert_eq!(wait(&mut counters, START_US + 420 * MS_US), Some(0));
    // Without a queue only the burst is used.
    let shared = Shared::one(leaky(1, SECOND_NS, 3, 0));
    counters.flush();
    for _ in 0..3 {
        assert_eq!(shared.pass(&mut counters, START_US).map(|answer| answer.decision.wait_ns), Some(0));
    }
    assert_eq!(
        (shared.pass(&mut counters, START_US), reset(&mut counters, &shared, 0, START_US)),
        (None, (1, 0))
    );
    assert!(shared.pass(&mut counters, START_US).is_some());
}

#[test]
fn a_foreign_value_is_left_alone() {
    let mut counters = Counters::start();
    let shared = Shared::new([token(1, SECOND_NS, 1), log(1, SECOND_NS)].into_iter().map(limit).collect());
    shared.take(&mut counters, &[key(1)], 1, START_US);
    for (name, _) in counters.dump() {
        redis::cmd("DEL").arg(&name).exec(&mut counters.connection).unwrap();
        redis::cmd("HSET").arg(&name).arg("a").arg("b").exec(&mut counters.connection).unwrap();
    }
    let before = counters.dump();
    assert_eq!(
        (reset(&mut counters, &shared, 0, START_US), reset(&mut counters, &shared, 1, START_US)),
        ((0, 0), (0, 0))
    );
    assert_eq!(counters.dump(), before);
}

/// One gateway, without its sockets.
struct Gateway {
    store: Arc<Store>,
    limit: Arc<SharedLimit>,
    session: Rc<Session>,
    entries: Arc<OperatorEntries>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

const KEY: SharedKey = SharedKey([9; 16]);

impl Gateway {
    async fn start(redis: &Redis) -> Gateway {
        let store = Store::new(&single(redis.addr()), None);
        let limit = Arc::new(SharedLimit::new(
            LimitId(0),
            &limit(fixed(1, 3_600 * SECOND_NS, WindowAlign::First)),
            OnFailure::Local,
            100,
        ));
        let entries = Arc::<OperatorEntries>::default();
        let (known, debts, own) =
            (RefCell::new(KnownResets::default()), store.debts().clone(), limit.clone());
        let sharing = share_entries(entries.clone(), store.clone(), move |living| {
            for reset in known.borrow_mut().take_new(living) {
                reset.apply_to([&own], &debts, Now::read_clock());
            }
        });
        let tasks = vec![tokio::spawn(store.clone().supervise()), tokio::task::spawn_local(sharing)];
        settled(&store).await;
        Gateway { session: Session::new(&store, 0), store, limit, entries, tasks }
    }

    fn units() -> Units {
        limits::units(7, 1)
    }

    /// One request; the remembered rejections are used as the chain does.
    async fn admits(&self) -> bool {
        let now = Now::read_clock();
        if self.remembers_rejection(now) {
            return false;
        }
        let question = StoreQuestion::new(&self.limit, 0, KEY, &Self::units());
        match self.session.ask_store(ScriptOp::Take, &[question]).await[0] {
            StoreAnswer::Answered { answer, charged } => {
                self.limit.record_answer(0, &Self::units(), now, &answer);
                charged
            }
            ref other => panic!("{other:?}"),
        }
    }

    fn remembers_rejection(&self, now: Now) -> bool {
        self.limit.known_rejection(0, &Self::units(), now).is_some()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.tasks.iter().for_each(|task| task.abort());
    }
}

#[test]
fn a_reset_by_one_gateway_admits_the_client_on_another() {
    let redis = Redis::start();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build_local(Default::default()).unwrap().block_on(async {
        let (one, other) = (Gateway::start(&redis).await, Gateway::start(&redis).await);
        let link = one.store.open_link();
        for id in 0..3 {
            assert!(other.admits().await && !other.admits().await);
            let rejected_at = Now::read_clock();
            assert!(other.remembers_rejection(rejected_at) && !other.admits().await);
            let rates = 0..one.limit.rules.len();
            let reset = link.reset_key(&one.limit, rates.clone(), &KEY).await.unwrap();
            assert_eq!(reset, StoreReset { forgotten: 1, kept: 0 });
            let entry = ResetEntry::new(&one.limit, rates, KEY);
            entry.put_into(&one.entries, id, Now::read_clock()).unwrap();
            until("a forgotten rejection", || !other.remembers_rejection(rejected_at)).await;
        }
        assert!(other.admits().await, "the last reset");
        assert!(!one.admits().await, "both count together");
    });
}
