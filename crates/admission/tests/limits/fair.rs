//! `fair_by`: turns inside one queue, displaced waiters, and waits that end.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sluicegate_admission::chain::{ChainCause, ChainRejection, LimitDemand};
use sluicegate_base::clock::Now;
use sluicegate_limit::{Limit, Units};
use sluicegate_model::{self as model, Algorithm, LimitId};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep_until};

use crate::model::FairModel;
use crate::support::*;

/// Outcomes of requests: (ms since the start, number of the request).
type Log = Rc<RefCell<Vec<(u64, u64)>>>;

struct Scene {
    gate: Gate,
    start: Instant,
    left: Log,
    rejected: Log,
    retries: Rc<RefCell<Vec<u64>>>,
}

impl Scene {
    fn new(algorithm: Algorithm) -> Scene {
        Scene::with_gate(Gate::new(vec![fair(algorithm)]))
    }

    fn with_gate(gate: Gate) -> Scene {
        let (left, rejected, retries) = Default::default();
        Scene { gate, start: Instant::now(), left, rejected, retries }
    }

    fn judge(&self, value: u64) -> Judgement {
        let ask = |_: &_| LimitDemand::Units(Units { fair_hash: value, ..units(1, 1) });
        self.gate.chain.judge_request(Now::read_clock(), &self.gate.waiting, ask)
    }

    /// Request `number` of `value` arrives now; returns its computed wait in ms, unless it is rejected at once.
    fn arrive(&self, value: u64, number: u64) -> Result<(u64, JoinHandle<()>), ChainRejection> {
        let mut permit = match self.judge(value).verdict {
            Verdict::Admit(permit) => permit,
            Verdict::Reject(rejection) => return Err(rejection),
        };
        let wait = permit.wait_ns() / MS;
        let (left, rejected, retries) = (self.left.clone(), self.rejected.clone(), self.retries.clone());
        let start = self.start;
        let task = spawn_local(async move {
            let waited = permit.wait_turn().await;
            let at = start.elapsed().as_millis() as u64;
            match waited {
                Ok(()) => left.borrow_mut().push((at, number)),
                Err(rejection) => {
                    assert_eq!(rejection.cause, ChainCause::Queue);
                    retries.borrow_mut().push(rejection.retry_after_ns.expect("a time to retry"));
                    rejected.borrow_mut().push((at, number));
                    assert!(rejection.late);
                    return;
                }
            }
            permit.keep_charges();
        });
        Ok((wait, task))
    }

    async fn sleep_until_ms(&self, ms: u64) {
        sleep_until(self.start + Duration::from_millis(ms)).await;
    }

    fn waiting(&self) -> (usize, usize) {
        (self.gate.chain.limits()[0].waiter_count(), self.gate.waiting.count_waiting())
    }
}

#[test]
fn a_flood_delays_another_by_one_turn() {
    paused(async {
        let scene = Scene::new(leaky(10, SECOND, 1, 200));
        (0..101).for_each(|number| drop(scene.arrive(1, number).unwrap()));
        scene.sleep_until_ms(50).await;
        let (wait, _) = scene.arrive(2, 900).unwrap();
        assert_eq!(wait, 150, "after the waiter with the next turn");
        let (wait, _) = scene.arrive(2, 901).unwrap();
        assert_eq!(wait, 350);
        scene.sleep_until_ms(20_000).await;
        let left = scene.left.borrow();
        assert_eq!(left[..6], [(0, 0), (100, 1), (200, 900), (300, 2), (400, 901), (500, 3)]);
        assert_eq!(left.len(), 103);
        assert!(left.iter().enumerate().all(|(index, &(at, _))| at == index as u64 * 100), "evenly spaced");
    });
}

#[test]
fn without_fair_by_the_value_means_nothing() {
    paused(async {
        let scene = Scene::with_gate(Gate::one(leaky(10, SECOND, 1, 9)));
        (0..4).for_each(|number| drop(scene.arrive(number / 3, number).unwrap()));
        scene.sleep_until_ms(1000).await;
        assert_eq!(*scene.left.borrow(), [(0, 0), (100, 1), (200, 2), (300, 3)]);
    });
}

#[test]
fn a_newcomer_displaces_the_newest_of_the_fullest() {
    paused(async {
        let scene = Scene::new(leaky(10, SECOND, 1, 4));
        (0..5).for_each(|number| drop(scene.arrive(1, number).unwrap()));
        assert_eq!(
            scene.arrive(1, 5).unwrap_err().retry_after_ns,
            Some(100 * MS),
            "its own value is the fullest"
        );
        scene.sleep_until_ms(30).await;
        let (wait, _) = scene.arrive(2, 6).unwrap();
        assert_eq!(wait, 170);
        scene.sleep_until_ms(31).await;
        assert_eq!((*scene.rejected.borrow()).as_slice(), [(30, 4)]);
        assert_eq!(*scene.retries.borrow(), [70 * MS], "when the queue has room");
        assert_eq!(scene.waiting(), (4, 4));
        drop(scene.arrive(2, 7).unwrap());
        assert!(scene.arrive(2, 8).is_err(), "two each: no value has more");
        scene.sleep_until_ms(2000).await;
        assert_eq!(*scene.left.borrow(), [(0, 0), (100, 1), (200, 6), (300, 2), (400, 7)]);
        assert_eq!(*scene.rejected.borrow(), [(30, 4), (31, 3)]);
        assert_eq!(scene.waiting(), (0, 0));
    });
}

#[test]
fn a_request_rejected_by_a_later_limit_displaces_no_waiter() {
    paused(async {
        let shared = fair(leaky(10, SECOND, 1, 3));
        let narrow = limit(token(1, DAY, 1));
        let scene = Scene::with_gate(Gate::new(vec![shared.clone(), narrow]));
        drop(scene.arrive(1, 0).unwrap());
        let crowd = Scene { gate: Gate::new(vec![shared]), ..Scene::new(concurrency(1)) };
        (1..4).for_each(|number| drop(crowd.arrive(1, number).unwrap()));
        let judgement = scene.judge(2);
        assert_eq!(judgement.decisions[0].decision.remaining, 0);
        assert_eq!(rejected(judgement).cause, ChainCause::Rate);
        crowd.sleep_until_ms(1000).await;
        assert_eq!(*crowd.left.borrow(), [(100, 1), (200, 2), (300, 3)]);
        assert!(crowd.rejected.borrow().is_empty());
    });
}

#[test]
fn a_request_that_would_wait_too_long_displaces_no_waiter() {
    paused(async {
        let mut gate = Gate::new(vec![fair(leaky(10, SECOND, 1, 3))]);
        gate.chain = gate.chain.with_max_wait(150 * MS);
        let hasty = Scene::with_gate(Gate { chain: gate.chain.clone(), waiting: gate.waiting.clone() });
        gate.chain = gate.chain.with_max_wait(u64::MAX);
        let scene = Scene::with_gate(gate);
        (0..4).for_each(|number| drop(scene.arrive(1, number).unwrap()));
        let rejection = hasty.arrive(2, 9).unwrap_err();
        assert_eq!((rejection.cause, rejection.retry_after_ns), (ChainCause::WaitTooLong, None));
        assert_eq!(scene.waiting(), (3, 3));
        scene.sleep_until_ms(60).await;
        assert_eq!(hasty.arrive(2, 8).unwrap().0, 140, "now it is in time");
        scene.sleep_until_ms(1000).await;
        assert_eq!(*scene.left.borrow(), [(0, 0), (100, 1), (300, 2)]);
        assert_eq!((hasty.left.borrow()[0], scene.rejected.borrow()[0]), ((200, 8), (60, 3)));
        assert_eq!(scene.waiting(), (0, 0));
    });
}

/// Values beyond the maximum of fair queues share the existing ones, and no request is lost.
#[test]
fn thousands_of_values_share_the_fair_queues() {
    paused(async {
        let scene = Scene::new(leaky(1000, SECOND, 1, 5000));
        (0..4001).for_each(|number| {
            let (wait, _) = scene.arrive(number, number).unwrap();
            assert!(wait <= number, "{number} waits {wait} ms");
        });
        assert_eq!(scene.waiting(), (4000, 4000));
        scene.sleep_until_ms(2000).await;
        let (wait, _) = scene.arrive(1 << 60, 9999).unwrap();
        assert!(wait <= 2001, "a new value behind {wait} ms");
        scene.sleep_until_ms(10_000).await;
        let left = scene.left.borrow();
        assert_eq!(left.len(), 4002);
        assert!(left.iter().enumerate().all(|(index, &(at, _))| at == index as u64), "evenly spaced");
        assert_eq!(scene.waiting(), (0, 0));
    });
}

#[test]
fn a_waiter_delayed_beyond_max_wait_is_rejected_when_it_has_passed() {
    paused(async {
        let scene = Scene::new(leaky_within(10, SECOND, 1, 50, Some(Duration::from_millis(250))));
        (0..3).for_each(|number| drop(scene.arrive(1, number).unwrap()));
        assert_eq!(scene.arrive(1, 3).unwrap_err().retry_after_ns, Some(50 * MS));
        scene.sleep_until_ms(10).await;
        assert_eq!(scene.arrive(2, 4).unwrap().0, 190, "in turn, not behind all");
        assert_eq!(
            scene.arrive(3, 5).unwrap_err().retry_after_ns,
            Some(140 * MS),
            "behind all it is in time"
        );
        scene.sleep_until_ms(160).await;
        assert_eq!(scene.arrive(3, 6).unwrap().0, 240, "behind the waiter that will have given up");
        scene.sleep_until_ms(1000).await;
        assert_eq!(*scene.left.borrow(), [(0, 0), (100, 1), (200, 4), (300, 6)]);
        assert_eq!(*scene.rejected.borrow(), [(250, 2)]);
        assert_eq!(scene.waiting(), (0, 0));
    });
}

#[test]
fn the_cap_on_all_waiters_is_fully_released() {
    paused(async {
        let mut gate = Gate::new(vec![fair(leaky_within(1, SECOND, 1, 3, Some(Duration::from_secs(3))))]);
        gate.waiting = Arc::new(sluicegate_admission::chain::WaitingCap::new(4));
        let scene = Scene::with_gate(gate);
        for round in 0..50 {
            scene.sleep_until_ms(round * 500).await;
            for value in 0..3 {
                drop(scene.arrive(value, round));
            }
        }
        scene.sleep_until_ms(60_000).await;
        assert!(scene.rejected.borrow().len() > 10);
        assert_eq!(scene.waiting(), (0, 0));
    });
}

#[test]
fn warm_up_and_turns_go_together() {
    paused(async {
        let limit = model::LimitConfig {
            fair_by: vec![model::KeyPart::Account],
            warm_up: Some(Duration::from_secs(2)),
            ..config(leaky(10, SECOND, 1, 3))
        };
        let limit = Arc::new(Limit::new(LimitId(0), &limit, 1000));
        let scene = Scene::with_gate(Gate::new(vec![limit]));
        (0..4).for_each(|number| drop(scene.arrive(1, number).unwrap()));
        assert!(scene.arrive(1, 4).is_err());
        // The displaced waiter takes its heat along, so the newcomer takes as long as it would have.
        assert_eq!(scene.arrive(2, 5).unwrap().0, 580);
        scene.sleep_until_ms(5000).await;
        assert_eq!(scene.rejected.borrow().len(), 1);
        assert_eq!(scene.left.borrow().iter().map(|&(_, number)| number).collect::<Vec<_>>(), [0, 1, 5, 2]);
        assert_eq!(scene.waiting(), (0, 0));
    });
}

#[derive(Debug, Clone)]
struct Event {
    gap: u64,
    value: u64,
    leaver: Option<usize>,
}

fn any_events() -> impl Strategy<Value = Vec<Event>> {
    let leaver = proptest::option::weighted(0.25, 0..30usize);
    let gap = prop_oneof![Just(0), 0..8u64, 0..20u64];
    let event = (gap, prop_oneof![3 => Just(0u64), 2 => 0..5u64], leaver);
    proptest::collection::vec(event.prop_map(|(gap, value, leaver)| Event { gap, value, leaver }), 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(120) })]

    /// Arrivals on tens of ms, leavers in between: departures and rejections are those of the plain round robin.
    #[test]
    fn a_fair_queue_is_the_plain_round_robin(
        (burst, queue) in (1..4u64, 0..9usize),
        wait in proptest::option::of((0..60u64).prop_map(|tens| tens * 10 + 3)),
        events in any_events(),
    ) {
        let max_wait = wait.map(Duration::from_millis);
        let mut model = FairModel::new(100, burst, queue, wait);
        paused(async {
            let scene = Scene::new(leaky_within(10, SECOND, burst, queue as u64, max_wait));
            drive(&scene, &mut model, &events).await?;
            model.run(1_000_000);
            prop_assert_eq!(&*scene.left.borrow(), &model.left);
            let mut rejected = scene.rejected.borrow().clone();
            rejected.sort_unstable();
            model.rejected.sort_unstable();
            prop_assert_eq!(&rejected, &model.rejected);
            prop_assert_eq!(scene.waiting(), (0, 0));
            Ok(())
        })?;
    }

    /// Every rejection names a time after which the same request is accepted, if no other comes.
    #[test]
    fn a_retry_is_long_enough(
        (units, burst, queue) in (1..20u64, 1..4u64, 0..9u64),
        (wait_ms, warm_ms) in (proptest::option::of(1..1500u64), proptest::option::of(1..5000u64)),
        traffic in proptest::collection::vec((0..200 * MS, 0..4u64, 1..4u64), 1..80),
    ) {
        let limit = model::LimitConfig {
            fair_by: vec![model::KeyPart::Account],
            warm_up: warm_ms.map(Duration::from_millis),
            ..config(leaky_within(units, SECOND, burst, queue, wait_ms.map(Duration::from_millis)))
        };
        let gate = Gate::new(vec![Arc::new(Limit::new(LimitId(0), &limit, 1000))]);
        let (mut at, mut standing) = (0, vec![]);
        for (gap, fair, cost) in traffic {
            at += gap;
            let cost = cost.min(burst + queue);
            let ask = |_: &Limit| LimitDemand::Units(Units { fair_hash: fair, ..crate::support::units(1, cost) });
            let judge = |at: u64| gate.chain.judge_request(Now(START + at), &gate.waiting, ask).verdict;
            match judge(at) {
                Verdict::Admit(permit) => standing.push(permit),
                Verdict::Reject(rejection) => {
                    let retry = rejection.retry_after_ns.unwrap();
                    prop_assert!(retry > 0);
                    at += retry;
                    let Verdict::Admit(permit) = judge(at) else {
                        return Err(TestCaseError::fail(format!("rejected after {retry} ns")));
                    };
                    standing.push(permit);
                }
            }
        }
    }
}

async fn drive(scene: &Scene, model: &mut FairModel, events: &[Event]) -> Result<(), TestCaseError> {
    let (mut at, mut tasks) = (0, vec![]);
    for (who, event) in events.iter().enumerate() {
        at += event.gap * 10;
        scene.sleep_until_ms(at).await;
        let answer = scene.arrive(event.value, who as u64);
        let wait = answer.as_ref().ok().map(|(wait, _)| *wait);
        prop_assert_eq!(wait, model.arrive(at, event.value, who as u64), "request {} at {}", who, at);
        match answer {
            Ok((_, task)) => tasks.push((who, task)),
            Err(rejection) => prop_assert!(rejection.retry_after_ns.is_some_and(|ns| ns > 0)),
        }
        if let Some(leaver) = event.leaver
            && !tasks.is_empty()
        {
            scene.sleep_until_ms(at + 5).await;
            let (who, task) = &tasks[leaver % tasks.len()];
            task.abort();
            model.leave(at + 5, *who as u64);
            at += 10;
        }
    }
    scene.sleep_until_ms(at + 20_000).await;
    Ok(())
}
