//! Adoption by the next gateway: counters, bans, the store and the access log that continue after a reload.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use http::Method;

use super::{Gateway, RequestLoad};
use sluicegate_admission::ban::Bans;
use sluicegate_admission::chain::WaitingCap;
use sluicegate_base::clock::Now;
use sluicegate_base::ip_set::{IpSet, IpSets};
use sluicegate_base::value_hash::{ValueHasher, sha256};
use sluicegate_http::net::acme_challenges::AcmeChallenges;
use sluicegate_http::request::body::BodyMemory;
use sluicegate_http::request::key::KeyHasher;
use sluicegate_http::upstream::{StickyCookie, Upstream, UpstreamPause};
use sluicegate_limit::Limit;
use sluicegate_limit::bandwidth::Bandwidth;
use sluicegate_model::{self as model, BODY_PEEK_AUTO, Config, LimitId, LocationConfig};
use sluicegate_observe::access_log::AccessLog;
use sluicegate_observe::metrics::cells::Counters;
use sluicegate_observe::traces::Tracer;
use sluicegate_store as store;
use sluicegate_store::{SharedLimit, SharedPause, SharedPauses, Store};

// === impl Gateway ===

impl Gateway {
    /// Puts the numbers of this gateway into force, also for requests of the previous one. Call it once, right before
    /// requests use this gateway. It cannot fail. `clock` is read under each lock.
    pub fn apply_numbers(&self, clock: &dyn Fn() -> Now) {
        self.limits.iter().for_each(|limit| limit.apply_numbers(clock));
        self.shared.iter().flatten().for_each(|limit| limit.apply_numbers(clock));
        self.attach_store();
        self.upstreams.iter().for_each(|upstream| upstream.apply_numbers());
        self.bans.iter().for_each(|bans| bans.apply_cap(clock));
        self.calls.throttles.apply_cap(self.config.state.max_keys, clock);
    }

    /// Tells the store which limits this gateway counts there.
    pub fn attach_store(&self) {
        if let Some(store) = &self.store {
            store.serve_limits(&self.shared.iter().flatten().collect::<Vec<_>>());
        }
    }

    /// Why the configuration `next` needs a restart; `None` if a reload is enough.
    pub fn restart_reason(&self, next: &Config) -> Option<String> {
        let (workers, next_workers) = (self.config.server.workers, next.server.workers);
        if workers != next_workers {
            return Some(format!(
                "server.workers changes from {workers} to {next_workers}: that needs a restart"
            ));
        }
        if self.config.admin != next.admin {
            let listen_text = |admin: &Option<model::AdminConfig>| {
                admin.as_ref().map_or("none".to_owned(), |admin| admin.listen.to_string())
            };
            let (before, after) = (listen_text(&self.config.admin), listen_text(&next.admin));
            let hosts = |admin: &Option<model::AdminConfig>| admin.as_ref().map(|admin| admin.hosts.clone());
            let what = match before == after {
                true if hosts(&self.config.admin) != hosts(&next.admin) => "its hosts".to_owned(),
                true => "its tokens".to_owned(),
                false => format!("{before} to {after}"),
            };
            return Some(format!("admin changes ({what}): that needs a restart"));
        }
        let differs = self.config.log.format != next.log.format;
        differs.then(|| "log.format changes: that needs a restart".to_owned())
    }
}

/// The limits of a gateway by name.
fn index_limits(previous: Option<&Gateway>) -> HashMap<&str, usize> {
    let limits = previous.map_or(&[][..], |previous| &previous.limits);
    // The first of equal names counts.
    limits.iter().enumerate().rev().map(|(index, limit)| (&*limit.name, index)).collect()
}

pub(super) fn build_limits(
    config: &Config,
    sets: &[Arc<IpSet>],
    previous: Option<&Gateway>,
) -> Vec<Arc<Limit>> {
    let known = index_limits(previous);
    let limit = |(index, limit): (usize, &model::LimitConfig)| {
        let before =
            known.get(&*limit.name).and_then(|&known| previous?.limits.get(known)).map(|before| &**before);
        let mut built = Limit::continue_from(before, LimitId(index), limit, config.state.max_keys);
        built.bypass = IpSets::new(&limit.bypass.written, &limit.bypass.sets, sets);
        Arc::new(built)
    };
    config.limits.iter().enumerate().map(limit).collect()
}

pub(super) fn build_shared_limits(
    config: &Config,
    previous: Option<&Gateway>,
) -> Vec<Option<Arc<SharedLimit>>> {
    let known = index_limits(previous);
    let is_same_store = previous.is_some_and(|previous| previous.config.state.redis == config.state.redis);
    let shared_limit = |(index, limit): (usize, &model::LimitConfig)| {
        let on_failure = limit.shared?;
        let before = known.get(&*limit.name).and_then(|&known| previous?.shared.get(known)?.as_deref());
        let mut shared_limit =
            SharedLimit::adopt_from(before, LimitId(index), limit, on_failure, config.state.max_keys);
        if !is_same_store {
            shared_limit.forget_leases();
        }
        Some(Arc::new(shared_limit))
    };
    config.limits.iter().enumerate().map(shared_limit).collect()
}

/// The store and its token of use, see [`super::StoreSharing::store_usage`].
pub(super) fn build_store(config: &Config, previous: Option<&Gateway>) -> Option<(Arc<Store>, Arc<()>)> {
    let redis = config.state.redis.as_ref()?;
    let same = previous.filter(|previous| previous.config.state.redis.as_ref() == Some(redis));
    if let Some(adopted) =
        same.and_then(|previous| previous.store.clone().zip(previous.sharing.store_usage.clone()))
    {
        return Some(adopted);
    }
    let store = Store::new(redis, previous.and_then(|previous| previous.store.as_deref()));
    store.load_script(store::LuaScript::counter_script());
    if config.limits.iter().any(|limit| limit.leased) {
        store.load_script(store::LuaScript::lease_script());
    }
    Some((store, Arc::default()))
}

pub(super) fn build_bans(config: &Config, previous: Option<&Gateway>) -> Option<Arc<Bans>> {
    let bans = config.bans.as_ref()?;
    let shared = config.state.store != model::StoreConfig::Local;
    let same = previous.filter(|previous| !shared || previous.config.state.redis == config.state.redis);
    let before = same.and_then(|previous| previous.bans.as_deref());
    Some(Arc::new(Bans::adopt_from(before, bans, config.state.max_keys, shared)))
}

/// The hasher of keys, with the secret of `previous`, so that keys keep their counters.
pub(super) fn build_keys(previous: Option<&Gateway>) -> KeyHasher {
    previous.map_or_else(KeyHasher::random, |previous| KeyHasher::from_secret(previous.keys.secret()))
}

pub(super) fn build_load(config: &Config, previous: Option<&Gateway>) -> RequestLoad {
    let before = previous.map(|previous| &previous.load);
    let server = &config.server;
    let peeks = config.locations.iter().map(LocationConfig::body_peek_bytes);
    let longest = peeks.chain([BODY_PEEK_AUTO]).max().unwrap_or(BODY_PEEK_AUTO);
    let (max, new_counts) = (server.max_waiting, || Arc::new(Counters::new(server.workers)));
    let memory = before.map(|before| &before.body_memory);
    RequestLoad {
        waiting: Arc::new(before.map_or_else(|| WaitingCap::new(max), |before| before.waiting.with_max(max))),
        body_memory: BodyMemory::adopt(memory, server.body_memory, longest, max as u64),
        in_flight: before.map_or_else(Arc::default, |before| before.in_flight.clone()),
        request_counts: before.map_or_else(new_counts, |before| before.request_counts.clone()),
    }
}

/// The buckets of each location of the previous gateway that has some.
pub(super) struct KnownBandwidths<'a>(
    HashMap<LocationRef<'a>, (&'a model::BandwidthConfig, &'a Arc<Bandwidth>)>,
);

/// All that narrows a location: the path as written, hosts, methods, scheme, listeners and conditions.
type LocationRef<'a> =
    (&'a str, &'a [model::HostRule], &'a [Method], Option<model::Scheme>, &'a [String], Vec<String>);

fn location_ref(location: &model::LocationConfig) -> LocationRef<'_> {
    let model::LocationConfig { written_path, hosts, methods, scheme, listeners, .. } = location;
    (written_path, hosts, methods, *scheme, listeners, location.when_identity())
}

impl KnownBandwidths<'_> {
    pub(super) fn new(previous: Option<&Gateway>) -> KnownBandwidths<'_> {
        let routes =
            previous.into_iter().flat_map(|previous| previous.config.locations.iter().zip(&previous.routes));
        let paced = routes.filter_map(|(location, route)| {
            let (bandwidth, _) = route.bandwidth.as_ref()?;
            Some((location_ref(location), (location.bandwidth.as_ref()?, bandwidth)))
        });
        KnownBandwidths(paced.collect())
    }

    /// The buckets of a location are adopted if its bandwidth is unchanged.
    pub(super) fn get_or_build(
        &self,
        config: &Config,
        location: &model::LocationConfig,
        own: &model::BandwidthConfig,
    ) -> Arc<Bandwidth> {
        match self.0.get(&location_ref(location)) {
            Some((known, bandwidth)) if *known == own => Arc::clone(bandwidth),
            _ => Arc::new(Bandwidth::new(own, config.state.max_keys)),
        }
    }
}

/// `store` tells the secret of hashes and cookies, as far as it was told; else it follows from that of `keys`, which a
/// snapshot keeps.
pub(super) fn find_secret(store: Option<&Store>, keys: &KeyHasher) -> [u8; 16] {
    // It tells nothing of the secret that it comes from.
    let derived = || sha256(&[&keys.secret()[..], b"names"].concat());
    store.and_then(Store::shared_secret).unwrap_or_else(derived)
}

/// The cookies of all upstreams; those without a secret of their own follow `access_log.hash_secret`, or else `secret`.
pub(super) fn build_sticky(config: &Config, secret: [u8; 16]) -> Vec<Option<StickyCookie>> {
    let secret = config.access_log.hash_secret.as_ref().map_or(&secret[..], |own| own.0.as_bytes());
    config.upstreams.iter().map(|upstream| StickyCookie::new(upstream, secret)).collect()
}

pub(super) fn open_access_log(
    config: &Config,
    previous: Option<&Gateway>,
    secret: [u8; 16],
) -> io::Result<Arc<AccessLog>> {
    let before = previous.map(|previous| &*previous.access_log);
    let log = AccessLog::continue_from(before, &config.access_log, config.server.workers);
    log.map(|log| Arc::new(log.with_shared_secret(secret)))
        .map_err(|error| io::Error::new(error.kind(), format!("cannot open the access log: {error}")))
}

/// The tracing; its hashes of keys have the secret of the access log, even where that shows keys in clear.
pub(super) fn build_tracer(
    config: &Config,
    access_log: &AccessLog,
    previous: Option<&Gateway>,
) -> Option<Arc<Tracer>> {
    let secret = config.access_log.hash_secret.as_ref();
    let from_secret = || secret.map(|secret| ValueHasher::from_secret(&secret.0));
    let hasher = access_log.hasher().cloned().or_else(from_secret);
    let before = previous.and_then(|previous| previous.tracer.as_ref());
    Tracer::continue_from(before, &config.tracing, hasher)
}

/// `None` = no certificate is ordered.
pub(super) fn build_acme(config: &Config, previous: Option<&Gateway>) -> Option<Arc<AcmeChallenges>> {
    let is_used = !config.acme_certificates().is_empty();
    is_used.then(|| previous.and_then(|previous| previous.acme.clone()).unwrap_or_default())
}

/// `None` = there is no store, or no upstream may push back.
pub(super) fn build_pauses(config: &Config, previous: Option<&Gateway>) -> Option<Arc<SharedPauses>> {
    config.state.redis.as_ref()?;
    config.upstreams.iter().find(|upstream| upstream.obey.is_some())?;
    Some(previous.and_then(|previous| previous.sharing.pauses.clone()).unwrap_or_default())
}

impl Gateway {
    /// Tells the other gateways of a pause.
    #[cold]
    pub(super) fn tell_pause(&self, upstream: &Upstream, pause: UpstreamPause) {
        if let Some(pauses) = &self.sharing.pauses {
            pauses.tell_pause(SharedPause { upstream: upstream.name.clone(), pause });
        }
    }

    /// Heeds the pauses that any gateway told, as far as they are new.
    pub fn use_pauses(&self, pauses: &[SharedPause]) {
        let now = Now::read_clock();
        for told in pauses {
            if let Some(upstream) = self.upstreams.iter().find(|upstream| upstream.name == told.upstream) {
                upstream.adopt_pause(&told.pause, now);
            }
        }
    }
}
