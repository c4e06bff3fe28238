//! Departures that nobody waits for any more, and that the store did not take back, because it had handed out later
//! ones meanwhile. The next requests use them, each once and never early, so the rate holds.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

use super::ahead::Demands;
use super::{Departure, Departures, SharedKey};
use crate::script::rule_shape::RuleShape;
use sluicegate_base::clock::Now;
use sluicegate_limit::algorithm::queue::ClassQueue;

/// Spare departures of one rate at most; further ones lapse.
const SPARES_MAX: usize = 8_192;

/// The spare departures of one rate.
#[derive(Default)]
pub(super) struct Spares {
    /// The numbers that they were handed out by; `None` = none are kept.
    shape: Option<RuleShape>,
    /// By key, cost and time; with the mark, and the moment at which the bucket is empty, as far as is known.
    departures: BTreeMap<([u8; 16], u64, Now), (u64, Now)>,
    /// Of a leased queue.
    pub(super) demands: Demands,
}

// === impl Departures ===

impl Departures {
    /// Names the numbers by which spare departures are kept; those by others lapse. `None` = none are kept.
    pub(crate) fn set_spare_shape(&self, shape: Option<RuleShape>) {
        self.update_spares(|spares| {
            if spares.shape != shape {
                *spares = Spares { shape, ..Spares::default() };
            }
        });
    }

    /// The number of spare departures that are still to come.
    pub(crate) fn kept_count(&self, now: Now) -> u64 {
        self.spares.lock().departures.keys().filter(|(.., due)| *due > now).count() as u64
    }

    /// Keeps a departure until it is due; a waiter with a later one moves up, and leaves its own instead.
    pub(crate) fn keep_spare(
        &self,
        shape: RuleShape,
        key: SharedKey,
        departure: Departure,
        (empty_at, now): (Now, Now),
    ) {
        self.update_queues(|waiters, wakers| {
            if departure.due <= now || self.spares.lock().shape != Some(shape) {
                return;
            }
            let mut spare = departure;
            let is_later = |other: &Departure| other.cost == departure.cost && other.due > departure.due;
            if let Some(entry) = waiters.by_key.get_mut(&key)
                && let Some(later) = entry.remove_last(is_later)
            {
                spare = later;
                if entry.insert_departure(departure) {
                    ClassQueue::wake_next(&entry.classes, &waiters.queues, wakers);
                }
            }
            self.update_spares(|spares| spares.insert(key, spare, empty_at, now));
        });
    }

    /// Takes the earliest spare departure of a key and cost that is still to come, with the moment at which the bucket
    /// is empty.
    pub(crate) fn take_spare(
        &self,
        shape: RuleShape,
        (key, cost): (SharedKey, u64),
        now: Now,
    ) -> Option<(Departure, Now)> {
        if self.spare_count.load(Relaxed) == 0 {
            return None;
        }
        self.update_spares(|spares| {
            let due = spares.find(shape, (key, cost), now)?;
            let (mark, empty_at) = spares.departures.remove(&(key.0, cost, due))?;
            Some((Departure { due, cost, mark }, empty_at))
        })
    }

    /// True if [`Departures::take_spare`] has one.
    pub(crate) fn has_spare(&self, shape: RuleShape, of: (SharedKey, u64), now: Now) -> bool {
        self.spare_count.load(Relaxed) > 0 && self.spares.lock().find(shape, of, now).is_some()
    }

    /// Ends the spare departures of a key.
    pub(crate) fn forget_spares(&self, key: &SharedKey) {
        if self.spare_count.load(Relaxed) > 0 {
            self.update_spares(|spares| spares.departures.retain(|(own, ..), _| *own != key.0));
        }
    }

    fn update_spares<R>(&self, update: impl FnOnce(&mut Spares) -> R) -> R {
        let mut spares = self.spares.lock();
        let result = update(&mut spares);
        self.spare_count.store(spares.departures.len(), Relaxed);
        result
    }
}

// === impl Spares ===

impl Spares {
    fn insert(&mut self, key: SharedKey, Departure { due, cost, mark }: Departure, empty_at: Now, now: Now) {
        if self.departures.len() >= SPARES_MAX {
            self.departures.retain(|(.., due), _| *due > now);
        }
        if self.departures.len() < SPARES_MAX {
            self.departures.insert((key.0, cost, due), (mark, empty_at));
        }
    }

    /// The moment of the earliest departure that is still to come, and within the longest wait.
    fn find(&self, shape: RuleShape, (key, cost): (SharedKey, u64), now: Now) -> Option<Now> {
        let RuleShape::LeakyBucket { num, queue, .. } = self.shape.filter(|own| *own == shape)? else {
            return None;
        };
        let first = now.0.saturating_add(1);
        let last = first.saturating_add((queue.wait_max / num).saturating_mul(1_000));
        let own = |due| (key.0, cost, Now(due));
        let (&(.., due), _) = self.departures.range(own(first)..=own(last)).next()?;
        Some(due)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::num::NonZeroU64;
    use std::sync::Arc;
    use std::task::Waker;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::departures::DepartureTicket;
    use crate::tests::test_limit;
    use crate::{RateAnswer, SharedLimit, StoreUnits};
    use sluicegate_limit::{Decision, LimitOutcome, Turn};
    use sluicegate_model::{Algorithm, LeakyBucketRate, LimitConfig, LimitId, OnFailure, Rate};

    const KEY: SharedKey = SharedKey([7; 16]);
    /// Units per second, with a period of 7,633 microseconds and a fraction.
    const RATE: u64 = 131;
    const QUEUE: u64 = 30;
    const STEP_US: u64 = 200;

    fn limit(burst: u64, leased: bool) -> Arc<SharedLimit> {
        let rate = Rate::new(NonZeroU64::new(RATE).unwrap(), Duration::from_secs(1));
        let rates = vec![LeakyBucketRate { rate, burst, queue: QUEUE }];
        let config = test_limit("a", Algorithm::LeakyBucket { rates, max_wait: None });
        let config = LimitConfig { leased, ..config };
        let limit = SharedLimit::new(LimitId(0), &config, OnFailure::Local, 10);
        limit.apply_numbers(&|| Now(0));
        Arc::new(limit)
    }

    /// The bucket as the script counts it, in ticks: a million in a unit, `RATE` in a microsecond.
    #[derive(Default)]
    struct Bucket {
        empty_at: u64,
    }

    impl Bucket {
        fn level(&self, us: u64) -> u64 {
            self.empty_at.saturating_sub(us * RATE)
        }

        /// Judges one departure, and hands out so many.
        fn take(&mut self, us: u64, cost: u64, count: u64, burst: u64) -> RateAnswer {
            let level = self.level(us);
            let wait = level.saturating_sub((burst - 1) * 1_000_000);
            let admitted = wait <= QUEUE * 1_000_000;
            if admitted {
                self.empty_at = us * RATE + level + count * cost * 1_000_000;
            }
            let outcome = match (admitted, wait) {
                (false, _) => LimitOutcome::Reject,
                (_, 0) => LimitOutcome::Admit,
                _ => LimitOutcome::Wait,
            };
            let (wait_ns, full_ns) = (wait.div_ceil(RATE) * 1_000, self.level(us).div_ceil(RATE) * 1_000);
            let decision = Decision { wait_ns, full_ns, ..Decision::without_numbers(outcome) };
            let mark = if admitted { self.empty_at / RATE } else { 0 };
            RateAnswer::of_units(decision, mark)
        }

        /// The level found.
        fn refund(&mut self, us: u64, cost: u64, mark: u64) -> u64 {
            let found = self.level(us);
            if self.empty_at / RATE == mark && found > 0 {
                self.empty_at -= cost * 1_000_000;
            }
            found
        }
    }

    struct Gateway {
        limit: Arc<SharedLimit>,
        waiting: VecDeque<(DepartureTicket, u64)>,
        /// Departures on their way back, with the time of their arrival.
        refunds: Vec<(u64, StoreUnits)>,
    }

    /// What happened: the moments of departures with their costs, how many spare ones were used, and the questions to
    /// the store.
    #[derive(Default)]
    struct Log {
        left: Vec<(u64, u64)>,
        spares_used: usize,
        calls: usize,
    }

    /// Each step is a gateway, what one of its clients does (asks, or leaves), a cost, and the time until the next.
    fn run(steps: &[(usize, u8, u64, u64)], burst: u64, leased: bool) -> Log {
        let mut gateways: Vec<Gateway> = (0..2)
            .map(|_| Gateway { limit: limit(burst, leased), waiting: VecDeque::new(), refunds: Vec::new() })
            .collect();
        let (mut bucket, mut log, mut us) = (Bucket::default(), Log::default(), 1_000_000);
        let end = [(0, u8::MAX, 1, 5_000)];
        for &(gateway, act, cost, pause) in steps.iter().chain(&end) {
            gateways[gateway].act(act, cost, us, &mut bucket, burst, &mut log);
            for _ in 0..pause {
                us += STEP_US;
                gateways.iter_mut().for_each(|gateway| gateway.advance(us, &mut bucket, &mut log));
            }
        }
        assert!(gateways.iter().all(|gateway| gateway.waiting.is_empty()));
        log
    }

    impl Gateway {
        fn act(&mut self, act: u8, cost: u64, us: u64, bucket: &mut Bucket, burst: u64, log: &mut Log) {
            let (own, now) = (&self.limit.departures[0], Now(us * 1_000));
            if act == u8::MAX {
            } else if act < 60 && !self.waiting.is_empty() {
                let (ticket, cost) = self.waiting.remove(usize::from(act) % self.waiting.len()).unwrap();
                if let Some(Departure { mark, .. }) = own.leave_queue(&KEY, ticket) {
                    let (limit, rate, key, anchor, class) = (self.limit.clone(), 0, KEY, None, 0);
                    let back = StoreUnits { limit, rate, key, cost, mark, anchor, class };
                    self.refunds.push((us + u64::from(act) * 50, back));
                }
            } else {
                let spare = self.limit.take_spare(0, (KEY, cost), now);
                log.spares_used += usize::from(spare.is_some());
                let answer = spare.unwrap_or_else(|| self.ask(cost, us, bucket, burst, log));
                match answer.decision.outcome {
                    LimitOutcome::Reject => {}
                    LimitOutcome::Admit => log.left.push((us, cost)),
                    LimitOutcome::Wait => {
                        let due = Now(now.0 + answer.decision.wait_ns);
                        let departure = Departure { due, cost, mark: answer.mark };
                        self.waiting.push_back((own.join_queue(KEY, departure, (0, 0), None, None), cost));
                    }
                }
            }
        }

        fn ask(&self, cost: u64, us: u64, bucket: &mut Bucket, burst: u64, log: &mut Log) -> RateAnswer {
            log.calls += 1;
            let (limit, now) = (&self.limit, Now(us * 1_000));
            let count = limit.departures_to_ask(0, (KEY, cost), now);
            let mut answer = bucket.take(us, cost, count, burst);
            limit.share_out(0, (KEY, cost), count, (&mut answer, us), now);
            answer
        }

        fn advance(&mut self, us: u64, bucket: &mut Bucket, log: &mut Log) {
            let now = Now(us * 1_000);
            self.refunds.retain(|(at, units)| {
                let is_due = *at <= us;
                if is_due {
                    let level = bucket.refund(us, units.cost, units.mark);
                    units.keep_spare((us, level), now);
                }
                !is_due
            });
            let own = &self.limit.departures[0];
            self.waiting.retain(|(ticket, cost)| {
                let goes = own.poll_turn(&KEY, *ticket, now, Waker::noop()).0 == Turn::Go;
                if goes {
                    log.left.push((us, *cost));
                }
                !goes
            });
        }
    }

    /// The times conform to the bucket, each late by a step and the rounding of three microseconds at most.
    fn assert_paced(log: &mut Log, burst: u64) {
        log.left.sort_unstable();
        let mut empty_at = 0;
        for &(us, cost) in &log.left {
            let (ticks, late) = ((us + STEP_US + 3) * RATE, (burst - 1) * 1_000_000);
            assert!(empty_at <= ticks + late, "at {us}: {:?}", log.left);
            empty_at = empty_at.max(us * RATE) + cost * 1_000_000;
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// However many waiters leave, the departures of two gateways keep the rate of one bucket.
        #[test]
        fn each_departure_is_used_once_and_never_early(
            steps in proptest::collection::vec((0..2usize, 0..160u8, 1..3u64, 0..50u64), 0..300),
            burst in 1..4u64,
            leased: bool,
        ) {
            assert_paced(&mut run(&steps, burst, leased), burst);
        }
    }

    #[test]
    fn most_departures_of_waiters_that_leave_are_used() {
        let asks = (0..600).map(|n| (n % 2, if n % 3 == 0 { 9 } else { 200 }, 1, 12));
        let mut log = run(&asks.collect::<Vec<_>>(), 1, false);
        assert_paced(&mut log, 1);
        let whole = (log.left.last().unwrap().0 - log.left[0].0) * RATE / 1_000_000 + 1;
        assert!(log.spares_used > 20, "{} used", log.spares_used);
        assert!(log.left.len() as u64 * 100 >= whole * 98, "{} of {whole}", log.left.len());
    }

    /// While requests wait, a leased queue takes many departures with a call, of which few lapse.
    #[test]
    fn a_leased_queue_asks_seldom() {
        // About twice the rate, first at both gateways, then at one.
        let asks = |n: usize| (if n < 1_000 { n % 2 } else { 0 }, 200, 1, 17 + n as u64 % 5);
        let asks: Vec<_> = (0..2_000).map(asks).collect();
        let (mut log, exact) = (run(&asks, 1, true), run(&asks, 1, false));
        assert_paced(&mut log, 1);
        let (taken, all) = (log.left.len(), exact.left.len());
        assert!(taken * 100 >= all * 97, "{taken} of {all} left");
        assert!(log.spares_used * 10 >= taken * 7, "{} of {taken} asked nobody", log.spares_used);
    }

    #[test]
    fn a_gateway_asks_for_the_requests_until_the_next_departure() {
        let (limit, of) = (limit(1, true), (KEY, 1));
        let at = |ms: u64| Now(ms * 1_000_000);
        // A thousand in a second: 57 in a term, which is a quarter of the 229 ms of the whole queue.
        for ms in 0..200 {
            assert!(limit.take_spare(0, of, at(ms)).is_none());
        }
        assert_eq!(limit.departures_to_ask(0, of, at(200)), 1, "no request waits");
        let note = |wait_ms: u64, count| {
            let decision =
                Decision { full_ns: at(wait_ms).0, ..Decision::without_numbers(LimitOutcome::Wait) };
            limit.note_departures(0, of, count, &RateAnswer::of_units(decision, 1), at(200));
        };
        note(4, 1);
        assert_eq!(limit.departures_to_ask(0, of, at(200)), 3);
        assert_eq!(limit.departures_to_ask(0, of, at(201)), 1, "a call is under way");
        note(200, 3);
        assert_eq!(limit.departures_to_ask(0, of, at(201)), 7, "a quarter of the queue");
        assert_eq!(limit.departures_to_ask(0, of, at(202)), 1);
        assert_eq!(limit.departures_to_ask(0, (KEY, 2), at(300)), 1);
    }

    #[test]
    fn spares_end_with_their_numbers_their_key_and_their_time() {
        let (limit, now) = (limit(1, false), Now(1_000));
        let (own, shape) = (&limit.departures[0], limit.rules[0].shape);
        let keep = |due| {
            own.keep_spare(shape, KEY, Departure { due: Now(due), cost: 1, mark: due }, (Now(due), now))
        };
        let find = |key, cost, at| own.has_spare(shape, (key, cost), Now(at));
        keep(5_000);
        assert!(find(KEY, 1, 4_999) && !find(KEY, 1, 5_000), "none is late");
        keep(1_000_000_000);
        assert!(!find(KEY, 1, 5_000), "it is later than the longest wait");
        assert!(!find(KEY, 2, 2_000) && !find(SharedKey([8; 16]), 1, 2_000));
        own.forget_spares(&KEY);
        assert!(!find(KEY, 1, 2_000));
        keep(5_000);
        own.set_spare_shape(None);
        assert!(!find(KEY, 1, 2_000));
        keep(5_000);
        assert!(!find(KEY, 1, 2_000), "a pause keeps none");
        own.set_spare_shape(Some(shape));
        for due in 0..SPARES_MAX as u64 + 5 {
            keep(5_000 + due);
        }
        assert_eq!(own.spare_count.load(Relaxed), SPARES_MAX);
        own.keep_spare(
            shape,
            KEY,
            Departure { due: Now(90_000), cost: 1, mark: 1 },
            (Now(90_000), Now(80_000)),
        );
        assert_eq!(own.spare_count.load(Relaxed), 1, "late ones make room");
    }

    /// A waiter with a later departure moves up to a spare one.
    #[test]
    fn a_waiter_moves_up_to_a_spare_departure() {
        let (limit, now) = (limit(1, false), Now(1_000));
        let (own, shape) = (&limit.departures[0], limit.rules[0].shape);
        let departure = |due| Departure { due: Now(due), cost: 1, mark: due };
        let ticket = own.join_queue(KEY, departure(9_000), (0, 0), None, None);
        own.keep_spare(shape, KEY, departure(5_000), (Now(9_500), now));
        assert_eq!(own.poll_turn(&KEY, ticket, Now(4_999), Waker::noop()).0, Turn::Due(Now(5_000)));
        assert_eq!(own.take_spare(shape, (KEY, 1), now), Some((departure(9_000), Now(9_500))));
        assert_eq!(own.take_spare(shape, (KEY, 1), now), None);
    }
}
