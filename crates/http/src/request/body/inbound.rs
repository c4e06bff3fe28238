//! A request body as hyper reads it: it tells its connection when it ends, and is read slowly where it comes in pieces
//! of a few bytes.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::time::Sleep;

use crate::net::deadline::{ConnectionWatch, UnreadBody};

/// Bytes from which a piece (a chunk or a DATA frame) is worth the work of reading it.
const TINY_PIECE: usize = 16;
/// Tiny pieces that a body may begin with.
const TINY_PIECES: u32 = 8_192;
/// Tiny pieces that it may have after each pause, which cost less than a hundredth of a core.
const TINY_PIECES_PER_PAUSE: u32 = 1_000;
const PAUSE: Duration = Duration::from_millis(100);

/// A body that reports its own end to its HTTP/1 connection.
pub struct InboundBody {
    incoming: Incoming,
    /// Tiny pieces until the next pause.
    tiny_left: u32,
    pause: Option<Pin<Box<Sleep>>>,
    watch: Rc<ConnectionWatch>,
    /// `None` once the end is reported or cannot come, and over HTTP/2.
    unread: Option<UnreadBody>,
}

impl InboundBody {
    /// `None` if there is nothing to read.
    #[inline]
    pub fn receive(incoming: Incoming, watch: &Rc<ConnectionWatch>) -> Option<InboundBody> {
        let is_empty = incoming.is_end_stream();
        let unread = watch.begin_body(is_empty);
        (!is_empty).then_some(InboundBody {
            incoming,
            tiny_left: TINY_PIECES,
            pause: None,
            watch: watch.clone(),
            unread,
        })
    }

    /// Waits until another tiny piece may be read. Meanwhile the client cannot send more than the buffers hold.
    fn poll_pause(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.tiny_left == 0 {
            let pause = self.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(PAUSE)));
            ready!(pause.as_mut().poll(cx));
            (self.tiny_left, self.pause) = (TINY_PIECES_PER_PAUSE, None);
        }
        Poll::Ready(())
    }
}

impl Body for InboundBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        ready!(self.poll_pause(cx));
        let polled = Pin::new(&mut self.incoming).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && frame.data_ref().is_some_and(|data| data.len() < TINY_PIECE)
        {
            self.tiny_left -= 1;
        }
        match &polled {
            // A body of known length ends with its last byte, its stream only with the next head.
            Poll::Ready(Some(Ok(_))) if !self.incoming.is_end_stream() => {}
            Poll::Ready(Some(Ok(_)) | None) => {
                if let Some(body) = self.unread.take() {
                    self.watch.end_body(body);
                }
            }
            // A broken body yields `None` next, which is not its end.
            Poll::Ready(Some(Err(_))) => self.unread = None,
            Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl Drop for InboundBody {
    fn drop(&mut self) {
        // Over HTTP/1 an unread body is known as such from its beginning.
        if self.watch.is_multiplexed() && !self.incoming.is_end_stream() {
            self.watch.leave_unread();
        }
    }
}
