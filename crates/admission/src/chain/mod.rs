//! The limits of a request, judged as one transaction: all accept and are charged, or none is charged.
//!
//! Limits are charged in chain order; when a later one rejects, the earlier charges are refunded, so a rejection
//! costs nothing. Limits that are counted in the store are asked about together, after the local ones have accepted.
//! Concurrency slots come last, so a request that waits for its turn holds none. Dropping the [`ChainPermit`] gives
//! everything back; there is no release function.
//!
//! The states of a request in a chain, each with its type and file; dropping a type gives back all that it holds:
//!
//! ```text
//!  Chain::judge_into                 the chain judges the head
//!        │
//!  ChainPass         pass            judged locally: charges the limits that are counted here
//!        │ ╰───────────────────────▶ ChainRejection (rejection): everything is refunded
//!        ▼
//!  PendingStore      store           asks the store about the shared limits, in one StoreRound or several;
//!        │                           store/answers applies the answers, or judges in place of missing ones
//!        ▼
//!  Queued            queued          waits for its turn in the queues of rates, then for slots: in a SlotWait (slots)
//!        │                           for those counted here, in a StoreSlotWait (slots/in_store) for the others
//!        ▼
//!  ChainPermit       permit          may pass; once it is forwarded, its charges stay
//! ```
//!
//! `settle/extend` and `settle` change the charges of a permit, which stays the state of the request: a response takes
//! more units while it streams, and at its end the charges are corrected to the units that it used.
//!
//! A request skips the states that its limits do not need. In each of them, `claims` has all that it holds, and
//! `claims/holds` the part in the store. `pass/conclusion` ends a pass, and `waiting` has the terms on which a request
//! may wait.

mod claims;
mod pass;
mod permit;
mod queued;
mod rejection;
mod settle;
mod slots;
mod store;
mod waiting;

use std::ops::Deref;
use std::sync::Arc;

use smallvec::SmallVec;

use sluicegate_base::clock::Now;
use sluicegate_limit::{Decision, Limit, Units};
use sluicegate_model::{KeyPart, OnFailure};
use sluicegate_store::{RateAnswer, ScriptOp, SharedKey, SharedLimit, SlotKey, StoreQuestion};

use pass::ChainPass;
pub use permit::ChainPermit;
pub use queued::{QueueStay, Queued};
pub use rejection::{ChainCause, ChainRejection};
pub use settle::FinalCharges;
pub use settle::extend::{Extender, Overrun};
pub use store::PendingStore;
pub use waiting::{QueueTerms, WaitingCap, WaitingPlace, WaitingRequest, longest_wait_ns};

/// The mode of a judgement; everything that depends on it is decided at compile time.
pub trait ChainMode {
    /// True if the limits are charged.
    const CHARGES: bool;
    /// The operation that the store is asked for.
    const STORE_OP: ScriptOp;
}

/// Judges a request and charges it.
pub struct Charge;

/// Judges an imaginary request for `explain` and changes nothing.
pub struct Look;

impl ChainMode for Charge {
    const CHARGES: bool = true;
    const STORE_OP: ScriptOp = ScriptOp::Take;
}

impl ChainMode for Look {
    const CHARGES: bool = false;
    const STORE_OP: ScriptOp = ScriptOp::Peek;
}

/// The demand of a request on one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitDemand {
    /// The limit does not apply to the request.
    Skip,
    /// The key is absent, and the limit rejects such requests.
    MissingKey,
    /// The units of a limit that is counted in this process.
    Units(Units),
    /// The units of a limit that is counted in the store, under this key.
    Shared(Units, SharedKey),
}

impl LimitDemand {
    /// The same demand with `cost` units; one without units stays as it is.
    pub fn with_cost(self, cost: u64) -> LimitDemand {
        match self {
            LimitDemand::Units(units) => LimitDemand::Units(Units { cost, ..units }),
            LimitDemand::Shared(units, key) => LimitDemand::Shared(Units { cost, ..units }, key),
            other => other,
        }
    }
}

/// The demand of a request on one shared limit.
#[derive(Clone)]
pub(crate) struct SharedDemand {
    pub limit: Arc<SharedLimit>,
    pub limit_index: u16,
    pub units: Units,
    pub key: SharedKey,
    /// The name of its key, where the store keeps it and it is known.
    pub name: Option<Arc<str>>,
}

/// The limits a request passes, in the order they are judged.
#[derive(Clone)]
pub struct Chain {
    limits: Arc<[ChainedLimit]>,
    /// The longest acceptable wait, ns.
    max_wait_ns: u64,
}

/// One limit of a chain.
#[derive(Clone)]
pub struct ChainedLimit {
    limit: Arc<Limit>,
    /// Present if the store has its counters.
    pub in_store: Option<Arc<SharedLimit>>,
    /// The furthest turn that rejected requests are told, ns; 0 = they are told the exact time.
    turns_ns: u64,
    /// It counts callers apart, of which each holds one turn of a limit behind it.
    names_caller: bool,
}

/// The decisions of all rates of a chain, in chain order. After a rejection they show the amounts without any charge.
pub type Decisions = SmallVec<[RateDecision; 4]>;

/// The decision of one rate of a limit. For a request, concurrency limits, and limits that lack their key, have one
/// only in a dry run, where it is the only visible effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RateDecision {
    /// Index of the limit in [`Chain::limits`].
    pub limit_index: u16,
    /// Index of the rate in the limit.
    pub rate: u16,
    /// Index of the request's class in the shares of the limit; 0 without shares.
    pub class: u8,
    /// Judged but not enforced.
    pub dry_run: bool,
    /// The decision of the rate.
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

/// The verdict of a chain on one request. `P` is [`PendingStore`], or [`std::convert::Infallible`] once the store has
/// answered. After a look, permits and places in queues hold nothing.
pub enum ChainVerdict<P = PendingStore<Charge>> {
    /// All limits accept; the permit holds their charges.
    Admit(ChainPermit),
    /// The local limits accept; the store must be asked about the others.
    AskStore(P),
    /// All limits accept, but some have queues before them.
    Wait(Queued),
    /// A limit rejects, and nothing is charged.
    Reject(ChainRejection),
}

/// A shared limit that the store did not decide about.
#[derive(Debug)]
pub struct UndecidedLimit {
    /// Index of the limit in [`Chain::limits`].
    pub limit_index: usize,
    /// The fallback that decided in the store's place, because it did not answer.
    pub fallback: Option<OnFailure>,
    /// The local share behind the decisions. Without a fallback, the share overruled the store's rejection; with
    /// neither, the store was not asked.
    pub share: Option<Arc<Limit>>,
}

impl Deref for ChainedLimit {
    type Target = Arc<Limit>;

    #[inline]
    fn deref(&self) -> &Arc<Limit> {
        &self.limit
    }
}

// === impl SharedDemand ===

impl SharedDemand {
    pub(crate) fn is_dry_run(&self) -> bool {
        self.limit.is_dry_run() || self.units.unenforced
    }

    /// Notes the steps that a charge has reached first, if the key has a name.
    pub(crate) fn note_steps(&self, rate: usize, answer: &RateAnswer) {
        if let Some(name) = &self.name {
            self.limit.note_steps(rate, self.units.variant, name, answer);
        }
    }

    /// The question to the store about one of its rates.
    pub(crate) fn to_question(&self, rate: usize) -> StoreQuestion<'_> {
        let mut question = StoreQuestion::new(&self.limit, rate, self.key, &self.units);
        (question.item.limit_index, question.item.dry_run) = (self.limit_index, self.is_dry_run());
        question.item.name = self.name.as_deref().unwrap_or_default();
        question
    }

    /// The slots that it asks for.
    pub(crate) fn slot_key(&self, rate: usize) -> SlotKey {
        self.limit.slot_key(rate, self.key, self.units.key.class)
    }
}

// === impl RateDecision ===

impl RateDecision {
    #[inline]
    fn new(
        limit_index: usize,
        (rate, class): (usize, u8),
        dry_run: bool,
        decision: Decision,
    ) -> RateDecision {
        RateDecision { limit_index: limit_index as u16, rate: rate as u16, class, dry_run, decision }
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
        Chain::with_repeats(distinct)
    }

    /// A limit that is named several times counts at each of its positions, for a subject of its own.
    pub fn with_repeats(limits: Vec<Arc<Limit>>) -> Chain {
        assert!(limits.len() < usize::from(u16::MAX), "a chain has fewer than 65,535 limits");
        let local = |limit| ChainedLimit { limit, in_store: None, turns_ns: 0, names_caller: false };
        Chain { limits: limits.into_iter().map(local).collect(), max_wait_ns: u64::MAX }
    }

    /// Adds the limits that are counted in the store; `shared_limits` is indexed by [`Limit::id`].
    pub fn with_shared(self, shared_limits: &[Option<Arc<SharedLimit>>]) -> Chain {
        let placed = |placed: &ChainedLimit| ChainedLimit {
            in_store: shared_limits.get(placed.limit.id.0).cloned().flatten(),
            ..placed.clone()
        };
        Chain { limits: self.limits.iter().map(placed).collect(), ..self }
    }

    /// Lets limits that judge rates tell turns; `turns_of` says how far ahead at most, in nanoseconds, or 0.
    pub fn with_turns(self, turns_of: impl Fn(&Limit) -> u64) -> Chain {
        let placed = |placed: &ChainedLimit| ChainedLimit {
            turns_ns: if placed.is_concurrency() || placed.config.leased { 0 } else { turns_of(placed) },
            ..placed.clone()
        };
        let mut limits: Vec<ChainedLimit> = self.limits.iter().map(placed).collect();
        let last = limits.iter().rposition(|placed| placed.turns_ns > 0).unwrap_or(0);
        for placed in &mut limits[..last] {
            placed.names_caller = !placed.config.dry_run && KeyPart::count_callers(&placed.config.key);
        }
        Chain { limits: limits.into(), ..self }
    }

    /// Rejects a request at once if it would wait longer than this; such a request displaces no other.
    pub fn with_max_wait(self, max_wait_ns: u64) -> Chain {
        Chain { max_wait_ns, ..self }
    }

    /// The limits, in the order in which they judge.
    pub fn limits(&self) -> &[ChainedLimit] {
        &self.limits
    }

    /// Judges one request at `now`. `demand_of` is called once per limit, in chain order. Without `takes_slots` the
    /// request counts for every limit except those of concurrency. `decisions` must be empty; they are written in
    /// place, because they are large.
    #[inline]
    pub fn judge<'w, M: ChainMode>(
        &self,
        now: Now,
        waiter: impl Into<WaitingRequest<'w>>,
        takes_slots: bool,
        demand_of: impl FnMut(&Limit) -> LimitDemand,
        decisions: &mut Decisions,
    ) -> ChainVerdict<PendingStore<M>> {
        let mut verdict = None;
        let mut demand_of = demand_of;
        let demand_at = |_: usize, limit: &Limit| demand_of(limit);
        self.judge_into(now, waiter.into(), takes_slots, None, demand_at, decisions, &mut verdict);
        // Cannot fail: every pass ends with a verdict.
        verdict.expect("a chain has judged")
    }

    /// [`Chain::judge`] with the verdict written in place, because it is large as well. `selection` has the indices
    /// of the limits that judge the request, in chain order; `None` = all of them do. `demand_of` is told the index.
    #[expect(clippy::too_many_arguments, reason = "a struct of them would be copied for each request")]
    #[inline]
    pub fn judge_into<M: ChainMode>(
        &self,
        now: Now,
        waiter: WaitingRequest<'_>,
        takes_slots: bool,
        selection: Option<&[u16]>,
        mut demand_of: impl FnMut(usize, &Limit) -> LimitDemand,
        decisions: &mut Decisions,
        verdict: &mut Option<ChainVerdict<PendingStore<M>>>,
    ) {
        let mut pass = ChainPass::<M>::new(self, now, takes_slots, decisions);
        for position in 0..selection.map_or(self.limits.len(), <[u16]>::len) {
            let limit_index = selection.map_or(position, |selected| usize::from(selected[position]));
            let ChainedLimit { limit, in_store, names_caller, .. } = &self.limits[limit_index];
            let at_least_one = |units: Units| Units { cost: units.cost.max(1), ..units };
            let demand = demand_of(limit_index, limit);
            if *names_caller && let LimitDemand::Units(units) | LimitDemand::Shared(units, _) = demand {
                pass.caller = Some(units.key.id);
            }
            match (demand, in_store) {
                (LimitDemand::Skip, _) => {}
                (LimitDemand::MissingKey, _) => pass.reject_missing_key(limit_index, limit),
                (LimitDemand::Shared(units, key), Some(shared_limit)) => {
                    pass.judge_shared(limit_index, limit, shared_limit, at_least_one(units), key)
                }
                (LimitDemand::Units(units) | LimitDemand::Shared(units, _), _) => {
                    pass.judge_units(limit_index, limit, at_least_one(units))
                }
            }
        }
        // The two usual ends are written in place, because each move of a pass copies it.
        match pass.findings.rejection {
            _ if !pass.shared_demands.is_empty() => pass.finish_limits(waiter, verdict),
            Some(rejection) => {
                *verdict = Some(ChainVerdict::Reject(pass.conclude_rejection(rejection)));
            }
            None if pass.findings.is_plain_admission() && waiter.pause_ns == 0 => {
                *verdict = Some(ChainVerdict::Admit(ChainPermit::new(pass.held)));
            }
            None => pass.finish_limits(waiter, verdict),
        }
    }
}
