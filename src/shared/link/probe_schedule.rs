//! When the next probe is due, and whether one closes the breaker.

use std::time::Duration;

/// Between the probes of an outage; the last for all that follow. A fifth more or less.
const STEPS_MS: [u64; 3] = [200, 400, 500];
/// Between the first probe that succeeds and the second.
const AGAIN: Duration = Duration::from_millis(20);
/// This many beats after closing come quickly, so that gateways learn of each other soon.
const QUICK_BEATS: u32 = 5;
const QUICK: Duration = Duration::from_secs(1);
const CALM: Duration = Duration::from_secs(5);
/// Until a failed beat is tried again while calls still go through.
const DOUBT: Duration = Duration::from_millis(200);

/// What the prober of one server remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// Nobody asked yet.
    Fresh,
    Open {
        failures: usize,
        succeeded: bool,
    },
    Closed {
        beats: u32,
        /// Failures of the outage before: one that follows soon goes on where that one ended.
        failures: usize,
    },
}

/// What follows from a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Next {
    /// Close the breaker, with a ramp or without.
    pub close: Option<bool>,
    /// From the begin of this probe to that of the next.
    pub wait: Duration,
}

// === impl Pace ===

impl Pace {
    /// Calls opened the breaker: how long until the first probe. `dice` is any number.
    pub(super) fn opened(&mut self, dice: u64) -> Duration {
        let failures = match *self {
            Pace::Closed { beats, failures } if beats <= QUICK_BEATS => failures,
            _ => 0,
        };
        *self = Pace::Open { failures, succeeded: false };
        step(failures, dice)
    }

    /// A probe ended.
    pub(super) fn probed(&mut self, succeeded: bool, dice: u64) -> Next {
        match (*self, succeeded) {
            (Pace::Fresh, true) => {
                *self = Pace::Closed { beats: 1, failures: 0 };
                Next { close: Some(false), wait: QUICK }
            }
            (Pace::Open { failures, succeeded: true }, true) => {
                *self = Pace::Closed { beats: 1, failures: failures + 1 };
                Next { close: Some(true), wait: QUICK }
            }
            (Pace::Open { failures, succeeded: false }, true) => {
                *self = Pace::Open { failures, succeeded: true };
                Next { close: None, wait: AGAIN }
            }
            (Pace::Closed { beats, failures }, true) => {
                *self = Pace::Closed { beats: beats.saturating_add(1), failures };
                Next { close: None, wait: if beats < QUICK_BEATS { QUICK } else { CALM } }
            }
            (Pace::Fresh, false) => {
                *self = Pace::Open { failures: 0, succeeded: false };
                Next { close: None, wait: step(0, dice) }
            }
            (Pace::Open { failures, .. }, false) => {
                let failures = failures + 1;
                *self = Pace::Open { failures, succeeded: false };
                Next { close: None, wait: step(failures, dice) }
            }
            (Pace::Closed { .. }, false) => Next { close: None, wait: DOUBT },
        }
    }

    pub(super) fn is_closed(self) -> bool {
        matches!(self, Pace::Closed { .. })
    }

    /// In the first seconds after closing, when a store that lost its memory has not heard of all gateways yet.
    pub(super) fn is_quick(self) -> bool {
        !matches!(self, Pace::Closed { beats, .. } if beats > QUICK_BEATS)
    }
}

fn step(failures: usize, dice: u64) -> Duration {
    let ms = STEPS_MS[failures.min(STEPS_MS.len() - 1)];
    Duration::from_micros(ms * 800 + dice % (ms * 400 + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(duration: Duration) -> u64 {
        duration.as_millis() as u64
    }

    #[test]
    fn a_server_that_answers_at_start_is_used_at_once() {
        let mut pace = Pace::Fresh;
        assert_eq!(pace.probed(true, 0), Next { close: Some(false), wait: QUICK });
        let waits: Vec<_> = (0..6).map(|_| pace.probed(true, 0).wait.as_secs()).collect();
        assert_eq!(waits, [1, 1, 1, 1, 5, 5]);
    }

    #[test]
    fn steps_grow_to_half_a_second_and_two_successes_close() {
        let mut pace = Pace::Closed { beats: 100, failures: 9 };
        let middle = |ms: u64| ms * 200;
        assert_eq!(ms(pace.opened(middle(200))), 200);
        assert_eq!(ms(pace.probed(false, middle(400)).wait), 400);
        assert_eq!(ms(pace.probed(false, middle(500)).wait), 500);
        assert_eq!(ms(pace.probed(false, middle(500)).wait), 500);
        assert_eq!(pace.probed(true, 0), Next { close: None, wait: AGAIN });
        assert_eq!(ms(pace.probed(false, middle(500)).wait), 500);
        assert_eq!(pace.probed(true, 0), Next { close: None, wait: AGAIN });
        assert_eq!(pace.probed(true, 0), Next { close: Some(true), wait: QUICK });
        assert!(pace.is_closed() && pace.is_quick());
    }

    #[test]
    fn jitter_is_a_fifth_either_way() {
        for (failures, least, most) in [(0, 160, 240), (1, 320, 480), (2, 400, 600), (999, 400, 600)] {
            let waits: Vec<_> = (0..1000).map(|n| ms(step(failures, n * 7_919))).collect();
            assert_eq!((*waits.iter().min().unwrap(), *waits.iter().max().unwrap()), (least, most - 1));
            assert!(step(failures, u64::MAX) <= Duration::from_millis(most));
        }
    }

    #[test]
    fn an_outage_that_follows_at_once_goes_on_where_the_last_one_ended() {
        let mut pace = Pace::Fresh;
        pace.probed(true, 0);
        let steps: Vec<_> = (0..4)
            .map(|_| {
                let wait = ms(pace.opened(0));
                pace.probed(true, 0);
                assert_eq!(pace.probed(true, 0).close, Some(true));
                wait
            })
            .collect();
        assert_eq!(steps, [160, 320, 400, 400]);
        for _ in 0..QUICK_BEATS {
            pace.probed(true, 0);
        }
        assert!(!pace.is_quick());
        assert_eq!(ms(pace.opened(0)), 160);
    }

    #[test]
    fn a_beat_that_fails_while_calls_go_through_is_tried_again_soon() {
        let mut pace = Pace::Closed { beats: 7, failures: 0 };
        assert_eq!(pace.probed(false, 0), Next { close: None, wait: DOUBT });
        assert!(pace.is_closed());
    }
}
