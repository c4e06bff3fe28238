//! The record of a client in the table of bans: its last ban, and the times of its strikes, an exact count over the
//! last period in bounded memory.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

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

/// The strikes of one client: the newest ones here, the earlier ones in the shard's pool, oldest first.
///
/// Where the pool has no room, a strike is counted at the time of the one before it: it counts for a shorter time
/// than it should, so no client is banned for strikes that lie too far apart.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Strikes {
    newest: u64,
    newest_count: u32,
    older_count: u32,
    first: PoolIndex,
    last: PoolIndex,
}

/// An index into the pool, counted from 1; 0 means none.
type PoolIndex = u32;

/// The strike times of the clients of one shard.
#[derive(Debug, Default)]
pub(super) struct StrikePool {
    times: Vec<StrikeTime>,
    free: PoolIndex,
}

/// Strikes of one moment.
#[derive(Debug, Clone, Copy)]
struct StrikeTime {
    at: u64,
    count: u32,
    next: PoolIndex,
}

// === impl ClientRecord ===

impl TableEntry for ClientRecord {
    type Extra = StrikePool;

    fn is_idle(&self, now: Now) -> bool {
        self.idle_at <= now.0
    }

    /// An overflow record never counts anything, so a newcomer inherits nothing.
    fn inherit_overflow(&self) -> Option<ClientRecord> {
        Some(ClientRecord::default())
    }

    fn release_extra(mut self, pool: &mut StrikePool) {
        self.strikes.clear(pool);
    }
}

impl PersistentEntry for ClientRecord {
    fn encode_entry(&self, pool: &StrikePool, out: &mut Vec<u8>) {
        // All strikes at the time of the oldest: no client is banned for detail that a snapshot lost.
        let Strikes { newest, newest_count, older_count, first, .. } = self.strikes;
        let oldest = (first as usize).checked_sub(1).and_then(|index| pool.times.get(index));
        out.extend(oldest.map_or(newest, |time| time.at).to_le_bytes());
        out.extend((older_count + newest_count).to_le_bytes());
        out.extend(self.banned_until.to_le_bytes());
        out.extend(self.idle_at.to_le_bytes());
        out.extend(self.repeats.to_le_bytes());
    }

    fn decode_entry(bytes: &mut &[u8], shift: ClockShift, _: &mut StrikePool) -> Option<ClientRecord> {
        let newest = shift.translate_ns(u64::from_le_bytes(take_bytes(bytes)?));
        let newest_count = u32::from_le_bytes(take_bytes(bytes)?);
        let banned_until = u64::from_le_bytes(take_bytes(bytes)?);
        let record = ClientRecord {
            strikes: Strikes { newest, newest_count, ..Strikes::default() },
            // 0 means that there was no ban, so no time may become 0.
            banned_until: if banned_until == 0 { 0 } else { shift.translate_ns(banned_until).max(1) },
            idle_at: shift.translate_ns(u64::from_le_bytes(take_bytes(bytes)?)),
            repeats: u32::from_le_bytes(take_bytes(bytes)?),
        };
        // Far more than any ban needs, with room to add as many again.
        (newest_count <= 1 << 30).then_some(record)
    }
}

// === impl Strikes ===

impl Strikes {
    /// Adds one strike and returns the number of strikes in the last `period_ns`. `budget`: the times that the pools of
    /// all shards may still add.
    pub(super) fn add_strike(
        &mut self,
        now: Now,
        period_ns: u64,
        pool: &mut StrikePool,
        budget: &AtomicUsize,
    ) -> u32 {
        self.expire_old(now, period_ns, pool);
        if self.newest_count == 0 || now.0 > self.newest && self.pool_newest(pool, budget) {
            (self.newest, self.newest_count) = (now.0, 1);
        } else {
            self.newest_count += 1;
        }
        self.older_count + self.newest_count
    }

    pub(super) fn clear(&mut self, pool: &mut StrikePool) {
        pool.release_times(self.first, self.last);
        *self = Strikes::default();
    }

    fn expire_old(&mut self, now: Now, period_ns: u64, pool: &mut StrikePool) {
        if now.ns_since(Now(self.newest)) >= period_ns {
            return self.clear(pool);
        }
        while let Some(oldest) = pool.time_at(self.first)
            && now.ns_since(Now(oldest.at)) >= period_ns
        {
            self.older_count -= oldest.count;
            let next = oldest.next;
            pool.release_times(self.first, self.first);
            self.first = next;
        }
        if self.first == 0 {
            self.last = 0;
        }
    }

    /// Moves the newest strikes behind the pooled ones; false if the pool has no room.
    fn pool_newest(&mut self, pool: &mut StrikePool, budget: &AtomicUsize) -> bool {
        let time = StrikeTime { at: self.newest, count: self.newest_count, next: 0 };
        let Some(link) = pool.insert_time(time, budget) else { return false };
        match pool.time_at(self.last) {
            Some(last) => last.next = link,
            None => self.first = link,
        }
        self.last = link;
        self.older_count += self.newest_count;
        true
    }
}

// === impl StrikePool ===

impl StrikePool {
    fn time_at(&mut self, link: PoolIndex) -> Option<&mut StrikeTime> {
        self.times.get_mut((link as usize).checked_sub(1)?)
    }

    /// Frees a list of times, given by its ends.
    fn release_times(&mut self, first: PoolIndex, last: PoolIndex) {
        let free = self.free;
        if let Some(last) = self.time_at(last) {
            last.next = free;
            self.free = first;
        }
    }

    fn insert_time(&mut self, time: StrikeTime, budget: &AtomicUsize) -> Option<PoolIndex> {
        let free = self.free;
        if let Some(slot) = self.time_at(free) {
            let next = std::mem::replace(slot, time).next;
            self.free = next;
            return Some(free);
        }
        let take_slot = || budget.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
        if self.times.len() >= PoolIndex::MAX as usize || take_slot().is_err() {
            return None;
        }
        self.times.push(time);
        Some(self.times.len() as PoolIndex)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PERIOD: u64 = 100;

    fn add(strikes: &mut Strikes, at: u64, pool: &mut StrikePool, budget: &AtomicUsize) -> u32 {
        strikes.add_strike(Now(at), PERIOD, pool, budget)
    }

    #[test]
    fn strikes_count_for_one_period() {
        let (mut strikes, mut pool, budget) =
            (Strikes::default(), StrikePool::default(), AtomicUsize::new(10));
        let counts: Vec<u32> = [1000, 1000, 1050, 1099, 1100, 1149, 1150, 2000]
            .map(|at| add(&mut strikes, at, &mut pool, &budget))
            .to_vec();
        assert_eq!(counts, [1, 2, 3, 4, 3, 4, 4, 1]);
    }

    #[test]
    fn a_late_strike_counts_from_the_newest_one() {
        let (mut strikes, mut pool, budget) =
            (Strikes::default(), StrikePool::default(), AtomicUsize::new(10));
        assert_eq!(add(&mut strikes, 1000, &mut pool, &budget), 1);
        assert_eq!(add(&mut strikes, 990, &mut pool, &budget), 2);
        assert_eq!(add(&mut strikes, 1099, &mut pool, &budget), 3);
    }

    #[test]
    fn without_room_strikes_count_for_less_than_a_period_and_never_longer() {
        let (mut strikes, mut pool, budget) =
            (Strikes::default(), StrikePool::default(), AtomicUsize::new(0));
        let counts: Vec<u32> =
            [1000, 1060, 1099, 1100].map(|at| add(&mut strikes, at, &mut pool, &budget)).to_vec();
        assert_eq!(counts, [1, 2, 3, 1], "all of them left with the first");
    }

    #[test]
    fn cleared_times_are_used_again() {
        let (mut pool, budget) = (StrikePool::default(), AtomicUsize::new(10));
        for round in 0..100 {
            let mut strikes = Strikes::default();
            (0..11).for_each(|n| {
                assert_eq!(add(&mut strikes, round * 1000 + n, &mut pool, &budget), n as u32 + 1)
            });
            strikes.clear(&mut pool);
        }
        assert_eq!(pool.times.len(), 10);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

        /// Compares several clients of one pool with plain lists of times.
        #[test]
        fn the_count_is_exact_and_with_too_little_room_never_too_high(
            steps in proptest::collection::vec((0..4_usize, 0..40_u64, 0..20_u8), 1..300),
            room in prop_oneof![Just(usize::MAX), 0..30_usize],
        ) {
            let (mut pool, budget) = (StrikePool::default(), AtomicUsize::new(room));
            let mut strikes = [Strikes::default(); 4];
            let mut times: [Vec<u64>; 4] = Default::default();
            let mut now = 1000;
            for (client, gap, clears) in steps {
                now += gap;
                if clears == 0 {
                    strikes[client].clear(&mut pool);
                    times[client].clear();
                }
                times[client].push(now);
                let exact = times[client].iter().filter(|at| **at > now - PERIOD).count() as u32;
                let counted = add(&mut strikes[client], now, &mut pool, &budget);
                prop_assert!(counted <= exact);
                prop_assert!(room < usize::MAX || counted == exact, "{} {}", counted, exact);
                prop_assert!(pool.times.len() <= room);
            }
        }
    }
}
