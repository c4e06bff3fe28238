//! Why a request is not served: the closed set of causes, each with its name in logs and its response.

use http::{HeaderValue, StatusCode};

use sluicegate_base::clock::Now;
use sluicegate_base::labelled::labelled_enum;
use sluicegate_http::net::deadline::MissedDeadline;
use sluicegate_http::request::api_key::KeyFault;
use sluicegate_http::request::body::BodyFault;
use sluicegate_limit::pushback::Pause;
use sluicegate_model::{LimitId, UpstreamId};

/// Why the gateway responds itself instead of an upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// A limit rejects the request.
    Limit(LimitRejection),
    /// A fault, which concerns no limit.
    Fault(Fault),
    /// Locations match, but none allows this method; the value lists the allowed ones.
    MethodNotAllowed {
        /// The allowed methods, as the value of `Allow`.
        allow: HeaderValue,
    },
    /// The requests of the upstream pause.
    Paused(PauseRejection),
    /// The client is banned: by an operator, or because it was rejected too often before.
    Banned {
        /// The ban was set by an operator; false = too many rejections.
        by_operator: bool,
        /// The time until the ban ends, ns.
        left_ns: u64,
    },
}

/// A rejection by a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitRejection {
    /// Index in [`sluicegate_model::Config::limits`].
    pub limit: LimitId,
    /// Index of the rate in the limit; 0 for concurrency.
    pub rate: usize,
    /// Index of the request's class in the shares of the limit; beyond them if it is not known.
    pub class: u8,
    /// The reason why the limit rejects.
    pub cause: LimitCause,
    /// A request after this span is admitted if no other arrives before it; of [`LimitCause::Concurrency`] an estimate.
    /// `None` if no such time is known.
    pub retry_after_ns: Option<u64>,
    /// That is the turn of the request among the rejected ones.
    pub is_turn: bool,
}

/// A rejection in the place of an upstream that wants no requests now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PauseRejection {
    /// Index in [`sluicegate_model::Config::upstreams`].
    pub upstream: UpstreamId,
    /// The status of the upstream's refusal; 429 if it said only that nothing is left.
    pub status: StatusCode,
    /// The end of the pause; it has passed while the pace climbs.
    pub until: Now,
    /// The time until the request may pass, ns.
    pub retry_after_ns: u64,
}

labelled_enum! {
    /// Why a limit rejects, by its name in logs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum LimitCause: cause_name -> &'static str {
        /// Too many requests for a rate.
        Rate = "rate",
        /// The queue is full, or the wait in it would be too long.
        Queue = "queue",
        /// Too many requests in flight.
        Concurrency = "concurrency",
        /// The cost exceeds the capacity of the limit.
        TooCostly = "too_costly",
        /// The key is missing, and the limit is configured to reject that.
        MissingKey = "missing_key",
        /// The location's timeout passed, or would pass, while the request waits in the limit's queue.
        QueuedTooLong = "queued_too_long",
    }
}

macro_rules! faults {
    ($($fault:ident $cause:literal $status:ident $grpc:literal $detail:literal)*) => {
        /// A fault: a reason that concerns no limit.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Fault {
            $(#[doc = $detail] $fault,)*
        }

        impl Fault {
            /// All faults, in the order of [`Fault::index`].
            pub const ALL: [Fault; [$(Fault::$fault),*].len()] = [$(Fault::$fault),*];

            /// The name of the cause in logs and metrics.
            pub fn cause(self) -> &'static str {
                match self { $(Fault::$fault => $cause,)* }
            }

            /// The HTTP status of its response, unless `on_reject.status` replaces it.
            pub fn status(self) -> StatusCode {
                match self { $(Fault::$fault => StatusCode::$status,)* }
            }

            /// The sentence a client reads.
            pub fn detail(self) -> &'static str {
                match self { $(Fault::$fault => $detail,)* }
            }

            /// The number of its gRPC status.
            pub fn grpc_status(self) -> &'static str {
                match self { $(Fault::$fault => $grpc,)* }
            }
        }
    };
}

// gRPC: 3 invalid argument, 4 deadline exceeded, 7 permission denied, 8 resource exhausted, 12 unimplemented,
// 13 internal, 14 unavailable, 16 unauthenticated.
faults! {
    BadHost "bad_host" BAD_REQUEST "3" "the Host field is missing, repeated or malformed"
    BadTarget "bad_target" BAD_REQUEST "3" "the request target is malformed"
    BadFraming "bad_framing" BAD_REQUEST "3" "the framing of the request body is ambiguous or unknown"
    BadBody "bad_body" BAD_REQUEST "3" "the request body broke off or is malformed"
    RepeatedKey "repeated_key" BAD_REQUEST "3" "a value that requests are counted by is given more than once"
    InvalidCost "invalid_cost" BAD_REQUEST "3" "the cost of this request cannot be read"
    UnknownModel "unknown_model" BAD_REQUEST "3" "the model of this request has no price"
    HeaderMismatch "header_mismatch" BAD_REQUEST "3" "the header Mcp-Method or Mcp-Name says otherwise than the body"
    BadCall "bad_call" BAD_REQUEST "3" "the call of the rate-limit service is not understood"
    MissingApiKey "missing_api_key" UNAUTHORIZED "16" "an API key is needed here"
    UnknownApiKey "unknown_api_key" UNAUTHORIZED "16" "the API key is not known"
    BadToken "bad_token" UNAUTHORIZED "16" "the rate-limit service needs a token"
    AuthRefused "auth_refused" FORBIDDEN "7" "the auth service refuses this request"
    AuthDenied "auth_denied" FORBIDDEN "7" "the auth service has not decided on this request"
    AccessDenied "access_denied" FORBIDDEN "7" "this client may not use this resource"
    NoLocation "no_location" NOT_FOUND "12" "no location matches this request"
    BadMethod "bad_method" METHOD_NOT_ALLOWED "12" "the method is not allowed here"
    SlowBody "slow_body" REQUEST_TIMEOUT "4" "the request body did not arrive in time"
    BodyTooLarge "body_too_large" PAYLOAD_TOO_LARGE "8" "the request body is larger than allowed"
    BodyBeyondPeek "body_beyond_peek" PAYLOAD_TOO_LARGE "8" "the request body is larger than its limits read"
    BodyUnreadable "body_unreadable" UNSUPPORTED_MEDIA_TYPE "3" "the request body is encoded, and its limits read it"
    BadExpectation "bad_expectation" EXPECTATION_FAILED "3" "the only expectation understood is 100-continue"
    HeadTooLarge "head_too_large" REQUEST_HEADER_FIELDS_TOO_LARGE "8" "the request head is larger than allowed"
    TargetTooLong "target_too_long" URI_TOO_LONG "3" "the request target is longer than allowed"
    BadHead "bad_head" BAD_REQUEST "3" "the request head is malformed"
    SlowHead "slow_head" REQUEST_TIMEOUT "4" "the request head did not arrive in time"
    SlowRead "slow_read" REQUEST_TIMEOUT "4" "the answer was not read in time"
    Internal "internal" INTERNAL_SERVER_ERROR "13" "the gateway failed to handle this request"
    Unreachable "upstream_unreachable" BAD_GATEWAY "14" "the upstream cannot be reached"
    UpstreamBroke "upstream_broke" BAD_GATEWAY "14" "the upstream closed the connection before its answer"
    BadResponse "upstream_bad_answer" BAD_GATEWAY "14" "the upstream sent an answer that is not valid HTTP"
    NoServer "no_server" SERVICE_UNAVAILABLE "14" "no server of the upstream can take this request now"
    ServerQueueTimeout "server_queue_timeout" SERVICE_UNAVAILABLE "14" "no server of the upstream became free in time"
    ServersDown "servers_down" SERVICE_UNAVAILABLE "14" "every server of the upstream is down"
    TooManyWaiting "too_many_waiting" SERVICE_UNAVAILABLE "14" "too many requests are waiting"
    NoBodyRoom "no_body_room" SERVICE_UNAVAILABLE "14" "the bodies that are being read leave no room for this one"
    TooManyInFlight "too_many_in_flight" SERVICE_UNAVAILABLE "14" "too many requests are in flight"
    IssuerUnavailable "issuer_unavailable" SERVICE_UNAVAILABLE "14" "the keys of the token's issuer are not known yet"
    AuthUnavailable "auth_unavailable" SERVICE_UNAVAILABLE "14" "the auth service does not decide now"
    StateUnavailable "state_unavailable" SERVICE_UNAVAILABLE "14" "the shared counters do not answer"
    UpstreamTimeout "upstream_timeout" GATEWAY_TIMEOUT "4" "the upstream did not answer in time"
    LocationTimeout "location_timeout" GATEWAY_TIMEOUT "4" "the request took longer than its location allows"
}

impl From<KeyFault> for Fault {
    fn from(fault: KeyFault) -> Fault {
        match fault {
            KeyFault::Missing => Fault::MissingApiKey,
            KeyFault::Unknown => Fault::UnknownApiKey,
        }
    }
}

impl From<BodyFault> for Fault {
    fn from(fault: BodyFault) -> Fault {
        match fault {
            BodyFault::Malformed => Fault::BadBody,
            BodyFault::TooLarge => Fault::BodyTooLarge,
            BodyFault::Stalled => Fault::SlowBody,
        }
    }
}

// === impl Rejection ===

impl From<Fault> for Rejection {
    fn from(fault: Fault) -> Rejection {
        Rejection::Fault(fault)
    }
}

impl Rejection {
    /// The fault to count; `None` if a limit or a ban rejected.
    pub fn counted_fault(&self) -> Option<Fault> {
        match self {
            Rejection::Limit(_) | Rejection::Paused(_) | Rejection::Banned { .. } => None,
            Rejection::Fault(fault) => Some(*fault),
            Rejection::MethodNotAllowed { .. } => Some(Fault::BadMethod),
        }
    }

    /// The name of the cause in logs and metrics.
    pub fn cause_name(&self) -> &'static str {
        match self {
            Rejection::Limit(limit_rejection) => limit_rejection.cause.cause_name(),
            Rejection::Fault(fault) => fault.cause(),
            Rejection::MethodNotAllowed { .. } => Fault::BadMethod.cause(),
            Rejection::Paused(_) => "upstream_stop",
            Rejection::Banned { .. } => "ban",
        }
    }

    /// True if the request lacks the key of a limit.
    pub fn is_missing_key(&self) -> bool {
        matches!(self, Rejection::Limit(LimitRejection { cause: LimitCause::MissingKey, .. }))
    }

    /// True if the next bytes on the connection may not be a new request.
    pub fn closes_connection(&self) -> bool {
        self.counted_fault().is_some_and(Fault::closes_connection)
    }
}

// === impl PauseRejection ===

impl PauseRejection {
    /// The rejection for a pause, by its wait; the status is 429 if the pause has none.
    pub fn new(upstream: UpstreamId, pause: Pause) -> PauseRejection {
        let status = StatusCode::from_u16(pause.status).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
        PauseRejection { upstream, status, until: pause.until, retry_after_ns: pause.wait_ns }
    }
}

// === impl LimitRejection ===

impl LimitRejection {
    /// The time until a retry if it is known exactly: nobody knows when slots are freed.
    pub fn exact_retry_ns(&self) -> Option<u64> {
        self.retry_after_ns.filter(|_| self.cause != LimitCause::Concurrency)
    }
}

// === impl Fault ===

impl Fault {
    /// The fault of a client that missed this deadline; `None` if no request was in progress.
    pub fn from_broken_deadline(missed: MissedDeadline) -> Option<Fault> {
        match missed {
            MissedDeadline::Header => Some(Fault::SlowHead),
            MissedDeadline::Body => Some(Fault::SlowBody),
            MissedDeadline::Write => Some(Fault::SlowRead),
            MissedDeadline::Request => Some(Fault::LocationTimeout),
            MissedDeadline::Idle | MissedDeadline::Handshake => None,
        }
    }

    /// Index in [`Fault::ALL`]: the slot of its counter.
    pub fn index(self) -> usize {
        self as usize
    }

    /// Overload uses `on_reject.status`, as limits do.
    pub(super) fn is_overload(self) -> bool {
        matches!(
            self,
            Fault::TooManyWaiting | Fault::NoBodyRoom | Fault::TooManyInFlight | Fault::StateUnavailable
        )
    }

    /// True if the gateway or an upstream has no room for the request now, whatever the client has used.
    pub(super) fn is_reduced_capacity(self) -> bool {
        matches!(
            self,
            Fault::NoServer | Fault::ServerQueueTimeout | Fault::TooManyWaiting | Fault::TooManyInFlight
        )
    }

    /// True if the client caused it; the others are failures of the gateway, its store or an upstream, overload, and
    /// bad calls of the rate-limit service, which are not the client's.
    pub fn is_by_client(self) -> bool {
        self.status().is_client_error() && !matches!(self, Fault::BadCall | Fault::BadToken)
    }

    fn closes_connection(self) -> bool {
        matches!(
            self,
            Fault::BadFraming
                | Fault::BadBody
                | Fault::SlowBody
                | Fault::BadHead
                | Fault::SlowHead
                | Fault::HeadTooLarge
                | Fault::TargetTooLong
        )
    }
}

/// The client left before the head of its response was ready: nginx's 499, which IANA does not list. It is logged and
/// counted, never sent.
pub const CLIENT_GONE: StatusCode = match StatusCode::from_u16(499) {
    Ok(status) => status,
    Err(_) => panic!("499 is within the range of status codes"),
};

/// A panic ended the request. It is logged and counted; the connection breaks without a response.
pub const PANICKED: StatusCode = StatusCode::INTERNAL_SERVER_ERROR;

/// The whole answer to a plain HTTP request on a port that speaks TLS.
pub const PLAIN_HTTP_ON_TLS: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\
    Content-Length: 41\r\n\r\nThis port speaks HTTPS, not plain HTTP.\r\n";
