//! `GET /status` and `POST /reload`: shows the state of the running gateway, and makes it reload its file.

use bytes::Bytes;
use http::{HeaderMap, Response};
use http_body_util::Full;

use super::AdminState;
use super::response::reject_non_json;

pub(super) fn get_status(state: &AdminState, headers: &HeaderMap) -> Response<Full<Bytes>> {
    (state.status)().into_response(headers)
}

pub(super) async fn post_reload(state: &AdminState, headers: &HeaderMap) -> Response<Full<Bytes>> {
    if let Some(rejection) = reject_non_json(headers) {
        return rejection;
    }
    (state.reload)().await.into_response(headers)
}
