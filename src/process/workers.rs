//! Starts all worker threads, and sends them the commands of the control thread.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use super::ProcessFault;
use sluicegate_proxy::downstream::connection_limits::{ConnectionLimits, WorkerInbox};
use sluicegate_proxy::downstream::worker_thread::{self, CommandDone, WorkerCommand, WorkerStart};
use sluicegate_proxy::gateway::Gateway;
use sluicegate_proxy::gateway::worker::Worker;

/// A worker that has not answered by then is busy or ends.
const INSPECT_TIMEOUT: Duration = Duration::from_secs(1);

pub(super) struct Workers {
    commands: Vec<mpsc::UnboundedSender<(WorkerCommand, CommandDone)>>,
    /// `None` = end at once.
    drain: RefCell<Option<watch::Sender<bool>>>,
}

/// Carries no message; closed when every worker has ended.
pub(super) type WorkersEnded = mpsc::UnboundedReceiver<()>;

impl Workers {
    /// Starts one thread per inbox; none accepts connections yet.
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn start_threads(
        gateway: &Arc<Gateway>,
        limits: &Arc<ConnectionLimits>,
        inboxes: Vec<WorkerInbox>,
    ) -> Result<(Workers, WorkersEnded), ProcessFault> {
        let (drain, draining) = watch::channel(false);
        let (end, ended) = mpsc::unbounded_channel();
        let mut workers =
            Workers { commands: Vec::with_capacity(inboxes.len()), drain: RefCell::new(Some(drain)) };
        for (id, inbox) in inboxes.into_iter().enumerate() {
            let (sender, commands) = mpsc::unbounded_channel();
            workers.commands.push(sender);
            let (gateway, limits, drain) = (gateway.clone(), limits.clone(), draining.clone());
            let (start, end) =
                (WorkerStart { id, gateway, connection_limits: limits, inbox, commands, drain }, end.clone());
            std::thread::Builder::new()
                .name(format!("worker-{id}"))
                .spawn(move || {
                    if let Err(error) = worker_thread::run_worker(start) {
                        tracing::error!(%error, "a worker could not start");
                    }
                    drop(end);
                })
                .map_err(|error| ProcessFault::Run(format!("cannot start a worker: {error}")))?;
        }
        Ok((workers, ended))
    }

    pub(super) fn count(&self) -> usize {
        self.commands.len()
    }

    /// Sends each command to the worker with its index, and waits until all are done.
    pub(super) async fn send_commands(&self, commands: impl IntoIterator<Item = (usize, WorkerCommand)>) {
        let (done, mut all_done) = mpsc::channel(1);
        for (worker, command) in commands {
            if let Some(sender) = self.commands.get(worker) {
                // A worker that has ended executes no command.
                let _ = sender.send((command, done.clone()));
            }
        }
        drop(done);
        let _ = all_done.recv().await;
    }

    /// [`Workers::send_commands`] with one command for every worker.
    pub(super) async fn send_to_all(&self, command: impl Fn() -> WorkerCommand) {
        self.send_commands((0..self.count()).map(|worker| (worker, command()))).await;
    }

    /// Runs `inspect` in every worker, and returns the results of those that answer in time.
    pub(super) async fn inspect<T: Send + 'static>(
        &self,
        inspect: impl Fn(&Worker) -> T + Clone + Send + 'static,
    ) -> Vec<T> {
        let (sender, mut received) = mpsc::channel(self.count().max(1));
        let command = || {
            let (inspect, sender) = (inspect.clone(), sender.clone());
            // Every worker has a place in the channel, so none is refused.
            WorkerCommand::Inspect(Box::new(move |worker| drop(sender.try_send(inspect(worker)))))
        };
        let _ = tokio::time::timeout(INSPECT_TIMEOUT, self.send_to_all(command)).await;
        std::iter::from_fn(|| received.try_recv().ok()).collect()
    }

    /// Makes all workers finish their open connections and end.
    pub(super) fn begin_drain(&self) {
        if let Some(drain) = &*self.drain.borrow() {
            let _ = drain.send(true);
        }
    }

    /// Makes all workers end at once.
    pub(super) fn end_now(&self) {
        self.drain.take();
    }
}
