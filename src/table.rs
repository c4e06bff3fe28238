//! The bounded table of counters; here only what a counter is found by.

/// What a limit counts by: 128 keyed bits of the key's text, never the text itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Key {
    pub id: u128,
    /// Newcomers to a full table share a counter with those of equal prefix.
    pub prefix: u64,
}
