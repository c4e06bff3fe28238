//! Messages of AWS (`application/vnd.amazon.eventstream`): the payload of each, in pieces. Checksums are not compared.
//!
//! Source: <https://smithy.io/2.0/aws/amazon-eventstream.html>. A message is its length, the length of its headers, a
//! checksum of both, headers, payload, and a checksum.

use super::event_framing::FramePiece;

const LENGTHS: u64 = 8;
const CHECKSUM: u64 = 4;
const LEAST: u64 = LENGTHS + 2 * CHECKSUM;

/// The state of a stream between its pieces.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct AwsFraming {
    /// Bytes of the current message that were read.
    at: u64,
    lengths: [u8; LENGTHS as usize],
}

// === impl AwsFraming ===

impl AwsFraming {
    pub(super) fn scan(&mut self, mut bytes: &[u8], mut each: impl FnMut(FramePiece<'_>)) {
        while let Some(&byte) = bytes.first() {
            if let Some(place) = usize::try_from(self.at).ok().and_then(|at| self.lengths.get_mut(at)) {
                *place = byte;
                self.at += 1;
                bytes = &bytes[1..];
                continue;
            }
            let [end, headers] = self.read_lengths();
            let trailer = end - CHECKSUM;
            let payload = (LENGTHS + CHECKSUM + headers).min(trailer);
            let stop = [payload, trailer, end].into_iter().find(|stop| *stop > self.at).unwrap_or(end);
            let length = usize::try_from(stop - self.at).map_or(bytes.len(), |left| left.min(bytes.len()));
            let (piece, rest) = bytes.split_at(length);
            if (payload..trailer).contains(&self.at) {
                each(FramePiece::Data(piece));
            }
            (self.at, bytes) = (self.at + length as u64, rest);
            if self.at == end {
                each(FramePiece::End);
                self.at = 0;
            }
        }
    }

    /// The length of the message, and that of its headers.
    fn read_lengths(&self) -> [u64; 2] {
        let [a, b, c, d, e, f, g, h] = self.lengths;
        let (message, headers) = (u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes([e, f, g, h]));
        [u64::from(message).max(LEAST), headers.into()]
    }
}
