//! Meters beside an independent ledger, and by examples of each provider.

use std::sync::Arc;

use http::HeaderValue;

use super::*;
use bodies::BodyRandom;
use ledger::{Ledger, read_body};
use sluicegate_base::json_pointer::JsonPointer;
use sluicegate_model::LlmWeights;

mod bodies;
mod examples;
mod ledger;
mod providers;

const EVENTS: &str = "text/event-stream";
const POINTERS: [&str; 4] = ["/usage/total_tokens", "/cost/units", "/total_duration", "/choices/0/index"];

fn plan() -> Arc<MeterPlan> {
    let pointers = POINTERS.map(|text| JsonPointer::parse(text).unwrap());
    Arc::new(MeterPlan::new(LlmParts::UsageAndModel, &pointers).unwrap())
}

fn meter(plan: &Arc<MeterPlan>, content_type: &'static str) -> ResponseMeter {
    ResponseMeter::new(plan.clone(), Some(&HeaderValue::from_static(content_type)), None)
}

/// What a meter reads, in the words of the ledger.
fn written(meter: &ResponseMeter) -> Ledger {
    let reading = meter.read();
    Ledger {
        // The ledger counts what was written to caches as input.
        input: reading.usage.input.map(|input| input + reading.usage.cache_write.unwrap_or(0)),
        output: reading.usage.output,
        cached: reading.usage.cached,
        text: reading.text_bytes,
        text_after_usage: reading.text_bytes_after_usage,
        numbers: (0..POINTERS.len()).map(|at| meter.read_number(at)).collect(),
    }
}

fn scan<'a>(
    plan: &Arc<MeterPlan>,
    content_type: &'static str,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Ledger {
    let mut meter = meter(plan, content_type);
    pieces.into_iter().for_each(|piece| meter.scan(piece));
    written(&meter)
}

#[test]
fn bodies_of_all_providers_are_read_as_by_the_ledger() {
    let plan = plan();
    for seed in 0..200 {
        let body = BodyRandom(seed).body();
        let (kind, bytes) = (body.content_type, &body.bytes[..]);
        let expected = read_body(kind, bytes, &POINTERS);
        let shown = || format!("seed {seed}: {}", bytes.escape_ascii());
        assert_eq!(scan(&plan, kind, [bytes]), expected, "{}", shown());
        assert_eq!(scan(&plan, kind, bytes.chunks(1)), expected, "byte by byte, {}", shown());
        let places = if seed < 12 { 0..bytes.len() } else { 0..0 };
        for at in places {
            let (first, second) = bytes.split_at(at);
            assert_eq!(scan(&plan, kind, [first, second]), expected, "split at {at}, {}", shown());
        }
    }
}

/// Clients choose what a model says, so a stream of plain text could say any usage.
#[test]
fn a_stream_that_is_not_of_json_is_not_believed() {
    let plan = plan();
    let usage = r#"{"usage":{"prompt_tokens":1,"completion_tokens":2},"cost":{"units":3}}"#;
    let event = |data: &str| format!("data: {data}\n\n");
    for (kind, bodies) in [
        (
            "text/event-stream",
            [event("Hi") + &event(usage), event(usage) + "data: Hi", event(usage) + &event("{\"a\":")],
        ),
        (
            "application/x-ndjson",
            [format!("Hi\n{usage}\n"), format!("{usage}\nHi"), format!("{usage}\n[DONE\n")],
        ),
    ] {
        for body in bodies {
            for at in 0..body.len() {
                let (first, second) = body.as_bytes().split_at(at);
                let found = scan(&plan, kind, [first, second]);
                let nothing = Ledger { numbers: vec![None; POINTERS.len()], ..Ledger::default() };
                assert_eq!(found, nothing, "{body} split at {at}");
            }
        }
    }
    let ends = [event("[DONE]"), event(""), "data: [DO".to_owned(), "data: {\"a\":".to_owned()];
    for end in ends {
        let found = scan(&plan, "text/event-stream", [(event(usage) + &end).as_bytes()]);
        assert_eq!(
            (found.input, found.output, found.numbers[1]),
            (Some(1), Some(2), Some(3_000_000)),
            "{end}"
        );
    }
}

#[test]
fn a_plain_stream_counts_the_texts_of_its_json_and_the_bytes_of_all_else() {
    let plan = plan();
    let text = r#"{"id":"chatcmpl-1","choices":[{"delta":{"content":"Hello"}}],"logprobs":null}"#;
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
    for other in ["done", "keep-alive", "{\"lp\":NaN}"] {
        for (kind, body) in [
            (EVENTS, format!("data: {text}\n\ndata: {other}\n\ndata: {usage}\n\ndata: {text}")),
            ("application/x-ndjson", format!("{text}\n{other}\n{usage}\n{text}\n")),
        ] {
            let mut meter = meter(&plan, kind);
            body.as_bytes().chunks(7).for_each(|piece| meter.scan(piece));
            let reading = meter.read();
            assert_eq!(reading.usage, LlmUsage::default());
            assert_eq!((reading.text_bytes, reading.text_bytes_after_usage), (10, 10));
            // In events a space stands in front of each.
            let spaces = if kind == EVENTS { 2 } else { 0 };
            assert_eq!(reading.unread_bytes, (other.len() + usage.len() + spaces) as u64, "{body}");
            assert!(!reading.is_unclear);
        }
    }
}

/// Servers that cut a text between the halves of a character send JSON all the same.
#[test]
fn halves_of_characters_and_marks_leave_a_stream_believed() {
    let plan = plan();
    let text = |text: &str| format!(r#"{{"choices":[{{"delta":{{"content":"{text}"}}}}]}}"#);
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
    let documents = [text("a\\ud83d"), text("\\ude00"), format!("\u{feff}{usage}")];
    for (kind, before, behind) in [(EVENTS, "data: ", "\n\n"), ("application/x-ndjson", "", "\n")] {
        let body = documents.iter().map(|document| format!("{before}{document}{behind}")).collect::<String>();
        let found = scan(&plan, kind, body.as_bytes().chunks(1));
        assert_eq!((found.input, found.output, found.text), (Some(1), Some(2), 7), "{body}");
    }
}

/// A body that is cut anywhere says what its whole documents say; of the text of the last one, what came counts.
#[test]
fn bodies_that_end_early_count_what_came() {
    let plan = plan();
    for seed in 0..8 {
        let body = BodyRandom(seed).body();
        for end in 0..body.bytes.len() {
            let cut = &body.bytes[..end];
            let found = scan(&plan, body.content_type, [cut]);
            let expected = read_body(body.content_type, cut, &POINTERS);
            let more =
                found.text.checked_sub(expected.text).unwrap_or_else(|| panic!("{}", cut.escape_ascii()));
            assert!(more <= end as u64);
            let with_more = Ledger {
                text: expected.text + more,
                text_after_usage: expected.text_after_usage + more,
                ..expected
            };
            assert_eq!(found, with_more, "{}", cut.escape_ascii());
        }
    }
}
