//! A backend with a number of workers, and its clients, behind a limit, on a virtual clock.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashSet, VecDeque};

use crate::algorithm::adaptive::{Adaptive, SlotOutcome};
use crate::algorithm::gradient::Bounds;
use sluicegate_base::clock::Now;

pub(super) const MS: u64 = 1_000_000;
pub(super) const SECOND: u64 = 1_000 * MS;

/// Decides how many requests may be in flight.
pub(super) trait Controller {
    fn allowed(&self) -> u64;

    /// One more request is in flight, and so many with it.
    fn admit(&mut self, in_flight: u64);

    /// A request has ended, while so many were in flight with it.
    fn end(&mut self, outcome: SlotOutcome, in_flight: u64, now: Now);
}

impl Controller for Adaptive {
    fn allowed(&self) -> u64 {
        self.allowed_slots()
    }

    fn admit(&mut self, in_flight: u64) {
        self.record_peak(in_flight);
    }

    fn end(&mut self, outcome: SlotOutcome, _: u64, now: Now) {
        self.record_outcome(outcome, now);
    }
}

/// A backend behind a limit. Times are in nanoseconds.
pub(super) struct Simulation<L = Adaptive> {
    pub limit: L,
    pub now: u64,
    pub workers: usize,
    pub service: u64,
    /// Whether service times vary, exponentially, around `service`.
    pub varies: bool,
    /// The backend takes all requests at once, and each takes longer the more there are: nobody queues.
    pub is_crowded: bool,
    /// Requests offered per second, if there are no sequential `clients`.
    pub offered: u64,
    pub clients: u64,
    /// The service time of one request in `other_every`, if it differs.
    pub other: Option<u64>,
    pub other_every: u64,
    /// How long clients wait for an answer; the backend finishes the request regardless.
    pub client_timeout: u64,
    /// Every connect fails.
    pub is_down: bool,
    pub busy: usize,
    /// Requests queued in the backend: the time each was sent, and its number.
    pub queue: VecDeque<(u64, u64)>,
    /// Requests being served: the time each is done, the time it was sent, and its number.
    pub done: BinaryHeap<Reverse<(u64, u64, u64)>>,
    /// The times of the next requests.
    pub arrivals: BinaryHeap<Reverse<u64>>,
    /// The times at which clients give up, and the numbers of their requests.
    pub timeouts: VecDeque<(u64, u64)>,
    /// The numbers of requests with a waiting client, and of abandoned ones.
    pub awaited: HashSet<u64>,
    pub abandoned: HashSet<u64>,
    pub in_flight: u64,
    /// The latencies of all answers, until somebody takes them.
    pub latencies: Vec<u64>,
    pub attempts: u64,
    pub seed: u64,
}

/// The totals of a span.
#[derive(Debug, Default)]
pub(super) struct SimulationTotals {
    pub answered: u64,
    pub rejected: u64,
    /// Requests that were abandoned.
    pub left: u64,
    pub latency_max: u64,
    pub latency_sum: u64,
    pub limit_min: u64,
    pub limit_max: u64,
    pub limit_sum: u64,
    pub steps: u64,
}

impl Simulation {
    pub(super) fn new(min: u32, max: u32, workers: usize, service: u64, overload: u64) -> Simulation {
        let limit = Adaptive::new(Bounds { min: min.into(), max: max.into() });
        Simulation::behind(limit, workers, service, overload)
    }
}

impl<L: Controller> Simulation<L> {
    pub(super) fn behind(limit: L, workers: usize, service: u64, overload: u64) -> Simulation<L> {
        Simulation {
            limit,
            now: 1 << 60,
            workers,
            service,
            varies: false,
            is_crowded: false,
            clients: 0,
            other: None,
            other_every: 2,
            client_timeout: u64::MAX,
            offered: workers as u64 * SECOND / service * overload,
            is_down: false,
            busy: 0,
            queue: VecDeque::new(),
            done: BinaryHeap::new(),
            arrivals: BinaryHeap::from([Reverse(1 << 60)]),
            timeouts: VecDeque::new(),
            awaited: HashSet::new(),
            abandoned: HashSet::new(),
            in_flight: 0,
            latencies: Vec::new(),
            attempts: 0,
            seed: 0x1234_5678_9ABC_DEF1,
        }
    }

    /// Replaces the offered load by so many clients, each sending one request after the other.
    pub(super) fn schedule_clients(&mut self, clients: u64) {
        self.clients = clients;
        self.arrivals = (0..clients).map(|client| Reverse(self.now + client)).collect();
    }

    /// A random number, uniform over (0, 1].
    fn next_random(&mut self) -> f64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        ((self.seed >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn vary_duration(&mut self, mean: u64) -> u64 {
        (-self.next_random().ln() * mean as f64) as u64 + 1
    }

    pub(super) fn run_for(&mut self, span: u64) -> SimulationTotals {
        let end = self.now + span;
        let mut seen = SimulationTotals { limit_min: u64::MAX, ..SimulationTotals::default() };
        loop {
            let done = self.done.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
            let arrivals = self.arrivals.peek().map_or(u64::MAX, |Reverse(at)| *at);
            let timeouts = self.timeouts.front().map_or(u64::MAX, |(at, _)| *at);
            let next = done.min(arrivals).min(timeouts);
            if next >= end {
                self.now = end;
                return seen;
            }
            self.now = next;
            if done == next {
                self.finish_request(&mut seen)
            } else if timeouts == next {
                self.abandon_request(&mut seen)
            } else {
                self.admit_client(&mut seen)
            }
            let allowed = self.limit.allowed();
            seen.limit_min = seen.limit_min.min(allowed);
            seen.limit_max = seen.limit_max.max(allowed);
            seen.limit_sum += allowed;
            seen.steps += 1;
        }
    }

    fn admit_client(&mut self, seen: &mut SimulationTotals) {
        self.arrivals.pop();
        if self.clients == 0 {
            let next = self.now + self.vary_duration(SECOND / self.offered);
            self.arrivals.push(Reverse(next));
        }
        if self.in_flight >= self.limit.allowed() {
            seen.rejected += 1;
            self.schedule_retry(20 * MS);
            return;
        }
        self.limit.admit(self.in_flight + 1);
        if self.is_down {
            self.limit.end(SlotOutcome::Failed, self.in_flight + 1, Now(self.now));
            return;
        }
        self.attempts += 1;
        self.in_flight += 1;
        self.queue.push_back((self.now, self.attempts));
        if self.client_timeout < u64::MAX {
            self.timeouts.push_back((self.now + self.client_timeout, self.attempts));
            self.awaited.insert(self.attempts);
        }
        self.serve_next();
    }

    /// A sequential client sends its next request after `pause`.
    fn schedule_retry(&mut self, pause: u64) {
        if self.in_flight + (self.arrivals.len() as u64) < self.clients {
            self.arrivals.push(Reverse(self.now + pause));
        }
    }

    fn serve_next(&mut self) {
        while (self.busy < self.workers || self.is_crowded)
            && let Some((sent, number)) = self.queue.pop_front()
        {
            self.busy += 1;
            let other = self.other.filter(|_| number.is_multiple_of(self.other_every));
            let service = self.crowded(other.unwrap_or(self.service));
            let takes = match (self.varies, self.is_crowded) {
                (true, true) => service / 2 + self.vary_duration(service / 2),
                (true, false) => self.vary_duration(service),
                _ => service,
            };
            self.done.push(Reverse((self.now + takes, sent, number)));
        }
    }

    /// A quarter longer with as many requests as workers; from there on the work of all takes its time in proportion,
    /// and a quarter more for each further multiple of the workers.
    fn crowded(&self, service: u64) -> u64 {
        let ratio = self.busy as f64 / self.workers as f64;
        match self.is_crowded {
            false => service,
            true if ratio <= 1.0 => (service as f64 * (1.0 + ratio / 4.0)) as u64,
            true => (service as f64 * 1.25 * ratio * (0.75 + ratio / 4.0)) as u64,
        }
    }

    fn finish_request(&mut self, seen: &mut SimulationTotals) {
        let Some(Reverse((_, sent, number))) = self.done.pop() else { return };
        self.busy -= 1;
        if !self.abandoned.remove(&number) {
            self.awaited.remove(&number);
            let latency = self.now - sent;
            self.limit.end(SlotOutcome::Answered(latency), self.in_flight, Now(self.now));
            self.in_flight -= 1;
            self.latencies.push(latency);
            seen.answered += 1;
            seen.latency_max = seen.latency_max.max(latency);
            seen.latency_sum += latency;
            self.schedule_retry(0);
        }
        self.serve_next();
    }

    fn abandon_request(&mut self, seen: &mut SimulationTotals) {
        let Some((_, number)) = self.timeouts.pop_front() else { return };
        if self.awaited.remove(&number) {
            self.abandoned.insert(number);
            self.limit.end(SlotOutcome::Abandoned(self.client_timeout), self.in_flight, Now(self.now));
            self.in_flight -= 1;
            seen.left += 1;
            self.schedule_retry(0);
        }
    }

    /// Answered requests, in percent of the backend's capacity in `span`.
    pub(super) fn throughput(&self, seen: &SimulationTotals, span: u64) -> u64 {
        100 * seen.answered / (self.workers as u64 * span / self.service)
    }

    #[track_caller]
    pub(super) fn assert_settled(&self, seen: &SimulationTotals, span: u64) {
        let (workers, limit) = (self.workers as u64, seen.limit_sum / seen.steps);
        let about = format!(
            "{} workers of {} ms: limit {limit} ({}..={}), mean {} µs, max {} µs, {} %",
            workers,
            self.service / MS,
            seen.limit_min,
            seen.limit_max,
            seen.latency_sum / seen.answered.max(1) / 1_000,
            seen.latency_max / 1_000,
            self.throughput(seen, span)
        );
        // Few requests of very different length leave the minimum uncertain by a quarter.
        let most = if self.varies { 25 } else { 20 };
        assert!((workers * 7..=workers * most).contains(&(limit * 10)), "{about}");
        assert!(self.throughput(seen, span) >= 85, "{about}");
        assert!(seen.latency_sum / seen.answered < 3 * self.service, "{about}");
        assert!(self.varies || seen.latency_max < 3 * self.service, "{about}");
    }
}
