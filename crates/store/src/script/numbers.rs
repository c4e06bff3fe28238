//! The numbers of a reply of the judging script.

use sluicegate_limit::LimitOutcome;

/// The verdict of a rate; waits and retries are in microseconds, not in ticks.
pub(super) struct RateVerdict {
    pub outcome: LimitOutcome,
    pub retry_us: u64,
    pub wait_us: u64,
}

/// The remainder of a rate, after the charge or without one.
pub(super) struct RateRemainder {
    pub remaining: u64,
    pub reset_us: u64,
    pub mark: u64,
    /// Microseconds until a fixed window ends.
    pub window_us: Option<u64>,
    /// Microseconds until nothing is used; of a log or a settled window at most, because the newest charge is not told.
    pub full_us: u64,
}

/// Below this, a double holds all whole numbers exactly.
pub(super) const EXACT_MAX: f64 = 9_007_199_254_740_992.0;

pub(super) fn take_bytes<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (first, rest) = bytes.split_first_chunk::<N>()?;
    *bytes = rest;
    Some(*first)
}

pub(super) fn read_double(bytes: &mut &[u8]) -> Option<f64> {
    take_bytes(bytes).map(f64::from_le_bytes)
}

/// A non-negative number; a fraction, which only foreign state has, is rounded up.
pub(super) fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    read_double(bytes).filter(|number| (0.0..EXACT_MAX).contains(number)).map(|number| number.ceil() as u64)
}

/// Numbers from here on are not exact in the arithmetic of the scripts about bans and entries.
const WHOLE_MAX: u64 = 1 << 52;

pub(super) fn encode_whole(number: u64) -> [u8; 8] {
    (number.min(WHOLE_MAX) as f64).to_le_bytes()
}

/// Reads as [`read_number`] does, by the bound of [`encode_whole`].
pub(super) fn read_whole(bytes: &mut &[u8]) -> Option<u64> {
    read_number(bytes).filter(|number| *number <= WHOLE_MAX)
}

/// Ticks in microseconds, rounded up.
pub(super) fn ticks_to_us(ticks: u64, num: u64) -> u64 {
    ticks.div_ceil(num)
}

pub(super) fn bucket_remainder(num: u64, unit: u64, depth: u64, level: u64) -> RateRemainder {
    let remaining = depth.saturating_sub(level) / unit;
    let reset_us = match remaining {
        0 => ticks_to_us(level.saturating_add(unit).saturating_sub(depth), num),
        _ => 0,
    };
    RateRemainder { remaining, reset_us, mark: 0, window_us: None, full_us: ticks_to_us(level, num) }
}
