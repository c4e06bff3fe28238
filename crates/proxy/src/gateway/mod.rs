//! The immutable gateway of one configuration: the only place that turns configuration into live objects.
//!
//! A reload builds the next [`Gateway`] beside the current one. It adopts every object that kept its identity
//! (counters, queues, bans, upstreams, the store, the access log) and takes effect only with
//! [`Gateway::apply_numbers`].

mod adopt;
pub mod auth;
mod bans;
mod call_service;
mod domains;
mod grants;
mod handover;
pub mod heavy_keys;
mod key_reset;
mod limit_chain;
mod limit_changes;
mod metric_sources;
mod operator_changes;
mod operator_entries;
mod operator_state;
mod step_events;
mod step_telling;
pub mod usage;
pub mod worker;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use http::{HeaderName, HeaderValue, StatusCode};

use crate::reject::header_edits::CompiledEdits;
use crate::reject::{CompiledTemplate, Rejecters};
use adopt::KnownBandwidths;
use auth::RouteAuth;
pub use bans::{ActiveBan, BanOrigin, EndedBans};
pub use call_service::{CallService, CallerFault};
pub use domains::{Domain, DomainRule, Domains, RuleList};
pub use grants::{ActiveGrant, GrantFault, NewGrant};
pub use handover::{HandoverCounters, SavedNumbers};
pub use key_reset::{KeyRef, KeyResetDone, KeyResetFault, SharedRates};
use limit_chain::BuiltLimits;
pub use limit_chain::{ChainPlace, LimitChain};
pub use limit_changes::{FOREVER_NS, LimitChangeFault, LostChange};
pub use operator_changes::{OperatorChange, OperatorFault, OperatorOutcome};
pub use operator_entries::{ban_entry_name, grant_entry_name, write_changes, write_grant};
pub use operator_state::SavedOperatorState;
use sluicegate_admission::ban::Bans;
use sluicegate_admission::chain::WaitingCap;
use sluicegate_admission::operator_bans::OperatorBans;
use sluicegate_base::clock::Now;
use sluicegate_base::ip_set::IpSet;
use sluicegate_http::net::acme_challenges::AcmeChallenges;
use sluicegate_http::net::deadline::ticks_for;
use sluicegate_http::request::access::Access;
use sluicegate_http::request::account::Tiers;
use sluicegate_http::request::body::BodyMemory;
use sluicegate_http::request::client::ClientIp;
use sluicegate_http::request::cors::Cors;
use sluicegate_http::request::headers::copied_headers::CopiedHeaders;
use sluicegate_http::request::headers::forwarded::ForwardedHeaders;
use sluicegate_http::request::headers::hop_by_hop;
use sluicegate_http::request::headers::underscores::UnderscoreFilter;
use sluicegate_http::request::key::{KeyHasher, KeyNaming, KeySpec};
use sluicegate_http::request::location::{Locations, PathEdits};
use sluicegate_http::request::source::{BodyPlan, KeySet, TokenVerification, TokenVerifier};
use sluicegate_http::upstream::{ResponseCounts, Server, StickyCookie, Upstream, UpstreamStatus};
use sluicegate_limit::Limit;
use sluicegate_limit::bandwidth::Bandwidth;
use sluicegate_limit::snapshot::SnapshotSource;
use sluicegate_limit::table::persistent::SnapshotTable;
use sluicegate_model::{self as model, Config, HeaderEdits, HostHeader, LimitId, LocationId};
use sluicegate_observe::access_log::AccessLog;
use sluicegate_observe::metrics::Metrics;
use sluicegate_observe::metrics::cells::Counters;
use sluicegate_observe::traces::Tracer;
use sluicegate_store::{SharedLimit, SharedPauses, Store};
pub use step_events::{NotifyResult, StepEvent, StepEvents, WAITING_MAX};

/// Slots of [`RequestLoad::request_counts`].
pub const REQUESTS_OPENED: usize = 0;
/// The slot of requests that have ended.
pub const REQUESTS_CLOSED: usize = 1;

static GENERATION: AtomicU64 = AtomicU64::new(1);

/// Everything that judging and forwarding a request needs.
pub struct Gateway {
    /// Distinguishes the gateways of this process.
    pub generation: u64,
    /// The configuration it was built from.
    pub config: Config,
    /// The rules to find the client's address.
    pub clients: ClientIp,
    /// The rules to tell callers apart beside their addresses.
    pub callers: CallerRules,
    /// The rules for header fields that hold for every location.
    pub headers: HeaderRules,
    /// The search for the location of a request.
    pub locations: Locations,
    /// A location has `cors`, so an OPTIONS may be a preflight.
    pub answers_preflights: bool,
    /// One for each location, in file order; with a rate-limit service, then that of calls that name limits.
    pub routes: Vec<Route>,
    unlocated: UnlocatedRules,
    /// The bans of clients that were rejected too often; `None` = `bans` is `none`.
    pub bans: Option<Arc<Bans>>,
    /// The bans that operators set, which a reload keeps.
    pub operator_bans: Arc<OperatorBans>,
    /// The steps of quotas that keys reached, which a reload keeps.
    pub step_events: Arc<StepEvents>,
    /// The rate-limit service, with leases that a reload keeps.
    pub calls: CallService,
    /// The prepared responses to rejections and faults.
    pub rejecters: Rejecters,
    /// The limits, by their [`LimitId`].
    pub limits: Vec<Arc<Limit>>,
    /// The shared side of each limit that is counted in the store.
    pub shared: Vec<Option<Arc<SharedLimit>>>,
    /// `None` = no limit is counted in the store.
    pub store: Option<Arc<Store>>,
    /// The knowledge shared with other gateways.
    pub sharing: StoreSharing,
    /// The hasher of keys; a reload keeps its secret.
    pub keys: KeyHasher,
    /// The upstreams, by their index in [`Config::upstreams`].
    pub upstreams: Vec<Arc<Upstream>>,
    /// The cookies of upstreams with `sticky`, by the index of the upstream.
    sticky: Vec<Option<StickyCookie>>,
    /// The secret that hashes and cookies without one of their own are made with.
    pub secret: [u8; 16],
    /// The servers of all upstreams, by their index.
    pub servers: Vec<Arc<Server>>,
    /// The requests that wait or are in flight.
    pub load: RequestLoad,
    /// The metrics, which a reload continues.
    pub metrics: Arc<Metrics>,
    /// The access log that the workers write to.
    pub access_log: Arc<AccessLog>,
    /// `None` = no spans are made.
    pub tracer: Option<Arc<Tracer>>,
    /// The challenges of open orders, which a reload keeps; `None` = no certificate is ordered.
    pub acme: Option<Arc<AcmeChallenges>>,
}

/// How callers are told apart, beside their addresses.
pub struct CallerRules {
    /// `None` = no tiers are configured.
    pub tiers: Option<Tiers>,
    /// The verification of tokens; `None` = none are read.
    pub tokens: Option<TokenVerification>,
    /// The account or the tier is a claim of tokens.
    identified_by_token: bool,
}

/// The fields of requests and responses that are written, edited and removed for every location.
pub struct HeaderRules {
    /// The request header fields that only trusted proxies may set.
    pub forwarded: ForwardedHeaders,
    /// Request header fields that a `Connection` field cannot remove.
    pub protected: Vec<HeaderName>,
    /// The filter of request header fields with an underscore in their names.
    pub underscores: UnderscoreFilter,
    /// Request header fields that no client may send; `None` = no answer of an auth service is copied.
    pub copied: Option<CopiedHeaders>,
    /// The edits of `server.headers`, for responses that no location makes.
    pub response_edits: CompiledEdits,
}

/// The rules of requests that no location serves.
struct UnlocatedRules {
    /// The limits of `server.limits`.
    chain: LimitChain,
    /// The parts of their bodies that are read; `None` = nothing.
    body_plan: Option<Arc<BodyPlan>>,
    /// `None` = every client is allowed and limited.
    access: Option<Arc<Access>>,
}

/// The knowledge that this gateway shares with others by the store.
pub struct StoreSharing {
    /// A token of use: while a gateway keeps it, [`Store::supervise_for`] supervises the store.
    pub store_usage: Option<Arc<()>>,
    /// The pauses of upstreams that all gateways of the store know; `None` = none are shared.
    pub pauses: Option<Arc<SharedPauses>>,
}

/// The requests that wait or are in flight, which continue after a reload.
pub struct RequestLoad {
    /// The cap on waiting requests of the whole process.
    pub waiting: Arc<WaitingCap>,
    /// Room for the bodies that are read before judging.
    pub body_memory: Arc<BodyMemory>,
    /// The requests that `server.max_in_flight` bounds; none are counted without it.
    pub in_flight: Arc<AtomicUsize>,
    /// [`REQUESTS_OPENED`] minus [`REQUESTS_CLOSED`] requests are in flight.
    pub request_counts: Arc<Counters<2>>,
}

/// One location, ready to judge and to respond.
pub struct Route {
    /// The name of the location in logs and metrics.
    pub name: Arc<str>,
    /// The way in which admitted requests are answered.
    pub action: Action,
    /// The limits of `server.limits`, then those of the location.
    pub chain: LimitChain,
    /// The parts of request bodies that are read before judging; `None` = nothing.
    body_plan: Option<Arc<BodyPlan>>,
    /// `None` = every client is allowed and limited.
    pub access: Option<Arc<Access>>,
    /// False if its requests have no account, whatever they present.
    pub reads_account: bool,
    /// The changes to the path before it is forwarded; `None` = it stays.
    pub path_edits: Option<PathEdits>,
    /// Bytes of a request body; `None` = no limit.
    pub max_body: Option<u64>,
    /// The Host of forwarded requests.
    pub host_header: HostHeader,
    /// The edits of the header fields of forwarded requests, as configured.
    pub request_headers: HeaderEdits,
    /// The same, compiled.
    pub request_edits: CompiledEdits,
    /// The edits of `server.headers`, then its own.
    pub response_edits: CompiledEdits,
    /// The timeout of the whole request, in deadline ticks.
    pub timeout: Option<u64>,
    /// The bandwidth of response bodies, and its key.
    pub bandwidth: Option<(Arc<Bandwidth>, KeySpec)>,
    /// The rules for scripts of other origins; `None` = no `cors`.
    pub cors: Option<Arc<Cors>>,
    /// The service that decides on its requests; `None` = none is asked.
    pub auth: Option<Box<RouteAuth>>,
}

/// The way in which a location answers an admitted request.
pub enum Action {
    /// The request is forwarded to this upstream.
    Upstream(Arc<Upstream>),
    /// The location responds itself.
    Respond {
        /// The status of the response.
        status: StatusCode,
        /// The body, with its variables.
        body: CompiledTemplate,
        /// The value of `Content-Type`.
        content_type: HeaderValue,
    },
    /// The location redirects the client.
    Redirect {
        /// The value of `Location`, with its variables.
        to: CompiledTemplate,
        /// The status of the redirect.
        status: StatusCode,
    },
    /// The location tells the caller what is left of these limits.
    Usage(Vec<LimitId>),
}

impl Gateway {
    /// Builds the live objects of `config`, and adopts those of `previous` that are unchanged. The previous gateway
    /// is not affected before [`Gateway::apply_numbers`].
    ///
    /// # Errors
    /// The access log cannot be opened, or the self-test of token verification fails.
    pub fn build(config: &Config, previous: Option<&Gateway>) -> io::Result<Gateway> {
        let sets = config.ip_sets.iter().map(|set| Arc::new(IpSet::new(&set.networks))).collect::<Vec<_>>();
        let limits = adopt::build_limits(config, &sets, previous);
        let shared = adopt::build_shared_limits(config, previous);
        let built = BuiltLimits { config, limits: &limits, shared: &shared };
        let mut access_cache = AccessCache { known: HashMap::new(), sets: &sets };
        let upstreams = Upstream::build_all(config, previous.map_or(&[], |previous| &previous.upstreams));
        let bandwidths = KnownBandwidths::new(previous);
        let route = |location| Route::new(built, location, &upstreams, &mut access_cache, &bandwidths);
        let routes: Vec<_> = config.locations.iter().map(route).chain(Route::for_calls(built)).collect();
        let store = adopt::build_store(config, previous);
        let keys = adopt::build_keys(previous);
        let known_store = store.as_ref().map(|(store, _)| &**store);
        let secret = adopt::find_secret(known_store, &keys);
        let access_log = adopt::open_access_log(config, previous, secret)?;
        let tracer = adopt::build_tracer(config, &access_log, previous);
        let labels = metric_sources::build_labels(config, &upstreams);
        let metrics = Metrics::continue_from(previous.map(|previous| &*previous.metrics), labels);
        let load = adopt::build_load(config, previous);
        let bans = adopt::build_bans(config, previous);
        let operator_bans = previous.map_or_else(Arc::default, |previous| previous.operator_bans.clone());
        config.account.jwt.as_ref().map_or(Ok(()), |_| TokenVerifier::self_test())?;
        let unlocated = UnlocatedRules {
            chain: LimitChain::new(built, None),
            body_plan: limit_chain::build_body_plan(config, None),
            access: access_cache.get_or_build(&config.access),
        };
        let gateway = Gateway {
            generation: GENERATION.fetch_add(1, Ordering::Relaxed),
            config: config.clone(),
            clients: ClientIp::from(&config.server),
            callers: CallerRules::new(config, previous),
            headers: HeaderRules::new(config),
            locations: Locations::new(&config.locations),
            answers_preflights: routes.iter().any(|route| route.cors.is_some()),
            routes,
            unlocated,
            bans,
            operator_bans,
            step_events: previous.map_or_else(Arc::default, |previous| previous.step_events.clone()),
            calls: CallService::new(config, previous, Domains::new(built)),
            rejecters: Rejecters::new(config),
            limits,
            shared,
            store: store.as_ref().map(|(store, _)| store.clone()),
            sharing: StoreSharing {
                store_usage: store.map(|(_, usage)| usage),
                pauses: adopt::build_pauses(config, previous),
            },
            keys,
            sticky: adopt::build_sticky(config, secret),
            secret,
            servers: upstreams.iter().flat_map(|upstream| &upstream.servers).cloned().collect(),
            upstreams,
            load,
            metrics,
            access_log,
            tracer,
            acme: adopt::build_acme(config, previous),
        };
        gateway.watch_values();
        if previous.is_none() {
            gateway.attach_store();
        }
        Ok(gateway)
    }

    /// The limits of a location, or of none.
    #[inline]
    pub fn chain_for(&self, route: Option<LocationId>) -> &LimitChain {
        route.map_or(&self.unlocated.chain, |route| &self.routes[route.0].chain)
    }

    /// The plan for the bodies of a location's requests, or of those of none.
    #[inline]
    pub fn body_plan_for(&self, route: Option<LocationId>) -> Option<&Arc<BodyPlan>> {
        route.map_or(&self.unlocated.body_plan, |route| &self.routes[route.0].body_plan).as_ref()
    }

    /// The bytes that a request body of a location, or of none, may have; `None` = any number.
    #[inline]
    pub fn max_body_for(&self, route: Option<LocationId>) -> Option<u64> {
        route.map_or(self.config.server.max_body, |route| self.routes[route.0].max_body)
    }

    /// The objects that the names of keys refer to.
    pub fn key_naming(&self) -> KeyNaming<'_> {
        KeyNaming {
            clients: &self.clients,
            locations: &self.config.locations,
            identities: &self.locations,
            hashes_values: self.access_log.hasher().is_some(),
        }
    }

    /// The cookie of an upstream; `None` = it is not sticky.
    #[inline]
    pub fn sticky_cookie(&self, upstream: &Upstream) -> Option<&StickyCookie> {
        self.sticky.get(upstream.id.0)?.as_ref()
    }

    /// True if hashes or cookies are made with the secret that the store tells.
    pub fn uses_shared_secret(&self) -> bool {
        let Config { upstreams, access_log, .. } = &self.config;
        let seals_cookies =
            access_log.hash_secret.is_none() && upstreams.iter().any(|one| one.has_auto_secret());
        self.access_log.uses_shared_secret() || seals_cookies
    }

    /// The keys of issuers that are fetched.
    pub fn key_sets(&self) -> impl Iterator<Item = &Arc<KeySet>> {
        self.callers.tokens.iter().flat_map(TokenVerification::key_sets)
    }

    /// True if a claim identifies the caller at a location, or without one.
    pub fn reads_token(&self, route: Option<LocationId>) -> bool {
        route.is_none_or(|route| self.routes[route.0].reads_account)
            && (self.callers.identified_by_token || self.chain_for(route).reads_token)
    }

    /// The access rules of a location, or of none.
    #[inline]
    pub fn access_for(&self, route: Option<LocationId>) -> Option<&Access> {
        route.map_or(&self.unlocated.access, |route| &self.routes[route.0].access).as_deref()
    }
}

impl Gateway {
    /// The keys that hold counters of a limit; `None` = only the store knows them.
    pub fn count_keys(&self, limit: LimitId) -> Option<usize> {
        let limit = &self.limits[limit.0];
        match &self.shared[limit.id.0] {
            None => Some(limit.key_count()),
            Some(_) if limit.is_concurrency() => None,
            Some(shared) => Some(shared.keys()),
        }
    }

    /// The status of an upstream of this gateway and of its servers at `now`.
    pub fn upstream_status(&self, upstream: &Upstream, now: Now) -> UpstreamStatus {
        let mut status = upstream.status_at(now);
        status.responses = ResponseCounts::new(self.metrics.upstream_responses(upstream.id));
        for (server, shown) in upstream.servers.iter().zip(&mut status.servers) {
            let responses = self.metrics.server_responses(upstream.id, server.position);
            shown.responses = ResponseCounts::new(responses);
        }
        status
    }

    /// Requests that wait in the queues of a limit.
    pub fn count_waiting(&self, limit: LimitId) -> usize {
        let shared = self.shared[limit.0].as_ref().map_or(0, |shared| shared.waiting_count());
        self.limits[limit.0].waiter_count() + shared
    }
}

impl HeaderRules {
    fn new(config: &Config) -> HeaderRules {
        let protected = hop_by_hop::protected_names(config);
        HeaderRules {
            forwarded: ForwardedHeaders::from(&config.server),
            underscores: UnderscoreFilter::new(config, &protected),
            copied: CopiedHeaders::new(config),
            protected,
            response_edits: CompiledEdits::new([&config.server.headers]),
        }
    }
}

impl SnapshotSource for Gateway {
    fn snapshot_tables(&self) -> Vec<SnapshotTable<'_>> {
        // Read before the counters, which the grants have some of.
        let mut tables = vec![self.operator_table()];
        tables.extend(self.limits.snapshot_tables());
        tables.extend(self.bans.iter().filter_map(|bans| bans.saved_table()));
        tables.extend(self.shared.iter().flatten().flat_map(|limit| limit.saved_tables()));
        tables.extend(self.upstreams.iter().filter_map(|upstream| upstream.saved_pauses()));
        tables.push(self.calls.throttles.saved_table());
        tables
    }
}

impl Route {
    fn new<'a>(
        built: BuiltLimits<'a>,
        location: &'a model::LocationConfig,
        upstreams: &[Arc<Upstream>],
        access_cache: &mut AccessCache<'a>,
        bandwidths: &KnownBandwidths<'_>,
    ) -> Route {
        let config = built.config;
        let action = match &location.action {
            model::ActionConfig::Upstream(index) => Action::Upstream(upstreams[index.0].clone()),
            model::ActionConfig::Respond { status, body, content_type } => Action::Respond {
                status: *status,
                body: CompiledTemplate::for_body(body, content_type),
                content_type: content_type.clone(),
            },
            model::ActionConfig::Redirect { to, status } => {
                Action::Redirect { to: CompiledTemplate::for_url(to), status: *status }
            }
            model::ActionConfig::Usage { limits } => {
                Action::Usage(usage::find_shown(config, limits.as_deref()))
            }
        };
        Route {
            name: location.name.as_str().into(),
            action,
            chain: LimitChain::new(built, Some(location)),
            body_plan: limit_chain::build_body_plan(config, Some(location)),
            access: access_cache.get_or_build(&location.access),
            reads_account: location.reads_account,
            path_edits: PathEdits::new(location),
            max_body: location.max_body,
            host_header: location.host_header.clone(),
            request_headers: location.request_headers.clone(),
            request_edits: CompiledEdits::new([&location.request_headers]),
            response_edits: CompiledEdits::new([&config.server.headers, &location.response_headers]),
            timeout: location.timeout.map(ticks_for),
            bandwidth: location.bandwidth.as_ref().map(|own| {
                let keys = KeySpec::new(&own.key, model::MissingKey::Ip);
                (bandwidths.get_or_build(config, location, own), keys)
            }),
            cors: location.cors.as_ref().map(|cors| Arc::new(Cors::new(cors, &config.server.request_id))),
            auth: RouteAuth::new(built, location, upstreams),
        }
    }
}

/// Locations with equal access rules share one object.
struct AccessCache<'a> {
    known: HashMap<&'a model::AccessConfig, Option<Arc<Access>>>,
    sets: &'a [Arc<IpSet>],
}

impl<'a> AccessCache<'a> {
    fn get_or_build(&mut self, config: &'a model::AccessConfig) -> Option<Arc<Access>> {
        let sets = self.sets;
        self.known.entry(config).or_insert_with(|| Access::new(config, sets).map(Arc::new)).clone()
    }
}

impl CallerRules {
    fn new(config: &Config, previous: Option<&Gateway>) -> CallerRules {
        let account = &config.account;
        let previous = previous.and_then(|previous| previous.callers.tokens.as_ref());
        let verification = |jwt| TokenVerification::new(jwt, named_claims(config), previous);
        let is_claim = |source: &model::ValueSource| matches!(source, model::ValueSource::Jwt(_));
        CallerRules {
            tiers: Tiers::new(config),
            tokens: account.jwt.as_ref().map(verification),
            identified_by_token: account.from.iter().chain(&account.tier.from).any(is_claim),
        }
    }
}

/// Every claim that a source of the configuration names.
fn named_claims(config: &Config) -> Vec<String> {
    let of_limits = config.limits.iter().flat_map(|limit| limit.parts());
    let paced = config.locations.iter().filter_map(|location| location.bandwidth.as_ref());
    let obeyed = config.upstreams.iter().filter_map(|upstream| upstream.obey.as_ref());
    let of_keys = of_limits.chain(paced.flat_map(|own| &own.key)).chain(obeyed.flat_map(|own| &own.key));
    let of_keys = of_keys.filter_map(|part| match part {
        model::KeyPart::Source(source) => Some(source),
        _ => None,
    });
    let sources = config.account.from.iter().chain(&config.account.tier.from).chain(of_keys);
    let mut claims: Vec<String> = sources
        .filter_map(|source| match source {
            model::ValueSource::Jwt(claim) => Some(claim.clone()),
            _ => None,
        })
        .collect();
    claims.sort();
    claims.dedup();
    claims
}

#[cfg(test)]
mod operator_tests;
#[cfg(test)]
mod tests;
