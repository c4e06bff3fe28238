//! The limits of a request, judged as one transaction: all accept and are charged, or nobody is.

mod passage;
mod peek;
mod refusal;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use smallvec::SmallVec;

use crate::clock::Now;
use crate::limit::{Decision, Limit, Outcome, Units};

pub use passage::Passage;
use passage::{Claim, Hold};
pub use peek::Foreseen;
pub use refusal::{Cause, Refusal};

/// What a limit is to count for this request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// The limit does not concern the request.
    Skip,
    /// The key is absent, and the limit says to reject then.
    MissingKey,
    Units(Units),
}

/// The process-wide cap on requests in all queues.
#[derive(Debug)]
pub struct Waiting {
    max: usize,
    count: AtomicUsize,
}

/// The limits a request passes, in the order they are judged.
#[derive(Clone)]
pub struct Chain {
    limits: Arc<[Arc<Limit>]>,
    /// The longest wait that is worth its while, ns.
    patience_ns: u64,
}

/// What the rates of a chain say to one request, in its order; on a refusal with what is left unspent.
pub type Decisions = SmallVec<[Judged; 4]>;

/// What the chain says to one request, and why.
pub struct Judgement {
    pub decisions: Decisions,
    pub verdict: Verdict,
}

/// The answer of one rate of a limit. Concurrency limits have none, nor do limits that lack their key, unless in
/// a dry run, of which it is all that is seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judged {
    /// Place of the limit in [`Chain::limits`].
    pub place: u16,
    /// Place of the rate in the limit.
    pub rate: u16,
    /// Judged, but never acted upon.
    pub dry_run: bool,
    pub decision: Decision,
}

/// One answer per limit, that of its strictest rate.
#[inline]
pub fn by_limit(decisions: &[Judged]) -> impl Iterator<Item = Judged> {
    let strictness = |judged: &&Judged| {
        let Decision { outcome, retry_after_ns, wait_ns, .. } = judged.decision;
        (outcome, retry_after_ns, wait_ns)
    };
    let rates = decisions.chunk_by(|one, next| one.place == next.place);
    rates.filter_map(move |rates| rates.iter().max_by_key(strictness).copied())
}

/// The chain's answer.
#[expect(clippy::large_enum_variant, reason = "the usual answer must not cost an allocation")]
pub enum Verdict {
    Admit(Passage),
    Reject(Refusal),
}

/// One run over the chain.
struct Judging<'a> {
    limits: &'a Arc<[Arc<Limit>]>,
    patience_ns: u64,
    now: Now,
    decisions: &'a mut Decisions,
    claims: SmallVec<[Claim; 4]>,
    /// The longest wait so far and the place of its limit.
    longest: Option<(u64, u16)>,
    /// Somebody has to make room in a queue.
    displaces: bool,
    refused: Option<Refused>,
}

#[derive(Clone, Copy)]
struct Refused {
    cause: Cause,
    place: usize,
    rate: usize,
    retry_after_ns: Option<u64>,
}

// === impl Waiting ===

impl Waiting {
    pub fn new(max: usize) -> Waiting {
        Waiting { max, count: AtomicUsize::new(0) }
    }

    /// Requests that wait now.
    pub fn count(&self) -> usize {
        self.count.load(Relaxed)
    }

    fn is_full(&self) -> bool {
        self.count() >= self.max
    }

    fn enter(&self) -> bool {
        self.count.fetch_update(Relaxed, Relaxed, |count| (count < self.max).then_some(count + 1)).is_ok()
    }

    fn leave(&self) {
        self.count.fetch_sub(1, Relaxed);
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
        Chain { limits: once.into(), patience_ns: u64::MAX }
    }

    /// Refuses at once who would wait longer than this; it displaces nobody.
    pub fn with_patience(self, patience_ns: u64) -> Chain {
        Chain { patience_ns, ..self }
    }

    pub fn limits(&self) -> &[Arc<Limit>] {
        &self.limits
    }

    /// Judges one request at `now`. `ask` is called once per limit, in chain order.
    #[inline]
    pub fn judge(&self, now: Now, waiting: &Arc<Waiting>, ask: impl FnMut(&Limit) -> Ask) -> Judgement {
        let (mut decisions, mut passage) = (Decisions::new(), None);
        let refusal = self.judge_into(now, waiting, ask, &mut decisions, &mut passage);
        let verdict = match (refusal, passage) {
            (Some(refusal), _) => Verdict::Reject(refusal),
            (None, Some(passage)) => Verdict::Admit(passage),
            (None, None) => unreachable!("who is not refused has a passage"),
        };
        Judgement { decisions, verdict }
    }

    /// The same, into the places where they are kept, because they are large: what the rates say, and the passage
    /// of a request that is not refused. Both are empty before.
    #[inline]
    pub fn judge_into(
        &self,
        now: Now,
        waiting: &Arc<Waiting>,
        mut ask: impl FnMut(&Limit) -> Ask,
        decisions: &mut Decisions,
        passage: &mut Option<Passage>,
    ) -> Option<Refusal> {
        let mut judging = Judging {
            limits: &self.limits,
            patience_ns: self.patience_ns,
            now,
            decisions,
            claims: SmallVec::new(),
            longest: None,
            displaces: false,
            refused: None,
        };
        for (place, limit) in self.limits.iter().enumerate() {
            match ask(limit) {
                Ask::Skip => {}
                Ask::MissingKey => judging.missing_key(place, limit),
                Ask::Units(units) => judging.units(place, limit, Units { cost: units.cost.max(1), ..units }),
            }
        }
        judging.close(waiting, passage)
    }
}

// === impl Judging ===

impl Judging<'_> {
    #[inline]
    fn units(&mut self, place: usize, limit: &Limit, units: Units) {
        if limit.is_concurrency() {
            return self.slots(place, limit, &units);
        }
        let before = self.claims.len();
        // A dry run is a transaction of its own: what one rate would refuse, the others would not have counted.
        let mut would_refuse = false;
        for rate in limit.rates(units.variant) {
            if units.cost > limit.capacity(rate) {
                let decision = limit.peek(rate, &units, self.now).never();
                self.note(place, rate, limit, decision, Cause::TooCostly);
            } else if would_refuse || self.refused.is_some() {
                let decision = limit.peek(rate, &units, self.now);
                self.note(place, rate, limit, decision, cause(limit));
            } else {
                let (decision, charge) = limit.charge(rate, &units, self.now);
                if let Some(charge) = charge {
                    if charge.waits() && self.longest.is_none_or(|(longest, _)| longest < decision.wait_ns) {
                        self.longest = Some((decision.wait_ns, place as u16));
                    }
                    self.displaces |= charge.displaces();
                    let hold = Hold::Charge(charge);
                    self.claims.push(Claim::new(&units, place, rate, hold));
                }
                self.note(place, rate, limit, decision, cause(limit));
            }
            let rejects = |judged: &Judged| judged.dry_run && judged.decision.outcome == Outcome::Reject;
            if !would_refuse && self.decisions.last().is_some_and(rejects) {
                would_refuse = true;
                self.undo(before);
            }
        }
    }

    /// A concurrency limit is only noted here: its slots are taken after the wait.
    fn slots(&mut self, place: usize, limit: &Limit, units: &Units) {
        let rate = limit.rates(units.variant).start;
        if units.cost <= limit.capacity(rate) {
            self.claims.push(Claim::new(units, place, rate, Hold::Slots(None)));
        } else {
            self.refuse_outright(place, rate, limit, Cause::TooCostly);
        }
    }

    #[cold]
    fn missing_key(&mut self, place: usize, limit: &Limit) {
        self.refuse_outright(place, 0, limit, Cause::MissingKey);
    }

    /// A refusal without numbers.
    fn refuse_outright(&mut self, place: usize, rate: usize, limit: &Limit, cause: Cause) {
        if limit.config.dry_run {
            self.note(place, rate, limit, Decision::bare(Outcome::Reject), cause);
        } else {
            self.refuse(Refused { cause, place, rate, retry_after_ns: None });
        }
    }

    #[inline]
    fn note(&mut self, place: usize, rate: usize, limit: &Limit, decision: Decision, cause: Cause) {
        let dry_run = limit.config.dry_run;
        self.decisions.push(Judged { place: place as u16, rate: rate as u16, dry_run, decision });
        if decision.outcome == Outcome::Reject && !dry_run {
            let retry_after_ns = (decision.retry_after_ns != u64::MAX).then_some(decision.retry_after_ns);
            self.refuse(Refused { cause, place, rate, retry_after_ns });
        }
    }

    /// Keeps the refusal with the longest retry; the first one undoes what was charged, in dry runs, too: they count
    /// what they would have counted if they were enforced.
    fn refuse(&mut self, refused: Refused) {
        let longest = |refused: &Refused| refused.retry_after_ns.unwrap_or(u64::MAX);
        match &self.refused {
            None => {
                if !self.claims.is_empty() {
                    self.undo(0);
                }
                self.refused = Some(refused);
            }
            Some(known) if longest(known) < longest(&refused) => self.refused = Some(refused),
            Some(_) => {}
        }
    }

    /// Refunds every charge from claim `from` on and tells the numbers as if nothing had been taken.
    #[cold]
    fn undo(&mut self, from: usize) {
        for claim in self.claims.drain(from..) {
            let Hold::Charge(charge) = claim.hold else { continue };
            let (place, rate) = (usize::from(claim.place), usize::from(claim.rate));
            let limit = &self.limits[place];
            limit.refund(rate, &claim.key(), claim.cost, &charge, || self.now);
            let Decision { remaining, reset_ns, .. } = limit.peek(rate, &claim.units(), self.now);
            for judged in self.decisions.iter_mut() {
                if usize::from(judged.place) == place && usize::from(judged.rate) == rate {
                    judged.decision = Decision { remaining, reset_ns, ..judged.decision };
                }
            }
        }
    }

    /// Only now, when all have accepted: a request that is refused itself displaces nobody.
    #[cold]
    fn displace(&self) {
        for claim in &self.claims {
            let Hold::Charge(charge) = claim.hold else { continue };
            if charge.displaces() {
                self.limits[usize::from(claim.place)].displace(
                    claim.rate.into(),
                    &claim.key(),
                    &charge,
                    self.now,
                );
            }
        }
    }

    /// Why it must not wait although all have accepted it; else it counts as waiting.
    #[cold]
    fn no_wait(&self, (wait_ns, place): (u64, u16), waiting: &Waiting) -> Option<Refusal> {
        if wait_ns > self.patience_ns {
            return Some(Refusal::queued_too_long(&self.limits[usize::from(place)]));
        }
        (!waiting.enter()).then(Refusal::overload)
    }

    #[inline]
    fn close(&mut self, waiting: &Arc<Waiting>, passage: &mut Option<Passage>) -> Option<Refusal> {
        if let Some(refused) = self.refused {
            let limit = Some(self.limits[refused.place].clone());
            let Refused { cause, rate, retry_after_ns, .. } = refused;
            return Some(Refusal { cause, limit, rate, retry_after_ns });
        }
        if let Some(refusal) = self.longest.and_then(|longest| self.no_wait(longest, waiting)) {
            self.undo(0);
            return Some(refusal);
        }
        if self.displaces {
            self.displace();
        }
        let waiting = self.longest.map(|_| waiting.clone());
        let claims = std::mem::take(&mut self.claims);
        *passage = Some(Passage::new(self.limits.clone(), claims, self.now, self.longest, waiting));
        None
    }
}

/// What a refusal by `limit` is called.
#[inline]
fn cause(limit: &Limit) -> Cause {
    if limit.has_queue() { Cause::Queue } else { Cause::Rate }
}
