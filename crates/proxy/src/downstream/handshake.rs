//! Prepares a connection for HTTP: reads the PROXY header, which names the real client, and performs the TLS handshake.
//!
//! Both share `timeouts.handshake`, counted from the accept; the connection's watch enforces it.

use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;

use rustls::server::Acceptor;
use rustls::{HandshakeKind, ServerConfig};
use tokio::io::AsyncWriteExt;
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};

use super::connection_limits::ConnectionPermit;
use super::listener_protocol::{AllowedHttp, ListenerProtocol};
use crate::gateway::worker::WorkerThread;
use crate::reject::PLAIN_HTTP_ON_TLS;
use sluicegate_http::net::acme_challenges::AcmeChallenges;
use sluicegate_http::net::deadline::ConnectionWatch;
use sluicegate_http::net::proxy_protocol;
use sluicegate_http::net::socket::ClientStream;
use sluicegate_http::net::tls::{ACME_TLS, H2};
use sluicegate_model::{ProxyProtocolMode, Scheme};
use sluicegate_observe::metrics::HandshakeEvent;

/// A connection ready for HTTP.
pub(crate) struct HandshakeOutcome {
    pub wire: ClientStream,
    pub allowed_http: AllowedHttp,
    /// The client as far as the connection names it; `None` on a unix socket.
    pub peer: Option<IpAddr>,
    pub scheme: Scheme,
}

/// Runs all steps before HTTP; `None` when the connection ended before.
pub(crate) async fn run_handshake(
    thread: &WorkerThread,
    protocol: &ListenerProtocol,
    mut wire: ClientStream,
    seen: Option<IpAddr>,
    watch: &ConnectionWatch,
    permit: &mut ConnectionPermit,
) -> Option<HandshakeOutcome> {
    watch.begin_handshake();
    let mut peer = seen;
    if let Some(mode) = protocol.proxy_protocol {
        peer = read_proxy_header(thread, mode, &mut wire, watch, seen).await?;
        if peer.is_some_and(|client| !permit.try_count_peer(thread, client)) {
            return None;
        }
    }
    let (wire, allowed, scheme) = match &protocol.tls {
        None => (wire, protocol.allowed_http(), Scheme::Http),
        Some(tls) => {
            let (wire, allowed) = accept_tls(thread, tls.config.clone(), wire, watch, peer).await?;
            (wire, allowed, Scheme::Https)
        }
    };
    watch.begin_idle();
    Some(HandshakeOutcome { wire, allowed_http: allowed, peer, scheme })
}

/// Counts the outcome of one step; dropped without one, it counts a timeout.
struct OutcomeCounter<'a> {
    thread: &'a WorkerThread,
    overdue: Cell<Option<HandshakeEvent>>,
}

impl<'a> OutcomeCounter<'a> {
    fn with_overdue(thread: &'a WorkerThread, overdue: HandshakeEvent) -> OutcomeCounter<'a> {
        OutcomeCounter { thread, overdue: Cell::new(Some(overdue)) }
    }

    /// `None` = nothing is counted.
    fn record_outcome(&self, outcome: impl Into<Option<HandshakeEvent>>) {
        self.overdue.set(None);
        if let Some(outcome) = outcome.into() {
            self.count_outcome(outcome);
        }
    }

    fn count_outcome(&self, outcome: HandshakeEvent) {
        let worker = self.thread.current_worker();
        worker.gateway.metrics.count_handshake(worker.id, outcome);
    }
}

impl Drop for OutcomeCounter<'_> {
    fn drop(&mut self) {
        if let Some(overdue) = self.overdue.get() {
            self.count_outcome(overdue);
        }
    }
}

/// Reads more of the client's first bytes; false when the client closed, or when it sent nothing and the connection
/// shall close.
async fn read_more(wire: &mut ClientStream, watch: &ConnectionWatch) -> bool {
    std::future::poll_fn(|cx| {
        watch.set_waker(cx.waker());
        let read = wire.poll_read_ahead(cx);
        let is_unused = || watch.may_close() && wire.ahead().is_empty() && !wire.has_unread();
        if read.is_pending() && watch.is_closing() && is_unused() {
            return Poll::Ready(false);
        }
        read.map(|read| matches!(read, Ok(1..)))
    })
    .await
}

// === PROXY protocol ===

/// The peer that the PROXY header names; outer `None` = close the connection.
async fn read_proxy_header(
    thread: &WorkerThread,
    mode: ProxyProtocolMode,
    wire: &mut ClientStream,
    watch: &ConnectionWatch,
    seen: Option<IpAddr>,
) -> Option<Option<IpAddr>> {
    let counter = OutcomeCounter::with_overdue(thread, HandshakeEvent::ProxyTimedOut);
    let reject = |why: &str| {
        counter.record_outcome(HandshakeEvent::ProxyRejected);
        tracing::debug!(peer = ?seen, "a connection was closed for its PROXY header: {why}");
        None
    };
    // Peers on a unix socket are trusted.
    if !seen.is_none_or(|peer| thread.current_worker().gateway.clients.trusts_proxy(peer)) {
        if mode == ProxyProtocolMode::Optional {
            counter.record_outcome(HandshakeEvent::ProxyAbsent);
            return Some(seen);
        }
        return reject("it may not send one");
    }
    loop {
        match proxy_protocol::parse_header(wire.ahead()) {
            proxy_protocol::ProxyHeader::Partial => {
                if !read_more(wire, watch).await {
                    // A probe that only opens the port is not counted.
                    let silent = wire.ahead().is_empty();
                    counter.record_outcome((!silent).then_some(HandshakeEvent::ProxyRejected));
                    return None;
                }
            }
            proxy_protocol::ProxyHeader::NotProxy if mode == ProxyProtocolMode::Optional => {
                counter.record_outcome(HandshakeEvent::ProxyAbsent);
                return Some(seen);
            }
            proxy_protocol::ProxyHeader::NotProxy => return reject("there is none"),
            proxy_protocol::ProxyHeader::Invalid(why) => return reject(why),
            proxy_protocol::ProxyHeader::Header { length, source } => {
                wire.discard_ahead(length);
                let (announced, local) = (HandshakeEvent::ProxyAnnounced, HandshakeEvent::ProxyLocal);
                counter.record_outcome(if source.is_some() { announced } else { local });
                return Some(source.or(seen));
            }
        }
    }
}

// === TLS ===

/// The first byte of a handshake (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 22;

async fn accept_tls(
    thread: &WorkerThread,
    config: Arc<ServerConfig>,
    mut wire: ClientStream,
    watch: &ConnectionWatch,
    peer: Option<IpAddr>,
) -> Option<(ClientStream, AllowedHttp)> {
    let counter = OutcomeCounter::with_overdue(thread, HandshakeEvent::TlsTimedOut);
    // An idle connection holds only its socket until the first bytes.
    if wire.ahead().is_empty() && !read_more(&mut wire, watch).await {
        counter.record_outcome(None);
        return None;
    }
    if wire.ahead()[0] != HANDSHAKE_RECORD {
        counter.record_outcome(HandshakeEvent::TlsPlainHttp);
        let text = wire.ahead()[0].is_ascii_uppercase();
        send_and_close(wire, watch, if text { PLAIN_HTTP_ON_TLS } else { b"" }).await;
        return None;
    }
    let handshake = {
        // The semaphore is never closed; if it were, this connection would close.
        let _turn = thread.handshakes.acquire().await.ok()?;
        let challenges = thread.current_worker().gateway.acme.clone().filter(|acme| acme.is_open());
        match challenges {
            None => TlsAcceptor::from(config).accept(wire).into_fallible().await,
            Some(challenges) => Box::pin(accept_challenge(&challenges, config, wire)).await?,
        }
    };
    match handshake {
        Ok(stream) if stream.get_ref().1.alpn_protocol() == Some(ACME_TLS) => {
            counter.record_outcome(HandshakeEvent::TlsFull);
            send_and_close(ClientStream::from_tls(stream), watch, b"").await;
            None
        }
        Ok(stream) => {
            let session = stream.get_ref().1;
            let resumed = session.handshake_kind() == Some(HandshakeKind::Resumed);
            counter.record_outcome(if resumed {
                HandshakeEvent::TlsResumed
            } else {
                HandshakeEvent::TlsFull
            });
            let allowed =
                if session.alpn_protocol() == Some(H2) { AllowedHttp::Http2 } else { AllowedHttp::Http1 };
            Some((ClientStream::from_tls(stream), allowed))
        }
        Err((error, wire)) => {
            let is_abandoned = error.kind() != io::ErrorKind::InvalidData;
            counter.record_outcome(if is_abandoned {
                HandshakeEvent::TlsAbandoned
            } else {
                HandshakeEvent::TlsFailed
            });
            tracing::debug!(?peer, %error, "a TLS handshake failed");
            send_and_close(wire, watch, b"").await;
            None
        }
    }
}

/// A handshake while an order is open: it may ask for the certificate of a challenge. `None` = it broke off.
async fn accept_challenge(
    challenges: &AcmeChallenges,
    config: Arc<ServerConfig>,
    wire: ClientStream,
) -> Option<Result<TlsStream<ClientStream>, (io::Error, ClientStream)>> {
    let mut acceptor = LazyConfigAcceptor::new(Acceptor::default(), wire);
    match (&mut acceptor).await {
        Ok(started) => {
            let config = challenges.find_host(&started.client_hello()).unwrap_or(config);
            Some(started.into_stream(config).into_fallible().await)
        }
        Err(error) => Some(Err((error, acceptor.take_io()?))),
    }
}

/// Sends the last bytes, then reads the client's remaining input, so that a reset cannot destroy them on the way.
async fn send_and_close(mut wire: ClientStream, watch: &ConnectionWatch, last_bytes: &[u8]) {
    watch.leave_unread();
    if wire.write_all(last_bytes).await.is_ok() {
        let _ = wire.shutdown().await;
    }
}
