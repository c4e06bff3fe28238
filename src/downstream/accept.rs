//! Accepting: one loop for each listening socket of a worker. Nothing that goes wrong here ends it.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::oneshot;

use super::connection;
use super::connection_limits::{Crew, Place, Ticket};
use super::listener_protocol::Door;
use crate::net::socket::Socket;
use crate::proxy::worker::Home;

/// How long to leave the backlog alone when the process is out of descriptors or memory.
const BACK_OFF: Duration = Duration::from_millis(100);
/// How often to look for a free place when `max_connections` are open.
const FULL_PAUSE: Duration = Duration::from_millis(10);
/// How many connections are taken out of a queue that ends; more than it can hold would be a flood.
const QUEUE_MAX: usize = 4096;

/// How accepting from a socket ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// Nobody else has the socket: who stands in its queue is let in, then it is closed.
    LetIn,
    /// Another process accepts from the same socket.
    Leave,
}

/// A listening socket of either kind.
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Listener::Tcp(listener) => {
                listener.accept().await.map(|(stream, peer)| Socket::Tcp(stream, peer.ip().to_canonical()))
            }
            Listener::Unix(listener) => listener.accept().await.map(|(stream, _)| Socket::Unix(stream)),
        }
    }

    /// Those who stand in the queue, each asked of the kernel itself; ends with the queue.
    fn into_queue(self) -> io::Result<impl Iterator<Item = io::Result<Socket>>> {
        enum Bare {
            Tcp(std::net::TcpListener),
            Unix(std::os::unix::net::UnixListener),
        }
        let bare = match self {
            Listener::Tcp(listener) => Bare::Tcp(listener.into_std()?),
            Listener::Unix(listener) => Bare::Unix(listener.into_std()?),
        };
        let next = move || match &bare {
            Bare::Tcp(listener) => listener.accept().and_then(|(stream, peer)| {
                stream.set_nonblocking(true)?;
                Ok(Socket::Tcp(TcpStream::from_std(stream)?, peer.ip().to_canonical()))
            }),
            Bare::Unix(listener) => listener.accept().and_then(|(stream, _)| {
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
pub async fn accept(
    listener: Listener,
    door: Arc<ArcSwap<Door>>,
    home: Rc<Home>,
    crew: Arc<Crew>,
    mut end: oneshot::Receiver<Ending>,
) {
    let receive = |socket, place| {
        connection::receive(&home, &crew, socket, Ticket { place, door: door.load_full() });
    };
    let ending = loop {
        let accepted = tokio::select! {
            biased;
            ending = &mut end => break ending,
            accepted = listener.accept() => accepted,
        };
        match known(accepted, &home) {
            Ok(Some(socket)) => tokio::select! {
                biased;
                place = place_for(&crew, home.id) => receive(socket, place),
                ending = &mut end => {
                    receive(socket, crew.reserve_beyond(home.id));
                    break ending;
                }
            },
            Ok(None) => {}
            Err(error) => {
                let worker = home.worker();
                worker.gateway.metrics.accept_failed(home.id);
                tracing::warn!(%error, "cannot accept; trying again shortly");
                // A client is worth more than the next connect to a server.
                worker.pools.close_idle();
                tokio::time::sleep(BACK_OFF).await;
            }
        }
    };
    if ending == Ok(Ending::Leave) {
        return;
    }
    match listener.into_queue() {
        Ok(queue) => {
            for accepted in queue {
                match known(accepted, &home) {
                    Ok(Some(socket)) => receive(socket, crew.reserve_beyond(home.id)),
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
fn known(accepted: io::Result<Socket>, home: &Home) -> io::Result<Option<Socket>> {
    match accepted {
        Err(error) if is_about_one_client(&error) => Ok(None),
        accepted => {
            let socket = accepted?;
            home.worker().gateway.metrics.accepted(home.id);
            Ok(Some(socket))
        }
    }
}

/// Above `max_connections` this one waits unserved, and those behind it in the kernel's backlog.
async fn place_for(crew: &Arc<Crew>, worker: usize) -> Place {
    if let Some(place) = crew.reserve(worker) {
        return place;
    }
    let _wanting = crew.want();
    loop {
        tokio::time::sleep(FULL_PAUSE).await;
        if let Some(place) = crew.reserve(worker) {
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
