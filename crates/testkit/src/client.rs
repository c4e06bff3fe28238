//! The client: raw bytes out, parsed answers in.

use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::PATIENCE;
use super::http::{Headers, Response, status_of};
use super::tls::TlsStream;
use super::wire::{Body, End, Socket, Wire};

/// A request that is well-formed unless a header makes it invalid.
#[derive(Debug, Clone)]
pub struct Ask {
    method: String,
    target: String,
    host: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

/// `GET target`.
pub fn get(target: &str) -> Ask {
    Ask::new("GET", target)
}

/// `POST target` with a Content-Length.
pub fn post(target: &str, body: &[u8]) -> Ask {
    Ask { body: Some(body.to_vec()), ..Ask::new("POST", target) }
}

impl Ask {
    pub fn new(method: &str, target: &str) -> Ask {
        let (method, target, host) = (method.to_owned(), target.to_owned(), "gateway.test".to_owned());
        Ask { method, target, host, headers: Vec::new(), body: None }
    }

    pub fn host(mut self, host: &str) -> Ask {
        self.host = host.to_owned();
        self
    }

    pub fn header(mut self, name: &str, value: impl ToString) -> Ask {
        self.headers.push((name.to_owned(), value.to_string()));
        self
    }

    /// Sets the body with a Content-Length.
    pub fn body(mut self, body: &[u8]) -> Ask {
        self.body = Some(body.to_vec());
        self
    }

    pub fn head(&self) -> Vec<u8> {
        let mut head = format!("{} {} HTTP/1.1\r\nHost: {}\r\n", self.method, self.target, self.host);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        if let Some(body) = &self.body {
            head += &format!("Content-Length: {}\r\n", body.len());
        }
        (head + "\r\n").into_bytes()
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.head();
        bytes.extend_from_slice(self.body.as_deref().unwrap_or_default());
        bytes
    }
}

/// One connection.
pub struct Client {
    wire: Wire,
}

impl Client {
    #[track_caller]
    pub fn connect(addr: SocketAddr) -> Client {
        let stream = TcpStream::connect_timeout(&addr, PATIENCE).expect("the gateway accepts");
        stream.set_nodelay(true).expect("nodelay can be set");
        Client { wire: Wire::new(Socket::Tcp(stream)) }
    }

    /// Connects from `ip`, any of 127.0.0.0/8.
    #[track_caller]
    pub fn connect_from(ip: &str, addr: SocketAddr) -> Client {
        let ip: IpAddr = ip.parse().expect("an address");
        let socket = socket2::Socket::new(socket2::Domain::for_address(addr), socket2::Type::STREAM, None)
            .expect("a socket");
        socket.bind(&SocketAddr::new(ip, 0).into()).expect("loopback addresses can be bound");
        socket.connect_timeout(&addr.into(), PATIENCE).expect("the gateway accepts");
        socket.set_tcp_nodelay(true).expect("nodelay can be set");
        Client { wire: Wire::new(Socket::Tcp(socket.into())) }
    }

    /// Connects with a receive buffer of a few kilobytes, so that a paused reader blocks the writer at once.
    #[track_caller]
    pub fn connect_narrow(addr: SocketAddr) -> Client {
        let socket = socket2::Socket::new(socket2::Domain::for_address(addr), socket2::Type::STREAM, None)
            .expect("a socket");
        socket.set_recv_buffer_size(4096).expect("the buffer can be set");
        socket.connect_timeout(&addr.into(), PATIENCE).expect("the gateway accepts");
        Client { wire: Wire::new(Socket::Tcp(socket.into())) }
    }

    #[track_caller]
    pub fn connect_unix(path: &Path) -> Client {
        Client { wire: Wire::new(Socket::Unix(UnixStream::connect(path).expect("the gateway accepts"))) }
    }

    /// Uses a completed TLS handshake.
    pub fn over_tls(stream: TlsStream) -> Client {
        Client::over(Socket::Tls(Box::new(stream)))
    }

    /// Uses an open connection.
    pub fn over(socket: Socket) -> Client {
        Client { wire: Wire::new(socket) }
    }

    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).expect("the connection takes bytes");
    }

    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.wire.socket.set_write_timeout(PATIENCE);
        self.wire.socket.write_all(bytes.as_ref())
    }

    /// Sends each piece on its own, with a pause between.
    #[track_caller]
    pub fn send_pieces(&mut self, pieces: &[&[u8]], pause: Duration) {
        for (place, piece) in pieces.iter().enumerate() {
            if place > 0 {
                thread::sleep(pause);
            }
            self.send(piece);
        }
    }

    #[track_caller]
    pub fn ask(&mut self, ask: &Ask) -> Response {
        self.send(ask.bytes());
        if ask.method == "HEAD" { self.head_response() } else { self.response() }
    }

    /// The next answer.
    #[track_caller]
    pub fn response(&mut self) -> Response {
        self.read(false, PATIENCE).unwrap_or_else(|end| panic!("no answer: {end:?}"))
    }

    /// The next answer, to a HEAD.
    #[track_caller]
    pub fn head_response(&mut self) -> Response {
        self.read(true, PATIENCE).unwrap_or_else(|end| panic!("no answer: {end:?}"))
    }

    /// The next answer if its head comes within `timeout`.
    pub fn response_within(&mut self, timeout: Duration) -> Result<Response, End> {
        self.read(false, timeout)
    }

    fn read(&mut self, to_head: bool, timeout: Duration) -> Result<Response, End> {
        let deadline = Instant::now() + timeout;
        let mut interim = Vec::new();
        loop {
            let head = self.wire.until(b"\r\n\r\n", deadline)?;
            let at = Instant::now();
            let status = status_of(&head).ok_or(End::Nonsense)?;
            if (100..200).contains(&status) && status != 101 {
                interim.push(status);
                continue;
            }
            let bodyless = to_head || status == 101 || status == 204 || status == 304;
            let body = if bodyless { Body::default() } else { self.body(&head, Instant::now() + PATIENCE) };
            return Ok(Response::new(&head, body, interim, at));
        }
    }

    fn body(&mut self, head: &[u8], deadline: Instant) -> Body {
        let headers = Headers::parse(head);
        if headers.has("transfer-encoding") {
            return self.wire.chunked(deadline);
        }
        if let [length, others @ ..] = &headers.all("content-length")[..] {
            return match length.parse() {
                Ok(length) if others.is_empty() => self.wire.exactly(length, deadline),
                _ => Body { end: Some(End::Nonsense), ..Body::default() },
            };
        }
        let (bytes, end) = self.wire.rest(deadline);
        Body { bytes, end: Some(end).filter(|&e| e != End::Closed), ..Body::default() }
    }

    /// Interim answers and heads as raw bytes: up to and with the next empty line.
    pub fn raw_head(&mut self, timeout: Duration) -> Result<Vec<u8>, End> {
        self.wire.until(b"\r\n\r\n", Instant::now() + timeout)
    }

    /// All further bytes, until the peer closes or the timeout passes.
    pub fn rest(&mut self, timeout: Duration) -> (Vec<u8>, End) {
        self.wire.rest(Instant::now() + timeout)
    }

    /// The bytes until the peer closes, in order or by reset; panics if the connection stays open.
    #[track_caller]
    pub fn until_close(&mut self) -> (Vec<u8>, End) {
        let (bytes, end) = self.rest(PATIENCE);
        assert_ne!(end, End::Deadline, "the connection stays open after {} bytes", bytes.len());
        (bytes, end)
    }

    /// The peer closes without another byte.
    #[track_caller]
    pub fn assert_closed(&mut self) {
        let (bytes, _) = self.until_close();
        assert!(bytes.is_empty(), "unexpected bytes: {}", String::from_utf8_lossy(&bytes));
    }

    /// The next `length` bytes, or the part of them that came.
    pub fn take(&mut self, length: usize) -> Vec<u8> {
        self.wire.exactly(length, Instant::now() + PATIENCE).bytes
    }

    /// The next chunks, which together have exactly `length` bytes.
    pub fn take_chunks(&mut self, length: usize) -> Vec<u8> {
        let (mut taken, deadline) = (Vec::new(), Instant::now() + PATIENCE);
        while taken.len() < length {
            let Ok(line) = self.wire.until(b"\r\n", deadline) else { break };
            let size = String::from_utf8_lossy(&line[..line.len() - 2]).into_owned();
            let Ok(size) = usize::from_str_radix(&size, 16) else { break };
            let mut chunk = self.wire.exactly(size + 2, deadline).bytes;
            chunk.truncate(size);
            taken.extend(chunk);
        }
        taken
    }

    /// Reads and discards `length` bytes, if they come.
    pub fn skip(&mut self, length: usize, timeout: Duration) -> Option<End> {
        self.wire.exactly(length, Instant::now() + timeout).end
    }

    /// Shuts down the writing side.
    pub fn half_close(&self) {
        self.wire.socket.shutdown(Shutdown::Write);
    }

    /// Closes with a reset.
    pub fn reset(self) {
        self.wire.socket.reset_on_close();
    }

    /// A second handle that writes while this one reads.
    pub fn writer(&self) -> Socket {
        self.wire.socket.try_clone().expect("a socket can be cloned")
    }
}
