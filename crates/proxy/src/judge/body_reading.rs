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

use super::demand;
use super::facts::{BodyView, RequestFacts, RequestHead};
use crate::gateway::Gateway;
use crate::judge::inbound::InboundRequest;
use crate::judge::request_state::RequestState;
use crate::reject::Fault;
use sluicegate_admission::chain::{Charge, WaitingRequest};
use sluicegate_http::net::deadline::GatewayDeadline;
use sluicegate_http::request::access::AccessDecision;
use sluicegate_http::request::source::{BodyForm, BodyPlan, BodyValues, ENCODED, NOT_JSON, TOO_LONG};
use sluicegate_model::BodyUse;

/// The charset of a body; the later, the less is known of its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Charset {
    Utf8,
    /// The same text as UTF-8 for characters of ASCII.
    HoldsAscii,
    /// The bytes of JSON may mean another document, as in UTF-7, which parsers of bodies accept.
    Other,
}

/// The use for which the body must be read before the request is judged further; `None` = judging goes on.
///
/// # Errors
/// The body is longer than its readable part, or encoded although the caller is identified by it.
pub(super) fn awaits_body(
    gateway: &Gateway,
    plan: &BodyPlan,
    facts: &mut RequestFacts<'_>,
) -> Result<Option<BodyUse>, Fault> {
    let is_bypassed = facts.access == Some(AccessDecision::Bypassed);
    let must_fit = if is_bypassed { plan.identifies_caller } else { plan.must_fit };
    let of_limits = if must_fit { BodyUse::Required } else { find_use(gateway, facts, is_bypassed) };
    let body_use = of_limits.max(plan.least_use);
    if body_use == BodyUse::Unused || facts.body.exact() == Some(0) {
        return Ok(None);
    }
    let known = match facts.body_view {
        BodyView::Absent => return Ok(None),
        BodyView::Read(values) => values,
        BodyView::Unread if !plan.hashes_body && is_encoded(facts.head.headers) => &ENCODED,
        BodyView::Unread
            if gateway.max_body_for(facts.route()).is_some_and(|max| facts.body.lower() > max) =>
        {
            return Err(Fault::BodyTooLarge);
        }
        // An `id` may stand in its beginning nevertheless.
        BodyView::Unread
            if facts.body.lower() > plan.peek_bytes
                && (body_use == BodyUse::Required || !plan.tells_id()) =>
        {
            &TOO_LONG
        }
        // A call of gRPC may wait for an answer before it goes on.
        BodyView::Unread if facts.is_grpc() && body_use < BodyUse::Required => &NOT_JSON,
        BodyView::Unread => return Ok(Some(body_use)),
    };
    facts.body_view = BodyView::Read(known);
    if must_fit { demand::check_form(known, true).map(|()| None) } else { Ok(None) }
}

/// The use of the body for the limits of the request.
fn find_use(gateway: &Gateway, facts: &RequestFacts<'_>, is_bypassed: bool) -> BodyUse {
    let RequestHead { method, client, .. } = &facts.head;
    let limits = gateway.chain_for(facts.route()).chain.limits().iter().filter(|_| !is_bypassed);
    let applying = limits.filter(|limit| demand::check_exemption(limit, method, client).is_ok());
    applying.map(|limit| limit.config.body_use()).max().unwrap_or(BodyUse::Unused)
}

fn is_compressed(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(CONTENT_ENCODING).iter();
    encodings.any(|encoding| !encoding.as_bytes().eq_ignore_ascii_case(b"identity"))
}

/// True if the bytes of the body are not those of its text.
fn is_encoded(headers: &HeaderMap) -> bool {
    is_compressed(headers) || find_charset(headers) == Charset::Other
}

/// The strictest of the charsets that `Content-Type` names, wherever in it, because servers look there as well.
fn find_charset(headers: &HeaderMap) -> Charset {
    let lines = headers.get_all(CONTENT_TYPE).iter().map(HeaderValue::as_bytes);
    let texts = lines.map(|line| String::from_utf8_lossy(line).to_ascii_lowercase());
    let named = texts.filter_map(|text| text.split("charset").skip(1).map(read_charset).max());
    named.max().unwrap_or(Charset::Utf8)
}

/// The charset by the text after a `charset`, which is no parameter without a `=`.
fn read_charset(rest: &str) -> Charset {
    let is_mark = |mark: char| mark.is_ascii_whitespace() || mark == '"' || mark == '\'';
    let rest = rest.trim_start_matches(is_mark);
    let Some(value) = rest.strip_prefix('=') else {
        // One that is encoded or continued (RFC 2231).
        return if rest.starts_with('*') { Charset::Other } else { Charset::Utf8 };
    };
    let name = value.trim_start_matches(is_mark);
    match name.split(|end| is_mark(end) || end == ';' || end == ',').next().unwrap_or_default() {
        "utf-8" | "utf8" => Charset::Utf8,
        "ascii" | "us-ascii" | "latin1" | "cp1252" => Charset::HoldsAscii,
        name if name.starts_with("iso-8859-") || name.starts_with("windows-125") => Charset::HoldsAscii,
        _ => Charset::Other,
    }
}

/// Finds the values of the plan in a body, of which `bytes` are the beginning if it is not `is_whole`.
pub fn find_values(headers: &HeaderMap, plan: &Arc<BodyPlan>, bytes: &[u8], is_whole: bool) -> BodyValues {
    let values = BodyValues::read(plan, bytes, is_whole);
    match values.form {
        BodyForm::Json | BodyForm::NotJson if plan.hashes_body && is_encoded(headers) => {
            values.into_form(BodyForm::Encoded)
        }
        BodyForm::Json if !values.is_ascii && find_charset(headers) != Charset::Utf8 => {
            values.into_form(BodyForm::NotJson)
        }
        _ => values,
    }
}

/// Reads the beginning of the body, and finds the values of the plan in it; those that responses contain are kept in
/// the state. The request counts as a waiting one meanwhile. If the client hangs up, its connection ends this future.
///
/// # Errors
/// The client sends no whole body in time, other bodies leave no room for it, or too many requests are waiting; for a
/// dry run or a response the body then counts as too long.
pub(super) async fn read_values(
    state: &mut RequestState,
    inbound: &mut InboundRequest,
    plan: &Arc<BodyPlan>,
    body_use: BodyUse,
) -> Result<BodyValues, Fault> {
    let max = state.worker.gateway.max_body_for(state.route).unwrap_or(u64::MAX);
    let is_optional = body_use <= BodyUse::DryRun;
    match read_in_time(state, inbound, plan.peek_bytes, max, is_optional).await {
        Err(Fault::TooManyWaiting) if is_optional => {}
        read => read?,
    }
    let (bytes, is_whole) = inbound.request.body().peeked_bytes().unwrap_or((b"", false));
    // A body that did not come over a connection is at hand, however long it is.
    let is_whole = is_whole && bytes.len() as u64 <= plan.peek_bytes;
    let values = find_values(inbound.request.headers(), plan, bytes, is_whole);
    state.identity.body_texts = values.told_texts(plan, bytes);
    Ok(values)
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
    read_in_time(state, inbound, max, max, false).await?;
    let (bytes, _) = inbound.request.body().peeked_bytes().unwrap_or((b"", true));
    Ok(Bytes::copy_from_slice(bytes))
}

/// Reads until the body ends, is longer than `peek_bytes`, or the location's timeout passes, which the sweep of
/// deadlines tells this task; an optional read also until there is no room. A wait for room takes at most as long as
/// one for the client.
async fn read_in_time(
    state: &RequestState,
    inbound: &mut InboundRequest,
    peek_bytes: u64,
    max: u64,
    is_optional: bool,
) -> Result<(), Fault> {
    let gateway = &state.worker.gateway;
    let held_bytes = || inbound.waiting_bytes();
    let waiter = WaitingRequest::new(&gateway.load.waiting, &held_bytes);
    let place = waiter.take_place::<Charge>().ok_or(Fault::TooManyWaiting)?;
    // Reading answers the client that waits for a 100 Continue, so that the upstream need not.
    inbound.request.headers_mut().remove(EXPECT);
    let body = inbound.request.body_mut();
    let bound = body.size_hint().upper().unwrap_or(u64::MAX).min(peek_bytes);
    let client = gateway.keys.hash_ip(gateway.clients.mask_address(state.identity.client.ip));
    let room = gateway.load.body_memory.begin_reading(client, place.weight(), bound);
    let mut room = room.ok_or(Fault::TooManyWaiting)?;
    room.never_waits = is_optional;
    let mut reading = pin!(body.peek_beginning(&state.watch, &room, peek_bytes, max));
    let mut patience: Option<Pin<Box<Sleep>>> = None;
    std::future::poll_fn(|cx| {
        if let Poll::Ready(read) = reading.as_mut().poll(cx) {
            return Poll::Ready(read.map_err(Fault::from));
        }
        let is_late = state.watch.fired_deadline() == Some(GatewayDeadline::Request);
        if !room.is_waiting() {
            patience = None;
            return if is_late { Poll::Ready(Err(Fault::LocationTimeout)) } else { Poll::Pending };
        }
        let patience = patience.get_or_insert_with(|| Box::pin(sleep(gateway.config.server.timeouts.body)));
        let is_over = is_late || patience.as_mut().poll(cx).is_ready();
        if is_over { Poll::Ready(Err(Fault::NoBodyRoom)) } else { Poll::Pending }
    })
    .await
}
