//! The cost of reading what a response used: streams and documents of language models through a meter.

use std::hint::black_box;
use std::sync::Arc;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use http::HeaderValue;
use sluicegate_http::response::{LlmParts, MeterPlan, ResponseMeter};

const SIZE: usize = 1 << 20;

/// As OpenAI sends them: some 230 bytes around each token.
fn openai_chunk(text: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-BQ7sxyzJ3mJkHq0nVt1wQfM2bC4dE\",\"object\":\"chat.completion.chunk\",\"created\":1745596800,\
         \"model\":\"gpt-4o-2024-08-06\",\"service_tier\":\"default\",\"system_fingerprint\":\"fp_f5bdcc3276\",\
         \"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"logprobs\":null,\"finish_reason\":null}}],\
         \"usage\":null}}\n\n"
    )
}

fn anthropic_event(text: &str) -> String {
    format!(
        "event: content_block_delta\ndata: {{\"type\":\"content_block_delta\",\"index\":0,\
         \"delta\":{{\"type\":\"text_delta\",\"text\":\"{text}\"}}}}\n\n"
    )
}

/// Frames of a mebibyte together, with tokens of different lengths.
fn stream(frame: impl Fn(&str) -> String) -> Vec<u8> {
    let words = [" the", " gateway", ",", " and", "\\n\\n", " responses", " a", " tokenization", ".", " ü"];
    let mut body = Vec::new();
    for word in words.iter().cycle() {
        body.extend_from_slice(frame(word).as_bytes());
        if body.len() >= SIZE {
            break;
        }
    }
    body.truncate(SIZE);
    body
}

fn document() -> Vec<u8> {
    let text = "Some sentences of a long answer, as models write them. ".repeat(SIZE / 56);
    let usage = "\"usage\":{\"prompt_tokens\":19,\"completion_tokens\":10}";
    format!("{{\"choices\":[{{\"message\":{{\"content\":\"{text}\"}}}}],{usage}}}").into_bytes()
}

fn scans(criterion: &mut Criterion) {
    let plan = Arc::new(MeterPlan::new(LlmParts::Usage, &[]).expect("it is small"));
    let mut group = criterion.benchmark_group("a mebibyte of");
    for (name, content_type, body) in [
        ("OpenAI chunks", "text/event-stream", stream(openai_chunk)),
        ("Anthropic events", "text/event-stream", stream(anthropic_event)),
        ("events of long texts", "text/event-stream", stream(|word| openai_chunk(&word.repeat(400)))),
        ("a JSON document", "application/json", document()),
    ] {
        let content_type = HeaderValue::from_static(content_type);
        group.throughput(Throughput::Bytes(body.len() as u64));
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                let mut meter = ResponseMeter::new(plan.clone(), Some(&content_type), None);
                // As pieces arrive from a socket.
                black_box(&body).chunks(16 * 1024).for_each(|piece| meter.scan(piece));
                meter.read()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, scans);
criterion_main!(benches);
