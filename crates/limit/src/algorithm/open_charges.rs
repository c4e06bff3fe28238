//! The charges of a shard, beside its entries: the resets of its keys, and their open reservations.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use crate::table::CounterKey;
use crate::{ChargeRecord, Epoch};

/// The charges of one shard of a table.
#[derive(Debug, Default)]
pub(crate) struct ShardCharges {
    /// The number of keys of the shard reset, or cut by a lower limit. It is added to the epoch of each charge, so that
    /// no charge taken before is refunded after it: the counter has forgotten that charge, and a refund would give more
    /// than a fresh one. Charges of other keys in the shard lose their refunds as well, which can only reject more.
    resets: Epoch,
    /// The charges that are not yet settled, at most as many as requests in flight, where the algorithm needs them.
    open: BTreeMap<OpenId, OpenCharge>,
}

/// The key, the moment and the epoch of charges.
type OpenId = (u128, u64, Epoch);

/// The open charges of a key at one moment.
#[derive(Debug, Clone, Copy, Default)]
struct OpenCharge {
    units: u64,
    /// All that a bucket was charged later, up to the moment of the next open charge.
    since: ChargedSpan,
}

/// Successive charges of a bucket, as ticks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ChargedSpan {
    /// The TAT of a bucket that was empty before them.
    pub tat: u128,
    pub ticks: u128,
}

/// The units of a key's open charges at one moment; `at_ns` is `None` for charges of an earlier epoch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpenUnits {
    pub at_ns: Option<u64>,
    pub units: u64,
}

// === impl ShardCharges ===

impl AsMut<ShardCharges> for ShardCharges {
    fn as_mut(&mut self) -> &mut ShardCharges {
        self
    }
}

impl ShardCharges {
    pub(crate) fn count_reset(&mut self, key: &CounterKey) {
        self.resets = self.resets.wrapping_add(1);
        while let Some(id) = self.open.range(key_range(key)).next().map(|(id, _)| *id) {
            self.open.remove(&id);
        }
    }

    /// A lower limit has cut units of a key, and those of a single charge are no longer known.
    pub(crate) fn forget_charges(&mut self) {
        self.resets = self.resets.wrapping_add(1);
    }

    /// The epoch of charges that are taken now, by parameters of the epoch `params`.
    #[inline]
    pub(crate) fn charge_epoch(&self, params: Epoch) -> Epoch {
        params.wrapping_add(self.resets)
    }

    pub(crate) fn open_charge(&mut self, key: &CounterKey, units: u64, charge: &ChargeRecord) {
        let open = self.open.entry(open_id(key, charge)).or_default();
        open.units = open.units.saturating_add(units);
    }

    /// Adds units to a charge, if it is open.
    pub(crate) fn extend_charge(&mut self, key: &CounterKey, units: u64, charge: &ChargeRecord) {
        if let Some(open) = self.open.get_mut(&open_id(key, charge)) {
            open.units = open.units.saturating_add(units);
        }
    }

    pub(crate) fn close_charge(&mut self, key: &CounterKey, units: u64, charge: &ChargeRecord) {
        let id = open_id(key, charge);
        let Some(open) = self.open.get_mut(&id) else { return };
        open.units = open.units.saturating_sub(units);
        if open.units > 0 {
            return;
        }
        let since = open.since;
        self.open.remove(&id);
        if let Some((_, before)) = self.open.range_mut(key_range_before(&id)).next_back() {
            before.since = before.since.followed_by(since);
        }
    }

    /// The open charges of a key, the oldest first.
    pub(crate) fn open_units(&self, key: &CounterKey, epoch: Epoch) -> impl Iterator<Item = OpenUnits> {
        self.open.range(key_range(key)).map(move |((_, at_ns, of), open)| OpenUnits {
            at_ns: Some(*at_ns).filter(|_| *of == epoch),
            units: open.units,
        })
    }

    /// Notes for the give-backs of earlier open charges that their bucket was charged at `at_ns`.
    pub(crate) fn add_to_span(&mut self, key: &CounterKey, at_ns: u64, charged: ChargedSpan) {
        if let Some((_, before)) = self.open.range_mut(key_range_before(&(key.id, at_ns, 0))).next_back() {
            before.since = before.since.followed_by(charged);
        }
    }

    /// All that a bucket was charged since an open charge of the present epoch; `None` if it is not known.
    pub(crate) fn charged_since(&self, key: &CounterKey, charge: &ChargeRecord) -> Option<ChargedSpan> {
        let id = open_id(key, charge);
        self.open.get(&id)?;
        let later = self.open.range(id..=*key_range(key).end());
        Some(later.fold(ChargedSpan::default(), |span, (_, open)| span.followed_by(open.since)))
    }

    /// Takes `ticks` out of the span behind the open charge before this one.
    pub(crate) fn shorten_charge(&mut self, key: &CounterKey, charge: &ChargeRecord, ticks: u128) {
        if let Some((_, before)) = self.open.range_mut(key_range_before(&open_id(key, charge))).next_back() {
            let ChargedSpan { tat, ticks: all } = before.since;
            before.since = ChargedSpan { tat: tat.saturating_sub(ticks), ticks: all.saturating_sub(ticks) };
        }
    }

    /// Rebuilds the spans of a bucket as if only the open charges had been made; `charged` gives the span of one, from
    /// its moment and its units.
    pub(crate) fn forget_closed(&mut self, key: &CounterKey, charged: impl Fn(u64, u64) -> ChargedSpan) {
        let mut next = ChargedSpan::default();
        for ((_, at_ns, _), open) in self.open.range_mut(key_range(key)).rev() {
            open.since = std::mem::replace(&mut next, charged(*at_ns, open.units));
        }
    }
}

fn open_id(key: &CounterKey, charge: &ChargeRecord) -> OpenId {
    (key.id, charge.since.at_ns(), charge.epoch)
}

fn key_range(key: &CounterKey) -> RangeInclusive<OpenId> {
    (key.id, 0, 0)..=(key.id, u64::MAX, Epoch::MAX)
}

/// The ids of the same key before `id`.
fn key_range_before(id: &OpenId) -> std::ops::Range<OpenId> {
    (id.0, 0, 0)..*id
}

// === impl ChargedSpan ===

impl ChargedSpan {
    pub(crate) fn followed_by(self, later: ChargedSpan) -> ChargedSpan {
        ChargedSpan { tat: (self.tat + later.ticks).max(later.tat), ticks: self.ticks + later.ticks }
    }
}
