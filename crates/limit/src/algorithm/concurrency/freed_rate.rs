//! The recent rate of freed slots of a key, from which the wait of one more request is estimated.

use sluicegate_base::clock::Now;

/// The slots of a key that went to its waiters since a moment.
#[derive(Debug, Clone, Copy)]
pub struct FreedRate {
    since: Now,
    slots: u64,
}

/// Older slots count half after each such span, in nanoseconds.
const SPAN_NS: u64 = 8_000_000_000;

/// The longest estimate, in nanoseconds: beyond a minute nothing is known.
const WAIT_MAX_NS: u64 = 60_000_000_000;

// === impl FreedRate ===

impl FreedRate {
    /// A rate without freed slots, measured from `now` on.
    pub fn starting(now: Now) -> FreedRate {
        FreedRate { since: now, slots: 0 }
    }

    /// Adds slots that went to waiters up to `now`, and fades older ones.
    pub fn count_slots(&mut self, slots: u64, now: Now) {
        self.slots = self.slots.saturating_add(slots);
        let span = now.ns_since(self.since);
        if span >= SPAN_NS {
            *self = FreedRate { since: Now(now.0 - span.min(2 * SPAN_NS) / 2), slots: self.slots / 2 };
        }
    }

    /// The time until so many slots are freed, if that goes on as it did; at least 1.
    pub fn estimate_wait(&self, slots: u64, now: Now) -> u64 {
        let span = u128::from(now.ns_since(self.since));
        // Until the first one is freed, it takes at least the time that has passed.
        let wait = span * u128::from(slots) / u128::from(self.slots.max(1));
        u64::try_from(wait).unwrap_or(u64::MAX).clamp(1, WAIT_MAX_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_steady_rate_is_found() {
        let mut rate = FreedRate::starting(Now(0));
        (1..=2_000).for_each(|count| rate.count_slots(1, Now(count * 20 * MS)));
        let wait = rate.estimate_wait(100, Now(40_000 * MS));
        assert!((1_900..=2_100).contains(&(wait / MS)), "100 slots at 50 a second take 2 s, not {wait} ns");
    }

    #[test]
    fn a_change_of_the_rate_is_followed_and_a_standstill_is_seen() {
        let mut rate = FreedRate::starting(Now(0));
        (1..=1_000).for_each(|count| rate.count_slots(1, Now(count * 10 * MS)));
        let mut at = 10_000;
        for _ in 0..40 {
            at += 1_000;
            rate.count_slots(1, Now(at * MS));
        }
        let wait = rate.estimate_wait(1, Now(at * MS)) / MS;
        assert!((600..=1_200).contains(&wait), "one a second since 40 s, not one in {wait} ms");
        assert!(rate.estimate_wait(1, Now((at + 100_000) * MS)) > 5_000 * MS);
    }

    #[test]
    fn an_estimate_has_bounds() {
        let rate = FreedRate::starting(Now(0));
        assert_eq!(rate.estimate_wait(10, Now(0)), 1);
        assert_eq!(rate.estimate_wait(10, Now(u64::MAX)), WAIT_MAX_NS);
        assert_eq!(rate.estimate_wait(u64::MAX, Now(u64::MAX)), WAIT_MAX_NS);
    }
}
