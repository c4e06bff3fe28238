//! The stops that upstreams ask for, shared with the other gateways of the store.

use std::sync::Arc;

use super::Gateway;
use sluicegate_base::clock::Now;
use sluicegate_http::upstream::{Upstream, UpstreamStop};
use sluicegate_model::Config;
use sluicegate_store::{SharedStop, SharedStops};

/// `None` = there is no store, or no upstream is obeyed.
pub(super) fn build_stops(config: &Config, previous: Option<&Gateway>) -> Option<Arc<SharedStops>> {
    config.state.redis.as_ref()?;
    config.upstreams.iter().find(|upstream| upstream.obey.is_some())?;
    Some(previous.and_then(|previous| previous.stops.clone()).unwrap_or_default())
}

impl Gateway {
    /// Tells the other gateways of a stop.
    #[cold]
    pub fn tell_stop(&self, upstream: &Upstream, stop: UpstreamStop) {
        if let Some(stops) = &self.stops {
            stops.tell_stop(SharedStop { upstream: upstream.name.clone(), stop });
        }
    }

    /// Obeys the stops that any gateway told, as far as they are new.
    pub fn use_stops(&self, stops: &[SharedStop]) {
        let now = Now::read_clock();
        for shared in stops {
            if let Some(upstream) = self.upstreams.iter().find(|upstream| upstream.name == shared.upstream) {
                upstream.adopt_stop(&shared.stop, now);
            }
        }
    }
}
