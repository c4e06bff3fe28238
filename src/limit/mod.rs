//! One limit: an algorithm with its numbers and its live counters.
//!
//! Each algorithm is a pure step in integers, applied under the lock of the key's shard; time is what the caller
//! says it is.

mod concurrency;
mod leaky_bucket;
mod pace;
mod queue;
mod token_bucket;

use std::sync::Arc;
use std::task::Waker;

use crate::clock::Now;
use crate::config;
use crate::config::Algorithm;
use crate::table::Key;
use concurrency::Concurrency;
use leaky_bucket::LeakyBucket;
use pace::Since;
use token_bucket::TokenBucket;

pub(crate) use leaky_bucket::Turn;

/// What one limit says to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Admit,
    Wait,
    Reject,
}

/// One rate's answer, with all the numbers that headers, logs and metrics tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    pub outcome: Outcome,
    /// Units that still fit now.
    pub remaining: u64,
    /// Nanoseconds until one more unit fits; 0 = now.
    pub reset_ns: u64,
    /// When rejected: nanoseconds after which the same request is accepted if nobody else came; `u64::MAX` =
    /// never. Else 0.
    pub retry_after_ns: u64,
    /// Nanoseconds the request waits in the queue.
    pub wait_ns: u64,
}

/// A limit with its counters, shared by every chain that names it.
pub struct Limit {
    pub name: Arc<str>,
    /// Place in [`config::Config::limits`].
    pub index: usize,
    pub config: config::Limit,
    meters: Meters,
}

/// One counter table per rate.
enum Meters {
    TokenBucket(Vec<TokenBucket>),
    LeakyBucket(Vec<LeakyBucket>),
    Concurrency(Concurrency),
}

/// What taking units leaves behind: all that giving them back needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Charge {
    since: Since,
    /// Place among the waiters; [`queue::NONE`] for one that never waited or has noticed its turn.
    node: u32,
    /// Taken from a shared overflow counter.
    shared: bool,
}

// === impl Decision ===

impl Decision {
    /// A refusal that no waiting cures.
    pub(crate) fn never(self) -> Decision {
        Decision { outcome: Outcome::Reject, retry_after_ns: u64::MAX, wait_ns: 0, ..self }
    }
}

// === impl Limit ===

impl Limit {
    /// `max_keys` bounds each of the limit's counter tables, one per rate.
    pub fn new(index: usize, config: &config::Limit, max_keys: usize) -> Limit {
        let meters = match &config.algorithm {
            Algorithm::TokenBucket { rates } => {
                Meters::TokenBucket(rates.iter().map(|rate| TokenBucket::new(rate, max_keys)).collect())
            }
            Algorithm::LeakyBucket { rates, max_wait } => {
                let bucket = |rate| LeakyBucket::new(rate, *max_wait, config.dry_run, max_keys);
                Meters::LeakyBucket(rates.iter().map(bucket).collect())
            }
            Algorithm::Concurrency { max } => Meters::Concurrency(Concurrency::new(*max, max_keys)),
        };
        Limit { name: Arc::from(config.name.as_str()), index, config: config.clone(), meters }
    }

    /// Keys that hold counters now, of the rate that has most.
    pub fn keys(&self) -> usize {
        match &self.meters {
            Meters::TokenBucket(rates) => rates.iter().map(|rate| rate.table.keys()).max().unwrap_or(0),
            Meters::LeakyBucket(rates) => rates.iter().map(|rate| rate.table.keys()).max().unwrap_or(0),
            Meters::Concurrency(slots) => slots.table.keys(),
        }
    }

    /// Requests that wait in the queues of this limit, of the rate that has most.
    pub fn waiting(&self) -> usize {
        match &self.meters {
            Meters::LeakyBucket(rates) => rates.iter().map(LeakyBucket::waiting).max().unwrap_or(0),
            Meters::TokenBucket(_) | Meters::Concurrency(_) => 0,
        }
    }

    /// Rates that are judged; none for concurrency.
    #[inline]
    pub(crate) fn rates(&self) -> usize {
        match &self.meters {
            Meters::TokenBucket(rates) => rates.len(),
            Meters::LeakyBucket(rates) => rates.len(),
            Meters::Concurrency(_) => 0,
        }
    }

    /// True when requests it refuses have stood before a queue.
    pub(crate) fn has_queue(&self) -> bool {
        matches!(self.meters, Meters::LeakyBucket(_))
    }

    /// The greatest cost that can ever be accepted.
    #[inline]
    pub(crate) fn capacity(&self, rate: usize) -> u64 {
        match &self.meters {
            Meters::TokenBucket(rates) => rates[rate].capacity(),
            Meters::LeakyBucket(rates) => rates[rate].capacity(),
            Meters::Concurrency(slots) => slots.capacity(),
        }
    }

    /// Judges `cost` units (at least 1, at most the capacity) and takes them unless it refuses.
    #[inline]
    pub(crate) fn charge(&self, rate: usize, key: &Key, cost: u64, now: Now) -> (Decision, Option<Charge>) {
        match &self.meters {
            Meters::TokenBucket(rates) => rates[rate].charge(key, cost, now),
            Meters::LeakyBucket(rates) => rates[rate].charge(key, cost, now),
            Meters::Concurrency(_) => unreachable!("concurrency has no rates"),
        }
    }

    /// Judges `cost` units and changes nothing.
    pub(crate) fn peek(&self, rate: usize, key: &Key, cost: u64, now: Now) -> Decision {
        match &self.meters {
            Meters::TokenBucket(rates) => rates[rate].peek(key, cost, now),
            Meters::LeakyBucket(rates) => rates[rate].peek(key, now),
            Meters::Concurrency(_) => unreachable!("concurrency has no rates"),
        }
    }

    /// Gives a charge back; who waits behind it moves up.
    pub(crate) fn refund(
        &self,
        rate: usize,
        key: &Key,
        cost: u64,
        charge: &Charge,
        now: impl FnOnce() -> Now,
    ) {
        match &self.meters {
            Meters::TokenBucket(rates) => rates[rate].refund(key, cost, charge),
            Meters::LeakyBucket(rates) => rates[rate].refund(key, cost, charge, now),
            Meters::Concurrency(_) => {}
        }
    }

    /// A waiter looks whether it may go.
    pub(crate) fn turn(&self, rate: usize, key: &Key, charge: &mut Charge, now: Now, waker: &Waker) -> Turn {
        match &self.meters {
            Meters::LeakyBucket(rates) => rates[rate].turn(key, charge, now, waker),
            Meters::TokenBucket(_) | Meters::Concurrency(_) => Turn::Go,
        }
    }

    /// Takes concurrency slots; the flag tells where they were counted. `None` = all taken.
    #[inline]
    pub(crate) fn enter(&self, key: &Key, slots: u64, now: Now) -> Option<bool> {
        match &self.meters {
            Meters::Concurrency(concurrency) => concurrency.enter(key, slots, now),
            Meters::TokenBucket(_) | Meters::LeakyBucket(_) => Some(false),
        }
    }

    /// Gives concurrency slots back.
    pub(crate) fn leave(&self, key: &Key, slots: u64, shared: bool) {
        if let Meters::Concurrency(concurrency) = &self.meters {
            concurrency.leave(key, slots, shared);
        }
    }
}

// === impl Charge ===

impl Charge {
    /// True while the request stands in a queue, or has not yet noticed that it may go.
    pub(crate) fn waits(&self) -> bool {
        self.node != queue::NONE
    }
}
