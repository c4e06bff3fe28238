//! Accepting: one loop for each listening socket of a worker. Nothing that goes wrong here ends it.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixListener;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::unix::AsyncFd;

use super::connection;
use super::crew::{Arrival, Crew};
use crate::worker::Worker;

/// How long to leave the backlog alone when the process is out of descriptors or memory.
const BACK_OFF: Duration = Duration::from_millis(100);
/// How often to look for a free place when `max_connections` are open.
const FULL_PAUSE: Duration = Duration::from_millis(10);

/// A listening socket of either kind, non-blocking.
pub trait Listener: AsFd + AsRawFd {
    /// # Errors
    /// The kernel's.
    fn accept_one(&self) -> io::Result<Arrival>;
}

impl Listener for TcpListener {
    fn accept_one(&self) -> io::Result<Arrival> {
        self.accept().map(|(stream, _)| Arrival::Tcp(stream))
    }
}

impl Listener for UnixListener {
    fn accept_one(&self) -> io::Result<Arrival> {
        self.accept().map(|(stream, _)| Arrival::Unix(stream))
    }
}

/// Accepts until the task is aborted.
pub async fn accept<L: Listener>(listener: L, worker: Rc<Worker>, crew: Arc<Crew>) {
    let listener = match AsyncFd::register(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "cannot watch a listening socket");
            return;
        }
    };
    loop {
        let Ok(mut ready) = listener.readable().await else {
            tokio::time::sleep(BACK_OFF).await;
            continue;
        };
        // Above max_connections the newcomers wait in the kernel's backlog.
        let Some(place) = crew.reserve(worker.id) else {
            tokio::time::sleep(FULL_PAUSE).await;
            continue;
        };
        match ready.try_io(|listener| listener.get_ref().accept_one()) {
            Ok(Ok(arrival)) => {
                worker.gateway.metrics.accepted(worker.id);
                if let Some((arrival, place)) = connection::admit(&worker, arrival, place)
                    && let Some((arrival, place)) = crew.hand_over(arrival, place)
                {
                    connection::start(&worker, arrival, place);
                }
            }
            Ok(Err(error)) => {
                drop(place);
                if is_about_one_client(&error) {
                    continue;
                }
                worker.gateway.metrics.accept_failed(worker.id);
                tracing::warn!(%error, "cannot accept; trying again shortly");
                tokio::time::sleep(BACK_OFF).await;
            }
            Err(_would_block) => {}
        }
    }
}

/// A client that left before it was accepted is no reason to pause.
fn is_about_one_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}
