//! A socket with a read buffer: whole heads and bodies, each with a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::http::Headers;
use super::tls::TlsStream;

/// The reason why no more bytes arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The peer closed in order.
    Closed,
    /// The peer reset the connection.
    Reset,
    /// Nothing arrived in time.
    Deadline,
    /// The framing was invalid.
    Nonsense,
}

pub enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream>),
}

/// A message body and its end: `end` is `None` when the framing was fulfilled.
#[derive(Debug, Default)]
pub struct Body {
    pub bytes: Vec<u8>,
    pub trailers: Headers,
    pub end: Option<End>,
}

/// The reading side of one connection; `tap` records every byte read.
pub struct Wire {
    pub socket: Socket,
    buffer: Vec<u8>,
    tap: Option<Arc<Mutex<Vec<u8>>>>,
}

impl Wire {
    pub fn new(socket: Socket) -> Wire {
        Wire { socket, buffer: Vec::new(), tap: None }
    }

    pub fn tapped(socket: Socket, tap: Arc<Mutex<Vec<u8>>>) -> Wire {
        Wire { socket, buffer: Vec::new(), tap: Some(tap) }
    }

    /// Reads once into the buffer.
    fn fill(&mut self, deadline: Instant) -> Result<(), End> {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(End::Deadline);
        }
        let mut chunk = [0; 16 * 1024];
        self.socket.set_read_timeout(left.max(Duration::from_millis(1)));
        match self.socket.read(&mut chunk) {
            Ok(0) => Err(End::Closed),
            Ok(n) => {
                self.buffer.extend_from_slice(&chunk[..n]);
                if let Some(tap) = &self.tap {
                    tap.lock().unwrap().extend_from_slice(&chunk[..n]);
                }
                Ok(())
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Err(End::Deadline),
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(()),
            Err(_) => Err(End::Reset),
        }
    }

    /// Everything up to and including `mark`.
    pub fn until(&mut self, mark: &[u8], deadline: Instant) -> Result<Vec<u8>, End> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.buffer[searched..].windows(mark.len()).position(|w| w == mark) {
                return Ok(self.buffer.drain(..searched + at + mark.len()).collect());
            }
            searched = self.buffer.len().saturating_sub(mark.len() - 1);
            self.fill(deadline)?;
        }
    }

    /// Exactly `length` bytes, or the part of them that came.
    pub fn exactly(&mut self, length: usize, deadline: Instant) -> Body {
        let mut end = None;
        while self.buffer.len() < length && end.is_none() {
            end = self.fill(deadline).err();
        }
        let bytes = self.buffer.drain(..length.min(self.buffer.len())).collect();
        Body { bytes, end, ..Body::default() }
    }

    /// A chunked body with its trailers.
    pub fn chunked(&mut self, deadline: Instant) -> Body {
        let mut body = Body::default();
        body.end = self.chunks(&mut body.bytes, &mut body.trailers, deadline).err();
        body
    }

    fn chunks(&mut self, bytes: &mut Vec<u8>, trailers: &mut Headers, deadline: Instant) -> Result<(), End> {
        loop {
            let line = self.until(b"\r\n", deadline)?;
            let digits = line.split(|&b| matches!(b, b';' | b'\r' | b' ')).next().unwrap_or_default();
            let digits = std::str::from_utf8(digits).map_err(|_| End::Nonsense)?;
            let size = usize::from_str_radix(digits, 16).map_err(|_| End::Nonsense)?;
            if size == 0 {
                return self.trailer_lines(trailers, deadline);
            }
            let chunk = self.exactly(size, deadline);
            bytes.extend_from_slice(&chunk.bytes);
            if let Some(end) = chunk.end {
                return Err(end);
            }
            if self.until(b"\r\n", deadline)?.len() != 2 {
                return Err(End::Nonsense);
            }
        }
    }

    fn trailer_lines(&mut self, trailers: &mut Headers, deadline: Instant) -> Result<(), End> {
        loop {
            let line = self.until(b"\r\n", deadline)?;
            if line.len() == 2 {
                return Ok(());
            }
            trailers.0.extend(Headers::parse(&[b"x\r\n", &line[..]].concat()).0);
        }
    }

    /// Everything until the peer ends it.
    pub fn rest(&mut self, deadline: Instant) -> (Vec<u8>, End) {
        loop {
            if let Err(end) = self.fill(deadline) {
                return (std::mem::take(&mut self.buffer), end);
            }
        }
    }
}

impl Socket {
    pub fn set_read_timeout(&self, timeout: Duration) {
        match self {
            Socket::Tcp(s) => s.set_read_timeout(Some(timeout)),
            Socket::Unix(s) => s.set_read_timeout(Some(timeout)),
            Socket::Tls(s) => s.sock.set_read_timeout(Some(timeout)),
        }
        .expect("a read timeout can be set");
    }

    pub fn set_write_timeout(&self, timeout: Duration) {
        match self {
            Socket::Tcp(s) => s.set_write_timeout(Some(timeout)),
            Socket::Unix(s) => s.set_write_timeout(Some(timeout)),
            Socket::Tls(s) => s.sock.set_write_timeout(Some(timeout)),
        }
        .expect("a write timeout can be set");
    }

    pub fn try_clone(&self) -> io::Result<Socket> {
        Ok(match self {
            Socket::Tcp(s) => Socket::Tcp(s.try_clone()?),
            Socket::Unix(s) => Socket::Unix(s.try_clone()?),
            // The state of a TLS session cannot be shared.
            Socket::Tls(_) => return Err(ErrorKind::Unsupported.into()),
        })
    }

    pub fn shutdown(&self, how: Shutdown) {
        let _ = match self {
            Socket::Tcp(s) => s.shutdown(how),
            Socket::Unix(s) => s.shutdown(how),
            Socket::Tls(s) => s.sock.shutdown(how),
        };
    }

    /// Makes every later close a reset.
    pub fn reset_on_close(&self) {
        if let Socket::Tcp(s) = self {
            socket2::SockRef::from(s).set_linger(Some(Duration::ZERO)).expect("linger can be set");
        }
    }

    pub fn read(&mut self, chunk: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(s) => s.read(chunk),
            Socket::Unix(s) => s.read(chunk),
            Socket::Tls(s) => s.read(chunk),
        }
    }

    pub fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Socket::Tcp(s) => s.write_all(bytes),
            Socket::Unix(s) => s.write_all(bytes),
            Socket::Tls(s) => s.write_all(bytes),
        }
    }
}
