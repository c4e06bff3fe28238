//! Relays bytes in both directions of a connection that no longer speaks HTTP, until both sides end or the tunnel is
//! idle.
//!
//! The state of the request lasts as long as the tunnel, with everything it holds: concurrency slots, the request in
//! flight at the server, its log line.

use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::Response;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::upgrade::UpgradeRequest;
use super::{ForwardFault, ForwardOutcome, response_body, rewrite};
use crate::gateway::Route;
use crate::judge::request_state::RequestState;
use crate::reject::header_edits::RenderedValues;
use sluicegate_http::upstream::{PooledConnection, ServerBody, ServerInFlight, ServerSocket};
use sluicegate_observe::metrics::{AnswerOrigin, TunnelEvent};

/// Bytes that are read from one side at a time. They are passed on at once, so an idle tunnel holds no buffer.
const PIECE_BYTES: usize = 16 * 1024;
/// Pieces that one direction may relay before other tasks run.
const PIECES_PER_TURN: usize = 16;

/// Connects the client to the upstream after its `response` with status 101.
pub(super) fn open_tunnel(
    upgrade: UpgradeRequest,
    route: &Route,
    values: &RenderedValues,
    mut response: Response<ServerBody>,
    pooled: PooledConnection,
    mut state: Box<RequestState>,
) -> ForwardOutcome {
    let granted = upgrade.granted_protocol(response.headers());
    let (Some(granted), Ok(())) =
        (granted, rewrite::rewrite_response((&route.response_edits, values), &mut response, false, false))
    else {
        return ForwardOutcome::Faulted(ForwardFault::BadResponse, state);
    };
    let span = pooled.server().idle_ticks;
    let mut response = response.map(drop);
    let Some((upstream, early_bytes, in_flight)) = pooled.into_tunnel() else {
        return ForwardOutcome::Faulted(ForwardFault::BadResponse, state);
    };
    *response.status_mut() = upgrade.write_switch_head(granted, response.headers_mut());
    if let Some(answer) = state.auth_answer() {
        answer.add_cookies(response.headers_mut());
    }
    (state.outcome.status, state.outcome.responder) = (response.status(), Some(AnswerOrigin::Server));
    state.settle_by_final_status(state.outcome.status);
    state.response.bytes_received = Some(0);
    // The location's timeout applies to requests; a tunnel may last as long as it likes.
    state.watch.clear_request_deadline();
    let connection = state.connection.clone();
    let decisions = std::mem::take(&mut state.judgement.decisions);
    let tunnel = Tunnel::new(state, upstream, early_bytes, in_flight, span);
    match upgrade {
        UpgradeRequest::Upgrade(_) => {
            let takeover =
                move |wire| -> Pin<Box<dyn Future<Output = ()>>> { Box::pin(tunnel.relay_bytes(wire)) };
            *connection.takeover.borrow_mut() = Some(Box::new(takeover));
        }
        UpgradeRequest::WebSocket { client, .. } => {
            let watch = tunnel.state.watch.clone();
            let task = tokio::task::spawn_local(async move {
                match client.await {
                    Ok(client) => tunnel.relay_bytes(TokioIo::new(client)).await,
                    Err(error) => tracing::debug!(%error, "the tunnel could not be opened"),
                }
            });
            watch.set_task(task.abort_handle());
        }
    }
    ForwardOutcome::Responded(response_body::switched_response(response, decisions))
}

struct Tunnel {
    state: Box<RequestState>,
    upstream: ServerSocket,
    /// Bytes that the upstream sent already.
    early_bytes: Bytes,
    /// Counts as in flight at the server; the connection itself has left the pool for good.
    _in_flight: ServerInFlight,
    /// Ticks that may pass without a byte.
    span: u64,
}

impl Tunnel {
    fn new(
        state: Box<RequestState>,
        upstream: ServerSocket,
        early_bytes: Bytes,
        in_flight: ServerInFlight,
        span: u64,
    ) -> Tunnel {
        let worker = &state.worker;
        worker.gateway.metrics.count_tunnel_event(worker.id, TunnelEvent::Opened, 1);
        Tunnel { state, upstream, early_bytes, _in_flight: in_flight, span }
    }

    /// Relays bytes between the client and the upstream.
    async fn relay_bytes<C>(mut self, mut client: C)
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let watch = self.state.watch.clone();
        let is_stream = watch.connection.is_multiplexed();
        let early_bytes = std::mem::take(&mut self.early_bytes);
        let (mut up, mut down) = (
            RelayDirection::default(),
            RelayDirection { unwritten: early_bytes, ..RelayDirection::default() },
        );
        watch.set_upstream_deadline(self.span);
        std::future::poll_fn(|cx| {
            // An HTTP/2 stream has its own task; otherwise this is the connection's task.
            if is_stream {
                watch.set_waker(cx.waker());
            } else {
                watch.connection.set_waker(cx.waker());
            }
            if watch.fired_deadline().is_some() {
                return Poll::Ready(());
            }
            let _ = up.poll_relay(cx, &mut client, &mut self.upstream);
            let _ = down.poll_relay(cx, &mut self.upstream, &mut client);
            self.record_progress(&mut up, &mut down);
            // If one side broke, the bytes of the other side can no longer be answered.
            let is_over =
                (up.is_over() && (down.is_over() || up.is_broken)) || (down.is_over() && down.is_broken);
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Counts the relayed bytes, and updates the watch.
    fn record_progress(&mut self, up: &mut RelayDirection, down: &mut RelayDirection) {
        let (sent, received) = (std::mem::take(&mut down.bytes_moved), std::mem::take(&mut up.bytes_moved));
        let watch = &self.state.watch;
        match (down.unwritten.is_empty(), down.is_waiting) {
            (false, false) => watch.mark_response_unread(),
            (true, true) => watch.clear_unread(),
            _ => {}
        }
        down.is_waiting = !down.unwritten.is_empty();
        if sent + received == 0 {
            return;
        }
        if sent > 0 && down.is_waiting {
            watch.mark_response_unread();
        }
        watch.set_upstream_deadline(self.span);
        self.state.response.bytes_sent += sent;
        *self.state.response.bytes_received.get_or_insert(0) += received;
        let worker = &self.state.worker;
        worker.gateway.metrics.count_tunnel_event(worker.id, TunnelEvent::Sent, sent);
        worker.gateway.metrics.count_tunnel_event(worker.id, TunnelEvent::Received, received);
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        let worker = &self.state.worker;
        worker.gateway.metrics.count_tunnel_event(worker.id, TunnelEvent::Closed, 1);
    }
}

/// One direction of a tunnel.
#[derive(Default)]
struct RelayDirection {
    /// Bytes that were read but not yet written. Nothing more is read before they are.
    unwritten: Bytes,
    /// Bytes that were written since they were counted last.
    bytes_moved: u64,
    stage: RelayStage,
    /// The side that is read from broke, instead of ending in order.
    is_broken: bool,
    /// The watch knows already that `unwritten` waits for its reader.
    is_waiting: bool,
}

#[derive(Default, PartialEq, Eq)]
enum RelayStage {
    #[default]
    Open,
    /// One side has ended; the other is still to be shut down.
    Ending,
    Over,
}

impl RelayDirection {
    fn is_over(&self) -> bool {
        self.stage == RelayStage::Over
    }

    /// Relays all available bytes in order, up to the end of the side.
    fn poll_relay<R, W>(&mut self, cx: &mut Context<'_>, from: &mut R, to: &mut W) -> Poll<()>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        for _ in 0..PIECES_PER_TURN {
            ready!(self.poll_write_unwritten(cx, to));
            match self.stage {
                RelayStage::Open => ready!(self.poll_piece(cx, from, to)),
                RelayStage::Ending => {
                    // A side that cannot be shut down has ended as well.
                    let _ = ready!(Pin::new(&mut *to).poll_shutdown(cx));
                    self.stage = RelayStage::Over;
                }
                RelayStage::Over => return Poll::Ready(()),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_write_unwritten<W: AsyncWrite + Unpin>(&mut self, cx: &mut Context<'_>, to: &mut W) -> Poll<()> {
        while !self.unwritten.is_empty() {
            match ready!(Pin::new(&mut *to).poll_write(cx, &self.unwritten)) {
                Ok(0) | Err(_) => self.stop_writing(),
                Ok(count) => {
                    self.unwritten.advance(count);
                    self.bytes_moved += count as u64;
                }
            }
        }
        Poll::Ready(())
    }

    fn poll_piece<R, W>(&mut self, cx: &mut Context<'_>, from: &mut R, to: &mut W) -> Poll<()>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut space = [MaybeUninit::uninit(); PIECE_BYTES];
        let mut piece = ReadBuf::uninit(&mut space);
        let read = Pin::new(from).poll_read(cx, &mut piece);
        match read {
            Poll::Ready(Ok(())) if !piece.filled().is_empty() => {
                let count = match Pin::new(&mut *to).poll_write(cx, piece.filled()) {
                    Poll::Ready(Ok(count)) if count > 0 => count,
                    Poll::Ready(_) => {
                        self.stop_writing();
                        return Poll::Ready(());
                    }
                    Poll::Pending => 0,
                };
                self.bytes_moved += count as u64;
                self.unwritten = Bytes::copy_from_slice(&piece.filled()[count..]);
                Poll::Ready(())
            }
            Poll::Ready(end) => {
                self.is_broken = end.is_err();
                self.stage = RelayStage::Ending;
                Poll::Ready(())
            }
            Poll::Pending => {
                // Some sockets buffer written bytes until they are flushed.
                if let Poll::Ready(Err(_)) = Pin::new(&mut *to).poll_flush(cx) {
                    self.stop_writing();
                    return Poll::Ready(());
                }
                Poll::Pending
            }
        }
    }

    /// Gives up the direction, because the other side takes no more bytes.
    fn stop_writing(&mut self) {
        self.unwritten = Bytes::new();
        self.stage = RelayStage::Over;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    async fn run(
        direction: &mut RelayDirection,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) {
        std::future::poll_fn(|cx| direction.poll_relay(cx, from, to)).await;
    }

    #[tokio::test]
    async fn everything_arrives_in_order_however_narrow_the_other_side() {
        let sent: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
        let (mut near, mut from) = duplex(64 * 1024);
        let (mut to, mut far) = duplex(100);
        let mut direction = RelayDirection::default();
        let mut got = Vec::new();
        let (feeding, reading) = (sent.clone(), &mut got);
        tokio::join!(
            async {
                near.write_all(&feeding).await.unwrap();
                drop(near);
            },
            async {
                run(&mut direction, &mut from, &mut to).await;
            },
            async {
                far.read_to_end(reading).await.unwrap();
            }
        );
        assert_eq!((got == sent, direction.bytes_moved, direction.is_broken), (true, 200_000, false));
    }

    #[tokio::test]
    async fn a_side_that_takes_nothing_is_not_read_for() {
        let (mut near, mut from) = duplex(1_000_000);
        let (mut to, _far) = duplex(10);
        near.write_all(&[7; 100_000]).await.unwrap();
        let mut direction = RelayDirection::default();
        let polled = tokio::time::timeout(
            std::time::Duration::from_millis(20),
            run(&mut direction, &mut from, &mut to),
        );
        assert!(polled.await.is_err());
        assert_eq!((direction.bytes_moved, direction.unwritten.len()), (10, PIECE_BYTES - 10));
    }

    #[tokio::test]
    async fn a_side_that_is_gone_ends_the_direction() {
        let (mut near, mut from) = duplex(100);
        let (mut to, far) = duplex(100);
        drop(far);
        near.write_all(b"abc").await.unwrap();
        let mut direction = RelayDirection::default();
        run(&mut direction, &mut from, &mut to).await;
        assert!(direction.is_over() && direction.bytes_moved == 0 && direction.unwritten.is_empty());
    }
}
