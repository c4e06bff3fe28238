//! `POST /explain`: explains the running gateway's decision on a request, without charging anything.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;

use super::AdminState;
use super::response::{reject_method, text_response};
use crate::operate::explain::Query;

const QUERY_MAX: usize = 64 * 1024;
/// Time for the whole body to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The body is a [`Query`] as JSON; the answer is text, or JSON if the request accepts it.
pub(super) async fn post_explain(state: &AdminState, request: Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::POST {
        return reject_method("POST", "use POST with the request to explain\n");
    }
    let (head, body) = request.into_parts();
    let body = match tokio::time::timeout(BODY_TIMEOUT, Limited::new(body, QUERY_MAX).collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => {
            return text_response(StatusCode::PAYLOAD_TOO_LARGE, "a request to explain has at most 64 KiB\n");
        }
        Ok(Err(_)) => return text_response(StatusCode::BAD_REQUEST, "the body ended early\n"),
        Err(_) => return text_response(StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time\n"),
    };
    let query: Query = match serde_json::from_slice(&body) {
        Ok(query) => query,
        Err(error) => {
            let example =
                "{\"method\": \"GET\", \"url\": \"/api/\", \"ip\": \"203.0.113.7\", \"headers\": [\"A: b\"]}";
            return text_response(StatusCode::BAD_REQUEST, format!("{error}; post e.g. {example}\n"));
        }
    };
    let explanation = match (state.explain)(query).await {
        Ok(explanation) => explanation,
        Err(why) => return text_response(StatusCode::BAD_REQUEST, why + "\n"),
    };
    let json = HeaderValue::from_static("application/json");
    if head.headers.get(ACCEPT) != Some(&json) {
        return text_response(StatusCode::OK, explanation.to_string());
    }
    // Only maps with odd keys fail to serialize, and there are none.
    let text = serde_json::to_string_pretty(&explanation).unwrap_or_default() + "\n";
    let mut response = text_response(StatusCode::OK, text);
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
