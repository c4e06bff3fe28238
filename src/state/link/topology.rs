//! Which servers there are, and which of them a key belongs to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::*};

use super::failure::Address;
use super::server::Server;

pub(super) const SLOTS: u16 = 16384;
/// Of a slot that nobody owns.
const NOBODY: u16 = u16::MAX;

/// Replaced as a whole when the servers change.
pub(super) struct Topology {
    pub servers: Vec<Arc<Server>>,
    /// Of a Cluster: the place of each slot's owner in `servers`.
    owners: Option<Box<[AtomicU16]>>,
}

// === impl Topology ===

impl Topology {
    /// One server for all keys, or none yet.
    pub(super) fn single(server: Option<Arc<Server>>) -> Topology {
        Topology { servers: server.into_iter().collect(), owners: None }
    }

    /// `ranges`: first slot, last slot, place of the owner.
    pub(super) fn cluster(servers: Vec<Arc<Server>>, ranges: &[(u16, u16, u16)]) -> Topology {
        let mut owners: Box<[AtomicU16]> = (0..SLOTS).map(|_| AtomicU16::new(NOBODY)).collect();
        for &(first, last, owner) in ranges {
            for slot in first..=last.min(SLOTS - 1) {
                *owners[usize::from(slot)].get_mut() = owner;
            }
        }
        Topology { servers, owners: Some(owners) }
    }

    /// The place of the server that owns `slot`.
    pub(super) fn owner(&self, slot: u16) -> Option<usize> {
        let place = match &self.owners {
            None => 0,
            Some(owners) => usize::from(owners.get(usize::from(slot))?.load(Relaxed)),
        };
        (place < self.servers.len()).then_some(place)
    }

    /// Notes that `slot` belongs to the server at `place` now.
    pub(super) fn hand_over(&self, slot: u16, place: usize) {
        if let (Some(owners), Ok(place)) = (&self.owners, u16::try_from(place))
            && let Some(owner) = owners.get(usize::from(slot))
        {
            owner.store(place, Relaxed);
        }
    }

    pub(super) fn find(&self, address: &Address) -> Option<usize> {
        self.servers.iter().position(|server| server.address == *address)
    }
}
