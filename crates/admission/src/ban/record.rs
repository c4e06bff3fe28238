//! The record of one client in the table of bans.

use super::strikes::{StrikePool, Strikes};
use sluicegate_base::clock::{ClockShift, Now};
use sluicegate_limit::table::TableEntry;
use sluicegate_limit::table::persistent::{PersistentEntry, take_bytes};

/// The strikes and the last ban of one client.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ClientRecord {
    pub strikes: Strikes,
    /// The end of its last ban; 0 if there was none.
    pub banned_until: u64,
    /// The moment from which the record no longer matters.
    pub idle_at: u64,
    pub repeats: u32,
}

impl TableEntry for ClientRecord {
    type Extra = StrikePool;

    fn is_idle(&self, now: Now) -> bool {
        self.idle_at <= now.0
    }

    /// A shared overflow record never counts anything, so a newcomer inherits nothing.
    fn inherit_overflow(&self) -> Option<ClientRecord> {
        Some(ClientRecord::default())
    }

    fn release_extra(mut self, pool: &mut StrikePool) {
        self.strikes.clear(pool);
    }
}

impl PersistentEntry for ClientRecord {
    fn encode_entry(&self, pool: &StrikePool, out: &mut Vec<u8>) {
        self.strikes.encode_into(pool, out);
        out.extend(self.banned_until.to_le_bytes());
        out.extend(self.idle_at.to_le_bytes());
        out.extend(self.repeats.to_le_bytes());
    }

    fn decode_entry(mut bytes: &[u8], shift: ClockShift, _: &mut StrikePool) -> Option<ClientRecord> {
        let strikes = Strikes::decode_from(&mut bytes, shift)?;
        let banned_until = u64::from_le_bytes(take_bytes(&mut bytes)?);
        let record = ClientRecord {
            strikes,
            // 0 means that there was no ban, so no time may become 0.
            banned_until: if banned_until == 0 { 0 } else { shift.translate_ns(banned_until).max(1) },
            idle_at: shift.translate_ns(u64::from_le_bytes(take_bytes(&mut bytes)?)),
            repeats: u32::from_le_bytes(take_bytes(&mut bytes)?),
        };
        bytes.is_empty().then_some(record)
    }
}
