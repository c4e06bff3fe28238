//! Waiting for concurrency slots: arrival order, turns, hand-over, leavers and late waiters, on a paused clock.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use sluicegate_admission::chain::{ChainCause, ChainRejection, Decisions, LimitDemand, WaitingCap};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Limit, LimitOutcome, SlotOutcome, Units};
use sluicegate_model::{self as model, LimitId};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep};

use crate::support::*;

pub fn gate(algorithm: model::Algorithm, is_fair: bool) -> Gate {
    Gate::new(vec![if is_fair { fair(algorithm) } else { limit(algorithm) }])
}

pub fn judge(gate: &Gate, value: u64) -> Result<Accepted, ChainRejection> {
    let ask = |_: &Limit| LimitDemand::Units(Units { fair_hash: value, ..units(1, 1) });
    match gate.chain.judge_request(Now::read_clock(), &gate.waiting, ask).verdict {
        Verdict::Admit(accepted) => Ok(accepted),
        Verdict::Reject(rejection) => Err(rejection),
    }
}

/// A request that waits, and the order in which those get their slots.
fn wait_for_slot(mut accepted: Accepted, name: u64, order: &Rc<RefCell<Vec<u64>>>) -> JoinHandle<Accepted> {
    let order = order.clone();
    spawn_local(async move {
        accepted.wait_turn().await.unwrap();
        accepted.take_slots().await.unwrap();
        order.borrow_mut().push(name);
        accepted
    })
}

async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_freed_slot_is_handed_over_and_nobody_overtakes() {
    paused(async {
        let (gate, order) = (gate(slots(1, 5, None), false), Rc::default());
        let first = judge(&gate, 0).unwrap();
        let second = wait_for_slot(judge(&gate, 0).unwrap(), 2, &order);
        settle().await;
        drop(first);
        // The waiter has not run yet, but the slot is its own.
        let newcomer = judge(&gate, 0).unwrap();
        assert!(newcomer.must_wait() && order.borrow().is_empty());
        assert_eq!(gate.chain.limits()[0].waiter_count(), 1);
        let newcomer = wait_for_slot(newcomer, 3, &order);
        let second = second.await.unwrap();
        assert_eq!(*order.borrow(), [2]);
        drop(second);
        drop(newcomer.await.unwrap());
        assert_eq!((*order.borrow()).len(), 2);
        assert_eq!(free_slots(&gate.chain.limits()[0]), 1);
    });
}

/// A waiter that was handed a slot and is gone before it noticed gives it on.
#[test]
fn a_waiter_that_vanishes_with_its_slot_gives_it_on() {
    paused(async {
        let (gate, order) = (gate(slots(1, 5, None), false), Rc::default());
        let holder = judge(&gate, 0).unwrap();
        let vanishes = judge(&gate, 0).unwrap();
        let next = wait_for_slot(judge(&gate, 0).unwrap(), 3, &order);
        settle().await;
        drop(holder);
        settle().await;
        assert!(order.borrow().is_empty(), "the slot belongs to the one before");
        drop(vanishes);
        drop(next.await.unwrap());
        assert_eq!((gate.chain.limits()[0].waiter_count(), free_slots(&gate.chain.limits()[0])), (0, 1));
    });
}

#[test]
fn a_full_queue_rejects_at_once_with_the_expected_wait() {
    paused(async {
        let (gate, order) = (gate(slots(1, 2, None), false), Rc::default());
        let mut holders = vec![judge(&gate, 0).unwrap()];
        let mut waiters = vec![];
        for name in [1, 2] {
            waiters.push(wait_for_slot(judge(&gate, 0).unwrap(), name, &order));
        }
        let rejection = judge(&gate, 0).err().unwrap();
        assert_eq!((rejection.cause, rejection.late), (ChainCause::Concurrency, true));
        assert_eq!(rejection.retry_after_ns, Some(1), "nothing was freed yet");
        // From now on one slot is freed every two seconds.
        for name in 3..20 {
            sleep(Duration::from_secs(2)).await;
            holders.clear();
            holders.push(waiters.remove(0).await.unwrap());
            waiters.push(wait_for_slot(judge(&gate, 0).unwrap(), name, &order));
        }
        let wait_ns = judge(&gate, 0).err().unwrap().retry_after_ns.unwrap();
        assert!(
            (5 * SECOND..=7 * SECOND).contains(&wait_ns),
            "the third place of one per 2 s, not {wait_ns}"
        );
        assert_eq!(*order.borrow(), (1..18).collect::<Vec<u64>>());
    });
}

#[test]
fn a_late_waiter_is_rejected_and_those_behind_it_move_up() {
    paused(async {
        let gate = gate(slots(1, 5, Some(Duration::from_secs(3))), false);
        let holder = judge(&gate, 0).unwrap();
        let mut late = judge(&gate, 0).unwrap();
        sleep(Duration::from_secs(1)).await;
        let order = Rc::default();
        let next = wait_for_slot(judge(&gate, 0).unwrap(), 2, &order);
        let started = Instant::now();
        late.wait_turn().await.unwrap();
        let rejection = late.take_slots().await.unwrap_err();
        assert_eq!((rejection.cause, rejection.late), (ChainCause::Concurrency, true));
        assert_eq!(started.elapsed().as_secs(), 2);
        assert_eq!(gate.chain.limits()[0].waiter_count(), 1);
        drop(holder);
        drop(next.await.unwrap());
        assert_eq!(gate.waiting.count_waiting(), 0);
    });
}

/// Both waits of a request count against the cap on waiting requests, one after the other.
#[test]
fn the_cap_on_waiting_requests_counts_those_that_wait_for_slots() {
    paused(async {
        let limits = vec![limit(leaky(10, SECOND, 1, 9)), limit(slots(1, 9, None))];
        let gate = Gate { waiting: Arc::new(WaitingCap::new(1)), ..Gate::new(limits) };
        let holder = judge(&gate, 0).unwrap();
        let mut waiter = judge(&gate, 0).unwrap();
        assert!(waiter.must_wait());
        waiter.wait_turn().await.unwrap();
        assert_eq!(gate.waiting.count_waiting(), 1, "it still needs a slot");
        let rejection = judge(&gate, 0).err().unwrap();
        assert_eq!(rejection.cause, ChainCause::Overload);
        let mut slots = Box::pin(waiter.take_slots());
        let mut cx = Context::from_waker(Waker::noop());
        assert!(slots.as_mut().poll(&mut cx).is_pending());
        assert_eq!(gate.chain.limits()[1].waiter_count(), 1);
        drop(holder);
        assert!(matches!(slots.as_mut().poll(&mut cx), Poll::Ready(Ok(()))));
        assert_eq!(gate.waiting.count_waiting(), 0);
    });
}

/// A full cap rejects a request that would only wait for a slot, and it leaves nothing behind.
#[test]
fn a_request_above_the_cap_joins_no_queue() {
    paused(async {
        let limits = vec![limit(token(1, DAY, 9)), limit(slots(1, 9, None))];
        let gate = Gate { waiting: Arc::new(WaitingCap::new(0)), ..Gate::new(limits) };
        let _holder = judge(&gate, 0).unwrap();
        assert_eq!(judge(&gate, 0).err().unwrap().cause, ChainCause::Overload);
        assert_eq!(gate.chain.limits()[1].waiter_count(), 0);
        let looked = gate.chain.look(Now::read_clock(), &gate.waiting, |_| LimitDemand::Units(units(1, 1)));
        assert_eq!(looked.decisions[0].decision.remaining, 8, "only the holder is charged");
        assert!(
            matches!(looked.verdict, Verdict::Reject(rejection) if rejection.cause == ChainCause::Overload)
        );
    });
}

/// Late refusals give everything back but departures, and so does a waiter that leaves.
#[test]
fn who_leaves_before_its_slot_gets_its_charge_back() {
    paused(async {
        let gate = Gate::new(vec![limit(token(1, DAY, 9)), limit(slots(1, 2, Some(Duration::from_secs(1))))]);
        let remaining = || {
            let ask = |_: &Limit| LimitDemand::Units(units(1, 1));
            gate.chain.look(Now::read_clock(), &gate.waiting, ask).decisions[0].decision.remaining
        };
        let _holder = judge(&gate, 0).unwrap();
        let (leaver, mut late) = (judge(&gate, 0).unwrap(), judge(&gate, 0).unwrap());
        assert_eq!(remaining(), 6);
        judge(&gate, 0).err().unwrap();
        assert_eq!(remaining(), 6, "a full queue costs nothing");
        drop(leaver);
        assert_eq!(remaining(), 7);
        late.wait_turn().await.unwrap();
        late.take_slots().await.unwrap_err();
        assert_eq!(remaining(), 8);
    });
}

#[test]
fn a_displaced_waiter_is_told_even_if_its_key_is_gone() {
    paused(async {
        let config =
            model::LimitConfig { fair_by: vec![model::KeyPart::Account], ..config(slots(1, 2, None)) };
        let gate = Gate::new(vec![Arc::new(Limit::new(LimitId(0), &config, 1))]);
        let holder = judge(&gate, 7).unwrap();
        let (first, mut newest) = (judge(&gate, 7).unwrap(), judge(&gate, 7).unwrap());
        let other = judge(&gate, 8).unwrap();
        assert_eq!(gate.chain.limits()[0].waiter_count(), 2);
        drop((holder, first, other));
        // The entry of the idle key is dropped for another one.
        assert_eq!(gate.chain.limits()[0].key_count(), 1);
        let ask = |_: &Limit| LimitDemand::Units(units(2, 1));
        let _other = admitted(gate.chain.judge_request(Now::read_clock(), &gate.waiting, ask));
        assert_eq!(gate.chain.limits()[0].key_count(), 1);
        let rejection = async {
            newest.wait_turn().await.unwrap();
            newest.take_slots().await.unwrap_err()
        };
        assert_eq!(rejection.await.cause, ChainCause::Concurrency);
        assert!(judge(&gate, 7).is_ok_and(|accepted| !accepted.must_wait()));
    });
}

/// An explanation tells the position that the next request has.
#[test]
fn a_look_tells_the_position() {
    paused(async {
        for is_fair in [false, true] {
            let gate = gate(slots(1, 3, None), is_fair);
            let look = |value| {
                let ask = |_: &Limit| LimitDemand::Units(Units { fair_hash: value, ..units(1, 1) });
                gate.chain.look(Now::read_clock(), &gate.waiting, ask)
            };
            let position = |value| match look(value).verdict {
                Verdict::Admit(Accepted::Queued(queued)) => queued.slot_position(),
                Verdict::Admit(_) => None,
                Verdict::Reject(_) => Some(0),
            };
            assert_eq!(position(1), None);
            let _accepted: Vec<Accepted> = (0..3).map(|_| judge(&gate, 1).unwrap()).collect();
            assert_eq!(position(1), Some(3));
            assert_eq!(position(2), Some(if is_fair { 2 } else { 3 }));
            let decision = look(2).decisions[0].decision;
            assert_eq!((decision.outcome, decision.remaining, decision.wait_ns), (LimitOutcome::Wait, 0, 0));
            let _last = judge(&gate, 1).unwrap();
            assert_eq!(position(1), Some(0));
            assert_eq!(position(2), Some(if is_fair { 2 } else { 0 }));
        }
    });
}

/// A dry run holds nobody up. Requests beyond the slots count as waiting, and beyond the queue as rejected.
#[test]
fn a_dry_run_counts_waits_and_rejections() {
    let gate = Gate::new(vec![dry(slots(1, 2, None))]);
    let mut outcomes = Vec::new();
    let mut permits = Vec::new();
    for _ in 0..4 {
        let accepted = admitted(gate.judge(0, 1, 1));
        outcomes.extend(accepted.permit().slot_decisions().map(|judged| judged.decision.outcome));
        permits.push(accepted);
    }
    use LimitOutcome::{Admit, Reject, Wait};
    assert_eq!(outcomes, [Admit, Wait, Wait, Reject]);
    let mut looked = gate.chain.look(Now(START), &gate.waiting, |_| LimitDemand::Units(units(1, 1)));
    assert_eq!(looked.decisions[0].decision.outcome, Reject);
    permits.pop();
    permits.pop();
    looked = gate.chain.look(Now(START), &gate.waiting, |_| LimitDemand::Units(units(1, 1)));
    assert_eq!(looked.decisions[0].decision.outcome, Wait);
    drop(permits);
    assert_eq!(free_slots(&gate.chain.limits()[0]), 1);
}

/// When the upstream allows more, waiters of every key are woken, although none of their slots was freed.
#[test]
fn more_slots_of_an_adaptive_limit_wake_the_waiters_of_every_key() {
    paused(async {
        let algorithm = model::Algorithm::Concurrency { min: Some(2), max: 50, queue: 9, max_wait: None };
        let limit = Arc::new(Limit::new(LimitId(0), &config(algorithm), 1000));
        let gate = Gate::new(vec![limit.clone()]);
        let judge = |key| {
            let ask = |_: &Limit| LimitDemand::Units(units(key, 1));
            admitted(gate.chain.judge_request(Now::read_clock(), &gate.waiting, ask))
        };
        let before = limit.slot_count(0);
        let order = Rc::default();
        let (mut holders, mut waiters) = (Vec::new(), Vec::new());
        for key in [1, 2] {
            holders.extend((0..before).map(|_| judge(key)));
            waiters.push(wait_for_slot(judge(key), key as u64, &order));
        }
        // Requests of a third key find the upstream quick, and all their slots in use.
        for _ in 0..200 {
            if limit.slot_count(0) > before {
                break;
            }
            let busy: Vec<Accepted> = (0..limit.slot_count(0)).map(|_| judge(3)).collect();
            sleep(Duration::from_millis(10)).await;
            let report = |one: &Accepted| {
                one.permit().report_outcome(SlotOutcome::Answered(10 * MS), Now::read_clock());
            };
            busy.iter().for_each(report);
        }
        assert!(limit.slot_count(0) > before, "the limit did not grow");
        settle().await;
        assert_eq!(order.borrow().len(), 2, "nothing was freed, yet both have their slots");
        for waiter in waiters {
            drop(waiter.await.unwrap());
        }
    });
}

/// `decisions` of a request that waits for a slot hold nothing of the concurrency limit, which has no numbers to show.
#[test]
fn a_wait_for_slots_has_no_numbers() {
    paused(async {
        let gate = gate(slots(1, 1, None), false);
        let _holder = judge(&gate, 0).unwrap();
        let mut decisions = Decisions::new();
        let ask = |_: &Limit| LimitDemand::Units(units(1, 1));
        let verdict = gate.chain.judge::<sluicegate_admission::chain::Charge>(
            Now::read_clock(),
            &gate.waiting,
            true,
            ask,
            &mut decisions,
        );
        let sluicegate_admission::chain::ChainVerdict::Wait(queued) = verdict else { panic!("it must wait") };
        assert_eq!((queued.wait_ns(), queued.limit_index(), decisions.len()), (0, 0, 0));
        assert!(queued.stays()[0].for_slots);
    });
}
