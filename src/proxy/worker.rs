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
use crate::base::wall_clock::WallClock;
use crate::limit::table::CounterKey;
use crate::net::deadline::{ConnectionWatch, RequestWatch, TickCounter, WatchList, ticks_for};
use crate::net::socket::{ClientStream, Socket};
use crate::observe::access_log::LineWriter;
use crate::proxy::gateway::Gateway;
use crate::request::body::RequestBody;
use crate::request::headers::forwarded::{Proto, peer_value};
use crate::request::location;
use crate::request::location::HostError;
use crate::request::request_id::RequestIds;
use crate::request::source::{Token, TokenVerifier};
use crate::shared::Session;
use crate::upstream::Pools;

/// Handshakes that may be under way at a time; each holds some kilobytes until it is done.
const HANDSHAKES_MAX: usize = 4096;

/// One worker thread, whatever gateway it serves by; nothing of it crosses to another thread.
pub struct WorkerThread {
    pub id: usize,
    pub watches: WatchList,
    /// Turns for TLS handshakes.
    pub handshakes: Semaphore,
    worker: RefCell<Rc<Worker>>,
    /// Another process has the counters.
    handed_over: Cell<bool>,
}

impl WorkerThread {
    pub fn new(id: usize, gateway: Arc<Gateway>) -> WorkerThread {
        let watches = WatchList::default();
        let pools = Rc::new(Pools::new(watches.ticks.clone(), &gateway.servers));
        let session = gateway.store.as_ref().map(|store| Session::new(store, id));
        let worker = Worker::new(id, gateway, watches.ticks.clone(), pools, session);
        let handshakes = Semaphore::new(HANDSHAKES_MAX);
        let left = Cell::new(false);
        WorkerThread { id, watches, handshakes, worker: RefCell::new(Rc::new(worker)), handed_over: left }
    }

    /// Judges no request from now on: who asks one has to ask the process that has the counters.
    pub fn stop_judging(&self) {
        self.handed_over.set(true);
        self.watches.for_each_connection(ConnectionWatch::wake_task);
    }

    /// Judges again: nobody took the counters after all.
    pub fn resume_judging(&self) {
        self.handed_over.set(false);
    }

    #[inline]
    pub fn has_stopped_judging(&self) -> bool {
        self.handed_over.get()
    }

    /// Serves requests that begin from now on by `gateway`; those in flight end by the one they began with.
    pub fn switch_gateway(&self, gateway: Arc<Gateway>) {
        let next = self.worker.borrow().with_gateway(gateway);
        self.worker.replace(Rc::new(next));
    }

    /// The worker for a new request, by the gateway of now.
    #[inline]
    pub fn current_worker(&self) -> Rc<Worker> {
        self.worker.borrow().clone()
    }
}

/// One worker by one gateway: what its requests need and share. It lasts as long as its last request.
pub struct Worker {
    pub id: usize,
    pub gateway: Arc<Gateway>,
    pub ticks: Rc<TickCounter>,
    pub pools: Rc<Pools>,
    pub request_ids: RequestIds,
    pub wall_clock: WallClock,
    pub log: LineWriter,
    /// `None` = everything is counted here.
    pub session: Option<Rc<Session>>,
    verifier: Option<TokenVerifier>,
}

impl Worker {
    fn new(
        id: usize,
        gateway: Arc<Gateway>,
        ticks: Rc<TickCounter>,
        pools: Rc<Pools>,
        session: Option<Rc<Session>>,
    ) -> Worker {
        let log = gateway.access_log.line_writer(id);
        let wall = WallClock::new(Now::read_clock());
        let verifier = gateway.jwt.as_ref().map(|(jwt, claims)| TokenVerifier::new(jwt, claims));
        Worker {
            id,
            gateway,
            ticks,
            pools,
            request_ids: RequestIds::new(),
            wall_clock: wall,
            log,
            session,
            verifier,
        }
    }

    /// The same thread by another gateway: connections to servers and dealings with a store that stay go on.
    fn with_gateway(&self, gateway: Arc<Gateway>) -> Worker {
        let session =
            gateway.store.as_ref().map(|store| Session::adopt_from(self.session.as_ref(), store, self.id));
        self.pools.update_servers(&gateway.servers);
        Worker::new(self.id, gateway, self.ticks.clone(), self.pools.clone(), session)
    }

    /// The token of a request that came at `now`, unless nobody asks tokens here.
    #[inline]
    pub fn read_token<'a>(&'a self, headers: &'a HeaderMap, now: Now) -> Option<Token<'a>> {
        let verifier = self.verifier.as_ref()?;
        Some(Token::new(verifier, headers, self.wall_clock.unix_ms(now) / 1_000))
    }
}

/// Streams that a client may cancel on one connection before it matters how many it lets be answered.
const CANCELLED_MAX: u64 = 1_000;

/// What takes a connection over when its protocol is switched: given the connection and what was read beyond the
/// request, it runs to the end of the connection.
pub type Takeover = Box<dyn FnOnce(ClientStream) -> Pin<Box<dyn Future<Output = ()>>>>;

/// One client connection.
pub struct ClientConnection {
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
    peer_key: Cell<Option<(u64, CounterKey)>>,
    host_cache: RefCell<HostCache>,
    /// Of all requests, where one follows the other.
    http1_watch: Rc<RequestWatch>,
    /// Of the stream that has just begun, until it has a task.
    stream_watch: RefCell<Option<Rc<RequestWatch>>>,
    requests: Cell<u64>,
    /// Requests that their client took back before they were answered.
    cancelled: Cell<u64>,
    /// The tick after which the connection is too old for another request.
    expires_at: u64,
}

impl ClientConnection {
    pub fn new(
        home: &WorkerThread,
        socket: Rc<Socket>,
        watch: Rc<ConnectionWatch>,
        peer: Option<IpAddr>,
        proto: Proto,
    ) -> ClientConnection {
        let age = home.worker.borrow().gateway.server.keepalive_age;
        let now = home.watches.ticks.current_tick();
        ClientConnection {
            http1_watch: home.watches.watch_request(&watch),
            watch,
            socket,
            peer,
            peer_value: peer.map(peer_value),
            proto,
            takeover: RefCell::new(None),
            peer_key: Cell::new(None),
            host_cache: RefCell::default(),
            stream_watch: RefCell::new(None),
            requests: Cell::new(0),
            cancelled: Cell::new(0),
            expires_at: age.map_or(u64::MAX, |age| now.saturating_add(ticks_for(age))),
        }
    }

    /// The watch over a request that begins now.
    #[inline]
    pub fn open_request_watch(&self, home: &WorkerThread) -> Rc<RequestWatch> {
        if !self.watch.is_multiplexed() {
            return self.http1_watch.clone();
        }
        let watch = home.watches.watch_request(&self.watch);
        *self.stream_watch.borrow_mut() = Some(watch.clone());
        watch
    }

    /// The watch over the stream that has just begun.
    pub fn take_stream_watch(&self) -> Option<Rc<RequestWatch>> {
        self.stream_watch.borrow_mut().take()
    }

    /// Whether the request in flight takes so long that its client may have left meanwhile.
    #[inline]
    pub fn is_request_slow(&self) -> bool {
        self.http1_watch.is_slow()
    }

    /// The key of limits by the peer's address.
    #[inline]
    pub fn peer_key(&self, worker: &Worker) -> Option<CounterKey> {
        let gateway = &worker.gateway;
        match self.peer_key.get() {
            Some((generation, key)) if generation == gateway.generation => Some(key),
            _ => {
                let key = gateway.keys.hash_ip(gateway.clients.mask_address(self.peer?));
                self.peer_key.set(Some((gateway.generation, key)));
                Some(key)
            }
        }
    }

    /// The canonical host of a request.
    ///
    /// # Errors
    /// As [`location::host`].
    pub fn canonical_host<'r>(
        &self,
        request: &'r Request<RequestBody>,
        authority: Option<&'r Authority>,
    ) -> Result<Cow<'r, str>, HostError> {
        let mut lines = request.headers().get_all(HOST).iter();
        if let (Some(line), None, None) = (lines.next(), lines.next(), authority)
            && let Some(host) = self.host_cache.borrow().find_canonical(line.as_bytes())
        {
            return Ok(Cow::Borrowed(host));
        }
        let host = location::request_host(request.version(), request.headers(), authority)?;
        // What an authority says is nothing that the line alone would say.
        if let (Cow::Borrowed(canonical), None, Some(line)) = (&host, authority, request.headers().get(HOST))
        {
            self.host_cache.borrow_mut().remember_host(line.as_bytes(), canonical);
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
        served >= worker.gateway.server.keepalive_requests || worker.ticks.current_tick() >= self.expires_at
    }
}

/// A Host value whose beginning is its canonical form; most requests of a connection name the same.
#[derive(Default)]
struct HostCache {
    line: Box<[u8]>,
    canonical_len: usize,
}

impl HostCache {
    #[inline]
    fn find_canonical<'r>(&self, line: &'r [u8]) -> Option<&'r str> {
        if self.canonical_len == 0 || *line != *self.line {
            return None;
        }
        str::from_utf8(&line[..self.canonical_len]).ok()
    }

    fn remember_host(&mut self, line: &[u8], canonical: &str) {
        if line.starts_with(canonical.as_bytes()) {
            *self = HostCache { line: line.into(), canonical_len: canonical.len() };
        }
    }
}
