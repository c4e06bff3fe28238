//! The counts and flags by which a newcomer to the queue and a place that comes free find each other without a lock.
//!
//! The end of a request counts itself out, and a health check changes the flags of a server; both then read the number
//! of waiters. A newcomer announces itself and then looks for a place. All of it is sequentially consistent, so at
//! least one of two sees the other; otherwise a request could wait beside a free place. `tests/interleavings` tries
//! these steps in every order.

use crate::atomics::{AtomicU8, AtomicU32, AtomicUsize, Ordering, fence};

/// The requests in flight at one server.
#[derive(Default)]
pub(super) struct InFlightCount(AtomicU32);

/// The flags of one server: a set of bits.
#[derive(Default)]
pub(super) struct ServerFlags(AtomicU8);

/// The waiters of one queue, at times one more. Only the holder of the queue's lock changes it.
#[derive(Default)]
pub(super) struct WaiterCount(AtomicUsize);

// === impl InFlightCount ===

impl InFlightCount {
    #[inline]
    pub(super) fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Counts a request in and returns the count before it.
    #[inline]
    pub(super) fn add(&self) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }

    /// Counts a request in unless `most` are in flight; never more than `most`, not even for a moment.
    pub(super) fn try_add(&self, most: u32) -> bool {
        let count_in = |count| (count < most).then_some(count + 1);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, count_in).is_ok()
    }

    #[inline]
    pub(super) fn remove(&self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

// === impl ServerFlags ===

impl ServerFlags {
    #[inline]
    pub(super) fn get(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }

    /// True if it was not set before.
    pub(super) fn set(&self, flag: u8) -> bool {
        self.0.fetch_or(flag, Ordering::SeqCst) & flag == 0
    }

    /// True if it was set before.
    pub(super) fn clear(&self, flag: u8) -> bool {
        self.0.fetch_and(!flag, Ordering::SeqCst) & flag != 0
    }
}

// === impl WaiterCount ===

impl WaiterCount {
    #[inline]
    pub(super) fn is_zero(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }

    pub(super) fn set(&self, waiters: usize) {
        self.0.store(waiters, Ordering::SeqCst);
    }

    /// Counts a newcomer beside `waiters` others, before it looks for a place.
    pub(super) fn announce(&self, waiters: usize) {
        self.set(waiters + 1);
        // The search reads counts and flags of the servers relaxed.
        fence(Ordering::SeqCst);
    }
}
