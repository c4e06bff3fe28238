//! A worker's HTTP/2 connections to one server: few, shared by its requests, opened one at a time.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use http::Request;
use tokio::sync::Notify;

use super::Multiplexed;
use crate::net::deadline::Ticks;
use crate::request::body::RequestBody;
use crate::upstream::connect::{ConnectFault, Opened, open};
use crate::upstream::http1::Http1;
use crate::upstream::pool::Pools;
use crate::upstream::response::{Answer, Sent};
use crate::upstream::server::{Server, Speech};

/// Connections to one server, of one worker, that are not leaving.
const CONNECTIONS_MAX: usize = 128;

/// What is known of a server's connections that requests share.
pub(crate) struct Streams {
    ticks: Rc<Ticks>,
    connections: RefCell<Vec<Rc<Multiplexed>>>,
    connecting: RefCell<Option<Rc<Connecting>>>,
    /// The server chose HTTP/1 last time.
    speaks_http1: Cell<bool>,
    /// A request ended: somebody who waits may take its place.
    freed: Notify,
}

/// A connect that several requests wait for.
#[derive(Default)]
struct Connecting {
    fault: OnceCell<ConnectFault>,
    /// A connection of HTTP/1, for the first of them.
    alone: Cell<Option<(Rc<Http1>, u32)>>,
    over: Notify,
}

/// One request on a connection; over when dropped.
pub(crate) struct Stream {
    connection: Rc<Multiplexed>,
    streams: Rc<Streams>,
}

/// What a request is sent on.
pub(crate) enum Way {
    /// A connection of HTTP/1, which is its own meanwhile.
    Alone(Rc<Http1>),
    Shared(Stream),
}

/// A way that was taken.
pub(crate) struct Taken {
    pub way: Way,
    /// The [`tag`](crate::upstream::dns::tag) of where one of HTTP/1 leads.
    pub address: u32,
    /// One of HTTP/1 has served before, or one of HTTP/2 stood unused for a while.
    pub may_be_closing: bool,
}

impl Taken {
    pub(crate) fn fresh(connection: Rc<Http1>, address: u32) -> Taken {
        Taken { way: Way::Alone(connection), address, may_be_closing: false }
    }
}

impl Streams {
    pub(crate) fn new(ticks: Rc<Ticks>) -> Rc<Streams> {
        Rc::new(Streams {
            ticks,
            connections: RefCell::default(),
            connecting: RefCell::default(),
            speaks_http1: Cell::default(),
            freed: Notify::new(),
        })
    }

    /// A place on the connection with the most requests that has one: so the others can become idle, and close.
    pub(crate) fn take(self: &Rc<Self>) -> Option<Taken> {
        let now = self.ticks.now();
        let connections = self.connections.borrow();
        let free = connections.iter().filter(|connection| connection.has_room(now));
        let connection = free.max_by_key(|connection| connection.streams())?.clone();
        let may_be_closing = connection.is_idle() && now > connection.idle_since.get() + 1;
        connection.enter();
        let stream = Stream { connection, streams: self.clone() };
        Some(Taken { way: Way::Shared(stream), address: 0, may_be_closing })
    }

    /// Waits for a place: on a connection that gets one free, or on a new one.
    ///
    /// # Errors
    /// When no connection comes about and there is none to wait for.
    pub(crate) async fn wait(
        self: &Rc<Self>,
        pools: &Rc<Pools>,
        server: &Arc<Server>,
    ) -> Result<Taken, ConnectFault> {
        let mut may_connect = true;
        loop {
            let freed = self.freed.notified();
            if let Some(taken) = self.take() {
                return Ok(taken);
            }
            if server.speech == Speech::Negotiated {
                if let Some(idle) = pools.take_idle(server) {
                    return Ok(idle);
                }
                if self.speaks_http1.get()
                    && let Opened::Http1(connection, address) = self.open_own(server).await?
                {
                    return Ok(Taken::fresh(connection, address));
                }
            }
            let connecting = self.connecting.borrow().clone();
            let connecting = match connecting {
                Some(connecting) => connecting,
                None if (may_connect || !self.is_any_open()) && self.has_space() => self.connect(server),
                None => {
                    freed.await;
                    continue;
                }
            };
            tokio::select! {
                () = freed => {}
                () = connecting.over.notified() => {}
            }
            // Both may have come at once.
            if let Some((connection, address)) = connecting.alone.take() {
                return Ok(Taken::fresh(connection, address));
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
    async fn open_own(&self, server: &Arc<Server>) -> Result<Opened, ConnectFault> {
        let opened = open(server, server.speech).await?;
        if let Opened::Http2(connection) = &opened {
            self.speaks_http1.set(false);
            self.add(connection.clone());
        }
        Ok(opened)
    }

    /// Begins a connect that goes on if the request that began it is given up.
    fn connect(self: &Rc<Self>, server: &Arc<Server>) -> Rc<Connecting> {
        let connecting = Rc::new(Connecting::default());
        *self.connecting.borrow_mut() = Some(connecting.clone());
        let (streams, server) = (self.clone(), server.clone());
        let begun = connecting.clone();
        tokio::task::spawn_local(async move {
            match open(&server, server.speech).await {
                Ok(Opened::Http2(connection)) => {
                    streams.speaks_http1.set(false);
                    streams.add(connection);
                }
                Ok(Opened::Http1(connection, address)) => {
                    streams.speaks_http1.set(true);
                    begun.alone.set(Some((connection, address)));
                }
                Err(fault) => {
                    let _first = begun.fault.set(fault);
                }
            }
            streams.connecting.borrow_mut().take();
            begun.over.notify_waiters();
        });
        connecting
    }

    fn add(&self, connection: Rc<Multiplexed>) {
        connection.idle_since.set(self.ticks.now());
        self.connections.borrow_mut().push(connection);
    }

    fn has_space(&self) -> bool {
        let mut connections = self.connections.borrow_mut();
        connections.retain(|connection| connection.is_open());
        connections.len() < CONNECTIONS_MAX
    }

    pub(crate) fn is_any_open(&self) -> bool {
        self.connections.borrow().iter().any(|connection| connection.is_open())
    }

    /// Sends no more requests to the addresses, by their tags, that `is_gone` holds for.
    pub(crate) fn leave(&self, is_gone: impl Fn(u32) -> bool) {
        for connection in self.connections.borrow().iter().filter(|one| is_gone(one.address)) {
            connection.take_no_more();
        }
    }

    /// Keeps no connection for later: each closes with its last request.
    pub(crate) fn close(&self) {
        self.connections.borrow_mut().clear();
    }

    /// Forgets connections that are leaving, and those that stood unused for more than `span` ticks.
    pub(crate) fn sweep(&self, span: u64) {
        let now = self.ticks.now();
        self.connections.borrow_mut().retain(|connection| {
            let is_stale = connection.is_idle() && now.saturating_sub(connection.idle_since.get()) > span;
            connection.is_open() && !is_stale
        });
        // One that rested may take requests again.
        self.freed.notify_waiters();
    }
}

impl Stream {
    /// As [`Multiplexed::send`].
    pub(crate) async fn send(&self, request: &mut Option<Request<RequestBody>>, answer: &mut Answer) -> Sent {
        self.connection.send(request, answer, &self.streams.ticks).await
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.connection.leave() {
            self.connection.idle_since.set(self.streams.ticks.now());
        }
        self.streams.freed.notify_one();
    }
}
