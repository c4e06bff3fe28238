//! Answering for the gateway itself.

use std::borrow::Cow;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderValue};
use http::uri::{Authority, PathAndQuery, Uri};
use http::{Request, Response};

use super::strike::strike;
use crate::admission::chain;
use crate::admission::chain::{Cause, Judged};
use crate::limit::Outcome;
use crate::observe::metrics::{Banning, Said};
use crate::proxy::forward;
use crate::proxy::reject::{Fault, Instead, Refusal, RejectContext, Rejection, Why};
use crate::proxy::request_state::Visit;
use crate::proxy::worker::Worker;
use crate::request::body::{BodyFault, RequestBody};
use crate::request::headers::summary::Glance;
use crate::request::location;

/// What was found out about a request by the time it is refused.
pub struct Seen<'r> {
    pub host: Cow<'r, str>,
    pub path: Cow<'r, [u8]>,
    pub glance: Glance,
    pub authority: Option<&'r Authority>,
    uri: &'r Uri,
    headers: Option<&'r HeaderMap>,
    grpc: bool,
}

impl<'r> Seen<'r> {
    pub fn new(request: &'r Request<RequestBody>, authority: Option<&'r Authority>) -> Seen<'r> {
        Seen {
            host: Cow::Borrowed(""),
            path: Cow::Borrowed(b""),
            glance: Glance::over(request.headers()),
            authority,
            uri: request.uri(),
            headers: Some(request.headers()),
            grpc: false,
        }
    }

    /// Only a request with a content type can be a gRPC call.
    pub fn is_grpc(&self) -> bool {
        self.grpc || self.glance.has_content_type() && self.headers.is_some_and(forward::is_grpc)
    }
}

/// What of a request outlives its forwarding, should the answer have to be ours.
#[derive(Default)]
pub struct Told {
    uri: Uri,
    host: Option<HeaderValue>,
}

impl Told {
    /// Of the visit's request, if such an answer tells of it.
    pub fn of(visit: &Visit) -> Option<Box<Told>> {
        let request = visit.request.as_ref()?;
        let tells = visit.worker.gateway.rejecters.at(visit.route).tells_target();
        let told = || Told {
            uri: request.uri().clone(),
            host: location::named_host(request.headers(), visit.authority.as_ref()),
        };
        tells.then(told).map(Box::new)
    }
}

/// The answer for an exchange that failed.
pub fn failed(
    told: Option<&Told>,
    worker: &Worker,
    visit: &mut Visit,
    fault: forward::Fault,
) -> Response<Bytes> {
    visit.error = fault.reason();
    let nothing = Told::default();
    let Told { uri, host } = told.unwrap_or(&nothing);
    let named = host.as_ref().and_then(|host| host.to_str().ok()).unwrap_or_default();
    let seen = Seen {
        host: location::canonical_host(named).unwrap_or_default(),
        path: location::normalise(uri.path()).unwrap_or_default(),
        glance: Glance::default(),
        authority: None,
        uri,
        headers: None,
        grpc: visit.is_grpc,
    };
    let mut response = render(worker, visit, &seen, &fault_of(fault).into());
    if let forward::Fault::Client(_) = fault {
        visit.connection.watch.leave_body_unread();
        forward::close(response.headers_mut());
    }
    response
}

fn fault_of(fault: forward::Fault) -> Fault {
    use forward::Fault as Forward;
    match fault {
        Forward::Client(BodyFault::Malformed) => Fault::BadBody,
        Forward::Client(BodyFault::TooLarge) => Fault::BodyTooLarge,
        Forward::Client(BodyFault::Stalled) => Fault::SlowBody,
        Forward::Unreachable(_) => Fault::Unreachable,
        Forward::Full => Fault::NoServer,
        Forward::Down => Fault::ServersDown,
        Forward::Broken(_) => Fault::UpstreamBroke,
        Forward::BadAnswer => Fault::BadAnswer,
        Forward::ConnectTimeout | Forward::ResponseTimeout => Fault::UpstreamTimeout,
        Forward::LocationTimeout => Fault::LocationTimeout,
    }
}

/// A chain's refusal in the words of the answer.
pub fn rejection(refusal: &chain::Refusal) -> Rejection {
    let why = match refusal.cause {
        Cause::Rate => Why::Rate,
        Cause::Queue => Why::Queue,
        Cause::Concurrency => Why::Concurrency,
        Cause::TooCostly => Why::TooCostly,
        Cause::MissingKey => Why::MissingKey,
        Cause::QueuedTooLong => Why::QueuedTooLong,
        Cause::Overload => return Fault::TooManyWaiting.into(),
        Cause::Unavailable => return Fault::StateUnavailable.into(),
    };
    match &refusal.limit {
        Some(limit) => Rejection::Limit(Refusal {
            limit: limit.index,
            rate: refusal.rate,
            why,
            retry_after_ns: refusal.retry_after_ns,
        }),
        None => Fault::TooManyWaiting.into(),
    }
}

/// As [`conclude`], for a request that is still whole.
pub fn answer(
    worker: &Worker,
    request: &Request<RequestBody>,
    visit: &mut Visit,
    rejection: &Rejection,
) -> Option<Response<Bytes>> {
    let authority = visit.authority.clone();
    let mut seen = Seen::new(request, authority.as_ref());
    seen.host = location::host(request.version(), request.headers(), seen.authority).unwrap_or_default();
    seen.path = location::normalise(request.uri().path()).unwrap_or_default();
    conclude(worker, visit, &seen, rejection)
}

/// The answer to a request that is not admitted. `None`: a limit refused it, and the upstream that the visit now
/// names answers instead.
pub fn conclude(
    worker: &Worker,
    visit: &mut Visit,
    seen: &Seen<'_>,
    rejection: &Rejection,
) -> Option<Response<Bytes>> {
    if let Rejection::Limit(refusal) = rejection {
        let gateway = &worker.gateway;
        let instead = gateway.rejecters.at(visit.route).instead(refusal, seen.is_grpc());
        note(visit, refusal, instead.is_some());
        if let Some(Instead::Upstream(upstream)) = instead {
            visit.degraded = Some(upstream);
            // It has the location's whole time, whatever was spent in the queue.
            if let Some(timeout) = visit.route.and_then(|place| gateway.routes[place].timeout) {
                visit.watch.await_request(timeout);
            }
            return None;
        }
    }
    Some(render(worker, visit, seen, rejection))
}

/// Notes and counts the refusal of a limit. It is final here and only here: what holds refusals against a client
/// belongs here.
fn note(visit: &mut Visit, refusal: &Refusal, is_degraded: bool) {
    let said = if is_degraded { Said::Degrade } else { Said::Reject };
    visit.verdict = if is_degraded { "degrade" } else { "reject" };
    visit.limit = Some(refusal.limit);
    visit.retry_after_ns = refusal.retry_after_ns;
    if !is_degraded {
        strike(&visit.worker, visit, refusal.why);
    }
    let worker = &visit.worker;
    worker.gateway.metrics.decided(worker.id, refusal.limit, said);
    let limits = worker.gateway.chain(visit.route).chain.limits();
    let own = |judged: &Judged| limits[usize::from(judged.place)].index == refusal.limit;
    if visit.decisions.iter().all(own) {
        return;
    }
    let no = |judged: &Judged| judged.decision.outcome == Outcome::Reject && !judged.dry_run;
    let others =
        chain::by_limit(&visit.decisions).filter(no).map(|judged| limits[usize::from(judged.place)].index);
    for limit in others.filter(|limit| *limit != refusal.limit) {
        worker.gateway.metrics.decided(worker.id, limit, said);
    }
}

/// Renders the answer; the visit notes which fault it was.
fn render(worker: &Worker, visit: &mut Visit, seen: &Seen<'_>, rejection: &Rejection) -> Response<Bytes> {
    let gateway = &worker.gateway;
    if let Some(fault) = rejection.fault() {
        visit.verdict = fault.cause();
        gateway.metrics.fault(worker.id, fault.index());
    }
    if let Rejection::Banned { left_ns } = rejection {
        visit.verdict = rejection.cause();
        visit.retry_after_ns = Some(*left_ns);
        gateway.metrics.banned(worker.id, Banning::Refused);
    }
    let context = RejectContext {
        request_id: visit.request_id.to_str().unwrap_or_default(),
        client_ip: Some(visit.client.ip),
        account: visit.account.as_deref().unwrap_or_default(),
        tier: visit.tier(),
        host: &seen.host,
        uri: str::from_utf8(&seen.path).unwrap_or(seen.uri.path()),
        request_uri: seen.uri.path_and_query().map_or("", PathAndQuery::as_str),
        location: visit.route.map_or("", |route| &gateway.routes[route].name),
    };
    let mut response = gateway.rejecters.at(visit.route).answer(rejection, &context, seen.is_grpc());
    super::head::tell(gateway, visit.route, &visit.decisions, response.headers_mut());
    if rejection.closes() {
        forward::close(response.headers_mut());
    }
    response
}
