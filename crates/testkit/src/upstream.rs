//! The recording upstream: records requests, and answers as scripted.

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::PATIENCE;
use super::http::Headers;
use super::wire::{Body, End, Socket, Wire};

/// One request as the upstream saw it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Which connection, counted from 0.
    pub connection: usize,
    /// The moment at which its head was complete.
    pub at: Instant,
    pub method: String,
    pub target: String,
    pub version: String,
    pub headers: Headers,
    pub body: Vec<u8>,
    pub trailers: Headers,
    /// The cause of an early end of the body.
    pub cut: Option<End>,
}

impl Seen {
    #[track_caller]
    pub fn header(&self, name: &str) -> Option<String> {
        self.headers.get(name)
    }
}

/// A gate at which scripts wait until the test opens it.
#[derive(Clone, Default)]
pub struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub fn open(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_all();
    }

    /// Waits until it is open, at most [`PATIENCE`].
    pub fn wait(&self) {
        let open = self.0.0.lock().unwrap();
        drop(self.0.1.wait_timeout_while(open, PATIENCE, |open| !*open));
    }
}

#[derive(Clone)]
enum Step {
    Send(Vec<u8>),
    Pause(Duration),
    Wait(Gate),
    Close,
    Reset,
}

/// The answer to one request: steps, one after the other.
#[derive(Clone, Default)]
pub struct Reply {
    steps: Vec<Step>,
    early: bool,
}

impl Reply {
    pub fn text(body: &str) -> Reply {
        Reply::with(200, &[], body)
    }

    pub fn with(status: u16, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut head = format!("HTTP/1.1 {status} Whatever\r\n");
        for (name, value) in headers {
            head += &format!("{name}: {value}\r\n");
        }
        Reply::raw(format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()))
    }

    pub fn raw(bytes: impl AsRef<[u8]>) -> Reply {
        Reply::default().then(bytes)
    }

    /// Sends nothing until the peer gives up.
    pub fn silence() -> Reply {
        Reply::default().until(&Gate::default())
    }

    /// Answers after the head, without waiting for the body.
    pub fn early(mut self) -> Reply {
        self.early = true;
        self
    }

    /// Waits before everything else.
    pub fn after(mut self, pause: Duration) -> Reply {
        self.steps.insert(0, Step::Pause(pause));
        self
    }

    /// Waits for the gate before everything else.
    pub fn held_by(mut self, gate: &Gate) -> Reply {
        self.steps.insert(0, Step::Wait(gate.clone()));
        self
    }

    pub fn then(mut self, bytes: impl AsRef<[u8]>) -> Reply {
        self.steps.push(Step::Send(bytes.as_ref().to_vec()));
        self
    }

    pub fn pause(mut self, pause: Duration) -> Reply {
        self.steps.push(Step::Pause(pause));
        self
    }

    pub fn until(mut self, gate: &Gate) -> Reply {
        self.steps.push(Step::Wait(gate.clone()));
        self
    }

    pub fn close(mut self) -> Reply {
        self.steps.push(Step::Close);
        self
    }

    pub fn reset(mut self) -> Reply {
        self.steps.push(Step::Reset);
        self
    }
}

#[derive(Default)]
struct Book {
    seen: Vec<Seen>,
    /// Raw bytes of each connection.
    taps: Vec<Arc<Mutex<Vec<u8>>>>,
    /// Connections that the peer has ended.
    ended: usize,
}

#[derive(Default)]
struct Shared {
    book: Mutex<Book>,
    changed: Condvar,
}

type Script = dyn Fn(&Seen) -> Reply + Send + Sync;

pub struct Upstream {
    addr: SocketAddr,
    shared: Arc<Shared>,
}

impl Upstream {
    /// Answers each request with the reply of `script`.
    pub fn new(script: impl Fn(&Seen) -> Reply + Send + Sync + 'static) -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let addr = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared::default());
        let (book, script): (_, Arc<Script>) = (shared.clone(), Arc::new(script));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (book, script) = (book.clone(), script.clone());
                thread::spawn(move || serve(stream, &book, &*script));
            }
        });
        Upstream { addr, shared }
    }

    /// Answers everything with 200 and `ok`.
    pub fn ok() -> Upstream {
        Upstream::new(|_| Reply::text("ok"))
    }

    /// Answers everything with 200 and this text.
    pub fn named(name: &'static str) -> Upstream {
        Upstream::new(move |_| Reply::text(name))
    }

    /// Answers with these replies in turn, then with 200 `ok`.
    pub fn in_turn(replies: impl IntoIterator<Item = Reply>) -> Upstream {
        let queue: Mutex<VecDeque<_>> = Mutex::new(replies.into_iter().collect());
        Upstream::new(move |_| queue.lock().unwrap().pop_front().unwrap_or_else(|| Reply::text("ok")))
    }

    /// Holds every request until the gate opens, then answers 200 `ok`.
    pub fn held_by(gate: &Gate) -> Upstream {
        let gate = gate.clone();
        Upstream::new(move |_| Reply::text("ok").held_by(&gate))
    }

    /// Holds requests for `target` until the gate opens, then answers 200 `held`; others get 200 `ok` at once.
    pub fn holding(target: &'static str, gate: &Gate) -> Upstream {
        let gate = gate.clone();
        Upstream::new(move |seen| match seen.target == target {
            true => Reply::text("held").held_by(&gate),
            false => Reply::text("ok"),
        })
    }

    /// Answers `/large` with that many bytes, everything else with 200 and `ok`.
    pub fn with_large(bytes: usize) -> Upstream {
        let large = "x".repeat(bytes);
        Upstream::new(move |seen| Reply::text(if seen.target == "/large" { &large } else { "ok" }))
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The value for `upstream:` in a location.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    pub fn requests(&self) -> Vec<Seen> {
        self.shared.book.lock().unwrap().seen.clone()
    }

    pub fn count(&self) -> usize {
        self.shared.book.lock().unwrap().seen.len()
    }

    pub fn targets(&self) -> Vec<String> {
        self.requests().into_iter().map(|seen| seen.target).collect()
    }

    /// The number of connections opened to it so far.
    pub fn connections(&self) -> usize {
        self.shared.book.lock().unwrap().taps.len()
    }

    /// All bytes received over one connection.
    pub fn raw(&self, connection: usize) -> Vec<u8> {
        self.shared.book.lock().unwrap().taps[connection].lock().unwrap().clone()
    }

    /// Waits until `count` requests were recorded, and returns them.
    #[track_caller]
    pub fn wait_for(&self, count: usize) -> Vec<Seen> {
        self.wait(&format!("{count} requests"), |book| book.seen.len() >= count);
        self.requests()
    }

    /// Waits until the gateway has ended `count` of its connections.
    #[track_caller]
    pub fn wait_ended(&self, count: usize) {
        self.wait(&format!("the end of {count} connections"), |book| book.ended >= count);
    }

    #[track_caller]
    fn wait(&self, what: &str, done: impl Fn(&Book) -> bool) {
        let book = self.shared.book.lock().unwrap();
        let (book, timeout) =
            self.shared.changed.wait_timeout_while(book, PATIENCE, |book| !done(book)).unwrap();
        assert!(!timeout.timed_out(), "the upstream waited for {what}, saw {:?}", book.seen);
    }
}

fn serve(stream: TcpStream, shared: &Shared, script: &Script) {
    stream.set_nodelay(true).expect("nodelay can be set");
    let tap = Arc::new(Mutex::new(Vec::new()));
    let connection = {
        let mut book = shared.book.lock().unwrap();
        book.taps.push(tap.clone());
        book.taps.len() - 1
    };
    let mut wire = Wire::tapped(Socket::Tcp(stream), tap);
    while let Some(seen) = read_head(&mut wire, connection) {
        if answer(&mut wire, shared, script, seen).is_none() {
            break;
        }
    }
    wire.socket.shutdown(Shutdown::Both);
    shared.book.lock().unwrap().ended += 1;
    shared.changed.notify_all();
}

fn read_head(wire: &mut Wire, connection: usize) -> Option<Seen> {
    let head = wire.until(b"\r\n\r\n", Instant::now() + 6 * PATIENCE).ok()?;
    let line = String::from_utf8_lossy(head.split(|&b| b == b'\r').next()?).into_owned();
    let mut words = line.splitn(3, ' ').map(str::to_owned);
    Some(Seen {
        connection,
        at: Instant::now(),
        method: words.next()?,
        target: words.next().unwrap_or_default(),
        version: words.next().unwrap_or_default(),
        headers: Headers::parse(&head),
        body: Vec::new(),
        trailers: Headers::default(),
        cut: None,
    })
}

/// Records the request and plays its reply; `None` when the connection is over.
fn answer(wire: &mut Wire, shared: &Shared, script: &Script, mut seen: Seen) -> Option<()> {
    let reply = script(&seen);
    if !reply.early {
        read_body(wire, &mut seen);
    }
    let cut = seen.cut;
    let place = {
        let mut book = shared.book.lock().unwrap();
        book.seen.push(seen);
        book.seen.len() - 1
    };
    shared.changed.notify_all();
    if cut.is_some() {
        return None;
    }
    for step in &reply.steps {
        match step {
            Step::Send(bytes) => wire.socket.write_all(bytes).ok()?,
            Step::Pause(pause) => thread::sleep(*pause),
            Step::Wait(gate) => gate.wait(),
            Step::Close => return None,
            Step::Reset => {
                wire.socket.reset_on_close();
                return None;
            }
        }
    }
    if reply.early {
        let mut late = shared.book.lock().unwrap().seen[place].clone();
        read_body(wire, &mut late);
        let cut = late.cut;
        shared.book.lock().unwrap().seen[place] = late;
        shared.changed.notify_all();
        return cut.is_none().then_some(());
    }
    Some(())
}

fn read_body(wire: &mut Wire, seen: &mut Seen) {
    let deadline = Instant::now() + PATIENCE;
    let body = if seen.headers.has("transfer-encoding") {
        wire.chunked(deadline)
    } else if let Some(length) = seen.headers.all("content-length").first() {
        wire.exactly(length.parse().unwrap_or(0), deadline)
    } else {
        Body::default()
    };
    seen.body = body.bytes;
    seen.trailers = body.trailers;
    seen.cut = body.end;
}

/// A server that refuses connections: its port is bound, but does not listen.
pub struct Refusing {
    addr: SocketAddr,
    _socket: socket2::Socket,
}

impl Refusing {
    pub fn new() -> Refusing {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
        let addr = socket.local_addr().expect("an address").as_socket().expect("an IP address");
        Refusing { addr, _socket: socket }
    }

    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }
}

/// A server that neither accepts nor refuses: its backlog is full.
pub struct Blackhole {
    addr: SocketAddr,
    _held: (socket2::Socket, Vec<TcpStream>),
}

impl Blackhole {
    pub fn new() -> Blackhole {
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).expect("a socket");
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
        socket.listen(0).expect("it can listen");
        let addr = socket.local_addr().expect("an address").as_socket().expect("an IP address");
        let mut filling = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&addr, Duration::from_millis(100)) {
            filling.push(stream);
            assert!(filling.len() < 100, "the backlog never fills");
        }
        Blackhole { addr, _held: (socket, filling) }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }
}
