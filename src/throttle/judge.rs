//! Identify, locate, judge: everything that is decided from a request's head, in one go and without waiting.

use std::borrow::Cow;
use std::net::IpAddr;

use bytes::Bytes;
use http::header::{EXPECT, HeaderMap, HeaderName};
use http::uri::PathAndQuery;
use http::{Request, Response};
use hyper::body::Incoming;
use smallvec::SmallVec;

use super::refuse::{self, Seen};
use crate::account;
use crate::chain::{Ask, Judged, Judgement, Verdict};
use crate::client::Client;
use crate::clock::Now;
use crate::config::Cost;
use crate::gateway::{Gateway, LimitChain, Route};
use crate::hop_by_hop;
use crate::key::{KeyOutcome, Subject};
use crate::limit::{Limit, Outcome};
use crate::location::{self, Located, Target};
use crate::metrics::Said;
use crate::reject::{Fault, Refusal, Rejection, Why};
use crate::visit::Visit;
use crate::worker::Worker;

/// A request that may go on: at once, or after its wait.
pub struct Passed {
    pub route: usize,
    pub client: Client,
    /// The target to ask for, when it is not the one that was sent.
    pub target: Option<PathAndQuery>,
    pub decisions: Decisions,
}

pub type Decisions = SmallVec<[Judged; 4]>;

/// A refused request's whole answer; boxed, so that the usual outcome stays small.
type Refused = Box<Response<Bytes>>;

/// Judges `request` by its head alone.
pub fn judge(
    worker: &Worker,
    request: &Request<Incoming>,
    visit: &mut Visit,
    now: Now,
) -> Result<Passed, Refused> {
    let gateway = &*worker.gateway;
    let client = gateway.clients.address(visit.connection.peer, request.headers());
    let mut seen = Seen::new(request, Some(client));
    let settled = settle(gateway, request, visit, &client, &mut seen, now);
    settled.map_err(|(rejection, decisions)| {
        let mut response = refuse::render(worker, visit, &seen, &rejection);
        tell(gateway, visit.route, &decisions, response.headers_mut());
        Box::new(response)
    })
}

type No = (Rejection, Decisions);

fn no(rejection: impl Into<Rejection>) -> No {
    (rejection.into(), Decisions::new())
}

fn settle<'r>(
    gateway: &Gateway,
    request: &'r Request<Incoming>,
    visit: &mut Visit,
    client: &Client,
    seen: &mut Seen<'r>,
    now: Now,
) -> Result<Passed, No> {
    let headers = request.headers();
    visit.note(request, client);
    check_framing(request).map_err(no)?;
    let target =
        location::check_target(request.method(), request.uri()).map_err(|error| no(target_fault(error)))?;
    seen.host = location::host(request.version(), headers, request.uri()).map_err(|_| no(Fault::BadHost))?;
    seen.path = target.path().map_err(|_| no(Fault::BadTarget))?;
    let located = gateway.locations.locate(&seen.host, &seen.path, request.method());
    if let Located::Found(place) = located {
        visit.route = Some(place);
    }
    seen.account = account::account(gateway.account.as_ref(), headers, request.uri().query())
        .map_err(|_| no(Fault::RepeatedKey))?;
    visit.note_account(seen.account.as_deref());
    if !visit.enter(&gateway.in_flight, gateway.server.max_in_flight) {
        return Err(no(Fault::TooManyInFlight));
    }
    let decisions = judge_limits(gateway, request, visit, client, seen, now)?;
    let place = match located {
        Located::Found(place) => place,
        Located::NotFound => return Err((spent(visit, Fault::NoLocation), decisions)),
        Located::MethodNotAllowed { allow } => {
            return Err((spent(visit, Rejection::MethodNotAllowed { allow }), decisions));
        }
    };
    let route = &gateway.routes[place];
    if let Some(timeout) = route.timeout {
        start_timeout(visit, timeout).map_err(|rejection| (rejection, decisions.clone()))?;
    }
    let target =
        rewritten(route, target, request, &seen.path).map_err(|fault| (fault.into(), decisions.clone()))?;
    Ok(Passed { route: place, client: *client, target, decisions })
}

/// Probing for locations costs as much as using one: what was charged stays.
fn spent(visit: &mut Visit, rejection: impl Into<Rejection>) -> Rejection {
    if let Some(passage) = &mut visit.passage {
        passage.forwarded();
    }
    rejection.into()
}

/// What hyper lets through although two readers might understand it differently.
fn check_framing(request: &Request<Incoming>) -> Result<(), Fault> {
    hop_by_hop::check_request_framing(request.headers(), request.version()).map_err(|_| Fault::BadFraming)?;
    match request.headers().get(EXPECT) {
        Some(value) if !value.as_bytes().eq_ignore_ascii_case(b"100-continue") => Err(Fault::BadExpectation),
        _ => Ok(()),
    }
}

fn target_fault(error: location::TargetError) -> Fault {
    match error {
        location::TargetError::Method => Fault::BadMethod,
        _ => Fault::BadTarget,
    }
}

/// Judges the chain; an admission is kept in the visit, decisions are returned either way.
fn judge_limits(
    gateway: &Gateway,
    request: &Request<Incoming>,
    visit: &mut Visit,
    client: &Client,
    seen: &Seen<'_>,
    now: Now,
) -> Result<Decisions, No> {
    let limits: &LimitChain = gateway.chain(visit.route);
    if limits.keys.is_empty() {
        return Ok(Decisions::new());
    }
    let subject = Subject {
        ip: gateway.clients.masked(client.ip),
        ip_key: if client.trusted_peer { None } else { visit.connection.peer_key },
        account: seen.account.as_deref(),
        path: &seen.path,
        query: request.uri().query(),
        location: visit.route.map(|place| gateway.locations.identity(place)),
        host: &seen.host,
        method: request.method(),
        headers: request.headers(),
    };
    let mut place = 0;
    let mut repeated = false;
    let judgement = limits.chain.judge(now, &gateway.waiting, |limit| {
        let spec = &limits.keys[place];
        place += 1;
        if is_exempt(limit, request, client.ip) {
            return Ask::Skip;
        }
        match gateway.keys.key(spec, &subject) {
            KeyOutcome::Key(key) => Ask::Units { key, cost: cost(limit, request.headers(), client) },
            KeyOutcome::Skip => Ask::Skip,
            KeyOutcome::Missing => Ask::MissingKey,
            KeyOutcome::Duplicate => {
                repeated = true;
                Ask::MissingKey
            }
        }
    });
    count(visit, limits, &judgement);
    match judgement.verdict {
        // A dry-run limit notes a repeated key and lets the request go, so the flag decides, not the verdict.
        _ if repeated => Err((Fault::RepeatedKey.into(), judgement.decisions)),
        Verdict::Admit(passage) => {
            if passage.must_wait() {
                visit.verdict = "wait";
                visit.limit = passage.queued_on().map(|limit| limit.index);
            }
            visit.passage = Some(passage);
            Ok(judgement.decisions)
        }
        Verdict::Reject(refusal) => Err((refuse::rejection(&refusal), judgement.decisions)),
    }
}

/// Counts what each limit said.
fn count(visit: &Visit, limits: &LimitChain, judgement: &Judgement) {
    let refused = matches!(judgement.verdict, Verdict::Reject(_));
    for judged in &judgement.decisions {
        // Of a refused request only the refusals happened; the rest was refunded, or only looked at.
        if refused && (judged.dry_run || judged.decision.outcome != Outcome::Reject) {
            continue;
        }
        let said = match (judged.decision.outcome, judged.dry_run) {
            (Outcome::Admit, _) => Said::Admit,
            (Outcome::Wait, false) => Said::Wait,
            (Outcome::Reject, false) => Said::Reject,
            (Outcome::Wait, true) => Said::DryRunWait,
            (Outcome::Reject, true) => Said::DryRunReject,
        };
        let limit = limits.chain.limits()[usize::from(judged.place)].index;
        visit.worker.gateway.metrics.decided(visit.worker.id, limit, said);
    }
}

#[inline]
fn is_exempt(limit: &Limit, request: &Request<Incoming>, ip: IpAddr) -> bool {
    let config = &limit.config;
    (!config.methods.is_empty() && !config.methods.contains(request.method()))
        || config.bypass.iter().any(|net| net.contains(&ip))
}

/// What one request takes. A header's word counts only from a trusted proxy; nonsense counts as 1.
#[inline]
fn cost(limit: &Limit, headers: &HeaderMap, client: &Client) -> u64 {
    match &limit.config.cost {
        Cost::Units(units) => *units,
        Cost::Header(name) if client.trusted_peer => header_cost(headers, name),
        Cost::Header(_) => 1,
    }
}

fn header_cost(headers: &HeaderMap, name: &HeaderName) -> u64 {
    let digits = headers.get(name).and_then(|value| value.to_str().ok());
    digits.and_then(|digits| digits.trim().parse().ok()).unwrap_or(1)
}

/// A computed wait beyond the location's timeout is refused at once.
fn start_timeout(visit: &mut Visit, timeout: crate::gateway::Timeout) -> Result<(), Rejection> {
    visit.connection.watch.await_request(timeout.ticks);
    let Some(passage) = &visit.passage else { return Ok(()) };
    if passage.wait_ns() <= timeout.ns {
        return Ok(());
    }
    let limit = passage.queued_on().map(|limit| limit.index);
    visit.passage = None;
    Err(queued_too_long(limit))
}

/// The refusal of a request whose location's timeout ends in a queue.
pub fn queued_too_long(limit: Option<usize>) -> Rejection {
    match limit {
        Some(limit) => {
            Rejection::Limit(Refusal { limit, rate: 0, why: Why::QueuedTooLong, retry_after_ns: None })
        }
        None => Fault::LocationTimeout.into(),
    }
}

/// The target for `strip`: the normalised path without the prefix, encoded anew.
fn rewritten(
    route: &Route,
    target: Target<'_>,
    request: &Request<Incoming>,
    path: &Cow<'_, [u8]>,
) -> Result<Option<PathAndQuery>, Fault> {
    let Some(strip) = &route.strip else { return Ok(None) };
    if matches!(target, Target::Asterisk) {
        return Ok(None);
    }
    let text = location::strip_prefix(path, strip, request.uri().query()).map_err(|_| Fault::BadTarget)?;
    PathAndQuery::from_maybe_shared(Bytes::from(text)).map(Some).map_err(|_| Fault::BadTarget)
}

/// Writes what the limits said into an answer's head.
#[inline]
pub fn tell(gateway: &Gateway, route: Option<usize>, decisions: &Decisions, headers: &mut HeaderMap) {
    if decisions.is_empty() {
        return;
    }
    let limits = gateway.chain(route).chain.limits();
    let told = decisions
        .iter()
        .filter(|judged| !judged.dry_run)
        .map(|judged| (limits[usize::from(judged.place)].index, usize::from(judged.rate), judged.decision));
    gateway.rejecters.at(route).write_fields(told, headers);
}
