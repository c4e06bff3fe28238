//! What the requests of one worker thread share, and what the requests of one connection share.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;

use http::header::{HOST, HeaderValue};
use http::{HeaderMap, Request};
use hyper::body::Incoming;

use crate::access_log::LineWriter;
use crate::clock::Now;
use crate::deadline::{Watch, Watches, ticks};
use crate::forwarded::peer_value;
use crate::gateway::Gateway;
use crate::location::{self, HostError};
use crate::request_id::RequestIds;
use crate::socket::Socket;
use crate::source::{Token, Verifier};
use crate::state::Session;
use crate::table::Key;
use crate::upstream::Pools;
use crate::wall::Wall;

/// One worker's own things; nothing of it crosses to another thread.
pub struct Worker {
    pub id: usize,
    pub gateway: Arc<Gateway>,
    pub watches: Watches,
    pub pools: Rc<Pools>,
    pub request_ids: RequestIds,
    pub wall: Wall,
    pub log: LineWriter,
    /// `None` = everything is counted here.
    pub session: Option<Rc<Session>>,
    verifier: Option<Verifier>,
}

impl Worker {
    pub fn new(id: usize, gateway: Arc<Gateway>) -> Worker {
        let watches = Watches::default();
        let pools = Rc::new(Pools::new(watches.ticks.clone(), gateway.servers.len()));
        let log = gateway.access_log.writer(id);
        let wall = Wall::new(Now::read());
        let verifier = gateway.jwt.as_ref().map(|(jwt, claims)| Verifier::new(jwt, claims));
        let session = gateway.store.as_ref().map(|store| Session::new(store, id));
        Worker { id, gateway, watches, pools, request_ids: RequestIds::new(), wall, log, session, verifier }
    }

    /// The token of a request that came at `now`, unless nobody asks tokens here.
    #[inline]
    pub fn token<'a>(&'a self, headers: &'a HeaderMap, now: Now) -> Option<Token<'a>> {
        let verifier = self.verifier.as_ref()?;
        Some(Token::new(verifier, headers, self.wall.unix_ms(now) / 1_000))
    }
}

/// One client connection.
pub struct Connection {
    pub watch: Rc<Watch>,
    pub socket: Rc<Socket>,
    /// `None` on a unix socket.
    pub peer: Option<IpAddr>,
    /// The peer as it stands in X-Forwarded-For, rendered once.
    pub peer_value: Option<HeaderValue>,
    /// The key of limits by the peer's address; it serves every request that is not a proxy's.
    pub peer_key: Option<Key>,
    known_host: RefCell<KnownHost>,
    requests: Cell<u64>,
    /// The tick after which the connection is too old for another request.
    old_at: u64,
}

impl Connection {
    pub fn new(worker: &Worker, socket: Socket) -> Connection {
        let peer = socket.peer();
        let now = worker.watches.ticks.now();
        Connection {
            watch: worker.watches.open(),
            socket: Rc::new(socket),
            peer,
            peer_value: peer.map(peer_value),
            peer_key: peer.map(|ip| worker.gateway.keys.ip(worker.gateway.clients.masked(ip))),
            known_host: RefCell::default(),
            requests: Cell::new(0),
            old_at: worker
                .gateway
                .server
                .keepalive_age
                .map_or(u64::MAX, |age| now.saturating_add(ticks(age))),
        }
    }

    /// The canonical host of a request.
    ///
    /// # Errors
    /// As [`location::host`].
    pub fn host<'r>(&self, request: &'r Request<Incoming>) -> Result<Cow<'r, str>, HostError> {
        let mut lines = request.headers().get_all(HOST).iter();
        if let (Some(line), None, None) = (lines.next(), lines.next(), request.uri().authority())
            && let Some(host) = self.known_host.borrow().canonical(line.as_bytes())
        {
            return Ok(Cow::Borrowed(host));
        }
        let host = location::host(request.version(), request.headers(), request.uri())?;
        if let (Cow::Borrowed(canonical), Some(line)) = (&host, request.headers().get(HOST)) {
            self.known_host.borrow_mut().remember(line.as_bytes(), canonical);
        }
        Ok(host)
    }

    /// Counts a request; true when it shall be the connection's last.
    pub fn count_request(&self, worker: &Worker) -> bool {
        let served = self.requests.get() + 1;
        self.requests.set(served);
        served >= worker.gateway.server.keepalive_requests || worker.watches.ticks.now() >= self.old_at
    }
}

/// A Host value whose beginning is its canonical form; most requests of a connection name the same.
#[derive(Default)]
struct KnownHost {
    line: Box<[u8]>,
    canonical: usize,
}

impl KnownHost {
    #[inline]
    fn canonical<'r>(&self, line: &'r [u8]) -> Option<&'r str> {
        if self.canonical == 0 || *line != *self.line {
            return None;
        }
        str::from_utf8(&line[..self.canonical]).ok()
    }

    fn remember(&mut self, line: &[u8], canonical: &str) {
        if line.starts_with(canonical.as_bytes()) {
            *self = KnownHost { line: line.into(), canonical: canonical.len() };
        }
    }
}
