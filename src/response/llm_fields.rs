//! The members of the responses of language models: usage, and texts.
//!
//! OpenAI chat completions, completions and Responses, Anthropic messages, and what speaks like them, as vLLM does;
//! Ollama's own API.

/// A number of a usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UsageField {
    /// All input: what the usage says of caches is part of it.
    Prompt,
    /// Input without what Anthropic read from caches and wrote to them.
    Input,
    Output,
    /// The part of the input that was read from a cache.
    CachedPart,
    CacheRead,
    CacheWrite,
}

pub(super) const USAGE_FIELDS: usize = 6;

/// Where documents say them. Of two members for one field in a document the later of these counts.
pub(super) const USAGE_PATHS: [(&str, UsageField); 17] = [
    ("prompt_eval_count", UsageField::Prompt),
    ("usage/prompt_tokens", UsageField::Prompt),
    // `message` holds the usage of Anthropic's first event, `response` that of the events of OpenAI Responses.
    ("message/usage/input_tokens", UsageField::Input),
    ("response/usage/input_tokens", UsageField::Input),
    ("usage/input_tokens", UsageField::Input),
    ("eval_count", UsageField::Output),
    ("message/usage/output_tokens", UsageField::Output),
    ("response/usage/output_tokens", UsageField::Output),
    ("usage/output_tokens", UsageField::Output),
    ("usage/completion_tokens", UsageField::Output),
    ("response/usage/input_tokens_details/cached_tokens", UsageField::CachedPart),
    ("usage/input_tokens_details/cached_tokens", UsageField::CachedPart),
    ("usage/prompt_tokens_details/cached_tokens", UsageField::CachedPart),
    ("message/usage/cache_read_input_tokens", UsageField::CacheRead),
    ("usage/cache_read_input_tokens", UsageField::CacheRead),
    ("message/usage/cache_creation_input_tokens", UsageField::CacheWrite),
    ("usage/cache_creation_input_tokens", UsageField::CacheWrite),
];

/// Texts of a body that is one document. The first two are names of one text: servers send either or both.
pub(super) const DOCUMENT_TEXTS: [&str; 19] = [
    "choices/*/message/reasoning",
    "choices/*/message/reasoning_content",
    "choices/*/message/content",
    "choices/*/message/refusal",
    "choices/*/message/tool_calls/*/function/arguments",
    "choices/*/message/tool_calls/*/custom/input",
    "choices/*/message/function_call/arguments",
    "choices/*/text",
    // OpenAI Responses.
    "output/*/content/*/text",
    "output/*/content/*/refusal",
    "output/*/summary/*/text",
    "output/*/arguments",
    "output/*/input",
    // Anthropic messages.
    "content/*/text",
    "content/*/thinking",
    // Ollama.
    "message/content",
    "message/thinking",
    "response",
    "thinking",
];

/// Texts of the documents of a stream; what the end of a stream repeats is not among them. Again the first two are
/// one text.
pub(super) const STREAM_TEXTS: [&str; 18] = [
    "choices/*/delta/reasoning",
    "choices/*/delta/reasoning_content",
    "choices/*/delta/content",
    "choices/*/delta/refusal",
    "choices/*/delta/tool_calls/*/function/arguments",
    "choices/*/delta/tool_calls/*/custom/input",
    "choices/*/delta/function_call/arguments",
    "choices/*/text",
    // OpenAI Responses: the text of all events that add something.
    "delta",
    // Anthropic messages.
    "content_block/text",
    "content_block/thinking",
    "delta/text",
    "delta/thinking",
    "delta/partial_json",
    // Ollama.
    "message/content",
    "message/thinking",
    "response",
    "thinking",
];
