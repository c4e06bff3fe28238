//! Slots with guaranteed shares: floors, lending and `most` under overload, on a paused clock.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sluicegate_admission::chain::LimitDemand;
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{Limit, SlotOutcome};
use sluicegate_model::{Algorithm, KeyPart, LimitConfig, LimitId, ShareClass, Shares};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, sleep_until};

use crate::support::*;

const GOLD: u8 = 0;
const SILVER: u8 = 1;
const DEFAULT: u8 = 2;
const CLASSES: usize = 3;

/// Gold 50 %, silver 30 % to 80 %, all others up to `most_of_others`.
fn shares(lend: u32, most_of_others: u32) -> Shares {
    let class = |name: &str, least: u32, most: u32| ShareClass {
        name: name.to_owned(),
        least: least * 10_000,
        most: most * 10_000,
    };
    let classes = vec![class("gold", 50, 100), class("silver", 30, 80), class("default", 0, most_of_others)];
    Shares { by: KeyPart::Account, classes, lend: lend * 10_000 }
}

fn shared_slots(algorithm: Algorithm, shares: Shares) -> LimitConfig {
    LimitConfig { shares: Some(Arc::new(shares)), ..config(algorithm) }
}

/// Clients of a class that send the next request after the last one, or some time after a refusal.
#[derive(Debug, Clone, Copy)]
struct Clients {
    class: u8,
    count: usize,
    from: u64,
    until: u64,
    hold: u64,
    think: u64,
}

const RETRY: u64 = 3;

/// The requests in flight by class, every millisecond.
#[derive(Default)]
struct Records {
    in_flight: [Cell<usize>; CLASSES],
    samples: RefCell<Vec<[usize; CLASSES]>>,
    refused: RefCell<Vec<(u64, u8)>>,
}

impl Records {
    fn add(&self, class: u8, number: isize) {
        let own = &self.in_flight[usize::from(class)];
        own.set(own.get().checked_add_signed(number).unwrap());
    }

    fn all(&self) -> [usize; CLASSES] {
        [0, 1, 2].map(|class| self.in_flight[class].get())
    }

    /// The fewest and the most of a class in flight within a span, in ms.
    fn range_of(&self, class: u8, span: std::ops::Range<usize>) -> (usize, usize) {
        let samples = self.samples.borrow();
        let own = || samples[span.clone()].iter().map(|sample| sample[usize::from(class)]);
        (own().min().unwrap(), own().max().unwrap())
    }

    /// The mean of all in flight within a span, in ms.
    fn mean_of_all(&self, span: std::ops::Range<usize>) -> f64 {
        let samples = &self.samples.borrow()[span];
        samples.iter().flatten().sum::<usize>() as f64 / samples.len() as f64
    }

    fn refused_since(&self, class: u8, at: u64) -> usize {
        self.refused.borrow().iter().filter(|(time, own)| *time >= at && *own == class).count()
    }
}

/// One client; the moments are in ms from `start`.
async fn run_client(gate: Rc<Gate>, records: Rc<Records>, own: Clients, (number, start): (usize, Instant)) {
    let at = |ms: u64| start + Duration::from_millis(ms);
    sleep_until(at(own.from)).await;
    let mut turn = number as u64;
    while Instant::now() < at(own.until) {
        let key = CounterKey { class: own.class, ..key(1) };
        let ask = |_: &Limit| LimitDemand::Units(sluicegate_limit::Units { key, ..units(1, 1) });
        let judged = gate.chain.judge_request(Now::read_clock(), &gate.waiting, ask).verdict;
        let refuse = || {
            let now = start.elapsed().as_millis() as u64;
            records.refused.borrow_mut().push((now, own.class));
            sleep(Duration::from_millis(RETRY))
        };
        let Verdict::Admit(mut accepted) = judged else {
            refuse().await;
            continue;
        };
        accepted.wait_turn().await.unwrap();
        if accepted.take_slots().await.is_err() {
            refuse().await;
            continue;
        }
        records.add(own.class, 1);
        let allowed = gate.chain.limits()[0].slot_count(0).max(records.all().iter().sum::<usize>() as u64);
        assert!(gate.chain.limits()[0].slots_in_use(0, &key) <= allowed);
        turn += 7;
        // The response times of a class differ, up to `hold`.
        sleep(Duration::from_millis(own.hold - turn % (own.hold / 2))).await;
        records.add(own.class, -1);
        drop(accepted);
        if own.think > 0 {
            sleep(Duration::from_millis(own.think)).await;
        }
    }
}

/// Runs the clients for so many ms on a limit; `check` runs after each ms.
fn run(
    config: &LimitConfig,
    clients: &[Clients],
    ms: u64,
    check: impl Fn(&Limit, [usize; CLASSES]),
) -> Rc<Records> {
    let gate = Rc::new(Gate::new(vec![Arc::new(Limit::new(LimitId(0), config, 1000))]));
    let records = Rc::new(Records::default());
    paused(async {
        let (start, mut tasks) = (Instant::now(), Vec::new());
        for (number, own) in clients.iter().flat_map(|own| std::iter::repeat_n(*own, own.count).enumerate()) {
            tasks.push(spawn_local(run_client(gate.clone(), records.clone(), own, (number, start))));
        }
        for at in 1..=ms {
            sleep_until(start + Duration::from_millis(at)).await;
            // All that happens in this millisecond comes before.
            for _ in 0..4 {
                tokio::task::yield_now().await;
            }
            let all = records.all();
            check(&gate.chain.limits()[0], all);
            records.samples.borrow_mut().push(all);
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(gate.chain.limits()[0].slots_in_use(0, &key(1)), 0);
        assert_eq!((gate.chain.limits()[0].waiter_count(), gate.waiting.count_waiting()), (0, 0));
    });
    records
}

fn never_above(max: usize, most_of_others: usize) -> impl Fn(&Limit, [usize; CLASSES]) {
    move |_, all| {
        assert!(all.iter().sum::<usize>() <= max, "{all:?} in flight");
        assert!(all[usize::from(DEFAULT)] <= most_of_others, "{all:?} in flight");
    }
}

const HOLD: u64 = 100;
const END: u64 = 4_000;

fn clients(class: u8, count: usize, from: u64) -> Clients {
    Clients { class, count, from, until: END, hold: HOLD, think: 0 }
}

/// A class that comes back has its floor within one response time, whatever the others send, and keeps it; also
/// between two requests.
#[test]
fn floors_hold_within_one_response_time_under_overload() {
    for (queue, times) in [(0, 2), (0, 5), (0, 10), (1_000, 2), (1_000, 5), (1_000, 10), (10, 10)] {
        for think in [0, 2] {
            let config = shared_slots(slots(20, queue, None), shares(100, 100));
            let all = [
                clients(DEFAULT, 20 * times, 0),
                Clients { think, ..clients(GOLD, 10, 1_000) },
                Clients { think, ..clients(SILVER, 6, 1_500) },
            ];
            let records = run(&config, &all, END - 100, never_above(20, 20));
            let what = format!("queue {queue}, {times} times, think {think}");
            for (class, floor, from) in [(GOLD, 10, 1_000), (SILVER, 6, 1_500)] {
                // One response time, and until the last refused client comes back.
                let since = from + HOLD + RETRY + 1;
                assert_eq!(records.refused_since(class, since), 0, "{what}");
                let (least, most) = records.range_of(class, since as usize..3_800);
                assert_eq!(most, floor, "{what}");
                // Those that think just now find their slots again, or they would be refused.
                assert!(think > 0 || least == floor, "class {class} has {least} at least: {what}");
            }
            assert!(records.mean_of_all(50..3_800) > if think > 0 { 19.0 } else { 19.8 }, "{what}");
        }
    }
}

/// More than its floor wants the class as well: what is left goes in the order of arrival.
#[test]
fn nobody_falls_below_its_floor_when_all_classes_want_more() {
    for queue in [0, 1_000] {
        let config = shared_slots(slots(20, queue, None), shares(100, 60));
        let all = [clients(DEFAULT, 100, 0), clients(SILVER, 100, 300), clients(GOLD, 100, 700)];
        let records = run(&config, &all, END - 100, never_above(20, 12));
        let range = |class| records.range_of(class, 820..3_800);
        assert!(
            range(GOLD).0 >= 10 && range(SILVER).0 >= 6,
            "queue {queue}: {:?} {:?}",
            range(GOLD),
            range(SILVER)
        );
        assert!(range(SILVER).1 <= 16, "queue {queue}");
        assert!(records.mean_of_all(820..3_800) >= 0.99 * 20.0, "queue {queue}");
    }
}

/// Others use at least 99 % of what a class leaves idle, from a second and a quarter after it has left.
#[test]
fn idle_slots_are_lent() {
    for queue in [0, 1_000] {
        let config = shared_slots(slots(20, queue, None), shares(100, 100));
        let gold = Clients { until: 1_500, ..clients(GOLD, 10, 1_000) };
        let records = run(&config, &[clients(DEFAULT, 100, 0), gold], END - 100, never_above(20, 20));
        assert!(records.mean_of_all(10..1_000) >= 0.99 * 20.0, "queue {queue}");
        assert!(records.mean_of_all(2_860..3_800) >= 0.99 * 20.0, "queue {queue}");
        assert!(records.mean_of_all(1_700..2_400) <= 11.0, "its slots are kept for a second");
    }
}

/// A class whose waiters nobody wakes notices that slots are not kept any more.
#[test]
fn waiters_get_what_is_not_kept_any_more_without_an_event() {
    let config = shared_slots(
        slots(2, 10, None),
        Shares {
            classes: vec![
                ShareClass { name: "gold".into(), least: Shares::WHOLE, most: Shares::WHOLE },
                ShareClass { name: "default".into(), least: 0, most: Shares::WHOLE },
            ],
            ..shares(100, 100)
        },
    );
    let gold = Clients { until: 10, ..clients(GOLD, 2, 0) };
    let records = run(&config, &[gold, Clients { count: 2, ..clients(SILVER, 2, 20) }], END - 100, |_, _| {});
    assert_eq!(records.range_of(SILVER, 100..1_000), (0, 0));
    assert_eq!(records.range_of(SILVER, 1_700..3_800), (2, 2));
}

/// The part of a floor that is not lent is free at once for a class that was idle.
#[test]
fn what_is_not_lent_stays_free() {
    for queue in [0, 1_000] {
        let config = shared_slots(slots(20, queue, None), shares(80, 100));
        // 2 of gold's 10, and 2 of silver's 6: what is lent is rounded down.
        let pair = Clients { think: 1_500, ..clients(GOLD, 2, 1_000) };
        let all = [clients(DEFAULT, 100, 0), pair, Clients { class: SILVER, ..pair }];
        let records = run(&config, &all, END - 100, never_above(20, 16));
        assert_eq!(records.refused_since(GOLD, 0) + records.refused_since(SILVER, 0), 0, "queue {queue}");
        assert_eq!(records.range_of(GOLD, 1_002..1_040), (2, 2), "queue {queue}");
        assert_eq!(records.range_of(SILVER, 1_002..1_040), (2, 2), "queue {queue}");
        assert!(records.range_of(DEFAULT, 20..1_000).0 >= 15, "queue {queue}");
    }
}

/// A full queue has places for a class that has a floor: the newest waiter of the others goes.
#[test]
fn a_full_queue_makes_room_for_a_class_below_its_places() {
    let config = shared_slots(slots(20, 20, None), shares(100, 100));
    let all = [clients(DEFAULT, 200, 0), clients(GOLD, 20, 1_000)];
    let records = run(&config, &all, END - 100, never_above(20, 20));
    // 10 slots and 10 places: none of its 20 clients is refused, as long as it has its slots.
    assert_eq!(records.refused_since(GOLD, 1_000 + HOLD), 0);
    assert!(records.refused_since(DEFAULT, 1_000) > 1_000);
}

/// With a number of slots that falls, the classes without a floor are shed first.
#[test]
fn a_falling_number_sheds_the_default_class_first() {
    let adaptive = Algorithm::Concurrency { min: Some(4), max: 100, queue: 0, max_wait: None };
    let config = shared_slots(adaptive, shares(100, 100));
    let all = [clients(DEFAULT, 60, 0), clients(GOLD, 2, 0), clients(SILVER, 1, 0)];
    let (ms, settled_at) = (Cell::new(0), Cell::new((0, 0)));
    let check = |limit: &Limit, all: [usize; CLASSES]| {
        ms.set(ms.get() + 1);
        let outcome = if ms.get() < 500 { SlotOutcome::Answered(50 * MS) } else { SlotOutcome::Failed };
        limit.record_outcome(0, outcome, Now::read_clock());
        let allowed = limit.slot_count(0);
        if settled_at.get().1 != allowed {
            settled_at.set((ms.get(), allowed));
        }
        // One response time after the last change the number holds, and the floors of it.
        if ms.get() - settled_at.get().0 > HOLD + 2 * RETRY {
            assert!(all.iter().sum::<usize>() as u64 <= allowed);
            let [gold, silver, _] = all;
            assert!(
                gold as u64 >= (allowed / 2).min(2) && silver as u64 >= (allowed * 3 / 10).min(1),
                "{all:?}"
            );
        }
    };
    let records = run(&config, &all, END - 100, check);
    assert_eq!(settled_at.get().1, 4, "it has fallen to its lower bound");
    let samples = records.samples.borrow();
    assert_eq!(samples[3_700], [2, 1, 1]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Whatever comes, with any queue: never too many, in all and of a class, and in the end nothing is left behind.
    #[test]
    fn bounds_hold_for_any_load(
        max in 4_u32..12, queue in 0_u64..30, lend in 0_u32..=100, is_fair: bool,
        loads in prop::collection::vec((0_u8..3, 1_usize..12, 0_u64..800, 50_u64..900, 4_u64..200, 0_u64..40), 1..8),
    ) {
        let all: Vec<Clients> = loads
            .into_iter()
            .map(|(class, count, from, span, hold, think)| Clients { class, count, from, until: from + span, hold, think })
            .collect();
        let mut config = shared_slots(slots(max, queue, None), shares(lend, 60));
        if is_fair {
            config.fair_by = vec![KeyPart::Account];
        }
        let shares = config.shares.clone().unwrap();
        let not_lent = |class: usize| {
            let floor = max as u64 * u64::from(shares.classes[class].least / 10_000) / 100;
            (floor - floor * u64::from(lend) / 100) as usize
        };
        let rest: Vec<usize> = (0..CLASSES).map(not_lent).collect();
        run(&config, &all, 2_500, |_, all| {
            let percent = |number: u32| (max * number).div_ceil(100) as usize;
            assert!(all.iter().sum::<usize>() <= max as usize, "{all:?}");
            assert!(all[1] <= percent(80) && all[2] <= percent(60), "{all:?}");
            for class in 0..CLASSES {
                let others: usize = (0..CLASSES).filter(|other| *other != class).map(|other| rest[other]).sum();
                assert!(all[class] + others <= max as usize, "{all:?} leaves too few free");
            }
        });
    }
}

/// What a class had in flight, written as plainly as possible.
#[derive(Default)]
struct History {
    in_flight: u64,
    /// The number in flight from a moment on, and a refusal at a moment.
    changes: Vec<(u64, u64)>,
    refusals: Vec<u64>,
}

impl History {
    fn set(&mut self, at: u64, in_flight: u64) {
        self.in_flight = in_flight;
        self.changes.push((at, in_flight));
    }

    /// The most in flight since a moment.
    fn most_since(&self, from: u64) -> u64 {
        let before = self.changes.iter().rev().find(|(at, _)| *at < from).map_or(0, |change| change.1);
        let since = self.changes.iter().filter(|(at, _)| *at >= from).map(|change| change.1);
        since.max().unwrap_or(0).max(before)
    }

    fn refusals_since(&self, from: u64) -> u64 {
        self.refusals.iter().filter(|at| **at >= from).count() as u64
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Without a queue, each decision beside a plain history: a class is admitted as long as it has less in flight than
    /// at any moment of the last second, up to its floor; and refused only for its `most`, or for slots that others
    /// had, or were refused, within a second and a quarter.
    #[test]
    fn decisions_follow_the_history_of_each_class(
        max in 4_u64..14,
        lend in prop_oneof![Just(100_u32), 0_u32..=100],
        steps in prop::collection::vec((0_u64..120, 0_u8..3, 0_u8..7), 1..300),
    ) {
        let limit = Limit::new(LimitId(0), &shared_slots(concurrency(max as u32), shares(lend, 60)), 1000);
        let mut classes: [History; CLASSES] = Default::default();
        let (floors, mosts) = ([max / 2, max * 3 / 10, 0], [max, (max * 8).div_ceil(10), (max * 6).div_ceil(10)]);
        let mut now = START;
        for (gap, class, action) in steps {
            now += gap * MS;
            let own = usize::from(class);
            let key = CounterKey { class, ..key(1) };
            let in_flight = classes[own].in_flight;
            if action < 2 && in_flight > 0 {
                limit.release_slots(0, &key, 1, false, || Now(now));
                classes[own].set(now, in_flight - 1);
            }
            if action < 2 {
                continue;
            }
            let grant = limit.acquire_slots(0, &key, 1, false, Now(now));
            let total: u64 = classes.iter().map(|class| class.in_flight).sum();
            let kept_by_others: u64 = (0..CLASSES).filter(|other| *other != own).map(|other| {
                let (one, since) = (&classes[other], now - 1_250 * MS);
                let not_lent = floors[other] - floors[other] * u64::from(lend) / 100;
                let need = one.most_since(since) + one.refusals_since(since);
                need.min(floors[other]).max(not_lent).saturating_sub(one.in_flight)
            }).sum();
            let had = classes[own].most_since(now - SECOND).min(floors[own]);
            match grant {
                Some(_) => {
                    prop_assert!(total < max && in_flight < mosts[own]);
                    classes[own].set(now, in_flight + 1);
                }
                None => {
                    prop_assert!(in_flight >= had, "class {} had {} of {}", class, had, floors[own]);
                    let none_left = total + kept_by_others >= max;
                    prop_assert!(none_left || in_flight >= mosts[own], "{} free for class {}", max - total, class);
                    classes[own].refusals.push(now);
                }
            }
        }
    }
}

/// Costs above 1 wait until so many are free, and are not overtaken for ever.
#[test]
fn many_slots_at_once_are_bounded_by_the_class() {
    let limit = Limit::new(LimitId(0), &shared_slots(slots(20, 9, None), shares(50, 60)), 1000);
    // Silver never has more than 16, and leaves gold the 5 slots that are not lent.
    let most = |class| limit.max_units(0, class);
    assert_eq!((most(GOLD), most(SILVER), most(DEFAULT)), (17, 15, 12));
}

/// A look finds what the class can take: its own slots and the common ones, up to its `most`.
#[test]
fn a_look_tells_the_slots_of_the_class() {
    let limit = Arc::new(Limit::new(LimitId(0), &shared_slots(concurrency(10), shares(0, 60)), 1000));
    let free = |class: u8| {
        let key = CounterKey { class, ..key(1) };
        limit.peek_slots(0, &sluicegate_limit::Units { key, ..units(1, 1) }, Now(START)).free
    };
    let take = |class: u8| {
        let key = CounterKey { class, ..key(1) };
        limit.acquire_slots(0, &key, 1, false, Now(START)).map(|grant| grant.free)
    };
    assert_eq!([free(GOLD), free(SILVER), free(DEFAULT)], [7, 5, 2]);
    assert_eq!(
        [take(SILVER), take(DEFAULT), take(DEFAULT), take(DEFAULT)],
        [Some(4), Some(1), Some(0), None]
    );
    assert_eq!([free(GOLD), free(SILVER), free(DEFAULT)], [5, 2, 0]);
}

/// A dry run counts as many more in flight as would wait, of any class, and acts on none.
#[test]
fn a_dry_run_counts_those_that_would_wait() {
    let config = LimitConfig { dry_run: true, ..shared_slots(slots(10, 3, None), shares(0, 60)) };
    let limit = Limit::new(LimitId(0), &config, 1000);
    let take = |class: u8| {
        let key = CounterKey { class, ..key(1) };
        limit.acquire_slots(0, &key, 1, false, Now(START)).map(|grant| grant.waits)
    };
    let taken: Vec<_> = (0..14).map(|_| take(DEFAULT)).collect();
    assert_eq!((&taken[..2], &taken[2..13]), (&[Some(false); 2][..], &[Some(true); 11][..]));
    assert_eq!((taken[13], take(GOLD)), (None, None));
}

/// After a reload with another list of classes the sum stays exact, and nobody is thrown out.
#[test]
fn another_list_of_classes_keeps_the_sum() {
    paused(async {
        let before =
            Arc::new(Limit::new(LimitId(0), &shared_slots(slots(10, 10, None), shares(100, 100)), 1000));
        let take = |limit: &Limit, class: u8| {
            limit.acquire_slots(0, &CounterKey { class, ..key(1) }, 1, false, Now::read_clock())
        };
        for class in [GOLD, GOLD, SILVER, DEFAULT, DEFAULT, DEFAULT] {
            assert!(take(&before, class).is_some());
        }
        let two = Shares { classes: shares(100, 100).classes.split_off(1), ..shares(100, 100) };
        let limit =
            Limit::continue_from(Some(&before), LimitId(0), &shared_slots(slots(8, 10, None), two), 1000);
        limit.apply_numbers(&Now::read_clock);
        assert_eq!(limit.slots_in_use(0, &key(1)), 6);
        assert!(take(&limit, 1).is_some() && take(&limit, 0).is_some() && take(&limit, 0).is_none());
        for (class, left) in [(DEFAULT, 7), (DEFAULT, 6), (SILVER, 5), (GOLD, 4)] {
            before.release_slots(0, &CounterKey { class, ..key(1) }, 1, false, Now::read_clock);
            assert_eq!(limit.slots_in_use(0, &key(1)), left);
        }
    });
}

/// A counter whose class memory has faded makes room for another key.
#[test]
fn keys_leave_the_table_when_nothing_is_kept_any_more() {
    let limit = Limit::new(LimitId(0), &shared_slots(concurrency(4), shares(100, 100)), 1);
    let take = |id, at: u64| limit.acquire_slots(0, &key(id), 1, false, Now(START + at)).unwrap();
    let grant = take(1, 0);
    assert!(!grant.overflow);
    limit.release_slots(0, &key(1), 1, false, || Now(START));
    assert!(take(2, SECOND / 2).overflow, "the first key has slots kept for it");
    limit.release_slots(0, &key(2), 1, true, || Now(START + SECOND / 2));
    assert!(!take(2, 2 * SECOND).overflow);
}
