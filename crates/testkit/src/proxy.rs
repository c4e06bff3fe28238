//! The network between a gateway and its Redis, which a test can cut, close or slow down.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::timing::ms;

/// The treatment of bytes and of new connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Forward,
    /// No byte moves and no end is notified, as when a switch drops all packets. Sent bytes arrive afterwards.
    Hold,
    /// Requests arrive and run, answers are lost.
    Mute,
    /// Connections are closed, new ones at once.
    Refuse,
}

/// A TCP proxy; dropping it closes everything.
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    mode: Mode,
    /// The delay of every piece, in each direction.
    delay: Duration,
    /// The minimum and maximum of the additional delay of a reply.
    lateness: [Duration; 2],
    /// Pseudo-random, the same in each run.
    dice: u64,
    target: SocketAddr,
    open: Vec<Pair>,
    /// The times of connections, including those that were not forwarded.
    attempts: Vec<Instant>,
    /// Bytes passed on to the server and to the gateway.
    bytes: [u64; 2],
    ended: bool,
}

/// The two ends of one forwarded connection.
struct Pair {
    number: usize,
    ends: [TcpStream; 2],
    /// Bytes were lost: the pair is unusable.
    spoilt: bool,
}

// === impl Proxy ===

impl Proxy {
    #[track_caller]
    pub fn start(target: SocketAddr) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        let (mode, delay) = (Mode::Forward, Duration::ZERO);
        let (lateness, dice) = ([Duration::ZERO; 2], 1);
        let (open, attempts) = (Vec::new(), Vec::new());
        let state =
            State { mode, delay, lateness, dice, target, open, attempts, bytes: [0; 2], ended: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Condvar::new() });
        let road = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if road.state.lock().unwrap().ended {
                    return;
                }
                let road = road.clone();
                thread::spawn(move || road.serve(stream));
            }
        });
        Proxy { addr, shared }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The URL for `state.redis.url`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Forwards again: delayed bytes continue, connections that lost answers are closed.
    pub fn forward(&self) {
        self.switch(Mode::Forward);
    }

    /// A partition without resets: connections stay and are accepted, no byte moves.
    pub fn stop_forwarding(&self) {
        self.switch(Mode::Hold);
    }

    /// Requests still run, but their answers are lost.
    pub fn drop_replies(&self) {
        self.switch(Mode::Mute);
    }

    /// Closes all connections, and every new one at once.
    pub fn refuse(&self) {
        self.switch(Mode::Refuse);
    }

    fn switch(&self, mode: Mode) {
        let mut state = self.shared.state.lock().unwrap();
        state.mode = mode;
        for pair in state.open.iter().filter(|pair| pair.spoilt || mode == Mode::Refuse) {
            pair.close();
        }
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Delays every piece by at least this much, in each direction.
    pub fn delay(&self, delay: Duration) {
        self.shared.state.lock().unwrap().delay = delay;
    }

    /// Delays each reply by a random time between the two.
    pub fn delay_replies(&self, least: Duration, most: Duration) {
        self.shared.state.lock().unwrap().lateness = [least, most];
    }

    /// The destination of connections from now on.
    pub fn lead_to(&self, target: SocketAddr) {
        self.shared.state.lock().unwrap().target = target;
    }

    /// The times of all connections so far, including refused ones.
    pub fn attempts(&self) -> Vec<Instant> {
        self.shared.state.lock().unwrap().attempts.clone()
    }

    /// Bytes passed on to the server and to the gateway.
    pub fn bytes(&self) -> [u64; 2] {
        self.shared.state.lock().unwrap().bytes
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.state.lock().unwrap().ended = true;
        self.switch(Mode::Refuse);
        // Wakes the accepting thread.
        let _ = TcpStream::connect_timeout(&self.addr, ms(100));
    }
}

// === impl Shared ===

impl Shared {
    fn serve(&self, gateway: TcpStream) {
        let mut state = self.state.lock().unwrap();
        state.attempts.push(Instant::now());
        let number = state.attempts.len();
        state = self.changed.wait_while(state, |state| state.mode == Mode::Hold).unwrap();
        if state.mode == Mode::Refuse {
            return reset(&gateway);
        }
        let target = state.target;
        drop(state);
        let Ok(server) = TcpStream::connect_timeout(&target, Duration::from_secs(1)) else {
            return reset(&gateway);
        };
        let both = || Some([gateway.try_clone().ok()?, server.try_clone().ok()?]);
        let Some(ends) = both() else { return };
        self.state.lock().unwrap().open.push(Pair { number, ends, spoilt: false });
        thread::scope(|scope| {
            scope.spawn(|| self.pump(number, 0, &gateway, &server));
            self.pump(number, 1, &server, &gateway);
        });
        self.state.lock().unwrap().open.retain(|pair| pair.number != number);
    }

    /// Passes on the bytes of `from` until it ends; `way` 0 = to the server, 1 = to the gateway.
    fn pump(&self, number: usize, way: usize, from: &TcpStream, to: &TcpStream) {
        for stream in [from, to] {
            let _ = stream.set_nodelay(true);
        }
        let (pieces, due) = channel();
        thread::scope(|scope| {
            scope.spawn(|| write_when_due(due, from, to));
            while let Some(piece) = self.take_piece(number, way, from) {
                if pieces.send(piece).is_err() {
                    break;
                }
            }
            drop(pieces);
        });
        let _ = from.shutdown(Shutdown::Both);
        let _ = to.shutdown(Shutdown::Both);
    }

    /// The next bytes and the moment at which they are due; empty when they are lost, `None` at the end.
    fn take_piece(&self, number: usize, way: usize, mut from: &TcpStream) -> Option<(Instant, Vec<u8>)> {
        let mut piece = vec![0; 64 * 1024];
        let length = loop {
            match from.read(&mut piece) {
                Ok(length) => break length,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => break 0,
            }
        };
        piece.truncate(length);
        let state = self.state.lock().unwrap();
        let mut state = self.changed.wait_while(state, |state| state.mode == Mode::Hold).unwrap();
        let lost = state.mode == Mode::Mute && way == 1 && length > 0;
        if let Some(pair) = state.open.iter_mut().find(|pair| pair.number == number && lost) {
            pair.spoilt = true;
        }
        if length == 0 || state.mode == Mode::Refuse {
            return None;
        }
        if lost {
            piece.clear();
        }
        state.bytes[way] += piece.len() as u64;
        Some((Instant::now() + state.next_delay(way), piece))
    }
}

/// Writes each piece at its moment, in order; closes a connection that accepts no more.
fn write_when_due(pieces: Receiver<(Instant, Vec<u8>)>, from: &TcpStream, mut to: &TcpStream) {
    for (due, piece) in pieces {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&piece).is_err() {
            let _ = from.shutdown(Shutdown::Both);
            let _ = to.shutdown(Shutdown::Both);
            return;
        }
    }
}

// === impl State ===

impl State {
    /// The delay of the next piece.
    fn next_delay(&mut self, way: usize) -> Duration {
        let [least, most] = self.lateness;
        if way == 0 || most.is_zero() {
            return self.delay;
        }
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let spread = (most - least).as_micros() as u64 + 1;
        self.delay + least + Duration::from_micros((self.dice >> 33) % spread)
    }
}

// === impl Pair ===

impl Pair {
    fn close(&self) {
        for end in &self.ends {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

/// Closes with a reset, as a port without a listener answers.
fn reset(stream: &TcpStream) {
    let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
}
