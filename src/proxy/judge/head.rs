//! Identify, locate, judge: everything that is decided from a request's head, in one go and without waiting.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{EXPECT, HeaderMap, HeaderValue};
use http::uri::{Authority, PathAndQuery};
use http::{Method, Request, Response, Uri, Version};
use http_body::Body;

use super::limits::{AskFault, Caller, Head, Named};
use super::rejecting;
use super::rejecting::Seen;
use crate::admission::chain;
use crate::admission::chain::{Ask, Judged, Passage, Waiter};
use crate::config::TierRules;
use crate::limit::bandwidth::Share;
use crate::limit::{Decision, Limit, Outcome};
use crate::observe::metrics::Said;
use crate::proxy::gateway::{Action, Gateway, LimitChain, Route};
use crate::proxy::reject::{Fault, Rejection};
use crate::proxy::request_state::Visit;
use crate::proxy::worker::Worker;
use crate::request::access::Standing;
use crate::request::account;
use crate::request::account::{Duplicate, Tier};
use crate::request::body::{RequestBody, STREAM_WINDOW};
use crate::request::headers::hop_by_hop;
use crate::request::headers::summary::Glance;
use crate::request::key::KeyOutcome;
use crate::request::location;
use crate::request::location::{Located, Target};
use crate::request::source::Token;

/// Judges `request`, whose target named this `authority`, by its head alone; the outcome stands in the visit.
///
/// Returns the answer when it may not go on to an upstream, be it the one that answers instead of a rejection.
pub fn judge(
    worker: &Worker,
    request: &Request<RequestBody>,
    authority: Option<&Authority>,
    visit: &mut Visit,
) -> Option<Response<Bytes>> {
    let mut seen = Seen::new(request, authority);
    let rejection = settle(worker, request, visit, &mut seen).err()?;
    rejecting::conclude(worker, visit, &seen, &rejection)
}

fn settle<'r>(
    worker: &Worker,
    request: &'r Request<RequestBody>,
    visit: &mut Visit,
    seen: &mut Seen<'r>,
) -> Result<(), Rejection> {
    let gateway = &*worker.gateway;
    visit.note(request, seen.authority);
    check_framing(request, seen.glance)?;
    // Of HTTP/1 the parser counts the fields.
    if request.version() == Version::HTTP_2 && request.headers().len() > gateway.server.max_headers {
        return Err(Fault::HeadTooLarge.into());
    }
    let target = location::check_target(request.method(), request.uri()).map_err(target_fault)?;
    seen.host = visit.connection.host(request, seen.authority).map_err(|_| Fault::BadHost)?;
    seen.path = target.path().map_err(|_| Fault::BadTarget)?;
    let located = gateway.locations.locate(&seen.host, &seen.path, request.method());
    if let Located::Found(place) = located {
        visit.route = Some(place);
    }
    let access = gateway.access(visit.route);
    let standing = access.map_or(Standing::Ordinary, |access| access.standing(visit.client.ip));
    if standing == Standing::Denied {
        return Err(Fault::AccessDenied.into());
    }
    // Before tokens are verified: under overload a refusal must cost next to nothing.
    if !visit.enter(&gateway.in_flight, gateway.server.max_in_flight) {
        return Err(Fault::TooManyInFlight.into());
    }
    let token = worker.token(request.headers(), visit.started);
    let account =
        identify(gateway, request, visit, token.as_ref()).map_err(|Duplicate| Fault::RepeatedKey)?;
    let known = Known { request, seen, account: account.as_deref(), token: token.as_ref() };
    if standing != Standing::Bypassed {
        check_ban(gateway, visit, &known)?;
    }
    // Whoever is judged goes on: nobody makes room in a queue for a request that cannot be forwarded.
    make_ready(gateway, request, visit, seen)?;
    if standing != Standing::Bypassed {
        // Before limits: what answers instead of a refusal is paced as well.
        share_bandwidth(gateway, visit, &known)?;
        judge_limits(gateway, visit, &known)?;
    }
    match located {
        Located::Found(place) => {
            if let Some(timeout) = gateway.routes[place].timeout {
                visit.watch.await_request(timeout);
            }
        }
        Located::NotFound => visit.nowhere = Some(Box::new(Fault::NoLocation.into())),
        Located::MethodNotAllowed { allow } => {
            visit.nowhere = Some(Box::new(Rejection::MethodNotAllowed { allow }));
        }
    }
    Ok(())
}

/// What forwarding needs to know beside the judgement.
fn make_ready(
    gateway: &Gateway,
    request: &Request<RequestBody>,
    visit: &mut Visit,
    seen: &Seen<'_>,
) -> Result<(), Fault> {
    // A length that is told is judged before anything is charged, or the client is asked to go on.
    if gateway.server.max_body.is_some_and(|max| request.body().size_hint().lower() > max) {
        return Err(Fault::BodyTooLarge);
    }
    if let Some(place) = visit.route {
        // What is answered here cannot become a tunnel.
        let action = &gateway.routes[place].action;
        if visit.connects && !matches!(action, Action::Upstream(upstream) if !upstream.is_demo()) {
            return Err(Fault::BadMethod);
        }
        visit.target = rewritten(&gateway.routes[place], request.method(), request.uri(), &seen.path)?;
    }
    visit.is_grpc = seen.is_grpc();
    visit.may_have_underscores = seen.glance.may_have_underscores();
    Ok(())
}

/// What hyper lets through although two readers might understand it differently.
#[inline]
fn check_framing(request: &Request<RequestBody>, glance: Glance) -> Result<(), Fault> {
    let tells_length = request.version() == Version::HTTP_2 && glance.has_content_length();
    if glance.has_transfer_encoding() || tells_length {
        hop_by_hop::check_request_framing(request.headers(), request.version())
            .map_err(|_| Fault::BadFraming)?;
    }
    if glance.has_expect() && !request.headers().get_all(EXPECT).iter().all(is_continue) {
        return Err(Fault::BadExpectation);
    }
    Ok(())
}

fn is_continue(expectation: &HeaderValue) -> bool {
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
struct Known<'a, 'r> {
    request: &'a Request<RequestBody>,
    seen: &'a Seen<'r>,
    account: Option<&'a [u8]>,
    token: Option<&'a Token<'a>>,
}

impl<'a> Known<'a, '_> {
    #[inline]
    fn caller(&self, gateway: &Gateway, visit: &Visit, tier: &'a Option<Tier>) -> Caller<'a> {
        let head = Head {
            method: self.request.method(),
            uri: self.request.uri(),
            headers: self.request.headers(),
            host: &self.seen.host,
            path: &self.seen.path,
        };
        let ip_key = if visit.client.trusted_peer { None } else { visit.connection.peer_key(&visit.worker) };
        let tier = tier.as_ref().map_or(TierRules::DEFAULT, Tier::as_str);
        let named = Named { account: self.account, tier, token: self.token };
        Caller::new(gateway, head, visit.client, ip_key, named, visit.route)
    }
}

/// Refuses a banned client, and notes whom a strike of this request would count against.
fn check_ban(gateway: &Gateway, visit: &mut Visit, known: &Known<'_, '_>) -> Result<(), Rejection> {
    let Some(bans) = &gateway.bans else { return Ok(()) };
    let subject = known.caller(gateway, visit, &visit.tier).subject;
    let (blamed, left_ns) = bans.judge(&gateway.keys, &subject, visit.started);
    visit.blamed = Some(blamed);
    match left_ns {
        Some(left_ns) => Err(Rejection::Banned { left_ns }),
        None => Ok(()),
    }
}

/// Finds out who is calling; the names stand in the visit.
fn identify<'a>(
    gateway: &Gateway,
    request: &'a Request<RequestBody>,
    visit: &mut Visit,
    token: Option<&'a Token<'a>>,
) -> Result<Option<Cow<'a, [u8]>>, Duplicate> {
    let (headers, query) = (request.headers(), request.uri().query());
    let account = account::account(gateway.account.as_ref(), headers, query, token)?;
    visit.account = account.as_ref().map(|account| String::from_utf8_lossy(account).into());
    if let Some(tiers) = &gateway.tiers {
        visit.tier = Some(tiers.tier(account.as_deref(), headers, query, token)?);
    }
    Ok(account)
}

/// Judges the chain; what it said is kept in the visit.
fn judge_limits(gateway: &Gateway, visit: &mut Visit, known: &Known<'_, '_>) -> Result<(), Rejection> {
    let limits: &LimitChain = gateway.chain(visit.route);
    if limits.keys.is_empty() {
        return Ok(());
    }
    let caller = known.caller(gateway, visit, &visit.tier);
    let mut keys = limits.keys.iter();
    let mut fault: Option<AskFault> = None;
    let worker = visit.worker.id;
    let ask = |limit: &Limit| {
        let Some(by) = keys.next() else { return Ask::Skip };
        let asked = caller.ask(&gateway.keys, limit, by);
        if caller.has_invalid_cost(limit) && !matches!(asked, Ok(Ask::Skip)) {
            gateway.metrics.invalid_cost(worker, limit.index);
        }
        asked.unwrap_or_else(|found| {
            fault = Some(found);
            Ask::MissingKey
        })
    };
    let (decisions, passage) = (&mut visit.decisions, &mut visit.passage);
    let held = || held_bytes(known.request);
    let waiter = Waiter::new(&gateway.waiting, &held);
    let refusal = limits.chain.judge_into(visit.started, waiter, ask, decisions, passage);
    // A dry-run limit notes a repeated key and lets the request go, so the flag decides, not the verdict.
    if let Some(fault) = fault {
        visit.passage = None;
        return Err(Fault::from(fault).into());
    }
    match refusal {
        None if visit.passage.as_ref().is_some_and(Passage::must_ask) => Ok(()),
        refusal => judged(visit, refusal),
    }
}

/// What a request holds in memory while it waits: its head, each field as HTTP/2 counts it (RFC 9113, section 6.5.2),
/// and what a stream may send of its body meanwhile; that of HTTP/1 waits at its client.
pub fn held_bytes(request: &Request<RequestBody>) -> usize {
    let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 32);
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let body = match request.version() {
        Version::HTTP_2 => request.body().size_hint().upper().unwrap_or(u64::MAX).min(STREAM_WINDOW.into()),
        _ => 0,
    };
    fields.sum::<usize>() + target + body as usize
}

/// Finds out whose bandwidth the body of the answer will take, where it is limited.
fn share_bandwidth(gateway: &Gateway, visit: &mut Visit, known: &Known<'_, '_>) -> Result<(), Fault> {
    let Some((bandwidth, by)) = visit.route.and_then(|route| gateway.routes[route].bandwidth.as_ref()) else {
        return Ok(());
    };
    match gateway.keys.key(by, &known.caller(gateway, visit, &visit.tier).subject) {
        KeyOutcome::Key(key) => visit.paced = Some(Box::new(Share::new(bandwidth.clone(), key))),
        KeyOutcome::Duplicate => return Err(Fault::RepeatedKey),
        KeyOutcome::Skip | KeyOutcome::Missing => unreachable!("a missing part falls back to the ip"),
    }
    Ok(())
}

/// Notes what the whole chain has said.
pub fn judged(visit: &mut Visit, refusal: Option<chain::Refusal>) -> Result<(), Rejection> {
    let gateway = &visit.worker.gateway;
    count(visit, gateway.chain(visit.route), refusal.is_some());
    if let Some(refusal) = refusal {
        return Err(rejecting::rejection(&refusal));
    }
    if let Some(passage) = visit.passage.as_ref().filter(|passage| passage.must_wait()) {
        visit.verdict = "wait";
        visit.limit = passage.queued_on().map(|limit| limit.index);
    }
    Ok(())
}

/// Counts what each limit said, but for refusals, which are counted where they are final.
fn count(visit: &Visit, limits: &LimitChain, refused: bool) {
    if refused && !visit.decisions.iter().any(|judged| judged.dry_run) {
        return;
    }
    for judged in chain::by_limit(&visit.decisions) {
        let said = said(&judged);
        // Of a refused request only the refusals happened; the rest was refunded, or only looked at.
        if said == Said::Reject || refused && said != Said::DryRunReject {
            continue;
        }
        let limit = limits.chain.limits()[usize::from(judged.place)].index;
        visit.worker.gateway.metrics.decided(visit.worker.id, limit, said);
    }
}

/// What an answer is counted as.
#[inline]
pub fn said(judged: &Judged) -> Said {
    match (judged.decision.outcome, judged.dry_run) {
        (Outcome::Admit, _) => Said::Admit,
        (Outcome::Wait, false) => Said::Wait,
        (Outcome::Reject, false) => Said::Reject,
        (Outcome::Wait, true) => Said::DryRunWait,
        (Outcome::Reject, true) => Said::DryRunReject,
    }
}

/// The target for `strip`: the normalised path without the prefix, encoded anew.
pub fn rewritten(
    route: &Route,
    method: &Method,
    uri: &Uri,
    path: &[u8],
) -> Result<Option<PathAndQuery>, Fault> {
    let Some(strip) = &route.strip else { return Ok(None) };
    if let Ok(Target::Asterisk) = location::check_target(method, uri) {
        return Ok(None);
    }
    let text = location::strip_prefix(path, strip, uri.query()).map_err(|_| Fault::BadTarget)?;
    PathAndQuery::from_maybe_shared(Bytes::from(text)).map(Some).map_err(|_| Fault::BadTarget)
}

/// Writes what the limits said into an answer's head.
#[inline]
pub fn tell(gateway: &Gateway, route: Option<usize>, decisions: &[Judged], headers: &mut HeaderMap) {
    if decisions.is_empty() {
        return;
    }
    let limits = gateway.chain(route).chain.limits();
    let told = decisions
        .iter()
        .filter(|judged| !judged.dry_run)
        .map(|judged| (limits[usize::from(judged.place)].index, usize::from(judged.rate), judged.decision));
    let rejecter = gateway.rejecters.at(route);
    rejecter.write_fields(told, headers);
    if rejecter.has_dry_runs() {
        rejecter.write_dry_runs(dry_runs(gateway, route, decisions), headers);
    }
}

/// What each dry-run limit of a location's chain said.
fn dry_runs<'a>(
    gateway: &'a Gateway,
    route: Option<usize>,
    decisions: &'a [Judged],
) -> impl Iterator<Item = (usize, Decision)> + 'a {
    let limits = gateway.chain(route).chain.limits();
    let own = chain::by_limit(decisions).filter(|judged| judged.dry_run);
    own.map(|judged| (limits[usize::from(judged.place)].index, judged.decision))
}

/// Keeps for the access log what dry-run limits would have done.
#[inline]
pub fn note_dry_runs(visit: &mut Visit) {
    let (gateway, route) = (&visit.worker.gateway, visit.route);
    let rejecter = gateway.rejecters.at(route);
    if let Some(notes) = visit.notes.as_mut().filter(|_| rejecter.has_dry_runs()) {
        notes.dry_run = rejecter.dry_run_note(dry_runs(gateway, route, &visit.decisions));
    }
}
