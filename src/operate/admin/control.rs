//! `GET /status` and `POST /reload`: how the running gateway is, and that it reads its file again.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

use super::AdminState;
use super::pages::{reject_non_json, text_response};

/// An answer for people and for programs.
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

    /// The process is on its way down; another may serve in its place.
    pub fn shutting_down() -> AdminResponse {
        AdminResponse::unavailable(
            "refused",
            "this process ends; if another serves in its place, ask that one",
        )
    }

    /// The process `pid` serves in our place, and was told what was asked.
    pub fn handed_to_process(pid: u32) -> AdminResponse {
        let why =
            format!("process {pid} serves now and was told to read its file again; its log says how it went");
        AdminResponse::unavailable("handed on", &why)
    }

    fn unavailable(result: &str, why: &str) -> AdminResponse {
        AdminResponse {
            status: StatusCode::SERVICE_UNAVAILABLE,
            text: format!("{why}\n"),
            json: json!({ "result": result, "message": why }),
        }
    }

    /// Text, or JSON for who accepts that.
    fn into_response(self, headers: &HeaderMap) -> Response<Full<Bytes>> {
        let json = HeaderValue::from_static("application/json");
        if headers.get(ACCEPT) != Some(&json) {
            return text_response(self.status, self.text);
        }
        let mut response = text_response(self.status, format!("{:#}\n", self.json));
        response.headers_mut().insert(CONTENT_TYPE, json);
        response
    }
}

pub(super) fn get_status(state: &AdminState, headers: &HeaderMap) -> Response<Full<Bytes>> {
    (state.status)().into_response(headers)
}

pub(super) async fn post_reload(state: &AdminState, headers: &HeaderMap) -> Response<Full<Bytes>> {
    if let Some(refused) = reject_non_json(headers) {
        return refused;
    }
    (state.reload)().await.into_response(headers)
}
