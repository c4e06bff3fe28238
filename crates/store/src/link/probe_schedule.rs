//! The schedule of probes for one server, and the decision when a probe closes the breaker.

use std::time::Duration;

/// The times between the probes of an outage; the last one repeats. Each varies by a fifth.
const STEPS_MS: [u64; 3] = [200, 400, 500];
/// The time between the first successful probe and the second.
const SECOND_PROBE: Duration = Duration::from_millis(20);
/// This many heartbeats after closing follow quickly, so that gateways learn of each other soon.
const QUICK_BEATS: u32 = 5;
const QUICK_INTERVAL: Duration = Duration::from_secs(1);
const CALM_INTERVAL: Duration = Duration::from_secs(5);
/// The pause before a failed heartbeat is retried while calls still succeed.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// The state of the prober of one server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProbePace {
    /// No probe has ended yet.
    Fresh,
    Open {
        failures: usize,
        succeeded: bool,
    },
    Closed {
        beats: u32,
        /// Failures of the previous outage: one that follows soon continues its backoff.
        failures: usize,
    },
}

// === impl ProbePace ===

impl ProbePace {
    /// Calls opened the breaker: returns the time until the first probe. `random` is any number.
    pub(super) fn on_open(&mut self, random: u64) -> Duration {
        let failures = match *self {
            ProbePace::Closed { beats, failures } if beats <= QUICK_BEATS => failures,
            _ => 0,
        };
        *self = ProbePace::Open { failures, succeeded: false };
        backoff_step(failures, random)
    }

    /// Applies the result of a probe. Returns true if the breaker closes with a ramp, false if without one (`None` = it
    /// stays as it is), and the time from the start of this probe to the start of the next.
    pub(super) fn on_probe(&mut self, succeeded: bool, random: u64) -> (Option<bool>, Duration) {
        let (next, close, wait) = match (*self, succeeded) {
            (ProbePace::Fresh, true) => {
                (ProbePace::Closed { beats: 1, failures: 0 }, Some(false), QUICK_INTERVAL)
            }
            (ProbePace::Open { failures, succeeded: true }, true) => {
                (ProbePace::Closed { beats: 1, failures: failures + 1 }, Some(true), QUICK_INTERVAL)
            }
            (ProbePace::Open { failures, succeeded: false }, true) => {
                (ProbePace::Open { failures, succeeded: true }, None, SECOND_PROBE)
            }
            (ProbePace::Closed { beats, failures }, true) => {
                let wait = if beats < QUICK_BEATS { QUICK_INTERVAL } else { CALM_INTERVAL };
                (ProbePace::Closed { beats: beats.saturating_add(1), failures }, None, wait)
            }
            (ProbePace::Closed { .. }, false) => (*self, None, RETRY_INTERVAL),
            (ProbePace::Fresh | ProbePace::Open { .. }, false) => {
                let failures = if let ProbePace::Open { failures, .. } = *self { failures + 1 } else { 0 };
                (ProbePace::Open { failures, succeeded: false }, None, backoff_step(failures, random))
            }
        };
        *self = next;
        (close, wait)
    }

    pub(super) fn is_closed(self) -> bool {
        matches!(self, ProbePace::Closed { .. })
    }

    /// True in the first seconds after closing, when a store that lost its memory may not know all gateways yet.
    pub(super) fn is_quick(self) -> bool {
        !matches!(self, ProbePace::Closed { beats, .. } if beats > QUICK_BEATS)
    }
}

fn backoff_step(failures: usize, random: u64) -> Duration {
    let ms = STEPS_MS[failures.min(STEPS_MS.len() - 1)];
    Duration::from_micros(ms * 800 + random % (ms * 400 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(duration: Duration) -> u64 {
        duration.as_millis() as u64
    }

    #[test]
    fn a_server_that_answers_at_start_is_used_at_once() {
        let mut pace = ProbePace::Fresh;
        assert_eq!(pace.on_probe(true, 0), (Some(false), QUICK_INTERVAL));
        let waits: Vec<_> = (0..6).map(|_| pace.on_probe(true, 0).1.as_secs()).collect();
        assert_eq!(waits, [1, 1, 1, 1, 5, 5]);
    }

    #[test]
    fn steps_grow_to_half_a_second_and_two_successes_close() {
        let mut pace = ProbePace::Closed { beats: 100, failures: 9 };
        let middle = |ms: u64| ms * 200;
        assert_eq!(ms(pace.on_open(middle(200))), 200);
        assert_eq!(ms(pace.on_probe(false, middle(400)).1), 400);
        assert_eq!(ms(pace.on_probe(false, middle(500)).1), 500);
        assert_eq!(ms(pace.on_probe(false, middle(500)).1), 500);
        assert_eq!(pace.on_probe(true, 0), (None, SECOND_PROBE));
        assert_eq!(ms(pace.on_probe(false, middle(500)).1), 500);
        assert_eq!(pace.on_probe(true, 0), (None, SECOND_PROBE));
        assert_eq!(pace.on_probe(true, 0), (Some(true), QUICK_INTERVAL));
        assert!(pace.is_closed() && pace.is_quick());
    }

    #[test]
    fn jitter_is_a_fifth_either_way() {
        for (failures, least, most) in [(0, 160, 240), (1, 320, 480), (2, 400, 600), (999, 400, 600)] {
            let waits: Vec<_> = (0..1000).map(|n| ms(backoff_step(failures, n * 7_919))).collect();
            assert_eq!((*waits.iter().min().unwrap(), *waits.iter().max().unwrap()), (least, most - 1));
            assert!(backoff_step(failures, u64::MAX) <= Duration::from_millis(most));
        }
    }

    #[test]
    fn an_outage_that_follows_at_once_continues_the_last_backoff() {
        let mut pace = ProbePace::Fresh;
        pace.on_probe(true, 0);
        let steps: Vec<_> = (0..4)
            .map(|_| {
                let wait = ms(pace.on_open(0));
                pace.on_probe(true, 0);
                assert_eq!(pace.on_probe(true, 0).0, Some(true));
                wait
            })
            .collect();
        assert_eq!(steps, [160, 320, 400, 400]);
        for _ in 0..QUICK_BEATS {
            pace.on_probe(true, 0);
        }
        assert!(!pace.is_quick());
        assert_eq!(ms(pace.on_open(0)), 160);
    }

    #[test]
    fn a_heartbeat_that_fails_while_calls_succeed_is_retried_soon() {
        let mut pace = ProbePace::Closed { beats: 7, failures: 0 };
        assert_eq!(pace.on_probe(false, 0), (None, RETRY_INTERVAL));
        assert!(pace.is_closed());
    }
}
