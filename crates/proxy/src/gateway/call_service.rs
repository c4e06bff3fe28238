//! The rate-limit service of a gateway: its tokens, its leases, and the chain of all limits, of which a call names
//! some.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use http::header::{AUTHORIZATION, ORIGIN};
use http::{HeaderMap, HeaderValue, StatusCode};
use smallvec::SmallVec;
use tokio::sync::watch;

use super::limit_chain::BuiltLimits;
use super::{Action, CompiledEdits, Domains, Gateway, LimitChain, Route};
use crate::reject::CompiledTemplate;
use sluicegate_admission::leases::Leases;
use sluicegate_base::secrets;
use sluicegate_limit::throttle::ThrottleTable;
use sluicegate_model::{Config, HeaderEdits, HostHeader, LimitId, LocationId, Secret, TemplateConfig};
use sluicegate_observe::metrics::ServiceCallCounts;

/// The needs of the rate-limit service beside the limits.
pub struct CallService {
    /// Empty = callers need none. `None` = the configuration has no service.
    tokens: Option<Vec<Secret>>,
    /// The limits that calls may name.
    names: HashMap<String, LimitId>,
    /// The index of each limit in the chain of all limits, and behind it that of its shadow; empty for a shadow.
    places: Vec<Range<u16>>,
    /// The leases of admitted calls, which continue after a reload.
    pub leases: Arc<Leases>,
    /// The counters of `CL.THROTTLE`.
    pub throttles: Arc<ThrottleTable>,
    /// The calls since the start, by their results.
    pub counts: Arc<ServiceCallCounts>,
    /// The rules for calls with descriptors.
    pub domains: Domains,
    /// True while the process takes calls; false from the signal to stop on.
    pub serving: watch::Sender<bool>,
}

/// Why a caller is turned away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallerFault {
    /// The configuration has no service.
    NoService,
    /// The token is missing or unknown.
    Token,
    /// A page in a browser calls.
    Origin,
}

// === impl CallService ===

impl CallService {
    /// Continues with the leases and counts of the previous gateway, also where it has no service any more: leases end
    /// by themselves.
    pub(super) fn new(config: &Config, previous: Option<&Gateway>, domains: Domains) -> CallService {
        let previous = previous.map(|previous| &previous.calls);
        let workers = config.server.workers;
        let leases = previous.map_or_else(Arc::default, |calls| calls.leases.clone());
        let throttles = previous.map(|calls| calls.throttles.clone());
        let throttles = throttles.unwrap_or_else(|| Arc::new(ThrottleTable::new(config.state.max_keys)));
        let counts = previous.map(|calls| calls.counts.clone());
        let counts = counts.unwrap_or_else(|| Arc::new(ServiceCallCounts::new(workers)));
        let serving = previous.map_or_else(|| watch::Sender::new(true), |calls| calls.serving.clone());
        let tokens = config.service.as_ref().map(|service| service.tokens.clone());
        let declared = config.declared_limits();
        let mut places = vec![0..0; config.limits.len()];
        let mut next = 0;
        for limit in &declared {
            // A chain has fewer limits than a u16 counts.
            let end = next + config.with_shadows([limit]).count() as u16;
            places[limit.0] = next..end;
            next = end;
        }
        let names = declared.iter().map(|limit| (config.limits[*limit].name.to_string(), *limit)).collect();
        CallService { tokens, names, places, leases, throttles, counts, domains, serving }
    }

    /// The limit that a call names.
    pub fn find_limit(&self, name: &str) -> Option<LimitId> {
        self.names.get(name).copied()
    }

    /// The indices of limits and their shadows in the chain of all limits, in its order.
    pub fn places_of(&self, limits: &[LimitId]) -> SmallVec<[u16; 8]> {
        let mut places: SmallVec<[u16; 8]> =
            limits.iter().flat_map(|limit| self.places[limit.0].clone()).collect();
        places.sort_unstable();
        places
    }

    /// Authorizes a caller. Browsers send `Origin` with every call of a page, and no page may use up limits, not even
    /// one that runs on this host.
    ///
    /// # Errors
    /// The caller is turned away.
    pub fn authorize_caller(&self, headers: &HeaderMap) -> Result<(), CallerFault> {
        if self.tokens.is_some() && headers.contains_key(ORIGIN) {
            return Err(CallerFault::Origin);
        }
        let sent = headers.get(AUTHORIZATION).and_then(|value| secrets::bearer_token(value.as_bytes()));
        self.authorize_token(sent)
    }

    /// Authorizes the bearer of a token, or of none.
    ///
    /// # Errors
    /// The caller is turned away.
    pub fn authorize_token(&self, sent: Option<&[u8]>) -> Result<(), CallerFault> {
        let tokens = self.tokens.as_ref().ok_or(CallerFault::NoService)?;
        let is_known = sent.is_some_and(|sent| {
            secrets::find_secret(sent, tokens.iter().map(|one| one.0.as_bytes())).is_some()
        });
        if tokens.is_empty() || is_known { Ok(()) } else { Err(CallerFault::Token) }
    }

    /// True if the service is configured with tokens, so that callers must send one.
    pub fn needs_token(&self) -> bool {
        self.tokens.as_ref().is_some_and(|tokens| !tokens.is_empty())
    }
}

// === impl Gateway ===

impl Gateway {
    /// The route of calls that name limits: the last one, which no location has. Only a gateway with a service has it.
    pub fn call_route(&self) -> LocationId {
        LocationId(self.config.locations.len())
    }

    /// The name of a location; `None` for the route of calls.
    pub fn location_name(&self, route: Option<LocationId>) -> Option<&Arc<str>> {
        route.filter(|route| *route != self.call_route()).map(|route| &self.routes[route.0].name)
    }

    /// The team that owns a location.
    pub fn location_owner(&self, route: Option<LocationId>) -> Option<&str> {
        self.config.locations.get(route?.0)?.owner.as_deref()
    }
}

// === impl Route ===

impl Route {
    /// The route of calls that name limits: all limits, of which each call selects its own. `None` without a service.
    pub(super) fn for_calls(built: BuiltLimits<'_>) -> Option<Route> {
        built.config.service.as_ref()?;
        let no_edits = HeaderEdits::default();
        let json = HeaderValue::from_static("application/json");
        Some(Route {
            name: "service".into(),
            action: Action::Respond {
                status: StatusCode::OK,
                body: CompiledTemplate::for_body(&TemplateConfig(Vec::new()), &json),
                content_type: json.clone(),
            },
            chain: LimitChain::for_calls(built),
            body_plan: None,
            access: None,
            reads_account: true,
            path_edits: None,
            max_body: built.config.server.max_body,
            host_header: HostHeader::Client,
            request_headers: no_edits.clone(),
            request_edits: CompiledEdits::new([&no_edits]),
            response_edits: CompiledEdits::new([&built.config.server.headers]),
            timeout: None,
            bandwidth: None,
            cors: None,
            auth: None,
        })
    }
}
