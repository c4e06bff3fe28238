//! What the tokens of language models cost.

/// Units per token of a language model, in millionths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LlmWeights {
    /// Input that was neither read from a cache nor written to one.
    pub input: u64,
    /// Output, reasoning included.
    pub output: u64,
    /// Input that was read from a cache.
    pub cached: u64,
    /// Input that was written to a cache.
    pub cache_write: u64,
}

// === impl LlmWeights ===

impl LlmWeights {
    /// Millionths in a whole.
    pub const ONE: u64 = 1_000_000;

    /// Each token is one unit.
    pub const EQUAL: LlmWeights = LlmWeights {
        input: LlmWeights::ONE,
        output: LlmWeights::ONE,
        cached: LlmWeights::ONE,
        cache_write: LlmWeights::ONE,
    };
}
