//! Questions about leased limits, and the calls that renew what this process holds of them.

use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{Session, StoreAnswer, StoreQuestion};
use crate::lease::{LeaseAnswer, LeaseCallGuard, LeaseName, LeaseOutcome, LeaseStep, LimitLeases};
use crate::settlements::StoreUnits;
use crate::{Link, LuaScript, PackedCall, RateAnswer, ScriptOp, SharedLimit, StoreFault};
use sluicegate_limit::{Decision, LimitOutcome};

/// A key that this worker renews and returns.
#[derive(Clone)]
pub(super) struct WatchedLease {
    leases: Arc<LimitLeases>,
    name: LeaseName,
    key_name: Vec<u8>,
}

/// Watches a key until it is dropped.
pub(super) struct LeaseWatch(WatchedLease);

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
        let (mut answers, mut taken) = self.take_leases(op, questions).await;
        let rejects = |(question, answer): (&StoreQuestion<'_>, &Option<StoreAnswer>)| {
            !question.item.dry_run && answer.is_some_and(|answer| answer.rejects())
        };
        let is_rejected = questions.iter().zip(&answers).any(rejects);
        let is_exact = |index: &usize| answers[*index].is_none();
        let others: SmallVec<[usize; 4]> = (0..questions.len()).filter(is_exact).collect();
        if !others.is_empty() {
            let exact: SmallVec<[StoreQuestion<'_>; 4]> =
                others.iter().map(|index| questions[*index]).collect();
            let op = if is_rejected && op == ScriptOp::Take { ScriptOp::Peek } else { op };
            for (index, answer) in others.iter().zip(self.ask_exactly(op, &exact).await) {
                answers[*index] = Some(answer);
            }
        }
        if is_rejected {
            taken.give_back(|_| true);
        }
        let uncharged = |(question, answer): (&StoreQuestion<'_>, Option<StoreAnswer>)| match answer {
            Some(answer) if is_rejected => answer.uncharge(question.item.cost, false),
            Some(answer) => answer,
            None => StoreAnswer::Failed(StoreFault::Garbled),
        };
        let answers = questions.iter().zip(answers).map(uncharged).collect();
        taken.0.clear();
        answers
    }

    /// The answers on leased limits, whose units are taken if all rates of a limit have them.
    async fn take_leases<'a>(
        &self,
        op: ScriptOp,
        questions: &'a [StoreQuestion<'a>],
    ) -> (SmallVec<[Option<StoreAnswer>; 4]>, TakenUnits<'a>) {
        let deadline = Instant::now() + self.store.call_timeout();
        let (mut taken, mut steps) = (TakenUnits(SmallVec::new()), SmallVec::<[_; 4]>::new());
        // All wait for their answers at once.
        for question in questions {
            steps.push(question.lease_name().map(|name| (name, self.begin_lease(op, question, &name))));
        }
        let mut answers: SmallVec<[Option<StoreAnswer>; 4]> = SmallVec::new();
        for (question, step) in questions.iter().zip(steps) {
            let Some((name, step)) = step else {
                answers.push(None);
                continue;
            };
            let outcome = match step {
                None => question.look_at_lease(&name),
                Some(LeaseStep::Done(outcome)) => outcome,
                Some(LeaseStep::Waits(mut wait)) => wait.wait(deadline).await,
            };
            if let (LeaseOutcome::Taken(call, _), ScriptOp::Take) = (outcome, op) {
                taken.0.push((question, name, call));
            }
            answers.push(Some(question.answer_lease(outcome)));
        }
        for index in 0..questions.len() {
            let limit_index = questions[index].item.limit_index;
            let own = |other: &usize| questions[*other].item.limit_index == limit_index;
            let rejects = |other: usize| answers[other].is_some_and(|answer| answer.rejects());
            if op == ScriptOp::Take && (0..questions.len()).filter(own).any(rejects) {
                let question = &questions[index];
                taken.give_back(|other| std::ptr::eq(other, question));
                // As in the script, a limit that does not act rejects nothing.
                let dry_run = question.item.dry_run;
                answers[index] = answers[index].map(|answer| answer.uncharge(question.item.cost, dry_run));
            }
        }
        (answers, taken)
    }

    fn begin_lease(&self, op: ScriptOp, question: &StoreQuestion<'_>, name: &LeaseName) -> Option<LeaseStep> {
        if op != ScriptOp::Take {
            return None;
        }
        let leases = &question.limit.leases;
        let (step, calls) = leases.take_units(name, question.item.cost);
        if calls {
            self.start_lease_calls(&self.watched_lease(question.limit, question.rate, *name));
        }
        Some(step)
    }

    fn watched_lease(&self, limit: &SharedLimit, rate: usize, name: LeaseName) -> WatchedLease {
        let key_name = limit.rules[rate].counters_name(self.store.prefix(), &name.key);
        WatchedLease { leases: limit.leases.clone(), name, key_name }
    }

    /// Has leased limits charge debts with their next calls.
    pub(super) fn owe_leases<'a>(&self, charges: impl Iterator<Item = &'a StoreUnits>) {
        for StoreUnits { limit, rate, key, cost, .. } in charges {
            let Some(name) = LeaseName::of_rule(&limit.rules[*rate], *key) else { continue };
            match limit.leases.owe(&name, i64::try_from(*cost).unwrap_or(i64::MAX)) {
                true => self.start_lease_calls(&self.watched_lease(limit, *rate, name)),
                false => limit.count_lost(),
            }
        }
    }

    /// Makes the calls about a key that are due, one after the other.
    fn start_lease_calls(&self, lease: &WatchedLease) {
        let node = self.store.process_node();
        let Some((mut guard, mut body, is_new)) = lease.leases.begin_call(&lease.name, node) else { return };
        if is_new {
            self.watched_leases.borrow_mut().push(LeaseWatch(lease.clone()));
        }
        let (link, lease) = (self.link.clone(), lease.clone());
        tokio::task::spawn_local(async move {
            while lease.make_call(&link, guard, body).await {
                let Some(next) = lease.leases.begin_call(&lease.name, node) else { break };
                (guard, body, _) = next;
            }
        });
    }

    /// Returns all units that this worker looks after: the process is about to end, or another one judges from now on.
    pub async fn return_leases(&self) {
        let node = self.store.process_node();
        let calls = self.watched_leases.take().into_iter().filter_map(|watch| {
            let lease = watch.0.clone();
            let (guard, body) = lease.leases.begin_return(&lease.name, node)?;
            Some(async move { lease.make_call(&self.link, guard, body).await })
        });
        join_all(calls.collect::<Vec<_>>()).await;
    }

    /// Makes the calls of the watched keys that are due though no request comes; forgets keys of which nothing is held.
    pub(super) fn poll_leases(&self) {
        let watched = self.watched_leases.take();
        for watch in watched.into_iter().filter(|LeaseWatch(lease)| lease.leases.keeps_key(&lease.name)) {
            self.start_lease_calls(&watch.0);
            self.watched_leases.borrow_mut().push(watch);
        }
    }
}

// === impl WatchedLease ===

impl WatchedLease {
    /// Makes a call that has begun; true if another one is due.
    async fn make_call(&self, link: &Link, guard: LeaseCallGuard, body: Vec<u8>) -> bool {
        let packed = PackedCall { keys: [self.key_name.clone()].into_iter().collect(), body };
        let group = link.store().group_of(&self.name.key);
        let reply = link.call_script(group, LuaScript::lease_script(), &packed).await;
        guard.end(reply.and_then(|bytes| LeaseAnswer::decode(&bytes).ok_or(StoreFault::Garbled)))
    }
}

// === impl LeaseWatch ===

impl Drop for LeaseWatch {
    fn drop(&mut self) {
        self.0.leases.end_watch(&self.0.name);
    }
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
        let answer = RateAnswer::of_lease(self.limit.leased_decision(self.rate, &outcome), mark);
        StoreAnswer::Answered { answer, charged: mark != 0 }
    }

    /// What one more request would find, by what this process knows.
    fn look_at_lease(&self, name: &LeaseName) -> LeaseOutcome {
        let (here, stored) = self.limit.leases.find_units(name).unwrap_or((0, self.item.rule.capacity()));
        let (cost, left) = (self.item.cost, here.saturating_add(stored));
        match left >= cost {
            true => LeaseOutcome::Taken(0, left),
            false => LeaseOutcome::Refused(name.terms.us_for(cost - left), left),
        }
    }
}

// === impl StoreAnswer ===

impl StoreAnswer {
    fn rejects(&self) -> bool {
        matches!(self, StoreAnswer::Answered { answer, .. } if answer.decision.outcome == LimitOutcome::Reject)
    }

    /// The same answer, where the charge of these units was undone. `charged`: the others were charged.
    fn uncharge(mut self, cost: u64, charged: bool) -> StoreAnswer {
        if let StoreAnswer::Answered { answer, charged: known } = &mut self {
            *known = charged;
            if std::mem::take(&mut answer.mark) != 0 {
                answer.decision.remaining = answer.decision.remaining.saturating_add(cost);
            }
        }
        self
    }
}

// === impl StoreUnits ===

impl StoreUnits {
    /// Gives units of a leased limit back in this process; false for others.
    pub(super) fn put_back_lease(&self) -> bool {
        let name = LeaseName::of_rule(&self.limit.rules[self.rate], self.key);
        if name.as_ref().is_some_and(|name| !self.limit.leases.put_back(name, self.mark, self.cost)) {
            self.limit.count_lost();
        }
        name.is_some()
    }
}

// === impl TakenUnits ===

impl TakenUnits<'_> {
    fn give_back(&mut self, is_selected: impl Fn(&StoreQuestion<'_>) -> bool) {
        self.0.retain(|(question, name, call)| {
            let is_kept = !is_selected(question);
            if !is_kept {
                question.limit.leases.put_back(name, *call, question.item.cost);
            }
            is_kept
        });
    }
}

impl Drop for TakenUnits<'_> {
    fn drop(&mut self) {
        self.give_back(|_| true);
    }
}

// === impl RateAnswer ===

impl RateAnswer {
    /// An answer by a lease.
    pub(crate) fn of_lease(decision: Decision, mark: u64) -> RateAnswer {
        let (window_ns, window, turn_ns) = (None, None, None);
        RateAnswer {
            decision,
            mark,
            skipped: false,
            window_ns,
            has_reserved: false,
            window,
            fired: 0,
            turn_ns,
        }
    }
}
