//! Watches the frames of an HTTP/2 client for attacks that h2 does not stop: a frame or a header block that never ends,
//! and floods of frames that cost work and carry nothing.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use sluicegate_http::net::deadline::ConnectionWatch;
use sluicegate_http::net::socket::ClientStream;

/// Useless frames that a client may send at once; each request earns one back, and so do time and DATA.
const USELESS_FRAMES_MAX: u32 = 10_000;
/// Useless frames credited per tick.
const CREDIT_PER_TICK: u64 = 100;
/// Bytes sent to the client that earn one useless frame back: it may open its windows in many steps for a large frame.
/// The answer to a PING is shorter, so a flood of PINGs does not pay for itself.
const BYTES_PER_CREDIT: usize = 64;
/// Frames by which a client may answer one of DATA, however small: WINDOW_UPDATEs of its stream and of the connection,
/// and the PING by which gRPC clients measure the bandwidth.
const REPLIES_PER_DATA: usize = 3;

/// The stream of an HTTP/2 connection, preface included.
pub(crate) struct GuardedWire {
    wire: ClientStream,
    watch: Rc<ConnectionWatch>,
    frames: FrameScanner,
    sent_frames: FrameScanner,
    /// The tick up to which frames were credited.
    credited_tick: u64,
    /// Set when either direction ends.
    has_ended: Rc<Cell<bool>>,
    /// The rest of [`GOAWAY_PING_ACK`] that h2 has not read.
    unsent_ack: &'static [u8],
}

impl GuardedWire {
    pub(crate) fn new(
        wire: ClientStream,
        watch: Rc<ConnectionWatch>,
        has_ended: Rc<Cell<bool>>,
    ) -> GuardedWire {
        let credited = watch.current_tick();
        GuardedWire {
            wire,
            watch,
            frames: FrameScanner::new(PREFACE_LENGTH),
            sent_frames: FrameScanner::new(0),
            credited_tick: credited,
            has_ended,
            unsent_ack: &GOAWAY_PING_ACK,
        }
    }

    fn inspect_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let now = self.watch.current_tick();
        let credited = now.saturating_sub(self.credited_tick).saturating_mul(CREDIT_PER_TICK);
        self.frames.useless_frames =
            self.frames.useless_frames.saturating_sub(u32::try_from(credited).unwrap_or(u32::MAX));
        self.credited_tick = now;
        if self.frames.scan_bytes(bytes) {
            self.watch.set_frame_pending(false);
        }
        self.watch.set_frame_pending(self.frames.is_pending());
        if std::mem::take(&mut self.frames.ping_answered) {
            self.watch.record_pong();
        }
        if self.frames.useless_frames > USELESS_FRAMES_MAX {
            return Err(io::Error::other("too many useless frames"));
        }
        Ok(())
    }
}

const FRAME_HEAD: usize = 9;
/// The answer to the PING that h2 sends with its first GOAWAY; by the answer h2 knows that the client has read it. The
/// payload is a private constant of h2 (`frame::Ping::SHUTDOWN`), so a test compares it with a real connection.
static GOAWAY_PING_ACK: [u8; FRAME_HEAD + 8] =
    [0, 0, 8, 6, 1, 0, 0, 0, 0, 0x0b, 0x7b, 0xa2, 0xf0, 0x8b, 0x9b, 0xfe, 0x54];
/// Bytes of the client's connection preface.
const PREFACE_LENGTH: usize = 24;

/// The position in the stream of frames (RFC 9113, section 4.1).
#[derive(Default)]
struct FrameScanner {
    head: [u8; FRAME_HEAD],
    /// Bytes of the head read so far.
    head_read: usize,
    /// Bytes of the payload, or of the preface, still to be read.
    payload_left: usize,
    /// Inside a header block: it has begun and not ended.
    in_block: bool,
    useless_frames: u32,
    /// Bytes sent that have not earned a frame back yet.
    credit_bytes: usize,
    data_frames: usize,
    /// WINDOW_UPDATEs and PINGs that are no useless frames, because they may answer DATA.
    replies_due: usize,
    ping_answered: bool,
}

impl FrameScanner {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const PING: u8 = 6;
    const WINDOW_UPDATE: u8 = 8;
    const CONTINUATION: u8 = 9;
    const ACK: u8 = 1;
    const END_HEADERS: u8 = 4;

    fn new(preface: usize) -> FrameScanner {
        FrameScanner { payload_left: preface, ..FrameScanner::default() }
    }

    /// Follows the frames through `bytes`. True when nothing was pending at some moment before the last byte: then a
    /// pending frame has just begun.
    fn scan_bytes(&mut self, mut bytes: &[u8]) -> bool {
        let mut was_between = false;
        while !bytes.is_empty() {
            if self.payload_left > 0 {
                let taken = self.payload_left.min(bytes.len());
                self.payload_left -= taken;
                bytes = &bytes[taken..];
                continue;
            }
            if self.head_read == FRAME_HEAD {
                self.head_read = 0;
                was_between |= !self.in_block;
            }
            let taken = (FRAME_HEAD - self.head_read).min(bytes.len());
            self.head[self.head_read..self.head_read + taken].copy_from_slice(&bytes[..taken]);
            self.head_read += taken;
            bytes = &bytes[taken..];
            if self.head_read == FRAME_HEAD {
                self.begin_frame();
            }
        }
        was_between
    }

    /// Lets the bytes and DATA frames sent to the client earn useless frames back.
    fn credit_sent(&mut self, bytes: usize, data_frames: usize) {
        self.replies_due += REPLIES_PER_DATA * data_frames;
        self.credit_bytes += bytes;
        let paid = u32::try_from(self.credit_bytes / BYTES_PER_CREDIT).unwrap_or(u32::MAX);
        self.useless_frames = self.useless_frames.saturating_sub(paid);
        self.credit_bytes %= BYTES_PER_CREDIT;
    }

    fn begin_frame(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.head;
        self.payload_left = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        match kind {
            FrameScanner::HEADERS => {
                self.in_block = flags & FrameScanner::END_HEADERS == 0;
                self.useless_frames = self.useless_frames.saturating_sub(1);
            }
            FrameScanner::CONTINUATION => {
                self.in_block = flags & FrameScanner::END_HEADERS == 0;
                self.useless_frames += 1;
            }
            // Empty ones are counted by their stream.
            FrameScanner::DATA => self.data_frames += 1,
            _ => {
                self.ping_answered |= kind == FrameScanner::PING && flags & FrameScanner::ACK != 0;
                let is_reply =
                    matches!(kind, FrameScanner::PING | FrameScanner::WINDOW_UPDATE) && self.replies_due > 0;
                self.replies_due -= usize::from(is_reply);
                self.useless_frames += u32::from(!is_reply);
            }
        }
    }

    /// True if the next byte begins a frame outside a header block.
    fn is_between_frames(&self) -> bool {
        self.payload_left == 0 && !self.in_block && matches!(self.head_read, 0 | FRAME_HEAD)
    }

    /// True if a frame or header block has begun that no other deadline covers; DATA has the body deadline of its
    /// stream.
    fn is_pending(&self) -> bool {
        let is_partial = self.payload_left > 0 || (1..FRAME_HEAD).contains(&self.head_read);
        self.in_block || (is_partial && !(self.head_read == FRAME_HEAD && self.head[3] == FrameScanner::DATA))
    }
}

impl AsyncRead for GuardedWire {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        // h2 accepts requests until the client answers the PING of its first GOAWAY. Some clients never answer, so the
        // answer is inserted here when it is overdue.
        let is_begun = this.unsent_ack.len() < GOAWAY_PING_ACK.len();
        if !this.unsent_ack.is_empty()
            && (is_begun || this.watch.is_goaway_overdue() && this.frames.is_between_frames())
        {
            let (now, later) = this.unsent_ack.split_at(buf.remaining().min(this.unsent_ack.len()));
            buf.put_slice(now);
            this.unsent_ack = later;
            this.watch.record_pong();
            return Poll::Ready(Ok(()));
        }
        let read = ready!(Pin::new(&mut this.wire).poll_read(cx, buf));
        if read.is_err() || buf.filled().len() == before {
            this.has_ended.set(true);
        }
        read?;
        Poll::Ready(this.inspect_bytes(&buf.filled()[before..]))
    }
}

impl AsyncWrite for GuardedWire {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.wire).poll_write(cx, bytes))?;
        this.sent_frames.scan_bytes(&bytes[..written]);
        this.frames.credit_sent(written, std::mem::take(&mut this.sent_frames.data_frames));
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.has_ended.set(true);
        Pin::new(&mut self.wire).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// h2 ends a connection gracefully only after this answer; another payload would leave it open.
    #[tokio::test]
    async fn h2_accepts_the_ack_of_its_goaway_ping() {
        const PING: u8 = FrameScanner::PING;
        const GOAWAY: u8 = 7;
        let (near, mut far) = tokio::io::duplex(4096);
        far.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut served = h2::server::handshake(near).await.unwrap();
        served.graceful_shutdown();
        let serve = async move { while served.accept().await.is_some() {} };
        let client = async move {
            let mut last_streams = Vec::new();
            let mut head = [0; FRAME_HEAD];
            while far.read_exact(&mut head).await.is_ok() {
                let mut payload = vec![0; usize::from(head[2])];
                far.read_exact(&mut payload).await.unwrap();
                match head[3] {
                    PING => {
                        assert_eq!(payload, GOAWAY_PING_ACK[FRAME_HEAD..], "h2 changed its payload");
                        far.write_all(&GOAWAY_PING_ACK).await.unwrap();
                    }
                    GOAWAY => last_streams.push(u32::from_be_bytes(payload[..4].try_into().unwrap())),
                    _ => {}
                }
            }
            last_streams
        };
        let both = async { tokio::join!(serve, client).1 };
        let last_streams = tokio::time::timeout(Duration::from_secs(10), both).await.expect("h2 ends");
        assert_eq!(last_streams, [u32::MAX >> 1, 0]);
    }

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let size = u32::try_from(length).unwrap().to_be_bytes();
        let mut frame = vec![size[1], size[2], size[3], kind, flags, 0, 0, 0, 1];
        frame.resize(FRAME_HEAD + length, 0xff);
        frame
    }

    fn after_preface() -> FrameScanner {
        let mut frames = FrameScanner::new(PREFACE_LENGTH);
        frames.scan_bytes(&[b'x'; PREFACE_LENGTH]);
        assert!(!frames.is_pending());
        frames
    }

    #[test]
    fn whole_frames_leave_nothing_pending_wherever_they_are_split() {
        let bytes =
            [frame(4, 0, 12), frame(1, 4, 300), frame(0, 0, 5), frame(8, 0, 4), frame(6, 0, 8)].concat();
        for split in 0..bytes.len() {
            let mut frames = after_preface();
            frames.scan_bytes(&bytes[..split]);
            frames.scan_bytes(&bytes[split..]);
            assert!(!frames.is_pending(), "{split}");
            assert_eq!((frames.payload_left, frames.useless_frames), (0, 2), "{split}");
        }
    }

    #[test]
    fn unfinished_frames_are_pending_except_bodies() {
        let mut frames = FrameScanner::new(PREFACE_LENGTH);
        frames.scan_bytes(b"PRI");
        assert!(frames.is_pending());
        for (bytes, pending) in [
            (frame(1, 4, 10)[..4].to_vec(), true),
            (frame(1, 4, 10)[..12].to_vec(), true),
            (frame(1, 0, 10), true),
            ([frame(1, 0, 10), frame(9, 0, 1)].concat(), true),
            ([frame(1, 0, 10), frame(9, 4, 1)].concat(), false),
            (frame(0, 0, 10)[..12].to_vec(), false),
        ] {
            let mut frames = after_preface();
            frames.scan_bytes(&bytes);
            assert_eq!(frames.is_pending(), pending, "{bytes:?}");
        }
    }

    #[test]
    fn requests_earn_useless_frames_back() {
        let mut frames = after_preface();
        for _ in 0..50 {
            frames.scan_bytes(&frame(6, 0, 8));
        }
        assert_eq!(frames.useless_frames, 50);
        for _ in 0..30 {
            frames.scan_bytes(&frame(1, 4, 1));
        }
        assert_eq!(frames.useless_frames, 20);
    }

    #[test]
    fn consecutive_frames_are_not_one_endless_frame() {
        let (ping, open) = (frame(6, 0, 8), frame(1, 0, 10));
        let mut frames = after_preface();
        assert!(!frames.scan_bytes(&ping[..4]));
        for _ in 0..3 {
            assert!(!frames.scan_bytes(&ping[4..12]));
            // The end of one frame and the beginning of the next.
            assert!(frames.scan_bytes(&[&ping[12..], &ping[..4]].concat()));
        }
        let mut frames = after_preface();
        frames.scan_bytes(&open);
        for _ in 0..3 {
            // The same header block continues.
            assert!(!frames.scan_bytes(&[frame(9, 0, 1), frame(9, 0, 1)[..4].to_vec()].concat()));
            assert!(!frames.scan_bytes(&frame(9, 0, 1)[4..]));
        }
    }

    #[test]
    fn bytes_sent_to_a_client_pay_for_its_pings() {
        for (sent, is_flood) in [(109, false), (17, true), (0, true)] {
            let mut frames = after_preface();
            for _ in 0..20_000 {
                frames.scan_bytes(&frame(6, 0, 8));
                frames.credit_sent(sent, 0);
            }
            assert_eq!(
                frames.useless_frames > USELESS_FRAMES_MAX,
                is_flood,
                "{sent}: {}",
                frames.useless_frames
            );
        }
    }

    #[test]
    fn each_frame_of_data_pays_for_the_replies_to_it() {
        // gRPC messages of one byte, in flight together or one by one; then as many replies too many.
        for in_flight in [1, 10_000] {
            let mut frames = after_preface();
            let mut sent = FrameScanner::new(0);
            let (message, ping, update) = (frame(0, 0, 6), frame(6, 0, 8), frame(8, 0, 4));
            for _ in 0..30_000 / in_flight {
                sent.scan_bytes(&message.repeat(in_flight));
                let data_frames = std::mem::take(&mut sent.data_frames);
                frames.credit_sent(in_flight * message.len(), data_frames);
                frames.scan_bytes(&[&update[..], &update, &ping].concat().repeat(in_flight));
            }
            assert_eq!(frames.useless_frames, 0, "{in_flight}");
            frames.scan_bytes(&update.repeat(USELESS_FRAMES_MAX as usize + 1));
            assert!(frames.useless_frames > USELESS_FRAMES_MAX);
        }
    }
}
