//! Identifies, locates and judges a request: every decision that its head alone allows, without waiting.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{EXPECT, HeaderValue};
use http::uri::{Authority, PathAndQuery};
use http::{Method, Request, Response, Uri, Version};
use http_body::Body;

use super::caller::{Caller, CallerIdentity, ChargeFault, RequestHead};
use super::decisions::{count_decisions, count_slots};
use super::rejection_response;
use super::rejection_response::RequestFacts;
use crate::admission::chain::{ChainVerdict, Charge, LimitDemand, WaitingRequest};
use crate::config::TierRules;
use crate::limit::Limit;
use crate::limit::bandwidth::BandwidthShare;
use crate::proxy::gateway::{Action, Gateway, LimitChain, Route};
use crate::proxy::reject::{Fault, Rejection};
use crate::proxy::request_state::{RequestState, Verdict};
use crate::proxy::worker::Worker;
use crate::request::access::AccessDecision;
use crate::request::account;
use crate::request::account::{DuplicateAccount, Tier};
use crate::request::body::{RequestBody, STREAM_WINDOW};
use crate::request::headers::hop_by_hop;
use crate::request::headers::summary::HeaderSummary;
use crate::request::key::KeyOutcome;
use crate::request::location;
use crate::request::location::{LocationLookup, RequestTarget};
use crate::request::source::Token;

/// Judges `request`, whose target named this `authority`, by its head alone, and stores the outcome in `state`.
///
/// Returns the response if the request is rejected; `None` = not rejected yet: it may wait, ask the store, be
/// forwarded, or go to the upstream that responds instead of a rejection.
pub fn judge_head(
    worker: &Worker,
    request: &Request<RequestBody>,
    authority: Option<&Authority>,
    state: &mut RequestState,
) -> Option<Response<Bytes>> {
    state.header_summary = HeaderSummary::scan_request(request.headers());
    let mut facts = RequestFacts::new(request, authority, state.header_summary);
    let rejection = check_head(worker, request, state, &mut facts).err()?;
    rejection_response::conclude_rejection(worker, state, &facts, &rejection)
}

fn check_head<'r>(
    worker: &Worker,
    request: &'r Request<RequestBody>,
    state: &mut RequestState,
    facts: &mut RequestFacts<'r>,
) -> Result<(), Rejection> {
    let gateway = &*worker.gateway;
    state.read_head(request, facts.authority);
    check_framing(request, facts.header_summary)?;
    // The parser limits the fields of HTTP/1.
    if request.version() == Version::HTTP_2 && request.headers().len() > gateway.server.max_headers {
        return Err(Fault::HeadTooLarge.into());
    }
    let target = location::check_target(request.method(), request.uri()).map_err(target_fault)?;
    facts.host = state.connection.canonical_host(request, facts.authority).map_err(|_| Fault::BadHost)?;
    facts.path = target.normalised_path().map_err(|_| Fault::BadTarget)?;
    let lookup = gateway.locations.find_location(&facts.host, &facts.path, request.method());
    if let LocationLookup::Found(index) = lookup {
        state.route = Some(index);
    }
    let access = gateway.access_for(state.route);
    let access_decision =
        access.map_or(AccessDecision::Ordinary, |access| access.decide_access(state.client.ip));
    if access_decision == AccessDecision::Rejected {
        return Err(Fault::AccessDenied.into());
    }
    // Checked before tokens are verified: a rejection under overload must cost next to nothing.
    if !state.try_count_in_flight(&gateway.in_flight, gateway.server.max_in_flight) {
        return Err(Fault::TooManyInFlight.into());
    }
    let token = worker.read_token(request.headers(), state.started);
    let account = identify_caller(gateway, request, state, token.as_ref())
        .map_err(|DuplicateAccount| Fault::RepeatedKey)?;
    let identified = IdentifiedRequest { request, facts, account: account.as_deref(), token: token.as_ref() };
    if access_decision != AccessDecision::Bypassed {
        check_ban(gateway, state, &identified)?;
    }
    // Prepared before the limits: a queue must not make room for a request that cannot be forwarded.
    prepare_forward(gateway, request, state, facts)?;
    if access_decision != AccessDecision::Bypassed {
        // Assigned before the limits: a degraded response is paced as well.
        assign_bandwidth(gateway, state, &identified)?;
        judge_limits(gateway, state, &identified)?;
    }
    match lookup {
        LocationLookup::Found(index) => {
            if let Some(timeout) = gateway.routes[index.0].timeout {
                state.watch.set_request_deadline(timeout);
            }
        }
        LocationLookup::NotFound => state.no_location = Some(Box::new(Fault::NoLocation.into())),
        LocationLookup::MethodNotAllowed { allow } => {
            state.no_location = Some(Box::new(Rejection::MethodNotAllowed { allow }));
        }
    }
    Ok(())
}

/// Collects the facts that forwarding needs, and rejects a request that cannot be forwarded.
fn prepare_forward(
    gateway: &Gateway,
    request: &Request<RequestBody>,
    state: &mut RequestState,
    facts: &RequestFacts<'_>,
) -> Result<(), Fault> {
    // Check a declared length before anything is charged and before a 100 Continue invites the body.
    if gateway.server.max_body.is_some_and(|max| request.body().size_hint().lower() > max) {
        return Err(Fault::BodyTooLarge);
    }
    if let Some(index) = state.route {
        // Only an upstream can open a tunnel; a local response cannot.
        let action = &gateway.routes[index.0].action;
        if state.is_websocket_connect && !matches!(action, Action::Upstream(upstream) if !upstream.is_demo())
        {
            return Err(Fault::BadMethod);
        }
        state.target = strip_target(&gateway.routes[index.0], request.method(), request.uri(), &facts.path)?;
    }
    state.is_grpc = facts.is_grpc();
    Ok(())
}

/// Rejects framing that hyper accepts although two parsers might read it differently.
#[inline]
fn check_framing(request: &Request<RequestBody>, summary: HeaderSummary) -> Result<(), Fault> {
    let tells_length = request.version() == Version::HTTP_2 && summary.has_any(HeaderSummary::CONTENT_LENGTH);
    if summary.has_any(HeaderSummary::TRANSFER_ENCODING) || tells_length {
        hop_by_hop::check_request_framing(request.headers(), request.version())
            .map_err(|_| Fault::BadFraming)?;
    }
    if summary.has_any(HeaderSummary::EXPECT)
        && !request.headers().get_all(EXPECT).iter().all(is_100_continue)
    {
        return Err(Fault::BadExpectation);
    }
    Ok(())
}

fn is_100_continue(expectation: &HeaderValue) -> bool {
    expectation.as_bytes().eq_ignore_ascii_case(b"100-continue")
}

pub fn target_fault(error: location::TargetError) -> Rejection {
    match error {
        location::TargetError::Method => Fault::BadMethod.into(),
        location::TargetError::MethodCase => Fault::BadHead.into(),
        _ => Fault::BadTarget.into(),
    }
}

/// A request and its caller, before the limits judge.
struct IdentifiedRequest<'a, 'r> {
    request: &'a Request<RequestBody>,
    facts: &'a RequestFacts<'r>,
    account: Option<&'a [u8]>,
    token: Option<&'a Token<'a>>,
}

impl<'a> IdentifiedRequest<'a, '_> {
    #[inline]
    fn build_caller(&self, gateway: &Gateway, state: &RequestState, tier: &'a Option<Tier>) -> Caller<'a> {
        let head = RequestHead {
            method: self.request.method(),
            uri: self.request.uri(),
            headers: self.request.headers(),
            host: &self.facts.host,
            path: &self.facts.path,
        };
        let ip_key = if state.client.trusted_peer { None } else { state.connection.peer_key(&state.worker) };
        let tier = tier.as_ref().map_or(TierRules::DEFAULT, Tier::as_str);
        let identity = CallerIdentity { account: self.account, tier, token: self.token };
        Caller::new(gateway, head, state.client, ip_key, identity, state.route)
    }
}

/// Rejects a banned client, and stores the target of a possible strike.
fn check_ban(
    gateway: &Gateway,
    state: &mut RequestState,
    identified: &IdentifiedRequest<'_, '_>,
) -> Result<(), Rejection> {
    let Some(bans) = &gateway.bans else { return Ok(()) };
    let subject = identified.build_caller(gateway, state, &state.tier).subject;
    let (blamed, left_ns) = bans.judge(&gateway.keys, &subject, state.started);
    state.blamed = Some(blamed);
    match left_ns {
        Some(left_ns) => Err(Rejection::Banned { left_ns }),
        None => Ok(()),
    }
}

/// Finds the account and the tier of the caller, and stores them in `state`.
fn identify_caller<'a>(
    gateway: &Gateway,
    request: &'a Request<RequestBody>,
    state: &mut RequestState,
    token: Option<&'a Token<'a>>,
) -> Result<Option<Cow<'a, [u8]>>, DuplicateAccount> {
    let (headers, query) = (request.headers(), request.uri().query());
    let account = account::find_account(gateway.account.as_ref(), headers, query, token)?;
    state.account = account.as_ref().map(|account| String::from_utf8_lossy(account).into());
    if let Some(tiers) = &gateway.tiers {
        state.tier = Some(tiers.find_tier(account.as_deref(), headers, query, token)?);
    }
    Ok(account)
}

/// Judges the chain, and stores its decisions in `state`.
fn judge_limits(
    gateway: &Gateway,
    state: &mut RequestState,
    identified: &IdentifiedRequest<'_, '_>,
) -> Result<(), Rejection> {
    let limits: &LimitChain = gateway.chain_for(state.route);
    if limits.keys.is_empty() {
        return Ok(());
    }
    let caller = identified.build_caller(gateway, state, &state.tier);
    let mut keys = limits.keys.iter();
    let mut fault: Option<ChargeFault> = None;
    let worker = state.worker.id;
    let demand_of = |limit: &Limit| {
        let Some(limit_keys) = keys.next() else { return LimitDemand::Skip };
        let demand = caller.build_demand(&gateway.keys, limit, limit_keys);
        if caller.has_invalid_cost(limit) && !matches!(demand, Ok(LimitDemand::Skip)) {
            gateway.metrics.count_invalid_cost(worker, limit.id);
        }
        demand.unwrap_or_else(|charge_fault| {
            fault = Some(charge_fault);
            LimitDemand::MissingKey
        })
    };
    let waiting_size = || waiting_bytes(identified.request);
    let waiter = WaitingRequest::new(&gateway.waiting, &waiting_size);
    let (takes_slots, decisions) = (state.route.is_some(), &mut state.decisions);
    let verdict = limits.chain.judge::<Charge>(state.started, waiter, takes_slots, demand_of, decisions);
    // A dry-run limit admits a request with a repeated key, so the fault decides here, not the verdict.
    if let Some(fault) = fault {
        return Err(Fault::from(fault).into());
    }
    match verdict {
        ChainVerdict::AskStore(pending) => {
            state.pending_store = Some(Box::new(pending));
            Ok(())
        }
        verdict => record_chain_result(state, verdict),
    }
}

/// Bytes that a waiting request occupies: its head, with each field counted as in HTTP/2 (RFC 9113, section 6.5.2), and
/// the part of its body that a stream may send meanwhile. The body of HTTP/1 stays at the client.
pub fn waiting_bytes(request: &Request<RequestBody>) -> usize {
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 32);
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let body = match request.version() {
        Version::HTTP_2 => request.body().size_hint().upper().unwrap_or(u64::MAX).min(STREAM_WINDOW.into()),
        _ => 0,
    };
    fields.sum::<usize>() + target + body as usize
}

/// Assigns the bandwidth bucket of the response body, if the location limits bandwidth.
fn assign_bandwidth(
    gateway: &Gateway,
    state: &mut RequestState,
    identified: &IdentifiedRequest<'_, '_>,
) -> Result<(), Fault> {
    let Some((bandwidth, key_spec)) =
        state.route.and_then(|route| gateway.routes[route.0].bandwidth.as_ref())
    else {
        return Ok(());
    };
    match gateway.keys.hash_key(key_spec, &identified.build_caller(gateway, state, &state.tier).subject) {
        KeyOutcome::Key(key) => state.bandwidth = Some(Box::new(BandwidthShare::new(bandwidth.clone(), key))),
        KeyOutcome::Duplicate => return Err(Fault::RepeatedKey),
        KeyOutcome::Skip | KeyOutcome::Missing => unreachable!("a missing part falls back to the ip"),
    }
    Ok(())
}

/// Counts the decisions of the whole chain, and stores the permit or the place in the queues.
pub fn record_chain_result<P>(state: &mut RequestState, verdict: ChainVerdict<P>) -> Result<(), Rejection> {
    let gateway = &state.worker.gateway;
    let is_rejected = matches!(&verdict, ChainVerdict::Reject(rejection) if !rejection.late);
    count_decisions(state, gateway.chain_for(state.route), is_rejected);
    match verdict {
        ChainVerdict::Admit(permit) => {
            state.chain_permit = Some(permit);
            count_slots(state);
        }
        ChainVerdict::Wait(queued) => {
            state.verdict = Verdict::Wait;
            state.limit = Some(queued.limit().id);
            state.queued = Some(Box::new(queued));
        }
        ChainVerdict::Reject(rejection) => return Err(rejection_response::translate_rejection(&rejection)),
        ChainVerdict::AskStore(_) => {}
    }
    Ok(())
}

/// The target for `strip`: the normalised path without the prefix, encoded again.
pub fn strip_target(
    route: &Route,
    method: &Method,
    uri: &Uri,
    path: &[u8],
) -> Result<Option<PathAndQuery>, Fault> {
    let Some(strip) = &route.strip else { return Ok(None) };
    if let Ok(RequestTarget::Asterisk) = location::check_target(method, uri) {
        return Ok(None);
    }
    let text = location::strip_location_prefix(path, strip, uri.query()).map_err(|_| Fault::BadTarget)?;
    PathAndQuery::from_maybe_shared(Bytes::from(text)).map(Some).map_err(|_| Fault::BadTarget)
}
