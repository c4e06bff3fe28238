//! The answers to calls: one JSON object each.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde::Serialize;
use serde_json::{Map, Value, json};

use sluicegate_admission::settlement::FinalCharge;
use sluicegate_limit::Limit;

/// The answer to `/check`; numbers that are not known are null.
#[derive(Default, Serialize)]
pub(super) struct CheckAnswer<'a> {
    /// The verdict in the words of the access log.
    pub verdict: &'a str,
    /// The limit that rejected, or the one with the fewest units left, and its numbers.
    pub limit: Option<&'a str>,
    /// The class of the call in the shares of that limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub class: Option<&'a str>,
    pub remaining: Option<u64>,
    pub reset_ms: Option<u64>,
    /// `None` = nobody knows, or waiting does not help.
    pub retry_after_ms: Option<u64>,
    pub waited_ms: u64,
    pub lease: Option<String>,
    /// The status of the response that a request would have got; `None` if the call is admitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
}

impl CheckAnswer<'_> {
    pub(super) fn render(&self) -> Response<Bytes> {
        let mut text = Vec::with_capacity(256);
        // Cannot fail: a vector takes any length.
        let _ = serde_json::to_writer(&mut text, self);
        if self.status.is_none() {
            return json_response(StatusCode::OK, text);
        }
        let mut response = json_response(StatusCode::TOO_MANY_REQUESTS, text);
        if let Some(ms) = self.retry_after_ms {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(ms.div_ceil(1_000)));
        }
        response
    }
}

/// The answer to a call that was carried out.
pub(super) fn render_done(word: &str) -> Response<Bytes> {
    render_json(StatusCode::OK, &Value::Object(Map::from_iter([(word.to_owned(), Value::from(true))])))
}

/// The answer to `/settle`.
pub(super) fn render_settled<'a>(
    settlements: impl Iterator<Item = (&'a FinalCharge, Option<&'a Arc<Limit>>)>,
    goes_on: bool,
) -> Response<Bytes> {
    let one = |(settled, limit): (&FinalCharge, Option<&Arc<Limit>>)| {
        let FinalCharge { reserved, charged, overrun, .. } = *settled;
        let limit = limit.map(|limit| limit.name.to_string());
        json!({ "limit": limit, "reserved": reserved, "charged": charged, "overrun": overrun })
    };
    let settled: Vec<Value> = settlements.map(one).collect();
    render_json(StatusCode::OK, &json!({ "settled": settled, "held": goes_on }))
}

/// The answer to a call that changed nothing. `field`: the member of the call at fault; empty = none.
pub(super) fn render_fault(status: StatusCode, error: &str, field: &str, message: &str) -> Response<Bytes> {
    let mut members = Map::from_iter([("error".to_owned(), Value::from(error))]);
    if !field.is_empty() {
        members.insert("field".to_owned(), Value::from(field));
    }
    members.insert("message".to_owned(), Value::from(message));
    render_json(status, &Value::Object(members))
}

pub(super) fn render_json(status: StatusCode, value: &Value) -> Response<Bytes> {
    json_response(status, value.to_string().into_bytes())
}

fn json_response(status: StatusCode, text: Vec<u8>) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(text));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_json_with_its_members_in_order() {
        let mut answer = CheckAnswer {
            verdict: "reject",
            class: None,
            limit: Some("a \"name\"\n"),
            remaining: Some(7),
            reset_ms: Some(1),
            retry_after_ms: Some(1_500),
            waited_ms: 2,
            lease: None,
            status: Some(429),
        };
        let response = answer.render();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[RETRY_AFTER], "2");
        assert_eq!(
            response.body(),
            concat!(
                r#"{"verdict":"reject","limit":"a \"name\"\n","remaining":7,"reset_ms":1,"#,
                r#""retry_after_ms":1500,"waited_ms":2,"lease":null,"status":429}"#
            )
        );
        answer = CheckAnswer {
            verdict: "reject",
            waited_ms: 2,
            lease: Some("l".to_owned()),
            ..Default::default()
        };
        let response = answer.render();
        assert_eq!(response.status(), StatusCode::OK);
        assert!(!response.headers().contains_key(RETRY_AFTER));
        assert_eq!(
            response.body(),
            concat!(
                r#"{"verdict":"reject","limit":null,"remaining":null,"reset_ms":null,"#,
                r#""retry_after_ms":null,"waited_ms":2,"lease":"l"}"#
            )
        );
    }
}
