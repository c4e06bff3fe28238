//! One limit: an algorithm with its numbers and its live counters.
//!
//! Each algorithm is a pure step in integers, applied under the lock of the key's shard; time is what the caller
//! says it is.

mod concurrency;
mod fixed_window;
mod leaky_bucket;
mod pace;
mod queue;
mod sliding_log;
mod sliding_window;
mod token_bucket;

use std::ops::Range;
use std::sync::Arc;
use std::task::Waker;

use crate::clock::Now;
use crate::config;
use crate::config::{Algorithm, BUCKETS_MAX, Rate};
use crate::ip_set::IpSets;
use crate::table::Key;
use concurrency::Concurrency;
use fixed_window::FixedWindow;
use leaky_bucket::LeakyBucket;
use pace::Since;
use sliding_log::SlidingLog;
use sliding_window::SlidingWindow;
use token_bucket::TokenBucket;

pub(crate) use leaky_bucket::Turn;

/// What one limit says to one request; the stricter is the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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
    /// Who is not limited, of `config.bypass`.
    pub bypass: IpSets,
    /// The rates of each variant.
    spans: Box<[Range<usize>]>,
    meters: Meters,
}

/// What a request takes from one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Units {
    pub key: Key,
    /// At least 1; 0 counts as 1.
    pub cost: u64,
    /// Which numbers judge it: [`config::Limit::variant`].
    pub variant: usize,
    /// Whose turn it takes in a queue with `fair_by`; else of no meaning.
    pub fair: u64,
}

/// One counter table per rate, the rates of all variants in a row.
enum Meters {
    TokenBucket(Vec<TokenBucket>),
    LeakyBucket(Vec<LeakyBucket>),
    FixedWindow(Vec<FixedWindow>),
    SlidingWindow(Vec<SlidingWindow<SLOTS>>),
    SlidingWindowFine(Vec<SlidingWindow<SLOTS_FINE>>),
    SlidingLog(Vec<SlidingLog>),
    Concurrency(Vec<Concurrency>),
}

/// Counts per key of a sliding window: one more than the sub-windows it has unless told otherwise, and at most.
const SLOTS: usize = 11;
const SLOTS_FINE: usize = BUCKETS_MAX as usize + 1;

/// Runs the same expression for the meters of every algorithm.
macro_rules! each {
    ($meters:expr, $list:ident => $run:expr) => {
        match $meters {
            Meters::TokenBucket($list) => $run,
            Meters::LeakyBucket($list) => $run,
            Meters::FixedWindow($list) => $run,
            Meters::SlidingWindow($list) => $run,
            Meters::SlidingWindowFine($list) => $run,
            Meters::SlidingLog($list) => $run,
            Meters::Concurrency($list) => $run,
        }
    };
}

/// The same for one rate; concurrency has none.
macro_rules! rated {
    ($meters:expr, $rate:expr, $meter:ident => $run:expr) => {
        match $meters {
            Meters::TokenBucket(rates) => {
                let $meter = &rates[$rate];
                $run
            }
            Meters::LeakyBucket(rates) => {
                let $meter = &rates[$rate];
                $run
            }
            Meters::FixedWindow(rates) => {
                let $meter = &rates[$rate];
                $run
            }
            Meters::SlidingWindow(rates) => {
                let $meter = &rates[$rate];
                $run
            }
            Meters::SlidingWindowFine(rates) => {
                let $meter = &rates[$rate];
                $run
            }
            Meters::SlidingLog(rates) => {
                let $meter = &rates[$rate];
                $run
            }
            Meters::Concurrency(_) => unreachable!("concurrency has no rates"),
        }
    };
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
    /// The answer of a limit that has no numbers to tell.
    pub(crate) fn bare(outcome: Outcome) -> Decision {
        let retry_after_ns = if outcome == Outcome::Reject { u64::MAX } else { 0 };
        Decision { outcome, remaining: 0, reset_ns: 0, retry_after_ns, wait_ns: 0 }
    }

    /// A refusal that no waiting cures.
    pub(crate) fn never(self) -> Decision {
        Decision { outcome: Outcome::Reject, retry_after_ns: u64::MAX, wait_ns: 0, ..self }
    }
}

// === impl Limit ===

impl Limit {
    /// `max_keys` bounds each of the limit's counter tables, one per rate.
    pub fn new(index: usize, config: &config::Limit, max_keys: usize) -> Limit {
        let mut first = 0;
        let span = |algorithm: &Algorithm| {
            let span = first..first + algorithm.places();
            first = span.end;
            span
        };
        Limit {
            name: Arc::from(config.name.as_str()),
            index,
            spans: config.variants().map(span).collect(),
            meters: Meters::new(config, max_keys),
            config: config.clone(),
            bypass: IpSets::default(),
        }
    }

    /// Keys that hold counters now, of the rate that has most.
    pub fn keys(&self) -> usize {
        each!(&self.meters, meters => meters.iter().map(|meter| meter.table.keys()).max().unwrap_or(0))
    }

    /// Requests that wait in the queues of this limit, of the rate that has most.
    pub fn waiting(&self) -> usize {
        match &self.meters {
            Meters::LeakyBucket(rates) => rates.iter().map(LeakyBucket::waiting).max().unwrap_or(0),
            _ => 0,
        }
    }

    /// True when it counts requests in flight instead of judging rates.
    #[inline]
    pub(crate) fn is_concurrency(&self) -> bool {
        matches!(self.meters, Meters::Concurrency(_))
    }

    /// True when requests it refuses have stood before a queue.
    pub(crate) fn has_queue(&self) -> bool {
        matches!(self.meters, Meters::LeakyBucket(_))
    }

    /// The rates that judge callers of a variant; of concurrency, the one place of its slots.
    #[inline]
    pub(crate) fn rates(&self, variant: usize) -> Range<usize> {
        self.spans.get(variant).cloned().unwrap_or_default()
    }

    /// The greatest cost that can ever be accepted.
    #[inline]
    pub(crate) fn capacity(&self, rate: usize) -> u64 {
        each!(&self.meters, meters => meters[rate].capacity())
    }

    /// Judges units (at least 1, at most the capacity) and takes them unless it refuses.
    #[inline]
    pub(crate) fn charge(&self, rate: usize, units: &Units, now: Now) -> (Decision, Option<Charge>) {
        rated!(&self.meters, rate, meter => meter.charge(units, now))
    }

    /// Judges units and changes nothing.
    pub(crate) fn peek(&self, rate: usize, units: &Units, now: Now) -> Decision {
        rated!(&self.meters, rate, meter => meter.peek(units, now))
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
        rated!(&self.meters, rate, meter => meter.refund(key, cost, charge, now));
    }

    /// A waiter looks whether it may go.
    pub(crate) fn turn(&self, rate: usize, key: &Key, charge: &mut Charge, now: Now, waker: &Waker) -> Turn {
        match &self.meters {
            Meters::LeakyBucket(rates) => rates[rate].turn(key, charge, now, waker),
            _ => Turn::Go,
        }
    }

    /// Takes concurrency slots; the flag tells where they were counted. `None` = all taken.
    #[inline]
    pub(crate) fn enter(&self, rate: usize, key: &Key, slots: u64, now: Now) -> Option<bool> {
        match &self.meters {
            Meters::Concurrency(variants) => variants[rate].enter(key, slots, now),
            _ => Some(false),
        }
    }

    /// Concurrency slots in use.
    pub(crate) fn in_flight(&self, rate: usize, key: &Key) -> u64 {
        match &self.meters {
            Meters::Concurrency(variants) => variants[rate].in_flight(key),
            _ => 0,
        }
    }

    /// Gives concurrency slots back.
    pub(crate) fn leave(&self, rate: usize, key: &Key, slots: u64, shared: bool) {
        if let Meters::Concurrency(variants) = &self.meters {
            variants[rate].leave(key, slots, shared);
        }
    }
}

// === impl Meters ===

impl Meters {
    /// All variants of a limit are of one algorithm.
    fn new(config: &config::Limit, max_keys: usize) -> Meters {
        let mut meters = match &config.algorithm {
            Algorithm::TokenBucket { .. } => Meters::TokenBucket(Vec::new()),
            Algorithm::LeakyBucket { .. } => Meters::LeakyBucket(Vec::new()),
            Algorithm::FixedWindow { .. } => Meters::FixedWindow(Vec::new()),
            Algorithm::SlidingWindow { buckets, .. } if usize::from(*buckets) < SLOTS => {
                Meters::SlidingWindow(Vec::new())
            }
            Algorithm::SlidingWindow { .. } => Meters::SlidingWindowFine(Vec::new()),
            Algorithm::SlidingLog { .. } => Meters::SlidingLog(Vec::new()),
            Algorithm::Concurrency { .. } => Meters::Concurrency(Vec::new()),
        };
        for numbers in config.variants() {
            match (&mut meters, numbers) {
                (Meters::TokenBucket(list), Algorithm::TokenBucket { rates }) => {
                    list.extend(rates.iter().map(|rate| TokenBucket::new(rate, max_keys)));
                }
                (Meters::LeakyBucket(list), Algorithm::LeakyBucket { rates, max_wait }) => {
                    let bucket = |rate| LeakyBucket::new(rate, *max_wait, config.dry_run, max_keys);
                    list.extend(rates.iter().map(bucket));
                }
                (Meters::FixedWindow(list), Algorithm::FixedWindow { rates, align }) => {
                    list.extend(rates.iter().map(|rate| FixedWindow::new(*rate, *align, max_keys)));
                }
                (Meters::SlidingWindow(list), Algorithm::SlidingWindow { rates, buckets }) => {
                    list.extend(rates.iter().map(|rate| SlidingWindow::new(*rate, *buckets, max_keys)));
                }
                (Meters::SlidingWindowFine(list), Algorithm::SlidingWindow { rates, buckets }) => {
                    list.extend(rates.iter().map(|rate| SlidingWindow::new(*rate, *buckets, max_keys)));
                }
                (Meters::SlidingLog(list), Algorithm::SlidingLog { rates }) => {
                    list.extend(rates.iter().map(|rate| SlidingLog::new(*rate, max_keys)));
                }
                (Meters::Concurrency(list), Algorithm::Concurrency { max }) => {
                    list.push(Concurrency::new(*max, max_keys));
                }
                _ => unreachable!("a tier changes numbers, never the algorithm"),
            }
        }
        meters
    }
}

/// No window lasts longer than this (146 years), so that two of them fit 64 bits.
const PERIOD_MAX_NS: u128 = 1 << 62;

fn period_ns(rate: Rate) -> u64 {
    rate.period.as_nanos().clamp(1, PERIOD_MAX_NS) as u64
}

// === impl Charge ===

impl Charge {
    /// True while the request stands in a queue, or has not yet noticed that it may go.
    pub(crate) fn waits(&self) -> bool {
        self.node != queue::NONE
    }
}
