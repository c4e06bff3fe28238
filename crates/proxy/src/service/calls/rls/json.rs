//! The same call as JSON, as envoyproxy/ratelimit takes it: the JSON form of the messages (protojson).

use bytes::Bytes;
use http::header::{ALLOW, HeaderValue, WWW_AUTHENTICATE};
use http::{Response, StatusCode};
use serde::Deserialize;
use serde::de::{Deserializer, Error};
use serde_json::{Map, Value, json};

use super::messages::{
    DescriptorEntry, DescriptorStatus, LimitUnit, ProtoDuration, RateLimitDescriptor, RateLimitRequest,
    RateLimitResponse, RlsCode, UInt64Value,
};
use super::wire::RlsFault;
use crate::service::calls::answer;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRequest {
    domain: Option<String>,
    descriptors: Option<Vec<JsonDescriptor>>,
    #[serde(default, alias = "hits_addend", rename = "hitsAddend", deserialize_with = "read_number")]
    hits_addend: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonDescriptor {
    entries: Option<Vec<JsonEntry>>,
    /// Numbers of the caller, which this service does not use.
    #[serde(default, rename = "limit")]
    _limit: Option<serde::de::IgnoredAny>,
    #[serde(default, alias = "hits_addend", rename = "hitsAddend", deserialize_with = "read_number")]
    hits_addend: Option<u64>,
    #[serde(default, alias = "is_negative_hits", rename = "isNegativeHits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    key: Option<String>,
    value: Option<String>,
}

/// A number, which may stand in a text.
#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u64),
    Text(String),
}

fn read_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(match Option::<NumberOrText>::deserialize(deserializer)? {
        None => None,
        Some(NumberOrText::Number(number)) => Some(number),
        Some(NumberOrText::Text(text)) => Some(text.parse().map_err(D::Error::custom)?),
    })
}

/// Reads a call.
///
/// # Errors
/// The body is not the JSON form of the message.
pub(super) fn read_request(body: &[u8]) -> Result<RateLimitRequest, RlsFault> {
    let wrong = |message: String| RlsFault::invalid(format!("the body is not understood: {message}"));
    let request: JsonRequest = serde_json::from_slice(body).map_err(|error| wrong(error.to_string()))?;
    let hits_addend = u32::try_from(request.hits_addend.unwrap_or(0));
    Ok(RateLimitRequest {
        domain: request.domain.unwrap_or_default(),
        descriptors: request.descriptors.unwrap_or_default().into_iter().map(into_descriptor).collect(),
        hits_addend: hits_addend.map_err(|_| wrong("hitsAddend has 32 bits".to_owned()))?,
    })
}

fn into_descriptor(descriptor: JsonDescriptor) -> RateLimitDescriptor {
    let entry = |entry: JsonEntry| DescriptorEntry {
        key: entry.key.unwrap_or_default(),
        value: entry.value.unwrap_or_default(),
    };
    RateLimitDescriptor {
        entries: descriptor.entries.unwrap_or_default().into_iter().map(entry).collect(),
        hits_addend: descriptor.hits_addend.map(|value| UInt64Value { value }),
        is_negative_hits: descriptor.is_negative_hits.unwrap_or(false),
    }
}

/// 200, or 429 if the call is over a limit.
pub(super) fn render_response(answer: &RateLimitResponse) -> Response<Bytes> {
    let is_over = answer.overall_code == RlsCode::OverLimit as i32;
    let status = if is_over { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
    let added = answer.response_headers_to_add.iter();
    let added: Vec<Value> = added.map(|header| json!({ "key": header.key, "value": header.value })).collect();
    let mut members = Map::new();
    members.insert("overallCode".to_owned(), code_word(answer.overall_code).into());
    members.insert("statuses".to_owned(), answer.statuses.iter().map(render_status).collect());
    if !added.is_empty() {
        members.insert("responseHeadersToAdd".to_owned(), added.into());
    }
    answer::render_json(status, &Value::Object(members))
}

/// The fields that have values, as protojson writes them.
fn render_status(status: &DescriptorStatus) -> Value {
    let mut members = Map::new();
    members.insert("code".to_owned(), code_word(status.code).into());
    if let Some(limit) = &status.current_limit {
        let unit = LimitUnit::try_from(limit.unit).unwrap_or(LimitUnit::Unknown);
        let unit = format!("{unit:?}").to_ascii_uppercase();
        let limit = json!({ "name": limit.name, "requestsPerUnit": limit.requests_per_unit, "unit": unit });
        members.insert("currentLimit".to_owned(), limit);
    }
    if status.limit_remaining > 0 {
        members.insert("limitRemaining".to_owned(), status.limit_remaining.into());
    }
    if let Some(ProtoDuration { seconds, nanos }) = status.duration_until_reset {
        let text = match nanos {
            0 => format!("{seconds}s"),
            nanos => format!("{seconds}.{:03}s", nanos / 1_000_000),
        };
        members.insert("durationUntilReset".to_owned(), text.into());
    }
    Value::Object(members)
}

fn code_word(code: i32) -> &'static str {
    match RlsCode::try_from(code) {
        Ok(RlsCode::Ok) => "OK",
        Ok(RlsCode::OverLimit) => "OVER_LIMIT",
        _ => "UNKNOWN",
    }
}

/// The answer to a call that was not judged.
pub(super) fn render_fault(fault: &RlsFault) -> Response<Bytes> {
    let body = json!({ "code": fault.code(), "message": fault.message });
    let mut response = answer::render_json(fault.http_status, &body);
    let headers = response.headers_mut();
    match fault.http_status {
        StatusCode::METHOD_NOT_ALLOWED => headers.insert(ALLOW, HeaderValue::from_static("POST")),
        StatusCode::UNAUTHORIZED => headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
        _ => None,
    };
    response
}
