//! The members of the responses of language models: usage, and texts.
//!
//! OpenAI chat completions, completions and Responses, Anthropic messages, and their imitations, as vLLM and Groq;
//! Gemini, Bedrock Converse, Cohere, Replicate; Ollama, text-generation-inference and llama.cpp with their own APIs.

/// A number of a usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UsageField {
    /// All input, the cached part of the usage included.
    Prompt,
    /// Input of tools, beside the prompt.
    ToolPrompt,
    /// Input without the parts read from caches and written to them.
    Input,
    /// Input by its tokens, which are listed.
    ListedInput,
    Output,
    /// Reasoning, beside the other output.
    Thoughts,
    /// Prompt and output, and parts that some servers name in no other number.
    Total,
    /// The part of the input that was read from a cache.
    CachedPart,
    CacheRead,
    CacheWrite,
}

pub(super) const USAGE_FIELDS: usize = UsageField::CacheWrite as usize + 1;

const USAGE: &str = "usage/";
const OPENAI: &str = "x_groq/usage/ usage/";
/// `response` holds the usage of the events of OpenAI Responses, `message` that of Anthropic's first event, which
/// reports one token of output before there is any.
const RESPONSES: &str = "response/usage/ usage/";
const ANTHROPIC: &str = "message/usage/ usage/";
/// A stream of Gemini may be one array.
const GEMINI: &str = "usageMetadata/ */usageMetadata/";
const COHERE: &str = "meta/ response/meta/ usage/ delta/usage/";
const TGI: &str = "details/ */details/";

/// The places and the names of each number; one without a place stands at the top of a document. Of two members for one
/// field in a document the later of these counts.
pub(super) const USAGE_NUMBERS: [(&str, &str, UsageField); 28] = [
    ("", "prompt_eval_count tokens_evaluated", UsageField::Prompt),
    (OPENAI, "prompt_tokens", UsageField::Prompt),
    (GEMINI, "promptTokenCount", UsageField::Prompt),
    (GEMINI, "toolUsePromptTokenCount", UsageField::ToolPrompt),
    ("message/usage/ response/usage/ usage/", "input_tokens", UsageField::Input),
    (USAGE, "inputTokens", UsageField::Input),
    // The tokens are those that the model reads, of which a part is billed.
    (COHERE, "billed_units/input_tokens tokens/input_tokens", UsageField::Input),
    (TGI, "input_length", UsageField::Input),
    ("metrics/", "input_token_count", UsageField::Input),
    (TGI, "prefill/*", UsageField::ListedInput),
    ("", "eval_count tokens_predicted", UsageField::Output),
    (RESPONSES, "output_tokens", UsageField::Output),
    (OPENAI, "completion_tokens", UsageField::Output),
    (GEMINI, "candidatesTokenCount", UsageField::Output),
    (USAGE, "outputTokens", UsageField::Output),
    (COHERE, "billed_units/output_tokens tokens/output_tokens", UsageField::Output),
    (TGI, "generated_tokens", UsageField::Output),
    ("metrics/", "output_token_count", UsageField::Output),
    (GEMINI, "thoughtsTokenCount", UsageField::Thoughts),
    (OPENAI, "total_tokens", UsageField::Total),
    (GEMINI, "totalTokenCount", UsageField::Total),
    (RESPONSES, "input_tokens_details/cached_tokens", UsageField::CachedPart),
    (OPENAI, "prompt_tokens_details/cached_tokens", UsageField::CachedPart),
    (GEMINI, "cachedContentTokenCount", UsageField::CachedPart),
    (ANTHROPIC, "cache_read_input_tokens", UsageField::CacheRead),
    (USAGE, "cacheReadInputTokens", UsageField::CacheRead),
    (ANTHROPIC, "cache_creation_input_tokens", UsageField::CacheWrite),
    (USAGE, "cacheWriteInputTokens", UsageField::CacheWrite),
];

/// The model, as OpenAI, Anthropic and Gemini name it, and the parts of their streams.
pub(super) const MODELS: &str = "model response/model message/model modelVersion */modelVersion";

/// Texts of a body that is one document. The first two are names of one text: servers send either or both.
pub(super) const DOCUMENT_TEXTS: &str = "
    choices/*/message/reasoning choices/*/message/reasoning_content
    choices/*/message/content choices/*/message/refusal
    choices/*/message/tool_calls/*/function/arguments choices/*/message/tool_calls/*/custom/input
    choices/*/message/function_call/arguments choices/*/text
    choices/*/message/audio/data choices/*/message/audio/transcript
    output/*/content/*/text output/*/content/*/refusal output/*/summary/*/text output/*/arguments output/*/input
    content/*/text content/*/thinking
    candidates/*/content/parts/*/text */candidates/*/content/parts/*/text
    output/message/content/*/text output/message/content/*/reasoningContent/reasoningText/text
    text message/content/*/text message/content/*/thinking message/tool_plan message/tool_calls/*/function/arguments
    message/content message/thinking response thinking
    generated_text */generated_text
    content
    output output/*";

/// Texts of the documents of a stream, without those that its end repeats. Again the first two are
/// one text. `delta` alone is the text of all events of OpenAI Responses that add something.
pub(super) const STREAM_TEXTS: &str = "
    choices/*/delta/reasoning choices/*/delta/reasoning_content
    choices/*/delta/content choices/*/delta/refusal
    choices/*/delta/tool_calls/*/function/arguments choices/*/delta/tool_calls/*/custom/input
    choices/*/delta/function_call/arguments choices/*/text
    choices/*/delta/audio/data choices/*/delta/audio/transcript
    delta
    content_block/text content_block/thinking delta/text delta/thinking delta/partial_json
    candidates/*/content/parts/*/text
    delta/toolUse/input delta/reasoningContent/text
    delta/message/content/text delta/message/content/thinking delta/message/tool_plan
    delta/message/tool_calls/function/arguments
    message/content message/thinking response thinking
    token/text
    content";
