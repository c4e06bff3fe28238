//! How many departures of a leased queue a gateway asks for at a time: while requests wait, those of the requests that
//! will come until the next departure is due, as many as came in the time before.

use std::collections::HashMap;

use super::{Departures, SharedKey};
use sluicegate_base::clock::Now;

/// Keys with a demand at most; requests of further ones ask for their own departure alone.
const KEYS_MAX: usize = 4_096;

/// The demand of each key and cost.
pub(super) type Demands = HashMap<(SharedKey, u64), KeyDemand>;

/// What requests of a key and cost ask for here.
#[derive(Default)]
pub(super) struct KeyDemand {
    /// Requests since the term began, and of a whole term before.
    count: u64,
    since: Now,
    last: u64,
    /// The next departure that the store would hand out, as far as is known.
    next: Now,
    /// A call for several is under way, until this moment at the latest.
    asking_until: Now,
}

// === impl Departures ===

impl Departures {
    /// Counts a request, where demands are those of a term.
    pub(crate) fn count_request(&self, of: (SharedKey, u64), term_ns: u64, now: Now) {
        let demands = &mut self.spares.lock().demands;
        if demands.len() >= KEYS_MAX && !demands.contains_key(&of) {
            demands.retain(|_, demand| now.ns_since(demand.since) < 2 * term_ns);
            if demands.len() >= KEYS_MAX {
                return;
            }
        }
        let demand = demands.entry(of).or_default();
        let past_ns = now.ns_since(demand.since);
        if past_ns >= term_ns {
            demand.last = demand.count.saturating_mul(term_ns) / past_ns;
            (demand.count, demand.since) = (0, now);
        }
        demand.count += 1;
    }

    /// The number of departures to ask for, that of the request included, and `most` at most;
    /// [`Departures::note_next`] must follow.
    pub(crate) fn departures_to_ask(&self, of: (SharedKey, u64), term_ns: u64, most: u64, now: Now) -> u64 {
        let demands = &mut self.spares.lock().demands;
        let Some(demand) = demands.get_mut(&of).filter(|demand| demand.asking_until <= now) else { return 1 };
        let wait_ns = demand.next.ns_since(now).min(term_ns);
        let count = (demand.last.saturating_mul(wait_ns) / term_ns).min(most).max(1);
        if count > 1 {
            demand.asking_until = Now(now.0.saturating_add(term_ns));
        }
        count
    }

    /// Notes the next departure that the store would hand out, after a call for `count` of them.
    pub(crate) fn note_next(&self, of: (SharedKey, u64), count: u64, next: Now) {
        if let Some(demand) = self.spares.lock().demands.get_mut(&of) {
            demand.next = next;
            if count > 1 {
                demand.asking_until = Now::default();
            }
        }
    }
}
