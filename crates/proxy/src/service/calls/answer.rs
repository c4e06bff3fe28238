//! The answers to calls: one JSON object each.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use sluicegate_admission::leases::LeaseId;
use sluicegate_admission::settlement::Settlement;
use sluicegate_limit::{Decision, Limit};

/// The answer to `/check`.
pub(super) struct CheckAnswer<'a> {
    /// The verdict in the words of the access log.
    pub verdict: &'a str,
    /// The limit that rejected, or the one with the fewest units left.
    pub limit: Option<&'a str>,
    /// The decision of that limit.
    pub decision: Option<Decision>,
    /// `None` = nobody knows, or waiting does not help.
    pub retry_after_ns: Option<u64>,
    pub waited_ns: u64,
    pub lease: Option<LeaseId>,
    /// The status of the response that a request would have got; `None` if the call is admitted.
    pub status: Option<StatusCode>,
}

const NS_PER_MS: u64 = 1_000_000;
const NS_PER_SECOND: u64 = 1_000_000_000;

impl CheckAnswer<'_> {
    pub fn render(&self, status: StatusCode) -> Response<Bytes> {
        let ms = |ns: u64| ns.div_ceil(NS_PER_MS);
        let reset_ns = self.decision.map(|decision| decision.shown_reset_ns()).filter(|ns| *ns < u64::MAX);
        let mut text = AnswerText::open();
        // Words and ids need no escapes.
        text.add_plain("verdict", self.verdict);
        text.add("limit", |text| match self.limit {
            // Cannot fail: a vector takes any length.
            Some(name) => serde_json::to_writer(text, name).unwrap_or_default(),
            None => text.extend_from_slice(b"null"),
        });
        text.add_number("remaining", self.decision.map(|decision| decision.remaining));
        text.add_number("reset_ms", reset_ns.map(ms));
        text.add_number("retry_after_ms", self.retry_after_ns.map(ms));
        text.add_number("waited_ms", Some(self.waited_ns / NS_PER_MS));
        match self.lease {
            Some(lease) => text.add_plain("lease", &lease.to_string()),
            None => text.add_number("lease", None),
        }
        if let Some(status) = self.status {
            text.add_number("status", Some(status.as_u16().into()));
        }
        let mut response = json_response(status, text.close());
        if let (Some(ns), Some(_)) = (self.retry_after_ns, self.status) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(ns.div_ceil(NS_PER_SECOND)));
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
    settlements: impl Iterator<Item = (&'a Settlement, Option<&'a Arc<Limit>>)>,
    goes_on: bool,
) -> Response<Bytes> {
    let one = |(settled, limit): (&Settlement, Option<&Arc<Limit>>)| {
        let Settlement { reserved, charged, overrun, .. } = *settled;
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

fn render_json(status: StatusCode, value: &Value) -> Response<Bytes> {
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

/// A JSON object while its members are written; each call gets one, so no tree of values is built for it.
struct AnswerText(Vec<u8>);

impl AnswerText {
    fn open() -> AnswerText {
        let mut text = Vec::with_capacity(256);
        text.push(b'{');
        AnswerText(text)
    }

    fn add(&mut self, name: &str, write_value: impl FnOnce(&mut Vec<u8>)) {
        let AnswerText(text) = self;
        if text.len() > 1 {
            text.push(b',');
        }
        text.push(b'"');
        text.extend_from_slice(name.as_bytes());
        text.extend_from_slice(b"\":");
        write_value(text);
    }

    /// `value` needs no escapes.
    fn add_plain(&mut self, name: &str, value: &str) {
        self.add(name, |text| {
            text.push(b'"');
            text.extend_from_slice(value.as_bytes());
            text.push(b'"');
        });
    }

    /// `None` is written as `null`.
    fn add_number(&mut self, name: &str, value: Option<u64>) {
        self.add(name, |text| match value {
            Some(number) => text.extend_from_slice(itoa::Buffer::new().format(number).as_bytes()),
            None => text.extend_from_slice(b"null"),
        });
    }

    fn close(self) -> Vec<u8> {
        let AnswerText(mut text) = self;
        text.push(b'}');
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_limit::LimitOutcome;

    #[test]
    fn an_answer_is_json_with_its_members_in_order() {
        let decision =
            Decision { remaining: 7, reset_ns: 1, ..Decision::without_numbers(LimitOutcome::Reject) };
        let mut answer = CheckAnswer {
            verdict: "reject",
            limit: Some("a \"name\"\n"),
            decision: Some(decision),
            retry_after_ns: Some(1_500_000_000),
            waited_ns: 2_999_999,
            lease: None,
            status: Some(StatusCode::TOO_MANY_REQUESTS),
        };
        let response = answer.render(StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(response.headers()[RETRY_AFTER], "2");
        assert_eq!(
            response.body(),
            concat!(
                r#"{"verdict":"reject","limit":"a \"name\"\n","remaining":7,"reset_ms":1,"#,
                r#""retry_after_ms":1500,"waited_ms":2,"lease":null,"status":429}"#
            )
        );
        (answer.limit, answer.decision, answer.retry_after_ns, answer.status) = (None, None, None, None);
        let response = answer.render(StatusCode::OK);
        assert!(!response.headers().contains_key(RETRY_AFTER));
        assert_eq!(
            response.body(),
            concat!(
                r#"{"verdict":"reject","limit":null,"remaining":null,"reset_ms":null,"#,
                r#""retry_after_ms":null,"waited_ms":2,"lease":null}"#
            )
        );
    }
}
