//! A worker's own connections to upstream servers: taken last in, first out, and never shared with another worker.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use super::server::{InFlight, Server};
use super::socket::ServerSocket;
use crate::body::RequestBody;
use crate::deadline::Ticks;

/// Bytes that are read from a server ahead of a client who takes them slowly, or not at all; the longest head of an
/// answer, too.
const BUFFER_MAX: usize = 64 * 1024;

/// The idle connections of one worker.
pub struct Pools {
    ticks: Rc<Ticks>,
    /// By [`Server::index`].
    idle: RefCell<Vec<Vec<Idle>>>,
}

struct Idle {
    sender: SendRequest<RequestBody>,
    served: u32,
    since: u64,
    span: u64,
}

/// Why no connection to a server came about.
#[derive(Debug)]
pub enum ConnectFault {
    /// `max_connections` are busy.
    Full,
    TimedOut,
    /// The name has no address.
    Unresolved(io::Error),
    Failed(io::Error),
}

impl fmt::Display for ConnectFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectFault::Full => f.write_str("max_connections are busy"),
            ConnectFault::TimedOut => f.write_str("the connect timed out"),
            ConnectFault::Unresolved(error) => write!(f, "the name could not be resolved: {error}"),
            ConnectFault::Failed(error) => write!(f, "the connect failed: {error}"),
        }
    }
}

/// What became of a request that was handed to a connection.
pub enum Sent {
    Answered(Response<Incoming>),
    /// The connection was dead: nothing was sent, the request is back in its place.
    Unsent,
    Failed(hyper::Error),
}

/// One connection for one exchange. Dropped without [`Lease::finish`], it closes the connection.
pub struct Lease {
    sender: SendRequest<RequestBody>,
    in_flight: InFlight,
    pools: Rc<Pools>,
    /// Exchanges the connection has completed.
    served: u32,
    /// It stood unused so long that its server may be closing it just now.
    rested: bool,
}

impl Pools {
    pub fn new(ticks: Rc<Ticks>, servers: usize) -> Pools {
        Pools { ticks, idle: RefCell::new((0..servers).map(|_| Vec::new()).collect()) }
    }

    /// A connection to `server`: an idle one if there is one, else a new one.
    ///
    /// # Errors
    /// When the server is full, cannot be resolved or reached, or does not answer within its connect timeout.
    pub async fn lease(self: &Rc<Self>, server: &Arc<Server>) -> Result<Lease, ConnectFault> {
        let in_flight = server.enter().ok_or(ConnectFault::Full)?;
        if let Some(Idle { sender, served, since, .. }) = self.take_idle(server) {
            let rested = self.ticks.now() > since + 1;
            return Ok(Lease { sender, in_flight, pools: self.clone(), served, rested });
        }
        self.lease_fresh_for(in_flight).await
    }

    /// A fresh connection of HTTP/1, for a request after which it may speak something else.
    ///
    /// # Errors
    /// As [`Pools::lease`].
    pub async fn lease_alone(self: &Rc<Self>, server: &Arc<Server>) -> Result<Lease, ConnectFault> {
        // On its own, so that the future of every request does not grow by it.
        Box::pin(self.lease_fresh(server)).await
    }

    /// As [`Pools::lease`], but never an idle connection.
    ///
    /// # Errors
    /// As [`Pools::lease`].
    pub async fn lease_fresh(self: &Rc<Self>, server: &Arc<Server>) -> Result<Lease, ConnectFault> {
        let in_flight = server.enter().ok_or(ConnectFault::Full)?;
        self.lease_fresh_for(in_flight).await
    }

    async fn lease_fresh_for(self: &Rc<Self>, in_flight: InFlight) -> Result<Lease, ConnectFault> {
        let server = in_flight.server();
        let sender = tokio::time::timeout(server.connect_timeout, Self::connect(server))
            .await
            .map_err(|_elapsed| ConnectFault::TimedOut)??;
        Ok(Lease { sender, in_flight, pools: self.clone(), served: 0, rested: false })
    }

    fn take_idle(&self, server: &Server) -> Option<Idle> {
        let mut idle = self.idle.borrow_mut();
        let stack = idle.get_mut(server.index)?;
        while let Some(idle) = stack.pop() {
            if idle.sender.is_ready() {
                return Some(idle);
            }
        }
        None
    }

    async fn connect(server: &Arc<Server>) -> Result<SendRequest<RequestBody>, ConnectFault> {
        let addresses = server.addresses().await.map_err(ConnectFault::Unresolved)?;
        let mut fault = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => {
                    let (sender, connection) = handshake(stream).await.map_err(ConnectFault::Failed)?;
                    tokio::task::spawn_local(async move {
                        if let Err(error) = connection.with_upgrades().await {
                            tracing::debug!(%error, "an upstream connection ended");
                        }
                    });
                    return Ok(sender);
                }
                Err(error) => fault = error,
            }
        }
        Err(ConnectFault::Failed(fault))
    }

    fn put_back(&self, server: &Server, sender: SendRequest<RequestBody>, served: u32) {
        if let Some(stack) = self.idle.borrow_mut().get_mut(server.index)
            && stack.len() < server.keepalive
        {
            stack.push(Idle { sender, served, since: self.ticks.now(), span: server.idle_span });
        }
    }

    /// Closes connections that stood unused for too long, and forgets those the server closed.
    pub fn sweep(&self) {
        let now = self.ticks.now();
        for stack in self.idle.borrow_mut().iter_mut() {
            stack.retain(|idle| !idle.sender.is_closed() && now.saturating_sub(idle.since) <= idle.span);
        }
    }
}

async fn handshake(
    stream: TcpStream,
) -> io::Result<(SendRequest<RequestBody>, http1::Connection<TokioIo<ServerSocket>, RequestBody>)> {
    stream.set_nodelay(true)?;
    // One write of a copied head and body beats gathering for the small bodies that most requests have.
    http1::Builder::new()
        .writev(false)
        .max_buf_size(BUFFER_MAX)
        .handshake(TokioIo::new(ServerSocket::new(stream)))
        .await
        .map_err(io::Error::other)
}

impl Lease {
    pub fn server(&self) -> &Arc<Server> {
        self.in_flight.server()
    }

    /// Whether the server may close the connection while the request is on its way.
    ///
    /// Servers close after an idle time, or after a first answer they did not mean to follow up; one that ends a
    /// busy connection says so in its answer.
    pub fn may_be_closing(&self) -> bool {
        self.rested || self.served == 1
    }

    /// Sends what stands in `request` and waits for the head of the answer.
    pub async fn send(&mut self, request: &mut Option<Request<RequestBody>>) -> Sent {
        let Some(outgoing) = request.take() else { return Sent::Unsent };
        match self.sender.try_send_request(outgoing).await {
            Ok(response) => Sent::Answered(response),
            Err(mut fault) => {
                *request = fault.take_message();
                if request.is_some() { Sent::Unsent } else { Sent::Failed(fault.into_error()) }
            }
        }
    }

    /// The exchange is complete: the connection may serve another one.
    pub fn finish(self) {
        let Lease { mut sender, in_flight, pools, served, rested: _ } = self;
        let served = served.saturating_add(1);
        if sender.is_ready() {
            pools.put_back(in_flight.server(), sender, served);
        } else if !sender.is_closed() {
            // An answer can be complete before its request is: only hyper knows when the connection is free.
            tokio::task::spawn_local(async move {
                let ready = tokio::time::timeout(super::REUSE_PATIENCE, sender.ready());
                if matches!(ready.await, Ok(Ok(()))) {
                    pools.put_back(in_flight.server(), sender, served);
                }
            });
        }
    }
}
