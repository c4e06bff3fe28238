//! Requests that wait while the numbers of their queue change, on a paused clock.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_admission::chain::LimitDemand;
use sluicegate_base::clock::Now;
use sluicegate_limit::{Limit, Units};
use sluicegate_model::{self as model, Algorithm, KeyPart, LimitId};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep_until};

use crate::support::*;

/// A gate that is reloaded while requests wait.
struct Scene {
    gates: RefCell<Vec<Gate>>,
    fair: bool,
    start: Instant,
    /// Departures: (ms since the start, number of the request).
    left: Rc<RefCell<Vec<(u64, u64)>>>,
}

impl Scene {
    fn new(algorithm: Algorithm, fair: bool) -> Scene {
        let limit = Arc::new(Limit::new(LimitId(0), &Scene::config(algorithm, fair), 1000));
        let gates = RefCell::new(vec![Gate::new(vec![limit])]);
        Scene { gates, fair, start: Instant::now(), left: Rc::default() }
    }

    fn config(algorithm: Algorithm, fair: bool) -> model::LimitConfig {
        let fair_by = if fair { vec![KeyPart::Account] } else { vec![] };
        model::LimitConfig { fair_by, ..config(algorithm) }
    }

    fn reload(&self, algorithm: Algorithm) {
        let mut gates = self.gates.borrow_mut();
        let limit = &gates.last().unwrap().chain.limits()[0];
        let limit = Arc::new(Limit::continue_from(
            Some(limit),
            LimitId(0),
            &Scene::config(algorithm, self.fair),
            1000,
        ));
        limit.apply_numbers(&Now::read_clock);
        gates.push(Gate::new(vec![limit]));
    }

    /// Request `number` arrives at the gate of `reloads` ago, with the `fair_by` value `fair`.
    fn arrive_at(&self, reloads: usize, fair: u64, number: u64) -> Option<JoinHandle<()>> {
        let gates = self.gates.borrow();
        let gate = &gates[gates.len() - 1 - reloads];
        let ask = |_: &Limit| LimitDemand::Units(Units { fair_hash: fair, ..units(1, 1) });
        let judgement = gate.chain.judge_request(Now::read_clock(), &gate.waiting, ask);
        let Verdict::Admit(mut permit) = judgement.verdict else { return None };
        let (left, start) = (self.left.clone(), self.start);
        Some(spawn_local(async move {
            if permit.wait_turn().await.is_err() {
                return;
            }
            permit.take_slots().await.unwrap();
            permit.keep_charges();
            left.borrow_mut().push((start.elapsed().as_millis() as u64, number));
        }))
    }

    fn arrive(&self, number: u64) -> Option<JoinHandle<()>> {
        self.arrive_at(0, 0, number)
    }

    async fn sleep_until_ms(&self, ms: u64) {
        sleep_until(self.start + Duration::from_millis(ms)).await;
    }

    fn waiting(&self) -> usize {
        self.gates.borrow().last().unwrap().chain.limits()[0].waiter_count()
    }
}

#[test]
fn a_slower_and_then_a_faster_rate_move_everybody() {
    paused(async {
        let scene = Scene::new(leaky(10, SECOND, 1, 20), false);
        (0..6).for_each(|number| drop(scene.arrive(number).unwrap()));
        scene.sleep_until_ms(150).await;
        // Half a unit of waiting is left: 100 ms now.
        scene.reload(leaky(5, SECOND, 1, 20));
        assert_eq!(scene.waiting(), 4);
        // Newcomers wait behind, whichever gateway judges them.
        drop((scene.arrive_at(1, 0, 6).unwrap(), scene.arrive(7).unwrap()));
        scene.sleep_until_ms(500).await;
        // Three quarters of a unit: 30 ms now.
        scene.reload(leaky(25, SECOND, 1, 20));
        scene.sleep_until_ms(2000).await;
        let expected = [(0, 0), (100, 1), (250, 2), (450, 3), (530, 4), (570, 5), (610, 6), (650, 7)];
        assert_eq!(*scene.left.borrow(), expected);
        assert_eq!(scene.waiting(), 0);
    });
}

#[test]
fn waiters_of_before_leave_without_a_gap() {
    paused(async {
        let scene = Scene::new(leaky(10, SECOND, 1, 20), false);
        let tasks: Vec<_> = (0..6).map(|number| scene.arrive(number).unwrap()).collect();
        scene.sleep_until_ms(50).await;
        scene.reload(leaky(5, SECOND, 1, 3));
        assert!(scene.arrive(6).is_none(), "the smaller queue is full");
        tasks[1].abort();
        tasks[3].abort();
        scene.sleep_until_ms(60).await;
        assert_eq!(scene.waiting(), 3);
        scene.sleep_until_ms(2000).await;
        assert_eq!(*scene.left.borrow(), [(0, 0), (150, 2), (350, 4), (550, 5)]);
        assert!(scene.arrive(7).is_some());
        scene.sleep_until_ms(2001).await;
        assert_eq!(scene.left.borrow().last(), Some(&(2000, 7)), "leavers leave no trace");
    });
}

#[test]
fn a_larger_burst_lets_the_first_go_at_once_and_a_smaller_one_holds_no_debt() {
    paused(async {
        let scene = Scene::new(leaky(10, SECOND, 1, 20), false);
        (0..5).for_each(|number| drop(scene.arrive(number).unwrap()));
        scene.sleep_until_ms(50).await;
        scene.reload(leaky(10, SECOND, 3, 20));
        scene.sleep_until_ms(400).await;
        assert_eq!(*scene.left.borrow(), [(0, 0), (50, 1), (50, 2), (100, 3), (200, 4)]);
        scene.left.borrow_mut().clear();
        scene.sleep_until_ms(1000).await;
        (0..6).for_each(|number| drop(scene.arrive(number).unwrap()));
        scene.sleep_until_ms(1001).await;
        scene.reload(leaky(10, SECOND, 1, 20));
        scene.sleep_until_ms(2000).await;
        assert_eq!(*scene.left.borrow(), [(1000, 0), (1000, 1), (1000, 2), (1101, 3), (1201, 4), (1301, 5)]);
    });
}

#[test]
fn turns_go_on() {
    paused(async {
        let scene = Scene::new(leaky(10, SECOND, 1, 20), true);
        (0..4).for_each(|number| drop(scene.arrive_at(0, 1, number).unwrap()));
        scene.sleep_until_ms(50).await;
        scene.reload(leaky(20, SECOND, 1, 20));
        drop((scene.arrive_at(0, 2, 10).unwrap(), scene.arrive_at(1, 2, 11).unwrap()));
        scene.sleep_until_ms(2000).await;
        let expected = [(0, 0), (75, 1), (125, 10), (175, 2), (225, 11), (275, 3)];
        assert_eq!(*scene.left.borrow(), expected);
        assert_eq!(scene.waiting(), 0);
    });
}

#[test]
fn a_hundred_reloads_lose_no_request_and_keep_the_order() {
    paused(async {
        let scene = Scene::new(leaky(10, SECOND, 1, 200), false);
        (0..100).for_each(|number| drop(scene.arrive(number).unwrap()));
        for turn in 1..101 {
            scene.sleep_until_ms(turn * 37).await;
            let rates = [7, 30, 10, 1000, 3];
            scene.reload(leaky(rates[turn as usize % 5], SECOND, 1 + turn % 3, 200));
        }
        scene.sleep_until_ms(100_000).await;
        let numbers: Vec<u64> = scene.left.borrow().iter().map(|(_, number)| *number).collect();
        assert_eq!(numbers, (0..100).collect::<Vec<_>>());
        assert_eq!(scene.waiting(), 0);
    });
}

#[test]
fn a_cold_queue_is_converted_as_well() {
    paused(async {
        let config = |rate| model::LimitConfig {
            warm_up: Some(Duration::from_secs(1)),
            ..config(leaky(rate, SECOND, 1, 20))
        };
        let first = Arc::new(Limit::new(LimitId(0), &config(10), 1000));
        let gate = Gate::new(vec![first.clone()]);
        let mut permits: Vec<_> = (0..8)
            .map(|_| {
                admitted(
                    gate.chain
                        .judge_request(Now::read_clock(), &gate.waiting, |_| LimitDemand::Units(units(1, 1))),
                )
            })
            .collect();
        let next = Limit::continue_from(Some(&first), LimitId(0), &config(20), 1000);
        next.apply_numbers(&Now::read_clock);
        let start = Instant::now();
        let mut before = 0;
        for permit in &mut permits {
            permit.wait_turn().await.unwrap();
            permit.keep_charges();
            let at = start.elapsed().as_millis() as u64;
            assert!(at == 0 || at - before >= 50, "never faster than the full rate");
            before = at;
        }
        assert!(before < 1500, "twice as fast as before: {before}");
        assert_eq!(next.waiter_count(), 0);
    });
}
