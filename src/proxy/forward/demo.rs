//! The built-in `demo` upstream: answers with a small JSON of what it received, so that a fresh machine serves.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::request::body::{BodyFault, RequestBody};

/// Header fields echoed at most.
const FIELDS_MAX: usize = 32;
/// Bytes of one echoed value at most.
const VALUE_MAX: usize = 256;

/// Reads the body to its end, keeping nothing of it, and answers 200.
///
/// # Errors
/// The client's fault with its body.
pub async fn render_echo(request: Request<RequestBody>) -> Result<Response<Bytes>, BodyFault> {
    let (head, mut body) = request.into_parts();
    let mut received: u64 = 0;
    while let Some(frame) = body.frame().await {
        received += frame?.data_ref().map_or(0, |data| data.len() as u64);
    }
    let headers: serde_json::Map<String, Value> = head
        .headers
        .iter()
        .take(FIELDS_MAX)
        .map(|(name, value)| {
            let shown = &value.as_bytes()[..value.len().min(VALUE_MAX)];
            (name.as_str().to_owned(), Value::from(String::from_utf8_lossy(shown)))
        })
        .collect();
    let echo = json!({
        "upstream": "demo",
        "method": head.method.as_str(),
        "target": head.uri.path_and_query().map_or("/", |target| target.as_str()),
        "headers": headers,
        "body_bytes": received,
    });
    let mut response = Response::new(Bytes::from(format!("{echo}\n")));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}
