//! Tolerances of time: release schedules, and the lateness of this machine itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::PATIENCE;

/// Releases may come this much before the schedule (clock granularity) …
pub const EARLY: Duration = Duration::from_millis(2);
/// … and this much after it, on an idle machine.
pub const LATE: Duration = Duration::from_millis(25);

/// The cost of one stall on a busy machine, and the schedule length from which one stall is tolerated.
const STALL: Duration = Duration::from_millis(250);
const LONG: usize = 5;

pub const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Polls until `done`, at first each millisecond and later every 20 ms; panics with the text `what` after the timeout.
#[track_caller]
pub fn eventually(what: &str, done: impl FnMut() -> bool) {
    eventually_within(PATIENCE, what, done);
}

/// Does the same as [`eventually`], with another timeout.
#[track_caller]
pub fn eventually_within(timeout: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + timeout;
    let mut pause = ms(1);
    while !done() {
        assert!(Instant::now() < deadline, "never came: {what}");
        thread::sleep(pause);
        // Each check may cost a request, and many tests wait at the same time.
        pause = (pause * 3 / 2).min(ms(20));
    }
}

/// Runs `attempt` until it was undisturbed: `None` = this machine was too slow to judge.
#[track_caller]
pub fn undisturbed(attempt: impl Fn() -> Option<()>) {
    assert!((0..5).any(|_| attempt().is_some()), "this machine was too slow five times");
}

/// Runs `judge` for all cases at once, each on a thread of its own: they wait more than they work. A panic of one is the
/// panic of all.
#[track_caller]
pub fn at_once<C: Send>(cases: impl IntoIterator<Item = C>, judge: impl Fn(C) + Sync) {
    thread::scope(|scope| {
        for case in cases {
            scope.spawn(|| judge(case));
        }
    });
}

/// Measures, while it lives, how late a sleeping thread wakes up on this machine. Schedules are widened by that, so
/// that a busy machine does not pass for a late gateway.
pub struct Noise {
    worst_us: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    sleeper: Option<JoinHandle<()>>,
}

impl Noise {
    pub fn listen() -> Noise {
        let worst_us = Arc::new(AtomicU64::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let (worst, end) = (worst_us.clone(), stop.clone());
        let sleeper = thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let before = Instant::now();
                thread::sleep(ms(1));
                let late = before.elapsed().saturating_sub(ms(1));
                worst.fetch_max(late.as_micros() as u64, Ordering::Relaxed);
            }
        });
        Noise { worst_us, stop, sleeper: Some(sleeper) }
    }

    pub fn worst(&self) -> Duration {
        Duration::from_micros(self.worst_us.load(Ordering::Relaxed))
    }

    /// The tolerated lateness of a release: six wake-ups lie between the bytes of a client and the time stamp of its
    /// answer.
    pub fn late(&self) -> Duration {
        LATE + 6 * self.worst()
    }

    /// `seen` follows `schedule` (milliseconds), one to one, −2 ms/+25 ms and the machine's own lateness. In a longer
    /// schedule one may be later: a gateway thread may stall unnoticed by the sleeper.
    #[track_caller]
    pub fn assert_schedule(&self, seen: &[Duration], schedule: &[u64]) {
        let late = self.late();
        assert_eq!(seen.len(), schedule.len(), "seen {seen:?}, planned {schedule:?}");
        let mut stalls = usize::from(seen.len() >= LONG);
        for (place, (&seen_at, &planned)) in seen.iter().zip(schedule).enumerate() {
            let planned = ms(planned);
            let mut in_time = seen_at <= planned + late;
            if !in_time && stalls > 0 && seen_at <= planned + STALL {
                (in_time, stalls) = (true, 0);
            }
            assert!(
                seen_at + EARLY >= planned && in_time,
                "place {place}: {seen_at:?}, planned {planned:?} (−{EARLY:?}/+{late:?}); all: {seen:?}"
            );
        }
    }

    /// A single moment, as in [`Noise::assert_schedule`].
    #[track_caller]
    pub fn assert_at(&self, seen: Duration, planned: Duration) {
        self.assert_schedule(&[seen], &[planned.as_millis() as u64]);
    }
}

impl Drop for Noise {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(sleeper) = self.sleeper.take() {
            let _ = sleeper.join();
        }
    }
}

/// Coarse deadlines are swept several times a second.
pub const SWEEP: Duration = ms(500);

/// A coarse deadline of `least` milliseconds was met: never early, and at most one sweep late.
#[track_caller]
pub fn assert_between(what: &str, took: Duration, least: u64, noise: &Noise) {
    let most = ms(least) + SWEEP + noise.late();
    assert!(
        took + ms(5) >= ms(least) && took <= most,
        "{what} took {took:?}, expected {least} ms to {most:?}"
    );
}
