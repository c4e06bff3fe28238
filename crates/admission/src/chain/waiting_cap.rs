//! The process-wide cap on queued requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::mode::{ChainMode, Charge};

/// The process-wide cap on queued requests. A request that holds much memory counts as several.
#[derive(Debug)]
pub struct WaitingCap {
    max: usize,
    count: Arc<AtomicUsize>,
}

/// A request that may have to wait, and the cap that it then counts against.
#[derive(Clone, Copy)]
pub struct WaitingRequest<'a> {
    cap: &'a Arc<WaitingCap>,
    /// Bytes of memory that it holds; called only if it has to wait.
    held_bytes: &'a dyn Fn() -> usize,
    /// Time for which its upstream stops it, ns; 0 = not stopped. It waits where a queue allows that, without a slot.
    pub(super) hold_ns: u64,
    /// The longest wait that it accepts, ns.
    pub(super) max_wait_ns: u64,
}

/// The weight of a waiting request against the cap; dropping it gives the weight back.
pub struct WaitingPlace {
    cap: Arc<WaitingCap>,
    weight: u32,
}

// === impl WaitingCap ===

impl WaitingCap {
    /// Bytes of memory per unit of weight, so that the cap on waiting requests also bounds memory.
    const WEIGHT_BYTES: usize = 16 * 1024;

    pub fn new(max: usize) -> WaitingCap {
        WaitingCap { max, count: Arc::default() }
    }

    /// A different cap on the same set of waiting requests.
    pub fn with_max(&self, max: usize) -> WaitingCap {
        WaitingCap { max, count: self.count.clone() }
    }

    /// The weight of all requests that wait now.
    pub fn count_waiting(&self) -> usize {
        self.count.load(Relaxed)
    }
}

// === impl WaitingRequest ===

impl<'a> WaitingRequest<'a> {
    pub fn new(cap: &'a Arc<WaitingCap>, held_bytes: &'a dyn Fn() -> usize) -> WaitingRequest<'a> {
        WaitingRequest { cap, held_bytes, hold_ns: 0, max_wait_ns: u64::MAX }
    }

    /// The same request, which its upstream stops for so long.
    pub fn with_hold(self, hold_ns: u64) -> WaitingRequest<'a> {
        WaitingRequest { hold_ns, ..self }
    }

    /// The same request, which is rejected at once if it would have to wait longer than this.
    pub fn with_max_wait(self, max_wait_ns: u64) -> WaitingRequest<'a> {
        WaitingRequest { max_wait_ns, ..self }
    }

    /// True if it may wait for slots, for which no time is known.
    pub(super) fn accepts_wait(&self) -> bool {
        self.max_wait_ns > 0
    }

    /// Adds the request to the waiting ones; a look only checks whether it fits. `None`: it may not wait.
    pub fn take_place<M: ChainMode>(&self) -> Option<WaitingPlace> {
        let weight = self.compute_weight();
        let added = |count: usize| {
            let sum = count.checked_add(weight as usize).filter(|sum| *sum <= self.cap.max)?;
            Some(if M::CHARGES { sum } else { count })
        };
        self.cap.count.fetch_update(Relaxed, Relaxed, added).ok()?;
        Some(WaitingPlace { cap: self.cap.clone(), weight: if M::CHARGES { weight } else { 0 } })
    }

    /// Adds the request to the waiting ones. `None`: it may not wait.
    pub fn try_wait(&self) -> Option<WaitingPlace> {
        self.take_place::<Charge>()
    }

    /// The weight of the request: one for each started unit of memory, at least 1 and at most the whole cap.
    fn compute_weight(&self) -> u32 {
        let units = (self.held_bytes)().div_ceil(WaitingCap::WEIGHT_BYTES).min(self.cap.max).max(1);
        u32::try_from(units).unwrap_or(u32::MAX)
    }
}

impl<'a> From<&'a Arc<WaitingCap>> for WaitingRequest<'a> {
    /// A request of ordinary size.
    fn from(cap: &'a Arc<WaitingCap>) -> WaitingRequest<'a> {
        WaitingRequest { cap, held_bytes: &|| 0, hold_ns: 0, max_wait_ns: u64::MAX }
    }
}

// === impl WaitingPlace ===

impl WaitingPlace {
    pub fn weight(&self) -> u64 {
        self.weight.into()
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        self.cap.count.fetch_sub(self.weight as usize, Relaxed);
    }
}
