//! What a response used: bodies of all providers, with changes anywhere, are read as by an independent ledger.

use std::sync::Arc;

use http::HeaderValue;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use sluicegate_http::response::{LlmParts, MeterPlan, ResponseMeter};

use crate::fuzz;

#[path = "../../crates/http/src/response/tests/bodies.rs"]
mod bodies;
#[path = "../../crates/http/src/response/tests/ledger.rs"]
mod ledger;

use bodies::{BodyRandom, RandomBody};
use ledger::{Ledger, read_body};

/// A body of a provider, often with bytes changed.
fn body() -> impl Strategy<Value = RandomBody> {
    let words: Vec<&[u8]> = vec![
        b"\n",
        b"\r",
        b"\n\n",
        b"data:",
        b"data: {\"usage\":{\"output_tokens\":9}}\n\n",
        b":",
        b"\"",
        b"}",
        b"{",
        b",",
        b"\\",
        b"9",
        b"-",
        b"\xff",
        b"\xef\xbb\xbf",
        b"",
        b"\"delta\":\"text\",",
        b"\"usage\":{},",
        b"null",
    ];
    let changes = proptest::collection::vec((any::<Index>(), 0..4usize, select(words)), 0..4);
    (any::<u64>(), changes).prop_map(|(seed, changes)| {
        let mut body = BodyRandom(seed).body();
        for (place, length, word) in changes {
            let at = place.index(body.bytes.len() + 1);
            let end = (at + length).min(body.bytes.len());
            body.bytes.splice(at..end, word.iter().copied());
        }
        if body.content_type != "application/json" {
            // The text of a document that has not ended counts; no parser of whole documents knows it.
            body.bytes.extend_from_slice(b"\n\n");
        }
        body
    })
}

fn scan<'a>(plan: &Arc<MeterPlan>, kind: &'static str, pieces: impl IntoIterator<Item = &'a [u8]>) -> Ledger {
    let mut meter = ResponseMeter::new(plan.clone(), Some(&HeaderValue::from_static(kind)), None);
    pieces.into_iter().for_each(|piece| meter.scan(piece));
    let reading = meter.read();
    Ledger {
        // The ledger counts what was written to caches as input.
        input: reading.usage.input.map(|input| input.saturating_add(reading.usage.cache_write.unwrap_or(0))),
        output: reading.usage.output,
        cached: reading.usage.cached,
        text: reading.text_bytes,
        text_after_usage: reading.text_bytes_after_usage,
        numbers: vec![],
    }
}

#[test]
fn bodies_say_what_the_ledger_says() {
    let plan = Arc::new(MeterPlan::new(LlmParts::Usage, &[]).expect("it is small"));
    fuzz((body(), any::<Index>()), |(body, cut)| {
        let (kind, bytes) = (body.content_type, &body.bytes[..]);
        let shown = bytes.escape_ascii();
        let mut expected = read_body(kind, bytes, &[]);
        let whole = scan(&plan, kind, [bytes]);
        let is_cut =
            kind == "application/json" && serde_json::from_slice::<serde_json::Value>(bytes).is_err();
        // The texts of all members of one name count, where the ledger knows the last of them.
        if is_cut || bytes.windows(15).any(|window| window == b"\"delta\":\"text\",") {
            prop_assert!(whole.text >= expected.text, "{}", shown);
            (expected.text, expected.text_after_usage) = (whole.text, whole.text_after_usage);
        }
        prop_assert_eq!(&whole, &expected, "{}", shown);
        let (first, second) = bytes.split_at(cut.index(bytes.len() + 1));
        prop_assert_eq!(&scan(&plan, kind, [first, second]), &expected, "cut at {}: {}", first.len(), shown);
        prop_assert_eq!(&scan(&plan, kind, bytes.chunks(1)), &expected, "byte by byte: {}", shown);
        Ok(())
    });
}
