//! `POST /json`: the call of Envoy's rate limit service in the form of envoyproxy/ratelimit's JSON.

use crate::*;

const SHOP: &str = "
service:
  listen: 127.0.0.1:0
  domains: { shop: [{ match: { to: \"*\" }, limits: per-number }] }
limits: { per-number: { key: header:to, algorithm: fixed_window, rate: 2/1h } }
locations: []
";

#[test]
fn calls_are_answered_as_json() {
    let gateway = Gateway::start(SHOP);
    let ask = |body: &str| Client::connect(service(&gateway)).ask(&post("/json", body.as_bytes()));
    let call = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"to","value":"1"}]}]}"#;
    let first = ask(call).expect(200).json();
    assert_eq!(first["overallCode"], "OK");
    let status = &first["statuses"][0];
    assert_eq!((&status["code"], &status["limitRemaining"]), (&json!("OK"), &json!(1)));
    assert_eq!(status["currentLimit"], json!({ "name": "per-number", "requestsPerUnit": 2, "unit": "HOUR" }));
    assert!(first["responseHeadersToAdd"].as_array().is_some_and(|all| !all.is_empty()), "{first}");
    ask(call).expect(200);
    let over = ask(call).expect(429).json();
    assert_eq!(over["overallCode"], "OVER_LIMIT");
    assert_eq!(over["statuses"][0]["code"], "OVER_LIMIT");
    assert!(over["statuses"][0]["durationUntilReset"].as_str().is_some_and(|text| text.ends_with('s')));
    // Both spellings, and numbers in texts.
    let hits = r#"{"domain":"shop","hits_addend":1,"descriptors":[
        {"entries":[{"key":"to","value":"2"}],"hitsAddend":"2","isNegativeHits":false}]}"#;
    assert_eq!(ask(hits).expect(200).json()["statuses"][0].get("limitRemaining"), None);
}

#[test]
fn other_bodies_are_refused() {
    let gateway = Gateway::start(SHOP);
    let ask = |body: &str| Client::connect(service(&gateway)).ask(&post("/json", body.as_bytes()));
    for body in [
        "",
        "{",
        "[]",
        "{}",
        r#"{"domain":"shop"}"#,
        r#"{"domain":"shop","descriptors":[{}]}"#,
        r#"{"domain":"shop","descriptors":[{"entries":[{"value":"1"}]}]}"#,
        r#"{"domain":"shop","unknown":1,"descriptors":[{"entries":[{"key":"to"}]}]}"#,
        r#"{"domain":"shop","hitsAddend":-1,"descriptors":[{"entries":[{"key":"to"}]}]}"#,
        r#"{"domain":"shop","hitsAddend":4294967296,"descriptors":[{"entries":[{"key":"to"}]}]}"#,
    ] {
        let refused = ask(body).expect(400).json();
        assert!(refused["message"].as_str().is_some_and(|message| !message.is_empty()), "{body}: {refused}");
    }
    let got = Client::connect(service(&gateway)).ask(&get("/json")).expect(405);
    assert_eq!(got.header("allow").as_deref(), Some("POST"));
}
