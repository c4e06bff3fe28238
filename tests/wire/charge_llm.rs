//! Tokens of language models: answers that end without a usage, and those that are not what they should be.

use crate::support::*;

/// A prompt of 40 bytes: 10 tokens.
const PROMPT: &[u8] = b"{\"messages\": [], \"max_tokens\": 2000000 }";
const INPUT: u64 = 10;
const RESERVED: u64 = 2_000;
const LIMIT: &str = "tokens: { key: ip, rate: 1000000/1h, charge: { units: llm, reserve: 2000 } }";
const EVENTS: (&str, &str) = ("Content-Type", "text/event-stream");
const STREAM: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";

fn before(upstream: &Upstream) -> Gateway {
    let timeouts = "timeouts: { response: 400ms, body: 400ms }";
    Gateway::start(&format!(
        "upstreams: {{ app: {{ servers: [\"{}\"], {timeouts} }} }}\nlimits: {{ {LIMIT} }}\n\
         locations: [{{ path: /, upstream: app, limits: tokens }}]\n",
        upstream.url()
    ))
}

fn ask() -> Ask {
    post("/", PROMPT)
}

/// What it is, its status, a field, its body, and what it costs by which source.
type Answer = (&'static str, u16, (&'static str, &'static str), String, u64, &'static str);

/// The units of the newest line of the log, and how they were found.
#[track_caller]
fn assert_charged(gateway: &Gateway, lines: usize, status: u64, charged: u64, by: &str, what: &str) {
    let line = gateway.wait_log(lines).pop().expect("a line");
    let found = (line["status"].as_u64(), line["charged"].as_u64(), line["charged_by"].as_str());
    assert_eq!(found, (Some(status), Some(charged), Some(by)), "{what}: {line}");
}

fn event(data: &str) -> String {
    let event = format!("data: {data}\n\n");
    format!("{:x}\r\n{event}\r\n", event.len())
}

fn delta(bytes: usize) -> String {
    event(&format!(r#"{{"choices":[{{"delta":{{"content":"{}"}}}}]}}"#, "x".repeat(bytes)))
}

/// The provider may have used as much as the request was allowed to.
#[test]
fn an_answer_that_never_came_costs_its_reservation() {
    let silent = Reply::silence();
    let cases = [
        ("silence", silent.clone(), 504),
        ("closed", Reply::default().close(), 502),
        ("reset", Reply::default().reset(), 502),
        ("half a head", Reply::raw("HTTP/1.1 200 OK\r\nContent-").close(), 502),
        ("a broken head", Reply::raw("nonsense\r\n\r\n"), 502),
    ];
    let replies = cases.iter().map(|(_, reply, _)| reply.clone()).chain([silent]);
    let upstream = Upstream::in_turn(replies.collect::<Vec<_>>());
    let gateway = before(&upstream);
    for (lines, (what, _, status)) in (1..).zip(&cases) {
        gateway.ask(&ask()).expect(*status);
        assert_charged(&gateway, lines, u64::from(*status), RESERVED, "reserve", what);
    }
    let mut client = gateway.client();
    client.send(ask().bytes());
    upstream.wait_for(cases.len() + 1);
    drop(client);
    assert_charged(&gateway, cases.len() + 1, 499, RESERVED, "reserve", "the client left before the head");
}

/// A stream that ends in its middle costs the text that came, and at least its reservation.
#[test]
fn a_broken_stream_costs_at_least_its_reservation() {
    let gate = Gate::default();
    let short = Reply::raw(STREAM).then(delta(400));
    let long = || Reply::raw(STREAM).then(delta(12_000));
    // Anthropic says the input first, and one token of output.
    let begun =
        event(r#"{"type":"message_start","message":{"usage":{"input_tokens":90,"output_tokens":1}}}"#);
    let begun = Reply::raw(STREAM).then(begun).then(event(r#"{"type":"ping"}"#));
    let cases = [
        ("stalled", short.clone().until(&gate), RESERVED, "reserve"),
        ("closed", short.clone().close(), RESERVED, "reserve"),
        ("reset", short.clone().pause(ms(50)).reset(), RESERVED, "reserve"),
        ("closed late", long().close(), INPUT + 3_000, "estimate"),
        ("its first usage", begun.close(), RESERVED, "reserve"),
    ];
    let replies: Vec<_> = cases.iter().map(|case| case.1.clone()).chain([short.until(&gate)]).collect();
    let upstream = Upstream::in_turn(replies);
    let gateway = before(&upstream);
    for (lines, (what, _, charged, by)) in (1..).zip(&cases) {
        let mut client = gateway.client();
        client.send(ask().bytes());
        client.until_close();
        assert_charged(&gateway, lines, 200, *charged, by, what);
    }
    let mut client = gateway.client();
    client.send(ask().bytes());
    client.take(300);
    drop(client);
    assert_charged(&gateway, cases.len() + 1, 200, RESERVED, "reserve", "the client left in the body");
}

/// Clients close when they have the last event, which is not the last byte.
#[test]
fn leaving_after_the_usage_costs_the_usage() {
    let gate = Gate::default();
    let usage = event(r#"{"choices":[],"usage":{"prompt_tokens":12,"completion_tokens":100}}"#);
    let openai = Reply::raw(STREAM).then(delta(400)).then(usage).then(event("[DONE]")).until(&gate);
    let usage =
        event(r#"{"type":"message_delta","delta":{"stop_reason":"stop"},"usage":{"output_tokens":70}}"#);
    let start =
        event(r#"{"type":"message_start","message":{"usage":{"input_tokens":12,"output_tokens":1}}}"#);
    let anthropic = Reply::raw(STREAM).then(start).then(usage).then(event("{}")).until(&gate);
    let upstream = Upstream::in_turn([openai, anthropic]);
    let gateway = before(&upstream);
    for (lines, charged, last) in [(1, 112, "[DONE]"), (2, 82, "{}")] {
        let mut client = gateway.client();
        client.send(ask().bytes());
        let mut read = Vec::new();
        while !String::from_utf8_lossy(&read).contains(&format!("data: {last}\n")) {
            read.extend(client.take(1));
        }
        drop(client);
        assert_charged(&gateway, lines, 200, charged, "usage", last);
    }
}

/// A whole answer costs what it says, and by its bytes, at least its reservation, if it says nothing that is known.
#[test]
fn whole_answers_cost_what_they_say() {
    const JSON: (&str, &str) = ("Content-Type", "application/json");
    const LINES: (&str, &str) = ("Content-Type", "application/x-ndjson");
    const EMPTY: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"\"}}]}\n\n";
    let usage = r#"{"usage":{"prompt_tokens":12,"completion_tokens":100}}"#;
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    let unknown = format!(r#"{{"result":"{}"}}"#, "y".repeat(387));
    let much = format!("data: {{\"word\":\"{}\"}}\n\n", "y".repeat(39_000));
    let echo = format!("data: {usage}\n\n");
    let error = r#"{"error":{"message":"the model is overloaded","type":"server_error"}}"#;
    let words = "data: {\"word\":\"aaaaaaaaaaaa\"}\n\n: a comment\n\ndata: {\"word\":\"bbbbbbbbbbbb\"}\n\n";
    let cases: Vec<Answer> = vec![
        ("usage", 200, JSON, usage.into(), 112, "usage"),
        ("text", 200, JSON, r#"{"choices":[{"message":{"content":"Hell"}}]}"#.into(), INPUT + 1, "estimate"),
        ("no text", 200, JSON, r#"{"choices":[{"message":{"content":""}}]}"#.into(), RESERVED, "reserve"),
        ("begun", 200, JSON, r#"{"status":"queued","output":[],"usage":null}"#.into(), RESERVED, "reserve"),
        ("input alone", 200, JSON, r#"{"meta":{"billed_units":{"input_tokens":7}}}"#.into(), 7, "estimate"),
        ("nothing known", 200, JSON, unknown.clone(), RESERVED, "reserve"),
        ("much unknown", 200, JSON, unknown.replace('y', &"y".repeat(100)), INPUT + 9_679, "estimate"),
        ("events of nothing known", 200, EVENTS, words.into(), RESERVED, "reserve"),
        ("an empty text and more", 200, EVENTS, format!("{EMPTY}{much}"), INPUT + 9_763, "estimate"),
        ("plain events", 200, EVENTS, "event: output\ndata: Hell\n\n".into(), RESERVED, "reserve"),
        ("a usage in plain events", 200, EVENTS, format!("data: Hell\n\n{echo}"), RESERVED, "reserve"),
        ("a usage before plain events", 200, EVENTS, format!("{echo}data: Hell"), RESERVED, "reserve"),
        ("a usage in plain lines", 200, LINES, format!("Hell\n{usage}\n"), RESERVED, "reserve"),
        ("a usage and a mark", 200, EVENTS, format!("{echo}data:\n\ndata: [DONE]\n\n"), 112, "usage"),
        ("plain text", 200, ("Content-Type", "text/plain"), "Hell".into(), RESERVED, "reserve"),
        ("a mark", 200, JSON, format!("\u{feff}{usage}"), 112, "usage"),
        ("more behind it", 200, JSON, format!("{usage}x"), RESERVED, "reserve"),
        ("too deep", 200, JSON, deep, RESERVED, "reserve"),
        ("half of it", 200, JSON, usage[..30].into(), RESERVED, "reserve"),
        ("half of much", 200, JSON, format!("{{\"a\":\"{}", "z".repeat(9_994)), INPUT + 2_500, "estimate"),
        ("empty", 200, JSON, String::new(), RESERVED, "reserve"),
        ("empty and unknown", 200, ("X-Any", "a"), String::new(), RESERVED, "reserve"),
        ("an error", 500, JSON, error.into(), INPUT, "estimate"),
        ("a refusal", 429, JSON, error.into(), INPUT, "estimate"),
        ("an error in words", 500, ("Content-Type", "text/html"), "no".repeat(99), INPUT, "estimate"),
        ("a timeout of its own", 504, JSON, error.into(), RESERVED, "reserve"),
    ];
    let replies: Vec<_> = cases.iter().map(|case| Reply::with(case.1, &[case.2], &case.3)).collect();
    let upstream = Upstream::in_turn(replies.into_iter().chain([Reply::with(200, &[JSON], &unknown)]));
    let gateway = before(&upstream);
    for (lines, (what, status, _, _, charged, by)) in (1..).zip(&cases) {
        gateway.ask(&ask()).expect(*status);
        assert_charged(&gateway, lines, u64::from(*status), *charged, by, what);
    }
    // As a list of models is asked for.
    gateway.get("/").expect(200);
    assert_charged(&gateway, cases.len() + 1, 200, 0, "estimate", "without a prompt");
}

/// The provider has certainly not begun, unless it had a part of the body.
#[test]
fn what_the_provider_never_had_is_given_back() {
    let gate = Gate::default();
    let upstream = Upstream::held_by(&gate);
    let gateway = Gateway::start(&format!(
        "upstreams:\n  gone: {{ servers: [\"127.0.0.1:1\"] }}\n  \
         full: {{ servers: [\"{}\"], max_connections: 1, queue: {{ max_wait: 100ms }} }}\n\
         limits: {{ {LIMIT}, jobs: {{ rate: 1/1h }} }}\n\
         locations:\n  - {{ path: /gone, upstream: gone, limits: tokens }}\n  \
         - {{ path: /full, upstream: full, limits: tokens }}\n  \
         - {{ path: /jobs, upstream: full, limits: [tokens, jobs] }}\n",
        upstream.url()
    ));
    gateway.ask(&post("/gone", PROMPT)).expect(502);
    assert_charged(&gateway, 1, 502, 0, "nothing", "refused");
    let mut client = gateway.client();
    client.send(post("/jobs", PROMPT).bytes());
    upstream.wait_for(1);
    gateway.ask(&post("/full", PROMPT)).expect(503);
    assert_charged(&gateway, 2, 503, 0, "nothing", "no place");
    gateway.ask(&post("/jobs", PROMPT)).expect(429);
    assert_eq!(gateway.metric("sluicegate_reserved_units", &["limit=\"tokens\""]), RESERVED as f64);
    gate.open();
    client.response().expect(200);
    gateway.wait_log(4);
    // The client sends a part of the 40 bytes, which may be all that a server waits for.
    for (lines, missing, charged, by) in
        [(5, 1, RESERVED, "reserve"), (6, 20, RESERVED, "reserve"), (7, 40, 0, "estimate")]
    {
        let request = post("/full", PROMPT).header("X-Missing", missing.to_string()).bytes();
        let mut client = gateway.client();
        client.send(&request[..request.len() - missing]);
        let mark = format!("x-missing: {missing}\r\n");
        let is_there = |raw: &[u8]| {
            String::from_utf8_lossy(raw).to_lowercase().contains(&mark)
                && raw.ends_with(&PROMPT[..PROMPT.len() - missing])
        };
        eventually("a part of a request", || {
            (0..upstream.connections()).any(|at| is_there(&upstream.raw(at)))
        });
        drop(client);
        assert_charged(&gateway, lines, 400, charged, by, "a part of a request");
    }
}

/// A server of HTTP/2 says of a stream that it refuses that it has not looked at it.
#[test]
fn broken_streams_of_http2_cost_their_reservation() {
    let upstream = Upstream2::new(|seen| match seen.uri.rsplit('/').next() {
        Some("refused") => Act::Reset(h2::Reason::REFUSED_STREAM),
        Some("reset") => Act::Reset(h2::Reason::INTERNAL_ERROR),
        Some("half") => Act::Half(h2::Reason::INTERNAL_ERROR),
        _ => Act::Hold,
    });
    let gateway = Gateway::start(&format!(
        "upstreams: {{ app: {{ servers: [\"{}\"], protocol: http2 }} }}\nlimits: {{ {LIMIT} }}\n\
         locations: [{{ path: /, upstream: app, limits: tokens }}]\n",
        upstream.addr()
    ));
    for (lines, target, status, charged, by) in [
        (1, "/refused", 502, 0, "nothing"),
        (2, "/reset", 502, RESERVED, "reserve"),
        (3, "/half", 200, RESERVED, "reserve"),
    ] {
        let mut client = gateway.client();
        client.send(post(target, PROMPT).bytes());
        client.rest(ms(300));
        assert_charged(&gateway, lines, status, charged, by, target);
    }
    let mut client = gateway.client();
    client.send(post("/hold", PROMPT).bytes());
    upstream.wait_in_flight(1);
    std::thread::sleep(ms(100));
    drop(client);
    assert_charged(&gateway, 4, 499, RESERVED, "reserve", "the client left before the head");
}

/// Nobody reads what passes through a tunnel.
#[test]
fn a_tunnel_costs_its_reservation() {
    const SWITCH: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let switched = Reply::raw(format!("HTTP/1.1 101 Switching Protocols\r\n{SWITCH}")).then("hello").close();
    let upstream = Upstream::in_turn([switched]);
    let gateway = before(&upstream);
    let mut client = gateway.client();
    client.send(format!("GET /v1/realtime HTTP/1.1\r\nHost: gateway.test\r\n{SWITCH}"));
    client.until_close();
    drop(client);
    assert_charged(&gateway, 1, 101, RESERVED, "reserve", "a tunnel");
}
