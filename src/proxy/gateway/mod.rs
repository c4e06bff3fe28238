//! The immutable gateway of one configuration: the only place that turns config into live things.

mod adopt;
mod handover;
mod metric_labels;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};

use crate::admission::ban::Bans;
use crate::admission::chain::{Chain, Waiting};
use crate::base::ip_set;
use crate::base::ip_set::IpSet;
use crate::config::{self, Config, HeaderEdits, HostHeader};
use crate::limit::Limit;
use crate::limit::bandwidth::Bandwidth;
use crate::limit::snapshot::Holds;
use crate::limit::table::saved::KeptTable;
use crate::net::deadline::ticks;
use crate::observe::access_log::AccessLog;
use crate::observe::metrics::Metrics;
use crate::observe::metrics::cells::Counters;
use crate::proxy::reject::{Rejecters, Script};
use crate::request::access::Access;
use crate::request::account::Tiers;
use crate::request::client::ClientIp;
use crate::request::headers::forwarded::Forwarded;
use crate::request::headers::hop_by_hop;
use crate::request::headers::underscores::Underscores;
use crate::request::key::{KeySpec, Keys, LimitKeys};
use crate::request::location::Locations;
use crate::request::source::Verifier;
use crate::shared::{SharedLimit, Store};
use crate::upstream::{Server, Upstream};
pub use handover::{Handover, KnownNumbers};
use metric_labels::{labels, watch, watch_shared, watch_upstreams};

/// Slots of [`Gateway::visits`].
pub const OPENED: usize = 0;
pub const CLOSED: usize = 1;

static GENERATION: AtomicU64 = AtomicU64::new(1);

/// Everything a request is judged and forwarded by.
pub struct Gateway {
    /// Tells one gateway of this process from another.
    pub generation: u64,
    /// What it was built from, for those who tell about it.
    pub config: Config,
    pub server: config::Server,
    pub clients: ClientIp,
    pub forwarded: Forwarded,
    pub locations: Locations,
    /// One for each location, in file order.
    pub routes: Vec<Route>,
    /// The limits of `server.limits`, for requests that no location serves.
    pub nowhere: LimitChain,
    /// Who may come in where no location is; `None` = everybody, as one of many.
    pub access: Option<Arc<Access>>,
    pub bans: Option<Arc<Bans>>,
    pub rejecters: Rejecters,
    pub limits: Vec<Arc<Limit>>,
    /// The store's side of those that are counted there.
    pub shared: Vec<Option<Arc<SharedLimit>>>,
    /// `None` = everything is counted here.
    pub store: Option<Arc<Store>>,
    /// As long as it is held, gateways use the store: for [`Store::supervise_for`].
    pub store_users: Option<Arc<()>>,
    pub keys: Keys,
    pub account: Option<config::Source>,
    /// `None` = all callers are alike.
    pub tiers: Option<Tiers>,
    /// How tokens are verified, and the claims that are asked for.
    pub jwt: Option<(config::Jwt, Vec<String>)>,
    /// Request fields that no `Connection` field can make us drop.
    pub protected_fields: Vec<HeaderName>,
    pub underscores: Underscores,
    pub upstreams: Vec<Arc<Upstream>>,
    /// The servers of all upstreams, by their index.
    pub servers: Vec<Arc<Server>>,
    pub waiting: Arc<Waiting>,
    pub in_flight: Arc<AtomicUsize>,
    /// Visits [`OPENED`] and [`CLOSED`]: their difference is in flight.
    pub visits: Arc<Counters<2>>,
    pub metrics: Arc<Metrics>,
    pub access_log: Arc<AccessLog>,
    /// Request header fields that the access log shows.
    pub logged_fields: Vec<HeaderName>,
}

/// One location, ready to judge and to answer.
pub struct Route {
    pub name: Arc<str>,
    pub action: Action,
    pub chain: LimitChain,
    /// `None` = everybody, as one of many.
    pub access: Option<Arc<Access>>,
    pub strip: Option<String>,
    pub host_header: HostHeader,
    pub request_headers: HeaderEdits,
    pub response_headers: HeaderEdits,
    /// The whole request's, in ticks of the deadlines.
    pub timeout: Option<u64>,
    /// How fast bodies leave, and by which key.
    pub bandwidth: Option<(Arc<Bandwidth>, KeySpec)>,
}

/// The limits of a location, in the order they are judged.
pub struct LimitChain {
    pub chain: Chain,
    /// How each limit of the chain makes its keys.
    pub keys: Vec<LimitKeys>,
}

pub enum Action {
    Upstream(Arc<Upstream>),
    Respond { status: StatusCode, body: Script, content_type: HeaderValue },
    Redirect { to: Script, status: StatusCode },
}

impl Gateway {
    /// Builds the live things of `config`. Those of the gateway `previous` that are still the same go on in this one,
    /// which changes nothing of it before [`Gateway::apply`].
    ///
    /// # Errors
    /// When the access log cannot be opened, or tokens cannot be verified at all.
    pub fn build(config: &Config, previous: Option<&Gateway>) -> io::Result<Gateway> {
        let sets = ip_set::named(&config.ip_sets);
        let limits = adopt::limits(config, &sets, previous);
        let shared = adopt::shared(config, previous);
        let mut accesses = Accesses { known: Vec::new(), sets: &sets };
        let upstreams = Upstream::all(config, previous.map_or(&[], |previous| &previous.upstreams));
        let servers: Vec<_> = upstreams.iter().flat_map(|upstream| &upstream.servers).cloned().collect();
        let routes: Vec<_> = config
            .locations
            .iter()
            .map(|location| {
                Route::new(config, location, &limits, &shared, &upstreams, &mut accesses, previous)
            })
            .collect();
        let access_log = adopt::access_log(config, previous)?;
        let metrics = Metrics::after(previous.map(|previous| &*previous.metrics), labels(config, &upstreams));
        let counters = previous.map(|previous| (previous.visits.clone(), previous.in_flight.clone()));
        let fresh = || (Arc::new(Counters::new(config.server.workers)), Arc::default());
        let (visits, in_flight) = counters.unwrap_or_else(fresh);
        let bans = adopt::bans(config, previous);
        watch(&metrics, &limits, bans.as_ref(), &access_log, &visits);
        let store = adopt::store(config, previous);
        watch_shared(&metrics, store.as_ref().map(|(store, _)| store), &limits, &shared);
        let (store, store_users) = store.unzip();
        watch_upstreams(&metrics, &upstreams);
        let locations = Locations::new(&config.locations);
        let protected_fields = hop_by_hop::protected_names(config);
        if config.account.jwt.is_some() {
            Verifier::test()?;
        }
        let gateway = Gateway {
            generation: GENERATION.fetch_add(1, Ordering::Relaxed),
            config: config.clone(),
            server: config.server.clone(),
            clients: ClientIp::from(&config.server),
            forwarded: Forwarded::from(&config.server),
            locations,
            routes,
            nowhere: LimitChain::new(&config.server.limits, &limits, &shared, None),
            access: accesses.get(&config.access),
            bans,
            rejecters: Rejecters::new(config),
            limits,
            shared,
            store,
            store_users,
            keys: previous.map_or_else(Keys::new, |previous| Keys::from_secret(previous.keys.secret())),
            account: config.account.from.clone(),
            tiers: Tiers::new(config),
            jwt: config.account.jwt.clone().map(|jwt| (jwt, claims(config))),
            underscores: Underscores::new(config, &protected_fields),
            protected_fields,
            upstreams,
            servers,
            waiting: adopt::waiting(config, previous),
            in_flight,
            visits,
            metrics,
            access_log,
            logged_fields: config.access_log.headers.clone(),
        };
        if previous.is_none() {
            gateway.serve_store();
        }
        Ok(gateway)
    }

    /// The limits of a location, or of none.
    #[inline]
    pub fn chain(&self, route: Option<usize>) -> &LimitChain {
        route.map_or(&self.nowhere, |route| &self.routes[route].chain)
    }

    /// Who may come in to a location, or to none.
    #[inline]
    pub fn access(&self, route: Option<usize>) -> Option<&Access> {
        route.map_or(&self.access, |route| &self.routes[route].access).as_deref()
    }
}

impl Holds for Gateway {
    fn kept(&self) -> Vec<KeptTable<'_>> {
        let mut kept = self.limits.kept();
        kept.extend(self.bans.iter().filter_map(|bans| bans.kept()));
        kept.extend(self.shared.iter().flatten().flat_map(|limit| limit.kept()));
        kept
    }
}

impl Route {
    fn new(
        config: &Config,
        location: &config::Location,
        limits: &[Arc<Limit>],
        shared: &[Option<Arc<SharedLimit>>],
        upstreams: &[Arc<Upstream>],
        accesses: &mut Accesses<'_>,
        previous: Option<&Gateway>,
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
        Route {
            name: location.name.as_str().into(),
            action,
            chain: LimitChain::new(&own, limits, shared, location.timeout),
            access: accesses.get(&location.access),
            strip: location.strip.clone(),
            host_header: location.host_header.clone(),
            request_headers: location.request_headers.clone(),
            response_headers: location.response_headers.clone(),
            timeout: location.timeout.map(ticks),
            bandwidth: location.bandwidth.as_ref().map(|own| {
                let keys = KeySpec::new(&own.key, config::MissingKey::Ip);
                (adopt::bandwidth(config, location, own, previous), keys)
            }),
        }
    }
}

/// Equal rules are one thing, however many locations have them.
struct Accesses<'a> {
    known: Vec<(config::Access, Option<Arc<Access>>)>,
    sets: &'a [Arc<IpSet>],
}

impl Accesses<'_> {
    fn get(&mut self, config: &config::Access) -> Option<Arc<Access>> {
        if let Some((_, access)) = self.known.iter().find(|(known, _)| known == config) {
            return access.clone();
        }
        let access = Access::new(config, self.sets).map(Arc::new);
        self.known.push((config.clone(), access.clone()));
        access
    }
}

impl LimitChain {
    fn new(
        indices: &[usize],
        limits: &[Arc<Limit>],
        shared: &[Option<Arc<SharedLimit>>],
        timeout: Option<Duration>,
    ) -> LimitChain {
        let patience = timeout.map_or(u64::MAX, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let chain = Chain::new(indices.iter().map(|&index| limits[index].clone()).collect());
        let chain = chain.with_patience(patience).with_shared(shared);
        let keys = chain.limits().iter().map(|limit| LimitKeys::compile(&limit.config)).collect();
        LimitChain { chain, keys }
    }
}

/// Every claim that some source of the configuration names.
fn claims(config: &Config) -> Vec<String> {
    let of_limits = config.limits.iter().flat_map(|limit| limit.key.iter().chain(&limit.fair_by));
    let paced = config.locations.iter().filter_map(|location| location.bandwidth.as_ref());
    let of_keys = of_limits.chain(paced.flat_map(|own| &own.key)).filter_map(|part| match part {
        config::KeyPart::Source(source) => Some(source),
        _ => None,
    });
    let sources = config.account.from.iter().chain(&config.account.tier.from).chain(of_keys);
    let mut claims: Vec<String> = sources
        .filter_map(|source| match source {
            config::Source::Jwt(claim) => Some(claim.clone()),
            _ => None,
        })
        .collect();
    claims.sort();
    claims.dedup();
    claims
}

#[cfg(test)]
mod tests;
