//! Serves Redis clients on a connection: reads commands, and writes their replies together.

use std::io;
use std::mem::MaybeUninit;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWriteExt, ReadBuf};

use crate::gateway::worker::WorkerThread;
use crate::service::calls::resp::{RespSession, SessionEnd};
use sluicegate_http::net::deadline::ConnectionWatch;
use sluicegate_http::net::socket::ClientStream;

/// Bytes read at once.
const READ_SIZE: usize = 16 * 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadOutcome {
    /// Bytes that came.
    Bytes(usize),
    /// The connection is unused for a while.
    Idle,
    /// The client left, or the connection shall close.
    Closed,
}

/// The reading side of one connection.
struct RespInput<'a> {
    thread: &'a WorkerThread,
    watch: &'a ConnectionWatch,
    wire: ClientStream,
    /// The input that is read and not answered.
    bytes: BytesMut,
    /// No memory is held for the client.
    is_released: bool,
    /// The last replies were written while the connection was closing.
    was_last: bool,
}

/// Serves until the connection ends. While the client does not read its replies, nothing more is read from it.
pub(crate) async fn serve_resp(
    thread: &WorkerThread,
    watch: &ConnectionWatch,
    wire: ClientStream,
    peer: Option<IpAddr>,
) {
    let mut session = RespSession::new(peer);
    let bytes = BytesMut::new();
    let mut input = RespInput { thread, watch, wire, bytes, is_released: true, was_last: false };
    let mut replies = Vec::new();
    loop {
        let read = match input.read_more().await {
            ReadOutcome::Bytes(read) => read,
            ReadOutcome::Idle => {
                (input.bytes, replies) = (BytesMut::new(), Vec::new());
                session.release_memory();
                input.is_released = true;
                continue;
            }
            ReadOutcome::Closed => return,
        };
        input.is_released = false;
        loop {
            // Another process has the counters, or the listener requires more than this client brought.
            if input.must_stop() {
                return;
            }
            let answered = session.answer_commands(&thread.current_worker(), &input.bytes, &mut replies);
            input.bytes.advance(answered.consumed);
            if answered.consumed > 0 {
                watch.begin_idle();
            }
            if !replies.is_empty() {
                input.was_last = watch.is_closing();
                if input.wire.write_all(&replies).await.is_err() || input.wire.flush().await.is_err() {
                    return;
                }
                replies.clear();
            }
            match answered.ends {
                Some(end) => return close_connection(input.wire, watch, end).await,
                None if answered.is_paused => tokio::task::yield_now().await,
                None => break,
            }
        }
        if !input.bytes.is_empty() {
            // The deadline of a command begins with its first bytes.
            watch.record_read();
        }
        if read >= READ_SIZE {
            // A client that never pauses must not occupy the worker.
            tokio::task::yield_now().await;
        }
    }
}

// === impl RespInput ===

impl RespInput<'_> {
    fn must_stop(&self) -> bool {
        self.thread.has_stopped_judging() || self.watch.is_revoked()
    }

    async fn read_more(&mut self) -> ReadOutcome {
        std::future::poll_fn(|cx| self.poll_read_more(cx)).await
    }

    /// Reads at most [`READ_SIZE`] bytes.
    fn poll_read_more(&mut self, cx: &mut Context<'_>) -> Poll<ReadOutcome> {
        let watch = self.watch;
        watch.set_waker(cx.waker());
        if self.must_stop() {
            return Poll::Ready(ReadOutcome::Closed);
        }
        if self.is_released {
            watch.mark_hibernating();
        }
        let read = poll_read_behind(&mut self.wire, cx, &mut self.bytes);
        if read.is_pending() && self.bytes.is_empty() {
            if watch.is_closing() && (self.was_last || watch.may_close()) && !self.wire.has_unread() {
                return Poll::Ready(ReadOutcome::Closed);
            }
            if watch.may_hibernate() && !self.is_released {
                return Poll::Ready(ReadOutcome::Idle);
            }
        }
        Poll::Ready(match ready!(read) {
            Ok(0) | Err(_) => ReadOutcome::Closed,
            Ok(bytes) => ReadOutcome::Bytes(bytes),
        })
    }
}

fn poll_read_behind(
    wire: &mut ClientStream,
    cx: &mut Context<'_>,
    input: &mut BytesMut,
) -> Poll<io::Result<usize>> {
    let mut piece = [MaybeUninit::uninit(); READ_SIZE];
    let mut read = ReadBuf::uninit(&mut piece);
    ready!(Pin::new(wire).poll_read(cx, &mut read))?;
    input.extend_from_slice(read.filled());
    Poll::Ready(Ok(read.filled().len()))
}

/// Closes after the last reply. Behind a fault the client may still be sending, and closing over unread bytes would
/// reset the connection before it has read the reply.
async fn close_connection(mut wire: ClientStream, watch: &ConnectionWatch, end: SessionEnd) {
    if end == SessionEnd::Fault {
        watch.leave_unread();
    }
    let _ = wire.shutdown().await;
}
