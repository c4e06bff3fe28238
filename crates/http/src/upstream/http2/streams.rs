//! A worker's HTTP/2 connections to one server: few, shared by its requests, and opened one at a time.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use tokio::sync::Notify;

use super::Http2Connection;
use crate::net::deadline::SweepCounter;
use crate::request::body::RequestBody;
use crate::request::headers::added_fields::AddedFields;
use crate::upstream::connect::{ConnectFault, NewConnection, open_connection};
use crate::upstream::http1::Http1Connection;
use crate::upstream::response::ResponseSlot;
use crate::upstream::send_outcome::SendOutcome;
use crate::upstream::server::{Server, ServerProtocol};

/// Most open connections of one worker to one server.
const CONNECTIONS_MAX: usize = 128;

/// The shared connections to one server.
pub(crate) struct Http2Connections {
    ticks: Rc<SweepCounter>,
    /// The PROXY header of its connections; empty without one.
    header: Bytes,
    connections: RefCell<Vec<Rc<Http2Connection>>>,
    pending_connect: RefCell<Option<Rc<PendingConnect>>>,
    /// The server negotiated HTTP/1 last time.
    speaks_http1: Cell<bool>,
    /// A request ended, so a waiting one can proceed.
    stream_freed: Notify,
}

/// A connect that several requests wait for.
#[derive(Default)]
struct PendingConnect {
    fault: OnceCell<ConnectFault>,
    /// An HTTP/1 connection, for the first of them.
    exclusive: Cell<Option<Rc<Http1Connection>>>,
    finished: Notify,
}

/// One request on a connection; it ends when this is dropped.
pub(crate) struct Http2Stream {
    connection: Rc<Http2Connection>,
    connections: Rc<Http2Connections>,
}

/// The connection that a request is sent on.
pub(crate) enum ConnectionUse {
    /// An HTTP/1 connection, for this request alone.
    Exclusive(Rc<Http1Connection>),
    Shared(Http2Stream),
}

/// A connection for one request.
pub(crate) struct AcquiredConnection {
    pub connection: ConnectionUse,
    /// An HTTP/1 connection that has served before, or an HTTP/2 connection that was idle for a while.
    pub may_be_closing: bool,
}

impl From<Rc<Http1Connection>> for AcquiredConnection {
    fn from(connection: Rc<Http1Connection>) -> AcquiredConnection {
        AcquiredConnection { connection: ConnectionUse::Exclusive(connection), may_be_closing: false }
    }
}

impl Http2Connections {
    pub(crate) fn new(ticks: Rc<SweepCounter>, header: Bytes) -> Rc<Http2Connections> {
        Rc::new(Http2Connections {
            ticks,
            header,
            connections: RefCell::default(),
            pending_connect: RefCell::default(),
            speaks_http1: Cell::default(),
            stream_freed: Notify::new(),
        })
    }

    /// A stream on the connection with the most requests that has capacity, so that the others become idle and close.
    pub(crate) fn acquire_stream(self: &Rc<Self>) -> Option<AcquiredConnection> {
        let now = self.ticks.current_tick();
        let connections = self.connections.borrow();
        let free = connections.iter().filter(|connection| connection.has_capacity(now));
        let connection = free.max_by_key(|connection| connection.stream_count.get())?.clone();
        let may_be_closing = connection.is_idle() && now > connection.idle_since.get() + 1;
        connection.stream_count.update(|count| count + 1);
        let stream = Http2Stream { connection, connections: self.clone() };
        Some(AcquiredConnection { connection: ConnectionUse::Shared(stream), may_be_closing })
    }

    /// Waits for a free stream or a new connection; if the protocol is negotiated, an idle HTTP/1 connection from
    /// `take_idle` serves as well.
    ///
    /// # Errors
    /// The connect failed, and there is no open connection to wait for.
    pub(crate) async fn wait_for_stream(
        self: &Rc<Self>,
        server: &Arc<Server>,
        take_idle: impl Fn() -> Option<AcquiredConnection>,
    ) -> Result<AcquiredConnection, ConnectFault> {
        let mut may_connect = true;
        loop {
            let freed = self.stream_freed.notified();
            if let Some(acquired) = self.acquire_stream() {
                return Ok(acquired);
            }
            if server.protocol == ServerProtocol::Negotiated {
                if let Some(idle) = take_idle() {
                    return Ok(idle);
                }
                if self.speaks_http1.get()
                    && let NewConnection::Http1(connection) = self.connect_exclusive(server).await?
                {
                    return Ok(connection.into());
                }
            }
            let pending = self.pending_connect.borrow().clone();
            let pending = match pending {
                Some(pending) => pending,
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
                () = pending.finished.notified() => {}
            }
            // Both may have happened.
            if let Some(connection) = pending.exclusive.take() {
                return Ok(connection.into());
            }
            if let Some(fault) = pending.fault.get() {
                if !self.is_any_open() {
                    return Err(fault.clone());
                }
                may_connect = false;
            }
        }
    }

    /// Opens a connection for this request alone; if the server now negotiates HTTP/2, it is shared.
    async fn connect_exclusive(&self, server: &Arc<Server>) -> Result<NewConnection, ConnectFault> {
        let opened = open_connection(server, server.protocol, &self.header).await?;
        if let NewConnection::Http2(connection) = &opened {
            self.add_connection(connection.clone());
        }
        Ok(opened)
    }

    /// Starts a connect that continues even if the request that started it is dropped.
    fn start_connect(self: &Rc<Self>, server: &Arc<Server>) -> Rc<PendingConnect> {
        let pending = Rc::new(PendingConnect::default());
        *self.pending_connect.borrow_mut() = Some(pending.clone());
        let (connections, server) = (self.clone(), server.clone());
        let started = pending.clone();
        tokio::task::spawn_local(async move {
            match open_connection(&server, server.protocol, &connections.header).await {
                Ok(NewConnection::Http2(connection)) => connections.add_connection(connection),
                Ok(NewConnection::Http1(connection)) => {
                    connections.speaks_http1.set(true);
                    started.exclusive.set(Some(connection));
                }
                Err(fault) => {
                    let _first = started.fault.set(fault);
                }
            }
            connections.pending_connect.borrow_mut().take();
            started.finished.notify_waiters();
        });
        pending
    }

    fn add_connection(&self, connection: Rc<Http2Connection>) {
        self.speaks_http1.set(false);
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

    /// Drains the connections to the addresses for which `is_gone` returns true; it gets their tags.
    pub(crate) fn drain_addresses(&self, is_gone: impl Fn(u32) -> bool) {
        for connection in self.connections.borrow().iter().filter(|one| is_gone(one.address)) {
            connection.is_draining.set(true);
        }
    }

    /// Lets each connection close with its last request.
    pub(crate) fn close_all(&self) {
        self.connections.borrow_mut().clear();
    }

    /// Forgets draining connections, and those that were idle for more than `span` ticks.
    pub(crate) fn sweep_idle(&self, span: u64) {
        let now = self.ticks.current_tick();
        self.connections.borrow_mut().retain(|connection| {
            let is_stale = connection.is_idle() && now.saturating_sub(connection.idle_since.get()) > span;
            connection.is_open() && !is_stale
        });
        // A paused connection may accept requests again.
        self.stream_freed.notify_waiters();
    }
}

impl Http2Stream {
    /// Sends a request, see [`Http2Connection::send_request`].
    pub(crate) async fn send_request(
        &self,
        request: &mut Option<Request<RequestBody>>,
        added: &AddedFields,
        slot: &mut ResponseSlot,
    ) -> SendOutcome {
        self.connection.send_request(request, added, slot, &self.connections.ticks).await
    }
}

impl Drop for Http2Stream {
    fn drop(&mut self) {
        self.connection.stream_count.update(|count| count.saturating_sub(1));
        if self.connection.is_idle() {
            self.connection.idle_since.set(self.connections.ticks.current_tick());
        }
        self.connections.stream_freed.notify_one();
    }
}
