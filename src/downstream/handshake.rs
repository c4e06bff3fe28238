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
use super::connection_limits::Place;
use super::listener_protocol::{Door, Speaks};
use crate::config::ProxyProtocol;
use crate::net::deadline::ConnectionWatch;
use crate::net::proxy_protocol;
use crate::net::socket::Wire;
use crate::net::tls::H2;
use crate::observe::metrics::Opening;
use crate::proxy::worker::Home;
use crate::request::headers::forwarded::Proto;

/// A connection on which HTTP may begin.
pub struct Opened {
    pub wire: Wire,
    pub speaks: Speaks,
    /// Who calls, as far as the connection tells; `None` on a unix socket.
    pub peer: Option<IpAddr>,
    pub proto: Proto,
}

/// Brings a connection to where HTTP begins; `None` when it ended before.
pub async fn open(
    home: &Home,
    door: &Door,
    mut wire: Wire,
    seen: Option<IpAddr>,
    watch: &ConnectionWatch,
    place: &mut Place,
) -> Option<Opened> {
    watch.opening_begins();
    let mut peer = seen;
    if let Some(wanted) = door.proxy_protocol {
        peer = announced(home, wanted, &mut wire, watch, seen).await?;
        if peer.is_some_and(|client| !connection::count(home, client, place)) {
            return None;
        }
    }
    let (wire, speaks, proto) = match &door.tls {
        None => (wire, door.speaks(), Proto::Http),
        Some(tls) => {
            let (wire, speaks) = shake_hands(home, tls.config.clone(), wire, watch, peer).await?;
            (wire, speaks, Proto::Https)
        }
    };
    watch.opening_ends();
    Some(Opened { wire, speaks, peer, proto })
}

/// Counts how a part of the opening ended; where nothing is said, the time for it was over.
struct Tally<'a> {
    home: &'a Home,
    overdue: Cell<Option<Opening>>,
}

impl<'a> Tally<'a> {
    fn unless(home: &'a Home, overdue: Opening) -> Tally<'a> {
        Tally { home, overdue: Cell::new(Some(overdue)) }
    }

    /// `None` = it does not count at all.
    fn ended(&self, outcome: impl Into<Option<Opening>>) {
        self.overdue.set(None);
        if let Some(outcome) = outcome.into() {
            self.count(outcome);
        }
    }

    fn count(&self, outcome: Opening) {
        let worker = self.home.worker();
        worker.gateway.metrics.opened(worker.id, outcome);
    }
}

impl Drop for Tally<'_> {
    fn drop(&mut self) {
        if let Some(overdue) = self.overdue.get() {
            self.count(overdue);
        }
    }
}

/// Reads more of what the client says first; false when it says no more, or said nothing when all shall end.
async fn read_more(wire: &mut Wire, watch: &ConnectionWatch) -> bool {
    std::future::poll_fn(|cx| {
        watch.set_waker(cx.waker());
        let read = wire.poll_read_ahead(cx);
        let is_unused = || watch.may_leave() && wire.ahead().is_empty() && !wire.has_unread();
        if read.is_pending() && watch.closing() && is_unused() {
            return Poll::Ready(false);
        }
        read.map(|read| matches!(read, Ok(1..)))
    })
    .await
}

// === PROXY protocol ===

/// The peer after what the PROXY header says of it; `None` = the connection is to be closed.
async fn announced(
    home: &Home,
    wanted: ProxyProtocol,
    wire: &mut Wire,
    watch: &ConnectionWatch,
    seen: Option<IpAddr>,
) -> Option<Option<IpAddr>> {
    let tally = Tally::unless(home, Opening::HeaderOverdue);
    let refuse = |why: &str| {
        tally.ended(Opening::HeaderRefused);
        tracing::debug!(peer = ?seen, "a connection was closed for its PROXY header: {why}");
    };
    // Peers on a unix socket are trusted.
    if !seen.is_none_or(|peer| home.worker().gateway.clients.trusts(peer)) {
        if wanted == ProxyProtocol::Optional {
            tally.ended(Opening::HeaderAbsent);
            return Some(seen);
        }
        refuse("it may not send one");
        return None;
    }
    loop {
        match proxy_protocol::open(wire.ahead()) {
            proxy_protocol::Opening::Partial => {
                if !read_more(wire, watch).await {
                    // Whoever only looks whether the port is open is no event.
                    let silent = wire.ahead().is_empty();
                    tally.ended((!silent).then_some(Opening::HeaderRefused));
                    return None;
                }
            }
            proxy_protocol::Opening::Other if wanted == ProxyProtocol::Optional => {
                tally.ended(Opening::HeaderAbsent);
                return Some(seen);
            }
            proxy_protocol::Opening::Other => {
                refuse("there is none");
                return None;
            }
            proxy_protocol::Opening::Wrong(why) => {
                refuse(why);
                return None;
            }
            proxy_protocol::Opening::Header { length, source } => {
                wire.skip(length);
                tally.ended(if source.is_some() { Opening::Announced } else { Opening::AnnouncedNone });
                return Some(source.or(seen));
            }
        }
    }
}

// === TLS ===

/// The first byte of a handshake (RFC 8446, section 5.1).
const HANDSHAKE_RECORD: u8 = 22;

/// What a client is told that speaks plain HTTP where TLS is spoken.
const NOT_PLAIN: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n\
    Content-Length: 41\r\n\r\nThis port speaks HTTPS, not plain HTTP.\r\n";

async fn shake_hands(
    home: &Home,
    config: Arc<ServerConfig>,
    mut wire: Wire,
    watch: &ConnectionWatch,
    peer: Option<IpAddr>,
) -> Option<(Wire, Speaks)> {
    let tally = Tally::unless(home, Opening::HandshakeOverdue);
    // Until the client says something, no more than its socket is kept.
    if wire.ahead().is_empty() && !read_more(&mut wire, watch).await {
        tally.ended(None);
        return None;
    }
    if wire.ahead()[0] != HANDSHAKE_RECORD {
        tally.ended(Opening::HandshakePlain);
        let text = wire.ahead()[0].is_ascii_uppercase();
        part(wire, watch, if text { NOT_PLAIN } else { b"" }).await;
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
            tally.ended(if resumed { Opening::HandshakeResumed } else { Opening::HandshakeFull });
            let speaks = if session.alpn_protocol() == Some(H2) { Speaks::Http2 } else { Speaks::Http1 };
            Some((Wire::secured(stream), speaks))
        }
        Err((error, wire)) => {
            let left = error.kind() != io::ErrorKind::InvalidData;
            tally.ended(if left { Opening::HandshakeAbandoned } else { Opening::HandshakeFailed });
            tracing::debug!(?peer, %error, "a TLS handshake failed");
            part(wire, watch, b"").await;
            None
        }
    }
}

/// Says the last words, and reads what the client still sends, so that it gets to hear them.
async fn part(mut wire: Wire, watch: &ConnectionWatch, words: &[u8]) {
    watch.leave_body_unread();
    if wire.write_all(words).await.is_ok() {
        let _ = wire.shutdown().await;
    }
}
