//! The body of an answer: whole, or a stream of events.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use tokio::sync::mpsc;

pub(super) enum AdminBody {
    Whole(Full<Bytes>),
    /// Ends when the sender is dropped.
    Stream(mpsc::Receiver<Bytes>),
}

impl From<String> for AdminBody {
    fn from(text: String) -> AdminBody {
        AdminBody::Whole(text.into())
    }
}

impl From<Bytes> for AdminBody {
    fn from(bytes: Bytes) -> AdminBody {
        AdminBody::Whole(bytes.into())
    }
}

impl Body for AdminBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        match &mut *self {
            AdminBody::Whole(body) => Pin::new(body).poll_frame(cx),
            AdminBody::Stream(events) => {
                events.poll_recv(cx).map(|event| event.map(|event| Ok(Frame::data(event))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, AdminBody::Whole(body) if body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            AdminBody::Whole(body) => body.size_hint(),
            AdminBody::Stream(_) => SizeHint::default(),
        }
    }
}
