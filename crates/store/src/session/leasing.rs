//! Questions about leased limits, and the calls that renew what this process holds of them.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{Session, StoreAnswer, StoreQuestion};
use crate::lease::{
    HomeCall, HomeTerms, LeaseAnswer, LeaseCallGuard, LeaseName, LeaseOutcome, LeaseRequest, LimitLeases,
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
    link: Rc<Link>,
    key_name: Vec<u8>,
    /// In a region: the link to its home, its terms there, and the name of the key there.
    home: Option<(Rc<Link>, HomeTerms, Vec<u8>)>,
}

/// Watches a key until it is dropped.
pub(super) struct LeaseWatch(WatchedLease);

/// The request for the units of each question; `None` where none are taken.
type LeaseRequests = SmallVec<[Option<LeaseRequest>; 4]>;

// === impl Session ===

impl Session {
    /// Asks about limits of which some are leased: those first, and the others only if these admit the request.
    pub(super) async fn ask_with_leases(
        &self,
        op: ScriptOp,
        questions: &[StoreQuestion<'_>],
    ) -> SmallVec<[StoreAnswer; 4]> {
        let (answers, mut requests) = self.take_leases(op, questions).await;
        let rejects = |(question, answer): (&StoreQuestion<'_>, &Option<StoreAnswer>)| {
            !question.item.dry_run && answer.is_some_and(|answer| answer.rejects())
        };
        let is_rejected = questions.iter().zip(&answers).any(rejects);
        let unknown = questions.iter().zip(&answers).filter(|(_, answer)| answer.is_none());
        let others: SmallVec<[StoreQuestion<'_>; 4]> = unknown.map(|(question, _)| *question).collect();
        let exact_op = if is_rejected && op == ScriptOp::Take { ScriptOp::Peek } else { op };
        let mut exact = self.ask_exactly(exact_op, &others).await.into_iter();
        if is_rejected {
            requests.clear();
        }
        let answer_of = |(question, answer): (&StoreQuestion<'_>, Option<StoreAnswer>)| {
            let answer = answer.or_else(|| exact.next()).unwrap_or(StoreAnswer::Failed(StoreFault::Garbled));
            match is_rejected && op == ScriptOp::Take {
                true => answer.uncharge(question.item.cost, false).skip_slots(question),
                false => answer,
            }
        };
        let answers = questions.iter().zip(answers).map(answer_of).collect();
        requests.into_iter().flatten().for_each(LeaseRequest::keep_units);
        answers
    }

    /// The answers on leased limits, whose units are taken if all rates of a limit have them.
    async fn take_leases(
        &self,
        op: ScriptOp,
        questions: &[StoreQuestion<'_>],
    ) -> (SmallVec<[Option<StoreAnswer>; 4]>, LeaseRequests) {
        let deadline = Instant::now() + self.store.timeout;
        // All wait for their answers at once.
        let begin = |question| if op == ScriptOp::Take { self.begin_lease(question) } else { None };
        let mut requests: LeaseRequests = questions.iter().map(begin).collect();
        let mut answers: SmallVec<[Option<StoreAnswer>; 4]> = SmallVec::new();
        for (question, request) in questions.iter().zip(&mut requests) {
            let outcome = match (request, question.lease_name()) {
                (Some(request), _) => Some(request.wait_until(deadline).await),
                (None, name) => name.map(|name| self.look_at_lease(question, &name)),
            };
            answers.push(outcome.map(|outcome| question.answer_lease(outcome)));
        }
        for (index, question) in questions.iter().enumerate() {
            let is_own = |other: &StoreQuestion<'_>| other.item.limit_index == question.item.limit_index;
            let own = questions.iter().zip(&answers).filter(|(other, _)| is_own(other));
            let own = own.filter_map(|(_, answer)| *answer);
            let failed = own.clone().find(|answer| matches!(answer, StoreAnswer::Failed(_)));
            let is_rejected = op == ScriptOp::Take && own.clone().any(|answer| answer.rejects());
            // All rates of a limit are judged by the store, or none. As in the script, a limit that does not act
            // rejects nothing.
            let uncharge = |answer: StoreAnswer| match failed {
                Some(failed) => failed,
                None => answer.uncharge(question.item.cost, question.item.dry_run),
            };
            if failed.is_some() || is_rejected {
                requests[index] = None;
                answers[index] = answers[index].map(uncharge);
            }
        }
        (answers, requests)
    }

    fn begin_lease(&self, question: &StoreQuestion<'_>) -> Option<LeaseRequest> {
        let name = question.lease_name()?;
        let (request, calls) = question.limit.leases.take_units(&name, question.item.cost);
        if calls {
            self.start_lease_calls(&self.watched_lease(question.limit, question.rate, name));
        }
        Some(request)
    }

    /// What a request would find that only looks.
    fn look_at_lease(&self, question: &StoreQuestion<'_>, name: &LeaseName) -> LeaseOutcome {
        let cost = question.item.cost;
        match question.limit.leases.look_at(name, cost) {
            LeaseOutcome::Taken(_, left) | LeaseOutcome::Refused(_, left)
                if left.here < cost && !self.store.is_reachable() =>
            {
                LeaseOutcome::Failed(StoreFault::Down)
            }
            outcome => outcome,
        }
    }

    fn watched_lease(&self, limit: &SharedLimit, rate: usize, name: LeaseName) -> WatchedLease {
        let (prefix, rule) = (self.store.prefix(), &limit.rules[rate]);
        let own_name = rule.counters_name(prefix, &name.key);
        let (leases, link) = (limit.leases.clone(), self.link.clone());
        let Some(home_link) = &self.home_link else {
            return WatchedLease { leases, name, link, key_name: own_name, home: None };
        };
        let key_name = KeyClass::RegionLeases.name_key(prefix, &name.key, rule.id.into());
        let terms = HomeTerms::new(&name.terms, self.store.home_share);
        WatchedLease { leases, name, link, key_name, home: Some((home_link.clone(), terms, own_name)) }
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
            self.watched_leases.borrow_mut().push_back(LeaseWatch(lease.clone()));
        }
        let node = self.store.process_node();
        let Some(mut begun) = lease.begin_call(node) else { return };
        let lease = lease.clone();
        tokio::task::spawn_local(async move {
            while lease.make_call(begun).await {
                match lease.leases.pause_us(&lease.name) {
                    0 => {}
                    pause_us => tokio::time::sleep(Duration::from_micros(pause_us)).await,
                }
                let Some(next) = lease.begin_call(node) else { break };
                begun = next;
            }
        });
    }

    /// Returns all units that this worker looks after: the process is about to end, or another one judges from now on.
    /// Ends when they are returned, or the store does not answer.
    pub async fn return_leases(&self) {
        for _ in 0..RETURN_TRIES {
            let watched: Vec<WatchedLease> =
                self.watched_leases.borrow().iter().map(|watch| watch.0.clone()).collect();
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
            let Some(watch) = self.watched_leases.borrow_mut().pop_front() else { return };
            if watch.0.leases.keeps_key(&watch.0.name) {
                self.start_lease_calls(&watch.0);
                self.watched_leases.borrow_mut().push_back(watch);
            }
        }
    }
}

// === impl WatchedLease ===

impl WatchedLease {
    /// The next call about the key, if one is due.
    fn begin_call(&self, node: u64) -> Option<(LeaseCallGuard, Vec<u8>)> {
        self.leases.begin_call(&self.name, node, self.home.as_ref().map(|(_, terms, _)| *terms))
    }

    /// Makes a call that has begun, and the call of the home to which it leads; true if another one is due.
    async fn make_call(&self, (guard, body): (LeaseCallGuard, Vec<u8>)) -> bool {
        let reply = self.send_call(&self.link, &self.key_name, body).await;
        let home_call = reply.as_ref().ok().and_then(|(_, home_call)| home_call.clone());
        let is_due = guard.end(reply.map(|(answer, _)| answer));
        let (Some(HomeCall { name, mut call }), Some((link, terms, key_name))) = (home_call, &self.home)
        else {
            return is_due;
        };
        let mut begun = self.leases.begin_home_call(&self.name, &mut call);
        let sent = self.send_call(link, key_name, call.encode(&terms.own, name, None));
        // No request waits for longer than its own deadline.
        let reply = tokio::time::timeout(Duration::from_micros(terms.own.term), sent).await;
        begun.report.answer = reply.ok().and_then(Result::ok).map(|(answer, _)| answer);
        true
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
    /// If the key was forgotten and is known again, two workers may look after it for a while.
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
        if let LeaseOutcome::Failed(fault) = outcome {
            return StoreAnswer::Failed(fault);
        }
        let answer = self.limit.leased_answer(self.rate, &outcome);
        StoreAnswer::Answered { answer, charged: answer.mark != 0 }
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

// === impl RateAnswer ===

impl RateAnswer {
    /// An answer by units or a departure in hand.
    pub(crate) fn of_units(decision: Decision, mark: u64) -> RateAnswer {
        RateAnswer {
            decision,
            mark,
            skipped: false,
            window_ns: None,
            has_reserved: false,
            window: None,
            fired: 0,
            turn_ns: None,
        }
    }
}
