//! The built-in `demo` upstream: it answers with a small JSON of the request, so that a new installation serves at
//! once.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response};
use http_body_util::BodyExt;
use serde_json::{Value, json};

use sluicegate_http::request::body::{BodyFault, RequestBody};

/// Maximum number of echoed header fields.
const FIELDS_MAX: usize = 32;
/// Maximum bytes of one echoed value.
const VALUE_MAX: usize = 256;

/// Reads and discards the whole body, and answers 200.
///
/// # Errors
/// The client broke its own body.
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
