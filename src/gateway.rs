//! The immutable gateway of one configuration: the only place that turns config into live things.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use http::{HeaderName, HeaderValue, StatusCode};

use crate::access_log::AccessLog;
use crate::chain::{Chain, Waiting};
use crate::client::ClientAddresses;
use crate::config::{self, Config, HeaderEdits, HostHeader, KeyPart};
use crate::deadline::ticks;
use crate::key::{KeySpec, Keys};
use crate::limit::Limit;
use crate::location::Locations;
use crate::metrics::Metrics;
use crate::reject::{Rejecters, Script};
use crate::upstream::Upstream;

/// Everything a request is judged and forwarded by.
pub struct Gateway {
    pub server: config::Server,
    pub clients: ClientAddresses,
    pub locations: Locations,
    /// One for each location, in file order.
    pub routes: Vec<Route>,
    /// The limits of `server.limits`, for requests that no location serves.
    pub nowhere: LimitChain,
    pub rejecters: Rejecters,
    pub limits: Vec<Arc<Limit>>,
    pub keys: Keys,
    pub account: Option<config::Source>,
    /// Request fields that no `Connection` field can make us drop.
    pub protected_fields: Vec<HeaderName>,
    pub upstreams: Vec<Arc<Upstream>>,
    /// Servers of all upstreams together.
    pub server_count: usize,
    pub waiting: Arc<Waiting>,
    pub in_flight: Arc<AtomicUsize>,
    pub metrics: Metrics,
    pub access_log: AccessLog,
    /// Request header fields that the access log shows.
    pub logged_fields: Vec<HeaderName>,
}

/// One location, ready to judge and to answer.
pub struct Route {
    pub name: Arc<str>,
    pub action: Action,
    pub chain: LimitChain,
    pub strip: Option<String>,
    pub host_header: HostHeader,
    pub request_headers: HeaderEdits,
    pub response_headers: HeaderEdits,
    pub timeout: Option<Timeout>,
}

/// `location.timeout` in the units of its two readers.
#[derive(Debug, Clone, Copy)]
pub struct Timeout {
    pub ns: u64,
    pub ticks: u64,
}

/// The limits of a location, in the order they are judged.
pub struct LimitChain {
    pub chain: Chain,
    /// How each limit of the chain makes its key.
    pub keys: Vec<KeySpec>,
    /// Whether any of the keys names the account.
    pub needs_account: bool,
}

pub enum Action {
    Upstream(Arc<Upstream>),
    Respond { status: StatusCode, body: Script, content_type: HeaderValue },
    Redirect { to: Script, status: StatusCode },
}

impl Gateway {
    /// Builds the live things of `config`.
    ///
    /// # Errors
    /// When the access log cannot be opened.
    pub fn build(config: &Config) -> io::Result<Gateway> {
        let limits: Vec<_> = config
            .limits
            .iter()
            .enumerate()
            .map(|(index, limit)| Arc::new(Limit::new(index, limit, config.state.max_keys)))
            .collect();
        let mut server_count = 0;
        let mut upstreams = Vec::with_capacity(config.upstreams.len());
        for upstream in &config.upstreams {
            let upstream = Upstream::new(upstream, server_count);
            server_count += upstream.servers.len();
            upstreams.push(Arc::new(upstream));
        }
        let routes: Vec<_> =
            config.locations.iter().map(|location| Route::new(config, location, &limits, &upstreams)).collect();
        Ok(Gateway {
            server: config.server.clone(),
            clients: ClientAddresses::new(&config.server),
            locations: Locations::new(&config.locations),
            routes,
            nowhere: LimitChain::new(&config.server.limits, &limits),
            rejecters: Rejecters::new(config),
            limits,
            keys: Keys::new(),
            account: config.account.clone(),
            protected_fields: protected_fields(config),
            upstreams,
            server_count,
            waiting: Arc::new(Waiting::new(config.server.max_waiting)),
            in_flight: Arc::default(),
            metrics: Metrics::default(),
            access_log: AccessLog::start(&config.access_log, config.server.workers)?,
            logged_fields: config.access_log.headers.clone(),
        })
    }

    /// The limits of a location, or of none.
    #[inline]
    pub fn chain(&self, route: Option<usize>) -> &LimitChain {
        route.map_or(&self.nowhere, |route| &self.routes[route].chain)
    }
}

impl Route {
    fn new(
        config: &Config,
        location: &config::Location,
        limits: &[Arc<Limit>],
        upstreams: &[Arc<Upstream>],
    ) -> Route {
        let action = match &location.action {
            config::Action::Upstream(index) => Action::Upstream(upstreams[*index].clone()),
            config::Action::Respond { status, body, content_type } => Action::Respond {
                status: *status,
                body: Script::plain(body, Some(content_type)),
                content_type: content_type.clone(),
            },
            config::Action::Redirect { to, status } => {
                Action::Redirect { to: Script::plain(to, None), status: *status }
            }
        };
        let own: Vec<usize> = config.server.limits.iter().chain(&location.limits).copied().collect();
        let timeout = |span: std::time::Duration| Timeout {
            ns: u64::try_from(span.as_nanos()).unwrap_or(u64::MAX),
            ticks: ticks(span),
        };
        Route {
            name: location.name.as_str().into(),
            action,
            chain: LimitChain::new(&own, limits),
            strip: location.strip.clone(),
            host_header: location.host_header.clone(),
            request_headers: location.request_headers.clone(),
            response_headers: location.response_headers.clone(),
            timeout: location.timeout.map(timeout),
        }
    }
}

impl LimitChain {
    fn new(indices: &[usize], limits: &[Arc<Limit>]) -> LimitChain {
        let chain = Chain::new(indices.iter().map(|&index| limits[index].clone()).collect());
        let keys = chain.limits().iter().map(|limit| KeySpec::compile(&limit.config)).collect();
        let needs_account = chain.limits().iter().any(|limit| limit.config.key.contains(&KeyPart::Account));
        LimitChain { chain, keys, needs_account }
    }
}

/// What we set, and what requests are counted by.
fn protected_fields(config: &Config) -> Vec<HeaderName> {
    let mut fields = vec![config.server.request_id.clone()];
    let mut protect = |source: &config::Source| {
        if let config::Source::Header(name) = source {
            fields.push(name.clone());
        }
    };
    config.account.iter().for_each(&mut protect);
    for part in config.limits.iter().flat_map(|limit| &limit.key) {
        if let KeyPart::Source(source) = part {
            protect(source);
        }
    }
    fields
}
