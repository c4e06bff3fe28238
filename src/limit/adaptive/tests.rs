//! A backend of so many workers on a virtual clock, offered more than it bears.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::*;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;

/// A backend behind an adaptive limit. Times are in nanoseconds.
struct Scene {
    limit: Adaptive,
    now: u64,
    workers: usize,
    service: u64,
    /// Whether service times vary, exponentially, around `service`.
    varies: bool,
    /// Requests offered in a second.
    offered: u64,
    /// Every connect fails.
    is_down: bool,
    busy: usize,
    /// When each request that waits in the backend was sent.
    queue: VecDeque<u64>,
    /// When a worker will be done, and when its request was sent.
    done: BinaryHeap<Reverse<(u64, u64)>>,
    next: u64,
    in_flight: u64,
    seed: u64,
}

/// What happened in a span.
#[derive(Debug, Default)]
struct Seen {
    answered: u64,
    refused: u64,
    latency_max: u64,
    latency_sum: u64,
    limit_min: u64,
    limit_max: u64,
    limit_sum: u64,
    steps: u64,
}

impl Scene {
    fn new(min: u32, max: u32, workers: usize, service: u64, overload: u64) -> Scene {
        Scene {
            limit: Adaptive::new(min, max),
            now: 1 << 60,
            workers,
            service,
            varies: false,
            offered: workers as u64 * SECOND / service * overload,
            is_down: false,
            busy: 0,
            queue: VecDeque::new(),
            done: BinaryHeap::new(),
            next: 1 << 60,
            in_flight: 0,
            seed: 0x1234_5678_9ABC_DEF1,
        }
    }

    /// Even over (0, 1].
    fn random(&mut self) -> f64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        ((self.seed >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    fn around(&mut self, mean: u64) -> u64 {
        (-self.random().ln() * mean as f64) as u64 + 1
    }

    fn run(&mut self, span: u64) -> Seen {
        let end = self.now + span;
        let mut seen = Seen { limit_min: u64::MAX, ..Seen::default() };
        loop {
            let done = self.done.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
            self.now = done.min(self.next);
            if self.now >= end {
                self.now = end;
                return seen;
            }
            if done <= self.next {
                self.finish(&mut seen)
            } else {
                self.arrive(&mut seen)
            }
            let allowed = self.limit.allowed();
            seen.limit_min = seen.limit_min.min(allowed);
            seen.limit_max = seen.limit_max.max(allowed);
            seen.limit_sum += allowed;
            seen.steps += 1;
        }
    }

    fn arrive(&mut self, seen: &mut Seen) {
        self.next = self.now + self.around(SECOND / self.offered);
        if self.in_flight >= self.limit.allowed() {
            seen.refused += 1;
            return;
        }
        self.limit.entered(self.in_flight + 1);
        if self.is_down {
            self.limit.note(Went::Failed, Now(self.now));
            return;
        }
        self.in_flight += 1;
        self.queue.push_back(self.now);
        self.serve();
    }

    fn serve(&mut self) {
        while self.busy < self.workers
            && let Some(sent) = self.queue.pop_front()
        {
            self.busy += 1;
            let takes = if self.varies { self.around(self.service) } else { self.service };
            self.done.push(Reverse((self.now + takes, sent)));
        }
    }

    fn finish(&mut self, seen: &mut Seen) {
        let Some(Reverse((_, sent))) = self.done.pop() else { return };
        self.busy -= 1;
        self.in_flight -= 1;
        let latency = self.now - sent;
        self.limit.note(Went::Answered(latency), Now(self.now));
        seen.answered += 1;
        seen.latency_max = seen.latency_max.max(latency);
        seen.latency_sum += latency;
        self.serve();
    }

    /// Of what the backend could answer in `span`, in percent.
    fn throughput(&self, seen: &Seen, span: u64) -> u64 {
        100 * seen.answered / (self.workers as u64 * span / self.service)
    }

    #[track_caller]
    fn assert_settled(&self, seen: &Seen, span: u64) {
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

const BACKENDS: [(usize, u64); 8] = [
    (2, 20 * MS),
    (4, 200 * MS),
    (10, 5 * MS),
    (10, 100 * MS),
    (50, 50 * MS),
    (100, 10 * MS),
    (100, 500 * MS),
    (400, 30 * MS),
];

#[test]
fn under_four_times_its_load_a_backend_is_kept_busy_and_quick() {
    for varies in [false, true] {
        for (workers, service) in BACKENDS {
            let mut scene = Scene { varies, ..Scene::new(1, 1000, workers, service, 4) };
            scene.run(20 * SECOND + 50 * service);
            let seen = scene.run(60 * SECOND);
            scene.assert_settled(&seen, 60 * SECOND);
        }
    }
}

/// Fewer workers: what is too much now leaves within three seconds, and what fits again is found again.
#[test]
fn the_limit_follows_a_backend_that_loses_two_thirds_of_its_workers() {
    for varies in [false, true] {
        for (workers, service) in [(30, 20 * MS), (90, 10 * MS), (90, 100 * MS)] {
            let mut scene = Scene { varies, ..Scene::new(1, 1000, workers, service, 4) };
            scene.run(30 * SECOND);
            scene.workers = workers / 3;
            scene.run(3 * SECOND);
            assert!(scene.limit.allowed() <= workers as u64, "{} after three seconds", scene.limit.allowed());
            let seen = scene.run(30 * SECOND);
            scene.assert_settled(&seen, 30 * SECOND);
            scene.workers = workers;
            scene.run(15 * SECOND);
            let seen = scene.run(30 * SECOND);
            scene.assert_settled(&seen, 30 * SECOND);
        }
    }
}

/// A slower backend of as many workers bears as many requests: less at first, then the new minimum is measured.
#[test]
fn the_limit_recovers_on_a_backend_that_takes_three_times_as_long() {
    for varies in [false, true] {
        for (workers, service) in [(30, 20 * MS), (90, 10 * MS), (90, 100 * MS)] {
            let mut scene = Scene { varies, ..Scene::new(1, 1000, workers, service, 4) };
            scene.run(30 * SECOND);
            scene.service = 3 * service;
            scene.run(2 * SECOND);
            scene.run(15 * SECOND);
            let seen = scene.run(30 * SECOND);
            scene.assert_settled(&seen, 30 * SECOND);
            scene.service = service;
            scene.run(15 * SECOND);
            let seen = scene.run(30 * SECOND);
            scene.assert_settled(&seen, 30 * SECOND);
        }
    }
}

#[test]
fn an_outage_shrinks_the_limit_to_its_floor_and_leaves_no_scar() {
    let mut scene = Scene::new(3, 1000, 50, 20 * MS, 4);
    scene.run(30 * SECOND);
    scene.is_down = true;
    scene.run(3 * SECOND);
    assert!(scene.limit.allowed() <= 4, "{}", scene.limit.allowed());
    scene.run(300 * SECOND);
    scene.is_down = false;
    scene.run(6 * SECOND);
    let seen = scene.run(30 * SECOND);
    scene.assert_settled(&seen, 30 * SECOND);
}

#[test]
fn a_limit_that_is_not_used_does_not_grow_and_refuses_nobody() {
    let mut scene = Scene { varies: true, ..Scene::new(1, 1000, 100, 50 * MS, 4) };
    // Five in flight on average.
    scene.offered = 100;
    let seen = scene.run(600 * SECOND);
    assert_eq!(seen.refused, 0, "{seen:?}");
    assert!(seen.limit_max <= 40, "{seen:?}");
}

/// Below what the backend bears nobody is refused, not even for a measurement.
#[test]
fn a_busy_backend_that_is_not_overloaded_is_left_alone() {
    let mut scene = Scene { varies: true, ..Scene::new(1, 1000, 100, 50 * MS, 4) };
    scene.offered = 1_600;
    scene.run(20 * SECOND);
    let seen = scene.run(600 * SECOND);
    let all = seen.answered + seen.refused;
    assert!(seen.refused * 1000 < all, "{} of {all}, {seen:?}", seen.refused);
}

#[test]
fn the_bounds_hold() {
    let mut scene = Scene::new(30, 40, 10, 20 * MS, 8);
    let seen = scene.run(60 * SECOND);
    assert_eq!((seen.limit_min >= 30, seen.limit_max <= 40), (true, true), "{seen:?}");
    let mut scene = Scene::new(5, 40, 100, 20 * MS, 8);
    scene.run(20 * SECOND);
    assert_eq!(scene.limit.allowed(), 40);
}
