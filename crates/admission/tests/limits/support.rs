//! Builders and shorthands of the limit tests.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use sluicegate_admission::chain::{
    Chain, ChainMode, ChainPermit, ChainRejection, ChainVerdict, Charge, Decisions, LimitDemand, Look,
    Queued, WaitingCap, WaitingRequest,
};
use sluicegate_base::clock::Now;
use sluicegate_limit::table::CounterKey;
use sluicegate_limit::{Decision, Limit, Units};
use sluicegate_model::{
    self as model, Algorithm, Cost, KeyPart, LeakyBucketRate, LimitId, MissingKey, OnRejectPatch, Rate,
    TokenBucketRate, WindowAlign,
};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;
pub const DAY: u64 = 86_400 * SECOND;
/// The start of the tests' time, far from zero like the clock's.
pub const START: u64 = 1 << 40;

pub fn rate(units: u64, period_ns: u64) -> Rate {
    Rate::new(NonZeroU64::new(units).unwrap(), Duration::from_nanos(period_ns))
}

pub fn token(units: u64, period_ns: u64, burst: u64) -> Algorithm {
    Algorithm::TokenBucket { rates: vec![TokenBucketRate { rate: rate(units, period_ns), burst }] }
}

pub fn leaky(units: u64, period_ns: u64, burst: u64, queue: u64) -> Algorithm {
    leaky_within(units, period_ns, burst, queue, None)
}

pub fn leaky_within(
    units: u64,
    period_ns: u64,
    burst: u64,
    queue: u64,
    max_wait: Option<Duration>,
) -> Algorithm {
    let rate = rate(units, period_ns);
    Algorithm::LeakyBucket { rates: vec![LeakyBucketRate { rate, burst, queue }], max_wait }
}

pub fn fixed(units: u64, period_ns: u64, align: WindowAlign) -> Algorithm {
    Algorithm::FixedWindow { rates: vec![rate(units, period_ns)], align }
}

pub fn sliding(units: u64, period_ns: u64, buckets: u8) -> Algorithm {
    Algorithm::SlidingWindow { rates: vec![rate(units, period_ns)], buckets }
}

pub fn log(units: u64, period_ns: u64) -> Algorithm {
    Algorithm::SlidingLog { rates: vec![rate(units, period_ns)] }
}

/// Every window algorithm with one rate.
pub fn all_windows(units: u64, period_ns: u64) -> Vec<Algorithm> {
    vec![
        fixed(units, period_ns, WindowAlign::First),
        fixed(units, period_ns, WindowAlign::Clock),
        sliding(units, period_ns, 10),
        sliding(units, period_ns, 60),
        log(units, period_ns),
    ]
}

pub fn concurrency(max: u32) -> Algorithm {
    slots(max, 0, None)
}

/// Slots with a queue.
pub fn slots(max: u32, queue: u64, max_wait: Option<Duration>) -> Algorithm {
    Algorithm::Concurrency { min: None, max, queue, max_wait }
}

pub fn config(algorithm: Algorithm) -> model::LimitConfig {
    model::LimitConfig {
        name: "test".into(),
        owner: None,
        key: vec![KeyPart::Ip],
        missing_key: MissingKey::Ip,
        missing_key_status: http::StatusCode::FORBIDDEN,
        algorithm,
        tiers: vec![],
        views: vec![],
        grants: vec![],
        fair_by: vec![],
        warm_up: None,
        calendar: None,
        steps: Vec::new(),
        shares: None,
        anchors: None,
        cost: Cost::Header {
            name: http::HeaderName::from_static("cost"),
            invalid: sluicegate_model::InvalidCost::One,
        },
        charge: None,
        methods: vec![],
        bypass: Default::default(),
        dry_run: false,
        enforce: None,
        shadow: None,
        shadow_of: None,
        pause: None,
        set: None,
        file: None,
        shared: None,
        leased: false,
        on_reject: OnRejectPatch::default(),
    }
}

pub fn limit(algorithm: Algorithm) -> Arc<Limit> {
    Arc::new(Limit::new(LimitId(0), &config(algorithm), 1000))
}

pub fn dry(algorithm: Algorithm) -> Arc<Limit> {
    Arc::new(Limit::new(LimitId(0), &model::LimitConfig { dry_run: true, ..config(algorithm) }, 1000))
}

/// A limit with `warm_up`, in ns.
pub fn warm(algorithm: Algorithm, warm_up: u64) -> Arc<Limit> {
    let warm_up = Some(Duration::from_nanos(warm_up));
    Arc::new(Limit::new(LimitId(0), &model::LimitConfig { warm_up, ..config(algorithm) }, 1000))
}

/// A limit with `fair_by`.
pub fn fair(algorithm: Algorithm) -> Arc<Limit> {
    Arc::new(Limit::new(
        LimitId(0),
        &model::LimitConfig { fair_by: vec![KeyPart::Account], ..config(algorithm) },
        1000,
    ))
}

pub fn units(id: u128, cost: u64) -> Units {
    Units::new(key(id), cost)
}

pub fn key(id: u128) -> CounterKey {
    CounterKey::new(id, 0)
}

/// The verdict on a request of the tests, and the decisions behind it.
pub struct Judgement {
    pub decisions: Decisions,
    pub verdict: Verdict,
}

#[expect(clippy::large_enum_variant, reason = "a shorthand of tests")]
pub enum Verdict {
    Admit(Accepted),
    Reject(ChainRejection),
}

/// A request that all limits accepted, in any of its phases.
pub enum Accepted {
    Passing(ChainPermit),
    Queued(Queued),
    TurnTaken(Queued),
    /// Everything that it still holds is left to the counters.
    Gone,
}

/// A chain without shared limits judges a request that a location serves.
pub trait JudgeRequest {
    fn judge_in<'w, M: ChainMode>(
        &self,
        now: Now,
        waiter: impl Into<WaitingRequest<'w>>,
        demand_of: impl FnMut(&Limit) -> LimitDemand,
    ) -> Judgement;

    /// Judges a request and charges it.
    fn judge_request<'w>(
        &self,
        now: Now,
        waiter: impl Into<WaitingRequest<'w>>,
        demand_of: impl FnMut(&Limit) -> LimitDemand,
    ) -> Judgement {
        self.judge_in::<Charge>(now, waiter, demand_of)
    }

    /// Judges it and changes nothing.
    fn look<'w>(
        &self,
        now: Now,
        waiter: impl Into<WaitingRequest<'w>>,
        demand_of: impl FnMut(&Limit) -> LimitDemand,
    ) -> Judgement {
        self.judge_in::<Look>(now, waiter, demand_of)
    }
}

impl JudgeRequest for Chain {
    fn judge_in<'w, M: ChainMode>(
        &self,
        now: Now,
        waiter: impl Into<WaitingRequest<'w>>,
        demand_of: impl FnMut(&Limit) -> LimitDemand,
    ) -> Judgement {
        let mut decisions = Decisions::new();
        let verdict = match self.judge::<M>(now, waiter, true, demand_of, &mut decisions) {
            ChainVerdict::Admit(permit) => Verdict::Admit(Accepted::Passing(permit)),
            ChainVerdict::Wait(queued) => Verdict::Admit(Accepted::Queued(queued)),
            ChainVerdict::Reject(rejection) => Verdict::Reject(rejection),
            ChainVerdict::AskStore(_) => panic!("a shared limit"),
        };
        Judgement { decisions, verdict }
    }
}

impl Accepted {
    pub fn must_wait(&self) -> bool {
        matches!(self, Accepted::Queued(_))
    }

    pub fn wait_ns(&self) -> u64 {
        if let Accepted::Queued(queued) = self { queued.wait_ns() } else { 0 }
    }

    /// Waits for its turn, if it has to.
    pub async fn wait_turn(&mut self) -> Result<(), ChainRejection> {
        match std::mem::replace(self, Accepted::Gone) {
            Accepted::Queued(mut queued) => {
                queued.wait_turn().await?;
                *self = Accepted::TurnTaken(queued);
            }
            other => *self = other,
        }
        Ok(())
    }

    /// Takes its slots after its turn; a request that did not wait has them already.
    pub async fn take_slots(&mut self) -> Result<(), ChainRejection> {
        match std::mem::replace(self, Accepted::Gone) {
            Accepted::TurnTaken(mut turn) => {
                turn.take_slots(None, &mut Vec::new()).await?;
                *self = Accepted::Passing(turn.into_permit());
            }
            other => *self = other,
        }
        Ok(())
    }

    /// Its charges stay; a waiter stays in its queue.
    pub fn keep_charges(&mut self) {
        match std::mem::replace(self, Accepted::Gone) {
            Accepted::Passing(mut permit) => {
                permit.keep_charges();
                *self = Accepted::Passing(permit);
            }
            Accepted::Queued(queued) => std::mem::forget(queued),
            Accepted::TurnTaken(turn) => turn.keep_charges(),
            Accepted::Gone => {}
        }
    }

    pub fn permit(&self) -> &ChainPermit {
        match self {
            Accepted::Passing(permit) => permit,
            _ => panic!("it waits"),
        }
    }
}

/// A chain with its own cap on waiters, and shorthands for judging.
pub struct Gate {
    pub chain: Chain,
    pub waiting: Arc<WaitingCap>,
}

impl Gate {
    pub fn new(limits: Vec<Arc<Limit>>) -> Gate {
        Gate { chain: Chain::new(limits), waiting: Arc::new(WaitingCap::new(100_000)) }
    }

    pub fn one(algorithm: Algorithm) -> Gate {
        Gate::new(vec![limit(algorithm)])
    }

    /// Judges a request of `cost` under key `id` at `at` ns after the start.
    pub fn judge(&self, at: u64, id: u128, cost: u64) -> Judgement {
        self.chain.judge_request(Now(START + at), &self.waiting, |_| LimitDemand::Units(units(id, cost)))
    }

    /// The same; an accepted request is forwarded. Returns (wait, remaining) or (retry, remaining) of the first
    /// rate judged.
    pub fn send(&self, at: u64, id: u128, cost: u64) -> Result<(u64, u64), (u64, u64)> {
        let judgement = self.judge(at, id, cost);
        let decision = judgement.decisions[0].decision;
        match judgement.verdict {
            Verdict::Admit(mut permit) => {
                permit.keep_charges();
                Ok((decision.wait_ns, decision.remaining))
            }
            Verdict::Reject(rejection) => {
                Err((rejection.retry_after_ns.unwrap_or(u64::MAX), decision.remaining))
            }
        }
    }

    /// The same; returns whether it was accepted, and the decision of the first rate.
    pub fn ask(&self, at: u64, id: u128, cost: u64) -> (bool, Decision) {
        let judgement = self.judge(at, id, cost);
        let decision = judgement.decisions[0].decision;
        let Verdict::Admit(mut permit) = judgement.verdict else { return (false, decision) };
        permit.keep_charges();
        (true, decision)
    }

    /// Sends one unit of key 1; returns whether it was accepted.
    pub fn passes(&self, at: u64) -> bool {
        self.send(at, 1, 1).is_ok()
    }
}

/// The slots of key 1 that are free, as a look finds them; 0 while requests wait.
pub fn free_slots(limit: &Arc<Limit>) -> u64 {
    let gate = Gate::new(vec![limit.clone()]);
    let ask = |_: &Limit| LimitDemand::Units(units(1, 1));
    gate.chain.look(Now::read_clock(), &gate.waiting, ask).decisions[0].decision.remaining
}

/// The permit of an accepted request.
pub fn admitted(judgement: Judgement) -> Accepted {
    match judgement.verdict {
        Verdict::Admit(permit) => permit,
        Verdict::Reject(rejection) => panic!("rejected: {rejection:?}"),
    }
}

/// The rejection of a rejected request.
pub fn rejected(judgement: Judgement) -> ChainRejection {
    match judgement.verdict {
        Verdict::Admit(_) => panic!("accepted"),
        Verdict::Reject(rejection) => rejection,
    }
}

/// Runs `future` on a paused runtime that was built after the gateway's clock started.
pub fn paused<F: Future>(future: F) -> F::Output {
    Now::read_clock();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

/// Sends (gap, cost, fate) requests: some are forwarded at once, some refunded later, some at the end.
/// Returns the time and cost of each forwarded request.
pub fn send_and_refund(gate: &Gate, cost_max: u64, traffic: Vec<(u64, u64, usize)>) -> Vec<(u64, u64)> {
    let (mut at, mut passed, mut pending) = (0, vec![], vec![]);
    for (gap, cost, fate) in traffic {
        at += gap;
        let cost = cost.min(cost_max);
        if let Verdict::Admit(mut permit) = gate.judge(at, 1, cost).verdict {
            if fate < 3 {
                permit.keep_charges();
                passed.push((at, cost));
            } else {
                pending.push(permit);
            }
        }
        if fate % 3 == 0 && !pending.is_empty() {
            drop(pending.swap_remove(fate % pending.len()));
        }
    }
    passed
}
