//! Shares the changes of operators (bans, grants, resets), and the pauses that upstreams ask for, with the other
//! gateways of the store.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use sluicegate_base::clock::Now;
use sluicegate_proxy::gateway::Gateway;
use sluicegate_store::operator_entries::{OperatorEntries, share_entries};
use sluicegate_store::{KnownResets, SharedPauses, Store, share_pauses};

/// The changes that all gateways of a store know, and the task that shares them, until dropped.
pub(super) struct EntrySharing {
    pub entries: Arc<OperatorEntries>,
    store: Arc<Store>,
    _task: JoinSet<()>,
    known_resets: RefCell<KnownResets>,
}

// === impl EntrySharing ===

impl EntrySharing {
    /// Shares the changes of `gateway` if it has a store; continues `before` as far as it shares through the same one.
    /// `changed` is notified when a change is to be adopted.
    pub(super) fn start(
        before: Option<EntrySharing>,
        gateway: &Gateway,
        changed: &Rc<Notify>,
    ) -> Option<EntrySharing> {
        let store = gateway.store.as_ref()?;
        let sharing = match before {
            Some(before) if Arc::ptr_eq(&before.store, store) => before,
            before => {
                let entries = before.map(|before| before.entries).unwrap_or_default();
                let told = changed.clone();
                let sharing = share_entries(entries.clone(), store.clone(), move |_| told.notify_one());
                let mut task = JoinSet::new();
                task.spawn_local(sharing);
                EntrySharing { entries, store: store.clone(), _task: task, known_resets: RefCell::default() }
            }
        };
        for entry in gateway.operator_entries(Now::read_clock()) {
            if let Err(fault) = sharing.entries.restore(&entry) {
                tracing::warn!(%fault, "a change of operators is not shared with other gateways");
            }
        }
        // The limits may be others, for which other grants hold.
        changed.notify_one();
        Some(sharing)
    }

    /// Adopts the resets and bans of all gateways, as far as they are new.
    pub(super) fn use_entries(&self, gateway: &Gateway) {
        let living = self.entries.list_living();
        gateway.use_ban_entries(&living);
        for reset in self.known_resets.borrow_mut().take_new(&living) {
            reset.apply_to(gateway.shared.iter().flatten(), self.store.debts(), Now::read_clock());
        }
    }
}

/// The task that shares the pauses of upstreams, until dropped.
pub(super) struct PauseSharing {
    pauses: Arc<SharedPauses>,
    store: Arc<Store>,
    _task: JoinSet<()>,
}

impl PauseSharing {
    /// Shares the pauses of the gateway in force if it has any to share; continues `before` with the same store.
    pub(super) fn start(
        before: Option<PauseSharing>,
        current: &Arc<ArcSwap<Gateway>>,
    ) -> Option<PauseSharing> {
        let gateway = current.load_full();
        let (pauses, store) = gateway.sharing.pauses.clone().zip(gateway.store.clone())?;
        // Its upstreams may push back only now.
        gateway.use_pauses(&pauses.list_pauses());
        let is_same = |before: &PauseSharing| {
            Arc::ptr_eq(&before.pauses, &pauses) && Arc::ptr_eq(&before.store, &store)
        };
        before.filter(is_same).or_else(|| {
            let current = current.clone();
            let sharing =
                share_pauses(pauses.clone(), store.clone(), move |told| current.load().use_pauses(told));
            let mut task = JoinSet::new();
            task.spawn_local(sharing);
            Some(PauseSharing { pauses, store, _task: task })
        })
    }
}
