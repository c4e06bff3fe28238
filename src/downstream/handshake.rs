//! What comes before HTTP on a connection: a PROXY header, which says who really calls, and a TLS handshake.
//!
//! Both together have `timeouts.handshake`, from the accept on; the connection's watch ends what takes longer.

use std::cell::Cell;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::task::Poll;

use rustls::{HandshakeKind, ServerConfig};
use tokio::io::AsyncWriteExt;
use tokio_rustls::TlsAcceptor;

use super::connection;
use super::connection_limits::ConnectionPermit;
use super::listener_protocol::{AllowedHttp, ListenerProtocol};
use crate::config::ProxyProtocolMode;
use crate::net::deadline::ConnectionWatch;
use crate::net::proxy_protocol;
use crate::net::socket::ClientStream;
use crate::net::tls::H2;
use crate::observe::metrics::HandshakeEvent;
use crate::proxy::worker::WorkerThread;
use crate::request::headers::forwarded::Proto;

/// A connection on which HTTP may begin.
pub struct HandshakeOutcome {
    pub wire: ClientStream,
    pub allowed_http: AllowedHttp,
    /// Who calls, as far as the connection tells; `None` on a unix socket.
    pub peer: Option<IpAddr>,
    pub proto: Proto,
}

/// Brings a connection to where HTTP begins; `None` when it ended before.
pub async fn run_handshake(
    home: &WorkerThread,
    door: &ListenerProtocol,
    mut wire: ClientStream,
    seen: Option<IpAddr>,
    watch: &ConnectionWatch,
    place: &mut ConnectionPermit,
) -> Option<HandshakeOutcome> {
    watch.begin_handshake();
    let mut peer = seen;
    if let Some(wanted) = door.proxy_protocol {
        peer = read_proxy_header(home, wanted, &mut wire, watch, seen).await?;
        if peer.is_some_and(|client| !connection::count_client(home, client, place)) {
            return None;
        }
    }
    let (wire, speaks, proto) = match &door.tls {
        None => (wire, door.allowed_http(), Proto::Http),
        Some(tls) => {
            let (wire, speaks) = accept_tls(home, tls.config.clone(), wire, watch, peer).await?;
            (wire, speaks, Proto::Https)
        }
    };
    watch.end_handshake();
    Some(HandshakeOutcome { wire, allowed_http: speaks, peer, proto })
}

/// Counts how a part of the opening ended; where nothing is said, the time for it was over.
struct OutcomeCounter<'a> {
    home: &'a WorkerThread,
    overdue: Cell<Option<HandshakeEvent>>,
}

impl<'a> OutcomeCounter<'a> {
    fn with_overdue(home: &'a WorkerThread, overdue: HandshakeEvent) -> OutcomeCounter<'a> {
        OutcomeCounter { home, overdue: Cell::new(Some(overdue)) }
    }

    /// `None` = it does not count at all.
    fn record_outcome(&self, outcome: impl Into<Option<HandshakeEvent>>) {
        self.overdue.set(None);
        if let Some(outcome) = outcome.into() {
            self.count_outcome(outcome);
        }
    }

    fn count_outcome(&self, outcome: HandshakeEvent) {
        let worker = self.home.current_worker();
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

/// Reads more of what the client says first; false when it says no more, or said nothing when all shall end.
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

/// The peer after what the PROXY header says of it; `None` = the connection is to be closed.
async fn read_proxy_header(
    home: &WorkerThread,
    wanted: ProxyProtocolMode,
    wire: &mut ClientStream,
    watch: &ConnectionWatch,
    seen: Option<IpAddr>,
) -> Option<Option<IpAddr>> {
    let tally = OutcomeCounter::with_overdue(home, HandshakeEvent::ProxyTimedOut);
    let refuse = |why: &str| {
        tally.record_outcome(HandshakeEvent::ProxyRejected);
        tracing::debug!(peer = ?seen, "a connection was closed for its PROXY header: {why}");
    };
    // Peers on a unix socket are trusted.
    if !seen.is_none_or(|peer| home.current_worker().gateway.clients.trusts_proxy(peer)) {
        if wanted == ProxyProtocolMode::Optional {
            tally.record_outcome(HandshakeEvent::ProxyAbsent);
            return Some(seen);
        }
        refuse("it may not send one");
        return None;
    }
    loop {
        match proxy_protocol::parse_header(wire.ahead()) {
            proxy_protocol::ProxyHeader::Partial => {
                if !read_more(wire, watch).await {
                    // Whoever only looks whether the port is open is no event.
                    let silent = wire.ahead().is_empty();
                    tally.record_outcome((!silent).then_some(HandshakeEvent::ProxyRejected));
                    return None;
                }
            }
            proxy_protocol::ProxyHeader::NotProxy if wanted == ProxyProtocolMode::Optional => {
                tally.record_outcome(HandshakeEvent::ProxyAbsent);
                return Some(seen);
            }
            proxy_protocol::ProxyHeader::NotProxy => {
                refuse("there is none");
                return None;
            }
            proxy_protocol::ProxyHeader::Invalid(why) => {
                refuse(why);
                return None;
            }
            proxy_protocol::ProxyHeader::Header { length, source } => {
                wire.discard_ahead(length);
                tally.record_outcome(if source.is_some() {
                    HandshakeEvent::ProxyAnnounced
                } else {
                    HandshakeEvent::ProxyLocal
                });
                return Some(source.or(seen));
            }
        }
    }
}

// === TLS ===

/// The first byte of a handshake (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// What a client is told that speaks plain HTTP where TLS is spoken.
const HTTPS_ONLY_RESPONSE: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\
    Content-Length: 41\r\n\r\nThis port speaks HTTPS, not plain HTTP.\r\n";

async fn accept_tls(
    home: &WorkerThread,
    config: Arc<ServerConfig>,
    mut wire: ClientStream,
    watch: &ConnectionWatch,
    peer: Option<IpAddr>,
) -> Option<(ClientStream, AllowedHttp)> {
    let tally = OutcomeCounter::with_overdue(home, HandshakeEvent::TlsTimedOut);
    // Until the client says something, no more than its socket is kept.
    if wire.ahead().is_empty() && !read_more(&mut wire, watch).await {
        tally.record_outcome(None);
        return None;
    }
    if wire.ahead()[0] != HANDSHAKE_RECORD {
        tally.record_outcome(HandshakeEvent::TlsPlainHttp);
        let text = wire.ahead()[0].is_ascii_uppercase();
        send_and_close(wire, watch, if text { HTTPS_ONLY_RESPONSE } else { b"" }).await;
        return None;
    }
    let shaken = {
        // Nobody closes the semaphore; were it closed, the connection would be.
        let _turn = home.handshakes.acquire().await.ok()?;
        TlsAcceptor::from(config).accept(wire).into_fallible().await
    };
    match shaken {
        Ok(stream) => {
            let session = stream.get_ref().1;
            let resumed = session.handshake_kind() == Some(HandshakeKind::Resumed);
            tally.record_outcome(if resumed { HandshakeEvent::TlsResumed } else { HandshakeEvent::TlsFull });
            let speaks =
                if session.alpn_protocol() == Some(H2) { AllowedHttp::Http2 } else { AllowedHttp::Http1 };
            Some((ClientStream::from_tls(stream), speaks))
        }
        Err((error, wire)) => {
            let left = error.kind() != io::ErrorKind::InvalidData;
            tally.record_outcome(if left { HandshakeEvent::TlsAbandoned } else { HandshakeEvent::TlsFailed });
            tracing::debug!(?peer, %error, "a TLS handshake failed");
            send_and_close(wire, watch, b"").await;
            None
        }
    }
}

/// Says the last words, and reads what the client still sends, so that it gets to hear them.
async fn send_and_close(mut wire: ClientStream, watch: &ConnectionWatch, words: &[u8]) {
    watch.mark_body_unread();
    if wire.write_all(words).await.is_ok() {
        let _ = wire.shutdown().await;
    }
}
