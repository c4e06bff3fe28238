//! `GET /status` and `POST /reload`: shows the state of the running gateway, and makes it reload its file.

use serde_json::json;

use super::answer::{Answer, Change};
use super::endpoint::{AdminRequest, AnswerFuture};

pub(super) fn show_status(request: AdminRequest) -> AnswerFuture {
    Box::pin(async move { request.state.show_status().await.into() })
}

pub(super) fn post_reload(request: AdminRequest) -> AnswerFuture {
    Box::pin(async move {
        let generation = async || request.state.show_status().await.json["generation"].clone();
        let before = json!({ "generation": generation().await });
        let response = request.state.reload().await;
        let after = json!({ "generation": generation().await, "changes": response.json["changes"] });
        Answer::from(response).with_change(Change { target: String::new(), before, after })
    })
}
