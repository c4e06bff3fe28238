//! Responses of the admin listener: plain text, JSON, and rejections.

use bytes::Bytes;
use http::header::{ACCEPT, ALLOW, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

/// A response in two forms: text for people, JSON for programs.
#[derive(Debug, Clone)]
pub struct AdminResponse {
    pub status: StatusCode,
    pub text: String,
    pub json: Value,
}

impl AdminResponse {
    pub fn ok(text: String, json: Value) -> AdminResponse {
        AdminResponse { status: StatusCode::OK, text, json }
    }

    /// The process is shutting down; another may have taken over.
    pub fn shutting_down() -> AdminResponse {
        AdminResponse::unavailable(
            "refused",
            "this process is shutting down; if another process has taken over, ask that one",
        )
    }

    /// Process `pid` has taken over and received the request to reload.
    pub fn handed_to_process(pid: u32) -> AdminResponse {
        let why = format!("process {pid} has taken over and was told to reload; its log has the result");
        AdminResponse::unavailable("handed on", &why)
    }

    fn unavailable(result: &str, why: &str) -> AdminResponse {
        AdminResponse {
            status: StatusCode::SERVICE_UNAVAILABLE,
            text: format!("{why}\n"),
            json: json!({ "result": result, "message": why }),
        }
    }

    /// JSON if the request accepts it, otherwise text.
    pub(super) fn into_response(self, headers: &HeaderMap) -> Response<Full<Bytes>> {
        let json = HeaderValue::from_static("application/json");
        if headers.get(ACCEPT) != Some(&json) {
            return text_response(self.status, self.text);
        }
        let mut response = text_response(self.status, format!("{:#}\n", self.json));
        response.headers_mut().insert(CONTENT_TYPE, json);
        response
    }
}

pub(super) fn text_response(status: StatusCode, text: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(text.into()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

pub(super) fn reject_method(allow: &'static str, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = text_response(StatusCode::METHOD_NOT_ALLOWED, text);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allow));
    response
}

/// Rejects a change whose content type is not JSON: a form on another site can send any other type.
pub(super) fn reject_non_json(headers: &HeaderMap) -> Option<Response<Full<Bytes>>> {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if kind.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json") {
        return None;
    }
    let text = "send Content-Type: application/json to change something\n";
    Some(text_response(StatusCode::UNSUPPORTED_MEDIA_TYPE, text))
}
