//! The signal by which a server notifies the queue of its upstream, of which it knows no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Waker;

/// The connection of a server to the queue of its upstream.
pub(super) struct QueueSignal {
    waiting: Arc<AtomicUsize>,
    queue: Waker,
}

impl QueueSignal {
    /// `waiting` is not 0 while requests wait; `queue` then hands out the free places.
    pub fn new(waiting: Arc<AtomicUsize>, queue: Waker) -> QueueSignal {
        QueueSignal { waiting, queue }
    }

    /// Tells the queue that there may be a place, if requests wait.
    #[inline]
    pub fn notify_queue(&self) {
        if self.waiting.load(Ordering::SeqCst) != 0 {
            self.queue.wake_by_ref();
        }
    }
}
