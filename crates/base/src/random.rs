//! Random numbers that must differ, but need not be secret.

use std::cell::Cell;
use std::hash::{BuildHasher, Hash, RandomState};

/// SplitMix64 (Steele, Lea and Flood 2014).
#[derive(Debug)]
pub struct RandomNumbers(Cell<u64>);

impl RandomNumbers {
    /// Begins at a random place, which differs by `owner`.
    pub fn seeded(owner: impl Hash) -> RandomNumbers {
        RandomNumbers(Cell::new(RandomState::new().hash_one(owner)))
    }

    /// The next number; all values of 64 bits are equally likely.
    pub fn next(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}
