//! A worker's own connections to upstream servers, never shared with another worker. One of HTTP/1 serves one
//! request at a time and is taken last in, first out; one of HTTP/2 is shared.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;

use super::connect::{ConnectFault, Opened, open};
use super::server::{InFlight, Server, Speech};
use super::streams::{Streams, Taken, Way};
use crate::body::RequestBody;
use crate::deadline::Ticks;

/// The connections of one worker.
pub struct Pools {
    ticks: Rc<Ticks>,
    /// Idle ones of HTTP/1, by [`Server::index`].
    idle: RefCell<Vec<Stack>>,
    /// Those of servers that may speak HTTP/2, by [`Server::index`].
    shared: RefCell<Vec<Option<Shared>>>,
}

/// The idle connections to one server.
#[derive(Default)]
struct Stack {
    /// Known since the first connection came.
    server: Option<Arc<Server>>,
    /// [`Server::lost_addresses`] when the connections were looked through last.
    lost_addresses: u32,
    idle: Vec<Idle>,
}

struct Idle {
    sender: SendRequest<RequestBody>,
    served: u16,
    address: u32,
    since: u64,
    span: u64,
}

struct Shared {
    server: Arc<Server>,
    streams: Rc<Streams>,
    /// As [`Stack::lost_addresses`].
    lost_addresses: u32,
    /// Ticks.
    span: u64,
}

/// What became of a request that was handed to a connection.
pub enum Sent {
    Answered(Response<Incoming>),
    /// The connection was dead: nothing was sent, the request is back in its place.
    Unsent,
    Failed(hyper::Error),
}

/// A place on a connection, for one exchange. Dropped without [`Lease::finish`], it closes a connection of HTTP/1 and
/// leaves one of HTTP/2 to the others.
pub struct Lease {
    way: Way,
    in_flight: InFlight,
    pools: Rc<Pools>,
    served: u16,
    address: u32,
    rested: bool,
}

impl Pools {
    pub fn new(ticks: Rc<Ticks>, servers: usize) -> Pools {
        let idle = RefCell::new((0..servers).map(|_| Stack::default()).collect());
        Pools { ticks, idle, shared: RefCell::new((0..servers).map(|_| None).collect()) }
    }

    /// Those of the same worker for other `servers`: connections to servers that stay are taken over, and shared ones
    /// are shared with requests that still end here.
    pub fn after(before: &Pools, servers: &[Arc<Server>]) -> Pools {
        let next = Pools::new(before.ticks.clone(), servers.len());
        let by_id: HashMap<u64, &Arc<Server>> = servers.iter().map(|server| (server.id(), server)).collect();
        for stack in before.idle.borrow_mut().iter_mut() {
            let stays = stack.server.as_ref().and_then(|server| by_id.get(&server.id()));
            let Some(&server) = stays else { continue };
            let idle = std::mem::take(&mut stack.idle);
            let (lost_addresses, known) = (stack.lost_addresses, Some(server.clone()));
            next.idle.borrow_mut()[server.index] = Stack { server: known, lost_addresses, idle };
        }
        for shared in before.shared.borrow().iter().flatten() {
            let Some(&server) = by_id.get(&shared.server.id()) else { continue };
            let (streams, lost_addresses) = (shared.streams.clone(), shared.lost_addresses);
            let shared = Shared { server: server.clone(), streams, lost_addresses, span: span_of(server) };
            next.shared.borrow_mut()[server.index] = Some(shared);
        }
        next
    }

    /// A connection to `server`: an idle or shared one if there is one, else a new one.
    ///
    /// # Errors
    /// When the server is full, cannot be resolved or reached, or does not answer within its connect timeout.
    pub async fn lease(self: &Rc<Self>, server: &Arc<Server>) -> Result<Lease, ConnectFault> {
        let in_flight = server.enter().ok_or(ConnectFault::Full)?;
        if server.speech != Speech::Http2
            && let Some(taken) = self.take_idle(server)
        {
            return Ok(self.let_out(taken, in_flight));
        }
        self.lease_otherwise(in_flight).await
    }

    /// A fresh connection of HTTP/1, for a request after which it may speak something else.
    ///
    /// # Errors
    /// As [`Pools::lease`]; and where the server takes nothing but HTTP/2.
    pub async fn lease_alone(self: &Rc<Self>, server: &Arc<Server>) -> Result<Lease, ConnectFault> {
        let in_flight = server.enter().ok_or(ConnectFault::Full)?;
        match Box::pin(open(server, Speech::Http1)).await? {
            Opened::Http1(sender, address) => Ok(self.let_out(Taken::fresh(sender, address), in_flight)),
            Opened::Http2(_) => Err(ConnectFault::Full),
        }
    }

    /// As [`Pools::lease`], but never an idle connection of HTTP/1. One of HTTP/2 that turned out to be dead is known
    /// as such.
    ///
    /// # Errors
    /// As [`Pools::lease`].
    pub async fn lease_fresh(self: &Rc<Self>, server: &Arc<Server>) -> Result<Lease, ConnectFault> {
        let in_flight = server.enter().ok_or(ConnectFault::Full)?;
        if server.speech == Speech::Negotiated {
            self.forget_idle(server);
        }
        self.lease_otherwise(in_flight).await
    }

    async fn lease_otherwise(self: &Rc<Self>, in_flight: InFlight) -> Result<Lease, ConnectFault> {
        let server = in_flight.server();
        let taken = match server.speech {
            // Connecting is rare, and would make the future of every request large.
            Speech::Http1 => match Box::pin(open(server, Speech::Http1)).await? {
                Opened::Http1(sender, address) => Taken::fresh(sender, address),
                Opened::Http2(_) => return Err(ConnectFault::Full),
            },
            Speech::Http2 | Speech::Negotiated => {
                let streams = self.streams(server);
                match streams.take() {
                    Some(taken) => taken,
                    None => Box::pin(self.wait(&streams, server)).await?,
                }
            }
        };
        Ok(self.let_out(taken, in_flight))
    }

    fn let_out(self: &Rc<Self>, taken: Taken, in_flight: InFlight) -> Lease {
        let Taken { way, served, address, rested } = taken;
        Lease { way, in_flight, pools: self.clone(), served, address, rested }
    }

    async fn wait(
        self: &Rc<Self>,
        streams: &Rc<Streams>,
        server: &Arc<Server>,
    ) -> Result<Taken, ConnectFault> {
        match tokio::time::timeout(server.connect_timeout, streams.wait(self, server)).await {
            Ok(taken) => taken,
            Err(_elapsed) if streams.is_any_open() => Err(ConnectFault::Full),
            Err(_elapsed) => Err(ConnectFault::TimedOut),
        }
    }

    fn streams(&self, server: &Arc<Server>) -> Rc<Streams> {
        let mut shared = self.shared.borrow_mut();
        let streams = || Streams::new(self.ticks.clone());
        let Some(place) = shared.get_mut(server.index) else { return streams() };
        let shared = || {
            let lost_addresses = server.lost_addresses();
            Shared { server: server.clone(), streams: streams(), lost_addresses, span: span_of(server) }
        };
        place.get_or_insert_with(shared).streams.clone()
    }

    pub(super) fn take_idle(&self, server: &Server) -> Option<Taken> {
        let mut idle = self.idle.borrow_mut();
        let stack = idle.get_mut(server.index)?;
        while let Some(Idle { sender, served, address, since, .. }) = stack.idle.pop() {
            if sender.is_ready() {
                let rested = self.ticks.now() > since + 1;
                return Some(Taken { way: Way::Alone(sender), served, address, rested });
            }
        }
        None
    }

    fn forget_idle(&self, server: &Server) {
        if let Some(stack) = self.idle.borrow_mut().get_mut(server.index) {
            stack.idle.clear();
        }
    }

    fn put_back(&self, server: &Arc<Server>, sender: SendRequest<RequestBody>, served: u16, address: u32) {
        if let Some(stack) = self.idle.borrow_mut().get_mut(server.index)
            && stack.idle.len() < server.keepalive
            && (server.lost_addresses() == 0 || server.has_address(address))
        {
            stack.server.get_or_insert_with(|| server.clone());
            let (since, span) = (self.ticks.now(), server.idle_span);
            stack.idle.push(Idle { sender, served, address, since, span });
        }
    }

    /// Closes connections that stood unused for too long or lead to an address that the server's name no longer has,
    /// and forgets those the server closed.
    pub fn sweep(&self) {
        let now = self.ticks.now();
        for Stack { server, lost_addresses, idle } in self.idle.borrow_mut().iter_mut() {
            idle.retain(|idle| !idle.sender.is_closed() && now.saturating_sub(idle.since) <= idle.span);
            if let Some(server) = server
                && lost_one(server, lost_addresses)
            {
                idle.retain(|idle| server.has_address(idle.address));
            }
        }
        for shared in self.shared.borrow_mut().iter_mut().flatten() {
            if lost_one(&shared.server, &mut shared.lost_addresses) {
                shared.streams.leave(|address| !shared.server.has_address(address));
            }
            shared.streams.sweep(shared.span);
        }
    }
}

/// Ticks that a shared connection may stand unused.
fn span_of(server: &Server) -> u64 {
    if server.keepalive == 0 { 0 } else { server.idle_span }
}

/// Whether the server's name lost an address since the last look.
fn lost_one(server: &Server, seen: &mut u32) -> bool {
    let lost = server.lost_addresses();
    std::mem::replace(seen, lost) != lost
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
        let sender = match &mut self.way {
            Way::Alone(sender) => sender,
            // Boxed, so that the future of a request of HTTP/1 has no room for it.
            Way::Shared(stream) => return Box::pin(stream.send(request)).await,
        };
        let Some(outgoing) = request.take() else { return Sent::Unsent };
        match sender.try_send_request(outgoing).await {
            Ok(response) => Sent::Answered(response),
            Err(mut fault) => {
                *request = fault.take_message();
                if request.is_some() { Sent::Unsent } else { Sent::Failed(fault.into_error()) }
            }
        }
    }

    /// The exchange is complete: the connection may serve another one.
    pub fn finish(self) {
        let Lease { way, in_flight, pools, served, address, rested: _ } = self;
        let Way::Alone(mut sender) = way else { return };
        let served = served.saturating_add(1);
        if sender.is_ready() {
            pools.put_back(in_flight.server(), sender, served, address);
        } else if !sender.is_closed() {
            // An answer can be complete before its request is: only hyper knows when the connection is free.
            tokio::task::spawn_local(async move {
                let ready = tokio::time::timeout(super::REUSE_PATIENCE, sender.ready());
                if matches!(ready.await, Ok(Ok(()))) {
                    pools.put_back(in_flight.server(), sender, served, address);
                }
            });
        }
    }
}
