//! Accepting: one loop for each listening socket of a worker. Nothing that goes wrong here ends it.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::net::{TcpListener, UnixListener};

use super::connection;
use super::crew::{Crew, Place, Ticket};
use super::door::Door;
use crate::socket::Socket;
use crate::worker::Home;

/// How long to leave the backlog alone when the process is out of descriptors or memory.
const BACK_OFF: Duration = Duration::from_millis(100);
/// How often to look for a free place when `max_connections` are open.
const FULL_PAUSE: Duration = Duration::from_millis(10);

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
}

/// Accepts until the task is aborted.
pub async fn accept(listener: Listener, door: Arc<ArcSwap<Door>>, home: Rc<Home>, crew: Arc<Crew>) {
    loop {
        match listener.accept().await {
            Ok(socket) => {
                home.worker().gateway.metrics.accepted(home.id);
                let place = place_for(&crew, home.id).await;
                connection::receive(&home, &crew, socket, Ticket { place, door: door.load_full() });
            }
            Err(error) if is_about_one_client(&error) => {}
            Err(error) => {
                home.worker().gateway.metrics.accept_failed(home.id);
                tracing::warn!(%error, "cannot accept; trying again shortly");
                tokio::time::sleep(BACK_OFF).await;
            }
        }
    }
}

/// Above `max_connections` this one waits unserved, and those behind it in the kernel's backlog.
async fn place_for(crew: &Arc<Crew>, worker: usize) -> Place {
    loop {
        if let Some(place) = crew.reserve(worker) {
            return place;
        }
        tokio::time::sleep(FULL_PAUSE).await;
    }
}

/// A client that left before it was accepted is no reason to pause.
fn is_about_one_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}
