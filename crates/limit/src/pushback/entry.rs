//! The state of one key: its last pause, the pace after it, and the requests that wait.

use super::pace::Pace;
use crate::algorithm::queue::{NO_NODE, ShardQueues, Wakers};
use crate::table::persistent::{PersistentEntry, take_bytes};
use crate::table::{CounterKey, TableEntry};
use sluicegate_base::clock::{ClockShift, Now};

/// A pause is forgotten so long after its end.
const MEMORY_NS: u64 = 60_000_000_000;
/// Late timers are made up for within this time, and requests that do not wait may come so much too early together.
const SLACK_NS: u64 = 100_000_000;
const SECOND_NS: u64 = 1_000_000_000;

/// The pause and the pace of one key.
#[derive(Debug, Clone, Copy)]
pub(super) struct PushbackEntry {
    /// The second of the clock in which a request passed last.
    second: u64,
    /// Requests that passed in it, and in the second before.
    passed: u32,
    passed_before: u32,
    /// Requests that passed since the last pause began.
    passed_since: u32,
    /// The status that began it; 0 = a field about rates.
    status: u16,
    /// Start and end of the last pause; 0 = there was none.
    began: u64,
    pub until: u64,
    /// The moment from which the next request may pass.
    next_due: u64,
    pace: Pace,
    pub queue: u32,
}

/// Why a request must not pass now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pause {
    /// The end of the pause; it has passed while the pace climbs.
    pub until: Now,
    /// The wait until this request may pass, behind all that wait, ns.
    pub wait_ns: u64,
    /// The status that began the pause; 0 = a field about rates.
    pub status: u16,
}

/// The pause that its upstream asked for requests of this key.
#[derive(Debug, Clone, Copy)]
pub struct PauseCheck {
    /// The key that requests to the upstream pause by.
    pub key: CounterKey,
    /// `None` = it may pass.
    pub paused: Option<Pause>,
}

// === impl PushbackEntry ===

impl Default for PushbackEntry {
    fn default() -> PushbackEntry {
        PushbackEntry {
            second: 0,
            passed: 0,
            passed_before: 0,
            passed_since: 0,
            status: 0,
            began: 0,
            until: 0,
            next_due: 0,
            pace: Pace::default(),
            queue: NO_NODE,
        }
    }
}

impl TableEntry for PushbackEntry {
    type Extra = ShardQueues;

    fn is_idle(&self, now: Now) -> bool {
        let is_counting = self.passed > 0 && now.0 / SECOND_NS < self.second + 2;
        self.queue == NO_NODE && !is_counting && !self.remembers_pause(now)
    }

    /// The newcomer has the pause of the overflow entry, but its own queue.
    fn inherit_overflow(&self) -> Option<PushbackEntry> {
        Some(PushbackEntry { queue: NO_NODE, ..*self })
    }
}

/// The last pause and the pace after it; the requests that passed within a second are not kept.
impl PersistentEntry for PushbackEntry {
    fn encode_entry(&self, _: &ShardQueues, out: &mut Vec<u8>) {
        if self.until == 0 {
            return;
        }
        for moment in [self.began, self.until, self.next_due] {
            out.extend(moment.to_le_bytes());
        }
        out.extend(self.status.to_le_bytes());
        out.extend(self.passed_since.to_le_bytes());
        self.pace.encode_pace(out);
    }

    fn decode_entry(bytes: &mut &[u8], shift: ClockShift, _: &mut ShardQueues) -> Option<PushbackEntry> {
        let fresh = PushbackEntry::default();
        if bytes.is_empty() {
            return Some(fresh);
        }
        let moment = |bytes: &mut &[u8]| Some(shift.translate_ns(u64::from_le_bytes(take_bytes(bytes)?)));
        let [began, until, next_due] = [moment(bytes)?, moment(bytes)?, moment(bytes)?];
        let status = u16::from_le_bytes(take_bytes(bytes)?);
        let passed_since = u32::from_le_bytes(take_bytes(bytes)?);
        let pace = Pace::decode_pace(bytes)?;
        Some(PushbackEntry { began, until, next_due, status, passed_since, pace, ..fresh })
    }
}

impl PushbackEntry {
    fn remembers_pause(&self, now: Now) -> bool {
        self.until > 0 && now.0 < self.until.saturating_add(MEMORY_NS)
    }

    pub(super) fn is_paused(&self, now: Now) -> bool {
        now.0 < self.until
    }

    /// True if requests pass as if there had been no pause.
    fn is_open(&self, now: Now) -> bool {
        self.queue == NO_NODE
            && !self.is_paused(now)
            && (!self.remembers_pause(now) || self.pace.is_whole(now.0 - self.until))
    }

    /// The moment from which the next request may pass.
    pub(super) fn head_due(&self, now: Now) -> u64 {
        self.next_due.max(self.until).max(now.0.saturating_sub(SLACK_NS))
    }

    fn moment_after(&self, from: u64, requests: u64, front: u64) -> u64 {
        self.until.saturating_add(self.pace.moment_after(from.saturating_sub(self.until), requests, front))
    }

    /// Why a newcomer must not pass now.
    pub(super) fn find_pause(&self, queues: &ShardQueues, now: Now, front: u64) -> Option<Pause> {
        if self.is_open(now) {
            return None;
        }
        let head = self.head_due(now);
        let due = match queues.queued_units(self.queue) {
            0 => head,
            ahead => self.moment_after(head, ahead, front),
        };
        let paused = || Pause { until: Now(self.until), wait_ns: due - now.0, status: self.status };
        (due > now.0).then(paused)
    }

    /// Counts a request that passes, without a wait.
    pub(super) fn pass_request(&mut self, now: Now, front: u64) {
        if self.until > 0 && !self.is_open(now) {
            self.next_due = self.moment_after(self.head_due(now), 1, front);
        }
        self.count_passed(now);
    }

    /// Lets all waiters go that are due.
    pub(super) fn depart_due(&mut self, queues: &mut ShardQueues, now: Now, wakers: &mut Wakers) {
        while self.queue != NO_NODE && self.head_due(now) <= now.0 {
            let front = queues.head(self.queue).and_then(|waiter| u64::try_from(waiter.span).ok());
            self.next_due = self.moment_after(self.head_due(now), 1, front.unwrap_or(u64::MAX));
            self.count_passed(now);
            queues.depart_head(&mut self.queue, Default::default(), wakers);
        }
    }

    fn count_passed(&mut self, now: Now) {
        let second = now.0 / SECOND_NS;
        if second != self.second {
            self.passed_before = if second == self.second + 1 { self.passed } else { 0 };
            (self.second, self.passed) = (second, 0);
        }
        self.passed = self.passed.saturating_add(1);
        self.passed_since = self.passed_since.saturating_add(1);
    }

    /// Requests that passed within the last second, as far as two counters can tell.
    fn passed_last_second(&self, now: Now) -> u64 {
        let (second, within) = (now.0 / SECOND_NS, now.0 % SECOND_NS);
        let share = |count: u32| u64::from(count) * (SECOND_NS - within) / SECOND_NS;
        match second.saturating_sub(self.second) {
            0 => u64::from(self.passed) + share(self.passed_before),
            1 => share(self.passed),
            _ => 0,
        }
    }

    /// Begins a pause until `until`, or extends the current one; returns whether it began. A refusal of a request that
    /// was `sent` before the last pause began says nothing about the pace since.
    pub(super) fn begin_pause(&mut self, sent: Now, now: Now, until: u64, status: u16) -> bool {
        let is_known = self.is_paused(now) || self.remembers_pause(now) && sent.0 < self.began;
        if !is_known {
            let [since_began, since_end] =
                [self.began, self.until].map(|moment| now.0.saturating_sub(moment));
            self.pace = match self.remembers_pause(now) {
                false => Pace::after_pause(self.passed_last_second(now)),
                true => self.pace.after_repeated_pause(self.passed_since.into(), since_began, since_end),
            };
            (self.began, self.passed_since, self.status) = (now.0, 0, status);
        }
        if until > self.until {
            (self.until, self.next_due) = (until, until);
        }
        !is_known
    }
}
