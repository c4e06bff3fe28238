//! What the requests of one worker thread share, and what the requests of one connection share.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use http::header::{HOST, HeaderValue};
use http::uri::Authority;
use http::{HeaderMap, Request};
use tokio::sync::Semaphore;

use crate::base::clock::Now;
use crate::base::wall_clock::Wall;
use crate::limit::table::Key;
use crate::net::deadline::{ConnectionWatch, RequestWatch, Ticks, Watches, ticks};
use crate::net::socket::{Socket, Wire};
use crate::observe::access_log::LineWriter;
use crate::proxy::gateway::Gateway;
use crate::request::body::RequestBody;
use crate::request::headers::forwarded::{Proto, peer_value};
use crate::request::location;
use crate::request::location::HostError;
use crate::request::request_id::RequestIds;
use crate::request::source::{Token, Verifier};
use crate::shared::Session;
use crate::upstream::Pools;

/// Handshakes that may be under way at a time; each holds some kilobytes until it is done.
const HANDSHAKES_MAX: usize = 4096;

/// One worker thread, whatever gateway it serves by; nothing of it crosses to another thread.
pub struct Home {
    pub id: usize,
    pub watches: Watches,
    /// Turns for TLS handshakes.
    pub handshakes: Semaphore,
    worker: RefCell<Rc<Worker>>,
    /// Another process has the counters.
    left: Cell<bool>,
}

impl Home {
    pub fn new(id: usize, gateway: Arc<Gateway>) -> Home {
        let watches = Watches::default();
        let pools = Rc::new(Pools::new(watches.ticks.clone(), &gateway.servers));
        let session = gateway.store.as_ref().map(|store| Session::new(store, id));
        let worker = Worker::new(id, gateway, watches.ticks.clone(), pools, session);
        let handshakes = Semaphore::new(HANDSHAKES_MAX);
        let left = Cell::new(false);
        Home { id, watches, handshakes, worker: RefCell::new(Rc::new(worker)), left }
    }

    /// Judges no request from now on: who asks one has to ask the process that has the counters.
    pub fn leave(&self) {
        self.left.set(true);
        self.watches.each(ConnectionWatch::wake);
    }

    /// Judges again: nobody took the counters after all.
    pub fn stay(&self) {
        self.left.set(false);
    }

    #[inline]
    pub fn has_left(&self) -> bool {
        self.left.get()
    }

    /// Serves requests that begin from now on by `gateway`; those in flight end by the one they began with.
    pub fn serve_by(&self, gateway: Arc<Gateway>) {
        let next = self.worker.borrow().followed_by(gateway);
        self.worker.replace(Rc::new(next));
    }

    /// The worker for a new request, by the gateway of now.
    #[inline]
    pub fn worker(&self) -> Rc<Worker> {
        self.worker.borrow().clone()
    }
}

/// One worker by one gateway: what its requests need and share. It lasts as long as its last request.
pub struct Worker {
    pub id: usize,
    pub gateway: Arc<Gateway>,
    pub ticks: Rc<Ticks>,
    pub pools: Rc<Pools>,
    pub request_ids: RequestIds,
    pub wall: Wall,
    pub log: LineWriter,
    /// `None` = everything is counted here.
    pub session: Option<Rc<Session>>,
    verifier: Option<Verifier>,
}

impl Worker {
    fn new(
        id: usize,
        gateway: Arc<Gateway>,
        ticks: Rc<Ticks>,
        pools: Rc<Pools>,
        session: Option<Rc<Session>>,
    ) -> Worker {
        let log = gateway.access_log.writer(id);
        let wall = Wall::new(Now::read());
        let verifier = gateway.jwt.as_ref().map(|(jwt, claims)| Verifier::new(jwt, claims));
        Worker { id, gateway, ticks, pools, request_ids: RequestIds::new(), wall, log, session, verifier }
    }

    /// The same thread by another gateway: connections to servers and dealings with a store that stay go on.
    fn followed_by(&self, gateway: Arc<Gateway>) -> Worker {
        let session =
            gateway.store.as_ref().map(|store| Session::after(self.session.as_ref(), store, self.id));
        self.pools.follow(&gateway.servers);
        Worker::new(self.id, gateway, self.ticks.clone(), self.pools.clone(), session)
    }

    /// The token of a request that came at `now`, unless nobody asks tokens here.
    #[inline]
    pub fn token<'a>(&'a self, headers: &'a HeaderMap, now: Now) -> Option<Token<'a>> {
        let verifier = self.verifier.as_ref()?;
        Some(Token::new(verifier, headers, self.wall.unix_ms(now) / 1_000))
    }
}

/// Streams that a client may cancel on one connection before it matters how many it lets be answered.
const CANCELLED_MAX: u64 = 1_000;

/// What takes a connection over when its protocol is switched: given the connection and what was read beyond the
/// request, it runs to the end of the connection.
pub type Takeover = Box<dyn FnOnce(Wire) -> Pin<Box<dyn Future<Output = ()>>>>;

/// One client connection.
pub struct Connection {
    pub watch: Rc<ConnectionWatch>,
    pub socket: Rc<Socket>,
    /// Who is at its other end, or was announced there; `None` on a unix socket.
    pub peer: Option<IpAddr>,
    /// The peer as it stands in X-Forwarded-For, rendered once.
    pub peer_value: Option<HeaderValue>,
    pub proto: Proto,
    /// Who goes on with the connection once the switch of protocols is answered.
    pub takeover: RefCell<Option<Takeover>>,
    /// The key of limits by the peer's address, and the gateway it was made for; it serves every request that is not
    /// a proxy's.
    peer_key: Cell<Option<(u64, Key)>>,
    known_host: RefCell<KnownHost>,
    /// Of all requests, where one follows the other.
    request: Rc<RequestWatch>,
    /// Of the stream that has just begun, until it has a task.
    begun: RefCell<Option<Rc<RequestWatch>>>,
    requests: Cell<u64>,
    /// Requests that their client took back before they were answered.
    cancelled: Cell<u64>,
    /// The tick after which the connection is too old for another request.
    old_at: u64,
}

impl Connection {
    pub fn new(
        home: &Home,
        socket: Rc<Socket>,
        watch: Rc<ConnectionWatch>,
        peer: Option<IpAddr>,
        proto: Proto,
    ) -> Connection {
        let age = home.worker.borrow().gateway.server.keepalive_age;
        let now = home.watches.ticks.now();
        Connection {
            request: home.watches.open_request(&watch),
            watch,
            socket,
            peer,
            peer_value: peer.map(peer_value),
            proto,
            takeover: RefCell::new(None),
            peer_key: Cell::new(None),
            known_host: RefCell::default(),
            begun: RefCell::new(None),
            requests: Cell::new(0),
            cancelled: Cell::new(0),
            old_at: age.map_or(u64::MAX, |age| now.saturating_add(ticks(age))),
        }
    }

    /// The watch over a request that begins now.
    #[inline]
    pub fn request_watch(&self, home: &Home) -> Rc<RequestWatch> {
        if !self.watch.is_multiplexed() {
            return self.request.clone();
        }
        let watch = home.watches.open_request(&self.watch);
        *self.begun.borrow_mut() = Some(watch.clone());
        watch
    }

    /// The watch over the stream that has just begun.
    pub fn take_begun(&self) -> Option<Rc<RequestWatch>> {
        self.begun.borrow_mut().take()
    }

    /// Whether the request in flight takes so long that its client may have left meanwhile.
    #[inline]
    pub fn is_slow(&self) -> bool {
        self.request.is_slow()
    }

    /// The key of limits by the peer's address.
    #[inline]
    pub fn peer_key(&self, worker: &Worker) -> Option<Key> {
        let gateway = &worker.gateway;
        match self.peer_key.get() {
            Some((generation, key)) if generation == gateway.generation => Some(key),
            _ => {
                let key = gateway.keys.ip(gateway.clients.masked(self.peer?));
                self.peer_key.set(Some((gateway.generation, key)));
                Some(key)
            }
        }
    }

    /// The canonical host of a request.
    ///
    /// # Errors
    /// As [`location::host`].
    pub fn host<'r>(
        &self,
        request: &'r Request<RequestBody>,
        authority: Option<&'r Authority>,
    ) -> Result<Cow<'r, str>, HostError> {
        let mut lines = request.headers().get_all(HOST).iter();
        if let (Some(line), None, None) = (lines.next(), lines.next(), authority)
            && let Some(host) = self.known_host.borrow().canonical(line.as_bytes())
        {
            return Ok(Cow::Borrowed(host));
        }
        let host = location::host(request.version(), request.headers(), authority)?;
        // What an authority says is nothing that the line alone would say.
        if let (Cow::Borrowed(canonical), None, Some(line)) = (&host, authority, request.headers().get(HOST))
        {
            self.known_host.borrow_mut().remember(line.as_bytes(), canonical);
        }
        Ok(host)
    }

    /// Counts a stream whose client left before its answer. A client that does little else is asked to leave, and
    /// one that does not heed that is cut off: each cost the work of a request.
    pub fn count_cancelled(&self) {
        let cancelled = self.cancelled.get() + 1;
        self.cancelled.set(cancelled);
        if cancelled < CANCELLED_MAX || cancelled < self.requests.get() / 2 {
            return;
        }
        if cancelled >= 2 * CANCELLED_MAX {
            self.watch.abort_now();
        } else {
            self.watch.close_gracefully();
        }
    }

    /// Counts a request; true when it shall be the connection's last.
    pub fn count_request(&self, worker: &Worker) -> bool {
        let served = self.requests.get() + 1;
        self.requests.set(served);
        served >= worker.gateway.server.keepalive_requests || worker.ticks.now() >= self.old_at
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
