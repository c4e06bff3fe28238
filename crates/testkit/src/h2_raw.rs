//! HTTP/2 frame by frame: frames that no library would send, and the replies.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::PATIENCE;
use super::wire::{End, Socket, Wire};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;
pub const WITH_PRIORITY: u8 = 0x20;

/// Codes of errors (RFC 9113, section 7).
pub const NO_ERROR: u32 = 0;
pub const PROTOCOL: u32 = 1;
pub const FLOW_CONTROL: u32 = 3;
pub const STREAM_CLOSED: u32 = 5;
pub const FRAME_SIZE: u32 = 6;
pub const REFUSED: u32 = 7;
pub const COMPRESSION: u32 = 9;
pub const CALM: u32 = 11;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// The end of a stream or connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Status and body.
    Answered(u16, Vec<u8>),
    /// The stream was reset, with this code.
    Reset(u32),
    /// The connection was closed, with this code.
    GoAway(u32),
    Closed,
    /// No end in time.
    Silent,
}

/// One connection. SETTINGS and PINGs of the server are answered automatically.
pub struct H2 {
    wire: Wire,
    /// Frames skipped while waiting for others.
    skipped: VecDeque<Frame>,
    /// Bytes of bodies are returned to the server's windows once read.
    pub reads: bool,
    /// PINGs are answered.
    pub pongs: bool,
}

/// One frame of this kind.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let size = u32::try_from(payload.len()).expect("a small frame").to_be_bytes();
    let mut bytes = vec![size[1], size[2], size[3], kind, flags];
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// A header block of literals without indexing (RFC 7541, section 6.2.2), never compressed.
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in fields {
        bytes.push(0);
        string(&mut bytes, name);
        string(&mut bytes, value);
    }
    bytes
}

fn string(bytes: &mut Vec<u8>, text: &str) {
    let mut left = text.len();
    if left < 127 {
        bytes.push(u8::try_from(left).expect("a short one"));
    } else {
        bytes.push(127);
        left -= 127;
        while left >= 128 {
            bytes.push(0x80 | (left % 128) as u8);
            left /= 128;
        }
        bytes.push(left as u8);
    }
    bytes.extend_from_slice(text.as_bytes());
}

/// The fields that every request has, and more.
pub fn request<'a>(method: &'a str, path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let mut fields =
        vec![(":method", method), (":scheme", "http"), (":path", path), (":authority", "gateway.test")];
    fields.extend_from_slice(more);
    fields
}

pub fn settings(values: &[(u16, u32)]) -> Vec<u8> {
    values.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect()
}

impl H2 {
    /// Connected, without a byte sent.
    #[track_caller]
    pub fn connect(addr: SocketAddr) -> H2 {
        let stream = TcpStream::connect_timeout(&addr, PATIENCE).expect("the gateway accepts");
        stream.set_nodelay(true).expect("nodelay can be set");
        H2::over(Socket::Tcp(stream))
    }

    pub fn over(socket: Socket) -> H2 {
        H2 { wire: Wire::new(socket), skipped: VecDeque::new(), reads: true, pongs: true }
    }

    /// Ends its side of the connection in order, or makes its close a reset.
    pub fn leave(&self, resets: bool) {
        if resets {
            self.wire.socket.reset_on_close();
        } else {
            self.wire.socket.shutdown(std::net::Shutdown::Write);
        }
    }

    /// Ready for requests; the server has no table of fields to refer to.
    #[track_caller]
    pub fn open(addr: SocketAddr) -> H2 {
        H2::open_with(addr, &[])
    }

    #[track_caller]
    pub fn open_with(addr: SocketAddr, values: &[(u16, u32)]) -> H2 {
        let mut h2 = H2::connect(addr);
        h2.write(PREFACE);
        h2.send(SETTINGS, 0, 0, &settings(&[&[(1, 0)], values].concat()));
        let ack = h2.wait(|frame| frame.kind == SETTINGS && frame.flags & ACK != 0);
        assert!(ack.is_ok(), "no settings were acknowledged: {ack:?}");
        h2
    }

    #[track_caller]
    pub fn write(&mut self, bytes: &[u8]) {
        self.try_write(bytes).expect("the connection takes bytes");
    }

    pub fn try_write(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.wire.socket.set_write_timeout(PATIENCE);
        self.wire.socket.write_all(bytes)
    }

    #[track_caller]
    pub fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.write(&frame(kind, flags, stream, payload));
    }

    /// A request without a body.
    #[track_caller]
    pub fn ask(&mut self, stream: u32, fields: &[(&str, &str)]) {
        self.send(HEADERS, END_HEADERS | END_STREAM, stream, &block(fields));
    }

    #[track_caller]
    pub fn get(&mut self, stream: u32, path: &str) -> Outcome {
        self.ask(stream, &request("GET", path, &[]));
        self.outcome(stream)
    }

    /// The next frame from the wire.
    pub fn read(&mut self, deadline: Instant) -> Result<Frame, End> {
        let head = self.wire.exactly(9, deadline);
        if let Some(end) = head.end {
            return Err(end);
        }
        let head = head.bytes;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        let payload = self.wire.exactly(length, deadline);
        if let Some(end) = payload.end {
            return Err(end);
        }
        let frame = Frame { kind: head[3], flags: head[4], stream, payload: payload.bytes };
        self.react(&frame);
        Ok(frame)
    }

    fn react(&mut self, came: &Frame) {
        let room = u32::try_from(came.payload.len()).expect("a small frame").to_be_bytes();
        let answer = match came.kind {
            SETTINGS if came.flags & ACK == 0 => frame(SETTINGS, ACK, 0, b""),
            PING if came.flags & ACK == 0 && self.pongs => frame(PING, ACK, 0, &came.payload),
            DATA if self.reads && !came.payload.is_empty() => {
                [frame(WINDOW_UPDATE, 0, 0, &room), frame(WINDOW_UPDATE, 0, came.stream, &room)].concat()
            }
            _ => return,
        };
        let _ = self.try_write(&answer);
    }

    /// The first matching frame; the others are kept.
    pub fn wait(&mut self, is_it: impl Fn(&Frame) -> bool) -> Result<Frame, End> {
        self.wait_within(PATIENCE, is_it)
    }

    pub fn wait_within(&mut self, timeout: Duration, is_it: impl Fn(&Frame) -> bool) -> Result<Frame, End> {
        if let Some(place) = self.skipped.iter().position(&is_it) {
            return Ok(self.skipped.remove(place).expect("it is there"));
        }
        let deadline = Instant::now() + timeout;
        loop {
            let frame = self.read(deadline)?;
            if is_it(&frame) {
                return Ok(frame);
            }
            self.skipped.push_back(frame);
        }
    }

    /// The end of a stream, or of the connection.
    pub fn outcome(&mut self, stream: u32) -> Outcome {
        self.outcome_within(stream, PATIENCE)
    }

    pub fn outcome_within(&mut self, stream: u32, timeout: Duration) -> Outcome {
        let (mut status, mut body) = (0, Vec::new());
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let ours = |frame: &Frame| {
                frame.kind == GOAWAY && code(&frame.payload[4..]) != NO_ERROR
                    || frame.stream == stream
                        && matches!(frame.kind, DATA | HEADERS | CONTINUATION | RST_STREAM)
            };
            let frame = match self.wait_within(left, ours) {
                Ok(frame) => frame,
                Err(End::Deadline) => return Outcome::Silent,
                Err(_) => return Outcome::Closed,
            };
            match frame.kind {
                GOAWAY => return Outcome::GoAway(code(&frame.payload[4..])),
                RST_STREAM => return Outcome::Reset(code(&frame.payload)),
                HEADERS if status == 0 => status = status_of(&frame.payload),
                DATA => body.extend_from_slice(&frame.payload),
                _ => {}
            }
            if frame.flags & END_STREAM != 0 && matches!(frame.kind, HEADERS | DATA) {
                return Outcome::Answered(status, body);
            }
        }
    }

    /// The end of the connection.
    pub fn connection_outcome(&mut self) -> Outcome {
        match self.wait(|frame| frame.kind == GOAWAY && code(&frame.payload[4..]) != NO_ERROR) {
            Ok(frame) => Outcome::GoAway(code(&frame.payload[4..])),
            Err(End::Deadline) => Outcome::Silent,
            Err(_) => Outcome::Closed,
        }
    }

    /// True if a PING is answered.
    pub fn is_alive(&mut self) -> bool {
        let said = b"alive?!.";
        self.try_write(&frame(PING, 0, 0, said)).is_ok()
            && self
                .wait(|frame| frame.kind == PING && frame.flags & ACK != 0 && frame.payload == said)
                .is_ok()
    }

    /// A second handle that writes while this one reads.
    pub fn writer(&self) -> Socket {
        self.wire.socket.try_clone().expect("a socket can be cloned")
    }

    /// Forgets the skipped frames.
    pub fn forget(&mut self) {
        self.skipped.clear();
    }

    /// Waits for the end of the connection; false after the timeout.
    pub fn ends_within(&mut self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        loop {
            match self.read(deadline) {
                Ok(_) => {}
                Err(End::Deadline) => return false,
                Err(_) => return true,
            }
        }
    }
}

/// A 32-bit number, as codes are sent.
pub fn code(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(u32::MAX, |code| u32::from_be_bytes(*code))
}

/// The status in a header block: its first field, by its index in the static table or as a literal.
pub fn status_of(block: &[u8]) -> u16 {
    let mut rest = block;
    // An update of the table's size may come first.
    while let [0x20..=0x3f, more @ ..] = rest {
        rest = more;
    }
    match rest {
        [indexed @ 0x88..=0x8e, ..] => [200, 204, 206, 304, 400, 404, 500][usize::from(indexed - 0x88)],
        [0x08 | 0x48 | 0x18, 0x03, digits @ ..] => number(digits.iter().take(3).map(|digit| digit - b'0')),
        [0x08 | 0x48 | 0x18, length @ 0x80..=0xff, coded @ ..] => {
            number(huffman_digits(&coded[..usize::from(length & 0x7f)]).into_iter().take(3))
        }
        _ => 0,
    }
}

fn number(digits: impl Iterator<Item = u8>) -> u16 {
    digits.fold(0, |number, digit| number * 10 + u16::from(digit))
}

/// Digits in the Huffman code of RFC 7541: 0 to 2 have five bits, the others six.
fn huffman_digits(coded: &[u8]) -> Vec<u8> {
    let bits: Vec<u8> = coded.iter().flat_map(|byte| (0..8).rev().map(move |at| byte >> at & 1)).collect();
    let value = |bits: &[u8]| bits.iter().fold(0, |value, bit| value << 1 | bit);
    let (mut digits, mut at) = (Vec::new(), 0);
    while at + 5 <= bits.len() {
        match value(&bits[at..at + 5]) {
            short @ 0..=2 => {
                digits.push(short);
                at += 5;
            }
            _ if at + 6 <= bits.len() && (0x19..=0x1f).contains(&value(&bits[at..at + 6])) => {
                digits.push(value(&bits[at..at + 6]) - 0x19 + 3);
                at += 6;
            }
            _ => break,
        }
    }
    digits
}
