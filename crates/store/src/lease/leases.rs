//! What this process holds of the keys of one limit, and the requests that wait for more.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::{
    HomeReport, HomeTerms, LeaseAnswer, LeaseCall, LeaseLeft, LeaseNode, LeaseSpend, LeaseTerms, PendingRun,
};
use crate::{RateRule, SharedKey, StoreFault};
use sluicegate_base::clock::{Now, boot_time_us};

/// Keys that a process holds something of, for one limit; requests of others fail over.
const KEYS_MAX: usize = 65_536;
/// The pause between two searches for keys that may be forgotten, in microseconds.
const SWEEP_US: u64 = 1_000_000;
/// Requests that wait for one key; further ones fail over.
const WAITING_MAX: usize = 4_096;
/// The pause after which a region is asked again whose home is asked by another gateway, in microseconds.
const HOME_PAUSE_US: u64 = 5_000;

/// The number of the last call of this process: numbers never repeat, whatever is forgotten.
static LAST_CALL: AtomicU64 = AtomicU64::new(0);

/// The leases of one limit, which all workers of the process share.
#[derive(Default)]
pub(crate) struct LimitLeases {
    held: Mutex<HashMap<LeaseName, KeyLease>>,
    /// Calls about the limit, those for several departures included.
    pub(crate) calls: AtomicU64,
    swept_at: AtomicU64,
}

/// A key of one rate: leases on other terms are other ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseName {
    /// [`crate::RateRule::id`].
    pub rule: u32,
    pub key: SharedKey,
    pub terms: LeaseTerms,
}

#[derive(Default)]
struct KeyLease {
    node: LeaseNode,
    /// Requests that the call under way does not know of.
    waiting: Vec<LeaseWaiter>,
    /// Requests that it asks for.
    asked: Vec<LeaseWaiter>,
    /// A worker looks after it.
    is_watched: bool,
    /// It is to be returned, because the process judges no more.
    is_ending: bool,
    /// The moment of the last answer.
    answered: Now,
    /// What the next call tells the store of a region.
    report: Option<HomeReport>,
    /// The home is asked by another gateway, and the region again after that moment.
    paused_until: u64,
}

/// A call of the home under way, and the requests that wait for it. Dropping it ends the call: those that the answer
/// admits go, others wait on.
pub(crate) struct HomeCallGuard<'a> {
    leases: &'a LimitLeases,
    name: &'a LeaseName,
    pub report: HomeReport,
    waiting: Vec<LeaseWaiter>,
}

/// A request that waits for the answer to a call.
struct LeaseWaiter {
    cost: u32,
    outcome: oneshot::Sender<LeaseOutcome>,
}

/// What became of a request, with what the limit has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseOutcome {
    /// Its units are charged; a refund names this mark.
    Taken(u64, LeaseLeft),
    /// It fits after so many microseconds.
    Refused(u64, LeaseLeft),
    /// The store did not answer.
    Failed(StoreFault),
}

/// A request for units. Dropping it gives back those that it has, or that the answer to a call brings.
pub(crate) struct LeaseRequest {
    /// `None` until the answer has come.
    outcome: Option<LeaseOutcome>,
    answer: oneshot::Receiver<LeaseOutcome>,
    leases: Arc<LimitLeases>,
    name: LeaseName,
    cost: u64,
}

/// A call under way. Dropping it ends the call without an answer.
pub(crate) struct LeaseCallGuard {
    leases: Arc<LimitLeases>,
    name: LeaseName,
    number: u64,
}

// === impl LeaseName ===

impl Hash for LeaseName {
    /// Without the terms, which are the same for most names.
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        (self.rule, self.key).hash(hasher);
    }
}

impl LeaseName {
    /// The name of a key; `None` if the rule is not leased.
    pub(crate) fn of_rule(rule: &RateRule, key: SharedKey) -> Option<LeaseName> {
        rule.leases.map(|terms| LeaseName { rule: rule.id, key, terms })
    }
}

// === impl LimitLeases ===

impl LimitLeases {
    /// Spends units if no call is needed for it.
    pub(crate) fn take_at_once(&self, name: &LeaseName, cost: u64) -> Option<LeaseOutcome> {
        let (now, mut held) = (boot_time_us(), self.held.lock());
        let lease = held.get_mut(name)?;
        let spent = lease.node.spend_at_once(&name.terms, now, cost)?;
        lease.outcome_of(spent, &name.terms, now)
    }

    /// Spends units, or has the request wait for more. The flag is true if the caller has to make the next call.
    pub(crate) fn take_units(self: &Arc<Self>, name: &LeaseName, cost: u64) -> (LeaseRequest, bool) {
        let (sender, answer) = oneshot::channel();
        let mut request = LeaseRequest { outcome: None, answer, leases: self.clone(), name: *name, cost };
        let (now, mut held) = (boot_time_us(), self.held.lock());
        let Some(lease) = self.find_or_add(&mut held, name, now) else {
            request.outcome = Some(LeaseOutcome::Failed(StoreFault::Busy));
            return (request, false);
        };
        lease.is_ending = false;
        let spent = lease.node.spend(&name.terms, now, cost);
        request.outcome = match lease.outcome_of(spent, &name.terms, now) {
            None if lease.waiting.len() < WAITING_MAX => {
                // No bucket that is leased holds more.
                let units = u32::try_from(cost).unwrap_or(u32::MAX);
                lease.waiting.push(LeaseWaiter { cost: units, outcome: sender });
                None
            }
            None => Some(LeaseOutcome::Failed(StoreFault::Busy)),
            decided => decided,
        };
        let calls =
            !lease.node.is_calling && (!lease.waiting.is_empty() || lease.node.is_due(&name.terms, now));
        (request, calls)
    }

    /// Gives back units of a request that were not used; `mark` is that of [`LeaseOutcome::Taken`]. False if the key
    /// was forgotten meanwhile.
    pub(crate) fn put_back(&self, name: &LeaseName, mark: u64, cost: u64) -> bool {
        let mut held = self.held.lock();
        let lease = held.get_mut(name);
        lease.map(|lease| lease.node.put_back(&name.terms, mark, cost)).is_some()
    }

    /// Has the next call charge units. False if there are too many keys.
    pub(crate) fn owe(&self, name: &LeaseName, units: u64) -> bool {
        let (now, mut held) = (boot_time_us(), self.held.lock());
        let lease = self.find_or_add(&mut held, name, now);
        lease.map(|lease| lease.node.owe(&name.terms, units)).is_some()
    }

    fn find_or_add<'a>(
        &self,
        held: &'a mut HashMap<LeaseName, KeyLease>,
        name: &LeaseName,
        now: u64,
    ) -> Option<&'a mut KeyLease> {
        if held.len() >= KEYS_MAX && !held.contains_key(name) {
            if now < self.swept_at.load(Relaxed).saturating_add(SWEEP_US) {
                return None;
            }
            self.swept_at.store(now, Relaxed);
            held.retain(|name, lease| !lease.is_forgettable(&name.terms, now));
            if held.len() >= KEYS_MAX {
                return None;
            }
        }
        Some(held.entry(*name).or_default())
    }

    /// What the limit has left for a key, and the moment of the store's last answer; `None` without one.
    pub(crate) fn find_left(&self, name: &LeaseName) -> Option<(LeaseLeft, Now)> {
        self.with_answered(name, |lease, now| (lease.node.find_left(&name.terms, now), lease.answered))
    }

    /// What the limit has left for a key if nobody has taken units since the store's last answer; `None` without one.
    pub(crate) fn estimate_left(&self, name: &LeaseName) -> Option<LeaseLeft> {
        self.with_answered(name, |lease, now| lease.node.estimate_left(&name.terms, now))
    }

    /// What one more request would find, by what this process knows.
    pub(crate) fn look_at(&self, name: &LeaseName, cost: u64) -> LeaseOutcome {
        let terms = &name.terms;
        let looked = self.with_answered(name, |lease, now| {
            let left = lease.node.estimate_left(terms, now);
            if left.units() >= cost {
                return LeaseOutcome::Taken(0, left);
            }
            let ticks = (cost - left.here).saturating_mul(terms.unit);
            LeaseOutcome::Refused(lease.node.wait_for(terms, now, ticks), left)
        });
        let stored = terms.depth / terms.unit;
        looked.unwrap_or(LeaseOutcome::Taken(0, LeaseLeft { here: 0, stored, next_us: 0, full_us: 0 }))
    }

    /// Reads from a key that the store has answered about.
    fn with_answered<T>(&self, name: &LeaseName, read: impl FnOnce(&mut KeyLease, u64) -> T) -> Option<T> {
        let (now, mut held) = (boot_time_us(), self.held.lock());
        let lease = held.get_mut(name).filter(|lease| lease.answered > Now::default())?;
        Some(read(lease, now))
    }

    /// Forgets what is held of a key that was reset.
    pub(crate) fn forget_key(&self, rule: u32, key: &SharedKey) {
        let mut held = self.held.lock();
        let own = held.iter_mut().filter(|(name, _)| (name.rule, name.key) == (rule, *key));
        own.for_each(|(name, lease)| lease.node.forget_holdings(&name.terms));
    }

    /// The next call about a key: for the requests that wait, or to renew or return what is held.
    /// `None` if none is due, or one is under way.
    pub(crate) fn begin_call(
        self: &Arc<Self>,
        name: &LeaseName,
        node: u64,
        home: Option<HomeTerms>,
    ) -> Option<(LeaseCallGuard, Vec<u8>)> {
        let (now, mut held) = (boot_time_us(), self.held.lock());
        let lease = held.get_mut(name)?;
        let has_report = lease.report.is_some();
        if lease.node.is_calling || now < lease.paused_until && !has_report {
            return None;
        }
        lease.waiting.retain(|waiter| !waiter.outcome.is_closed());
        let is_due = !lease.waiting.is_empty()
            || has_report
            || !lease.is_ending && lease.node.is_due(&name.terms, now);
        let is_ended = lease.is_ending && lease.node.holds_units();
        let is_idle = !is_due && (is_ended || lease.node.is_idle(&name.terms, now));
        if !is_due && !is_idle {
            return None;
        }
        self.calls.fetch_add(1, Relaxed);
        let number = LAST_CALL.fetch_add(1, Relaxed) + 1;
        let call = match is_idle {
            true => lease.node.begin_return(now, number),
            false => {
                lease.asked = std::mem::take(&mut lease.waiting);
                lease.node.begin_call(&name.terms, (now, number), runs_of(&lease.asked))
            }
        };
        let guard = LeaseCallGuard { leases: self.clone(), name: *name, number };
        let region = home.map(|terms| {
            // A region that begins has a name of its own: the home knows nothing of its calls.
            let new_name = node ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (terms, lease.report.take(), new_name)
        });
        Some((guard, call.encode(&name.terms, node, region)))
    }

    /// Begins a call of the home for the requests that wait, which become part of `call`.
    pub(crate) fn begin_home_call<'a>(
        &'a self,
        name: &'a LeaseName,
        call: &mut LeaseCall,
    ) -> HomeCallGuard<'a> {
        let mut held = self.held.lock();
        let waiting = held.get_mut(name).map(|lease| std::mem::take(&mut lease.waiting)).unwrap_or_default();
        call.pending = runs_of(&waiting);
        self.calls.fetch_add(1, Relaxed);
        let report = HomeReport { number: call.number, answer: None };
        HomeCallGuard { leases: self, name, report, waiting }
    }

    /// The pause before the next call about a key of a region.
    pub(crate) fn pause_us(&self, name: &LeaseName) -> u64 {
        let held = self.held.lock();
        held.get(name).map_or(0, |lease| lease.paused_until.saturating_sub(boot_time_us()))
    }

    /// Has the next call return what is held of a key. False if nothing is.
    pub(crate) fn end_lease(&self, name: &LeaseName) -> bool {
        let mut held = self.held.lock();
        let Some(lease) = held.get_mut(name) else { return false };
        lease.is_ending = true;
        lease.node.is_calling || lease.node.holds_units()
    }

    /// Begins to look after a key; false if another worker does, or nothing is known of it.
    pub(crate) fn begin_watch(&self, name: &LeaseName) -> bool {
        let mut held = self.held.lock();
        held.get_mut(name).is_some_and(|lease| !std::mem::replace(&mut lease.is_watched, true))
    }

    pub(crate) fn units_held(&self) -> u64 {
        let (now, mut held) = (boot_time_us(), self.held.lock());
        held.iter_mut().map(|(name, lease)| lease.node.ticks_held(now).0 / name.terms.unit).sum()
    }

    /// Nobody looks after a key any more.
    pub(crate) fn end_watch(&self, name: &LeaseName) {
        if let Some(lease) = self.held.lock().get_mut(name) {
            lease.is_watched = false;
        }
    }

    /// Ends a call with its answer, or the reason why there is none. True if another call is due.
    fn end_call(&self, name: &LeaseName, number: u64, answer: Result<LeaseAnswer, StoreFault>) -> bool {
        let mut outcomes: Vec<(LeaseWaiter, LeaseOutcome)> = Vec::new();
        let (now, mut held) = (boot_time_us(), self.held.lock());
        let Some(lease) =
            held.get_mut(name).filter(|lease| lease.node.is_calling && lease.node.call == number)
        else {
            return false;
        };
        match answer {
            Ok(answer) if lease.node.apply_answer(&name.terms, (now, number), &answer) => {
                // A region that its home has not answered yet knows nothing of the limit.
                if answer.left > 0 || answer.held > 0 || answer.rate > 0 || !answer.asks_home {
                    lease.answered = Now::read_clock();
                }
                lease.paused_until = if answer.is_home_asked { now + HOME_PAUSE_US } else { 0 };
                lease.serve_waiters(&name.terms, now, &answer, &mut outcomes);
            }
            // The key was reset meanwhile.
            Ok(_) => {
                lease.node.is_calling = false;
                lease.waiting.splice(..0, std::mem::take(&mut lease.asked));
            }
            Err(fault) => {
                lease.node.is_calling = false;
                let mut failed = std::mem::take(&mut lease.asked);
                if matches!(fault, StoreFault::Down | StoreFault::Busy) {
                    failed.append(&mut lease.waiting);
                }
                outcomes.extend(failed.into_iter().map(|waiter| (waiter, LeaseOutcome::Failed(fault))));
            }
        }
        let is_due = !lease.waiting.is_empty() || lease.is_ending && lease.node.holds_units();
        let is_due = is_due || lease.report.is_some();
        drop(held);
        for (waiter, outcome) in outcomes {
            let cost = waiter.cost;
            if let Err(LeaseOutcome::Taken(mark, _)) = waiter.outcome.send(outcome) {
                self.put_back(name, mark, cost.into());
            }
        }
        is_due
    }

    /// False if nothing is held of a key any more, which is then forgotten.
    pub(crate) fn keeps_key(&self, name: &LeaseName) -> bool {
        let (now, mut held) = (boot_time_us(), self.held.lock());
        let Some(lease) = held.get(name) else { return false };
        let is_forgotten = lease.is_forgettable(&name.terms, now);
        if is_forgotten {
            held.remove(name);
        }
        !is_forgotten
    }
}

// === impl KeyLease ===

impl KeyLease {
    fn is_forgettable(&self, terms: &LeaseTerms, now: u64) -> bool {
        self.waiting.is_empty() && self.node.is_forgettable(terms, now)
    }

    /// The outcome of a request; `None` if the store is to be asked.
    fn outcome_of(&mut self, spent: LeaseSpend, terms: &LeaseTerms, now: u64) -> Option<LeaseOutcome> {
        let left = self.node.find_left(terms, now);
        match spent {
            LeaseSpend::Taken => Some(LeaseOutcome::Taken(LeaseNode::mark_spent(now), left)),
            LeaseSpend::Refused(wait_us) => Some(LeaseOutcome::Refused(wait_us, left)),
            LeaseSpend::Ask => None,
        }
    }

    /// Serves the requests that the answer admits, and then those that its units are enough for. Those that fit into
    /// what the store has left wait for another call.
    fn serve_waiters(
        &mut self,
        terms: &LeaseTerms,
        now: u64,
        answer: &LeaseAnswer,
        outcomes: &mut Vec<(LeaseWaiter, LeaseOutcome)>,
    ) {
        let (left, all_left) = (answer.left / terms.unit, self.node.find_left(terms, now));
        let mut asked = std::mem::take(&mut self.asked).into_iter();
        for waiter in asked.by_ref().take(answer.granted as usize) {
            outcomes.push((waiter, LeaseOutcome::Taken(self.node.mark_granted(), all_left)));
        }
        for waiter in asked.chain(std::mem::take(&mut self.waiting)) {
            let cost = waiter.cost.into();
            let spent = self.node.spend_again(terms, now, cost);
            match self.outcome_of(spent, terms, now) {
                Some(outcome) => outcomes.push((waiter, outcome)),
                None if left >= cost || answer.asks_home => self.waiting.push(waiter),
                None => {
                    let wait_us = self.node.wait_for(terms, now, cost.saturating_mul(terms.unit));
                    let units = self.node.find_left(terms, now);
                    outcomes.push((waiter, LeaseOutcome::Refused(wait_us, units)));
                }
            }
        }
    }
}

// === impl LeaseRequest ===

impl LeaseRequest {
    /// Waits for the outcome, until `deadline` at most.
    pub(crate) async fn wait_until(&mut self, deadline: Instant) -> LeaseOutcome {
        if let Some(outcome) = self.outcome {
            return outcome;
        }
        let outcome = match timeout_at(deadline, &mut self.answer).await {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => LeaseOutcome::Failed(StoreFault::Down),
            Err(_) => return LeaseOutcome::Failed(StoreFault::Timeout),
        };
        *self.outcome.insert(outcome)
    }

    /// Keeps its units: only a refund gives them back from now on.
    pub(crate) fn keep_units(mut self) {
        self.outcome = None;
    }
}

impl Drop for LeaseRequest {
    fn drop(&mut self) {
        self.answer.close();
        if let Some(LeaseOutcome::Taken(mark, _)) = self.outcome.or_else(|| self.answer.try_recv().ok()) {
            self.leases.put_back(&self.name, mark, self.cost);
        }
    }
}

// === impl HomeCallGuard ===

impl Drop for HomeCallGuard<'_> {
    fn drop(&mut self) {
        let mut held = self.leases.held.lock();
        let Some(lease) = held.get_mut(self.name) else { return };
        let granted = self.report.answer.map_or(0, |answer| answer.granted as usize).min(self.waiting.len());
        lease.waiting.splice(..0, self.waiting.drain(granted..));
        (lease.report, lease.paused_until) = (Some(self.report), 0);
        let left = lease.node.find_left(&self.name.terms, boot_time_us());
        let outcome = LeaseOutcome::Taken(lease.node.mark_granted(), left);
        drop(held);
        for waiter in self.waiting.drain(..) {
            // The region takes back no units that the home granted.
            let _ = waiter.outcome.send(outcome);
        }
    }
}

// === impl LeaseCallGuard ===

impl LeaseCallGuard {
    /// Ends the call with its answer, or the reason why there is none. True if another call is due.
    pub(crate) fn end(self, answer: Result<LeaseAnswer, StoreFault>) -> bool {
        self.leases.end_call(&self.name, self.number, answer)
    }
}

/// The requests as runs of the same cost.
fn runs_of(waiting: &[LeaseWaiter]) -> Vec<PendingRun> {
    let runs = waiting.chunk_by(|one, next| one.cost == next.cost);
    runs.map(|run| PendingRun { count: run.len() as u32, cost: run[0].cost }).collect()
}

impl Drop for LeaseCallGuard {
    fn drop(&mut self) {
        // Without effect once the call has ended.
        self.leases.end_call(&self.name, self.number, Err(StoreFault::Down));
    }
}
