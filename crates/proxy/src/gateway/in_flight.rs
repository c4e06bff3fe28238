//! The count of requests in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One of the requests in flight, counted out by `Drop`.
pub struct RequestInFlight(Arc<AtomicUsize>);

impl RequestInFlight {
    /// Counts a request as in flight; `None` if `max` are already.
    pub fn try_count(count: &Arc<AtomicUsize>, max: usize) -> Option<RequestInFlight> {
        let before = count.fetch_add(1, Ordering::Relaxed);
        // Above the maximum, dropping it counts it out again.
        let in_flight = RequestInFlight(count.clone());
        (before < max).then_some(in_flight)
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
