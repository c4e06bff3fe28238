//! The limits of a request, judged as one transaction: all accept and are charged, or nobody is.

mod chain_pass;
mod peek;
mod pending_slots;
mod permit;
mod rejection;
mod store_fallback;
mod store_lease;
mod store_round;

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

/// What a limit is to count for this request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitDemand {
    /// The limit does not concern the request.
    Skip,
    /// The key is absent, and the limit says to reject then.
    MissingKey,
    Units(Units),
    /// Of a limit that is counted in the store, under this key.
    Shared(Units, SharedKey),
}

/// The process-wide cap on requests in all queues. One that holds much memory counts for several.
#[derive(Debug)]
pub struct WaitingCap {
    max: usize,
    count: Arc<AtomicUsize>,
}

/// A request that may have to wait.
#[derive(Clone, Copy)]
pub struct WaitingRequest<'a> {
    cap: &'a Arc<WaitingCap>,
    /// Bytes that it holds; asked only if it has to wait.
    held_bytes: &'a dyn Fn() -> usize,
}

/// The limits a request passes, in the order they are judged.
#[derive(Clone)]
pub struct Chain {
    limits: Arc<[Arc<Limit>]>,
    /// The store's side of those that are counted there; empty if none is.
    shared_limits: store_round::SharedLimits,
    /// The longest wait that is worth its while, ns.
    max_wait_ns: u64,
}

/// What the rates of a chain say to one request, in its order; on a refusal with what is left unspent.
pub type Decisions = SmallVec<[RateDecision; 4]>;

/// What the chain says to one request, and why.
pub struct ChainJudgement {
    pub decisions: Decisions,
    pub verdict: ChainVerdict,
}

/// The answer of one rate of a limit. Concurrency limits have none, nor do limits that lack their key, unless in
/// a dry run, of which it is all that is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateDecision {
    /// Place of the limit in [`Chain::limits`].
    pub limit_index: u16,
    /// Place of the rate in the limit.
    pub rate: u16,
    /// Judged, but never acted upon.
    pub dry_run: bool,
    pub decision: Decision,
}

/// One answer per limit, that of its strictest rate.
#[inline]
pub fn strictest_by_limit(decisions: &[RateDecision]) -> impl Iterator<Item = RateDecision> {
    let strictness = |judged: &&RateDecision| {
        let Decision { outcome, retry_after_ns, wait_ns, .. } = judged.decision;
        (outcome, retry_after_ns, wait_ns)
    };
    let rates = decisions.chunk_by(|one, next| one.limit_index == next.limit_index);
    rates.filter_map(move |rates| rates.iter().max_by_key(strictness).copied())
}

/// The chain's answer.
#[expect(clippy::large_enum_variant, reason = "the usual answer must not cost an allocation")]
pub enum ChainVerdict {
    Admit(ChainPermit),
    Reject(ChainRejection),
}

// === impl Waiting ===

impl WaitingCap {
    /// Bytes for which a waiter counts once, so that the cap on waiters is one on memory, too.
    const WEIGHT_BYTES: usize = 16 * 1024;

    pub fn new(max: usize) -> WaitingCap {
        WaitingCap { max, count: Arc::default() }
    }

    /// Another cap on the same requests.
    pub fn with_max(&self, max: usize) -> WaitingCap {
        WaitingCap { max, count: self.count.clone() }
    }

    /// What waits now.
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

// === impl Waiter ===

impl<'a> WaitingRequest<'a> {
    pub fn new(waiting: &'a Arc<WaitingCap>, held: &'a dyn Fn() -> usize) -> WaitingRequest<'a> {
        WaitingRequest { cap: waiting, held_bytes: held }
    }

    /// What it counts for: one, and one more for each further unit that it has begun, but no more than there is room
    /// for one alone.
    fn compute_weight(&self) -> u32 {
        let units = (self.held_bytes)().div_ceil(WaitingCap::WEIGHT_BYTES).min(self.cap.max).max(1);
        u32::try_from(units).unwrap_or(u32::MAX)
    }
}

impl<'a> From<&'a Arc<WaitingCap>> for WaitingRequest<'a> {
    /// One of ordinary size.
    fn from(waiting: &'a Arc<WaitingCap>) -> WaitingRequest<'a> {
        WaitingRequest { cap: waiting, held_bytes: &|| 0 }
    }
}

// === impl Chain ===

impl Chain {
    /// A limit that is named twice counts a request once, at its first place.
    pub fn new(limits: Vec<Arc<Limit>>) -> Chain {
        let mut once: Vec<Arc<Limit>> = Vec::with_capacity(limits.len());
        for limit in limits {
            if !once.iter().any(|known| Arc::ptr_eq(known, &limit)) {
                once.push(limit);
            }
        }
        assert!(once.len() < usize::from(u16::MAX), "a chain has fewer than 65,535 limits");
        Chain { limits: once.into(), shared_limits: Arc::default(), max_wait_ns: u64::MAX }
    }

    /// Asks the store about limits that have a side there; `sides` go by [`Limit::index`].
    pub fn with_shared(self, sides: &[Option<Arc<SharedLimit>>]) -> Chain {
        let of = |limit: &Arc<Limit>| sides.get(limit.id.0).cloned().flatten();
        let shared: Vec<_> = self.limits.iter().map(of).collect();
        let any = shared.iter().any(Option::is_some);
        Chain { shared_limits: if any { shared.into() } else { Arc::default() }, ..self }
    }

    /// Refuses at once who would wait longer than this; it displaces nobody.
    pub fn with_max_wait(self, patience_ns: u64) -> Chain {
        Chain { max_wait_ns: patience_ns, ..self }
    }

    pub fn limits(&self) -> &[Arc<Limit>] {
        &self.limits
    }

    /// Judges one request at `now`. `ask` is called once per limit, in chain order.
    #[inline]
    pub fn judge(
        &self,
        now: Now,
        waiting: &Arc<WaitingCap>,
        ask: impl FnMut(&Limit) -> LimitDemand,
    ) -> ChainJudgement {
        let (mut decisions, mut passage) = (Decisions::new(), None);
        let refusal = self.judge_into(now, waiting, ask, &mut decisions, &mut passage);
        let verdict = match (refusal, passage) {
            (Some(refusal), _) => ChainVerdict::Reject(refusal),
            (None, Some(passage)) => ChainVerdict::Admit(passage),
            (None, None) => unreachable!("who is not refused has a passage"),
        };
        ChainJudgement { decisions, verdict }
    }

    /// The same, into the places where they are kept, because they are large: what the rates say, and the passage
    /// of a request that is not refused. Both are empty before. Where limits are counted in the store,
    /// [`ChainPermit::ask`] must follow.
    #[inline]
    pub fn judge_into<'w>(
        &self,
        now: Now,
        waiter: impl Into<WaitingRequest<'w>>,
        mut ask: impl FnMut(&Limit) -> LimitDemand,
        decisions: &mut Decisions,
        passage: &mut Option<ChainPermit>,
    ) -> Option<ChainRejection> {
        let mut judging = ChainPass::new(self, now, decisions);
        for (place, limit) in self.limits.iter().enumerate() {
            match ask(limit) {
                LimitDemand::Skip => {}
                LimitDemand::MissingKey => judging.reject_missing_key(place, limit),
                LimitDemand::Units(units) => {
                    judging.charge_units(place, limit, Units { cost: units.cost.max(1), ..units })
                }
                LimitDemand::Shared(units, key) => {
                    judging.plan_shared(place, limit, Units { cost: units.cost.max(1), ..units }, key);
                }
            }
        }
        judging.finish_pass(waiter.into(), passage)
    }
}
