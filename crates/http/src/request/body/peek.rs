//! Reads the beginning of a request body before the request is judged, and keeps it for the upstream.

use std::future::poll_fn;

use bytes::Bytes;
use http_body::Body;

use super::inbound::InboundBody;
use super::{BodyFault, BodyRoom, RequestBody, WholeBody, poll_client};
use crate::net::deadline::RequestWatch;

/// A body of which the beginning was read.
pub struct PeekedBody {
    pub(super) beginning: Bytes,
    pub(super) rest: InboundBody,
}

/// The bytes so far. The usual body comes in one piece, which is kept as it is; more pieces are copied into one, so
/// that no small piece keeps a large buffer.
enum ReadBytes {
    One(Bytes),
    Joined(Vec<u8>),
}

impl RequestBody {
    /// Reads until the body ends, is longer than `peek_bytes` or gets no `room`, which each piece awaits. The bytes
    /// read are forwarded later as if they had just come.
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
        let (mut read, mut trailers) = (ReadBytes::One(Bytes::new()), None);
        let most = peek_bytes.min(max);
        let is_whole = loop {
            if read.len() > most {
                break false;
            }
            // A body of known length ends with its last byte.
            if incoming.is_end_stream() {
                break true;
            }
            let frame = poll_fn(|cx| poll_client(&mut incoming, watch, cx)).await;
            let Some(frame) = frame.transpose()? else { break true };
            match frame.into_data() {
                Ok(piece) => {
                    // The excess is one piece at most, and no longer kept once the body is refused.
                    let capacity = read.capacity_with(&piece).min(most);
                    let has_room = room.take(capacity).await;
                    read.push(piece, capacity);
                    if !has_room {
                        break false;
                    }
                }
                Err(frame) => trailers = frame.into_trailers().ok(),
            }
        };
        if read.len() > max {
            return Err(BodyFault::TooLarge);
        }
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
            RequestBody::Whole(body) => Some((&body.data, true)),
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

impl ReadBytes {
    fn len(&self) -> u64 {
        match self {
            ReadBytes::One(bytes) => bytes.len() as u64,
            ReadBytes::Joined(bytes) => bytes.len() as u64,
        }
    }

    /// The bytes to allocate before `piece` is added; twofold growth makes the copies cheap.
    fn capacity_with(&self, piece: &Bytes) -> u64 {
        let bytes = self.len() + piece.len() as u64;
        if self.len() == 0 { bytes } else { bytes.next_power_of_two() }
    }

    fn push(&mut self, piece: Bytes, capacity: u64) {
        match self {
            ReadBytes::One(bytes) if bytes.is_empty() => return *bytes = piece,
            ReadBytes::One(bytes) => *self = ReadBytes::Joined(bytes.to_vec()),
            ReadBytes::Joined(_) => {}
        }
        if let ReadBytes::Joined(bytes) = self {
            bytes.reserve_exact(piece.len().max(capacity as usize - bytes.len()));
            bytes.extend_from_slice(&piece);
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            ReadBytes::One(bytes) => bytes,
            ReadBytes::Joined(bytes) => bytes.into_boxed_slice().into(),
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

#[cfg(test)]
mod tests;
