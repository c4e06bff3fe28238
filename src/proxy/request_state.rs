//! The notebook of one request: opened when its head is read, closed when the last byte of its answer is.
//!
//! A visit travels inside the response body. Whatever ends the request — the last byte, an error, a client that
//! leaves, a panic — drops it, and dropping it writes the one access-log line, counts the request, and gives back
//! every slot. There is no release function to forget.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::uri::{Authority, PathAndQuery};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode};

use crate::admission::ban::StrikeTarget;
use crate::admission::chain::{ChainPermit, Decisions};
use crate::base::clock::Now;
use crate::config::TierRules;
use crate::limit::bandwidth::BandwidthShare;
use crate::net::deadline::RequestWatch;
use crate::observe::access_log::line::AccessRecord;
use crate::proxy::gateway::{REQUESTS_CLOSED, REQUESTS_OPENED};
use crate::proxy::reject::{Fault, Rejection};
use crate::proxy::worker::{ClientConnection, Worker};
use crate::request::account::Tier;
use crate::request::body::RequestBody;
use crate::request::client::{Client, UNIX_CLIENT};
use crate::request::headers::summary::HeaderSummary;
use crate::request::location;

/// A longer id is not one that a proxy of ours made.
const REQUEST_ID_MAX: usize = 128;

/// The notes of one request.
pub struct RequestState {
    pub worker: Rc<Worker>,
    pub connection: Rc<ClientConnection>,
    pub watch: Rc<RequestWatch>,
    pub started: Now,
    /// The place of its location among the routes; `None` before one was found.
    pub route: Option<usize>,
    pub request_id: HeaderValue,
    /// From its judgement until it is sent on.
    pub request: Option<Request<RequestBody>>,
    pub client: Client,
    pub is_grpc: bool,
    /// The special fields of its head, as judged; forwarding uses it again.
    pub header_summary: HeaderSummary,
    /// It was a CONNECT for a WebSocket, to which any success would say that there is one.
    pub is_websocket_connect: bool,
    /// Of an absolute target, and over HTTP/2; the request's own target is without it.
    pub authority: Option<Authority>,
    /// The target to ask for, when it is not the one that was judged.
    pub target: Option<PathAndQuery>,
    pub account: Option<Box<str>>,
    /// Whose strikes a refusal adds to; `None` = nobody's.
    pub blamed: Option<StrikeTarget>,
    /// `None` before it was found out, and where tiers make no difference.
    pub tier: Option<Tier>,
    /// What the chain said, in its order.
    pub decisions: Decisions,
    pub charged_chain: Option<ChainPermit>,
    /// Paces the body of the answer; `None` = it leaves as fast as it comes.
    pub bandwidth: Option<Box<BandwidthShare>>,
    /// The answer in its turn when no location takes the request.
    pub no_location: Option<Box<Rejection>>,
    /// The index of the upstream that answers instead of the location, because `limit` refused.
    pub degraded: Option<usize>,
    /// Something else had to judge in the store's place.
    pub used_fallback: bool,
    in_flight: Option<RequestInFlight>,
    /// The index of the last server that was asked.
    pub server: Option<usize>,
    /// Why the upstream gave no answer, or not all of it.
    pub error: Option<&'static str>,
    pub status: StatusCode,
    /// Bytes of the response body that were handed to the connection.
    pub bytes_sent: u64,
    /// Bytes that came from the client through a tunnel; `None` = it never was one.
    pub bytes_received: Option<u64>,
    pub wait_ns: u64,
    /// `admit`, `wait`, `reject`, `degrade`, `ban`, or the name of a fault.
    pub verdict: &'static str,
    /// The index of the limit that refused, or made it wait.
    pub limit: Option<usize>,
    pub retry_after_ns: Option<u64>,
    /// Only when this request is logged.
    pub log_fields: Option<Box<LogFields>>,
}

/// What only the access log wants to know.
pub struct LogFields {
    /// `None` on a unix socket without a forwarded address.
    pub ip: Option<IpAddr>,
    pub method: Method,
    pub host: Option<HeaderValue>,
    pub target: Option<PathAndQuery>,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// What limits in a dry run would have done.
    pub dry_run: Option<String>,
}

impl RequestState {
    /// Opens the notebook of a request by `client`.
    pub fn start_request(
        worker: &Rc<Worker>,
        connection: &Rc<ClientConnection>,
        watch: Rc<RequestWatch>,
        client: Client,
        started: Now,
    ) -> Box<RequestState> {
        watch.begin_request();
        worker.gateway.request_counts.add(worker.id, REQUESTS_OPENED, 1);
        Box::new(RequestState {
            worker: worker.clone(),
            connection: connection.clone(),
            watch,
            started,
            request_id: worker.request_ids.next_id(started),
            route: None,
            request: None,
            client,
            is_grpc: false,
            header_summary: HeaderSummary::default(),
            is_websocket_connect: false,
            authority: None,
            target: None,
            account: None,
            blamed: None,
            tier: None,
            decisions: Decisions::new(),
            charged_chain: None,
            bandwidth: None,
            no_location: None,
            degraded: None,
            used_fallback: false,
            in_flight: None,
            server: None,
            error: None,
            // What a client that leaves before its answer would not have seen: nginx's 499 has no IANA name.
            status: CLIENT_GONE,
            bytes_sent: 0,
            bytes_received: None,
            wait_ns: 0,
            verdict: "admit",
            limit: None,
            retry_after_ns: None,
            log_fields: None,
        })
    }

    /// Takes over what the head says: a trusted proxy's request id, and what the access log wants.
    pub fn read_head(&mut self, request: &Request<RequestBody>, authority: Option<&Authority>) {
        let gateway = &self.worker.gateway;
        let headers = request.headers();
        if self.client.trusted_peer
            && let Some(id) = headers.get(&gateway.server.request_id)
            && (1..=REQUEST_ID_MAX).contains(&id.len())
            && id.as_bytes().iter().all(is_request_id_byte)
        {
            self.request_id = id.clone();
        }
        if !self.worker.log.is_sampled() {
            return;
        }
        let logged = |name: &HeaderName| headers.get(name).map(|value| (name.clone(), value.clone()));
        self.log_fields = Some(Box::new(LogFields {
            ip: (self.client.ip != UNIX_CLIENT).then_some(self.client.ip),
            method: request.method().clone(),
            host: location::named_host(headers, authority.or(request.uri().authority())),
            target: request.uri().path_and_query().cloned(),
            headers: gateway.logged_fields.iter().filter_map(logged).collect(),
            dry_run: None,
        }));
    }

    /// Counts the request among those in flight; false when `max_in_flight` are.
    pub fn count_in_flight(&mut self, count: &Arc<AtomicUsize>, max: Option<usize>) -> bool {
        let Some(max) = max else { return true };
        let entered = RequestInFlight::new(count);
        let fits = entered.before < max;
        self.in_flight = fits.then_some(entered);
        fits
    }

    /// The tier of the caller, for those who tell it.
    pub fn tier_name(&self) -> &str {
        self.tier.as_ref().map_or(TierRules::DEFAULT, Tier::as_str)
    }

    fn write_log_line(&self, notes: &LogFields, ended: Now) {
        let gateway = &self.worker.gateway;
        self.worker.log.write_record(&AccessRecord {
            unix_ms: self.worker.wall_clock.unix_ms(self.started),
            id: self.request_id.to_str().unwrap_or_default(),
            ip: notes.ip,
            method: notes.method.as_str(),
            host: notes.host.as_ref().map(HeaderValue::to_str).and_then(Result::ok).unwrap_or_default(),
            path: notes.target.as_ref().map_or("", PathAndQuery::path),
            status: self.status.as_u16(),
            bytes: self.bytes_sent,
            received: self.bytes_received,
            duration_ns: ended.ns_since(self.started),
            wait_ns: self.wait_ns,
            upstream: self.server.map(|server| &*gateway.servers[server].name),
            error: self.error,
            location: self.route.map(|route| &*gateway.routes[route].name),
            account: self.account.as_deref(),
            tier: self.tier.as_ref().map(Tier::as_str),
            verdict: self.verdict,
            limit: self.limit.map(|limit| &*gateway.limits[limit].name),
            retry_after_ns: self.retry_after_ns,
            dry_run: notes.dry_run.as_deref(),
            headers: &notes.headers,
        });
    }
}

/// What an id of another proxy is made of; ids are written into bodies and logs as they are.
fn is_request_id_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.:+/=@".contains(byte)
}

/// Logged for a request whose client left before the head of its answer was ready.
pub const CLIENT_GONE: StatusCode = match StatusCode::from_u16(499) {
    Ok(status) => status,
    Err(_) => panic!("499 is within the range of status codes"),
};

impl Drop for RequestState {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.status, self.verdict) = (StatusCode::INTERNAL_SERVER_ERROR, "internal");
        }
        // What was refused stays refused, read or not.
        if let Some(fault) = self.watch.missed_deadline().and_then(Fault::from_broken_deadline)
            && matches!(self.verdict, "admit" | "wait" | "degrade")
        {
            self.verdict = fault.cause();
        }
        // Slots first: what follows must not delay the next request.
        self.charged_chain = None;
        self.in_flight = None;
        self.watch.end_request();
        if self.status == CLIENT_GONE && self.connection.watch.is_multiplexed() {
            self.connection.count_cancelled();
        }
        self.worker.gateway.request_counts.add(self.worker.id, REQUESTS_CLOSED, 1);
        self.worker.gateway.metrics.count_request(self.worker.id, self.route, self.status);
        if let Some(notes) = self.log_fields.take() {
            let ended = Now::read_clock();
            if self.verdict == "wait" && self.wait_ns == 0 {
                // It left before its turn.
                self.wait_ns = ended.ns_since(self.started);
            }
            self.write_log_line(&notes, ended);
        }
    }
}

struct RequestInFlight {
    count: Arc<AtomicUsize>,
    before: usize,
}

impl RequestInFlight {
    fn new(count: &Arc<AtomicUsize>) -> RequestInFlight {
        RequestInFlight { before: count.fetch_add(1, Ordering::Relaxed), count: count.clone() }
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}
