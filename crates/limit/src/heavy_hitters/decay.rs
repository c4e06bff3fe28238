//! The growing weight of later units, by which earlier ones fade.

use std::f64::consts::LN_2;
use std::time::Duration;

use sluicegate_base::clock::Now;

/// The time in which a unit loses half of its weight.
pub const HALF_LIFE: Duration = Duration::from_secs(60);

/// The weight is renewed this often at most, which makes it at most 1.2 % too small.
const RENEW_AFTER_NS: u64 = 1_000_000_000;
/// Halvings after which all counts are scaled back, long before the weight exceeds the range of a float.
const HALVINGS_MAX: f64 = 60.0;

/// The weight of a unit that is counted now.
#[derive(Debug, Clone, Copy)]
pub(super) struct ForwardDecay {
    pub(super) weight: f64,
    /// The moment from which the weight is to be renewed.
    pub(super) renew_at: Now,
    /// The moment when the weight was 1.
    landmark: Now,
}

impl ForwardDecay {
    pub(super) fn begin(now: Now) -> ForwardDecay {
        ForwardDecay { weight: 1.0, renew_at: Now(now.0.saturating_add(RENEW_AFTER_NS)), landmark: now }
    }

    /// The weight of a unit at `now`, exactly.
    pub(super) fn weight_at(&self, now: Now) -> f64 {
        halvings_in(now.ns_since(self.landmark)).exp2()
    }

    /// Renews the weight; `Some` = all counts are to be multiplied by this factor, because the weight begins again.
    pub(super) fn renew_weight(&mut self, now: Now) -> Option<f64> {
        let halvings = halvings_in(now.ns_since(self.landmark));
        if halvings > HALVINGS_MAX {
            *self = ForwardDecay::begin(now);
            return Some((-halvings).exp2());
        }
        self.weight = halvings.exp2();
        self.renew_at = Now(now.0.saturating_add(RENEW_AFTER_NS));
        None
    }
}

fn halvings_in(ns: u64) -> f64 {
    ns as f64 / HALF_LIFE.as_nanos() as f64
}

/// The factor from a faded count to units per second, `age_ns` after counting began. A young summary has not yet
/// gathered all that a steady rate would leave in it.
pub fn rate_factor(age_ns: u64) -> f64 {
    let gathered = 1.0 - (-halvings_in(age_ns.max(RENEW_AFTER_NS))).exp2();
    LN_2 / HALF_LIFE.as_secs_f64() / gathered
}
