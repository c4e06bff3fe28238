//! A look at the frames of HTTP/2 as they pass, for what nobody behind it watches: a frame or a header block that
//! never ends, and floods of frames that ask for work and carry nothing.

use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::net::deadline::ConnectionWatch;
use crate::net::socket::Wire;

/// Frames without use that a client may send at once; each request gives it one back, and so does time.
const IDLE_TALK_MAX: u32 = 10_000;
/// How many of them it gets back with each tick.
const FORGIVEN_PER_TICK: u64 = 100;
/// Bytes sent to the client that give one back: clients of gRPC ping once for what came in each round trip, to measure
/// it. What answers a PING is so short that a flood is not paid by it.
const PAYING_BYTES: usize = 64;

/// The wire of a connection that speaks HTTP/2, after its preface or before.
pub struct Watched {
    wire: Wire,
    watch: Rc<ConnectionWatch>,
    frames: Frames,
    /// The tick up to which was forgiven.
    forgiven: u64,
    /// Becomes true with the end of either direction.
    over: Rc<Cell<bool>>,
    /// What is left of [`HEARD`].
    unheard: &'static [u8],
}

impl Watched {
    pub fn new(wire: Wire, watch: Rc<ConnectionWatch>, over: Rc<Cell<bool>>) -> Watched {
        let forgiven = watch.now();
        Watched { wire, watch, frames: Frames::new(), forgiven, over, unheard: &HEARD }
    }

    fn look_at(&mut self, bytes: &[u8]) -> io::Result<()> {
        let now = self.watch.now();
        let forgiven = now.saturating_sub(self.forgiven).saturating_mul(FORGIVEN_PER_TICK);
        self.frames.idle_talk =
            self.frames.idle_talk.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX));
        self.forgiven = now;
        if self.frames.pass(bytes) {
            self.watch.frame_pending(false);
        }
        self.watch.frame_pending(self.frames.is_pending());
        if std::mem::take(&mut self.frames.ping_answered) {
            self.watch.ping_answered();
        }
        if self.frames.idle_talk > IDLE_TALK_MAX {
            return Err(io::Error::other("too many frames without use"));
        }
        Ok(())
    }
}

const HEAD: usize = 9;
/// The answer to the PING that h2 sends with the first GOAWAY, by which it knows that the client has read that.
static HEARD: [u8; HEAD + 8] = [0, 0, 8, 6, 1, 0, 0, 0, 0, 0x0b, 0x7b, 0xa2, 0xf0, 0x8b, 0x9b, 0xfe, 0x54];
/// What a client says first.
const PREFACE: usize = 24;

/// Where in the stream of frames we are (RFC 9113, section 4.1).
struct Frames {
    head: [u8; HEAD],
    /// Bytes of the head that have come.
    have: usize,
    /// Bytes of the payload, or of the preface, that are still to come.
    left: usize,
    /// A header block has begun and not ended.
    in_block: bool,
    idle_talk: u32,
    /// Bytes that were sent and have not paid for anything yet.
    paying: usize,
    ping_answered: bool,
}

impl Frames {
    const DATA: u8 = 0;
    const HEADERS: u8 = 1;
    const PING: u8 = 6;
    const WINDOW_UPDATE: u8 = 8;
    const CONTINUATION: u8 = 9;
    const ACK: u8 = 1;
    const END_HEADERS: u8 = 4;

    fn new() -> Frames {
        Frames {
            head: [0; HEAD],
            have: 0,
            left: PREFACE,
            in_block: false,
            idle_talk: 0,
            paying: 0,
            ping_answered: false,
        }
    }

    /// Whether nothing was pending at some moment before the last of the bytes: what is pending now has just begun.
    fn pass(&mut self, mut bytes: &[u8]) -> bool {
        let mut was_between = false;
        while !bytes.is_empty() {
            if self.left > 0 {
                let taken = self.left.min(bytes.len());
                self.left -= taken;
                bytes = &bytes[taken..];
                continue;
            }
            if self.have == HEAD {
                self.have = 0;
                was_between |= !self.in_block;
            }
            let taken = (HEAD - self.have).min(bytes.len());
            self.head[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == HEAD {
                self.begin();
            }
        }
        was_between
    }

    /// The client was sent something.
    fn pay(&mut self, bytes: usize) {
        self.paying += bytes;
        let paid = u32::try_from(self.paying / PAYING_BYTES).unwrap_or(u32::MAX);
        self.idle_talk = self.idle_talk.saturating_sub(paid);
        self.paying %= PAYING_BYTES;
    }

    fn begin(&mut self) {
        let [high, middle, low, kind, flags, ..] = self.head;
        self.left = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
        match kind {
            Frames::HEADERS => {
                self.in_block = flags & Frames::END_HEADERS == 0;
                self.idle_talk = self.idle_talk.saturating_sub(1);
            }
            Frames::CONTINUATION => {
                self.in_block = flags & Frames::END_HEADERS == 0;
                self.idle_talk += 1;
            }
            // Empty ones are counted where their stream is known.
            Frames::DATA | Frames::WINDOW_UPDATE => {}
            _ => {
                self.idle_talk += 1;
                self.ping_answered |= kind == Frames::PING && flags & Frames::ACK != 0;
            }
        }
    }

    /// Whether the next byte begins a frame that is no part of a header block.
    fn is_between(&self) -> bool {
        self.left == 0 && !self.in_block && matches!(self.have, 0 | HEAD)
    }

    /// Whether something has begun that nobody else waits for: a body's deadline is its stream's.
    fn is_pending(&self) -> bool {
        let is_partial = self.left > 0 || (1..HEAD).contains(&self.have);
        self.in_block || (is_partial && !(self.have == HEAD && self.head[3] == Frames::DATA))
    }
}

impl AsyncRead for Watched {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        // Who says GOAWAY first sends a PING, and takes requests until it is answered; some never answer.
        let is_begun = this.unheard.len() < HEARD.len();
        if !this.unheard.is_empty() && (is_begun || this.watch.may_part() && this.frames.is_between()) {
            let (now, later) = this.unheard.split_at(buf.remaining().min(this.unheard.len()));
            buf.put_slice(now);
            this.unheard = later;
            this.watch.ping_answered();
            return Poll::Ready(Ok(()));
        }
        let read = ready!(Pin::new(&mut this.wire).poll_read(cx, buf));
        if read.is_err() || buf.filled().len() == before {
            this.over.set(true);
        }
        read?;
        Poll::Ready(this.look_at(&buf.filled()[before..]))
    }
}

impl AsyncWrite for Watched {
    #[inline]
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.wire).poll_write(cx, bytes))?;
        self.frames.pay(written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.wire).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.over.set(true);
        Pin::new(&mut self.wire).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, length: usize) -> Vec<u8> {
        let size = u32::try_from(length).unwrap().to_be_bytes();
        let mut frame = vec![size[1], size[2], size[3], kind, flags, 0, 0, 0, 1];
        frame.resize(HEAD + length, 0xff);
        frame
    }

    fn after_preface() -> Frames {
        let mut frames = Frames::new();
        frames.pass(&[b'x'; PREFACE]);
        assert!(!frames.is_pending());
        frames
    }

    #[test]
    fn whole_frames_leave_nothing_pending_wherever_they_are_split() {
        let bytes =
            [frame(4, 0, 12), frame(1, 4, 300), frame(0, 0, 5), frame(8, 0, 4), frame(6, 0, 8)].concat();
        for split in 0..bytes.len() {
            let mut frames = after_preface();
            frames.pass(&bytes[..split]);
            frames.pass(&bytes[split..]);
            assert!(!frames.is_pending(), "{split}");
            assert_eq!((frames.left, frames.idle_talk), (0, 1), "{split}");
        }
    }

    #[test]
    fn what_has_begun_and_not_ended_is_pending_but_for_bodies() {
        let mut frames = Frames::new();
        frames.pass(b"PRI");
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
            frames.pass(&bytes);
            assert_eq!(frames.is_pending(), pending, "{bytes:?}");
        }
    }

    #[test]
    fn requests_pay_for_what_asks_for_nothing() {
        let mut frames = after_preface();
        for _ in 0..50 {
            frames.pass(&frame(6, 0, 8));
        }
        assert_eq!(frames.idle_talk, 50);
        for _ in 0..30 {
            frames.pass(&frame(1, 4, 1));
        }
        assert_eq!(frames.idle_talk, 20);
    }

    #[test]
    fn frames_that_follow_each_other_are_not_one_that_never_ends() {
        let (ping, open) = (frame(6, 0, 8), frame(1, 0, 10));
        let mut frames = after_preface();
        assert!(!frames.pass(&ping[..4]));
        for _ in 0..3 {
            assert!(!frames.pass(&ping[4..12]));
            // The end of one and the beginning of the next.
            assert!(frames.pass(&[&ping[12..], &ping[..4]].concat()));
        }
        let mut frames = after_preface();
        frames.pass(&open);
        for _ in 0..3 {
            // A header block goes on.
            assert!(!frames.pass(&[frame(9, 0, 1), frame(9, 0, 1)[..4].to_vec()].concat()));
            assert!(!frames.pass(&frame(9, 0, 1)[4..]));
        }
    }

    #[test]
    fn what_a_client_is_sent_pays_for_its_pings() {
        for (sent, is_flood) in [(109, false), (17, true), (0, true)] {
            let mut frames = after_preface();
            for _ in 0..20_000 {
                frames.pass(&frame(6, 0, 8));
                frames.pay(sent);
            }
            assert_eq!(frames.idle_talk > IDLE_TALK_MAX, is_flood, "{sent}: {}", frames.idle_talk);
        }
    }
}
