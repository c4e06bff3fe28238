//! Tells the steps of quotas, and sends their events to the receiver of `notify`, from the control thread.
//!
//! Each event has a task of its own, which lasts until the receiver takes the event or it is given up. A few tasks at
//! once send; the others wait for their turn, or for their next try.

mod receiver;
#[cfg(test)]
mod tests;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet, spawn_local};
use tokio::time::{Instant, timeout};

use receiver::post_event;
use sluicegate_base::random::RandomNumbers;
use sluicegate_model::NotifyConfig;
use sluicegate_proxy::gateway::{Gateway, NotifyResult, StepEvent, StepEvents, WAITING_MAX};

/// The interval in which the steps of quotas are told.
const STEPS_INTERVAL: Duration = Duration::from_millis(250);
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

/// The task that tells steps and sends events, for the whole life of the process.
pub(super) struct NotifyTask {
    /// The receiver in force; the task ends when this is dropped.
    config: watch::Sender<Option<NotifyConfig>>,
    task: JoinHandle<()>,
}

impl NotifyTask {
    /// Starts to tell the steps of the gateway in force.
    pub(super) fn start(current: &Arc<ArcSwap<Gateway>>) -> NotifyTask {
        let (current, gateway) = (current.clone(), current.load_full());
        let (events, config) = (gateway.step_events.clone(), gateway.config.notify.clone());
        NotifyTask::start_with(events, config, move || current.load().tell_steps(), post_event)
    }

    /// [`NotifyTask::start`] with another source of events, and another way to send them.
    fn start_with<P>(
        events: Arc<StepEvents>,
        config: Option<NotifyConfig>,
        tell_steps: impl Fn() + 'static,
        post: P,
    ) -> NotifyTask
    where
        P: AsyncFn(&NotifyConfig, &str, &StepEvent) -> Result<(), String> + 'static,
    {
        let (config, in_force) = watch::channel(config);
        let sending = Rc::new(Sending {
            events,
            config: in_force,
            post,
            under_way: Semaphore::new(UNDER_WAY_MAX),
            places: RefCell::default(),
            ids: RandomNumbers::seeded("step events"),
            warned_at: Cell::new(None),
        });
        NotifyTask { config, task: spawn_local(sending.run(tell_steps)) }
    }

    /// Sends to the receiver of `config` from now on; without one, whatever waits is dropped.
    pub(super) fn use_config(&self, config: Option<&NotifyConfig>) {
        self.config.send_replace(config.cloned());
    }

    /// Tells the last steps, tries whatever waits once more, and waits at most two seconds for it.
    pub(super) async fn flush_and_end(self) {
        drop(self.config);
        let _ = self.task.await;
    }
}

/// The state of the task.
struct Sending<P> {
    events: Arc<StepEvents>,
    config: watch::Receiver<Option<NotifyConfig>>,
    post: P,
    under_way: Semaphore,
    /// The places of events, the oldest first. An event whose place was removed does not wait for another try.
    places: RefCell<VecDeque<oneshot::Sender<()>>>,
    ids: RandomNumbers,
    warned_at: Cell<Option<Instant>>,
}

impl<P> Sending<P>
where
    P: AsyncFn(&NotifyConfig, &str, &StepEvent) -> Result<(), String> + 'static,
{
    async fn run(self: Rc<Self>, tell_steps: impl Fn()) {
        let (mut config, mut tasks) = (self.config.clone(), JoinSet::new());
        let mut is_last = false;
        while !is_last {
            is_last = timeout(STEPS_INTERVAL, config.wait_for(|_| false)).await.is_ok();
            tell_steps();
            while tasks.try_join_next().is_some() {}
            self.count_waiting();
            let new = self.events.take_new();
            for event in new.into_iter().filter(|_| config.borrow().is_some()) {
                let (sending, place) = (self.clone(), self.add_place());
                tasks.spawn_local(async move {
                    let result = sending.deliver(&event, place).await;
                    sending.events.count_result(result);
                });
            }
        }
        let finish = async { while tasks.join_next().await.is_some() {} };
        if timeout(LAST_TRIES, finish).await.is_err() {
            let count = tasks.len();
            tracing::warn!(count, "the process ends before the receiver of notify took all events");
        }
    }

    /// A place for another event; the oldest event loses its place if too many wait.
    fn add_place(&self) -> oneshot::Receiver<()> {
        let (place, is_removed) = oneshot::channel();
        let mut places = self.places.borrow_mut();
        if places.len() == WAITING_MAX {
            places.pop_front();
        }
        places.push_back(place);
        is_removed
    }

    /// The number of events that have a place; the places of those that are done are removed.
    fn count_waiting(&self) -> usize {
        let mut places = self.places.borrow_mut();
        places.retain(|place| !place.is_closed());
        places.len()
    }

    /// Sends an event until the receiver takes it, or it is given up.
    async fn deliver(&self, event: &StepEvent, mut place_removed: oneshot::Receiver<()>) -> NotifyResult {
        let id = format!("msg_{:016x}{:016x}", self.ids.next(), self.ids.next());
        let (mut config, mut pause, mut tried_until) = (self.config.clone(), Duration::ZERO, None);
        loop {
            let turn = async {
                // The end of the process, or of the receiver, ends the pause.
                let _ = timeout(pause, config.wait_for(Option::is_none)).await;
                self.under_way.acquire().await
            };
            let _turn = tokio::select! {
                turn = turn => turn,
                _ = &mut place_removed => return NotifyResult::Dropped,
            };
            let Some(receiver) = config.borrow().clone() else { return NotifyResult::Dropped };
            let tried_until = *tried_until.get_or_insert_with(|| Instant::now() + TRIED_FOR);
            // The box keeps the events that wait small.
            let tried = timeout(TRY_TIMEOUT, Box::pin((self.post)(&receiver, &id, event))).await;
            let late = |_elapsed| Err(format!("no answer within {} s", TRY_TIMEOUT.as_secs()));
            let Err(reason) = tried.unwrap_or_else(late) else { return NotifyResult::Delivered };
            self.warn(&receiver.url.authority, &reason);
            pause = (2 * pause).clamp(PAUSE_MIN, PAUSE_MAX);
            let is_last = config.has_changed().is_err();
            if is_last || Instant::now() + pause > tried_until {
                return NotifyResult::Failed;
            }
        }
    }

    fn warn(&self, receiver: &str, reason: &str) {
        let now = Instant::now();
        if self.warned_at.get().is_none_or(|at| now - at >= WARNING_INTERVAL) {
            self.warned_at.set(Some(now));
            let waiting = self.count_waiting();
            tracing::warn!(receiver, waiting, "the receiver of notify does not take an event: {reason}");
        }
    }
}
