//! The immutable gateway of one configuration: the only place that turns config into live things.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use http::{HeaderName, HeaderValue, StatusCode};

use crate::access::Access;
use crate::access_log::AccessLog;
use crate::account::Tiers;
use crate::ban::Bans;
use crate::bandwidth::Bandwidth;
use crate::chain::{Chain, Waiting};
use crate::client::ClientIp;
use crate::clock::Now;
use crate::config::{self, Config, HeaderEdits, HostHeader};
use crate::deadline::ticks;
use crate::forwarded::Forwarded;
use crate::hop_by_hop;
use crate::ip_set::{self, IpSet, IpSets};
use crate::key::{KeySpec, Keys, LimitKeys};
use crate::limit::Limit;
use crate::location::Locations;
use crate::metrics::cells::Counters;
use crate::metrics::{Labels, Metrics, ServerFact};
use crate::reject::{Fault, Rejecters, Script};
use crate::snapshot::Holds;
use crate::source::Verifier;
use crate::state::{self, SharedLimit, Store};
use crate::table::saved::KeptTable;
use crate::upstream::{Server, Upstream};

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
    pub keys: Keys,
    pub account: Option<config::Source>,
    /// `None` = all callers are alike.
    pub tiers: Option<Tiers>,
    /// How tokens are verified, and the claims that are asked for.
    pub jwt: Option<(config::Jwt, Vec<String>)>,
    /// Request fields that no `Connection` field can make us drop.
    pub protected_fields: Vec<HeaderName>,
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
    /// Builds the live things of `config`.
    ///
    /// # Errors
    /// When the access log cannot be opened, or tokens cannot be verified at all.
    pub fn build(config: &Config) -> io::Result<Gateway> {
        let sets = ip_set::named(&config.ip_sets);
        let limits = limits(config, &sets);
        let shared = shared(config);
        let mut accesses = Accesses { known: Vec::new(), sets: &sets };
        let upstreams = Upstream::all(config, &[]);
        let servers: Vec<_> = upstreams.iter().flat_map(|upstream| &upstream.servers).cloned().collect();
        let routes: Vec<_> = config
            .locations
            .iter()
            .map(|location| Route::new(config, location, &limits, &shared, &upstreams, &mut accesses))
            .collect();
        let access_log =
            Arc::new(AccessLog::start(&config.access_log, config.server.workers).map_err(|error| {
                io::Error::new(error.kind(), format!("cannot open the access log: {error}"))
            })?);
        let metrics = Metrics::new(labels(config, &upstreams));
        let visits = Arc::new(Counters::new(config.server.workers));
        let new_bans = if config.state.store == config::Store::Redis { Bans::shared } else { Bans::new };
        let bans = config.bans.as_ref().map(|bans| Arc::new(new_bans(bans, config.state.max_keys)));
        watch(&metrics, &limits, bans.as_ref(), &access_log, &visits);
        let store = config.state.redis.as_ref().map(Store::new);
        store.iter().for_each(|store| store.load(state::Script::take()));
        watch_shared(&metrics, store.as_ref(), &shared);
        watch_upstreams(&metrics, &upstreams);
        let locations = Locations::new(&config.locations);
        if config.account.jwt.is_some() {
            Verifier::test()?;
        }
        Ok(Gateway {
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
            keys: Keys::new(),
            account: config.account.from.clone(),
            tiers: Tiers::new(config),
            jwt: config.account.jwt.clone().map(|jwt| (jwt, claims(config))),
            protected_fields: hop_by_hop::protected_names(config),
            upstreams,
            servers,
            waiting: Arc::new(Waiting::new(config.server.max_waiting)),
            in_flight: Arc::default(),
            visits,
            metrics,
            access_log,
            logged_fields: config.access_log.headers.clone(),
        })
    }

    /// Picks up what a snapshot brought back.
    pub fn restored(&self, now: Now) {
        if let Some(bans) = &self.bans {
            bans.restored(now);
        }
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
                (Arc::new(Bandwidth::new(own, config.state.max_keys)), keys)
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

fn limits(config: &Config, sets: &[Arc<IpSet>]) -> Vec<Arc<Limit>> {
    let limit = |(index, limit): (usize, &config::Limit)| {
        let mut live = Limit::new(index, limit, config.state.max_keys);
        live.bypass = IpSets::new(&limit.bypass, sets);
        Arc::new(live)
    };
    config.limits.iter().enumerate().map(limit).collect()
}

fn shared(config: &Config) -> Vec<Option<Arc<SharedLimit>>> {
    let side = |(index, limit): (usize, &config::Limit)| {
        let on_failure = limit.shared?;
        Some(Arc::new(SharedLimit::new(index, limit, on_failure, config.state.max_keys)))
    };
    config.limits.iter().enumerate().map(side).collect()
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

fn labels(config: &Config, upstreams: &[Arc<Upstream>]) -> Labels {
    let servers = |upstream: &Arc<Upstream>| {
        let names = upstream.servers.iter().map(|server| server.name.to_string()).collect();
        (upstream.name.to_string(), names)
    };
    Labels {
        workers: config.server.workers,
        locations: config.locations.iter().map(|location| location.name.clone()).collect(),
        limits: config.limits.iter().map(|limit| limit.name.clone()).collect(),
        upstreams: upstreams.iter().map(servers).collect(),
        faults: Fault::ALL.iter().map(|fault| fault.cause()).collect(),
        version: env!("CARGO_PKG_VERSION"),
    }
}

/// Hands the metrics what they read only when they are asked.
fn watch(
    metrics: &Metrics,
    limits: &[Arc<Limit>],
    bans: Option<&Arc<Bans>>,
    access_log: &Arc<AccessLog>,
    visits: &Arc<Counters<2>>,
) {
    for limit in limits {
        let (queue, keys, overflow) = (limit.clone(), limit.clone(), limit.clone());
        metrics.watch_queue_depth(limit.index, move || queue.waiting() as u64);
        metrics.watch_keys(limit.index, move || keys.keys() as u64);
        metrics.watch_overflow(limit.index, move || overflow.overflow());
        for variant in limit.adaptive() {
            let (slots, tier) = (limit.clone(), limit.config.tier_of(variant));
            metrics.watch_slots(limit.index, tier, move || slots.slots(variant));
        }
    }
    if let Some(bans) = bans.cloned() {
        metrics.watch_bans(move || bans.active(Now::read()) as u64);
    }
    let visits = visits.clone();
    // Closed first: a visit that ends in between must not make the number negative.
    metrics.watch_in_flight(move || {
        let closed = visits.sum(CLOSED);
        visits.sum(OPENED).saturating_sub(closed)
    });
    let access_log = access_log.clone();
    metrics.watch_dropped_lines(move || access_log.dropped());
}

/// The same of what is counted in the store.
fn watch_shared(metrics: &Metrics, store: Option<&Arc<Store>>, sides: &[Option<Arc<SharedLimit>>]) {
    let Some(store) = store.cloned() else { return };
    metrics.watch_store(move || store.reading());
    for side in sides.iter().flatten() {
        let limit = side.index();
        for (name, how) in config::OnFailure::WORDS {
            let side = side.clone();
            metrics.watch_instead(limit, name, move || side.instead(how));
        }
        let (spared, lost, queue, keys) = (side.clone(), side.clone(), side.clone(), side.clone());
        metrics.watch_spared(limit, move || spared.spared());
        metrics.watch_lost(limit, move || lost.lost());
        metrics.watch_queue_depth(limit, move || queue.waiting() as u64);
        metrics.watch_keys(limit, move || keys.keys() as u64);
    }
}

/// The same of how servers stand, and what is tried again.
fn watch_upstreams(metrics: &Metrics, upstreams: &[Arc<Upstream>]) {
    for upstream in upstreams.iter().filter(|upstream| !upstream.is_demo()) {
        for (word, reason) in config::Reason::WORDS {
            let upstream = upstream.clone();
            metrics.watch_retries(upstream.index, word, move || upstream.retried(reason));
        }
        let unbudgeted = upstream.clone();
        metrics.watch_unbudgeted(upstream.index, move || unbudgeted.unbudgeted());
        for server in &upstream.servers {
            metrics.watch_server(upstream.index, server.place, |what| {
                let server = server.clone();
                Box::new(move || match what {
                    ServerFact::Up => u64::from(server.is_healthy()),
                    ServerFact::Ejected => u64::from(server.is_ejected()),
                    ServerFact::Draining => u64::from(server.is_draining()),
                    ServerFact::InFlight => u64::from(server.in_flight()),
                    ServerFact::Ejections => server.ejections(),
                    ServerFact::ChecksPassed => server.checks()[0],
                    ServerFact::ChecksFailed => server.checks()[1],
                })
            });
        }
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
