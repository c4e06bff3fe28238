//! `POST /explain`: explains the running gateway's decision on a request, without charging anything.

use http::StatusCode;

use super::answer::Answer;
use super::endpoint::{AdminRequest, AnswerFuture};
use crate::operate::explain::Query;

/// The body is a [`Query`] as JSON; the answer is text, or JSON if the request accepts it.
pub(super) fn post_explain(request: AdminRequest) -> AnswerFuture {
    Box::pin(async move {
        let query: Query = match request.read_body() {
            Ok(query) => query,
            Err(rejection) => return rejection.into(),
        };
        match request.state.actions().explain(query).await {
            Ok(explanation) => Answer::forms(explanation.to_string(), &explanation),
            Err(why) => Answer::error(StatusCode::BAD_REQUEST, &why),
        }
    })
}
