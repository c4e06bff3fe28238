//! The terms on which a request may wait in front of its upstream, beyond its turn in a queue.

use std::time::Duration;

use super::{ChainedLimit, RateDecision};
use sluicegate_model::{Algorithm, LimitConfig};

/// The terms of the queue with the longest wait that a request passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueTerms {
    /// Index in [`super::Chain::limits`].
    pub limit_index: u16,
    /// The longest whole wait, ns.
    pub max_wait_ns: u64,
    /// The interval of its departures, ns.
    pub interval_ns: u64,
}

impl QueueTerms {
    /// The terms among the decisions on a request; `None` if no queue stands in front.
    pub fn find(limits: &[ChainedLimit], decisions: &[RateDecision]) -> Option<QueueTerms> {
        let terms = |judged: &RateDecision| {
            let limit = limits.get(usize::from(judged.limit_index)).filter(|_| !judged.dry_run)?;
            let (_, numbers, rate) = limit.config.locate_rate(judged.rate.into())?;
            let Algorithm::LeakyBucket { rates, max_wait } = numbers else { return None };
            let own = rates.get(rate).filter(|own| own.queue > 0)?;
            let interval = own.rate.period.as_nanos() / u128::from(own.rate.units.get());
            Some(QueueTerms {
                limit_index: judged.limit_index,
                max_wait_ns: wait_ns(*max_wait),
                interval_ns: u64::try_from(interval).unwrap_or(u64::MAX).max(1),
            })
        };
        let found = || decisions.iter().filter_map(terms);
        let best = found().max_by_key(|terms| terms.max_wait_ns)?;
        // Several rates of one limit all hold.
        let own = found().filter(|terms| terms.limit_index == best.limit_index);
        let interval_ns = own.map(|terms| terms.interval_ns).max().unwrap_or(best.interval_ns);
        Some(QueueTerms { interval_ns, ..best })
    }
}

/// The longest wait that any queue of a limit allows where the variant `own` stands for its own numbers, ns; 0 without
/// a queue.
pub fn longest_wait_ns(limit: &LimitConfig, own: usize) -> u64 {
    let waits = limit.variants_at(own).filter_map(|numbers| match numbers {
        Algorithm::LeakyBucket { rates, max_wait } if rates.iter().all(|own| own.queue > 0) => {
            Some(wait_ns(*max_wait))
        }
        _ => None,
    });
    waits.max().filter(|_| !limit.dry_run).unwrap_or(0)
}

fn wait_ns(max_wait: Option<Duration>) -> u64 {
    max_wait.map_or(u64::MAX, |wait| u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX))
}
