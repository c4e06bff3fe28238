//! A queue for slots follows a plain model: never more than the maximum, in arrival order or by turns.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use proptest::prelude::*;
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep};

use crate::slot_queues::{gate, judge};
use crate::support::*;

/// One request: arrival, time in flight and patience in µs, and its `fair_by` value.
#[derive(Debug, Clone, Copy)]
struct Call {
    at: u64,
    hold: u64,
    patience: Option<u64>,
    value: u64,
}

/// When each request began, by number; the others were refused, displaced or gave up.
type Starts = BTreeMap<usize, u64>;

/// A queue in front of slots, written as plainly as possible.
struct SlotModel {
    max: usize,
    queue: usize,
    max_wait: Option<u64>,
    is_fair: bool,
    in_flight: usize,
    /// The values in the order of their turns, with their waiters.
    turns: Vec<(u64, Vec<usize>)>,
    /// (time, is an arrival, number): ends and leavers come first.
    events: BTreeSet<(u64, bool, usize)>,
    starts: Starts,
}

impl SlotModel {
    fn run(mut self, calls: &[Call]) -> Starts {
        self.events = calls.iter().enumerate().map(|(number, call)| (call.at, true, number)).collect();
        while let Some((at, is_arrival, number)) = self.events.pop_first() {
            match self.starts.contains_key(&number) {
                _ if is_arrival => self.arrive(at, number, calls),
                true => self.in_flight -= 1,
                false => self.remove(number),
            }
            while self.in_flight < self.max && !self.turns.is_empty() {
                let (value, mut waiters) = self.turns.remove(0);
                self.start(at, waiters.remove(0), calls);
                if !waiters.is_empty() {
                    self.turns.push((value, waiters));
                }
            }
        }
        assert_eq!(self.in_flight, 0);
        self.starts
    }

    fn start(&mut self, at: u64, number: usize, calls: &[Call]) {
        self.in_flight += 1;
        // Its give-up comes to nothing.
        self.events.retain(|event| event.2 != number);
        self.starts.insert(number, at);
        self.events.insert((at + calls[number].hold, false, number));
    }

    fn arrive(&mut self, at: u64, number: usize, calls: &[Call]) {
        if self.in_flight < self.max && self.turns.is_empty() {
            return self.start(at, number, calls);
        }
        let value = if self.is_fair { calls[number].value } else { 0 };
        let waiting: usize = self.turns.iter().map(|(_, waiters)| waiters.len()).sum();
        let own = self.turns.iter().find(|turn| turn.0 == value).map_or(0, |turn| turn.1.len());
        if waiting >= self.queue {
            let others = self.turns.iter().filter(|turn| turn.0 != value);
            let fullest = others.fold(None, |fullest: Option<&(u64, Vec<usize>)>, turn| match fullest {
                Some(most) if most.1.len() >= turn.1.len() => Some(most),
                _ => Some(turn),
            });
            match fullest.filter(|turn| self.is_fair && turn.1.len() > own) {
                Some(turn) => {
                    let newest = *turn.1.last().unwrap();
                    self.remove(newest);
                }
                None => return,
            }
        }
        match self.turns.iter_mut().find(|turn| turn.0 == value) {
            Some(turn) => turn.1.push(number),
            None => self.turns.push((value, vec![number])),
        }
        let patience = calls[number].patience.into_iter().chain(self.max_wait).min();
        self.events.extend(patience.map(|patience| (at + patience, false, number)));
    }

    fn remove(&mut self, number: usize) {
        self.turns.iter_mut().for_each(|turn| turn.1.retain(|other| *other != number));
        self.turns.retain(|turn| !turn.1.is_empty());
    }
}

/// Runs the calls through a limit; also checks that no more than `max` are ever in flight.
fn run_calls(max: u32, queue: u64, max_wait: Option<u64>, is_fair: bool, calls: &[Call]) -> Starts {
    let algorithm = slots(max, queue, max_wait.map(Duration::from_micros));
    let (gate, calls) = (Rc::new(gate(algorithm, is_fair)), calls.to_vec());
    paused(async move {
        let (start, starts) = (Instant::now(), Rc::new(RefCell::new(Starts::new())));
        let in_flight = Rc::new(Cell::new(0));
        let mut tasks = Vec::new();
        for (number, call) in calls.into_iter().enumerate() {
            let (gate, starts, in_flight) = (gate.clone(), starts.clone(), in_flight.clone());
            tasks.push(spawn_local(async move {
                sleep(Duration::from_micros(call.at)).await;
                let Ok(mut accepted) = judge(&gate, call.value) else { return };
                let waits = async {
                    accepted.wait_turn().await?;
                    accepted.take_slots().await
                };
                let patience = Duration::from_micros(call.patience.unwrap_or(u64::MAX >> 20));
                if !matches!(tokio::time::timeout(patience, waits).await, Ok(Ok(()))) {
                    return;
                }
                starts.borrow_mut().insert(number, start.elapsed().as_micros() as u64);
                in_flight.set(in_flight.get() + 1);
                assert!(in_flight.get() <= max, "{} in flight", in_flight.get());
                sleep(Duration::from_micros(call.hold)).await;
                in_flight.set(in_flight.get() - 1);
            }));
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!((gate.chain.limits()[0].waiter_count(), gate.waiting.count_waiting()), (0, 0));
        assert_eq!(free_slots(&gate.chain.limits()[0]), u64::from(max));
        starts.take()
    })
}

/// No two events of different requests at the same moment: each has its own digits. The timer counts milliseconds.
fn tell_apart(calls: Vec<(u64, u64, Option<u64>, u64)>) -> Vec<Call> {
    let mut at = 0;
    let distinct = |ms: u64, digits: u64| (ms * 1_000 + digits) * 1_000;
    let call = |(index, (gap, hold, patience, value)): (usize, (u64, u64, Option<u64>, u64))| {
        at += gap;
        let digits = index as u64 * 3;
        Call {
            at: distinct(at, digits),
            hold: distinct(hold, 1),
            patience: patience.map(|patience| distinct(patience, 200)),
            value,
        }
    };
    calls.into_iter().enumerate().map(call).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Requests begin exactly when a plain model says so: never more than the maximum, in arrival order or by turns,
    /// and leavers cost nobody anything.
    #[test]
    fn slots_follow_the_model(
        max in 1..4_u32,
        queue in 0..8_u64,
        max_wait in prop::option::of(5..40_u64),
        is_fair in any::<bool>(),
        calls in prop::collection::vec(
            (0..6_u64, 1..30_u64, prop::option::weighted(0.3, 0..30_u64), 0..4_u64),
            1..60,
        ),
    ) {
        let calls = tell_apart(calls);
        let max_wait = max_wait.map(|ms| (ms * 1_000 + 401) * 1_000);
        let model = SlotModel {
            max: max as usize,
            queue: queue as usize,
            max_wait,
            is_fair,
            in_flight: 0,
            turns: Vec::new(),
            events: BTreeSet::new(),
            starts: Starts::new(),
        };
        let expected = model.run(&calls);
        prop_assert_eq!(run_calls(max, queue, max_wait, is_fair, &calls), expected);
    }
}
