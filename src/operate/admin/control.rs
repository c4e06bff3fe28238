//! `GET /status` and `POST /reload`: shows the state of the running gateway, and makes it reload its file.

use serde_json::json;

use super::answer::{Answer, Change};
use super::call::{AnswerFuture, CallRequest};

pub(super) fn show_status(request: &CallRequest) -> Answer {
    request.state.show_status().into()
}

pub(super) fn post_reload(request: CallRequest) -> AnswerFuture {
    Box::pin(async move {
        let before = request.state.gateway().generation;
        let response = request.state.reload().await;
        let changes = response.json.get("changes").cloned().unwrap_or_default();
        let change = Change {
            target: String::new(),
            before: json!({ "configuration": before }),
            after: json!({ "configuration": request.state.gateway().generation, "changes": changes }),
        };
        Answer::from(response).with_change(change)
    })
}
