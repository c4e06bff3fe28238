//! Reads the beginning of a request body before the request is judged, and keeps it for the upstream.

use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::Body;

use super::inbound::InboundBody;
use super::whole::WholeBody;
use super::{BodyFault, BodyRoom, RequestBody, poll_client};
use crate::net::deadline::RequestWatch;

/// A body of which the beginning was read.
pub struct PeekedBody {
    pub(super) beginning: Bytes,
    pub(super) rest: InboundBody,
}

/// The beginning of a body, while it is read.
struct Beginning {
    read: ReadBytes,
    /// The last piece, until there is room for it.
    piece: Option<Bytes>,
    trailers: Option<HeaderMap>,
}

/// The bytes so far. The usual body comes in one piece, which is kept as it is; more pieces are copied into one, so
/// that no small piece keeps a large buffer.
enum ReadBytes {
    One(Bytes),
    Joined(BytesMut),
}

impl RequestBody {
    /// Reads until the body ends or is longer than `peek_bytes`, each piece once there is `room` for it. What was read
    /// is forwarded later as if it had just come.
    ///
    /// # Errors
    /// The client's fault, also of a body longer than `max`. Then the rest of the body is lost.
    pub async fn peek_beginning(
        &mut self,
        watch: &RequestWatch,
        room: &BodyRoom,
        peek_bytes: u64,
        max: u64,
    ) -> Result<(), BodyFault> {
        let mut incoming = match std::mem::replace(self, RequestBody::Consumed) {
            RequestBody::Unread(incoming) => *incoming,
            other => {
                *self = other;
                return Ok(());
            }
        };
        let has_length = incoming.size_hint().exact().is_some();
        let _unblock = UnblockGuard(watch);
        let mut beginning = Beginning { read: ReadBytes::One(Bytes::new()), piece: None, trailers: None };
        let most = peek_bytes.min(max);
        let is_whole = poll_fn(|cx| beginning.poll_read(cx, &mut incoming, watch, room, most)).await?;
        if beginning.read.len() > max {
            return Err(BodyFault::TooLarge);
        }
        let Beginning { read, trailers, .. } = beginning;
        let data = room.hold(read.into_bytes());
        *self = if is_whole {
            RequestBody::Whole(Box::new(WholeBody::new(data, trailers, has_length)))
        } else {
            RequestBody::Peeked(Box::new(PeekedBody { beginning: data, rest: incoming }))
        };
        Ok(())
    }

    /// The bytes that were read before judging, and whether they are the whole body.
    pub fn peeked_bytes(&self) -> Option<(&[u8], bool)> {
        match self {
            RequestBody::Whole(body) => Some((body.data(), true)),
            RequestBody::Peeked(body) => Some((&body.beginning, false)),
            _ => None,
        }
    }

    /// Bytes of the body that were read before judging and are still held.
    pub fn held_bytes(&self) -> u64 {
        match self {
            RequestBody::Client(body) => body.beginning.len() as u64,
            other => other.peeked_bytes().map_or(0, |(bytes, _)| bytes.len() as u64),
        }
    }
}

impl Beginning {
    /// Reads until the body ends (true) or is longer than `most` bytes (false).
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        incoming: &mut InboundBody,
        watch: &RequestWatch,
        room: &BodyRoom,
        most: u64,
    ) -> Poll<Result<bool, BodyFault>> {
        loop {
            if let Some(piece) = &self.piece {
                // What lies beyond is one piece at most, and no longer kept once the body is refused.
                let counted = (piece.len() as u64).min(most.saturating_sub(self.read.len()));
                ready!(room.poll_take(cx, counted));
                self.piece.take().into_iter().for_each(|piece| self.read.push(piece));
            }
            if self.read.len() > most {
                return Poll::Ready(Ok(false));
            }
            // A body of known length ends with its last byte.
            if incoming.is_end_stream() {
                return Poll::Ready(Ok(true));
            }
            let Some(frame) = ready!(poll_client(incoming, watch, cx)).transpose()? else {
                return Poll::Ready(Ok(true));
            };
            match frame.into_data() {
                Ok(data) => self.piece = Some(data),
                Err(trailers) => self.trailers = trailers.into_trailers().ok(),
            }
        }
    }
}

impl ReadBytes {
    fn len(&self) -> u64 {
        match self {
            ReadBytes::One(bytes) => bytes.len() as u64,
            ReadBytes::Joined(bytes) => bytes.len() as u64,
        }
    }

    fn push(&mut self, piece: Bytes) {
        match self {
            ReadBytes::One(bytes) if bytes.is_empty() => *bytes = piece,
            ReadBytes::One(bytes) => {
                let mut joined = BytesMut::with_capacity(2 * (bytes.len() + piece.len()));
                joined.extend_from_slice(bytes);
                joined.extend_from_slice(&piece);
                *self = ReadBytes::Joined(joined);
            }
            ReadBytes::Joined(bytes) => bytes.extend_from_slice(&piece),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            ReadBytes::One(bytes) => bytes,
            ReadBytes::Joined(bytes) => bytes.freeze(),
        }
    }
}

/// The gateway waits for no more of the body, however the reading ends.
struct UnblockGuard<'w>(&'w RequestWatch);

impl Drop for UnblockGuard<'_> {
    fn drop(&mut self) {
        self.0.clear_body_blocked();
    }
}
