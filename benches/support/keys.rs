//! Keys to judge, and an order to visit them.

use sluicegate_limit::table::CounterKey;

/// A key as a keyed hash would make it.
pub fn key(number: u64) -> CounterKey {
    let mixed =
        u128::from(number.wrapping_mul(0x9E37_79B9_7F4A_7C15)) * 0xD6E8_FEB8_6659_FD93_A076_1D64_78BD_642F;
    CounterKey::new(mixed, mixed as u64 >> 20)
}

/// A stride through the keys that no prefetcher can learn.
pub fn next(number: &mut u64, keys: u64) -> u64 {
    *number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*number >> 33) % keys
}
