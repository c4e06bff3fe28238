//! `GET /status` and `POST /reload`: how the running gateway is, and that it reads its file again.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};

use super::AdminState;
use super::pages::{page, refused_change};

/// An answer for people and for programs.
#[derive(Debug, Clone)]
pub struct Reply {
    pub status: StatusCode,
    pub text: String,
    pub json: Value,
}

impl Reply {
    pub fn ok(text: String, json: Value) -> Reply {
        Reply { status: StatusCode::OK, text, json }
    }

    /// The process is on its way down; another may serve in its place.
    pub fn ending() -> Reply {
        Reply::unavailable("refused", "this process ends; if another serves in its place, ask that one")
    }

    /// The process `pid` serves in our place, and was told what was asked.
    pub fn handed_on(pid: u32) -> Reply {
        let why =
            format!("process {pid} serves now and was told to read its file again; its log says how it went");
        Reply::unavailable("handed on", &why)
    }

    fn unavailable(result: &str, why: &str) -> Reply {
        Reply {
            status: StatusCode::SERVICE_UNAVAILABLE,
            text: format!("{why}\n"),
            json: json!({ "result": result, "message": why }),
        }
    }

    /// Text, or JSON for who accepts that.
    fn page(self, headers: &HeaderMap) -> Response<Full<Bytes>> {
        let json = HeaderValue::from_static("application/json");
        if headers.get(ACCEPT) != Some(&json) {
            return page(self.status, self.text);
        }
        let mut response = page(self.status, format!("{:#}\n", self.json));
        response.headers_mut().insert(CONTENT_TYPE, json);
        response
    }
}

pub(super) fn status(state: &AdminState, headers: &HeaderMap) -> Response<Full<Bytes>> {
    (state.status)().page(headers)
}

pub(super) async fn reload(state: &AdminState, headers: &HeaderMap) -> Response<Full<Bytes>> {
    if let Some(refused) = refused_change(headers) {
        return refused;
    }
    (state.reload)().await.page(headers)
}
