//! The memory of the bodies that are read before judging, and the places of their requests meanwhile.
//!
//! A body takes room for each piece, as long as its shares then have enough left for the longest body. Otherwise it
//! waits for all the room that it may still need. The pieces of bodies that may wait always leave that much for the
//! first one that waits, so no bodies wait for each other. Bytes keep their room until they are dropped.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use sluicegate_limit::table::CounterKey;

/// A client, its network, and all clients.
const LEVELS: usize = 3;

/// Permits of each level.
type Permits = SmallVec<[OwnedSemaphorePermit; LEVELS]>;

/// The room of all bodies.
#[derive(Debug)]
pub struct BodyMemory {
    /// Bytes.
    room: ClientShares,
    /// No body takes more bytes than this.
    longest: u64,
    /// The weights in `server.max_waiting` of the requests with bodies that are being read.
    places: ClientShares,
}

/// An amount of which a network takes at most a quarter, and a client half of that. Each share serves those that wait
/// for it in their order.
#[derive(Debug)]
struct ClientShares {
    bounds: [u64; LEVELS],
    /// Shares by level and owner; some are no longer in use.
    shares: Mutex<HashMap<(usize, u128), Arc<Semaphore>>>,
}

/// The room of one body while that is read.
pub struct BodyRoom {
    shares: [Arc<Semaphore>; LEVELS],
    longest: u64,
    /// The most bytes that it may take.
    bound: u64,
    /// The body does not wait for room, and is read only as far as there is some.
    pub never_waits: bool,
    /// Bytes that the body has taken.
    taken: Cell<u64>,
    permits: RefCell<Permits>,
    is_waiting: Cell<bool>,
    _places: Permits,
}

/// Bytes with their room. They are dropped first, so that room is never counted free while it is used.
struct ReservedBytes {
    data: Bytes,
    _permits: Permits,
}

// === impl BodyMemory ===

impl BodyMemory {
    /// Room for `most` bytes, of which a body takes at most `longest`, and `max_waiting`. The same as before, unless
    /// the bounds differ; then bodies that are held already do not count.
    pub fn adopt(
        before: Option<&Arc<BodyMemory>>,
        most: u64,
        longest: u64,
        max_waiting: u64,
    ) -> Arc<BodyMemory> {
        let (room, places) = (ClientShares::new(most, longest), ClientShares::new(max_waiting, 1));
        let is_same = |before: &&Arc<BodyMemory>| {
            before.longest == longest
                && before.room.bounds == room.bounds
                && before.places.bounds == places.bounds
        };
        let same = before.filter(is_same).cloned();
        same.unwrap_or_else(|| Arc::new(BodyMemory { room, longest, places }))
    }

    /// Room for a body of at most `bound` bytes, of a request with this `weight`. `None`: other bodies of the client or
    /// its network take too many places.
    pub fn begin_reading(&self, client: CounterKey, weight: u64, bound: u64) -> Option<BodyRoom> {
        // A single request is always admitted, however heavy.
        let places = try_take(&self.places.of(client), weight.min(self.places.bounds[0]), 0)?;
        let shares = self.room.of(client);
        let permits = RefCell::new(try_take(&shares, 0, 0)?);
        let (taken, is_waiting) = (Cell::new(0), Cell::new(false));
        let (longest, never_waits) = (self.longest, false);
        Some(BodyRoom { shares, longest, bound, never_waits, taken, permits, is_waiting, _places: places })
    }
}

impl ClientShares {
    /// Shares of `most`, each of which suffices for the `longest` body.
    fn new(most: u64, longest: u64) -> ClientShares {
        let bounds = [(most / 8).max(longest), (most / 4).max(longest), most];
        ClientShares { bounds, shares: Mutex::default() }
    }

    fn of(&self, client: CounterKey) -> [Arc<Semaphore>; LEVELS] {
        let mut shares = self.shares.lock();
        if shares.len() + LEVELS > shares.capacity() {
            shares.retain(|_, share| Arc::strong_count(share) > 1);
            // Half of the table is free then, so that most newcomers sweep nothing.
            let used = shares.len();
            shares.reserve(used.max(64));
        }
        let owners = [client.id, client.prefix.into(), 0];
        let share = |level| Arc::new(Semaphore::new(self.bounds[level] as usize));
        std::array::from_fn(|level| {
            shares.entry((level, owners[level])).or_insert_with(|| share(level)).clone()
        })
    }
}

/// Takes `amount` if each share has that and leaves `spare`.
fn try_take(shares: &[Arc<Semaphore>], amount: u64, spare: u64) -> Option<Permits> {
    let both = u32::try_from(amount + spare).ok()?;
    let taken = shares.iter().map(|share| share.clone().try_acquire_many_owned(both).ok());
    let mut permits = taken.collect::<Option<Permits>>()?;
    permits.iter_mut().for_each(|permit| drop(permit.split(spare as usize)));
    Some(permits)
}

// === impl BodyRoom ===

impl BodyRoom {
    /// Takes room until the body has `bytes`, and waits for it if need be; false: there is none, and it does not wait.
    pub async fn take(&self, bytes: u64) -> bool {
        let more = bytes.min(self.bound).saturating_sub(self.taken.get());
        if more == 0 {
            return true;
        }
        // A body that never waits leaves nothing to others, because it waits for none of them.
        let spare = if self.never_waits { 0 } else { self.longest };
        if let Some(permits) = try_take(&self.shares, more, spare) {
            self.taken.set(self.taken.get() + more);
            permits.into_iter().enumerate().for_each(|(level, permit)| self.keep(level, permit));
            return true;
        }
        if self.never_waits {
            return false;
        }
        self.is_waiting.set(true);
        let rest = u32::try_from(self.bound - self.taken.get()).unwrap_or(u32::MAX);
        for (level, share) in self.shares.iter().enumerate() {
            // Shares are never closed.
            if let Ok(permit) = share.clone().acquire_many_owned(rest).await {
                self.keep(level, permit);
            }
        }
        self.taken.set(self.bound);
        self.is_waiting.set(false);
        true
    }

    fn keep(&self, level: usize, permit: OwnedSemaphorePermit) {
        self.permits.borrow_mut()[level].merge(permit);
    }

    /// True while the body waits for room that others have.
    pub fn is_waiting(&self) -> bool {
        self.is_waiting.get()
    }

    /// The body is read: its bytes keep their room.
    pub fn hold(&self, data: Bytes) -> Bytes {
        let mut permits = self.permits.take();
        let excess = self.taken.replace(0).saturating_sub(data.len() as u64);
        permits.iter_mut().for_each(|permit| drop(permit.split(excess as usize)));
        Bytes::from_owner(ReservedBytes { data, _permits: permits })
    }
}

impl AsRef<[u8]> for ReservedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

#[cfg(test)]
mod tests;
