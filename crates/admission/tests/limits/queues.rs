//! The queue of a leaky bucket on a paused clock: order, leavers, timers, caps.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_admission::chain::{ChainCause, LimitDemand, WaitingCap, WaitingRequest};
use sluicegate_base::clock::Now;
use sluicegate_model::Algorithm;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep, sleep_until};

use crate::support::*;

/// Sends requests through a gate on tokio's time and logs their departures.
struct Scene {
    gate: Gate,
    start: Instant,
    /// Departures: (ms since the start, number of the request).
    left: Rc<RefCell<Vec<(u64, u64)>>>,
}

impl Scene {
    fn new(algorithm: Algorithm) -> Scene {
        Scene::with_gate(Gate::one(algorithm))
    }

    fn with_gate(gate: Gate) -> Scene {
        Scene { gate, start: Instant::now(), left: Rc::default() }
    }

    /// Request `number` arrives now; `None` if it is rejected.
    fn arrive(&self, number: u64) -> Option<JoinHandle<()>> {
        let ask = |_: &sluicegate_limit::Limit| LimitDemand::Units(units(1, 1));
        let judgement = self.gate.chain.judge_request(Now::read_clock(), &self.gate.waiting, ask);
        let Verdict::Admit(mut permit) = judgement.verdict else { return None };
        let (left, start) = (self.left.clone(), self.start);
        Some(spawn_local(async move {
            permit.wait_turn().await.unwrap();
            permit.take_slots().await.unwrap();
            permit.keep_charges();
            left.borrow_mut().push((start.elapsed().as_millis() as u64, number));
        }))
    }

    async fn sleep_until_ms(&self, ms: u64) {
        sleep_until(self.start + Duration::from_millis(ms)).await;
    }

    fn log(&self) -> Vec<(u64, u64)> {
        self.left.borrow().clone()
    }
}

#[test]
fn a_leaver_lets_those_behind_move_up() {
    paused(async {
        let scene = Scene::new(leaky(10, SECOND, 1, 5));
        let tasks: Vec<_> = (0..10).map(|number| scene.arrive(number)).collect();
        assert_eq!(tasks.iter().flatten().count(), 6);
        scene.sleep_until_ms(50).await;
        tasks[2].as_ref().unwrap().abort();
        scene.sleep_until_ms(60).await;
        assert!(scene.arrive(6).is_some(), "the leaver made room");
        assert!(scene.arrive(7).is_none());
        scene.sleep_until_ms(1000).await;
        assert_eq!(scene.log(), [(0, 0), (100, 1), (200, 3), (300, 4), (400, 5), (500, 6)]);
    });
}

#[test]
fn the_head_may_leave_too() {
    paused(async {
        let scene = Scene::new(leaky(10, SECOND, 1, 5));
        let tasks: Vec<_> = (0..4).map(|number| scene.arrive(number).unwrap()).collect();
        scene.sleep_until_ms(50).await;
        tasks[1].abort();
        scene.sleep_until_ms(1000).await;
        assert_eq!(scene.log(), [(0, 0), (100, 2), (200, 3)]);
    });
}

#[test]
fn fifty_queued_forty_vanish() {
    paused(async {
        let scene = Scene::new(leaky(1, SECOND, 1, 50));
        let limit = scene.gate.chain.limits()[0].clone();
        let tasks: Vec<_> = (0..51).map(|number| scene.arrive(number).unwrap()).collect();
        scene.sleep_until_ms(500).await;
        assert_eq!((limit.waiter_count(), scene.gate.waiting.count_waiting()), (50, 50));
        tasks.iter().filter(|task| !task.is_finished()).take(40).for_each(|task| task.abort());
        scene.sleep_until_ms(600).await;
        assert_eq!((limit.waiter_count(), scene.gate.waiting.count_waiting()), (10, 10));
        scene.sleep_until_ms(60_000).await;
        let expected: Vec<_> = std::iter::once((0, 0)).chain((1..11).map(|i| (i * 1000, i + 40))).collect();
        assert_eq!(scene.log(), expected);
        assert_eq!((limit.waiter_count(), scene.gate.waiting.count_waiting()), (0, 0));
    });
}

#[test]
fn no_request_is_queued_beyond_max_wait() {
    paused(async {
        let scene = Scene::new(leaky_within(1, SECOND, 1, 100, Some(Duration::from_secs(2))));
        let accepted = (0..5).filter_map(|number| scene.arrive(number)).count();
        assert_eq!(accepted, 3);
        let limit = &scene.gate.chain;
        let ask = |_: &sluicegate_limit::Limit| LimitDemand::Units(units(1, 1));
        let rejection = rejected(limit.judge_request(Now::read_clock(), &scene.gate.waiting, ask));
        assert_eq!((rejection.cause, rejection.retry_after_ns), (ChainCause::Queue, Some(SECOND)));
        scene.sleep_until_ms(10_000).await;
        assert_eq!(scene.log(), [(0, 0), (1000, 1), (2000, 2)]);
    });
}

#[test]
fn first_in_first_out() {
    paused(async {
        let scene = Scene::new(leaky(50, SECOND, 1, 20));
        (0..21).for_each(|number| drop(scene.arrive(number)));
        scene.sleep_until_ms(1000).await;
        assert_eq!(scene.log(), (0..21).map(|i| (i * 20, i)).collect::<Vec<_>>());
    });
}

#[test]
fn a_departure_that_is_dropped_unforwarded_is_undone() {
    paused(async {
        let scene = Scene::new(leaky(10, SECOND, 1, 5));
        let first = admitted(
            scene
                .gate
                .chain
                .judge_request(Now::read_clock(), &scene.gate.waiting, |_| LimitDemand::Units(units(1, 1))),
        );
        (1..4).for_each(|number| drop(scene.arrive(number)));
        scene.sleep_until_ms(30).await;
        drop(first);
        scene.sleep_until_ms(1000).await;
        assert_eq!(scene.log(), [(30, 1), (130, 2), (230, 3)]);
    });
}

#[test]
fn the_longest_of_several_waits_counts() {
    paused(async {
        let slow = limit(leaky(1, SECOND, 1, 5));
        let scene = Scene::with_gate(Gate::new(vec![limit(leaky(10, SECOND, 1, 5)), slow.clone()]));
        (0..3).for_each(|number| drop(scene.arrive(number)));
        let ask = |_: &sluicegate_limit::Limit| LimitDemand::Units(units(1, 1));
        let permit = admitted(scene.gate.chain.judge_request(Now::read_clock(), &scene.gate.waiting, ask));
        assert_eq!(permit.wait_ns(), 3 * SECOND);
        let Accepted::Queued(queued) = &permit else { panic!("it waits") };
        assert!(Arc::ptr_eq(queued.limit(), &slow) && queued.limit_index() == 1);
        drop(permit);
        scene.sleep_until_ms(5000).await;
        assert_eq!(scene.log(), [(0, 0), (1000, 1), (2000, 2)]);
    });
}

#[test]
fn a_dropped_wait_leaves_the_queue() {
    paused(async {
        let scene = Scene::new(leaky(10, SECOND, 1, 5));
        drop(scene.arrive(0));
        let ask = |_: &sluicegate_limit::Limit| LimitDemand::Units(units(1, 1));
        let mut permit =
            admitted(scene.gate.chain.judge_request(Now::read_clock(), &scene.gate.waiting, ask));
        drop(scene.arrive(2));
        tokio::select! {
            biased;
            _ = permit.wait_turn() => panic!("too early"),
            () = sleep(Duration::from_millis(40)) => {}
        }
        assert_eq!(scene.gate.waiting.count_waiting(), 1);
        scene.sleep_until_ms(1000).await;
        assert_eq!(scene.log(), [(0, 0), (100, 2)]);
    });
}

#[test]
fn the_process_wide_cap_rejects_without_a_charge() {
    paused(async {
        let bucket = limit(token(1, 60 * SECOND, 10));
        let mut gate = Gate::new(vec![bucket, limit(leaky(10, SECOND, 1, 50))]);
        gate.waiting = Arc::new(WaitingCap::new(2));
        let scene = Scene::with_gate(gate);
        assert_eq!((0..5).filter_map(|number| scene.arrive(number)).count(), 3);
        let ask = |_: &sluicegate_limit::Limit| LimitDemand::Units(units(1, 1));
        let judgement = scene.gate.chain.judge_request(Now::read_clock(), &scene.gate.waiting, ask);
        assert_eq!(judgement.decisions[0].decision.remaining, 7);
        assert_eq!(rejected(judgement).cause, ChainCause::Overload);
        scene.sleep_until_ms(1000).await;
        assert_eq!(scene.log(), [(0, 0), (100, 1), (200, 2)]);
        assert_eq!(scene.gate.waiting.count_waiting(), 0);
    });
}

/// A waiter counts once per started 16 KiB of its head, and releases as many places.
#[test]
fn large_heads_count_several_times() {
    paused(async {
        let mut gate = Gate::new(vec![limit(leaky(1, SECOND, 1, 50))]);
        gate.waiting = Arc::new(WaitingCap::new(6));
        let judge = |bytes: usize| {
            let head = || bytes;
            let ask = |_: &sluicegate_limit::Limit| LimitDemand::Units(units(1, 1));
            let waiter = WaitingRequest::new(&gate.waiting, &head);
            match gate.chain.judge_request(Now::read_clock(), waiter, ask).verdict {
                Verdict::Admit(accepted) => Some(accepted),
                Verdict::Reject(rejection) => {
                    assert_eq!(rejection.cause, ChainCause::Overload);
                    None
                }
            }
        };
        // The first does not wait, whatever the size of its head.
        assert!(judge(1 << 20).is_some_and(|first| !first.must_wait()));
        let _first = judge(1 << 20);
        let mut permits = Vec::new();
        for (bytes, count) in [(0, 1), (16 * 1024, 2), (16 * 1024 + 1, 4)] {
            permits.push(judge(bytes).expect("a place"));
            assert_eq!(gate.waiting.count_waiting(), count, "{bytes}");
        }
        assert!(judge(40_000).is_none() && judge(usize::MAX).is_none(), "three places and more");
        assert_eq!(gate.waiting.count_waiting(), 4);
        permits.push(judge(20_000).expect("the last two"));
        assert!(judge(0).is_none());
        permits.remove(0).wait_turn().await.expect("a turn");
        assert_eq!(gate.waiting.count_waiting(), 5);
        drop(permits);
        assert_eq!((gate.waiting.count_waiting(), gate.chain.limits()[0].waiter_count()), (0, 0));
    });
}

#[test]
fn a_judgement_lets_waiters_with_late_timers_go() {
    paused(async {
        let scene = Scene::new(leaky(10, SECOND, 1, 2));
        let ask = |_: &sluicegate_limit::Limit| LimitDemand::Units(units(1, 1));
        let judge = |at: Now| scene.gate.chain.judge_request(at, &scene.gate.waiting, ask);
        let now = Now::read_clock();
        let mut permits: Vec<_> = (0..3).map(|_| admitted(judge(now))).collect();
        assert!(matches!(judge(now).verdict, Verdict::Reject(_)));
        permits.push(admitted(judge(Now(now.0 + 200 * MS))));
        assert_eq!(scene.gate.chain.limits()[0].waiter_count(), 1);
        for permit in &mut permits[..3] {
            permit.wait_turn().await.unwrap();
        }
        assert_eq!(scene.start.elapsed(), Duration::ZERO, "they had been let go");
        permits[3].wait_turn().await.unwrap();
        assert_eq!(scene.start.elapsed(), Duration::from_millis(300));
    });
}

#[test]
fn no_request_is_released_early() {
    paused(async {
        let scene = Scene::new(leaky(7, SECOND, 1, 50));
        (0..40).for_each(|number| drop(scene.arrive(number)));
        scene.sleep_until_ms(10_000).await;
        for (ms, number) in scene.log() {
            let due_ns = number * SECOND / 7;
            let late = (ms * MS).checked_sub(due_ns).expect("never early");
            assert!(late <= 2 * MS, "request {number} left {late} ns late");
        }
        assert_eq!(scene.log().len(), 40);
    });
}
