//! The state of one request, from its head to the last byte of its response.
//!
//! The state travels inside the response body. Whatever ends the request (the last byte, an error, a client that
//! leaves, a panic) drops it, and dropping it writes the one access-log line, counts the request, and releases every
//! slot. There is no release function to forget.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::uri::{Authority, PathAndQuery};
use http::{HeaderName, HeaderValue, Method, Request, StatusCode};

use crate::admission::ban::StrikeTarget;
use crate::admission::chain::{ChainPermit, Charge, Decisions, PendingStore, Queued};
use crate::base::clock::Now;
use crate::config::TierRules;
use crate::config::{LimitId, LocationId, UpstreamId};
use crate::limit::bandwidth::BandwidthShare;
use crate::net::deadline::RequestWatch;
use crate::observe::access_log::line::AccessRecord;
use crate::proxy::gateway::{REQUESTS_CLOSED, REQUESTS_OPENED};
use crate::proxy::reject::{Fault, Rejection, status};
use crate::proxy::worker::{ClientConnection, Worker};
use crate::request::account::Tier;
use crate::request::body::RequestBody;
use crate::request::client::{Client, UNIX_CLIENT};
use crate::request::headers::summary::HeaderSummary;
use crate::request::location;
use crate::request::request_id::RequestId;

/// Bytes of a request id; a longer one is not accepted even from a trusted proxy.
const REQUEST_ID_MAX: usize = 128;

/// Everything that is known of one request, and the permits it holds.
pub struct RequestState {
    pub worker: Rc<Worker>,
    pub connection: Rc<ClientConnection>,
    pub watch: Rc<RequestWatch>,
    pub started: Now,
    /// The index of its location among the routes; `None` before one is found.
    pub route: Option<LocationId>,
    pub request_id: RequestId,
    /// Absent before the judgement, while it waits, and once it is sent, unless it is kept for another attempt.
    pub request: Option<Request<RequestBody>>,
    pub client: Client,
    pub is_grpc: bool,
    /// The special fields of its head, as judged; forwarding uses it again.
    pub header_summary: HeaderSummary,
    /// It was a CONNECT for a WebSocket, to which any success would say that there is one.
    pub is_websocket_connect: bool,
    /// The authority of an absolute target or of HTTP/2; the request's own target no longer contains it.
    pub authority: Option<Authority>,
    /// The target to send, if it differs from the one that was judged.
    pub target: Option<PathAndQuery>,
    pub account: Option<Box<str>>,
    /// The client that a strike counts against; `None` = no strikes are counted.
    pub blamed: Option<StrikeTarget>,
    /// `None` before it is found, and where no tiers are configured.
    pub tier: Option<Tier>,
    /// The decisions of the chain, in chain order.
    pub decisions: Decisions,
    pub chain_permit: Option<ChainPermit>,
    /// Present until the store has been asked.
    pub pending_store: Option<Box<PendingStore<Charge>>>,
    /// Present until its turn has come.
    pub queued: Option<Box<Queued>>,
    /// Paces the response body; `None` = unlimited.
    pub bandwidth: Option<Box<BandwidthShare>>,
    /// The rejection to send after the limits, when no location serves the request.
    pub no_location: Option<Box<Rejection>>,
    /// The index of the upstream that responds instead of the location's, because `limit` rejected.
    pub degraded: Option<UpstreamId>,
    /// The store did not reply, and its `on_failure` fallback judged instead.
    pub used_fallback: bool,
    in_flight: Option<RequestInFlight>,
    /// The index of the last server that was tried.
    pub server: Option<usize>,
    /// Why the upstream gave no response, or an incomplete one.
    pub error: Option<&'static str>,
    pub status: StatusCode,
    /// Bytes of the response body that were passed to the connection.
    pub bytes_sent: u64,
    /// Bytes received from the client through a tunnel; `None` = no tunnel.
    pub bytes_received: Option<u64>,
    /// From the start of the request to its turn; 0 = it did not wait.
    pub wait_ns: u64,
    pub verdict: Verdict,
    /// The index of the limit that rejected the request or made it wait.
    pub limit: Option<LimitId>,
    pub retry_after_ns: Option<u64>,
    /// Present only if this request is logged.
    pub log_fields: Option<Box<LogFields>>,
}

/// The outcome of a request, in the words of the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Admit,
    /// Admitted after its turn in a queue.
    Wait,
    Reject,
    /// Rejected by a limit, and degraded: another response is sent instead.
    Degrade,
    Ban,
    Fault(Fault),
}

impl Verdict {
    /// The word of the access log; for a fault, its cause.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Admit => "admit",
            Verdict::Wait => "wait",
            Verdict::Reject => "reject",
            Verdict::Degrade => "degrade",
            Verdict::Ban => "ban",
            Verdict::Fault(fault) => fault.cause(),
        }
    }
}

/// Facts that only the access log uses.
pub struct LogFields {
    /// `None` on a unix socket without a forwarded address.
    pub ip: Option<IpAddr>,
    pub method: Method,
    pub host: Option<HeaderValue>,
    pub target: Option<PathAndQuery>,
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The decisions of dry-run limits, as one text.
    pub dry_run: Option<String>,
}

impl RequestState {
    /// Creates the state of a request from `client`, and starts its watch.
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
            chain_permit: None,
            pending_store: None,
            queued: None,
            bandwidth: None,
            no_location: None,
            degraded: None,
            used_fallback: false,
            in_flight: None,
            server: None,
            error: None,
            // Logged if the client leaves before the head of its response is ready.
            status: status::CLIENT_GONE,
            bytes_sent: 0,
            bytes_received: None,
            wait_ns: 0,
            verdict: Verdict::Admit,
            limit: None,
            retry_after_ns: None,
            log_fields: None,
        })
    }

    /// Copies from the head a trusted proxy's request id, and the fields of the access log.
    pub fn read_head(&mut self, request: &Request<RequestBody>, authority: Option<&Authority>) {
        let gateway = &self.worker.gateway;
        let headers = request.headers();
        if self.client.trusted_peer
            && let Some(id) = headers.get(&gateway.server.request_id)
            && (1..=REQUEST_ID_MAX).contains(&id.len())
            && id.as_bytes().iter().all(is_request_id_byte)
        {
            self.request_id = RequestId::Sent(id.clone());
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

    /// Takes the request out, to send it or to answer it.
    pub fn take_request(&mut self) -> Request<RequestBody> {
        // Cannot fail: judging puts the request back, and only its single response takes it out for good.
        self.request.take().expect("an unanswered request is in its state")
    }

    /// Counts the request as in flight; false if that exceeds `max`.
    pub fn try_count_in_flight(&mut self, count: &Arc<AtomicUsize>, max: Option<usize>) -> bool {
        let Some(max) = max else { return true };
        let in_flight = RequestInFlight::new(count);
        let fits = in_flight.before < max;
        self.in_flight = fits.then_some(in_flight);
        fits
    }

    /// The name of the caller's tier, or of the default one.
    pub fn tier_name(&self) -> &str {
        self.tier.as_ref().map_or(TierRules::DEFAULT, Tier::as_str)
    }

    fn write_log_line(&self, fields: &LogFields, ended: Now) {
        let gateway = &self.worker.gateway;
        self.worker.log.write_record(&AccessRecord {
            unix_ms: self.worker.wall_clock.unix_ms(self.started),
            id: self.request_id.as_str(),
            ip: fields.ip,
            method: fields.method.as_str(),
            host: fields.host.as_ref().map(HeaderValue::to_str).and_then(Result::ok).unwrap_or_default(),
            path: fields.target.as_ref().map_or("", PathAndQuery::path),
            status: self.status.as_u16(),
            bytes: self.bytes_sent,
            received: self.bytes_received,
            duration_ns: ended.ns_since(self.started),
            wait_ns: self.wait_ns,
            upstream: self.server.map(|server| &*gateway.servers[server].name),
            error: self.error,
            location: self.route.map(|route| &*gateway.routes[route.0].name),
            account: self.account.as_deref(),
            tier: self.tier.as_ref().map(Tier::as_str),
            verdict: self.verdict.as_str(),
            limit: self.limit.map(|limit| &*gateway.limits[limit.0].name),
            retry_after_ns: self.retry_after_ns,
            dry_run: fields.dry_run.as_deref(),
            headers: &fields.headers,
        });
    }
}

/// Whether a proxy's request id may contain `byte`; ids are written into bodies and logs without escaping.
fn is_request_id_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.:+/=@".contains(byte)
}

impl Drop for RequestState {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.status, self.verdict) = (status::PANICKED, Verdict::Fault(Fault::Internal));
        }
        // A rejection stays a rejection even if its response was not read.
        if let Some(fault) = self.watch.missed_deadline().and_then(Fault::from_broken_deadline)
            && matches!(self.verdict, Verdict::Admit | Verdict::Wait | Verdict::Degrade)
        {
            self.verdict = Verdict::Fault(fault);
        }
        // Release the slots first, so that the rest does not delay the next request.
        self.chain_permit = None;
        self.in_flight = None;
        self.watch.end_request();
        if self.status == status::CLIENT_GONE && self.connection.watch.is_multiplexed() {
            self.connection.count_cancelled();
        }
        self.worker.gateway.request_counts.add(self.worker.id, REQUESTS_CLOSED, 1);
        self.worker.gateway.metrics.count_request(self.worker.id, self.route, self.status);
        if let Some(fields) = self.log_fields.take() {
            let ended = Now::read_clock();
            if self.verdict == Verdict::Wait && self.wait_ns == 0 {
                // The client left before the request's turn.
                self.wait_ns = ended.ns_since(self.started);
            }
            self.write_log_line(&fields, ended);
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
