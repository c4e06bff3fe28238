//! The limits of a request, judged as one transaction: all accept and are charged, or none is charged.
//!
//! Limits are charged in chain order; when a later one rejects, the earlier charges are refunded, so a rejection
//! costs nothing. Limits that are counted in the store are asked about together, after the local ones have accepted.
//! Concurrency slots come last, so a waiting request holds none. Dropping the [`ChainPermit`] gives everything back;
//! there is no release function.

mod chain_pass;
mod claim;
mod peek;
mod pending_slots;
mod permit;
mod rejection;
mod store_fallback;
mod store_lease;
mod store_query;
mod store_round;
mod store_slots;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use smallvec::SmallVec;

use crate::base::clock::Now;
use crate::limit::{Decision, Limit, Units};
use crate::shared::{SharedKey, SharedLimit};

use chain_pass::ChainPass;
pub use peek::{ChainForecast, UnansweredLimit};
pub use permit::ChainPermit;
pub use rejection::{ChainCause, ChainRejection};

/// The demand of a request on one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitDemand {
    /// The limit does not apply to the request.
    Skip,
    /// The key is absent, and the limit rejects such requests.
    MissingKey,
    Units(Units),
    /// For a limit that is counted in the store, under this key.
    Shared(Units, SharedKey),
}

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
}

/// The limits a request passes, in the order they are judged.
#[derive(Clone)]
pub struct Chain {
    limits: Arc<[Arc<Limit>]>,
    /// The shared counterpart of each limit that is counted in the store; empty if none is.
    shared_limits: store_query::SharedLimits,
    /// The longest acceptable wait, ns.
    max_wait_ns: u64,
}

/// The decisions of all rates of a chain, in chain order. After a rejection they show the amounts without any charge.
pub type Decisions = SmallVec<[RateDecision; 4]>;

/// The verdict on one request, with the decisions behind it.
pub struct ChainJudgement {
    pub decisions: Decisions,
    pub verdict: ChainVerdict,
}

/// The decision of one rate of a limit. Concurrency limits, and limits that lack their key, have one only in a dry
/// run, where it is the only visible effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateDecision {
    /// Index of the limit in [`Chain::limits`].
    pub limit_index: u16,
    /// Index of the rate in the limit.
    pub rate: u16,
    /// Judged but not enforced.
    pub dry_run: bool,
    pub decision: Decision,
}

/// One decision per limit: that of its strictest rate.
#[inline]
pub fn strictest_by_limit(decisions: &[RateDecision]) -> impl Iterator<Item = RateDecision> {
    let strictness = |judged: &&RateDecision| {
        let Decision { outcome, retry_after_ns, wait_ns, .. } = judged.decision;
        (outcome, retry_after_ns, wait_ns)
    };
    let rates = decisions.chunk_by(|one, next| one.limit_index == next.limit_index);
    rates.filter_map(move |rates| rates.iter().max_by_key(strictness).copied())
}

/// The verdict of a chain on one request.
#[expect(clippy::large_enum_variant, reason = "the usual answer must not cost an allocation")]
pub enum ChainVerdict {
    Admit(ChainPermit),
    Reject(ChainRejection),
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

    fn is_full(&self) -> bool {
        self.count_waiting() >= self.max
    }

    fn add_weight(&self, weight: u32) -> bool {
        let with = |count: usize| count.checked_add(weight as usize).filter(|count| *count <= self.max);
        self.count.fetch_update(Relaxed, Relaxed, with).is_ok()
    }

    fn remove_weight(&self, weight: u32) {
        self.count.fetch_sub(weight as usize, Relaxed);
    }
}

// === impl WaitingRequest ===

impl<'a> WaitingRequest<'a> {
    pub fn new(cap: &'a Arc<WaitingCap>, held_bytes: &'a dyn Fn() -> usize) -> WaitingRequest<'a> {
        WaitingRequest { cap, held_bytes }
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
        WaitingRequest { cap, held_bytes: &|| 0 }
    }
}

// === impl Chain ===

impl Chain {
    /// A limit that is named twice counts a request once, at its first position.
    pub fn new(limits: Vec<Arc<Limit>>) -> Chain {
        let mut distinct: Vec<Arc<Limit>> = Vec::with_capacity(limits.len());
        for limit in limits {
            if !distinct.iter().any(|other| Arc::ptr_eq(other, &limit)) {
                distinct.push(limit);
            }
        }
        assert!(distinct.len() < usize::from(u16::MAX), "a chain has fewer than 65,535 limits");
        Chain { limits: distinct.into(), shared_limits: Arc::default(), max_wait_ns: u64::MAX }
    }

    /// Adds the limits that are counted in the store; `shared_limits` is indexed by [`Limit::id`].
    pub fn with_shared(self, shared_limits: &[Option<Arc<SharedLimit>>]) -> Chain {
        let counterpart = |limit: &Arc<Limit>| shared_limits.get(limit.id.0).cloned().flatten();
        let counterparts: Vec<_> = self.limits.iter().map(counterpart).collect();
        let any = counterparts.iter().any(Option::is_some);
        Chain { shared_limits: if any { counterparts.into() } else { Arc::default() }, ..self }
    }

    /// Rejects a request at once if it would wait longer than this; such a request displaces no other.
    pub fn with_max_wait(self, max_wait_ns: u64) -> Chain {
        Chain { max_wait_ns, ..self }
    }

    pub fn limits(&self) -> &[Arc<Limit>] {
        &self.limits
    }

    /// Judges one request at `now`. `demand_of` is called once per limit, in chain order.
    #[inline]
    pub fn judge(
        &self,
        now: Now,
        waiting: &Arc<WaitingCap>,
        demand_of: impl FnMut(&Limit) -> LimitDemand,
    ) -> ChainJudgement {
        let (mut decisions, mut permit) = (Decisions::new(), None);
        let rejection = self.judge_into(now, waiting, demand_of, &mut decisions, &mut permit);
        let verdict = match (rejection, permit) {
            (Some(rejection), _) => ChainVerdict::Reject(rejection),
            (None, Some(permit)) => ChainVerdict::Admit(permit),
            (None, None) => unreachable!("a request without a rejection has a permit"),
        };
        ChainJudgement { decisions, verdict }
    }

    /// As [`Chain::judge`], but writes the decisions and the permit in place, because they are large; both must be
    /// empty. Returns the rejection, if there is one. If limits are counted in the store, [`ChainPermit::ask_store`]
    /// must follow.
    #[inline]
    pub fn judge_into<'w>(
        &self,
        now: Now,
        waiter: impl Into<WaitingRequest<'w>>,
        mut demand_of: impl FnMut(&Limit) -> LimitDemand,
        decisions: &mut Decisions,
        permit: &mut Option<ChainPermit>,
    ) -> Option<ChainRejection> {
        let mut pass = ChainPass::new(self, now, decisions);
        for (limit_index, limit) in self.limits.iter().enumerate() {
            match demand_of(limit) {
                LimitDemand::Skip => {}
                LimitDemand::MissingKey => pass.reject_missing_key(limit_index, limit),
                LimitDemand::Units(units) => {
                    pass.charge_units(limit_index, limit, Units { cost: units.cost.max(1), ..units })
                }
                LimitDemand::Shared(units, key) => {
                    pass.plan_shared(limit_index, limit, Units { cost: units.cost.max(1), ..units }, key);
                }
            }
        }
        pass.finish_pass(waiter.into(), permit)
    }
}
