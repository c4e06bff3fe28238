//! Asking the store about the limits that are counted there.

use http::{HeaderName, HeaderValue, Request};

use super::head;
use crate::admission::chain::{ChainPermit, WaitingRequest};
use crate::proxy::reject::Rejection;
use crate::proxy::request_state::RequestState;
use crate::request::body::RequestBody;

/// Tells trusted proxies that something else had to judge in the store's place.
pub const STATE_HEADER: HeaderName = HeaderName::from_static("sluicegate-state");
pub const STATE_DEGRADED: HeaderValue = HeaderValue::from_static("degraded");

/// Whether limits of the request are counted at the store.
#[inline]
pub fn must_ask_store(visit: &RequestState) -> bool {
    visit.charged_chain.as_ref().is_some_and(ChainPermit::must_ask_store)
}

/// Asks the store, if limits of the request are counted there and the local ones have accepted.
///
/// # Errors
/// A limit refuses.
pub async fn ask_store(request: &Request<RequestBody>, visit: &mut RequestState) -> Result<(), Rejection> {
    let Some(session) = &visit.worker.session else { return Ok(()) };
    let Some(passage) = visit.charged_chain.take_if(|passage| passage.must_ask_store()) else {
        return Ok(());
    };
    let held = || head::waiting_bytes(request);
    let waiter = WaitingRequest::new(&visit.worker.gateway.waiting, &held);
    let refusal =
        match passage.ask_store(session, waiter, &mut visit.decisions, &mut visit.used_fallback).await {
            Ok(passage) => {
                visit.charged_chain = Some(passage);
                None
            }
            Err(refusal) => Some(refusal),
        };
    head::record_chain_result(visit, refusal)
}
