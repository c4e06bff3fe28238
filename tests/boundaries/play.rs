//! Plays a script on a connection of its own.

use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::parser::{Request, read_answers, read_requests};
use crate::script::{Entry, Script};
use crate::support::tls::shake_hands_over;
use crate::support::wire::Socket;
use crate::support::{Authority, Gateway, PATIENCE, ms};

/// The entries of the gateway under test.
pub struct Entries {
    pub addrs: [SocketAddr; 4],
    pub admin: SocketAddr,
    pub tls: Arc<rustls::ClientConfig>,
}

/// The bytes of the gateway, and whether it closed by itself.
pub struct Received {
    pub bytes: Vec<u8>,
    /// Bytes of the script that it took.
    pub sent: usize,
    pub was_closed: bool,
}

struct Connection {
    socket: Socket,
    received: Vec<u8>,
    is_closed: bool,
}

impl Entries {
    pub fn new(gateway: &Gateway, authority: &Authority) -> Entries {
        let addrs = gateway.addrs()[..].try_into().expect("four listeners");
        Entries { addrs, admin: gateway.admin(), tls: Arc::new(authority.client(None)) }
    }

    fn connect(&self, entry: Entry) -> Socket {
        let addr = match entry {
            Entry::Plain => self.addrs[0],
            Entry::Tls => self.addrs[1],
            Entry::Proxied => self.addrs[2],
            Entry::Calls => self.addrs[3],
            Entry::Admin => self.admin,
        };
        let stream = TcpStream::connect_timeout(&addr, PATIENCE).expect("the gateway accepts");
        stream.set_nodelay(true).expect("nodelay can be set");
        let mut socket = match entry {
            Entry::Tls => {
                let stream = shake_hands_over(stream, &self.tls, "a.test").expect("a handshake");
                Socket::Tls(Box::new(stream))
            }
            _ => Socket::Tcp(stream),
        };
        if entry == Entry::Proxied {
            socket.write_all(b"PROXY TCP4 192.0.2.1 198.51.100.7 12345 80\r\n").expect("the gateway reads");
        }
        socket.set_write_timeout(PATIENCE);
        socket
    }

    pub fn play(&self, script: &Script) -> Received {
        let socket = self.connect(script.entry);
        let mut connection = Connection { socket, received: Vec::new(), is_closed: false };
        let mut sent = 0;
        for step in &script.steps {
            if connection.is_closed || connection.socket.write_all(&script.bytes[sent..step.end]).is_err() {
                break;
            }
            sent = step.end;
            connection.listen(step.pause);
        }
        // Exactly the complete requests are answered, so that the end of the client ends none of them.
        let requests = read_requests(&script.bytes).0;
        let deadline = Instant::now() + 3 * PATIENCE;
        while !connection.is_closed && !connection.has_answered(&requests) && Instant::now() < deadline {
            connection.listen_once(ms(500));
        }
        let was_closed = connection.is_closed;
        connection.socket.shutdown(Shutdown::Write);
        let deadline = Instant::now() + PATIENCE;
        while !connection.is_closed && Instant::now() < deadline {
            connection.listen_once(ms(500));
        }
        Received { bytes: connection.received, sent, was_closed }
    }
}

impl Connection {
    fn has_answered(&self, requests: &[Request]) -> bool {
        let methods: Vec<&str> = requests.iter().map(|request| &*request.method).collect();
        let answered = read_answers(&self.received, &methods, false).0.len();
        answered >= requests.iter().filter(|request| request.is_complete).count()
    }

    /// Reads for the whole of `span`.
    fn listen(&mut self, span: Duration) {
        let end = Instant::now() + span;
        while let Some(left) = end.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if self.is_closed {
                std::thread::sleep(left);
            } else {
                self.listen_once(left);
            }
        }
    }

    fn listen_once(&mut self, most: Duration) {
        let mut piece = [0; 16 * 1024];
        self.socket.set_read_timeout(most.max(ms(1)));
        match self.socket.read(&mut piece) {
            Ok(0) => self.is_closed = true,
            Ok(count) => self.received.extend_from_slice(&piece[..count]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => self.is_closed = true,
        }
    }
}
