//! The answers of providers of language models: the text that each event carries, and the usage that they tell.

use serde_json::{Value, json};

use crate::random::Random;

/// How a provider answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    ChatJson,
    ChatStream,
    /// Usage in every chunk, as some servers tell it when asked to.
    ChatStreamCumulative,
    ResponsesJson,
    ResponsesStream,
    MessagesJson,
    MessagesStream,
    OllamaStream,
}

pub const DIALECTS: [Dialect; 8] = [
    Dialect::ChatJson,
    Dialect::ChatStream,
    Dialect::ChatStreamCumulative,
    Dialect::ResponsesJson,
    Dialect::ResponsesStream,
    Dialect::MessagesJson,
    Dialect::MessagesStream,
    Dialect::OllamaStream,
];

/// Tokens in the end.
#[derive(Debug, Clone, Copy)]
pub struct Tokens {
    /// Without those read from a cache.
    pub input: u64,
    pub cached: u64,
    pub output: u64,
}

/// One document of an answer, and what is known once it was delivered.
#[derive(Debug, Clone)]
pub struct Event {
    /// The name of the event, or of none.
    pub name: Option<&'static str>,
    pub document: Value,
    /// Bytes of text in this document.
    pub text: u64,
    pub input: Option<(u64, u64)>,
    pub output: Option<u64>,
}

impl Event {
    fn new(name: Option<&'static str>, document: Value) -> Event {
        Event { name, document, text: 0, input: None, output: None }
    }

    fn with_text(self, text: &str) -> Event {
        Event { text: text.len() as u64, ..self }
    }

    /// With the tokens that it tells of input and output.
    fn telling(self, input: Option<Tokens>, output: Option<Tokens>) -> Event {
        let (input, output) =
            (input.map(|tokens| (tokens.input, tokens.cached)), output.map(|tokens| tokens.output));
        Event { input, output, ..self }
    }
}

impl Dialect {
    pub fn is_stream(self) -> bool {
        !matches!(self, Dialect::ChatJson | Dialect::ResponsesJson | Dialect::MessagesJson)
    }

    pub fn is_ndjson(self) -> bool {
        self == Dialect::OllamaStream
    }

    /// The events of an answer with these pieces of text; `tells` whether it says its usage.
    pub fn events(self, pieces: &[String], tokens: Tokens, tells: bool, random: &mut Random) -> Vec<Event> {
        let told = Some(tokens).filter(|_| tells);
        match self {
            Dialect::ChatJson => vec![chat_answer(&pieces.concat(), told)],
            Dialect::ChatStream => chat_chunks(pieces, told, false, random),
            Dialect::ChatStreamCumulative => chat_chunks(pieces, told, true, random),
            Dialect::ResponsesJson => {
                let whole = pieces.concat();
                let mut document = responses_answer(&whole);
                if let Some(tokens) = told {
                    document["usage"] = responses_usage(tokens);
                }
                vec![Event::new(None, document).with_text(&whole).telling(told, told)]
            }
            Dialect::ResponsesStream => responses_events(pieces, told, random),
            Dialect::MessagesJson => {
                let whole = pieces.concat();
                let mut document =
                    json!({ "type": "message", "content": [{ "type": "text", "text": whole }] });
                if let Some(tokens) = told {
                    document["usage"] = messages_usage(tokens, tokens.output);
                }
                vec![Event::new(None, document).with_text(&whole).telling(told, told)]
            }
            Dialect::MessagesStream => messages_events(pieces, told, random),
            Dialect::OllamaStream => ollama_lines(pieces, told),
        }
    }
}

fn chat_answer(whole: &str, told: Option<Tokens>) -> Event {
    let mut document = json!({ "id": "c", "choices": [{ "index": 0, "message": { "role": "assistant", "content": whole } }] });
    if let Some(tokens) = told {
        document["usage"] = chat_usage(tokens);
    }
    Event::new(None, document).with_text(whole).telling(told, told)
}

/// `every`: each chunk tells the usage so far.
fn chat_chunks(pieces: &[String], told: Option<Tokens>, every: bool, random: &mut Random) -> Vec<Event> {
    let mut events = Vec::new();
    for (index, piece) in pieces.iter().enumerate() {
        let field = *random.pick(&["content", "reasoning_content", "refusal"]);
        let mut document = json!({ "object": "chat.completion.chunk",
            "choices": [{ "index": 0, "delta": { field: piece } }] });
        let so_far = told.filter(|_| every).map(|tokens| Tokens { output: 1 + index as u64, ..tokens });
        if let Some(so_far) = so_far {
            document["usage"] = chat_usage(so_far);
        }
        events.push(Event::new(None, document).with_text(piece).telling(so_far, so_far));
    }
    let mut last = json!({ "object": "chat.completion.chunk", "choices": [] });
    if let Some(tokens) = told {
        last["usage"] = chat_usage(tokens);
    }
    events.push(Event::new(None, last).telling(told, told));
    events
}

fn responses_events(pieces: &[String], told: Option<Tokens>, random: &mut Random) -> Vec<Event> {
    let begun = json!({ "type": "response.created", "response": { "output": [], "usage": null } });
    let mut events = vec![Event::new(Some("response.created"), begun)];
    for piece in pieces {
        let name = *random.pick(&[
            "response.output_text.delta",
            "response.reasoning_summary_text.delta",
            "response.function_call_arguments.delta",
        ]);
        events.push(Event::new(Some(name), json!({ "type": name, "delta": piece })).with_text(piece));
    }
    let whole = pieces.concat();
    let done = json!({ "type": "response.output_text.done", "text": whole });
    events.push(Event::new(Some("response.output_text.done"), done));
    let mut answer = responses_answer(&whole);
    if let Some(tokens) = told {
        answer["usage"] = responses_usage(tokens);
    }
    let document = json!({ "type": "response.completed", "response": answer });
    events.push(Event::new(Some("response.completed"), document).telling(told, told));
    events
}

fn messages_events(pieces: &[String], told: Option<Tokens>, random: &mut Random) -> Vec<Event> {
    let mut begun = json!({ "type": "message_start", "message": { "content": [] } });
    // The first event tells the input, and one token of an output that has not begun.
    let first = told.map(|tokens| Tokens { output: 1, ..tokens });
    if let Some(tokens) = first {
        begun["message"]["usage"] = messages_usage(tokens, tokens.output);
    }
    let mut events = vec![Event::new(Some("message_start"), begun).telling(first, None)];
    for piece in pieces {
        let delta = match random.below(3) {
            0 => json!({ "type": "text_delta", "text": piece }),
            1 => json!({ "type": "thinking_delta", "thinking": piece }),
            _ => json!({ "type": "input_json_delta", "partial_json": piece }),
        };
        let document = json!({ "type": "content_block_delta", "index": 0, "delta": delta });
        events.push(Event::new(Some("content_block_delta"), document).with_text(piece));
    }
    let mut last = json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" } });
    if let Some(tokens) = told {
        last["usage"] = json!({ "output_tokens": tokens.output });
    }
    events.push(Event::new(Some("message_delta"), last).telling(None, told));
    events.push(Event::new(Some("message_stop"), json!({ "type": "message_stop" })));
    events
}

fn ollama_lines(pieces: &[String], told: Option<Tokens>) -> Vec<Event> {
    let line = |piece: &String| {
        let message = json!({ "role": "assistant", "content": piece });
        Event::new(None, json!({ "model": "m", "message": message, "done": false })).with_text(piece)
    };
    let mut events: Vec<Event> = pieces.iter().map(line).collect();
    let mut last = json!({ "model": "m", "message": { "content": "" }, "done": true });
    // It tells nothing of a cache.
    let told = told.map(|tokens| Tokens { input: tokens.input + tokens.cached, cached: 0, ..tokens });
    if let Some(tokens) = told {
        last["prompt_eval_count"] = tokens.input.into();
        last["eval_count"] = tokens.output.into();
    }
    events.push(Event::new(None, last).with_text("").telling(told, told));
    events
}

fn chat_usage(tokens: Tokens) -> Value {
    json!({ "prompt_tokens": tokens.input + tokens.cached, "completion_tokens": tokens.output,
        "prompt_tokens_details": { "cached_tokens": tokens.cached },
        "completion_tokens_details": { "reasoning_tokens": tokens.output / 2 } })
}

fn responses_usage(tokens: Tokens) -> Value {
    json!({ "input_tokens": tokens.input + tokens.cached, "output_tokens": tokens.output,
        "input_tokens_details": { "cached_tokens": tokens.cached },
        "output_tokens_details": { "reasoning_tokens": tokens.output / 2 } })
}

fn responses_answer(text: &str) -> Value {
    json!({ "object": "response", "output": [{ "type": "message",
        "content": [{ "type": "output_text", "text": text }] }] })
}

/// Half of the input was written to a cache, which weighs as input.
fn messages_usage(tokens: Tokens, output: u64) -> Value {
    let written = tokens.input / 2;
    json!({ "input_tokens": tokens.input - written, "cache_creation_input_tokens": written,
        "cache_read_input_tokens": tokens.cached, "output_tokens": output })
}
