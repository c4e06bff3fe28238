//! Accepting: one loop for each listening socket of a worker. Nothing that goes wrong here ends it.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::oneshot;

use super::connection;
use super::connection_limits::{AcceptContext, ConnectionLimits, ConnectionPermit};
use super::listener_protocol::ListenerProtocol;
use crate::net::socket::Socket;
use crate::proxy::worker::WorkerThread;

/// How long to leave the backlog alone when the process is out of descriptors or memory.
const BACK_OFF: Duration = Duration::from_millis(100);
/// How often to look for a free place when `max_connections` are open.
const PERMIT_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// How many connections are taken out of a queue that ends; more than it can hold would be a flood.
const QUEUE_MAX: usize = 4096;

/// How accepting from a socket ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptEnd {
    /// Nobody else has the socket: who stands in its queue is let in, then it is closed.
    DrainQueue,
    /// Another process accepts from the same socket.
    LeaveQueue,
}

/// A listening socket of either kind.
pub enum WorkerListener {
    Tcp(TcpListener),
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

    /// Those who stand in the queue, each asked of the kernel itself; ends with the queue.
    fn into_queue(self) -> io::Result<impl Iterator<Item = io::Result<Socket>>> {
        enum StdListener {
            Tcp(std::net::TcpListener),
            Unix(std::os::unix::net::UnixListener),
        }
        let bare = match self {
            WorkerListener::Tcp(listener) => StdListener::Tcp(listener.into_std()?),
            WorkerListener::Unix(listener) => StdListener::Unix(listener.into_std()?),
        };
        let next = move || match &bare {
            StdListener::Tcp(listener) => listener.accept().and_then(|(stream, peer)| {
                stream.set_nonblocking(true)?;
                Ok(Socket::Tcp(TcpStream::from_std(stream)?, peer.ip().to_canonical()))
            }),
            StdListener::Unix(listener) => listener.accept().and_then(|(stream, _)| {
                stream.set_nonblocking(true)?;
                Ok(Socket::Unix(UnixStream::from_std(stream)?))
            }),
        };
        let is_empty = |met: &io::Result<Socket>| {
            met.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
        };
        Ok(std::iter::repeat_with(next).take_while(move |met| !is_empty(met)).take(QUEUE_MAX))
    }
}

/// Accepts until `end` says how to end; to say nothing is to have the queue let in.
pub async fn accept_connections(
    listener: WorkerListener,
    door: Arc<ArcSwap<ListenerProtocol>>,
    home: Rc<WorkerThread>,
    crew: Arc<ConnectionLimits>,
    mut end: oneshot::Receiver<AcceptEnd>,
) {
    let receive = |socket, place| {
        connection::dispatch_connection(
            &home,
            &crew,
            socket,
            AcceptContext { permit: place, protocol: door.load_full() },
        );
    };
    let ending = loop {
        let accepted = tokio::select! {
            biased;
            ending = &mut end => break ending,
            accepted = listener.accept_socket() => accepted,
        };
        match count_accepted(accepted, &home) {
            Ok(Some(socket)) => tokio::select! {
                biased;
                place = wait_for_permit(&crew, home.id) => receive(socket, place),
                ending = &mut end => {
                    receive(socket, crew.acquire_forced(home.id));
                    break ending;
                }
            },
            Ok(None) => {}
            Err(error) => {
                let worker = home.current_worker();
                worker.gateway.metrics.count_accept_fault(home.id);
                tracing::warn!(%error, "cannot accept; trying again shortly");
                // A client is worth more than the next connect to a server.
                worker.pools.close_idle();
                tokio::time::sleep(BACK_OFF).await;
            }
        }
    };
    if ending == Ok(AcceptEnd::LeaveQueue) {
        return;
    }
    match listener.into_queue() {
        Ok(queue) => {
            for accepted in queue {
                match count_accepted(accepted, &home) {
                    Ok(Some(socket)) => receive(socket, crew.acquire_forced(home.id)),
                    Ok(None) => {}
                    Err(error) => return tracing::warn!(%error, "cannot accept what was left in a queue"),
                }
            }
        }
        Err(error) => tracing::warn!(%error, "cannot see who is left in a queue"),
    }
}

/// A connection that was accepted; `None` when its client has left already.
///
/// # Errors
/// What was wrong with accepting, other than the client.
fn count_accepted(accepted: io::Result<Socket>, home: &WorkerThread) -> io::Result<Option<Socket>> {
    match accepted {
        Err(error) if is_about_one_client(&error) => Ok(None),
        accepted => {
            let socket = accepted?;
            home.current_worker().gateway.metrics.count_accepted(home.id);
            Ok(Some(socket))
        }
    }
}

/// Above `max_connections` this one waits unserved, and those behind it in the kernel's backlog.
async fn wait_for_permit(crew: &Arc<ConnectionLimits>, worker: usize) -> ConnectionPermit {
    if let Some(place) = crew.try_acquire(worker) {
        return place;
    }
    let _wanting = crew.register_waiter();
    loop {
        tokio::time::sleep(PERMIT_POLL_INTERVAL).await;
        if let Some(place) = crew.try_acquire(worker) {
            return place;
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
