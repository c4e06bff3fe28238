//! A connection that speaks no HTTP any more: bytes pass both ways until both sides have ended, or nothing passes.
//!
//! The visit lasts as long as the tunnel, and so does everything it holds: concurrency slots, its place at the server,
//! its line in the log.

use std::future::Future;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::Response;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::response_body;
use super::rewrite;
use super::upgrade::Wish;
use super::{Fault, Forwarded};
use crate::observe::metrics::Tunnelled;
use crate::proxy::gateway::Route;
use crate::proxy::request_state::Visit;
use crate::upstream::{InFlight, Lease, ServerBody, ServerSocket};

/// Bytes taken from one side at a time. They are handed on at once: a tunnel where nothing moves holds no buffer.
const PIECE: usize = 16 * 1024;
/// Pieces that one direction may move before other tasks have their turn.
const TURN: usize = 16;

/// Switches the client over to the upstream, whose `response` has status 101.
pub fn open(
    wish: Wish,
    route: &Route,
    mut response: Response<ServerBody>,
    lease: Lease,
    mut visit: Box<Visit>,
) -> Forwarded {
    let granted = wish.granted(response.headers());
    let (Some(granted), Ok(())) = (granted, rewrite::response(route, &mut response, false, false)) else {
        return Forwarded::Failed(Fault::BadAnswer, visit);
    };
    let span = lease.server().idle_span;
    let mut response = response.map(drop);
    let Some((upstream, ahead, in_flight)) = lease.into_tunnel() else {
        return Forwarded::Failed(Fault::BadAnswer, visit);
    };
    *response.status_mut() = wish.answer(granted, response.headers_mut());
    visit.status = response.status();
    visit.received = Some(0);
    // What the location allows for is a request; a tunnel has no length to be late by.
    visit.watch.switched();
    let connection = visit.connection.clone();
    let decisions = std::mem::take(&mut visit.decisions);
    let tunnel = Tunnel::new(visit, upstream, ahead, in_flight, span);
    match wish {
        Wish::Upgrade(_) => {
            let takeover = move |wire| -> Pin<Box<dyn Future<Output = ()>>> { Box::pin(tunnel.pass(wire)) };
            *connection.takeover.borrow_mut() = Some(Box::new(takeover));
        }
        Wish::WebSocket { client, .. } => {
            let watch = tunnel.visit.watch.clone();
            let task = tokio::task::spawn_local(async move {
                match client.await {
                    Ok(client) => tunnel.pass(TokioIo::new(client)).await,
                    Err(error) => tracing::debug!(%error, "a tunnel did not come about"),
                }
            });
            watch.set_task(task.abort_handle());
        }
    }
    Forwarded::Answered(response_body::switched(response, decisions))
}

struct Tunnel {
    visit: Box<Visit>,
    upstream: ServerSocket,
    /// What the upstream said already.
    ahead: Bytes,
    /// Holds the server's place; the connection itself has left the pool for good.
    _in_flight: InFlight,
    /// Ticks that may pass without a byte.
    span: u64,
}

impl Tunnel {
    fn new(
        visit: Box<Visit>,
        upstream: ServerSocket,
        ahead: Bytes,
        in_flight: InFlight,
        span: u64,
    ) -> Tunnel {
        let worker = &visit.worker;
        worker.gateway.metrics.tunnelled(worker.id, Tunnelled::Opened, 1);
        Tunnel { visit, upstream, ahead, _in_flight: in_flight, span }
    }

    /// Passes bytes between a client that has come out of HTTP and the upstream.
    async fn pass<C>(mut self, mut client: C)
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let watch = self.visit.watch.clone();
        let is_stream = watch.connection.is_multiplexed();
        let ahead = std::mem::take(&mut self.ahead);
        let (mut up, mut down) = (Direction::default(), Direction { held: ahead, ..Direction::default() });
        watch.await_upstream(self.span);
        std::future::poll_fn(|cx| {
            // A stream has a task of its own; otherwise this is the connection's.
            if is_stream {
                watch.set_waker(cx.waker());
            } else {
                watch.connection.set_waker(cx.waker());
            }
            if watch.fired().is_some() {
                return Poll::Ready(());
            }
            let _ = up.poll(cx, &mut client, &mut self.upstream);
            let _ = down.poll(cx, &mut self.upstream, &mut client);
            self.note(&mut up, &mut down);
            // Where one side broke, nothing that the other one says can be answered any more.
            let is_over = (up.is_over() && (down.is_over() || up.broke)) || (down.is_over() && down.broke);
            if is_over { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Counts what moved, and tells the watch.
    fn note(&mut self, up: &mut Direction, down: &mut Direction) {
        let (sent, received) = (std::mem::take(&mut down.moved), std::mem::take(&mut up.moved));
        let watch = &self.visit.watch;
        match (down.held.is_empty(), down.is_waiting) {
            (false, false) => watch.handed_on(),
            (true, true) => watch.wanted(),
            _ => {}
        }
        down.is_waiting = !down.held.is_empty();
        if sent + received == 0 {
            return;
        }
        if sent > 0 && down.is_waiting {
            watch.handed_on();
        }
        watch.await_upstream(self.span);
        self.visit.bytes += sent;
        *self.visit.received.get_or_insert(0) += received;
        let worker = &self.visit.worker;
        worker.gateway.metrics.tunnelled(worker.id, Tunnelled::Sent, sent);
        worker.gateway.metrics.tunnelled(worker.id, Tunnelled::Received, received);
    }
}

impl Drop for Tunnel {
    fn drop(&mut self) {
        let worker = &self.visit.worker;
        worker.gateway.metrics.tunnelled(worker.id, Tunnelled::Closed, 1);
    }
}

/// One direction of a tunnel.
#[derive(Default)]
struct Direction {
    /// What was read and found no room yet. Nothing more is read before it is gone.
    held: Bytes,
    /// Bytes that were handed on since this was looked at last.
    moved: u64,
    stage: Stage,
    /// The side that is read from broke; it did not end in order.
    broke: bool,
    /// The reader of what is held has been waited for already.
    is_waiting: bool,
}

#[derive(Default, PartialEq, Eq)]
enum Stage {
    #[default]
    Open,
    /// One side has ended; the other is to be told.
    Ending,
    Over,
}

impl Direction {
    fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Moves what there is, in order, to its end.
    fn poll<R, W>(&mut self, cx: &mut Context<'_>, from: &mut R, to: &mut W) -> Poll<()>
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        for _ in 0..TURN {
            ready!(self.poll_held(cx, to));
            match self.stage {
                Stage::Open => ready!(self.poll_piece(cx, from, to)),
                Stage::Ending => {
                    // Whoever cannot be told has ended as well.
                    let _ = ready!(Pin::new(&mut *to).poll_shutdown(cx));
                    self.stage = Stage::Over;
                }
                Stage::Over => return Poll::Ready(()),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_held<W: AsyncWrite + Unpin>(&mut self, cx: &mut Context<'_>, to: &mut W) -> Poll<()> {
        while !self.held.is_empty() {
            match ready!(Pin::new(&mut *to).poll_write(cx, &self.held)) {
                Ok(0) | Err(_) => self.give_up(),
                Ok(count) => {
                    self.held.advance(count);
                    self.moved += count as u64;
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
        let mut space = [MaybeUninit::uninit(); PIECE];
        let mut piece = ReadBuf::uninit(&mut space);
        let read = Pin::new(from).poll_read(cx, &mut piece);
        match read {
            Poll::Ready(Ok(())) if !piece.filled().is_empty() => {
                let count = match Pin::new(&mut *to).poll_write(cx, piece.filled()) {
                    Poll::Ready(Ok(count)) if count > 0 => count,
                    Poll::Ready(_) => {
                        self.give_up();
                        return Poll::Ready(());
                    }
                    Poll::Pending => 0,
                };
                self.moved += count as u64;
                self.held = Bytes::copy_from_slice(&piece.filled()[count..]);
                Poll::Ready(())
            }
            Poll::Ready(ended) => {
                self.broke = ended.is_err();
                self.stage = Stage::Ending;
                Poll::Ready(())
            }
            Poll::Pending => {
                // Some channels keep what is written to them until they are told that nothing follows.
                if let Poll::Ready(Err(_)) = Pin::new(&mut *to).poll_flush(cx) {
                    self.give_up();
                    return Poll::Ready(());
                }
                Poll::Pending
            }
        }
    }

    /// Nobody takes any more.
    fn give_up(&mut self) {
        self.held = Bytes::new();
        self.stage = Stage::Over;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    async fn run(
        direction: &mut Direction,
        from: &mut (impl AsyncRead + Unpin),
        to: &mut (impl AsyncWrite + Unpin),
    ) {
        std::future::poll_fn(|cx| direction.poll(cx, from, to)).await;
    }

    #[tokio::test]
    async fn everything_arrives_in_order_however_narrow_the_other_side() {
        let sent: Vec<u8> = (0..200_000u32).map(|n| (n % 251) as u8).collect();
        let (mut near, mut from) = duplex(64 * 1024);
        let (mut to, mut far) = duplex(100);
        let mut direction = Direction::default();
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
        assert_eq!((got == sent, direction.moved, direction.broke), (true, 200_000, false));
    }

    #[tokio::test]
    async fn a_side_that_takes_nothing_is_not_read_for() {
        let (mut near, mut from) = duplex(1_000_000);
        let (mut to, _far) = duplex(10);
        near.write_all(&[7; 100_000]).await.unwrap();
        let mut direction = Direction::default();
        let polled = tokio::time::timeout(
            std::time::Duration::from_millis(20),
            run(&mut direction, &mut from, &mut to),
        );
        assert!(polled.await.is_err());
        assert_eq!((direction.moved, direction.held.len()), (10, PIECE - 10));
    }

    #[tokio::test]
    async fn a_side_that_is_gone_ends_the_direction() {
        let (mut near, mut from) = duplex(100);
        let (mut to, far) = duplex(100);
        drop(far);
        near.write_all(b"abc").await.unwrap();
        let mut direction = Direction::default();
        run(&mut direction, &mut from, &mut to).await;
        assert!(direction.is_over() && direction.moved == 0 && direction.held.is_empty());
    }
}
