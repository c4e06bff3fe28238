//! The bodies of OpenAI, of Anthropic and of JSON-RPC, byte for byte.

use std::rc::Rc;
use std::sync::Arc;

use sluicegate_base::json_pointer::JsonPointer;
use sluicegate_http::request::source::{BodyPlan, BodyValues};
use sluicegate_model::EchoedValue;

use super::*;

fn texts_of(body: &[u8], told: impl IntoIterator<Item = EchoedValue>) -> Option<Rc<BodyTexts>> {
    let mut plan = BodyPlan::new(1 << 16, false, false);
    told.into_iter().for_each(|value| plan.add_echoed(value));
    let plan = Arc::new(plan);
    BodyValues::read(&plan, body, true).told_texts(&plan, body)
}

fn body_of(rejecters: &Rejecters, rejection: &Rejection, body: Option<&BodyTexts>) -> String {
    let context = RejectContext { body, ..context() };
    let response = rejecters.for_location(Some(LocationId(0))).render_rejection(rejection, &context, false);
    assert_eq!(header(&response, "content-type"), "application/json");
    serde_json::from_slice::<Value>(response.body()).expect("a JSON body");
    text(&response).to_owned()
}

fn rate() -> Rejection {
    limit_rejection(0, LimitCause::Rate, Some(1_500_000_000))
}

fn slots() -> Rejection {
    limit_rejection(2, LimitCause::Concurrency, None)
}

#[test]
fn openai_reads_its_error_object() {
    let rejecters = with_on_reject("{ body: openai }");
    let error = |message: &str, kind: &str, code: &str| {
        format!(r#"{{"error":{{"message":"{message}","type":"{kind}","param":null,"code":{code}}}}}"#)
    };
    for (rejection, expected) in [
        (rate(), error("Too many requests, try again in 2 s", "requests", "\"rate_limit_exceeded\"")),
        (slots(), error("Too many requests in flight, try again in 1 s", "server_error", "\"server_error\"")),
        (
            banned(false),
            error("Banned for repeated rejections, try again in 60 s", "requests", "\"rate_limit_exceeded\""),
        ),
        (
            Fault::Unreachable.into(),
            error("The upstream cannot be reached", "server_error", "\"server_error\""),
        ),
        (
            Fault::UnknownApiKey.into(),
            error("The API key is not known", "invalid_request_error", "\"invalid_api_key\""),
        ),
        (
            Fault::NoLocation.into(),
            error("No location matches this request", "invalid_request_error", "null"),
        ),
    ] {
        assert_eq!(body_of(&rejecters, &rejection, None), expected);
    }
}

#[test]
fn anthropic_reads_its_error_object() {
    let rejecters = with_on_reject("{ body: anthropic }");
    for (rejection, kind, message) in [
        (rate(), "rate_limit_error", "Too many requests, try again in 2 s"),
        (slots(), "overloaded_error", "Too many requests in flight, try again in 1 s"),
        (Fault::UpstreamTimeout.into(), "timeout_error", "The upstream did not answer in time"),
        (Fault::Unreachable.into(), "api_error", "The upstream cannot be reached"),
        (Fault::MissingApiKey.into(), "authentication_error", "An API key is needed here"),
        (Fault::AccessDenied.into(), "permission_error", "This client may not use this resource"),
        (Fault::BodyTooLarge.into(), "request_too_large", "The request body is larger than allowed"),
        (Fault::BadHost.into(), "invalid_request_error", "The Host field is missing, repeated or malformed"),
    ] {
        let expected = format!(
            r#"{{"type":"error","error":{{"type":"{kind}","message":"{message}"}},"request_id":"{ID}"}}"#
        );
        assert_eq!(body_of(&rejecters, &rejection, None), expected);
    }
}

#[test]
fn json_rpc_repeats_the_id_and_tells_the_wait() {
    let body = br#"{"jsonrpc":"2.0","id":"a\u0041\"","method":"tools/call"}"#;
    let texts = texts_of(body, [EchoedValue::RpcId]);
    let rejecters = with_on_reject("{ body: json-rpc }");
    let told = |rejection: &Rejection| body_of(&rejecters, rejection, texts.as_deref());
    assert_eq!(
        told(&rate()),
        concat!(
            r#"{"jsonrpc":"2.0","id":"a\u0041\"","error":{"code":-32023,"#,
            r#""message":"Too many requests, try again in 2 s","data":{"retry_after_ms":1500}}}"#
        )
    );
    assert_eq!(
        told(&Fault::Unreachable.into()),
        r#"{"jsonrpc":"2.0","id":"a\u0041\"","error":{"code":-32603,"message":"The upstream cannot be reached"}}"#
    );
    let code = |rejecters: &Rejecters, rejection: &Rejection| -> (Value, Value) {
        let body: Value = serde_json::from_str(&body_of(rejecters, rejection, None)).expect("JSON");
        assert_eq!(body["id"], Value::Null);
        (body["error"]["code"].clone(), body["error"]["data"]["retry_after_ms"].clone())
    };
    for (rejection, expected) in [
        (slots(), (-32023, Some(1000))),
        (banned(true), (-32023, Some(59_001))),
        (Fault::TooManyInFlight.into(), (-32023, Some(1000))),
        (Fault::LocationTimeout.into(), (-32603, None)),
        (Fault::UnknownApiKey.into(), (-32600, None)),
        (limit_rejection(0, LimitCause::TooCostly, None), (-32600, None)),
        (Fault::HeaderMismatch.into(), (-32020, None)),
    ] {
        assert_eq!(code(&rejecters, &rejection), (expected.0.into(), expected.1.into()), "{rejection:?}");
    }
    let own = with_on_reject("{ body: { json-rpc: { code: -32000 } } }");
    assert_eq!(code(&own, &rate()).0, -32000);
    // The protocol fixes this one, whatever the file says.
    for on_reject in ["{}", "{ body: none }", "{ body: { template: x } }"] {
        assert_eq!(code(&with_on_reject(on_reject), &Fault::HeaderMismatch.into()).0, -32020);
    }
}

#[test]
fn every_rejection_is_one_document_in_every_dialect() {
    for dialect in ["openai", "anthropic", "json-rpc"] {
        let rejecters = with_on_reject(&format!("{{ body: {dialect} }}"));
        every_rejection().iter().for_each(|rejection| drop(body_of(&rejecters, rejection, None)));
    }
}

#[test]
fn a_template_tells_values_of_the_body() {
    let at = |text| EchoedValue::At(JsonPointer::parse(text).expect("a pointer"));
    let body = br#"{"model":"a\"<b>","n":1e0,"list":[]}"#;
    let texts = texts_of(body, [at("/model"), at("/n"), at("/list")]);
    let rejecters = with_on_reject(
        "{ body: { template: '[\"${json:/model}\",\"${json:/n}\",\"${json:/list}\"]', \
           content_type: application/json } }",
    );
    assert_eq!(body_of(&rejecters, &rate(), texts.as_deref()), r#"["a\"<b>","1",""]"#);
    assert_eq!(body_of(&rejecters, &rate(), None), r#"["","",""]"#);
}
