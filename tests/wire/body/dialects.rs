//! Errors in the dialect of the caller, with values of its body.

use serde_json::{Value, json};

use crate::support::*;

/// The code and the `id` of a JSON-RPC error.
#[track_caller]
fn error_of(response: &Response, status: u16) -> (i64, String) {
    assert_eq!(response.status, status, "{}", response.text());
    assert_eq!(response.header("content-type").as_deref(), Some("application/json"));
    let text = response.text();
    let body: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((&body["jsonrpc"], body["error"]["message"].is_string()), (&json!("2.0"), true));
    let id = text.strip_prefix(r#"{"jsonrpc":"2.0","id":"#).and_then(|rest| rest.split_once(",\"error\":"));
    (body["error"]["code"].as_i64().expect("a code"), id.expect("an id").0.to_owned())
}

fn rpc_gateway() -> Gateway {
    Gateway::start(
        "on_reject: { body: json-rpc }\n\
         bans: { after: 3/1m, strikes: [404] }\n\
         limits: { per-ip: { rate: 1/h } }\n\
         locations:\n\
         - { path: /limited, upstream: demo, limits: per-ip }\n\
         - { path: /down, upstream: \"http://127.0.0.1:1\", body_peek: 1KiB }\n\
         - { path: /plain, upstream: \"http://127.0.0.1:1\", on_reject: { body: problem } }\n",
    )
}

#[test]
fn json_rpc_errors_repeat_the_id_as_it_was_written() {
    let gateway = rpc_gateway();
    let mut client = gateway.client();
    client.ask(&post("/limited", br#"{"id":1}"#)).expect(200);
    let long = "x".repeat(257);
    let of_long = format!("{{\"id\":\"{long}\"}}");
    for (body, id) in [
        (&br#"{"jsonrpc":"2.0","id":1.50,"method":"x"}"#[..], "1.50"),
        (br#"{"jsonrpc":"2.0","method":"x","id":"a\u0041"}"#, r#""a\u0041""#),
        (br#"{"id":9007199254740993}"#, "9007199254740993"),
        (br#"[{"id":1}]"#, "null"),
        (br#"{"id":1,"id":2}"#, "null"),
        (br#"{"id":{"x":1}}"#, "null"),
        (b"no JSON", "null"),
        (of_long.as_bytes(), "null"),
    ] {
        let rejected = client.ask(&post("/limited", body));
        assert_eq!(error_of(&rejected, 429), (-32023, id.to_owned()));
        let data = &rejected.json()["error"]["data"]["retry_after_ms"];
        assert!((1..=3_600_000).contains(&data.as_u64().expect("a wait")), "{data}");
    }
    assert_eq!(error_of(&client.ask(&get("/limited")), 429).1, "null");
}

#[test]
fn faults_and_bans_speak_json_rpc() {
    let gateway = rpc_gateway();
    assert_eq!(error_of(&gateway.ask(&post("/down", br#"{"id":7}"#)), 502), (-32603, "7".to_owned()));
    // A body beyond the peek is no 413, and its beginning tells the id.
    let rest = "x".repeat(100_000);
    let first = format!("{{\"id\":8,\"x\":\"{rest}\"}}");
    assert_eq!(error_of(&gateway.ask(&post("/down", first.as_bytes())), 502).1, "8");
    let last = format!("{{\"x\":\"{rest}\",\"id\":8}}");
    assert_eq!(error_of(&gateway.ask(&post("/down", last.as_bytes())), 502).1, "null");
    assert_eq!(gateway.ask(&post("/plain", br#"{"id":7}"#)).json()["title"], "Bad Gateway");
    for _ in 0..3 {
        assert_eq!(
            error_of(&gateway.ask(&post("/gone", br#"{"id":"z"}"#)), 404),
            (-32600, "\"z\"".to_owned())
        );
    }
    assert_eq!(error_of(&gateway.ask(&post("/gone", br#"{"id":"z"}"#)), 429), (-32023, "\"z\"".to_owned()));
}

#[test]
fn bodies_of_presets_and_templates() {
    let limit = "limits: { rate: 1/h }";
    let template = "{ template: \"${json:/model}|${json:/none}\", content_type: text/html }";
    let degrade = "{ body: \"no ${json:/model}\" }";
    let gateway = Gateway::start(&format!(
        "locations:\n\
         - {{ path: /openai, upstream: demo, {limit}, on_reject: {{ body: openai }} }}\n\
         - {{ path: /anthropic, upstream: demo, {limit}, on_reject: {{ body: anthropic, status: 503 }} }}\n\
         - {{ path: /template, upstream: demo, {limit}, on_reject: {{ body: {template} }} }}\n\
         - {{ path: /degrade, upstream: demo, {limit}, on_reject: {{ degrade: {degrade} }} }}\n\
         - {{ path: /respond, respond: {{ body: \"is ${{json:/model}}\" }} }}\n"
    ));
    let mut client = gateway.client();
    let mut second = |path: &str| {
        let ask = post(path, br#"{"model":"<m>"}"#);
        client.ask(&ask).expect(200);
        client.ask(&ask)
    };
    let openai = second("/openai").expect(429).json();
    assert_eq!(openai["error"]["code"], "rate_limit_exceeded");
    assert_eq!(openai["error"]["param"], Value::Null);
    let anthropic = second("/anthropic").expect(503).json();
    assert_eq!(
        (&anthropic["type"], &anthropic["error"]["type"]),
        (&json!("error"), &json!("overloaded_error"))
    );
    assert_eq!(second("/template").expect(429).text(), "&lt;m&gt;|");
    assert_eq!(second("/degrade").expect(200).text(), "no <m>");
    assert_eq!(second("/respond").expect(200).text(), "is <m>");
}

/// A request whose body is nobody's business is forwarded before its body is there.
#[test]
fn bodies_are_read_only_where_a_response_tells_them() {
    let upstream = Upstream::ok();
    let gateway = Gateway::start(&format!(
        "on_reject: {{ body: json-rpc }}\n\
         locations:\n\
         - {{ path: /, upstream: \"{url}\", on_reject: {{ body: openai }} }}\n\
         - {{ path: /rpc, upstream: \"{url}\" }}\n",
        url = upstream.url()
    ));
    let slow = |path: &str| {
        let head =
            format!("POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n");
        let mut client = gateway.client();
        client.send(head.as_bytes());
        client
    };
    let mut plain = slow("/");
    let mut rpc = slow("/rpc");
    eventually("the head of one request arrives", || upstream.connections() == 1);
    for client in [&mut plain, &mut rpc] {
        client.send(br#"{"id":12}"#);
    }
    eventually("both arrive", || upstream.requests().len() == 2);
}
