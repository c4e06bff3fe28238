//! leaky_bucket with shares: the classes of a key have queues of their own, which take turns by their floors.
//!
//! The TAT of a key runs to the end of the units that departed. A departure comes as soon as burst − 1 units or fewer
//! are ahead of the clock and one of the classes with waiters is within its `most`; of those the one with the smallest
//! lead is next ([`ClassQueue`]). A request passes at once if nothing holds it up: then all that wait are of classes
//! beyond their `most`. As other classes may come in between, a wait has an end, as with `fair_by`, which keeps the
//! order inside a class.
//!
//! `most` is a schedule of its own at mᶜ·r, with a burst of mᶜ·B and at least one unit. A waiter that turns of others
//! held up does not set it back, for up to one request of each class: else a class with `least` = `most` would lose at
//! every turn.
//!
//! In a full queue a newcomer of a class below its places takes that of the newest waiter of the class furthest above
//! its own. Waiters of a dry run are numbers alone.

mod params;
mod position;

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::task::Waker;

use smallvec::SmallVec;

use crate::algorithm::leaky_bucket::Turn;
use crate::algorithm::meter::{Locked, Meter, MeterParams};
use crate::algorithm::open_charges::ShardCharges;
use crate::algorithm::queue::{ClassQueue, NO_NODE, NewWaiter, ShardQueues, WaiterState, Wakers, waking};
use crate::algorithm::rate::{Level, TickRate};
use crate::algorithm::slab::Slab;
use crate::table::persistent::PersistentEntry;
use crate::table::{CounterKey, TableEntry};
use crate::{ChargeRecord, Epoch, Units};
use sluicegate_base::clock::{ClockShift, Now};
use sluicegate_model::{CLASSES_MAX, Shares};

pub(crate) struct ShareQueueParams {
    rate: TickRate,
    burst: u64,
    /// Units that may wait.
    queue: u64,
    /// The longest wait, in ticks and in ns.
    wait_max: u128,
    give_up_ns: Option<u64>,
    is_fair: bool,
    dry_run: bool,
    /// An operator has paused it: its waiters leave.
    is_paused: bool,
    shares: Arc<Shares>,
    classes: Box<[ClassQueueTerms]>,
    /// The waiters of all keys.
    waiting: Arc<AtomicUsize>,
    epoch: Epoch,
}

#[derive(Debug, Clone, Copy)]
struct ClassQueueTerms {
    /// Units of the queue that the class has for itself.
    places: u64,
    /// `most` in millionths and, in ticks times these, how far it may run ahead; `None` = the class may use all.
    most: Option<(u128, u128)>,
}

/// The counter of a key.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ShareQueueEntry {
    /// The units that departed.
    level: Level,
    /// The moment from which the counter says no more than a fresh one, ns.
    idle_from: u64,
    /// One more than the index of its classes; 0 = it has none.
    classes: u32,
}

/// The counters of a shard beside its entries.
#[derive(Default)]
pub(crate) struct ShareQueueShard {
    queues: ShardQueues,
    keys: Slab<KeyQueues>,
}

type ClassQueues = SmallVec<[ClassQueue; 4]>;

/// The classes of a key that has none yet.
const FRESH_CLASSES: &[ClassQueue] = &[ClassQueue::EMPTY; CLASSES_MAX + 1];

/// The classes of a key. Behind those of the file are classes of before a reload, until their last waiter has left.
#[derive(Default)]
struct KeyQueues {
    classes: ClassQueues,
    /// The moment at which all waiters have left, ns.
    end_ns: u64,
}

// === impl Meter ===

impl Meter<ShareQueueParams> {
    /// Units that fit when nothing is used.
    pub(crate) fn idle_capacity(&self) -> u64 {
        self.params.max_units(0)
    }

    pub(crate) fn waiter_count(&self) -> usize {
        self.params.waiting.load(Relaxed)
    }

    /// Units of a key that wait.
    pub(crate) fn waiting_units(&self, key: &CounterKey) -> u64 {
        self.table.peek_entry(key, |entry, shard, _| shard.queued_units(entry))
    }

    /// Takes units as if they had departed.
    pub(crate) fn spend_units(&self, units: &Units, now: Now) {
        self.table.update_entry(&units.key, now, |entry, shard, params, _| {
            let present = entry.level.clamp_now(now);
            params.pass_at_once((entry, shard), units, present);
            params.note_end((entry, shard));
        });
    }

    /// The whole chain accepted a newcomer that found the queue full: another waiter makes room for it, unless one has
    /// left meanwhile.
    pub(crate) fn displace_waiter(&self, key: &CounterKey, charge: &ChargeRecord, now: Now) {
        waking(|wakers| {
            self.table.update_existing(key, charge.overflow, |entry, shard, params| {
                params.depart_due((entry, shard), now, wakers);
                let victim = params.look_at(entry, shard, now).find_waiter_to_displace(charge.node);
                let Some((class, newest)) = victim else { return };
                let (queues, classes) = shard.parts(entry);
                queues.displace_waiter(&mut classes[class].queue, newest.node, wakers);
                params.waiting.fetch_sub(1, Relaxed);
                params.follow_change((entry, shard), wakers);
            })
        });
    }

    /// Gives a charge back: a waiter leaves its queue; a departure is undone as far as that is still exact. `now` is
    /// called only if a waiter may move up because of it.
    pub(crate) fn refund_charge(
        &self,
        key: &CounterKey,
        cost: u64,
        charge: &ChargeRecord,
        now: impl FnOnce() -> Now,
    ) {
        waking(|wakers| {
            self.table.update_charged(key, charge.overflow, |entry, shard, params| {
                let Some(entry) = entry else {
                    shard.queues.forget_waiter(charge.node);
                    return;
                };
                let (mut since, mut epoch) = (charge.since, charge.epoch);
                if charge.is_waiting() {
                    match params.remove_waiter((entry, shard), charge.node, wakers) {
                        Some((WaiterState::Departed(departed, then), _)) => (since, epoch) = (departed, then),
                        _ => return,
                    }
                }
                if epoch == shard.queues.charges.charge_epoch(params.epoch) {
                    params.undo_departure((entry, shard), (key.class, cost), since, now, wakers);
                }
            })
        });
    }

    /// Checks a waiter's turn. While it has to wait, its waker stays in the queue; once it may go, its node is freed
    /// and the charge stands like any other departure.
    pub(crate) fn check_turn(
        &self,
        key: &CounterKey,
        charge: &mut ChargeRecord,
        now: Now,
        waker: &Waker,
    ) -> Turn {
        if !charge.is_waiting() {
            return Turn::Go;
        }
        let node = charge.node;
        waking(|wakers| {
            self.table.update_charged(key, charge.overflow, |entry, shard, params| {
                let Some(entry) = entry else { return Turn::of_left(charge, &mut shard.queues) };
                params.depart_due((entry, shard), now, wakers);
                let until = shard.queues.wait_deadline(node);
                let is_in_time = until.is_none_or(|until| now < until);
                let (queues, classes) = shard.parts(entry);
                let class = ClassQueue::find_class(classes, queues, node);
                if let Some(class) = class.filter(|_| is_in_time) {
                    let is_first = queues.set_waker(classes[class].queue, node, waker, wakers);
                    let state = params.look_at(entry, shard, now);
                    let mut due = None;
                    match state.next_timer().filter(|_| is_first) {
                        Some((at, own)) if own == class => due = Some(Now(params.rate.ticks_to_ns(at))),
                        // A request that passed at once may have put another class first.
                        Some((_, other)) => shard.queues.wake_head(state.classes[other].queue, wakers),
                        None => {}
                    }
                    return Turn::wait_until(due, until);
                }
                charge.node = NO_NODE;
                match params.remove_waiter((entry, shard), node, wakers) {
                    Some((WaiterState::Departed(since, epoch), _)) => {
                        (charge.since, charge.epoch) = (since, epoch);
                        Turn::Go
                    }
                    Some((_, own)) => {
                        let class = params.shares.index(key.class);
                        Turn::Reject(params.look_at(entry, shard, now).accepted_after_ns(
                            class,
                            own.fair_hash,
                            now,
                        ))
                    }
                    None => Turn::Go,
                }
            })
        })
    }
}

// === impl ShareQueueParams ===

impl ShareQueueParams {
    /// Removes a waiter and its node; those behind it move up.
    fn remove_waiter(
        &self,
        (entry, shard): Locked<'_, Self>,
        node: u32,
        wakers: &mut Wakers,
    ) -> Option<(WaiterState, NewWaiter)> {
        let (queues, classes) = shard.parts(entry);
        let removed = match ClassQueue::find_class(classes, queues, node) {
            Some(class) => queues.remove_waiter(&mut classes[class].queue, node, wakers),
            None => return queues.remove_waiter(&mut { NO_NODE }, node, wakers),
        };
        self.waiting.fetch_sub(1, Relaxed);
        self.follow_change((entry, shard), wakers);
        removed
    }
}

// === impl ShareQueueShard ===

impl ShareQueueShard {
    fn classes(&self, entry: &ShareQueueEntry) -> &[ClassQueue] {
        self.keys.get(entry.classes.wrapping_sub(1)).map_or(FRESH_CLASSES, |key| &key.classes)
    }

    fn queued_units(&self, entry: &ShareQueueEntry) -> u64 {
        self.classes(entry).iter().map(|class| self.queues.queued_units(class.queue)).sum()
    }

    /// The queues of the shard, and the classes of a key.
    fn parts(&mut self, entry: &ShareQueueEntry) -> (&mut ShardQueues, &mut [ClassQueue]) {
        let key = self.keys.get_mut(entry.classes.wrapping_sub(1));
        (&mut self.queues, key.map_or(&mut [], |key| &mut key.classes))
    }
}

impl AsMut<ShardCharges> for ShareQueueShard {
    fn as_mut(&mut self) -> &mut ShardCharges {
        &mut self.queues.charges
    }
}

// === impl ShareQueueEntry ===

impl TableEntry for ShareQueueEntry {
    type Extra = ShareQueueShard;

    #[inline]
    fn is_idle(&self, now: Now) -> bool {
        self.idle_from <= now.0 && self.level.is_idle(now)
    }

    /// The waiters of an overflow counter are of another shard.
    fn inherit_overflow(&self) -> Option<ShareQueueEntry> {
        (self.classes == 0).then_some(*self)
    }

    fn release_extra(self, shard: &mut ShareQueueShard) {
        if let Some(index) = self.classes.checked_sub(1) {
            shard.keys.remove(index);
        }
    }
}

/// Waiters do not survive a restart, but their departures lapse, so that an upstream never sees more than the rate.
impl PersistentEntry for ShareQueueEntry {
    fn encode_entry(&self, shard: &ShareQueueShard, out: &mut Vec<u8>) {
        let end_ns = shard.keys.get(self.classes.wrapping_sub(1)).map_or(0, |key| key.end_ns);
        self.level.used_until(end_ns).encode_entry(&shard.queues.charges, out);
    }

    fn decode_entry(
        bytes: &mut &[u8],
        shift: ClockShift,
        shard: &mut ShareQueueShard,
    ) -> Option<ShareQueueEntry> {
        let level = Level::decode_entry(bytes, shift, &mut shard.queues.charges)?;
        Some(ShareQueueEntry { level, ..ShareQueueEntry::default() })
    }
}
