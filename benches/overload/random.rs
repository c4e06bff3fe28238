//! Random numbers that are the same in each run with the same seed.

pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random((seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    /// Exponentially distributed around 1.
    pub fn exponential(&mut self) -> f64 {
        for (left, shift) in [(true, 13), (false, 7), (true, 17)] {
            self.0 ^= if left { self.0 << shift } else { self.0 >> shift };
        }
        -(((self.0 >> 11) + 1) as f64 / (1u64 << 53) as f64).ln()
    }
}
