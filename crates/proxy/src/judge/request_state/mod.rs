//! The state of one request, from its head to the last byte of its response.
//!
//! The state travels inside the response body. Whatever ends the request (the last byte, an error, a client that
//! leaves, a panic) drops it, and dropping it writes the one access-log line, counts the request, and releases every
//! slot. There is no release function to forget.

mod charges;
mod report;
pub mod strike;

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::uri::PathAndQuery;
use http::{HeaderName, HeaderValue, Method, Request, StatusCode, Version, header};

use crate::gateway::auth::AuthAnswer;
use crate::gateway::heavy_keys::{KeptUnits, RefusalFacts};
use crate::gateway::worker::{ClientConnection, QuotaDemand, RequestInFlight, Worker};
use crate::gateway::{Action, Gateway, LimitChain, REQUESTS_CLOSED, REQUESTS_OPENED};
use crate::judge::inbound::InboundRequest;
use crate::reject::{CLIENT_GONE, Fault, LimitRejection, PANICKED};
use sluicegate_admission::ban::StrikeTarget;
use sluicegate_admission::chain::{ChainPermit, Decisions};
use sluicegate_admission::settlement::{FinalCharge, ResponseReading};
use sluicegate_base::clock::Now;
use sluicegate_http::net::deadline::RequestWatch;
use sluicegate_http::request::account::Tier;
use sluicegate_http::request::api_key::{self, KeyCaller};
use sluicegate_http::request::body::RequestBody;
use sluicegate_http::request::client::{Client, UNIX_CLIENT};
use sluicegate_http::request::cors::CorsAnswer;
use sluicegate_http::request::location;
use sluicegate_http::request::request_id::RequestId;
use sluicegate_http::request::source::BodyTexts;
use sluicegate_http::upstream::Upstream;
use sluicegate_limit::bandwidth::BandwidthShare;
use sluicegate_limit::pushback::PauseCheck;
use sluicegate_limit::table::CounterKey;
use sluicegate_model::{LimitId, LocationId, LogField, RequestPrice, Scheme, UpstreamId};
use sluicegate_observe::metrics::{AnswerOrigin, VerdictKind};
use sluicegate_observe::traces::SpanContext;

/// Bytes of a request id; a longer one is not accepted even from a trusted proxy.
const REQUEST_ID_MAX: usize = 128;

/// Everything that is known of one request, and the permits it holds.
pub struct RequestState {
    /// The worker that serves the request to its end.
    pub worker: Rc<Worker>,
    /// The connection that the request came over.
    pub connection: Rc<ClientConnection>,
    /// The deadlines of the request.
    pub watch: Rc<RequestWatch>,
    /// The moment at which its head was received.
    pub started: Now,
    /// The moment of its judgement: its start, unless its body was read first.
    pub judged_at: Now,
    /// The index of its location among the routes; `None` before one is found.
    pub route: Option<LocationId>,
    /// The limits that judge a call for descriptors; `None` = those of its route.
    pub call_chain: Option<Arc<LimitChain>>,
    /// The request and its caller.
    pub identity: RequestIdentity,
    /// The progress of asking about it; `None` = nothing was asked, nor answered before.
    pub auth: Option<Box<AuthProgress>>,
    /// The findings of its limits.
    pub judgement: RequestJudgement,
    /// The permits that it holds.
    pub permits: RequestPermits,
    /// The response, as far as it was passed on.
    pub response: ResponseProgress,
    /// The end of the request, as far as it is known.
    pub outcome: RequestOutcome,
    /// Present only if this request is logged.
    pub log_fields: Option<Box<LogFields>>,
    /// Present only if this request is sampled.
    pub span: Option<Box<RequestSpan>>,
}

/// The request and its caller, as its head says.
pub struct RequestIdentity {
    /// The id that logs and upstreams see.
    pub request_id: RequestId,
    /// The client's address, and the trust in its peer.
    pub client: Client,
    /// The scheme of the connection, or the one that a trusted proxy tells.
    pub scheme: Scheme,
    /// The request is a call of gRPC, so rejections have the form of gRPC.
    pub is_grpc: bool,
    /// The request was a CONNECT for a WebSocket, to which any success would say that there is one.
    pub is_websocket_connect: bool,
    /// The caller's account unless its key gives it; `None` = unknown.
    pub account: Option<Box<str>>,
    /// The caller by its API key, which must not reach the upstream, unless it is passed.
    pub key: Option<Rc<KeyCaller>>,
    /// Its API key is missing or unknown, so that it is rejected after its limits.
    pub lacks_key: bool,
    /// The client that a strike counts against; `None` = no strikes are counted.
    pub strike_target: Option<StrikeTarget>,
    /// `None` before it is found, and where no tiers are configured.
    pub tier: Option<Tier>,
    /// The values of its body that responses contain; `None` = they contain none, or it was not read.
    pub body_texts: Option<Rc<BodyTexts>>,
}

/// The progress of asking the auth service of its location.
#[derive(Default)]
pub struct AuthProgress {
    /// `None` = the limits before the question judge, or it is under way.
    pub answer: Option<Rc<AuthAnswer>>,
    /// The limits before the question were charged.
    pub is_charged: bool,
}

/// The findings of its limits.
pub struct RequestJudgement {
    /// The decisions of the chain, in chain order.
    pub decisions: Decisions,
    /// The units that it asked of each limit; `None` before the store is asked or it waits.
    pub kept_units: Option<Box<[KeptUnits]>>,
    /// Its demands on quotas, while the store is asked; `None` = there are none.
    pub quotas: Option<Vec<QuotaDemand>>,
    /// The index of the limit that rejected the request or made it wait.
    pub limit: Option<LimitId>,
    /// The limit that rejected it and its class there, if that has shares.
    pub class: Option<(LimitId, u8)>,
    /// The time until a rejected request may come again, ns; `None` = no such time is known.
    pub retry_after_ns: Option<u64>,
    /// The time from its judgement to its turn; 0 = it did not wait.
    pub wait_ns: u64,
    /// The index of the upstream that responds instead of the location's, because `limit` rejected.
    pub degraded: Option<UpstreamId>,
    /// The prices by which its limits judged it, until its response is read; `None` = none did.
    pub prices: Option<Vec<RequestPrice>>,
}

/// The permits that it holds, and the terms of its way to the upstream.
pub struct RequestPermits {
    /// The permit of the limits; `None` = none has charged it.
    pub chain: Option<ChainPermit>,
    /// The count as a request in flight; `None` = `server.max_in_flight` is `none`.
    pub in_flight: Option<RequestInFlight>,
    /// Paces the response body; `None` = unlimited.
    pub bandwidth: Option<Box<BandwidthShare>>,
    /// The pause of its key, if its upstream asked for one; `None` if the upstream never pushes back.
    pub pause: Option<Box<PauseCheck>>,
}

/// The response, as far as it was passed on.
pub struct ResponseProgress {
    /// The parts of the response that the limits of the chain need; `None`: none of them charges by it.
    pub reading: Option<Box<ResponseReading>>,
    /// The charge of the first limit that charges by the response, once that is over.
    pub settlement: Option<Box<FinalCharge>>,
    /// Fields for the head of the response; `None` in a location without `cors`.
    pub cors: Option<CorsAnswer>,
    /// Bytes of the response body that were passed to the connection.
    pub bytes_sent: u64,
    /// Bytes received from the client through a tunnel; `None` = no tunnel.
    pub bytes_received: Option<u64>,
}

/// The end of the request, as log and metrics show it.
pub struct RequestOutcome {
    /// The outcome, in the words of the access log.
    pub verdict: Verdict,
    /// The status of the response, or 499 if the client left before there was one.
    pub status: StatusCode,
    /// The server or the location whose response has begun; `None` = no response, or one in its place.
    pub responder: Option<AnswerOrigin>,
    /// Why the upstream gave no response, or an incomplete one; or that an operator banned the client.
    pub error: Option<&'static str>,
    /// The store did not reply, and its `on_failure` fallback judged instead.
    pub used_fallback: bool,
    /// The index of the last server that was tried.
    pub server: Option<usize>,
    /// The number of servers that were tried, repeated ones counted again.
    pub tries: u32,
    /// The time from sending the request to the head of the response, or to the last fault; `None` = neither came.
    pub upstream_ns: Option<u64>,
}

/// The outcome of a request, in the words of the access log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The request was admitted at once.
    Admit,
    /// The request had to wait in a queue; admitted after its turn, unless the client left before.
    Wait,
    /// The request was rejected by a limit, or by the pause of its upstream.
    Reject,
    /// The request lacks the key of a limit that rejects such requests.
    MissingKey,
    /// Rejected by a limit, and degraded: another response is sent instead.
    Degrade,
    /// The client is banned.
    Ban,
    /// The request failed, or was rejected, for a reason that concerns no limit.
    Fault(Fault),
    /// The request asked for the answer to a challenge, and no metric counts it.
    Acme,
}

impl Verdict {
    /// The word of the access log; for a fault, its cause.
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Fault(fault) => fault.cause(),
            Verdict::Acme => "acme",
            other => other.kind().name(),
        }
    }

    /// The metric that it is counted under.
    #[inline]
    fn kind(self) -> VerdictKind {
        match self {
            Verdict::Admit | Verdict::Acme => VerdictKind::Admit,
            Verdict::Wait => VerdictKind::Wait,
            Verdict::Reject => VerdictKind::Reject,
            Verdict::MissingKey => VerdictKind::MissingKey,
            Verdict::Degrade => VerdictKind::Degrade,
            Verdict::Ban => VerdictKind::Ban,
            Verdict::Fault(_) => VerdictKind::Fault,
        }
    }
}

/// Facts that only the access log uses.
pub struct LogFields {
    /// `None` on a unix socket without a forwarded address.
    pub ip: Option<IpAddr>,
    /// The request, or the one that a call describes.
    pub line: RequestLine,
    /// The headers `User-Agent` and `Referer`, if the log has fields for them.
    pub user_agent: Option<HeaderValue>,
    /// The header `Referer`, if the log has a field for it.
    pub referer: Option<HeaderValue>,
    /// The headers that `access_log.headers` lists, without those that are absent.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The decisions of dry-run limits, as one text.
    pub dry_run: Option<String>,
    /// A limit with shares that judged it, and its class there.
    pub class: Option<(LimitId, u8)>,
    /// The last steps of quotas that its keys have reached, as one text.
    pub step: Option<String>,
    /// The protocol of a call of the rate-limit service; `None` = a request.
    pub protocol: Option<&'static str>,
}

/// Facts that only the span uses.
pub struct RequestSpan {
    /// The place of the span in its trace.
    pub context: SpanContext,
    /// The request, or the one that a call describes.
    pub line: RequestLine,
}

/// The request as log and span name it.
pub struct RequestLine {
    /// The method of the request.
    pub method: Method,
    /// The host as the request writes it; `None` = there is none.
    pub host: Option<HeaderValue>,
    /// The path and the query as judged; `None` = the target has neither.
    pub target: Option<PathAndQuery>,
    /// The version of HTTP that the client used.
    pub version: Version,
}

impl RequestLine {
    /// Names another request, which the call describes that was received.
    pub fn describe(&mut self, request: &Request<RequestBody>) {
        self.method = request.method().clone();
        self.host = location::named_host(request.headers(), None);
        self.target = request.uri().path_and_query().cloned();
    }
}

impl RequestState {
    /// The limits that judge it.
    #[inline]
    pub fn chain(&self) -> &LimitChain {
        chain_of(&self.worker, self.call_chain.as_ref(), self.route)
    }

    /// Creates the state of a request from `client`, and starts its watch.
    pub fn start_request(
        worker: &Rc<Worker>,
        connection: &Rc<ClientConnection>,
        watch: Rc<RequestWatch>,
        client: Client,
        started: Now,
    ) -> Box<RequestState> {
        watch.begin_request();
        worker.gateway.load.request_counts.add(worker.id, REQUESTS_OPENED, 1);
        // Reserved first, so that the state is written in place and not copied into its box.
        let place = Box::new_uninit();
        let state = RequestState {
            worker: worker.clone(),
            connection: connection.clone(),
            watch,
            started,
            judged_at: started,
            route: None,
            call_chain: None,
            identity: RequestIdentity {
                request_id: worker.request_ids.next_id(started),
                client,
                scheme: connection.scheme,
                is_grpc: false,
                is_websocket_connect: false,
                account: None,
                key: None,
                lacks_key: false,
                strike_target: None,
                tier: None,
                body_texts: None,
            },
            auth: None,
            // Written in place: a default value would be copied.
            judgement: RequestJudgement {
                decisions: Decisions::new(),
                kept_units: None,
                quotas: None,
                limit: None,
                class: None,
                retry_after_ns: None,
                wait_ns: 0,
                degraded: None,
                prices: None,
            },
            permits: RequestPermits { chain: None, in_flight: None, bandwidth: None, pause: None },
            response: ResponseProgress {
                reading: None,
                settlement: None,
                cors: None,
                bytes_sent: 0,
                bytes_received: None,
            },
            outcome: RequestOutcome {
                verdict: Verdict::Admit,
                // Logged if the client leaves before the head of its response is ready.
                status: CLIENT_GONE,
                responder: None,
                error: None,
                used_fallback: false,
                server: None,
                tries: 0,
                upstream_ns: None,
            },
            log_fields: None,
            span: None,
        };
        Box::write(place, state)
    }

    /// Copies from the head a trusted proxy's request id, and the fields of the access log.
    pub fn read_head(&mut self, inbound: &InboundRequest) {
        let InboundRequest { request, authority, is_websocket_connect, .. } = inbound;
        self.identity.is_websocket_connect = *is_websocket_connect;
        let gateway = &self.worker.gateway;
        let headers = request.headers();
        if self.identity.client.trusted_peer
            && let Some(id) = headers.get(&gateway.config.server.request_id)
            && (1..=REQUEST_ID_MAX).contains(&id.len())
            && id.as_bytes().iter().all(is_request_id_byte)
        {
            self.identity.request_id = RequestId::Sent(id.clone());
        }
        let line = || RequestLine {
            method: request.method().clone(),
            host: location::named_host(headers, authority.as_ref().or(request.uri().authority())),
            target: request.uri().path_and_query().cloned(),
            version: request.version(),
        };
        if let Some(context) = self.worker.tracer.as_ref().and_then(|tracer| tracer.begin_span(headers)) {
            self.span = Some(Box::new(RequestSpan { context, line: line() }));
        }
        if !self.worker.log.is_sampled() {
            return;
        }
        let keys = gateway.config.account.keys.as_ref();
        let shown = |name: &HeaderName| {
            let value = headers.get(name)?;
            keys.map_or_else(|| Some(value.clone()), |keys| api_key::shown_header(keys, name, value))
        };
        let logged = |name: &HeaderName| Some((name.clone(), shown(name)?));
        let named = |field, name: HeaderName| {
            gateway.config.access_log.fields.contains(&field).then(|| shown(&name)).flatten()
        };
        self.log_fields = Some(Box::new(LogFields {
            ip: (self.identity.client.ip != UNIX_CLIENT).then_some(self.identity.client.ip),
            line: line(),
            user_agent: named(LogField::UserAgent, header::USER_AGENT),
            referer: named(LogField::Referer, header::REFERER),
            headers: gateway.config.access_log.headers.iter().filter_map(logged).collect(),
            dry_run: None,
            class: None,
            step: None,
            protocol: None,
        }));
    }

    /// The upstream that responds to the request, by its location or in place of its rejection; `None` = none does.
    #[inline]
    pub fn upstream<'a>(&self, gateway: &'a Gateway, route: LocationId) -> Option<&'a Arc<Upstream>> {
        match (self.judgement.degraded, &gateway.routes[route.0].action) {
            (Some(degraded), _) => Some(&gateway.upstreams[degraded.0]),
            (None, Action::Upstream(upstream)) => Some(upstream),
            (None, Action::Respond { .. } | Action::Redirect { .. } | Action::Usage(_)) => None,
        }
    }

    /// The answer of the auth service that admitted it.
    #[inline]
    pub fn auth_answer(&self) -> Option<&Rc<AuthAnswer>> {
        self.auth.as_ref()?.answer.as_ref()
    }

    /// True until the auth service has answered.
    #[inline]
    pub fn awaits_answer(&self) -> bool {
        self.auth.as_ref().is_some_and(|auth| auth.answer.is_none())
    }

    /// True if its API key is refused, or the auth service of its location has not admitted it.
    pub fn is_unknown_caller(&self) -> bool {
        let has_service = |route: LocationId| self.worker.gateway.routes[route.0].auth.is_some();
        self.identity.lacks_key || self.route.is_some_and(has_service) && self.auth_answer().is_none()
    }

    /// The limits before the question judge next.
    #[cold]
    pub fn begin_question(&mut self) {
        let auth = self.route.and_then(|route| self.worker.gateway.routes[route.0].auth.as_ref());
        self.call_chain = auth.map(|auth| auth.chain.clone());
        self.auth = Some(Box::default());
    }

    /// Ends the judgement of the limits before the question. Their charges stay.
    pub fn keep_question_charges(&mut self) {
        if let Some(mut permit) = self.permits.chain.take() {
            permit.keep_charges();
        }
        self.auth = Some(Box::new(AuthProgress { answer: None, is_charged: true }));
    }

    /// The chain of the location judges next.
    pub fn end_question(&mut self, answer: Rc<AuthAnswer>) {
        self.call_chain = None;
        self.judgement.decisions = Decisions::new();
        self.judgement.kept_units = None;
        self.judged_at = Now::read_clock();
        self.auth = Some(Box::new(AuthProgress { answer: Some(answer), is_charged: true }));
    }

    /// Starts the timeout of the location, which covers its queues and its upstream.
    #[inline]
    pub fn start_timeout(&self) {
        if let Some(timeout) = self.route.and_then(|route| self.worker.gateway.routes[route.0].timeout) {
            self.watch.set_request_deadline(timeout);
        }
    }

    /// Keeps the units that it asked of each limit, before other requests are judged.
    pub fn keep_units(&mut self) {
        if self.judgement.kept_units.is_none() {
            self.judgement.kept_units = Some(self.worker.heavy_keys.keep_units());
        }
    }

    /// Counts the units that a limit refuses finally, or would refuse without its dry run.
    pub fn count_refused(&self, limit: LimitId) {
        self.worker.heavy_keys.count_refused(
            limit,
            self.judgement.kept_units.as_deref(),
            self.judged_until(),
            None,
        );
    }

    /// [`RequestState::count_refused`], which also adds the refusal to the last ones.
    pub fn record_refusal(&mut self, rejection: &LimitRejection, status: Option<StatusCode>) {
        let now = self.judged_until();
        let facts = RefusalFacts {
            unix_ms: self.worker.wall_clock.unix_ms(now),
            ip: self.identity.client.ip,
            status,
            retry_after_ns: rejection.exact_retry_ns(),
            cause: rejection.cause,
        };
        self.worker.heavy_keys.count_refused(
            rejection.limit,
            self.judgement.kept_units.as_deref(),
            now,
            Some((self.worker.gateway.location_name(self.route), facts)),
        );
        // Log line and span name the key.
        if self.log_fields.is_some() || self.span.is_some() {
            self.keep_units();
        }
    }

    /// The key that pauses with it; `None` if its upstream never pushes back.
    #[inline]
    pub fn pause_key(&self) -> Option<&CounterKey> {
        self.permits.pause.as_ref().map(|pause| &pause.key)
    }

    /// The end of its wait, or when it was judged.
    pub fn judged_until(&self) -> Now {
        Now(self.judged_at.0.saturating_add(self.judgement.wait_ns))
    }

    /// True if the response tells a trusted proxy that a fallback judged instead of the store.
    #[inline]
    pub fn marks_fallback(&self) -> bool {
        self.outcome.used_fallback && self.identity.client.trusted_peer
    }

    /// True if the location's `cors` answers the request.
    #[inline]
    pub fn is_preflight(&self) -> bool {
        self.response.cors.as_ref().is_some_and(|cors| cors.is_preflight)
    }
}

/// True if a proxy's request id may contain `byte`; ids are written into bodies and logs without escaping.
fn is_request_id_byte(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.:+/=@".contains(byte)
}

impl Drop for RequestState {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.outcome.status, self.outcome.verdict) = (PANICKED, Verdict::Fault(Fault::Internal));
            self.outcome.responder = None;
        }
        // A rejection stays a rejection even if its response was not read.
        if let Some(fault) = self.watch.missed_deadline().and_then(Fault::from_broken_deadline)
            && matches!(self.outcome.verdict, Verdict::Admit | Verdict::Wait | Verdict::Degrade)
        {
            self.outcome.verdict = Verdict::Fault(fault);
        }
        // Release the slots first, so that the rest does not delay the next request.
        if self.permits.chain.is_some() {
            self.end_permit();
        }
        self.permits.in_flight = None;
        self.watch.end_request();
        if self.outcome.status == CLIENT_GONE && self.connection.watch.is_multiplexed() {
            self.connection.count_cancelled();
        }
        self.worker.gateway.load.request_counts.add(self.worker.id, REQUESTS_CLOSED, 1);
        let ended = Now::read_clock();
        // A tunnel has none.
        let duration = self.response.bytes_received.is_none().then(|| ended.ns_since(self.started));
        if self.outcome.verdict != Verdict::Acme {
            let metrics = &self.worker.gateway.metrics;
            let outcome = (self.outcome.status, self.answer_origin());
            metrics.count_request(self.worker.id, self.route, outcome, duration);
            metrics.count_verdict(self.worker.id, self.outcome.verdict.kind());
        }
        let (fields, span) = (self.log_fields.take(), self.span.take());
        if fields.is_none() && span.is_none() {
            return;
        }
        if self.outcome.verdict == Verdict::Wait && self.judgement.wait_ns == 0 {
            // The client left before the request's turn.
            self.judgement.wait_ns = ended.ns_since(self.judged_at);
        }
        if let Some(fields) = fields {
            self.write_log_line(&fields, ended);
        }
        if let Some(span) = span {
            self.queue_span(&span, ended);
        }
    }
}

/// The limits of a call for descriptors, or those of a route.
#[inline]
pub fn chain_of<'a>(
    worker: &'a Worker,
    call_chain: Option<&'a Arc<LimitChain>>,
    route: Option<LocationId>,
) -> &'a LimitChain {
    match call_chain {
        None => worker.gateway.chain_for(route),
        Some(chain) => chain,
    }
}
