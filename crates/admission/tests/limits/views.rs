//! Places of chains that use one limit with other numbers, against plain models of one shared counter.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use sluicegate_admission::chain::LimitDemand;
use sluicegate_base::clock::{ClockShift, Now};
use sluicegate_limit::{Limit, LimitOutcome, Units};
use sluicegate_model::{self as model, Algorithm, LimitId, ViewId};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep_until};

use crate::model::QueueModel;
use crate::support::*;

/// A limit with its own numbers and those of further places.
fn config_of(places: &[Algorithm]) -> model::LimitConfig {
    model::LimitConfig { views: places[1..].to_vec(), ..config(places[0].clone()) }
}

fn gate_of(places: &[Algorithm]) -> Gate {
    Gate::new(vec![Arc::new(Limit::new(LimitId(0), &config_of(places), 1000))])
}

fn tokens(units: u64, period: u64, bursts: &[u64]) -> Vec<Algorithm> {
    bursts.iter().map(|burst| token(units, period, *burst)).collect()
}

/// The variant of a place: the first is the limit itself.
fn variant(place: usize) -> usize {
    place.checked_sub(1).map_or(0, |view| config_of(&[token(1, 1, 1)]).view_variant(ViewId(view)))
}

impl Gate {
    fn judge_at(&self, place: usize, at: u64, id: u128, cost: u64) -> Judgement {
        let ask = |_: &Limit| LimitDemand::Units(Units { variant: variant(place), ..units(id, cost) });
        self.chain.judge_request(Now(START + at), &self.waiting, ask)
    }

    /// The remaining units after an admission, or the retry of a rejection.
    fn send_at(&self, place: usize, at: u64, id: u128, cost: u64) -> Result<u64, u64> {
        let judgement = self.judge_at(place, at, id, cost);
        let decision = judgement.decisions[0].decision;
        match judgement.verdict {
            Verdict::Admit(mut permit) => {
                permit.keep_charges();
                Ok(decision.remaining)
            }
            Verdict::Reject(rejection) => Err(rejection.retry_after_ns.unwrap_or(u64::MAX)),
        }
    }

    fn pass_at(&self, place: usize, at: u64, times: usize) -> usize {
        (0..times).filter(|_| self.send_at(place, at, 1, 1).is_ok()).count()
    }
}

/// What one key has used, in units of 1/period: every place compares it with a burst of its own.
struct UsedModel {
    units: u128,
    period: u128,
    used: u128,
    at: u64,
}

impl UsedModel {
    fn new(units: u64, period: u64) -> UsedModel {
        UsedModel { units: units.into(), period: period.into(), used: 0, at: 0 }
    }

    /// The units that remain at a place after taking `cost`, or the nanoseconds until they fit there.
    fn take(&mut self, at: u64, cost: u64, burst: u64) -> Result<u64, u64> {
        self.run(at);
        let (cost, room) = (u128::from(cost) * self.period, u128::from(burst) * self.period);
        if self.used + cost > room {
            let excess = self.used + cost - room;
            return Err(excess.div_ceil(self.units) as u64);
        }
        self.used += cost;
        Ok(((room - self.used) / self.period) as u64)
    }

    fn give_back(&mut self, cost: u64) {
        self.used -= u128::from(cost) * self.period;
    }

    /// After a reload no more can be used than the greatest burst.
    fn cap(&mut self, at: u64, burst_max: u64) {
        self.run(at);
        self.used = self.used.min(u128::from(burst_max) * self.period);
    }

    fn run(&mut self, at: u64) {
        self.used = self.used.saturating_sub(self.units * u128::from(at - self.at));
        self.at = at;
    }
}

#[test]
fn two_places_share_one_bucket_and_judge_by_their_own_burst() {
    let gate = gate_of(&tokens(10, SECOND, &[5, 20]));
    assert_eq!(gate.pass_at(0, 0, 9), 5);
    assert_eq!(gate.pass_at(1, 0, 30), 15, "five of its twenty are used");
    // Sixteen have to leave before one more fits at the narrow place.
    assert_eq!(gate.send_at(0, 0, 1, 1), Err(1600 * MS));
    assert_eq!(gate.send_at(1, 0, 1, 1), Err(100 * MS));
    assert_eq!(gate.send_at(1, 100 * MS, 1, 1), Ok(0));
    assert_eq!(gate.send_at(0, 1699 * MS, 1, 1), Err(MS));
    assert_eq!(gate.send_at(0, 1700 * MS, 1, 1), Ok(0));
    // Another key has a counter of its own, at both places.
    assert_eq!((gate.send_at(0, 0, 2, 1), gate.send_at(1, 0, 2, 1)), (Ok(4), Ok(18)));
    assert_eq!(gate.chain.limits()[0].key_count(), 2);
}

#[test]
fn several_rates_each_have_a_burst_of_the_place() {
    let both = |short, long| match (token(10, SECOND, short), token(60, 60 * SECOND, long)) {
        (Algorithm::TokenBucket { rates: one }, Algorithm::TokenBucket { rates: two }) => {
            Algorithm::TokenBucket { rates: [one, two].concat() }
        }
        other => panic!("{other:?}"),
    };
    let gate = gate_of(&[both(5, 60), both(8, 10)]);
    assert_eq!(gate.pass_at(0, 0, 9), 5);
    assert_eq!(gate.pass_at(1, 0, 9), 3, "eight of the short burst");
    assert_eq!(gate.pass_at(1, SECOND, 9), 3, "one of the long rate has left, and three fit its ten");
    assert_eq!(gate.pass_at(0, SECOND, 9), 2);
}

#[test]
fn a_request_above_the_burst_of_its_place_can_never_pass_there() {
    let gate = gate_of(&tokens(10, SECOND, &[5, 20]));
    assert_eq!(gate.send_at(0, 0, 1, 6), Err(u64::MAX));
    assert_eq!(gate.send_at(1, 0, 1, 6), Ok(14));
}

/// An entry of the widest place counts as long as that place needs it, although the others would be whole before.
#[test]
fn a_full_table_keeps_what_the_widest_place_still_counts() {
    let limit = Arc::new(Limit::new(LimitId(0), &config_of(&tokens(1, SECOND, &[2, 60])), 1));
    let gate = Gate::new(vec![limit]);
    assert_eq!(gate.pass_at(1, 0, 99), 60);
    // The only slot is not idle, so another key shares an overflow counter.
    assert_eq!(gate.send_at(0, 30 * SECOND, 7, 1), Ok(1));
    assert_eq!(gate.chain.limits()[0].overflow_count(), 1);
    assert_eq!(gate.pass_at(1, 30 * SECOND, 99), 30);
    assert_eq!(gate.send_at(0, 200 * SECOND, 8, 1), Ok(1));
    assert_eq!((gate.chain.limits()[0].overflow_count(), gate.chain.limits()[0].key_count()), (1, 1));
}

#[test]
fn an_operator_resets_a_key_for_all_places_at_once() {
    let gate = gate_of(&tokens(1, SECOND, &[5, 9]));
    gate.pass_at(1, 0, 9);
    let limit = &gate.chain.limits()[0];
    let rates = limit.rates_of(None).expect("all rates");
    assert_eq!(limit.reset_key(rates, &key(1), Now(START)).expect("a counter of its own").counters, 1);
    assert_eq!((gate.pass_at(0, 0, 9), gate.pass_at(1, 0, 9)), (5, 4));
}

#[test]
fn a_snapshot_holds_one_table_that_another_set_of_places_finds() {
    let (old, new) = (gate_of(&tokens(1, SECOND, &[5, 9])), gate_of(&tokens(1, SECOND, &[5, 7, 30])));
    assert_eq!(old.pass_at(1, 0, 20), 9);
    let tables = |gate: &Gate| gate.chain.limits()[0].rate_tables().len();
    assert_eq!((tables(&old), tables(&new)), (1, 1));
    let (from, to) = (old.chain.limits()[0].rate_tables(), new.chain.limits()[0].rate_tables());
    assert_eq!(from[0].fingerprint, to[0].fingerprint);
    for block in 0..from[0].table.block_count() {
        let mut bytes = vec![];
        from[0].table.encode_block(block, Now(START), &mut bytes);
        to[0].table.restore_block(&bytes, ClockShift::new(Now(START), 0, Now(START)), Now(START));
    }
    assert_eq!(new.send_at(0, 0, 1, 1), Err(5 * SECOND));
    assert_eq!(new.pass_at(2, 0, 99), 21);
}

#[test]
fn a_reload_that_adds_alters_or_removes_a_place_keeps_the_counters() {
    let reload = |gate: &Gate, places: &[Algorithm]| gate.reloaded(0, &config_of(places), 1000);
    let plain = gate_of(&tokens(1, SECOND, &[5]));
    assert_eq!(plain.pass_at(0, 0, 9), 5);
    let added = reload(&plain, &tokens(1, SECOND, &[5, 12]));
    assert_eq!(added.pass_at(1, 0, 99), 7);
    let altered = reload(&added, &tokens(1, SECOND, &[5, 15]));
    assert_eq!(altered.pass_at(1, 0, 99), 3);
    // A request of the gateway before is judged by the burst of its own place.
    assert_eq!(added.send_at(1, 0, 1, 1), Err(4 * SECOND));
    let other_rate = reload(&altered, &tokens(2, SECOND, &[5, 15]));
    assert_eq!(other_rate.send_at(1, 0, 1, 1), Err(500 * MS));
    assert_eq!(added.send_at(1, 0, 1, 1), Err(2 * SECOND), "and by the rate in force");
    // Without the place, no more than the limit's own burst is used.
    let removed = reload(&other_rate, &tokens(2, SECOND, &[5]));
    assert_eq!(removed.send_at(0, 0, 1, 1), Err(500 * MS));
    let back = reload(&removed, &tokens(2, SECOND, &[5, 15]));
    assert_eq!(back.pass_at(1, 0, 99), 10);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    /// Arrivals at two or three places, refunds, and reloads that alter the places.
    #[test]
    fn places_are_those_of_one_plain_counter(
        (count, period) in (1..30u64, prop_oneof![Just(SECOND), Just(60 * SECOND), 1..3 * SECOND]),
        mut bursts in proptest::collection::vec(1..40u64, 2..4),
        traffic in proptest::collection::vec(
            (prop_oneof![Just(0), 0..300 * MS, 0..5 * SECOND], 0..3usize, 1..4u64, 0..12u8, 1..40u64), 1..120),
    ) {
        let mut gate = gate_of(&tokens(count, period, &bursts));
        let mut model = UsedModel::new(count, period);
        let mut at = 0;
        for (gap, place, cost, fate, burst) in traffic {
            at += gap;
            let place = place % bursts.len();
            if fate == 0 {
                // A place is altered, and at times added or removed.
                match burst % 3 {
                    0 if bursts.len() > 2 => drop(bursts.pop()),
                    1 if bursts.len() < 4 => bursts.push(burst),
                    _ => bursts[place] = burst,
                }
                let places = tokens(count, period, &bursts);
                gate = gate.reloaded(at, &config_of(&places), 1000);
                model.cap(at, *bursts.iter().max().unwrap());
                continue;
            }
            if cost > bursts[place] {
                prop_assert_eq!(gate.send_at(place, at, 1, cost), Err(u64::MAX));
                continue;
            }
            if fate == 1 {
                // It leaves before it was forwarded.
                let expected = model.take(at, cost, bursts[place]);
                let judgement = gate.judge_at(place, at, 1, cost);
                prop_assert_eq!(matches!(judgement.verdict, Verdict::Admit(_)), expected.is_ok());
                if expected.is_ok() {
                    model.give_back(cost);
                }
                continue;
            }
            prop_assert_eq!(gate.send_at(place, at, 1, cost), model.take(at, cost, bursts[place]));
        }
    }

    /// Whatever places one key asks at, no more than the greatest burst and the rate pass in any span.
    #[test]
    fn all_places_together_keep_the_rate(
        bursts in proptest::collection::vec(1..20u64, 2..4),
        traffic in proptest::collection::vec((0..200 * MS, 0..3usize), 1..150),
    ) {
        let gate = gate_of(&tokens(10, SECOND, &bursts));
        let (mut at, mut passed) = (0, vec![]);
        for (gap, place) in traffic {
            at += gap;
            if gate.send_at(place % bursts.len(), at, 1, 1).is_ok() {
                passed.push(at);
            }
        }
        let most = *bursts.iter().max().unwrap();
        for (first, from) in passed.iter().enumerate() {
            for (last, to) in passed.iter().enumerate().skip(first) {
                let allowed = u128::from(most) * 1_000_000_000 + u128::from(to - from) * 10;
                prop_assert!((last - first + 1) as u128 * 1_000_000_000 <= allowed);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60) })]

    /// Requests to places with queues of several lengths stand in one queue, and some leave it.
    #[test]
    fn queues_of_several_lengths_are_one_plain_queue(
        (burst, queues) in (1..4u64, proptest::collection::vec(0..8u64, 2..4)),
        events in proptest::collection::vec(
            (0..8u64, 0..3usize, proptest::option::weighted(0.3, 0..30usize)), 1..80),
    ) {
        let places: Vec<Algorithm> = queues.iter().map(|queue| leaky(10, SECOND, burst, *queue)).collect();
        let (gate, mut model) = (gate_of(&places), QueueModel::new(100, burst, 0));
        let left: Rc<RefCell<Vec<(u64, u64)>>> = Rc::default();
        let accepted = paused(drive(&gate, &mut model, &queues, &events, left.clone()));
        prop_assert!(accepted, "the two accept the same requests");
        model.run(u64::MAX);
        prop_assert_eq!(&*left.borrow(), &model.left);
        prop_assert_eq!(gate.waiting.count_waiting(), 0);
        prop_assert_eq!(gate.chain.limits()[0].waiter_count(), 0);
    }
}

/// Plays arrivals and leavers on the gate and the model; returns whether they agree on all.
async fn drive(
    gate: &Gate,
    model: &mut QueueModel,
    queues: &[u64],
    events: &[(u64, usize, Option<usize>)],
    left: Rc<RefCell<Vec<(u64, u64)>>>,
) -> bool {
    let start = Instant::now();
    let (mut at, mut tasks) = (0, vec![]);
    for (who, &(gap, place, leaver)) in events.iter().enumerate() {
        at += gap * 10;
        sleep_until(start + Duration::from_millis(at)).await;
        let place = place % queues.len();
        let ask = |_: &Limit| LimitDemand::Units(Units { variant: variant(place), ..units(1, 1) });
        let verdict = gate.chain.judge_request(Now::read_clock(), &gate.waiting, ask).verdict;
        let expected = model.arrive_at(at, who as u64, queues[place] as usize);
        if matches!(verdict, Verdict::Admit(_)) != expected {
            return false;
        }
        if let Verdict::Admit(mut permit) = verdict {
            let left = left.clone();
            let task = spawn_local(async move {
                permit.wait_turn().await.unwrap();
                permit.keep_charges();
                left.borrow_mut().push((start.elapsed().as_millis() as u64, who as u64));
            });
            tasks.push((who, task));
        }
        if let Some(leaver) = leaver
            && !tasks.is_empty()
        {
            sleep_until(start + Duration::from_millis(at + 5)).await;
            let (who, task) = &tasks[leaver % tasks.len()];
            task.abort();
            model.leave(at + 5, *who as u64);
            at += 10;
        }
    }
    sleep_until(start + Duration::from_millis(at + 10_000)).await;
    true
}

#[test]
fn a_place_has_a_longest_wait_of_its_own() {
    let within = |ms| leaky_within(10, SECOND, 1, 50, Some(Duration::from_millis(ms)));
    let gate = gate_of(&[within(300), within(1000)]);
    let outcome = |place| {
        let judgement = gate.judge_at(place, 0, 1, 1);
        let decision = judgement.decisions[0].decision;
        std::mem::forget(judgement.verdict);
        (decision.outcome, decision.wait_ns / MS, decision.retry_after_ns / MS)
    };
    assert_eq!(outcome(0), (LimitOutcome::Admit, 0, 0));
    for wait in [100, 200, 300] {
        assert_eq!(outcome(0), (LimitOutcome::Wait, wait, 0));
    }
    assert_eq!(outcome(0), (LimitOutcome::Reject, 0, 100));
    assert_eq!(outcome(1), (LimitOutcome::Wait, 400, 0));
    assert_eq!(outcome(0), (LimitOutcome::Reject, 0, 200), "it would wait behind those of the other place");
}

#[test]
fn a_dry_run_counts_at_every_place_and_never_rejects() {
    let dry = model::LimitConfig { dry_run: true, ..config_of(&tokens(1, SECOND, &[2, 4])) };
    let gate = Gate::new(vec![Arc::new(Limit::new(LimitId(0), &dry, 1000))]);
    let outcome = |place| {
        let judgement = gate.judge_at(place, 0, 1, 1);
        let outcome = judgement.decisions[0].decision.outcome;
        admitted(judgement).keep_charges();
        outcome
    };
    let (admit, reject) = (LimitOutcome::Admit, LimitOutcome::Reject);
    assert_eq!([0, 0, 0, 1, 1, 1].map(outcome), [admit, admit, reject, admit, admit, reject]);
}

/// Requests in flight at any place count at each of them, which compares them with its own number.
#[test]
fn places_of_one_concurrency_limit_share_its_slots() {
    const PLACES: [u32; 3] = [4, 2, 6];
    let gate = gate_of(&PLACES.map(concurrency));
    let (mut held, mut used, mut refused, mut seed) = (Vec::new(), 0, [0; 3], 7_u64);
    for _ in 0..2000 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let (place, cost, place_in_held) = ((seed >> 33) as usize % 3, 1 + (seed >> 40) % 2, seed >> 48);
        if (seed >> 60) % 2 == 0 && !held.is_empty() {
            let (_, cost) = held.swap_remove(place_in_held as usize % held.len());
            used -= cost;
            continue;
        }
        let verdict = gate.judge_at(place, 0, 1, cost).verdict;
        let fits = used + cost <= u64::from(PLACES[place]);
        assert_eq!(matches!(verdict, Verdict::Admit(_)), fits, "place {place}: {used} and {cost}");
        match verdict {
            Verdict::Admit(permit) => held.push((permit, cost)),
            _ => refused[place] += 1,
        }
        used += if fits { cost } else { 0 };
    }
    assert!(refused.iter().all(|count| *count > 5), "{refused:?}");
}
