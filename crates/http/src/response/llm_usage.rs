//! The usage of a language model, put together from the documents of a response.

use super::llm_fields::{USAGE_FIELDS, UsageField};
use sluicegate_model::LlmWeights;

/// Tokens that a response said; `None`: it has not said it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LlmUsage {
    /// Input that was neither read from a cache nor written to one.
    pub input: Option<u64>,
    /// Output, which the model wrote.
    pub output: Option<u64>,
    /// Input that was read from a cache.
    pub cached: Option<u64>,
    /// Input that was written to a cache.
    pub cache_write: Option<u64>,
}

/// The last number of each field that a response said.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SaidUsage([Option<u64>; USAGE_FIELDS]);

// === impl LlmUsage ===

impl LlmUsage {
    /// True if the response said anything.
    pub fn is_said(&self) -> bool {
        self.input.is_some() || self.output.is_some() || self.cached.is_some() || self.cache_write.is_some()
    }

    /// All input, cached and written tokens included.
    pub fn all_input(&self) -> u64 {
        let kinds = [self.input, self.cached, self.cache_write];
        kinds.into_iter().flatten().fold(0, u64::saturating_add)
    }

    /// Units of these tokens, in millionths; missing numbers count nothing.
    pub fn units(&self, weights: &LlmWeights) -> u128 {
        let weighed = |tokens: Option<u64>, weight: u64| u128::from(tokens.unwrap_or(0)) * u128::from(weight);
        weighed(self.input, weights.input)
            .saturating_add(weighed(self.output, weights.output))
            .saturating_add(weighed(self.cached, weights.cached))
            .saturating_add(weighed(self.cache_write, weights.cache_write))
    }
}

// === impl SaidUsage ===

impl SaidUsage {
    pub(super) fn set(&mut self, field: UsageField, tokens: u64) {
        self.0[field as usize] = Some(tokens);
    }

    pub(super) fn usage(&self) -> LlmUsage {
        let said = |field: UsageField| self.0[field as usize];
        let (part, read) = (said(UsageField::CachedPart), said(UsageField::CacheRead));
        let cache_write = said(UsageField::CacheWrite);
        let output = sum(said(UsageField::Output), said(UsageField::Thoughts));
        let (total, input) =
            (said(UsageField::Total), said(UsageField::Input).or(said(UsageField::ListedInput)));
        // Input by itself, as that of embeddings, may be said as the total alone.
        let rest = total.filter(|_| input.is_none()).map(|total| total.saturating_sub(output.unwrap_or(0)));
        if let Some(prompt) = sum(said(UsageField::Prompt).or(rest), said(UsageField::ToolPrompt)) {
            // Some servers count reasoning in the total alone.
            let beyond = said(UsageField::Prompt).and(total).map(|total| total.saturating_sub(prompt));
            let output = output.max(beyond);
            // Gateways name the cached tokens as OpenAI does, as Anthropic does, or both; `prompt` includes them.
            let cached = part.max(read).map(|cached| cached.min(prompt));
            let rest = prompt - cached.unwrap_or(0);
            let cache_write = cache_write.map(|written| written.min(rest));
            return LlmUsage { input: Some(rest - cache_write.unwrap_or(0)), output, cached, cache_write };
        }
        let whole = input.map(|input| input.saturating_sub(part.unwrap_or(0)));
        let part = input.map_or(part, |input| part.map(|part| part.min(input)));
        let input = whole.or(cache_write.and(Some(0)));
        LlmUsage { input, output, cached: sum(part, read), cache_write }
    }
}

fn sum(first: Option<u64>, second: Option<u64>) -> Option<u64> {
    match (first, second) {
        (Some(first), Some(second)) => Some(first.saturating_add(second)),
        _ => first.or(second),
    }
}
