//! A worker's HTTP/2 connections to one server: few, shared by its requests, opened one at a time.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use http::Request;
use tokio::sync::Notify;

use super::Http2Connection;
use crate::net::deadline::TickCounter;
use crate::request::body::RequestBody;
use crate::upstream::connect::{ConnectFault, NewConnection, open_connection};
use crate::upstream::http1::Http1Connection;
use crate::upstream::pool::Pools;
use crate::upstream::response::{ResponseSlot, SendOutcome};
use crate::upstream::server::{Server, ServerProtocol};

/// Connections to one server, of one worker, that are not leaving.
const CONNECTIONS_MAX: usize = 128;

/// What is known of a server's connections that requests share.
pub(crate) struct Http2Connections {
    ticks: Rc<TickCounter>,
    connections: RefCell<Vec<Rc<Http2Connection>>>,
    pending_connect: RefCell<Option<Rc<PendingConnect>>>,
    /// The server chose HTTP/1 last time.
    speaks_http1: Cell<bool>,
    /// A request ended: somebody who waits may take its place.
    stream_freed: Notify,
}

/// A connect that several requests wait for.
#[derive(Default)]
struct PendingConnect {
    fault: OnceCell<ConnectFault>,
    /// A connection of HTTP/1, for the first of them.
    exclusive: Cell<Option<(Rc<Http1Connection>, u32)>>,
    finished: Notify,
}

/// One request on a connection; over when dropped.
pub(crate) struct Http2Stream {
    connection: Rc<Http2Connection>,
    connections: Rc<Http2Connections>,
}

/// What a request is sent on.
pub(crate) enum LeasedConnection {
    /// A connection of HTTP/1, which is its own meanwhile.
    Exclusive(Rc<Http1Connection>),
    Shared(Http2Stream),
}

/// A way that was taken.
pub(crate) struct AcquiredConnection {
    pub connection: LeasedConnection,
    /// The [`tag`](crate::upstream::dns::tag) of where one of HTTP/1 leads.
    pub address: u32,
    /// One of HTTP/1 has served before, or one of HTTP/2 stood unused for a while.
    pub may_be_closing: bool,
}

impl AcquiredConnection {
    pub(crate) fn from_http1(connection: Rc<Http1Connection>, address: u32) -> AcquiredConnection {
        AcquiredConnection {
            connection: LeasedConnection::Exclusive(connection),
            address,
            may_be_closing: false,
        }
    }
}

impl Http2Connections {
    pub(crate) fn new(ticks: Rc<TickCounter>) -> Rc<Http2Connections> {
        Rc::new(Http2Connections {
            ticks,
            connections: RefCell::default(),
            pending_connect: RefCell::default(),
            speaks_http1: Cell::default(),
            stream_freed: Notify::new(),
        })
    }

    /// A place on the connection with the most requests that has one: so the others can become idle, and close.
    pub(crate) fn acquire_stream(self: &Rc<Self>) -> Option<AcquiredConnection> {
        let now = self.ticks.current_tick();
        let connections = self.connections.borrow();
        let free = connections.iter().filter(|connection| connection.has_capacity(now));
        let connection = free.max_by_key(|connection| connection.stream_count())?.clone();
        let may_be_closing = connection.is_idle() && now > connection.idle_since.get() + 1;
        connection.add_stream();
        let stream = Http2Stream { connection, connections: self.clone() };
        Some(AcquiredConnection { connection: LeasedConnection::Shared(stream), address: 0, may_be_closing })
    }

    /// Waits for a place: on a connection that gets one free, or on a new one.
    ///
    /// # Errors
    /// When no connection comes about and there is none to wait for.
    pub(crate) async fn wait_for_stream(
        self: &Rc<Self>,
        pools: &Rc<Pools>,
        server: &Arc<Server>,
    ) -> Result<AcquiredConnection, ConnectFault> {
        let mut may_connect = true;
        loop {
            let freed = self.stream_freed.notified();
            if let Some(taken) = self.acquire_stream() {
                return Ok(taken);
            }
            if server.protocol == ServerProtocol::Negotiated {
                if let Some(idle) = pools.take_idle(server) {
                    return Ok(idle);
                }
                if self.speaks_http1.get()
                    && let NewConnection::Http1(connection, address) = self.connect_exclusive(server).await?
                {
                    return Ok(AcquiredConnection::from_http1(connection, address));
                }
            }
            let connecting = self.pending_connect.borrow().clone();
            let connecting = match connecting {
                Some(connecting) => connecting,
                None if (may_connect || !self.is_any_open()) && self.can_open_more() => {
                    self.start_connect(server)
                }
                None => {
                    freed.await;
                    continue;
                }
            };
            tokio::select! {
                () = freed => {}
                () = connecting.finished.notified() => {}
            }
            // Both may have come at once.
            if let Some((connection, address)) = connecting.exclusive.take() {
                return Ok(AcquiredConnection::from_http1(connection, address));
            }
            if let Some(fault) = connecting.fault.get() {
                if !self.is_any_open() {
                    return Err(fault.clone());
                }
                may_connect = false;
            }
        }
    }

    /// A connection for this request alone, unless the server now chooses HTTP/2: then it is everybody's.
    async fn connect_exclusive(&self, server: &Arc<Server>) -> Result<NewConnection, ConnectFault> {
        let opened = open_connection(server, server.protocol).await?;
        if let NewConnection::Http2(connection) = &opened {
            self.speaks_http1.set(false);
            self.add_connection(connection.clone());
        }
        Ok(opened)
    }

    /// Begins a connect that goes on if the request that began it is given up.
    fn start_connect(self: &Rc<Self>, server: &Arc<Server>) -> Rc<PendingConnect> {
        let connecting = Rc::new(PendingConnect::default());
        *self.pending_connect.borrow_mut() = Some(connecting.clone());
        let (streams, server) = (self.clone(), server.clone());
        let begun = connecting.clone();
        tokio::task::spawn_local(async move {
            match open_connection(&server, server.protocol).await {
                Ok(NewConnection::Http2(connection)) => {
                    streams.speaks_http1.set(false);
                    streams.add_connection(connection);
                }
                Ok(NewConnection::Http1(connection, address)) => {
                    streams.speaks_http1.set(true);
                    begun.exclusive.set(Some((connection, address)));
                }
                Err(fault) => {
                    let _first = begun.fault.set(fault);
                }
            }
            streams.pending_connect.borrow_mut().take();
            begun.finished.notify_waiters();
        });
        connecting
    }

    fn add_connection(&self, connection: Rc<Http2Connection>) {
        connection.idle_since.set(self.ticks.current_tick());
        self.connections.borrow_mut().push(connection);
    }

    fn can_open_more(&self) -> bool {
        let mut connections = self.connections.borrow_mut();
        connections.retain(|connection| connection.is_open());
        connections.len() < CONNECTIONS_MAX
    }

    pub(crate) fn is_any_open(&self) -> bool {
        self.connections.borrow().iter().any(|connection| connection.is_open())
    }

    /// Sends no more requests to the addresses, by their tags, that `is_gone` holds for.
    pub(crate) fn drain_addresses(&self, is_gone: impl Fn(u32) -> bool) {
        for connection in self.connections.borrow().iter().filter(|one| is_gone(one.address)) {
            connection.start_draining();
        }
    }

    /// Keeps no connection for later: each closes with its last request.
    pub(crate) fn close_all(&self) {
        self.connections.borrow_mut().clear();
    }

    /// Forgets connections that are leaving, and those that stood unused for more than `span` ticks.
    pub(crate) fn sweep_idle(&self, span: u64) {
        let now = self.ticks.current_tick();
        self.connections.borrow_mut().retain(|connection| {
            let is_stale = connection.is_idle() && now.saturating_sub(connection.idle_since.get()) > span;
            connection.is_open() && !is_stale
        });
        // One that rested may take requests again.
        self.stream_freed.notify_waiters();
    }
}

impl Http2Stream {
    /// As [`Http2Connection::send`].
    pub(crate) async fn send_request(
        &self,
        request: &mut Option<Request<RequestBody>>,
        answer: &mut ResponseSlot,
    ) -> SendOutcome {
        self.connection.send_request(request, answer, &self.connections.ticks).await
    }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        if self.connection.remove_stream() {
            self.connection.idle_since.set(self.connections.ticks.current_tick());
        }
        self.connections.stream_freed.notify_one();
    }
}
