//! What becomes of a queue when the numbers beside it change.

use std::task::Waker;

use super::{Flow, Line};
use crate::base::clock::Now;
use crate::limit::algorithm::queue::{Queues, Wakers};
use crate::limit::algorithm::schedule::{Schedule, Used};
use crate::limit::table::{Entry, Numbers};

// === impl Flow ===

impl<S: Schedule> Numbers<Line<S::Used>> for Flow<S> {
    /// What has departed stays used, as far as a burst goes, and who waits keeps its place: as many units, each as
    /// long as it is now.
    fn convert(
        &self,
        line: &mut Line<S::Used>,
        queues: &mut Queues,
        before: &Flow<S>,
        now: Now,
        called: &mut Vec<Waker>,
    ) {
        if self.epoch == before.epoch {
            return;
        }
        let mut wakers = Wakers::new();
        before.depart_due(line, queues, now, &mut wakers);
        if line.is_idle(now) {
            line.used = S::Used::default();
        } else {
            let (pace, present) = (self.schedule.pace(), line.used.level().present(now));
            let departed = before.backlog(line, present).saturating_sub(queues.span(line.queue));
            // More than a burst is ahead only where requests have passed as if they had waited.
            let deep = if departed > before.burst_span() { self.depth } else { 0 };
            let departed = pace.converted(departed, before.schedule.pace());
            self.schedule.take_over(&mut line.used, &before.schedule, present);
            queues.convert(line.queue, |span| pace.converted(span, before.schedule.pace()));
            let ticks = departed.min(self.burst_span().max(deep)).saturating_add(queues.span(line.queue));
            pace.set_backlog(line.used.level_mut(), present, ticks);
            self.depart_due(line, queues, now, &mut wakers);
            // The head's timer is set for its old departure.
            queues.call_head(line.queue, &mut wakers);
        }
        called.extend(wakers);
    }
}

impl<S: Schedule> Flow<S> {
    /// Ticks that those may take at most who have departed.
    fn burst_span(&self) -> u128 {
        u128::from(S::SLOWEST) * (self.ahead + u128::from(self.schedule.pace().unit()))
    }
}
