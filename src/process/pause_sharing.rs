//! Shares the pauses that upstreams ask for with the other gateways of the store.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::task::JoinSet;

use sluicegate_proxy::gateway::Gateway;
use sluicegate_store::{SharedStops, Store, share_stops};

/// The task that shares them, until dropped.
pub struct PauseSharing {
    stops: Arc<SharedStops>,
    store: Arc<Store>,
    _task: JoinSet<()>,
}

impl PauseSharing {
    /// Shares the pauses of the gateway in force if it has any to share; continues `before` with the same store.
    pub fn start(before: Option<PauseSharing>, current: &Arc<ArcSwap<Gateway>>) -> Option<PauseSharing> {
        let gateway = current.load_full();
        let (stops, store) = gateway.sharing.pauses.clone().zip(gateway.store.clone())?;
        // Its upstreams may push back only now.
        gateway.use_pauses(&stops.list_stops());
        let is_same =
            |before: &PauseSharing| Arc::ptr_eq(&before.stops, &stops) && Arc::ptr_eq(&before.store, &store);
        before.filter(is_same).or_else(|| {
            let current = current.clone();
            let sharing =
                share_stops(stops.clone(), store.clone(), move |told| current.load().use_pauses(told));
            let mut task = JoinSet::new();
            task.spawn_local(sharing);
            Some(PauseSharing { stops, store, _task: task })
        })
    }
}
