//! Identify, locate, judge: everything that is decided from a request's head, in one go and without waiting.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{EXPECT, HeaderMap, HeaderValue};
use http::uri::{Authority, PathAndQuery};
use http::{Method, Request, Response, Uri, Version};
use http_body::Body;

use super::caller::{Caller, CallerIdentity, ChargeFault, RequestHead};
use super::rejection_response;
use super::rejection_response::RequestFacts;
use crate::admission::chain;
use crate::admission::chain::{ChainPermit, LimitDemand, RateDecision, WaitingRequest};
use crate::config::TierRules;
use crate::limit::bandwidth::BandwidthShare;
use crate::limit::{Decision, Limit, LimitOutcome};
use crate::observe::metrics::DecisionKind;
use crate::proxy::gateway::{Action, Gateway, LimitChain, Route};
use crate::proxy::reject::{Fault, Rejection};
use crate::proxy::request_state::RequestState;
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

/// Judges `request`, whose target named this `authority`, by its head alone; the outcome stands in the visit.
///
/// Returns the answer when it may not go on to an upstream, be it the one that answers instead of a rejection.
pub fn judge_head(
    worker: &Worker,
    request: &Request<RequestBody>,
    authority: Option<&Authority>,
    visit: &mut RequestState,
) -> Option<Response<Bytes>> {
    visit.header_summary = HeaderSummary::scan_request(request.headers());
    let mut seen = RequestFacts::new(request, authority, visit.header_summary);
    let rejection = check_head(worker, request, visit, &mut seen).err()?;
    rejection_response::conclude_rejection(worker, visit, &seen, &rejection)
}

fn check_head<'r>(
    worker: &Worker,
    request: &'r Request<RequestBody>,
    visit: &mut RequestState,
    seen: &mut RequestFacts<'r>,
) -> Result<(), Rejection> {
    let gateway = &*worker.gateway;
    visit.read_head(request, seen.authority);
    check_framing(request, seen.header_summary)?;
    // Of HTTP/1 the parser counts the fields.
    if request.version() == Version::HTTP_2 && request.headers().len() > gateway.server.max_headers {
        return Err(Fault::HeadTooLarge.into());
    }
    let target = location::check_target(request.method(), request.uri()).map_err(target_fault)?;
    seen.host = visit.connection.canonical_host(request, seen.authority).map_err(|_| Fault::BadHost)?;
    seen.path = target.normalised_path().map_err(|_| Fault::BadTarget)?;
    let located = gateway.locations.find_location(&seen.host, &seen.path, request.method());
    if let LocationLookup::Found(place) = located {
        visit.route = Some(place);
    }
    let access = gateway.access_for(visit.route);
    let standing = access.map_or(AccessDecision::Ordinary, |access| access.decide_access(visit.client.ip));
    if standing == AccessDecision::Rejected {
        return Err(Fault::AccessDenied.into());
    }
    // Before tokens are verified: under overload a refusal must cost next to nothing.
    if !visit.count_in_flight(&gateway.in_flight, gateway.server.max_in_flight) {
        return Err(Fault::TooManyInFlight.into());
    }
    let token = worker.read_token(request.headers(), visit.started);
    let account = identify_caller(gateway, request, visit, token.as_ref())
        .map_err(|DuplicateAccount| Fault::RepeatedKey)?;
    let known =
        IdentifiedRequest { request, facts: seen, account: account.as_deref(), token: token.as_ref() };
    if standing != AccessDecision::Bypassed {
        check_ban(gateway, visit, &known)?;
    }
    // Whoever is judged goes on: nobody makes room in a queue for a request that cannot be forwarded.
    prepare_forward(gateway, request, visit, seen)?;
    if standing != AccessDecision::Bypassed {
        // Before limits: what answers instead of a refusal is paced as well.
        assign_bandwidth(gateway, visit, &known)?;
        judge_limits(gateway, visit, &known)?;
    }
    match located {
        LocationLookup::Found(place) => {
            if let Some(timeout) = gateway.routes[place].timeout {
                visit.watch.await_request(timeout);
            }
        }
        LocationLookup::NotFound => visit.no_location = Some(Box::new(Fault::NoLocation.into())),
        LocationLookup::MethodNotAllowed { allow } => {
            visit.no_location = Some(Box::new(Rejection::MethodNotAllowed { allow }));
        }
    }
    Ok(())
}

/// What forwarding needs to know beside the judgement.
fn prepare_forward(
    gateway: &Gateway,
    request: &Request<RequestBody>,
    visit: &mut RequestState,
    seen: &RequestFacts<'_>,
) -> Result<(), Fault> {
    // A length that is told is judged before anything is charged, or the client is asked to go on.
    if gateway.server.max_body.is_some_and(|max| request.body().size_hint().lower() > max) {
        return Err(Fault::BodyTooLarge);
    }
    if let Some(place) = visit.route {
        // What is answered here cannot become a tunnel.
        let action = &gateway.routes[place].action;
        if visit.is_websocket_connect && !matches!(action, Action::Upstream(upstream) if !upstream.is_demo())
        {
            return Err(Fault::BadMethod);
        }
        visit.target = strip_target(&gateway.routes[place], request.method(), request.uri(), &seen.path)?;
    }
    visit.is_grpc = seen.is_grpc();
    Ok(())
}

/// What hyper lets through although two readers might understand it differently.
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

/// What is known of a request before its limits are judged.
struct IdentifiedRequest<'a, 'r> {
    request: &'a Request<RequestBody>,
    facts: &'a RequestFacts<'r>,
    account: Option<&'a [u8]>,
    token: Option<&'a Token<'a>>,
}

impl<'a> IdentifiedRequest<'a, '_> {
    #[inline]
    fn build_caller(&self, gateway: &Gateway, visit: &RequestState, tier: &'a Option<Tier>) -> Caller<'a> {
        let head = RequestHead {
            method: self.request.method(),
            uri: self.request.uri(),
            headers: self.request.headers(),
            host: &self.facts.host,
            path: &self.facts.path,
        };
        let ip_key = if visit.client.trusted_peer { None } else { visit.connection.peer_key(&visit.worker) };
        let tier = tier.as_ref().map_or(TierRules::DEFAULT, Tier::as_str);
        let named = CallerIdentity { account: self.account, tier, token: self.token };
        Caller::new(gateway, head, visit.client, ip_key, named, visit.route)
    }
}

/// Refuses a banned client, and notes whom a strike of this request would count against.
fn check_ban(
    gateway: &Gateway,
    visit: &mut RequestState,
    known: &IdentifiedRequest<'_, '_>,
) -> Result<(), Rejection> {
    let Some(bans) = &gateway.bans else { return Ok(()) };
    let subject = known.build_caller(gateway, visit, &visit.tier).subject;
    let (blamed, left_ns) = bans.judge(&gateway.keys, &subject, visit.started);
    visit.blamed = Some(blamed);
    match left_ns {
        Some(left_ns) => Err(Rejection::Banned { left_ns }),
        None => Ok(()),
    }
}

/// Finds out who is calling; the names stand in the visit.
fn identify_caller<'a>(
    gateway: &Gateway,
    request: &'a Request<RequestBody>,
    visit: &mut RequestState,
    token: Option<&'a Token<'a>>,
) -> Result<Option<Cow<'a, [u8]>>, DuplicateAccount> {
    let (headers, query) = (request.headers(), request.uri().query());
    let account = account::find_account(gateway.account.as_ref(), headers, query, token)?;
    visit.account = account.as_ref().map(|account| String::from_utf8_lossy(account).into());
    if let Some(tiers) = &gateway.tiers {
        visit.tier = Some(tiers.find_tier(account.as_deref(), headers, query, token)?);
    }
    Ok(account)
}

/// Judges the chain; what it said is kept in the visit.
fn judge_limits(
    gateway: &Gateway,
    visit: &mut RequestState,
    known: &IdentifiedRequest<'_, '_>,
) -> Result<(), Rejection> {
    let limits: &LimitChain = gateway.chain_for(visit.route);
    if limits.keys.is_empty() {
        return Ok(());
    }
    let caller = known.build_caller(gateway, visit, &visit.tier);
    let mut keys = limits.keys.iter();
    let mut fault: Option<ChargeFault> = None;
    let worker = visit.worker.id;
    let ask = |limit: &Limit| {
        let Some(by) = keys.next() else { return LimitDemand::Skip };
        let asked = caller.build_charge(&gateway.keys, limit, by);
        if caller.has_invalid_cost(limit) && !matches!(asked, Ok(LimitDemand::Skip)) {
            gateway.metrics.count_invalid_cost(worker, limit.index);
        }
        asked.unwrap_or_else(|found| {
            fault = Some(found);
            LimitDemand::MissingKey
        })
    };
    let (decisions, passage) = (&mut visit.decisions, &mut visit.charged_chain);
    let held = || waiting_bytes(known.request);
    let waiter = WaitingRequest::new(&gateway.waiting, &held);
    let refusal = limits.chain.judge_into(visit.started, waiter, ask, decisions, passage);
    // A dry-run limit notes a repeated key and lets the request go, so the flag decides, not the verdict.
    if let Some(fault) = fault {
        visit.charged_chain = None;
        return Err(Fault::from(fault).into());
    }
    match refusal {
        None if visit.charged_chain.as_ref().is_some_and(ChainPermit::must_ask_store) => Ok(()),
        refusal => record_chain_result(visit, refusal),
    }
}

/// What a request holds in memory while it waits: its head, each field as HTTP/2 counts it (RFC 9113, section 6.5.2),
/// and what a stream may send of its body meanwhile; that of HTTP/1 waits at its client.
pub fn waiting_bytes(request: &Request<RequestBody>) -> usize {
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 32);
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let body = match request.version() {
        Version::HTTP_2 => request.body().size_hint().upper().unwrap_or(u64::MAX).min(STREAM_WINDOW.into()),
        _ => 0,
    };
    fields.sum::<usize>() + target + body as usize
}

/// Finds out whose bandwidth the body of the answer will take, where it is limited.
fn assign_bandwidth(
    gateway: &Gateway,
    visit: &mut RequestState,
    known: &IdentifiedRequest<'_, '_>,
) -> Result<(), Fault> {
    let Some((bandwidth, by)) = visit.route.and_then(|route| gateway.routes[route].bandwidth.as_ref()) else {
        return Ok(());
    };
    match gateway.keys.hash_key(by, &known.build_caller(gateway, visit, &visit.tier).subject) {
        KeyOutcome::Key(key) => visit.bandwidth = Some(Box::new(BandwidthShare::new(bandwidth.clone(), key))),
        KeyOutcome::Duplicate => return Err(Fault::RepeatedKey),
        KeyOutcome::Skip | KeyOutcome::Missing => unreachable!("a missing part falls back to the ip"),
    }
    Ok(())
}

/// Notes what the whole chain has said.
pub fn record_chain_result(
    visit: &mut RequestState,
    refusal: Option<chain::ChainRejection>,
) -> Result<(), Rejection> {
    let gateway = &visit.worker.gateway;
    count_decisions(visit, gateway.chain_for(visit.route), refusal.is_some());
    if let Some(refusal) = refusal {
        return Err(rejection_response::translate_rejection(&refusal));
    }
    if let Some(passage) = visit.charged_chain.as_ref().filter(|passage| passage.must_wait()) {
        visit.verdict = "wait";
        visit.limit = passage.queued_limit().map(|limit| limit.index);
    }
    Ok(())
}

/// Counts what each limit said, but for refusals, which are counted where they are final.
fn count_decisions(visit: &RequestState, limits: &LimitChain, refused: bool) {
    if refused && !visit.decisions.iter().any(|judged| judged.dry_run) {
        return;
    }
    for judged in chain::strictest_by_limit(&visit.decisions) {
        let said = decision_kind(&judged);
        // Of a refused request only the refusals happened; the rest was refunded, or only looked at.
        if said == DecisionKind::Reject || refused && said != DecisionKind::DryRunReject {
            continue;
        }
        let limit = limits.chain.limits()[usize::from(judged.limit_index)].index;
        visit.worker.gateway.metrics.count_decision(visit.worker.id, limit, said);
    }
}

/// What an answer is counted as.
#[inline]
pub fn decision_kind(judged: &RateDecision) -> DecisionKind {
    match (judged.decision.outcome, judged.dry_run) {
        (LimitOutcome::Admit, _) => DecisionKind::Admit,
        (LimitOutcome::Wait, false) => DecisionKind::Wait,
        (LimitOutcome::Reject, false) => DecisionKind::Reject,
        (LimitOutcome::Wait, true) => DecisionKind::DryRunWait,
        (LimitOutcome::Reject, true) => DecisionKind::DryRunReject,
    }
}

/// The target for `strip`: the normalised path without the prefix, encoded anew.
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

/// Writes what the limits said into an answer's head.
#[inline]
pub fn write_decisions(
    gateway: &Gateway,
    route: Option<usize>,
    decisions: &[RateDecision],
    headers: &mut HeaderMap,
) {
    if decisions.is_empty() {
        return;
    }
    let limits = gateway.chain_for(route).chain.limits();
    let told = decisions.iter().filter(|judged| !judged.dry_run).map(|judged| {
        (limits[usize::from(judged.limit_index)].index, usize::from(judged.rate), judged.decision)
    });
    let rejecter = gateway.rejecters.for_location(route);
    rejecter.write_fields(told, headers);
    if rejecter.has_dry_runs() {
        rejecter.write_dry_runs(dry_run_decisions(gateway, route, decisions), headers);
    }
}

/// What each dry-run limit of a location's chain said.
fn dry_run_decisions<'a>(
    gateway: &'a Gateway,
    route: Option<usize>,
    decisions: &'a [RateDecision],
) -> impl Iterator<Item = (usize, Decision)> + 'a {
    let limits = gateway.chain_for(route).chain.limits();
    let own = chain::strictest_by_limit(decisions).filter(|judged| judged.dry_run);
    own.map(|judged| (limits[usize::from(judged.limit_index)].index, judged.decision))
}

/// Keeps for the access log what dry-run limits would have done.
#[inline]
pub fn log_dry_runs(visit: &mut RequestState) {
    let (gateway, route) = (&visit.worker.gateway, visit.route);
    let rejecter = gateway.rejecters.for_location(route);
    if let Some(notes) = visit.log_fields.as_mut().filter(|_| rejecter.has_dry_runs()) {
        notes.dry_run = rejecter.dry_run_summary(dry_run_decisions(gateway, route, &visit.decisions));
    }
}
