//! Bodies as providers send them, and what they say.

use super::*;

/// Input, output, cached input, bytes of text, and those after the usage.
type Said = (Option<u64>, Option<u64>, Option<u64>, u64, u64);

#[track_caller]
pub(super) fn assert_said(content_type: &'static str, body: impl AsRef<[u8]>, said: Said) {
    let (plan, body) = (plan(), body.as_ref());
    for at in 0..=body.len() {
        let (first, second) = body.split_at(at);
        let found = scan(&plan, content_type, [first, second]);
        let found = (found.input, found.output, found.cached, found.text, found.text_after_usage);
        assert_eq!(found, said, "split at {at}: {}", body.escape_ascii());
    }
}

pub(super) const EVENTS: &str = "text/event-stream; charset=utf-8";

#[test]
fn openai_chat_completions() {
    let body = r#"{"id":"chatcmpl-1","object":"chat.completion","model":"gpt-5","choices":[{"index":0,"message":
        {"role":"assistant","content":"Hello \u00fc","refusal":null,"annotations":[]},"finish_reason":"stop"}],"usage":
        {"prompt_tokens":19,"completion_tokens":10,"total_tokens":29,"prompt_tokens_details":{"cached_tokens":4},
        "completion_tokens_details":{"reasoning_tokens":3}}}"#;
    assert_said("application/json", body, (Some(15), Some(10), Some(4), 8, 0));
    let stream = "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\
        \"content\":\"\"}}],\"usage\":null}\n\n\
        data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Hello\"},\"logprobs\":null}],\"usage\":null}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":19,\"completion_tokens\":10,\"total_tokens\":29}}\n\n\
        data: [DONE]\n\n";
    assert_said(EVENTS, stream, (Some(19), Some(10), None, 5, 0));
    // Without its usage.
    let end = stream.find("data: {\"choices\":[],").unwrap();
    assert_said(EVENTS, &stream[..end], (None, None, None, 5, 5));
}

#[test]
fn cumulative_usage_counts_once() {
    let stream = "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\
        \"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\n\
        data: {\"choices\":[{\"delta\":{\"content\":\"b\"}}],\"usage\":{\"prompt_tokens\":5,\
        \"completion_tokens\":2}}\n\n";
    assert_said(EVENTS, stream, (Some(5), Some(2), None, 2, 0));
    let more = format!("{stream}data: {{\"choices\":[{{\"delta\":{{\"content\":\"cde\"}}}}]}}\n\n");
    assert_said(EVENTS, &more, (Some(5), Some(2), None, 5, 3));
}

#[test]
fn openai_responses_repeat_no_text() {
    let stream = "event: response.created\r\n\
        data: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\",\"output\":[],\"usage\":null}}\r\n\r\n\
        event: response.output_text.delta\r\n\
        data: {\"type\":\"response.output_text.delta\",\"delta\":\"Hi there\"}\r\n\r\n\
        data: {\"type\":\"response.output_text.done\",\"text\":\"Hi there\"}\r\n\r\n\
        data: {\"type\":\"response.output_item.done\",\"item\":{\"content\":[{\"text\":\"Hi there\"}]}}\r\n\r\n\
        data: {\"type\":\"response.completed\",\"response\":{\"output\":[{\"content\":[{\"text\":\"Hi there\"}]}],\
        \"usage\":{\"input_tokens\":37,\"input_tokens_details\":{\"cached_tokens\":30},\"output_tokens\":11,\
        \"output_tokens_details\":{\"reasoning_tokens\":2},\"total_tokens\":48}}}\r\n\r\n";
    assert_said(EVENTS, stream, (Some(7), Some(11), Some(30), 8, 0));
}

#[test]
fn anthropic_messages() {
    let start = "event: message_start\n\
        data: {\"type\":\"message_start\",\"message\":{\"id\":\"msg_1\",\"content\":[],\
        \"usage\":{\"input_tokens\":25,\
        \"cache_read_input_tokens\":100,\"cache_creation_input_tokens\":10,\"output_tokens\":1}}}\n\n\
        event: ping\ndata: {\"type\": \"ping\"}\n\n\
        event: content_block_delta\n\
        data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\
        \"text\":\"Hello\"}}\n\n";
    // What the first event says of output is said before there is any.
    assert_said(EVENTS, start, (Some(35), None, Some(100), 5, 5));
    let end = "event: message_delta\n\
        data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\
        \"usage\":{\"output_tokens\":15}}\n\n\
        event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n";
    assert_said(EVENTS, format!("{start}{end}"), (Some(35), Some(15), Some(100), 5, 0));
    let body = r#"{"type":"message","content":[{"type":"thinking","thinking":"hm"},{"type":"text","text":"Hello"}],
        "usage":{"input_tokens":9,"cache_creation_input_tokens":null,"output_tokens":12}}"#;
    assert_said("application/json", body, (Some(9), Some(12), None, 7, 0));
}

#[test]
fn ollama_lines() {
    let stream = "{\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"Hi\"},\"done\":false}\n\
        {\"model\":\"m\",\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"done\":true,\"prompt_eval_count\":26,\
        \"eval_count\":290}";
    assert_said("application/x-ndjson", stream, (Some(26), Some(290), None, 2, 0));
    assert_said("application/jsonl", stream, (Some(26), Some(290), None, 2, 0));
}

#[test]
fn two_names_of_one_thing_count_once() {
    let stream = "data: {\"choices\":[{\"delta\":{\"reasoning\":\"hm so\",\"reasoning_content\":\"hm so\"}}]}\n\n\
        data: {\"choices\":[{\"delta\":{\"reasoning\":\"hm\"}},{\"delta\":{\"reasoning_content\":\"so?\"}}]}\n\n";
    assert_said(EVENTS, stream, (None, None, None, 8, 8));
    // A gateway that says cached input of Anthropic inside the form of OpenAI.
    let body = r#"{"usage":{"prompt_tokens":135,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":100},
        "cache_read_input_tokens":100,"cache_creation_input_tokens":10}}"#;
    assert_said("application/json", body, (Some(35), Some(2), Some(100), 0, 0));
}

#[test]
fn garbage_is_missing() {
    let stream = "data: \n\ndata: [DONE]\n\nfoo\n\ndata: {\"usage\":\ndata:  {\"output_tokens\":4}}\n\n";
    assert_said(EVENTS, stream, (None, Some(4), None, 0, 0));
    for invalid in [
        "data: {\"usage\":{\"output_tokens\":3}}}\n\n",
        "data: {\"usage\":{\"output_tokens\":5\ndata:6}}\n\n",
    ] {
        assert_said(EVENTS, format!("{invalid}{invalid}"), (None, None, None, 0, 0));
    }
    assert_said("application/json", "{\"response\":\"text\"} x", (None, None, None, 0, 0));
    assert_said("application/json", "", (None, None, None, 0, 0));
    // What came of a document that has not ended counts.
    assert_said("application/json", "{\"response\":\"text", (None, None, None, 4, 4));
}

#[test]
fn other_bodies_are_opaque() {
    let body = b"{\"usage\":{\"output_tokens\":3}}";
    let header = |text: &'static str| Some(HeaderValue::from_static(text));
    for (content_type, encoding, is_read) in [
        (header("application/json"), None, true),
        (header("Application/JSON ; charset=utf-8"), header("identity"), true),
        (header("application/problem+json"), None, true),
        (header("application/json"), header("gzip"), false),
        (header("text/plain"), None, false),
        (header("application/jsonp"), None, false),
        (None, None, false),
    ] {
        let mut meter = ResponseMeter::new(plan(), content_type.as_ref(), encoding.as_ref());
        meter.scan(body);
        meter.scan(b"");
        let expected = if is_read { (Some(3), 0) } else { (None, body.len() as u64) };
        let reading = meter.read();
        assert_eq!((reading.usage.output, reading.unread_bytes), expected, "{content_type:?} {encoding:?}");
        assert_eq!((reading.usage.is_said(), reading.is_unclear), (is_read, !is_read));
        assert_eq!((reading.text_bytes, reading.text_bytes_after_usage), (0, 0));
    }
}

#[test]
fn numbers_are_those_of_the_last_event_that_has_one() {
    let plan = plan();
    let mut meter = meter(&plan, EVENTS);
    let pointer = |text| plan.find_pointer(&JsonPointer::parse(text).unwrap());
    let units = pointer("/cost/units").unwrap();
    assert_eq!(pointer("/other"), None);
    let mut read = |piece: &str| {
        meter.scan(piece.as_bytes());
        meter.read_number(units)
    };
    assert_eq!(read("data: {\"cost\":{\"units\":1.0000001}"), None);
    assert_eq!(read("}"), Some(1_000_001));
    assert_eq!(read("\n\ndata: {\"cost\":{\"units\":null}}\n\n"), Some(1_000_001));
    assert_eq!(read("data: {\"cost\":{\"units\":7},\"cost\":{}}\n\n"), Some(1_000_001));
    assert_eq!(read("data: {\"cost\":{\"units\":2}}\n\n"), Some(2_000_000));
    assert_eq!(meter.read_number(99), None);
}

#[test]
fn plans_are_bounded_and_share_pointers() {
    let pointers: Vec<JsonPointer> =
        (0..=METER_POINTERS_MAX).map(|at| JsonPointer::parse(&format!("/{at}")).unwrap()).collect();
    let most = MeterPlan::new(LlmParts::UsageAndModel, &pointers).unwrap();
    let found: Vec<_> = pointers.iter().map(|pointer| most.find_pointer(pointer).is_some()).collect();
    assert_eq!(found, (0..=METER_POINTERS_MAX).map(|at| at < METER_POINTERS_MAX).collect::<Vec<_>>());
    let twice = [&pointers[1..], &pointers[1..]].concat();
    let plan = Arc::new(MeterPlan::new(LlmParts::Nothing, &twice).unwrap());
    let mut meter =
        ResponseMeter::new(plan.clone(), Some(&HeaderValue::from_static("application/json")), None);
    meter.scan(b"{\"1\":5,\"24\":6,\"usage\":{\"output_tokens\":3},\"response\":\"text\"}");
    let number = |at: usize| meter.read_number(plan.find_pointer(&pointers[at]).unwrap());
    assert_eq!((number(1), number(2), number(24)), (Some(5_000_000), None, Some(6_000_000)));
    let reading = meter.read();
    assert_eq!((reading.usage.is_said(), reading.text_bytes), (false, 0));
}

#[test]
fn units_are_weighed() {
    let weights =
        LlmWeights { output: 4 * LlmWeights::ONE, cached: 100_000, cache_write: 7, ..LlmWeights::EQUAL };
    let usage = LlmUsage { input: Some(10), output: Some(2), cached: Some(5), cache_write: Some(3) };
    assert_eq!((usage.units(&weights), usage.all_input()), (18_500_021, 18));
    assert_eq!(LlmUsage::default().units(&weights), 0);
    let all = LlmUsage { input: Some(u64::MAX), output: Some(u64::MAX), ..usage };
    assert_eq!(all.units(&LlmWeights { input: u64::MAX, output: u64::MAX, ..weights }), u128::MAX);
}
