//! `GET /status` and `POST /reload`: shows the state of the running gateway, and makes it reload its file.

use serde_json::json;

use super::answer::{AdminResponse, Answer, Change};
use super::endpoint::AdminRequest;

pub(super) async fn show_status(request: AdminRequest) -> Result<Answer, AdminResponse> {
    let status = request.state.actions().show_status().await?;
    Ok(Answer::forms(status.to_string(), &status))
}

pub(super) async fn post_reload(request: AdminRequest) -> Result<Answer, AdminResponse> {
    let actions = request.state.actions();
    let generation = async || actions.show_status().await.ok().map(|status| status.generation);
    let before = json!({ "generation": generation().await });
    let reloaded = actions.reload().await;
    let changes = reloaded.as_ref().ok().map(|reloaded| &reloaded.changes);
    let after = json!({ "generation": generation().await, "changes": changes });
    let answer = match reloaded {
        Ok(reloaded) => Answer::forms(format!("reloaded: {}\n", reloaded.changes), &reloaded),
        Err(response) => response.into(),
    };
    Ok(answer.with_change(Change { target: String::new(), before, after }))
}
