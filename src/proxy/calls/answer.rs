//! The answers to calls: one JSON object each.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use crate::admission::leases::LeaseId;
use crate::admission::settlement::Settlement;
use crate::limit::{Decision, Limit};

/// The answer to `/check`.
pub(super) struct CheckAnswer<'a> {
    /// In the words of the access log.
    pub verdict: &'a str,
    /// The limit that rejected, or the one with the fewest units left.
    pub limit: Option<&'a str>,
    /// Its decision.
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
        let remaining = self.decision.map(|decision| decision.remaining);
        let reset_ns = self.decision.map(|decision| decision.reset_ns).filter(|ns| *ns < u64::MAX);
        let mut members = Map::from_iter([
            ("verdict".to_owned(), Value::from(self.verdict)),
            ("limit".to_owned(), Value::from(self.limit)),
            ("remaining".to_owned(), Value::from(remaining)),
            ("reset_ms".to_owned(), Value::from(reset_ns.map(ms))),
            ("retry_after_ms".to_owned(), Value::from(self.retry_after_ns.map(ms))),
            ("waited_ms".to_owned(), Value::from(self.waited_ns / NS_PER_MS)),
            ("lease".to_owned(), Value::from(self.lease.map(|lease| lease.to_string()))),
        ]);
        if let Some(status) = self.status {
            members.insert("status".to_owned(), Value::from(status.as_u16()));
        }
        let mut response = render_json(status, &Value::Object(members));
        if let (Some(ns), Some(_)) = (self.retry_after_ns, self.status) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(ns.div_ceil(NS_PER_SECOND)));
        }
        response
    }
}

/// The answer to a call that did what it says.
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
    let mut response = Response::new(Bytes::from(value.to_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
