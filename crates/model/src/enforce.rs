//! The share of its keys on which a limit acts.

/// A share of all keys, chosen by a hash that all gateways compute alike. A greater share contains every smaller one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EnforcedShare {
    percent: f64,
    /// Keys with a hash below this are in the share.
    below: u64,
}

/// The number of hashes: 2⁶⁴.
const HASHES: f64 = 18_446_744_073_709_551_616.0;

impl EnforcedShare {
    /// `percent` is from 0 to below 100.
    pub fn new(percent: f64) -> EnforcedShare {
        // A cast of floats saturates.
        EnforcedShare { percent, below: (percent / 100.0 * HASHES) as u64 }
    }

    /// True if the limit acts on the key with this hash, which is the same in all gateways.
    pub fn contains(self, hash: [u8; 16]) -> bool {
        ((u128::from_be_bytes(hash) >> 64) as u64) < self.below
    }
}

impl std::fmt::Display for EnforcedShare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}%", self.percent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_end_where_they_say() {
        let hash = |first: u64| u128::from(first).checked_shl(64).unwrap_or_default().to_be_bytes();
        for (percent, last) in [(50.0, (1 << 63) - 1), (25.0, (1 << 62) - 1), (0.5, u64::MAX / 200)] {
            let share = EnforcedShare::new(percent);
            assert!(share.contains(hash(0)) && share.contains(hash(last - 2000)), "{share}");
            assert!(!share.contains(hash(last + 2000)) && !share.contains([0xff; 16]), "{share}");
        }
        assert!(!EnforcedShare::new(0.0).contains([0; 16]), "0% contains no key");
        assert_eq!(EnforcedShare::new(0.5).to_string(), "0.5%");
    }
}
