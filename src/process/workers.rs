//! All worker threads, as the control thread talks to them.

use std::cell::RefCell;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::ProcessFault;
use super::worker_thread::{self, CommandDone, WorkerCommand, WorkerStart};
use crate::downstream::connection_limits::{ConnectionLimits, WorkerInbox};
use crate::proxy::gateway::Gateway;

pub struct Workers {
    commands: Vec<mpsc::UnboundedSender<(WorkerCommand, CommandDone)>>,
    /// `None` = they shall end at once.
    drain: RefCell<Option<watch::Sender<bool>>>,
}

/// Tells nothing, and is closed when every worker has ended.
pub type WorkersEnded = mpsc::UnboundedReceiver<()>;

impl Workers {
    /// Starts one thread per inbox. They accept from nobody yet.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start_threads(
        gateway: &Arc<Gateway>,
        crew: &Arc<ConnectionLimits>,
        inboxes: Vec<WorkerInbox>,
    ) -> Result<(Workers, WorkersEnded), ProcessFault> {
        let (drain, draining) = watch::channel(false);
        let (end, ended) = mpsc::unbounded_channel();
        let mut workers =
            Workers { commands: Vec::with_capacity(inboxes.len()), drain: RefCell::new(Some(drain)) };
        for (id, inbox) in inboxes.into_iter().enumerate() {
            let (sender, orders) = mpsc::unbounded_channel();
            workers.commands.push(sender);
            let (gateway, crew, drain) = (gateway.clone(), crew.clone(), draining.clone());
            let (duty, end) = (
                WorkerStart { id, gateway, connection_limits: crew, inbox, commands: orders, drain },
                end.clone(),
            );
            std::thread::Builder::new()
                .name(format!("worker-{id}"))
                .spawn(move || {
                    if let Err(error) = worker_thread::run_worker(duty) {
                        tracing::error!(%error, "a worker could not start");
                    }
                    drop(end);
                })
                .map_err(|error| ProcessFault::Run(format!("cannot start a worker: {error}")))?;
        }
        Ok((workers, ended))
    }

    pub fn count(&self) -> usize {
        self.commands.len()
    }

    /// Gives each order to the worker of its number, and waits until all are carried out.
    pub async fn send_commands(&self, orders: impl IntoIterator<Item = (usize, WorkerCommand)>) {
        let (done, mut all_done) = mpsc::channel(1);
        for (worker, order) in orders {
            if let Some(orders) = self.commands.get(worker) {
                // A worker that has ended carries out nothing more.
                let _ = orders.send((order, done.clone()));
            }
        }
        drop(done);
        let _ = all_done.recv().await;
    }

    /// As [`Workers::tell`], the same order to everybody.
    pub async fn send_to_all(&self, order: impl Fn() -> WorkerCommand) {
        self.send_commands((0..self.count()).map(|worker| (worker, order()))).await;
    }

    /// Has them finish what they have, and end.
    pub fn begin_drain(&self) {
        if let Some(drain) = &*self.drain.borrow() {
            let _ = drain.send(true);
        }
    }

    /// Has them end at once.
    pub fn end_now(&self) {
        self.drain.take();
    }
}
