//! Questions about leased limits, and the calls that renew what this process holds of them.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{Session, StoreAnswer, StoreQuestion};
use crate::lease::{
    HomeCall, HomeTerms, LeaseAnswer, LeaseCallGuard, LeaseName, LeaseOutcome, LeaseStep, LimitLeases,
};
use crate::script::call::KeyClass;
use crate::settlements::StoreUnits;
use crate::{Link, LuaScript, PackedCall, RateAnswer, ScriptOp, SharedLimit, StoreFault};
use sluicegate_limit::{Decision, LimitOutcome};

/// Keys that a worker looks at in one poll.
const POLLED_MAX: usize = 4_096;
/// The pause between two looks whether all is returned.
const RETURN_PAUSE: Duration = Duration::from_millis(2);
const RETURN_TRIES: usize = 500;

/// A key that this worker renews and returns.
#[derive(Clone)]
pub(super) struct WatchedLease {
    leases: Arc<LimitLeases>,
    name: LeaseName,
    key_name: Vec<u8>,
    /// The name of the key at the home.
    home_name: Option<Vec<u8>>,
}

/// Watches a key until it is dropped.
pub(super) struct LeaseWatch {
    lease: WatchedLease,
    /// The key is forgotten.
    is_over: bool,
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
            Some(answer) if is_rejected && op == ScriptOp::Take => {
                answer.uncharge(question.item.cost, false).skip_slots(question)
            }
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
        // What is at hand is given back if the request goes while it waits for the rest.
        for (question, step) in questions.iter().zip(&steps) {
            if let Some((name, Some(LeaseStep::Done(LeaseOutcome::Taken(mark, _))))) = step {
                taken.0.push((question, *name, *mark));
            }
        }
        let mut answers: SmallVec<[Option<StoreAnswer>; 4]> = SmallVec::new();
        for (question, step) in questions.iter().zip(steps) {
            let Some((name, step)) = step else {
                answers.push(None);
                continue;
            };
            let outcome = match step {
                None => question.limit.leases.look_at(&name, question.item.cost),
                Some(LeaseStep::Done(outcome)) => outcome,
                Some(LeaseStep::Waits(mut wait)) => {
                    let outcome = wait.wait(deadline).await;
                    if let LeaseOutcome::Taken(mark, _) = outcome {
                        taken.0.push((question, name, mark));
                    }
                    outcome
                }
            };
            answers.push(Some(question.answer_lease(outcome)));
        }
        for index in 0..questions.len() {
            let limit_index = questions[index].item.limit_index;
            let own = |other: &usize| questions[*other].item.limit_index == limit_index;
            let rejects = |other: usize| answers[other].is_some_and(|answer| answer.rejects());
            let failed =
                |other: usize| answers[other].filter(|answer| matches!(answer, StoreAnswer::Failed(_)));
            let question = &questions[index];
            if answers[index].is_some()
                && let Some(failed) = (0..questions.len()).filter(own).find_map(failed)
            {
                // All rates of a limit are judged by the store, or none.
                taken.give_back(|other| std::ptr::eq(other, question));
                answers[index] = Some(failed);
            } else if op == ScriptOp::Take && (0..questions.len()).filter(own).any(rejects) {
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
        let (prefix, rule) = (self.store.prefix(), &limit.rules[rate]);
        let own_name = rule.counters_name(prefix, &name.key);
        let (key_name, home_name) = match self.home_link {
            Some(_) => (KeyClass::RegionLeases.name_key(prefix, &name.key, rule.id.into()), Some(own_name)),
            None => (own_name, None),
        };
        WatchedLease { leases: limit.leases.clone(), name, key_name, home_name }
    }

    /// Has leased limits charge debts with their next calls.
    pub(super) fn owe_leases<'a>(&self, charges: impl Iterator<Item = &'a StoreUnits>) {
        for StoreUnits { limit, rate, key, cost, .. } in charges {
            let Some(name) = LeaseName::of_rule(&limit.rules[*rate], *key) else { continue };
            match limit.leases.owe(&name, *cost) {
                true => self.start_lease_calls(&self.watched_lease(limit, *rate, name)),
                false => limit.count_lost(),
            }
        }
    }

    /// Makes the calls about a key that are due, one after the other.
    fn start_lease_calls(&self, lease: &WatchedLease) {
        if lease.leases.begin_watch(&lease.name) {
            self.watched_leases.borrow_mut().push_back(LeaseWatch { lease: lease.clone(), is_over: false });
        }
        let caller = self.store.lease_caller();
        let Some(mut begun) = lease.leases.begin_call(&lease.name, caller) else { return };
        let (link, home_link, lease) = (self.link.clone(), self.home_link.clone(), lease.clone());
        tokio::task::spawn_local(async move {
            while lease.make_call(&link, home_link.as_deref(), begun).await {
                match lease.leases.pause_us(&lease.name) {
                    0 => {}
                    pause_us => tokio::time::sleep(Duration::from_micros(pause_us)).await,
                }
                let Some(next) = lease.leases.begin_call(&lease.name, caller) else { break };
                begun = next;
            }
        });
    }

    /// Returns all units that this worker looks after: the process is about to end, or another one judges from now on.
    /// Ends when they are returned, or the store does not answer.
    pub async fn return_leases(&self) {
        for _ in 0..RETURN_TRIES {
            let watched: Vec<WatchedLease> =
                self.watched_leases.borrow().iter().map(|watch| watch.lease.clone()).collect();
            let mut is_done = true;
            for lease in watched.iter().filter(|lease| lease.leases.end_lease(&lease.name)) {
                self.start_lease_calls(lease);
                is_done = false;
            }
            if is_done {
                return;
            }
            tokio::time::sleep(RETURN_PAUSE).await;
        }
    }

    /// Makes the calls of watched keys that are due though no request comes; forgets keys of which nothing is held.
    /// Looks at some keys each time, in turn.
    pub(super) fn poll_leases(&self) {
        let count = self.watched_leases.borrow().len().min(POLLED_MAX);
        for _ in 0..count {
            let Some(mut watch) = self.watched_leases.borrow_mut().pop_front() else { return };
            if watch.lease.leases.keeps_key(&watch.lease.name) {
                self.start_lease_calls(&watch.lease);
                self.watched_leases.borrow_mut().push_back(watch);
            } else {
                watch.is_over = true;
            }
        }
    }

    /// Gives units of a leased limit back in this process; false for others.
    pub(super) fn put_back_lease(&self, refund: &StoreUnits) -> bool {
        let StoreUnits { limit, rate, key, cost, mark, .. } = refund;
        let Some(name) = LeaseName::of_rule(&limit.rules[*rate], *key) else { return false };
        match limit.leases.put_back(&name, *mark, *cost) {
            true => self.start_lease_calls(&self.watched_lease(limit, *rate, name)),
            false => limit.count_lost(),
        }
        true
    }
}

// === impl WatchedLease ===

impl WatchedLease {
    /// Makes a call that has begun, and the call of the home to which it leads; true if another one is due.
    async fn make_call(
        &self,
        link: &Link,
        home_link: Option<&Link>,
        (guard, body): (LeaseCallGuard, Vec<u8>),
    ) -> bool {
        let reply = self.send_call(link, &self.key_name, body).await;
        let home_call = reply.as_ref().ok().and_then(|(_, home_call)| home_call.clone());
        let is_due = guard.end(reply.map(|(answer, _)| answer));
        let (Some(home_call), Some(home_link), Some(name)) = (home_call, home_link, &self.home_name) else {
            return is_due;
        };
        self.call_home(link, home_link, name, home_call).await;
        true
    }

    /// Asks the home for this region; no request waits for longer than its own deadline.
    async fn call_home(
        &self,
        link: &Link,
        home_link: &Link,
        key_name: &[u8],
        HomeCall { name, mut call }: HomeCall,
    ) {
        let share = link.store().lease_caller().home_share.unwrap_or_default();
        let terms = HomeTerms::new(&self.name.terms, share).own;
        let guard = self.leases.begin_home_call(&self.name, &mut call);
        let sent = self.send_call(home_link, key_name, call.encode(&terms, name, None));
        let reply = tokio::time::timeout(Duration::from_micros(terms.term), sent).await;
        guard.end(reply.ok().and_then(Result::ok).map(|(answer, _)| answer));
    }

    async fn send_call(
        &self,
        link: &Link,
        key_name: &[u8],
        body: Vec<u8>,
    ) -> Result<(LeaseAnswer, Option<HomeCall>), StoreFault> {
        let packed = PackedCall { keys: [key_name.to_vec()].into_iter().collect(), body };
        let group = link.store().group_of(&self.name.key);
        let bytes = link.call_script(group, LuaScript::lease_script(), &packed).await?;
        LeaseAnswer::decode(&bytes).ok_or(StoreFault::Garbled)
    }
}

// === impl LeaseWatch ===

impl Drop for LeaseWatch {
    fn drop(&mut self) {
        if !self.is_over {
            self.lease.leases.end_watch(&self.lease.name);
        }
    }
}

// === impl StoreQuestion ===

impl<'a> StoreQuestion<'a> {
    fn lease_name(&self) -> Option<LeaseName> {
        LeaseName::of_rule(self.item.rule, self.item.key)
    }

    fn answer_lease(&self, outcome: LeaseOutcome) -> StoreAnswer {
        let mark = match outcome {
            LeaseOutcome::Taken(mark, _) => mark,
            LeaseOutcome::Refused(..) => 0,
            LeaseOutcome::Failed(fault) => return StoreAnswer::Failed(fault),
        };
        StoreAnswer::Answered {
            answer: self.limit.leased_answer(self.rate, &outcome, mark),
            charged: mark != 0,
        }
    }
}

// === impl StoreAnswer ===

impl StoreAnswer {
    fn rejects(&self) -> bool {
        matches!(self, StoreAnswer::Answered { answer, .. } if answer.decision.outcome == LimitOutcome::Reject)
    }

    /// As in the script, slots of a request that a rate rejects are not judged.
    fn skip_slots(mut self, question: &StoreQuestion<'_>) -> StoreAnswer {
        if let StoreAnswer::Answered { answer, .. } = &mut self {
            answer.skipped |= question.item.slot_count.slots > 0;
        }
        self
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

// === impl TakenUnits ===

impl TakenUnits<'_> {
    fn give_back(&mut self, is_selected: impl Fn(&StoreQuestion<'_>) -> bool) {
        self.0.retain(|(question, name, mark)| {
            let is_kept = !is_selected(question);
            if !is_kept {
                question.limit.leases.put_back(name, *mark, question.item.cost);
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
    /// An answer by units or a departure in hand.
    pub(crate) fn of_units(decision: Decision, mark: u64) -> RateAnswer {
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
