//! Shares the stops that upstreams ask for with the other gateways of the store.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::task::JoinHandle;

use sluicegate_proxy::gateway::Gateway;
use sluicegate_store::{SharedStops, Store, share_stops};

/// The task that shares them, until dropped.
pub struct StopSharing {
    stops: Arc<SharedStops>,
    store: Arc<Store>,
    task: JoinHandle<()>,
}

impl StopSharing {
    /// Shares the stops of the gateway in force if it has any to share; continues `before` with the same store.
    pub fn start(before: Option<StopSharing>, current: &Arc<ArcSwap<Gateway>>) -> Option<StopSharing> {
        let gateway = current.load_full();
        let (stops, store) = gateway.sharing.stops.clone().zip(gateway.store.clone())?;
        // Its upstreams may obey only now.
        gateway.use_stops(&stops.list_stops());
        let is_same =
            |before: &StopSharing| Arc::ptr_eq(&before.stops, &stops) && Arc::ptr_eq(&before.store, &store);
        before.filter(is_same).or_else(|| {
            let current = current.clone();
            let sharing =
                share_stops(stops.clone(), store.clone(), move |told| current.load().use_stops(told));
            let task = tokio::task::spawn_local(sharing);
            Some(StopSharing { stops, store, task })
        })
    }
}

impl Drop for StopSharing {
    fn drop(&mut self) {
        self.task.abort();
    }
}
