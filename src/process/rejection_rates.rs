//! Rejections per second since the last look at the status page.

use std::cell::RefCell;
use std::collections::HashMap;

use crate::base::clock::Now;
use crate::config::LimitId;
use crate::proxy::gateway::Gateway;

/// A look so shortly after another has the span of that one.
const SPAN_MIN_NS: u64 = 1_000_000_000;

/// The counts of the last two looks.
pub struct RejectionLooks(RefCell<[RejectionLook; 2]>);

/// The rejections up to a moment.
#[derive(Clone)]
struct RejectionLook {
    at: Now,
    by_limit: HashMap<String, u64>,
    by_bans: u64,
}

/// The rates between two looks.
pub struct RejectionRates {
    pub over_seconds: f64,
    /// Of all limits and of bans.
    pub per_second: f64,
    pub bans: RejectionRate,
    /// One for each name of a limit, in file order.
    pub limits: Vec<LimitRejections>,
}

pub struct RejectionRate {
    /// Since the start.
    pub rejected: u64,
    pub per_second: f64,
}

pub struct LimitRejections {
    pub limit: LimitId,
    pub rejected: u64,
    pub per_second: f64,
}

impl RejectionLooks {
    /// Begins with `gateway`, which has rejected nothing so far.
    pub fn new(gateway: &Gateway, now: Now) -> RejectionLooks {
        let first = RejectionLook::take(gateway, now);
        RejectionLooks(RefCell::new([first.clone(), first]))
    }

    pub fn look_at(&self, gateway: &Gateway, now: Now) -> RejectionRates {
        let [before, last] = &mut *self.0.borrow_mut();
        let seen = RejectionLook::take(gateway, now);
        if now.ns_since(last.at) >= SPAN_MIN_NS {
            *before = std::mem::replace(last, seen.clone());
        }
        seen.rates_since(before, gateway)
    }
}

impl RejectionLook {
    fn take(gateway: &Gateway, at: Now) -> RejectionLook {
        let count = |limit: &LimitId| gateway.metrics.rejected_count(*limit);
        let by_limit = distinct_limits(gateway);
        let by_limit =
            by_limit.iter().map(|limit| (gateway.limits[limit.0].name.to_string(), count(limit))).collect();
        RejectionLook { at, by_limit, by_bans: gateway.metrics.ban_rejected_count() }
    }

    fn rates_since(&self, before: &RejectionLook, gateway: &Gateway) -> RejectionRates {
        let span_ns = self.at.ns_since(before.at);
        let seconds = span_ns.max(SPAN_MIN_NS) as f64 / 1e9;
        // A count that is smaller than before belongs to a limit that was removed and came back.
        let rate = |now: u64, before: u64| round_rate(now.saturating_sub(before) as f64 / seconds);
        let limits: Vec<LimitRejections> = distinct_limits(gateway)
            .into_iter()
            .map(|limit| {
                let name = &*gateway.limits[limit.0].name;
                let count = |look: &RejectionLook| look.by_limit.get(name).copied().unwrap_or(0);
                let rejected = count(self);
                LimitRejections { limit, rejected, per_second: rate(rejected, count(before)) }
            })
            .collect();
        let bans = RejectionRate { rejected: self.by_bans, per_second: rate(self.by_bans, before.by_bans) };
        RejectionRates {
            over_seconds: (span_ns / 1_000_000) as f64 / 1_000.0,
            per_second: round_rate(
                limits.iter().map(|limit| limit.per_second).sum::<f64>() + bans.per_second,
            ),
            bans,
            limits,
        }
    }
}

/// Three decimals are enough for people and programs.
fn round_rate(rate: f64) -> f64 {
    (rate * 1000.0).round() / 1000.0
}

/// The first limit of each name.
fn distinct_limits(gateway: &Gateway) -> Vec<LimitId> {
    let mut known = std::collections::HashSet::new();
    let ids = gateway.limits.iter().filter(|limit| known.insert(limit.name.to_string()));
    ids.map(|limit| limit.id).collect()
}
