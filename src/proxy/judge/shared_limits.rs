//! Asks the store about the limits that are counted there.

use http::{HeaderName, HeaderValue, Request};

use super::head;
use crate::admission::chain::WaitingRequest;
use crate::proxy::reject::Rejection;
use crate::proxy::request_state::RequestState;
use crate::request::body::RequestBody;

/// The response header that tells trusted proxies that the `on_failure` fallback judged instead of the store.
pub const FALLBACK_HEADER: HeaderName = HeaderName::from_static("sluicegate-state");
pub const FALLBACK_VALUE: HeaderValue = HeaderValue::from_static("degraded");

/// Whether some limits of the request are counted in the store.
#[inline]
pub fn must_ask_store(state: &RequestState) -> bool {
    state.pending_store.is_some()
}

/// Asks the store if some limits of the request are counted there and the local ones admitted it.
///
/// # Errors
/// A limit rejects the request.
pub async fn ask_store(request: &Request<RequestBody>, state: &mut RequestState) -> Result<(), Rejection> {
    let Some(session) = &state.worker.session else { return Ok(()) };
    let Some(pending) = state.pending_store.take() else { return Ok(()) };
    let waiting_size = || head::waiting_bytes(request);
    let waiter = WaitingRequest::new(&state.worker.gateway.waiting, &waiting_size);
    let mut unanswered = Vec::new();
    let verdict = pending.ask(session, waiter, &mut state.decisions, &mut unanswered).await;
    state.used_fallback |= unanswered.iter().any(|limit| limit.fallback.is_some());
    head::record_chain_result(state, verdict)
}
