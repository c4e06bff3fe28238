//! The servers of a store, and the server that each key belongs to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::*};

use super::server::StoreServer;

/// The hash slots of a Cluster.
pub(super) const SLOTS: u16 = 16384;
/// The owner of a slot that no server owns.
pub(super) const NO_OWNER: u16 = u16::MAX;

/// The servers and their slots; replaced as a whole when the servers change.
pub(super) struct Topology {
    pub servers: Vec<Arc<StoreServer>>,
    /// The index of each slot's owner in `servers`, in a Cluster.
    owners: Option<Box<[AtomicU16]>>,
}

// === impl Topology ===

impl Topology {
    /// One server for all keys, or none yet.
    pub(super) fn with_server(server: Option<Arc<StoreServer>>) -> Topology {
        Topology { servers: server.into_iter().collect(), owners: None }
    }

    /// `owners`: for each slot the index of its owner in `servers`, or [`NO_OWNER`].
    pub(super) fn with_owners(servers: Vec<Arc<StoreServer>>, owners: &[u16]) -> Topology {
        let owners = owners.iter().map(|&owner| AtomicU16::new(owner)).collect();
        Topology { servers, owners: Some(owners) }
    }

    /// Assigns new owners to the slots; the servers stay the same.
    pub(super) fn assign_owners(&self, owners: &[u16]) {
        for (slot, &owner) in self.owners.iter().flatten().zip(owners) {
            slot.store(owner, Relaxed);
        }
    }

    /// The index of the server that owns `slot`.
    pub(super) fn owner_of(&self, slot: u16) -> Option<usize> {
        let index = match &self.owners {
            None => 0,
            Some(owners) => usize::from(owners.get(usize::from(slot))?.load(Relaxed)),
        };
        (index < self.servers.len()).then_some(index)
    }

    /// Assigns `slot` to the server at `index`.
    pub(super) fn move_slot(&self, slot: u16, index: usize) {
        if let (Some(owners), Ok(index)) = (&self.owners, u16::try_from(index))
            && let Some(owner) = owners.get(usize::from(slot))
        {
            owner.store(index, Relaxed);
        }
    }
}

/// The slot of all keys with `{tag}` in their names: CRC-16/XMODEM modulo 16384, as in the Redis Cluster
/// specification.
pub(super) fn slot_of_tag(tag: &[u8]) -> u16 {
    let step = |crc: u16, &byte: &u8| {
        (0..8).fold(
            crc ^ u16::from(byte) << 8,
            |crc, _| if crc >> 15 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 },
        )
    };
    tag.iter().fold(0, step) % SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SharedKey;

    #[test]
    fn slots_are_those_of_the_specification() {
        // `CLUSTER KEYSLOT` of Redis 7.0; the first is the check value of the CRC.
        for (tag, slot) in [("123456789", 0x31C3 % SLOTS), ("", 0), ("foo", 12182), ("user1000", 3443)] {
            assert_eq!(slot_of_tag(tag.as_bytes()), slot, "{tag}");
        }
        assert_eq!(slot_of_tag(&SharedKey([0; 16]).tag()), slot_of_tag(b"AAAAAAAAAAAAAAAAAAAAAA"));
    }
}
