//! How a server stands, whatever the configuration says of it: in flight, up or down, ejected, draining. It outlives
//! a reload.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::ServerFault;
use super::dns::DnsName;
use crate::base::clock::Now;

/// How often the log is told of one reason at most, in nanoseconds.
const WARNING_INTERVAL_NS: u64 = 60_000_000_000;

/// Its health checks fail.
pub(super) const DOWN: u8 = 1;
/// Too many of its answers were errors.
pub(super) const EJECTED: u8 = 1 << 1;
/// The operator wants it empty.
pub(super) const DRAINING: u8 = 1 << 2;
/// It came, or came back, and does not have its full share yet.
pub(super) const SLOW_START: u8 = 1 << 3;

/// What is known of a server beside its settings.
pub(super) struct ServerState {
    pub in_flight: AtomicU32,
    /// Of [`DOWN`] and the others.
    flags: AtomicU8,
    /// Errors in a row.
    errors: AtomicU32,
    /// Nanoseconds of [`Now`].
    ejected_until: AtomicU64,
    /// Nanoseconds of [`Now`].
    slow_start_since: AtomicU64,
    ejections: AtomicU64,
    /// Health checks that passed, and that failed.
    check_counts: [AtomicU64; 2],
    /// Health checks in a row that contradict the state.
    streak: AtomicU32,
    recent_faults: Mutex<RecentFaults>,
    /// `None` where the host is an address.
    pub dns_name: Option<Arc<DnsName>>,
}

/// What one process tells another of a server. A field that is not told is as for a server that nothing is known of.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SavedServerState {
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

impl SavedServerState {
    pub fn is_draining(&self) -> bool {
        self.draining
    }
}

/// What went wrong lately.
#[derive(Default)]
struct RecentFaults {
    /// When, and what.
    last: Option<(Now, Cow<'static, str>)>,
    /// By [`ServerFault::index`].
    warnings: [WarningLimiter; ServerFault::COUNT],
}

/// What the log was told of one reason.
#[derive(Default)]
struct WarningLimiter {
    warned_at: Option<Now>,
    /// Errors since, of which it was not told.
    suppressed: u64,
}

impl WarningLimiter {
    /// Counts an error; if the log is to be told, how many it was not told before.
    fn count_error(&mut self, now: Now) -> Option<u64> {
        if self.warned_at.is_some_and(|at| now.ns_since(at) < WARNING_INTERVAL_NS) {
            self.suppressed += 1;
            return None;
        }
        self.warned_at = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// What a health check changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HealthChange {
    Up,
    Down,
}

impl ServerState {
    pub fn new(name: Option<Arc<DnsName>>) -> ServerState {
        ServerState {
            in_flight: AtomicU32::new(0),
            flags: AtomicU8::new(0),
            errors: AtomicU32::new(0),
            ejected_until: AtomicU64::new(0),
            slow_start_since: AtomicU64::new(0),
            ejections: AtomicU64::new(0),
            check_counts: [AtomicU64::new(0), AtomicU64::new(0)],
            streak: AtomicU32::new(0),
            recent_faults: Mutex::default(),
            dns_name: name,
        }
    }

    #[inline]
    pub fn flags(&self) -> u8 {
        self.flags.load(Relaxed)
    }

    /// Whether this was new.
    pub fn set_flag(&self, flag: u8) -> bool {
        self.flags.fetch_or(flag, Relaxed) & flag == 0
    }

    /// Whether it was set.
    pub fn clear_flag(&self, flag: u8) -> bool {
        self.flags.fetch_and(!flag, Relaxed) & flag != 0
    }

    /// Counts an error; how many there were in a row, and if the log is to be told, how many of this reason it was not
    /// told before.
    pub fn record_error(&self, now: Now, trouble: ServerFault) -> (u32, Option<u64>) {
        let mut troubles = self.recent_faults.lock();
        troubles.last = Some((now, trouble.to_text()));
        let suppressed = troubles.warnings[trouble.index()].count_error(now);
        drop(troubles);
        (self.errors.fetch_add(1, Relaxed).saturating_add(1), suppressed)
    }

    /// Ends a row of errors. Nearly always there is none, and nothing is written.
    #[inline]
    pub fn record_success(&self) {
        if self.errors.load(Relaxed) != 0 {
            self.errors.store(0, Relaxed);
        }
    }

    pub fn mark_ejected(&self, until: Now) {
        self.ejected_until.store(until.0, Relaxed);
        self.errors.store(0, Relaxed);
        if self.set_flag(EJECTED) {
            self.ejections.fetch_add(1, Relaxed);
        }
    }

    pub fn is_ejection_over(&self, now: Now) -> bool {
        now.0 >= self.ejected_until.load(Relaxed)
    }

    /// Begins with a small share.
    pub fn begin_slow_start(&self, now: Now) {
        self.slow_start_since.store(now.0, Relaxed);
        self.set_flag(SLOW_START);
    }

    /// Nanoseconds since it came back.
    pub fn slow_start_ns(&self, now: Now) -> u64 {
        now.ns_since(Now(self.slow_start_since.load(Relaxed)))
    }

    /// Takes a health check in; the state turns after `rise` that passed in a row, or `fall` that failed.
    pub fn record_check(
        &self,
        result: Result<(), String>,
        rise: u32,
        fall: u32,
        now: Now,
    ) -> Option<HealthChange> {
        let is_down = self.flags() & DOWN != 0;
        let passed = result.is_ok();
        self.check_counts[usize::from(!passed)].fetch_add(1, Relaxed);
        if let Err(why) = result {
            self.recent_faults.lock().last = Some((now, format!("health check: {why}").into()));
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
            self.clear_flag(DOWN | EJECTED);
            Some(HealthChange::Up)
        } else {
            self.set_flag(DOWN);
            Some(HealthChange::Down)
        }
    }

    /// What is known, as of `now`, for another process.
    pub fn to_saved(&self, now: Now) -> SavedServerState {
        let is = |flag| self.flags() & flag != 0;
        let last_error = self.last_error().map(|(at, what)| (now.ns_since(at), what.into_owned()));
        SavedServerState {
            down: is(DOWN),
            draining: is(DRAINING),
            ejected_ns: is(EJECTED).then(|| Now(self.ejected_until.load(Relaxed)).ns_since(now)),
            risen_ns: is(SLOW_START).then(|| self.slow_start_ns(now)),
            errors: self.errors.load(Relaxed),
            streak: self.streak.load(Relaxed),
            ejections: self.ejection_count(),
            last_error,
        }
    }

    /// Takes over what another process knew, as of `now`; nobody uses the server yet.
    pub fn restore_saved(&self, known: &SavedServerState, now: Now) {
        let states = [(known.down, DOWN), (known.draining, DRAINING)];
        for (_, flag) in states.iter().filter(|(is, _)| *is) {
            self.set_flag(*flag);
        }
        if let Some(left) = known.ejected_ns {
            self.ejected_until.store(now.0.saturating_add(left), Relaxed);
            self.set_flag(EJECTED);
        }
        if let Some(risen) = known.risen_ns {
            self.begin_slow_start(Now(now.0.saturating_sub(risen)));
        }
        self.errors.store(known.errors, Relaxed);
        self.streak.store(known.streak, Relaxed);
        self.ejections.store(known.ejections, Relaxed);
        self.recent_faults.lock().last =
            known.last_error.clone().map(|(ago, what)| (Now(now.0.saturating_sub(ago)), what.into()));
    }

    pub fn ejection_count(&self) -> u64 {
        self.ejections.load(Relaxed)
    }

    /// Health checks that passed, and that failed.
    pub fn check_counts(&self) -> [u64; 2] {
        [0, 1].map(|which: usize| self.check_counts[which].load(Relaxed))
    }

    /// When, and what.
    pub fn last_error(&self) -> Option<(Now, Cow<'static, str>)> {
        self.recent_faults.lock().last.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a row of checks turns: `+` passes, `-` fails; `u` and `d` where the state turned, `.` where not.
    fn turns(checks: &str) -> String {
        let standing = ServerState::new(None);
        let turn = |check| {
            let result = if check == '+' { Ok(()) } else { Err("no".to_owned()) };
            match standing.record_check(result, 2, 3, Now(1)) {
                Some(HealthChange::Up) => 'u',
                Some(HealthChange::Down) => 'd',
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
        let standing = ServerState::new(None);
        standing.mark_ejected(Now(1_000));
        standing.begin_slow_start(Now(300));
        standing.set_flag(DRAINING);
        standing.record_error(Now(390), ServerFault::ConnectRefused);
        let _ = standing.record_check(Err("no".to_owned()), 2, 3, Now(400));
        let known = standing.to_saved(Now(400));
        let text = serde_json::to_string(&known).unwrap();
        let heir = ServerState::new(None);
        // Its clock is another one.
        heir.restore_saved(&serde_json::from_str(&text).unwrap(), Now(9_000_400));
        assert_eq!(heir.to_saved(Now(9_000_400)), known);
        assert_eq!(heir.flags(), EJECTED | DRAINING | SLOW_START);
        assert!(!heir.is_ejection_over(Now(9_000_999)) && heir.is_ejection_over(Now(9_001_000)));
        let (errors, _) = heir.record_error(Now(9_000_400), ServerFault::Reset);
        assert_eq!((heir.slow_start_ns(Now(9_000_400)), errors), (100, 2));
        // Another version may tell less, or more.
        let other = serde_json::from_str(r#"{"down":true,"colour":"red"}"#).unwrap();
        heir.restore_saved(&other, Now(9_000_400));
        assert!(heir.flags() & DOWN != 0);
    }

    #[test]
    fn coming_up_forgets_errors() {
        let standing = ServerState::new(None);
        standing.mark_ejected(Now(100));
        standing.record_error(Now(1), ServerFault::Closed);
        for _ in 0..3 {
            standing.record_check(Err("no".to_owned()), 1, 3, Now(2));
        }
        assert_eq!(standing.flags(), DOWN | EJECTED);
        assert_eq!(standing.record_check(Ok(()), 1, 3, Now(3)), Some(HealthChange::Up));
        assert_eq!((standing.flags(), standing.record_error(Now(4), ServerFault::Closed).0), (0, 1));
        assert_eq!((standing.check_counts(), standing.ejection_count()), ([1, 3], 1));
    }

    #[test]
    fn the_log_is_told_of_a_reason_once_a_minute() {
        let standing = ServerState::new(None);
        let minute = WARNING_INTERVAL_NS;
        let told = |at: u64, trouble| standing.record_error(Now(at), trouble).1;
        assert_eq!(told(5, ServerFault::ConnectRefused), Some(0));
        assert_eq!(told(6, ServerFault::Timeout), Some(0), "another reason");
        assert_eq!(
            (told(7, ServerFault::ConnectRefused), told(4 + minute, ServerFault::ConnectRefused)),
            (None, None)
        );
        assert_eq!(told(5 + minute, ServerFault::ConnectRefused), Some(2));
        assert_eq!(told(6 + minute, ServerFault::ConnectRefused), None);
        assert_eq!(standing.last_error().unwrap().1, "connection refused");
    }
}
