//! The queue of a leaky bucket on a paused clock: order, leavers, timers, caps.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluicegate::admission::chain::{
    ChainCause, ChainVerdict, Decisions, LimitDemand, WaitingCap, WaitingRequest,
};
use sluicegate::base::clock::Now;
use sluicegate::config::Algorithm;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep, sleep_until};

use crate::support::*;

/// Sends requests through a gate on tokio's time and keeps a log of who left for the upstream when.
struct Street {
    gate: Gate,
    start: Instant,
    /// (ms since the start, number of the request).
    left: Rc<RefCell<Vec<(u64, u64)>>>,
}

impl Street {
    fn new(algorithm: Algorithm) -> Street {
        Street::through(Gate::one(algorithm))
    }

    fn through(gate: Gate) -> Street {
        Street { gate, start: Instant::now(), left: Rc::default() }
    }

    /// Request `number` arrives now; `None` if it is refused.
    fn arrive(&self, number: u64) -> Option<JoinHandle<()>> {
        let ask = |_: &sluicegate::limit::Limit| LimitDemand::Units(units(1, 1));
        let judgement = self.gate.chain.judge(Now::read_clock(), &self.gate.waiting, ask);
        let ChainVerdict::Admit(mut passage) = judgement.verdict else { return None };
        let (left, start) = (self.left.clone(), self.start);
        Some(spawn_local(async move {
            passage.wait_turn().await.unwrap();
            passage.take_slots(Now::read_clock()).unwrap();
            passage.mark_forwarded();
            left.borrow_mut().push((start.elapsed().as_millis() as u64, number));
        }))
    }

    async fn until(&self, ms: u64) {
        sleep_until(self.start + Duration::from_millis(ms)).await;
    }

    fn log(&self) -> Vec<(u64, u64)> {
        self.left.borrow().clone()
    }
}

#[test]
fn a_leaver_lets_those_behind_move_up() {
    paused(async {
        let street = Street::new(leaky(10, SECOND, 1, 5));
        let tasks: Vec<_> = (0..10).map(|number| street.arrive(number)).collect();
        assert_eq!(tasks.iter().flatten().count(), 6);
        street.until(50).await;
        tasks[2].as_ref().unwrap().abort();
        street.until(60).await;
        assert!(street.arrive(6).is_some(), "the leaver's place is free");
        assert!(street.arrive(7).is_none());
        street.until(1000).await;
        assert_eq!(street.log(), [(0, 0), (100, 1), (200, 3), (300, 4), (400, 5), (500, 6)]);
    });
}

#[test]
fn the_head_may_leave_too() {
    paused(async {
        let street = Street::new(leaky(10, SECOND, 1, 5));
        let tasks: Vec<_> = (0..4).map(|number| street.arrive(number).unwrap()).collect();
        street.until(50).await;
        tasks[1].abort();
        street.until(1000).await;
        assert_eq!(street.log(), [(0, 0), (100, 2), (200, 3)]);
    });
}

#[test]
fn r041_fifty_queued_forty_vanish() {
    paused(async {
        let street = Street::new(leaky(1, SECOND, 1, 50));
        let limit = street.gate.chain.limits()[0].clone();
        let tasks: Vec<_> = (0..51).map(|number| street.arrive(number).unwrap()).collect();
        street.until(500).await;
        assert_eq!((limit.waiter_count(), street.gate.waiting.count_waiting()), (50, 50));
        tasks.iter().filter(|task| !task.is_finished()).take(40).for_each(|task| task.abort());
        street.until(600).await;
        assert_eq!((limit.waiter_count(), street.gate.waiting.count_waiting()), (10, 10));
        street.until(60_000).await;
        let expected: Vec<_> = std::iter::once((0, 0)).chain((1..11).map(|i| (i * 1000, i + 40))).collect();
        assert_eq!(street.log(), expected);
        assert_eq!((limit.waiter_count(), street.gate.waiting.count_waiting()), (0, 0));
    });
}

#[test]
fn r042_nobody_is_queued_beyond_max_wait() {
    paused(async {
        let street = Street::new(leaky_within(1, SECOND, 1, 100, Some(Duration::from_secs(2))));
        let accepted = (0..5).filter_map(|number| street.arrive(number)).count();
        assert_eq!(accepted, 3);
        let limit = &street.gate.chain;
        let ask = |_: &sluicegate::limit::Limit| LimitDemand::Units(units(1, 1));
        let refusal = refused(limit.judge(Now::read_clock(), &street.gate.waiting, ask));
        assert_eq!((refusal.cause, refusal.retry_after_ns), (ChainCause::Queue, Some(SECOND)));
        street.until(10_000).await;
        assert_eq!(street.log(), [(0, 0), (1000, 1), (2000, 2)]);
    });
}

#[test]
fn r045_first_in_first_out() {
    paused(async {
        let street = Street::new(leaky(50, SECOND, 1, 20));
        (0..21).for_each(|number| drop(street.arrive(number)));
        street.until(1000).await;
        assert_eq!(street.log(), (0..21).map(|i| (i * 20, i)).collect::<Vec<_>>());
    });
}

#[test]
fn a_departure_that_is_dropped_unforwarded_is_undone() {
    paused(async {
        let street = Street::new(leaky(10, SECOND, 1, 5));
        let first = admitted(
            street
                .gate
                .chain
                .judge(Now::read_clock(), &street.gate.waiting, |_| LimitDemand::Units(units(1, 1))),
        );
        (1..4).for_each(|number| drop(street.arrive(number)));
        street.until(30).await;
        drop(first);
        street.until(1000).await;
        assert_eq!(street.log(), [(30, 1), (130, 2), (230, 3)]);
    });
}

#[test]
fn the_longest_of_several_waits_counts() {
    paused(async {
        let slow = limit(leaky(1, SECOND, 1, 5));
        let street = Street::through(Gate::new(vec![limit(leaky(10, SECOND, 1, 5)), slow.clone()]));
        (0..3).for_each(|number| drop(street.arrive(number)));
        let ask = |_: &sluicegate::limit::Limit| LimitDemand::Units(units(1, 1));
        let passage = admitted(street.gate.chain.judge(Now::read_clock(), &street.gate.waiting, ask));
        assert_eq!(passage.wait_ns(), 3 * SECOND);
        assert!(Arc::ptr_eq(passage.queued_limit().unwrap(), &slow));
        drop(passage);
        street.until(5000).await;
        assert_eq!(street.log(), [(0, 0), (1000, 1), (2000, 2)]);
    });
}

#[test]
fn a_dropped_wait_leaves_and_voids_the_passage() {
    paused(async {
        let street = Street::new(leaky(10, SECOND, 1, 5));
        drop(street.arrive(0));
        let ask = |_: &sluicegate::limit::Limit| LimitDemand::Units(units(1, 1));
        let mut passage = admitted(street.gate.chain.judge(Now::read_clock(), &street.gate.waiting, ask));
        drop(street.arrive(2));
        tokio::select! {
            biased;
            _ = passage.wait_turn() => panic!("too early"),
            () = sleep(Duration::from_millis(40)) => {}
        }
        assert_eq!(street.gate.waiting.count_waiting(), 1);
        assert!(passage.queued_limit().is_some());
        assert_eq!(passage.take_slots(Now::read_clock()).unwrap_err().cause, ChainCause::Queue);
        street.until(1000).await;
        assert_eq!(street.log(), [(0, 0), (100, 2)]);
    });
}

#[test]
fn the_process_wide_cap_refuses_and_charges_nobody() {
    paused(async {
        let bucket = limit(token(1, 60 * SECOND, 10));
        let mut gate = Gate::new(vec![bucket, limit(leaky(10, SECOND, 1, 50))]);
        gate.waiting = Arc::new(WaitingCap::new(2));
        let street = Street::through(gate);
        assert_eq!((0..5).filter_map(|number| street.arrive(number)).count(), 3);
        let ask = |_: &sluicegate::limit::Limit| LimitDemand::Units(units(1, 1));
        let judgement = street.gate.chain.judge(Now::read_clock(), &street.gate.waiting, ask);
        assert_eq!(judgement.decisions[0].decision.remaining, 7);
        assert_eq!(refused(judgement).cause, ChainCause::Overload);
        street.until(1000).await;
        assert_eq!(street.log(), [(0, 0), (100, 1), (200, 2)]);
        assert_eq!(street.gate.waiting.count_waiting(), 0);
    });
}

/// A waiter counts once for each begun 16 KiB of its head, and gives as many places back.
#[test]
fn large_heads_count_for_several() {
    paused(async {
        let mut gate = Gate::new(vec![limit(leaky(1, SECOND, 1, 50))]);
        gate.waiting = Arc::new(WaitingCap::new(6));
        let judge = |bytes: usize| {
            let (mut decisions, mut passage, head) = (Decisions::new(), None, || bytes);
            let ask = |_: &sluicegate::limit::Limit| LimitDemand::Units(units(1, 1));
            let waiter = WaitingRequest::new(&gate.waiting, &head);
            let refusal = gate.chain.judge_into(Now::read_clock(), waiter, ask, &mut decisions, &mut passage);
            assert!(refusal.is_none_or(|refusal| refusal.cause == ChainCause::Overload));
            passage
        };
        // The first does not wait, whatever it weighs.
        assert!(judge(1 << 20).is_some_and(|first| !first.must_wait()));
        let _first = judge(1 << 20);
        let mut held = Vec::new();
        for (bytes, count) in [(0, 1), (16 * 1024, 2), (16 * 1024 + 1, 4)] {
            held.push(judge(bytes).expect("a place"));
            assert_eq!(gate.waiting.count_waiting(), count, "{bytes}");
        }
        assert!(judge(40_000).is_none() && judge(usize::MAX).is_none(), "three places and more");
        assert_eq!(gate.waiting.count_waiting(), 4);
        held.push(judge(20_000).expect("the last two"));
        assert!(judge(0).is_none());
        held.remove(0).wait_turn().await.expect("a turn");
        assert_eq!(gate.waiting.count_waiting(), 5);
        drop(held);
        assert_eq!((gate.waiting.count_waiting(), gate.chain.limits()[0].waiter_count()), (0, 0));
    });
}

#[test]
fn a_judgement_lets_those_go_whose_timers_are_late() {
    paused(async {
        let street = Street::new(leaky(10, SECOND, 1, 2));
        let ask = |_: &sluicegate::limit::Limit| LimitDemand::Units(units(1, 1));
        let judge = |at: Now| street.gate.chain.judge(at, &street.gate.waiting, ask);
        let now = Now::read_clock();
        let mut passages: Vec<_> = (0..3).map(|_| admitted(judge(now))).collect();
        assert!(matches!(judge(now).verdict, ChainVerdict::Reject(_)));
        passages.push(admitted(judge(Now(now.0 + 200 * MS))));
        assert_eq!(street.gate.chain.limits()[0].waiter_count(), 1);
        for passage in &mut passages[..3] {
            passage.wait_turn().await.unwrap();
        }
        assert_eq!(street.start.elapsed(), Duration::ZERO, "they had been let go");
        passages[3].wait_turn().await.unwrap();
        assert_eq!(street.start.elapsed(), Duration::from_millis(300));
    });
}

#[test]
fn nobody_is_released_early() {
    paused(async {
        let street = Street::new(leaky(7, SECOND, 1, 50));
        (0..40).for_each(|number| drop(street.arrive(number)));
        street.until(10_000).await;
        for (ms, number) in street.log() {
            let due_ns = number * SECOND / 7;
            let late = (ms * MS).checked_sub(due_ns).expect("never early");
            assert!(late <= 2 * MS, "request {number} left {late} ns late");
        }
        assert_eq!(street.log().len(), 40);
    });
}
