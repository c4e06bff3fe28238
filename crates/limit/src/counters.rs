//! The counters of a limit, one table per rate, and macros that run one expression on those of any algorithm.

use std::sync::Arc;
use std::time::Duration;

use super::algorithm::calendar_window::CalendarParams;
use super::algorithm::concurrency::ConcurrencyParams;
use super::algorithm::fixed_window::FixedWindowParams;
use super::algorithm::leaky_bucket::{LeakyBucketParams, QueueNumbers};
use super::algorithm::meter::{Meter, MeterParams, MeterSpec, SettleTerms};
use super::algorithm::rate::TickRate;
use super::algorithm::shares::{ShareBucketParams, ShareQueueParams, ShareWindowParams};
use super::algorithm::sliding_log::SlidingLogParams;
use super::algorithm::sliding_window::SlidingWindowParams;
use super::algorithm::token_bucket::TokenBucketParams;
use super::algorithm::warm_up::WarmUpRate;
use sluicegate_base::clock::duration_ns;
use sluicegate_model::{self as model, Algorithm, BUCKETS_MAX, LeakyBucketRate, Shares, WindowAlign};

/// One counter table per rate, the rates of all variants in a row.
pub(super) enum Meters {
    TokenBucket(Vec<Meter<TokenBucketParams<TickRate>>>),
    LeakyBucket(Vec<Meter<LeakyBucketParams<TickRate>>>),
    FixedWindow(Vec<Meter<FixedWindowParams>>),
    CalendarWindow(Vec<Meter<CalendarParams>>),
    SlidingWindow(Vec<Meter<SlidingWindowParams<COUNTS>>>),
    SlidingWindowFine(Vec<Meter<SlidingWindowParams<COUNTS_FINE>>>),
    SlidingLog(Vec<Meter<SlidingLogParams>>),
    ShareBucket(Vec<Meter<ShareBucketParams>>),
    ShareWindow(Vec<Meter<ShareWindowParams>>),
    ShareQueue(Vec<Meter<ShareQueueParams>>),
    WarmTokenBucket(Vec<Meter<TokenBucketParams<WarmUpRate>>>),
    WarmLeakyBucket(Vec<Meter<LeakyBucketParams<WarmUpRate>>>),
    Concurrency(Vec<Meter<ConcurrencyParams>>),
}

/// Counts per key of a sliding window: one more than its sub-windows, by default and at most.
const COUNTS: usize = 11;
const COUNTS_FINE: usize = BUCKETS_MAX as usize + 1;

/// Runs the same expression for the meters of each algorithm named. The others are named as well, so that the compiler
/// asks about a new one.
macro_rules! meters_of {
    ([$($algorithm:ident)*] $meters:expr, $list:ident => $run:expr $(, [$($other:ident)*] $otherwise:expr)?) => {
        match $meters {
            $($crate::counters::Meters::$algorithm($list) => $run,)*
            $($($crate::counters::Meters::$other(_))|* => $otherwise,)?
        }
    };
}

/// Runs it for the meters of every algorithm.
macro_rules! each {
    ($meters:expr, $list:ident => $run:expr) => {
        $crate::counters::meters_of!([TokenBucket LeakyBucket WarmTokenBucket WarmLeakyBucket ShareBucket
            ShareWindow ShareQueue FixedWindow CalendarWindow SlidingWindow SlidingWindowFine SlidingLog
            Concurrency] $meters, $list => $run)
    };
}

/// Runs it for those that judge rates, all but concurrency.
macro_rules! each_rated {
    ($meters:expr, $list:ident => $run:expr, else $otherwise:expr) => {
        $crate::counters::meters_of!([TokenBucket LeakyBucket WarmTokenBucket WarmLeakyBucket ShareBucket
            ShareWindow ShareQueue FixedWindow CalendarWindow SlidingWindow SlidingWindowFine
            SlidingLog] $meters, $list => $run,
            [Concurrency] $otherwise)
    };
}

/// Runs it for the meter of one rate; concurrency has none.
macro_rules! rated {
    ($meters:expr, $rate:expr, $meter:ident => $run:expr) => {
        $crate::counters::each_rated!($meters, rates => {
            let $meter = &rates[$rate];
            $run
        }, else unreachable!("concurrency has no rates"))
    };
}

/// Runs it for the meter of one rate that responses may settle.
macro_rules! settled {
    ($meters:expr, $rate:expr, $meter:ident => $run:expr, else $otherwise:expr) => {
        $crate::counters::meters_of!([TokenBucket WarmTokenBucket ShareBucket ShareWindow
            FixedWindow CalendarWindow SlidingWindow SlidingWindowFine SlidingLog] $meters, rates => {
                let $meter = &rates[$rate];
                $run
            }, [LeakyBucket WarmLeakyBucket ShareQueue Concurrency] $otherwise)
    };
}

/// Runs it for those with a queue before a rate.
macro_rules! each_queued {
    ($meters:expr, $list:ident => $run:expr, else $otherwise:expr) => {
        $crate::counters::meters_of!([LeakyBucket WarmLeakyBucket ShareQueue] $meters, $list => $run,
            [TokenBucket WarmTokenBucket ShareBucket ShareWindow FixedWindow CalendarWindow SlidingWindow
                SlidingWindowFine SlidingLog Concurrency] $otherwise)
    };
}

/// Runs it for the meter of one rate with a queue.
macro_rules! queued {
    ($meters:expr, $rate:expr, $meter:ident => $run:expr, else $otherwise:expr) => {
        $crate::counters::each_queued!($meters, rates => {
            let $meter = &rates[$rate];
            $run
        }, else $otherwise)
    };
}

pub(super) use {each, each_queued, each_rated, meters_of, queued, rated, settled};

/// The meters of one algorithm, which continue those of the same algorithm.
macro_rules! meters {
    ($algorithm:ident, $before:expr, $spec:expr, $rates:expr, $params:expr) => {{
        let before = match $before {
            Some(Meters::$algorithm(meters)) => meters.as_slice(),
            _ => &[],
        };
        Meters::$algorithm($spec.build_meters(before, $rates, $params))
    }};
}

/// The arguments of all meters of a limit.
pub(super) struct LimitSpec<'a> {
    pub config: &'a model::LimitConfig,
    pub max_keys: usize,
    pub owner: &'a Arc<str>,
    /// The index of each rate before a reload.
    pub previous: &'a [Option<usize>],
}

// === impl LimitSpec ===

impl LimitSpec<'_> {
    /// The meters of all rates in a row, with the parameters that `params` makes of each.
    fn build_meters<T, N: MeterParams>(
        &self,
        before: &[Meter<N>],
        rates: impl Iterator<Item = T>,
        params: impl Fn(T, &MeterSpec<'_, N>) -> N,
    ) -> Vec<Meter<N>> {
        let mut meters: Vec<Meter<N>> = Vec::new();
        for (rate, (one, previous)) in rates.zip(self.previous).enumerate() {
            // The rate of a view counts in the counters of the limit's own.
            let counted_by = Some(self.config.counter_rate(rate)).filter(|own| *own != rate);
            let spec = MeterSpec {
                keys_max: keys_max(self.config, self.max_keys, rate),
                owner: self.owner,
                settle_terms: self.settle_terms(),
                previous: previous.and_then(|rate| before.get(rate)),
                counted_by: counted_by.and_then(|rate| meters.get(rate)),
            };
            let meter = Meter::new(params(one, &spec), &spec);
            meters.push(meter);
        }
        meters
    }

    fn settle_terms(&self) -> SettleTerms {
        let charge = self.config.charge.as_ref();
        SettleTerms {
            settles: charge.is_some(),
            clears: charge.is_some_and(|charge| !charge.clear.is_empty()),
        }
    }
}

/// The most keys that a rate counts: that of a grant has a single one.
pub fn keys_max(config: &model::LimitConfig, max_keys: usize, rate: usize) -> usize {
    if rate < config.file_rate_count() { max_keys } else { 1 }
}

// === impl Meters ===

impl Meters {
    /// All variants of a limit are of one algorithm.
    pub(super) fn new(spec: &LimitSpec<'_>, before: Option<&Meters>) -> Meters {
        let config = spec.config;
        let by_class = config.shares.as_ref().and_then(|shares| Meters::with_shares(spec, shares, before));
        if let Some(meters) = by_class {
            return meters;
        }
        let windows = config.algorithm_variants().flat_map(Algorithm::rate_quotas).map(|(rate, _)| rate);
        match &config.algorithm {
            Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
                Meters::new_buckets(spec, before)
            }
            Algorithm::FixedWindow { align: WindowAlign::Calendar, .. } => {
                meters!(CalendarWindow, before, spec, windows, |rate, spec| {
                    CalendarParams::new(rate, config, spec)
                })
            }
            Algorithm::FixedWindow { align, .. } => {
                meters!(FixedWindow, before, spec, windows, |rate, spec| {
                    FixedWindowParams::new(rate, *align, spec)
                })
            }
            Algorithm::SlidingWindow { buckets, .. } if usize::from(*buckets) < COUNTS => {
                meters!(SlidingWindow, before, spec, windows, |rate, spec| {
                    SlidingWindowParams::new(rate, *buckets, spec)
                })
            }
            Algorithm::SlidingWindow { buckets, .. } => {
                meters!(SlidingWindowFine, before, spec, windows, |rate, spec| {
                    SlidingWindowParams::new(rate, *buckets, spec)
                })
            }
            Algorithm::SlidingLog { .. } => {
                meters!(SlidingLog, before, spec, windows, SlidingLogParams::new)
            }
            Algorithm::Concurrency { .. } => {
                let slots = config.algorithm_variants().filter_map(|numbers| match numbers {
                    Algorithm::Concurrency { min, max, queue, max_wait } => {
                        Some(((*min, *max), (*queue, *max_wait)))
                    }
                    _ => None,
                });
                meters!(Concurrency, before, spec, slots, |(slots, waits), spec| {
                    ConcurrencyParams::new(slots, waits, config, spec)
                })
            }
        }
    }

    /// `None` for slots, which know the classes, and for an algorithm without shares.
    fn with_shares(spec: &LimitSpec<'_>, shares: &Arc<Shares>, before: Option<&Meters>) -> Option<Meters> {
        let quotas = spec.config.algorithm_variants().flat_map(Algorithm::rate_quotas);
        Some(match &spec.config.algorithm {
            Algorithm::TokenBucket { .. } => {
                meters!(ShareBucket, before, spec, quotas, |(rate, burst), spec| {
                    ShareBucketParams::new(rate, burst, shares, spec)
                })
            }
            Algorithm::FixedWindow { align, .. } => {
                meters!(ShareWindow, before, spec, quotas, |(rate, _), spec| {
                    ShareWindowParams::new(rate, Some(*align), 1, shares, spec)
                })
            }
            Algorithm::SlidingWindow { buckets, .. } => {
                meters!(ShareWindow, before, spec, quotas, |(rate, _), spec| {
                    ShareWindowParams::new(rate, None, *buckets, shares, spec)
                })
            }
            Algorithm::LeakyBucket { .. } => {
                meters!(ShareQueue, before, spec, flows_of(spec.config), |numbers, of_rate| {
                    ShareQueueParams::new(numbers, shares, spec.config, of_rate)
                })
            }
            Algorithm::SlidingLog { .. } | Algorithm::Concurrency { .. } => return None,
        })
    }

    fn new_buckets(spec: &LimitSpec<'_>, before: Option<&Meters>) -> Meters {
        let config = spec.config;
        let tokens = config.algorithm_variants().flat_map(|numbers| match numbers {
            Algorithm::TokenBucket { rates } => rates.as_slice(),
            _ => &[],
        });
        let deepest = |rate: usize| config.deepest_bucket(rate);
        let tokens = tokens.enumerate().map(|(rate, one)| (one.rate, (one.burst, deepest(rate))));
        let flows = flows_of(config).enumerate();
        let flows = flows.map(|(rate, one)| (one.0.rate, QueueNumbers::new(one, deepest(rate), config)));
        let warm_up_ns = config.warm_up.map(duration_ns);
        match (&config.algorithm, warm_up_ns) {
            (Algorithm::TokenBucket { .. }, None) => {
                meters!(TokenBucket, before, spec, tokens, |(rate, bursts), spec| {
                    TokenBucketParams::new(bursts, TickRate::new(rate), spec)
                })
            }
            (Algorithm::TokenBucket { .. }, Some(ns)) => {
                meters!(WarmTokenBucket, before, spec, tokens, |(rate, bursts), spec| {
                    TokenBucketParams::new(bursts, WarmUpRate::new(TickRate::new(rate), ns), spec)
                })
            }
            (_, None) => meters!(LeakyBucket, before, spec, flows, |(rate, numbers), spec| {
                LeakyBucketParams::new(numbers, TickRate::new(rate), spec)
            }),
            (_, Some(ns)) => meters!(WarmLeakyBucket, before, spec, flows, |(rate, numbers), spec| {
                LeakyBucketParams::new(numbers, WarmUpRate::new(TickRate::new(rate), ns), spec)
            }),
        }
    }
}

/// The leaky buckets of all variants, with their longest waits.
fn flows_of(config: &model::LimitConfig) -> impl Iterator<Item = (&LeakyBucketRate, Option<Duration>)> {
    config.algorithm_variants().flat_map(|numbers| match numbers {
        Algorithm::LeakyBucket { rates, max_wait } => rates.iter().map(|one| (one, *max_wait)).collect(),
        _ => Vec::new(),
    })
}
