//! Leaky buckets with shares beside a plain simulation, and the laws that they keep.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sluicegate_admission::chain::{ChainRejection, LimitDemand};
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{Limit, Units};
use sluicegate_model::{self as model, Algorithm, KeyPart, LimitId, ShareClass, Shares};
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::{Instant, sleep_until};

use crate::share_model::{STEP, ShareModel};
use crate::support::*;

/// Outcomes of requests: (ms since the start, class, number of the request).
type Log = Rc<RefCell<Vec<(u64, usize, u64)>>>;

/// Classes by their floor and `most`, in per cent.
pub fn shares(classes: &[(u32, u32)]) -> Arc<Shares> {
    let class = |(index, (least, most)): (usize, &(u32, u32))| ShareClass {
        name: if index + 1 == classes.len() { Shares::DEFAULT.to_owned() } else { format!("c{index}") },
        least: least * 10_000,
        most: most * 10_000,
    };
    let classes = classes.iter().enumerate().map(class).collect();
    Arc::new(Shares { by: KeyPart::Tier, classes, lend: Shares::WHOLE })
}

struct Scene {
    gates: RefCell<Vec<Gate>>,
    config: RefCell<model::LimitConfig>,
    start: Instant,
    left: Log,
    rejected: Log,
}

impl Scene {
    fn new(algorithm: Algorithm, classes: &[(u32, u32)]) -> Scene {
        Scene::with_config(model::LimitConfig { shares: Some(shares(classes)), ..config(algorithm) })
    }

    fn with_config(config: model::LimitConfig) -> Scene {
        let gate = Gate::new(vec![Arc::new(Limit::new(LimitId(0), &config, 1000))]);
        let (left, rejected) = Default::default();
        let (gates, config) = (RefCell::new(vec![gate]), RefCell::new(config));
        Scene { gates, config, start: Instant::now(), left, rejected }
    }

    fn limit(&self) -> Arc<Limit> {
        Arc::clone(&self.gates.borrow().last().unwrap().chain.limits()[0])
    }

    fn reload(&self, change: impl FnOnce(&mut model::LimitConfig)) {
        let mut config = self.config.borrow_mut();
        change(&mut config);
        let limit = Limit::continue_from(Some(&self.limit()), LimitId(0), &config, 1000);
        limit.apply_numbers(&Now::read_clock);
        self.gates.borrow_mut().push(Gate::new(vec![Arc::new(limit)]));
    }

    /// Request `number` of a class arrives now; returns its computed wait in ms, unless it is rejected at once.
    fn arrive(
        &self,
        class: usize,
        number: u64,
        cost: u64,
        fair_hash: u64,
    ) -> Result<(u64, JoinHandle<()>), ChainRejection> {
        let key = CounterKey { class: class as u8, ..key(1) };
        let ask = |_: &_| LimitDemand::Units(Units { fair_hash, ..Units::new(key, cost) });
        let judgement = {
            let gates = self.gates.borrow();
            let gate = gates.last().unwrap();
            gate.chain.judge_request(Now::read_clock(), &gate.waiting, ask)
        };
        let mut permit = match judgement.verdict {
            Verdict::Admit(permit) => permit,
            Verdict::Reject(rejection) => return Err(rejection),
        };
        let wait = permit.wait_ns() / MS;
        let (left, rejected, start) = (self.left.clone(), self.rejected.clone(), self.start);
        let task = async move {
            let waited = permit.wait_turn().await;
            let at = start.elapsed().as_millis() as u64;
            match waited {
                Ok(()) => left.borrow_mut().push((at, class, number)),
                Err(_) => return rejected.borrow_mut().push((at, class, number)),
            }
            permit.keep_charges();
        };
        Ok((wait, spawn_local(task)))
    }

    fn send(&self, class: usize, number: u64) -> Option<u64> {
        self.arrive(class, number, 1, 0).ok().map(|(wait, _)| wait)
    }

    fn send_all(&self, class: usize, numbers: std::ops::Range<u64>) {
        numbers.for_each(|number| assert!(self.send(class, number).is_some()));
    }

    async fn sleep_until_ms(&self, ms: u64) {
        sleep_until(self.start + Duration::from_millis(ms)).await;
    }

    fn waiting(&self) -> usize {
        self.limit().waiter_count()
    }
}

/// Departures of a class within the time from `from` to `to`.
fn count(left: &[(u64, usize, u64)], class: usize, from: u64, to: u64) -> u64 {
    left.iter().filter(|(at, own, _)| *own == class && (from..to).contains(at)).count() as u64
}

#[test]
fn classes_that_wait_leave_by_their_floors() {
    paused(async {
        let scene = Scene::new(leaky(100, SECOND, 1, 3000), &[(50, 100), (30, 100), (0, 100)]);
        for class in [2, 1, 0] {
            scene.send_all(class, 0..800);
        }
        scene.sleep_until_ms(10_001).await;
        let left = scene.left.borrow().clone();
        assert_eq!(left.len(), 1001);
        let parts = [0, 1, 2].map(|class| count(&left, class, 0, 10_001));
        assert_eq!(parts, [501, 300, 200]);
        assert!(left.iter().enumerate().all(|(index, (at, ..))| *at == index as u64 * 10), "evenly spaced");
    });
}

/// What a class leaves goes to the others, and comes back at once.
#[test]
fn an_idle_class_lends_its_part_and_has_it_back_at_once() {
    paused(async {
        let scene = Scene::new(leaky(100, SECOND, 1, 3000), &[(50, 100), (0, 100)]);
        scene.send_all(1, 0..1000);
        scene.sleep_until_ms(2001).await;
        assert_eq!(scene.left.borrow().len(), 201, "all of the rate");
        scene.send_all(0, 0..100);
        scene.sleep_until_ms(4001).await;
        assert_eq!(count(&scene.left.borrow(), 0, 2001, 4001), 100);
    });
}

#[test]
fn most_is_a_pace_although_nobody_else_waits() {
    paused(async {
        let scene = Scene::new(leaky(100, SECOND, 5, 1000), &[(50, 100), (0, 40)]);
        scene.send_all(1, 0..100);
        scene.sleep_until_ms(1001).await;
        let left: Vec<u64> = scene.left.borrow().iter().map(|(at, ..)| *at).collect();
        assert_eq!(left[..5], [0, 0, 25, 50, 75], "two at once, then 40 per second");
        assert_eq!(left.len(), 42);
        // The rest of the rate is free for the other class, which does not wait.
        assert_eq!(scene.send(0, 900), Some(0));
        assert_eq!(scene.waiting(), 58);
    });
}

#[test]
fn a_class_at_a_fixed_part_gets_exactly_that() {
    paused(async {
        let scene = Scene::new(leaky(100, SECOND, 1, 5000), &[(50, 50), (30, 100), (20, 100)]);
        for class in [2, 1, 0] {
            scene.send_all(class, 0..1000);
        }
        scene.sleep_until_ms(10_001).await;
        let parts = [0, 1, 2].map(|class| count(&scene.left.borrow(), class, 0, 10_001));
        assert!(parts[0] >= 499 && parts[0] <= 502, "{parts:?}");
        assert!(parts[1] >= 299 && parts[2] >= 199, "{parts:?}");
    });
}

#[test]
fn places_are_lent_and_taken_back() {
    paused(async {
        let scene = Scene::new(leaky(10, SECOND, 1, 10), &[(50, 100), (30, 100), (0, 100)]);
        scene.send_all(2, 0..11);
        assert_eq!(scene.waiting(), 10, "all places are lent");
        assert_eq!(scene.send(2, 11), None);
        // Five places are gold's, three are silver's.
        let accepted: Vec<bool> = (0..7).map(|number| scene.send(0, 100 + number).is_some()).collect();
        assert_eq!(accepted, [true, true, true, true, true, false, false]);
        let accepted: Vec<bool> = (0..4).map(|number| scene.send(1, 200 + number).is_some()).collect();
        assert_eq!(accepted, [true, true, true, false]);
        assert_eq!(scene.waiting(), 10);
        scene.sleep_until_ms(1).await;
        let mut displaced: Vec<u64> = scene.rejected.borrow().iter().map(|(_, _, number)| *number).collect();
        displaced.sort_unstable();
        assert_eq!(displaced, [3, 4, 5, 6, 7, 8, 9, 10], "the newest ones; two places are nobody's");
        scene.sleep_until_ms(5000).await;
        assert_eq!((scene.left.borrow().len(), scene.waiting()), (11, 0));
    });
}

#[test]
fn the_class_furthest_above_its_places_makes_room() {
    paused(async {
        let scene = Scene::new(leaky(10, SECOND, 1, 10), &[(20, 100), (30, 100), (10, 100)]);
        scene.send_all(2, 0..6);
        scene.send_all(1, 100..105);
        // Six wait of the class with one place (one departed), five of that with three.
        assert_eq!(scene.waiting(), 10);
        assert!(scene.send(0, 200).is_some() && scene.send(0, 201).is_some() && scene.send(0, 202).is_none());
        scene.sleep_until_ms(1).await;
        let mut displaced: Vec<u64> = scene.rejected.borrow().iter().map(|(_, _, number)| *number).collect();
        displaced.sort_unstable();
        assert_eq!(displaced, [4, 5]);
    });
}

#[test]
fn fair_by_keeps_order_inside_a_class() {
    paused(async {
        let config = model::LimitConfig {
            shares: Some(shares(&[(50, 100), (0, 100)])),
            fair_by: vec![KeyPart::Account],
            ..config(leaky(10, SECOND, 1, 8))
        };
        let scene = Scene::with_config(config);
        let arrive = |class, number, fair| scene.arrive(class, number, 1, fair).is_ok();
        assert!((0..7).all(|number| arrive(1, number, 1)));
        assert!(arrive(1, 20, 2) && arrive(0, 30, 3));
        assert!(!arrive(1, 8, 1) && arrive(1, 21, 2), "the value with most makes room within the class");
        scene.sleep_until_ms(2000).await;
        let numbers: Vec<u64> = scene.left.borrow().iter().map(|(_, _, number)| *number).collect();
        assert_eq!(numbers, [0, 30, 1, 20, 2, 21, 3, 4, 5]);
        assert_eq!(*scene.rejected.borrow(), [(0, 1, 6)]);
    });
}

#[test]
fn a_wait_ends_and_says_when_to_come_back() {
    paused(async {
        let algorithm = leaky_within(10, SECOND, 1, 50, Some(Duration::from_millis(250)));
        let scene = Scene::new(algorithm, &[(50, 100), (0, 100)]);
        scene.send_all(1, 0..3);
        let rejection = scene.arrive(1, 3, 1, 0).err().unwrap();
        assert_eq!(rejection.retry_after_ns, Some(50 * MS));
        scene.sleep_until_ms(10).await;
        assert_eq!(scene.send(0, 4), Some(90), "gold is next");
        assert_eq!(scene.send(0, 5), Some(190));
        scene.sleep_until_ms(1000).await;
        let left: Vec<(u64, u64)> =
            scene.left.borrow().iter().map(|(at, _, number)| (*at, *number)).collect();
        assert_eq!(left, [(0, 0), (100, 4), (200, 5)]);
        let mut rejected = scene.rejected.borrow().clone();
        rejected.sort_unstable();
        assert_eq!(rejected, [(250, 1, 1), (250, 1, 2)]);
        assert_eq!(scene.waiting(), 0);
    });
}

#[test]
fn waiters_keep_their_class_by_name_when_the_shares_change() {
    paused(async {
        let scene = Scene::new(leaky(10, SECOND, 1, 50), &[(50, 100), (0, 100)]);
        scene.send_all(1, 0..4);
        scene.send_all(0, 10..13);
        scene.reload(|config| config.shares = Some(shares(&[(10, 100), (80, 100), (0, 100)])));
        // The class 1 of before is the last one now.
        scene.send_all(1, 20..23);
        assert_eq!(scene.waiting(), 9);
        scene.sleep_until_ms(420).await;
        assert_eq!(count(&scene.left.borrow(), 1, 50, 420), 3, "80 per cent");
        scene.reload(|config| config.shares = Some(shares(&[(0, 100)])));
        scene.sleep_until_ms(3000).await;
        assert_eq!((scene.left.borrow().len(), scene.waiting()), (10, 0));
        let times: Vec<u64> = scene.left.borrow().iter().map(|(at, ..)| *at).collect();
        assert_eq!(times, (0..10).map(|index| index * 100).collect::<Vec<_>>());
    });
}

#[test]
fn a_dry_run_counts_as_the_classes_would_leave() {
    paused(async {
        let config = model::LimitConfig {
            shares: Some(shares(&[(50, 100), (0, 100)])),
            dry_run: true,
            ..config(leaky(10, SECOND, 1, 10))
        };
        let limit = Limit::new(LimitId(0), &config, 1000);
        let ask = |class: u8, at: u64| {
            let units = Units::new(CounterKey { class, ..key(1) }, 1);
            limit.charge_units(0, &units, Now(START + at * MS)).0
        };
        let rejections = (0..20).filter(|_| ask(1, 0).retry_after_ns > 0).count();
        assert_eq!(rejections, 9, "one departs, ten wait");
        let waits: Vec<u64> = (0..5).map(|_| ask(0, 0).wait_ns / MS).collect();
        assert_eq!(waits, [100, 200, 400, 600, 800], "gold takes places back, and its turns");
        assert!(ask(0, 0).retry_after_ns > 0);
        assert_eq!(ask(0, 10_000).wait_ns, 0);
        assert_eq!(limit.waiter_count(), 0);
    });
}

#[derive(Clone)]
struct Event {
    gap: u64,
    class: usize,
    cost: u64,
    leaver: Option<usize>,
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", (self.gap, self.class, self.cost, self.leaver))
    }
}

fn any_events() -> impl Strategy<Value = Vec<Event>> {
    let gap = prop_oneof![4 => Just(0), 3 => 0..15u64, 1 => 0..100u64];
    let cost = prop_oneof![6 => Just(1u64), 1 => 1..5u64];
    let event = (
        gap,
        prop_oneof![2 => Just(2usize), 3 => 0..4usize],
        cost,
        proptest::option::weighted(0.1, 0..30usize),
    );
    let event = event.prop_map(|(gap, class, cost, leaver)| Event { gap, class, cost, leaver });
    proptest::collection::vec(event, 1..150)
}

fn any_classes() -> impl Strategy<Value = Vec<(u32, u32)>> {
    let least = prop_oneof![Just(0u32), Just(5), Just(10), Just(20), Just(25)];
    let most = prop_oneof![3 => Just(100u32), 1 => Just(25), 1 => Just(40), 1 => Just(50)];
    proptest::collection::vec((least, most), 4..=4)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(150) })]

    /// Arrivals and leavers at any time: departures and rejections are those of the plain simulation.
    #[test]
    fn a_queue_with_shares_is_the_plain_simulation(
        classes in any_classes(),
        (burst, queue) in (1..4u64, prop_oneof![0..12u64, Just(500)]),
        events in any_events(),
    ) {
        paused(async {
            let scene = Scene::new(leaky(1000 / STEP, SECOND, burst, queue), &classes);
            let mut model = ShareModel::new(&classes, burst, queue);
            let (mut at, mut tasks) = (0, vec![]);
            for (number, event) in events.iter().enumerate() {
                at += event.gap;
                scene.sleep_until_ms(at).await;
                let (cost, number) = (event.cost.min(burst + queue), number as u64);
                let answer = scene.arrive(event.class, number, cost, 0);
                let accepted = model.arrive(at, event.class, cost, number);
                prop_assert_eq!(answer.is_ok(), accepted, "request {} at {}", number, at);
                tasks.extend(answer.ok().map(|(_, task)| (number, task)));
                if let Some(leaver) = event.leaver && !tasks.is_empty() {
                    // The task has run, and is at its wait.
                    at += 1;
                    scene.sleep_until_ms(at).await;
                    let (number, task) = &tasks[leaver % tasks.len()];
                    // One that departs at this moment may have noticed it or not.
                    if !model.departs_at(at, *number) {
                        task.abort();
                        model.leave(at, *number);
                    }
                    at += 1;
                }
            }
            scene.sleep_until_ms(at + 100_000).await;
            model.run(at + 100_000);
            let by_number = |log: &[(u64, usize, u64)]| {
                let mut log = log.to_vec();
                log.sort_unstable_by_key(|(_, _, number)| *number);
                log
            };
            let (left, expected) = (by_number(&scene.left.borrow()), by_number(&model.left));
            // A timer that is set anew may fire a millisecond late, which delays nobody else.
            let is_same = |(left, expected): (&(u64, usize, u64), &(u64, usize, u64))| {
                (left.1, left.2) == (expected.1, expected.2) && (expected.0..=expected.0 + 1).contains(&left.0)
            };
            let same = left.len() == expected.len() && left.iter().zip(&expected).all(is_same);
            prop_assert!(same, "{:?}\n{:?}", left, expected);
            let mut rejected: Vec<u64> = scene.rejected.borrow().iter().map(|(_, _, number)| *number).collect();
            rejected.sort_unstable();
            model.displaced.sort_unstable();
            prop_assert_eq!(&rejected, &model.displaced);
            prop_assert_eq!(scene.waiting(), 0);
            Ok(())
        })?;
    }

    /// The laws, from the departures alone: each class has its floor while it waits, none is beyond its `most`, and the
    /// rate is kept and used.
    #[test]
    fn the_laws_of_shares_hold(
        classes in any_classes(),
        burst in 1..4u64,
        crowds in proptest::collection::vec((0..1500u64, 50..200u64), 4..=4),
    ) {
        let left = paused(async {
            let scene = Scene::new(leaky(1000 / STEP, SECOND, burst, 5000), &classes);
            let mut order: Vec<usize> = (0..4).collect();
            order.sort_by_key(|class| crowds[*class].0);
            for class in order {
                scene.sleep_until_ms(crowds[class].0).await;
                scene.send_all(class, 0..crowds[class].1);
            }
            scene.sleep_until_ms(60_000).await;
            scene.left.borrow().clone()
        });
        prop_assert_eq!(left.len() as u64, crowds.iter().map(|(_, requests)| requests).sum::<u64>());
        let times = |class: Option<usize>| -> Vec<u64> {
            left.iter().filter(|own| class.is_none_or(|class| class == own.1)).map(|(at, ..)| *at).collect()
        };
        let pairs = |times: &[u64], law: &dyn Fn(u64, u64) -> bool| {
            let pair = |first: usize| (first + 1..times.len()).all(|last| law((last - first) as u64, times[last] - times[first]));
            (0..times.len()).all(pair)
        };
        let step = STEP;
        let all = times(None);
        prop_assert!(pairs(&all, &|more, ms| (more + 1) * step <= burst * step + ms + 1), "the rate");
        let floors: u32 = classes.iter().map(|(least, _)| *least).sum();
        for (class, (least, most)) in classes.iter().enumerate() {
            let (least, most, own) = (f64::from(*least) / 100.0, f64::from(*most) / 100.0, times(Some(class)));
            // All classes have waited from the first departure here to the last.
            let least = if floors >= 100 { least / 1.01 } else { least };
            let floor = |more: u64, ms: u64| more as f64 + 2.0 >= least * ms as f64 / step as f64;
            prop_assert!(pairs(&own, &floor), "the floor of {}: {:?}", class, own);
            let depth = (most * burst as f64).max(1.0) + 4.0 * most;
            let within = |more: u64, ms: u64| more as f64 + 1.0 <= depth + most * (ms + 1) as f64 / step as f64;
            prop_assert!(most == 1.0 || pairs(&own, &within), "the most of {}: {:?}", class, own);
            if most == 1.0 {
                let waiting = *own.first().unwrap()..=*own.last().unwrap();
                let during: Vec<u64> = all.iter().copied().filter(|at| waiting.contains(at)).collect();
                prop_assert!(during.windows(2).all(|pair| pair[1] - pair[0] <= step + 1), "idle: {:?}", during);
            }
        }
    }

    /// The wait that a request is told is the one it has, if no other comes.
    #[test]
    fn the_wait_is_exact_without_most(
        floors in proptest::collection::vec(prop_oneof![Just(5u32), Just(10), Just(20), Just(30)], 3..=3),
        arrivals in proptest::collection::vec((0..4usize, 0..3u64), 1..80),
        last in 0..4usize,
    ) {
        let mut classes: Vec<(u32, u32)> = floors.into_iter().map(|least| (least, 100)).collect();
        classes.push((0, 100));
        paused(async {
            let config = model::LimitConfig {
                shares: Some(shares(&classes)),
                fair_by: vec![KeyPart::Account],
                ..config(leaky(1000 / STEP, SECOND, 1, 500))
            };
            let scene = Scene::with_config(config);
            for (class, value) in arrivals {
                prop_assert!(scene.arrive(class, 0, 1, value).is_ok());
            }
            let (wait, _) = scene.arrive(last, 1, 1, 0).unwrap();
            scene.sleep_until_ms(10_000).await;
            let left = scene.left.borrow().iter().find(|(_, _, number)| *number == 1).map(|(at, ..)| *at);
            prop_assert_eq!(left, Some(wait));
            Ok(())
        })?;
    }

    /// Every rejection names a time after which the same request is accepted, if no other comes.
    #[test]
    fn a_retry_with_shares_is_long_enough(
        classes in any_classes(),
        (units, burst, queue) in (1..20u64, 1..4u64, 0..9u64),
        wait_ms in proptest::option::of(1..1500u64),
        traffic in proptest::collection::vec((0..200 * MS, 0..4usize, 1..4u64, any::<bool>()), 1..80),
    ) {
        let config = model::LimitConfig {
            shares: Some(shares(&classes)),
            ..config(leaky_within(units, SECOND, burst, queue, wait_ms.map(Duration::from_millis)))
        };
        let gate = Gate::new(vec![Arc::new(Limit::new(LimitId(0), &config, 1000))]);
        let (mut at, mut standing) = (0, vec![]);
        for (gap, class, cost, stays) in traffic {
            at += gap;
            let key = CounterKey { class: class as u8, ..key(1) };
            let judge = |at: u64| {
                let ask = |_: &Limit| LimitDemand::Units(Units::new(key, cost.min(burst + queue)));
                gate.chain.judge_request(Now(START + at), &gate.waiting, ask).verdict
            };
            let permit = match judge(at) {
                Verdict::Admit(permit) => permit,
                Verdict::Reject(rejection) => {
                    let retry = rejection.retry_after_ns.unwrap();
                    prop_assert!(retry > 0);
                    at += retry;
                    let Verdict::Admit(permit) = judge(at) else {
                        return Err(TestCaseError::fail(format!("rejected after {retry} ns")));
                    };
                    permit
                }
            };
            standing.extend(Some(permit).filter(|_| stays));
        }
    }
}
