//! The answer of a location that tells callers what is left of their limits.

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use http::{HeaderMap, Response, StatusCode};
use serde::Serialize;

use crate::gateway::usage::{CountedKey, ShownLimit, UsageEntry};
use crate::gateway::worker::Worker;
use crate::judge::inbound::InboundRequest;
use crate::judge::request_state::RequestState;
use sluicegate_base::clock::Now;
use sluicegate_http::request::access::AccessDecision;
use sluicegate_http::request::account::Tier;
use sluicegate_http::request::key::KeyInput;
use sluicegate_http::upstream::fnv1a;
use sluicegate_model::TierRules;

#[derive(Serialize)]
struct CallerUsage<'a> {
    account: Option<&'a str>,
    tier: &'a str,
    limits: Vec<UsageEntry>,
}

/// The answer to a caller that asks what is left, as JSON.
pub(super) async fn tell_caller(
    worker: &Worker,
    shown: &[ShownLimit],
    state: &RequestState,
    inbound: &InboundRequest,
) -> Vec<u8> {
    let (gateway, client, now) = (&*worker.gateway, state.identity.client, Now::read_clock());
    let request = &inbound.request;
    // The state has the text of an account that is no UTF-8 with replacements, under which others may count.
    let account = state.identity.account().filter(|name| !name.is_empty() && !name.contains('\u{fffd}'));
    let subject = KeyInput {
        ip: gateway.clients.mask_address(client.ip),
        ip_key: None,
        account: account.map(str::as_bytes),
        tier: state.identity.tier.as_ref().map_or(TierRules::DEFAULT, Tier::as_str),
        path: request.uri().path().as_bytes(),
        query: None,
        location: None,
        host: "",
        method: request.method(),
        headers: request.headers(),
        trusted_peer: client.trusted_peer,
        token: None,
        body: None,
    };
    let access = gateway.access_for(state.route).map(|access| access.decide_access(client.ip));
    let shown = if access == Some(AccessDecision::Bypassed) { &[] } else { shown };
    let find_key = |shown: &ShownLimit| shown.find_key(gateway, (&subject, client.ip), now);
    let keys: Vec<CountedKey> = shown.iter().filter_map(find_key).collect();
    let limits = gateway.read_usage(worker.session.as_deref(), &keys, now).await;
    let told = CallerUsage { account, tier: subject.tier, limits };
    // Cannot fail: the members are texts and numbers.
    serde_json::to_vec(&told).unwrap_or_default()
}

/// The answer to a caller that asks what is left, or that it knows the answer already.
pub(super) fn render_told(told: Vec<u8>, request: &HeaderMap) -> Response<Bytes> {
    let tag = format!("\"{:016x}\"", fnv1a(&told));
    let is_same = |one: &str| one == "*" || one.strip_prefix("W/").unwrap_or(one) == tag;
    let known = request.get_all(IF_NONE_MATCH).iter().filter_map(|tags| tags.to_str().ok());
    let is_known = known.flat_map(|tags| tags.split(',')).any(|one| is_same(one.trim()));
    let mut response = Response::new(Bytes::new());
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    } else {
        *response.body_mut() = told.into();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    }
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("private, no-cache"));
    // Cannot fail: hex digits in quotes.
    headers.extend(HeaderValue::try_from(tag).ok().map(|tag| (ETAG, tag)));
    response
}
