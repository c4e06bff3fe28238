//! Applies the answers of the store to a pass over a chain.
//!
//! While the store does not decide about a limit, its `on_failure` does, or this gateway's own share.

use super::round::{StoreRound, refused_slots};
use crate::chain::claims::holds::{HoldState, RateHold, uncharge_decision};
use crate::chain::claims::{Claim, ClaimKind};
use crate::chain::pass::{ChainPass, FoundTurn, rejection_cause};
use crate::chain::slots::pending::PendingSlots;
use crate::chain::{ChainCause, ChainMode, ChainedLimit, SharedDemand};
use sluicegate_base::clock::Now;
use sluicegate_limit::{LimitOutcome, SlotOutlook};
use sluicegate_model::OnFailure;
use sluicegate_store::{CallItem, RateAnswer, StoreAnswer, StoreFault, StoreQuestion};

// === impl ChainPass ===

impl<'a, M: ChainMode> ChainPass<'a, M> {
    fn limit_of(&self, demand: &SharedDemand) -> &'a ChainedLimit {
        &self.limits[usize::from(demand.limit_index)]
    }

    /// Applies the store's answer to one question. `passes`: all limits accept.
    pub(super) fn apply_answer(
        &mut self,
        round: &StoreRound<'_>,
        index: usize,
        passes: bool,
        pending: &mut PendingSlots<'_>,
    ) {
        let (demand, question) = (round.question_demands[index], &round.questions[index]);
        let (limit_index, limit) = (usize::from(demand.limit_index), self.limit_of(demand));
        let reply = round.answers.get(index).copied().unwrap_or(StoreAnswer::Failed(StoreFault::Garbled));
        let StoreAnswer::Answered { answer, charged: call_charged } = reply else {
            return match limit.is_concurrency() && passes {
                true => self.judge_slots_fallback(demand, question, &reply, pending),
                false => pending.apply_answer(question, &reply, (false, false)),
            };
        };
        if limit.is_concurrency() {
            // Slots that were taken in vain are given up by dropping `pending`, which reports that to the store.
            if !M::CHARGES || passes || !call_charged {
                self.apply_slots_answer(demand, question, (answer, call_charged), passes, pending);
            }
            return;
        }
        if M::CHARGES {
            question.limit.record_answer(question.rate, &demand.units, round.sent, &answer);
            demand.note_steps(question.rate, &answer);
        }
        let mut decision = answer.decision;
        let waits = decision.outcome == LimitOutcome::Wait && !question.item.dry_run;
        if passes && waits {
            // A request has waited for the answer; a look tells the wait from now on.
            let waited_ns = if M::CHARGES { round.received.ns_since(self.held.judged_at) } else { 0 };
            self.note_wait(waited_ns.saturating_add(decision.wait_ns), limit_index);
        }
        // In a dry run, if one rate would reject, the others have not counted the request.
        let stays = !passes && call_charged && self.overrules_rejection(limit_index, limit);
        if call_charged && answer.mark != 0 && !stays {
            if passes {
                let state = match waits {
                    true => HoldState::Departing(decision.wait_ns, answer.mark),
                    false => HoldState::Charged(Some(answer.mark)),
                };
                self.claim_in_store(demand, question.rate, state, pending);
            } else {
                pending.outbox.queue_refund(question.to_refund(answer.mark));
                uncharge_decision(
                    &mut decision,
                    demand.units.cost,
                    limit.max_units(question.rate, demand.units.key.class),
                );
            }
        }
        let (dry_run, cause) = (question.item.dry_run, rejection_cause(limit));
        let place = (question.rate, demand.units.key.class);
        self.push_decision(limit_index, place, dry_run, decision, cause);
        if decision.outcome == LimitOutcome::Reject && limit.turns_ns > 0 && !dry_run {
            let found = FoundTurn::new(limit_index, &demand.units, self.caller, Some(answer.turn_ns));
            self.turn = Some(found);
        }
    }

    fn apply_slots_answer(
        &mut self,
        demand: &SharedDemand,
        question: &StoreQuestion<'_>,
        (answer, charged): (RateAnswer, bool),
        passes: bool,
        pending: &mut PendingSlots<'_>,
    ) {
        let admits = answer.decision.outcome != LimitOutcome::Reject;
        if !M::CHARGES {
            let is_free = admits
                && question.in_process
                    <= self.limit_of(demand).max_units(question.rate, demand.units.key.class);
            let remaining = if is_free { answer.decision.remaining } else { 0 };
            return self.push_outlook(demand, question, remaining, is_free);
        }
        let is_beyond = passes && !admits && !answer.skipped && question.limit.is_paused();
        pending.apply_answer(question, &StoreAnswer::Answered { answer, charged }, (passes, is_beyond));
        if passes && answer.skipped {
            self.claim_wanted_slots(demand, pending);
        } else if passes {
            let granted = admits.then_some(answer.decision.remaining);
            self.claim_in_store(demand, question.rate, HoldState::of_slots(granted, is_beyond), pending);
        } else if !admits && !answer.skipped && !question.item.dry_run {
            let place = (question.rate, demand.units.key.class);
            self.reject_outright(demand.limit_index.into(), place, false, ChainCause::Concurrency);
        }
    }

    /// Adds the decision on slots to a look, as one more request would find them. `free`: those that the store has.
    fn push_outlook(&mut self, demand: &SharedDemand, question: &StoreQuestion<'_>, free: u64, admits: bool) {
        let (limit, rate) = (question.limit, question.rate);
        let (slot_key, queue) = (demand.slot_key(rate), &limit.slot_queue);
        let queues = !question.item.dry_run && (!admits || queue.has_waiters(&slot_key));
        let terms = limit.slot_terms(rate).filter(|_| queues);
        let (fair_hash, now) = (demand.units.fair_hash, Now::read_clock());
        let taken = SlotOutlook::at_once(0, false);
        let outlook = match terms.map(|terms| queue.find_position(&slot_key, &terms, fair_hash, now)) {
            None => SlotOutlook::at_once(free, admits),
            Some(Ok(position)) => SlotOutlook { outcome: LimitOutcome::Wait, position, ..taken },
            Some(Err(wait_ns)) => SlotOutlook { wait_ns, ..taken },
        };
        self.push_slots((demand.limit_index.into(), rate), &demand.units, outlook);
    }

    pub(super) fn claim_wanted_slots(&mut self, demand: &SharedDemand, pending: &PendingSlots<'_>) {
        for rate in self.limit_of(demand).rate_range(demand.units.variant) {
            self.claim_in_store(demand, rate, HoldState::SlotsWanted, pending);
        }
    }

    fn claim_in_store(
        &mut self,
        demand: &SharedDemand,
        rate: usize,
        state: HoldState,
        pending: &PendingSlots<'_>,
    ) {
        let holds = &mut self.held.store_holds_mut(pending.outbox).holds;
        let kind = ClaimKind::InStore(holds.len() as u32);
        holds.push(RateHold { demand: demand.clone(), rate, state });
        self.held.claims.push(Claim::new(&demand.units, demand.limit_index.into(), rate, kind));
    }

    /// Judges rates by the `on_failure` of their limit, or by this gateway's own share, which replaces the limit in
    /// `limits` already.
    pub(super) fn judge_fallback(
        &mut self,
        demand: &SharedDemand,
        round: &StoreRound<'_>,
        pending: &PendingSlots<'_>,
    ) {
        let (limit_index, limit) = (usize::from(demand.limit_index), self.limit_of(demand));
        if limit.is_concurrency() {
            return;
        }
        let is_overruled = round.is_overruled(demand);
        if !is_overruled {
            if M::CHARGES {
                demand.limit.count_fallback();
            }
            match demand.limit.on_failure {
                OnFailure::Allow => return,
                OnFailure::Reject => {
                    let dry_run = limit.is_dry_run(demand.units.unenforced);
                    return self.reject_outright(
                        limit_index,
                        (0, demand.units.key.class),
                        dry_run,
                        ChainCause::Unavailable,
                    );
                }
                OnFailure::Local => {}
            }
        }
        let units = limit.cap_units(demand.units);
        if M::CHARGES {
            if !is_overruled {
                for rate in limit.rate_range(units.variant) {
                    demand.limit.seed_from_lease(rate, demand.key, &units);
                    demand.limit.seed_share(limit, rate, &units);
                }
            }
            self.held.store_holds_mut(pending.outbox).pending_debts.push(demand.clone());
        }
        self.judge_units(limit_index, limit, units);
    }

    /// Judges slots by the `on_failure` of their limit; all slots of this process count, however they were admitted.
    fn judge_slots_fallback(
        &mut self,
        demand: &SharedDemand,
        question: &StoreQuestion<'_>,
        reply: &StoreAnswer,
        pending: &mut PendingSlots<'_>,
    ) {
        let StoreQuestion { limit, rate, item: CallItem { dry_run, .. }, .. } = *question;
        let (limit_index, cause) = (usize::from(demand.limit_index), ChainCause::without_store(limit));
        let place = (rate, demand.units.key.class);
        let slot_key = demand.slot_key(rate);
        let admits = limit.grants_slots_locally(rate, &slot_key, question.in_process);
        let free_beside = |held: u64| limit.local_slots(rate, &slot_key).saturating_sub(held);
        if !M::CHARGES {
            let remaining = free_beside(question.in_process - question.item.cost);
            return match cause {
                ChainCause::Unavailable if dry_run => {}
                ChainCause::Unavailable => self.note_lacking(cause, limit_index, place, None),
                _ => self.push_outlook(demand, question, remaining, admits),
            };
        }
        limit.count_fallback();
        let is_beyond = !admits && dry_run && limit.is_paused();
        pending.apply_answer(question, reply, (false, admits || is_beyond));
        let lacking = || refused_slots(question).filter(|_| limit.on_failure == OnFailure::Local);
        if admits || dry_run {
            let granted = admits.then(|| free_beside(question.in_process));
            self.claim_in_store(demand, rate, HoldState::of_slots(granted, is_beyond), pending);
        } else if let Some(lacking) = lacking() {
            self.claim_in_store(demand, rate, HoldState::SlotsWanted, pending);
            self.findings.lacking_slots.get_or_insert(lacking);
        } else {
            self.reject_outright(limit_index, place, false, cause);
        }
    }
}
