//! The shell of all algorithms: a meter has the parameters of one rate and the table of its counters. It locks the
//! counter of a key, and the parameters that are in force there run their step on it.

use std::sync::Arc;
use std::task::Waker;

use super::open_charges::ShardCharges;
use super::queue::waking;
use crate::table::{CounterKey, OwnEntry, Table, TableEntry, TableParams};
use crate::{ChargeRecord, Decision, Epoch, Units};
use sluicegate_base::calendar::Anchor;
use sluicegate_base::clock::Now;

/// One rate of a limit with its counters, or the slots of a concurrency limit.
pub(crate) struct Meter<N: MeterParams> {
    pub(crate) params: Arc<N>,
    /// The meter judges by numbers of its own, and counts in the table of the limit's own rate.
    pub(crate) is_view: bool,
    pub(crate) table: Arc<Table<N::Entry, N>>,
}

/// The arguments of one meter, whatever its algorithm.
pub(crate) struct MeterSpec<'a, N: MeterParams> {
    pub keys_max: usize,
    /// The limit, as warnings name it.
    pub owner: &'a Arc<str>,
    pub settle_terms: SettleTerms,
    /// The meter of the same rate before a reload, which the new one continues.
    pub previous: Option<&'a Meter<N>>,
    /// The meter of the limit's own rate, in the table of which the rate of a view counts.
    pub counted_by: Option<&'a Meter<N>>,
}

/// The terms by which responses settle the charges of a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SettleTerms {
    /// Charges are settled, so a counter may hold debt.
    pub settles: bool,
    /// A response may clear a key, so that open reservations are known.
    pub clears: bool,
}

/// The parameters by which a meter counts.
pub(crate) trait MeterParams: TableParams<Self::Entry> + Sized {
    type Entry: TableEntry;

    /// The greatest cost of a class that can ever be accepted; of concurrency, the slots that each key has now.
    fn max_units(&self, class: u8) -> u64;
}

/// A counter under its lock: the entry of a key, and the data that the entries of its shard share.
pub(crate) type Locked<'a, N> =
    (&'a mut <N as MeterParams>::Entry, &'a mut <<N as MeterParams>::Entry as TableEntry>::Extra);

/// The decision on a charge, and the record of the units if they were taken.
pub(crate) type Charged = (Decision, Option<ChargeRecord>);

/// Parameters by which a rate judges.
pub(crate) trait RateParams: MeterParams<Entry: TableEntry<Extra: AsMut<ShardCharges>>> {
    /// The wakers that a step collects under the lock; without a queue there are none.
    type Wakers: Default + IntoIterator<Item = Waker>;
    /// The places of chains may have numbers of their own.
    const HAS_VIEWS: bool = false;

    fn epoch(&self) -> Epoch;

    /// The parameters of a view at the pace of those `in_force` in the table.
    fn at_pace_of(&self, _in_force: &Self) -> Option<Self> {
        None
    }

    /// Counts by another date of its account from now on, where windows begin by it; the counter must then be brought
    /// up to date.
    fn follow_anchor(&self, _: &mut Self::Entry, _: Anchor, _: Now) {}

    /// Brings a counter up to date: carries its debt, and lets the waiters go that are due.
    fn advance_entry(&self, counter: Locked<'_, Self>, now: Now, wakers: &mut Self::Wakers);

    /// Judges units and takes them unless it rejects. The counter is up to date; `overflow`: it is an overflow
    /// counter.
    fn charge_entry(&self, counter: Locked<'_, Self>, units: &Units, now: Now, overflow: bool) -> Charged;

    /// Judges units and takes none. The counter is up to date.
    fn peek_entry(&self, counter: Locked<'_, Self>, units: &Units, now: Now) -> Decision;

    /// The units that a class has left of its own part; `None` = there are no such parts.
    fn own_units(&self, _: Locked<'_, Self>, _class: u8, _now: Now) -> Option<u64> {
        None
    }

    /// Forgets the used units of a key, unless some of them wait; returns those.
    fn reset_entry(&self, counter: Locked<'_, Self>, now: Now, wakers: &mut Self::Wakers) -> u64;
}

// === impl MeterSpec ===

impl<N: RateParams> MeterSpec<'_, N> {
    /// The epoch of new parameters, which a view has from the limit's own rate. `is_same`: charges by the parameters
    /// before can still be refunded.
    pub(crate) fn next_epoch(&self, is_same: impl FnOnce(&N) -> bool) -> Epoch {
        match (self.counted_by, self.previous) {
            (Some(counted_by), _) => counted_by.params.epoch(),
            (None, Some(Meter { params, .. })) => params.epoch().wrapping_add((!is_same(params)).into()),
            (None, None) => 0,
        }
    }
}

// === impl Meter ===

impl<N: MeterParams> Meter<N> {
    /// A meter that counts in the table of the limit's own rate, of the previous meter, or in a new one.
    pub(crate) fn new(params: N, spec: &MeterSpec<'_, N>) -> Meter<N> {
        let params = Arc::new(params);
        let fresh = || Arc::new(Table::with_params(params.clone(), spec.keys_max, spec.owner.clone()));
        let table = spec.counted_by.or(spec.previous).map_or_else(fresh, |known| known.table.clone());
        Meter { params, is_view: spec.counted_by.is_some(), table }
    }
}

impl<N: RateParams> Meter<N> {
    /// Judges units and takes them unless it rejects.
    #[inline]
    pub(crate) fn charge_units(&self, units: &Units, now: Now) -> Charged {
        waking(|wakers| {
            self.table.update_entry(&units.key, now, |entry, extra, params, overflow| {
                follow_anchor(params, entry, units, now, overflow);
                params.advance_entry((entry, extra), now, wakers);
                self.judge_by(params, |params| params.charge_entry((entry, extra), units, now, overflow))
            })
        })
    }

    /// Judges units and takes none; waiters that are due depart.
    pub(crate) fn peek_units(&self, units: &Units, now: Now) -> Decision {
        waking(|wakers| {
            self.table.peek_either(&units.key, |entry, extra, params, overflow| {
                follow_anchor(params, entry, units, now, overflow);
                params.advance_entry((entry, extra), now, wakers);
                self.judge_by(params, |params| params.peek_entry((entry, extra), units, now))
            })
        })
    }

    /// The units of its class's own part that a key has left; `None` = the limit has no such parts.
    pub(crate) fn own_units(&self, key: &CounterKey, now: Now) -> Option<u64> {
        self.table.peek_either(key, |entry, extra, params, _| {
            self.judge_by(params, |params| params.own_units((entry, extra), key.class, now))
        })
    }

    /// Forgets what the key has used; its counter is then as that of a newcomer. While requests of it wait nothing is
    /// forgotten; returns the units that wait.
    pub(crate) fn reset_key(&self, key: &CounterKey, now: Now) -> OwnEntry<u64> {
        waking(|wakers| {
            self.table.update_own(key, now, |entry, extra, params| {
                let waiting = params.reset_entry((entry, extra), now, wakers);
                if waiting == 0 {
                    extra.as_mut().count_reset(key);
                }
                waiting
            })
        })
    }

    #[inline]
    fn judge_by<R>(&self, in_force: &N, judge: impl FnOnce(&N) -> R) -> R {
        match N::HAS_VIEWS && self.is_view {
            true => self.judge_by_view(in_force, judge),
            false => judge(in_force),
        }
    }

    /// Judges by the parameters of a view, at the pace that is in force in the table: a request may come from before a
    /// reload that has changed it.
    #[cold]
    fn judge_by_view<R>(&self, in_force: &N, judge: impl FnOnce(&N) -> R) -> R {
        match self.params.epoch() == in_force.epoch() {
            true => judge(&self.params),
            false => judge(self.params.at_pace_of(in_force).as_ref().unwrap_or(in_force)),
        }
    }
}

/// Accounts that share an overflow counter have no date in common.
#[inline]
fn follow_anchor<N: RateParams>(params: &N, entry: &mut N::Entry, units: &Units, now: Now, overflow: bool) {
    if let Some(anchor) = units.anchor.filter(|_| !overflow) {
        params.follow_anchor(entry, anchor, now);
    }
}
