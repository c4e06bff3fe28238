//! A small HTTP/1.1 client for one thread and thousands of connections.
//!
//! It never decides when to send: callers pass it requests at the times of their own schedule and take finished
//! exchanges back, each with the moment its response was complete.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use mio::net::TcpStream;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use socket2::{Domain, Socket, Type};

use crate::child::Result;
use crate::facts;

const TIMER: Token = Token(usize::MAX);
/// Connections beyond this come from further loopback addresses: one address has about 28,000 free ports.
const PER_ADDRESS: usize = 20_000;
const SECOND: u64 = 1_000_000_000;

/// One finished exchange.
#[derive(Clone, Copy)]
pub struct Done {
    pub connection: usize,
    /// 0: the connection broke or the response was not HTTP.
    pub status: u16,
    pub sent: u64,
    pub at: u64,
}

struct Connection {
    stream: TcpStream,
    inbox: Vec<u8>,
    /// The time the request in flight was sent.
    sent: Option<u64>,
    broken: bool,
}

pub struct Client {
    poll: Poll,
    events: Events,
    timer: OwnedFd,
    armed: u64,
    connections: Vec<Connection>,
    buffer: Vec<u8>,
    done: Vec<Done>,
}

impl Client {
    /// Opens `count` connections to a loopback port.
    pub fn connect(port: u16, count: usize) -> Result<Self> {
        let poll = Poll::new()?;
        let timer =
            timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
        poll.registry().register(&mut SourceFd(&timer.as_raw_fd()), TIMER, Interest::READABLE)?;
        let mut connections = Vec::with_capacity(count);
        for place in 0..count {
            let mut stream = TcpStream::from_std(open(port, place)?);
            poll.registry().register(&mut stream, Token(place), Interest::READABLE)?;
            connections.push(Connection { stream, inbox: Vec::new(), sent: None, broken: false });
        }
        Ok(Self {
            poll,
            events: Events::with_capacity(1024),
            timer,
            armed: 0,
            connections,
            buffer: vec![0; 64 * 1024],
            done: Vec::new(),
        })
    }

    /// Sends a request without a body. The connection must be idle.
    pub fn send(&mut self, connection: usize, request: &[u8]) {
        let line = &mut self.connections[connection];
        assert!(line.sent.is_none(), "connection {connection} still waits for an answer");
        let now = facts::now();
        line.sent = Some(now);
        if line.broken || !line.stream.write(request).is_ok_and(|written| written == request.len()) {
            line.sent = None;
            self.done.push(Done { connection, status: 0, sent: now, at: now });
        }
    }

    /// Waits for finished exchanges, at most until `until`; none if that moment came first.
    pub fn finished(&mut self, until: u64) -> Result<Vec<Done>> {
        loop {
            let now = facts::now();
            if !self.done.is_empty() {
                return Ok(std::mem::take(&mut self.done));
            }
            self.arm(until)?;
            let timeout = Duration::from_nanos(until.saturating_sub(now));
            // The timer wakes exactly; the poll's own timeout is rounded up to milliseconds and only a safety net.
            let timeout = if timeout.is_zero() { timeout } else { timeout + Duration::from_millis(5) };
            match self.poll.poll(&mut self.events, Some(timeout)) {
                Err(error) if error.kind() != ErrorKind::Interrupted => return Err(error.into()),
                _ => {}
            }
            let ready: Vec<usize> = self
                .events
                .iter()
                .filter(|event| event.token() != TIMER)
                .map(|event| event.token().0)
                .collect();
            for connection in ready {
                self.read(connection);
            }
            if self.done.is_empty() && facts::now() >= until {
                return Ok(Vec::new());
            }
        }
    }

    fn arm(&mut self, until: u64) -> Result<()> {
        if self.armed == until {
            return Ok(());
        }
        self.armed = until;
        let at = Timespec { tv_sec: i64::try_from(until / SECOND)?, tv_nsec: i64::try_from(until % SECOND)? };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)?;
        Ok(())
    }

    fn read(&mut self, connection: usize) {
        let line = &mut self.connections[connection];
        let status = loop {
            match line.stream.read(&mut self.buffer) {
                Ok(0) => break Some(0),
                Ok(got) => {
                    line.inbox.extend_from_slice(&self.buffer[..got]);
                    if got < self.buffer.len() {
                        break answer(&line.inbox);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break answer(&line.inbox),
                Err(_) => break Some(0),
            }
        };
        line.broken = status == Some(0);
        let (Some(status), Some(sent)) = (status, line.sent) else { return };
        line.sent = None;
        line.inbox.clear();
        self.done.push(Done { connection, status, sent, at: facts::now() });
    }
}

fn open(port: u16, place: usize) -> Result<std::net::TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    let further = u8::try_from(place / PER_ADDRESS)?;
    if further > 0 {
        socket.bind(&SocketAddr::from((Ipv4Addr::new(127, 0, 0, 1 + further), 0)).into())?;
    }
    let target = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    socket.connect_timeout(&target.into(), Duration::from_secs(5))?;
    socket.set_tcp_nodelay(true)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

/// The status of the response in `bytes` once it is complete; 0 if it is not HTTP or more than one response.
fn answer(bytes: &[u8]) -> Option<u16> {
    let mut fields = [httparse::EMPTY_HEADER; 64];
    let mut head = httparse::Response::new(&mut fields);
    let start = match head.parse(bytes) {
        Ok(httparse::Status::Complete(start)) => start,
        Ok(httparse::Status::Partial) => return None,
        Err(_) => return Some(0),
    };
    let status = head.code?;
    let field = |name: &str| head.headers.iter().find(|field| field.name.eq_ignore_ascii_case(name));
    let body = bytes.len() - start;
    if field("transfer-encoding").is_some() {
        // Chunked: requests are not pipelined, so the last chunk is the end of the bytes.
        let complete = bytes[start..] == *b"0\r\n\r\n" || bytes.ends_with(b"\r\n0\r\n\r\n");
        return complete.then_some(status);
    }
    let length = match field("content-length") {
        Some(field) => std::str::from_utf8(field.value).ok()?.trim().parse().unwrap_or(usize::MAX),
        None => 0,
    };
    match body.cmp(&length) {
        std::cmp::Ordering::Less => None,
        std::cmp::Ordering::Equal => Some(status),
        std::cmp::Ordering::Greater => Some(0),
    }
}

/// Sends one request on its own connection; returns the status and the whole response as text.
pub fn probe(port: u16, request: &str) -> Result<(u16, String)> {
    let mut stream = open(port, 0)?;
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(request.as_bytes())?;
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        if let Some(status) = answer(&bytes) {
            return Ok((status, String::from_utf8_lossy(&bytes).into_owned()));
        }
        match stream.read(&mut buffer)? {
            0 => return Err("the connection closed before the answer was complete".into()),
            got => bytes.extend_from_slice(&buffer[..got]),
        }
    }
}
