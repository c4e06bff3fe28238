//! fixed_window and sliding_window with shares: windows of which each class has a part for itself.
//!
//! Of N units, Nᶜ = ⌊fᶜ·N⌋ are for class c alone, and the rest is common. A class that has used more than its own part
//! has used the common one for the rest of it: so the used units of each class say everything. Nothing is lent.

use std::sync::Arc;
use std::task::Waker;

use smallvec::{SmallVec, smallvec};

use super::window_terms::WindowTerms;
use crate::algorithm::fixed_window::window_end;
use crate::algorithm::meter::{Charged, Locked, MeterParams, MeterSpec, RateParams};
use crate::algorithm::open_charges::{OpenUnits, ShardCharges};
use crate::algorithm::queue::NO_NODE;
use crate::algorithm::settle::{ForcedUnits, GivenBack, SettleParams};
use crate::algorithm::slab::Slab;
use crate::algorithm::window_quota::WindowQuota;
use crate::table::persistent::{PersistentEntry, take_bytes};
use crate::table::{CounterKey, TableEntry, TableParams};
use crate::{ChargeMark, ChargeRecord, Decision, Epoch, Units};
use sluicegate_base::clock::{self, ClockShift, Now};
use sluicegate_model::{BUCKETS_MAX, CLASSES_MAX, Rate, Shares, WindowAlign};

pub(crate) struct ShareWindowParams {
    quota: WindowQuota,
    /// The start of fixed windows; `None` = the window slides.
    align: Option<WindowAlign>,
    shares: Arc<Shares>,
    terms: WindowTerms,
}

/// The counter of a key.
#[derive(Clone, Copy, Default)]
pub(crate) struct ShareWindowEntry {
    /// The moment at which the newest units leave, ns.
    until: u64,
    /// One more than the index of its counts; 0 = nothing is used.
    counts: u32,
}

/// The counters of a shard beside its entries.
#[derive(Default)]
pub(crate) struct ShareWindowShard {
    charges: ShardCharges,
    counts: Slab<Counts>,
}

/// The used units of all classes in a sub-window after the other, the newest first.
type Counts = SmallVec<[u64; 4]>;

// === impl ShareWindowParams ===

impl ShareWindowParams {
    /// `buckets`: the sub-windows of a window that slides.
    pub(crate) fn new(
        rate: Rate,
        align: Option<WindowAlign>,
        buckets: u8,
        shares: &Arc<Shares>,
        spec: &MeterSpec<'_, ShareWindowParams>,
    ) -> ShareWindowParams {
        let quota = WindowQuota::new(rate, u64::MAX, spec, |before| &before.quota);
        let epoch = spec.next_epoch(|before| {
            (before.quota.period, before.align, &before.shares) == (quota.period, align, shares)
        });
        let (width, slots) = match align {
            Some(_) => (quota.period, 1),
            None => (quota.period.div_ceil(buckets.clamp(1, BUCKETS_MAX).into()), usize::from(buckets) + 1),
        };
        let terms = WindowTerms::new(quota.max, (width, slots), shares);
        let quota = WindowQuota { epoch, ..quota };
        ShareWindowParams { quota, align, shares: shares.clone(), terms }
    }

    /// Makes the sub-window of `now` the newest, and forgets those that have left.
    fn advance_window(&self, entry: &mut ShareWindowEntry, counts: &mut Counts, now: Now) {
        let (live, classes) = (self.terms.live_windows(entry.until, now.0), self.terms.parts.len());
        counts[live * classes..].fill(0);
        match self.align {
            Some(align) => {
                if counts.iter().all(|units| *units == 0) {
                    entry.until =
                        window_end(self.quota.period, align, entry.until, now, clock::unix_at_zero());
                }
            }
            None => entry.until = self.terms.slide(entry.until, counts, now.0, self.quota.period),
        }
    }

    fn judge(&self, (entry, shard): Locked<'_, Self>, class: u8, cost: u64, now: Now) -> Decision {
        let counts = shard.counts.get(entry.counts.wrapping_sub(1)).map_or(&[][..], |counts| counts);
        self.terms.build_decision((entry.until, counts), self.shares.index(class), cost, now.0)
    }
}

impl MeterParams for ShareWindowParams {
    type Entry = ShareWindowEntry;

    fn max_units(&self, class: u8) -> u64 {
        self.terms.max_units(self.shares.index(class))
    }
}

impl RateParams for ShareWindowParams {
    type Wakers = [Waker; 0];

    fn epoch(&self) -> Epoch {
        self.quota.epoch
    }

    #[inline]
    fn advance_entry(&self, _: Locked<'_, Self>, _: Now, _: &mut [Waker; 0]) {}

    fn charge_entry(
        &self,
        (entry, shard): Locked<'_, Self>,
        units: &Units,
        now: Now,
        overflow: bool,
    ) -> Charged {
        let class = self.shares.index(units.key.class);
        let live = self.terms.live_windows(entry.until, now.0);
        let known = shard.counts.get(entry.counts.wrapping_sub(1)).map_or(&[][..], |counts| counts);
        if units.cost > self.terms.room(&self.terms.used_units(known, live), class) {
            return (self.terms.build_decision((entry.until, known), class, units.cost, now.0), None);
        }
        if known.is_empty() {
            entry.counts = shard.counts.insert(smallvec![0; self.terms.slots * self.terms.parts.len()]) + 1;
        }
        let decision = match shard.counts.get_mut(entry.counts - 1) {
            Some(counts) => {
                self.advance_window(entry, counts, now);
                counts[class] = counts[class].saturating_add(units.cost);
                self.terms.build_decision((entry.until, counts), class, 0, now.0)
            }
            None => self.terms.build_decision((entry.until, &[]), class, 0, now.0),
        };
        let epoch = shard.charges.charge_epoch(self.quota.epoch);
        let since = ChargeMark::at_moment(entry.until);
        (decision, Some(ChargeRecord { since, node: NO_NODE, overflow, displaces: false, epoch }))
    }

    fn peek_entry(&self, counter: Locked<'_, Self>, units: &Units, now: Now) -> Decision {
        self.judge(counter, units.key.class, units.cost, now)
    }

    /// Its end stays: with `align: clock` the next charge belongs to the same window.
    fn reset_entry(&self, (entry, shard): Locked<'_, Self>, _: Now, _: &mut [Waker; 0]) -> u64 {
        if let Some(counts) = shard.counts.get_mut(entry.counts.wrapping_sub(1)) {
            counts.fill(0);
        }
        0
    }
}

impl SettleParams for ShareWindowParams {
    fn give_back(&self, (entry, shard): Locked<'_, Self>, given: &GivenBack<'_>, _: Now) {
        let earlier = entry.until.checked_sub(given.charge.since.at_ns());
        // A correction of the clock may have made a fixed window shorter than its width.
        let earlier = earlier.filter(|earlier| self.align.is_none() || *earlier == 0);
        let age = earlier.map(|earlier| earlier / self.terms.width);
        let index = age.map(|age| age as usize * self.terms.parts.len() + self.shares.index(given.key.class));
        let counts = shard.counts.get_mut(entry.counts.wrapping_sub(1));
        if let Some(units) = counts.zip(index).and_then(|(counts, index)| counts.get_mut(index)) {
            *units = units.saturating_sub(given.units);
        }
    }

    fn credit_units(&self, (entry, shard): Locked<'_, Self>, key: &CounterKey, units: u64, now: Now) {
        let (live, class) = (self.terms.live_windows(entry.until, now.0), self.shares.index(key.class));
        let Some(counts) = shard.counts.get_mut(entry.counts.wrapping_sub(1)) else { return };
        let own = counts.iter_mut().skip(class).step_by(self.terms.parts.len()).take(live);
        own.fold(units, |left, count| {
            let taken = left.min(*count);
            *count -= taken;
            left - taken
        });
    }

    /// The configuration has no shares of windows that responses settle.
    fn force_units(&self, _: Locked<'_, Self>, forced: &ForcedUnits<'_>, _: Now) -> u64 {
        forced.units
    }

    fn keep_open_units(&self, _: Locked<'_, Self>, _: &CounterKey, _: &[OpenUnits], _: Now) {}
}

impl TableParams<ShareWindowEntry> for ShareWindowParams {
    /// Counts the present units as charged now. Those of other classes count for the default one, and what does not fit
    /// there for all: the sum of what is used stays.
    fn convert_entry(&self, (entry, shard): Locked<'_, Self>, before: &Self, now: Now, _: &mut Vec<Waker>) {
        let (epoch, live) = (self.quota.epoch, before.terms.live_windows(entry.until, now.0));
        let Some(counts) = shard.counts.get_mut(entry.counts.wrapping_sub(1)) else { return };
        if epoch == before.quota.epoch && self.terms.slots == before.terms.slots {
            return;
        }
        let used = before.terms.used_units(counts, live);
        let mut kept: Counts = smallvec![0; self.terms.slots * self.terms.parts.len()];
        let mut fresh = ShareWindowEntry { until: 0, ..*entry };
        self.advance_window(&mut fresh, &mut kept, now);
        for (class, used) in before.shares.classes.iter().zip(&used) {
            let index = usize::from(self.shares.find_class(Some(class.name.as_bytes())));
            kept[index] = kept[index].saturating_add(*used);
        }
        self.terms.fill_parts(&mut kept);
        (*counts, *entry) = (kept, fresh);
    }
}

// === impl ShareWindowEntry ===

impl TableEntry for ShareWindowEntry {
    type Extra = ShareWindowShard;

    #[inline]
    fn is_idle(&self, now: Now) -> bool {
        self.counts == 0 || self.until <= now.0
    }

    /// The counts of an overflow counter are of another shard.
    fn inherit_overflow(&self) -> Option<ShareWindowEntry> {
        (self.counts == 0).then(ShareWindowEntry::default)
    }

    fn release_extra(self, shard: &mut ShareWindowShard) {
        if let Some(index) = self.counts.checked_sub(1) {
            shard.counts.remove(index);
        }
    }
}

impl PersistentEntry for ShareWindowEntry {
    fn encode_entry(&self, shard: &ShareWindowShard, out: &mut Vec<u8>) {
        let counts = shard.counts.get(self.counts.wrapping_sub(1)).map_or(&[][..], |counts| counts);
        out.extend(self.until.to_le_bytes());
        out.extend((counts.len() as u16).to_le_bytes());
        counts.iter().for_each(|units| out.extend(units.to_le_bytes()));
    }

    fn decode_entry(
        bytes: &mut &[u8],
        shift: ClockShift,
        shard: &mut ShareWindowShard,
    ) -> Option<ShareWindowEntry> {
        let until = shift.translate_ns(u64::from_le_bytes(take_bytes(bytes)?));
        let length = usize::from(u16::from_le_bytes(take_bytes(bytes)?));
        if length > (CLASSES_MAX + 1) * (usize::from(BUCKETS_MAX) + 1) {
            return None;
        }
        let counts: Option<Counts> =
            (0..length).map(|_| Some(u64::from_le_bytes(take_bytes(bytes)?))).collect();
        let counts = if length > 0 { shard.counts.insert(counts?) + 1 } else { 0 };
        Some(ShareWindowEntry { until, counts })
    }
}

// === impl ShareWindowShard ===

impl AsMut<ShardCharges> for ShareWindowShard {
    fn as_mut(&mut self) -> &mut ShardCharges {
        &mut self.charges
    }
}
