//! Bodies of other providers than OpenAI and Anthropic, each as JSON and as it streams, by their references.

use super::examples::{EVENTS, assert_said};

const JSON: &str = "application/json";

/// Server-sent events of these documents.
fn events(documents: &[&str]) -> String {
    let event = |document: &&str| format!("data: {}\r\n\r\n", document.replace('\n', "\r\ndata: "));
    documents.iter().map(event).collect()
}

/// A message of an event stream of AWS, with one header.
fn aws_message(kind: &str, payload: &str) -> Vec<u8> {
    let mut headers = [&[11], &b":event-type"[..], &[7, 0, kind.len() as u8], kind.as_bytes()].concat();
    headers.extend([&[13], &b":message-type"[..], &[7, 0, 5], b"event"].concat());
    let total = 16 + headers.len() + payload.len();
    let (total, length) = (u32::to_be_bytes(total as u32), u32::to_be_bytes(headers.len() as u32));
    [&total, &length, &b"crc0"[..], &headers, payload.as_bytes(), b"crc1"].concat()
}

const GEMINI_CHUNKS: [&str; 3] = [
    r#"{"candidates":[{"content":{"parts":[{"text":"Why did"}],"role":"model"},"index":0}],
    "usageMetadata":{"promptTokenCount":8,"candidatesTokenCount":2,"totalTokenCount":110,"thoughtsTokenCount":100,
    "promptTokensDetails":[{"modality":"TEXT","tokenCount":8}]},"modelVersion":"gemini-2.5-flash"}"#,
    r#"{"candidates":[{"content":{"parts":[{"text":" the"}],"role":"model"},"index":0}],
    "usageMetadata":{"promptTokenCount":8,"candidatesTokenCount":9,"totalTokenCount":117,"thoughtsTokenCount":100},
    "modelVersion":"gemini-2.5-flash"}"#,
    r#"{"candidates":[{"content":{"parts":[{"text":" hen?"}],"role":"model"},"finishReason":"STOP","index":0}],
    "usageMetadata":{"promptTokenCount":8,"candidatesTokenCount":1500,"totalTokenCount":1808,"thoughtsTokenCount":300},
    "modelVersion":"gemini-2.5-flash","responseId":"x"}"#,
];

/// Thoughts are output beside that of the candidates; each chunk says the sums so far.
#[test]
fn gemini() {
    let body = r#"{"candidates":[{"content":{"parts":[{"thought":true,"text":"hm"},{"text":"Hello"}],"role":"model"},
        "finishReason":"STOP","avgLogprobs":-0.3}],"usageMetadata":{"promptTokenCount":1008,"candidatesTokenCount":1200,
        "toolUsePromptTokenCount":50,"thoughtsTokenCount":300,"totalTokenCount":2558,"cachedContentTokenCount":1000},
        "modelVersion":"gemini-2.5-pro"}"#;
    assert_said(JSON, body, (Some(58), Some(1500), Some(1000), 7, 0));
    assert_said(EVENTS, events(&GEMINI_CHUNKS), (Some(8), Some(1800), None, 16, 0));
    let array = format!("[{}\n]\n", GEMINI_CHUNKS.join("\n,\r\n"));
    assert_said("application/json; charset=UTF-8", array, (Some(8), Some(1800), None, 16, 0));
    // A prompt that was blocked has no output.
    let blocked = r#"{"promptFeedback":{"blockReason":"SAFETY"},
        "usageMetadata":{"promptTokenCount":8,"totalTokenCount":8}}"#;
    assert_said(JSON, blocked, (Some(8), Some(0), None, 0, 0));
}

#[test]
fn bedrock_converse() {
    let body = r#"{"metrics":{"latencyMs":551},"output":{"message":{"content":[{"reasoningContent":{"reasoningText":
        {"text":"hm","signature":"s"}}},{"text":"Hello!"}],"role":"assistant"}},"stopReason":"end_turn","usage":
        {"cacheReadInputTokenCount":30,"cacheReadInputTokens":30,"cacheWriteInputTokens":5,
        "inputTokens":10,"outputTokens":1500,"serverToolUsage":{},"totalTokens":1545}}"#;
    assert_said(JSON, body, (Some(15), Some(1500), Some(30), 8, 0));
    let start = aws_message("messageStart", r#"{"p":"abcdefg","role":"assistant"}"#);
    let delta =
        aws_message("contentBlockDelta", r#"{"contentBlockIndex":0,"delta":{"text":"Hello"},"p":"abc"}"#);
    let stop = aws_message("messageStop", r#"{"p":"ab","stopReason":"end_turn"}"#);
    let usage = r#"{"metrics":{"latencyMs":551},"p":"a",
        "usage":{"inputTokens":10,"outputTokens":1500,"totalTokens":1510}}"#;
    let (empty, usage) = (aws_message("ping", ""), aws_message("metadata", usage));
    let stream = [start, delta.clone(), empty, delta, stop].concat();
    const AWS: &str = "application/vnd.amazon.eventstream";
    assert_said(AWS, &stream, (None, None, None, 10, 10));
    assert_said(AWS, [stream, usage].concat(), (Some(10), Some(1500), None, 10, 0));
}

/// What Cohere bills is a part of the tokens that the model read.
#[test]
fn cohere() {
    let usage = r#"{"billed_units":{"input_tokens":5,"output_tokens":1490},"tokens":{"input_tokens":71,
        "output_tokens":1500}}"#;
    let second = format!(
        r#"{{"id":"c1","finish_reason":"COMPLETE","message":{{"role":"assistant","content":[{{"type":"text",
        "text":"Hello"}}]}},"usage":{usage}}}"#
    );
    assert_said(JSON, second, (Some(71), Some(1500), None, 5, 0));
    let end = format!(r#"{{"type":"message-end","delta":{{"finish_reason":"COMPLETE","usage":{usage}}}}}"#);
    let stream = events(&[
        r#"{"id":"29f1","type":"message-start","delta":{"message":{"role":"assistant","content":[],"tool_plan":"",
        "tool_calls":[],"citations":[]}}}"#,
        r#"{"type":"content-start","index":0,"delta":{"message":{"content":{"type":"text","text":""}}}}"#,
        r#"{"type":"content-delta","index":0,"delta":{"message":{"content":{"text":"Hello"}}}}"#,
        r#"{"type":"tool-call-delta","index":0,"delta":{"message":{"tool_calls":{"function":{"arguments":"{}"}}}}}"#,
    ]);
    assert_said(EVENTS, &stream, (None, None, None, 7, 7));
    assert_said(EVENTS, stream + &events(&[&end]), (Some(71), Some(1500), None, 7, 0));

    let first = format!(
        r#"{{"response_id":"r","text":"Hello","generation_id":"g","chat_history":[{{"role":"CHATBOT",
        "message":"Hello"}}],"finish_reason":"COMPLETE","meta":{{"api_version":{{"version":"1"}},{}}}"#,
        &usage[1..]
    );
    assert_said(JSON, &first, (Some(71), Some(1500), None, 5, 0));
    let lines = [
        r#"{"is_finished":false,"event_type":"stream-start","generation_id":"g"}"#.to_owned(),
        r#"{"is_finished":false,"event_type":"text-generation","text":"Hello"}"#.to_owned(),
        format!(r#"{{"is_finished":true,"event_type":"stream-end","response":{first}}}"#).replace('\n', " "),
    ];
    assert_said("application/stream+json", lines.join("\n"), (Some(71), Some(1500), None, 0, 0));
    // An embedding has input alone.
    let embedding =
        r#"{"id":"e","embeddings":[[0.1,0.2]],"texts":["hello"],"meta":{"billed_units":{"input_tokens":2}}}"#;
    assert_said(JSON, embedding, (Some(2), None, None, 0, 0));
}

/// Without the details of its prompt, TGI says its output alone.
#[test]
fn text_generation_inference() {
    let body = r#"{"generated_text":"Hello","details":{"finish_reason":"length","generated_tokens":1500,"seed":null,
        "prefill":[{"id":1,"text":"a","logprob":null},{"id":2,"text":"b","logprob":-1.2},{"id":9,"text":"c"}],
        "tokens":[{"id":4,"text":"Hello","logprob":-0.1,"special":false}]}}"#;
    assert_said(JSON, body, (Some(3), Some(1500), None, 5, 0));
    assert_said(JSON, format!("[{body}]"), (Some(3), Some(1500), None, 5, 0));
    let tokens = [
        r#"{"index":1,"token":{"id":5,"text":"Hel","logprob":-0.1,"special":false},
        "generated_text":null,"details":null}"#,
        r#"{"index":2,"token":{"id":6,"text":"lo","logprob":-0.2,"special":false},"generated_text":"Hello",
        "details":{"finish_reason":"length","generated_tokens":1500,"seed":null,"input_length":13}}"#,
    ];
    assert_said(EVENTS, events(&[tokens[0]]), (None, None, None, 3, 3));
    assert_said(EVENTS, events(&tokens), (Some(13), Some(1500), None, 5, 0));
}

#[test]
fn llama_cpp() {
    let body = r#"{"index":0,"content":"Hello","tokens":[],"id_slot":0,"stop":true,"model":"m","tokens_predicted":1500,
        "tokens_evaluated":13,"generation_settings":{"n_predict":1500},"prompt":"Say","has_new_line":false,
        "truncated":false,"stop_type":"limit","tokens_cached":1512,"timings":{"prompt_n":13,"predicted_n":1500}}"#;
    assert_said(JSON, body, (Some(13), Some(1500), None, 5, 0));
    let stream = events(&[
        r#"{"index":0,"content":"Hel","tokens":[5],"stop":false,"tokens_predicted":1,"tokens_evaluated":13}"#,
        r#"{"index":0,"content":"lo","tokens":[6],"stop":false,"tokens_predicted":2,"tokens_evaluated":13}"#,
        r#"{"index":0,"content":"","tokens":[],"stop":true,"tokens_predicted":1500,"tokens_evaluated":13}"#,
    ]);
    assert_said(EVENTS, stream, (Some(13), Some(1500), None, 5, 0));
}

#[test]
fn replicate() {
    let head = r#"{"id":"p","model":"meta/meta-llama-3-8b-instruct","input":{"prompt":"Say"},"logs":"","error":null,"#;
    let metrics = r#""status":"succeeded","metrics":{"input_token_count":13,"output_token_count":1500}}"#;
    assert_said(
        JSON,
        format!(r#"{head}"output":["Hel","lo"],{metrics}"#),
        (Some(13), Some(1500), None, 5, 0),
    );
    assert_said(JSON, format!(r#"{head}"output":"Hello",{metrics}"#), (Some(13), Some(1500), None, 5, 0));
}

/// The totals of the last chunk stand beside the usage, in one place or in both.
#[test]
fn groq() {
    let body = r#"{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"Hello"},
        "finish_reason":"stop"}],
        "usage":{"queue_time":0.03,"prompt_tokens":18,"completion_tokens":1500,"total_tokens":1518},
        "x_groq":{"id":"req_1"}}"#;
    assert_said(JSON, body, (Some(18), Some(1500), None, 5, 0));
    let usage = r#"{"queue_time":0.03,"prompt_tokens":18,"completion_tokens":1500,"total_tokens":1518}"#;
    let chunk = r#"{"id":"c","choices":[{"index":0,"delta":{"content":"Hello"},"finish_reason":null}]}"#;
    for both in ["", &format!(r#","usage":{usage}"#)] {
        let last = format!(
            r#"{{"id":"c","choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}],
            "x_groq":{{"id":"req_1","usage":{usage}}}{both}}}"#
        );
        let stream = events(&[chunk, &last]);
        assert_said(EVENTS, stream, (Some(18), Some(1500), None, 5, 0));
    }
}

/// Sound is output, too: its bytes, and what they say.
#[test]
fn audio_of_openai() {
    let body = r#"{"choices":[{"index":0,"message":{"role":"assistant","content":null,"audio":{"id":"audio_1",
        "data":"AAEC","expires_at":1,"transcript":"Hello"}}}]}"#;
    assert_said(JSON, body, (None, None, None, 9, 9));
    let stream = events(&[
        r#"{"choices":[{"index":0,"delta":{"role":"assistant","audio":{"id":"audio_1","transcript":"Hello"}}}]}"#,
        r#"{"choices":[{"index":0,"delta":{"audio":{"data":"AAEC"}}}]}"#,
    ]);
    assert_said(EVENTS, stream, (None, None, None, 9, 9));
}

/// Some servers count reasoning, or everything, in the total alone.
#[test]
fn totals_say_what_parts_leave_out() {
    for (usage, said) in [
        (r#"{"prompt_tokens":32,"completion_tokens":9,"total_tokens":135}"#, (Some(32), Some(103))),
        (r#"{"prompt_tokens":32,"completion_tokens":9,"total_tokens":41}"#, (Some(32), Some(9))),
        (r#"{"prompt_tokens":32,"completion_tokens":9,"total_tokens":0}"#, (Some(32), Some(9))),
        (r#"{"prompt_tokens":32,"total_tokens":32}"#, (Some(32), Some(0))),
        (r#"{"input_tokens":32,"output_tokens":9,"total_tokens":99}"#, (Some(32), Some(9))),
        (r#"{"total_tokens":7}"#, (Some(7), None)),
    ] {
        assert_said(JSON, format!(r#"{{"usage":{usage}}}"#), (said.0, said.1, None, 0, 0));
    }
}
