//! Reads the beginning of a request's body, where a limit, the account or the tier is made of values in it.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, EXPECT};
use http::{HeaderMap, HeaderValue};
use http_body::Body;
use tokio::time::{Sleep, sleep};

use super::facts::{BodyView, RequestFacts};
use crate::admission::chain::{Charge, WaitingRequest};
use crate::net::deadline::GatewayDeadline;
use crate::proxy::forward::ForwardFault;
use crate::proxy::gateway::Gateway;
use crate::proxy::inbound::InboundRequest;
use crate::proxy::reject::Fault;
use crate::proxy::request_state::RequestState;
use crate::request::access::AccessDecision;
use crate::request::source::{BodyPlan, BodyValues, NOT_JSON};

/// Whether the body must be read before the request can be judged further.
///
/// # Errors
/// The body is longer than what may be read of it, or encoded although a key or a cost depends on it.
pub fn awaits_body(gateway: &Gateway, plan: &BodyPlan, facts: &mut RequestFacts<'_>) -> Result<bool, Fault> {
    if facts.access == Some(AccessDecision::Bypassed) && !plan.identifies_caller() {
        return Ok(false);
    }
    match facts.body_view {
        BodyView::Unread => {}
        BodyView::Read(values) if values.is_too_long() && plan.must_fit() => {
            return Err(Fault::BodyBeyondPeek);
        }
        BodyView::Read(_) | BodyView::Absent => return Ok(false),
    }
    if facts.body.exact() == Some(0) {
        return Ok(false);
    }
    let is_encoded = is_encoded(facts.head.headers);
    // Many upstreams read such a body all the same, so it must not lead to another key or a lower cost.
    if is_encoded && plan.must_fit() {
        return Err(Fault::BodyUnreadable);
    }
    // A call of gRPC may wait for an answer before it goes on.
    if is_encoded || facts.is_grpc() && !plan.must_fit() {
        facts.body_view = BodyView::Read(&NOT_JSON);
        return Ok(false);
    }
    if gateway.server.max_body.is_some_and(|max| facts.body.lower() > max) {
        return Err(Fault::BodyTooLarge);
    }
    if plan.must_fit() && facts.body.lower() > plan.peek_bytes() {
        return Err(Fault::BodyBeyondPeek);
    }
    Ok(true)
}

/// Whether the bytes of the body are not those of its text in UTF-8.
fn is_encoded(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
    encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
        || headers.get_all(CONTENT_TYPE).iter().any(names_other_charset)
}

/// Whether a media type names a charset in which the bytes of JSON may mean another document, such as UTF-7, which
/// parsers of bodies accept.
fn names_other_charset(media_type: &HeaderValue) -> bool {
    const READ_ALIKE: [&str; 5] = ["=utf-8", "=utf8", "=us-ascii", "=iso-8859-", "=windows-125"];
    let text = String::from_utf8_lossy(media_type.as_bytes()).to_ascii_lowercase();
    let plain = text.replace([' ', '\t', '"', '\''], "");
    let is_alike = |rest: &str| READ_ALIKE.iter().any(|known| rest.starts_with(known));
    plain.split("charset").skip(1).any(|rest| !is_alike(rest))
}

/// Reads the beginning of the body, and finds the values of the plan in it. The request counts as a waiting one
/// meanwhile. If the client hangs up, its connection ends this future.
///
/// # Errors
/// The client sends no whole body in time, other bodies leave no room for it, or too many requests are waiting.
pub async fn read_values(
    state: &RequestState,
    inbound: &mut InboundRequest,
    plan: &Arc<BodyPlan>,
) -> Result<BodyValues, Fault> {
    let max = state.worker.gateway.server.max_body.unwrap_or(u64::MAX);
    read_in_time(state, inbound, plan.peek_bytes(), max).await?;
    let (bytes, is_whole) = inbound.request.body().peeked_bytes().unwrap_or((b"", true));
    // A body that did not come over a connection is at hand, however long it is.
    Ok(BodyValues::read(plan, bytes, is_whole && bytes.len() as u64 <= plan.peek_bytes()))
}

/// Reads the body of a call of the rate-limit service, of at most `max` bytes. The call counts as a waiting request
/// meanwhile.
///
/// # Errors
/// As [`read_values`], or the body is longer.
pub async fn read_call_body(
    state: &RequestState,
    inbound: &mut InboundRequest,
    max: u64,
) -> Result<Bytes, Fault> {
    read_in_time(state, inbound, max, max).await?;
    let (bytes, _) = inbound.request.body().peeked_bytes().unwrap_or((b"", true));
    Ok(Bytes::copy_from_slice(bytes))
}

/// Reads until the body ends, is longer than `peek_bytes`, or the location's timeout passes, which the sweep of
/// deadlines tells this task. A wait for room takes at most as long as one for the client.
async fn read_in_time(
    state: &RequestState,
    inbound: &mut InboundRequest,
    peek_bytes: u64,
    max: u64,
) -> Result<(), Fault> {
    let gateway = &state.worker.gateway;
    let held_bytes = || inbound.waiting_bytes();
    let waiter = WaitingRequest::new(&gateway.waiting, &held_bytes);
    let place = waiter.take_place::<Charge>().ok_or(Fault::TooManyWaiting)?;
    // Reading answers the client that waits for a 100 Continue, so that the upstream need not.
    inbound.request.headers_mut().remove(EXPECT);
    let body = inbound.request.body_mut();
    let bound = body.size_hint().upper().unwrap_or(u64::MAX).min(peek_bytes);
    let client = gateway.keys.hash_ip(gateway.clients.mask_address(state.client.ip));
    let room =
        gateway.body_memory.begin_reading(client, place.weight(), bound).ok_or(Fault::TooManyWaiting)?;
    let mut reading = pin!(body.peek_beginning(&state.watch, &room, peek_bytes, max));
    let mut patience: Option<Pin<Box<Sleep>>> = None;
    std::future::poll_fn(|cx| {
        if let Poll::Ready(read) = reading.as_mut().poll(cx) {
            return Poll::Ready(read.map_err(|fault| ForwardFault::Client(fault).into()));
        }
        let is_late = state.watch.fired_deadline() == Some(GatewayDeadline::Request);
        if !room.is_waiting() {
            patience = None;
            return if is_late { Poll::Ready(Err(Fault::LocationTimeout)) } else { Poll::Pending };
        }
        let patience = patience.get_or_insert_with(|| Box::pin(sleep(gateway.server.timeouts.body)));
        let is_over = is_late || patience.as_mut().poll(cx).is_ready();
        if is_over { Poll::Ready(Err(Fault::NoBodyRoom)) } else { Poll::Pending }
    })
    .await
}
