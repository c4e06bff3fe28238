//! An independent ledger: what a whole body says, by plain parsers.

use serde_json::Value;

/// What a body says, as the meter has to read it.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Ledger {
    pub input: Option<u64>,
    pub output: Option<u64>,
    pub cached: Option<u64>,
    pub text: u64,
    pub text_after_usage: u64,
    pub numbers: Vec<Option<u128>>,
}

/// The last numbers that the documents said.
#[derive(Default)]
struct LastSaid {
    prompt: Option<u64>,
    input: Option<u64>,
    output: Option<u64>,
    part: Option<u64>,
    read: Option<u64>,
    written: Option<u64>,
    total: Option<u64>,
}

/// Reads a body of a content type.
pub(super) fn read_body(content_type: &str, body: &[u8], pointers: &[&str]) -> Ledger {
    let mut documents = match content_type {
        "text/event-stream" => split_events(body),
        "application/x-ndjson" => {
            body.split(|byte| *byte == b'\n').map(|line| (line.to_vec(), true)).collect()
        }
        _ => vec![(body.to_vec(), false)],
    };
    documents.last_mut().expect("a document").1 = false;
    let is_stream = content_type != "application/json";
    let mut ledger = Ledger { numbers: vec![None; pointers.len()], ..Ledger::default() };
    let (mut said, mut is_plain) = (LastSaid::default(), false);
    for (document, is_ended) in documents {
        let json = document.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&document);
        let value = match serde_json::from_slice::<Value>(json) {
            Ok(value) => value,
            Err(error) => {
                let text = document.trim_ascii();
                let is_mark = text == b"[DONE]" || !is_ended && b"[DONE]".starts_with(text);
                is_plain |= is_stream && !is_mark && !text.is_empty() && (is_ended || !error.is_eof());
                continue;
            }
        };
        let text = if is_stream { stream_text(&value) } else { document_text(&value) };
        ledger.text += text;
        ledger.text_after_usage += text;
        if said.read(&value) {
            ledger.text_after_usage = 0;
        }
        for (number, pointer) in ledger.numbers.iter_mut().zip(pointers) {
            *number = value.pointer(pointer).and_then(millionths).or(*number);
        }
    }
    said.settle(&mut ledger);
    if is_plain {
        // Nothing is believed of a stream that is not one of JSON, but for its texts.
        let numbers = vec![None; pointers.len()];
        return Ledger { text: ledger.text, text_after_usage: ledger.text, numbers, ..Ledger::default() };
    }
    ledger
}

/// The data of each event, and whether the event has ended; the last counts without its end.
fn split_events(body: &[u8]) -> Vec<(Vec<u8>, bool)> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let mut lines: Vec<Vec<u8>> = vec![vec![]];
    let mut last = 0;
    for byte in body {
        match byte {
            b'\n' if last == b'\r' => {}
            b'\n' | b'\r' => lines.push(vec![]),
            byte => lines.last_mut().expect("a line").push(*byte),
        }
        last = *byte;
    }
    let whole_lines = lines.len() - 1;
    lines.push(vec![]);
    let (mut events, mut data) = (vec![], Vec::<Vec<u8>>::new());
    for (at, line) in lines.into_iter().enumerate() {
        if line.is_empty() {
            events.push((data.join(&b'\n'), at < whole_lines));
            data.clear();
        }
        let mut parts = line.splitn(2, |byte| *byte == b':');
        if parts.next() == Some(b"data") {
            let value = parts.next().unwrap_or_default();
            data.push(value.strip_prefix(b" ").unwrap_or(value).to_vec());
        }
    }
    events
}

fn millionths(value: &Value) -> Option<u128> {
    if let Some(whole) = value.as_u64() {
        return Some(u128::from(whole) * 1_000_000);
    }
    let scaled = value.as_f64()? * 1e6;
    let near = (scaled - scaled.round()).abs() < 1e-3;
    let scaled = if near { scaled.round() } else { scaled.ceil() };
    (0.0..1.8e25).contains(&scaled).then_some(scaled as u128)
}

fn tokens(value: &Value) -> Option<u64> {
    u64::try_from(millionths(value)?.div_ceil(1_000_000)).ok()
}

impl LastSaid {
    /// Reads a document; returns whether it said its output.
    fn read(&mut self, document: &Value) -> bool {
        let mut says_output = false;
        let usages = [&document["message"]["usage"], &document["response"]["usage"], &document["usage"]];
        let take = |said: &mut Option<u64>, value: &Value| *said = tokens(value).or(*said);
        take(&mut self.prompt, &document["prompt_eval_count"]);
        take(&mut self.prompt, &document["usage"]["prompt_tokens"]);
        for usage in usages {
            take(&mut self.input, &usage["input_tokens"]);
        }
        take(&mut self.total, &document["usage"]["total_tokens"]);
        // That of the first event of Anthropic is said before there is any.
        let of_usages = usages[1..].iter().map(|usage| &usage["output_tokens"]);
        let outputs = [&document["eval_count"]].into_iter().chain(of_usages);
        for output in outputs.chain([&document["usage"]["completion_tokens"]]) {
            says_output |= tokens(output).is_some();
            take(&mut self.output, output);
        }
        take(&mut self.part, &usages[1]["input_tokens_details"]["cached_tokens"]);
        take(&mut self.part, &usages[2]["input_tokens_details"]["cached_tokens"]);
        take(&mut self.part, &usages[2]["prompt_tokens_details"]["cached_tokens"]);
        for usage in [usages[0], usages[2]] {
            take(&mut self.read, &usage["cache_read_input_tokens"]);
            take(&mut self.written, &usage["cache_creation_input_tokens"]);
        }
        says_output
    }

    fn settle(&self, ledger: &mut Ledger) {
        ledger.output = self.output;
        let rest = self.total.filter(|_| self.input.is_none());
        let rest = rest.map(|total| total.saturating_sub(self.output.unwrap_or(0)));
        if let Some(prompt) = self.prompt.or(rest) {
            let beyond = self.prompt.and(self.total).map(|total| total.saturating_sub(prompt));
            ledger.output = self.output.max(beyond);
            let cached = self.part.unwrap_or(0).max(self.read.unwrap_or(0)).min(prompt);
            ledger.input = Some(prompt - cached);
            ledger.cached = (self.part.is_some() || self.read.is_some()).then_some(cached);
            return;
        }
        let part = match self.input {
            Some(input) => self.part.map(|part| part.min(input)),
            None => self.part,
        };
        let uncached = self.input.map(|input| input - part.unwrap_or(0));
        let add = |a: Option<u64>, b: Option<u64>| [a, b].into_iter().flatten().reduce(u64::saturating_add);
        ledger.input = add(uncached, self.written);
        ledger.cached = add(part, self.read);
    }
}

fn length(value: &Value) -> u64 {
    value.as_str().map_or(0, |text| text.len() as u64)
}

fn elements(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Of a message of OpenAI, or its delta; its reasoning is apart, by both names.
fn message_text(message: &Value) -> (u64, [u64; 2]) {
    let calls = elements(&message["tool_calls"]);
    let calls: u64 =
        calls.map(|call| length(&call["function"]["arguments"]) + length(&call["custom"]["input"])).sum();
    let text = length(&message["content"]) + length(&message["refusal"]);
    let reasoning = [length(&message["reasoning"]), length(&message["reasoning_content"])];
    (text + calls + length(&message["function_call"]["arguments"]), reasoning)
}

fn choices_text(document: &Value, member: &str) -> u64 {
    let (mut text, mut reasoning) = (0, [0, 0]);
    for choice in elements(&document["choices"]) {
        let (message, both) = message_text(&choice[member]);
        text += message + length(&choice["text"]);
        reasoning = [reasoning[0] + both[0], reasoning[1] + both[1]];
    }
    text + reasoning[0].max(reasoning[1])
}

fn ollama_text(document: &Value) -> u64 {
    let message = &document["message"];
    length(&message["content"])
        + length(&message["thinking"])
        + length(&document["response"])
        + length(&document["thinking"])
}

fn stream_text(event: &Value) -> u64 {
    let delta = &event["delta"];
    let block = &event["content_block"];
    let anthropic = length(&delta["text"]) + length(&delta["thinking"]) + length(&delta["partial_json"]);
    let begun = length(&block["text"]) + length(&block["thinking"]);
    choices_text(event, "delta")
        + length(delta)
        + anthropic
        + begun
        + ollama_text(event)
        + length(&event["content"])
}

fn document_text(document: &Value) -> u64 {
    let mut text = choices_text(document, "message") + ollama_text(document);
    // Of llama.cpp, Cohere, text-generation-inference and Replicate.
    text += ["content", "text", "generated_text", "output"]
        .map(|name| length(&document[name]))
        .iter()
        .sum::<u64>();
    for item in elements(&document["output"]) {
        text += length(item) + length(&item["arguments"]) + length(&item["input"]);
        text += elements(&item["summary"]).map(|part| length(&part["text"])).sum::<u64>();
        let parts = elements(&item["content"]);
        text += parts.map(|part| length(&part["text"]) + length(&part["refusal"])).sum::<u64>();
    }
    let blocks = elements(&document["content"]);
    text + blocks.map(|block| length(&block["text"]) + length(&block["thinking"])).sum::<u64>()
}
