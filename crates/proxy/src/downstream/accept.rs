//! Accepts connections: one loop per listening socket of a worker. No error ends a loop.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::oneshot;

use super::connection;
use super::connection_limits::{AcceptContext, ConnectionLimits, ConnectionPermit};
use super::listener_protocol::ListenerProtocol;
use crate::gateway::worker::WorkerThread;
use sluicegate_http::net::socket::Socket;

/// Pause after a failed accept, which means that the process is out of descriptors or memory.
const BACK_OFF: Duration = Duration::from_millis(100);
/// Interval between attempts to get a permit while `max_connections` are open.
const PERMIT_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Connections taken from the queue of a closing socket; more than a queue can hold would be a flood.
const QUEUE_MAX: usize = 4096;

/// The way in which a loop leaves its socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptEnd {
    /// No other process has the socket: accept the connections in its queue, then close it.
    DrainQueue,
    /// Another process accepts from the same socket: leave the queue to it.
    LeaveQueue,
}

/// A listening TCP or unix socket.
pub enum WorkerListener {
    /// A socket on a TCP address.
    Tcp(TcpListener),
    /// A unix socket, which all workers accept from.
    Unix(UnixListener),
}

impl WorkerListener {
    async fn accept_socket(&self) -> io::Result<Socket> {
        match self {
            WorkerListener::Tcp(listener) => {
                listener.accept().await.map(|(stream, peer)| Socket::Tcp(stream, peer.ip().to_canonical()))
            }
            WorkerListener::Unix(listener) => listener.accept().await.map(|(stream, _)| Socket::Unix(stream)),
        }
    }

    /// The connections in the queue, by non-blocking calls to the kernel; ends when the queue is empty.
    fn into_queue(self) -> io::Result<impl Iterator<Item = io::Result<Socket>>> {
        let listener: socket2::Socket = match self {
            WorkerListener::Tcp(listener) => listener.into_std()?.into(),
            WorkerListener::Unix(listener) => listener.into_std()?.into(),
        };
        let next = move || {
            let (stream, peer) = listener.accept()?;
            stream.set_nonblocking(true)?;
            Socket::from_std((stream, peer.as_socket().map(|peer| peer.ip().to_canonical())))
        };
        let is_empty = |accepted: &io::Result<Socket>| {
            accepted.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        Ok(std::iter::repeat_with(next).take_while(move |accepted| !is_empty(accepted)).take(QUEUE_MAX))
    }
}

/// Accepts until `end` resolves. A dropped sender counts as [`AcceptEnd::DrainQueue`].
pub async fn accept_connections(
    listener: WorkerListener,
    protocol: Arc<ArcSwap<ListenerProtocol>>,
    thread: Rc<WorkerThread>,
    limits: Arc<ConnectionLimits>,
    mut end: oneshot::Receiver<AcceptEnd>,
) {
    let receive = |socket, permit| {
        let context = AcceptContext { permit, protocol: protocol.load_full() };
        connection::dispatch_connection(&thread, &limits, socket, context);
    };
    let how = loop {
        let accepted = tokio::select! {
            biased;
            how = &mut end => break how,
            accepted = listener.accept_socket() => accepted,
        };
        match count_accepted(accepted, &thread) {
            Ok(Some(socket)) => tokio::select! {
                biased;
                permit = wait_for_permit(&limits, thread.id) => receive(socket, permit),
                how = &mut end => {
                    receive(socket, limits.acquire_forced(thread.id));
                    break how;
                }
            },
            Ok(None) => {}
            Err(error) => {
                let worker = thread.current_worker();
                worker.gateway.metrics.count_accept_fault(thread.id);
                tracing::warn!(%error, "cannot accept; trying again shortly");
                // A client is worth more than an idle connection to a server: this frees descriptors.
                worker.pools.close_idle();
                tokio::time::sleep(BACK_OFF).await;
            }
        }
    };
    if how == Ok(AcceptEnd::LeaveQueue) {
        return;
    }
    match listener.into_queue() {
        Ok(queue) => {
            for accepted in queue {
                match count_accepted(accepted, &thread) {
                    Ok(Some(socket)) => receive(socket, limits.acquire_forced(thread.id)),
                    Ok(None) => {}
                    Err(error) => {
                        return tracing::warn!(%error, "cannot accept the rest of a closing listener's queue");
                    }
                }
            }
        }
        Err(error) => tracing::warn!(%error, "cannot read the queue of a closing listener"),
    }
}

/// Counts an accepted connection; `None` when its client has left already.
///
/// # Errors
/// The accept failed for a reason other than its client.
fn count_accepted(accepted: io::Result<Socket>, thread: &WorkerThread) -> io::Result<Option<Socket>> {
    match accepted {
        Err(error) if is_about_one_client(&error) => Ok(None),
        accepted => {
            let socket = accepted?;
            thread.current_worker().gateway.metrics.count_accepted(thread.id);
            Ok(Some(socket))
        }
    }
}

/// Above `max_connections` this connection waits unserved, and those behind it wait in the kernel's backlog.
async fn wait_for_permit(limits: &Arc<ConnectionLimits>, worker: usize) -> ConnectionPermit {
    if let Some(permit) = limits.try_acquire(worker) {
        return permit;
    }
    let _waiter = limits.register_waiter();
    loop {
        tokio::time::sleep(PERMIT_POLL_INTERVAL).await;
        if let Some(permit) = limits.try_acquire(worker) {
            return permit;
        }
    }
}

/// True for an error of one connection only: a client that left before the accept is no reason to pause.
fn is_about_one_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}
