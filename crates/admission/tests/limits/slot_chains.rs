//! Chains with several concurrency limits: all slots or none, nobody stuck, nobody starved.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sluicegate_admission::chain::{ChainCause, LimitDemand, WaitingCap};
use sluicegate_base::clock::Now;
use sluicegate_limit::Limit;
use sluicegate_model::{self as model, KeyPart, LimitId};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, timeout};

use crate::support::*;

/// Slots by `parts` parts of a key.
fn keyed(algorithm: model::Algorithm, parts: usize) -> Arc<Limit> {
    let key = if parts == 0 { vec![KeyPart::Global] } else { vec![KeyPart::Ip; parts] };
    Arc::new(Limit::new(LimitId(0), &model::LimitConfig { key, ..config(algorithm) }, 1000))
}

fn gate_of(limits: &[&Arc<Limit>], waiting: &Arc<WaitingCap>) -> Rc<Gate> {
    let limits = limits.iter().map(|limit| Arc::clone(limit)).collect();
    Rc::new(Gate { waiting: waiting.clone(), ..Gate::new(limits) })
}

fn judge(gate: &Gate) -> Verdict {
    gate.chain.judge_request(Now::read_clock(), &gate.waiting, |_| LimitDemand::Units(units(1, 1))).verdict
}

async fn admit(gate: &Gate) -> Option<Accepted> {
    let Verdict::Admit(mut accepted) = judge(gate) else { return None };
    accepted.wait_turn().await.ok()?;
    accepted.take_slots().await.ok()?;
    Some(accepted)
}

#[test]
fn a_request_waits_in_the_first_full_queue_and_holds_nothing() {
    paused(async {
        let waiting = Arc::new(WaitingCap::new(100));
        let (a, b) = (keyed(slots(2, 5, None), 1), keyed(slots(1, 5, None), 0));
        let (both, only_a, only_b) =
            (gate_of(&[&a, &b], &waiting), gate_of(&[&a], &waiting), gate_of(&[&b], &waiting));
        let holder = admit(&only_b).await.unwrap();
        let Verdict::Admit(waiter) = judge(&both) else { panic!("it was rejected") };
        assert!(waiter.must_wait());
        assert_eq!((a.waiter_count(), b.waiter_count()), (0, 1));
        // Both slots of the first limit are free for others.
        let others = (admit(&only_a).await.unwrap(), admit(&only_a).await.unwrap());
        drop((holder, others, waiter));
        assert_eq!((free_slots(&a), free_slots(&b), waiting.count_waiting()), (2, 1, 0));
    });
}

/// A slot that is of no use yet goes on to the next waiter.
#[test]
fn a_handed_slot_goes_on_while_another_limit_is_full() {
    paused(async {
        let waiting = Arc::new(WaitingCap::new(100));
        let (a, b) = (keyed(slots(1, 5, None), 0), keyed(slots(1, 5, None), 1));
        let (both, only_a, only_b) =
            (gate_of(&[&a, &b], &waiting), gate_of(&[&a], &waiting), gate_of(&[&b], &waiting));
        let (holds_a, holds_b) = (admit(&only_a).await.unwrap(), admit(&only_b).await.unwrap());
        let (gate, done) = (both.clone(), Rc::new(Cell::new(false)));
        let is_done = done.clone();
        let waits_for_both = spawn_local(async move {
            let permit = admit(&gate).await.unwrap();
            is_done.set(true);
            permit
        });
        let behind = spawn_local(async move { admit(&only_a).await.unwrap() });
        sleep(Duration::from_millis(1)).await;
        assert_eq!((a.waiter_count(), b.waiter_count()), (2, 0));
        drop(holds_a);
        let behind = timeout(Duration::from_secs(1), behind).await.expect("the slot goes on").unwrap();
        assert_eq!((a.waiter_count(), b.waiter_count(), done.get()), (0, 1, false));
        drop(holds_b);
        sleep(Duration::from_millis(1)).await;
        // It keeps the slot of the narrower key while it waits for the wider one.
        assert_eq!((a.waiter_count(), b.waiter_count(), free_slots(&b), done.get()), (1, 0, 0, false));
        drop(behind);
        drop(waits_for_both.await.unwrap());
        assert_eq!((free_slots(&a), free_slots(&b), waiting.count_waiting()), (1, 1, 0));
    });
}

/// Both limits are in use all the time by others, who need one of them alone.
#[test]
fn a_request_for_two_busy_limits_is_not_starved() {
    paused(async {
        let waiting = Arc::new(WaitingCap::new(1000));
        let (a, b) = (keyed(slots(1, 50, None), 1), keyed(slots(1, 50, None), 1));
        for (first, second) in [(&a, &b), (&b, &a)] {
            let mut busy = Vec::new();
            for limit in [&a, &b] {
                for number in 0..4 {
                    let gate = gate_of(&[limit], &waiting);
                    busy.push(spawn_local(async move {
                        loop {
                            let permit = admit(&gate).await.unwrap();
                            sleep(Duration::from_micros(7_000 + number * 100)).await;
                            drop(permit);
                        }
                    }));
                }
            }
            sleep(Duration::from_secs(1)).await;
            let (both, started) = (gate_of(&[first, second], &waiting), Instant::now());
            let permit = timeout(Duration::from_secs(5), admit(&both)).await.expect("it is starved").unwrap();
            // Three queues of four, at most.
            assert!(started.elapsed() < Duration::from_millis(3 * 5 * 8), "{:?}", started.elapsed());
            drop(permit);
            busy.iter().for_each(tokio::task::JoinHandle::abort);
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!((free_slots(&a), free_slots(&b), waiting.count_waiting()), (1, 1, 0));
    });
}

#[test]
fn a_full_limit_without_a_queue_rejects_a_request_that_waited_for_another() {
    paused(async {
        let waiting = Arc::new(WaitingCap::new(100));
        let (a, b) = (keyed(slots(1, 5, None), 1), keyed(slots(1, 0, None), 1));
        let (both, only_a, only_b) =
            (gate_of(&[&a, &b], &waiting), gate_of(&[&a], &waiting), gate_of(&[&b], &waiting));
        let (holds_a, _holds_b) = (admit(&only_a).await.unwrap(), admit(&only_b).await.unwrap());
        let Verdict::Admit(mut waiter) = judge(&both) else { panic!("it was rejected") };
        drop(holds_a);
        waiter.wait_turn().await.unwrap();
        let rejection = waiter.take_slots().await.unwrap_err();
        assert_eq!((rejection.cause, rejection.retry_after_ns), (ChainCause::Concurrency, None));
        assert!(rejection.limit.is_some_and(|limit| Arc::ptr_eq(&limit, &b)));
        assert_eq!((free_slots(&a), waiting.count_waiting()), (1, 0));
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Chains of any limits in any order: none has more in flight than its maximum, and all requests pass in the end.
    #[test]
    fn chains_in_any_order_neither_exceed_nor_get_stuck(
        limits in prop::collection::vec((1..4_u32, 0..3_usize), 1..4),
        calls in prop::collection::vec(
            (0..4_u64, 1..12_u64, prop::collection::vec(0..4_usize, 1..4), prop::option::weighted(0.2, 0..20_u64)),
            1..60,
        ),
    ) {
        paused(async move {
            let waiting = Arc::new(WaitingCap::new(1000));
            let maxima: Vec<u32> = limits.iter().map(|(max, _)| *max).collect();
            let limits: Vec<Arc<Limit>> =
                limits.iter().map(|(max, parts)| keyed(slots(*max, 1000, None), *parts)).collect();
            let in_flight: Rc<Vec<Cell<u32>>> = Rc::new(maxima.iter().map(|_| Cell::new(0)).collect());
            let (mut at, mut tasks) = (0, Vec::new());
            for (gap, hold, chain, patience) in calls {
                at += gap;
                let mut chain: Vec<usize> = chain.into_iter().map(|index| index % limits.len()).collect();
                let mut seen = Vec::new();
                chain.retain(|index| !seen.contains(index) && { seen.push(*index); true });
                let chosen: Vec<&Arc<Limit>> = chain.iter().map(|index| &limits[*index]).collect();
                let (gate, in_flight, maxima) = (gate_of(&chosen, &waiting), in_flight.clone(), maxima.clone());
                tasks.push(spawn_local(async move {
                    sleep(Duration::from_millis(at)).await;
                    let patience = Duration::from_millis(patience.unwrap_or(1_000_000));
                    let Ok(permit) = timeout(patience, admit(&gate)).await else { return };
                    for index in &chain {
                        in_flight[*index].set(in_flight[*index].get() + 1);
                        assert!(in_flight[*index].get() <= maxima[*index]);
                    }
                    sleep(Duration::from_millis(hold)).await;
                    chain.iter().for_each(|index| in_flight[*index].set(in_flight[*index].get() - 1));
                    drop(permit.expect("no queue is full"));
                }));
            }
            for task in tasks {
                timeout(Duration::from_secs(900), task).await.expect("stuck").unwrap();
            }
            for (limit, max) in limits.iter().zip(maxima) {
                assert_eq!((limit.waiter_count(), free_slots(limit)), (0, u64::from(max)));
            }
            assert_eq!(waiting.count_waiting(), 0);
        });
    }
}
