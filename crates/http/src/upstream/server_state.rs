//! The state of a server, which survives a reload: requests in flight, up or down, ejected, draining, slow start.

use std::borrow::Cow;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::dns::DnsName;
use super::fault::ServerFault;
use super::lock_free::{InFlightCount, ServerFlags, WaiterCount};
use sluicegate_base::clock::Now;

/// The shortest time between two warnings of one reason, in nanoseconds.
const WARNING_INTERVAL_NS: u64 = 60_000_000_000;

/// The time that no connection is reused after stray data, in nanoseconds.
const REUSE_PAUSE_NS: u64 = 10_000_000_000;

/// The health checks of the server fail.
pub(super) const DOWN: u8 = 1;
/// The server had too many errors in a row.
pub(super) const EJECTED: u8 = 1 << 1;
/// The operator drains it.
pub(super) const DRAINING: u8 = 1 << 2;
/// The server is new or back, and does not have its full weight yet.
pub(super) const SLOW_START: u8 = 1 << 3;

#[derive(Default)]
pub(super) struct ServerState {
    pub in_flight: InFlightCount,
    /// The number in force, which a reload changes for all gateways.
    max_connections: AtomicU32,
    /// Set once its upstream has a queue.
    pub queue: OnceLock<QueueSignal>,
    /// [`DOWN`] and the other flags.
    flags: ServerFlags,
    /// Errors in a row.
    errors: AtomicU32,
    /// Nanoseconds of [`Now`].
    ejected_until: AtomicU64,
    /// Nanoseconds of [`Now`].
    slow_start_since: AtomicU64,
    pub ejections: AtomicU64,
    /// Connections on which it sent data without a request.
    pub stray_data: AtomicU64,
    /// The end of the pause in which connections are not reused, in nanoseconds of [`Now`]; 0 = no pause.
    reuse_paused_until: AtomicU64,
    /// Health checks that passed and that failed.
    pub check_counts: [AtomicU64; 2],
    /// Health checks in a row that contradict the state.
    streak: AtomicU32,
    recent_faults: Mutex<RecentFaults>,
    /// `None` if the host is an address.
    pub dns_name: Option<Arc<DnsName>>,
}

/// The state of a server that a process hands over to its successor. An absent field means the state of a new server.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct SavedServerState {
    down: bool,
    pub draining: bool,
    /// The rest of its ejection.
    ejected_ns: Option<u64>,
    /// Time since its slow start began.
    risen_ns: Option<u64>,
    /// Errors in a row.
    errors: u32,
    /// Health checks in a row that contradict the state.
    streak: u32,
    ejections: u64,
    /// The age of the error in nanoseconds, and its text.
    last_error: Option<(u64, String)>,
}

#[derive(Default)]
struct RecentFaults {
    last: Option<(Now, Cow<'static, str>)>,
    /// Limiters by [`ServerFault::index`].
    warnings: [WarningLimiter; ServerFault::COUNT],
}

/// Limits the warnings of one reason.
#[derive(Default)]
struct WarningLimiter {
    warned_at: Option<Now>,
    /// Errors since then that were not logged.
    suppressed: u64,
}

impl WarningLimiter {
    /// Counts an error; `Some` if it deserves a warning, with the number of unlogged errors before it.
    fn count_error(&mut self, now: Now) -> Option<u64> {
        if self.warned_at.is_some_and(|at| now.ns_since(at) < WARNING_INTERVAL_NS) {
            self.suppressed += 1;
            return None;
        }
        self.warned_at = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// The change that a health check made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HealthChange {
    Up,
    Down,
}

impl ServerState {
    pub(super) fn new(name: Option<Arc<DnsName>>) -> ServerState {
        let max_connections = AtomicU32::new(u32::MAX);
        ServerState { max_connections, dns_name: name, ..ServerState::default() }
    }

    /// `u32::MAX` = no bound.
    #[inline]
    pub(super) fn max_connections(&self) -> u32 {
        self.max_connections.load(Relaxed)
    }

    pub(super) fn set_max_connections(&self, most: u32) {
        self.max_connections.store(most, Relaxed);
    }

    /// Tells the queue that there may be a place, if requests wait.
    #[inline]
    pub(super) fn signal_queue(&self) {
        if let Some(QueueSignal { waiting, queue }) = self.queue.get()
            && !waiting.is_zero()
        {
            queue.wake_by_ref();
        }
    }

    #[inline]
    pub(super) fn flags(&self) -> u8 {
        self.flags.get()
    }

    /// True if it was not set before.
    pub(super) fn set_flag(&self, flag: u8) -> bool {
        self.flags.set(flag)
    }

    /// True if it was set before.
    pub(super) fn clear_flag(&self, flag: u8) -> bool {
        self.flags.clear(flag)
    }

    /// Counts an error. Returns the errors in a row and, if this one deserves a warning, the number of errors of this
    /// reason that were not logged before it.
    pub(super) fn record_error(&self, now: Now, fault: ServerFault) -> (u32, Option<u64>) {
        let mut recent = self.recent_faults.lock();
        recent.last = Some((now, fault.to_text()));
        let suppressed = recent.warnings[fault.index()].count_error(now);
        drop(recent);
        (self.errors.fetch_add(1, Relaxed).saturating_add(1), suppressed)
    }

    /// Ends a row of errors. Mostly there is no row, and nothing is written.
    #[inline]
    pub(super) fn record_success(&self) {
        if self.errors.load(Relaxed) != 0 {
            self.errors.store(0, Relaxed);
        }
    }

    pub(super) fn mark_ejected(&self, until: Now) {
        self.ejected_until.store(until.0, Relaxed);
        self.errors.store(0, Relaxed);
        if self.set_flag(EJECTED) {
            self.ejections.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn is_ejection_over(&self, now: Now) -> bool {
        now.0 >= self.ejected_until.load(Relaxed)
    }

    /// Counts data that it sent without a request, and pauses the reuse of its connections; true for the first time.
    pub(super) fn record_stray_data(&self, now: Now) -> bool {
        self.reuse_paused_until.store(now.0.saturating_add(REUSE_PAUSE_NS), Relaxed);
        self.stray_data.fetch_add(1, Relaxed) == 0
    }

    #[inline]
    pub(super) fn is_reuse_paused(&self) -> bool {
        let until = self.reuse_paused_until.load(Relaxed);
        until != 0 && Now::read_clock().0 < until
    }

    pub(super) fn begin_slow_start(&self, now: Now) {
        self.slow_start_since.store(now.0, Relaxed);
        self.set_flag(SLOW_START);
    }

    /// Nanoseconds since the slow start began.
    pub(super) fn slow_start_ns(&self, now: Now) -> u64 {
        now.ns_since(Now(self.slow_start_since.load(Relaxed)))
    }

    /// Records a health check; the state changes after `rise` passes in a row, or `fall` failures.
    pub(super) fn record_check(
        &self,
        result: Result<(), String>,
        rise: u32,
        fall: u32,
        now: Now,
    ) -> Option<HealthChange> {
        let is_down = self.flags() & DOWN != 0;
        let passed = result.is_ok();
        self.check_counts[usize::from(!passed)].fetch_add(1, Relaxed);
        if let Err(reason) = result {
            self.recent_faults.lock().last = Some((now, format!("health check: {reason}").into()));
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
            // Earlier errors must not keep a server away that passes its checks.
            self.errors.store(0, Relaxed);
            self.clear_flag(DOWN | EJECTED);
            Some(HealthChange::Up)
        } else {
            self.set_flag(DOWN);
            Some(HealthChange::Down)
        }
    }

    /// The state as of `now`, for another process.
    pub(super) fn to_saved(&self, now: Now) -> SavedServerState {
        let is = |flag| self.flags() & flag != 0;
        let last_error = self.last_error().map(|(at, text)| (now.ns_since(at), text.into_owned()));
        SavedServerState {
            down: is(DOWN),
            draining: is(DRAINING),
            ejected_ns: is(EJECTED).then(|| Now(self.ejected_until.load(Relaxed)).ns_since(now)),
            risen_ns: is(SLOW_START).then(|| self.slow_start_ns(now)),
            errors: self.errors.load(Relaxed),
            streak: self.streak.load(Relaxed),
            ejections: self.ejections.load(Relaxed),
            last_error,
        }
    }

    /// Takes over the state of another process as of `now`; the server is not in use yet.
    pub(super) fn restore_saved(&self, saved: &SavedServerState, now: Now) {
        let states = [(saved.down, DOWN), (saved.draining, DRAINING)];
        for (_, flag) in states.iter().filter(|(is, _)| *is) {
            self.set_flag(*flag);
        }
        if let Some(left) = saved.ejected_ns {
            self.ejected_until.store(now.0.saturating_add(left), Relaxed);
            self.set_flag(EJECTED);
        }
        if let Some(elapsed) = saved.risen_ns {
            self.begin_slow_start(Now(now.0.saturating_sub(elapsed)));
        }
        self.errors.store(saved.errors, Relaxed);
        self.streak.store(saved.streak, Relaxed);
        self.ejections.store(saved.ejections, Relaxed);
        self.recent_faults.lock().last =
            saved.last_error.clone().map(|(age, text)| (Now(now.0.saturating_sub(age)), text.into()));
    }

    pub(super) fn last_error(&self) -> Option<(Now, Cow<'static, str>)> {
        self.recent_faults.lock().last.clone()
    }
}

/// The connection of a server to the queue of its upstream.
pub(super) struct QueueSignal {
    pub waiting: Arc<WaiterCount>,
    /// Hands out the free places.
    pub queue: Waker,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The changes that a row of checks makes: `+` passes, `-` fails; `u` and `d` where the state changes, else `.`.
    fn turns(checks: &str) -> String {
        let state = ServerState::new(None);
        let turn = |check| {
            let result = if check == '+' { Ok(()) } else { Err("no".to_owned()) };
            match state.record_check(result, 2, 3, Now(1)) {
                Some(HealthChange::Up) => 'u',
                Some(HealthChange::Down) => 'd',
                None => '.',
            }
        };
        checks.chars().map(turn).collect()
    }

    #[test]
    fn only_rows_of_checks_change_a_server() {
        assert_eq!(turns("++++"), "....");
        assert_eq!(turns("---"), "..d");
        assert_eq!(turns("--+--+--+"), ".........");
        assert_eq!(turns("---+-+-++-"), "..d.....u.");
        assert_eq!(turns("---++---"), "..d.u..d");
    }

    #[test]
    fn another_process_restores_the_state() {
        let state = ServerState::new(None);
        state.mark_ejected(Now(1_000));
        state.begin_slow_start(Now(300));
        state.set_flag(DRAINING);
        state.record_error(Now(390), ServerFault::ConnectRefused);
        let _ = state.record_check(Err("no".to_owned()), 2, 3, Now(400));
        let known = state.to_saved(Now(400));
        let text = serde_json::to_string(&known).unwrap();
        let restored = ServerState::new(None);
        // It has another clock.
        restored.restore_saved(&serde_json::from_str(&text).unwrap(), Now(9_000_400));
        assert_eq!(restored.to_saved(Now(9_000_400)), known);
        assert_eq!(restored.flags(), EJECTED | DRAINING | SLOW_START);
        assert!(!restored.is_ejection_over(Now(9_000_999)) && restored.is_ejection_over(Now(9_001_000)));
        let (errors, _) = restored.record_error(Now(9_000_400), ServerFault::Reset);
        assert_eq!((restored.slow_start_ns(Now(9_000_400)), errors), (100, 2));
        // Another version may write fewer fields, or more.
        let other = serde_json::from_str(r#"{"down":true,"colour":"red"}"#).unwrap();
        restored.restore_saved(&other, Now(9_000_400));
        assert!(restored.flags() & DOWN != 0);
    }

    #[test]
    fn coming_up_forgets_errors() {
        let state = ServerState::new(None);
        state.mark_ejected(Now(100));
        state.record_error(Now(1), ServerFault::Closed);
        for _ in 0..3 {
            state.record_check(Err("no".to_owned()), 1, 3, Now(2));
        }
        assert_eq!(state.flags(), DOWN | EJECTED);
        assert_eq!(state.record_check(Ok(()), 1, 3, Now(3)), Some(HealthChange::Up));
        assert_eq!((state.flags(), state.record_error(Now(4), ServerFault::Closed).0), (0, 1));
        let counts = state.check_counts.each_ref().map(|count| count.load(Relaxed));
        assert_eq!((counts, state.ejections.load(Relaxed)), ([1, 3], 1));
    }

    #[test]
    fn a_reason_is_one_warning_a_minute() {
        let state = ServerState::new(None);
        let minute = WARNING_INTERVAL_NS;
        let warned = |at: u64, fault| state.record_error(Now(at), fault).1;
        assert_eq!(warned(5, ServerFault::ConnectRefused), Some(0));
        assert_eq!(warned(6, ServerFault::Timeout), Some(0), "another reason");
        assert_eq!(
            (warned(7, ServerFault::ConnectRefused), warned(4 + minute, ServerFault::ConnectRefused)),
            (None, None)
        );
        assert_eq!(warned(5 + minute, ServerFault::ConnectRefused), Some(2));
        assert_eq!(warned(6 + minute, ServerFault::ConnectRefused), None);
        assert_eq!(state.last_error().unwrap().1, "connection refused");
    }
}
