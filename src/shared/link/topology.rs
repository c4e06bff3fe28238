//! Which servers there are, and which of them a key belongs to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::*};

use super::fault::StoreAddress;
use super::server::StoreServer;

/// Of a slot that nobody owns.
pub(super) const NO_OWNER: u16 = u16::MAX;

/// Replaced as a whole when the servers change.
pub(super) struct Topology {
    pub servers: Vec<Arc<StoreServer>>,
    /// Of a Cluster: the place of each slot's owner in `servers`.
    owners: Option<Box<[AtomicU16]>>,
}

// === impl Topology ===

impl Topology {
    /// One server for all keys, or none yet.
    pub(super) fn with_server(server: Option<Arc<StoreServer>>) -> Topology {
        Topology { servers: server.into_iter().collect(), owners: None }
    }

    /// `owners`: for each slot the place of its owner in `servers`, or [`NO_OWNER`].
    pub(super) fn with_owners(servers: Vec<Arc<StoreServer>>, owners: &[u16]) -> Topology {
        let owners = owners.iter().map(|&owner| AtomicU16::new(owner)).collect();
        Topology { servers, owners: Some(owners) }
    }

    /// The same servers, other owners.
    pub(super) fn assign_owners(&self, owners: &[u16]) {
        for (slot, &owner) in self.owners.iter().flatten().zip(owners) {
            slot.store(owner, Relaxed);
        }
    }

    /// The place of the server that owns `slot`.
    pub(super) fn owner_of(&self, slot: u16) -> Option<usize> {
        let place = match &self.owners {
            None => 0,
            Some(owners) => usize::from(owners.get(usize::from(slot))?.load(Relaxed)),
        };
        (place < self.servers.len()).then_some(place)
    }

    /// Notes that `slot` belongs to the server at `place` now.
    pub(super) fn move_slot(&self, slot: u16, place: usize) {
        if let (Some(owners), Ok(place)) = (&self.owners, u16::try_from(place))
            && let Some(owner) = owners.get(usize::from(slot))
        {
            owner.store(place, Relaxed);
        }
    }

    pub(super) fn find_server(&self, address: &StoreAddress) -> Option<usize> {
        self.servers.iter().position(|server| server.address == *address)
    }
}
