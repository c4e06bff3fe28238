//! Requests that wait for slots while the numbers of their limit change, on a paused clock.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_admission::chain::LimitDemand;
use sluicegate_base::clock::Now;
use sluicegate_limit::Limit;
use sluicegate_model::{Algorithm, LimitConfig, LimitId};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::sleep;

use crate::support::*;

type Names = Rc<RefCell<Vec<u64>>>;

struct Scene {
    gate: Gate,
    passed: Names,
    rejected: Names,
}

impl Scene {
    fn new(algorithm: Algorithm) -> Scene {
        Scene { gate: Gate::one(algorithm), passed: Rc::default(), rejected: Rc::default() }
    }

    /// The limit goes on with other numbers, or with other counters if it has another name.
    fn reload(&mut self, algorithm: Algorithm, name: &str) {
        let config = LimitConfig { name: name.to_owned(), ..config(algorithm) };
        let before = &self.gate.chain.limits()[0];
        let limit = Arc::new(Limit::continue_from(Some(before), LimitId(0), &config, 1000));
        limit.apply_numbers(&Now::read_clock);
        self.gate = Gate { waiting: self.gate.waiting.clone(), ..Gate::new(vec![limit]) };
    }

    /// A request that holds its slot until its task is aborted.
    fn arrive(&self, name: u64) -> Option<JoinHandle<()>> {
        let ask = |_: &Limit| LimitDemand::Units(units(1, 1));
        let judged = self.gate.chain.judge_request(Now::read_clock(), &self.gate.waiting, ask);
        let Verdict::Admit(mut accepted) = judged.verdict else { return None };
        let (passed, rejected) = (self.passed.clone(), self.rejected.clone());
        Some(spawn_local(async move {
            accepted.wait_turn().await.unwrap();
            match accepted.take_slots().await {
                Ok(()) => {
                    passed.borrow_mut().push(name);
                    std::future::pending().await
                }
                Err(_) => rejected.borrow_mut().push(name),
            }
        }))
    }

    async fn passed(&self) -> Vec<u64> {
        sleep(Duration::from_millis(1)).await;
        self.passed.borrow().clone()
    }

    fn waiting(&self) -> usize {
        self.gate.chain.limits()[0].waiter_count()
    }
}

#[test]
fn more_slots_wake_waiters_at_once_and_fewer_throw_nobody_out() {
    paused(async {
        let mut scene = Scene::new(slots(1, 9, None));
        let tasks: Vec<JoinHandle<()>> = (0..6).map(|name| scene.arrive(name).unwrap()).collect();
        assert_eq!(scene.passed().await, [0]);
        scene.reload(slots(3, 9, None), "test");
        assert_eq!((scene.passed().await, scene.waiting()), (vec![0, 1, 2], 3));
        scene.reload(slots(1, 9, None), "test");
        assert_eq!((scene.passed().await, scene.waiting()), (vec![0, 1, 2], 3));
        // Three are in flight, and only the last of them makes room.
        for (ended, expected) in [(0, 3), (1, 3), (2, 4)] {
            tasks[ended].abort();
            assert_eq!(scene.passed().await.len(), expected, "after the end of {ended}");
        }
        tasks[3].abort();
        assert_eq!(scene.passed().await, [0, 1, 2, 3, 4]);
    });
}

#[test]
fn a_shorter_queue_keeps_those_who_stand_in_it() {
    paused(async {
        let mut scene = Scene::new(slots(1, 9, None));
        let tasks: Vec<JoinHandle<()>> = (0..4).map(|name| scene.arrive(name).unwrap()).collect();
        scene.reload(slots(1, 1, None), "test");
        assert!(scene.arrive(4).is_none(), "it is full");
        for task in &tasks {
            assert!(!task.is_finished());
            scene.passed().await;
            task.abort();
        }
        assert_eq!(scene.passed().await, [0, 1, 2, 3]);
        // Without a queue, too, they go on.
        let mut scene = Scene::new(slots(1, 9, None));
        let tasks: Vec<JoinHandle<()>> = (0..3).map(|name| scene.arrive(name).unwrap()).collect();
        scene.reload(slots(1, 0, None), "test");
        assert!(scene.arrive(4).is_none());
        for task in &tasks {
            scene.passed().await;
            task.abort();
        }
        assert_eq!(scene.passed().await, [0, 1, 2]);
        assert_eq!((scene.waiting(), free_slots(&scene.gate.chain.limits()[0])), (0, 1));
    });
}

#[test]
fn a_changed_max_wait_holds_for_those_who_wait() {
    paused(async {
        for before in [None, Some(Duration::from_secs(100))] {
            let mut scene = Scene::new(slots(1, 9, before));
            let _tasks: Vec<JoinHandle<()>> = (0..3).map(|name| scene.arrive(name).unwrap()).collect();
            sleep(Duration::from_secs(2)).await;
            scene.reload(slots(1, 9, Some(Duration::from_secs(5))), "test");
            sleep(Duration::from_millis(2_900)).await;
            assert_eq!(scene.waiting(), 2);
            sleep(Duration::from_millis(200)).await;
            assert_eq!((scene.rejected.borrow().clone(), scene.waiting()), (vec![1, 2], 0));
        }
    });
}

/// A limit with another name has other counters; those who wait for the old one go on by it.
#[test]
fn waiters_of_a_removed_limit_go_on_by_it() {
    paused(async {
        let mut scene = Scene::new(slots(1, 9, None));
        let tasks: Vec<JoinHandle<()>> = (0..3).map(|name| scene.arrive(name).unwrap()).collect();
        assert_eq!(scene.passed().await, [0]);
        scene.reload(slots(1, 9, None), "another");
        assert_eq!(scene.waiting(), 0);
        let own = scene.arrive(7).unwrap();
        assert_eq!(scene.passed().await, [0, 7]);
        tasks[0].abort();
        assert_eq!(scene.passed().await, [0, 7, 1]);
        tasks[1].abort();
        assert_eq!(scene.passed().await, [0, 7, 1, 2]);
        own.abort();
    });
}
