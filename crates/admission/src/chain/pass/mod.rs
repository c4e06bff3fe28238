//! One pass over a chain: judges the local limits at once, and collects the demands on shared ones.

mod conclusion;

use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::claims::{Claim, ClaimKind, ClaimSet};
use super::slots::LackingSlots;
use super::{Chain, ChainCause, ChainMode, ChainedLimit, Decisions, RateDecision, SharedDemand};
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{Decision, Limit, LimitOutcome, SlotOutlook, TurnRequest, Units};
use sluicegate_store::{LeaseOutcome, SharedKey, SharedLimit};

pub(crate) use conclusion::{counts_rejected, wait_for_store_slots};

/// The state of one pass over a chain.
pub(crate) struct ChainPass<'a, M: ChainMode> {
    pub limits: &'a Arc<[ChainedLimit]>,
    pub held: ClaimSet,
    pub decisions: &'a mut Decisions,
    /// Demands on shared limits, about which the store must be asked.
    pub shared_demands: Vec<SharedDemand>,
    pub findings: PassFindings,
    /// The caller, where a limit that counts callers apart is in front of one that tells turns.
    pub caller: Option<u128>,
    pub turn: Option<FoundTurn>,
    mode: PhantomData<M>,
}

/// The turn of a request at a limit that rejects it.
#[derive(Clone, Copy)]
pub(crate) struct FoundTurn {
    pub limit_index: u16,
    pub request: TurnRequest,
    /// The nanoseconds until the one that the store has handed out, if it judges.
    pub in_store: Option<Option<u64>>,
}

/// Everything that a pass over a chain finds besides the decisions.
#[derive(Clone, Copy, Default)]
pub(crate) struct PassFindings {
    pub max_wait_ns: u64,
    pub takes_slots: bool,
    /// Slots that are counted here are to be taken.
    pub wants_slots: bool,
    /// A waiter has to make room in a queue.
    pub displaces: bool,
    /// The longest wait so far, ns, and the index of its limit.
    pub longest_wait: Option<(u64, u16)>,
    pub rejection: Option<PassRejection>,
    /// More than one limit rejects.
    pub several_reject: bool,
    /// The slots that a look finds taken. They matter only if the request does not have to wait first.
    pub lacking: Option<PassRejection>,
    /// The position in the first queue for slots at a look, and the index of its limit; only if `lacking` is not set.
    pub slot_wait: Option<(u64, u16)>,
    /// The slots in the store for which the request has to wait.
    pub lacking_slots: Option<LackingSlots>,
}

/// Small, because findings are moved for each request.
#[derive(Clone, Copy)]
pub(crate) struct PassRejection {
    pub cause: ChainCause,
    pub limit_index: u16,
    pub rate: u16,
    pub class: u8,
    /// The time to retry is that of a turn.
    pub is_turn: bool,
    pub retry_after_ns: Option<u64>,
}

// === impl ChainPass ===

impl<'a, M: ChainMode> ChainPass<'a, M> {
    #[inline]
    pub(super) fn new(chain: &'a Chain, now: Now, takes_slots: bool, decisions: &'a mut Decisions) -> Self {
        let max_wait_ns = chain.max_wait_ns;
        let findings = PassFindings { max_wait_ns, takes_slots, ..PassFindings::default() };
        ChainPass::resume(&chain.limits, ClaimSet::new(&chain.limits, now), findings, decisions)
    }

    /// Continues with the claims and findings of an earlier pass.
    pub(super) fn resume(
        limits: &'a Arc<[ChainedLimit]>,
        held: ClaimSet,
        findings: PassFindings,
        decisions: &'a mut Decisions,
    ) -> Self {
        let (shared_demands, caller, turn) = (Vec::new(), None, None);
        ChainPass { limits, held, decisions, shared_demands, findings, caller, turn, mode: PhantomData }
    }

    #[inline]
    pub(super) fn judge_units(&mut self, limit_index: usize, limit: &Limit, units: Units) {
        if limit.is_concurrency() {
            return self.judge_slots(limit_index, limit, &units);
        }
        let now = self.held.judged_at;
        let dry_run = limit.is_dry_run(units.unenforced);
        let before = self.held.claims.len();
        // A dry run is a transaction of its own: if one rate would reject, the others would not have counted the
        // request.
        let mut would_reject = false;
        for rate in limit.rate_range(units.variant) {
            let mut cause = rejection_cause(limit);
            let decision = if units.cost > limit.max_units(rate, units.key.class) {
                cause = ChainCause::TooCostly;
                limit.peek_units(rate, &units, now).reject_forever()
            } else if !M::CHARGES || would_reject || self.is_rejected_for(limit_index, limit) {
                limit.peek_units(rate, &units, now)
            } else {
                let (decision, charge) = limit.charge_units(rate, &units, now);
                if let Some(charge) = charge {
                    self.findings.displaces |= charge.displaces();
                    let kind = ClaimKind::Charge(charge);
                    self.held.claims.push(Claim::new(&units, limit_index, rate, kind));
                }
                decision
            };
            self.push_decision(limit_index, (rate, units.key.class), dry_run, decision, cause);
            match decision.outcome {
                LimitOutcome::Admit => {}
                LimitOutcome::Wait if !dry_run => self.note_wait(decision.wait_ns, limit_index),
                LimitOutcome::Reject if dry_run && !would_reject => {
                    would_reject = true;
                    self.held.undo_claims(before, self.decisions);
                }
                LimitOutcome::Reject if !dry_run && self.limits[limit_index].turns_ns > 0 => {
                    self.turn = Some(FoundTurn::new(limit_index, &units, self.caller, None));
                }
                LimitOutcome::Wait | LimitOutcome::Reject => {}
            }
        }
    }

    pub(super) fn note_wait(&mut self, wait_ns: u64, limit_index: usize) {
        if self.findings.longest_wait.is_none_or(|(longest, _)| longest < wait_ns) {
            self.findings.longest_wait = Some((wait_ns, limit_index as u16));
        }
    }

    /// Plans a question about a limit that is counted in the store, unless the store's last rejection still holds.
    pub(super) fn judge_shared(
        &mut self,
        limit_index: usize,
        limit: &Limit,
        shared_limit: &Arc<SharedLimit>,
        units: Units,
        key: SharedKey,
    ) {
        let dry_run = limit.is_dry_run(units.unenforced);
        let too_costly = |rate: &usize| units.cost > limit.max_units(*rate, units.key.class);
        if let Some(rate) = limit.rate_range(units.variant).find(too_costly) {
            return self.reject_outright(
                limit_index,
                (rate, units.key.class),
                dry_run,
                ChainCause::TooCostly,
            );
        }
        if limit.is_concurrency() && !self.findings.takes_slots {
            return;
        }
        let is_leased = M::CHARGES && shared_limit.is_leased(limit.rate_range(units.variant));
        if is_leased && self.take_leased(limit_index, limit, shared_limit, &units, key) {
            return;
        }
        let now = self.held.judged_at;
        let asks_alone = || self.limits.iter().filter(|limit| limit.in_store.is_some()).count() == 1;
        let rejects = |rate: usize| {
            shared_limit.known_rejection(rate, &units, now).is_some()
                && !(shared_limit.has_spare(rate, (key, units.cost), now) && asks_alone())
        };
        let name = limit.keeps_names().then(|| shared_limit.find_name(&units.key)).flatten();
        let demand =
            SharedDemand { limit: shared_limit.clone(), limit_index: limit_index as u16, units, key, name };
        // A shadow must be asked about although its limit rejects, and turns are handed out there; a lease tells all.
        if !is_leased
            && !dry_run
            && limit.config.shadow.is_none()
            && self.limits[limit_index].turns_ns == 0
            && limit.rate_range(units.variant).any(rejects)
            && shared_limit.admitting_share(&units, now).is_none()
        {
            if M::CHARGES {
                shared_limit.counts.cache_hits.fetch_add(1, Relaxed);
            }
            return self.push_last_answers(limit, &demand);
        }
        self.shared_demands.push(demand);
    }

    /// Takes the units of a leased limit, or is refused them, without a call of the store; false if it is to be asked.
    fn take_leased(
        &mut self,
        limit_index: usize,
        limit: &Limit,
        shared_limit: &SharedLimit,
        units: &Units,
        key: SharedKey,
    ) -> bool {
        let is_plain = !limit.is_dry_run(units.unenforced) && limit.config.shadow.is_none();
        if !is_plain || self.findings.rejection.is_some() {
            return false;
        }
        let (claimed, decided, class) = (self.held.claims.len(), self.decisions.len(), units.key.class);
        // A refund names the key as the store does.
        let by_name = Units { key: CounterKey { id: u128::from_le_bytes(key.0), ..units.key }, ..*units };
        for rate in limit.rate_range(units.variant) {
            let Some(outcome) = shared_limit.take_leased(rate, key, units.cost) else {
                self.held.undo_claims(claimed, self.decisions);
                self.decisions.truncate(decided);
                return false;
            };
            if let LeaseOutcome::Taken(mark, _) = outcome {
                self.held.claims.push(Claim::new(&by_name, limit_index, rate, ClaimKind::Leased(mark)));
            }
            // A rejection undoes all claims.
            let decision = shared_limit.leased_decision(rate, &outcome);
            self.push_decision(limit_index, (rate, class), false, decision, ChainCause::Rate);
            if decision.outcome == LimitOutcome::Reject {
                shared_limit.counts.cache_hits.fetch_add(1, Relaxed);
                break;
            }
        }
        shared_limit.counts.leased.fetch_add(1, Relaxed);
        true
    }

    /// Adds the store's last decisions about a limit that it is not asked about now.
    fn push_last_answers(&mut self, limit: &Limit, demand: &SharedDemand) {
        for rate in limit.rate_range(demand.units.variant) {
            if let Some(decision) = demand.limit.last_decision(rate, &demand.units, self.held.judged_at) {
                let (cause, dry_run) = (rejection_cause(limit), limit.is_dry_run(demand.units.unenforced));
                let place = (rate, demand.units.key.class);
                self.push_decision(demand.limit_index.into(), place, dry_run, decision, cause);
            }
        }
    }

    /// Cancels the questions to the store for a request that is rejected already.
    #[cold]
    pub(super) fn cancel_questions(&mut self) {
        let limits = self.limits;
        for demand in std::mem::take(&mut self.shared_demands) {
            self.push_last_answers(&limits[usize::from(demand.limit_index)], &demand);
        }
        self.decisions.sort_by_key(|judged| (judged.limit_index, judged.rate));
    }

    /// Plans the slots of a concurrency limit; they are taken after the wait.
    fn judge_slots(&mut self, limit_index: usize, limit: &Limit, units: &Units) {
        let rate = limit.rate_range(units.variant).start;
        let capacity = limit.max_units(rate, units.key.class);
        if units.cost > capacity {
            let dry_run = limit.is_dry_run(units.unenforced);
            self.reject_outright(limit_index, (rate, units.key.class), dry_run, ChainCause::TooCostly);
        } else if M::CHARGES && self.findings.takes_slots {
            self.findings.wants_slots = true;
            let kind = ClaimKind::WantedSlots { fair_hash: units.fair_hash };
            self.held.claims.push(Claim::new(units, limit_index, rate, kind));
        }
        if !M::CHARGES && self.findings.takes_slots {
            let outlook = limit.peek_slots(rate, units, self.held.judged_at);
            self.push_slots((limit_index, rate), units, outlook);
        }
    }

    /// Adds the decision of a concurrency limit to a look.
    pub(super) fn push_slots(
        &mut self,
        (limit_index, rate): (usize, usize),
        units: &Units,
        outlook: SlotOutlook,
    ) {
        let limit = &self.limits[limit_index];
        let SlotOutlook { outcome, free, position, wait_ns } = outlook;
        let decision = Decision { remaining: free, retry_after_ns: 0, ..Decision::without_numbers(outcome) };
        let (dry_run, place) = (limit.is_dry_run(units.unenforced), (rate, units.key.class));
        self.decisions.push(RateDecision::new(limit_index, place, dry_run, decision));
        match outcome {
            LimitOutcome::Reject if !dry_run => {
                let wait_ns = limit.has_slot_queue(rate).then_some(wait_ns);
                self.note_lacking(ChainCause::Concurrency, limit_index, place, wait_ns);
            }
            // It stands in the queue of the first limit that has too few slots.
            LimitOutcome::Wait if !dry_run && self.findings.lacking.is_none() => {
                self.findings.slot_wait.get_or_insert((position, limit_index as u16));
            }
            _ => {}
        }
    }

    /// Notes that slots are not free. `wait_ns`: the wait that a request has to expect.
    pub(super) fn note_lacking(
        &mut self,
        cause: ChainCause,
        limit_index: usize,
        place: (usize, u8),
        wait_ns: Option<u64>,
    ) {
        let lacking = PassRejection::new(cause, limit_index, place, wait_ns);
        if self.findings.slot_wait.is_none() {
            self.findings.lacking.get_or_insert(lacking);
        }
    }

    #[cold]
    pub(super) fn reject_missing_key(&mut self, limit_index: usize, limit: &Limit) {
        // Without a key, the request is in no share of them.
        let dry_run = limit.is_dry_run(limit.config.enforce.is_some());
        self.reject_outright(limit_index, (0, u8::MAX), dry_run, ChainCause::MissingKey);
    }

    /// Records a rejection without numbers, of a rate and a class; a look has nothing to show of a dry run then.
    pub(super) fn reject_outright(
        &mut self,
        limit_index: usize,
        place: (usize, u8),
        dry_run: bool,
        cause: ChainCause,
    ) {
        if !dry_run {
            self.record_rejection(PassRejection::new(cause, limit_index, place, None));
        } else if M::CHARGES {
            let decision = Decision::without_numbers(LimitOutcome::Reject);
            self.push_decision(limit_index, place, dry_run, decision, cause);
        }
    }

    #[inline]
    pub(super) fn push_decision(
        &mut self,
        limit_index: usize,
        place: (usize, u8),
        dry_run: bool,
        decision: Decision,
        cause: ChainCause,
    ) {
        self.decisions.push(RateDecision::new(limit_index, place, dry_run, decision));
        if decision.outcome == LimitOutcome::Reject && !dry_run {
            let retry_after_ns = (decision.retry_after_ns != u64::MAX).then_some(decision.retry_after_ns);
            self.record_rejection(PassRejection::new(cause, limit_index, place, retry_after_ns));
        }
    }

    /// Keeps the rejection with the longest retry. The first one, and the first one of another limit, undo all
    /// charges, those of dry runs too: they count only the units that they would have counted if enforced.
    fn record_rejection(&mut self, rejection: PassRejection) {
        let longest = |rejection: &PassRejection| rejection.retry_after_ns.unwrap_or(u64::MAX);
        let is_kept = match self.findings.rejection {
            None => {
                self.undo_all();
                true
            }
            Some(known) => {
                if known.limit_index != rejection.limit_index && !self.findings.several_reject {
                    self.findings.several_reject = true;
                    self.undo_all();
                }
                longest(&known) < longest(&rejection)
            }
        };
        if is_kept {
            self.findings.rejection = Some(rejection);
        }
    }

    fn undo_all(&mut self) {
        if !self.held.claims.is_empty() {
            self.held.undo_claims(0, self.decisions);
        }
    }
}

/// The cause to report when a rate of `limit` rejects.
#[inline]
pub(crate) fn rejection_cause(limit: &Limit) -> ChainCause {
    if limit.has_queue() { ChainCause::Queue } else { ChainCause::Rate }
}

// === impl FoundTurn ===

impl FoundTurn {
    pub(crate) fn new(
        limit_index: usize,
        units: &Units,
        caller: Option<u128>,
        in_store: Option<Option<u64>>,
    ) -> FoundTurn {
        let request = TurnRequest { key: units.key, cost: units.cost, caller };
        FoundTurn { limit_index: limit_index as u16, request, in_store }
    }
}

// === impl PassFindings ===

impl PassFindings {
    /// Every limit admits the request, and nothing is left to be done.
    #[inline]
    pub(crate) fn is_plain_admission(&self) -> bool {
        !self.wants_slots
            && !self.displaces
            && self.longest_wait.is_none()
            && self.lacking.is_none()
            && self.slot_wait.is_none()
    }
}

// === impl PassRejection ===

impl PassRejection {
    /// `limit_index` and `rate` fit, because the file has fewer of both.
    #[inline]
    pub(crate) fn new(
        cause: ChainCause,
        limit_index: usize,
        (rate, class): (usize, u8),
        retry_after_ns: Option<u64>,
    ) -> PassRejection {
        let (limit_index, rate, is_turn) = (limit_index as u16, rate as u16, false);
        PassRejection { cause, limit_index, rate, class, is_turn, retry_after_ns }
    }
}
