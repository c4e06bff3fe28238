//! Asking the store about the limits that are counted there.

use http::{HeaderName, HeaderValue, Request};

use super::head;
use crate::admission::chain::{Passage, Waiter};
use crate::proxy::reject::Rejection;
use crate::proxy::request_state::Visit;
use crate::request::body::RequestBody;

/// Tells trusted proxies that something else had to judge in the store's place.
pub const STATE: HeaderName = HeaderName::from_static("sluicegate-state");
pub const DEGRADED: HeaderValue = HeaderValue::from_static("degraded");

/// Whether limits of the request are counted at the store.
#[inline]
pub fn must_ask(visit: &Visit) -> bool {
    visit.passage.as_ref().is_some_and(Passage::must_ask)
}

/// Asks the store, if limits of the request are counted there and the local ones have accepted.
///
/// # Errors
/// A limit refuses.
pub async fn ask(request: &Request<RequestBody>, visit: &mut Visit) -> Result<(), Rejection> {
    let Some(session) = &visit.worker.session else { return Ok(()) };
    let Some(passage) = visit.passage.take_if(|passage| passage.must_ask()) else { return Ok(()) };
    let held = || head::held_bytes(request);
    let waiter = Waiter::new(&visit.worker.gateway.waiting, &held);
    let refusal = match passage.ask(session, waiter, &mut visit.decisions, &mut visit.fell_back).await {
        Ok(passage) => {
            visit.passage = Some(passage);
            None
        }
        Err(refusal) => Some(refusal),
    };
    head::judged(visit, refusal)
}
