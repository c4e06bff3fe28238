//! What goes on when another gateway follows: counters, bans, the store and the log.

use std::io;
use std::sync::Arc;

use super::Gateway;
use crate::admission::ban::Bans;
use crate::admission::chain::Waiting;
use crate::base::clock::Now;
use crate::base::ip_set::{IpSet, IpSets};
use crate::config::{self, Config};
use crate::limit::Limit;
use crate::limit::bandwidth::Bandwidth;
use crate::observe::access_log::AccessLog;
use crate::shared;
use crate::shared::{SharedLimit, Store};

// === impl Gateway ===

impl Gateway {
    /// Makes the numbers of this gateway count, for requests of the one before it as well: to be called once, right
    /// before it is shown to requests. Nothing can fail any more. `clock` is read under each lock.
    pub fn apply(&self, clock: &dyn Fn() -> Now) {
        self.limits.iter().for_each(|limit| limit.apply(clock));
        self.shared.iter().flatten().for_each(|limit| limit.apply(clock));
        self.serve_store();
        self.bans.iter().for_each(|bans| bans.apply(clock));
    }

    /// Has the store count for the limits of this gateway.
    pub fn serve_store(&self) {
        if let Some(store) = &self.store {
            store.serve(&self.shared.iter().flatten().collect::<Vec<_>>());
        }
    }

    /// Why this gateway cannot be followed by one of `next` without a restart.
    pub fn refuses(&self, next: &Config) -> Option<String> {
        let (workers, wanted) = (self.server.workers, next.server.workers);
        if workers != wanted {
            return Some(format!("server.workers changes from {workers} to {wanted}: that needs a restart"));
        }
        if self.config.admin != next.admin {
            let shown = |admin: &Option<config::Admin>| match admin {
                Some(admin) => admin.listen.to_string(),
                None => "none".to_owned(),
            };
            let (before, after) = (shown(&self.config.admin), shown(&next.admin));
            let hosts = |admin: &Option<config::Admin>| admin.as_ref().map(|admin| admin.hosts.clone());
            let what = match before == after {
                true if hosts(&self.config.admin) != hosts(&next.admin) => "its hosts".to_owned(),
                true => "its token".to_owned(),
                false => format!("{before} to {after}"),
            };
            return Some(format!("admin changes ({what}): that needs a restart"));
        }
        let differs = self.config.log.format != next.log.format;
        differs.then(|| "log.format changes: that needs a restart".to_owned())
    }
}

/// What a previous gateway has under the name of `limit`.
fn named<'a, T>(
    previous: Option<&'a Gateway>,
    limit: &config::Limit,
    of: impl Fn(&'a Gateway) -> &'a [T],
) -> Option<&'a T> {
    let previous = previous?;
    let place = previous.limits.iter().position(|known| *known.name == *limit.name)?;
    of(previous).get(place)
}

pub(super) fn limits(config: &Config, sets: &[Arc<IpSet>], previous: Option<&Gateway>) -> Vec<Arc<Limit>> {
    let limit = |(index, limit): (usize, &config::Limit)| {
        let before = named(previous, limit, |previous| &previous.limits).map(|before| &**before);
        let mut live = Limit::after(before, index, limit, config.state.max_keys);
        live.bypass = IpSets::new(&limit.bypass, sets);
        Arc::new(live)
    };
    config.limits.iter().enumerate().map(limit).collect()
}

pub(super) fn shared(config: &Config, previous: Option<&Gateway>) -> Vec<Option<Arc<SharedLimit>>> {
    let side = |(index, limit): (usize, &config::Limit)| {
        let on_failure = limit.shared?;
        let before = named(previous, limit, |previous| &previous.shared).and_then(Option::as_deref);
        let side = SharedLimit::after(before, index, limit, on_failure, config.state.max_keys);
        Some(Arc::new(side))
    };
    config.limits.iter().enumerate().map(side).collect()
}

/// The store, and what holds it in use.
pub(super) fn store(config: &Config, previous: Option<&Gateway>) -> Option<(Arc<Store>, Arc<()>)> {
    let redis = config.state.redis.as_ref()?;
    let same = previous.filter(|previous| previous.config.state.redis.as_ref() == Some(redis));
    if let Some(known) = same.and_then(|previous| previous.store.clone().zip(previous.store_users.clone())) {
        return Some(known);
    }
    let store = Store::new(redis, previous.and_then(|previous| previous.store.as_deref()));
    store.load(shared::Script::take());
    Some((store, Arc::default()))
}

pub(super) fn bans(config: &Config, previous: Option<&Gateway>) -> Option<Arc<Bans>> {
    let bans = config.bans.as_ref()?;
    let shared = config.state.store == config::Store::Redis;
    let same = previous.filter(|previous| !shared || previous.config.state.redis == config.state.redis);
    let before = same.and_then(|previous| previous.bans.as_deref());
    Some(Arc::new(Bans::after(before, bans, config.state.max_keys, shared)))
}

pub(super) fn waiting(config: &Config, previous: Option<&Gateway>) -> Arc<Waiting> {
    let max = config.server.max_waiting;
    Arc::new(previous.map_or_else(|| Waiting::new(max), |previous| previous.waiting.with_max(max)))
}

/// The buckets of a location whose bandwidth stays as it is go on.
pub(super) fn bandwidth(
    config: &Config,
    location: &config::Location,
    own: &config::Bandwidth,
    previous: Option<&Gateway>,
) -> Arc<Bandwidth> {
    let known = previous.and_then(|previous| {
        let is_same = |(known, _): &(&config::Location, _)| {
            (&known.name, &known.hosts, &known.methods, known.bandwidth.as_ref())
                == (&location.name, &location.hosts, &location.methods, Some(own))
        };
        let (_, route) = previous.config.locations.iter().zip(&previous.routes).find(is_same)?;
        route.bandwidth.as_ref().map(|(bandwidth, _)| bandwidth.clone())
    });
    known.unwrap_or_else(|| Arc::new(Bandwidth::new(own, config.state.max_keys)))
}

pub(super) fn access_log(config: &Config, previous: Option<&Gateway>) -> io::Result<Arc<AccessLog>> {
    let before = previous.map(|previous| &*previous.access_log);
    let log = AccessLog::after(before, &config.access_log, config.server.workers);
    log.map(Arc::new)
        .map_err(|error| io::Error::new(error.kind(), format!("cannot open the access log: {error}")))
}
