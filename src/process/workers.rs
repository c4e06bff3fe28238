//! All worker threads, as the control thread talks to them.

use std::cell::RefCell;
use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::Fault;
use super::worker_thread::{self, Done, Duty, Order};
use crate::downstream::connection_limits::{Crew, Inbox};
use crate::proxy::gateway::Gateway;

pub struct Workers {
    orders: Vec<mpsc::UnboundedSender<(Order, Done)>>,
    /// `None` = they shall end at once.
    drain: RefCell<Option<watch::Sender<bool>>>,
}

/// Tells nothing, and is closed when every worker has ended.
pub type Ended = mpsc::UnboundedReceiver<()>;

impl Workers {
    /// Starts one thread per inbox. They accept from nobody yet.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(
        gateway: &Arc<Gateway>,
        crew: &Arc<Crew>,
        inboxes: Vec<Inbox>,
    ) -> Result<(Workers, Ended), Fault> {
        let (drain, draining) = watch::channel(false);
        let (end, ended) = mpsc::unbounded_channel();
        let mut workers =
            Workers { orders: Vec::with_capacity(inboxes.len()), drain: RefCell::new(Some(drain)) };
        for (id, inbox) in inboxes.into_iter().enumerate() {
            let (sender, orders) = mpsc::unbounded_channel();
            workers.orders.push(sender);
            let (gateway, crew, drain) = (gateway.clone(), crew.clone(), draining.clone());
            let (duty, end) = (Duty { id, gateway, crew, inbox, orders, drain }, end.clone());
            std::thread::Builder::new()
                .name(format!("worker-{id}"))
                .spawn(move || {
                    if let Err(error) = worker_thread::work(duty) {
                        tracing::error!(%error, "a worker could not start");
                    }
                    drop(end);
                })
                .map_err(|error| Fault::Run(format!("cannot start a worker: {error}")))?;
        }
        Ok((workers, ended))
    }

    pub fn count(&self) -> usize {
        self.orders.len()
    }

    /// Gives each order to the worker of its number, and waits until all are carried out.
    pub async fn tell(&self, orders: impl IntoIterator<Item = (usize, Order)>) {
        let (done, mut all_done) = mpsc::channel(1);
        for (worker, order) in orders {
            if let Some(orders) = self.orders.get(worker) {
                // A worker that has ended carries out nothing more.
                let _ = orders.send((order, done.clone()));
            }
        }
        drop(done);
        let _ = all_done.recv().await;
    }

    /// As [`Workers::tell`], the same order to everybody.
    pub async fn tell_all(&self, order: impl Fn() -> Order) {
        self.tell((0..self.count()).map(|worker| (worker, order()))).await;
    }

    /// Has them finish what they have, and end.
    pub fn drain(&self) {
        if let Some(drain) = &*self.drain.borrow() {
            let _ = drain.send(true);
        }
    }

    /// Has them end at once.
    pub fn end(&self) {
        self.drain.take();
    }
}
