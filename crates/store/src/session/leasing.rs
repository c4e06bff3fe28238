//! Questions about leased limits, and the calls that renew what this process holds of them.

use std::sync::Arc;

use smallvec::SmallVec;
use tokio::time::timeout;

use super::{Session, StoreAnswer, StoreQuestion};
use crate::lease::{LeaseAnswer, LeaseName, LeaseOutcome, LeaseStep, LimitLeases};
use crate::settlements::StoreUnits;
use crate::{Link, LuaScript, PackedCall, RateAnswer, ScriptOp, StoreFault};
use sluicegate_limit::LimitOutcome;

/// A key that this worker renews and returns.
#[derive(Clone)]
pub(super) struct WatchedLease {
    leases: Arc<LimitLeases>,
    name: LeaseName,
    key_name: Vec<u8>,
}

/// A call under way. Dropping it ends the call without an answer.
struct LeaseCallGuard<'a> {
    leases: &'a LimitLeases,
    name: &'a LeaseName,
    number: u64,
}

/// Units that were taken, until all questions are answered. Dropping it gives them back.
struct TakenUnits<'a>(SmallVec<[(&'a StoreQuestion<'a>, LeaseName, u64); 2]>);

// === impl Session ===

impl Session {
    /// Asks about limits of which some are leased: those first, and the others only if these admit the request.
    pub(super) async fn ask_with_leases(
        &self,
        op: ScriptOp,
        questions: &[StoreQuestion<'_>],
    ) -> SmallVec<[StoreAnswer; 4]> {
        let is_leased = |index: &usize| questions[*index].item.rule.leases.is_some();
        let (leased, others): (Vec<usize>, Vec<usize>) = (0..questions.len()).partition(is_leased);
        let mut answers: SmallVec<[StoreAnswer; 4]> =
            SmallVec::from_elem(StoreAnswer::Failed(StoreFault::Garbled), questions.len());
        let mut taken = TakenUnits(SmallVec::new());
        let mut rejects = false;
        for run in
            leased.chunk_by(|one, next| questions[*one].item.limit_index == questions[*next].item.limit_index)
        {
            let before = taken.0.len();
            let mut own_rejects = false;
            for index in run {
                let question = &questions[*index];
                let takes = op == ScriptOp::Take && !rejects && !own_rejects;
                answers[*index] = match question.lease_name() {
                    Some(name) if takes => self.take_lease(question, name, &mut taken).await,
                    Some(name) => question.look_at_lease(&name),
                    None => continue,
                };
                own_rejects |= matches!(&answers[*index], StoreAnswer::Answered { answer, .. }
                    if answer.decision.outcome == LimitOutcome::Reject);
            }
            if own_rejects {
                taken.give_back(before);
                run.iter().for_each(|index| answers[*index].uncharge(questions[*index].item.cost));
                rejects |= !questions[run[0]].item.dry_run;
            }
        }
        if !others.is_empty() {
            let exact: SmallVec<[StoreQuestion<'_>; 4]> =
                others.iter().map(|index| questions[*index]).collect();
            let op = if rejects && op == ScriptOp::Take { ScriptOp::Peek } else { op };
            for (index, answer) in others.iter().zip(self.ask_exactly(op, &exact).await) {
                answers[*index] = answer;
            }
        }
        if rejects {
            taken.give_back(0);
            let asked = answers.iter_mut().zip(questions);
            asked.for_each(|(answer, question)| answer.uncharge(question.item.cost));
        }
        taken.0.clear();
        answers
    }

    async fn take_lease<'a>(
        &self,
        question: &'a StoreQuestion<'a>,
        name: LeaseName,
        taken: &mut TakenUnits<'a>,
    ) -> StoreAnswer {
        let leases = &question.limit.leases;
        let (step, calls) = leases.take_units(&name, question.item.cost);
        if calls {
            let leases = question.limit.leases.clone();
            let key_name = question.item.rule.counters_name(self.store.prefix(), &name.key);
            self.start_lease_calls(&WatchedLease { leases, name, key_name });
        }
        let outcome = match step {
            LeaseStep::Done(outcome) => outcome,
            LeaseStep::Waits(outcome) => match timeout(self.store.call_timeout(), outcome).await {
                Ok(Ok(outcome)) => outcome,
                Ok(Err(_)) => LeaseOutcome::Failed(StoreFault::Down),
                Err(_) => LeaseOutcome::Failed(StoreFault::Timeout),
            },
        };
        if let LeaseOutcome::Taken(call, _) = outcome {
            taken.0.push((question, name, call));
        }
        question.answer_lease(outcome)
    }

    /// Makes the calls about a key that are due, one after the other.
    fn start_lease_calls(&self, lease: &WatchedLease) {
        let node = self.store.process_node();
        let Some((mut number, mut body, is_new)) = lease.leases.begin_call(&lease.name, node) else { return };
        if is_new {
            self.watched_leases.borrow_mut().push(lease.clone());
        }
        let (link, lease) = (self.link.clone(), lease.clone());
        tokio::task::spawn_local(async move {
            let WatchedLease { leases, name, key_name } = &lease;
            loop {
                let guard = LeaseCallGuard { leases, name, number };
                let packed = PackedCall { keys: [key_name.clone()].into_iter().collect(), body };
                let answer = ask_for_lease(&link, name, &packed).await;
                std::mem::forget(guard);
                if !leases.end_call(name, number, answer) {
                    break;
                }
                let Some(next) = leases.begin_call(name, node) else { break };
                (number, body, _) = next;
            }
        });
    }

    /// Makes the calls of the watched keys that are due though no request comes; forgets keys of which nothing is held.
    pub(super) fn poll_leases(&self) {
        let watched = self.watched_leases.take();
        for lease in watched.into_iter().filter(|lease| lease.leases.keeps_key(&lease.name)) {
            self.start_lease_calls(&lease);
            self.watched_leases.borrow_mut().push(lease);
        }
    }
}

async fn ask_for_lease(
    link: &Link,
    name: &LeaseName,
    packed: &PackedCall,
) -> Result<LeaseAnswer, StoreFault> {
    let group = link.store().group_of(&name.key);
    let bytes = link.call_script(group, LuaScript::lease_script(), packed).await?;
    LeaseAnswer::decode(&bytes).ok_or(StoreFault::Garbled)
}

// === impl StoreQuestion ===

impl<'a> StoreQuestion<'a> {
    fn lease_name(&self) -> Option<LeaseName> {
        LeaseName::of_rule(self.item.rule, self.item.key)
    }

    fn answer_lease(&self, outcome: LeaseOutcome) -> StoreAnswer {
        let mark = match outcome {
            LeaseOutcome::Taken(call, _) => call,
            LeaseOutcome::Refused(..) => 0,
            LeaseOutcome::Failed(fault) => return StoreAnswer::Failed(fault),
        };
        let answer = RateAnswer {
            decision: self.limit.leased_decision(self.rate, &outcome),
            mark,
            skipped: false,
            window_ns: None,
            has_reserved: false,
            window: None,
            fired: 0,
            turn_ns: None,
        };
        StoreAnswer::Answered { answer, charged: mark != 0 }
    }

    /// The answer to a look, by what this process knows.
    fn look_at_lease(&self, name: &LeaseName) -> StoreAnswer {
        let (here, stored) = self.limit.leases.find_units(name).unwrap_or((0, self.item.rule.capacity()));
        let (cost, left) = (self.item.cost, here.saturating_add(stored));
        self.answer_lease(match left >= cost {
            true => LeaseOutcome::Taken(0, left),
            false => LeaseOutcome::Refused(name.terms.us_for(cost - left), left),
        })
    }
}

// === impl StoreAnswer ===

impl StoreAnswer {
    /// The same answer, where the charge of these units was undone.
    fn uncharge(&mut self, cost: u64) {
        if let StoreAnswer::Answered { answer, charged: charged @ true } = self {
            (*charged, answer.mark) = (false, 0);
            answer.decision.remaining = answer.decision.remaining.saturating_add(cost);
        }
    }
}

// === impl StoreUnits ===

impl StoreUnits {
    /// Gives units of a leased limit back in this process; false for others.
    pub(super) fn put_back_lease(&self) -> bool {
        let name = LeaseName::of_rule(&self.limit.rules[self.rate], self.key);
        if let Some(name) = &name {
            self.limit.leases.put_back(name, self.mark, self.cost);
        }
        name.is_some()
    }
}

// === impl LeaseCallGuard ===

impl Drop for LeaseCallGuard<'_> {
    fn drop(&mut self) {
        self.leases.end_call(self.name, self.number, Err(StoreFault::Down));
    }
}

// === impl TakenUnits ===

impl TakenUnits<'_> {
    fn give_back(&mut self, from: usize) {
        for (question, name, call) in self.0.drain(from..) {
            question.limit.leases.put_back(&name, call, question.item.cost);
        }
    }
}

impl Drop for TakenUnits<'_> {
    fn drop(&mut self) {
        self.give_back(0);
    }
}
