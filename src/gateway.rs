//! The immutable gateway of one configuration: the only place that turns config into live things.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use http::{HeaderName, HeaderValue, StatusCode};

use crate::access_log::AccessLog;
use crate::chain::{Chain, Waiting};
use crate::client::ClientAddresses;
use crate::config::{self, Config, HeaderEdits, HostHeader, Template};
use crate::deadline::ticks;
use crate::key::{KeySpec, Keys};
use crate::limit::Limit;
use crate::location::Locations;
use crate::metrics::Metrics;
use crate::reject::{Rejecter, RateLimitFields};
use crate::upstream::Upstream;

/// Everything a request is judged and forwarded by.
pub struct Gateway {
    pub server: config::Server,
    pub clients: ClientAddresses,
    pub locations: Locations,
    /// One for each location, in file order; the last one answers what no location matches.
    pub routes: Vec<Route>,
    pub limits: Vec<Arc<Limit>>,
    pub keys: Keys,
    pub account: Option<config::Source>,
    /// Request fields that no `Connection` field can make us drop.
    pub protected_fields: Vec<HeaderName>,
    /// Servers of all upstreams together.
    pub server_count: usize,
    pub waiting: Arc<Waiting>,
    pub in_flight: Arc<AtomicUsize>,
    pub metrics: Metrics,
    pub access_log: AccessLog,
}

/// One location, ready to judge and to answer.
pub struct Route {
    pub name: Arc<str>,
    pub action: Action,
    pub chain: Chain,
    /// How each limit of the chain makes its key.
    pub keys: Vec<KeySpec>,
    /// How each limit of the chain refuses here.
    pub rejecters: Vec<Rejecter>,
    /// How everything else is refused here.
    pub faults: Rejecter,
    pub rate_limit_fields: RateLimitFields,
    pub strip: Option<String>,
    pub host_header: HostHeader,
    pub request_headers: HeaderEdits,
    pub response_headers: HeaderEdits,
    /// Nanoseconds and ticks.
    pub timeout: Option<(u64, u64)>,
}

pub enum Action {
    Upstream(Arc<Upstream>),
    Respond { status: StatusCode, body: Template, content_type: HeaderValue },
    Redirect { to: Template, status: StatusCode },
    /// No location matched.
    NotFound,
}
