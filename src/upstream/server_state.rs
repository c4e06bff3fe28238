//! How a server stands, whatever the configuration says of it: in flight, up or down, ejected, draining. It outlives
//! a reload.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::Trouble;
use super::dns::Name;
use crate::base::clock::Now;

/// How often the log is told of one reason at most, in nanoseconds.
const WARNING_EVERY: u64 = 60_000_000_000;

/// Its health checks fail.
pub(super) const DOWN: u8 = 1;
/// Too many of its answers were errors.
pub(super) const EJECTED: u8 = 1 << 1;
/// The operator wants it empty.
pub(super) const DRAINING: u8 = 1 << 2;
/// It came, or came back, and does not have its full share yet.
pub(super) const RISING: u8 = 1 << 3;

/// What is known of a server beside its settings.
pub(super) struct Standing {
    pub in_flight: AtomicU32,
    /// Of [`DOWN`] and the others.
    state: AtomicU8,
    /// Errors in a row.
    errors: AtomicU32,
    /// Nanoseconds of [`Now`].
    ejected_until: AtomicU64,
    /// Nanoseconds of [`Now`].
    rising_since: AtomicU64,
    ejections: AtomicU64,
    /// Health checks that passed, and that failed.
    checks: [AtomicU64; 2],
    /// Health checks in a row that contradict the state.
    streak: AtomicU32,
    troubles: Mutex<Troubles>,
    /// `None` where the host is an address.
    pub name: Option<Arc<Name>>,
}

/// What one process tells another of a server. A field that is not told is as for a server that nothing is known of.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct KnownStanding {
    down: bool,
    draining: bool,
    /// What is left of its ejection.
    ejected_ns: Option<u64>,
    /// Since when it comes back.
    risen_ns: Option<u64>,
    /// Errors in a row.
    errors: u32,
    /// Health checks in a row that contradict the state.
    streak: u32,
    ejections: u64,
    /// How long ago, and what.
    last_error: Option<(u64, String)>,
}

impl KnownStanding {
    pub fn is_draining(&self) -> bool {
        self.draining
    }
}

/// What went wrong lately.
#[derive(Default)]
struct Troubles {
    /// When, and what.
    last: Option<(Now, Cow<'static, str>)>,
    /// By [`Trouble::index`].
    warnings: [Warned; Trouble::COUNT],
}

/// What the log was told of one reason.
#[derive(Default)]
struct Warned {
    at: Option<Now>,
    /// Errors since, of which it was not told.
    suppressed: u64,
}

impl Warned {
    /// Counts an error; if the log is to be told, how many it was not told before.
    fn error(&mut self, now: Now) -> Option<u64> {
        if self.at.is_some_and(|at| now.since(at) < WARNING_EVERY) {
            self.suppressed += 1;
            return None;
        }
        self.at = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// What a health check changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turned {
    Up,
    Down,
}

impl Standing {
    pub fn new(name: Option<Arc<Name>>) -> Standing {
        Standing {
            in_flight: AtomicU32::new(0),
            state: AtomicU8::new(0),
            errors: AtomicU32::new(0),
            ejected_until: AtomicU64::new(0),
            rising_since: AtomicU64::new(0),
            ejections: AtomicU64::new(0),
            checks: [AtomicU64::new(0), AtomicU64::new(0)],
            streak: AtomicU32::new(0),
            troubles: Mutex::default(),
            name,
        }
    }

    #[inline]
    pub fn state(&self) -> u8 {
        self.state.load(Relaxed)
    }

    /// Whether this was new.
    pub fn set(&self, flag: u8) -> bool {
        self.state.fetch_or(flag, Relaxed) & flag == 0
    }

    /// Whether it was set.
    pub fn clear(&self, flag: u8) -> bool {
        self.state.fetch_and(!flag, Relaxed) & flag != 0
    }

    /// Counts an error; how many there were in a row, and if the log is to be told, how many of this reason it was not
    /// told before.
    pub fn error(&self, now: Now, trouble: Trouble) -> (u32, Option<u64>) {
        let mut troubles = self.troubles.lock();
        troubles.last = Some((now, trouble.told()));
        let suppressed = troubles.warnings[trouble.index()].error(now);
        drop(troubles);
        (self.errors.fetch_add(1, Relaxed).saturating_add(1), suppressed)
    }

    /// Ends a row of errors. Nearly always there is none, and nothing is written.
    #[inline]
    pub fn success(&self) {
        if self.errors.load(Relaxed) != 0 {
            self.errors.store(0, Relaxed);
        }
    }

    pub fn eject(&self, until: Now) {
        self.ejected_until.store(until.0, Relaxed);
        self.errors.store(0, Relaxed);
        if self.set(EJECTED) {
            self.ejections.fetch_add(1, Relaxed);
        }
    }

    pub fn is_ejection_over(&self, now: Now) -> bool {
        now.0 >= self.ejected_until.load(Relaxed)
    }

    /// Begins with a small share.
    pub fn rise(&self, now: Now) {
        self.rising_since.store(now.0, Relaxed);
        self.set(RISING);
    }

    /// Nanoseconds since it came back.
    pub fn risen_ns(&self, now: Now) -> u64 {
        now.since(Now(self.rising_since.load(Relaxed)))
    }

    /// Takes a health check in; the state turns after `rise` that passed in a row, or `fall` that failed.
    pub fn checked(&self, result: Result<(), String>, rise: u32, fall: u32, now: Now) -> Option<Turned> {
        let is_down = self.state() & DOWN != 0;
        let passed = result.is_ok();
        self.checks[usize::from(!passed)].fetch_add(1, Relaxed);
        if let Err(why) = result {
            self.troubles.lock().last = Some((now, format!("health check: {why}").into()));
        }
        if passed != is_down {
            self.streak.store(0, Relaxed);
            return None;
        }
        let streak = self.streak.load(Relaxed) + 1;
        if streak < if passed { rise } else { fall } {
            self.streak.store(streak, Relaxed);
            return None;
        }
        self.streak.store(0, Relaxed);
        if passed {
            // What answers its checks may not be kept away for errors from before.
            self.errors.store(0, Relaxed);
            self.clear(DOWN | EJECTED);
            Some(Turned::Up)
        } else {
            self.set(DOWN);
            Some(Turned::Down)
        }
    }

    /// What is known, as of `now`, for another process.
    pub fn known(&self, now: Now) -> KnownStanding {
        let is = |flag| self.state() & flag != 0;
        let last_error = self.last_error().map(|(at, what)| (now.since(at), what.into_owned()));
        KnownStanding {
            down: is(DOWN),
            draining: is(DRAINING),
            ejected_ns: is(EJECTED).then(|| Now(self.ejected_until.load(Relaxed)).since(now)),
            risen_ns: is(RISING).then(|| self.risen_ns(now)),
            errors: self.errors.load(Relaxed),
            streak: self.streak.load(Relaxed),
            ejections: self.ejections(),
            last_error,
        }
    }

    /// Takes over what another process knew, as of `now`; nobody uses the server yet.
    pub fn take_over(&self, known: &KnownStanding, now: Now) {
        let states = [(known.down, DOWN), (known.draining, DRAINING)];
        for (_, flag) in states.iter().filter(|(is, _)| *is) {
            self.set(*flag);
        }
        if let Some(left) = known.ejected_ns {
            self.ejected_until.store(now.0.saturating_add(left), Relaxed);
            self.set(EJECTED);
        }
        if let Some(risen) = known.risen_ns {
            self.rise(Now(now.0.saturating_sub(risen)));
        }
        self.errors.store(known.errors, Relaxed);
        self.streak.store(known.streak, Relaxed);
        self.ejections.store(known.ejections, Relaxed);
        self.troubles.lock().last =
            known.last_error.clone().map(|(ago, what)| (Now(now.0.saturating_sub(ago)), what.into()));
    }

    pub fn ejections(&self) -> u64 {
        self.ejections.load(Relaxed)
    }

    /// Health checks that passed, and that failed.
    pub fn checks(&self) -> [u64; 2] {
        [0, 1].map(|which: usize| self.checks[which].load(Relaxed))
    }

    /// When, and what.
    pub fn last_error(&self) -> Option<(Now, Cow<'static, str>)> {
        self.troubles.lock().last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a row of checks turns: `+` passes, `-` fails; `u` and `d` where the state turned, `.` where not.
    fn turns(checks: &str) -> String {
        let standing = Standing::new(None);
        let turn = |check| {
            let result = if check == '+' { Ok(()) } else { Err("no".to_owned()) };
            match standing.checked(result, 2, 3, Now(1)) {
                Some(Turned::Up) => 'u',
                Some(Turned::Down) => 'd',
                None => '.',
            }
        };
        checks.chars().map(turn).collect()
    }

    #[test]
    fn only_rows_of_checks_turn_a_server() {
        assert_eq!(turns("++++"), "....");
        assert_eq!(turns("---"), "..d");
        assert_eq!(turns("--+--+--+"), ".........");
        assert_eq!(turns("---+-+-++-"), "..d.....u.");
        assert_eq!(turns("---++---"), "..d.u..d");
    }

    #[test]
    fn another_process_knows_what_this_one_did() {
        let standing = Standing::new(None);
        standing.eject(Now(1_000));
        standing.rise(Now(300));
        standing.set(DRAINING);
        standing.error(Now(390), Trouble::Refused);
        let _ = standing.checked(Err("no".to_owned()), 2, 3, Now(400));
        let known = standing.known(Now(400));
        let text = serde_json::to_string(&known).unwrap();
        let heir = Standing::new(None);
        // Its clock is another one.
        heir.take_over(&serde_json::from_str(&text).unwrap(), Now(9_000_400));
        assert_eq!(heir.known(Now(9_000_400)), known);
        assert_eq!(heir.state(), EJECTED | DRAINING | RISING);
        assert!(!heir.is_ejection_over(Now(9_000_999)) && heir.is_ejection_over(Now(9_001_000)));
        let (errors, _) = heir.error(Now(9_000_400), Trouble::Reset);
        assert_eq!((heir.risen_ns(Now(9_000_400)), errors), (100, 2));
        // Another version may tell less, or more.
        let other = serde_json::from_str(r#"{"down":true,"colour":"red"}"#).unwrap();
        heir.take_over(&other, Now(9_000_400));
        assert!(heir.state() & DOWN != 0);
    }

    #[test]
    fn coming_up_forgets_errors() {
        let standing = Standing::new(None);
        standing.eject(Now(100));
        standing.error(Now(1), Trouble::Closed);
        for _ in 0..3 {
            standing.checked(Err("no".to_owned()), 1, 3, Now(2));
        }
        assert_eq!(standing.state(), DOWN | EJECTED);
        assert_eq!(standing.checked(Ok(()), 1, 3, Now(3)), Some(Turned::Up));
        assert_eq!((standing.state(), standing.error(Now(4), Trouble::Closed).0), (0, 1));
        assert_eq!((standing.checks(), standing.ejections()), ([1, 3], 1));
    }

    #[test]
    fn the_log_is_told_of_a_reason_once_a_minute() {
        let standing = Standing::new(None);
        let minute = WARNING_EVERY;
        let told = |at: u64, trouble| standing.error(Now(at), trouble).1;
        assert_eq!(told(5, Trouble::Refused), Some(0));
        assert_eq!(told(6, Trouble::Timeout), Some(0), "another reason");
        assert_eq!((told(7, Trouble::Refused), told(4 + minute, Trouble::Refused)), (None, None));
        assert_eq!(told(5 + minute, Trouble::Refused), Some(2));
        assert_eq!(told(6 + minute, Trouble::Refused), None);
        assert_eq!(standing.last_error().unwrap().1, "connection refused");
    }
}
