//! A worker's own connections to upstream servers, never shared with another worker. One of HTTP/1 serves one
//! request at a time and is taken last in, first out; one of HTTP/2 is shared.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;

use super::connect::{ConnectFault, NewConnection, open_connection};
use super::http1::{Http1Connection, UploadTask};
use super::http2::streams::{AcquiredConnection, Http2Connections, LeasedConnection};
use super::response::{ResponseSlot, SendOutcome};
use super::server::{Server, ServerInFlight, ServerProtocol};
use super::server_socket::ServerSocket;
use crate::net::deadline::TickCounter;
use crate::request::body::RequestBody;

/// The connections of one worker, for the requests of all its gateways: one that ends by a gateway before leaves its
/// connection to those of now.
pub struct Pools {
    ticks: Rc<TickCounter>,
    /// By [`Server::index`] in the gateway of now.
    server_pools: RefCell<Vec<ServerPool>>,
}

/// The connections to one server.
struct ServerPool {
    server: Arc<Server>,
    /// [`Server::lost_addresses`] when the connections were looked through last.
    lost_addresses: u32,
    /// Those of HTTP/1 that nobody uses.
    idle: Vec<IdleConnection>,
    /// Those of HTTP/2, once there was one.
    http2: Option<Rc<Http2Connections>>,
}

struct IdleConnection {
    connection: Rc<Http1Connection>,
    address: u32,
    since: u64,
}

/// A place on a connection, for one exchange. Dropped without [`Lease::finish`], it closes a connection of HTTP/1 and
/// leaves one of HTTP/2 to the others.
pub struct Lease {
    connection: LeasedConnection,
    /// A request body that goes on while its answer comes.
    upload_task: Option<UploadTask>,
    in_flight: ServerInFlight,
    pools: Rc<Pools>,
    address: u32,
    may_be_closing: bool,
}

impl Pools {
    pub fn new(ticks: Rc<TickCounter>, servers: &[Arc<Server>]) -> Pools {
        Pools { ticks, server_pools: RefCell::new(servers.iter().map(ServerPool::new).collect()) }
    }

    /// Keeps connections for `servers` from now on: those to servers that stay go on, others are closed, as soon as the
    /// requests on them have ended.
    pub fn update_servers(&self, servers: &[Arc<Server>]) {
        let mut berths = self.server_pools.borrow_mut();
        let mut before: HashMap<u64, ServerPool> =
            berths.drain(..).map(|berth| (berth.server.id(), berth)).collect();
        let stays = |server: &Arc<Server>| match before.remove(&server.id()) {
            Some(berth) => berth.with_server(server),
            None => ServerPool::new(server),
        };
        berths.extend(servers.iter().map(stays));
        for streams in before.into_values().filter_map(|berth| berth.http2) {
            streams.close_all();
        }
    }

    /// A connection to `server`: an idle or shared one if there is one, else a new one.
    ///
    /// # Errors
    /// When the server is full, cannot be resolved or reached, or does not answer within its connect timeout.
    pub async fn lease(self: &Rc<Self>, server: &Arc<Server>) -> Result<Lease, ConnectFault> {
        let in_flight = server.begin_request().ok_or(ConnectFault::Full)?;
        if server.protocol != ServerProtocol::Http2
            && let Some(taken) = self.take_idle(server)
        {
            return Ok(self.build_lease(taken, in_flight));
        }
        self.lease_non_idle(in_flight).await
    }

    /// A fresh connection of HTTP/1, for a request after which it may speak something else.
    ///
    /// # Errors
    /// As [`Pools::lease`]; and where the server takes nothing but HTTP/2.
    pub async fn lease_exclusive(self: &Rc<Self>, server: &Arc<Server>) -> Result<Lease, ConnectFault> {
        let in_flight = server.begin_request().ok_or(ConnectFault::Full)?;
        match Box::pin(open_connection(server, ServerProtocol::Http1)).await? {
            NewConnection::Http1(connection, address) => {
                Ok(self.build_lease(AcquiredConnection::from_http1(connection, address), in_flight))
            }
            NewConnection::Http2(_) => Err(ConnectFault::Full),
        }
    }

    /// As [`Pools::lease`], but never an idle connection of HTTP/1. One of HTTP/2 that turned out to be dead is known
    /// as such.
    ///
    /// # Errors
    /// As [`Pools::lease`].
    pub async fn lease_fresh(self: &Rc<Self>, server: &Arc<Server>) -> Result<Lease, ConnectFault> {
        let in_flight = server.begin_request().ok_or(ConnectFault::Full)?;
        if server.protocol == ServerProtocol::Negotiated {
            self.forget_idle(server);
        }
        self.lease_non_idle(in_flight).await
    }

    async fn lease_non_idle(self: &Rc<Self>, in_flight: ServerInFlight) -> Result<Lease, ConnectFault> {
        let server = in_flight.server();
        let taken = match server.protocol {
            // Connecting is rare, and would make the future of every request large.
            ServerProtocol::Http1 => match Box::pin(open_connection(server, ServerProtocol::Http1)).await? {
                NewConnection::Http1(connection, address) => {
                    AcquiredConnection::from_http1(connection, address)
                }
                NewConnection::Http2(_) => return Err(ConnectFault::Full),
            },
            ServerProtocol::Http2 | ServerProtocol::Negotiated => {
                let streams = self.http2_connections(server);
                match streams.acquire_stream() {
                    Some(taken) => taken,
                    None => Box::pin(self.wait_for_stream(&streams, server)).await?,
                }
            }
        };
        Ok(self.build_lease(taken, in_flight))
    }

    fn build_lease(self: &Rc<Self>, taken: AcquiredConnection, in_flight: ServerInFlight) -> Lease {
        let AcquiredConnection { connection: way, address, may_be_closing } = taken;
        Lease { connection: way, upload_task: None, in_flight, pools: self.clone(), address, may_be_closing }
    }

    async fn wait_for_stream(
        self: &Rc<Self>,
        streams: &Rc<Http2Connections>,
        server: &Arc<Server>,
    ) -> Result<AcquiredConnection, ConnectFault> {
        match tokio::time::timeout(server.connect_timeout, streams.wait_for_stream(self, server)).await {
            Ok(taken) => taken,
            Err(_elapsed) if streams.is_any_open() => Err(ConnectFault::Full),
            Err(_elapsed) => Err(ConnectFault::TimedOut),
        }
    }

    fn http2_connections(&self, server: &Arc<Server>) -> Rc<Http2Connections> {
        let streams = || Http2Connections::new(self.ticks.clone());
        match find_pool(&mut self.server_pools.borrow_mut(), server) {
            Some(berth) => berth.http2.get_or_insert_with(streams).clone(),
            None => streams(),
        }
    }

    pub(super) fn take_idle(&self, server: &Server) -> Option<AcquiredConnection> {
        let mut berths = self.server_pools.borrow_mut();
        let berth = find_pool(&mut berths, server)?;
        while let Some(IdleConnection { connection, address, since: _ }) = berth.idle.pop() {
            if connection.is_silent() {
                return Some(AcquiredConnection {
                    connection: LeasedConnection::Exclusive(connection),
                    address,
                    may_be_closing: true,
                });
            }
        }
        None
    }

    /// Closes every connection of HTTP/1 that nobody uses.
    pub fn close_idle(&self) {
        self.server_pools.borrow_mut().iter_mut().for_each(|berth| berth.idle.clear());
    }

    fn forget_idle(&self, server: &Server) {
        if let Some(berth) = find_pool(&mut self.server_pools.borrow_mut(), server) {
            berth.idle.clear();
        }
    }

    fn put_back(&self, server: &Server, connection: Rc<Http1Connection>, address: u32) {
        if let Some(berth) = find_pool(&mut self.server_pools.borrow_mut(), server)
            && berth.idle.len() < berth.server.keepalive
            && (server.lost_addresses() == 0 || server.has_address(address))
        {
            connection.shrink_buffers();
            berth.idle.push(IdleConnection { connection, address, since: self.ticks.current_tick() });
        }
    }

    /// Closes connections that stood unused for too long or lead to an address that the server's name no longer has,
    /// and forgets those the server closed.
    pub fn sweep_idle(&self) {
        let now = self.ticks.current_tick();
        for ServerPool { server, lost_addresses, idle, http2: streams } in
            self.server_pools.borrow_mut().iter_mut()
        {
            let lost_one = has_lost_address(server, lost_addresses);
            idle.retain(|idle| {
                let is_fresh = now.saturating_sub(idle.since) <= server.idle_ticks;
                is_fresh && idle.connection.is_silent() && (!lost_one || server.has_address(idle.address))
            });
            let Some(streams) = streams else { continue };
            if lost_one {
                streams.drain_addresses(|address| !server.has_address(address));
            }
            streams.sweep_idle(shared_idle_ticks(server));
        }
    }
}

impl ServerPool {
    fn new(server: &Arc<Server>) -> ServerPool {
        let lost_addresses = server.lost_addresses();
        ServerPool { server: server.clone(), lost_addresses, idle: Vec::new(), http2: None }
    }

    /// The same connections, under other settings.
    fn with_server(self, server: &Arc<Server>) -> ServerPool {
        let mut berth = ServerPool { server: server.clone(), ..self };
        // Those that stood longest go.
        berth.idle.drain(..berth.idle.len().saturating_sub(server.keepalive));
        berth
    }
}

/// Where the connections to `server` are; `None` = it is no longer one of ours.
#[inline]
fn find_pool<'a>(berths: &'a mut [ServerPool], server: &Server) -> Option<&'a mut ServerPool> {
    let is_it = |berth: &ServerPool| berth.server.id() == server.id();
    // Another gateway had it at another place.
    let place = match berths.get(server.index).is_some_and(is_it) {
        true => server.index,
        false => berths.iter().position(is_it)?,
    };
    berths.get_mut(place)
}

/// Ticks that a shared connection may stand unused.
fn shared_idle_ticks(server: &Server) -> u64 {
    if server.keepalive == 0 { 0 } else { server.idle_ticks }
}

/// Whether the server's name lost an address since the last look.
fn has_lost_address(server: &Server, seen: &mut u32) -> bool {
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
    pub async fn send_request(
        &mut self,
        request: &mut Option<Request<RequestBody>>,
        answer: &mut ResponseSlot,
    ) -> SendOutcome {
        let connection = match &self.connection {
            LeasedConnection::Exclusive(connection) => connection,
            // Boxed, so that the future of a request of HTTP/1 has no room for it.
            LeasedConnection::Shared(stream) => return Box::pin(stream.send_request(request, answer)).await,
        };
        let Some(request) = request else { return SendOutcome::Unsent };
        let (sent, uploading) = connection.send_request(request, answer).await;
        self.upload_task = uploading;
        sent
    }

    /// The exchange is complete: the connection may serve another one.
    pub fn finish(self) {
        let Lease { connection: way, upload_task: uploading, in_flight, pools, address, may_be_closing: _ } =
            self;
        let LeasedConnection::Exclusive(connection) = way else { return };
        if connection.is_free() {
            pools.put_back(in_flight.server(), connection, address);
        } else if let Some(uploading) = uploading
            && connection.is_response_done()
        {
            // An answer can be complete before its request is.
            tokio::task::spawn_local(async move {
                uploading.finish_upload().await;
                if connection.is_free() {
                    pools.put_back(in_flight.server(), connection, address);
                }
            });
        }
    }

    /// What the connection is over, for something that is not HTTP, what came already, and the place at the server.
    /// `None` where the connection is not this exchange's alone.
    pub fn into_tunnel(self) -> Option<(ServerSocket, Bytes, ServerInFlight)> {
        let LeasedConnection::Exclusive(connection) = self.connection else { return None };
        let (socket, ahead) = Rc::into_inner(connection)?.into_parts();
        Some((socket, ahead, self.in_flight))
    }
}

#[cfg(test)]
mod tests;
