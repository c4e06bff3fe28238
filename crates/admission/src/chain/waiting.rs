//! The terms on which a request may wait: the process-wide cap on queued requests, and the queues in its way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::{ChainMode, ChainedLimit, RateDecision};
use sluicegate_base::clock::duration_ns;
use sluicegate_model::{Algorithm, LimitConfig};

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
    pub(super) pause_ns: u64,
    /// The longest wait that it accepts, ns.
    pub(super) max_wait_ns: u64,
}

/// The weight of a waiting request against the cap; dropping it gives the weight back.
pub struct WaitingPlace {
    cap: Arc<WaitingCap>,
    weight: u32,
}

/// The terms of the queue with the longest wait that a request passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueTerms {
    /// Index in [`super::Chain::limits`].
    pub limit_index: u16,
    /// The longest whole wait, ns.
    pub max_wait_ns: u64,
    /// The interval of its departures, ns.
    pub interval_ns: u64,
}

// === impl WaitingCap ===

impl WaitingCap {
    /// Bytes of memory per unit of weight, so that the cap on waiting requests also bounds memory.
    const WEIGHT_BYTES: usize = 16 * 1024;

    /// A cap on a new set of waiting requests; `max` is the most weight.
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
    /// A request without a pause that accepts any wait; `held_bytes` tells the memory that it holds.
    pub fn new(cap: &'a Arc<WaitingCap>, held_bytes: &'a dyn Fn() -> usize) -> WaitingRequest<'a> {
        WaitingRequest { cap, held_bytes, pause_ns: 0, max_wait_ns: u64::MAX }
    }

    /// The same request, which its upstream stops for so long.
    pub fn with_pause(self, pause_ns: u64) -> WaitingRequest<'a> {
        WaitingRequest { pause_ns, ..self }
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
        // One for each started unit of memory, at least 1 and at most the whole cap.
        let units = (self.held_bytes)().div_ceil(WaitingCap::WEIGHT_BYTES).min(self.cap.max).max(1);
        let weight = u32::try_from(units).unwrap_or(u32::MAX);
        let added = |count: usize| {
            let sum = count.checked_add(weight as usize).filter(|sum| *sum <= self.cap.max)?;
            Some(if M::CHARGES { sum } else { count })
        };
        self.cap.count.fetch_update(Relaxed, Relaxed, added).ok()?;
        Some(WaitingPlace { cap: self.cap.clone(), weight: if M::CHARGES { weight } else { 0 } })
    }
}

impl<'a> From<&'a Arc<WaitingCap>> for WaitingRequest<'a> {
    /// A request of ordinary size.
    fn from(cap: &'a Arc<WaitingCap>) -> WaitingRequest<'a> {
        WaitingRequest { cap, held_bytes: &|| 0, pause_ns: 0, max_wait_ns: u64::MAX }
    }
}

// === impl WaitingPlace ===

impl WaitingPlace {
    /// The weight against the cap; 0 after a look.
    pub fn weight(&self) -> u64 {
        self.weight.into()
    }
}

impl Drop for WaitingPlace {
    fn drop(&mut self) {
        self.cap.count.fetch_sub(self.weight as usize, Relaxed);
    }
}

// === impl QueueTerms ===

impl QueueTerms {
    /// The terms among the decisions on a request; `None` if no queue stands in front.
    pub fn find(limits: &[ChainedLimit], decisions: &[RateDecision]) -> Option<QueueTerms> {
        let terms = |judged: &RateDecision| {
            let limit = limits.get(usize::from(judged.limit_index)).filter(|_| !judged.dry_run)?;
            let (_, numbers, rate) = limit.config.locate_rate(judged.rate.into())?;
            let Algorithm::LeakyBucket { rates, max_wait } = numbers else { return None };
            let own = rates.get(rate).filter(|own| own.queue > 0)?;
            let interval = own.rate.period.as_nanos() / u128::from(own.rate.units.get());
            Some(QueueTerms {
                limit_index: judged.limit_index,
                max_wait_ns: max_wait.map_or(u64::MAX, duration_ns),
                interval_ns: u64::try_from(interval).unwrap_or(u64::MAX).max(1),
            })
        };
        let found = || decisions.iter().filter_map(terms);
        let best = found().max_by_key(|terms| terms.max_wait_ns)?;
        // Several rates of one limit all hold.
        let own = found().filter(|terms| terms.limit_index == best.limit_index);
        let interval_ns = own.map(|terms| terms.interval_ns).max().unwrap_or(best.interval_ns);
        Some(QueueTerms { interval_ns, ..best })
    }
}

/// The longest wait that any queue of a limit allows where the variant `own` stands for its own numbers, ns; 0 without
/// a queue.
pub fn longest_wait_ns(limit: &LimitConfig, own: usize) -> u64 {
    let waits = limit.variants_at(own).filter_map(|numbers| match numbers {
        Algorithm::LeakyBucket { rates, max_wait } if rates.iter().all(|own| own.queue > 0) => {
            Some(max_wait.map_or(u64::MAX, duration_ns))
        }
        _ => None,
    });
    waits.max().filter(|_| !limit.dry_run).unwrap_or(0)
}
