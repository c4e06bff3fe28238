//! The moments of orders: renewals, and waits after failures. All times are in seconds since 1970.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::directory::{RETRY_AFTER_MAX, RenewalWindow};
use sluicegate_base::value_hash::sha256;

const WAIT_MIN_S: u64 = 60;
const WAIT_MAX_S: u64 = 6 * 3600;
/// A failure that lies further in the future was written by a clock that was wrong.
const CLOCK_ERROR_MAX_S: u64 = 3600;
/// The shortest age at which an authority may ask for a renewal, so that its windows cause no loop of orders.
const AGE_MIN_S: u64 = 3600;

/// The wait after failed orders of one certificate, as it is stored.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OrderWait {
    /// The failures in a row; 0 = there is no wait.
    pub failures: u32,
    /// The moment of the last one.
    pub failed_at: u64,
    /// The time until the next order.
    pub wait_s: u64,
    /// The reason of the last failure.
    pub reason: String,
}

impl OrderWait {
    /// The wait after one more failure, which the directory may lengthen.
    pub(super) fn after_failure(&self, now: u64, reason: String, asked: Option<Duration>) -> OrderWait {
        let failures = self.failures.saturating_add(1);
        let doubled = WAIT_MIN_S << (failures - 1).min(16);
        let wait_s = doubled.min(WAIT_MAX_S).max(asked.map_or(0, |asked| asked.as_secs()));
        OrderWait { failures, failed_at: now, wait_s, reason }
    }

    /// The moment from which an order may be made.
    pub(super) fn ends_at(&self, now: u64) -> u64 {
        match self.failed_at > now.saturating_add(CLOCK_ERROR_MAX_S) {
            true => now,
            // A damaged file delays no order for ever.
            false => self.failed_at.saturating_add(self.wait_s.min(RETRY_AFTER_MAX.as_secs())),
        }
    }
}

/// The moment of the renewal of `certificate`, valid from `begin` to `end`: in the window of its authority, or when a
/// third of its life is left, at most 5 % of that third earlier or later. Gateways compute the same moment.
pub(super) fn renewal_at(certificate: &[u8], (begin, end): (u64, u64), window: Option<RenewalWindow>) -> u64 {
    let digest: [u8; 4] = sha256(certificate);
    let share = f64::from(u32::from_be_bytes(digest)) / f64::from(u32::MAX);
    let life = end.saturating_sub(begin);
    // A window ends after it starts, and overlaps the life of the certificate.
    if let Some((start, last)) = window
        && start < last
        && begin < last
        && start < end
    {
        let chosen = start + ((last.min(end) - start) as f64 * share) as u64;
        return chosen.max(begin + AGE_MIN_S.min(life / 10));
    }
    let third = life as f64 / 3.0;
    end.saturating_sub((third * (0.95 + share / 10.0)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_from_a_minute_to_six_hours() {
        let mut wait = OrderWait::default();
        assert_eq!(wait.ends_at(1_000), 0);
        let mut waits = Vec::new();
        for _ in 0..40 {
            wait = wait.after_failure(1_000, String::new(), None);
            waits.push(wait.wait_s);
        }
        assert_eq!(waits[..5], [60, 120, 240, 480, 960]);
        assert!(waits[9..].iter().all(|wait| *wait == 21_600) && waits[8] == 15_360);
        assert_eq!(wait.ends_at(1_000), 22_600);
        let asked =
            |seconds| wait.after_failure(1_000, String::new(), Some(Duration::from_secs(seconds))).wait_s;
        assert_eq!((asked(5), asked(90_000)), (21_600, 90_000));
    }

    #[test]
    fn a_failure_in_the_future_delays_no_order() {
        let wait = OrderWait::default().after_failure(10_000, String::new(), None);
        assert_eq!(wait.ends_at(9_990), 10_060);
        assert_eq!(wait.ends_at(6_000), 6_000);
        let damaged = OrderWait { wait_s: u64::MAX, ..wait };
        assert_eq!(damaged.ends_at(10_000), 10_000 + RETRY_AFTER_MAX.as_secs());
    }

    #[test]
    fn a_third_of_the_life_is_left_at_the_renewal() {
        let (mut least, mut most) = (u64::MAX, 0);
        for certificate in 0..2_000_u32 {
            let at = renewal_at(&certificate.to_be_bytes(), (0, 90 * 86_400), None);
            assert_eq!(at, renewal_at(&certificate.to_be_bytes(), (0, 90 * 86_400), None));
            (least, most) = (least.min(at), most.max(at));
        }
        let third = 30 * 86_400;
        let (early, late) = (2 * third - third / 20, 2 * third + third / 20);
        assert!((early..early + 3_000).contains(&least), "{least}");
        assert!((late - 3_000..=late).contains(&most), "{most}");
    }

    #[test]
    fn windows_of_the_authority_are_used_unless_they_are_absurd() {
        let life = (1_000_000, 2_000_000);
        let usual = renewal_at(b"x", life, None);
        let at = |start, end| renewal_at(b"x", life, Some((start, end)));
        for certificate in 0..200_u32 {
            let window = Some((1_200_000, 1_300_000));
            let at = renewal_at(&certificate.to_be_bytes(), life, window);
            assert!((1_200_000..=1_300_000).contains(&at), "{at}");
        }
        for (start, end) in
            [(1_300_000, 1_200_000), (1_200_000, 1_200_000), (0, 900_000), (2_000_000, 3_000_000)]
        {
            assert_eq!(at(start, end), usual, "{start} {end}");
        }
        // It wants the renewal at once, but not in a loop.
        assert_eq!(at(0, 1_000_001), 1_000_000 + AGE_MIN_S);
        assert!(at(1_999_990, u64::MAX) <= 2_000_000);
    }
}
