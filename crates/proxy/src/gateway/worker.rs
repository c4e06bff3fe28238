//! The state that the requests of one worker thread share, and that of one client connection.
//!
//! [`WorkerThread`] lasts as long as its thread; a [`Worker`] is that thread with one gateway. A request takes the
//! current worker and keeps it to its end, so a reload never changes the gateway of a request in flight.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::header::{HOST, HeaderValue};
use http::uri::Authority;
use http::{HeaderMap, StatusCode, Version};
use tokio::sync::Semaphore;

use crate::gateway::Gateway;
use crate::gateway::auth::AuthAnswers;
use crate::gateway::heavy_keys::WorkerHeavyKeys;
use sluicegate_base::clock::Now;
use sluicegate_base::wall_clock::WallClock;
use sluicegate_http::net::deadline::{
    ConnectionWatch, ListenerTerms, RequestWatch, SweepCounter, WatchList, ticks_for,
};
use sluicegate_http::net::proxy_protocol::announce_client;
use sluicegate_http::net::socket::{ClientStream, Socket};
use sluicegate_http::request::client::UNIX_CLIENT;
use sluicegate_http::request::headers::forwarded::peer_value;
use sluicegate_http::request::location::{self, HostError};
use sluicegate_http::request::request_id::RequestIds;
use sluicegate_http::request::source::{Token, TokenVerifier};
use sluicegate_http::upstream::{Pools, Upstream};
use sluicegate_limit::Units;
use sluicegate_limit::table::CounterKey;
use sluicegate_model::{ListenerPurpose, Scheme};
use sluicegate_observe::access_log::LineWriter;
use sluicegate_observe::traces::WorkerTracer;
use sluicegate_store::Session;

/// The demand of a request on one quota.
pub struct QuotaDemand {
    /// Its index in the chain.
    pub limit_index: usize,
    /// The units, with the key.
    pub units: Units,
    /// The name of its key, if a counter here is still without it.
    pub name: Option<String>,
}

/// Concurrent TLS handshakes per worker; each holds some kilobytes until it ends.
const HANDSHAKES_MAX: usize = 4096;

/// One worker thread, independent of the gateway in force. None of it crosses to another thread.
pub struct WorkerThread {
    /// The index of the worker, from 0.
    pub id: usize,
    /// The deadlines of its connections and requests.
    pub watches: WatchList,
    /// Permits for TLS handshakes.
    pub handshakes: Semaphore,
    worker: RefCell<Rc<Worker>>,
    /// Another process has taken over the counters.
    handed_over: Cell<bool>,
}

impl WorkerThread {
    /// A thread with new connections to servers, which begins with `gateway`.
    pub fn new(id: usize, gateway: Arc<Gateway>) -> WorkerThread {
        let watches = WatchList::default();
        let pools = Rc::new(Pools::new(watches.ticks.clone(), &gateway.servers));
        let session = gateway.store.as_ref().map(|store| Session::new(store, id));
        let heavy_keys = WorkerHeavyKeys::adopt_from(None, &gateway, Now::read_clock());
        let worker = Worker::new(id, gateway, watches.ticks.clone(), pools, session, heavy_keys);
        let handshakes = Semaphore::new(HANDSHAKES_MAX);
        let worker = RefCell::new(Rc::new(worker));
        WorkerThread { id, watches, handshakes, worker, handed_over: Cell::new(false) }
    }

    /// Stops judging requests: only the process that holds the counters may judge them.
    pub fn stop_judging(&self) {
        self.handed_over.set(true);
        self.watches.for_each_connection(ConnectionWatch::wake_task);
    }

    /// Judges requests again, because the handover of the counters failed.
    pub fn resume_judging(&self) {
        self.handed_over.set(false);
    }

    /// True if another process has taken over the counters, so that no request may be judged here.
    pub fn has_stopped_judging(&self) -> bool {
        self.handed_over.get()
    }

    /// Serves new requests with `gateway`; requests in flight keep the gateway they began with.
    pub fn switch_gateway(&self, gateway: Arc<Gateway>) {
        let next = self.worker.borrow().with_gateway(gateway);
        self.worker.replace(Rc::new(next));
    }

    /// The worker for a new request, with the gateway in force.
    #[inline]
    pub fn current_worker(&self) -> Rc<Worker> {
        self.worker.borrow().clone()
    }
}

/// One worker thread with one gateway, shared by its requests. It lasts as long as the last of them.
pub struct Worker {
    /// The index of the worker, from 0.
    pub id: usize,
    /// The gateway that serves its requests from their start to their end.
    pub gateway: Arc<Gateway>,
    /// The ticks of the thread, by which deadlines are measured.
    pub ticks: Rc<SweepCounter>,
    /// The connections to servers, shared with the thread's other gateways.
    pub pools: Rc<Pools>,
    /// The maker of request ids, with a random start of its own.
    pub request_ids: RequestIds,
    /// The conversion of moments into times of day.
    pub wall_clock: WallClock,
    /// The worker's end of the access log.
    pub log: LineWriter,
    /// `None` = no spans are made.
    pub tracer: Option<WorkerTracer>,
    /// The heaviest keys and the last refusals, counted by this worker.
    pub heavy_keys: WorkerHeavyKeys,
    /// The demands on quotas of the request that is being judged.
    pub quotas: RefCell<Vec<QuotaDemand>>,
    /// `None` = no limit is counted in the store.
    pub session: Option<Rc<Session>>,
    /// The questions to auth services, and their answers.
    pub auth: AuthAnswers,
    verifier: Option<TokenVerifier>,
}

impl Worker {
    /// Pauses the requests of `key` behind one that was `sent` if the response asks for it, and tells other gateways.
    pub fn hear_pushback(
        &self,
        upstream: &Upstream,
        key: &CounterKey,
        sent: Now,
        head: (StatusCode, &HeaderMap),
    ) {
        let unix_s = || self.wall_clock.unix_ms(Now::read_clock()) / 1_000;
        if let Some(pause) = upstream.hear_pushback(key, sent, head, unix_s) {
            self.gateway.tell_pause(upstream, pause);
        }
    }

    fn new(
        id: usize,
        gateway: Arc<Gateway>,
        ticks: Rc<SweepCounter>,
        pools: Rc<Pools>,
        session: Option<Rc<Session>>,
        heavy_keys: WorkerHeavyKeys,
    ) -> Worker {
        let log = gateway.access_log.line_writer(id);
        let tracer = gateway.tracer.as_ref().map(WorkerTracer::new);
        let wall_clock = WallClock::new(Now::read_clock());
        let verifier = gateway.callers.tokens.as_ref().map(TokenVerifier::new);
        Worker {
            id,
            auth: AuthAnswers::new(&gateway.config),
            gateway,
            ticks,
            pools,
            request_ids: RequestIds::default(),
            wall_clock,
            log,
            tracer,
            heavy_keys,
            quotas: RefCell::default(),
            session,
            verifier,
        }
    }

    /// The same thread with another gateway: connections to servers, the session with an unchanged store, and the
    /// counts of heavy keys continue.
    fn with_gateway(&self, gateway: Arc<Gateway>) -> Worker {
        let session =
            gateway.store.as_ref().map(|store| Session::adopt_from(self.session.as_ref(), store, self.id));
        self.pools.update_servers(&gateway.servers);
        let heavy_keys = WorkerHeavyKeys::adopt_from(Some(&self.heavy_keys), &gateway, Now::read_clock());
        Worker::new(self.id, gateway, self.ticks.clone(), self.pools.clone(), session, heavy_keys)
    }

    /// The token of a request that arrived at `now`; `None` if the configuration uses no tokens.
    #[inline]
    pub fn read_token<'a>(&'a self, headers: &'a HeaderMap, now: Now) -> Option<Token<'a>> {
        let verifier = self.verifier.as_ref()?;
        Some(Token::new(verifier, headers, self.wall_clock.unix_ms(now) / 1_000))
    }

    /// A token with these claims, which its reader states; `None` if the configuration uses no tokens.
    pub fn state_claims<'a>(
        &'a self,
        headers: &'a HeaderMap,
        claims: &[(String, String)],
    ) -> Option<Token<'a>> {
        Some(Token::with_claims(self.verifier.as_ref()?, headers, claims))
    }
}

/// Streams that a client may cancel on one connection before their share of its requests is checked.
const CANCELLED_MAX: u64 = 1_000;

/// Takes over a connection after a switch of protocols. It gets the connection with the bytes that were read beyond the
/// request, and runs to the end of the connection.
pub type Takeover = Box<dyn FnOnce(ClientStream) -> Pin<Box<dyn Future<Output = ()>>>>;

/// One client connection, shared by its requests.
pub struct ClientConnection {
    /// The deadlines of the connection.
    pub watch: Rc<ConnectionWatch>,
    /// `None` for a request that did not come over a socket.
    pub socket: Option<Rc<Socket>>,
    /// The address at its other end, or the one that a PROXY header announced; `None` on a unix socket.
    pub peer: Option<IpAddr>,
    /// The peer's value in X-Forwarded-For, rendered once.
    pub peer_value: Option<HeaderValue>,
    /// The scheme of requests, unless a trusted proxy tells another.
    pub scheme: Scheme,
    /// The listener that accepted it; `None` for a request that did not come over a socket.
    listener: Option<Arc<ListenerTerms>>,
    /// Takes over the connection once the response that switches protocols is sent.
    pub takeover: RefCell<Option<Takeover>>,
    /// The peer's key for limits by address, with the generation of its gateway; valid for every request that does not
    /// come from a trusted proxy.
    peer_key: Cell<Option<(u64, CounterKey)>>,
    host_cache: RefCell<HostCache>,
    /// The connections to servers that announce its last client; `None` = no server was told one.
    announced_pools: RefCell<Option<Rc<Pools>>>,
    /// The watch of all HTTP/1 requests, which follow one another.
    http1_watch: Rc<RequestWatch>,
    /// The watch of the stream that has just begun, until the stream has a task.
    stream_watch: RefCell<Option<Rc<RequestWatch>>>,
    requests: Cell<u64>,
    /// Streams that the client cancelled before their response.
    cancelled: Cell<u64>,
    /// The tick at which the connection is too old for another request.
    expires_at: u64,
}

impl ClientConnection {
    /// A connection that `thread` serves; it expires after the `server.keepalive_age` in force now.
    pub fn new(
        thread: &WorkerThread,
        socket: Option<Rc<Socket>>,
        watch: Rc<ConnectionWatch>,
        peer: Option<IpAddr>,
        scheme: Scheme,
        listener: Option<Arc<ListenerTerms>>,
    ) -> ClientConnection {
        let age = thread.worker.borrow().gateway.config.server.keepalive_age;
        let now = thread.watches.ticks.current_tick();
        ClientConnection {
            http1_watch: thread.watches.watch_request(&watch),
            watch,
            socket,
            peer,
            peer_value: peer.map(peer_value),
            scheme,
            listener,
            takeover: RefCell::new(None),
            peer_key: Cell::new(None),
            host_cache: RefCell::default(),
            announced_pools: RefCell::default(),
            stream_watch: RefCell::new(None),
            requests: Cell::new(0),
            cancelled: Cell::new(0),
            expires_at: age.map_or(u64::MAX, |age| now.saturating_add(ticks_for(age))),
        }
    }

    /// The name of the listener; `None` = it has none, or the connection was not accepted by one.
    pub fn listener_name(&self) -> Option<Arc<String>> {
        self.listener.as_ref()?.name()
    }

    /// True if its requests are calls of the rate-limit service.
    pub fn is_for_service(&self) -> bool {
        self.listener.as_ref().is_some_and(|terms| terms.purpose() == ListenerPurpose::Calls)
    }

    /// The watch over a request that begins now.
    #[inline]
    pub fn open_request_watch(&self, thread: &WorkerThread) -> Rc<RequestWatch> {
        if !self.watch.is_multiplexed() {
            return self.http1_watch.clone();
        }
        let watch = thread.watches.watch_request(&self.watch);
        *self.stream_watch.borrow_mut() = Some(watch.clone());
        watch
    }

    /// The watch over the stream that has just begun.
    pub fn take_stream_watch(&self) -> Option<Rc<RequestWatch>> {
        self.stream_watch.borrow_mut().take()
    }

    /// True if the request in flight takes so long that its client may have left.
    #[inline]
    pub fn is_request_slow(&self) -> bool {
        self.http1_watch.is_slow()
    }

    /// The connections to servers that announce `client`, as limits see it; `pools` are the worker's. If one connection
    /// carries the requests of several clients, connections are kept for the last of them.
    pub fn announced_pools(&self, pools: &Rc<Pools>, client: IpAddr) -> Rc<Pools> {
        let mut announced = self.announced_pools.borrow_mut();
        if let Some(known) = announced.as_ref().filter(|known| known.announces(client)) {
            return known.clone();
        }
        let [peer, listener] = self.socket.as_ref().map_or([None, None], |socket| socket.addresses());
        // A client that a header told has no port here.
        let port = peer.filter(|peer| peer.ip().to_canonical() == client).map_or(0, |peer| peer.port());
        let source = (client != UNIX_CLIENT).then(|| SocketAddr::new(client, port));
        announced.insert(pools.for_client(client, announce_client(source, listener))).clone()
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
    /// As [`location::request_host`].
    pub fn canonical_host<'r>(
        &self,
        version: Version,
        headers: &'r HeaderMap,
        authority: Option<&'r Authority>,
    ) -> Result<Cow<'r, str>, HostError> {
        // Nearly every client sends Host first. In a head without repeated fields it is the only one.
        let has_no_repeats = headers.len() == headers.keys_len();
        if let (None, true, Some((&HOST, line))) = (authority, has_no_repeats, headers.iter().next())
            && let Some(host) = self.host_cache.borrow().find_canonical(line)
        {
            return Ok(Cow::Borrowed(host));
        }
        let host = location::request_host(version, headers, authority)?;
        // A host that comes from an authority is not cached: the Host line alone would not yield it.
        if let (Cow::Borrowed(canonical), None, Some(line)) = (&host, authority, headers.get(HOST)) {
            self.host_cache.borrow_mut().remember_host(line.as_bytes(), canonical);
        }
        Ok(host)
    }

    /// Resolves when the client hung up; never for a connection without a socket.
    pub async fn wait_for_hangup(&self) {
        match &self.socket {
            Some(socket) => socket.wait_for_hangup().await,
            None => std::future::pending().await,
        }
    }

    /// True if the kernel holds bytes of the client that are not read yet.
    pub fn has_unread(&self) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.has_unread())
    }

    /// Resets the connection when it is closed, so that a client does not take a cut response for a whole one.
    pub fn reset_on_close(&self) {
        if let Some(socket) = &self.socket {
            socket.reset_on_close();
        }
    }

    /// Counts a stream that was cancelled before its response. Each costs the work of a request, so a client that
    /// cancels most of its streams gets a GOAWAY, and its connection is aborted if it goes on.
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

    /// Counts a request; true when it must be the connection's last.
    pub fn count_request(&self, worker: &Worker) -> bool {
        let served = self.requests.get() + 1;
        self.requests.set(served);
        served >= worker.gateway.config.server.keepalive_requests
            || worker.ticks.current_tick() >= self.expires_at
    }
}

/// The last Host value that begins with its canonical form; most requests of a connection repeat it.
#[derive(Default)]
struct HostCache {
    line: Box<[u8]>,
    canonical_len: usize,
}

impl HostCache {
    #[inline]
    fn find_canonical<'r>(&self, line: &'r HeaderValue) -> Option<&'r str> {
        if self.canonical_len == 0 || *line.as_bytes() != *self.line {
            return None;
        }
        line.to_str().ok()?.get(..self.canonical_len)
    }

    fn remember_host(&mut self, line: &[u8], canonical: &str) {
        if line.starts_with(canonical.as_bytes()) {
            *self = HostCache { line: line.into(), canonical_len: canonical.len() };
        }
    }
}

/// One of the requests in flight, counted out by `Drop`.
pub struct RequestInFlight(Arc<AtomicUsize>);

impl RequestInFlight {
    /// Counts a request as in flight; `None` if `max` are already.
    pub fn try_count(count: &Arc<AtomicUsize>, max: usize) -> Option<RequestInFlight> {
        let before = count.fetch_add(1, Ordering::Relaxed);
        // Above the maximum, dropping it counts it out again.
        let in_flight = RequestInFlight(count.clone());
        (before < max).then_some(in_flight)
    }
}

impl Drop for RequestInFlight {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
