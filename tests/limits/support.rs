//! Builders and shorthands of the limit tests.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use sluicegate::admission::chain::{
    Chain, ChainJudgement, ChainPermit, ChainRejection, ChainVerdict, LimitDemand, WaitingCap,
};
use sluicegate::base::clock::Now;
use sluicegate::config::LimitId;
use sluicegate::config::{
    self, Algorithm, Cost, KeyPart, LeakyBucketRate, MissingKey, OnRejectPatch, Rate, TokenBucketRate,
    WindowAlign,
};
use sluicegate::limit::table::CounterKey;
use sluicegate::limit::{Decision, Limit, Units};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;
pub const DAY: u64 = 86_400 * SECOND;
/// Where the tests' time starts: some way from zero, as the clock's does.
pub const START: u64 = 1 << 40;

pub fn rate(units: u64, period_ns: u64) -> Rate {
    Rate { units: NonZeroU64::new(units).unwrap(), period: Duration::from_nanos(period_ns) }
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
    Algorithm::Concurrency { min: None, max }
}

pub fn config(algorithm: Algorithm) -> config::LimitConfig {
    config::LimitConfig {
        name: "test".into(),
        key: vec![KeyPart::Ip],
        missing_key: MissingKey::Ip,
        algorithm,
        tiers: vec![],
        fair_by: vec![],
        warm_up: None,
        cost: Cost::Header {
            name: http::HeaderName::from_static("cost"),
            invalid: sluicegate::config::InvalidCost::One,
        },
        methods: vec![],
        bypass: Default::default(),
        dry_run: false,
        shared: None,
        on_reject: OnRejectPatch::default(),
    }
}

pub fn limit(algorithm: Algorithm) -> Arc<Limit> {
    Arc::new(Limit::new(LimitId(0), &config(algorithm), 1000))
}

pub fn dry(algorithm: Algorithm) -> Arc<Limit> {
    Arc::new(Limit::new(LimitId(0), &config::LimitConfig { dry_run: true, ..config(algorithm) }, 1000))
}

/// With `warm_up`, in ns.
pub fn warm(algorithm: Algorithm, warm_up: u64) -> Arc<Limit> {
    let warm_up = Some(Duration::from_nanos(warm_up));
    Arc::new(Limit::new(LimitId(0), &config::LimitConfig { warm_up, ..config(algorithm) }, 1000))
}

/// Whose waiters take turns.
pub fn fair(algorithm: Algorithm) -> Arc<Limit> {
    Arc::new(Limit::new(
        LimitId(0),
        &config::LimitConfig { fair_by: vec![KeyPart::Account], ..config(algorithm) },
        1000,
    ))
}

pub fn units(id: u128, cost: u64) -> Units {
    Units { key: key(id), cost, variant: 0, fair: 0 }
}

pub fn key(id: u128) -> CounterKey {
    CounterKey { id, prefix: 0 }
}

/// A chain with its own cap on waiters, and shorthands to ask it.
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

    /// A request of `cost` under key `id` at `at` ns after the start.
    pub fn judge(&self, at: u64, id: u128, cost: u64) -> ChainJudgement {
        self.chain.judge(Now(START + at), &self.waiting, |_| LimitDemand::Units(units(id, cost)))
    }

    /// The same; an accepted request is forwarded. Answers (wait, remaining) or (retry, remaining), of the first
    /// rate judged.
    pub fn send(&self, at: u64, id: u128, cost: u64) -> Result<(u64, u64), (u64, u64)> {
        let judgement = self.judge(at, id, cost);
        let decision = judgement.decisions[0].decision;
        match judgement.verdict {
            ChainVerdict::Admit(mut passage) => {
                passage.mark_forwarded();
                Ok((decision.wait_ns, decision.remaining))
            }
            ChainVerdict::Reject(refusal) => {
                Err((refusal.retry_after_ns.unwrap_or(u64::MAX), decision.remaining))
            }
        }
    }

    /// The same; answers whether it was accepted, and what the first rate said.
    pub fn ask(&self, at: u64, id: u128, cost: u64) -> (bool, Decision) {
        let judgement = self.judge(at, id, cost);
        let decision = judgement.decisions[0].decision;
        let ChainVerdict::Admit(mut passage) = judgement.verdict else { return (false, decision) };
        passage.mark_forwarded();
        (true, decision)
    }

    /// One unit of key 1: true if accepted.
    pub fn passes(&self, at: u64) -> bool {
        self.send(at, 1, 1).is_ok()
    }
}

/// The passage of an accepted request.
pub fn admitted(judgement: ChainJudgement) -> ChainPermit {
    match judgement.verdict {
        ChainVerdict::Admit(passage) => passage,
        ChainVerdict::Reject(refusal) => panic!("refused: {refusal:?}"),
    }
}

/// The refusal of a rejected request.
pub fn refused(judgement: ChainJudgement) -> ChainRejection {
    match judgement.verdict {
        ChainVerdict::Admit(_) => panic!("accepted"),
        ChainVerdict::Reject(refusal) => refusal,
    }
}

/// Runs `future` on a paused runtime that was built after the gateway's clock began.
pub fn paused<F: Future>(future: F) -> F::Output {
    Now::read_clock();
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, future)
}

/// Requests of which some are forwarded at once, some given back later and some when all is over: (gap, cost, fate).
/// Answers when and at what cost those passed that were forwarded.
pub fn pass_and_give_back(gate: &Gate, cost_max: u64, traffic: Vec<(u64, u64, usize)>) -> Vec<(u64, u64)> {
    let (mut at, mut passed, mut pending) = (0, vec![], vec![]);
    for (gap, cost, fate) in traffic {
        at += gap;
        let cost = cost.min(cost_max);
        if let ChainVerdict::Admit(mut passage) = gate.judge(at, 1, cost).verdict {
            if fate < 3 {
                passage.mark_forwarded();
                passed.push((at, cost));
            } else {
                pending.push(passage);
            }
        }
        if fate % 3 == 0 && !pending.is_empty() {
            drop(pending.swap_remove(fate % pending.len()));
        }
    }
    passed
}
