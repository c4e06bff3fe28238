//! Sends events to the receiver of `notify`, from the control thread.
//!
//! Events wait in [`StepEvents`], so that no request waits for the receiver. A few are under way at once; one that the
//! receiver does not take waits for its next try behind those that are due before.

mod receiver;
#[cfg(test)]
mod tests;

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet, spawn_local};
use tokio::time::{Instant, sleep_until, timeout};

use receiver::Receiver;
use sluicegate_model::NotifyConfig;
use sluicegate_proxy::gateway::{Delivery, NotifyResult, StepEvents};

/// Events that are under way at once.
const UNDER_WAY_MAX: usize = 8;
/// The time of one try, with connecting.
const TRY_TIMEOUT: Duration = Duration::from_secs(5);
/// The pause after the first try; each further one is twice as long.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// The time from the start of the first try in which an event is tried again.
const TRIED_FOR: Duration = Duration::from_secs(3600);
/// The time for what waits at the end of the process.
const LAST_TRIES: Duration = Duration::from_secs(2);
/// The time between two warnings.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// The task that sends events, for the whole life of the process.
pub(super) struct NotifyTask {
    events: Arc<StepEvents>,
    order: watch::Sender<Order>,
    task: JoinHandle<()>,
}

/// What the task is to do.
#[derive(Clone)]
struct Order {
    /// `None` = there is no receiver.
    receiver: Option<Arc<Receiver>>,
    /// The process ends: each event gets one more try.
    is_last: bool,
}

impl NotifyTask {
    /// Starts to send to the receiver of `config`, if there is one.
    pub(super) fn start(events: Arc<StepEvents>, config: Option<&NotifyConfig>) -> NotifyTask {
        NotifyTask::start_with(events, config, Receiver::post)
    }

    /// [`NotifyTask::start`] with another way to send.
    fn start_with<P>(events: Arc<StepEvents>, config: Option<&NotifyConfig>, post: P) -> NotifyTask
    where
        P: AsyncFn(&Receiver, &Delivery) -> Result<(), String> + Copy + 'static,
    {
        let (order, orders) = watch::channel(Order { receiver: None, is_last: false });
        let sending = Sending { events: events.clone(), post, under_way: JoinSet::new(), warned_at: None };
        let task = NotifyTask { events, order, task: spawn_local(sending.run(orders)) };
        task.use_config(config);
        task
    }

    /// Sends to the receiver of `config` from now on; without one, whatever waits is dropped.
    pub(super) fn use_config(&self, config: Option<&NotifyConfig>) {
        self.events.set_receiver(config.is_some());
        let receiver = config.map(|config| Arc::new(Receiver::new(config)));
        self.order.send_modify(|order| order.receiver = receiver);
    }

    /// Tries whatever waits once more, and waits at most two seconds for it.
    pub(super) async fn flush_and_end(mut self) {
        self.order.send_modify(|order| order.is_last = true);
        if timeout(LAST_TRIES, &mut self.task).await.is_err() {
            self.task.abort();
            let count = self.events.count_waiting();
            tracing::warn!(count, "the process ends before the receiver of notify took all events");
        }
    }
}

/// The state of the task.
struct Sending<P> {
    events: Arc<StepEvents>,
    post: P,
    under_way: JoinSet<Tried>,
    warned_at: Option<Instant>,
}

/// An event after a try, by this receiver.
type Tried = (Delivery, Arc<Receiver>, Result<(), String>);

impl<P> Sending<P>
where
    P: AsyncFn(&Receiver, &Delivery) -> Result<(), String> + Copy + 'static,
{
    /// Ends when nothing is left of the last order, or nobody gives any.
    async fn run(mut self, mut orders: watch::Receiver<Order>) {
        let events = self.events.clone();
        loop {
            let Order { receiver, is_last } = orders.borrow_and_update().clone();
            let next = receiver.and_then(|receiver| self.start_due(&receiver, is_last));
            if is_last && self.under_way.is_empty() {
                return;
            }
            tokio::select! {
                Some(tried) = self.under_way.join_next() => match tried {
                    Ok(tried) => self.finish_try(tried, is_last),
                    Err(_panicked) => events.count_result(NotifyResult::Failed),
                },
                () = events.wait_added() => {}
                () = wait_until(next) => {}
                changed = orders.changed() => if changed.is_err() { return },
            }
        }
    }

    /// Starts to send what is due, or all, as long as there is room; returns when the next one is due, if one waits.
    fn start_due(&mut self, receiver: &Arc<Receiver>, is_last: bool) -> Option<Instant> {
        let now = Instant::now();
        let by = if is_last { now + 2 * PAUSE_MAX } else { now };
        while self.under_way.len() < UNDER_WAY_MAX {
            let mut delivery = match self.events.take_due(by) {
                Ok(delivery) => delivery,
                Err(next) => return next,
            };
            delivery.first_try.get_or_insert(now);
            let (receiver, post) = (receiver.clone(), self.post);
            self.under_way.spawn_local(async move {
                let late = |_elapsed| Err(format!("no answer within {} s", TRY_TIMEOUT.as_secs()));
                let tried = timeout(TRY_TIMEOUT, post(&receiver, &delivery)).await.unwrap_or_else(late);
                (delivery, receiver, tried)
            });
        }
        // The end of one of these comes first.
        None
    }

    fn finish_try(&mut self, (mut delivery, receiver, tried): Tried, is_last: bool) {
        let Err(reason) = tried else { return self.events.count_result(NotifyResult::Delivered) };
        let now = Instant::now();
        delivery.failed_tries += 1;
        let due = now + pause_after(delivery.failed_tries);
        let tried_until = delivery.first_try.unwrap_or(now) + TRIED_FOR;
        let is_over = is_last || due > tried_until;
        if self.warned_at.is_none_or(|at| now - at >= WARNING_INTERVAL) {
            self.warned_at = Some(now);
            let (receiver, waiting) = (&receiver.url.authority, self.events.count_waiting());
            tracing::warn!(receiver, waiting, "the receiver of notify does not take an event: {reason}");
        }
        match is_over {
            true => self.events.count_result(NotifyResult::Failed),
            false => self.events.put_back(delivery, due),
        }
    }
}

/// The pause after so many tries, at least one.
fn pause_after(tries: u32) -> Duration {
    PAUSE_MIN.saturating_mul(1_u32.checked_shl(tries - 1).unwrap_or(u32::MAX)).min(PAUSE_MAX)
}

async fn wait_until(next: Option<Instant>) {
    match next {
        Some(next) => sleep_until(next).await,
        None => pending().await,
    }
}
