//! The facts of a request that its head tells, gathered once while it is judged.

use std::borrow::Cow;
use std::rc::Rc;

use http::header::HeaderMap;
use http::uri::{Authority, PathAndQuery};
use http::{Method, Uri, Version};
use http_body::SizeHint;

use crate::gateway::auth::AuthAnswer;
use crate::judge::conclusion::RequestTexts;
use crate::judge::inbound::{self, InboundRequest};
use crate::judge::request_state::{AuthProgress, RequestState};
use crate::reject::{Fault, Rejection};
use sluicegate_admission::ban::StrikeTarget;
use sluicegate_base::clock::Now;
use sluicegate_http::request::access::AccessDecision;
use sluicegate_http::request::account::Tier;
use sluicegate_http::request::api_key::{KeyCaller, KeyFault};
use sluicegate_http::request::client::Client;
use sluicegate_http::request::cors::CorsAnswer;
use sluicegate_http::request::headers::summary::HeaderSummary;
use sluicegate_http::request::headers::{forwarded, grpc};
use sluicegate_http::request::location::{Arrival, LocationLookup, Locations};
use sluicegate_http::request::source::{BodyValues, SourceInput, Token};
use sluicegate_limit::bandwidth::BandwidthShare;
use sluicegate_limit::pushback::PauseCheck;
use sluicegate_model::{LocationId, RequestPrice, Scheme, TierRules};

/// The head of a request, and the client that sent it.
#[derive(Clone, Copy)]
pub struct RequestHead<'r> {
    /// The method; GET for a CONNECT that asks for a WebSocket.
    pub method: &'r Method,
    /// The target without its authority.
    pub uri: &'r Uri,
    /// The version of HTTP that the client used.
    pub version: Version,
    /// The header fields that keys, costs and locations are read from.
    pub headers: &'r HeaderMap,
    /// The authority of an absolute target or of HTTP/2.
    pub authority: Option<&'r Authority>,
    /// The origin of the request.
    pub client: Client,
    /// The scheme of the connection.
    pub scheme: Scheme,
    /// The name of the listener; needed only if a location selects listeners.
    pub listener: Option<&'r str>,
    /// The moment of its judgement, later than its start if its body was read first.
    pub received: Now,
    /// The request was a CONNECT for a WebSocket.
    pub is_websocket_connect: bool,
}

/// The state of a request's body in judging.
#[derive(Clone, Copy)]
pub enum BodyView<'r> {
    /// The body can be read, if something asks for its values.
    Unread,
    /// There is nothing to read.
    Absent,
    /// The values that were found in the body.
    Read(&'r BodyValues),
}

/// All facts of a request from its head. Facts that judging has not reached yet are empty.
pub struct RequestFacts<'r> {
    /// The head and the client.
    pub head: RequestHead<'r>,
    /// The announced bytes of its body.
    pub body: SizeHint,
    /// `Absent` unless the judging of requests sets it.
    pub body_view: BodyView<'r>,
    /// The source of claims, if tokens are verified.
    pub token: Option<&'r Token<'r>>,
    /// The special fields that the head contains.
    pub summary: HeaderSummary,
    /// The scheme of the connection, or the one that a trusted proxy tells.
    pub scheme: Scheme,
    /// Canonical.
    pub host: Cow<'r, str>,
    /// Normalised.
    pub path: Cow<'r, [u8]>,
    /// The result of the search for its location.
    pub location: LocationLookup,
    /// `None` in a location without `cors`.
    pub cors: Option<CorsAnswer>,
    /// `None` without access rules.
    pub access: Option<AccessDecision>,
    /// The request may wait for keys of its token.
    pub may_await_keys: bool,
    /// The token may have been read.
    pub is_token_read: bool,
    /// The account and the tier were looked for.
    pub is_account_read: bool,
    /// The answer of the auth service; `None` = none is asked, or not yet.
    pub answer: Option<Rc<AuthAnswer>>,
    /// The limits before the question have judged the request.
    pub is_question_charged: bool,
    /// The caller's account unless its key gives it; `None` = unknown, or not yet read.
    pub account: Option<Cow<'r, [u8]>>,
    /// The caller by its API key.
    pub key: Option<Rc<KeyCaller>>,
    /// The request is answered 401 for its API key, and judged by the limits of addresses alone.
    pub key_fault: Option<KeyFault>,
    /// `None` also where no tiers are configured.
    pub tier: Option<Tier>,
    /// The client that a strike counts against; `None` = no strikes are counted.
    pub strike_target: Option<StrikeTarget>,
    /// The target to send, if it differs from the one that was judged.
    pub target: Option<PathAndQuery>,
    /// Paces the response body; `None` = unlimited.
    pub bandwidth: Option<Box<BandwidthShare>>,
    /// `None` if its upstream never pushes back.
    pub pause: Option<Box<PauseCheck>>,
    /// The prices by which its limits judge and charge it; `None` = none does, or not yet.
    pub prices: Option<Vec<RequestPrice>>,
}

impl<'r> RequestHead<'r> {
    /// The head of a received request; `received` is the moment of its judgement.
    #[inline]
    pub fn of_inbound(
        inbound: &'r InboundRequest,
        client: Client,
        scheme: Scheme,
        listener: Option<&'r str>,
        received: Now,
    ) -> RequestHead<'r> {
        let InboundRequest { request, authority, is_websocket_connect, .. } = inbound;
        RequestHead {
            method: request.method(),
            uri: request.uri(),
            version: request.version(),
            headers: request.headers(),
            authority: authority.as_ref(),
            client,
            scheme,
            listener,
            received,
            is_websocket_connect: *is_websocket_connect,
        }
    }
}

impl<'r> RequestFacts<'r> {
    /// `body` is the announced size of the body, and nothing is read of it yet.
    #[inline]
    pub fn new(head: RequestHead<'r>, body: SizeHint, token: Option<&'r Token<'r>>) -> RequestFacts<'r> {
        let summary = HeaderSummary::scan_request(head.headers);
        RequestFacts {
            head,
            body,
            body_view: BodyView::Absent,
            token,
            summary,
            scheme: forwarded::find_scheme(head.headers, summary, head.client.trusted_peer, head.scheme),
            host: Cow::Borrowed(""),
            path: Cow::Borrowed(b""),
            location: LocationLookup::NotFound,
            cors: None,
            access: None,
            may_await_keys: false,
            is_token_read: false,
            is_account_read: false,
            answer: None,
            is_question_charged: false,
            account: None,
            key: None,
            key_fault: None,
            tier: None,
            strike_target: None,
            target: None,
            bandwidth: None,
            pause: None,
            prices: None,
        }
    }

    /// The arrival of the request, beside its host and path.
    #[inline]
    pub fn arrival(&self, locations: &Locations) -> Arrival<'r> {
        let RequestHead { method, listener, .. } = self.head;
        let values = locations.has_conditions.then(|| self.sources());
        Arrival { method, scheme: self.scheme, listener, values }
    }

    /// The values that were found in the body; `None` = it was not read.
    #[inline]
    pub fn body_values(&self) -> Option<&'r BodyValues> {
        match self.body_view {
            BodyView::Read(values) => Some(values),
            BodyView::Unread | BodyView::Absent => None,
        }
    }

    /// The parts of the request that have values.
    #[inline]
    pub fn sources(&self) -> SourceInput<'r> {
        let RequestHead { headers, uri, .. } = self.head;
        SourceInput { headers, query: uri.query(), token: self.token, body: self.body_values() }
    }

    /// The location that serves the request; `None` also before it is looked up.
    #[inline]
    pub fn route(&self) -> Option<LocationId> {
        match self.location {
            LocationLookup::Found(route) => Some(route),
            _ => None,
        }
    }

    /// The caller's account; `None` = unknown, or not yet read.
    #[inline]
    pub fn account(&self) -> Option<&[u8]> {
        match (&self.account, &self.key) {
            (Some(account), _) => Some(account),
            (None, key) => key.as_ref().map(|caller| caller.account.as_bytes()),
        }
    }

    /// True if the location's `cors` answers the request.
    #[inline]
    pub fn is_preflight(&self) -> bool {
        self.cors.as_ref().is_some_and(|cors| cors.is_preflight)
    }

    /// The location that serves the request.
    ///
    /// # Errors
    /// The rejection of a request that none serves: it is charged, and rejected after its wait.
    pub fn route_or_rejection(&self) -> Result<LocationId, Rejection> {
        match (&self.location, self.key_fault) {
            (LocationLookup::Found(_), Some(fault)) => Err(Fault::from(fault).into()),
            (LocationLookup::Found(route), None) => Ok(*route),
            (LocationLookup::NotFound, _) => Err(Fault::NoLocation.into()),
            (LocationLookup::MethodNotAllowed { allow }, _) => {
                Err(Rejection::MethodNotAllowed { allow: allow.clone() })
            }
        }
    }

    /// The name of the caller's tier, or of the default one.
    #[inline]
    pub fn tier_name(&self) -> &str {
        self.tier.as_ref().map_or(TierRules::DEFAULT, Tier::as_str)
    }

    /// Only a request with a content type can be a gRPC call.
    #[inline]
    pub fn is_grpc(&self) -> bool {
        self.summary.has_any(HeaderSummary::CONTENT_TYPE) && grpc::is_grpc(self.head.headers)
    }

    /// The texts that a response may contain.
    #[inline]
    pub fn texts(&self) -> RequestTexts<'_> {
        RequestTexts { host: Cow::Borrowed(&self.host), path: Cow::Borrowed(&self.path), uri: self.head.uri }
    }

    /// Passes the facts that outlive the head on to the state of the request.
    #[inline(always)]
    pub fn record_in(&mut self, state: &mut RequestState) {
        state.route = self.route();
        state.identity.scheme = self.scheme;
        state.identity.is_grpc = self.is_grpc();
        state.identity.account = self.account.take().map(|account| String::from_utf8_lossy(&account).into());
        state.identity.key = self.key.take();
        state.identity.lacks_key = self.key_fault.is_some();
        state.identity.tier = self.tier.take();
        state.identity.strike_target = self.strike_target;
        state.permits.bandwidth = self.bandwidth.take();
        state.response.cors = self.cors.take();
        state.permits.pause = self.pause.take();
        state.judgement.prices = self.prices.take();
        if self.answer.is_some() && state.auth.is_none() {
            state.auth = Some(Box::new(AuthProgress { answer: self.answer.take(), is_charged: false }));
        }
    }

    /// The time for which it has to pause, ns; 0 = not at all.
    pub fn pause_ns(&self) -> u64 {
        self.pause.as_ref().and_then(|check| check.paused).map_or(0, |pause| pause.wait_ns)
    }

    /// See [`InboundRequest::waiting_bytes`].
    pub fn waiting_bytes(&self) -> usize {
        inbound::waiting_bytes(self.head.version, self.head.uri, self.head.headers, self.body)
    }
}
