//! A worker's pools of server connections, which no other worker uses. An HTTP/1 connection serves one request at a
//! time and is reused last in, first out; an HTTP/2 connection is shared.
//!
//! A server with `proxy_protocol` is told the client in front of each connection, so a client connection has pools of
//! its own there ([`Pools::for_client`]), which end with it. Those of the worker serve the gateway's own questions.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use bytes::Bytes;
use http::Request;

use super::connect::{ConnectFault, NewConnection, open_connection};
use super::http1::{Http1Connection, UploadTask};
use super::http2::streams::{AcquiredConnection, ConnectionUse, Http2Connections};
use super::response::ResponseSlot;
use super::send_outcome::SendOutcome;
use super::server::{Server, ServerInFlight, ServerProtocol};
use super::server_socket::{IdleState, ServerSocket};
use crate::net::deadline::SweepCounter;
use crate::net::proxy_protocol::LOCAL_HEADER;
use crate::request::body::RequestBody;
use crate::request::headers::added_fields::AddedFields;

/// The connections of one worker. The gateways before and after a reload share them: a request of the old one leaves
/// its connection to the new one.
pub struct Pools {
    ticks: Rc<SweepCounter>,
    /// Pools by [`Server::index`] in the current gateway.
    server_pools: RefCell<Vec<ServerPool>>,
    /// The pools of client connections.
    client_pools: RefCell<Vec<Weak<Pools>>>,
    /// `None` = they are the worker's.
    client: Option<AnnouncedClient>,
}

/// The client of a connection that is announced to servers.
struct AnnouncedClient {
    ip: IpAddr,
    /// The PROXY header of each connection.
    header: Bytes,
    /// The pools of the worker.
    worker: Rc<Pools>,
}

/// The connections to one server.
struct ServerPool {
    server: Arc<Server>,
    /// [`Server::lost_addresses`] at the last sweep.
    lost_addresses: u32,
    /// Idle HTTP/1 connections.
    idle: Vec<Rc<Http1Connection>>,
    /// HTTP/2 connections, once there was one.
    http2: Option<Rc<Http2Connections>>,
    /// Has a clone for each idle HTTP/1 connection in the pools of client connections.
    client_idle: Rc<()>,
}

/// A connection, or one stream of it, for one exchange. Dropped without [`PooledConnection::finish`], it closes an
/// HTTP/1 connection and leaves an HTTP/2 connection open for the other requests.
pub struct PooledConnection {
    connection: ConnectionUse,
    /// A request body that continues during the response.
    upload_task: Option<UploadTask>,
    in_flight: ServerInFlight,
    pools: Rc<Pools>,
    /// The server may be closing the connection while the request is on its way: after an idle time, after a number of
    /// requests, or because of a reload.
    pub may_be_closing: bool,
}

impl Pools {
    /// Empty pools for these servers; `ticks` measures the time that connections are idle.
    pub fn new(ticks: Rc<SweepCounter>, servers: &[Arc<Server>]) -> Pools {
        let server_pools = RefCell::new(servers.iter().map(ServerPool::new).collect());
        Pools { ticks, server_pools, client_pools: RefCell::default(), client: None }
    }

    /// Pools for one client connection, whose client `header` announces. Dropped, they close their connections.
    pub fn for_client(self: &Rc<Self>, ip: IpAddr, header: Bytes) -> Rc<Pools> {
        let client = Some(AnnouncedClient { ip, header, worker: self.clone() });
        let pools = Rc::new(Pools { client, ..Pools::new(self.ticks.clone(), &[]) });
        self.client_pools.borrow_mut().push(Rc::downgrade(&pools));
        pools
    }

    /// True if its connections announce this client.
    pub fn announces(&self, ip: IpAddr) -> bool {
        self.client.as_ref().is_some_and(|client| client.ip == ip)
    }

    /// The bytes in front of each connection to a server.
    fn header_for(&self, server: &Server) -> Bytes {
        match &self.client {
            _ if !server.announces_clients => Bytes::new(),
            Some(client) => client.header.clone(),
            None => Bytes::from_static(LOCAL_HEADER),
        }
    }

    /// Runs `work` on the pools of each client connection that still exists.
    fn for_each_client(&self, work: impl Fn(&Pools)) {
        self.client_pools.borrow_mut().retain(|pools| pools.upgrade().inspect(|pools| work(pools)).is_some());
    }

    /// Keeps connections to `servers` from now on; connections to other servers, and those that announce a client,
    /// close after the requests on them.
    pub fn update_servers(&self, servers: &[Arc<Server>]) {
        let mut pools = self.server_pools.borrow_mut();
        let mut before: HashMap<u64, ServerPool> =
            pools.drain(..).map(|pool| (pool.server.id, pool)).collect();
        let keep_or_create = |server: &Arc<Server>| match before.remove(&server.id) {
            Some(pool) => pool.with_server(server),
            None => ServerPool::new(server),
        };
        pools.extend(servers.iter().map(keep_or_create));
        close_http2(before.into_values());
        self.for_each_client(|pools| close_http2(pools.server_pools.take()));
    }

    /// Borrows an idle HTTP/1 connection for a request that is counted in. Most requests get one, and need no future
    /// for it.
    ///
    /// # Errors
    /// There is none: the same place again.
    #[inline]
    pub fn borrow_idle(
        self: &Rc<Self>,
        in_flight: ServerInFlight,
    ) -> Result<PooledConnection, ServerInFlight> {
        let server = in_flight.server();
        if server.protocol == ServerProtocol::Http2 {
            return Err(in_flight);
        }
        match self.take_idle(server) {
            Some(idle) => Ok(self.lend(idle, in_flight)),
            None => Err(in_flight),
        }
    }

    /// Borrows a connection for a request that is counted in: an idle or shared one if possible, else a new one.
    ///
    /// # Errors
    /// The server cannot be resolved or reached, or does not accept within its connect timeout.
    pub async fn borrow_connection(
        self: &Rc<Self>,
        in_flight: ServerInFlight,
    ) -> Result<PooledConnection, ConnectFault> {
        match self.borrow_idle(in_flight) {
            Ok(pooled) => Ok(pooled),
            Err(in_flight) => self.borrow_busy(in_flight).await,
        }
    }

    /// Borrows a new HTTP/1 connection, for a request that may switch protocols.
    ///
    /// # Errors
    /// The errors of [`Pools::borrow_connection`]; and if the server accepts only HTTP/2.
    pub async fn borrow_exclusive(
        self: &Rc<Self>,
        in_flight: ServerInFlight,
    ) -> Result<PooledConnection, ConnectFault> {
        Ok(self.lend(self.open_exclusive(in_flight.server()).await?, in_flight))
    }

    /// Borrows without the idle HTTP/1 connections of [`Pools::borrow_connection`]. A dead HTTP/2 connection is known
    /// as such already.
    ///
    /// # Errors
    /// The errors of [`Pools::borrow_connection`].
    pub async fn borrow_fresh(
        self: &Rc<Self>,
        in_flight: ServerInFlight,
    ) -> Result<PooledConnection, ConnectFault> {
        let server = in_flight.server();
        if server.protocol == ServerProtocol::Negotiated
            && let Some(pool) = find_pool(&mut self.server_pools.borrow_mut(), server)
        {
            pool.idle.clear();
        }
        self.borrow_busy(in_flight).await
    }

    async fn borrow_busy(
        self: &Rc<Self>,
        in_flight: ServerInFlight,
    ) -> Result<PooledConnection, ConnectFault> {
        let server = in_flight.server();
        let acquired = match server.protocol {
            ServerProtocol::Http1 => self.open_exclusive(server).await?,
            ServerProtocol::Http2 | ServerProtocol::Negotiated => {
                let http2 = self.http2_connections(server);
                match http2.acquire_stream() {
                    Some(acquired) => acquired,
                    None => Box::pin(self.wait_for_stream(&http2, server)).await?,
                }
            }
        };
        Ok(self.lend(acquired, in_flight))
    }

    fn lend(self: &Rc<Self>, acquired: AcquiredConnection, in_flight: ServerInFlight) -> PooledConnection {
        let AcquiredConnection { connection, may_be_closing } = acquired;
        PooledConnection { connection, upload_task: None, in_flight, pools: self.clone(), may_be_closing }
    }

    async fn wait_for_stream(
        self: &Rc<Self>,
        http2: &Rc<Http2Connections>,
        server: &Arc<Server>,
    ) -> Result<AcquiredConnection, ConnectFault> {
        let waiting = http2.wait_for_stream(server, || self.take_idle(server));
        match tokio::time::timeout(server.connect_timeout, waiting).await {
            Ok(acquired) => acquired,
            Err(_elapsed) if http2.is_any_open() => Err(ConnectFault::Full),
            Err(_elapsed) => Err(ConnectFault::TimedOut),
        }
    }

    fn http2_connections(&self, server: &Arc<Server>) -> Rc<Http2Connections> {
        let create = || Http2Connections::new(self.ticks.clone(), self.header_for(server));
        match self.find_or_add(&mut self.server_pools.borrow_mut(), server) {
            Some(pool) => pool.http2.get_or_insert_with(create).clone(),
            None => create(),
        }
    }

    fn take_idle(&self, server: &Server) -> Option<AcquiredConnection> {
        let mut pools = self.server_pools.borrow_mut();
        let pool = find_pool(&mut pools, server)?;
        let connection = std::iter::from_fn(|| pool.idle.pop()).find(|idle| is_reusable(server, idle))?;
        connection.client_idle.take();
        Some(AcquiredConnection { may_be_closing: true, ..connection.into() })
    }

    /// Closes every idle HTTP/1 connection.
    pub fn close_idle(&self) {
        self.server_pools.borrow_mut().iter_mut().for_each(|pool| pool.idle.clear());
        self.for_each_client(Pools::close_idle);
    }

    fn put_back(&self, server: &Arc<Server>, connection: Rc<Http1Connection>) {
        // All clients of the worker share `keepalive`.
        let shared = self.client.as_ref().map(|client| {
            find_pool(&mut client.worker.server_pools.borrow_mut(), server)
                .map(|pool| pool.client_idle.clone())
        });
        let shared_count = match &shared {
            None => 0,
            // The pool of the worker and this function have one of their own.
            Some(Some(shared)) => Rc::strong_count(shared) - 2,
            // A reload removed the server.
            Some(None) => return,
        };
        if let Some(pool) = self.find_or_add(&mut self.server_pools.borrow_mut(), server)
            && pool.idle.len().max(shared_count) < pool.server.keepalive
            && !server.state.is_reuse_paused()
            && (server.lost_addresses() == 0 || server.has_address(connection.address))
        {
            connection.shrink_buffers();
            connection.idle_since.set(self.ticks.current_tick());
            connection.client_idle.set(shared.flatten());
            pool.idle.push(connection);
        }
    }

    /// Closes connections that were idle for too long or lead to an address that the server's name has lost, and
    /// forgets those that the server closed.
    pub fn sweep_idle(&self) {
        let now = self.ticks.current_tick();
        for ServerPool { server, lost_addresses, idle, http2, .. } in
            self.server_pools.borrow_mut().iter_mut()
        {
            let lost = server.lost_addresses();
            let lost_one = std::mem::replace(lost_addresses, lost) != lost;
            idle.retain(|idle| {
                let is_fresh = now.saturating_sub(idle.idle_since.get()) <= server.idle_ticks;
                is_fresh && is_reusable(server, idle) && (!lost_one || server.has_address(idle.address))
            });
            let Some(http2) = http2 else { continue };
            if lost_one {
                http2.drain_addresses(|address| !server.has_address(address));
            }
            http2.sweep_idle(if server.keepalive == 0 { 0 } else { server.idle_ticks });
        }
        self.for_each_client(Pools::sweep_idle);
    }

    /// A new HTTP/1 connection for one request.
    async fn open_exclusive(&self, server: &Arc<Server>) -> Result<AcquiredConnection, ConnectFault> {
        let header = self.header_for(server);
        // Boxed: connecting is rare, and would make the future of every request large.
        match Box::pin(open_connection(server, ServerProtocol::Http1, &header)).await? {
            NewConnection::Http1(connection) => Ok(connection.into()),
            NewConnection::Http2(_) => Err(ConnectFault::Full),
        }
    }

    /// The pool of `server`; `None` if a reload removed the server. Those of a client connection begin without any.
    fn find_or_add<'a>(
        &self,
        pools: &'a mut Vec<ServerPool>,
        server: &Arc<Server>,
    ) -> Option<&'a mut ServerPool> {
        if self.client.is_some() && !pools.iter().any(|pool| pool.server.id == server.id) {
            pools.push(ServerPool::new(server));
        }
        find_pool(pools, server)
    }
}

impl ServerPool {
    fn new(server: &Arc<Server>) -> ServerPool {
        let lost_addresses = server.lost_addresses();
        let client_idle = Rc::default();
        ServerPool { server: server.clone(), lost_addresses, idle: Vec::new(), http2: None, client_idle }
    }

    /// The same connections, under other settings.
    fn with_server(self, server: &Arc<Server>) -> ServerPool {
        let mut pool = ServerPool { server: server.clone(), ..self };
        // Those that were idle longest are closed.
        pool.idle.drain(..pool.idle.len().saturating_sub(server.keepalive));
        pool
    }
}

/// Lets the HTTP/2 connections of these pools close with their last requests.
fn close_http2(pools: impl IntoIterator<Item = ServerPool>) {
    pools.into_iter().filter_map(|pool| pool.http2).for_each(|http2| http2.close_all());
}

/// The pool of `server`; `None` if a reload removed the server.
#[inline]
fn find_pool<'a>(pools: &'a mut [ServerPool], server: &Server) -> Option<&'a mut ServerPool> {
    let is_it = |pool: &ServerPool| pool.server.id == server.id;
    // In another gateway it may have had another index.
    let index = match pools.get(server.index).is_some_and(is_it) {
        true => server.index,
        false => pools.iter().position(is_it)?,
    };
    pools.get_mut(index)
}

/// True if an idle connection may serve a request. Stray data on one makes all of the server unfit.
fn is_reusable(server: &Server, connection: &Http1Connection) -> bool {
    if server.state.is_reuse_paused() {
        return false;
    }
    let state = connection.check_idle();
    if state == IdleState::Stray {
        server.record_stray_data();
    }
    state == IdleState::Usable
}

impl PooledConnection {
    /// The server of the connection.
    pub fn server(&self) -> &Arc<Server> {
        self.in_flight.server()
    }

    /// Sends `request` with the `added` fields, and waits for the head of the response.
    pub async fn send_request(
        &mut self,
        request: &mut Option<Request<RequestBody>>,
        added: &AddedFields,
        response: &mut ResponseSlot,
    ) -> SendOutcome {
        let connection = match &self.connection {
            ConnectionUse::Exclusive(connection) => connection,
            // Boxed, so that the future of an HTTP/1 request has no room for it.
            ConnectionUse::Shared(stream) => {
                return Box::pin(stream.send_request(request, added, response)).await;
            }
        };
        let Some(request) = request else { return SendOutcome::Unsent };
        let (outcome, upload_task) = connection.send_request(request, added, response).await;
        self.upload_task = upload_task;
        outcome
    }

    /// Ends a complete exchange, so that the connection can serve another one.
    pub fn finish(self) {
        let PooledConnection { connection, upload_task, in_flight, pools, .. } = self;
        let ConnectionUse::Exclusive(connection) = connection else { return };
        if connection.is_free() {
            pools.put_back(in_flight.server(), connection);
        } else if connection.has_stray_data() {
            in_flight.server().record_stray_data();
        } else if let Some(upload_task) = upload_task
            && connection.is_response_done()
        {
            // A response can be complete before its request is.
            tokio::task::spawn_local(async move {
                upload_task.finish_upload().await;
                if connection.is_free() {
                    pools.put_back(in_flight.server(), connection);
                }
            });
        }
    }

    /// Closes the connection, or leaves a shared one, and keeps the place at the server.
    pub fn into_place(self) -> ServerInFlight {
        self.in_flight
    }

    /// Turns the connection into a raw socket for another protocol, with the bytes already read and the in-flight
    /// count. `None` if other exchanges share the connection.
    pub fn into_tunnel(self) -> Option<(ServerSocket, Bytes, ServerInFlight)> {
        let ConnectionUse::Exclusive(connection) = self.connection else { return None };
        let (socket, read_ahead) = Rc::into_inner(connection)?.into_parts();
        Some((socket, read_ahead, self.in_flight))
    }
}

#[cfg(test)]
mod tests;
