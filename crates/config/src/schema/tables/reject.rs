//! The fields of `on_reject`, of the responses of the gateway, and of header edits.

use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};

use crate::schema::field::{OneOrMore, Shape, section};
use crate::schema::kinds::{Nested, OrWord, Span, Special, Text, WHOLE_PERCENTAGE, Words, text};
use sluicegate_model::value::names;
use sluicegate_model::{Parsed, RetryAfter, ValueError, codes};

section! {
    /// Changes to headers.
    mod edits = "headers";
    /// Headers that replace those of the same name. Values may have variables such as `${client_ip}`.
    SET: Special = Special(headers), "set", "{}", "{ Strict-Transport-Security: max-age=31536000 }";
    /// Headers beside those of the same name.
    ADD: Special = Special(headers), "add", "{}", "{ Via: sluicegate }";
    /// Names of headers to remove.
    REMOVE: OneOrMore<Text<HeaderName>> = OneOrMore(Text::new("a header name", names::parse_editable_header)),
        "remove", "[]", "[Server, X-Powered-By]";
}

/// Names and values of headers.
pub fn headers() -> Shape {
    Shape::Map("header names", Box::new(text("a header value")))
}

section! {
    /// The response to rejected requests. The section of a location goes over that of the limit, and both go over the
    /// one at the top of the file, field by field.
    mod on_reject = "on_reject";
    /// The status; `auto` is 429 for rates, queues and bans, and 503 for concurrency and overload.
    STATUS: OrWord<Text<StatusCode>> =
        OrWord("auto", Text::new("a status from 400", |text| names::parse_status(text, 400))),
        "status", "auto", "503";
    /// The body: problem details (RFC 9457), an envelope with `resp_code`, the errors of OpenAI, Anthropic or JSON-RPC,
    /// none, or a template.
    BODY: Special = Special(|| Shape::Either(vec![
        Shape::Words(vec!["problem", "envelope", "openai", "anthropic", "json-rpc", "none"]),
        Shape::Section(&json_rpc_body::SECTION),
        Shape::Section(&template::SECTION),
    ])), "body", "problem", "envelope";
    /// Additional response headers. Values may have variables.
    HEADERS: Special = Special(headers), "headers", "{}", "{ Cache-Control: no-store }";
    /// The fields that tell a client its limits: RateLimit and RateLimit-Policy as in a version of the draft
    /// (`standard` is draft-11), and the three X-RateLimit-* of draft-03 (`legacy`).
    RATELIMIT_HEADERS: Special = Special(|| Shape::Either(vec![
        Shape::Words(vec!["none"]),
        Shape::OneOrMore(Box::new(Shape::Words(vec![
            "draft-11", "draft-10", "draft-03", "standard", "legacy",
        ]))),
    ])), "ratelimit_headers", "draft-11", "[draft-11, draft-03]";
    /// What Retry-After tells a request that a rate rejects: when it would fit if no other came, or its own turn among
    /// all rejected requests of the key; see [turns](tasks/responses.md#a-flash-sale-without-a-herd). Concurrency,
    /// overload and bans have no turns.
    RETRY_AFTER: Words<RetryAfter> = Words(&[("exact", RetryAfter::Exact), ("turns", RetryAfter::Turns)]),
        "retry_after", "exact", "turns";
    /// The furthest turn; a request whose turn would be later is told the exact time.
    TURNS_AT_MOST: Span = Span(Duration::from_secs(1), Duration::from_secs(300)), "turns_at_most", "10s", "30s";
    /// Spreads Retry-After, except of turns, so that clients do not return all at once.
    RETRY_JITTER: Text<u8> = WHOLE_PERCENTAGE, "retry_jitter", "0%", "20%";
    /// An upstream, or a response, that answers instead of the rejection.
    DEGRADE: Special = Special(|| Shape::Either(vec![
        text("the name or the URL of an upstream, or none"),
        Shape::Section(&response::SECTION),
    ])), "degrade", "none", "{ status: 200, body: \"[]\" }";
}

section! {
    /// The error of a JSON-RPC response, with the `id` of the request.
    mod json_rpc_body = "on_reject.body.dialect";
    /// Its numbers.
    JSON_RPC: Nested = Nested(&json_rpc::SECTION), "json-rpc", "{}", "{ code: -32000 }";
}

section! {
    /// The numbers of a JSON-RPC error.
    mod json_rpc = "on_reject.body.json-rpc";
    /// The code of rejections by limits, of bans and of overload; faults have those of JSON-RPC.
    CODE: Text<i32> = Text::new("a number of 32 bits, not 0", parse_rpc_code),
        "code", "-32023", "-32000";
}

section! {
    /// A body of your own.
    mod template = "on_reject.body";
    /// The text, with variables such as `${retry_after}`; they are escaped where the type is JSON.
    TEMPLATE: Special = Special(|| text("a text with variables")),
        "template", required, "\"Try again in ${retry_after} s.\"";
    /// Its Content-Type.
    CONTENT_TYPE: Text<HeaderValue> = Text::new("a media type", parse_content_type),
        "content_type", "text/plain", "text/html";
}

section! {
    /// A response that the gateway gives itself.
    mod response = "respond";
    /// The status.
    STATUS: Text<StatusCode> = Text::new("a status from 200", |text| names::parse_status(text, 200)),
        "status", "200", "404";
    /// The body, with variables.
    BODY: Special = Special(|| text("a text with variables")), "body", "\"\"", "\"not here\"";
    /// Its Content-Type.
    CONTENT_TYPE: Text<HeaderValue> = Text::new("a media type", parse_content_type),
        "content_type", "text/plain", "application/json";
}

fn parse_content_type(text: &str) -> Parsed<HeaderValue> {
    let value = names::parse_header_value(text)?;
    let (kind, rest) = text.split_once('/').unwrap_or((text, ""));
    let word = |part: &str| !part.is_empty() && !part.contains([' ', ',', '/']);
    if !word(kind) || !word(rest.split(';').next().unwrap_or_default().trim_end()) {
        return Err(ValueError::new(codes::HEADER, format!("`{text}` is not a content type"))
            .with_help("write e.g. text/plain or application/json"));
    }
    Ok(value)
}

fn parse_rpc_code(text: &str) -> Parsed<i32> {
    text.parse().ok().filter(|code| *code != 0).ok_or_else(|| {
        ValueError::new(codes::NUMBER, format!("`{text}` is not the code of an error"))
            .with_help("write e.g. -32000")
    })
}
