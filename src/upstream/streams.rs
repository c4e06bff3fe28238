//! A worker's HTTP/2 connections to one server: few, shared by its requests, opened one at a time.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;

use super::connect::{ConnectFault, Opened, open};
use super::multiplexed::Multiplexed;
use super::pool::{Alone, Pools};
use super::server::{Server, Speech};
use crate::deadline::Ticks;

/// Connections to one server, of one worker, that are not leaving.
const CONNECTIONS_MAX: usize = 128;

/// What is known of a server's connections that requests share.
#[derive(Default)]
pub(super) struct Streams {
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
    alone: Cell<Option<Alone>>,
    over: Notify,
}

/// One request on a connection; over when dropped.
pub(super) struct Stream {
    pub connection: Rc<Multiplexed>,
    streams: Rc<Streams>,
    ticks: Rc<Ticks>,
}

/// What a request may be sent on.
pub(super) enum Way {
    Alone(Alone),
    Shared {
        stream: Stream,
        /// As [`super::pool::Lease::may_be_closing`].
        rested: bool,
    },
}

impl Streams {
    /// A place on the connection with the most requests that has one: so the others can become idle, and close.
    pub(super) fn take(self: &Rc<Self>, ticks: &Rc<Ticks>) -> Option<Way> {
        let now = ticks.now();
        let connections = self.connections.borrow();
        let free = connections.iter().filter(|connection| connection.has_room(now));
        let connection = free.max_by_key(|connection| connection.streams())?.clone();
        let rested = connection.is_idle() && now > connection.idle_since.get() + 1;
        connection.enter();
        let stream = Stream { connection, streams: self.clone(), ticks: ticks.clone() };
        Some(Way::Shared { stream, rested })
    }

    /// Waits for a place: on a connection that gets one free, or on a new one.
    ///
    /// # Errors
    /// When no connection comes about and there is none to wait for.
    pub(super) async fn wait(
        self: &Rc<Self>,
        pools: &Rc<Pools>,
        server: &Arc<Server>,
    ) -> Result<Way, ConnectFault> {
        let mut may_connect = true;
        loop {
            let freed = self.freed.notified();
            if let Some(way) = self.take(pools.ticks()) {
                return Ok(way);
            }
            if server.speech == Speech::Negotiated {
                if let Some(idle) = pools.take_idle(server) {
                    return Ok(Way::Alone(idle));
                }
                if self.speaks_http1.get()
                    && let Opened::Http1(sender, address) = self.open_own(pools, server).await?
                {
                    return Ok(Way::Alone(Alone::fresh(sender, address)));
                }
            }
            let connecting = self.connecting.borrow().clone();
            let connecting = match connecting {
                Some(connecting) => connecting,
                None if may_connect && self.has_space() => self.connect(pools, server),
                None => {
                    freed.await;
                    continue;
                }
            };
            tokio::select! {
                () = freed => {}
                () = connecting.over.notified() => {
                    if let Some(alone) = connecting.alone.take() {
                        return Ok(Way::Alone(alone));
                    }
                    if let Some(fault) = connecting.fault.get() {
                        if !self.is_any_open() {
                            return Err(fault.clone());
                        }
                        may_connect = false;
                    }
                }
            }
        }
    }

    /// A connection for this request alone, unless the server now chooses HTTP/2: then it is everybody's.
    async fn open_own(
        self: &Rc<Self>,
        pools: &Rc<Pools>,
        server: &Arc<Server>,
    ) -> Result<Opened, ConnectFault> {
        let opened = open(server).await?;
        if let Opened::Http2(connection) = &opened {
            self.speaks_http1.set(false);
            self.add(connection.clone(), pools);
        }
        Ok(opened)
    }

    /// Begins a connect that goes on if the request that began it is given up.
    fn connect(self: &Rc<Self>, pools: &Rc<Pools>, server: &Arc<Server>) -> Rc<Connecting> {
        let connecting = Rc::new(Connecting::default());
        *self.connecting.borrow_mut() = Some(connecting.clone());
        let (streams, pools, server) = (self.clone(), pools.clone(), server.clone());
        let begun = connecting.clone();
        tokio::task::spawn_local(async move {
            match open(&server).await {
                Ok(Opened::Http2(connection)) => {
                    streams.speaks_http1.set(false);
                    streams.add(connection, &pools);
                }
                Ok(Opened::Http1(sender, address)) => {
                    streams.speaks_http1.set(true);
                    begun.alone.set(Some(Alone::fresh(sender, address)));
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

    fn add(&self, connection: Rc<Multiplexed>, pools: &Pools) {
        connection.idle_since.set(pools.ticks().now());
        self.connections.borrow_mut().push(connection);
    }

    fn has_space(&self) -> bool {
        let mut connections = self.connections.borrow_mut();
        connections.retain(|connection| connection.is_open());
        connections.len() < CONNECTIONS_MAX
    }

    pub(super) fn is_any_open(&self) -> bool {
        self.connections.borrow().iter().any(|connection| connection.is_open())
    }

    /// Sends no more requests to the addresses, by their tags, that `is_gone` holds for.
    pub(super) fn leave(&self, is_gone: impl Fn(u32) -> bool) {
        for connection in self.connections.borrow().iter().filter(|one| is_gone(one.address)) {
            connection.take_no_more();
        }
    }

    /// Forgets connections that are leaving, and those that stood unused for more than `span` ticks.
    pub(super) fn sweep(&self, now: u64, span: u64) {
        self.connections.borrow_mut().retain(|connection| {
            let is_stale = connection.is_idle() && now.saturating_sub(connection.idle_since.get()) > span;
            connection.is_open() && !is_stale
        });
        // One that rested may take requests again.
        self.freed.notify_waiters();
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.connection.leave() {
            self.connection.idle_since.set(self.ticks.now());
        }
        self.streams.freed.notify_one();
    }
}
