//! A request body as hyper reads it.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use crate::net::deadline::{ConnectionWatch, UnreadBody};

/// A body that reports its own end to its HTTP/1 connection.
pub struct InboundBody {
    incoming: Incoming,
    /// `None` once the end is reported or cannot come, and over HTTP/2.
    unread: Option<(Rc<ConnectionWatch>, UnreadBody)>,
}

impl InboundBody {
    /// `None` if there is nothing to read.
    #[inline]
    pub fn receive(incoming: Incoming, watch: &Rc<ConnectionWatch>) -> Option<InboundBody> {
        let is_empty = incoming.is_end_stream();
        let unread = watch.begin_body(is_empty).map(|body| (watch.clone(), body));
        (!is_empty).then_some(InboundBody { incoming, unread })
    }
}

impl Body for InboundBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let polled = Pin::new(&mut self.incoming).poll_frame(cx);
        match &polled {
            // A body of known length ends with its last byte, its stream only with the next head.
            Poll::Ready(Some(Ok(_))) if !self.incoming.is_end_stream() => {}
            Poll::Ready(Some(Ok(_)) | None) => {
                if let Some((watch, body)) = self.unread.take() {
                    watch.end_body(body);
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
