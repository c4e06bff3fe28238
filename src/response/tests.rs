//! Meters beside an independent ledger, and by examples of each provider.

use std::sync::Arc;

use http::HeaderValue;

use super::*;
use crate::config::{JsonPointer, LlmWeights};
use bodies::BodyRandom;
use ledger::{Ledger, read_body};

mod bodies;
mod examples;
mod ledger;
mod providers;

const POINTERS: [&str; 4] = ["/usage/total_tokens", "/cost/units", "/total_duration", "/choices/0/index"];

fn plan() -> Arc<MeterPlan> {
    let pointers = POINTERS.map(|text| JsonPointer::parse(text).unwrap());
    Arc::new(MeterPlan::new(true, &pointers).unwrap())
}

fn meter(plan: &Arc<MeterPlan>, content_type: &'static str) -> ResponseMeter {
    ResponseMeter::new(plan.clone(), Some(&HeaderValue::from_static(content_type)), None)
}

/// What a meter reads, in the words of the ledger.
fn written(meter: &ResponseMeter) -> Ledger {
    let reading = meter.read();
    Ledger {
        input: reading.usage.input,
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
