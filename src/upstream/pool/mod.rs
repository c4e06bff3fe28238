//! A worker's own connections to upstream servers, never shared with another worker. One of HTTP/1 serves one
//! request at a time and is taken last in, first out; one of HTTP/2 is shared.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;

use super::connect::{ConnectFault, Opened, open};
use super::http1::{Http1, Uploading};
use super::http2::streams::{Streams, Taken, Way};
use super::response::{Answer, Sent};
use super::server::{InFlight, Server, Speech};
use super::server_socket::ServerSocket;
use crate::net::deadline::Ticks;
use crate::request::body::RequestBody;

/// The connections of one worker, for the requests of all its gateways: one that ends by a gateway before leaves its
/// connection to those of now.
pub struct Pools {
    ticks: Rc<Ticks>,
    /// By [`Server::index`] in the gateway of now.
    berths: RefCell<Vec<Berth>>,
}

/// The connections to one server.
struct Berth {
    server: Arc<Server>,
    /// [`Server::lost_addresses`] when the connections were looked through last.
    lost_addresses: u32,
    /// Those of HTTP/1 that nobody uses.
    idle: Vec<Idle>,
    /// Those of HTTP/2, once there was one.
    streams: Option<Rc<Streams>>,
}

struct Idle {
    connection: Rc<Http1>,
    address: u32,
    since: u64,
}

/// A place on a connection, for one exchange. Dropped without [`Lease::finish`], it closes a connection of HTTP/1 and
/// leaves one of HTTP/2 to the others.
pub struct Lease {
    way: Way,
    /// A request body that goes on while its answer comes.
    uploading: Option<Uploading>,
    in_flight: InFlight,
    pools: Rc<Pools>,
    address: u32,
    may_be_closing: bool,
}

impl Pools {
    pub fn new(ticks: Rc<Ticks>, servers: &[Arc<Server>]) -> Pools {
        Pools { ticks, berths: RefCell::new(servers.iter().map(Berth::new).collect()) }
    }

    /// Keeps connections for `servers` from now on: those to servers that stay go on, others are closed, as soon as the
    /// requests on them have ended.
    pub fn follow(&self, servers: &[Arc<Server>]) {
        let mut berths = self.berths.borrow_mut();
        let mut before: HashMap<u64, Berth> =
            berths.drain(..).map(|berth| (berth.server.id(), berth)).collect();
        let stays = |server: &Arc<Server>| match before.remove(&server.id()) {
            Some(berth) => berth.of(server),
            None => Berth::new(server),
        };
        berths.extend(servers.iter().map(stays));
        for streams in before.into_values().filter_map(|berth| berth.streams) {
            streams.close();
        }
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
            Opened::Http1(connection, address) => {
                Ok(self.let_out(Taken::fresh(connection, address), in_flight))
            }
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
                Opened::Http1(connection, address) => Taken::fresh(connection, address),
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
        let Taken { way, address, may_be_closing } = taken;
        Lease { way, uploading: None, in_flight, pools: self.clone(), address, may_be_closing }
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
        let streams = || Streams::new(self.ticks.clone());
        match find(&mut self.berths.borrow_mut(), server) {
            Some(berth) => berth.streams.get_or_insert_with(streams).clone(),
            None => streams(),
        }
    }

    pub(super) fn take_idle(&self, server: &Server) -> Option<Taken> {
        let mut berths = self.berths.borrow_mut();
        let berth = find(&mut berths, server)?;
        while let Some(Idle { connection, address, since: _ }) = berth.idle.pop() {
            if connection.is_silent() {
                return Some(Taken { way: Way::Alone(connection), address, may_be_closing: true });
            }
        }
        None
    }

    /// Closes every connection of HTTP/1 that nobody uses.
    pub fn close_idle(&self) {
        self.berths.borrow_mut().iter_mut().for_each(|berth| berth.idle.clear());
    }

    fn forget_idle(&self, server: &Server) {
        if let Some(berth) = find(&mut self.berths.borrow_mut(), server) {
            berth.idle.clear();
        }
    }

    fn put_back(&self, server: &Server, connection: Rc<Http1>, address: u32) {
        if let Some(berth) = find(&mut self.berths.borrow_mut(), server)
            && berth.idle.len() < berth.server.keepalive
            && (server.lost_addresses() == 0 || server.has_address(address))
        {
            connection.rest();
            berth.idle.push(Idle { connection, address, since: self.ticks.now() });
        }
    }

    /// Closes connections that stood unused for too long or lead to an address that the server's name no longer has,
    /// and forgets those the server closed.
    pub fn sweep(&self) {
        let now = self.ticks.now();
        for Berth { server, lost_addresses, idle, streams } in self.berths.borrow_mut().iter_mut() {
            let lost_one = lost_one(server, lost_addresses);
            idle.retain(|idle| {
                let is_fresh = now.saturating_sub(idle.since) <= server.idle_span;
                is_fresh && idle.connection.is_silent() && (!lost_one || server.has_address(idle.address))
            });
            let Some(streams) = streams else { continue };
            if lost_one {
                streams.leave(|address| !server.has_address(address));
            }
            streams.sweep(span_of(server));
        }
    }
}

impl Berth {
    fn new(server: &Arc<Server>) -> Berth {
        let lost_addresses = server.lost_addresses();
        Berth { server: server.clone(), lost_addresses, idle: Vec::new(), streams: None }
    }

    /// The same connections, under other settings.
    fn of(self, server: &Arc<Server>) -> Berth {
        let mut berth = Berth { server: server.clone(), ..self };
        // Those that stood longest go.
        berth.idle.drain(..berth.idle.len().saturating_sub(server.keepalive));
        berth
    }
}

/// Where the connections to `server` are; `None` = it is no longer one of ours.
#[inline]
fn find<'a>(berths: &'a mut [Berth], server: &Server) -> Option<&'a mut Berth> {
    let is_it = |berth: &Berth| berth.server.id() == server.id();
    // Another gateway had it at another place.
    let place = match berths.get(server.index).is_some_and(is_it) {
        true => server.index,
        false => berths.iter().position(is_it)?,
    };
    berths.get_mut(place)
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

    /// Whether the server may be closing the connection while the request is on its way: after an idle time, a number
    /// of requests, or because it is reloaded.
    pub fn may_be_closing(&self) -> bool {
        self.may_be_closing
    }

    /// Sends what stands in `request` and waits for the head of the answer.
    pub async fn send(&mut self, request: &mut Option<Request<RequestBody>>, answer: &mut Answer) -> Sent {
        let connection = match &self.way {
            Way::Alone(connection) => connection,
            // Boxed, so that the future of a request of HTTP/1 has no room for it.
            Way::Shared(stream) => return Box::pin(stream.send(request, answer)).await,
        };
        let Some(request) = request else { return Sent::Unsent };
        let (sent, uploading) = connection.send(request, answer).await;
        self.uploading = uploading;
        sent
    }

    /// The exchange is complete: the connection may serve another one.
    pub fn finish(self) {
        let Lease { way, uploading, in_flight, pools, address, may_be_closing: _ } = self;
        let Way::Alone(connection) = way else { return };
        if connection.is_free() {
            pools.put_back(in_flight.server(), connection, address);
        } else if let Some(uploading) = uploading
            && connection.is_answered()
        {
            // An answer can be complete before its request is.
            tokio::task::spawn_local(async move {
                uploading.end().await;
                if connection.is_free() {
                    pools.put_back(in_flight.server(), connection, address);
                }
            });
        }
    }

    /// What the connection is over, for something that is not HTTP, what came already, and the place at the server.
    /// `None` where the connection is not this exchange's alone.
    pub fn into_tunnel(self) -> Option<(ServerSocket, Bytes, InFlight)> {
        let Way::Alone(connection) = self.way else { return None };
        let (socket, ahead) = Rc::into_inner(connection)?.into_parts();
        Some((socket, ahead, self.in_flight))
    }
}

#[cfg(test)]
mod tests;
