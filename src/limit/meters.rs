//! The counters of a limit, one table per rate, and the ways to run the same step on those of any algorithm.

use super::concurrency::Concurrency;
use super::fixed_window::FixedWindow;
use super::leaky_bucket::LeakyBucket;
use super::pace::Pace;
use super::sliding_log::SlidingLog;
use super::sliding_window::SlidingWindow;
use super::token_bucket::TokenBucket;
use super::warm::Warmth;
use crate::config::{self, Algorithm, BUCKETS_MAX, LeakyBucketRate};

/// One counter table per rate, the rates of all variants in a row.
pub(super) enum Meters {
    TokenBucket(Vec<TokenBucket>),
    LeakyBucket(Vec<LeakyBucket>),
    FixedWindow(Vec<FixedWindow>),
    SlidingWindow(Vec<SlidingWindow<SLOTS>>),
    SlidingWindowFine(Vec<SlidingWindow<SLOTS_FINE>>),
    SlidingLog(Vec<SlidingLog>),
    WarmTokenBucket(Vec<TokenBucket<Warmth>>),
    WarmLeakyBucket(Vec<LeakyBucket<Warmth>>),
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
            Meters::WarmTokenBucket($list) => $run,
            Meters::WarmLeakyBucket($list) => $run,
            Meters::Concurrency($list) => $run,
        }
    };
}

/// The same for one rate; concurrency has none.
macro_rules! rated {
    ($meters:expr, $rate:expr, $meter:ident => $run:expr) => {
        rated!($meters, $rate, $meter => $run;
            TokenBucket LeakyBucket WarmTokenBucket WarmLeakyBucket
            FixedWindow SlidingWindow SlidingWindowFine SlidingLog)
    };
    ($meters:expr, $rate:expr, $meter:ident => $run:expr; $($algorithm:ident)*) => {
        match $meters {
            $(Meters::$algorithm(rates) => {
                let $meter = &rates[$rate];
                $run
            })*
            Meters::Concurrency(_) => unreachable!("concurrency has no rates"),
        }
    };
}

pub(super) use {each, rated};

// === impl Meters ===

impl Meters {
    /// All variants of a limit are of one algorithm.
    pub(super) fn new(config: &config::Limit, max_keys: usize) -> Meters {
        let warm_up_ns = config.warm_up.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let mut meters = match &config.algorithm {
            Algorithm::TokenBucket { .. } if warm_up_ns.is_some() => Meters::WarmTokenBucket(Vec::new()),
            Algorithm::TokenBucket { .. } => Meters::TokenBucket(Vec::new()),
            Algorithm::LeakyBucket { .. } if warm_up_ns.is_some() => Meters::WarmLeakyBucket(Vec::new()),
            Algorithm::LeakyBucket { .. } => Meters::LeakyBucket(Vec::new()),
            Algorithm::FixedWindow { .. } => Meters::FixedWindow(Vec::new()),
            Algorithm::SlidingWindow { buckets, .. } if usize::from(*buckets) < SLOTS => {
                Meters::SlidingWindow(Vec::new())
            }
            Algorithm::SlidingWindow { .. } => Meters::SlidingWindowFine(Vec::new()),
            Algorithm::SlidingLog { .. } => Meters::SlidingLog(Vec::new()),
            Algorithm::Concurrency { .. } => Meters::Concurrency(Vec::new()),
        };
        let warmth = |rate| Warmth::new(Pace::new(rate), warm_up_ns.unwrap_or_default());
        for numbers in config.variants() {
            match (&mut meters, numbers) {
                (Meters::TokenBucket(list), Algorithm::TokenBucket { rates }) => {
                    list.extend(rates.iter().map(|one| TokenBucket::new(one, Pace::new(one.rate), max_keys)));
                }
                (Meters::WarmTokenBucket(list), Algorithm::TokenBucket { rates }) => {
                    list.extend(rates.iter().map(|one| TokenBucket::new(one, warmth(one.rate), max_keys)));
                }
                (Meters::LeakyBucket(list), Algorithm::LeakyBucket { rates, max_wait }) => {
                    let schedule = |one: &LeakyBucketRate| Pace::new(one.rate);
                    let bucket = |one| LeakyBucket::new(one, schedule(one), *max_wait, config, max_keys);
                    list.extend(rates.iter().map(bucket));
                }
                (Meters::WarmLeakyBucket(list), Algorithm::LeakyBucket { rates, max_wait }) => {
                    let schedule = |one: &LeakyBucketRate| warmth(one.rate);
                    let bucket = |one| LeakyBucket::new(one, schedule(one), *max_wait, config, max_keys);
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
                (Meters::Concurrency(list), Algorithm::Concurrency { min, max }) => {
                    list.push(Concurrency::new(*min, *max, max_keys));
                }
                _ => unreachable!("a tier changes numbers, never the algorithm"),
            }
        }
        meters
    }
}
